"""The model does not depend on the unit of any column, and no result may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import DCT, Centred, Chunked, Dense, Diagonal, Identity, Mask, Wavelet, hstack

from .problems import dictionary


def problem(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a Gaussian dictionary, spikes and data of noise 0.01."""
    rng = np.random.default_rng(seed)
    Phi, z = rng.standard_normal((n, d)), np.zeros(d)
    where = rng.choice(d, max(2, d // 20), replace=False)
    z[where] = rng.choice([-1, 1], where.size) * rng.uniform(1, 2, where.size)
    return Phi, z, Phi @ z + 0.01 * rng.standard_normal(n)


def scales(d: int, decades: float, seed: int = 1) -> np.ndarray:
    half = decades / 2
    return 10 ** np.random.default_rng(seed).uniform(-half, half, d)


def assert_same(scaled: cofem.Posterior, plain: cofem.Posterior, scale: np.ndarray, rtol: float) -> None:
    """Compare in common units: sizes as the data see them."""
    size = np.linalg.norm(plain.mean)
    assert np.linalg.norm(scaled.mean * scale - plain.mean) <= rtol * size
    found = plain.support()
    np.testing.assert_allclose((scaled.std * scale)[found], plain.std[found], rtol=rtol)
    assert scaled.noise_std == pytest.approx(plain.noise_std, rel=rtol)
    assert scaled.support().tolist() == plain.support().tolist()


@pytest.mark.parametrize("noise_std", [0.01, "learn"])
@pytest.mark.parametrize("method", ["auto", "cofem", "em", "irls", "amp", "seq"])
def test_every_method_and_stage_over_sixteen_decades(method: str, noise_std: Any) -> None:
    Phi, z, y = problem(100, 200)
    scale = scales(200, 16)
    settings = dict(noise_std=noise_std, method=method, rng=0)
    scaled, plain = (cofem.fit(matrix, y, **settings) for matrix in (Phi * scale, Phi))
    assert np.linalg.norm(scaled.mean * scale - z) < 0.01 * np.linalg.norm(z)
    # Powers of two take most of the scale, and what is left moves stops and tolerances a little.
    assert_same(scaled, plain, scale, rtol=0.3 if method == "cofem" else 0.05)


def test_variational_inference_has_its_bias_in_any_units() -> None:
    Phi, z, y = problem(60, 40)
    scale = scales(40, 16)
    post = cofem.fit(Phi * scale, y, noise_std=0.01, method="vi")
    assert np.linalg.norm(post.mean * scale - z) < 0.01 * np.linalg.norm(z)


@pytest.mark.parametrize("power", [6, 7, 8, 12])
def test_one_large_column_hides_no_other(power: int) -> None:
    rng = np.random.default_rng(0)
    P = rng.standard_normal((60, 40))
    P[:, 0] *= 10.0**power
    z = np.zeros(40)
    z[[3, 7, 11, 19]] = 2, -1, 1.5, 3
    y = P @ z + 0.01 * rng.standard_normal(60)
    post = cofem.fit(P, y, noise_std=0.01, rng=0)
    assert post.support().tolist() == [3, 7, 11, 19]
    assert np.std(y - P @ post.mean) < 0.015


@pytest.mark.parametrize("seed", range(5))
def test_learned_noise_over_eight_decades_of_norms(seed: int) -> None:
    Phi, _, y = problem(100, 200, seed)
    post = cofem.fit(Phi * scales(200, 8, seed), y, rng=0)
    assert 0.006 < post.noise_std < 0.02


KINDS = {
    "sparse": lambda P, s: scipy.sparse.csr_array(P * s),
    "chunked": lambda P, s: Chunked(P * s, rows=32),
    "product": lambda P, s: Dense(P) @ Diagonal(s),
    "centred": lambda P, s: Centred(Dense(P * s)),
    "side by side": lambda P, s: hstack([Dense(P[:, :50] * s[:50]), Dense(P[:, 50:] * s[50:])]),
}


@pytest.mark.parametrize("method", ["auto", "cofem"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_dictionary_over_sixteen_decades(kind: str, method: str) -> None:
    Phi, z, y = problem(100, 200)
    if kind == "centred":
        y = y - (Phi.mean(axis=0) @ z)
    scale = scales(200, 16)
    post = cofem.fit(KINDS[kind](Phi, scale), y, noise_std=0.01, method=method, rng=0)
    assert np.linalg.norm(post.mean * scale - z) < 0.01 * np.linalg.norm(z)


def test_operators_of_others_over_ten_decades() -> None:
    """Their rounding is not known, so that less than 1e-13 of the largest norm counts as zero."""
    Phi, z, y = problem(100, 200)
    scale = scales(200, 10)
    post = cofem.fit(aslinearoperator(Phi * scale), y, noise_std=0.01, rng=0)
    assert np.linalg.norm(post.mean * scale - z) < 0.01 * np.linalg.norm(z)


def test_single_precision_and_torch() -> None:
    torch = pytest.importorskip("torch")
    Phi, z, y = problem(100, 200)
    scale = scales(200, 12)
    single = cofem.fit((Phi * scale).astype(np.float32), y.astype(np.float32), noise_std=0.01, rng=0)
    assert np.linalg.norm(single.mean * scale - z) < 0.01 * np.linalg.norm(z)
    tensors = torch.from_numpy(Phi * scale), torch.from_numpy(y)
    post = cofem.fit(*tensors, noise_std=0.01, rng=0)
    assert np.linalg.norm(post.mean.numpy() * scale - z) < 0.01 * np.linalg.norm(z)


def test_two_bases_in_different_units() -> None:
    """Spikes in nanovolts beside cosines in volts."""
    rng = np.random.default_rng(0)
    Phi = hstack([1e-9 * Identity(256), DCT(256).T])
    z = np.zeros(512)
    z[[5, 100]] = 3e9, -2e9
    z[[256 + 7, 256 + 40]] = 2, 5
    y = Phi @ z + 0.01 * rng.standard_normal(256)
    for noise_std in (0.01, "learn"):
        post = cofem.fit(Phi, y, noise_std=noise_std, rng=0)
        assert set(post.support()) >= {5, 100, 263, 296}
        np.testing.assert_allclose(post.mean[[5, 100, 263, 296]], z[[5, 100, 263, 296]], rtol=0.05)


def test_callbacks_alpha_and_where_it_starts_are_in_the_users_units() -> None:
    Phi, _, y = problem(60, 40)
    scale = scales(40, 16)
    seen: list[Any] = []
    settings = dict(noise_std=0.01, method="em", max_iter=3)
    start = np.linspace(1, 2, 40)
    plain = cofem.fit(Phi, y, alpha_init=start, callback=lambda s: seen.append(s), **settings)
    scaled = cofem.fit(
        Phi * scale, y, alpha_init=start * scale**2, callback=lambda s: seen.append(s), **settings
    )
    np.testing.assert_allclose(scaled.alpha, plain.alpha * scale**2, rtol=1e-6)
    np.testing.assert_allclose(seen[3].mean * scale, seen[0].mean, rtol=1e-6)
    np.testing.assert_allclose(seen[3].alpha / scale**2, seen[0].alpha, rtol=1e-6)


def test_learning_the_noise_starts_where_the_user_says() -> None:
    Phi, _, y = problem(60, 40)
    starts: list[np.ndarray] = []

    def look(snapshot: Any) -> None:
        if snapshot.stage.startswith("noise") and snapshot.iteration == 1:
            starts.append(snapshot.alpha)

    cofem.fit(Phi, y, alpha_init=np.linspace(1, 2, 40), rng=0, callback=look)
    assert starts
    for alpha in starts:
        np.testing.assert_allclose(alpha, np.linspace(1, 2, 40), rtol=1e-6)


def test_samples_covariances_and_predictions_over_sixteen_decades() -> None:
    Phi, _, y = problem(100, 200)
    scale = scales(200, 16)
    scaled, plain = (cofem.fit(matrix, y, noise_std=0.01, rng=0) for matrix in (Phi * scale, Phi))
    chosen = plain.support()[:3]
    unit = np.outer(scale[chosen], scale[chosen])
    np.testing.assert_allclose(scaled.covariance(chosen) * unit, plain.covariance(chosen), rtol=0.05)
    np.testing.assert_allclose(
        scaled.predict(Phi[:5] * scale, return_std=True), plain.predict(Phi[:5], return_std=True), rtol=0.05
    )
    draws = scaled.sample(200, rng=0) * scale
    np.testing.assert_allclose(draws.std(axis=0)[chosen], plain.std[chosen], rtol=0.3)


def test_a_shared_precision_compares_coefficients_in_the_users_units() -> None:
    """There, the unit of a column is part of the model, and columns are left as they are."""
    Phi, z, y = problem(100, 200)
    scale = np.repeat(10.0 ** np.arange(50), 4)[:200] ** 0.1
    post = cofem.fit(Phi * scale, y, noise_std=0.01, prior=cofem.Block(4), method="irls")
    plain = cofem.fit(Phi, y, noise_std=0.01, prior=cofem.Block(4), method="irls")
    # Within a block the scale is the same, so that the model is, too.
    np.testing.assert_allclose(post.mean * scale, plain.mean, atol=1e-3 * np.abs(z).max())


def test_what_counts_as_zero() -> None:
    constant = np.ones((50, 3))
    constant[:, 1] = np.linspace(0, 1, 50)
    assert dictionary(Centred(Dense(1e3 * constant))).is_zero.tolist() == [True, False, True]
    hidden = Mask(np.arange(8), 64) @ Wavelet(64, "haar").T
    assert dictionary(hidden).is_zero.tolist() == (~hidden.to_dense().any(axis=0)).tolist()
    assert not dictionary(hstack([1e-9 * Identity(8), Identity(8)])).is_zero.any()
