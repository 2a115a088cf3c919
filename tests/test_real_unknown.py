"""Complex data of coefficients that are real: ``real=True`` and `RealUnknown`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cofem
from cofem.operators import FFT, Gradient, Mask, RealUnknown


def problem(
    n: int = 60, count: int = 6, noise_std: float = 0.1, seed: int = 0
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Rows of a Fourier transform, of real coefficients; the noise is that of ``|noise|``."""
    rng = np.random.default_rng(seed)
    Phi, z = Mask(np.sort(rng.choice(128, n, replace=False)), 128) @ FFT(128), np.zeros(128)
    z[rng.choice(128, count, replace=False)] = rng.standard_normal(count)
    noise = rng.standard_normal(n) + 1j * rng.standard_normal(n)
    return Phi, Phi @ z + noise_std / 2**0.5 * noise, z


def error(post: cofem.Posterior, z: np.ndarray) -> float:
    return float(np.linalg.norm(post.mean - z) / np.linalg.norm(z))


@pytest.mark.parametrize("method", ["em", "irls", "amp", "vi", "seq", "cofem"])
def test_every_method_has_the_exact_moments_of_real_coefficients(method: str) -> None:
    rng = np.random.default_rng(1)
    Phi = rng.standard_normal((40, 60)) + 1j * rng.standard_normal((40, 60))
    z = np.zeros(60)
    z[[3, 17, 40]] = 1.0, -2.0, 0.5
    y = Phi @ z + 0.1 * (rng.standard_normal(40) + 1j * rng.standard_normal(40))
    post = cofem.fit(Phi, y, real=True, noise_std=0.1 * 2**0.5, method=method, rng=0)
    assert post.mean.dtype == np.float64
    assert post.noise_std == 0.1 * 2**0.5
    assert error(post, z) < 0.05
    if method in ("em", "irls"):
        both = np.concatenate([Phi.real, Phi.imag])  # whose noise is 0.1 in each
        exact = np.linalg.inv(both.T @ both / 0.1**2 + np.diag(post.alpha))
        np.testing.assert_allclose(post.variance, np.diag(exact), rtol=1e-6)
        mean = exact @ both.T @ np.concatenate([y.real, y.imag]) / 0.1**2
        np.testing.assert_allclose(post.mean, mean, atol=1e-8)


def test_it_is_far_better_than_complex_coefficients_and_knows_the_noise() -> None:
    ratios, noise = [], []
    for seed in range(6):
        Phi, y, z = problem(n=24, count=12, noise_std=0.02, seed=seed)
        ratios.append(error(cofem.fit(Phi, y, real=True), z) / error(cofem.fit(Phi, y), z))
        Phi, y, z = problem(seed=seed)
        noise.append(cofem.fit(Phi, y, real=True).noise_std / 0.1)
    assert np.median(ratios) < 0.5
    assert 0.8 < np.median(noise) < 1.25


def test_predictions_are_complex_and_have_the_noise_of_complex_data() -> None:
    Phi, y, z = problem()
    post = cofem.fit(Phi, y, real=True, noise_std=0.1, method="em")
    mean, std = post.predict(return_std=True)
    np.testing.assert_allclose(mean, Phi @ post.mean, atol=1e-12)
    A = Phi.to_dense()
    spread = np.einsum("ij,jk,ik->i", A.conj(), post.covariance(np.arange(128)), A).real
    np.testing.assert_allclose(std, np.sqrt(spread + 0.1**2), rtol=1e-6)
    same = post.predict(Phi, return_std=True)
    np.testing.assert_allclose(same[0], mean, atol=1e-12)
    np.testing.assert_allclose(same[1], std, rtol=1e-9)
    np.testing.assert_allclose(RealUnknown(Phi).unstack(post.y), y)
    assert np.mean(np.abs(Phi @ z - mean) > 2.5 * np.sqrt(spread)) < 0.1
    np.testing.assert_allclose(
        np.cov(post.sample(4000, rng=0)[:, z != 0].T).diagonal(), post.variance[z != 0], rtol=0.2
    )


def test_weights_noise_of_each_and_tasks() -> None:
    Phi, y, _ = problem()
    weights = np.linspace(0.5, 2.0, 60)
    post = cofem.fit(Phi, y, real=True, noise_std=0.1, sample_weight=weights, method="em")
    same = cofem.fit(Phi, y, real=True, noise_std=0.1 / np.sqrt(weights), method="em")
    np.testing.assert_allclose(post.mean, same.mean, atol=1e-9)
    Y = np.stack([y, -2 * y], axis=1)
    both = cofem.fit(Phi, Y, real=True, noise_std=0.1, method="em", prior=cofem.MultiTask())
    assert both.mean.shape == (128, 2)
    assert both.predict().shape == Y.shape
    assert np.iscomplexobj(both.predict())
    lists = cofem.fit([Phi, Phi], [y, -2 * y], real=True, noise_std=0.1, prior=cofem.MultiTask(), method="em")
    assert np.linalg.norm(lists.mean - both.mean) < 0.01 * np.linalg.norm(both.mean)
    apart = cofem.fit(Phi, Y, real=True, noise_std=0.1, method="em")
    np.testing.assert_allclose(
        apart.mean[:, 0], cofem.fit(Phi, y, real=True, noise_std=0.1, method="em").mean
    )


def test_refit_save_load_and_resume(tmp_path: Path) -> None:
    Phi, y, z = problem()
    settings = dict(real=True, noise_std=0.1, method="cofem", rng=0)
    post = cofem.fit(Phi, y, **settings)
    again = cofem.refit(post, rng=0)
    assert again.noise_std == 0.1
    assert np.linalg.norm(again.mean - post.mean) < 0.1 * np.linalg.norm(z)
    np.testing.assert_allclose(cofem.refit(post, y, rng=0).mean, again.mean)
    post.save(tmp_path / "fit.npz")
    loaded = cofem.load(tmp_path / "fit.npz", operator=RealUnknown(Phi))
    np.testing.assert_array_equal(loaded.predict(), post.predict())

    def stop(state: Any) -> bool:
        return state.iteration == 3

    path = tmp_path / "run.npz"
    cofem.fit(Phi, y, callback=stop, checkpoint=path, **settings)
    np.testing.assert_array_equal(cofem.fit(Phi, y, resume=path, **settings).mean, post.mean)


def test_real_data_complex_data_of_a_real_dictionary_and_other_forms() -> None:
    Phi, y, z = problem()
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((60, 128))
    plain = cofem.fit(matrix, matrix @ z, noise_std=0.1, real=True, method="em")
    np.testing.assert_array_equal(plain.mean, cofem.fit(matrix, matrix @ z, noise_std=0.1, method="em").mean)
    noise = 0.1 / 2**0.5 * (rng.standard_normal(60) + 1j * rng.standard_normal(60))
    assert error(cofem.fit(matrix, matrix @ z + noise, real=True, noise_std=0.1), z) < 0.2
    assert cofem.fit(Phi, y, real=True, nonnegative=True, noise_std=0.1).mean.min() >= 0
    steps = np.repeat([0.0, 1.0, -1.0, 2.0], 32)
    post = cofem.fit(Phi, Phi @ steps, real=True, analysis=Gradient(128), noise_std=0.05)
    assert error(post, steps) < 0.1
    table = cofem.compare(RealUnknown(Phi), y, [cofem.Independent(), cofem.Power(2)], rng=0)
    assert table.prior == cofem.Independent()
    with pytest.raises(ValueError, match="y must have shape"):
        cofem.fit(Phi, y[:-1], real=True)
