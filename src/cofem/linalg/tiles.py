"""Clusters around tiles of neighbours on a grid, which share the columns that they are coupled with."""

from __future__ import annotations

import itertools
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from cofem._arrays import squared_modulus
from cofem.linalg.couplings import CANDIDATES, COUPLED, GridCouplings
from cofem.operators.circulant import CirculantGram, shifted
from cofem.operators.dictionary import Dictionary
from cofem.operators.entries import lookup

#: Places along each side of a tile, by the number of axes, and columns beside the tile, as a share of those
#: in a cluster around one place. Errors are below those of such clusters: 0.0003 and 0.0009 on a decay
#: of 0.98, 0.0004 and 0.0011 on a blur of width 2.5. In two dimensions (width 1.4, 55 x 55) 0.020 and 0.024
#: in the second step, where most places matter; 3 x 3 places with 0.75 had 0.078, and some were rejected.
SIDES, BESIDE = {1: 16, 2: 4, 3: 2}, {1: 0.5, 2: 1.5}


class Tiles(NamedTuple):
    """Tiles that cover a grid, and what each of them is coupled with.

    Attributes
    ----------
    shape : tuple of int
        The grid.
    starts : ndarray of int, shape (n,)
        The first place of each tile.
    offsets : ndarray of int, shape (m + t,)
        Offsets from there to columns that are coupled with the tile, the most coupled first, and last those
        of the tile itself; see `shifted`.
    correlations : ndarray of shape (m + t, m + t)
        Between columns at these offsets.
    width : int
        Places t in a tile.
    size : int
        Columns in a cluster, without those of the tile.
    """

    shape: tuple[int, ...]
    starts: np.ndarray
    offsets: np.ndarray
    correlations: np.ndarray
    width: int
    size: int

    def members(self, chosen: np.ndarray) -> np.ndarray:
        """Return the places in some tiles, shape (n, t)."""
        return shifted(self.starts[chosen], self.offsets[-self.width :], self.shape)

    @property
    def _own(self) -> np.ndarray:
        return np.arange(self.offsets.size - self.width, self.offsets.size)

    def largest_beside(self, values: np.ndarray) -> np.ndarray:
        """Return the largest of values, shape (D,), in and beside each tile, times the coupling, shape (n,).

        The coupling is the square of a correlation.
        """
        reach = np.max(squared_modulus(self.correlations[self._own]), axis=0)
        return np.max(values[shifted(self.starts, self.offsets, self.shape)] * reach, axis=1)

    def clusters(self, chosen: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return clusters around some tiles, the places of the tile last, and the correlations in each.

        Parameters
        ----------
        chosen : ndarray of int, shape (n,)
            The tiles.
        weight : ndarray of shape (D,)
            How much a column matters to those that it is coupled with.
        size : int
            Most columns in each, without those of the tile.

        Returns
        -------
        places : ndarray of int, shape (n, b + t)
        correlations : ndarray of shape (n, b + t, b + t), or (b + t, b + t) if all are the same
        """
        n_others, own = min(CANDIDATES * size, self.offsets.size - self.width), self._own
        some = np.concatenate([np.arange(n_others), own])
        places = shifted(self.starts[chosen], self.offsets[some], self.shape)
        if n_others <= size:
            return places, self.correlations[some[:, None], some]
        # The coupling with those in the tile that matter.
        power = squared_modulus(self.correlations[own[:, None], some[:n_others]])
        weights = weight[places]
        score = weights[:, :n_others] * (weights[:, n_others:] @ power)
        best = np.argpartition(score, n_others - size, axis=1)[:, n_others - size :]
        tile = np.broadcast_to(np.arange(n_others, some.size), (chosen.size, self.width))
        best = np.concatenate([best, tile], axis=1)
        among = some[best]
        pairs = (among * self.offsets.size)[:, :, None] + among[:, None, :]
        return np.take_along_axis(places, best, axis=1), np.take(self.correlations.ravel(), pairs)


#: What was found for dictionaries in use.
_KNOWN: WeakKeyDictionary[Dictionary, Tiles] = WeakKeyDictionary()


def tiles_of(phi: Dictionary, couplings: GridCouplings) -> Tiles:
    """Return tiles for a dictionary whose couplings are known.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.linalg.find_couplings import find_couplings
    >>> from cofem.operators import Convolution
    >>> blur = Dictionary(Convolution([1.0, 2.0, 1.0], 48), like=np.zeros(1))
    >>> tiles = tiles_of(blur, find_couplings(blur))
    >>> places, correlations = tiles.clusters(np.array([1]), np.ones(48), 8)
    >>> tiles.members(np.array([1]))[0, ::15].tolist(), places.shape  # two on either side
    ([16, 31], (1, 20))
    """
    if phi not in _KNOWN:
        circulant = phi.circulant_gram()
        assert circulant is not None
        beside = BESIDE.get(len(circulant.shape), 1.0)
        _KNOWN[phi] = make_tiles(circulant, int(beside * couplings.size))
    return _KNOWN[phi]


def make_tiles(circulant: CirculantGram, size: int) -> Tiles:
    """Cover a grid by tiles; clusters have `size` columns beside those of a tile."""
    shape = circulant.shape
    table = circulant.table()
    table = table / float(table.flat[0].real)
    sides = [min(SIDES.get(len(shape), 1), period) for period in shape]
    firsts = [
        np.minimum(np.arange(0, period, side), period - side)
        for period, side in zip(shape, sides, strict=True)
    ]
    starts = np.ravel_multi_index(np.meshgrid(*firsts, indexing="ij"), shape).ravel()
    steps = np.array(list(itertools.product(*map(range, sides)))).T
    tile = np.ravel_multi_index(tuple(steps), shape)
    # The largest correlation of each place with one of the tile at the origin.
    moduli = np.abs(table)
    largest = np.zeros(shape)
    for step in steps.T:
        np.maximum(largest, np.roll(moduli, step, axis=tuple(range(len(shape)))), out=largest)
    largest.flat[tile] = 0
    most = min(CANDIDATES * size, int(np.count_nonzero(largest > COUPLED)))
    offsets = np.concatenate([np.argsort(-largest, axis=None, kind="stable")[:most], tile])
    correlations = lookup(table, shape, offsets[None])[0]
    return Tiles(shape, starts, offsets, correlations, tile.size, size)
