"""The error on many kinds of dictionary, against the paper's algorithm and exact EM."""

from __future__ import annotations

import numpy as np

from cofem.experiments.problems import KINDS
from cofem.experiments.study.base import Options, Report, Study, Table, at_most, grid, number
from cofem.experiments.study.measure import timed_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

#: The default's error over the better of the others'.
SLACK = 1.05
#: Most outer steps.
STEPS = {"default": 200, "paper": 50, "exact EM": 200}


class Kinds(Study):
    """Final error by kind of dictionary."""

    name = "kinds"
    summary = "final error on many kinds of dictionary"
    how = (
        "Final NRMSE, noise 0.005 known, float64. The default is `cofem.CoFEM()`, which is matrix-free, "
        "with at most 200 steps; the paper's algorithm takes at most 50; exact EM is `irls` or "
        "`em`, whichever factors the smaller matrix, with at most 200. All have their default "
        "tolerance. With columns of unequal norms the error is weighted by the norms; with duplicated "
        "columns it is that of the sum over the copies; in the autoregressive problem that of what "
        "arrived between samples."
    )
    setting_columns = ("kind", "D")

    def cells(self, options: Options) -> list[Cell]:
        """Every kind."""
        sweep: list[dict[str, Value]] = [
            {"kind": kind, "D": D // (16 if options.quick else 1)} for kind, (D, _) in KINDS.items()
        ]
        return grid(sweep, STEPS, options.seeds or (1 if options.quick else 5))

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit to the end."""
        _, make = KINDS[str(cell.setting["kind"])]
        case = make(int(cell.setting["D"]), cell.seed)
        name = cell.method
        if name == "exact EM":
            name = "em" if case.Phi.shape[1] <= case.Phi.shape[0] else "irls"
        return timed_fit(
            case,
            METHODS[name],
            seed=cell.seed,
            time_limit=options.time_limit,
            max_iter=STEPS[cell.method],
        )

    def report(self, rows: Rows) -> Report:
        """Divide the default's median error by the better of the others'."""
        lines, checks = [], []
        points: dict[str, list[float]] = {name: [] for name in STEPS}
        kinds = rows.values("kind")
        for kind in kinds:
            part = rows.where(kind=kind)
            errors = {name: part.where(name).median("nrmse") for name in STEPS}
            for name, error in errors.items():
                points[name].append(error)
            better = float(np.fmin(errors["paper"], errors["exact EM"]))
            ratio = errors["default"] / better
            shown = [number(error, " %") for error in errors.values()]
            lines.append([kind, str(part.values("D")[0]), *shown, f"{ratio:.3f}"])
            what = f"{kind}: NRMSE, default / better of paper and EM"
            checks.append(at_most(what, ratio, SLACK, f"{ratio:.3f}"))
        header = ["kind", "D", *STEPS, "default / better"]
        series = {name: (kinds, errors) for name, errors in points.items()}
        plot = Plot(series, "", "NRMSE, %", "median NRMSE by kind of dictionary")
        return Report([Table("Median NRMSE:", header, lines)], checks, plot)
