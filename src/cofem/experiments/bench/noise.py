"""How well the noise is learned, and what not knowing it costs."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np

import cofem
from cofem.experiments import problems
from cofem.experiments.study.base import Check, Options, Report, Study, Table, grid, number
from cofem.experiments.study.measure import whole_fit
from cofem.experiments.study.results import Cell, Measurement, Rows, Value
from cofem.operators import DCT, Mask

#: Rows that were not measured, at which predictions are judged.
NEW_ROWS = 200
#: Half the width of a 90 % interval of a normal distribution.
NINETY = 1.6448536
FACTOR, SLACK, COVERAGE = 1.5, 1.15, (0.85, 0.95)


class LearnedNoise(Study):
    """The learned noise against the true one."""

    name = "noise"
    summary = "the learned noise level, and what not knowing it costs"
    how = (
        "D = 1024, 0.04 D non-zeros (dense: +-1, DCT: N(0, 1)), float64, `cofem.fit` with nothing but the "
        "dictionary and the data, and once more with the true noise. *Coverage* is the share of data at "
        f"{NEW_ROWS} rows that were not measured inside the 90 % interval of their prediction."
    )
    setting_columns = ("kind", "sigma", "f")
    figures = ("noise_ratio", "nrmse_ratio", "coverage", "known_coverage")

    def cells(self, options: Options) -> list[Cell]:
        """Every kind, noise and undersampling."""
        noises, factors = ((0.01,), (3,)) if options.quick else ((0.001, 0.005, 0.03, 0.1), (2, 3, 4, 5))
        sweep: list[dict[str, Value]] = [
            {"kind": kind, "sigma": sigma, "f": f}
            for kind in ("dct", "dense")
            for sigma in noises
            for f in factors
        ]
        seeds = options.seeds or (1 if options.quick else 20)
        # Seed by seed, so that a run that is stopped has all settings.
        return [
            cell for seed in range(seeds) for cell in grid(sweep, ("auto",), 1, options.first_seed + seed)
        ]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit with and without the noise, and predict at new rows."""
        kind, sigma, f = str(cell.setting["kind"]), float(cell.setting["sigma"]), int(cell.setting["f"])
        case = getattr(problems, kind)(1024, f=f, sigma=sigma, seed=cell.seed)
        rng = np.random.default_rng(10_000 + cell.seed)
        new, y_new = unseen(kind, case, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cofem.ConvergenceWarning)
            start = time.perf_counter()
            learned = cofem.fit(case.Phi, case.y, rng=cell.seed)
            seconds = time.perf_counter() - start
            known = cofem.fit(case.Phi, case.y, noise_std=sigma, rng=cell.seed)
            covered = [_coverage(post, new, y_new) for post in (learned, known)]
        figures = {
            "noise_ratio": float(learned.noise_std) / sigma,
            "nrmse_ratio": case.nrmse(learned.mean) / case.nrmse(known.mean),
            "coverage": covered[0],
            "known_coverage": covered[1],
        }
        return whole_fit(case, learned, seconds, figures)

    def report(self, rows: Rows) -> Report:
        """Give medians and the worst, setting by setting."""
        lines, checks = [], []
        for kind in rows.values("kind"):
            part = rows.where(kind=kind)
            settings = [(sigma, f) for sigma in part.values("sigma") for f in part.values("f")]
            summaries = []
            for sigma, f in settings:
                cells = part.where(sigma=sigma, f=f)
                ratios = [row.measurement["noise_ratio"] for row in cells]
                known = [ratio for ratio in ratios if not math.isnan(ratio)]
                if not known:
                    continue
                worst = max(known, key=lambda ratio: abs(math.log(ratio)))
                medians = {name: cells.median(name) for name in self.figures}
                errors = [row.measurement["nrmse_ratio"] for row in cells]
                covered = [row.measurement["coverage"] for row in cells]
                medians["coverage"] = float(np.nanmean(covered))
                summaries.append((medians, worst))
                lines.append(
                    [
                        kind,
                        number(sigma),
                        str(f),
                        str(len(known)),
                        number(medians["noise_ratio"]),
                        number(worst),
                        number(medians["nrmse_ratio"]),
                        number(float(np.nanmax(errors))),
                        number(100 * medians["coverage"], " %"),
                        number(100 * medians["known_coverage"], " %"),
                    ]
                )
            checks += _checks(kind, summaries)
        header = [
            "problem",
            "noise",
            "f",
            "seeds",
            "learned / true, median",
            "worst",
            "NRMSE / with true noise, median",
            "worst",
            "coverage, mean",
            "with true noise",
        ]
        return Report([Table("Learned noise:", header, lines)], checks)


def _checks(kind: str, summaries: list[tuple[dict[str, float], float]]) -> list[Check]:
    if not summaries:
        names = ("learned / true", "NRMSE ratio", "coverage")
        return [Check(f"{kind}: {name}", "–", "–", None) for name in names]
    medians = [m["noise_ratio"] for m, _ in summaries]
    worst = max((w for _, w in summaries), key=lambda ratio: abs(math.log(ratio)))
    errors = [m["nrmse_ratio"] for m, _ in summaries]
    covered = [m["coverage"] for m, _ in summaries]
    return [
        Check(
            f"{kind}: learned / true noise, medians of all settings",
            f"within a factor {FACTOR:g}",
            f"{min(medians):.2f} to {max(medians):.2f}",
            all(1 / FACTOR <= m <= FACTOR for m in medians),
        ),
        Check(
            f"{kind}: learned / true noise, worst of all seeds",
            f"within a factor {FACTOR:g}",
            f"{worst:.2f}",
            1 / FACTOR <= worst <= FACTOR,
        ),
        Check(
            f"{kind}: NRMSE over that with the true noise, medians",
            f"<= {SLACK:g}",
            f"up to {max(errors):.2f}",
            max(errors) <= SLACK,
        ),
        Check(
            f"{kind}: coverage of 90 % intervals at new rows",
            f"{COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}",
            f"{min(covered):.1%} to {max(covered):.1%}",
            COVERAGE[0] <= min(covered) and max(covered) <= COVERAGE[1],
        ),
    ]


def unseen(kind: str, case: problems.Case, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """Return rows of the same kind of dictionary that were not measured, and data at them."""
    D = case.z.size
    if kind == "dense":
        new: Any = rng.standard_normal((NEW_ROWS, D))
    else:
        left = np.setdiff1d(np.arange(D), case.Phi.factors[0].indices)
        new = Mask(np.sort(rng.choice(left, NEW_ROWS, replace=False)), D) @ DCT(D).T
    return new, cofem.as_operator(new) @ case.z + case.noise_std * rng.standard_normal(NEW_ROWS)


def _coverage(post: cofem.Posterior, new: Any, y: np.ndarray) -> float:
    mean, std = post.predict(new, return_std=True)
    return float(np.mean(np.abs(y - mean) <= NINETY * std))
