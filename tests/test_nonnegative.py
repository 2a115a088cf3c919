"""The constraint that no coefficient is negative: mode, draws and spread belong to one posterior."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.optimize import nnls

import cofem
from cofem.linalg.nonnegative import (
    ImplicitQuadratic,
    MatrixQuadratic,
    StoredModel,
    StoredQuadratic,
    nonnegative_minimum,
)
from cofem.operators import DCT, Convolution, Gradient, Identity, Mask
from cofem.posterior import constrained


def spectra(seed: int, n: int = 60, d: int = 80, noise: float = 1e-3):
    """Spectra of which any two have a cosine of 0.999, and a mixture of five."""
    rng = np.random.default_rng(seed)
    common = 0.5 + np.abs(rng.standard_normal((n, 1)))
    own = rng.standard_normal((n, d))
    Phi = common / np.linalg.norm(common) + 0.0316 * own / np.linalg.norm(own, axis=0)
    z = np.zeros(d)
    z[rng.choice(d, 5, replace=False)] = 0.5 + rng.random(5)
    sigma = noise * np.linalg.norm(Phi @ z) / n**0.5
    return Phi, Phi @ z + sigma * rng.standard_normal(n), z, sigma


def peaks(seed: int, n: int = 80, d: int = 60):
    """Overlapping lines on a fine grid."""
    rng = np.random.default_rng(seed)
    Phi = np.exp(-0.5 * ((np.linspace(0, 1, n)[:, None] - np.linspace(0, 1, d)) * d / 4) ** 2)
    z = np.zeros(d)
    z[rng.choice(d, 5, replace=False)] = 0.3 + rng.random(5)
    sigma = 0.01 * np.sqrt(np.mean((Phi @ z) ** 2))
    return Phi, Phi @ z + sigma * rng.standard_normal(n), z, sigma


def exact_mode(Phi, y, sigma, alpha, data=0.0, prior=0.0):
    """Return the constrained mode by Lawson and Hanson's algorithm, of data and prior that are perturbed."""
    stacked = np.vstack([Phi / sigma, np.diag(np.sqrt(alpha))])
    norms = np.linalg.norm(stacked, axis=0)
    right = np.append(y / sigma + data, np.zeros(alpha.size) + prior)
    return nnls(stacked / norms, right)[0] / norms


def misfit(Phi, y, z, sigma):
    return float(np.linalg.norm(y - Phi @ z) / y.size**0.5 / sigma)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("make", [spectra, peaks])
def test_mean_and_draws_explain_the_data(make, given):
    for seed in (10, 11):
        Phi, y, _, sigma = make(seed)
        post = cofem.fit(Phi, y, noise_std=sigma if given else "learn", nonnegative=True, rng=0)
        least = np.linalg.norm(y - Phi @ nnls(Phi, y)[0]) / y.size**0.5 / sigma
        assert misfit(Phi, y, post.mean, sigma) < 1.25 * least
        np.testing.assert_allclose(post.predict(), Phi @ post.mean)
        draws = post.sample(16, rng=0)
        assert draws.min() >= 0
        assert np.median([misfit(Phi, y, draw, sigma) for draw in draws]) < 1.5
        assert 0.5 < post.noise_std / sigma < 1.5
        assert not any("noise" in text for text in post.status.warnings)


@pytest.mark.parametrize("make", [spectra, peaks])
def test_mean_is_the_constrained_mode(make):
    Phi, y, _, sigma = make(20)
    post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, rng=0)
    wanted = exact_mode(Phi, y, sigma, post.alpha)
    np.testing.assert_allclose(post.mean, wanted, atol=1e-6 * wanted.max())


def test_noise_is_learned_from_plenty_of_data_that_columns_share():
    """A mean of marginals that were cut off took the noise for 30 times as large."""
    Phi, y, _, sigma = spectra(30, n=200, d=60)
    post = cofem.fit(Phi, y, nonnegative=True, rng=0)
    assert 0.7 < post.noise_std / sigma < 1.3


KINDS = {
    "dense": lambda rng: rng.standard_normal((40, 80)) / 40**0.5,
    "cosines": lambda rng: Mask(np.sort(rng.choice(120, 50, replace=False)), 120) @ DCT(120).T,
    "decay": lambda rng: Convolution(0.9 ** np.arange(44), 100, mode="linear", causal=True),
    "blur": lambda rng: Convolution(np.exp(-(np.arange(-8, 9) ** 2) / 8.0), 100),
}


def of_kind(name: str, seed: int):
    rng = np.random.default_rng(seed)
    Phi = cofem.as_operator(KINDS[name](rng))
    z = np.zeros(Phi.shape[1])
    z[rng.choice(z.size, 6, replace=False)] = 0.2 + rng.random(6)
    sigma = 0.02 * np.sqrt(np.mean((Phi @ z) ** 2))
    return Phi, Phi @ z + sigma * rng.standard_normal(Phi.shape[0]), z, sigma


@pytest.mark.parametrize("name", KINDS)
def test_large_problems_are_solved_as_small_ones(name, monkeypatch):
    """Conjugate gradients for each set of free coefficients, forced, against the factored matrix."""
    Phi, y, _, sigma = of_kind(name, 0)
    small = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, method="irls")
    draws = small.sample(3, rng=1)
    monkeypatch.setattr(constrained, "SMALL_ENTRIES", 0)
    monkeypatch.setattr("cofem.posterior.solver.is_cheaper", lambda *_: False)
    large = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, method="irls")
    near = 1e-3 * float(small.std.max())
    np.testing.assert_allclose(large.mean, small.mean, atol=near)
    np.testing.assert_allclose(large.std, small.std, rtol=0.01, atol=near)
    np.testing.assert_allclose(large.sample(3, rng=1), draws, atol=near)


@pytest.mark.parametrize("method", ["em", "irls", cofem.CoFEM()], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_std_intervals_and_draws_agree(name, method):
    Phi, y, _, sigma = of_kind(name, 3)
    post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, method=method, rng=0)
    draws = post.sample(150, rng=0)
    assert 0.75 < np.linalg.norm(draws.std(axis=0)) / np.linalg.norm(post.std) < 1.15
    low, high = post.credible_interval(0.9)
    held = ((low <= draws) & (draws <= high + 1e-12)).mean()
    assert 0.88 < held < 0.995
    _, std = post.predict(return_std=True, include_noise=False, rng=0)
    spread = (draws @ cofem.as_operator(Phi).to_dense().T - post.predict()).std(axis=0)
    assert 0.8 < np.linalg.norm(std) / np.linalg.norm(spread) < 1.25


def test_draws_solve_the_perturbed_problem():
    """Each is the constrained mode of data and prior that are perturbed as the model says."""
    Phi, y, _, sigma = spectra(40)
    post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, method="irls")
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    draw = post.sample(1, rng=rng)[0]
    prior, data = again.standard_normal(80), again.standard_normal(60)
    wanted = exact_mode(Phi, y, sigma, post.alpha, data, prior)
    np.testing.assert_allclose(draw, wanted, atol=1e-6 * wanted.max())


def gibbs(Phi, y, sigma, alpha, sweeps, rng):
    """Draw from the Gaussian given that nothing is negative, one coefficient after the other."""
    A, b = Phi.T @ Phi / sigma**2 + np.diag(alpha), Phi.T @ y / sigma**2
    z, kept = exact_mode(Phi, y, sigma, alpha), []
    from cofem.priors.rectified import rectified_quantile

    for _ in range(sweeps):
        for j in range(b.size):
            mean = z[j] + (b[j] - A[j] @ z) / A[j, j]
            z[j] = rectified_quantile(rng.random(), np.array([mean]), np.array([1 / A[j, j]]))[0]
        kept.append(z.copy())
    return np.array(kept[sweeps // 5 :])


@pytest.mark.nightly
def test_spread_is_that_of_the_truncated_gaussian():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((25, 20)) + 2
    z = np.where(np.arange(20) < 5, 1.0, 0.0)
    y = Phi @ z + 0.5 * rng.standard_normal(25)
    post = cofem.fit(Phi, y, noise_std=0.5, nonnegative=True, method="em")
    drawn = gibbs(Phi, y, 0.5, post.alpha, 4000, rng)
    assert 0.85 < np.linalg.norm(post.std) / np.linalg.norm(drawn.std(axis=0)) < 1.2
    low, high = post.credible_interval(0.9)
    assert ((low <= drawn) & (drawn <= high)).mean() > 0.8


def test_intervals_cover_as_often_as_those_without_the_constraint():
    held = np.zeros(2)
    for seed in range(8):
        Phi, y, z, sigma = of_kind("dense", 50 + seed)
        for i, nonnegative in enumerate((False, True)):
            post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=nonnegative, rng=0)
            low, high = post.credible_interval(0.95)
            held[i] += ((low <= z) & (z <= high)).mean() / 8
    assert held[1] > min(0.93, held[0] - 0.02)


@pytest.mark.parametrize("prior", [cofem.MultiTask(), None])
def test_tasks_meet_the_constraint_each(prior):
    Phi, y, z, sigma = spectra(60)
    Y = np.column_stack([y, 2 * y[::-1], y])
    Y[:, 1] = Phi @ np.roll(z, 3) + sigma
    post = cofem.fit(Phi, Y, noise_std=sigma, nonnegative=True, prior=prior, rng=0)
    for i in range(3):
        alpha = post.alpha if post.alpha.ndim == 1 else post.alpha[:, i]
        wanted = exact_mode(Phi, Y[:, i], sigma, alpha)
        np.testing.assert_allclose(post.mean[:, i], wanted, atol=1e-6 * wanted.max())
    assert post.std.shape == (80, 3)
    assert post.sample(2, rng=0).shape == (2, 80, 3)


def test_weights_count_for_the_mode():
    Phi, y, _, sigma = spectra(70)
    weights = np.linspace(0.2, 3, y.size)
    post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, sample_weight=weights, rng=0)
    root = np.sqrt(weights)
    wanted = exact_mode(root[:, None] * Phi, root * y, sigma, post.alpha)
    np.testing.assert_allclose(post.mean, wanted, atol=1e-6 * wanted.max())


def test_draws_after_loading_need_the_operator(tmp_path):
    Phi, y, _, sigma = spectra(80)
    post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, rng=0)
    post.save(tmp_path / "fit.npz")
    loaded = cofem.load(tmp_path / "fit.npz", operator=Phi)
    np.testing.assert_array_equal(loaded.sample(2, rng=0), post.sample(2, rng=0))
    np.testing.assert_array_equal(loaded.credible_interval(), post.credible_interval())
    with pytest.raises(ValueError, match="sample needs the operator"):
        cofem.load(tmp_path / "fit.npz").sample()


@pytest.mark.parametrize("method", ["irls", cofem.CoFEM()], ids=str)
def test_a_fit_that_was_resumed_ends_bit_for_bit_the_same(tmp_path, method):
    Phi, y, _, sigma = of_kind("cosines", 7)
    settings = dict(noise_std=sigma, nonnegative=True, method=method, rng=0)
    whole = cofem.fit(Phi, y, checkpoint=tmp_path / "a", **settings)
    again = cofem.fit(Phi, y, resume=tmp_path / "a", **settings)  # of a fit that is done
    cofem.fit(Phi, y, checkpoint=tmp_path / "b", callback=lambda s: s.iteration == 3, **settings)
    resumed = cofem.fit(Phi, y, resume=tmp_path / "b", **settings)
    for other in (again, resumed):
        np.testing.assert_array_equal(other.mean, whole.mean)
        np.testing.assert_array_equal(other.variance, whole.variance)


@pytest.mark.parametrize("seed", range(3))
def test_search_ends_at_the_minimum_of_any_quadratic(seed):
    """Columns so much alike that the free coefficients change many times; against Lawson and Hanson."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        n, d = rng.integers(3, 40, 2)
        M = rng.standard_normal((n, d)) * 10 ** rng.uniform(-1, 1, d) + rng.choice([0, 3, 30])
        alpha = 10 ** rng.uniform(-6, 2, d)
        y = M @ rng.standard_normal(d) + rng.standard_normal(n)
        wanted = exact_mode(M, y, 1.0, alpha)
        quadratic = StoredQuadratic(StoredModel(M, alpha, 1.0), y, np.zeros(d))
        found = nonnegative_minimum(quadratic, rng.standard_normal(d), 1e-7)
        assert found.solved
        A = M.T @ M + np.diag(alpha)
        off = found.x - wanted
        assert off @ A @ off < 1e-8 * (wanted @ A @ wanted) + 1e-12
        other = nonnegative_minimum(MatrixQuadratic(A, M.T @ y, 1.0), np.zeros(d), 1e-7)
        assert other.solved
        off = other.x - wanted
        assert off @ A @ off < 1e-8 * (wanted @ A @ wanted) + 1e-12


class _Inverse:
    def __init__(self, diagonal):
        self.diagonal = diagonal

    def apply(self, r, out):
        out[...] = r / self.diagonal


def test_implicit_quadratics_are_solved_on_their_free_part():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((60, 40))
    A, b = M.T @ M + np.eye(40), M.T @ rng.standard_normal(60)
    implicit = ImplicitQuadratic(lambda x: x @ A, b, 2.0, _Inverse(np.diag(A)), 1e-8, 500)
    found = nonnegative_minimum(implicit, np.zeros(40), 1e-6)
    wanted = nonnegative_minimum(MatrixQuadratic(A, b, 2.0), np.zeros(40), 1e-6)
    assert found.solved
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-6)


def test_large_pictures_meet_the_constraint_as_small_ones(monkeypatch):
    rng = np.random.default_rng(2)
    u = np.maximum(gaussian_filter(rng.standard_normal((16, 16)), 2), 0).ravel()
    u *= 10 / u.max()
    y = u + rng.standard_normal(256)
    settings = dict(noise_std=1.0, analysis=Gradient((16, 16)), nonnegative=True, rng=0)
    small = cofem.fit(Identity(256), y, **settings)
    monkeypatch.setattr("cofem.posterior.analysis.SMALL_SIDE", 0)
    large = cofem.fit(Identity(256), y, **settings)
    np.testing.assert_allclose(large.mean, small.mean, atol=0.01)
    assert (small.mean == 0).sum() > 20
    ratio = np.linalg.norm(large.sample(20, rng=1).std(axis=0)) / np.linalg.norm(large.std)
    assert 0.6 < ratio < 1.2


def test_nothing_but_warnings_that_say_so():
    """The true noise is not blamed."""
    Phi, y, _, sigma = spectra(90)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cofem.ConvergenceWarning)
        post = cofem.fit(Phi, y, noise_std=sigma, nonnegative=True, rng=0, max_iter=1000)
    assert not any("does not fit the data" in text for text in post.status.warnings)


def test_columns_that_add_up_wherever_they_are_give_no_warning():
    """Spikes of a decay overlap since none is negative; a smooth line made of sharp peaks stands out."""
    rng = np.random.default_rng(1)
    Phi = Convolution(0.95 ** np.arange(100), 2000, mode="linear", causal=True)
    spikes = rng.poisson(0.03, 2000).astype(float)
    y = Phi @ spikes + 0.1 * rng.standard_normal(2000)
    post = cofem.fit(Phi, y, noise_std=0.1, nonnegative=True, rng=0)
    assert not any("overlap" in text for text in post.status.warnings)
    sharp = Convolution(np.exp(-(np.arange(-8, 9) ** 2) / 8.0), 400)
    wide = gaussian_filter(np.where(np.arange(400) == 150, 300.0, 0.0), 12)
    y = sharp @ wide + 0.5 * rng.standard_normal(400)
    post = cofem.fit(sharp, y, noise_std=0.5, nonnegative=True, rng=0)
    assert any("overlap" in text for text in post.status.warnings)
