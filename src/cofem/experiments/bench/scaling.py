"""How the time of a fit grows with its size."""

from __future__ import annotations

import math

from cofem.experiments.bench.dct_time import recover, time_plot
from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    at_most,
    grid,
    number,
    power,
    seconds,
    sizes,
)
from cofem.experiments.study.results import Cell, Measurement, Rows

#: Largest growth of the time when D doubles.
GROWTH = 2.4


class Scaling(Study):
    """Time of a default fit as D doubles."""

    name = "scaling"
    summary = "growth of the time to an NRMSE of 2 % as D doubles"
    how = (
        "DCT samples, N = D/4, 0.1 D coefficients from N(0, 1), noise 0.005 known, float32, the default "
        "method. A ratio is that of the median times at 2 D and at D."
    )
    setting_columns = ("D",)

    def cells(self, options: Options) -> list[Cell]:
        """Sizes that double."""
        exponents = range(12, 15) if options.quick else range(14, 22)
        return grid(sizes(*exponents), ("default",), options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Time one fit."""
        return recover(int(cell.setting["D"]), cell.method, cell.seed, options.time_limit)

    def report(self, rows: Rows) -> Report:
        """Divide each time by the one before."""
        lines, checks = [], []
        for D in rows.values("D"):
            part, half = rows.where(D=D), rows.where(D=D // 2)
            growth = part.median_to_target() / half.median_to_target() if half else math.nan
            text = number(growth, "x")
            line = [power(D), seconds(part.median_to_target())]
            lines.append([*line, *(number(part.median(c)) for c in ("applications", "iterations")), text])
            if half:
                what = f"time at D = {power(D)} / at {power(D // 2)}"
                checks.append(at_most(what, growth, GROWTH, text, "x"))
        header = ["D", "time", "applications", "steps", "time / time at D/2"]
        title = "time to an NRMSE of 2 %, default"
        return Report([Table("Time to the target:", header, lines)], checks, time_plot(rows, title))
