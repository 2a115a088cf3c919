"""Several choices of rows of one operator, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from cofem._arrays import Array, namespace
from cofem.operators.base import Operator
from cofem.operators.sampling import Mask
from cofem.operators.stack import BlockDiagonal


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

    def _forward(self, x: Array) -> Array:
        xp = namespace(x)
        each = xp.reshape(x, (*x.shape[:-1], len(self.kept), -1))
        return self._mask.forward(xp.reshape(self.operator.forward(each), (*x.shape[:-1], -1)))

    def _adjoint(self, y: Array) -> Array:
        xp = namespace(y)
        each = xp.reshape(self._mask.adjoint(y), (*y.shape[:-1], len(self.kept), -1))
        return xp.reshape(self.operator.adjoint(each), (*y.shape[:-1], -1))

    def _gram(self, x: Array) -> Array:
        return self._adjoint(self._forward(x))

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        if not self.operator._fuses_dual:
            return super()._dual_gram(v, weights)
        xp, count = namespace(v), len(self.kept)
        each = xp.reshape(self._mask.adjoint(v), (*v.shape[:-1], count, -1))
        if weights is not None:
            weights = xp.reshape(weights, (*weights.shape[:-1], count, -1))
        found = self.operator.dual_gram(each, weights)
        return self._mask.forward(xp.reshape(found, (*v.shape[:-1], -1)))

    def _in_precision(self, precision: str) -> Operator:
        return RowParts(self.operator._in_precision(precision), self.kept)
