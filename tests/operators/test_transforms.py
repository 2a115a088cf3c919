"""DCT and FFT against their definitions and scipy.fft."""

import numpy as np
import pytest
import scipy.fft

from cofem.operators import DCT, FFT, Mask
from cofem.operators.transforms import host_lines
from cofem.operators.transforms.host_lines import fft_workers

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


LAYOUTS = [
    ((12,), (0,)),
    ((5, 2**13), (1,)),
    ((2**13 + 1,), (0,)),
    ((3, 8, 9), (1, 2)),
    ((2, 3, 4, 5), (-3, -1)),
]


@pytest.mark.parametrize(("shape", "axes"), LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128, np.int64])
def test_both_libraries_transform_alike(shape: tuple, axes: tuple, dtype: type, monkeypatch) -> None:
    pytest.importorskip("ducc0")
    x = (10 * rng.standard_normal(shape)).astype(dtype)
    if np.iscomplexobj(x):
        x = x + np.asarray(1j * rng.standard_normal(shape), dtype)

    def everything(overwrite: bool) -> list[np.ndarray]:
        kept = [
            transform(x.copy(), axes, inverse, overwrite)
            for transform in (host_lines.cosines, host_lines.waves)
            for inverse in (False, True)
        ]
        last = x.shape[-1]
        for real in {False, not np.iscomplexobj(x)}:
            spectra = host_lines.spectrum(x, (last + 3,), real)
            kept += [spectra.copy(), host_lines.from_spectrum(spectra, (last + 3,), real)]
        return kept

    before = x.copy()
    fast = everything(False), everything(True)
    np.testing.assert_array_equal(x, before)
    monkeypatch.setattr(host_lines, "ducc_fft", lambda: None)
    plain = everything(False)
    rough = 1e-4 if np.dtype(dtype).char in "fF" else 1e-10
    for found in fast:
        for ours, theirs in zip(found, plain, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=rough * np.abs(theirs).max())


def test_arrays_that_may_not_be_written_to_are_not(monkeypatch) -> None:
    x = rng.standard_normal(16)
    x.flags.writeable = False
    np.testing.assert_allclose(host_lines.cosines(x, (0,), overwrite_x=True), scipy.fft.dct(x, norm="ortho"))
    half = scipy.fft.rfft(x)
    half.flags.writeable = False
    np.testing.assert_allclose(host_lines.from_spectrum(half, (16,), real=True), x)


def test_ducc0_is_used_where_it_is_installed(monkeypatch) -> None:
    ducc0 = pytest.importorskip("ducc0")
    assert host_lines.ducc_fft() is ducc0.fft
    monkeypatch.setitem(__import__("sys").modules, "ducc0", None)
    host_lines.ducc_fft.cache_clear()
    assert host_lines.ducc_fft() is None
    host_lines.ducc_fft.cache_clear()


@pytest.mark.parametrize("shape", [(2**12,), (1, 2**14), (2**17,), (3, 2**12), (1000,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_down_the_gradient_of_masked_cosines(shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(0)
    n = shape[-1]
    Phi = 2.0 * (Mask(np.sort(rng.choice(n, n // 4, replace=False)), n) @ DCT(n).T)
    x, shift = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    kept = shift.copy()
    for gain in (0.3, 0.1, 0.3):  # weights of the last one are kept
        found = Phi.gradient_step(x, gain, shift)
        assert found.dtype == dtype
        close = 1e-5 if dtype is np.float32 else 1e-12
        np.testing.assert_allclose(found, x - gain * Phi.gram(x) + shift, rtol=0, atol=close)
    assert np.array_equal(shift, kept)
