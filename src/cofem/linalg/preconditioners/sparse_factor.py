"""A sparse factor of systems in analysis form, where Phi and B have few entries in each row.

Seconds for a factor / for one solve with it, one thread, a mask of 40 % and random precisions over six orders
of magnitude: first and second differences of 64 x 64 pixels 0.02 / 0.001, of 128 x 128 0.19 / 0.003, of
256 x 256 0.75 / 0.02 (first differences alone 0.01 / 0.0003, 0.04 / 0.001, 0.28 / 0.006); of a series of
20 000 samples 0.016. Smoothed aggregation (pyamg) took 72, 67 and 85 steps of conjugate gradients to 1 %,
1.9 s at 256 x 256. Along a series the matrix is a band, and so is its factor: 10^6 samples with 64 diagonals
are 0.5 GB, where SuperLU asked for 8 GB at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from cofem._arrays import Array, is_complex
from cofem._memory import is_available
from cofem.linalg.banded_inverse import LEAST_BLOCK, inverse_diagonal
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.dictionary import Dictionary

#: Unknowns on a grid of several axes up to which a factor takes the place of waves; along one axis it always
#: does. On 256 x 256 pixels conjugate gradients with waves take 5 to 10 steps for a system, so that 32 draws
#: cost less than the factor.
MOST_UNKNOWNS = 2**10
#: Columns that the entries of a row of B may be apart, where B is a filter along a series.
NARROW = 128
#: Share of the memory that a band and its factor may take, and rows of B that are worked on at once.
SHARE_OF_MEMORY, ROWS_AT_ONCE = 0.5, 2**16
#: Columns of the identity that are solved for together.
COLUMNS_AT_ONCE = 256


@dataclass(frozen=True)
class SparseFactor(PosteriorPreconditioner):
    """The inverse of a sparse positive definite matrix.

    Attributes
    ----------
    matrix : sparse array of shape (D, D)
        The matrix, real.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> P = SparseFactor(scipy.sparse.csc_array([[2.0, 0.0], [0.0, 4.0]]))
    >>> r = np.ones((1, 2))
    >>> P.apply(r, r)
    >>> r.tolist()
    [[0.5, 0.25]]
    """

    matrix: Any

    def larger(self, share: float) -> SparseFactor:
        """Return the factor with a share of the largest number on the diagonal added to all of them."""
        more = share * float(self.matrix.diagonal().max()) * scipy.sparse.eye_array(self.matrix.shape[0])
        return SparseFactor(scipy.sparse.csc_array(self.matrix + more))

    @cached_property
    def _factor(self) -> Any:
        from scipy.sparse.linalg import splu

        symmetric = {"SymmetricMode": True}
        return splu(self.matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=symmetric)

    def _solve(self, columns: np.ndarray) -> np.ndarray:
        return np.asarray(self._factor.solve(columns))

    def inverse_diagonal(self) -> np.ndarray | None:
        """Return the diagonal of the inverse, shape (D,), column by column; None if there are many."""
        size = self.matrix.shape[-1]
        if size > MOST_UNKNOWNS:
            return None
        found = np.empty(size)
        for start in range(0, size, COLUMNS_AT_ONCE):
            some = slice(start, min(start + COLUMNS_AT_ONCE, size))
            unit = np.zeros((size, some.stop - start))
            unit[some] = np.eye(some.stop - start)
            found[some] = np.diagonal(self._solve(unit)[some])
        return found

    @property
    def exists(self) -> bool:
        """Whether the matrix has a factor that memory has room for: not if it is singular."""
        try:
            return self._factor is not None
        except (RuntimeError, MemoryError):  # the former is SuperLU's word for singular
            return False

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        columns = np.ascontiguousarray(r.T)
        if is_complex(columns):
            found = self._solve(columns.real.astype(np.float64))
            found = found + 1j * self._solve(columns.imag.astype(np.float64))
        else:
            found = self._solve(columns.astype(np.float64))
        out[...] = found.T


class BandFactor(SparseFactor):
    """The inverse of a positive definite matrix of few diagonals; row d of `matrix` has the one d below.

    Examples
    --------
    >>> import numpy as np
    >>> P, r = BandFactor(np.array([[2.0, 2.0], [1.0, 0.0]])), np.array([[3.0, 3.0]])
    >>> P.apply(r, r)
    >>> r.round(9).tolist()
    [[1.0, 1.0]]
    """

    def larger(self, share: float) -> SparseFactor:
        """Return the factor with a share of the largest number on the diagonal added to all of them."""
        matrix = self.matrix.copy()
        matrix[0] += share * float(matrix[0].max())
        return BandFactor(matrix)

    @cached_property
    def _factor(self) -> Any:
        factor, failed = scipy.linalg.lapack.dpbtrf(self.matrix, lower=1)
        return None if failed else factor

    def _solve(self, columns: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.linalg.cho_solve_banded((self._factor, True), columns))

    def inverse_diagonal(self) -> np.ndarray | None:
        """Return the diagonal of the inverse, shape (D,), by Takahashi's recursion."""
        reach, size = len(self.matrix) - 1, self.matrix.shape[1]
        width = max(reach, LEAST_BLOCK)
        if size < 3 * width:
            return super().inverse_diagonal()
        # Two matrices for each block: its inverse, and what leads to the next one.
        return inverse_diagonal(self.matrix) if is_available(16.0 * width * size, SHARE_OF_MEMORY) else None


def sparse_factor(phi: Dictionary, rows: Any, alpha: Array, noise_var: float) -> SparseFactor | None:
    """Return a factor of ``Phi^H Phi + noise_var B^H diag(alpha) B``, or None where it would not pay.

    Parameters
    ----------
    phi : Dictionary
        Phi.
    rows : Rows
        B; see `cofem.linalg.analysis`.
    alpha : array of shape (M,)
        Precisions.
    noise_var : float
        Noise variance.
    """
    n_unknowns = phi.shape[1]
    along_one_axis = rows.grid is not None and len(rows.axes) <= 1
    if not isinstance(alpha, np.ndarray):
        return None
    if rows.grid is None:  # on a grid the matrix would be made in vain
        along_one_axis = _reach(rows.sparse) <= NARROW
    if not (along_one_axis or n_unknowns <= MOST_UNKNOWNS):
        return None
    gram, matrix = rows.gram_of(phi), rows.sparse
    if gram is None or matrix is None:
        return None
    weights = noise_var * alpha.astype(np.float64)
    reach = max(_reach(matrix), _reach_of_symmetric(gram))
    factor: SparseFactor
    if reach <= NARROW:
        if not is_available(2 * 8.0 * (reach + 1) * n_unknowns, SHARE_OF_MEMORY):
            return None
        factor = BandFactor(_bands(gram, matrix, weights, reach))
    else:
        factor = SparseFactor(
            scipy.sparse.csc_array(gram + matrix.T @ scipy.sparse.diags_array(weights) @ matrix)
        )
    # Where neither data nor prior determine a direction, there is none; waves do without.
    return factor if factor.exists else None


def _bands(
    gram: scipy.sparse.csr_array, matrix: scipy.sparse.csr_array, weights: np.ndarray, reach: int
) -> np.ndarray:
    """Return ``gram + matrix^T diag(weights) matrix`` by its diagonals; no copy of it as a sparse array."""
    found = np.zeros((reach + 1, gram.shape[1]))

    def add(part: scipy.sparse.csr_array) -> None:
        entries = part.tocoo()
        below = entries.row >= entries.col
        row, col = entries.row[below], entries.col[below]
        found[row - col, col] += entries.data[below]

    add(gram)
    for start in range(0, matrix.shape[0], ROWS_AT_ONCE):
        some = matrix[start : start + ROWS_AT_ONCE]
        add(some.T @ scipy.sparse.diags_array(weights[start : start + ROWS_AT_ONCE]) @ some)
    return found


def _reach(matrix: scipy.sparse.csr_array | None) -> int:
    """Return how far entries of a row are apart: not far, where B is a filter along a series."""
    if matrix is None or matrix.nnz == 0:
        return NARROW + 1
    filled = np.flatnonzero(np.diff(matrix.indptr))
    starts, columns = matrix.indptr[filled], matrix.indices
    return int((np.maximum.reduceat(columns, starts) - np.minimum.reduceat(columns, starts)).max())


def _reach_of_symmetric(matrix: scipy.sparse.csr_array) -> int:
    """Return how far entries are from the diagonal."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return int(np.abs(matrix.indices - rows).max(initial=0))
