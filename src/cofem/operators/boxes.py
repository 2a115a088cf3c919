"""Bands of rows that are boxes of the grid: places of millions of rows in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from cofem._arrays import Array, namespace


class Box(NamedTuple):
    """Rows that follow each other, one for each place of a box of the grid, in C order.

    Attributes
    ----------
    start : int
        The first row.
    origin : tuple of int
        The first place, along each axis.
    shape : tuple of int
        Number of places along each axis.

    Examples
    --------
    >>> import numpy as np
    >>> box = Box(4, (0, 1), (2, 2))
    >>> box.stop, box.of(np.arange(9.0)).tolist(), np.arange(6).reshape(2, 3)[box.places].tolist()
    (8, [[4.0, 5.0], [6.0, 7.0]], [[1, 2], [4, 5]])
    """

    start: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """Where the next rows start."""
        return self.start + self.size

    @property
    def places(self) -> tuple[slice, ...]:
        """The part of the grid."""
        return tuple(slice(first, first + n) for first, n in zip(self.origin, self.shape, strict=True))

    def of(self, values: Array) -> Array:
        """Return the numbers of these rows as an array of the box's shape, from one of shape (M,)."""
        return namespace(values).reshape(values[self.start : self.stop], self.shape)


def stacked_boxes(parts: Sequence[tuple[Box, ...] | None], sizes: Sequence[int]) -> tuple[Box, ...] | None:
    """Return the boxes of operators on top of each other, of which each has so many rows.

    Examples
    --------
    >>> stacked_boxes([(Box(0, (0,), (2,)),), (Box(0, (1,), (3,)),)], [2, 3])[1]
    Box(start=2, origin=(1,), shape=(3,))
    >>> stacked_boxes([None], [1]) is None
    True
    """
    found: list[Box] = []
    start = 0
    for boxes, size in zip(parts, sizes, strict=True):
        if boxes is None:
            return None
        found += [box._replace(start=start + box.start) for box in boxes]
        start += size
    return tuple(found)
