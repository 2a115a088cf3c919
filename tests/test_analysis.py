"""Fits in analysis form, ``cofem.fit(Phi, y, analysis=B)``, against dense answers written out here."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pywt
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from scipy.optimize import nnls

import cofem
from cofem import AnalysisEM, StatusCode
from cofem._arrays import to_numpy
from cofem.inference.analysis.prediction import Errors
from cofem.linalg.analysis import AnalysisSystem, Rows
from cofem.linalg.analysis.exact import exact_moments
from cofem.operators import (
    DCT,
    FFT,
    Convolution,
    Dense,
    Gradient,
    Identity,
    Mask,
    Operator,
    WaveletFrame,
    vstack,
)
from cofem.operators.dictionary import Dictionary
from cofem.priors import RowLayout

from .test_checkpoint import assert_same

PLAIN = AnalysisEM(relaxation=1.0)
#: Conjugate gradients to the end, with as many draws as there is time for.
TIGHT = dict(exact=False, cg_tol=1e-9, draw_tol=1e-4, cg_iterations=5000)
#: The same for libraries that take their time, and solves that only have to end.
QUICK = AnalysisEM(exact=False, cg_tol=1e-8, draw_tol=1e-5, cg_iterations=500, draws=2, final_draws=2)
LOOSE = AnalysisEM(exact=False, cg_tol=0.3, draw_tol=0.5, draws=1, final_draws=2, cg_iterations=15)


def exact(Phi, B, y, alpha, noise_std) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of u by the textbook formulas, with a plain inverse."""
    Phi, B = (np.asarray(A if isinstance(A, np.ndarray) else A.to_dense()) for A in (Phi, B))
    covariance = np.linalg.inv(Phi.conj().T @ Phi / noise_std**2 + B.conj().T @ (alpha[:, None] * B))
    return covariance @ Phi.conj().T @ y / noise_std**2, covariance


def freedom(B, alpha) -> np.ndarray:
    """Degrees of freedom of each row, from the singular vectors of ``diag(alpha)^1/2 B``."""
    U, s, _ = np.linalg.svd(np.sqrt(alpha)[:, None] * B, full_matrices=False)
    return np.sum(np.abs(U[:, s > 1e-12 * s[0]]) ** 2, axis=1)


def steps_of_em(Phi, B, Y, noise_std, alpha, steps: int) -> tuple[np.ndarray, ...]:
    """Plain EM in analysis form: mean (D, L), covariance and alpha after some steps."""
    moment = None
    for _ in range(steps):
        if moment is not None:
            alpha = freedom(B, alpha) / moment
        mean, covariance = exact(Phi, B, Y, alpha, noise_std)
        spread = np.einsum("ij,jk,ik->i", B, covariance, B.conj()).real
        moment = np.mean(np.abs(B @ mean) ** 2, axis=1) + spread
    return mean, covariance, alpha


def jumps(
    n: int = 60, seed: int = 0, sigma: float = 0.1, share: float = 0.6
) -> tuple[Mask, np.ndarray, np.ndarray]:
    """Steps of different height, of which some samples are seen."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.standard_normal(4) * 2, -(-n // 4))[:n]
    Phi = Mask(np.flatnonzero(rng.random(n) < share), n)
    return Phi, Phi @ u + sigma * rng.standard_normal(Phi.shape[0]), u


def picture(side: int = 40) -> np.ndarray:
    """A disc and a box on a slope."""
    a, b = np.mgrid[:side, :side] / side
    return 0.5 * a + ((a - 0.5) ** 2 + (b - 0.4) ** 2 < 0.06) + 0.7 * ((a > 0.6) & (b > 0.6))


# --- the same as synthesis ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "DCT", "complex"])
@pytest.mark.parametrize("prior", [cofem.Independent(), cofem.Block(2)])
def test_an_invertible_operator_gives_the_synthesis_fit(kind: str, prior) -> None:
    rng = np.random.default_rng(1)
    n = 64 if kind == "DCT" else 30
    B: Any = DCT(n) if kind == "DCT" else np.eye(n) + 0.15 * rng.standard_normal((n, n))
    if kind == "complex":
        B = B + 0.15j * rng.standard_normal((n, n))
    full = B.to_dense() if kind == "DCT" else B
    Phi = rng.standard_normal((n // 2, n)) + (
        1j * rng.standard_normal((n // 2, n)) if kind == "complex" else 0
    )
    s = np.where(rng.random(n) < 0.2, 3.0, 0.0)
    inverse = np.linalg.inv(full)
    y = Phi @ inverse @ s + 0.1 * rng.standard_normal(n // 2)
    same = dict(noise_std=0.1, prior=prior, alpha_init=0.7, max_iter=12, tol=0)
    ours = cofem.fit(Phi, y, analysis=B, method=PLAIN, **same)
    theirs = cofem.fit(Phi @ inverse, y, method=cofem.EM(), **same)
    np.testing.assert_allclose(ours.alpha, theirs.alpha, rtol=1e-6)
    np.testing.assert_allclose(full @ ours.mean, theirs.mean, atol=1e-6 * np.abs(theirs.mean).max())
    spread = theirs.covariance(np.arange(n))
    np.testing.assert_allclose(
        ours.variance, np.diagonal(inverse @ spread @ inverse.conj().T).real, rtol=1e-4
    )
    _, spread = exact(Phi, full, y, theirs.alpha, 0.1)
    np.testing.assert_allclose(ours.variance, np.diagonal(spread).real, rtol=1e-6)
    assert not any("degrees of freedom" in note for note in ours.status.notes)


def test_differences_of_a_signal_are_synthesis_by_cumulative_sums() -> None:
    n, sigma, tiny = 40, 0.1, 1e-9
    Phi, y, _ = jumps(n)
    alpha = np.random.default_rng(0).gamma(1.0, size=n - 1)
    sums = np.tri(n)  # the first column is the constant, the others are steps
    mean, covariance = exact(Phi.to_dense() @ sums, np.eye(n), y, np.append(tiny, alpha), sigma)
    post = cofem.fit(Phi, y, noise_std=sigma, analysis=Gradient(n), alpha_init=alpha, max_iter=1, tol=0)
    np.testing.assert_allclose(post.alpha, alpha, rtol=1e-12)
    np.testing.assert_allclose(post.mean, sums @ mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(post.variance, np.diagonal(sums @ covariance @ sums.T), rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_steps_are_those_of_em_with_degrees_of_freedom(steps: int) -> None:
    """A redundant B: first and second differences, two tasks."""
    Phi, y, _ = jumps(30)
    B = vstack([Gradient(30), Gradient(30, order=2)])
    Y = np.stack([y, y**2], axis=1)
    start = np.full(B.shape[0], 2.0)
    mean, covariance, alpha = steps_of_em(Phi.to_dense(), B.to_dense(), Y, 0.1, start, steps)
    same = dict(noise_std=0.1, alpha_init=start, max_iter=steps, tol=0)
    post = cofem.fit(Phi, Y, analysis=B, method=PLAIN, prior=cofem.MultiTask(), **same)
    np.testing.assert_allclose(post.alpha, alpha, rtol=1e-6)
    np.testing.assert_allclose(post.mean, mean, atol=1e-7)
    np.testing.assert_allclose(post.variance[:, 1], np.diagonal(covariance), rtol=1e-6)


# --- the posterior --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float64", "float32", "complex", "weights"])
def test_the_posterior_is_the_exact_one(kind: str) -> None:
    n, sigma = 36, 0.1
    rng = np.random.default_rng(3)
    B = vstack([Gradient((6, 6)), Gradient((6, 6), order=2)])
    Phi: Any = rng.standard_normal((20, n))
    y = Phi @ rng.standard_normal(n)
    options: dict = {}
    white, data = Phi, y
    if kind == "complex":
        Phi = Mask(rng.permutation(n)[:20], n) @ FFT((6, 6))
        y = Phi @ (rng.standard_normal(n) + 1j * rng.standard_normal(n))
        white, data = Phi.to_dense(), y
    if kind == "float32":
        Phi, y = Phi.astype(np.float32), y.astype(np.float32)
    if kind == "weights":
        weight = rng.gamma(2.0, size=20) + 0.1
        options["sample_weight"] = weight
        white, data = np.sqrt(weight)[:, None] * Phi, np.sqrt(weight) * y
    post = cofem.fit(Phi, y, noise_std=sigma, analysis=B, max_iter=5, tol=0, **options)
    assert str(post.mean.dtype) == {"float32": "float32", "complex": "complex128"}.get(kind, "float64")
    mean, covariance = exact(white, B, data, np.asarray(post.alpha, float), sigma)
    close = 2e-4 if kind == "float32" else 1e-6
    np.testing.assert_allclose(post.mean, mean, atol=close * np.abs(mean).max())
    variance = np.diagonal(covariance).real
    np.testing.assert_allclose(post.variance, variance, rtol=close)
    np.testing.assert_allclose(
        post.covariance([3, 0, 17]), covariance[np.ix_([3, 0, 17], [3, 0, 17])], atol=1e-3 * variance.max()
    )
    new = rng.standard_normal((5, n))
    predicted, std = post.predict(new, return_std=True, include_noise=False)
    np.testing.assert_allclose(predicted, new @ mean, atol=10 * close * np.abs(new @ mean).max())
    np.testing.assert_allclose(std**2, np.diagonal(new @ covariance @ new.T).real, rtol=1e-3)
    _, noisy = post.predict(new, return_std=True)
    np.testing.assert_allclose(noisy**2, std**2 + sigma**2, rtol=1e-4)
    half = np.sqrt(2.0 if kind == "complex" else 1.0)
    lower, upper = post.credible_interval(0.9)
    np.testing.assert_allclose((upper - lower).real, 2 * 1.6448536 * post.std / half, rtol=1e-3)
    draws = post.sample(4000, rng=0)
    assert draws.dtype == post.mean.dtype
    off = draws - post.mean
    assert (np.abs(off.mean(axis=0)) < 5 * post.std / 4000**0.5).all()
    found = off.T @ off.conj() / 4000
    size = np.sqrt(np.outer(variance, variance))
    assert np.abs((found - covariance) / size).max() < 5 / 4000**0.5 * 1.5
    with pytest.raises(ValueError, match="log_evidence"):
        post.log_evidence()
    with pytest.raises(ValueError, match="support"):
        post.support()
    assert "36 unknowns" in repr(post)


def test_posterior_where_precisions_are_far_apart() -> None:
    """Ten orders of magnitude, as at the end of a long fit."""
    n = 60
    Phi, y, _ = jumps(n)
    alpha = np.where(np.arange(n - 1) % 15 == 14, 0.2, 1e9)
    post = cofem.fit(Phi, y, noise_std=0.1, analysis=Gradient(n), alpha_init=alpha, max_iter=1, tol=0)
    np.testing.assert_allclose(post.alpha, alpha)
    mean, covariance = exact(Phi, Gradient(n), y, alpha, 0.1)
    np.testing.assert_allclose(post.mean, mean, atol=1e-5)
    np.testing.assert_allclose(
        post.covariance([0, 20, 59]), covariance[np.ix_([0, 20, 59], [0, 20, 59])], rtol=1e-3, atol=1e-6
    )
    off = post.sample(2000, rng=1) - mean
    np.testing.assert_allclose(np.mean(off**2, axis=0), np.diagonal(covariance), rtol=0.2)


CASES = {
    "mask": lambda rng: (Mask(rng.permutation(144)[:80], 144), Gradient((12, 12))),
    "blur": lambda rng: (Convolution(np.outer([1, 2, 1], [1, 2, 1]) / 16, (12, 12)), Gradient((12, 12))),
    "stack": lambda rng: (
        Mask(rng.permutation(144)[:80], 144),
        vstack([Gradient((12, 12)), WaveletFrame((12, 12), "haar", 2)]),
    ),
    "fourier": lambda rng: (
        Mask(np.append(0, 1 + rng.permutation(143)[:80]), 144) @ FFT((12, 12)),
        Gradient((12, 12), "periodic"),
    ),
    "dense": lambda rng: (rng.standard_normal((70, 80)), rng.standard_normal((90, 80))),
}


@pytest.mark.parametrize("name", CASES)
def test_conjugate_gradients_give_the_exact_posterior(name: str) -> None:
    rng = np.random.default_rng(5)
    Phi, B = CASES[name](rng)
    sigma, draws = 0.1, 600
    y = Phi @ rng.standard_normal(B.shape[1]) + sigma * rng.standard_normal(Phi.shape[0])
    alpha = rng.gamma(0.5, size=B.shape[0]) * 10 + 0.01
    method = AnalysisEM(**TIGHT, final_draws=draws)
    post = cofem.fit(
        Phi, y, noise_std=sigma, analysis=B, alpha_init=alpha, method=method, max_iter=1, tol=0, rng=0
    )
    mean, covariance = exact(Phi, B, y, alpha, sigma)
    np.testing.assert_allclose(post.alpha, alpha)
    np.testing.assert_allclose(post.mean, mean, atol=1e-6 * np.abs(mean).max())
    ratio = post.variance / np.diagonal(covariance).real
    scatter = (2.0 if np.isrealobj(post.mean) else 1.0) / draws
    assert np.abs(ratio - 1).max() < 5 * scatter**0.5
    assert abs(ratio.mean() - 1) < 3 * scatter**0.5


def test_a_whole_fit_by_draws_ends_near_the_exact_one() -> None:
    u = picture(20)
    rng = np.random.default_rng(0)
    Phi = Mask(np.flatnonzero(rng.random(400) < 0.5), 400)
    y = Phi @ u.ravel() + 0.05 * rng.standard_normal(Phi.shape[0])
    same = dict(noise_std=0.05, analysis=Gradient((20, 20)), prior=cofem.Neighbours(3), rng=0)
    one, other = (cofem.fit(Phi, y, method=AnalysisEM(exact=e), **same) for e in (True, False))
    error = [np.linalg.norm(post.mean - u.ravel()) for post in (one, other)]
    assert error[1] < 1.1 * error[0]
    assert np.linalg.norm(one.mean - other.mean) < 0.5 * error[0]


# --- degrees of freedom ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "B",
    [
        Gradient(40),
        Gradient((7, 6)),
        Gradient((7, 6), "periodic"),
        vstack([Gradient(30), Gradient(30, order=2)]),
        vstack([Gradient((6, 6)), WaveletFrame((6, 6), "haar", 1)]),
        Dense(np.random.default_rng(0).standard_normal((50, 4)) @ np.ones((4, 20))),
    ],
    ids=str,
)
@pytest.mark.parametrize("orders", [0, 4, 12])
def test_degrees_of_freedom_sum_to_the_rank(B: Operator, orders: int) -> None:
    matrix = B.to_dense()
    alpha = 10 ** (orders * np.random.default_rng(1).random(B.shape[0]))
    nu = Rows(B, like=np.zeros(1)).freedom(alpha)
    assert nu.sum() == pytest.approx(np.linalg.matrix_rank(matrix), rel=1e-6)
    assert nu.min() >= 0
    assert nu.max() <= 1
    if orders <= 4:
        np.testing.assert_allclose(nu, freedom(matrix, alpha), atol=1e-6)


def test_rows_of_zeros_have_no_degrees_of_freedom() -> None:
    Phi, y, _ = jumps(30)
    B = np.vstack([Gradient(30).to_dense(), np.zeros((2, 30))])
    nu = Rows(Dense(B), like=np.zeros(1)).freedom(np.ones(31))
    np.testing.assert_allclose(nu, np.append(np.ones(29), [0, 0]), atol=1e-9)
    post = cofem.fit(Phi, y, noise_std=0.1, analysis=B)
    plain = cofem.fit(Phi, y, noise_std=0.1, analysis=Gradient(30))
    assert np.isfinite(post.alpha).all()
    assert (post.alpha > 0).all()
    np.testing.assert_allclose(post.mean, plain.mean, atol=0.02)


@pytest.mark.parametrize("orders", [0, 2])
@pytest.mark.parametrize(
    "B",
    [
        Gradient((24, 24), "periodic"),
        Gradient((24, 24)),
        vstack([Gradient((24, 24)), Gradient((24, 24), order=2)]),
        vstack([Gradient((12, 12, 3)), Gradient((12, 12, 3), order=2)]),
        WaveletFrame((24, 24), "haar", 2),
        WaveletFrame((24, 24), "db2", 1),
    ],
    ids=str,
)
def test_degrees_of_freedom_of_a_stationary_prior_are_nearly_exact(B: Operator, orders: int) -> None:
    rows = Rows(B, like=np.zeros(1))
    alpha = 10.0 ** (orders * np.linspace(0, 1, rows.n_bands))[rows.bands]
    wanted = freedom(B.to_dense(), alpha)
    found = rows.stationary_freedom(alpha)
    for band in range(rows.n_bands):
        assert found[band] == pytest.approx(wanted[rows.bands == band].mean(), abs=0.06)
    assert float(found @ rows.sizes) == pytest.approx(np.linalg.matrix_rank(B.to_dense()), rel=0.03)


# --- neighbours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 5])
def test_neighbours_share_the_mean_of_their_window(size: int) -> None:
    B = vstack([Gradient((5, 6)), Gradient((5, 6), order=2)])
    rows = Rows(B, like=np.zeros(1))
    moment = np.random.default_rng(0).gamma(1.0, size=B.shape[0])
    layout = RowLayout(rows.bands, B.row_places, rows.grid)
    found = cofem.Neighbours(size).for_rows(layout).precisions(moment, cap=1e9)
    y, x = np.divmod(B.row_places, 6)
    near = (abs(y[:, None] - y) <= size // 2) & (abs(x[:, None] - x) <= size // 2)
    near &= rows.bands[:, None] == rows.bands
    np.testing.assert_allclose(found, near.sum(axis=1) / (near @ moment))


def test_bands_together_have_one_scale_each_and_one_for_each_place() -> None:
    """Whose product is stationary: each is the inverse of a mean, given the other."""
    B = Gradient((5, 6), "periodic")
    rows = Rows(B, like=np.zeros(1))
    scale = np.random.default_rng(0).gamma(2.0, size=30)
    moment = scale[B.row_places] * np.array([1.0, 7.0])[rows.bands]
    prior = cofem.Neighbours(1, bands="together").for_rows(RowLayout(rows.bands, B.row_places, rows.grid))
    np.testing.assert_allclose(prior.precisions(moment, cap=1e9), 1 / moment, rtol=1e-6)


# --- calibration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("way", ["exact", "draws"])
def test_intervals_hold_what_they_promise_at_known_precisions(kind: str, way: str) -> None:
    n, sigma, level = 49, 0.3, 0.9
    rng = np.random.default_rng(11)
    B = vstack([Gradient((7, 7)), 0.3 * Dense(np.eye(n))])
    alpha = rng.gamma(0.5, size=B.shape[0]) * 4 + 0.05
    matrix = B.to_dense()
    factor = np.linalg.cholesky(np.linalg.inv(matrix.T @ (alpha[:, None] * matrix)))
    Phi: Any = Mask(np.sort(rng.permutation(n)[:25]), n)
    method = AnalysisEM() if way == "exact" else AnalysisEM(**TIGHT, final_draws=200)
    runs = 60 if way == "exact" else 12
    held = []
    for _ in range(runs):
        white, noise = rng.standard_normal(n), rng.standard_normal(25)
        if kind == "complex":
            white = (white + 1j * rng.standard_normal(n)) / 2**0.5
            noise = (noise + 1j * rng.standard_normal(25)) / 2**0.5
        u = factor @ white
        post = cofem.fit(
            Phi,
            Phi @ u + sigma * noise,
            noise_std=sigma,
            analysis=B,
            alpha_init=alpha,
            max_iter=1,
            tol=0,
            method=method,
            rng=rng,
        )
        lower, upper = post.credible_interval(level)
        held.append((lower.real < u.real) & (u.real < upper.real))
    # Pixels of one run are correlated; whole runs are not.
    shares = np.mean(held, axis=1)
    assert abs(shares.mean() - level) < 4 * max(shares.std() / runs**0.5, 0.005)


# --- kill and resume ------------------------------------------------------------------------------------


class Break:
    """A callback that interrupts the fifth step of a stage, the last of that name."""

    def __init__(self, stage: str, of: list[str]) -> None:
        self.stage, self.left = stage, of.count(stage)

    def __call__(self, state) -> None:
        if state.stage == self.stage and state.iteration == 5:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def stages_of(Phi, y, **options) -> tuple[cofem.Posterior, list[str]]:
    """Return a fit, and its stages that took five steps."""
    seen: list[str] = []
    post = cofem.fit(
        Phi, y, callback=lambda state: seen.append(state.stage) if state.iteration == 5 else None, **options
    )
    return post, seen


RESUMED = {
    "given": dict(noise_std=0.1, analysis=Gradient(60)),
    "noise": dict(analysis=Gradient(60)),
    "choice": dict(noise_std=0.1, analysis=60),
    "both": dict(analysis="auto"),
    "draws": dict(analysis=60, method=AnalysisEM(exact=False)),
    "tasks": dict(analysis=Gradient(60), prior=cofem.MultiTask()),
}


@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_fit_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    Phi, y, _ = jumps(60)
    options = dict(rng=3, max_iter=9, tol=0) | RESUMED[name]
    if name == "tasks":
        y = np.stack([y, y[::-1]], axis=1)
    whole, stages = stages_of(Phi, y, **options)
    assert {stage.split()[0] for stage in stages} == {
        "fit",
        *{"given": [], "noise": ["noise"], "tasks": ["noise"]}.get(name, ["choice"]),
    }
    for stage in dict.fromkeys(stages):
        path = tmp_path / f"{stage.replace('/', '-')}.npz"
        with pytest.raises(cofem.FitInterrupted) as caught:
            cofem.fit(
                Phi, y, checkpoint=path, checkpoint_every="2 steps", callback=Break(stage, stages), **options
            )
        so_far = caught.value.posterior
        assert so_far.status.code is StatusCode.STOPPED
        assert so_far.analysis is not None
        assert so_far.sample(2, rng=0).shape == (2, *whole.mean.shape)
        again = cofem.fit(Phi, y, resume=path, **(options | dict(rng=99)))
        assert_same(whole, again)
    more = cofem.fit(Phi, y, resume=path, checkpoint=path, **(options | dict(max_iter=11)))
    assert_same(cofem.fit(Phi, y, **(options | dict(max_iter=11))), more)


def test_a_checkpoint_of_another_operator_is_refused(tmp_path: Path) -> None:
    Phi, y, _ = jumps(60)
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 70, 60))
    kinds = {
        "matrix": lambda B: B,
        "dense": Dense,
        "sparse": scipy.sparse.csr_array,
        "stack": lambda B: vstack([Gradient(60), Dense(B)]),
    }
    for kind, make in kinds.items():
        path = tmp_path / f"{kind}.npz"
        same = dict(noise_std=0.1, max_iter=3, tol=0)
        post = cofem.fit(Phi, y, analysis=make(first), checkpoint=path, **same)
        assert_same(post, cofem.fit(Phi, y, analysis=make(first), resume=path, **same))
        with pytest.raises(ValueError, match="another fit: its analysis was"):
            cofem.fit(Phi, y, analysis=make(second), resume=path, **same)
        with pytest.raises(ValueError, match="another fit"):
            cofem.fit(Phi, y, analysis=make(second), checkpoint=path, **same)
        with pytest.raises(ValueError, match="another fit"):
            cofem.fit(Phi, y, resume=path, **same)


@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
@pytest.mark.parametrize("stage", ["noise", "choice 2/3", "fit"])
def test_a_callback_may_stop_each_stage(stage: str, tmp_path: Path) -> None:
    Phi, y, _ = jumps(60)
    analysis: Any = 60 if stage.startswith("choice") else Gradient(60)
    same = dict(analysis=analysis, rng=0, max_iter=8, tol=0)
    whole = cofem.fit(Phi, y, **same)
    same |= dict(checkpoint=tmp_path / "run.npz", resume=tmp_path / "run.npz")
    post = cofem.fit(Phi, y, callback=lambda state: state.stage == stage and state.iteration == 4, **same)
    assert post.status.code is StatusCode.STOPPED
    assert np.isfinite(post.mean).all()
    assert ("while the noise was still being learned" in str(post.status)) == (stage != "fit")
    assert_same(whole, cofem.fit(Phi, y, **same))


def test_callbacks_see_every_stage_and_progress_is_drawn(capsys) -> None:
    Phi, y, _ = jumps(60)
    seen = []
    cofem.fit(Phi, y, analysis="auto", callback=lambda state: seen.append(state.stage), progress=True, rng=0)
    titles = list(dict.fromkeys(seen))
    assert titles[-1] == "fit"
    assert titles[:-1] == [f"choice {i}/{len(titles) - 1}" for i in range(1, len(titles))]
    captured = capsys.readouterr()
    shown = captured.err + captured.out
    assert "choice 1/" in shown
    assert "analysis" in shown


# --- all that a fit has ---------------------------------------------------------------------------------


def test_complex_data_of_a_picture() -> None:
    u = picture(14)
    rng = np.random.default_rng(2)
    keep = rng.random((14, 14)) < 0.6
    keep[0, 0] = True
    Phi = Mask(np.flatnonzero(keep), 196) @ FFT((14, 14))
    y = Phi @ u.ravel().astype(complex)
    y += 0.02 * (rng.standard_normal(y.size) + 1j * rng.standard_normal(y.size)) / 2**0.5
    post = cofem.fit(Phi, y, analysis=(14, 14), rng=0)
    assert np.linalg.norm(post.mean - u.ravel()) < 0.1 * np.linalg.norm(u)
    # From few frequencies it is often too small: 0.5 of the truth with 20 x 20 pixels.
    assert 1 / 3 < post.noise_std / 0.02 < 1.5
    by_draws = AnalysisEM(exact=False)
    known = cofem.fit(Phi, y, noise_std=0.02, analysis=Gradient((14, 14)), method=by_draws, rng=0)
    assert np.linalg.norm(known.mean - u.ravel()) < 0.1 * np.linalg.norm(u)


@pytest.mark.parametrize("sigma", [0.03, 0.15])
@pytest.mark.parametrize("analysis", ["auto", "gradient"])
def test_noise_is_learned_on_a_picture(analysis: str, sigma: float) -> None:
    u = picture(40)
    rng = np.random.default_rng(4)
    Phi = Mask(rng.random((40, 40)) < 0.5)
    y = Phi @ u.ravel() + sigma * rng.standard_normal(Phi.shape[0])
    B: Any = Gradient((40, 40)) if analysis == "gradient" else "auto"
    prior = cofem.Neighbours(3) if analysis == "gradient" else None
    post = cofem.fit(Phi, y, analysis=B, prior=prior, rng=0)
    assert 1 / 1.5 < post.noise_std / sigma < 1.5
    assert np.std(post.mean - u.ravel()) < (0.12 if sigma < 0.1 else 0.2)
    assert any("the noise was learned" in note for note in post.status.notes)
    assert any("chosen" in note for note in post.status.notes) == (analysis == "auto")
    if analysis == "gradient":
        lower, upper = post.credible_interval(0.95)
        assert 0.85 < np.mean((lower < u.ravel()) & (u.ravel() < upper)) <= 1


@pytest.mark.parametrize("B", [Gradient(60), 60], ids=["operator", "shape"])
def test_tasks_that_share_nothing_are_fits_of_their_own(B, tmp_path: Path) -> None:
    Phi, y, _ = jumps(60)
    smooth = Phi @ np.cos(np.arange(60) / 9) + 0.1 * np.random.default_rng(0).standard_normal(y.size)
    Y = np.stack([y, smooth], axis=1)
    rng = np.random.default_rng(1)
    post = cofem.fit(Phi, Y, noise_std=0.1, analysis=B, rng=rng)
    assert post.mean.shape == (60, 2)
    rng = np.random.default_rng(1)
    for i in range(2):
        single = cofem.fit(Phi, Y[:, i], noise_std=0.1, analysis=B, rng=rng)
        np.testing.assert_array_equal(post.mean[:, i], single.mean)
        np.testing.assert_array_equal(post.task(i).alpha, single.alpha)
        np.testing.assert_array_equal(post.task(i).sample(3, rng=0), single.sample(3, rng=0))
    assert post.sample(3, rng=0).shape == (3, 60, 2)
    assert post.covariance([0, 1]).shape == (2, 2, 2)
    assert post.predict(return_std=True)[1].shape == Y.shape
    assert "60 unknowns" in repr(post)
    with pytest.raises(ValueError, match="support"):
        post.support()
    post.save(tmp_path / "tasks.npz")
    operators = [post.task(i).analysis for i in range(2)]
    back = cofem.load(tmp_path / "tasks.npz", operator=Phi, analysis=operators)
    np.testing.assert_array_equal(back.mean, post.mean)
    np.testing.assert_array_equal(back.sample(3, rng=0), post.sample(3, rng=0))


def test_tasks_that_share_precisions() -> None:
    rng = np.random.default_rng(0)
    where = np.sort(rng.permutation(59)[:5])
    s = np.zeros((59, 8))
    s[where] = rng.standard_normal((5, 8))
    U = np.vstack([np.zeros(8), np.cumsum(s, axis=0)])
    Phi = Mask(np.sort(rng.permutation(60)[:50]), 60)
    Y = Phi.to_dense() @ U + 0.5 * rng.standard_normal((50, 8))
    same = dict(noise_std=0.5, analysis=Gradient(60), rng=0)
    together = cofem.fit(Phi, Y, prior=cofem.MultiTask(), **same)
    apart = cofem.fit(Phi, Y, **same)
    assert together.mean.shape == together.variance.shape == (60, 8)
    assert together.alpha.shape == (59,)
    assert np.linalg.norm(together.mean - U) < 0.9 * np.linalg.norm(apart.mean - U)
    assert together.sample(2, rng=0).shape == (2, 60, 8)
    by_draws = cofem.fit(Phi, Y, prior=cofem.MultiTask(), method=AnalysisEM(exact=False), **same)
    assert np.linalg.norm(by_draws.mean - together.mean) < np.linalg.norm(together.mean - U)
    assert cofem.fit(Phi, Y, prior=cofem.MultiTask(), analysis="auto", rng=0).mean.shape == (60, 8)


def test_lists_of_dictionaries() -> None:
    Phi, y, _ = jumps(60)
    other, y2, _ = jumps(60, seed=1)
    same = dict(noise_std=0.1, analysis=Gradient(60))
    post = cofem.fit([Phi, other], [y, y2], **same)
    np.testing.assert_array_equal(post.mean[:, 1], cofem.fit(other, y2, **same).mean)
    assert post.sample(2, rng=0).shape == (2, 60, 2)
    assert "60 unknowns" in repr(post)


def contrasts(side: int, seed: int = 0) -> tuple[list[Mask], list[np.ndarray], list[np.ndarray]]:
    """Two pictures with the same edges, each seen at places of its own."""
    rng = np.random.default_rng(seed)
    truths = [picture(side), 1.5 - 2 * picture(side)]
    masks = [Mask(rng.random((side, side)) < share) for share in (0.6, 0.4)]
    data = [
        mask @ truth.ravel() + 0.1 * rng.standard_normal(mask.shape[0])
        for mask, truth in zip(masks, truths, strict=True)
    ]
    return masks, data, truths


DIFFERENCES = {
    "differences": Gradient(40),
    "both orders": vstack([Gradient(40), Gradient(40, order=2)]),
    "a matrix": Gradient(40).to_dense(),
    "a frame": WaveletFrame(40, "haar", 2),
}


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize("exactly", [True, False])
def test_lists_of_dictionaries_share_precisions(name: str, exactly: bool) -> None:
    """With one dictionary in common the fit is that of two columns; else each posterior is the exact one."""
    B = DIFFERENCES[name]
    Phi, y, _ = jumps(40)
    _, other, _ = jumps(40, seed=1)
    y2 = other[: y.size] if other.size >= y.size else np.pad(other, (0, y.size - other.size))
    method = AnalysisEM(relaxation=1.0, exact=True) if exactly else AnalysisEM(**TIGHT, final_draws=400)
    same = dict(noise_std=0.1, analysis=B, prior=cofem.MultiTask(), method=method, rng=0, tol=0)
    steps = 8 if exactly else 2
    if exactly:
        together = cofem.fit([Phi, Phi], [y, y2], max_iter=steps, **same)
        columns = cofem.fit(Phi, np.stack([y, y2], axis=1), max_iter=steps, **same)
        np.testing.assert_allclose(together.alpha, columns.alpha, rtol=1e-6)
        np.testing.assert_allclose(together.mean, columns.mean, atol=1e-7)
        np.testing.assert_allclose(together.variance, columns.variance, rtol=1e-6)
    another = Mask(np.arange(5, 40), 40)
    y3 = np.repeat([0.0, 2.0], [20, 15]) + 0.1 * np.random.default_rng(2).standard_normal(35)
    post = cofem.fit([Phi, another], [y, y3], max_iter=steps, **same)
    assert post.alpha.shape == (cofem.as_operator(B).shape[0],)
    for i, (matrix, data) in enumerate([(Phi, y), (another, y3)]):
        mean, covariance = exact(matrix, cofem.as_operator(B), data, post.alpha, 0.1)
        np.testing.assert_allclose(post.mean[:, i], mean, atol=1e-6)
        tolerance = 1e-6 if exactly else 0.35
        np.testing.assert_allclose(post.variance[:, i], np.diagonal(covariance), rtol=tolerance)
        one = post.task(i)
        np.testing.assert_allclose(one.covariance([3, 9]), covariance[np.ix_([3, 9], [3, 9])], rtol=1e-4)


def test_contrasts_help_each_other() -> None:
    masks, data, truths = contrasts(40)
    same = dict(noise_std=0.1, analysis="auto", rng=0)

    def errors(post) -> np.ndarray:
        return np.array([np.linalg.norm(post.mean[:, i] - truths[i].ravel()) for i in range(2)])

    apart = cofem.fit(masks, data, **same)
    joint = cofem.fit(masks, data, prior=cofem.MultiTask(), **same)
    assert joint.converged
    assert (errors(joint) < 0.9 * errors(apart)).all()
    shared = cofem.MultiTask(cofem.Neighbours(3))
    assert (errors(cofem.fit(masks, data, prior=shared, **same)) < 1.05 * errors(apart)).all()
    learned = cofem.fit(masks, data, prior=cofem.MultiTask(), analysis="auto", rng=0)
    assert 0.08 < learned.noise_std < 0.12
    held = np.abs(np.stack([t.ravel() for t in truths], axis=1) - learned.mean) < 2 * learned.std
    assert 0.9 < held.mean() < 1
    assert learned.sample(3, rng=0).shape == (3, 1600, 2)
    assert learned.analysis.shape[1] == 1600


@pytest.mark.parametrize("analysis", [None, Gradient((20, 20))])
def test_interrupted_lists_keep_what_is_known_of_each_task(analysis, tmp_path: Path) -> None:
    """Also before the noise is known; what is resumed ends with the same bits."""
    masks, data, _ = contrasts(20)
    same: dict[str, Any] = dict(prior=cofem.MultiTask(), rng=0, analysis=analysis, max_iter=6)
    whole = cofem.fit(masks, data, tol=0, **same)
    for step in (2, 40):
        path = tmp_path / f"{step}.npz"
        seen: list[int] = []

        def interrupt(snapshot, seen=seen, step=step) -> None:
            seen.append(snapshot.iteration)
            if len(seen) == step:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            cofem.fit(masks, data, callback=interrupt, tol=0, checkpoint=path, **same)
        post = caught.value.posterior
        assert post.mean.shape == (400, 2)
        assert post.task(1).mean.shape == (400,)
        assert post.alpha.shape == ((400,) if analysis is None else (analysis.shape[0],))
        np.testing.assert_array_equal(
            cofem.fit(masks, data, tol=0, resume=path, **same).mean, whole.mean, strict=True
        )


def test_windows_do_not_reach_from_task_to_task() -> None:
    """What one task has says nothing about the other, where they share no precision."""
    rows = Rows(Gradient((2, 6, 6), axes=(1, 2)), np.zeros(1))
    assert rows.axes == (-2, -1)
    values = np.zeros(rows.n_rows)
    first = rows.boxes[0]
    values[first.start : first.start + first.size // 2] = 1.0
    for part in rows.parts:
        rows.pooled(values[part.rows], part)
    np.testing.assert_array_equal(first.of(values)[0], 1.0)
    np.testing.assert_array_equal(first.of(values)[1], 0.0)
    places = np.repeat([1.0, 0.0], 36)
    np.testing.assert_array_equal(rows.pooled_places(places), places)


def test_lists_refuse_by_name_what_they_cannot_do() -> None:
    Phi, y, _ = jumps(60)
    same = dict(noise_std=0.1, prior=cofem.MultiTask())
    with pytest.raises(ValueError, match=r"analysis must have 60 columns, as many as Phi.*\(59, 61\)"):
        cofem.fit([Phi, Phi], [y, y], analysis=np.eye(59, 61), **same)
    with pytest.raises(ValueError, match="alpha_init must be a number for lists of dictionaries"):
        cofem.fit([Phi, Phi], [y, y], analysis=Gradient(60), alpha_init=np.ones(59), **same)
    with pytest.raises(ValueError, match=r"analysis as a shape must hold 60 places"):
        cofem.fit([Phi, Phi], [y, y], analysis=61, **same)


def test_a_task_that_does_not_see_its_level_says_so() -> None:
    """Differences of a picture alone, in one of two tasks."""
    Phi, y, _ = jumps(60)
    blind = Gradient(60)
    same = dict(noise_std=0.1, analysis=Gradient(60), prior=cofem.MultiTask(), rng=0)
    post = cofem.fit([Phi, blind], [y, np.ones(59)], **same)
    assert "common null space of 1 dimension" in str(post.status)
    with pytest.warns(cofem.ReliabilityWarning, match="common null space of 1 dimension"):
        forced = cofem.fit([Phi, blind], [y, np.ones(59)], method=AnalysisEM(exact=False), **same)
    np.testing.assert_allclose(forced.mean, post.mean, atol=0.2)


@pytest.mark.parametrize("n", [60, 1200])
def test_a_series_whose_level_nobody_sees(n: int) -> None:
    """The system is singular, so that it has no sparse factor: slopes are right, and the status says so."""
    method = AnalysisEM(exact=False)
    with pytest.warns(cofem.ReliabilityWarning, match="common null space of 1 dimension"):
        post = cofem.fit(
            Gradient(n), np.ones(n - 1), noise_std=0.1, analysis=Gradient(n), method=method, rng=0
        )
    assert not post.converged
    np.testing.assert_allclose(np.diff(post.mean), 1, atol=0.1)
    assert abs(post.mean.mean()) < 1e-6
    assert post.std.min() > 100


def test_noise_of_each_datum() -> None:
    Phi, y, _ = jumps(60)
    each = np.random.default_rng(0).gamma(3.0, size=y.size) / 10 + 0.02
    post = cofem.fit(Phi, y, noise_std=each, analysis=Gradient(60), max_iter=7, tol=0)
    mean, covariance = exact(Phi.to_dense() / each[:, None], Gradient(60), y / each, post.alpha, 1.0)
    np.testing.assert_allclose(post.mean, mean, atol=1e-6)
    np.testing.assert_allclose(post.variance, np.diagonal(covariance), rtol=1e-6)
    draws = post.sample(2000, rng=0)
    np.testing.assert_allclose(draws.var(axis=0), post.variance, rtol=0.25)
    learned = cofem.fit(Phi, y, sample_weight=1 / each**2, analysis=Gradient(60), rng=0)
    assert np.isfinite(learned.mean).all()


@pytest.mark.parametrize("exactly", [True, False])
def test_single_precision(exactly: bool) -> None:
    u = picture(20).ravel()
    rng = np.random.default_rng(0)
    Phi = Mask(np.flatnonzero(rng.random(400) < 0.5), 400)
    y = Phi @ u + 0.05 * rng.standard_normal(Phi.shape[0])
    same = dict(noise_std=0.05, analysis=Gradient((20, 20)), prior=cofem.Neighbours(3), rng=0)
    method = AnalysisEM(exact=exactly)
    wide = cofem.fit(Phi, y, method=method, **same)
    post = cofem.fit(Phi, y.astype(np.float32), method=method, **same)
    assert post.mean.dtype == post.variance.dtype == post.alpha.dtype == np.float32
    assert np.linalg.norm(post.mean - wide.mean) < 0.2 * np.linalg.norm(wide.mean - u)


def test_nothing_is_negative() -> None:
    Phi, y, u = jumps(60)
    u = np.maximum(u, 0)
    y = Phi @ u + 0.1 * np.random.default_rng(0).standard_normal(y.size)
    post = cofem.fit(Phi, y, noise_std=0.1, analysis=Gradient(60), nonnegative=True)
    free = cofem.fit(Phi, y, noise_std=0.1, analysis=Gradient(60))
    rows, matrix = Gradient(60).to_dense(), Phi.to_dense()
    root = np.linalg.cholesky(matrix.T @ matrix / 0.01 + rows.T @ (post.alpha[:, None] * rows))
    wanted, _ = nnls(root.T, np.linalg.solve(root, matrix.T @ y / 0.01))
    np.testing.assert_allclose(post.mean, wanted, atol=1e-8)
    assert np.linalg.norm(post.mean - u) < np.linalg.norm(free.mean - u)
    lower, _ = post.credible_interval()
    draws = post.sample(200, rng=0)
    assert min(post.mean.min(), lower.min(), draws.min()) >= 0
    assert 0.8 < np.linalg.norm(draws.std(axis=0)) / np.linalg.norm(post.std) < 1.25
    mean, std = post.predict(return_std=True)
    assert mean.shape == std.shape == y.shape
    with pytest.raises(ValueError, match="covariance"):
        post.covariance([0])


def test_blocks_of_rows() -> None:
    """Both differences at a place share a precision: total variation that is the same in all directions."""
    u = picture(16).ravel()
    rng = np.random.default_rng(0)
    Phi = Mask(np.flatnonzero(rng.random(256) < 0.6), 256)
    y = Phi @ u + 0.05 * rng.standard_normal(Phi.shape[0])
    B = Gradient((16, 16))
    places = B.row_places
    post = cofem.fit(Phi, y, noise_std=0.05, analysis=B, prior=cofem.Block(places))
    for place in (0, 17, 100):
        assert np.unique(post.alpha[places == place]).size == 1
    assert np.std(post.mean - u) < 0.2
    with pytest.raises(ValueError, match="480"):
        cofem.fit(Phi, y, noise_std=0.05, analysis=B, prior=cofem.Block(places[:-1]))


class Bends(Operator):
    """A user's own operator: differences of third order, nothing known about it."""

    def __init__(self, n: int) -> None:
        super().__init__((n - 3, n))

    def _forward(self, x):
        return x[..., 3:] - 3 * x[..., 2:-1] + 3 * x[..., 1:-2] - x[..., :-3]

    def _adjoint(self, y):
        pad = np.zeros((*y.shape[:-1], 3), y.dtype)
        y = np.concatenate([pad, y, pad], axis=-1)
        return y[..., :-3] - 3 * y[..., 1:-2] + 3 * y[..., 2:-1] - y[..., 3:]


@pytest.mark.parametrize("kind", ["own", "dense", "sparse", "scipy"])
@pytest.mark.parametrize("exactly", [True, False])
def test_any_operator_will_do(kind: str, exactly: bool) -> None:
    n = 80
    t = np.linspace(-1, 1, n)
    u = np.where(t < 0, t**2, 2 * t)
    rng = np.random.default_rng(0)
    Phi = Mask(np.sort(rng.permutation(n)[:50]), n)
    y = Phi @ u + 0.05 * rng.standard_normal(50)
    B: Any = Bends(n)
    matrix = B.to_dense()
    if kind != "own":
        B = {
            "dense": lambda: matrix,
            "sparse": lambda: scipy.sparse.csr_array(matrix),
            "scipy": lambda: scipy.sparse.linalg.aslinearoperator(matrix),
        }[kind]()
    post = cofem.fit(Phi, y, noise_std=0.05, analysis=B, method=AnalysisEM(exact=exactly), rng=0)
    assert np.std(post.mean - u) < 0.05
    assert post.alpha.shape == (n - 3,)
    if exactly:
        learned = cofem.fit(Phi, y, analysis=B, rng=0)
        assert 1 / 2 < learned.noise_std / 0.05 < 2
    with pytest.raises(ValueError, match="Neighbours"):
        cofem.fit(Phi, y, noise_std=0.05, analysis=B, prior=cofem.Neighbours())


def test_save_and_load(tmp_path: Path) -> None:
    Phi, y, _ = jumps(60)
    for B in (Gradient(60), Gradient(60, "periodic")):  # with as many rows as columns, too
        post = cofem.fit(Phi, y, noise_std=0.1, analysis=B, rng=0)
        path = tmp_path / "fit.npz"
        post.save(path)
        back = cofem.load(path, operator=Phi, analysis=B)
        for name in ("mean", "variance", "alpha", "y"):
            np.testing.assert_array_equal(getattr(back, name), getattr(post, name))
        assert back.status == post.status
        np.testing.assert_array_equal(back.sample(3, rng=0), post.sample(3, rng=0))
        np.testing.assert_array_equal(back.covariance([2, 5]), post.covariance([2, 5]))
        assert repr(back) == repr(post)
        bare = cofem.load(path, operator=Phi)
        np.testing.assert_array_equal(bare.credible_interval()[0], post.credible_interval()[0])
        np.testing.assert_array_equal(bare.predict(), post.predict())
        assert "60 unknowns" in repr(bare)
        for ask in (
            lambda p: p.sample(),
            lambda p: p.covariance([0]),
            lambda p: p.predict(return_std=True),
        ):
            with pytest.raises(ValueError, match="analysis=B"):
                ask(bare)
        for refused in ("support", "log_evidence"):
            with pytest.raises(ValueError, match=refused):
                getattr(bare, refused)()
        with pytest.raises(ValueError, match="operator=Phi"):
            cofem.load(path, analysis=B).sample()
        with pytest.raises(ValueError, match="analysis must have shape"):
            cofem.load(path, operator=Phi, analysis=Gradient(60, order=2))
    plain = cofem.fit(Phi, y, noise_std=0.1)
    plain.save(path)
    with pytest.raises(ValueError, match="analysis"):
        cofem.load(path, operator=Phi, analysis=Gradient(60))


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_pytorch_gives_what_numpy_gives(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    u = picture(6).ravel()
    rng = np.random.default_rng(0)
    rows = np.append(0, 1 + np.flatnonzero(rng.random(35) < 0.8))
    Phi: Any = Mask(rows, 36) if kind == "real" else Mask(rows, 36) @ FFT((6, 6))
    y = Phi @ (u if kind == "real" else u.astype(complex))
    y = y + 0.05 * rng.standard_normal(y.size)
    B = vstack([Gradient((6, 6)), WaveletFrame((6, 6), "haar", 1)])
    together = cofem.Neighbours(1, bands="together")
    for prior in (cofem.Independent(), cofem.Neighbours(3), together)[: 3 if kind == "real" else 2]:
        same = dict(noise_std=0.05, analysis=B, prior=prior, method=QUICK, max_iter=2, tol=0, rng=0)
        wanted, ours = cofem.fit(Phi, y, **same), cofem.fit(Phi, torch.asarray(y), **same)
        for name in ("mean", "variance", "alpha"):
            found = getattr(ours, name)
            assert isinstance(found, torch.Tensor)
            np.testing.assert_allclose(found.numpy(), getattr(wanted, name), rtol=2e-3, atol=1e-5)
    ours = cofem.fit(Phi, torch.asarray(y), analysis=(6, 6), rng=0, method=LOOSE, max_iter=4, tol=0)
    assert np.isfinite(ours.mean.numpy()).all()
    assert isinstance(ours.sample(2, rng=0), torch.Tensor)
    _, std = ours.predict(return_std=True)
    assert isinstance(std, torch.Tensor)
    ours.save(tmp_path / "fit.npz")
    back = cofem.load(tmp_path / "fit.npz", operator=Phi, analysis=ours.analysis)
    np.testing.assert_array_equal(back.mean, ours.mean.numpy())
    dense = torch.asarray(Gradient((6, 6)).to_dense())
    stored = cofem.fit(Phi, torch.asarray(y), noise_std=0.05, analysis=dense, rng=0, max_iter=3, tol=0)
    assert isinstance(stored.mean, torch.Tensor)
    with pytest.raises(TypeError, match="analysis"):
        cofem.fit(Phi, y, noise_std=0.05, analysis=dense, rng=0)
    with pytest.raises(TypeError, match="NumPy"):
        cofem.fit(Phi, torch.asarray(y), noise_std=0.05, analysis=B, method=AnalysisEM(exact=True))


def test_a_checkpoint_of_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    Phi, y, _ = jumps(24)
    same = dict(analysis=24, rng=0, method=LOOSE, max_iter=4, tol=0)
    path = tmp_path / "run.npz"
    whole = cofem.fit(Phi, torch.asarray(y), **same)
    with pytest.raises(KeyboardInterrupt):
        cofem.fit(
            Phi, torch.asarray(y), checkpoint=path, callback=Break("choice 2/3", ["choice 2/3"]), **same
        )
    again = cofem.fit(Phi, torch.asarray(y), resume=path, **same)
    np.testing.assert_array_equal(again.mean.numpy(), whole.mean.numpy())
    assert again.noise_std == whole.noise_std


def test_any_array_library() -> None:
    strict = pytest.importorskip("array_api_strict", minversion="2.3")
    device = strict.Device("device1")
    u = picture(6).ravel()
    rng = np.random.default_rng(0)
    Phi = Mask(np.flatnonzero(rng.random(36) < 0.8), 36)
    y = Phi @ u + 0.05 * rng.standard_normal(Phi.shape[0])
    there = strict.asarray(y, device=device)
    same = dict(noise_std=0.05, method=QUICK, max_iter=2, tol=0, rng=0)
    for B in (vstack([Gradient((6, 6)), WaveletFrame((6, 6), "haar", 1)]), Gradient((6, 6)).to_dense()):
        wanted, ours = cofem.fit(Phi, y, analysis=B, **same), cofem.fit(Phi, there, analysis=B, **same)
        for name in ("mean", "variance", "alpha"):
            found = getattr(ours, name)
            assert found.device == device
            np.testing.assert_allclose(to_numpy(found), getattr(wanted, name), rtol=2e-3, atol=1e-5)
    learned = cofem.fit(Phi, there, analysis=Gradient(36), method=LOOSE, rng=0, max_iter=4, tol=0)
    assert np.isfinite(to_numpy(learned.mean)).all()
    assert learned.sample(2, rng=0).device == device
    with pytest.raises(TypeError, match="Neighbours prior works on arrays of numpy and torch only"):
        cofem.fit(Phi, there, analysis=(6, 6))


# --- errors at the door ---------------------------------------------------------------------------------


def test_errors_at_the_door() -> None:
    Phi, y, _ = jumps(60)

    class Wrong(Bends):
        def _adjoint(self, y):
            return 2 * super()._adjoint(y)

    holes = Gradient(60).to_dense()
    holes[3, 4] = np.nan
    for error, words, options in [
        (ValueError, "analysis must have 60 columns", dict(analysis=Gradient(50))),
        (ValueError, "analysis must have 60 columns", dict(analysis=np.ones((3, 61)))),
        (ValueError, "analysis as a shape must hold 60 places", dict(analysis=(5, 5))),
        (ValueError, "analysis", dict(analysis=(-6, -10))),
        (ValueError, "analysis must be an operator, a shape or 'auto'", dict(analysis="gradient")),
        ((ValueError, TypeError), "analysis", dict(analysis=3.5)),
        ((ValueError, TypeError), "analysis", dict(analysis=object())),
        ((ValueError, TypeError), "analysis", dict(analysis=True)),
        (ValueError, "analysis", dict(analysis=np.ones(60))),
        (ValueError, "analysis", dict(analysis=np.zeros((5, 60)))),
        (ValueError, "analysis", dict(analysis=np.zeros((0, 60)))),
        ((ValueError, FloatingPointError), "analysis", dict(analysis=holes)),
        (ValueError, "analysis.*adjoint", dict(analysis=Wrong(60))),
        (ValueError, "analysis.*complex", dict(analysis=FFT(60))),
        (ValueError, "Neighbours", dict(prior=cofem.Neighbours())),
        (ValueError, "Neighbours", dict(prior=cofem.Neighbours(), analysis=np.eye(60))),
        (ValueError, "method", dict(method="em", analysis=Gradient(60))),
        (ValueError, "method", dict(method=cofem.CoFEM(), analysis=Gradient(60))),
        (ValueError, "analysis=B", dict(method=AnalysisEM())),
        (ValueError, "alpha_init", dict(alpha_init=np.ones(60), analysis=Gradient(60))),
        (ValueError, "alpha_init", dict(alpha_init=1.0, analysis=60)),
        (ValueError, "alpha_init", dict(alpha_init=-1.0, analysis=Gradient(60))),
    ]:
        with pytest.raises(error, match=words):
            cofem.fit(Phi, y, noise_std=0.1, **options)
    with pytest.raises(ValueError, match="analysis='auto' needs to know the shape"):
        cofem.fit(np.random.default_rng(0).standard_normal((20, 30)), np.ones(20), analysis="auto")
    for wrong in (dict(draws=0), dict(relaxation=2.0), dict(final_draws=1.5), dict(cg_iterations=0)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AnalysisEM(**wrong)
    for wrong in (dict(size=2), dict(size=0), dict(bands="none")):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            cofem.Neighbours(**wrong)


@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("kind", ["constant", "dense"])
def test_what_neither_data_nor_prior_determine_is_said(kind: str, exactly: bool) -> None:
    rng = np.random.default_rng(0)
    if kind == "constant":  # frequencies without the mean, and differences
        Phi: Any = Mask(np.arange(1, 40), 60) @ DCT(60)
        B: Any = Gradient(60)
    else:
        Phi, B = rng.standard_normal((20, 60)), rng.standard_normal((30, 60))
    u = np.cumsum(rng.standard_normal(60))
    y = Phi @ u + 0.1 * rng.standard_normal(Phi.shape[0])
    post = cofem.fit(Phi, y, noise_std=0.1, analysis=B, method=AnalysisEM(exact=exactly), rng=0)
    assert any("null space" in note for note in post.status.warnings)
    assert np.isfinite(post.mean).all()
    # What is determined is right: the mean is that of the pseudo-inverse, but for the null space.
    dense = [A if isinstance(A, np.ndarray) else A.to_dense() for A in (Phi, B)]
    A = dense[0].T @ dense[0] / 0.01 + dense[1].T @ (post.alpha[:, None] * dense[1])
    mean = np.linalg.pinv(A, rcond=1e-12, hermitian=True) @ dense[0].T @ y / 0.01
    seen = np.linalg.svd(np.vstack(dense), full_matrices=False)
    seen = seen[2][seen[1] > 1e-10 * seen[1][0]]
    np.testing.assert_allclose(seen @ post.mean, seen @ mean, atol=0.02 * np.abs(seen @ mean).max())
    whole = cofem.fit(np.eye(60), u, noise_std=0.1, analysis=B)
    assert not any("null space" in note for note in whole.status.notes)


def test_held_out_data_that_alone_determine_the_mean_do_no_harm() -> None:
    """Only one datum knows the mean of the signal; sometimes it is held out."""
    n = 64
    rng = np.random.default_rng(0)
    u = np.repeat([3.0, 1.0, 2.0, 4.0], 16)
    Phi = Mask(np.sort(np.append(0, 1 + rng.permutation(n - 1)[:40])), n) @ DCT(n)
    y = Phi @ u + 0.1 * rng.standard_normal(Phi.shape[0])
    for seed in range(6):
        post = cofem.fit(Phi, y, analysis=n, rng=seed)
        assert 1 / 2 < post.noise_std / 0.1 < 2
        assert np.linalg.norm(post.mean - u) < 0.15 * np.linalg.norm(u)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 9), (1, 6), (3, 4, 5), (2, 2)])
def test_weighted_gram_by_diagonals(shape: tuple[int, ...]) -> None:
    parts: list[Operator] = [2 * Gradient(shape), Identity(shape)]
    if max(shape) > 2:
        parts.append(Gradient(shape, order=2))
    B = vstack(parts)
    weights = np.random.default_rng(0).random(B.shape[0])
    dense = B.to_dense()
    found = B.weighted_gram(weights)
    assert found is not None
    np.testing.assert_allclose(found.toarray(), dense.T @ (weights[:, None] * dense), atol=1e-12)
    assert Gradient(shape, "periodic").weighted_gram(np.ones(Gradient(shape, "periodic").shape[0])) is None


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_products_by_diagonals_are_those_of_the_operators(kind: str) -> None:
    rng = np.random.default_rng(1)
    like = np.zeros(1, np.complex128 if kind == "complex" else np.float64)
    B = vstack([Gradient((6, 5)), Gradient((6, 5), order=2)])
    alpha = rng.random(B.shape[0])
    for Phi in (Mask(rng.permutation(30)[:12], 30), Convolution(np.ones((3, 3)) / 9, (6, 5))):
        system = AnalysisSystem(Dictionary(Phi, like=like), Rows(B, like), alpha, 0.3)
        x = rng.standard_normal((2, 30)) + (1j * rng.standard_normal((2, 30)) if kind == "complex" else 0)
        dense, rows = Phi.to_dense(), B.to_dense()
        wanted = x @ (dense.T @ dense + 0.3 * rows.T @ (alpha[:, None] * rows))
        np.testing.assert_allclose(system.apply(x), wanted, atol=1e-12)


def test_variances_of_few_draws_are_near_the_exact_ones() -> None:
    """Eight draws, pooled over neighbours, are as good as 32 that are not."""
    rng = np.random.default_rng(3)
    picture = np.zeros((24, 24))
    picture[6:17, 5:20] = 1.0
    seen = rng.random(picture.shape) < 0.4
    y = picture[seen] + 0.05 * rng.standard_normal(seen.sum())
    B = vstack([Gradient(picture.shape), Gradient(picture.shape, order=2)])
    post = cofem.fit(Mask(seen), y, noise_std=0.05, analysis=B, prior=cofem.Neighbours(3), rng=0)
    assert post.method == "analysis"
    _, covariance = exact(Mask(seen), B, y, post.alpha, 0.05)
    ratio = post.variance / np.diagonal(covariance)
    assert abs(np.mean(ratio) - 1) < 0.1
    assert np.std(ratio) < (2 / 32) ** 0.5


def test_draws_of_signs_have_the_posteriors_covariance() -> None:
    rng = np.random.default_rng(0)
    phi, rows = Dictionary(Mask([0, 3, 4], 6), like=np.zeros(1)), Rows(Gradient(6), np.zeros(1))
    alpha = np.array([1.0, 3.0, 0.5, 2.0, 1.0])
    system = AnalysisSystem(phi, rows, alpha, 0.2)
    right = system.of_draws(20000, rng, signs=True)
    x = system.solve(right, tol=1e-8, reference=6, max_iter=50).x
    _, covariance = exact(phi.operator, Gradient(6), np.zeros(3), alpha, 0.2**0.5)
    np.testing.assert_allclose(x.T @ x / len(x), covariance, atol=0.03 * np.abs(covariance).max())


def test_variances_are_scaled_as_held_out_data_have_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    picture = np.zeros((40, 40))
    picture[10:30, 8:32] = 1.0
    seen = rng.random(picture.shape) < 0.5
    y = picture[seen] + 0.1 * rng.standard_normal(seen.sum())
    fitted = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    post = replace(fitted, scale=4.0 * fitted.scale, variance=4.0 * fitted.variance)
    some = [3, 700, 900]
    np.testing.assert_allclose(post.covariance(some), 4.0 * fitted.covariance(some), rtol=1e-6)
    draws = [p.sample(4, rng=1) - p.mean for p in (post, fitted)]
    np.testing.assert_allclose(draws[0], 2.0 * draws[1], atol=1e-3)
    spreads = [
        p.predict(Mask(some, (40, 40)), return_std=True, include_noise=False)[1] for p in (post, fitted)
    ]
    np.testing.assert_allclose(spreads[0], 2.0 * spreads[1], rtol=1e-5)
    post.save(tmp_path / "fit.npz")
    again = cofem.load(tmp_path / "fit.npz", operator=Mask(seen), analysis=post.analysis)
    assert again.scale == post.scale


@pytest.mark.parametrize("true", [0.7, 1.0, 1.6])
def test_the_scale_at_which_intervals_hold(true: float) -> None:
    rng = np.random.default_rng(0)
    spread = rng.gamma(2.0, size=4000)
    errors = (true * spread + 0.1) * rng.standard_normal(4000) ** 2
    found = Errors(errors, spread, 8.0, of_complex=False).holding_scale(0.1)
    assert abs(np.log(found / true)) < 0.12
    # Where the noise hides it, nothing is said.
    assert Errors(errors, spread, 8.0, of_complex=False).holding_scale(1e3) == 1.0


def test_intervals_of_unseen_pixels_hold_where_nothing_is_given() -> None:
    n = 96
    rng = np.random.default_rng(8)
    i, j = np.mgrid[:n, :n] / n
    picture = np.sin(5 * i + 3 * j**2) + (np.hypot(i - 0.5, j - 0.4) < 0.25) - 0.7 * (i + j > 1.4)
    seen = rng.random(picture.shape) < 0.4
    y = picture[seen] + 0.1 * rng.standard_normal(seen.sum())
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    held = np.abs(post.mean - picture.ravel()) < 1.96 * post.std
    assert 0.9 < np.mean(held[~seen.ravel()]) < 0.995
    assert 0.8 < post.noise_std / 0.1 < 1.25


# --- properties -----------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(5, 40), st.booleans())
def test_exact_and_conjugate_gradients_agree_on_sparse_operators(seed: int, n: int, is_complex: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 3 * n))
    B = scipy.sparse.random_array((rows, n), density=0.2, rng=rng, data_sampler=rng.standard_normal).tocsr()
    B = scipy.sparse.vstack([B, scipy.sparse.eye_array(n).tocsr()[: n // 2]]).tocsr()
    Phi = rng.standard_normal((n - n // 2 + 1, n)) + 0j
    Phi = Phi + 1j * rng.standard_normal(Phi.shape) if is_complex else Phi.real
    y = Phi @ rng.standard_normal(n)
    alpha = rng.gamma(1.0, size=B.shape[0]) + 1e-3
    same = dict(noise_std=0.2, analysis=B, alpha_init=alpha, max_iter=1, tol=0, rng=0)
    direct = cofem.fit(Phi, y, **same)
    solved = cofem.fit(Phi, y, method=AnalysisEM(**TIGHT, final_draws=400), **same)
    mean, covariance = exact(Phi, B.toarray(), y, direct.alpha, 0.2)
    size = np.abs(mean).max() + 1e-9
    np.testing.assert_allclose(direct.mean, mean, atol=1e-6 * size)
    np.testing.assert_allclose(solved.mean, mean, atol=1e-5 * size)
    np.testing.assert_allclose(direct.variance, np.diagonal(covariance).real, rtol=1e-6)
    ratio = solved.variance / direct.variance
    assert np.abs(ratio - 1).max() < 6 * (2 / 400) ** 0.5


@cache
def in_plain_units(learned: bool, exactly: bool) -> cofem.Posterior:
    """Return the fit that those in other units are compared with; they share it."""
    Phi, y, _ = jumps(60)
    B = vstack([Gradient(60), Gradient(60, order=2)])
    same = dict(method=AnalysisEM(exact=exactly), rng=0, max_iter=12, tol=0)
    return cofem.fit(Phi, y, noise_std="learn" if learned else 0.1, analysis=B, **same)


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(
    ("data", "dictionary", "rows"), [(1e6, 1, 1), (1, 1e-5, 1), (1, 1, 1e4), (1e-7, 1e4, 1e-3)]
)
def test_units_make_no_difference(
    data: float, dictionary: float, rows: float, learned: bool, exactly: bool
) -> None:
    Phi, y, _ = jumps(60)
    same = dict(method=AnalysisEM(exact=exactly), rng=0, max_iter=12, tol=0)
    B = vstack([Gradient(60), Gradient(60, order=2)])
    one = in_plain_units(learned, exactly)
    noise = "learn" if learned else 0.1 * data
    other = cofem.fit(dictionary * Phi, data * y, noise_std=noise, analysis=rows * B, **same)
    factor = data / dictionary
    close = 1e-6 if exactly else 1e-2
    np.testing.assert_allclose(other.mean / factor, one.mean, atol=close * np.abs(one.mean).max())
    np.testing.assert_allclose(other.std / factor, one.std, rtol=10 * close)
    assert other.noise_std / data == pytest.approx(one.noise_std, rel=10 * close)
    if exactly:
        np.testing.assert_allclose(other.alpha * (factor * rows) ** 2, one.alpha, rtol=1e-4)


def test_details_of_a_coarse_picture_are_not_taken_for_noise() -> None:
    # The noise was learned as 0.13 where it is 0.005, and 95 % intervals held 88 %.
    u = (pywt.data.ascent() / 255.0).reshape(32, 16, 32, 16).mean((1, 3))
    rng = np.random.default_rng(102)
    seen = rng.random(u.shape) < 0.25
    y = (u + 0.005 * rng.standard_normal(u.shape))[seen]
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    assert post.noise_std < 0.02
    unseen = ~seen.ravel()
    held = np.abs(post.mean - u.ravel())[unseen] < 1.96 * post.std[unseen]
    assert 0.9 < held.mean() < 0.98


def test_texture_is_not_taken_for_noise() -> None:
    # Residuals of neighbours tell. The noise was learned as 0.092, and 95 % intervals held 62 %.
    rng = np.random.default_rng(0)
    u = gaussian_filter(rng.standard_normal((96, 96)), 0.8, mode="wrap")
    u = 0.5 + 0.13 * u / u.std()
    seen = rng.random(u.shape) < 0.4
    y = (u + 0.02 * rng.standard_normal(u.shape))[seen]
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    unseen = ~seen.ravel()
    error = np.abs(post.mean - u.ravel())[unseen]
    assert 0.01 < post.noise_std < 0.04
    assert np.sqrt(np.mean(error**2)) < 0.087
    assert 0.9 < np.mean(error < 1.96 * post.std[unseen]) < 0.98


def test_noise_is_not_taken_for_texture() -> None:
    u = (pywt.data.ascent() / 255.0).reshape(128, 4, 128, 4).mean((1, 3))
    rng = np.random.default_rng(3)
    seen = rng.random(u.shape) < 0.4
    y = (u + 0.1 * rng.standard_normal(u.shape))[seen]
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    assert 0.085 < post.noise_std < 0.125


@pytest.mark.parametrize("B", [Gradient((24, 20)), vstack([Gradient((24, 20)), Gradient((24, 20), order=2)])])
def test_exact_steps_settle_where_neighbours_share(B: Operator) -> None:
    # Steps of 1.7 times the length went to and fro, farther and farther.
    u = np.pad(np.ones((10, 8)), ((5, 9), (4, 8))) + 0.5 * np.pad(np.ones((10, 10)), ((10, 4), (8, 2)))
    rng = np.random.default_rng(100)
    seen = rng.random(u.shape) < 0.5
    y = (u + 0.03 * rng.standard_normal(u.shape))[seen]
    post = cofem.fit(Mask(seen), y, noise_std=0.03, analysis=B, prior=cofem.Neighbours(3), rng=0)
    assert post.converged
    assert post.n_iter < 40


def test_exact_moments_of_sparse_rows_are_those_of_dense_ones() -> None:
    rng = np.random.default_rng(5)
    B = vstack([Gradient((5, 4)), Gradient((5, 4), order=2)])
    phi, y = rng.standard_normal((9, 20)), rng.standard_normal((9, 2))
    alpha, rows = rng.uniform(0.1, 10, B.shape[0]), B.to_dense()
    dense = exact_moments(phi, rows, alpha, 0.3, y)
    sparse = exact_moments(scipy.sparse.csr_array(phi), B.sparse_matrix(), alpha, 0.3, y)
    inverse = np.linalg.inv(phi.T @ phi / 0.3 + rows.T @ np.diag(alpha) @ rows)
    np.testing.assert_allclose(dense.variance, np.diag(inverse), rtol=1e-10)
    np.testing.assert_allclose(dense.row_variance, np.diag(rows @ inverse @ rows.T), rtol=1e-10)
    for one, other in zip(dense, sparse, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_picture_without_anything_on_it(dtype: type) -> None:
    seen = np.random.default_rng(0).random((24, 24)) < 0.4
    post = cofem.fit(Mask(seen), np.full(int(seen.sum()), 3.0, dtype), analysis="auto", rng=0)
    np.testing.assert_allclose(post.mean, 3.0, rtol=1e-3)
