"""How often intervals hold the truth after everything was learned, on many kinds of dictionary."""

from __future__ import annotations

import math
import time
import warnings

import numpy as np
from scipy.special import ndtri

import cofem
from cofem.experiments.bench.coverage import mean_share
from cofem.experiments.problems import KINDS
from cofem.experiments.study.base import Check, Options, Report, Study, Table, grid, number
from cofem.experiments.study.measure import whole_fit
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

#: Probability of the intervals, and what part of the data is kept from the fit.
LEVEL, KEPT_BACK = 0.9, 0.1
#: Shares of new data inside of the intervals that count as right.
RIGHT = (0.85, 0.95)


class LearnedCoverage(Study):
    """Coverage after noise and precisions were learned."""

    name = "learned-coverage"
    summary = "share of new data inside credible intervals when the noise is learned, by kind of dictionary"
    how = (
        "A tenth of the data is kept from `cofem.fit(Phi, y)`, which learns the noise (0.005 in truth) and "
        "the precisions from the rest; a quarter of the D of `kinds`, float64. *New data* is the share of "
        "the data kept back inside their 90 % intervals, *non-zero* that of the coefficients that are not "
        "zero in truth; where the data cannot tell columns apart (blurs, copies) the latter says little."
    )
    setting_columns = ("kind", "D")
    figures = ("new_data", "nonzero", "noise_ratio")

    def cells(self, options: Options) -> list[Cell]:
        """Every kind."""
        sweep: list[dict[str, Value]] = [
            {"kind": kind, "D": D // (16 if options.quick else 4)} for kind, (D, _) in KINDS.items()
        ]
        return grid(sweep, ("default",), options.seeds or (1 if options.quick else 3))

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit a part, and count what of the rest lies inside."""
        _, make = KINDS[str(cell.setting["kind"])]
        case = make(int(cell.setting["D"]), cell.seed)
        Phi = cofem.as_operator(case.Phi)
        order = np.random.default_rng(10_000 + cell.seed).permutation(Phi.shape[0])
        new, seen = np.split(order, [max(1, round(KEPT_BACK * order.size))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cofem.ConvergenceWarning)
            start = time.perf_counter()
            post = cofem.fit(Phi.take_rows(np.sort(seen)), case.y[np.sort(seen)], rng=cell.seed)
            seconds = time.perf_counter() - start
            mean, std = post.predict(Phi.take_rows(new), return_std=True)
        error = case.y[new] - mean
        if np.iscomplexobj(error):  # the real and the imaginary parts, each with half the variance
            error, std = np.concatenate([error.real, error.imag]), np.tile(std, 2) / np.sqrt(2)
        lower, upper = post.credible_interval(LEVEL)
        held = (lower.real <= case.z.real) & (case.z.real <= upper.real)
        figures = {
            "new_data": float(np.mean(np.abs(error) <= ndtri(0.5 + LEVEL / 2) * std)),
            "nonzero": float(np.mean(held[case.z != 0])),
            "noise_ratio": float(post.noise_std) / case.noise_std,
        }
        return whole_fit(case, post, seconds, figures)

    def report(self, rows: Rows) -> Report:
        """Give mean shares and the median noise."""
        lines, checks = [], []
        for kind in rows.values("kind"):
            part = rows.where(kind=kind)
            shares = {name: mean_share(part, name) for name in ("new_data", "nonzero")}
            ratio = part.median("noise_ratio")
            lines.append(
                [
                    kind,
                    str(part.values("D")[0]),
                    number(part.median("nrmse"), " %"),
                    *(number(100 * share, " %") for share in shares.values()),
                    number(ratio),
                ]
            )
            share = shares["new_data"]
            known = None if math.isnan(share) else RIGHT[0] <= share <= RIGHT[1]
            what = f"{kind}: 90 % intervals of new data"
            checks.append(Check(what, "85 % to 95 %", number(100 * share, " %"), known))
        header = ["kind", "D", "NRMSE", "new data, 90 %", "non-zero, 90 %", "learned / true noise"]
        return Report([Table("Mean share inside, and the median noise:", header, lines)], checks)
