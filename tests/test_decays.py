"""Impulses that decay by one factor from sample to sample: exact in a few passes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cofem
from cofem.linalg.build import build_system
from cofem.linalg.decaying_shares import decaying_shares
from cofem.linalg.diagonals import Exact, Gate, PosteriorContext, RightHandSides
from cofem.linalg.preconditioners import BandedPreconditioner, DecayPreconditioner, from_decay
from cofem.operators import Convolution, Diagonal, Mask, Operator
from cofem.operators.decay import Decay
from cofem.operators.dictionary import Dictionary

from .problems import dictionary

#: Long enough not to break off.
KERNEL = 0.8 ** np.arange(120)
SEEN = np.sort(np.random.default_rng(0).permutation(150)[:90])


def convolution(mode: str = "linear", kernel: np.ndarray = KERNEL) -> Convolution:
    return Convolution(kernel, 150, mode=mode, causal=True)


DECAYS: dict[str, Operator] = {
    "borders": convolution(),
    "ring": convolution("circular"),
    "samples": Mask(SEEN, 150) @ convolution(),
    "samples of a ring": Mask(SEEN, 150) @ convolution("circular"),
    "weights": Diagonal(np.linspace(0.5, 2, 150)) @ convolution(kernel=-3 * KERNEL),
    "weights of samples": Diagonal(np.linspace(0.5, 2, 90)) @ Mask(SEEN, 150) @ convolution(),
    "samples of samples in units": (2.0 * (Mask(SEEN, 150) @ convolution())).take_rows(np.arange(0, 90, 2)),
    "units": 2.0 * (Mask(SEEN, 150) @ convolution() @ Diagonal(np.linspace(0.1, 3, 150))),
}
OTHERS: dict[str, Operator] = {
    "centred": Convolution(KERNEL, 150, mode="linear", causal=False),
    "broken off": convolution(kernel=KERNEL[:12]),
    "two decays": convolution(kernel=KERNEL + 0.5 ** np.arange(120)),
    "growing": convolution(kernel=KERNEL[::-1].copy()),
    "short": convolution(kernel=KERNEL[:3]),
    "rising first": convolution(kernel=np.append(0.0, KERNEL)),
    "complex": convolution(kernel=KERNEL * np.exp(0.3j * np.arange(120))),
    "complex units": convolution() @ Diagonal(np.exp(1j * np.arange(150))),
    "full": Convolution(KERNEL, 150, mode="linear", output="full"),
    "a picture": Convolution(np.outer(KERNEL[:8], KERNEL[:8]), (10, 15), mode="linear", causal=True),
}


@pytest.mark.parametrize("name", DECAYS)
def test_variances_are_exact_with_precisions_far_apart(name: str) -> None:
    Phi = DECAYS[name]
    alpha = 10 ** np.random.default_rng(1).uniform(-2, 8, 150)
    context = PosteriorContext(dictionary(Phi), alpha, 1e-3)
    assert [estimator.name for estimator in Gate().candidates(context)] == ["exact"]
    found = Exact().estimate(context, None, RightHandSides(), None).value
    matrix = Phi.to_dense()
    Sigma = np.linalg.inv(matrix.T @ matrix / 1e-3 + np.diag(alpha))
    np.testing.assert_allclose(found, np.diag(Sigma), rtol=1e-5)


@pytest.mark.parametrize("name", DECAYS)
def test_solves_are_exact(name: str) -> None:
    Phi = DECAYS[name]
    rng = np.random.default_rng(2)
    alpha = 10 ** rng.uniform(-2, 6, 150)
    ready = from_decay(dictionary(Phi), alpha, 1e-2).prepared()
    matrix = Phi.to_dense()
    A = matrix.T @ matrix + 1e-2 * np.diag(alpha)
    real = rng.standard_normal((2, 150))
    for r in (real, real[:1] + 1j * real[1:]):
        x = np.empty_like(r)
        ready.apply(r, x)
        wanted = np.linalg.solve(A, r.T).T
        np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-8 * np.abs(wanted).max())


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_strong_signals_have_the_variances_of_the_kernel_as_it_is(precision: str) -> None:
    """With the decay in place of a kernel that breaks off, the largest was off by a factor of 25."""
    rng = np.random.default_rng(0)
    seen = np.sort(rng.permutation(400)[:200])
    Phi = Mask(seen, 400) @ Convolution(0.95 ** np.arange(100), 400, mode="linear", causal=True)
    alpha = np.where(rng.random(400) < 0.05, 10 ** rng.uniform(0, 1, 400), 1e8)
    phi = Dictionary(Phi.astype(precision), like=np.zeros(1, precision))
    context = PosteriorContext(phi, alpha.astype(precision), 1e-6)
    assert [estimator.name for estimator in Gate(small=0).candidates(context)] == ["exact"]
    found = Exact().estimate(context, None, RightHandSides(), None).value
    matrix = Phi.to_dense()
    wanted = np.diag(np.linalg.inv(matrix.T @ matrix / 1e-6 + np.diag(alpha)))
    np.testing.assert_allclose(found, wanted, rtol=0.02)


def test_decays_with_missing_samples_and_no_bands_are_not_called_exact(monkeypatch) -> None:
    monkeypatch.setattr("cofem.linalg.preconditioners.banded.MOST_DIAGONALS", 5)
    broken_off = convolution(kernel=0.8 ** np.arange(25))
    for Phi, exact in ((broken_off, True), (Mask(SEEN, 150) @ broken_off, False), (DECAYS["samples"], True)):
        context = PosteriorContext(dictionary(Phi), np.ones(150), 0.1)
        names = [estimator.name for estimator in Gate(small=0).candidates(context)]
        assert (names == ["exact"]) == exact


def test_bands_take_the_place_of_a_decay_whose_end_counts() -> None:
    """Where samples are missing and the signal is strong, what breaks off is not negligible."""
    Phi = Mask(SEEN, 150) @ convolution(kernel=0.8 ** np.arange(25))
    phi, rng = dictionary(Phi), np.random.default_rng(5)
    for strength, kind in ((1.0, DecayPreconditioner), (1e6, BandedPreconditioner)):
        alpha = 10 ** rng.uniform(0, 4, 150) / strength
        system = build_system(phi, alpha, 1e-2, form="primal")
        assert isinstance(system.preconditioner, kind)
        found = system.solve(rng.standard_normal((1, 90)), tol=1e-6, max_iter=60)
        assert found.cg.converged.all()
        context = PosteriorContext(phi, alpha, 1e-2)
        value = Exact().estimate(context, None, RightHandSides(), None).value
        matrix = Phi.to_dense()
        Sigma = np.linalg.inv(matrix.T @ matrix / 1e-2 + np.diag(alpha))
        np.testing.assert_allclose(value, np.diag(Sigma), rtol=1e-3 if strength == 1 else 1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_taken_for_a_decay(name: str) -> None:
    assert OTHERS[name].decay() is None


@given(
    size=st.integers(2, 40),
    ratio=st.floats(0.01, 0.999),
    unseen=st.floats(0, 0.9),
    spread=st.floats(0, 10),
    seed=st.integers(0, 2**16),
)
def test_shares_are_those_of_the_inverse(size, ratio, unseen, spread, seed) -> None:
    rng = np.random.default_rng(seed)
    seen = np.where(rng.random(size) < unseen, 0.0, rng.uniform(0.1, 2, size))
    g = 10 ** rng.uniform(-spread, 0, size)
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    C = np.where(lag >= 0, ratio ** np.maximum(lag, 0), 0.0)
    root = np.sqrt(g)
    inside = np.eye(size) + root[:, None] * (C.T @ (seen[:, None] * C)) * root / 0.1
    wanted = np.diag(np.linalg.inv(inside))
    np.testing.assert_allclose(decaying_shares(Decay(ratio, seen), g, 0.1), wanted, rtol=1e-6)


def test_samples_of_what_is_out_of_order_are_no_decay() -> None:
    order = np.random.default_rng(0).permutation(150)
    Phi = Mask(np.arange(70), 150) @ (2.0 * (Mask(order, 150) @ convolution()))
    assert Phi.decay() is None
    z = np.zeros(150)
    z[[20, 90]] = 1.0
    y = Phi @ z + 0.01 * np.random.default_rng(1).standard_normal(70)
    for Psi, data in ((Phi, y), (Phi.take_rows(np.arange(60)), y[:60])):
        post = cofem.fit(Psi, data, noise_std=0.01, method="cofem", rng=0)
        assert post.status.settled


def test_pivots_that_rounding_has_eaten() -> None:
    """Nothing is seen of a stretch whose precisions are twenty orders of magnitude apart."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        seen = np.where(rng.random(30) < 0.9, 0.0, 1.0)
        g = 10 ** rng.uniform(-20, 2, 30)
        for ratio in (0.5, 1 - 1e-9):
            found = decaying_shares(Decay(ratio, seen), g, 1.0)
            assert ((found >= 0) & (found <= 1)).all()
            ready = DecayPreconditioner(Decay(ratio, seen), 1 / g, 1.0).prepared()
            x = np.empty((1, 30))
            ready.apply(np.ones((1, 30)), x)
            assert np.isfinite(x).all()


def test_a_kernel_that_breaks_off_is_close() -> None:
    """At 1 % of its first entry: variances differ by less than 0.5 %, and means not at all."""
    rng = np.random.default_rng(3)
    Phi = Convolution(0.9 ** np.arange(44), 300, mode="linear", causal=True)
    z = np.where(rng.random(300) < 0.05, 1.0, 0.0)
    y = Phi @ z + 0.1 * rng.standard_normal(300)
    post = cofem.fit(Phi, y, noise_std=0.1, method=cofem.CoFEM(cg_tol=1e-8), rng=0)
    matrix = Phi.to_dense()
    Sigma = np.linalg.inv(matrix.T @ matrix / 0.01 + np.diag(post.alpha))
    np.testing.assert_allclose(post.variance, np.diag(Sigma), rtol=5e-3)
    np.testing.assert_allclose(post.mean, Sigma @ matrix.T @ y / 0.01, atol=1e-4)
    assert post.history["cg_iterations"].max() <= 8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_long_trace_takes_a_second(dtype: type) -> None:
    """20 000 samples, noise learned, spikes not negative: 15 s of CPU time by the 100 diagonals before."""
    rng = np.random.default_rng(1)
    Phi = Convolution((0.95 ** np.arange(100)).astype(dtype), 20_000, mode="linear", causal=True)
    spikes = rng.poisson(0.03, 20_000).astype(dtype)
    y = (Phi @ spikes + 0.1 * rng.standard_normal(20_000)).astype(dtype)
    start = time.process_time()
    post = cofem.fit(Phi, y, nonnegative=True, rng=0)
    assert time.process_time() - start < 5
    assert post.converged
    assert 0.09 < post.noise_std < 0.11
    assert np.linalg.norm(Phi @ (post.mean - spikes)) < 0.05 * np.linalg.norm(Phi @ spikes)
    assert isinstance(post.mean[0], dtype)


def test_the_preconditioner_is_used() -> None:
    phi = dictionary(DECAYS["samples"])
    assert isinstance(from_decay(phi, np.ones(150), 0.1), DecayPreconditioner)
    assert from_decay(dictionary(OTHERS["centred"]), np.ones(150), 0.1) is None
