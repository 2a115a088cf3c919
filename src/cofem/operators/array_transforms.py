"""Cosine and Fourier transforms on any array library, through the fast Fourier transform it has.

The cosine transform is written as in `cofem.operators.long_transforms`, whose notation is used here: the
Fourier transform of the even samples followed by the odd ones in reverse, turned by a phase. A line of n
numbers may be folded into n1 rows of n2. On a processor PyTorch plans every transform anew, which for a long
line takes more time than the transform itself; two sweeps of short ones need hardly any plan.
"""

from __future__ import annotations

from functools import lru_cache
from math import pi, prod, sqrt
from typing import Any

import array_api_compat
import numpy as np

from cofem._arrays import Array, by_parts, is_complex, is_torch, namespace, precision_of
from cofem.operators.long_transforms import fold

# From this length on folding was the faster way in both directions and precisions, measured on one core.
_MIN_LENGTH_TO_FOLD = 2**11


def dct(x: Array) -> Array:
    """Orthonormal cosine transform (type II) along the last axis.

    Parameters
    ----------
    x : array of shape (..., n)
        Single or double precision, real or complex.

    Returns
    -------
    array of shape (..., n)
        Of the type of ``x``, on its device.

    Examples
    --------
    >>> import numpy as np
    >>> dct(np.ones(4)).round(12) + 0.0
    array([2., 0., 0., 0.])
    """
    return by_parts(_dct, x)


def idct(x: Array) -> Array:
    """Inverse, and transpose, of `dct`.

    Examples
    --------
    >>> import numpy as np
    >>> idct(dct(np.arange(3.0))).round(12) + 0.0
    array([0., 1., 2.])
    """
    return by_parts(_idct, x)


def _dct(x: Array) -> Array:
    xp, n = namespace(x), x.shape[-1]
    n1, n2 = _shape(x)
    half, batch = n1 // 2, x.shape[:-1]
    twiddle, turn = _tables(n1, n2, precision_of(x), False, xp, array_api_compat.device(x))
    reordered = xp.empty((*batch, n2, n1), dtype=x.dtype, device=array_api_compat.device(x))
    _move(x, reordered, n1, n2, back=False)
    spectrum = xp.fft.rfft(reordered)
    spectrum *= twiddle
    if n2 > 1:
        spectrum = xp.fft.fft(spectrum, axis=-2)
        spectrum *= turn
    # A quarter of a turn further, the parts are coefficients n - k and k, with no sign to change.
    result = reordered
    result[..., : half + 1] = xp.imag(spectrum)
    result[..., half + 1 :] = xp.flip(xp.real(spectrum)[..., 1 : n1 - half], axis=(-2, -1))
    result[..., 0, 0] *= sqrt(0.5)
    return xp.reshape(result, (*batch, n))


def _idct(x: Array) -> Array:
    xp = namespace(x)
    n1, n2 = _shape(x)
    half, batch = n1 // 2, x.shape[:-1]
    twiddle, turn = _tables(n1, n2, precision_of(x), True, xp, array_api_compat.device(x))
    coefficients = xp.reshape(x, (*batch, n2, n1))
    opposite = xp.zeros((*batch, n2, half + 1), dtype=x.dtype, device=array_api_compat.device(x))
    opposite[..., 1:] = xp.flip(coefficients[..., n1 - half :], axis=(-2, -1))
    opposite[..., 1:, 0] = xp.flip(coefficients[..., 1:, 0], axis=-1)
    spectrum = _complex(opposite, coefficients[..., : half + 1])
    spectrum[..., 0, 0] *= sqrt(2.0)
    spectrum *= turn
    if n2 > 1:
        spectrum = xp.fft.ifft(spectrum, axis=-2, norm="forward")
    spectrum *= twiddle
    reordered = xp.fft.irfft(spectrum, n=n1, norm="forward")
    result = xp.empty_like(x)
    _move(result, reordered, n1, n2, back=True)
    return result


def _move(signal: Array, reordered: Array, n1: int, n2: int, back: bool) -> None:
    """Copy the even samples, then the odd ones in reverse, into the columns of an array (..., n2, n1)."""
    xp, batch = namespace(signal), signal.shape[:-1]
    if n2 == 1:
        n_even = n1 - n1 // 2
        pairs = [(signal[..., 0::2], reordered[..., 0, :n_even], False)]
        pairs += [(signal[..., 1::2], reordered[..., 0, n_even:], True)]
    else:
        columns = xp.reshape(signal, (*batch, n1 // 2, n2, 2))
        pairs = [(_swapped(columns[..., 0]), reordered[..., : n1 // 2], False)]
        pairs += [(_swapped(columns[..., 1]), reordered[..., n1 // 2 :], True)]
    for samples, places, in_reverse in pairs:
        axes = (-2, -1) if n2 > 1 else -1
        source, target = (places, samples) if back else (samples, places)
        target[...] = xp.flip(source, axis=axes) if in_reverse else source


def _shape(x: Array) -> tuple[int, int]:
    """Return ``(n1, n2)`` into which to fold the lines of ``x``; ``(n, 1)`` leaves them as they are."""
    n = x.shape[-1]
    if n < _MIN_LENGTH_TO_FOLD or not is_torch(x) or x.device.type != "cpu":
        return n, 1
    return fold(n) or (n, 1)


@lru_cache(maxsize=8)
def _tables(n1: int, n2: int, precision: str, inverse: bool, xp: Any, device: Any) -> tuple[Array, Array]:
    """Return twiddle, shape (n2, n1 // 2 + 1), and turn, (n2, 1), where they are needed.

    The scale is in the turn, or in the twiddle where lines are not folded.
    """
    n = n1 * n2
    # The product of whole numbers is exact, so the angle is rounded once however long the signal.
    quarters = (4 * np.arange(n2)[:, None] + 1) * np.arange(n1 // 2 + 1)
    twiddle = np.exp(-0.5j * pi / n * quarters)
    turn = 1j * sqrt(2 / n) * np.exp(-0.5j * pi * np.arange(n2)[:, None] / n2)
    if inverse:
        twiddle, turn = twiddle.conj(), 0.5 * turn.conj()
    elif n2 == 1:
        twiddle = twiddle * turn
    dtype = "complex64" if precision == "float32" else "complex128"
    return tuple(xp.asarray(table.astype(dtype), device=device) for table in (twiddle, turn))


def _swapped(x: Array) -> Array:
    """Return ``x`` with its last two axes in each other's place."""
    return namespace(x).matrix_transpose(x)


def _complex(real: Array, imaginary: Array) -> Array:
    if is_torch(real):
        import torch

        return torch.complex(real, imaginary)
    return real + 1j * imaginary


def along_axes(apply: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Apply a function of the last axis along every axis of arrays that vectors flatten in C order.

    Parameters
    ----------
    apply : callable
        Maps arrays (..., n) to arrays (..., n).
    x : array of shape (..., D)
        Vectors; D is the size of ``shape``.
    shape : tuple of int
        Shape of the arrays.
    """
    if len(shape) == 1:
        return apply(x)
    xp = namespace(x)
    signals = xp.reshape(x, (*x.shape[:-1], *shape))
    for axis in range(-len(shape), 0):
        signals = xp.moveaxis(apply(xp.moveaxis(signals, axis, -1)), -1, axis)
    return xp.reshape(signals, (*x.shape[:-1], prod(shape)))


def fourier(x: Array, shape: tuple[int, ...], inverse: bool = False) -> Array:
    """Orthonormal Fourier transform of arrays of one shape, flattened in C order.

    Parameters
    ----------
    x : array of shape (..., D)
        Real or complex.
    shape : tuple of int
        Shape of the arrays.
    inverse : bool
        Whether to apply the inverse.

    Examples
    --------
    >>> import numpy as np
    >>> np.abs(fourier(np.ones(4), (2, 2))).round(12)
    array([2., 0., 0., 0.])
    """
    xp = namespace(x)
    if not is_complex(x):
        x = xp.astype(x, xp.complex64 if precision_of(x) == "float32" else xp.complex128)
    signals = xp.reshape(x, (*x.shape[:-1], *shape))
    transform = xp.fft.ifftn if inverse else xp.fft.fftn
    result = transform(signals, axes=tuple(range(-len(shape), 0)), norm="ortho")
    return xp.reshape(result, x.shape)


def padded_fourier(x: Array, shape: tuple[int, ...], real: bool) -> Array:
    """Fourier transform of arrays padded with zeros to ``shape``; of real ones the half that is enough."""
    xp = namespace(x)
    axes = tuple(range(-len(shape), 0))
    if real:
        return xp.fft.rfftn(x, s=shape, axes=axes)
    if not is_complex(x):
        x = xp.astype(x, xp.complex64 if precision_of(x) == "float32" else xp.complex128)
    return xp.fft.fftn(x, s=shape, axes=axes)


def padded_inverse(x: Array, shape: tuple[int, ...], real: bool) -> Array:
    """Inverse of `padded_fourier`, in the padded shape."""
    xp = namespace(x)
    inverse = xp.fft.irfftn if real else xp.fft.ifftn
    return inverse(x, s=shape, axes=tuple(range(-len(shape), 0)))
