"""Experiment (f): CoFEM against Seq, time to an NRMSE of 2 %."""

from __future__ import annotations

import math

from cofem.experiments.reproduce.base import ORDER, claim, gpu_claim, series_over, time_text
from cofem.experiments.reproduce.growth import exponent
from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    grid,
    number,
    power,
    seconds,
    sizes,
    skip_if_too_slow,
)
from cofem.experiments.study.fresh import MEMORY_FIGURES, Request, fit_in_fresh_process
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import FAILED, Cell, Measurement, Rows

TARGET = 2.0
CHEAPEST = "paper 2e-5"
COMPARED = ("default", CHEAPEST, "seq")
OURS = {"Algorithm 1": CHEAPEST, "default": "default"}
#: Sizes that a growth is taken from.
GROWING = 3


class AgainstSeq(Study):
    """Time to 2 % with a tenth of the coefficients not zero."""

    name = "f"
    summary = "CoFEM against Seq, structured dictionary: time to an NRMSE of 2 %"
    how = (
        "Inverse DCT and mask, N = D / 4, 0.1 D coefficients from N(0, 1), noise 0.005 known, float64, "
        "U = 400, K = 20, each fit in a process of its own. A method that exceeds the time limit is "
        "stopped and not tried at larger sizes; its times there are estimates, marked ≈ and hollow in the "
        f"figure, by the power of D that its {GROWING} largest finished sizes follow, "
        "from these or from where it was stopped, whichever is more."
    )
    setting_columns = ("D",)
    figures = MEMORY_FIGURES

    def cells(self, options: Options) -> list[Cell]:
        """Every size."""
        sweep = sizes(*((10, 11, 12) if options.quick else range(12, 19)))
        return grid(sweep, COMPARED, options.seeds or 1, options.first_seed)

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
        times = {
            method: {D: _time(rows.where(method), D) for D in rows.values("D")} for method in rows.methods
        }
        lines = []
        for D in rows.values("D"):
            line = [power(D)]
            for method in COMPARED:
                part = rows.where(method, D=D)
                estimate = times.get(method, {}).get(D, math.nan)
                known = all(row.measurement.reached for row in part) or math.isnan(estimate)
                line += [time_text(part) if known else f"≈ {seconds(estimate)}"]
                line += [number(part.median("peak_mb"), " MB")]
            lines.append(line)
        header = ["D"]
        for label in ("cofem default", "CoFEM (Algorithm 1)", "Seq"):
            header += [label, "peak"]

        def of_rows(part: Rows) -> float:
            cell = part[0].cell
            return times[cell.method][int(cell.setting["D"])]

        late = Rows(row for row in rows if not row.measurement.reached)
        plot = Plot(
            series_over(rows, "D", of_rows),
            "D",
            "seconds to an NRMSE of 2 %",
            "(f) structured dictionary: CoFEM against Seq",
            order=ORDER,
            hollow=series_over(late, "D", of_rows),
        )

        def ratios(method: str) -> list[tuple[int, float]]:
            pairs = [(D, seq / times.get(method, {}).get(D, math.nan)) for D, seq in times["seq"].items()]
            return [(D, ratio) for D, ratio in pairs if not math.isnan(ratio)]

        found = {label: ratios(method) for label, method in OURS.items()} if "seq" in times else {}
        measured = "; ".join(
            f"Seq / {label} = " + ", ".join(f"{ratio:.2g} at {power(D)}" for D, ratio in pairs)
            for label, pairs in found.items()
            if pairs
        )
        judged = found.get("Algorithm 1", [])
        checks = [
            claim(
                "CoFEM is much faster than Seq on CPU for large D.",
                "time of Seq / Algorithm 1 at least 5 at the largest D at which both have a time",
                measured or "–",
                judged[-1][1] >= 5 if judged else None,
            ),
            gpu_claim(
                "CoFEM on a GPU is up to hundreds of times faster than Seq, which does not fit on it at 2^18."
            ),
        ]
        return Report([Table("Time to the target and peak memory:", header, lines)], checks, plot)


def _time(rows: Rows, D: int) -> float:
    """Return the time of a method to the target at a size, or what its growth up to there says; or NaN."""
    part = rows.where(D=D)
    if part and all(row.measurement.reached for row in part):
        return part.median("seconds")
    ended = [
        size for size in sorted(rows.values("D")) if all(r.measurement.reached for r in rows.where(D=size))
    ]
    ended = ended[-GROWING:]
    if not part or any(row.measurement.note.startswith(FAILED) for row in part):
        return math.nan
    if len(ended) < GROWING or ended[-1] > D:
        return math.nan
    slope = exponent(Rows(row for row in rows if row.cell.setting["D"] in ended), "seconds")
    # It took that long at least where it was stopped.
    stopped = [size for size in rows.values("D") if ended[-1] < size <= D]
    known = [(size, rows.where(D=size).median("seconds")) for size in (ended[-1], *stopped)]
    return max(seconds * (D / size) ** slope for size, seconds in known if not math.isnan(seconds))
