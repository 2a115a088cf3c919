"""Sums over windows of arrays."""

from __future__ import annotations

from cofem._arrays import Array, namespace


def window_sums(x: Array, reach: int, ndim: int) -> Array:
    """Sum over places up to `reach` away along each of the last `ndim` axes; outside are zeros.

    Examples
    --------
    >>> import numpy as np
    >>> window_sums(np.array([1.0, 2.0, 4.0, 8.0]), 1, 1).tolist()
    [3.0, 7.0, 14.0, 12.0]
    """
    for axis in range(-ndim, 0):
        x = _sums_along(x, reach, axis)
    return x


def window_means(x: Array, reach: int) -> Array:
    """Average over places up to `reach` away along each axis, as far as there are any.

    Examples
    --------
    >>> import numpy as np
    >>> window_means(np.array([1.0, 3.0, 5.0]), 1).tolist()
    [2.0, 3.0, 4.0]
    """
    xp, sums = namespace(x), window_sums(x, reach, x.ndim)
    for axis, n in enumerate(x.shape):  # the number of places is a product over axes
        counts = _sums_along(
            xp.ones_like(x[tuple(slice(None) if k == axis else 0 for k in range(x.ndim))]), reach, -1
        )
        sums /= xp.reshape(counts, tuple(n if k == axis else 1 for k in range(x.ndim)))
    return sums


def _sums_along(x: Array, reach: int, axis: int) -> Array:
    xp, n = namespace(x), x.shape[axis]
    total = xp.asarray(x, copy=True)
    behind = (slice(None),) * (-axis - 1)
    for shift in range(1, min(reach, n - 1) + 1):
        ahead, back = (..., slice(shift, None), *behind), (..., slice(None, -shift), *behind)
        total[ahead] += x[back]
        total[back] += x[ahead]
    return total
