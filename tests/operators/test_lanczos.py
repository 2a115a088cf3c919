"""The Lanczos recurrence, and the two that are built on it."""

from itertools import islice

import numpy as np
import pytest
import scipy.linalg

from cofem.linalg.lanczos import spectral_density
from cofem.operators import Dense, Operator
from cofem.operators.lanczos import lanczos


def random(shape: tuple[int, ...], dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.issubdtype(dtype, np.complexfloating) else x).astype(
        dtype
    )


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_all_steps_of_every_start_give_all_eigenvalues(dtype: type) -> None:
    matrix = random((6, 6), dtype)
    matrix = matrix + matrix.conj().T
    starts = random((3, 6), dtype) + np.eye(3, 6)
    starts /= np.linalg.norm(starts, axis=-1, keepdims=True)
    steps = list(islice(lanczos(lambda x: x @ matrix.T, starts), 6))
    for k in range(3):
        diagonal = [step.diagonal[k] for step in steps]
        beside = [step.coupling[k] for step in steps[:-1]]
        found = scipy.linalg.eigvalsh_tridiagonal(diagonal, beside)
        np.testing.assert_allclose(found, np.linalg.eigvalsh(matrix), atol=1e-8)


def test_starts_do_not_disturb_each_other() -> None:
    matrix = random((8, 8))
    matrix = matrix @ matrix.T
    starts = np.linalg.qr(random((8, 8)))[0][:4]
    together = list(islice(lanczos(lambda x: x @ matrix, starts), 5))
    for k in range(4):
        alone = list(islice(lanczos(lambda x: x @ matrix, starts[k : k + 1]), 5))
        for one, all_ in zip(alone, together, strict=True):
            np.testing.assert_allclose(one.diagonal[0], all_.diagonal[k], rtol=1e-9)


def test_the_density_has_the_moments_of_the_spectrum() -> None:
    matrix = random((40, 40))
    matrix = matrix @ matrix.T / 40
    nodes, weights = spectral_density(
        lambda x: x @ matrix, np.zeros(1), 40, steps=10, vectors=200, rng=np.random.default_rng(1)
    )
    assert weights.sum() == pytest.approx(1.0)
    assert np.sum(weights * nodes) == pytest.approx(np.trace(matrix) / 40, rel=0.02)


class Broken(Operator):
    """Gives numbers that are not finite."""

    def __init__(self, value: float) -> None:
        super().__init__((3, 4))
        self.value = value

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return np.full((*x.shape[:-1], 3), self.value)

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return np.full((*y.shape[:-1], 4), self.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_is_an_error_and_no_warning(value: float) -> None:
    with pytest.raises(FloatingPointError, match="values that are not finite"):
        assert Broken(value).norm


def test_the_norm_of_zero_is_zero() -> None:
    assert Dense(np.zeros((3, 5))).norm == 0.0
