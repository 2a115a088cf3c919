"""Coils and Fourier coefficients at any points: against sums written out, and in fits."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

import cofem
from cofem.operators import DCT, FFT, NUFFT, Coils, Mask, block_diag

RNG = np.random.default_rng(3)


def sums(points: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The matrix of the transform, from its definition."""
    places = np.stack(np.meshgrid(*(np.arange(n) - n // 2 for n in shape), indexing="ij"), axis=-1)
    phases = points @ (places.reshape(-1, len(shape)) / shape).T
    return np.exp(-2j * np.pi * phases) / np.sqrt(np.prod(shape))


@pytest.mark.parametrize("shape", [(8,), (7,), (6, 5), (4, 3, 5)])
def test_nufft_is_its_definition(shape: tuple[int, ...]) -> None:
    points = RNG.uniform(-1.5, 1.5, (11, len(shape))) * shape
    F = NUFFT(points, shape)
    np.testing.assert_allclose(F.to_dense(), sums(points, shape), atol=1e-12)
    x = RNG.standard_normal((2, 3, np.prod(shape)))
    np.testing.assert_allclose(F.forward(x), x @ sums(points, shape).T, atol=1e-11)
    assert F.column_norms_exact


def test_nufft_at_whole_numbers_is_the_fourier_transform() -> None:
    shape = (6, 5)
    grid = np.stack(np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in shape), indexing="ij"), axis=-1)
    x = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    got = NUFFT(grid.reshape(-1, 2), shape) @ np.fft.fftshift(x).ravel()
    np.testing.assert_allclose(got, FFT(shape) @ x.ravel(), atol=1e-12)


def test_nufft_in_single_precision_and_pickled() -> None:
    points = RNG.uniform(-8, 8, (50, 2))
    F = NUFFT(points, (16, 16))
    x = RNG.standard_normal((40, 256)).astype(np.float32)
    exact = F.forward(x.astype(np.float64))
    assert F.forward(x).dtype == np.complex64
    assert np.linalg.norm(F.forward(x) - exact) < 1e-5 * np.linalg.norm(exact)
    back = pickle.loads(pickle.dumps(F))
    np.testing.assert_array_equal(back.forward(x), F.forward(x))
    for count in range(1, 12):  # plans are made for each size of a batch, and not all are kept
        np.testing.assert_allclose(F.forward(x[:count]), exact[:count], atol=1e-4)
    assert len(F._plans) <= 8


@pytest.mark.parametrize(
    ("points", "shape", "error", "match"),
    [
        (np.ones((3, 2)), 8, ValueError, r"points must have shape \(M, 1\)"),
        (np.ones(3), (4, 4), ValueError, r"points must have shape \(M, 2\)"),
        (np.ones((3, 4)), (2, 2, 2, 2), ValueError, "1, 2 or 3 axes"),
        ([np.nan], 4, ValueError, "points must be finite"),
        (np.ones(3) * 1j, 4, TypeError, "points must be real"),
    ],
)
def test_bad_points_are_refused(points: Any, shape: Any, error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        NUFFT(points, shape)


def test_without_finufft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "finufft", None)
    with pytest.raises(ImportError, match=r"cofem\[nufft\]"):
        NUFFT([0.0], 4)


# --- coils ------------------------------------------------------------------------------------------


def covariance(n: int) -> np.ndarray:
    root = RNG.standard_normal((n, n)) + 1j * RNG.standard_normal((n, n))
    return root @ root.conj().T + 0.1 * np.eye(n)


def test_whitened_coils_have_independent_noise() -> None:
    cov = covariance(4)
    maps = RNG.standard_normal((4, 3, 5)) + 1j * RNG.standard_normal((4, 3, 5))
    plain, white = Coils(maps), Coils(maps, noise_cov=cov)
    assert np.linalg.norm(white.whitening @ cov @ white.whitening.conj().T - np.eye(4)) < 1e-10
    x = RNG.standard_normal(15)
    np.testing.assert_allclose(white @ x, white.whiten(plain @ x), atol=1e-12)
    rows = (plain @ x).reshape(4, 15)
    np.testing.assert_allclose(white.whiten(rows).ravel(), white @ x, atol=1e-12)
    np.testing.assert_array_equal(plain.whiten(rows), rows)
    # Sampling is the same for all coils, so it does not matter which comes first.
    F = block_diag([Mask([0, 7, 3], 15) @ FFT((3, 5))] * 4)
    np.testing.assert_allclose(F @ (white @ x), white.whiten(F @ (plain @ x)), atol=1e-12)


def test_maps_of_unit_power_are_known_to_be_so() -> None:
    maps = RNG.standard_normal((3, 8)) + 1j * RNG.standard_normal((3, 8))
    maps /= np.linalg.norm(maps, axis=0)
    assert Coils(maps).facts.column_gram == pytest.approx(1)
    assert Coils(2 * maps + 1).facts.column_gram is None
    assert Coils(maps.reshape(3, 2, 4)).column_shape == (2, 4)


@pytest.mark.parametrize(
    ("maps", "settings", "match"),
    [
        (np.ones(3), {}, "maps must have shape"),
        (np.full((2, 3), np.nan), {}, "maps must hold finite numbers"),
        (np.ones((2, 3)), {"noise_cov": np.eye(3)}, r"noise_cov must have shape \(2, 2\)"),
        (np.ones((2, 3)), {"noise_cov": [[1, 1], [0, 1]]}, "noise_cov must be Hermitian"),
        (np.ones((2, 3)), {"noise_cov": -np.eye(2)}, "noise_cov must be positive definite"),
    ],
)
def test_bad_coils_are_refused(maps: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Coils(maps, **settings)
    with pytest.raises(ValueError, match="data must have"):
        Coils(np.ones((2, 3))).whiten(np.ones((3, 4)))


@pytest.mark.parametrize("radial", [False, True])
def test_a_sparse_picture_seen_by_coils(radial: bool) -> None:
    """Noise of coils, correlated and unequal: whitened, the fit is better, and knows how good it is."""
    rng = np.random.default_rng(0)  # of its own, whatever other tests drew
    shape, count = (16, 16), 4
    x, y = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    centres = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    maps = np.stack([np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2 + 1j * (a * x + b * y)) for a, b in centres])
    cov = 0.02**2 * covariance(count)
    if radial:
        angle = np.repeat(np.arange(6) * np.pi / 6, 16)
        radius = np.tile(np.arange(-8, 8) + 0.5, 6)
        F: Any = NUFFT(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), shape)
    else:
        F = Mask(np.sort(rng.choice(256, 90, replace=False)), shape) @ FFT(shape)
    z = np.zeros(256)
    z[rng.choice(256, 15, replace=False)] = rng.standard_normal(15) + 2
    S = block_diag([F] * count)
    Psi = DCT(shape).T
    root = np.linalg.cholesky(cov)
    n = F.shape[0]
    e = (rng.standard_normal((count, n)) + 1j * rng.standard_normal((count, n))) / np.sqrt(2)
    data = S @ (Coils(maps) @ (Psi @ z)) + (root @ e).ravel()
    white = Coils(maps, noise_cov=cov)
    post = cofem.fit(S @ white @ Psi, white.whiten(data), noise_std=1.0, rng=0)
    plain = cofem.fit(
        S @ Coils(maps) @ Psi, data, noise_std=float(np.sqrt(np.trace(cov).real / count)), rng=0
    )
    error, plain_error = (np.linalg.norm(p.mean - z) for p in (post, plain))
    assert error < 0.7 * plain_error
    assert 0.5 < np.sqrt(np.mean(np.abs(post.mean - z)[z != 0] ** 2 / post.variance[z != 0])) < 1.6
