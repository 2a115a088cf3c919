"""How often a signal is recovered as data get scarce."""

from __future__ import annotations

import math

from cofem.experiments import problems
from cofem.experiments.exact_dct import ExactOnDCT
from cofem.experiments.study.base import Options, Report, Study, Table, at_least, grid, number
from cofem.experiments.study.measure import timed_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

#: NRMSE in percent below which a signal counts as recovered.
RECOVERED = 2.0
#: Outer steps, and the tolerance: None for the default, 0 to take all steps.
STEPS: dict[str, tuple[int | None, float | None]] = {
    "default": (None, None),
    "paper 2e-5": (50, 0.0),
    "exact EM": (200, 0.0),
}


class Success(Study):
    """Share of problems recovered."""

    name = "success"
    summary = "share of problems recovered as data get scarce"
    how = (
        "DCT samples, N = D/f, 0.04 D coefficients from N(0, 1), noise 0.005 known, float64. Recovered "
        "means a final NRMSE below 2 %. The default runs to its own end, the paper's algorithm 50 steps, "
        "exact EM 200 (computed by cosine sums in place of matrix products; a test compares it with `irls`)."
    )
    setting_columns = ("D", "f")

    def cells(self, options: Options) -> list[Cell]:
        """Exact EM last, since it takes most of the time."""
        D, factors = (512, (5, 6)) if options.quick else (8192, (6, 7, 8))
        seeds = options.seeds or (2 if options.quick else 20)
        sweep: list[dict[str, Value]] = [{"D": D, "f": f} for f in factors]
        return [*grid(sweep, ("default", "paper 2e-5"), seeds), *grid(sweep, ("exact EM",), seeds)]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit to the end."""
        case = problems.dct(int(cell.setting["D"]), f=int(cell.setting["f"]), seed=cell.seed)
        steps, tol = STEPS[cell.method]
        return timed_fit(
            case,
            ExactOnDCT() if cell.method == "exact EM" else METHODS[cell.method],
            seed=cell.seed,
            time_limit=options.time_limit,
            max_iter=steps,
            tol=tol,
        )

    def report(self, rows: Rows) -> Report:
        """Give shares and median errors, factor by factor."""
        lines, checks = [], []
        series: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in rows.methods}
        for f in rows.values("f"):
            part = rows.where(f=f)
            line = [str(f)]
            for name in STEPS:
                runs = part.where(name)
                share = success_share(runs)
                line += [number(100 * share, " %"), number(runs.median("nrmse"), " %"), str(len(runs))]
                if runs:
                    series[name][0].append(f)
                    series[name][1].append(100 * share)
            lines.append(line)
            ours, exact = on_same_problems(part.where("default"), part.where("exact EM"))
            difference = 100 * (success_share(ours) - success_share(exact))
            text = f"{number(100 * success_share(ours))} % against {number(100 * success_share(exact))} %"
            what = f"f = {f}: recovered, default less EM, on the same {len(ours)} problems"
            checks.append(at_least(what, difference, 0, text, " points"))
        header = ["f"]
        for name in STEPS:
            header += [f"{name}: recovered", "median NRMSE", "problems"]
        plot = Plot(series, "f = D / N", "recovered, %", "share recovered", log_x=False, log_y=False)
        return Report([Table("Recovered:", header, lines)], checks, plot)


def success_share(rows: Rows) -> float:
    """Return the share of rows with an error below the threshold; NaN without rows."""
    errors = [row.measurement.nrmse for row in rows]
    return sum(error < RECOVERED for error in errors) / len(errors) if errors else math.nan


def on_same_problems(rows: Rows, reference: Rows) -> tuple[Rows, Rows]:
    """Return the rows of the seeds on which the reference came to its end, so that like meets like."""
    ended = Rows(row for row in reference if row.measurement.reached and rows.where(seed=row.cell.seed))
    seeds = {row.cell.seed for row in ended}
    return Rows(row for row in rows if row.cell.seed in seeds), ended
