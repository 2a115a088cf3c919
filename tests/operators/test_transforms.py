"""DCT and FFT against their definitions and scipy.fft."""

import numpy as np
import pytest
import scipy.fft

from cofem.operators import DCT, FFT, Mask
from cofem.operators.transforms.scipy_lines import fft_workers

rng = np.random.default_rng(3)


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_dct_has_the_textbook_entries(n: int) -> None:
    frequency, sample = np.mgrid[:n, :n]
    cosines = np.sqrt(2 / n) * np.cos(np.pi * (2 * sample + 1) * frequency / (2 * n))
    cosines[0] /= np.sqrt(2)
    np.testing.assert_allclose(DCT(n).to_dense(), cosines, atol=1e-14)


@pytest.mark.parametrize("shape", [(6,), (4, 5), (2, 3, 4)])
def test_dct_equals_scipy_over_all_axes(shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape)
    np.testing.assert_allclose(DCT(shape) @ x.ravel(), scipy.fft.dctn(x, norm="ortho").ravel())
    np.testing.assert_allclose(DCT(shape).T @ x.ravel(), scipy.fft.idctn(x, norm="ortho").ravel())


@pytest.mark.parametrize("shape", [(6,), (5,), (4, 5), (2, 3, 4)])
def test_fft_equals_scipy_over_all_axes(shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    np.testing.assert_allclose(FFT(shape) @ x.ravel(), scipy.fft.fftn(x, norm="ortho").ravel())
    np.testing.assert_allclose(FFT(shape).H @ x.ravel(), scipy.fft.ifftn(x, norm="ortho").ravel())


@pytest.mark.parametrize("shape", [(8,), (7,), (4, 5), (2, 3, 4)])
def test_real_fft_is_real_symmetric_and_its_own_inverse(shape: tuple[int, ...]) -> None:
    transform = FFT(shape, real=True)
    x = rng.standard_normal(shape)
    spectrum = scipy.fft.fftn(x, norm="ortho")
    np.testing.assert_allclose(transform @ x.ravel(), (spectrum.real - spectrum.imag).ravel(), atol=1e-14)
    np.testing.assert_allclose(transform @ (transform @ x.ravel()), x.ravel())
    matrix = transform.to_dense()
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)


def test_threads_are_used_only_where_there_is_enough_to_split() -> None:
    one_line = (1, 2**19)
    assert fft_workers(one_line) == 1
    assert fft_workers((64, 64), (-2, -1)) == 1
    with scipy.fft.set_workers(3):
        assert fft_workers(one_line) == 3
        assert fft_workers((16, 2**16)) >= 3


def test_large_batches_equal_scipy_whatever_the_threads() -> None:
    x = rng.standard_normal((16, 2**15)).astype(np.float32)
    result = DCT(2**15) @ x.T
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.T, scipy.fft.dct(x, norm="ortho", workers=1), atol=1e-4)


def test_columns_of_a_large_masked_dct_have_exact_norms() -> None:
    n = 2**18
    rows = rng.choice(n, size=n // 5, replace=False)
    operator = Mask(rows, n) @ DCT(n).T
    norms = operator.column_norms()
    some = [0, 1, n // 2, n - 1, *rng.integers(n, size=4)]
    assert operator.column_norms_exact
    np.testing.assert_allclose(norms[some], np.linalg.norm(operator.columns(some), axis=-1), rtol=1e-10)
    assert operator.norm == 1.0


def test_columns_of_a_large_masked_real_fft_have_exact_norms() -> None:
    shape = (256, 384)
    operator = Mask(rng.random(shape) < 0.3) @ FFT(shape, real=True)
    some = [0, 7, 383, 384, 50_000]
    np.testing.assert_allclose(
        operator.column_norms()[some], np.linalg.norm(operator.columns(some), axis=-1), rtol=1e-10
    )
