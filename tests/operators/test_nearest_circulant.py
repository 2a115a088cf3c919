"""The circular convolution nearest to ``Phi^H Phi``: the mean of its entries over each lag."""

from __future__ import annotations

import numpy as np
import pytest

import cofem
from cofem.operators import FFT, NUFFT, Coils, Convolution, Dense, Gradient, Mask, Operator, block_diag

RNG = np.random.default_rng(0)
SHAPE = (4, 5)
POINTS = RNG.uniform(-2, 2, (9, 2))
MAPS = RNG.standard_normal((3, *SHAPE)) + 1j * RNG.standard_normal((3, *SHAPE))
ROWS = np.array([0, 3, 4, 11, 19])
FOURIER = Mask(ROWS, SHAPE) @ FFT(SHAPE)
KNOWN = {
    "samples of Fourier": FOURIER,
    "a line": NUFFT(RNG.uniform(-3, 3, 5), 7),
    "points": NUFFT(POINTS, SHAPE),
    "points of coils": block_diag([NUFFT(POINTS, SHAPE)] * 3) @ Coils(MAPS),
    "samples of coils": block_diag([FOURIER] * 3) @ Coils(MAPS),
}


def mean_over_lags(Phi: Operator, shape: tuple[int, ...]) -> np.ndarray:
    """The nearest circulant matrix in the Frobenius norm, by its definition."""
    gram = Phi.to_dense().conj().T @ Phi.to_dense()
    places = np.stack(np.unravel_index(np.arange(gram.shape[0]), shape), axis=1)
    lag = (places[:, None] - places) % shape
    flat = np.ravel_multi_index(tuple(np.moveaxis(lag, -1, 0)), shape)
    means = np.array([gram[flat == k].mean() for k in range(gram.shape[0])])
    return means[flat]


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_the_mean_over_each_lag(name: str) -> None:
    Phi = KNOWN[name]
    found = Phi.nearest_circulant()
    shape = found.shape
    assert not found.is_real
    wanted = mean_over_lags(Phi, shape)
    first = np.fft.ifftn(found.eigenvalues).ravel()
    np.testing.assert_allclose(first, wanted[:, 0], atol=1e-12 * np.abs(wanted).max())
    assert found.is_exact == (name == "samples of Fourier")
    if found.is_exact:
        gram = Phi.to_dense().conj().T @ Phi.to_dense()
        np.testing.assert_allclose(wanted, gram, atol=1e-14)


def test_a_multiple_of_some_rows_keeps_its_share() -> None:
    Phi = KNOWN["points of coils"]
    some = Phi.take_rows(np.arange(0, Phi.shape[0], 2))
    share = some.shape[0] / Phi.shape[0]
    np.testing.assert_allclose(
        some.nearest_circulant().eigenvalues, share * Phi.nearest_circulant().eigenvalues, rtol=1e-9
    )


def test_nothing_is_claimed_of_what_is_not_like_one() -> None:
    assert Dense(RNG.standard_normal((3, 4))).nearest_circulant() is None
    assert (block_diag([Dense(RNG.standard_normal((2, 20)))] * 3) @ Coils(MAPS)).nearest_circulant() is None
    blur = Convolution([1.0, 2.0], 5)
    assert blur.nearest_circulant().eigenvalues.tolist() == blur.circulant_gram().eigenvalues.tolist()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_products_with_the_gram_matrix_of_points(dtype: type) -> None:
    """It is a convolution; nearly the same as the two transforms one after the other."""
    for Phi in (KNOWN["a line"], KNOWN["points"], NUFFT(RNG.uniform(-1, 1, (4, 3)), (2, 3, 4))):
        x = (RNG.standard_normal((2, Phi.shape[1])) + 1j * RNG.standard_normal((2, Phi.shape[1]))).astype(
            dtype
        )
        wanted = Phi.adjoint(Phi.forward(x))
        found = Phi.gram(x)
        assert found.dtype == dtype
        assert found.shape == x.shape
        limit = 2e-5 if dtype == np.complex64 else 1e-11
        np.testing.assert_allclose(found, wanted, atol=limit * np.abs(wanted).max())


def test_spokes_take_few_steps() -> None:
    """A picture from spokes, seen by coils: conjugate gradients know the density of the samples."""
    side, spokes = 32, 16
    angle = np.repeat(np.arange(spokes) * np.pi / spokes, side)
    radius = np.tile(np.arange(side) - side / 2 + 0.5, spokes)
    F = NUFFT(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), (side, side))
    place = np.arange(side) / side
    maps = np.stack([np.outer(np.exp(-place * a), np.exp(-place * b)) for a, b in ((0, 0), (2, 0), (0, 2))])
    Phi = block_diag([F] * 3) @ Coils(maps)
    truth = np.zeros((side, side), complex)
    truth[8:20, 10:25] = 1.0
    rng = np.random.default_rng(1)
    noise = 0.02 * rng.standard_normal((2, Phi.shape[0]))
    y = Phi @ truth.ravel() + noise[0] + 1j * noise[1]
    method = cofem.AnalysisEM(exact=False)
    post = cofem.fit(Phi, y, noise_std=0.03, analysis=Gradient((side, side)), method=method, rng=0)
    assert post.converged
    assert np.linalg.norm(post.mean - truth.ravel()) < 0.05 * np.linalg.norm(truth)
    assert post.history["cg_iterations"].max() < 40
