"""Orthonormal cosine and Fourier transforms of signals in any number of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import scipy.fft

from cofem._arrays import Array, as_shape, by_parts, namespace
from cofem.operators import array_transforms
from cofem.operators.base import Operator
from cofem.operators.facts import Facts
from cofem.operators.fourier import fft_workers, flatten, unflatten
from cofem.operators.long_transforms import dct_long, idct_long, pays
from cofem.operators.sampling import Mask
from cofem.operators.squares import Constant, SquaredDCT, SquaredHartley


class _Transform(Operator):
    """An orthonormal square transform of arrays of one shape, flattened in C order."""

    def __init__(self, shape: Any, *, is_complex: bool = False) -> None:
        self.signal_shape = as_shape(shape)
        length = prod(self.signal_shape)
        super().__init__((length, length), is_complex=is_complex, facts=Facts(row_gram=1.0))

    def _apply(self, transform: Callable, x: Array, overwrite_x: bool = False) -> Array:
        """Apply a function of scipy.fft along the axes of the signal; `fftn` and `ifftn` to any arrays."""
        if not isinstance(x, np.ndarray):
            return array_transforms.fourier(x, self.signal_shape, inverse=transform is scipy.fft.ifftn)
        n_axes = len(self.signal_shape)
        signals = unflatten(x, self.signal_shape, str(self))
        result = transform(
            signals,
            axes=range(-n_axes, 0),
            norm="ortho",
            overwrite_x=overwrite_x,
            workers=fft_workers(signals, n_axes),
        )
        return flatten(result, n_axes)

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
        return self._apply_dct(x)

    def _adjoint(self, y: Array) -> Array:
        return self._apply_idct(y)

    def _forward_overwriting(self, x: Array) -> Array:
        return self._apply_dct(x, overwrite_x=True)

    def _adjoint_overwriting(self, y: Array) -> Array:
        return self._apply_idct(y, overwrite_x=True)

    def _apply_dct(self, x: Array, overwrite_x: bool = False) -> Array:
        if not isinstance(x, np.ndarray):
            return array_transforms.along_axes(array_transforms.dct, x, self.signal_shape)
        if len(self.signal_shape) == 1 and pays(x):
            return dct_long(x, overwrite_x)
        return self._apply(scipy.fft.dctn, x, overwrite_x)

    def _apply_idct(self, y: Array, overwrite_x: bool = False) -> Array:
        if not isinstance(y, np.ndarray):
            return array_transforms.along_axes(array_transforms.idct, y, self.signal_shape)
        if len(self.signal_shape) == 1 and pays(y):
            return idct_long(y, overwrite_x)
        return self._apply(scipy.fft.idctn, y, overwrite_x)

    def _adjoint_gram_around(self, inner: Operator, x: Array) -> Array | None:
        if isinstance(x, np.ndarray) or len(self.signal_shape) > 1 or not isinstance(inner, Mask):
            return None
        return array_transforms.dct_around(inner.multiplicity_in_order_of_dct(x), x)

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
        return self._apply(scipy.fft.fftn, x) if self.is_complex else by_parts(self._hartley, x)

    def _adjoint(self, y: Array) -> Array:
        return self._apply(scipy.fft.ifftn, y) if self.is_complex else by_parts(self._hartley, y)

    def _forward_overwriting(self, x: Array) -> Array:
        return self._apply(scipy.fft.fftn, x, overwrite_x=True) if self.is_complex else self._forward(x)

    def _adjoint_overwriting(self, y: Array) -> Array:
        return self._apply(scipy.fft.ifftn, y, overwrite_x=True) if self.is_complex else self._adjoint(y)

    def _hartley(self, x: Array) -> Array:
        spectrum = self._apply(scipy.fft.fftn, x)
        xp = namespace(spectrum)
        return xp.real(spectrum) - xp.imag(spectrum)

    def _abs2(self) -> Operator:
        if self.is_complex:
            return Constant(1 / self.shape[1], self.shape)
        return SquaredHartley(self.signal_shape)

    def _expression(self) -> str:
        text = super()._expression()
        return text if self.is_complex else f"{text[:-1]}, real=True)"
