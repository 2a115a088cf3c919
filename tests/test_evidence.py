"""The log evidence of large problems: no bias beyond its standard error, at any noise, for any dictionary."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import cofem
from cofem.linalg import evidence
from cofem.linalg.lanczos import bracket_log
from cofem.operators import DCT, FFT, Convolution, Mask, Wavelet, as_operator

pytestmark = pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")


def sampled(size: int, count: int, rng: np.random.Generator) -> Mask:
    return Mask(np.sort(rng.choice(size, count, replace=False)), size)


def correlated(rng: np.random.Generator) -> np.ndarray:
    Phi = rng.standard_normal((120, 240))
    for j in range(1, 240):
        Phi[:, j] = 0.95 * Phi[:, j - 1] + np.sqrt(1 - 0.95**2) * Phi[:, j]
    return Phi


def blur() -> Convolution:
    kernel = np.exp(-(np.arange(-10, 11) ** 2) / 8)
    return Convolution(kernel / kernel.sum(), (160,))


KINDS = {
    "dense": lambda rng: rng.standard_normal((120, 240)),
    "tall": lambda rng: rng.standard_normal((360, 180)),
    "unequal norms": lambda rng: rng.standard_normal((120, 240)) * 10 ** rng.uniform(-2, 2, 240),
    "correlated": correlated,
    "duplicated": lambda rng: np.tile(rng.standard_normal((120, 120)), 2),
    "sparse": lambda rng: scipy.sparse.csr_array(
        rng.standard_normal((120, 240)) * (rng.random((120, 240)) < 0.08)
    ),
    "masked DCT": lambda rng: sampled(240, 120, rng) @ DCT(240).T,
    "masked Fourier": lambda rng: sampled(240, 120, rng) @ FFT(240).H,
    "blur": lambda rng: blur(),
    "wavelet": lambda rng: sampled(256, 128, rng) @ Wavelet((256,)).T,
}


@functools.cache
def fitted(kind: str, noise_std: float) -> tuple[cofem.Posterior, float]:
    """Return a fit and its exact log evidence."""
    rng = np.random.default_rng(0)
    Phi: Any = KINDS[kind](rng)
    operator = as_operator(Phi)
    matrix = operator.to_dense()
    N, D = operator.shape
    is_complex = np.iscomplexobj(matrix)

    def normal(n: int) -> np.ndarray:
        parts = rng.standard_normal((2, n))
        return (parts[0] + 1j * parts[1]) / np.sqrt(2) if is_complex else parts[0]

    z = np.zeros(D, matrix.dtype)
    z[rng.choice(D, 18, replace=False)] = normal(18)
    y = matrix @ z + noise_std * normal(N)
    post = cofem.fit(Phi, y, noise_std=noise_std, rng=0, max_iter=60)
    # By singular values, which rounding does not hurt as it does the determinant of C.
    u, s, _ = np.linalg.svd(matrix / np.sqrt(post.alpha), full_matrices=False)
    along = u.conj().T @ y
    left = np.linalg.norm(y - u @ along) ** 2 if N > D else 0.0
    quadratic = left / noise_std**2 + np.sum(np.abs(along) ** 2 / (noise_std**2 + s**2))
    log_det = 2 * N * np.log(noise_std) + np.sum(np.log1p((s / noise_std) ** 2))
    return post, evidence.log_normal_density(N, log_det, quadratic, is_complex)


@pytest.mark.parametrize("columns", [0, 30, 512])
@pytest.mark.parametrize("noise_std", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("kind", KINDS)
def test_the_standard_error_holds_the_truth(kind, noise_std, columns, monkeypatch) -> None:
    post, exact = fitted(kind, noise_std)
    monkeypatch.setattr(evidence, "EXACT_DETERMINANT", 0)
    monkeypatch.setattr(evidence, "EXACT_COLUMNS", columns)
    found = post.log_evidence(rng=1)
    assert abs(found.value - exact) <= 4 * found.standard_error + 0.1
    # Copies of columns that no prior can tell apart leave the spread that all vectors have.
    assert found.standard_error <= (30 if kind == "duplicated" else 6)


@pytest.mark.parametrize("kind", ["dense", "tall", "masked Fourier"])
def test_small_problems_are_exact_at_any_noise(kind: str) -> None:
    for noise_std in (1e-1, 1e-5, 1e-8):
        post, exact = fitted(kind, noise_std)
        found = post.log_evidence()
        assert found.standard_error == 0
        assert found.value == pytest.approx(exact, abs=0.01)


def test_few_vectors_have_students_factor_and_one_has_no_error_to_speak_of(monkeypatch) -> None:
    post, exact = fitted("masked DCT", 1e-3)
    monkeypatch.setattr(evidence, "EXACT_DETERMINANT", 0)
    monkeypatch.setattr(evidence, "EXACT_COLUMNS", 0)
    assert post.log_evidence(vectors=1).standard_error == np.inf
    scores = []
    for seed in range(60):
        found = post.log_evidence(vectors=2, rng=seed)
        scores.append(abs(found.value - exact) / found.standard_error)
    assert 0.5 < np.mean(np.array(scores) < 1) < 0.85  # 0.68 for a normal error


def test_steps_that_end_too_early_widen_the_standard_error(monkeypatch) -> None:
    post, exact = fitted("blur", 1e-5)
    monkeypatch.setattr(evidence, "EXACT_DETERMINANT", 0)
    monkeypatch.setattr(evidence, "EXACT_COLUMNS", 0)
    short, long = post.log_evidence(steps=3), post.log_evidence()
    assert short.standard_error > 3 * long.standard_error
    assert abs(short.value - exact) <= 4 * short.standard_error


@pytest.mark.parametrize("name", ["vectors", "steps"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_bad_counts_are_refused_by_name(name: str, value: Any) -> None:
    post, _ = fitted("masked DCT", 1e-3)
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
        post.log_evidence(**{name: value})


def test_brackets_hold_the_quadratic_form_after_any_number_of_steps() -> None:
    rng = np.random.default_rng(0)
    values = 10 ** rng.uniform(0, 6, 200)
    starts = rng.standard_normal((5, 200))
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    truth = starts**2 @ np.log(values)
    widths = []
    for steps in (1, 3, 10, 40, 160):
        found = bracket_log(lambda x: x * values, starts, 1.0, steps=steps, close=lambda _: False)
        assert (found.lower <= truth + 1e-9).all()
        assert (truth <= found.upper + 1e-9).all()
        widths.append((found.upper - found.lower).max())
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.5


def test_a_start_that_sees_little_does_not_end_the_others() -> None:
    values = np.linspace(1, 50, 60)
    starts = np.full((2, 60), 60**-0.5)
    starts[0] = np.eye(60)[3]
    found = bracket_log(lambda x: x * values, starts, 1.0, steps=200, close=lambda _: False)
    np.testing.assert_allclose(found.upper, [np.log(values[3]), np.log(values).mean()], rtol=1e-9)
    np.testing.assert_allclose(found.lower, found.upper, rtol=1e-7)
