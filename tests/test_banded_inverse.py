"""Variances of what is coupled along a line, exact in every step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cofem
from cofem.linalg.banded_inverse import inverse_diagonal
from cofem.linalg.diagonals import Exact, Gate, PosteriorContext, RightHandSides
from cofem.linalg.diagonals.exact import banded_shares
from cofem.operators import Convolution, Mask

from .operators.test_combs import LINE, LOCAL, Silent
from .problems import dictionary


@given(
    size=st.integers(100, 260),
    reach=st.integers(0, 33),
    ring=st.booleans(),
    is_complex=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_diagonal_is_that_of_the_inverse(size, reach, ring, is_complex, seed):
    rng = np.random.default_rng(seed)
    bands = rng.standard_normal((reach + 1, size)).astype(complex if is_complex else float)
    bands += 1j * rng.standard_normal(bands.shape) if is_complex else 0
    bands[0] = 2 * np.abs(bands).sum(axis=0).max() * rng.uniform(1, 3, size)
    j = np.arange(size)
    matrix = np.zeros((size, size), dtype=bands.dtype)
    for offset in range(reach + 1):
        if offset and not ring:
            bands[offset, -offset:] = 0
        matrix[(j + offset) % size, j] = bands[offset]
        matrix[j, (j + offset) % size] = bands[offset].conj()
    np.testing.assert_allclose(inverse_diagonal(bands), np.diag(np.linalg.inv(matrix)).real, rtol=1e-10)


@given(
    ring=st.booleans(),
    is_complex=st.booleans(),
    seen=st.floats(0.3, 1),
    strength=st.floats(0, 9),
    seed=st.integers(0, 2**16),
)
def test_strong_signals_of_which_samples_are_missing_keep_their_digits(
    ring, is_complex, seen, strength, seed
):
    """Where the condition is c, the elimination may lose as many digits as c has, not twice as many."""
    rng = np.random.default_rng(seed)
    kernel = 0.8 ** np.arange(20) * (np.exp(0.3j * np.arange(20)) if is_complex else 1)
    Phi = Convolution(kernel, 140, mode="circular" if ring else "linear", causal=True).to_dense()
    Phi = Phi[rng.random(140) < seen] * 10 ** (strength / 2 * rng.random(140))
    matrix = np.eye(140) + Phi.conj().T @ Phi
    bands = np.array([matrix[(np.arange(140) + d) % 140, np.arange(140)] for d in range(20)])
    allowed = 100 * np.finfo(float).eps * np.linalg.cond(matrix)
    np.testing.assert_allclose(inverse_diagonal(bands), np.diag(np.linalg.inv(matrix)).real, rtol=allowed)


@pytest.mark.parametrize("name", ["borders", "complex", "samples", "weights", "widening"])
@pytest.mark.parametrize("silent", [False, True])
def test_variances_are_exact_with_precisions_far_apart(name, silent):
    Phi = LOCAL[name][0]
    phi = dictionary(Silent(Phi) if silent else Phi)
    alpha = 10 ** np.random.default_rng(0).uniform(-2, 8, Phi.shape[1])
    context = PosteriorContext(phi, alpha, 1e-3)
    assert [estimator.name for estimator in Gate().candidates(context)] == ["exact"]
    found = Exact().estimate(context, None, RightHandSides(), None).value
    matrix = Phi.to_dense()
    Sigma = np.linalg.inv(matrix.conj().T @ matrix / 1e-3 + np.diag(alpha))
    np.testing.assert_allclose(found, np.diag(Sigma).real, rtol=1e-6)


def test_a_fit_to_samples_of_a_blur_is_that_of_exact_em():
    rng = np.random.default_rng(5)
    Phi = Mask(np.flatnonzero(rng.random(700) < 0.6), 700) @ Convolution(LINE, 700)
    z = np.where(rng.random(700) < 0.02, rng.standard_normal(700), 0)
    y = Phi @ z + 0.01 * rng.standard_normal(Phi.shape[0])
    settings = {"noise_std": 0.01, "max_iter": 12, "tol": 0.0}
    ours = cofem.fit(Phi, y, method=cofem.CoFEM(accelerate=False, cg_tol=1e-8), **settings)
    exact = cofem.fit(Phi, y, method="em", **settings)
    np.testing.assert_allclose(ours.mean, exact.mean, atol=1e-5 * np.abs(exact.mean).max())
    np.testing.assert_allclose(ours.variance, exact.variance, rtol=1e-4)
    assert "variances are exact" in str(ours.status)


@pytest.mark.parametrize("ring", [False, True])
def test_precisions_that_are_as_far_apart_as_rounding_do_not_break_it(ring: bool) -> None:
    rng = np.random.default_rng(0)
    g = 10.0 ** rng.uniform(-12, 18, 200)
    bands = np.array([np.full(200, 1.0), np.full(200, 0.999)])
    if not ring:
        bands[1, -1] = 0.0
    found = banded_shares(bands, g, 1.0)
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= 1)).all()
