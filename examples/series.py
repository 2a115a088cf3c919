"""Series with missing samples
===========================

Time series with a third of the samples missing: sunspots and carbon dioxide.

Task: predict the samples that were not seen, with intervals.

Data: yearly sunspot numbers from 1700 to 2008, and monthly means of the carbon dioxide at Mauna Loa from 1958
to 2001, both as they ship with statsmodels.

Compared with: Gaussian processes of scikit-learn. Their hyperparameters maximise the evidence, from several
starts for the sunspots; the best of four kernels (two for carbon dioxide, one that of scikit-learn's own
example on these data) is taken with the missing samples in sight, which no user has. Some of the kernels know
of the cycle: 8 to 14 years, and one year.

cofem is given the samples alone, ``analysis=n``: it learns the spectrum of the series, with seasons if there
are any, and the noise, and compares that with first and second differences by data that it holds out. Nothing
about it was chosen with these series in sight.

Needs: statsmodels.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/series.png'

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from _common import BLUE, ORANGE, Scores, rmse, save, save_curves, start_with_seeds, timed
from matplotlib import pyplot as plt
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ExpSineSquared,
    Kernel,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.gaussian_process.kernels import ConstantKernel as Constant
from statsmodels.datasets import co2, sunspots

import cofem
from cofem.operators import Identity, Mask

MISSING = 1 / 3
CYCLE = RBF(30.0) * ExpSineSquared(1.0, 11.0, periodicity_bounds=(8, 14))
TREND = Constant(10.0, (1e-3, 1e6)) * RBF(50.0, (1, 1e4))
YEAR = RBF(100.0, (1, 1e4)) * ExpSineSquared(1.0, 1.0, periodicity_bounds="fixed")
SLOW = TREND + Constant(0.02, (1e-6, 1e3)) * YEAR
WEAK, NOISE = Constant(0.002, (1e-7, 1e2)), WhiteKernel(1e-4, (1e-8, 1))


class Series(NamedTuple):
    """A series, its times in years, kernels, and starts beside the first."""

    values: np.ndarray
    times: np.ndarray
    kernels: tuple[Kernel, ...]
    restarts: int


# %%
# The series
# ----------
# Each with the kernels of the Gaussian processes it is compared with.


def load() -> dict[str, Series]:
    """Return both series."""
    spots, carbon = (
        sunspots.load_pandas().data,
        co2.load_pandas().data["co2"].resample("MS").mean().to_numpy(),
    )
    spot_kernels = (
        Constant(1.0) * Matern(3.0, nu=1.5) + WhiteKernel(0.05),
        Constant(1.0) * Matern(3.0, nu=2.5) + WhiteKernel(0.05),
        Constant(1.0) * CYCLE + WhiteKernel(0.05),
        Constant(1.0) * CYCLE + Constant(0.3) * Matern(2.0, nu=1.5) + WhiteKernel(0.02),
    )
    fast = Constant(1e-4, (1e-8, 1)) * RBF(0.1, (1e-2, 1e2))
    carbon_kernels = (
        SLOW + WEAK * RationalQuadratic(1.0, 1.0) + fast + NOISE,
        SLOW + WEAK * Matern(1.0, nu=1.5) + NOISE,
    )
    years, months = spots["YEAR"].to_numpy(), 1958 + (2 + np.arange(carbon.size)) / 12
    return {
        "sunspots": Series(spots["SUNACTIVITY"].to_numpy(), years, spot_kernels, 2),
        "carbon dioxide in ppm": Series(carbon, months, carbon_kernels, 0),
    }


# %%
# Gaussian process, and cofem
# ---------------------------
# cofem gets ``Mask(seen)`` and the length of the series, and no kernel.


def process(series: Series, seen: np.ndarray, kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of all samples by a Gaussian process."""
    times, y = series.times[:, None], series.values[seen]
    regressor = GaussianProcessRegressor(kernel, n_restarts_optimizer=series.restarts, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # hyperparameters at their bounds
        regressor.fit(times[seen], (y - y.mean()) / y.std())
    mean, std = regressor.predict(times, return_std=True)
    return y.mean() + y.std() * mean, y.std() * std


def by_cofem(series: Series, seen: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return mean and standard deviation of all samples, and the posterior."""
    y = series.values[seen]
    level = y.mean()
    post = cofem.fit(Mask(seen), y - level, analysis=seen.size, rng=seed)
    mean, std = post.predict(Identity(seen.size), return_std=True, rng=seed)
    return level + mean, std, post


# %%
# The comparison
# --------------
# A third of the samples is left out at random.


def run(seed: int, series: Series, scores: Scores) -> tuple[np.ndarray, ...]:
    """Compare on one draw of the missing samples; return what is drawn."""
    known = np.isfinite(series.values)  # the record has gaps of its own
    drawn = np.random.default_rng(seed).random(known.size) < MISSING
    seen, lost = known & ~drawn, known & drawn
    truth = series.values[lost]

    def error(found: tuple[np.ndarray, ...]) -> float:
        return rmse(found[0][lost], truth)

    def held(found: tuple[np.ndarray, ...]) -> float:
        return float(np.mean(abs(found[0][lost] - truth) < 1.96 * found[1][lost]))

    straight = np.interp(series.times, series.times[seen], series.values[seen])
    scores.add("linear interpolation", error((straight,)), 0.0)
    name = "Gaussian process, best kernel"
    scores.tune(name, lambda kernel: process(series, seen, kernel), series.kernels, error, held=held)
    (mean, std, post), seconds = timed(by_cofem, series, seen, seed)
    scores.add("cofem, analysis=n", error((mean,)), seconds, held((mean, std)))
    print(f"    noise {post.noise_std:.3g}; {post.n_iter} steps; {post.status}")
    return mean, std, np.where(seen, series.values, np.nan), np.where(lost, series.values, np.nan)


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    figure, axes = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
    results = {}
    for (name, series), ax in zip(load().items(), axes, strict=True):
        results[name] = Scores(".4g")
        print(f"\n{name}")
        curves = results[name].over(seeds, run, series)
        times, mean, std, seen, lost = (curve[-100:] for curve in (series.times, *curves))
        ax.fill_between(times, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.25, lw=0)
        ax.plot(times, mean, color=BLUE, lw=1, label="cofem, 95 % intervals")
        ax.plot(times, seen, "k.", ms=4, label="seen")
        ax.plot(times, lost, "o", mfc="none", color=ORANGE, ms=5, label="missing")
        ax.set(ylabel=name)
    for name, scores in results.items():
        scores.table(f"RMSE of the missing, {name}")
    axes[0].legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, out / "series.png", dpi=72)
    save_curves(axes[0], out / "thumbnails/series.png")


if __name__ == "__main__":
    main()
