"""Test problems with a known answer: the paper's, and one for each kind of dictionary."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from cofem.operators import DCT, FFT, Convolution, Mask, Wavelet, as_operator

#: Standard deviation of the noise in the paper's experiments.
NOISE_STD = 0.005


@dataclass(frozen=True)
class Case:
    """A problem ``y = Phi z + noise`` whose z is known.

    Attributes
    ----------
    Phi : array, sparse matrix or operator of shape (N, D)
        The dictionary.
    y : ndarray of shape (N,)
        The data.
    z : ndarray of shape (D,)
        The coefficients that made them.
    noise_std : float
        Standard deviation of the noise.
    compared : callable, optional
        What of the coefficients an error is measured on, where not the coefficients themselves: a
        linear map of vectors of length D.
    """

    Phi: Any
    y: np.ndarray
    z: np.ndarray
    noise_std: float
    compared: Callable[[np.ndarray], np.ndarray] | None = None

    def nrmse(self, mean: np.ndarray) -> float:
        """Return ``||mean - z|| / ||z||`` in percent, as in the paper.

        Examples
        --------
        >>> import numpy as np
        >>> case = Case(np.eye(2), np.array([3.0, 4.0]), np.array([3.0, 4.0]), noise_std=0.1)
        >>> case.nrmse(np.array([3.0, 3.0]))
        20.0
        """
        error, truth = mean - self.z, self.z
        if self.compared is not None:
            error, truth = self.compared(error), self.compared(truth)
        return 100 * float(np.linalg.norm(error) / np.linalg.norm(truth))


def dct(
    D: int,
    f: float = 4,
    density: float = 0.04,
    sigma: float = NOISE_STD,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Case:
    """Make the paper's structured problem: inverse DCT and random samples, N(0, 1) coefficients.

    Parameters
    ----------
    D : int
        Number of coefficients.
    f : float
        Undersampling: ``N = D / f``.
    density : float
        Share of the coefficients that are not zero.
    sigma : float
        Standard deviation of the noise.
    seed : int
        Seed of everything that is random.
    dtype : dtype
        Precision of the data, which the fit then works in.

    Examples
    --------
    >>> dct(1024, f=4, density=0.1).Phi.shape
    (256, 1024)
    """
    return _sampled_dct((D,), f, density, sigma, seed, dtype)


def dct2(
    side: int,
    f: float = 4,
    density: float = 0.04,
    sigma: float = NOISE_STD,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Case:
    """Make the problem of `dct` for an image of ``side`` x ``side`` pixels and the 2-D transform."""
    return _sampled_dct((side, side), f, density, sigma, seed, dtype)


def _sampled_dct(
    shape: tuple[int, ...], f: float, density: float, sigma: float, seed: int, dtype: DTypeLike
) -> Case:
    rng = np.random.default_rng(seed)
    D = int(np.prod(shape))
    z = _spikes(D, round(density * D), rng)
    rows = np.sort(rng.choice(D, round(D / f), replace=False))
    return _observe(Mask(rows, shape) @ DCT(shape).T, z, rng, sigma, dtype)


def dense(
    D: int, f: float = 4, density: float = 0.04, sigma: float = NOISE_STD, seed: int = 0, gain: float = 1.0
) -> Case:
    """Make the paper's dense problem: entries of Phi from N(0, gain^2), not normalised; spikes of +-1."""
    rng = np.random.default_rng(seed)
    z = _spikes(D, round(density * D), rng, signs=True)
    return _observe(gain * rng.standard_normal((round(D / f), D)), z, rng, sigma)


# --- kinds of dictionary: D coefficients, from compressed sensing to deconvolution ----------------------


def blur(D: int, seed: int, width: float) -> Case:
    """Circular convolution with a Gaussian of standard deviation `width`, every sample seen."""
    rng = np.random.default_rng(seed)
    t = np.arange(D) - D // 2
    kernel = np.exp(-0.5 * (t / width) ** 2)
    return _observe(Convolution(kernel / kernel.sum(), D), _spikes(D, round(0.02 * D), rng), rng)


def fourier_wavelets(D: int, seed: int) -> Case:
    """Wavelets of a complex image, of which low frequencies are sampled more often than high ones."""
    rng = np.random.default_rng(seed)
    side = round(D**0.5)
    shape = (side, side)
    frequency = np.fft.fftfreq(side)
    density = 1 / (0.05 + np.hypot(*np.meshgrid(frequency, frequency))).ravel() ** 2
    rows = np.sort(rng.choice(side**2, side**2 // 3, replace=False, p=density / density.sum()))
    synthesis = Wavelet(shape, "db2").T
    # As in images, coarse subbands are full and fine ones nearly empty: as many spikes in each subband.
    groups = synthesis.groups
    assert groups is not None
    share = 1 / np.bincount(groups)[groups]
    where = rng.choice(side**2, round(0.05 * side**2), replace=False, p=share / share.sum())
    z = np.zeros(side**2, complex)
    z[where] = _complex_normal(where.size, rng)
    return _observe(Mask(rows, shape) @ FFT(shape) @ synthesis, z, rng)


def correlated(D: int, seed: int, rho: float = 0.9) -> Case:
    """Gaussian columns, each correlated by `rho` with the one before."""
    rng = np.random.default_rng(seed)
    N = D // 4
    columns = rng.standard_normal((D, N)) / N**0.5
    for j in range(1, D):
        columns[j] = rho * columns[j - 1] + (1 - rho**2) ** 0.5 * columns[j]
    return _observe(columns.T.copy(), _spikes(D, round(0.03 * D), rng), rng)


def unequal_norms(D: int, seed: int) -> Case:
    """Gaussian columns whose norms range over four orders of magnitude.

    Each spike explains as much of the data as any other, so the error is measured on ``norm * z``:
    else it would be that of the few coefficients with the smallest columns.
    """
    rng = np.random.default_rng(seed)
    N, norms = D // 4, 10 ** rng.uniform(-2, 2, D)
    Phi = rng.standard_normal((N, D)) / N**0.5 * norms
    z = _spikes(D, round(0.04 * D), rng) / norms
    return _observe(Phi, z, rng, compared=lambda x: norms * x)


def duplicated(D: int, seed: int) -> Case:
    """Gaussian columns, every one twice; the error is measured on the sum over both copies.

    How a coefficient is shared between the copies is not in the data.
    """
    rng = np.random.default_rng(seed)
    N = D // 4
    Phi = np.repeat(rng.standard_normal((N, D // 2)) / N**0.5, 2, axis=1)
    return _observe(Phi, _spikes(D, round(0.03 * D), rng), rng, compared=lambda x: x[0::2] + x[1::2])


def gaussian(D: int, seed: int, f: float, density: float = 0.1, sigma: float = NOISE_STD) -> Case:
    """Gaussian columns of norm one or nearly, ``N = D / f``; N(0, 1) spikes."""
    rng = np.random.default_rng(seed)
    N = round(D / f)
    return _observe(rng.standard_normal((N, D)) / N**0.5, _spikes(D, round(density * D), rng), rng, sigma)


def sparse_matrix(D: int, seed: int) -> Case:
    """Sparse random matrix, one entry in twenty Gaussian."""
    rng = np.random.default_rng(seed)
    N, filled = D // 4, 0.05
    Phi = scipy.sparse.random_array(
        (N, D), density=filled, format="csr", rng=rng, data_sampler=lambda size: rng.standard_normal(size)
    )
    return _observe(Phi / (filled * N) ** 0.5, _spikes(D, round(0.04 * D), rng), rng)


def autoregressive(D: int, seed: int, rho: float = 0.9) -> Case:
    """Impulses that decay as ``rho^t``, half of the samples seen.

    The data cannot tell an impulse on a sample that was not seen from a smaller one a step later, so the
    error is measured on what arrived between one seen sample and the next.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(D, D // 2, replace=False))
    Phi = Mask(rows, D) @ Convolution(rho ** np.arange(min(D, 200)), D, centre=False)
    kept = rho ** ((rows - np.roll(rows, 1)) % D)

    def arrivals(z: np.ndarray) -> np.ndarray:
        seen = Phi @ z
        return seen - kept * np.roll(seen, 1)

    return _observe(Phi, _spikes(D, round(0.05 * D), rng), rng, compared=arrivals)


#: One maker for each kind of dictionary, of D (about) and a seed, and the D at which it is studied.
KINDS: dict[str, tuple[int, Callable[[int, int], Case]]] = {
    "DCT samples": (4096, lambda D, seed: dct(D, 4, 0.08, seed=seed)),
    "dense Gaussian": (2048, lambda D, seed: dense(D, 4, 0.04, seed=seed)),
    "blur, width 2.5": (2048, lambda D, seed: blur(D, seed, 2.5)),
    "blur, width 1": (2048, lambda D, seed: blur(D, seed, 1.0)),
    "Fourier of wavelets": (4096, fourier_wavelets),
    "correlated columns": (2048, correlated),
    "unequal norms": (2048, unequal_norms),
    "duplicated columns": (2048, duplicated),
    "tall": (2048, lambda D, seed: gaussian(D, seed, f=0.5)),
    "square": (2048, lambda D, seed: gaussian(D, seed, f=1)),
    "sparse matrix": (4096, sparse_matrix),
    "autoregressive": (2048, autoregressive),
}


#: Share of the coefficients that are not zero, and noise relative to the data, in coherent problems.
SHARE, RELATIVE_NOISE = 0.03, 0.01


def _gaussian_kernel(width: float, n_axes: int = 1) -> np.ndarray:
    """Return a Gaussian of norm one, cut off at four widths."""
    reach = math.ceil(4 * width)
    line = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    kernel = functools.reduce(np.multiply.outer, [line] * n_axes)
    return kernel / np.linalg.norm(kernel)


def _coherent(Phi: Any, rng: np.random.Generator) -> Case:
    """Draw spikes, and data whose noise is one percent of them."""
    operator = as_operator(Phi)
    z = _spikes(operator.shape[1], round(SHARE * operator.shape[1]), rng)
    if operator.is_complex:
        z = z * np.exp(2j * np.pi * rng.random(z.size))
    clean = operator @ z
    return _observe(Phi, z, rng, RELATIVE_NOISE * float(np.sqrt(np.mean(np.abs(clean) ** 2))))


def convolved(kernel: np.ndarray, D: int, seed: int, causal: bool = False) -> Case:
    """Spikes that a kernel has smeared over a grid of about D places."""
    side = round(D ** (1 / kernel.ndim))
    Phi = Convolution(kernel, (side,) * kernel.ndim, causal=causal)
    return _coherent(Phi, np.random.default_rng(seed))


def random_kernel(D: int, seed: int) -> Case:
    """Spikes that 64 random numbers have smeared, as a Toeplitz matrix does."""
    kernel = np.random.default_rng([seed, 1]).standard_normal(64)
    return convolved(kernel / np.linalg.norm(kernel), D, seed, causal=True)


def in_blocks(D: int, seed: int, rho: float = 0.95, size: int = 16) -> Case:
    """Gaussian columns in blocks of `size`, correlated by `rho` within each; ``N = D / 4``."""
    rng = np.random.default_rng(seed)
    N = D // 4
    common = np.repeat(rng.standard_normal((N, D // size)), size, axis=1)
    columns = rho**0.5 * common + (1 - rho) ** 0.5 * rng.standard_normal(common.shape)
    return _coherent(columns / N**0.5, rng)


def nearly_duplicated(D: int, seed: int, apart: float = 0.03) -> Case:
    """Gaussian columns, every one twice up to a difference of 3 %; ``N = D / 4``."""
    rng = np.random.default_rng(seed)
    N = D // 4
    columns = np.repeat(rng.standard_normal((N, D // 2)), 2, axis=1)
    columns[:, 1::2] += apart * rng.standard_normal((N, D // 2))
    return _coherent(columns / N**0.5, rng)


def variable_density(D: int, seed: int) -> Case:
    """Wavelets seen through a third of the Fourier coefficients, most of them low ones."""
    rng = np.random.default_rng(seed)
    side = 2 ** round(math.log2(D) / 2)
    frequency = np.hypot.outer(*[np.fft.fftfreq(side)] * 2).ravel()
    chance = 1 / (1 + (frequency / 0.06) ** 2)
    for _ in range(8):  # to a mean of a third, none above one
        chance = np.minimum(1, chance * (chance.size / 3 / chance.sum()))
    rows = np.flatnonzero(rng.random(chance.size) < chance)
    shape = (side, side)
    return _coherent(Mask(rows, shape) @ FFT(shape) @ Wavelet(shape, "db4").T, rng)


def picture(D: int, seed: int, share: float = 0.5, sigma: float = 0.05) -> Case:
    """Draw a disc on a slope, of about D pixels, of which a share is seen: sparse in its differences.

    Examples
    --------
    >>> case = picture(256, 0)
    >>> case.Phi.column_shape, case.z.shape
    ((16, 16), (256,))
    """
    rng = np.random.default_rng(seed)
    side = math.isqrt(D)
    i, j = np.indices((side, side)) / side
    pixels = 0.5 * i + (np.hypot(i - 0.5, j - 0.4) < 0.3)
    return _observe(Mask(rng.random(pixels.shape) < share), pixels.ravel(), rng, sigma)


#: One maker for each kind of coherent dictionary, of D (about) and a seed.
COHERENT: dict[str, Callable[[int, int], Case]] = {
    "blur, width 2.5": lambda D, seed: convolved(_gaussian_kernel(2.5), D, seed),
    "blur, width 1": lambda D, seed: convolved(_gaussian_kernel(1.0), D, seed),
    "2-D blur, width 1.4": lambda D, seed: convolved(_gaussian_kernel(1.4, 2), D, seed),
    "decay 0.98": lambda D, seed: convolved(0.98 ** np.arange(min(400, D // 2)) / 5, D, seed, causal=True),
    "blocks, 0.95": in_blocks,
    "near duplicates": nearly_duplicated,
    "Fourier of wavelets": variable_density,
    "random kernel": random_kernel,
}


def _spikes(D: int, count: int, rng: np.random.Generator, signs: bool = False) -> np.ndarray:
    """Draw a vector of length D with `count` entries from N(0, 1), or of +-1, at random places."""
    z = np.zeros(D)
    where = rng.choice(D, max(1, count), replace=False)
    z[where] = rng.choice([-1.0, 1.0], where.size) if signs else rng.standard_normal(where.size)
    return z


def _observe(
    Phi: Any,
    z: np.ndarray,
    rng: np.random.Generator,
    sigma: float = NOISE_STD,
    dtype: DTypeLike = np.float64,
    compared: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Case:
    """Take noisy data, in the precision of `dtype`."""
    clean = as_operator(Phi) @ z
    is_complex = np.iscomplexobj(clean)
    noise = _complex_normal(clean.size, rng) if is_complex else rng.standard_normal(clean.size)
    y = (clean + sigma * noise).astype(np.result_type(dtype, np.complex64) if is_complex else dtype)
    return Case(Phi, y, z, sigma, compared)


def _complex_normal(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw complex numbers with ``E |x|^2 = 1``."""
    return (rng.standard_normal(count) + 1j * rng.standard_normal(count)) / 2**0.5
