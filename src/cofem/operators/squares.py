"""Operators with the squared entries of the structured transforms, as fast as the transforms themselves."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import scipy.fft

from cofem._arrays import Array, by_parts, namespace, number_like, take
from cofem.operators import array_transforms
from cofem.operators.base import Operator
from cofem.operators.fourier import fft_workers, flatten, unflatten


class Constant(Operator):
    """Operator with all entries equal.

    Parameters
    ----------
    value : float
        The entry.
    shape : tuple of int
        ``(N, D)``.

    Examples
    --------
    >>> import numpy as np
    >>> Constant(0.5, (2, 3)) @ np.ones(3)
    array([1.5, 1.5])
    """

    def __init__(self, value: float, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self.value = value

    def _forward(self, x: Array) -> Array:
        return self._spread_sum(x, self.shape[0])

    def _adjoint(self, y: Array) -> Array:
        return self._spread_sum(y, self.shape[1])

    def _spread_sum(self, x: Array, length: int) -> Array:
        xp = namespace(x)
        total = self.value * xp.sum(x, axis=-1, keepdims=True)
        return xp.asarray(xp.broadcast_to(total, (*x.shape[:-1], length)), copy=True)

    def _spectral_norm(self) -> float:
        return abs(self.value) * float(np.sqrt(prod(self.shape)))

    def _abs2(self) -> Operator:
        return Constant(self.value**2, self.shape)

    def _expression(self) -> str:
        return f"Constant({self.value:g}, {self.shape})"


class SquaredDCT(Operator):
    """Squared entries of the orthonormal cosine transform.

    With ``cos^2 t = (1 + cos 2t) / 2``, the entry of frequency j > 0 at sample i is
    ``(1 + cos(pi (2i + 1) 2j / 2n)) / n``: one more transform, read at doubled frequencies, where those
    beyond n fold back with a change of sign. In several dimensions the squares multiply axis by axis.

    Parameters
    ----------
    signal_shape : tuple of int
        Shape of the signal.

    Examples
    --------
    >>> SquaredDCT((2,)).to_dense()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """

    def __init__(self, signal_shape: tuple[int, ...]) -> None:
        length = prod(signal_shape)
        super().__init__((length, length))
        self.signal_shape = signal_shape

    def _forward(self, x: Array) -> Array:
        if not isinstance(x, np.ndarray):
            return array_transforms.along_axes(_squared_dct_anywhere, x, self.signal_shape)
        return self._along_each_axis(_squared_dct, x)

    def _adjoint(self, y: Array) -> Array:
        if not isinstance(y, np.ndarray):
            return array_transforms.along_axes(_squared_dct_transposed_anywhere, y, self.signal_shape)
        return self._along_each_axis(_squared_dct_transposed, y)

    def _along_each_axis(self, apply: Callable[[np.ndarray], np.ndarray], x: Array) -> np.ndarray:
        n_axes = len(self.signal_shape)
        signals = unflatten(x, self.signal_shape, str(self))
        for axis in range(-n_axes, 0):
            signals = np.moveaxis(apply(np.moveaxis(signals, axis, -1)), -1, axis)
        return flatten(signals, n_axes)


def _squared_dct(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    # scipy's unnormalised transform is twice the sum of cosines; entry n is zero by symmetry.
    cosines = np.concatenate(
        [0.5 * scipy.fft.dct(x, workers=fft_workers(x, 1)), np.zeros_like(x[..., :1])], -1
    )
    doubled = 2 * np.arange(n)
    folded = np.where(doubled <= n, doubled, 2 * n - doubled)
    result = cosines[..., folded]
    result[..., doubled > n] *= -1
    result += x.sum(axis=-1, keepdims=True)
    result[..., 0] /= 2
    return result / n


def _squared_dct_transposed(y: np.ndarray) -> np.ndarray:
    n = y.shape[-1]
    amplitudes = np.zeros_like(y)
    even = np.arange(2, n, 2)
    # Frequency m collects the coefficient whose double is m and the one whose double folds back to m.
    amplitudes[..., even] = y[..., even // 2] - y[..., n - even // 2]
    # scipy's unnormalised type III counts every frequency but the zeroth twice.
    cosines = 0.5 * scipy.fft.dct(amplitudes, type=3, workers=fft_workers(y, 1))
    return (cosines + y.sum(axis=-1, keepdims=True)) / n


def _squared_dct_anywhere(x: Array) -> Array:
    """Do what `_squared_dct` does, on any array library."""
    xp, n = namespace(x), x.shape[-1]
    cosines = array_transforms.dct(x) * number_like(x, (n / 2) ** 0.5)
    cosines[..., 0] *= 2**0.5
    cosines = xp.concat([cosines, xp.zeros_like(x[..., :1])], axis=-1)
    doubled = 2 * np.arange(n)
    sign = xp.ones_like(x)
    sign[..., n // 2 + 1 :] *= -1
    result = take(cosines, np.where(doubled <= n, doubled, 2 * n - doubled), axis=-1) * sign
    result += xp.sum(x, axis=-1, keepdims=True)
    result[..., 0] /= 2
    return result / n


def _squared_dct_transposed_anywhere(y: Array) -> Array:
    """Do what `_squared_dct_transposed` does, on any array library."""
    xp, n = namespace(y), y.shape[-1]
    amplitudes = xp.zeros_like(y)
    n_even = (n - 1) // 2
    amplitudes[..., 2::2] = y[..., 1 : n_even + 1] - xp.flip(y[..., n - n_even :], axis=-1)
    cosines = array_transforms.idct(amplitudes) * number_like(y, (n / 2) ** 0.5)
    return (cosines + xp.sum(y, axis=-1, keepdims=True)) / n


class SquaredHartley(Operator):
    """Squared entries of the real Fourier transform, ``cas^2 t = 1 + sin 2t`` over the size of the signal.

    Parameters
    ----------
    signal_shape : tuple of int
        Shape of the signal.

    Examples
    --------
    >>> SquaredHartley((2,)).to_dense()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """

    def __init__(self, signal_shape: tuple[int, ...]) -> None:
        length = prod(signal_shape)
        super().__init__((length, length))
        self.signal_shape = signal_shape

    def _forward(self, x: Array) -> Array:
        return by_parts(self._apply, x)

    def _adjoint(self, y: Array) -> Array:
        return self._forward(y)  # the matrix is symmetric

    def _apply(self, x: Array) -> Array:
        n_axes = len(self.signal_shape)
        if not isinstance(x, np.ndarray):
            xp = namespace(x)
            sines = xp.imag(array_transforms.fourier(x, self.signal_shape)) * -(self.shape[0] ** 0.5)
            sines = xp.reshape(sines, (*x.shape[:-1], *self.signal_shape))
            for axis, n in enumerate(self.signal_shape, -n_axes):
                sines = take(sines, 2 * np.arange(n) % n, axis=axis)
            return (xp.reshape(sines, x.shape) + xp.sum(x, axis=-1, keepdims=True)) / self.shape[0]
        signals = unflatten(x, self.signal_shape, str(self))
        axes = range(-n_axes, 0)
        sines = -scipy.fft.fftn(signals, axes=axes, workers=fft_workers(signals, n_axes)).imag
        for axis, n in zip(axes, self.signal_shape, strict=True):
            sines = np.take(sines, 2 * np.arange(n) % n, axis=axis)
        return (flatten(sines, n_axes) + x.sum(axis=-1, keepdims=True)) / self.shape[0]
