"""Parts of a large picture or volume, on which candidates are judged in place of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from cofem._arrays import take
from cofem.inference.problem import Problem
from cofem.operators import Diagonal, Mask
from cofem.operators.dictionary import Dictionary

#: Places from which on a grid is large, places of a tile, and number of tiles.
LARGE, PLACES, TILES = 2**19, 2**15, 8
#: Fewest data in a tile that say anything.
FEWEST = 100


class Tile(NamedTuple):
    """A part of a problem: the data that see the places of a box of the grid."""

    problem: Problem
    shape: tuple[int, ...]


def tiles(problem: Problem, shape: tuple[int, ...]) -> Iterator[Tile]:
    """Iterate over tiles of a large grid of which each datum sees one place; none of any other.

    Parameters
    ----------
    problem : Problem
        The problem.
    shape : tuple of int
        Its grid.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import DCT
    >>> list(tiles(Problem(Dictionary(DCT(8), like=np.zeros(1)), np.ones(8), 1.0), (8,)))
    []
    """
    operator = problem.phi.operator
    matrix = operator.sparse_matrix() if operator.facts.one_per_row and prod(shape) >= LARGE else None
    if matrix is None:
        return
    seeing = np.flatnonzero(np.diff(matrix.indptr) > 0)
    at = np.unravel_index(matrix.indices, shape)
    weights = matrix.data
    for origin, lengths in _boxes(shape):
        inside = np.ones(seeing.size, dtype=bool)
        for axis, first, n in zip(at, origin, lengths, strict=True):
            inside &= (axis >= first) & (axis < first + n)
        found = np.flatnonzero(inside)
        if found.size < FEWEST:
            continue
        places = tuple(axis[found] - first for axis, first in zip(at, origin, strict=True))
        part = Diagonal(weights[found]) @ Mask(np.ravel_multi_index(places, lengths), lengths)
        y = take(problem.y, seeing[found], axis=-1)
        phi = Dictionary(part.astype(problem.real_dtype.name), like=y, counter=problem.phi.counter)
        yield Tile(replace(problem, phi=phi, y=y, level=None), lengths)


def _boxes(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Iterate over origins and lengths of boxes that are spread evenly, by multiples of irrationals."""
    side = int(PLACES ** (1 / sum(n > 1 for n in shape)))
    lengths = tuple(min(n, side) for n in shape)
    # The root of x^(d + 1) = x + 1: what the golden section is along one axis (Roberts 2018).
    root = 2.0
    for _ in range(32):
        root = (1 + root) ** (1 / (len(shape) + 1))
    for k in range(1, TILES + 1):
        fractions = ((0.5 + k / root ** (axis + 1)) % 1 for axis in range(len(shape)))
        yield tuple(int(f * (n - m + 1)) for f, n, m in zip(fractions, shape, lengths, strict=True)), lengths
