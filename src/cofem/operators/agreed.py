"""What several operators have in common, for those that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cofem._arrays import Array, to_numpy
from cofem.operators.base import Operator

if TYPE_CHECKING:
    import scipy.sparse


def common_precision(operators: Sequence[Operator]) -> str | None:
    """Return the highest precision that any of ``operators`` stores, None if none stores numbers."""
    return max((op.precision for op in operators if op.precision is not None), default=None)


def agreed_groups(labels: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the group labels that all operators along a shared axis agree on, else None."""
    first = labels[0]
    if first is None or any(other is None or not np.array_equal(first, other) for other in labels):
        return None
    return first


def agreed_shape(shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """Return the shape that all operators agree on, else None."""
    return shapes[0] if all(shape == shapes[0] for shape in shapes) else None


def all_sparse(operators: Sequence[Operator]) -> list[scipy.sparse.csr_array] | None:
    """Return the sparse matrices of ``operators``, None if one has none."""
    known: list[scipy.sparse.csr_array] = []
    for op in operators:
        matrix = op.sparse_matrix()
        if matrix is None:  # the others are not built in vain
            return None
        known.append(matrix)
    return known


def common_device_array(operators: Sequence[Operator]) -> Array | None:
    """Return the first `device_array` that any of ``operators`` has, None if none has."""
    return next((op.device_array for op in operators if op.device_array is not None), None)


def mean_square(operator: Operator) -> float:
    """Return the mean of the squared norms of the columns of an operator with one entry in each."""
    norms = to_numpy(operator.column_norms())
    return float(np.mean(norms.astype(np.float64) ** 2))
