"""Wavelet transforms, by PyWavelets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import lazy_loader
import numpy as np

from cofem._arrays import Array, as_shape, by_parts, require_numpy
from cofem.operators.base import Operator
from cofem.operators.facts import Facts
from cofem.operators.spectral_atoms import Shifts, shifts_of_bands
from cofem.operators.transforms import dispatch

#: Loaded with the first wavelet: most fits have none.
pywt = lazy_loader.load("pywt")

_MODE = "periodization"


@dataclass(frozen=True)
class Band:
    """One subband in the vector of coefficients: every ``stride``-th shift of one atom."""

    shape: tuple[int, ...]
    start: int
    stride: int

    @property
    def stop(self) -> int:
        """Where the next band starts."""
        return self.start + prod(self.shape)


class Wavelet(Operator):
    """Periodic discrete wavelet transform: signal to coefficients.

    The adjoint is exact for every wavelet. For orthogonal wavelets it is the inverse, so ``Wavelet(n).T``
    is the dictionary of wavelets; for biorthogonal ones, ``dmey`` among them, it is not.

    Coefficients are ordered as by `pywt.ravel_coeffs`: the approximation, then the details from coarse to
    fine. `row_groups`, which are `groups` of the transpose, label these subbands.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order. Every length must be
        divisible by ``2**level``.
    wavelet : str or pywt.Wavelet
        Any discrete wavelet of PyWavelets.
    level : int, optional
        Number of levels; by default as many as the lengths allow and the filter suggests.

    Examples
    --------
    >>> import numpy as np
    >>> W = Wavelet(8, "haar", level=2)
    >>> W @ np.ones(8)
    array([2., 2., 0., 0., 0., 0., 0., 0.])
    >>> W.T.groups
    array([0, 0, 1, 1, 2, 2, 2, 2])
    """

    def __init__(self, shape: Any, wavelet: Any = "db4", level: int | None = None) -> None:
        self.signal_shape = as_shape(shape)
        self.wavelet = discrete_wavelet(wavelet)
        self.level = _checked_level(self.signal_shape, self.wavelet, level)
        # Synthesis with the analysis filters reversed is the adjoint of analysis.
        low, high = self.wavelet.dec_lo, self.wavelet.dec_hi
        self._reversed = pywt.Wavelet("reversed", filter_bank=[low, high, low[::-1], high[::-1]])
        length = prod(self.signal_shape)
        facts = Facts(row_gram=1.0) if is_orthonormal(low, high) else Facts()
        super().__init__((length, length), facts=facts)
        n_axes = len(self.signal_shape)
        self._axes = tuple(range(-n_axes, 0))
        # What PyWavelets calls the bands of one level: "aa", "ad", "da" and "dd" for an image.
        self._approximation, *self._details = ("".join(name) for name in product("ad", repeat=n_axes))

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """The subbands, in the order of the coefficients.

        Examples
        --------
        >>> for band in Wavelet(8, "haar", level=2).bands:
        ...     print(band)
        Band(shape=(2,), start=0, stride=4)
        Band(shape=(2,), start=2, stride=4)
        Band(shape=(4,), start=4, stride=2)
        """
        bands: list[Band] = []
        start = 0
        for level in range(self.level, 0, -1):
            shape = tuple(n >> level for n in self.signal_shape)
            for _ in range(len(self._details) + (level == self.level)):
                bands.append(Band(shape, start, 2**level))
                start = bands[-1].stop
        return tuple(bands)

    def _forward(self, x: Array) -> Array:
        approximation = _unflatten(x, self.signal_shape, str(self))
        pieces: list[np.ndarray] = []
        for _ in range(self.level):
            bands = pywt.dwtn(approximation, self.wavelet, _MODE, axes=self._axes)
            approximation = bands[self._approximation]
            pieces = [bands[name] for name in self._details] + pieces
        return np.concatenate(
            [_flatten(piece, len(self._axes)) for piece in [approximation, *pieces]], axis=-1
        )

    def _adjoint(self, y: Array) -> Array:
        pieces = [_unflatten(y[..., band.start : band.stop], band.shape, str(self)) for band in self.bands]
        approximation = pieces.pop(0)
        while pieces:
            bands = {self._approximation: approximation}
            for name in self._details:
                bands[name] = pieces.pop(0)
            approximation = pywt.idwtn(bands, self._reversed, _MODE, axes=self._axes)
        return _flatten(approximation, len(self._axes))

    def _abs2(self) -> Operator:
        return SquaredWavelet(self)

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _shifted_rows(self) -> Shifts:
        bands = [(band.shape, band.start, band.stride) for band in self.bands]
        return shifts_of_bands(self.signal_shape, bands)

    def _row_groups(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.bands)), [prod(band.shape) for band in self.bands])

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        return f"Wavelet({shape}, {self.wavelet.name!r}, level={self.level})"


class SquaredWavelet(Operator):
    """Squared entries of a wavelet transform.

    The atoms of a band are shifts of one atom, so the band is a circular correlation with its square.

    Parameters
    ----------
    transform : Wavelet
        The transform.

    Examples
    --------
    >>> SquaredWavelet(Wavelet(2, "haar")).to_dense()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """

    def __init__(self, transform: Wavelet) -> None:
        super().__init__(transform.shape)
        self.transform = transform
        self._axes = tuple(range(-len(transform.signal_shape), 0))

    @cached_property
    def _spectra(self) -> np.ndarray:
        """Spectra of the squared atom of each band, one along the first axis for each."""
        bands = self.transform.bands
        atoms = self.transform.H.columns([band.start for band in bands])
        return self._spectrum(_unflatten(atoms**2, self.transform.signal_shape, str(self)))

    def _spectrum(self, signals: np.ndarray) -> np.ndarray:
        return dispatch.padded_spectrum(signals, self.transform.signal_shape, real=True)

    def _signals(self, spectra: np.ndarray) -> np.ndarray:
        return dispatch.from_spectrum(spectra, self.transform.signal_shape, real=True)

    def _every(self, stride: int) -> tuple[Any, ...]:
        return (..., *(slice(None, None, stride) for _ in self._axes))

    def _forward(self, x: Array) -> Array:
        return by_parts(self._correlate, x)

    def _adjoint(self, y: Array) -> Array:
        return by_parts(self._convolve, y)

    def _correlate(self, x: np.ndarray) -> np.ndarray:
        spectrum = self._spectrum(_unflatten(x, self.transform.signal_shape, str(self)))
        pieces = [
            _flatten(self._signals(spectrum * np.conj(of_band))[self._every(band.stride)], len(self._axes))
            for band, of_band in zip(self.transform.bands, self._spectra, strict=True)
        ]
        return np.concatenate(pieces, axis=-1).astype(x.dtype, copy=False)

    def _convolve(self, y: np.ndarray) -> np.ndarray:
        total: Any = 0
        for band, of_band in zip(self.transform.bands, self._spectra, strict=True):
            spread = np.zeros((*y.shape[:-1], *self.transform.signal_shape), dtype=y.dtype)
            spread[self._every(band.stride)] = _unflatten(
                y[..., band.start : band.stop], band.shape, str(self)
            )
            total = total + self._spectrum(spread) * of_band
        return _flatten(self._signals(total), len(self._axes)).astype(y.dtype, copy=False)


def _unflatten(x: Array, shape: tuple[int, ...], user: str) -> np.ndarray:
    """Return vectors (..., D) as arrays (..., *shape), where D is the size of ``shape``."""
    require_numpy(x, user)
    return x.reshape(*x.shape[:-1], *shape)


def _flatten(x: np.ndarray, n_axes: int) -> np.ndarray:
    """Return the last ``n_axes`` axes of ``x`` as one, in C order."""
    return x.reshape(*x.shape[:-n_axes], prod(x.shape[-n_axes:]))


def discrete_wavelet(wavelet: Any) -> Any:
    """Return a wavelet of PyWavelets, by its name or as it is."""
    if isinstance(wavelet, pywt.Wavelet):
        return wavelet
    if wavelet not in pywt.wavelist(kind="discrete"):
        raise ValueError(f"wavelet must be a discrete wavelet listed by pywt.wavelist(), got {wavelet!r}")
    return pywt.Wavelet(wavelet)


def _checked_level(shape: tuple[int, ...], wavelet: Any, level: int | None) -> int:
    """Return the level to use: only even lengths can be halved without loss of orthonormality."""
    # The number of times 2 divides every length.
    largest = min((n & -n).bit_length() - 1 for n in shape)
    if level is None:
        level = max(1, min(largest, pywt.dwt_max_level(min(shape), wavelet)))
    if not 1 <= level <= largest:
        raise ValueError(
            f"level must be from 1 to {largest} for shape {shape} and wavelet {wavelet.name!r}, got {level}: "
            f"every length must be divisible by 2**level"
            + ("" if largest else ", so an odd length has no level that works; pad or crop the signal")
        )
    return int(level)


def is_orthonormal(low: list[float], high: list[float]) -> bool:
    """Tell whether the shifts of both filters by even numbers are orthonormal, to printed precision.

    PyWavelets calls "dmey" orthogonal, but its truncated filters are so only to 2e-3; those tabulated with
    the fewest digits are to 2e-11.
    """
    shifts = np.arange(1 - len(low), len(low))
    is_even = shifts % 2 == 0
    for first, second, at_zero in ((low, low, 1.0), (high, high, 1.0), (low, high, 0.0)):
        products = np.correlate(first, second, mode="full")[is_even]
        if np.max(np.abs(products - at_zero * (shifts[is_even] == 0))) > 1e-10:
            return False
    return True
