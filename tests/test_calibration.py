"""Calibration: with coefficients drawn from the prior, posteriors say the truth about them.

Simulation-based calibration (Talts et al. 2018) at known precisions and noise: the rank of the true
coefficient among posterior draws, and its quantile in the marginal, must be uniform.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import cofem
from cofem.operators import DCT, Mask

#: Problems, coefficients of each, draws of each posterior.
PROBLEMS, D, N, DRAWS = 60, 40, 24, 19
SIGMA = 0.3

EXACT = {
    "em": cofem.EM(),
    "irls": cofem.IRLS(),
    "cofem": cofem.CoFEM(diagonal="exact", cg_tol=1e-8, cg_iterations=2000),
}


def simulate(seed: int, kind: str):
    rng = np.random.default_rng(seed)
    if kind == "dct":
        Phi = Mask(np.sort(rng.choice(D, N, replace=False)), D) @ DCT(D).T
    else:
        Phi = rng.standard_normal((N, D))
        if kind == "complex":
            Phi = (Phi + 1j * rng.standard_normal((N, D))) / np.sqrt(2)
    alpha = 10 ** rng.uniform(-1, 2, D)

    def normal(size):
        if kind != "complex":
            return rng.standard_normal(size)
        return (rng.standard_normal(size) + 1j * rng.standard_normal(size)) / np.sqrt(2)

    z = normal(D) / np.sqrt(alpha)
    return Phi, Phi @ z + SIGMA * normal(N), z, alpha


@pytest.mark.parametrize("kind", ["dense", "dct", "complex"])
@pytest.mark.parametrize("method", EXACT)
def test_exact_posteriors_are_calibrated_at_known_hyperparameters(method: str, kind: str) -> None:
    quantiles, ranks = [], []
    for seed in range(PROBLEMS):
        Phi, y, z, alpha = simulate(seed, kind)
        # One step from the true precisions leaves them as they are.
        post = cofem.fit(Phi, y, noise_std=SIGMA, method=EXACT[method], alpha_init=alpha, max_iter=1, rng=0)
        np.testing.assert_allclose(post.alpha, alpha, rtol=1e-12)
        if kind == "complex":
            quantiles.append(1 - np.exp(-(np.abs(z - post.mean) ** 2) / post.variance))
        else:
            quantiles.append(stats.norm.cdf((z - post.mean) / post.std))
        if seed % 3 == 0:
            draws = post.sample(DRAWS, rng=10_000 + seed)  # not the numbers that made the problem
            ranks.append(np.sum(draws.real < z.real, axis=0))
    # Coefficients of one problem depend on each other; one of each is a fair sample of problems.
    flat = np.concatenate(quantiles)
    assert stats.kstest(flat, "uniform").statistic < 0.05
    counts = np.bincount(np.concatenate(ranks), minlength=DRAWS + 1)
    expected = counts.sum() / (DRAWS + 1)
    # Dependence makes the statistic larger than chi-squared's: twice its 99.9 % point.
    assert np.sum((counts - expected) ** 2 / expected) < 2 * stats.chi2.ppf(0.999, DRAWS)


def test_predictions_are_calibrated_at_known_hyperparameters() -> None:
    inside = []
    for seed in range(PROBLEMS):
        Phi, y, z, alpha = simulate(seed, "dense")
        rng = np.random.default_rng(1000 + seed)
        post = cofem.fit(Phi, y, noise_std=SIGMA, method="irls", alpha_init=alpha, max_iter=1)
        new = rng.standard_normal((10, D))
        mean, std = post.predict(new, return_std=True)
        inside.append(np.abs(new @ z + SIGMA * rng.standard_normal(10) - mean) < 1.2816 * std)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.06)


def test_a_wrong_variance_is_noticed() -> None:
    """The check can fail: variances half as large are not calibrated."""
    quantiles = []
    for seed in range(PROBLEMS):
        Phi, y, z, alpha = simulate(seed, "dense")
        post = cofem.fit(Phi, y, noise_std=SIGMA, method="irls", alpha_init=alpha, max_iter=1)
        quantiles.append(stats.norm.cdf((z - post.mean) / (np.sqrt(0.5) * post.std)))
    assert stats.kstest(np.concatenate(quantiles), "uniform").statistic > 0.05
