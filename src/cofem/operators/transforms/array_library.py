"""Cosine and Fourier transforms on any array library, through the fast Fourier transform it has.

The cosine transform is written as in `long_lines`, whose notation is used here: the Fourier transform of the
even samples followed by the odd ones in reverse, turned by a phase. A line of n numbers may be folded into n1
rows of n2. On a processor PyTorch plans every transform again, which for a long line takes more time than the
transform itself; two sweeps of short ones need hardly any plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import pi, prod, sqrt
from typing import Any

import array_api_compat
import numpy as np

from cofem._arrays import Array, by_parts, is_complex, is_torch, multiply_into, namespace, precision_of
from cofem.operators.transforms.long_lines import fold

# From this length on folding a single line was the faster way, measured on one core. Several lines share one
# plan and are faster as they are.
_MIN_LENGTH_TO_FOLD = 2**13


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


def dct_around(weights: Array, x: Array) -> Array:
    """Return ``dct(weights * idct(x))`` without putting the signal into its order in between.

    Parameters
    ----------
    weights : array of shape (n2, n1)
        One number for each sample, from `folded`.
    x : array of shape (..., n)
        Coefficients.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(4.0)
    >>> dct_around(folded(np.ones(4), x), x).round(12) + 0.0
    array([0., 1., 2., 3.])
    """

    def apply(x: Array) -> Array:
        signal = _to_signal(x, weights.shape[1], weights.shape[0])
        signal *= weights
        return _to_coefficients(signal)

    return by_parts(apply, x)


def folded(signal: Array, like: Array) -> Array:
    """Return a real signal (n,) in the order and shape that `dct_around` makes of ``like`` in between."""
    n1, n2 = fold_shape(like)
    reordered = namespace(signal).empty((n2, n1), dtype=signal.dtype, device=array_api_compat.device(signal))
    _move(signal, reordered, n1, n2, back=False)
    return reordered


def _dct(x: Array) -> Array:
    n1, n2 = fold_shape(x)
    device = array_api_compat.device(x)
    reordered = namespace(x).empty((*x.shape[:-1], n2, n1), dtype=x.dtype, device=device)
    _move(x, reordered, n1, n2, back=False)
    return _to_coefficients(reordered)


def _idct(x: Array) -> Array:
    n1, n2 = fold_shape(x)
    result = namespace(x).empty_like(x)
    _move(result, _to_signal(x, n1, n2), n1, n2, back=True)
    return result


def _to_coefficients(reordered: Array) -> Array:
    """Transform folded signals (..., n2, n1) to coefficients (..., n); the signals are overwritten."""
    xp = namespace(reordered)
    n2, n1 = reordered.shape[-2:]
    half = n1 // 2
    place = (xp, array_api_compat.device(reordered))
    spectrum = xp.fft.rfft(reordered)
    if n2 == 1:
        spectrum *= _tables(n1, n2, precision_of(reordered), False, *place)[0]
    else:
        twiddle, turn = _tables(n1, n2, precision_of(reordered), False, *place)
        spectrum *= twiddle
        # Libraries may leave what they transform along an inner axis transposed; the product puts it back.
        multiply_into(spectrum, xp.fft.fft(spectrum, axis=-2), turn)
    # A quarter of a turn further, the parts are coefficients n - k and k, with no sign to change.
    result = reordered
    result[..., : half + 1] = xp.imag(spectrum)
    result[..., half + 1 :] = xp.flip(xp.real(spectrum)[..., 1 : n1 - half], axis=(-2, -1))
    result[..., 0, 0] *= sqrt(0.5)
    return xp.reshape(result, (*reordered.shape[:-2], n1 * n2))


def _to_signal(x: Array, n1: int, n2: int) -> Array:
    """Transform coefficients (..., n) to folded signals (..., n2, n1)."""
    xp = namespace(x)
    half, batch, device = n1 // 2, x.shape[:-1], array_api_compat.device(x)
    twiddle, turn = _tables(n1, n2, precision_of(x), True, xp, device)
    opposite = xp.empty_like(x)  # coefficient n - k at place k, and nothing for n
    opposite[..., 1:] = xp.flip(x[..., 1:], axis=-1)
    opposite[..., 0] = 0.0
    real, imaginary = (xp.reshape(part, (*batch, n2, n1))[..., : half + 1] for part in (opposite, x))
    spectrum = xp.complex(real, imaginary) if is_torch(x) else real + 1j * imaginary
    spectrum[..., 0, 0] *= sqrt(2.0)
    spectrum *= turn
    if n2 > 1:
        multiply_into(spectrum, xp.fft.ifft(spectrum, axis=-2, norm="forward"), twiddle)
    else:
        spectrum *= twiddle
    return xp.fft.irfft(spectrum, n=n1, norm="forward")


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


def fold_shape(x: Array) -> tuple[int, int]:
    """Return ``(n1, n2)`` into which to fold the lines of ``x``; ``(n, 1)`` leaves them as they are."""
    n = x.shape[-1]
    if n < _MIN_LENGTH_TO_FOLD or not is_torch(x) or x.device.type != "cpu" or prod(x.shape[:-1]) > 1:
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


def along_axes(apply: Any, x: Array, shape: tuple[int, ...], axes: Iterable[int] | None = None) -> Array:
    """Apply a function of the last axis along axes of arrays that vectors flatten in C order.

    Parameters
    ----------
    apply : callable
        Maps arrays (..., n) to arrays (..., n).
    x : array of shape (..., D)
        Vectors; D is the size of ``shape``.
    shape : tuple of int
        Shape of the arrays.
    axes : iterable of int, optional
        The axes, counted from the last; all by default.
    """
    if len(shape) == 1:
        return apply(x)
    xp = namespace(x)
    signals = xp.reshape(x, (*x.shape[:-1], *shape))
    for axis in range(-len(shape), 0) if axes is None else axes:
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
