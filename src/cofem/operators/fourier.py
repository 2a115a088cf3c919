"""Orthonormal cosine and Fourier transforms of signals in any number of dimensions."""

from __future__ import annotations

from math import prod
from typing import Any

from cofem._arrays import Array, as_shape, by_parts, namespace
from cofem.operators.action import FusedGram, Weights
from cofem.operators.base import Operator
from cofem.operators.facts import Facts
from cofem.operators.squares import Constant, SquaredDCT, SquaredHartley
from cofem.operators.transforms import dispatch


class _Transform(Operator):
    """An orthonormal square transform of arrays of one shape, flattened in C order."""

    def __init__(self, shape: Any, *, is_complex: bool = False) -> None:
        self.signal_shape = as_shape(shape)
        length = prod(self.signal_shape)
        super().__init__((length, length), is_complex=is_complex, facts=Facts(row_gram=1.0))

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _expression(self) -> str:
        shape = self.signal_shape
        return f"{type(self).__name__}({shape[0] if len(shape) == 1 else shape})"


class DCT(_Transform):
    """Orthonormal discrete cosine transform (type II): signal to coefficients.

    The transpose is the inverse, so ``DCT(n).T`` is the dictionary of cosines. In several dimensions the
    transform runs over every axis.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.

    Examples
    --------
    >>> import numpy as np
    >>> DCT(4) @ np.ones(4)
    array([2., 0., 0., 0.])
    """

    def __init__(self, shape: Any) -> None:
        super().__init__(shape)

    def _forward(self, x: Array) -> Array:
        return dispatch.dct(x, self.signal_shape)

    def _adjoint(self, y: Array) -> Array:
        return dispatch.idct(y, self.signal_shape)

    def _forward_overwriting(self, x: Array) -> Array:
        return dispatch.dct(x, self.signal_shape, overwrite_x=True)

    def _adjoint_overwriting(self, y: Array) -> Array:
        return dispatch.idct(y, self.signal_shape, overwrite_x=True)

    def _adjoint_gram_between(self, weights: Weights) -> FusedGram | None:
        return dispatch.WeightedDCT(weights) if len(self.signal_shape) == 1 else None

    def _abs2(self) -> Operator:
        return SquaredDCT(self.signal_shape)


class FFT(_Transform):
    """Orthonormal discrete Fourier transform: signal to coefficients.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.
    real : bool
        If True, the real form, ``Re - Im`` of the transform (the Hartley transform), which is orthonormal
        and its own inverse, and maps real signals to as many real coefficients.

    Examples
    --------
    >>> import numpy as np
    >>> np.abs(FFT(4) @ np.ones(4))
    array([2., 0., 0., 0.])
    >>> FFT(4, real=True) @ np.ones(4)
    array([2., 0., 0., 0.])
    """

    def __init__(self, shape: Any, real: bool = False) -> None:
        super().__init__(shape, is_complex=not real)

    def _forward(self, x: Array) -> Array:
        return dispatch.fft(x, self.signal_shape) if self.is_complex else by_parts(self._hartley, x)

    def _adjoint(self, y: Array) -> Array:
        return dispatch.ifft(y, self.signal_shape) if self.is_complex else by_parts(self._hartley, y)

    def _forward_overwriting(self, x: Array) -> Array:
        return dispatch.fft(x, self.signal_shape, overwrite_x=True) if self.is_complex else self._forward(x)

    def _adjoint_overwriting(self, y: Array) -> Array:
        return dispatch.ifft(y, self.signal_shape, overwrite_x=True) if self.is_complex else self._adjoint(y)

    def _fourier_grid(self) -> tuple[int, ...] | None:
        return self.signal_shape if self.is_complex else None

    def _hartley(self, x: Array) -> Array:
        spectrum = dispatch.fft(x, self.signal_shape)
        xp = namespace(spectrum)
        return xp.real(spectrum) - xp.imag(spectrum)

    def _abs2(self) -> Operator:
        if self.is_complex:
            return Constant(1 / self.shape[1], self.shape)
        return SquaredHartley(self.signal_shape)

    def _expression(self) -> str:
        text = super()._expression()
        return text if self.is_complex else f"{text[:-1]}, real=True)"
