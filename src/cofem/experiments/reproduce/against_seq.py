"""Experiment (f): CoFEM against Seq, time to an NRMSE of 2 %."""

from __future__ import annotations

import math

from cofem.experiments.reproduce.base import (
    ORDER,
    bands_over,
    claim,
    common,
    gpu_claim,
    series_over,
    time_text,
)
from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    grid,
    number,
    power,
    sizes,
    skip_if_too_slow,
)
from cofem.experiments.study.fresh import MEMORY_FIGURES, Request, fit_in_fresh_process
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows

TARGET = 2.0
CHEAPEST = "paper 2e-5"


class AgainstSeq(Study):
    """Time to 2 % with a tenth of the coefficients not zero."""

    name = "f"
    summary = "CoFEM against Seq, structured dictionary: time to an NRMSE of 2 %"
    how = (
        "Inverse DCT and mask, N = D / 4, 0.1 D coefficients from N(0, 1), noise 0.005 known, float64, "
        "U = 400, K = 20, each fit in a process of its own. A method that exceeds the time limit is "
        "stopped and not tried at larger sizes."
    )
    setting_columns = ("D",)
    figures = MEMORY_FIGURES

    def cells(self, options: Options) -> list[Cell]:
        """Every size."""
        sweep = sizes(*((10, 11, 12) if options.quick else range(12, 19)))
        return grid(sweep, ("default", CHEAPEST, "seq"), options.seeds or 1, options.first_seed)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit to the target."""
        skip_if_too_slow(cell, earlier)
        steps = None if cell.method == "seq" else 200
        request = Request(
            "dct",
            {"D": cell.setting["D"], "density": 0.1},
            cell.method,
            cell.seed,
            target=TARGET,
            time_limit=options.time_limit,
            checkpoints=str(options.checkpoints) if options.checkpoints else None,
            max_iter=steps,
            tol=0.0,
        )
        return fit_in_fresh_process(request)

    def report(self, rows: Rows) -> Report:
        """Give times to the target by size."""

        def to_target(part: Rows) -> float:
            found = part.median_to_target()
            return found if math.isfinite(found) else math.nan

        lines = []
        for D in rows.values("D"):
            line = [power(D)]
            for method in ("default", CHEAPEST, "seq"):
                part = rows.where(method, D=D)
                line += [time_text(part), number(part.median("peak_mb"), " MB")]
            lines.append(line)
        header = ["D"]
        for label in ("cofem default", "CoFEM (Algorithm 1)", "Seq"):
            header += [label, "peak"]
        plot = Plot(
            series_over(rows, "D", to_target),
            "D",
            "seconds to an NRMSE of 2 %",
            "(f) structured dictionary: CoFEM against Seq",
            bands=bands_over(Rows(row for row in rows if row.measurement.reached), "D", "seconds"),
            order=ORDER,
        )
        sizes_of_both = common(rows, (CHEAPEST, "seq"))
        ratios = [
            (D, rows.where("seq", D=D).median("seconds") / rows.where(CHEAPEST, D=D).median("seconds"))
            for D in sizes_of_both
        ]
        default = [
            (D, rows.where("seq", D=D).median("seconds") / rows.where("default", D=D).median("seconds"))
            for D in common(rows, ("default", "seq"))
        ]
        measured = "; ".join(
            f"Seq / {label} = " + ", ".join(f"{ratio:.2g} at {power(D)}" for D, ratio in found)
            for label, found in (("Algorithm 1", ratios), ("default", default))
            if found
        )
        checks = [
            claim(
                "CoFEM is much faster than Seq on CPU for large D.",
                "time of Seq / Algorithm 1 at least 5 at the largest D that both finished",
                measured or "–",
                ratios[-1][1] >= 5 if ratios else None,
            ),
            gpu_claim(
                "CoFEM on a GPU is up to hundreds of times faster than Seq, which does not fit on it at 2^18."
            ),
        ]
        return Report([Table("Time to the target and peak memory:", header, lines)], checks, plot)
