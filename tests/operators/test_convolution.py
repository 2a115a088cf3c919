"""Convolution against scipy.signal and scipy.ndimage."""

import warnings

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import scipy.stats

import cofem
from cofem.operators import Convolution
from cofem.operators.convolution import looks_causal

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


# --- where the kernel begins --------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "size"), [*SIZES, ((4,), (9,))])
def test_causal_linear_is_the_beginning_of_the_full_one(
    shape: tuple[int, ...], size: tuple[int, ...]
) -> None:
    x, kernel = rng.standard_normal(shape), rng.standard_normal(size)
    expected = scipy.signal.fftconvolve(x, kernel, mode="full")[tuple(slice(n) for n in shape)]
    operator = Convolution(kernel, shape, mode="linear", causal=True)
    np.testing.assert_allclose(operator @ x.ravel(), expected.ravel(), atol=1e-12)


@pytest.mark.parametrize("mode", ["circular", "linear"])
def test_centre_is_the_old_name(mode: str) -> None:
    kernel, x = rng.standard_normal(5), rng.standard_normal(9)
    for centre in (True, False):
        one = Convolution(kernel, 9, mode=mode, centre=centre)
        other = Convolution(kernel, 9, mode=mode, causal=not centre)
        np.testing.assert_array_equal(one @ x, other @ x)
        assert (one.centre, one.causal) == (other.centre, other.causal) == (centre, not centre)
        assert repr(one) == repr(other)
        assert ("causal=True" in repr(one)) == (not centre)


def test_full_output_begins_at_the_first_entry_either_way() -> None:
    kernel, x = rng.standard_normal(5), rng.standard_normal(9)
    settings = dict(mode="linear", output="full")
    plain, causal = Convolution(kernel, 9, **settings), Convolution(kernel, 9, **settings, causal=True)
    np.testing.assert_array_equal(plain @ x, causal @ x)


def test_a_contradiction_is_refused() -> None:
    for both in (True, False):
        with pytest.raises(ValueError, match="centre and causal must not contradict"):
            Convolution([1.0, 2.0], 4, centre=both, causal=both)
        Convolution([1.0, 2.0], 4, centre=both, causal=not both)
    with pytest.raises(TypeError, match="causal must be True or False, got 'yes'"):
        Convolution([1.0, 2.0], 4, causal="yes")


t = np.arange(60.0)
CAUSAL = {
    "decay": np.exp(-t / 8),
    "short decay": np.exp(-t[:10] / 2),
    "decay that is cut off": np.exp(-t[:20] / 20),
    "negative decay": -np.exp(-t / 8),
    "noisy decay": np.exp(-t / 8) + 0.03 * np.random.default_rng(0).standard_normal(60),
    "calcium": np.exp(-t / 15) - np.exp(-t / 3),
    "slow calcium": np.exp(-t / 30) - np.exp(-t / 2),
    "gamma": scipy.stats.gamma.pdf(t[:30], 6),
    "haemodynamic": scipy.stats.gamma.pdf(t[:32], 6) - scipy.stats.gamma.pdf(t[:32], 16) / 6,
    "haemodynamic, TR of 2": (scipy.stats.gamma.pdf(t, 6) - scipy.stats.gamma.pdf(t, 16) / 6)[:32:2],
    "haemodynamic, 20 s": scipy.stats.gamma.pdf(t[:20], 6) - scipy.stats.gamma.pdf(t[:20], 16) / 6,
    "resonance": np.exp(-t / 15) * np.cos(2 * np.pi * t / 8),
    "box with zeros after it": np.repeat([1.0, 0.0], [5, 15]),
}


def gaussian(width: float, reach: int) -> np.ndarray:
    return np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)


u = np.arange(-15.0, 16)
CENTRED = {
    "narrow Gaussian": gaussian(1.0, 5),
    "Gaussian": gaussian(2.5, 12),
    "Gaussian that is cut off": gaussian(9.0, 6),
    "Gaussian of even length": gaussian(2.5, 12)[:-1],
    "Gaussian as long as the signal": np.exp(-0.5 * ((np.arange(64) - 32) / 5.0) ** 2),
    "Mexican hat": (1 - (u / 4) ** 2) * np.exp(-0.5 * (u / 4) ** 2),
    "derivative of a Gaussian": -u * np.exp(-0.5 * (u / 4) ** 2),
    "wide derivative of a Gaussian": -u * np.exp(-0.5 * (u / 14) ** 2),
    "box": np.ones(9),
    "even box": np.ones(16),
    "triangle": 10 - np.abs(np.arange(-9.0, 10)),
    "Lorentzian": 1 / (1 + (u / 3) ** 2),
    "two spikes": np.repeat([1.0, 0.0, 1.0], [1, 10, 1]),
    "skewed": scipy.stats.skewnorm.pdf(u, 3, scale=5),
    "zero": np.zeros(12),
    "noise": np.random.default_rng(1).standard_normal(31),
    "short blur": np.array([3.0, 1.0, 0.5]),
    "short decay": np.exp(-np.arange(7.0)),
    "complex": np.exp(-t / 8) * 1j,
    "late": np.exp(-t / 8)[::-1],
} | {
    f"random symmetric {i}": np.concatenate([half, half[::-1]])
    for i, half in enumerate(np.random.default_rng(2).standard_normal((50, 6)))
}


@pytest.mark.parametrize("name", CAUSAL)
def test_kernels_that_look_causal_are_warned_about_once(name: str) -> None:
    kernel = CAUSAL[name]
    for mode in ("circular", "linear"):
        with pytest.warns(UserWarning, match="kernel looks causal.*say causal=True") as caught:
            operator = Convolution(kernel, 100, mode=mode)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert not operator.causal
        operator.abs2()  # the user was told
        operator._in_precision("float32")
    for settings in (dict(causal=True), dict(causal=False), dict(centre=False), dict(centre=True)):
        Convolution(kernel, 100, **settings)  # warnings are errors
    Convolution(kernel, 100, mode="linear", output="full")


@pytest.mark.parametrize("name", CENTRED)
def test_other_kernels_are_not(name: str) -> None:
    assert not looks_causal(CENTRED[name])
    Convolution(CENTRED[name], 100)


def test_images_are_not_judged() -> None:
    decay = np.exp(-np.arange(16.0) / 3)
    Convolution(np.outer(decay, decay), (20, 20))


def test_a_causal_kernel_puts_spikes_where_they_are() -> None:
    kernel = CAUSAL["calcium"]
    truth = np.zeros(300)
    truth[[40, 90, 200]] = 3, 2, 4
    y = np.convolve(truth, kernel)[:300] + 0.01 * np.random.default_rng(0).standard_normal(300)

    def spikes(**settings) -> list[int]:
        post = cofem.fit(Convolution(kernel, 300, mode="linear", **settings), y, noise_std=0.01, rng=0)
        return np.flatnonzero(post.mean > 1).tolist()

    assert spikes(causal=True) == [40, 90, 200]
    with warnings.catch_warnings(action="ignore"):
        assert spikes() == [40 + 29, 90 + 29, 200 + 29]
