"""How much memory a fit needs above its data."""

from __future__ import annotations

import dataclasses

from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    at_most,
    grid,
    number,
    power,
    sizes,
)
from cofem.experiments.study.fresh import MEMORY_FIGURES, Request, fit_in_fresh_process
from cofem.experiments.study.results import Cell, Measurement, Rows

#: Bytes of a number in float32.
ITEM = 4


class Memory(Study):
    """Peak memory of a fit, in fresh processes."""

    name = "memory"
    summary = "peak memory of a fit above its data"
    how = (
        "DCT samples, N = D/4, 0.1 D coefficients, float32, a fit to its end in a process of its own. "
        "*Added* is the peak of the resident memory during the fit, less what was resident right before "
        "it, when the data and all libraries were there; a tiny fit came first. *Traced* is the peak of "
        "what NumPy allocated during the same fit in another process (`tracemalloc`), without the scratch "
        "space of the FFT. A vector is D numbers of 4 bytes."
    )
    setting_columns = ("D",)
    figures = MEMORY_FIGURES

    vectors_wanted = 16
    peak_mb_wanted = 1000

    def cells(self, options: Options) -> list[Cell]:
        """Return the default at a large size, direct probes at a smaller one."""
        large, small = (16, 12) if options.quick else (20, 18)
        return [
            *grid(sizes(large), ("default",), options.repeats),
            *grid(sizes(small), ("probes",), options.repeats),
        ]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit in two fresh processes: one for the memory of the process, one for that of the arrays."""
        request = Request(
            "dct",
            {"D": cell.setting["D"], "f": 4, "density": 0.1, "dtype": "float32"},
            cell.method,
            cell.seed,
            time_limit=options.time_limit,
        )
        plain = fit_in_fresh_process(request)
        traced = fit_in_fresh_process(dataclasses.replace(request, traced=True))
        figures = {**plain.figures, "traced_mb": traced.figures["traced_mb"]}
        return dataclasses.replace(plain, figures=figures)

    def report(self, rows: Rows) -> Report:
        """Give memory in megabytes and in vectors of length D."""
        lines, checks = [], []
        for method in rows.methods:
            for D in rows.where(method).values("D"):
                part = rows.where(method, D=D)
                vectors = {name: 1e6 * part.median(name) / (ITEM * D) for name in ("added_mb", "traced_mb")}
                peak = part.median("peak_mb")
                lines.append(
                    [
                        method,
                        power(D),
                        *(number(part.median(name), " MB") for name in (*MEMORY_FIGURES, "peak_mb")),
                        *(number(value) for value in vectors.values()),
                    ]
                )
                if method == "default":
                    what = f"default, D = {power(D)}: vectors of length D above the data"
                    checks.append(
                        at_most(what, vectors["added_mb"], self.vectors_wanted, number(vectors["added_mb"]))
                    )
                else:
                    what = f"20 probes, D = {power(D)}: peak of the process"
                    text = number(peak, " MB")
                    checks.append(at_most(what, peak, self.peak_mb_wanted, text, " MB"))
        header = ["method", "D", "before", "added", "traced", "peak", "added / vector", "traced / vector"]
        return Report([Table("Memory:", header, lines)], checks)
