"""How often credible intervals hold the truth, method by method."""

from __future__ import annotations

import math
import time
import warnings

import numpy as np
from scipy.special import ndtri

import cofem
from cofem.experiments import problems
from cofem.experiments.bench.noise import unseen
from cofem.experiments.study.base import Check, Options, Report, Study, Table, grid, number
from cofem.experiments.study.measure import whole_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

LEVELS = (0.5, 0.9)
WHERE = ("nonzero", "zero", "prediction")


class Coverage(Study):
    """Coverage of intervals at learned precisions."""

    name = "coverage"
    summary = "share of the truth inside credible intervals, method by method"
    how = (
        "D = 1024, N = D/4, 0.04 D non-zeros (dense: +-1, DCT: N(0, 1)), noise 0.01 known, float64, "
        "precisions learned. *Non-zero* and *zero* are the coefficients that are so in truth, *prediction* "
        "data at 200 rows that were not measured. Precisions are learned from the same data, so intervals "
        "of coefficients need not hold what they promise; at known precisions they do "
        "(tests/test_calibration.py)."
    )
    setting_columns = ("kind",)
    figures = tuple(f"{where}_{level:g}" for where in WHERE for level in LEVELS)

    def cells(self, options: Options) -> list[Cell]:
        """Every method on both kinds."""
        sweep: list[dict[str, Value]] = [{"kind": kind} for kind in ("dct", "dense")]
        methods = ("default", "paper 2e-5", "em", "irls", "amp", "vi", "seq")
        seeds = options.seeds or (1 if options.quick else 10)
        return grid(sweep, methods[:1] if options.quick else methods, seeds, options.first_seed)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit, and count what lies inside."""
        kind = str(cell.setting["kind"])
        case = getattr(problems, kind)(1024, sigma=0.01, seed=cell.seed)
        rng = np.random.default_rng(10_000 + cell.seed)
        new, y_new = unseen(kind, case, rng)
        label = "paper" if cell.method == "paper 2e-5" and kind == "dense" else cell.method
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cofem.ConvergenceWarning)
            start = time.perf_counter()
            post = cofem.fit(case.Phi, case.y, noise_std=0.01, method=METHODS[label], rng=cell.seed)
            seconds = time.perf_counter() - start
            mean, std = post.predict(new, return_std=True)
        inside: dict[str, float] = {}
        nonzero = case.z != 0
        for level in LEVELS:
            lower, upper = post.credible_interval(level)
            held = (lower <= case.z) & (case.z <= upper)
            inside[f"nonzero_{level:g}"] = float(np.mean(held[nonzero]))
            inside[f"zero_{level:g}"] = float(np.mean(held[~nonzero]))
            half = ndtri(0.5 + level / 2) * std
            inside[f"prediction_{level:g}"] = float(np.mean(np.abs(y_new - mean) <= half))
        return whole_fit(case, post, seconds, inside)

    def report(self, rows: Rows) -> Report:
        """Give mean shares."""
        lines, checks = [], []
        for kind in rows.values("kind"):
            for method in rows.methods:
                part = rows.where(method, kind=kind)
                shares = {name: mean_share(part, name) for name in self.figures}
                lines.append(
                    [
                        kind,
                        method,
                        number(part.median("nrmse"), " %"),
                        *(number(100 * share, " %") for share in shares.values()),
                    ]
                )
                if method == "default":
                    share = shares["prediction_0.9"]
                    known = None if math.isnan(share) else 0.85 <= share <= 0.95
                    what = f"{kind}: default, 90 % intervals of predictions"
                    checks.append(Check(what, "85 % to 95 %", number(100 * share, " %"), known))
        header = ["problem", "method", "NRMSE"]
        header += [
            f"{where}, {level:.0%}" for where in ("non-zero", "zero", "prediction") for level in LEVELS
        ]
        return Report([Table("Mean share inside:", header, lines)], checks)


def mean_share(rows: Rows, name: str) -> float:
    """Return the mean of a figure over rows that have it."""
    known = [row.measurement[name] for row in rows if not math.isnan(row.measurement[name])]
    return sum(known) / len(known) if known else math.nan
