"""The adjoint and the conjugate of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cofem._arrays import Array, conj
from cofem.operators.action import FusedGram, Weights
from cofem.operators.base import Operator
from cofem.operators.boxes import Box
from cofem.operators.filters import FilterBank

if TYPE_CHECKING:
    import scipy.sparse


class Adjoint(Operator):
    """Hermitian adjoint of an operator."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(
            (operator.shape[1], operator.shape[0]),
            is_complex=operator.is_complex,
            precision=operator.precision,
            facts=operator.facts.of_adjoint(),
        )
        self.operator = operator

    def _device_array(self) -> Array | None:
        return self.operator.device_array

    def _forward(self, x: Array) -> Array:
        return self.operator._adjoint(x)

    def _adjoint(self, y: Array) -> Array:
        return self.operator._forward(y)

    def _forward_overwriting(self, x: Array) -> Array:
        return self.operator._adjoint_overwriting(x)

    def _adjoint_overwriting(self, y: Array) -> Array:
        return self.operator._forward_overwriting(y)

    def _gram(self, x: Array) -> Array:
        return self.operator._dual_gram(x, None)

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        return self.operator._gram(v) if weights is None else super()._dual_gram(v, weights)

    def _parts(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def _gram_between(self, weights: Weights) -> FusedGram | None:
        return self.operator._adjoint_gram_between(weights)

    def _adjoint_gram_between(self, weights: Weights) -> FusedGram | None:
        return self.operator._gram_between(weights)

    def _columns(self, indices: np.ndarray) -> Array:
        return conj(self.operator._rows(indices))

    def _rows(self, indices: np.ndarray) -> Array:
        return conj(self.operator._columns(indices))

    def _filter_bank(self) -> FilterBank | None:
        bank = self.operator.filter_bank()
        return None if bank is None else bank.adjoint

    def _adjoint_operator(self) -> Operator:
        return self.operator

    def _spectral_norm(self) -> float:
        return self.operator.norm

    def _abs2(self) -> Operator | None:
        squares = self.operator.abs2()
        return None if squares is None else squares.H

    def _norm_resolution(self, norms: Array) -> Array | float:
        return self.operator._adjoint_norm_resolution(norms)

    def _adjoint_norm_resolution(self, norms: Array) -> Array | float:
        return self.operator._norm_resolution(norms)

    def _in_precision(self, precision: str) -> Operator:
        return self.operator._in_precision(precision).H

    def _column_groups(self) -> np.ndarray | None:
        return self.operator.row_groups

    def _row_groups(self) -> np.ndarray | None:
        return self.operator.groups

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        matrix = self.operator.sparse_matrix()
        return None if matrix is None else matrix.conj().T.tocsr()

    def _expression(self) -> str:
        return self.operator._adjoint_expression()


class SameAxes(Operator):
    """An operator whose rows and columns mean what those of another operator mean."""

    operator: Operator

    def _parts(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def _device_array(self) -> Array | None:
        return self.operator.device_array

    def _column_groups(self) -> np.ndarray | None:
        return self.operator.groups

    def _row_groups(self) -> np.ndarray | None:
        return self.operator.row_groups

    def _column_shape(self) -> tuple[int, ...] | None:
        return self.operator.column_shape

    def _row_places(self) -> np.ndarray | None:
        return self.operator.row_places

    def _row_boxes(self) -> tuple[Box, ...] | None:
        return self.operator.row_boxes

    def _stored_entries(self) -> int:
        return self.operator.stored_entries


class Conjugate(SameAxes):
    """Complex operator with conjugated entries."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator.shape, is_complex=True, precision=operator.precision, facts=operator.facts)
        self.operator = operator

    def _forward(self, x: Array) -> Array:
        return conj(self.operator._forward(conj(x)))

    def _adjoint(self, y: Array) -> Array:
        return conj(self.operator._adjoint(conj(y)))

    def _columns(self, indices: np.ndarray) -> Array:
        return conj(self.operator._columns(indices))

    def _rows(self, indices: np.ndarray) -> Array:
        return conj(self.operator._rows(indices))

    def _local_gram(self, indices: np.ndarray) -> Array:
        return conj(self.operator._local_gram(indices))

    def _adjoint_operator(self) -> Operator:
        return self.operator.H.conj()

    def _conjugate_operator(self) -> Operator:
        return self.operator

    def _spectral_norm(self) -> float:
        return self.operator.norm

    def _abs2(self) -> Operator | None:
        return self.operator.abs2()

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        matrix = self.operator.sparse_matrix()
        return None if matrix is None else matrix.conj()

    def _norm_resolution(self, norms: Array) -> Array | float:
        return self.operator._norm_resolution(norms)

    def _in_precision(self, precision: str) -> Operator:
        return self.operator._in_precision(precision).conj()

    def _expression(self) -> str:
        if isinstance(self.operator, Adjoint):
            return self.operator.operator._bracketed(3) + ".T"
        return self.operator._bracketed(3) + ".conj()"
