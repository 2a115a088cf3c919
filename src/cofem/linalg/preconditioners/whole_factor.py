"""A factor of a system in analysis form, where conjugate gradients take long.

Where a hole is in a picture, a few smooth directions are hundreds of steps away; where precisions are ten
orders of magnitude apart, all of them are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import scipy.sparse
from scipy.linalg import cho_solve

from cofem._arrays import Array
from cofem.linalg.factor import safe_cholesky
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.sparse_factor import SparseFactor
from cofem.operators.dictionary import Dictionary

#: Unknowns of sparse systems up to which they have a factor: along up to two axes, and along more, where it
#: fills up.
MOST_ON_PLANES, MOST_IN_SPACE = 2**18, 2**13
#: Unknowns, and entries of Phi and B, up to which others have one.
MOST_FULL, MOST_ENTRIES = 2**11, 2**24
#: Steps that a factor takes the place of. Pictures of which data see places all over take 8 to 25, those with
#: holes hundreds; a factor of 64 x 64 pixels takes as long as 100 of them, of 256 x 256 as long as 130. Of
#: full matrices it takes as long as 20 (a frame with 31 rows for each unknown), 30 to 50 (dense Phi) and 1000
#: (cosine transforms of 1024): counted by operations, of which a factor does more in a second.
STEPS_ON_PLANES, STEPS_IF_FULL, FAST, BLAS = 60, (20, 400), 64, 8
#: What is added to the diagonal of a singular matrix, relative to its largest entry.
LITTLE = 1e-12


@dataclass(frozen=True)
class FullFactor(PosteriorPreconditioner):
    """The inverse of a positive definite matrix, by its Cholesky factor.

    Attributes
    ----------
    lower : ndarray of shape (D, D)
        The factor.

    Examples
    --------
    >>> P = FullFactor(np.diag([1.0, 2.0]))
    >>> r = np.ones((1, 2))
    >>> P.apply(r, r)
    >>> r.tolist()
    [[1.0, 0.25]]
    """

    lower: np.ndarray

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        out[...] = cho_solve((self.lower, True), r.T, check_finite=False).T


def patience(phi: Dictionary, rows: Any, alpha: Array) -> int | None:
    """Return the steps of conjugate gradients that a factor takes the place of; None if there is none.

    It is worth about as many as take its time, without making anything to know that. See `whole_factor`.
    """
    if not may_factor(phi, rows, alpha):
        return None
    size, n_rows = phi.shape[1], rows.n_rows
    if phi.operator.facts.one_per_row and rows.grid is not None:
        return STEPS_ON_PLANES
    entries = 2 * phi.shape[0] * size if phi.operator.precision is not None else FAST * (phi.shape[0] + size)
    step = 2 * entries + FAST * n_rows
    return int(np.clip((size**3 / 3 + 2 * n_rows * size) / (BLAS * step), *STEPS_IF_FULL))


def may_factor(phi: Dictionary, rows: Any, alpha: Array) -> bool:
    """Tell whether there may be a factor, without making anything; see `whole_factor`."""
    if not isinstance(alpha, np.ndarray):
        return False
    size, entries = phi.shape[1], max(prod(phi.shape), prod(rows.operator.shape))
    if size <= MOST_FULL and entries <= MOST_ENTRIES:
        return True
    most = MOST_ON_PLANES if rows.grid is not None and len(rows.axes) <= 2 else MOST_IN_SPACE
    return size <= most and phi.operator.facts.one_per_row


def a_little_larger(factor: SparseFactor) -> SparseFactor:
    """Return the factor of a singular matrix with a little on its diagonal."""
    return factor.larger(LITTLE)


def whole_factor(
    phi: Dictionary, rows: Any, alpha: np.ndarray, noise_var: float
) -> PosteriorPreconditioner | None:
    """Return a factor of ``Phi^H Phi + noise_var B^H diag(alpha) B``, made a little larger if it is singular.

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
    data, is_sparse = rows.gram_of(phi), rows.sparse is not None
    if not (phi.shape[1] <= MOST_FULL or (data is not None and is_sparse)):
        return None
    prior = rows.weighted_gram(noise_var * alpha.astype(np.float64))
    if data is not None and is_sparse:
        factor = SparseFactor(scipy.sparse.csc_array(data + prior))
        factor = factor if factor.exists else a_little_larger(factor)
        return factor if factor.exists else None
    whole = np.asarray(rows.full_gram_of(phi) + prior)
    if not np.isfinite(whole).all():
        return None
    try:
        return FullFactor(safe_cholesky(whole))
    except np.linalg.LinAlgError:
        return None
