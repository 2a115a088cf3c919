"""Operators with the squared entries of the structured transforms, as fast as the transforms themselves."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from cofem._arrays import Array, by_parts, namespace, take
from cofem.operators.base import Operator
from cofem.operators.transforms import dispatch


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
        return self._along_each_axis(_squared_dct, x)

    def _adjoint(self, y: Array) -> Array:
        return self._along_each_axis(_squared_dct_transposed, y)

    def _along_each_axis(self, apply: Callable[[Array], Array], x: Array) -> Array:
        if len(self.signal_shape) == 1:
            return apply(x)
        xp = namespace(x)
        signals = xp.reshape(x, (*x.shape[:-1], *self.signal_shape))
        for axis in range(-len(self.signal_shape), 0):
            signals = xp.moveaxis(apply(xp.moveaxis(signals, axis, -1)), -1, axis)
        return xp.reshape(signals, x.shape)


def _squared_dct(x: Array) -> Array:
    xp, n = namespace(x), x.shape[-1]
    result = dispatch.cosine_sums_at_even_frequencies(x)
    result += xp.sum(x, axis=-1, keepdims=True)
    result[..., 0] /= 2
    return result / n


def _squared_dct_transposed(y: Array) -> Array:
    xp, n = namespace(y), y.shape[-1]
    amplitudes = xp.zeros_like(y)
    n_even = (n - 1) // 2
    # Frequency m collects the coefficient whose double is m and the one whose double folds back to m.
    amplitudes[..., 2::2] = y[..., 1 : n_even + 1] - xp.flip(y[..., n - n_even :], axis=-1)
    return (dispatch.cosine_series(amplitudes) + xp.sum(y, axis=-1, keepdims=True)) / n


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
        xp = namespace(x)
        sines = dispatch.sine_sums(x, self.signal_shape)
        sines = xp.reshape(sines, (*x.shape[:-1], *self.signal_shape))
        for axis, n in enumerate(self.signal_shape, -len(self.signal_shape)):
            sines = take(sines, 2 * np.arange(n) % n, axis=axis)
        return (xp.reshape(sines, x.shape) + xp.sum(x, axis=-1, keepdims=True)) / self.shape[0]
