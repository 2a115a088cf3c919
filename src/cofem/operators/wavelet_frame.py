"""Undecimated wavelets: a redundant frame in which no place of a signal is special."""

from __future__ import annotations

from itertools import product
from math import prod, sqrt
from typing import Any

import array_api_compat
import numpy as np

from cofem._arrays import Array, as_shape, namespace, squared_modulus
from cofem.operators.base import Operator
from cofem.operators.boxes import Box
from cofem.operators.facts import Facts
from cofem.operators.gradient import as_axes, rolled
from cofem.operators.symbols import angles, outer
from cofem.operators.wavelets import discrete_wavelet, is_orthonormal

#: Levels unless it is said; fewer where the filter does not fit.
_DEFAULT_LEVEL = 3


class WaveletFrame(Operator):
    """Undecimated (stationary, a trous) wavelet transform of a periodic array: a Parseval frame.

    Every band has one coefficient for each place, so no length need be a power of two, and a shift of the
    signal shifts the coefficients. ``B^H B`` is the identity: a signal has the energy of its coefficients.

    Bands are ordered as those of `Wavelet`: the approximation, then the details from coarse to fine.
    `row_groups` numbers the bands, so 0 is the approximation, which is not sparse. `row_places` says which
    place of the array a row belongs to: the middle of its wavelet. Axes of length 1 are left alone.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.
    wavelet : str or pywt.Wavelet
        An orthogonal wavelet of PyWavelets.
    level : int, optional
        Number of levels; by default 3, or fewer if the filter of the last one is longer than an axis.
    axes : int or tuple of int, optional
        The axes that are transformed, by default all.

    Notes
    -----
    Level j has the filters of the wavelet divided by the square root of 2, with ``2**(j - 1) - 1`` zeros
    between their entries. A product costs ``O(D)`` for each level, axis and entry of a filter.

    Examples
    --------
    >>> import numpy as np
    >>> B = WaveletFrame(5, "haar", level=1)
    >>> B @ np.array([0.0, 0.0, 2.0, 0.0, 0.0])
    array([ 0.,  1.,  1.,  0.,  0.,  0., -1.,  1.,  0.,  0.])
    >>> B.row_groups
    array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    >>> np.allclose(B.H @ (B @ np.arange(5.0)), np.arange(5.0))
    True
    """

    def __init__(self, shape: Any, wavelet: Any = "haar", level: int | None = None, axes: Any = None) -> None:
        self.signal_shape = as_shape(shape)
        self.wavelet = discrete_wavelet(wavelet)
        low, high = self.wavelet.dec_lo, self.wavelet.dec_hi
        if not is_orthonormal(low, high):
            raise ValueError(f"wavelet must be orthogonal for a tight frame, got {self.wavelet.name!r}")
        # Correlation with the reversed filter is convolution with it.
        self._low = [c / sqrt(2) for c in reversed(low)]
        self._high = [c / sqrt(2) for c in reversed(high)]
        n_axes = len(self.signal_shape)
        self.axes = as_axes(axes, n_axes)
        self._axes = tuple(axis - n_axes for axis in self.axes if self.signal_shape[axis] > 1)
        self.level = _checked_level(tuple(self.signal_shape[axis] for axis in self.axes), len(low), level)
        self.n_bands = self.level * (2 ** len(self._axes) - 1) + 1
        length = prod(self.signal_shape)
        super().__init__((self.n_bands * length, length), facts=Facts(column_gram=1.0))

    def _shifts(self, level: int) -> list[int]:
        """Return the offsets of the entries of the filters of a level, with the middle next to 0."""
        gap = 2 ** (level - 1)
        first = -((len(self._low) - 1) * gap // 2)
        return [first + k * gap for k in range(len(self._low))]

    def _split(self, x: Array, axis: int, level: int) -> tuple[Array, Array]:
        """Return the smooth part and the detail along an axis."""
        low, high = _zeros_like(x), _zeros_like(x)
        for a, b, shift in zip(self._low, self._high, self._shifts(level), strict=True):
            moved = rolled(x, -shift, axis)
            low += a * moved
            high += b * moved
        return low, high

    def _merge(self, low: Array, high: Array, axis: int, level: int) -> Array:
        """Do the transpose of `_split`."""
        total = _zeros_like(low)
        for a, b, shift in zip(self._low, self._high, self._shifts(level), strict=True):
            total += rolled(a * low + b * high, shift, axis)
        return total

    def _forward(self, x: Array) -> Array:
        xp, batch, length = namespace(x), x.shape[:-1], self.shape[1]
        smooth = xp.reshape(x, (*batch, *self.signal_shape))
        # Written as they come, so that the coefficients are not in memory twice.
        out = xp.empty((*batch, self.shape[0]), dtype=x.dtype, device=array_api_compat.device(x))
        end = self.shape[0]
        for level in range(1, self.level + 1):
            parts = [smooth]
            for axis in self._axes:
                parts = [half for part in parts for half in self._split(part, axis, level)]
            smooth, *details = parts
            for detail in reversed(details):
                out[..., end - length : end] = xp.reshape(detail, (*batch, length))
                end -= length
        out[..., :end] = xp.reshape(smooth, (*batch, length))
        return out

    def _adjoint(self, y: Array) -> Array:
        xp, batch, length = namespace(y), y.shape[:-1], self.shape[1]
        pieces = [
            xp.reshape(y[..., k * length : (k + 1) * length], (*batch, *self.signal_shape))
            for k in range(self.n_bands)
        ]
        smooth = pieces.pop(0)
        n_details = 2 ** len(self._axes) - 1
        for level in range(self.level, 0, -1):
            parts = [smooth, *pieces[:n_details]]
            del pieces[:n_details]
            for axis in reversed(self._axes):
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [self._merge(low, high, axis, level) for low, high in pairs]
            smooth = parts[0]
        return xp.reshape(smooth, (*batch, length))

    def _gram(self, x: Array) -> Array:
        return namespace(x).asarray(x, copy=True)

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _row_groups(self) -> np.ndarray:
        return np.repeat(np.arange(self.n_bands), self.shape[1])

    def _row_places(self) -> np.ndarray:
        return np.tile(np.arange(self.shape[1]), self.n_bands)

    def _row_boxes(self) -> tuple[Box, ...]:
        origin = (0,) * len(self.signal_shape)
        return tuple(Box(k * self.shape[1], origin, self.signal_shape) for k in range(self.n_bands))

    def _band_symbols(self, basis: str) -> np.ndarray:
        at = angles(self.signal_shape, basis)
        smooth = np.ones(self.signal_shape)
        bands: list[np.ndarray] = []
        for level in range(1, self.level + 1):
            halves = [
                [_power(f, w, level) for f in (self._low, self._high)]
                if axis - len(at) in self._axes
                else [np.ones_like(w)]
                for axis, w in enumerate(at)
            ]
            parts = [smooth * outer(factors) for factors in product(*halves)]
            smooth = parts[0]
            bands = parts[1:] + bands
        return np.stack([smooth, *bands])

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        axes = "" if self.axes == tuple(range(len(self.signal_shape))) else f", axes={self.axes}"
        return f"WaveletFrame({shape}, {self.wavelet.name!r}, level={self.level}{axes})"

    def _repeated(self, count: int) -> Operator:
        shape, axes = (count, *self.signal_shape), tuple(axis + 1 for axis in self.axes)
        return WaveletFrame(shape, self.wavelet, self.level, axes)


def _zeros_like(x: Array) -> Array:
    return namespace(x).zeros_like(x)


def _power(taps: list[float], at: np.ndarray, level: int) -> np.ndarray:
    """Return the squared response of a filter of one level to waves."""
    gap = 2 ** (level - 1)
    return squared_modulus(sum(c * np.exp(1j * k * gap * at) for k, c in enumerate(taps)))


def _checked_level(shape: tuple[int, ...], taps: int, level: int | None) -> int:
    """Return the level to use: gaps as long as an axis would leave nothing but zeros in the details."""
    shortest = min((n for n in shape if n > 1), default=1)
    if shortest == 1:
        raise ValueError(f"shape must have an axis longer than 1, got {shape}")
    largest = (shortest - 1).bit_length()  # the last level with 2**(level - 1) < shortest
    if level is None:
        fitting = ((shortest - 1) // (taps - 1)).bit_length()  # ... with (taps - 1) 2**(level - 1) < shortest
        level = max(1, min(_DEFAULT_LEVEL, fitting))
    if not 1 <= level <= largest:
        raise ValueError(f"level must be from 1 to {largest} for shape {shape}, got {level}")
    return int(level)
