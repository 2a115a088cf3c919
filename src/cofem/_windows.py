"""Sums over windows of arrays."""

from __future__ import annotations

from collections.abc import Iterable

from cofem._arrays import Array, namespace


def window_sums(x: Array, reach: int, axes: Iterable[int]) -> Array:
    """Sum over places up to `reach` away along some axes, counted from the last, -1; outside are zeros.

    Examples
    --------
    >>> import numpy as np
    >>> window_sums(np.array([1.0, 2.0, 4.0, 8.0]), 1, [-1]).tolist()
    [3.0, 7.0, 14.0, 12.0]
    """
    for axis in axes:
        x = _sums_along(x, reach, axis)
    return x


def window_means(x: Array, reach: int, axes: Iterable[int] | None = None) -> Array:
    """Average over places up to `reach` away along each axis, or along those named, as far as there are any.

    Examples
    --------
    >>> import numpy as np
    >>> window_means(np.array([1.0, 3.0, 5.0]), 1).tolist()
    [2.0, 3.0, 4.0]
    """
    axes = list(range(-x.ndim, 0) if axes is None else axes)
    xp, sums = namespace(x), window_sums(x, reach, axes)
    for along in axes:  # the number of places is a product over axes
        axis, n = along + x.ndim, x.shape[along]
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
