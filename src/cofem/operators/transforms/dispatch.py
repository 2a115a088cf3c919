"""Transforms of arrays of any library: each function picks the fastest route for the array it is given.

Vectors ``(..., D)`` hold arrays of one shape, flattened in C order, where D is the size of the shape. Results
are of the library and on the device of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import array_api_compat
import numpy as np
import scipy.fft

from cofem._arrays import Array, DeviceCache, namespace, number_like, precision_of, take
from cofem._blocks import LONG_VECTOR
from cofem.operators.transforms import array_library, half_lines, host_lines, long_lines

Shape = tuple[int, ...]


def dct(x: Array, shape: Shape, axes: Shape | None = None, overwrite_x: bool = False) -> Array:
    """Orthonormal cosine transform (type II).

    Parameters
    ----------
    x : array of shape (..., D)
        Vectors, real or complex.
    shape : tuple of int
        Shape of the arrays that they flatten.
    axes : tuple of int, optional
        Axes to transform along, counted from the last; all by default.
    overwrite_x : bool
        If True, the contents of ``x`` may be destroyed.

    Returns
    -------
    array of shape (..., D)

    Examples
    --------
    >>> import numpy as np
    >>> dct(np.ones(4), (4,))
    array([2., 0., 0., 0.])
    """
    if not isinstance(x, np.ndarray):
        return array_library.along_axes(array_library.dct, x, shape, axes)
    if len(shape) == 1 and half_lines.pays(x):
        return half_lines.dct_by_half(x)
    if len(shape) == 1 and long_lines.pays(x):
        return long_lines.dct_long(x, overwrite_x)
    axes = host_lines.last_axes(shape) if axes is None else axes
    return host_lines.cosines(_arrays_of(x, shape), axes, overwrite_x=overwrite_x).reshape(x.shape)


def idct(x: Array, shape: Shape, axes: Shape | None = None, overwrite_x: bool = False) -> Array:
    """Inverse, and transpose, of `dct`, with the same parameters.

    Examples
    --------
    >>> import numpy as np
    >>> idct(np.array([2.0, 0.0, 0.0, 0.0]), (4,))
    array([1., 1., 1., 1.])
    """
    if not isinstance(x, np.ndarray):
        return array_library.along_axes(array_library.idct, x, shape, axes)
    if len(shape) == 1 and half_lines.pays(x):
        return half_lines.idct_by_half(x)
    if len(shape) == 1 and long_lines.pays(x):
        return long_lines.idct_long(x, overwrite_x)
    axes = host_lines.last_axes(shape) if axes is None else axes
    return host_lines.cosines(_arrays_of(x, shape), axes, True, overwrite_x).reshape(x.shape)


def fft(x: Array, shape: Shape, overwrite_x: bool = False) -> Array:
    """Orthonormal Fourier transform along all axes, with the parameters of `dct`; complex.

    Examples
    --------
    >>> import numpy as np
    >>> np.abs(fft(np.ones(4), (2, 2)))
    array([2., 0., 0., 0.])
    """
    if not isinstance(x, np.ndarray):
        return array_library.fourier(x, shape)
    axes = host_lines.last_axes(shape)
    return host_lines.waves(_arrays_of(x, shape), axes, overwrite_x=overwrite_x).reshape(x.shape)


def ifft(x: Array, shape: Shape, overwrite_x: bool = False) -> Array:
    """Inverse of `fft`.

    Examples
    --------
    >>> import numpy as np
    >>> ifft(fft(np.ones(4), (4,)), (4,)).real
    array([1., 1., 1., 1.])
    """
    if not isinstance(x, np.ndarray):
        return array_library.fourier(x, shape, inverse=True)
    axes = host_lines.last_axes(shape)
    return host_lines.waves(_arrays_of(x, shape), axes, True, overwrite_x).reshape(x.shape)


def cosine_sums_at_even_frequencies(x: Array) -> Array:
    """Return ``sum_i x_i cos(pi 2k (2i + 1) / 2n)`` for k = 0..n-1, along the last axis.

    Examples
    --------
    >>> import numpy as np
    >>> cosine_sums_at_even_frequencies(np.ones(4)) + 0.0
    array([4., 0., 0., 0.])
    """
    xp, n = namespace(x), x.shape[-1]
    # The sum at frequency n is zero by symmetry; beyond it they fold back with a change of sign.
    sums = xp.concat([_cosine_sums(x), xp.zeros_like(x[..., :1])], axis=-1)
    doubled = 2 * np.arange(n)
    places = np.where(doubled <= n, doubled, 2 * n - doubled)
    # Two ways, because the memory layout of the result decides how later sums along an axis are rounded.
    result = sums[..., places] if isinstance(x, np.ndarray) else take(sums, places, axis=-1)
    result[..., n // 2 + 1 :] *= -1
    return result


def _cosine_sums(x: Array) -> Array:
    """Return ``sum_i x_i cos(pi k (2i + 1) / 2n)`` for k = 0..n-1, along the last axis."""
    if isinstance(x, np.ndarray):  # SciPy gives twice the sum
        return 0.5 * scipy.fft.dct(x, workers=host_lines.fft_workers(x.shape))
    sums = array_library.dct(x) * number_like(x, (x.shape[-1] / 2) ** 0.5)
    sums[..., 0] *= 2**0.5
    return sums


def cosine_series(amplitudes: Array) -> Array:
    """Return ``sum_k a_k cos(pi k (2i + 1) / 2n)`` for i = 0..n-1, along the last axis; ``a_0`` must be 0.

    Examples
    --------
    >>> import numpy as np
    >>> np.allclose(cosine_series(np.array([0.0, 1.0])), np.cos([np.pi / 4, 3 * np.pi / 4]))
    True
    """
    n = amplitudes.shape[-1]
    if isinstance(amplitudes, np.ndarray):  # type III counts every frequency but the zeroth twice
        workers = host_lines.fft_workers(amplitudes.shape)
        return 0.5 * scipy.fft.dct(amplitudes, type=3, workers=workers)
    return array_library.idct(amplitudes) * number_like(amplitudes, (n / 2) ** 0.5)


def sine_sums(x: Array, shape: Shape) -> Array:
    """Return ``sum_i x_i sin(2 pi <k, i>)`` over all axes, for real ``x``; k and i relative to the shape.

    Examples
    --------
    >>> import numpy as np
    >>> sine_sums(np.array([0.0, 1.0, 0.0, 0.0]), (4,)) + 0.0
    array([ 0.,  1.,  0., -1.])
    """
    if isinstance(x, np.ndarray):
        return -host_lines.spectrum(_arrays_of(x, shape), shape, real=False).imag.reshape(x.shape)
    return namespace(x).imag(array_library.fourier(x, shape)) * -(prod(shape) ** 0.5)


def padded_spectrum(x: Array, shape: Shape, real: bool) -> Array:
    """Fourier transform of arrays along their last axes, padded with zeros to a shape.

    Parameters
    ----------
    x : array
        Arrays with as many axes as ``shape``, not longer along any of them.
    shape : tuple of int
        Padded shape.
    real : bool
        For real arrays, return only the half that is enough.

    Examples
    --------
    >>> import numpy as np
    >>> padded_spectrum(np.ones(2), (4,), real=True)
    array([2.+0.j, 1.-1.j, 0.+0.j])
    """
    if not isinstance(x, np.ndarray):
        return array_library.padded_fourier(x, shape, real)
    return host_lines.spectrum(x, shape, real)


def from_spectrum(spectra: Array, shape: Shape, real: bool) -> Array:
    """Inverse of `padded_spectrum`, in the padded shape; the contents of ``spectra`` may be destroyed.

    Examples
    --------
    >>> import numpy as np
    >>> from_spectrum(padded_spectrum(np.ones(2), (4,), real=True), (4,), real=True)
    array([1., 1., 0., 0.])
    """
    if not isinstance(spectra, np.ndarray):
        return array_library.padded_inverse(spectra, shape, real)
    return host_lines.from_spectrum(spectra, shape, real)


class WeightedDCT:
    """The map ``x -> dct(weights * idct(x))`` of vectors, without putting the signal in order in between.

    Weights are put in the order of the signal once for each layout, and kept; those of `away` as well, unless
    vectors are long.

    Parameters
    ----------
    weights : callable
        From ``"float32"`` or ``"float64"`` to the weights of shape (D,) in that precision.

    Examples
    --------
    >>> import numpy as np
    >>> double = WeightedDCT(lambda precision: DeviceCache(np.full(4, 2.0, precision)))
    >>> double(np.arange(4.0)).round(12) + 0.0
    array([0., 2., 4., 6.])
    """

    def __init__(self, weights: Callable[[str], DeviceCache]) -> None:
        self._weights = weights
        self._folded: dict[Any, Array] = {}
        self._last_away: dict[Any, tuple[float, Array]] = {}

    def pays(self, x: Array) -> bool:
        """Tell whether this is faster on ``x`` than one transform after the other."""
        return not isinstance(x, np.ndarray) or any(
            half_lines.pays_around(line) or long_lines.pays_around(line) for line in _few_lines(x)[:1]
        )

    def __call__(self, x: Array) -> Array:
        """Return the result for every vector along the last axis."""
        return self._line_by_line(x, self._around)

    def _around(self, x: Array) -> Array:
        apply, weights, _ = self._way(x)
        return apply(weights, x)

    def _line_by_line(self, x: Array, function: Callable[[Array], Array]) -> Array:
        lines = _few_lines(x) if isinstance(x, np.ndarray) else []
        if len(lines) < 2:
            return function(x)
        return np.stack([function(line) for line in lines]).reshape(x.shape)

    def away(self, x: Array, gain: float, overwrite_x: bool = False) -> Array:
        """Return ``x`` less `gain` times the result: the same with other weights, since there and back is x.

        The contents of ``x`` may be destroyed if so told.

        Examples
        --------
        >>> import numpy as np
        >>> double = WeightedDCT(lambda precision: DeviceCache(np.full(4, 2.0, precision)))
        >>> double.away(np.arange(4.0), 0.25).round(12) + 0.0
        array([0. , 0.5, 1. , 1.5])
        """
        return self._line_by_line(x, lambda line: self._away(line, gain, overwrite_x))

    def _away(self, x: Array, gain: float, overwrite_x: bool) -> Array:
        apply, weights, key = self._way(x)
        is_long = x.shape[-1] >= LONG_VECTOR
        last, known = self._last_away.get(key, (None, weights))
        if last != gain and not is_long:
            known = 1 - gain * weights
            self._last_away[key] = gain, known
        if apply is long_lines.dct_around_long:
            return long_lines.dct_around_long(known, x, gain if is_long else None, overwrite_x)
        return apply(1 - gain * weights if is_long else known, x)

    def _way(self, x: Array) -> tuple[Callable[..., Array], Array, Any]:
        """Return who works on ``x``, the weights in the order for it, and what that order is known by."""
        precision = precision_of(x)
        key: Any = precision
        fold: Callable[[Any], Any]
        apply: Callable[..., Any]
        if half_lines.pays_around(x):
            fold, apply = half_lines.reordered, half_lines.dct_around_by_half
        elif long_lines.pays_around(x):
            fold, apply = long_lines.folded_long, long_lines.dct_around_long
        else:
            key = (precision, type(x), array_api_compat.device(x), array_library.fold_shape(x))
            fold, apply = lambda weights: array_library.folded(weights, x), array_library.dct_around
        if key not in self._folded:
            self._folded[key] = fold(self._weights(precision).like(x))
        return apply, self._folded[key], key


#: Vectors up to which one after the other is faster than all at once: two take 0.5 to 0.95 of the time, from
#: 2^12 numbers on in either precision.
FEW = 3


def _few_lines(x: np.ndarray) -> list[np.ndarray]:
    """Return the vectors, if they are few enough to go one after the other."""
    lines = x.reshape(-1, x.shape[-1])
    return list(lines) if len(lines) <= FEW else []


def _arrays_of(x: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the arrays that vectors flatten."""
    return x.reshape(*x.shape[:-1], *shape)
