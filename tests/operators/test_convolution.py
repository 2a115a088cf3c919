"""Convolution against scipy.signal and scipy.ndimage."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal

from cofem.operators import Convolution

rng = np.random.default_rng(4)
SIZES = [
    ((9,), (3,)),
    ((9,), (4,)),
    ((8,), (1,)),
    ((5,), (5,)),
    ((6, 7), (3, 2)),
    ((4, 5), (4, 4)),
    ((4, 3, 5), (2, 3, 3)),
]


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_circular_equals_ndimage_wrap(shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    x, kernel = rng.standard_normal(shape), rng.standard_normal(size)
    expected = scipy.ndimage.convolve(x, kernel, mode="wrap")
    np.testing.assert_allclose(Convolution(kernel, shape) @ x.ravel(), expected.ravel(), atol=1e-13)


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_circular_from_the_start_is_a_product_of_spectra(
    shape: tuple[int, ...], size: tuple[int, ...]
) -> None:
    x, kernel = rng.standard_normal(shape), rng.standard_normal(size)
    expected = np.fft.ifftn(np.fft.fftn(x) * np.fft.fftn(kernel, s=shape, axes=range(len(shape)))).real
    operator = Convolution(kernel, shape, centre=False)
    np.testing.assert_allclose(operator @ x.ravel(), expected.ravel(), atol=1e-13)


@pytest.mark.parametrize("output", ["same", "full"])
@pytest.mark.parametrize(("shape", "size"), [*SIZES, ((4,), (9,))])
def test_linear_equals_scipy_signal(shape: tuple[int, ...], size: tuple[int, ...], output: str) -> None:
    x = rng.standard_normal(shape)
    for kernel in (rng.standard_normal(size), rng.standard_normal(size) + 1j * rng.standard_normal(size)):
        expected = scipy.signal.fftconvolve(x, kernel, mode=output)
        operator = Convolution(kernel, shape, mode="linear", output=output)
        np.testing.assert_allclose(operator @ x.ravel(), expected.ravel(), atol=1e-12)


def test_norm_of_a_large_circular_convolution_is_that_of_its_spectrum() -> None:
    kernel = rng.standard_normal(31)
    operator = Convolution(kernel, 2**16)
    assert operator.norm == pytest.approx(np.abs(np.fft.fft(kernel, 2**16)).max(), rel=1e-12)


def test_refuses_what_is_no_convolution() -> None:
    with pytest.raises(ValueError, match="kernel must not be longer than the signal"):
        Convolution(np.ones(5), 4)
    with pytest.raises(ValueError, match="kernel must be non-empty with 2 axes"):
        Convolution(np.ones(3), (4, 4))
    with pytest.raises(ValueError, match="kernel must hold finite numbers"):
        Convolution([1.0, np.nan], 4)
    with pytest.raises(ValueError, match="mode must be one of"):
        Convolution([1.0], 4, mode="reflect")
    with pytest.raises(ValueError, match="output must be one of"):
        Convolution([1.0], 4, mode="linear", output="valid")
    with pytest.raises(ValueError, match="output must be 'same' in a circular convolution"):
        Convolution([1.0], 4, output="full")
