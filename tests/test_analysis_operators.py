"""Any operator as B: three axes, single precision, complex, matrices and operators of others, PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import cofem
from cofem.operators import FFT, Gradient, Identity, Mask, Operator, WaveletFrame, as_operator, vstack

SHAPE = (4, 5, 3)
BOTH = vstack([Gradient(SHAPE), Gradient(SHAPE, order=2)])
SIGMA = 0.1


def third_differences(n: int) -> np.ndarray:
    return np.diff(np.eye(n), n=3, axis=0)


OPERATORS: dict[str, Any] = {
    "gradient": Gradient(SHAPE),
    "periodic": Gradient(SHAPE, "periodic", order=2),
    "both": BOTH,
    "frame": WaveletFrame(SHAPE, "haar", level=1),
    "mixed": vstack([0.5 * Gradient(SHAPE), Identity(60)]),
    "array": third_differences(60),
    "sparse": scipy.sparse.csr_array(third_differences(60)),
    "scipy": aslinearoperator(third_differences(60)),
}


def posterior(
    Phi: np.ndarray, B: np.ndarray, y: np.ndarray, alpha: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    A = Phi.conj().T @ Phi / SIGMA**2 + B.conj().T @ (alpha[:, None] * B)
    covariance = np.linalg.inv(A)
    return covariance @ Phi.conj().T @ y / SIGMA**2, np.diagonal(covariance).real


def problem(dtype: str, seed: int = 0) -> tuple[Operator, np.ndarray]:
    rng = np.random.default_rng(seed)
    seen = rng.permutation(60)[:40]
    u = np.cumsum(rng.standard_normal(60))
    if dtype == "complex":
        Phi = Mask(seen, 60) @ FFT(SHAPE)
        return Phi, Phi @ (u + 1j * u[::-1])
    return Mask(seen, 60), u[seen].astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex"])
@pytest.mark.parametrize("name", list(OPERATORS))
def test_any_operator_gives_the_exact_posterior(name: str, dtype: str) -> None:
    B = OPERATORS[name]
    Phi, y = problem(dtype)
    post = cofem.fit(Phi, y, noise_std=SIGMA, analysis=B, max_iter=5, tol=0, rng=0)
    matrix = B @ np.eye(60) if isinstance(B, LinearOperator) else np.asarray(as_operator(B).to_dense())
    mean, variance = posterior(np.asarray(Phi.to_dense()), matrix, y, np.asarray(post.alpha, float))
    close = 1e-3 if dtype == "float32" else 1e-6
    assert str(post.mean.dtype) == {"complex": "complex128"}.get(dtype, dtype)
    np.testing.assert_allclose(post.mean, mean, atol=close * np.abs(mean).max())
    np.testing.assert_allclose(post.variance, variance, rtol=10 * close)
    draws = post.sample(3, rng=0)
    assert draws.shape == (3, 60)
    assert np.isfinite(draws).all()


@pytest.mark.parametrize("name", ["gradient", "both", "frame", "mixed"])
def test_conjugate_gradients_agree_in_three_axes(name: str) -> None:
    B = OPERATORS[name]
    Phi, y = problem("float64")
    alpha = np.random.default_rng(1).gamma(2.0, size=B.shape[0])
    same: dict[str, Any] = dict(noise_std=SIGMA, analysis=B, alpha_init=alpha, max_iter=1, tol=0, rng=0)
    fine = cofem.AnalysisEM(exact=False, cg_tol=1e-6)
    ours, exact = cofem.fit(Phi, y, method=fine, **same), cofem.fit(Phi, y, **same)
    np.testing.assert_allclose(ours.mean, exact.mean, atol=1e-4 * np.abs(exact.mean).max())


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_products_by_bands_are_those_of_two_products(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for name in ("gradient", "periodic", "both", "frame", "mixed"):
        B = OPERATORS[name]
        x = rng.standard_normal((2, 60)).astype(dtype)
        weights = rng.gamma(1.0, size=B.shape[0]).astype(np.float32)
        out = np.ones_like(x)
        B.add_weighted_product(x, weights, 0.5, out)
        wanted = 1 + 0.5 * B.adjoint(weights * B.forward(x))
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


def test_boxes_say_what_groups_and_places_say() -> None:
    for name in ("gradient", "periodic", "both", "frame"):
        B = OPERATORS[name]
        places = np.arange(60).reshape(SHAPE)
        boxes = B.row_boxes
        np.testing.assert_array_equal(
            np.concatenate([places[box.places].ravel() for box in boxes]), B.row_places
        )
        np.testing.assert_array_equal(
            np.repeat(np.arange(len(boxes)), [box.size for box in boxes]), B.row_groups
        )
    assert OPERATORS["mixed"].row_boxes is None


@pytest.mark.parametrize("name", ["both", "frame"])
def test_symbols_come_one_by_one_as_all_at_once(name: str) -> None:
    B = OPERATORS[name]
    one_by_one = np.stack(list(B.each_band_symbol("cosine")))
    np.testing.assert_allclose(one_by_one, B.band_symbols("cosine"))


def test_volumes_in_single_precision_are_filled_in() -> None:
    rng = np.random.default_rng(0)
    u = np.zeros((12, 12, 12), np.float32)
    u[3:9, 2:10, 4:8] = 1.0
    seen = rng.random(u.shape) < 0.5
    y = u[seen] + 0.05 * rng.standard_normal(int(seen.sum()), dtype=np.float32)
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    assert post.mean.dtype == np.float32
    assert np.sqrt(np.mean((post.mean.reshape(u.shape) - u)[~seen] ** 2)) < 0.2
    assert np.isfinite(post.std).all()


@pytest.mark.parametrize("name", ["gradient", "both", "frame"])
def test_tensors_of_three_axes(name: str) -> None:
    torch = pytest.importorskip("torch")
    B = OPERATORS[name]
    Phi, y = problem("float64")
    same: dict[str, Any] = dict(
        noise_std=SIGMA, analysis=B, prior=cofem.Neighbours(3), max_iter=2, tol=0, rng=0
    )
    method = cofem.AnalysisEM(exact=False, cg_tol=1e-6, draw_tol=1e-6)
    ours = cofem.fit(Phi, torch.asarray(y), method=method, **same)
    wanted = cofem.fit(Phi, y, method=method, **same)
    np.testing.assert_allclose(ours.mean.numpy(), wanted.mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(ours.alpha.numpy(), wanted.alpha, rtol=0.05)
