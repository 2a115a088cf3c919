"""Where the time of a large fit goes: the operator should take most of it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import cofem
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
from cofem.experiments.study.measure import warm_up, whole_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Cell, Measurement, Rows
from cofem.inference.problem import Meter


class Profile(Study):
    """Share of a run inside operator applications."""

    name = "profile"
    summary = "share of a large fit that is spent inside operator applications"
    how = (
        "DCT samples, N = D/4, 0.1 D coefficients from N(0, 1), noise 0.005 known, float32, a default fit "
        "to its end. Products with Phi and its adjoint are timed one by one as the fit calls them; products "
        "with |Phi|^2 and those of the checks before and after the fit are not counted. The limit is the "
        "time of the products alone."
    )
    setting_columns = ("D",)
    figures = ("operator_share",)

    def cells(self, options: Options) -> list[Cell]:
        """One size."""
        return grid(sizes(14) if options.quick else sizes(18), ("default",), options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit, and ask the counter of products for their time."""
        method = METHODS[cell.method]
        D = int(cell.setting["D"])
        case = problems.dct(D, f=4, density=0.1, seed=cell.seed, dtype=np.float32)
        warm_up(method)
        meters: list[Meter] = []

        def look(state: Any) -> None:
            meters[:] = [state._problem.phi]

        start = time.perf_counter()
        post = cofem.fit(
            case.Phi, case.y, noise_std=case.noise_std, method=method, rng=cell.seed, callback=look
        )
        total = time.perf_counter() - start
        return whole_fit(case, post, total, {"operator_share": meters[0].seconds / total})

    def report(self, rows: Rows) -> Report:
        """Give the share in percent."""
        lines, checks = [], []
        for D in rows.values("D"):
            part = rows.where(D=D)
            share = 100 * part.median("operator_share")
            text = number(share, " %")
            total = part.median("seconds")
            lines.append([power(D), seconds(total), seconds(total * share / 100), text])
            checks.append(at_least(f"D = {power(D)}: share of the operator", share, 70, text, " %"))
        header = ["D", "time of the fit", "time of the products", "share"]
        return Report([Table("Share of the operator:", header, lines)], checks)
