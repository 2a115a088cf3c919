"""Which columns are coupled most with which, and their correlations, for clusters of columns.

Columns count as scaled to norm one here, so that correlations are entries of the Gram matrix. They are found
by `find_couplings`, in the module of that name.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from cofem._arrays import squared_modulus
from cofem._blocks import CACHE_BLOCK
from cofem.operators.circulant import shifted

#: Correlation from which on two columns count as coupled, and from which on clusters get larger.
COUPLED, CLOSE = 0.03, 0.1
#: Sizes of clusters, and how many candidates there are for each place in one on a grid.
SIZES, CANDIDATES = (8, 16, 32), 4


class Couplings(Protocol):
    """What a cluster estimate asks."""

    @property
    def size(self) -> int:
        """Columns in a cluster."""
        ...

    @property
    def size_of_weak(self) -> int:
        """Columns in a cluster around a coefficient that the data say less about than about most."""
        ...

    def clusters(self, chosen: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return clusters around some columns, that column last, and the correlations in each.

        Parameters
        ----------
        chosen : ndarray of int, shape (n,)
            The columns.
        weight : ndarray of shape (D,)
            How much a column matters to those that it is coupled with.
        size : int
            Most columns in each, at least two.

        Returns
        -------
        places : ndarray of int, shape (n, b)
        correlations : ndarray of shape (n, b, b)
        """
        ...


class GridCouplings(NamedTuple):
    """Couplings that depend on the offset between places on a grid.

    Attributes
    ----------
    shape : tuple of int
        The grid.
    offsets : ndarray of int, shape (m + 1,)
        Offsets of columns that are coupled, see `shifted`, and last that of a column itself, zero.
    correlations : ndarray of shape (m + 1, m + 1)
        Between columns at these offsets.
    size : int
        Columns in a cluster.
    """

    shape: tuple[int, ...]
    offsets: np.ndarray
    correlations: np.ndarray
    size: int

    @property
    def size_of_weak(self) -> int:
        """Half as many for coefficients that matter less: errors of 0.001 to 0.016 in place of 0.002."""
        return max(SIZES[0], self.size // 2)

    def clusters(self, chosen: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Take the offsets at which coupling and weight are largest."""
        last = len(self.offsets) - 1
        some = np.append(np.arange(min(CANDIDATES * size, last)), last)  # the most coupled come first
        places = shifted(chosen, self.offsets[some], self.shape)
        if some.size <= size:
            found = self.correlations[some[:, None], some]
            return places, np.broadcast_to(found, (chosen.size, *found.shape))
        power = squared_modulus(self.correlations[some[:-1], last])
        best = np.argpartition(-power * weight[places[:, :-1]], size - 2, axis=1)[:, : size - 1]
        best = np.concatenate([best, np.full((chosen.size, 1), some.size - 1)], axis=1)
        among = some[best]
        pairs = among[:, :, None] * (last + 1) + among[:, None, :]
        return np.take_along_axis(places, best, axis=1), np.take(self.correlations.ravel(), pairs)


class LocalCouplings(NamedTuple):
    """Couplings on a grid that are not the same everywhere, as where some of the data are missing.

    Attributes
    ----------
    shape : tuple of int
        The grid.
    offsets : ndarray of int, shape (m + 1, number of axes)
        Offsets of columns that are coupled, and last that of a column itself, zero.
    between : ndarray of int, shape (m + 1, m + 1)
        Which row of `values` is for the difference of two of these offsets, the second less the first.
    values : ndarray of shape (k, D)
        Correlations of each column with those at some differences.
    repeats : bool
        Whether the grid repeats; else what would be beyond it is left out.
    size : int
        Columns in a cluster.
    """

    shape: tuple[int, ...]
    offsets: np.ndarray
    between: np.ndarray
    values: np.ndarray
    repeats: bool
    size: int

    @property
    def size_of_weak(self) -> int:
        """Half of 32 along one axis; else errors of 0.02 to 0.07 in early steps in place of 0.005 to 0.02."""
        return self.size if len(self.shape) > 1 else max(min(SIZES[1], self.size), self.size // 2)

    def clusters(self, chosen: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Take the offsets at which coupling and weight are largest."""
        last = len(self.offsets) - 1
        here = np.stack(np.unravel_index(chosen, self.shape), axis=1)
        there = here[:, None, :] + self.offsets
        beyond = np.zeros(there.shape[:2], dtype=bool)
        if not self.repeats:
            beyond = ((there < 0) | (there >= np.array(self.shape))).any(axis=2)
        places = np.ravel_multi_index(tuple(np.moveaxis(there, 2, 0)), self.shape, mode="wrap")
        power = squared_modulus(self.values[self.between[last, :-1], chosen[:, None]])
        power = np.where(beyond[:, :-1], -1, power * weight[places[:, :-1]])
        n_others = min(size - 1, last)
        best = np.argpartition(-power, n_others - 1, axis=1)[:, :n_others]
        best = np.concatenate([best, np.full((chosen.size, 1), last)], axis=1)
        places = np.take_along_axis(places, best, axis=1)
        rows = self.between[best[:, :, None], best[:, None, :]]
        found = np.take(self.values.ravel(), rows * self.values.shape[1] + places[:, :, None])
        if not self.repeats:
            fills = np.take_along_axis(beyond, best, axis=1)
            places[fills] = np.repeat(chosen, fills.sum(axis=1))
            found[fills] = 0
            found.swapaxes(1, 2)[fills] = 0
            i, k = np.nonzero(fills)
            found[i, k, k] = 1
        return places, found


class BlockGridCouplings(NamedTuple):
    """Couplings where coefficients are several arrays on one grid.

    Attributes
    ----------
    shape : tuple of int
        The grid.
    blocks : tuple of ndarray of int, each of shape (m + 1,)
        For each array, which array each column that one of its columns is coupled with belongs to; the
        column itself is last.
    offsets : tuple of ndarray of int, each of shape (m + 1,)
        And at which offset it is.
    correlations : tuple of ndarray, each of shape (m + 1, m + 1)
        Between these columns.
    size : int
        Columns in a cluster.
    """

    shape: tuple[int, ...]
    blocks: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    correlations: tuple[np.ndarray, ...]
    size: int

    @property
    def size_of_weak(self) -> int:
        """As on one grid."""
        return max(SIZES[0], self.size // 2)

    def clusters(self, chosen: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Take the columns at which coupling and weight are largest."""
        grid = int(np.prod(self.shape))
        kind = self.correlations[0].dtype
        # Where there are fewer, the column itself fills up a cluster, with no correlations.
        places = np.repeat(chosen[:, None], size, axis=1)
        found = np.zeros((chosen.size, size, size), dtype=kind)
        found[:, np.arange(size), np.arange(size)] = 1
        for block, table in enumerate(self.correlations):
            mine = np.flatnonzero(chosen // grid == block)
            last = len(table) - 1
            some = np.append(np.arange(min(CANDIDATES * size, last)), last)
            candidates = shifted(chosen[mine] - block * grid, self.offsets[block][some], self.shape)
            candidates += grid * self.blocks[block][some]
            if some.size > size:
                power = squared_modulus(table[some[:-1], last])
                best = np.argpartition(-power * weight[candidates[:, :-1]], size - 2, axis=1)[:, : size - 1]
            else:
                best = np.broadcast_to(np.arange(some.size - 1), (mine.size, some.size - 1))
            best = np.concatenate([best, np.full((mine.size, 1), some.size - 1)], axis=1)
            among = some[best]
            first = size - best.shape[1]
            places[mine, first:] = np.take_along_axis(candidates, best, axis=1)
            found[mine, first:, first:] = table[among[:, :, None], among[:, None, :]]
        return places, found


class StoredCouplings(NamedTuple):
    """Couplings that were computed, for each column the same ones at any time.

    Attributes
    ----------
    places : ndarray of int, shape (D, b)
        The cluster around each column, that column last; where there are fewer, it is there more than once.
    correlations : ndarray of shape (D, b, b)
        In each cluster; zero beside the diagonal for places that repeat.
    """

    places: np.ndarray
    correlations: np.ndarray

    @property
    def size(self) -> int:
        """Columns in a cluster."""
        return self.places.shape[1]

    @property
    def size_of_weak(self) -> int:
        """All of a block: with half of one, errors late in a fit were 0.4 in place of 0.002."""
        return self.size

    def largest_beside(self, values: np.ndarray) -> np.ndarray:
        """Return the largest of values among each column and those it is coupled with, times the coupling.

        Examples
        --------
        >>> import numpy as np
        >>> pair = StoredCouplings(np.array([[1, 0], [0, 1]]), np.array([[[1.0, 0.5], [0.5, 1.0]]] * 2))
        >>> pair.largest_beside(np.array([0.0, 8.0])).tolist()
        [2.0, 8.0]
        """
        return np.max(values[self.places] * squared_modulus(self.correlations[:, -1, :]), axis=1)

    def clusters(self, chosen: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Look them up."""
        places, correlations = self.places[chosen], self.correlations[chosen]
        if size < self.size:  # the most coupled come first
            kept = np.append(np.arange(size - 1), self.size - 1)
            places, correlations = places[:, kept], correlations[:, kept[:, None], kept]
        return places, correlations


def on_grid(couplings: Couplings | None) -> bool:
    """Tell whether columns are coupled with their neighbours on a grid, as in a blur."""
    return couplings is not None and not isinstance(couplings, StoredCouplings)


def labels_of(couplings: Couplings | None) -> np.ndarray | None:
    """Return which of several arrays each column belongs to, shape (D,); None where there is one.

    What the rest of the dictionary says about a column differs from array to array: with one number c for
    all of them, errors on spots of two widths behind a blur were 0.3, with one for each 0.003.
    """
    if not isinstance(couplings, BlockGridCouplings):
        return None
    return np.repeat(np.arange(len(couplings.offsets)), int(np.prod(couplings.shape)))


def windows_at_once(size: int) -> int:
    """Return how many clusters to work on at a time: their matrices stay in the cache."""
    return max(1, CACHE_BLOCK // size**2)
