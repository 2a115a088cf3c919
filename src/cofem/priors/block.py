"""One precision for each block of coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import Array, DeviceCache, is_torch
from cofem.priors.base import Prior, capped_inverse


@dataclass(frozen=True, eq=False)
class Block(Prior):
    """Blocks are zero or not as a whole: ``alpha_b = |b| / sum_{j in b} E |z_j|^2``.

    Parameters
    ----------
    groups : int, array of int of shape (D,), or sequence of index arrays
        The size of equal, contiguous blocks (the last may be shorter); a label for each coefficient; or the
        indices of each block. Coefficients in no index array are blocks of their own.

    Examples
    --------
    >>> import numpy as np
    >>> Block(2).precisions(np.array([1.0, 3.0, 0.5, 0.5]), cap=1e12).tolist()
    [0.5, 0.5, 2.0, 2.0]
    >>> Block([[0, 3]]).labels(4).tolist()
    [0, 1, 2, 0]
    """

    groups: Any

    name: ClassVar[str] = "block"
    averages: ClassVar[bool] = True
    restraint: ClassVar[float] = 1.5
    libraries: ClassVar[tuple[str, ...] | None] = ("numpy", "torch")

    @property
    def label(self) -> str:
        """The prior in a few words."""
        return f"Block({self.groups})" if isinstance(self.groups, int) else "Block(groups)"

    def check(self, n_columns: int) -> None:
        """Refuse blocks that do not fit the dictionary.

        Examples
        --------
        >>> Block([[0, 1], [1, 2]]).check(4)
        Traceback (most recent call last):
            ...
        ValueError: groups[1] repeats a coefficient; blocks must not overlap
        """
        self.labels(n_columns)

    def blocks(self, n_columns: int) -> np.ndarray | None:
        """Return the block of each coefficient, if any has company."""
        labels = self.labels(n_columns)
        return labels if labels.max() + 1 < n_columns else None

    def labels(self, n_columns: int) -> np.ndarray:
        """Return the block of each coefficient, numbered from 0, shape (D,).

        Examples
        --------
        >>> Block(2).labels(5).tolist()  # the last block is shorter
        [0, 0, 1, 1, 2]
        >>> Block([[0, 3], [1, 4]]).labels(6).tolist()  # 2 and 5 are blocks of their own
        [0, 1, 2, 0, 1, 3]
        """
        return self._blocks(n_columns)[0].values

    def _blocks(self, n_columns: int) -> tuple[DeviceCache, DeviceCache]:
        """Return the labels and the sizes of the blocks; both are kept."""
        kept = self.__dict__.setdefault("_kept", {})
        if n_columns not in kept:
            labels = _labels(self.groups, n_columns)
            kept[n_columns] = DeviceCache(labels), DeviceCache(np.bincount(labels).astype(np.float64))
        return kept[n_columns]

    def means(self, values: Array) -> Array:
        """Return the mean over the block of each coefficient, shape (D,).

        Examples
        --------
        >>> import numpy as np
        >>> Block(2).means(np.array([1.0, 3.0, 0.5, 0.5])).tolist()
        [2.0, 2.0, 0.5, 0.5]
        """
        labels, sizes = self._blocks(values.shape[0])
        if is_torch(values):
            where, size = labels.like(values), sizes.like(values)
            mean = (size * 0).index_add_(0, where, values.to(size.dtype)) / size
            return mean.to(values.dtype)[where]
        total = np.bincount(labels.values, weights=values)
        return (total / sizes.values).astype(values.dtype)[labels.values]

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        return capped_inverse(self.means(second_moment), cap)


def _labels(groups: Any, n_columns: int) -> np.ndarray:
    if isinstance(groups, int | np.integer) and not isinstance(groups, bool):
        if groups < 1:
            raise ValueError(f"groups must be a positive block size, got {groups}")
        return np.arange(n_columns) // int(groups)
    if isinstance(groups, np.ndarray) or (
        isinstance(groups, Sequence) and all(isinstance(g, int | np.integer) for g in groups)
    ):
        labels = np.asarray(groups)
        if labels.shape != (n_columns,) or labels.dtype.kind not in "iu":
            raise ValueError(
                f"groups as labels must be integers of shape ({n_columns},), one for each coefficient, got "
                f"dtype {labels.dtype} and shape {labels.shape}"
            )
        return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.intp)
    if not isinstance(groups, Sequence):
        raise TypeError(
            "groups must be a block size, labels or a list of index arrays, got " + type(groups).__name__
        )
    labels = np.full(n_columns, -1, dtype=np.intp)
    for i, group in enumerate(groups):
        indices = np.asarray(group)
        if indices.ndim != 1 or indices.size == 0 or indices.dtype.kind not in "iu":
            raise ValueError(f"groups[{i}] must be a non-empty list of indices, got {group!r}")
        if indices.min() < 0 or indices.max() >= n_columns:
            raise ValueError(f"groups[{i}] must hold indices from 0 to {n_columns - 1}, got {group!r}")
        if np.unique(indices).size != indices.size or (labels[indices] >= 0).any():
            raise ValueError(f"groups[{i}] repeats a coefficient; blocks must not overlap")
        labels[indices] = i
    alone = labels < 0
    labels[alone] = len(groups) + np.arange(np.count_nonzero(alone))
    return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.intp)
