"""Calibration: with coefficients drawn from the prior, posteriors say the truth about them.

Simulation-based calibration (Talts et al. 2018) at known precisions and noise: the rank of the true
coefficient among posterior draws, and its quantile in the marginal, must be uniform.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import cofem
from cofem.operators import DCT, Gradient, Mask

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


# --- what no datum sees -------------------------------------------------------------------------------


def _wide(errors: np.ndarray, phi, state_variance: float):
    """A rule whose predictions are four times as uncertain as their errors."""
    from types import SimpleNamespace

    from cofem.inference.analysis.prediction import FromPredictions

    rule = FromPredictions(phi, errors, learned=False)
    spread = np.full(errors.size, 4.0)
    carry = SimpleNamespace(predicted=spread, draws=1e9, steps=1)
    state = SimpleNamespace(
        mean=np.zeros(phi.shape[1]), variance=np.full(phi.shape[1], state_variance), carry=carry
    )
    return rule, SimpleNamespace(noise_var=1e-3), state


def test_variances_shrink_only_where_held_out_data_speak() -> None:
    """Pixels held out stand for pixels; less where most of the variance is elsewhere; sums for nothing."""
    errors = np.random.default_rng(0).standard_normal(400)
    pixels = Mask(np.arange(0, 800, 2), 800)
    alike, hole = (_wide(errors, pixels, variance) for variance in (4.0, 40.0))
    scale = alike[0].scales(*alike[1:])[1]
    assert scale < 0.6
    assert hole[0].scales(*hole[1:])[1] == pytest.approx(1 - 0.1 * (1 - scale))
    sums = _wide(errors, pixels @ DCT(800), 4.0)
    assert sums[0].scales(*sums[1:])[1] == 1.0
    wider = _wide(6 * errors, pixels @ DCT(800), 4.0)
    assert wider[0].scales(*wider[1:])[1] > 1.2


def sky(seed: int):
    """Points and a smooth field, from a third of the waves of a picture, most of them long ones."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:16, :16] / 16
    u = np.exp(-((x - 0.4) ** 2 + (y - 0.6) ** 2) / 0.03)
    u[tuple(rng.integers(3, 13, (2, 4)))] += 2
    order = np.argsort(np.add.outer(np.arange(16), np.arange(16)).ravel() + 8 * rng.random(256))
    Phi = Mask(np.sort(order[:50]), 256) @ DCT((16, 16))
    return Phi, u.ravel()


@pytest.mark.nightly
def test_scale_does_not_shrink_what_no_datum_sees() -> None:
    Phi, u = sky(1)
    data = Phi @ u
    data = data + 0.02 * np.std(data) * np.random.default_rng(1).standard_normal(data.size)
    post = cofem.fit(Phi, data, analysis=Gradient((16, 16)), rng=0)
    assert post.scale >= 1


def test_status_says_how_much_of_the_variance_is_the_priors() -> None:
    from cofem.posterior.silence import silent_share

    Phi, u = sky(1)
    data = Phi @ u + 0.05 * np.random.default_rng(0).standard_normal(50)
    post = cofem.fit(Phi, data, noise_std=0.05, analysis=Gradient((16, 16)), rng=0)
    M, B = Phi.to_dense(), Gradient((16, 16)).to_dense()
    Sigma = np.linalg.inv(M.T @ M / 0.05**2 + B.T @ (post.alpha[:, None] * B))
    post = replace(post, variance=np.diag(Sigma))
    wanted = 1 - np.trace(Sigma @ M.T @ M @ Sigma) / 0.05**2 / np.trace(Sigma)
    share = silent_share(post)
    assert share == pytest.approx(wanted, abs=0.12)
    assert f"{share:.0%} of the posterior variance lies where the data are silent" in str(post.status)
