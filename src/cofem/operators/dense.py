"""Operators that store their entries: dense arrays and SciPy sparse matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import scipy.sparse

from cofem._arrays import (
    Array,
    DeviceCache,
    as_floating,
    by_parts,
    conj,
    in_precision,
    is_complex,
    largest_part,
    namespace,
    precision_of,
    require_numpy,
    squared_modulus,
    take,
    to_numpy,
)
from cofem._blocks import CACHE_BLOCK, blocks, vectors_at_once
from cofem.operators.base import Operator
from cofem.operators.entries import StoredMatrix, gram_of_columns
from cofem.operators.same_bits import blas_kernel

#: So few vectors are multiplied one after the other with a matrix of at least so many entries: for several at
#: once BLAS copies the matrix first, and two take as long as three to five one by one (docs/numerics.md).
FEW, LARGE = 3, 2**16
#: So many are multiplied with a matrix of no more entries in tiles, of so many multiplications at most, that
#: BLAS does not copy. Where rows of the tiles are apart in memory that pays for four vectors, and if the
#: matrix stays in the cache.
SEVERAL, HUGE, TILE, FOUR, CACHED = 8, 2**22, 2**19, 4, 2**20
#: But only OpenBLAS's kernels for AVX-512 do without copies. With others so many vectors are multiplied one
#: after the other with a matrix of no more entries than stay in the cache.
WITHOUT_COPIES, FIVE, IN_CACHE = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"}), 5, 2**21


class Dense(Operator):
    """A dictionary given by its entries.

    Parameters
    ----------
    Phi : array_like of shape (N, D)
        Finite numbers, real or complex. Not copied, unless it has to be converted to floating point; do
        not change it afterwards.

    Examples
    --------
    >>> import numpy as np
    >>> Phi = Dense([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    >>> Phi @ np.array([1.0, 1.0, 1.0])
    array([3., 2.])
    >>> Phi.column_norms()
    array([1.        , 2.23606798, 1.        ])
    """

    def __init__(self, Phi: Any) -> None:
        Phi = as_floating(Phi, "Phi")
        _check_matrix_shape(Phi.shape)
        _check_finite(Phi)
        super().__init__(tuple(Phi.shape), is_complex=is_complex(Phi), precision=precision_of(Phi))
        self.array = Phi
        self._cached = DeviceCache(Phi)

    def _device_array(self) -> Array | None:
        return self._cached.device_array

    def _forward(self, x: Array) -> Array:
        return _times(x, self._cached.like(x).T)

    def _adjoint(self, y: Array) -> Array:
        # Conjugating the vectors twice instead of Phi once: Phi is far larger.
        return conj(_times(conj(y), self._cached.like(y)))

    def _abs2(self) -> Operator:
        return _SquaredDense(self.array)

    def _columns(self, indices: np.ndarray) -> Array:
        return take(self.array, indices, axis=1).T

    def _rows(self, indices: np.ndarray) -> Array:
        return take(self.array, indices, axis=0)

    def _take_rows(self, indices: np.ndarray) -> Operator:
        return Dense(take(self.array, indices, axis=0))

    def _stored_matrix(self) -> StoredMatrix | None:
        return StoredMatrix(self.array, 1.0) if self.device_array is None else None

    def _largest_entry(self) -> float:
        return largest_part(self.array)

    def _scale_columns(self, scale: Array) -> Operator:
        return Dense(self.array * self._like_entries(scale))

    def _subtract_row(self, offset: Array) -> Operator:
        if is_complex(offset) and not self.is_complex:
            raise TypeError(f"offset must be real for the real {self!r}, got {offset.dtype}")
        # Subtracting from the entries rounds once; a correction of products rounds each time.
        return Dense(self.array - self._like_entries(offset))

    def _like_entries(self, row: Array) -> Array:
        """Return a row on the device of the entries and in their precision."""
        row = in_precision(DeviceCache(row).like(self.array), precision_of(self.array))
        if not self.is_complex:
            return row
        xp = namespace(row)
        return xp.astype(row, self.array.dtype, copy=False)

    def _stored_entries(self) -> int:
        return self.shape[0] * self.shape[1]

    def _to_dense(self) -> Array:
        return self.array

    def _in_precision(self, precision: str) -> Operator:
        return self if precision == self.precision else Dense(in_precision(self.array, precision))

    def _expression(self) -> str:
        return f"Dense({self.shape[0]}, {self.shape[1]})"


class _SquaredDense(Operator):
    """Entries ``|Phi_ij|^2``, never all in memory: they are formed a few rows at a time, in the cache."""

    def __init__(self, array: Array) -> None:
        super().__init__(tuple(array.shape), precision=precision_of(array))
        self._array = array
        self._cached = DeviceCache(array)

    def _device_array(self) -> Array | None:
        return self._cached.device_array

    def _blocks(self, x: Array) -> Iterator[tuple[slice, Array]]:
        array = self._cached.like(x)
        for rows in blocks(self.shape[0], vectors_at_once(self.shape[1], CACHE_BLOCK)):
            yield rows, squared_modulus(array[rows, :])

    def _forward(self, x: Array) -> Array:
        return namespace(x).concat([_times(x, block.T) for _, block in self._blocks(x)], axis=-1)

    def _adjoint(self, y: Array) -> Array:
        return reduce(add, (_times(y[..., rows], block) for rows, block in self._blocks(y)))

    def _in_precision(self, precision: str) -> Operator:
        return _SquaredDense(in_precision(self._array, precision))


class Sparse(Operator):
    """A dictionary given by a SciPy sparse matrix or array of any format.

    Parameters
    ----------
    Phi : scipy.sparse matrix or array of shape (N, D)
        Finite numbers, real or complex. Kept in compressed row form, without a copy if it is so already.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> Phi = Sparse(scipy.sparse.diags_array([1.0, 2.0]))
    >>> Phi @ np.array([1.0, 1.0])
    array([1., 2.])
    """

    def __init__(self, Phi: Any) -> None:
        if not scipy.sparse.issparse(Phi):
            raise TypeError(f"Phi must be a SciPy sparse matrix or array, got {type(Phi).__name__}")
        _check_matrix_shape(Phi.shape)
        matrix = scipy.sparse.csr_array(Phi)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()  # it may share memory with the caller's
            matrix.sum_duplicates()  # squares of entries need each entry once
        data = as_floating(matrix.data, "Phi")
        _check_finite(data)
        super().__init__(matrix.shape, is_complex=is_complex(data), precision=precision_of(data))
        self.matrix = scipy.sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)

    def _forward(self, x: Array) -> Array:
        return self._multiply(self.matrix, x)

    def _adjoint(self, y: Array) -> Array:
        return conj(self._multiply(self.matrix.T, conj(y)))

    def _multiply(self, matrix: Any, x: Array) -> Array:
        require_numpy(x, str(self))

        def multiply(x: np.ndarray) -> np.ndarray:
            vectors = x.reshape(-1, x.shape[-1])
            return np.ascontiguousarray((matrix @ vectors.T).T).reshape(*x.shape[:-1], matrix.shape[0])

        return multiply(x) if self.is_complex else by_parts(multiply, x)

    def _with_entries(self, data: np.ndarray) -> Sparse:
        return Sparse(
            scipy.sparse.csr_array((data, self.matrix.indices, self.matrix.indptr), shape=self.shape)
        )

    def _abs2(self) -> Operator:
        return self._with_entries(squared_modulus(self.matrix.data))

    def _scale_columns(self, scale: Array) -> Operator:
        if is_complex(scale) and not self.is_complex:
            return super()._scale_columns(scale)
        scale = in_precision(to_numpy(scale), self.precision or "float64")
        return self._with_entries(self.matrix.data * scale[self.matrix.indices])

    def _columns(self, indices: np.ndarray) -> np.ndarray:
        return self.matrix[:, indices].toarray().T

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        return self.matrix[indices].toarray()

    def _local_gram(self, indices: np.ndarray) -> np.ndarray:
        by_columns = self.matrix.tocsc()  # in which columns are found without a search
        return gram_of_columns(lambda some: by_columns[:, some].toarray().T, self.shape[0], indices)

    def _take_rows(self, indices: np.ndarray) -> Operator:
        return Sparse(self.matrix[indices])

    def _sparse_matrix(self) -> scipy.sparse.csr_array:
        return self.matrix

    def _largest_entry(self) -> float:
        return largest_part(self.matrix.data)

    def _stored_entries(self) -> int:
        return int(self.matrix.nnz)

    def _in_precision(self, precision: str) -> Operator:
        if precision == self.precision:
            return self
        return self._with_entries(in_precision(self.matrix.data, precision))

    def _expression(self) -> str:
        return f"Sparse({self.shape[0]}, {self.shape[1]}, {self.matrix.nnz} stored)"


def _times(x: Array, matrix: Array) -> Array:
    """Return ``x @ matrix`` for vectors along the last axis of ``x``, as one matrix product."""
    if isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype == matrix.dtype:
        return x @ matrix  # small problems spend most of their time on the way to this

    def multiply(x: Array) -> Array:
        xp = namespace(x)
        vectors = xp.reshape(x, (-1, x.shape[-1]))
        if isinstance(x, np.ndarray) and _pays_one_by_one(len(vectors), matrix):
            out = np.empty((vectors.shape[0], matrix.shape[1]), dtype=np.result_type(x, matrix))
            for vector, product in zip(vectors, out, strict=True):
                np.matmul(vector, matrix, out=product)
        elif isinstance(x, np.ndarray) and _pays_in_tiles(len(vectors), matrix):
            out = np.empty((vectors.shape[0], matrix.shape[1]), dtype=np.result_type(x, matrix))
            for columns in blocks(matrix.shape[1], max(1, TILE // vectors.size)):
                np.matmul(vectors, matrix[:, columns], out=out[:, columns])
        else:
            out = xp.matmul(vectors, matrix)
        return xp.reshape(out, (*x.shape[:-1], matrix.shape[1]))

    # A mixed product would make a complex copy of a real matrix.
    return multiply(x) if is_complex(matrix) else by_parts(multiply, x)


def _pays_one_by_one(count: int, matrix: np.ndarray) -> bool:
    """Tell whether so many products with a vector are faster than one with a matrix."""
    if count < 2 or matrix.size < LARGE:
        return False
    return count <= FEW or (count <= FIVE and matrix.size <= IN_CACHE and blas_kernel() not in WITHOUT_COPIES)


def _pays_in_tiles(count: int, matrix: np.ndarray) -> bool:
    """Tell whether a product with so many vectors is faster in tiles of columns of a matrix."""
    if not FEW < count <= SEVERAL or not LARGE <= matrix.size <= HUGE:
        return False
    return matrix.flags.f_contiguous or (count == FOUR and matrix.size <= CACHED)


def _check_matrix_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"Phi must be a non-empty matrix of shape (N, D), got shape {tuple(shape)}")


def _check_finite(values: Array) -> None:
    xp = namespace(values)
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError("Phi must hold finite numbers, got NaN or infinite entries")
