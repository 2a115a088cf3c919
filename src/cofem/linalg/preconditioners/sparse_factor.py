"""A sparse factor of systems in analysis form, where Phi and B have few entries in each row.

Seconds for a factor / for one solve with it, one thread, a mask of 40 % and random precisions over six orders
of magnitude: first and second differences of 64 x 64 pixels 0.02 / 0.001, of 128 x 128 0.19 / 0.003, of
256 x 256 0.75 / 0.02 (first differences alone 0.01 / 0.0003, 0.04 / 0.001, 0.28 / 0.006); of a series of
20 000 samples 0.016. Smoothed aggregation (pyamg) took 72, 67 and 85 steps of conjugate gradients to 1 %,
1.9 s at 256 x 256.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from cofem._arrays import Array, is_complex
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.dictionary import Dictionary

#: Unknowns on a grid of several axes up to which a factor takes the place of waves; along one axis it always
#: does. On 256 x 256 pixels conjugate gradients with waves take 5 to 10 steps for a system, so that 32 draws
#: cost less than the factor.
MOST_UNKNOWNS = 2**10
#: Columns that the entries of a row of B may be apart, where B is a filter along a series.
NARROW = 128


@dataclass(frozen=True)
class SparseFactor(PosteriorPreconditioner):
    """The inverse of a sparse positive definite matrix.

    Attributes
    ----------
    matrix : sparse array of shape (D, D)
        The matrix, real.
    narrow : bool
        Whether its entries are close to the diagonal, so that their order is best left alone.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> P = SparseFactor(scipy.sparse.csc_array([[2.0, 0.0], [0.0, 4.0]]), narrow=True)
    >>> r = np.ones((1, 2))
    >>> P.apply(r, r)
    >>> r.tolist()
    [[0.5, 0.25]]
    """

    matrix: scipy.sparse.csc_array
    narrow: bool

    @cached_property
    def _factor(self) -> Any:
        from scipy.sparse.linalg import splu

        order = "NATURAL" if self.narrow else "MMD_AT_PLUS_A"
        symmetric = {"SymmetricMode": True}
        return splu(self.matrix, permc_spec=order, diag_pivot_thresh=0.0, options=symmetric)

    @property
    def exists(self) -> bool:
        """Whether the matrix has a factor: not if it is singular."""
        try:
            return self._factor is not None
        except RuntimeError:  # SuperLU's word for it
            return False

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        columns = np.ascontiguousarray(r.T)
        if is_complex(columns):
            found = self._factor.solve(columns.real.astype(np.float64))
            found = found + 1j * self._factor.solve(columns.imag.astype(np.float64))
        else:
            found = self._factor.solve(columns.astype(np.float64))
        out[...] = found.T


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
        along_one_axis = _is_narrow(rows.sparse)
    if not (along_one_axis or n_unknowns <= MOST_UNKNOWNS):
        return None
    gram, matrix = rows.gram_of(phi), rows.sparse
    if gram is None or matrix is None:
        return None
    weights = scipy.sparse.diags_array(noise_var * alpha.astype(np.float64))
    whole = scipy.sparse.csc_array(gram + matrix.T @ weights @ matrix)
    factor = SparseFactor(whole, along_one_axis)
    # Where neither data nor prior determine a direction, there is none; waves do without.
    return factor if factor.exists else None


def _is_narrow(matrix: scipy.sparse.csr_array | None) -> bool:
    """Tell whether the entries of each row are close to each other, as those of a filter along a series."""
    if matrix is None or matrix.nnz == 0:
        return False
    filled = np.flatnonzero(np.diff(matrix.indptr))
    starts, rows = matrix.indptr[filled], matrix.indices
    reach = np.maximum.reduceat(rows, starts) - np.minimum.reduceat(rows, starts)
    return int(reach.max()) <= NARROW
