"""Where the time of a large fit goes: the operator should take most of it."""

from __future__ import annotations

import cProfile
import dataclasses
import pstats

import numpy as np

from cofem.experiments import problems
from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    at_least,
    grid,
    number,
    power,
    seconds,
    sizes,
)
from cofem.experiments.study.measure import timed_fit, warm_up
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Cell, Measurement, Rows
from cofem.inference.problem import Meter


class Profile(Study):
    """Share of a run inside operator applications."""

    name = "profile"
    summary = "share of a large fit that is spent inside operator applications"
    how = (
        "DCT samples, N = D/4, 0.1 D coefficients from N(0, 1), noise 0.005 known, float32, a default fit "
        "to its end under `cProfile`. Counted are products with Phi and its adjoint; products with "
        "|Phi|^2 are not."
    )
    setting_columns = ("D",)
    figures = ("operator_share",)

    def cells(self, options: Options) -> list[Cell]:
        """One size."""
        return grid(sizes(14) if options.quick else sizes(18), ("default",), options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit under the profiler."""
        method = METHODS[cell.method]
        D = int(cell.setting["D"])
        case = problems.dct(D, f=4, density=0.1, seed=cell.seed, dtype=np.float32)
        warm_up(method)
        with cProfile.Profile() as profiler:
            measured = timed_fit(case, method, seed=cell.seed, time_limit=options.time_limit)
        return dataclasses.replace(measured, figures={"operator_share": _operator_share(profiler)})

    def report(self, rows: Rows) -> Report:
        """Give the share in percent."""
        lines, checks = [], []
        for D in rows.values("D"):
            part = rows.where(D=D)
            share = 100 * part.median("operator_share")
            text = number(share, " %")
            lines.append([power(D), seconds(part.median("seconds")), text])
            checks.append(at_least(f"D = {power(D)}: share of the operator", share, 70, text, " %"))
        return Report([Table("Share of the operator:", ["D", "time of the fit", "share"], lines)], checks)


def _operator_share(profiler: cProfile.Profile) -> float:
    stats = pstats.Stats(profiler)
    inside = 0.0
    for product in (Meter.forward, Meter.adjoint, Meter.gram):  # none of them calls another
        code = product.__code__
        key = (code.co_filename, code.co_firstlineno, code.co_name)
        entry = stats.stats.get(key)  # type: ignore[attr-defined]
        inside += entry[3] if entry else 0.0
    return inside / stats.total_tt  # type: ignore[attr-defined]
