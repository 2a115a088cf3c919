"""Several choices of rows of one operator, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cofem._arrays import Array, in_precision, namespace, precision_of, squared_modulus
from cofem.operators.base import Operator
from cofem.operators.sampling import Mask
from cofem.operators.stack import BlockDiagonal

# Entries up to which products with the entries are faster than those of a transform: a call takes 10 us.
_SMALL = 2**15


class RowParts(BlockDiagonal):
    """Some rows of one operator, others of it in the next block, and so on: all blocks in one product.

    Parameters
    ----------
    operator : Operator
        Shape (N, D).
    rows : sequence of B ndarrays of int
        The rows of each block.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> RowParts(Dense(np.eye(3)), [np.array([0, 1]), np.array([2])]) @ np.arange(6.0)
    array([0., 1., 5.])
    """

    def __init__(self, operator: Operator, rows: Sequence[np.ndarray]) -> None:
        super().__init__([operator.take_rows(some) for some in rows])
        self.operator, self.kept = operator, tuple(rows)
        n_rows = operator.shape[0]
        places = [block * n_rows + some for block, some in enumerate(rows)]
        self._mask = Mask(np.concatenate(places), len(rows) * n_rows)

    @cached_property
    def matrices(self) -> np.ndarray:
        """The entries of all blocks, shape (B, n, D), in double precision; every block has n rows.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> RowParts(Dense(np.diag([1.0, 2.0])), [np.array([0]), np.array([1])]).matrices.tolist()
        [[[1.0, 0.0]], [[0.0, 2.0]]]
        """
        matrix = self.operator.to_dense()
        return matrix.astype(np.result_type(matrix, np.float64))[np.stack(self.kept)]

    def column_norms(self) -> Array:
        """Return the norms of the columns of each block, one block after the other.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> RowParts(Dense([[3.0], [4.0]]), [np.array([0]), np.array([0, 1])]).column_norms()
        array([3., 5.])
        """
        entries = self._entries
        if entries is None:
            norms = [part.column_norms() for part in self.parts]
            return namespace(norms[0]).concat(norms)
        squares = squared_modulus(entries).astype(np.float64)
        return np.sqrt(self._weights("float64") @ squares).ravel()

    @cached_property
    def _entries(self) -> np.ndarray | None:
        """The entries of a small operator, whose products are then faster than by any transform."""
        n_rows, n_columns = self.operator.shape
        small = n_rows * n_columns <= _SMALL and self.operator.device_array is None
        return self.operator.to_dense() if small else None

    @cached_property
    def _in_use(self) -> dict[str, Any]:
        """Weights, and entries with their adjoint, by precision and type."""
        return {}

    def _weights(self, precision: str) -> np.ndarray:
        """One for each row of the operator that is in a block, zero for the others, shape (B, N)."""
        if precision not in self._in_use:
            weights = np.zeros((len(self.kept), self.operator.shape[0]), dtype=precision)
            for row, some in zip(weights, self.kept, strict=True):
                np.add.at(row, some, 1)
            self._in_use[precision] = weights
        return self._in_use[precision]

    def _through(self, x: Array, adjoint: bool = False) -> Array:
        """Apply the operator, or its adjoint, to every block of (..., B, D) or (..., B, N)."""
        if self._entries is None or not isinstance(x, np.ndarray):
            return self.operator.adjoint(x) if adjoint else self.operator.forward(x)
        if x.dtype.char not in self._in_use:
            entries = in_precision(self._entries, precision_of(x))
            self._in_use[x.dtype.char] = np.ascontiguousarray(entries.T), np.ascontiguousarray(entries.conj())
        return x @ self._in_use[x.dtype.char][adjoint]

    def _forward(self, x: Array) -> Array:
        xp = namespace(x)
        each = xp.reshape(x, (*x.shape[:-1], len(self.kept), -1))
        return self._mask.forward(xp.reshape(self._through(each), (*x.shape[:-1], -1)))

    def _adjoint(self, y: Array) -> Array:
        xp = namespace(y)
        each = xp.reshape(self._mask.adjoint(y), (*y.shape[:-1], len(self.kept), -1))
        return xp.reshape(self._through(each, adjoint=True), (*y.shape[:-1], -1))

    def _gram(self, x: Array) -> Array:
        if not isinstance(x, np.ndarray):
            return self._adjoint(self._forward(x))
        each = self._through(x.reshape(*x.shape[:-1], len(self.kept), -1))
        each *= self._weights(precision_of(x))
        return self._through(each, adjoint=True).reshape(x.shape)

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        if not self.operator._fuses_dual:
            return super()._dual_gram(v, weights)
        xp, count = namespace(v), len(self.kept)
        each = xp.reshape(self._mask.adjoint(v), (*v.shape[:-1], count, -1))
        if weights is not None:
            weights = xp.reshape(weights, (*weights.shape[:-1], count, -1))
        found = self.operator.dual_gram(each, weights)
        return self._mask.forward(xp.reshape(found, (*v.shape[:-1], -1)))

    def _circulant_gram(self) -> None:
        return None  # blocks of it may have one; there is no use in looking for one over all of them

    def _in_precision(self, precision: str) -> Operator:
        return RowParts(self.operator._in_precision(precision), self.kept)
