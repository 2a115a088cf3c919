"""Several choices of rows of one operator, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cofem._arrays import Array, conj, in_precision, namespace, precision_of, squared_modulus
from cofem.operators.base import Operator
from cofem.operators.sampling import Mask
from cofem.operators.stack import BlockDiagonal

# Entries of the operator up to which products with the entries of every block are faster than one with the
# operator for all blocks: at 2**14, 6 to 18 us in place of 13 to 20; at 2**16, 0.7 to 2 times as much.
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
        if not self._is_small:
            norms = [part.column_norms() for part in self.parts]
            return namespace(norms[0]).concat(norms)
        return np.sqrt(squared_modulus(self.matrices).sum(axis=1)).ravel()

    @cached_property
    def _is_small(self) -> bool:
        """Whether the entries of the blocks are few; all have as many rows then."""
        alike = len({some.size for some in self.kept}) == 1
        return alike and math.prod(self.operator.shape) <= _SMALL and self.operator.device_array is None

    @cached_property
    def _in_use(self) -> dict[str, Any]:
        """Weights by precision, and entries of the blocks by type of vector."""
        return {}

    def _weights(self, precision: str) -> np.ndarray:
        """One for each row of the operator that is in a block, zero for the others, shape (B, N)."""
        if precision not in self._in_use:
            weights = np.zeros((len(self.kept), self.operator.shape[0]), dtype=precision)
            for row, some in zip(weights, self.kept, strict=True):
                np.add.at(row, some, 1)
            self._in_use[precision] = weights
        return self._in_use[precision]

    def _entries(self, x: Array) -> np.ndarray | None:
        """Return the entries of all blocks in the precision of a vector, None where they are many."""
        if not (self._is_small and isinstance(x, np.ndarray)):
            return None
        found = self._in_use.get(x.dtype.char)
        if found is None:
            found = self._in_use[x.dtype.char] = in_precision(self.matrices, precision_of(x))
        return found

    def _forward(self, x: Array) -> Array:
        entries = self._entries(x)
        if entries is not None:
            each = x.reshape(*x.shape[:-1], len(self.kept), -1, 1)
            return np.matmul(entries, each).reshape(*x.shape[:-1], -1)
        xp = namespace(x)
        each = xp.reshape(x, (*x.shape[:-1], len(self.kept), -1))
        return self._mask.forward(xp.reshape(self.operator.forward(each), (*x.shape[:-1], -1)))

    def _adjoint(self, y: Array) -> Array:
        entries = self._entries(y)
        if entries is not None:
            each = y.reshape(*y.shape[:-1], len(self.kept), 1, -1)
            return conj(np.matmul(conj(each), entries)).reshape(*y.shape[:-1], -1)
        xp = namespace(y)
        each = xp.reshape(self._mask.adjoint(y), (*y.shape[:-1], len(self.kept), -1))
        return xp.reshape(self.operator.adjoint(each), (*y.shape[:-1], -1))

    def _gram(self, x: Array) -> Array:
        if not isinstance(x, np.ndarray) or self._is_small:
            return self._adjoint(self._forward(x))
        each = self.operator.forward(x.reshape(*x.shape[:-1], len(self.kept), -1))
        each *= self._weights(precision_of(x))
        return self.operator.adjoint(each).reshape(x.shape)

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
