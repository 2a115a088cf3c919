"""Exact moments and degrees of freedom of small problems in analysis form: the oracle of the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy import linalg

from cofem.linalg.factor import safe_cholesky

#: Eigenvalues of ``B^H diag(alpha) B`` below this, relative to the largest, belong to its null space.
NULL = 1e-11
#: Pivots of a Cholesky factor, relative to the largest entry, below which eigenvalues are looked at.
SMALL_PIVOT = 1e-10
#: Eigenvalues, relative to the largest, that are rounding.
ROUNDING = 1e-13


class ExactMoments(NamedTuple):
    """Posterior moments of the unknown and of the rows.

    Attributes
    ----------
    mean : ndarray of shape (D, L)
    variance : ndarray of shape (D,)
        Of the unknown.
    row_variance : ndarray of shape (M,)
        Of ``B u``.
    factor : ndarray of shape (D, D)
        Lower Cholesky factor of A.
    """

    mean: np.ndarray
    variance: np.ndarray
    row_variance: np.ndarray
    factor: np.ndarray

    def variance_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the variances of ``x u`` for rows x, shape (B, D)."""
        return _energies(_whitened(self.factor, rows.conj().T))


def exact_moments(phi: Any, rows: Any, alpha: np.ndarray, noise_var: float, y: np.ndarray) -> ExactMoments:
    """Return the moments of u in ``y = Phi u + noise``, whose prior has the precision ``B^H diag(alpha) B``.

    Parameters
    ----------
    phi : ndarray or sparse array of shape (N, D)
        Phi.
    rows : ndarray or sparse array of shape (M, D)
        B. Differences as a sparse array take a tenth of the time.
    alpha : ndarray of shape (M,)
        Precisions of ``B u``.
    noise_var : float
        Noise variance.
    y : ndarray of shape (N, L)
        Data.

    Examples
    --------
    Two samples, of which the first is seen, and a difference between them:

    >>> import numpy as np
    >>> phi, rows, alpha = np.array([[1.0, 0.0]]), np.array([[-1.0, 1.0]]), np.array([4.0])
    >>> found = exact_moments(phi, rows, alpha, 0.5, np.ones((1, 1)))
    >>> [x.ravel().round(9).tolist() for x in (found.mean, found.variance, found.row_variance)]
    [[1.0, 1.0], [0.5, 0.75], [0.25]]
    """
    factor = safe_cholesky(_gram(phi, np.full(phi.shape[0], 1 / noise_var)) + _gram(rows, alpha))
    mean = linalg.cho_solve((factor, True), phi.conj().T @ y / noise_var, check_finite=False)
    inverse, _ = linalg.lapack.get_lapack_funcs("potri", (factor,))(factor, lower=1)
    inverse = np.tril(inverse)
    inverse += np.tril(inverse, -1).conj().T
    row_variance = _forms(rows, inverse)
    return ExactMoments(mean, np.diagonal(inverse).real.copy(), np.maximum(row_variance, 0.0), factor)


def exact_freedom(rows: np.ndarray, alpha: np.ndarray, rank: int) -> np.ndarray:
    """Return ``alpha_i [B (B^H diag(alpha) B)^+ B^H]_ii``, shape (M,), for a B of known rank.

    Where precisions are so far apart that eigenvalues are lost in rounding, an orthogonal factor is taken,
    with the largest rows first, which keeps the small ones accurate; it takes five times as long.
    """
    if rank == len(rows):
        return np.ones_like(alpha)
    wide = alpha.astype(np.float64)
    scaled = np.sqrt(wide / wide.max())[:, None] * rows
    values, vectors = linalg.eigh(scaled.conj().T @ scaled, check_finite=False)
    kept = values > NULL * values[-1]
    if kept.sum() == rank:
        found = _energies((scaled @ (vectors[:, kept] / np.sqrt(values[kept]))).T)
    else:
        order = np.argsort(-_energies(scaled.T))
        factor, _, _ = linalg.qr(scaled[order], mode="economic", pivoting=True, check_finite=False)
        found = np.empty(len(rows))
        found[order] = _energies(factor[:, :rank].T)
    return np.minimum(found, 1.0).astype(alpha.dtype)


def common_null_space(phi: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Return an orthonormal basis of what neither Phi nor B see, shape (D, K); None if they see all.

    Examples
    --------
    >>> common_null_space(np.array([[1.0, 0.0, -1.0]]), np.diff(np.eye(3), axis=0)).round(3).tolist()
    [[0.577], [0.577], [0.577]]
    """
    gram = np.zeros((rows.shape[1],) * 2)
    for matrix in (phi, rows):
        gram = gram + matrix.conj().T @ (matrix / max(float(np.sum(np.abs(matrix) ** 2)), 1e-300))
    try:
        pivots = np.diagonal(linalg.cholesky(gram, lower=True, check_finite=False)).real ** 2
        if pivots.min() > SMALL_PIVOT * np.diagonal(gram).real.max():
            return None
    except linalg.LinAlgError:
        pass
    values, vectors = linalg.eigh(gram, check_finite=False)
    found = values < ROUNDING * values[-1]
    if not found.any():
        return None
    basis: np.ndarray = vectors[:, found] * np.sign(np.sum(vectors[:, found], axis=0).real + 1e-300)
    return basis


def _gram(matrix: Any, weights: np.ndarray) -> np.ndarray:
    """Return ``X^H diag(weights) X``, dense."""
    if scipy.sparse.issparse(matrix):
        return (matrix.conj().T @ (scipy.sparse.diags_array(weights) @ matrix)).toarray()
    scaled = np.sqrt(weights)[:, None] * matrix  # of X^T X, NumPy computes one half
    found: np.ndarray = scaled.conj().T @ scaled
    return found


def _forms(rows: Any, matrix: np.ndarray) -> np.ndarray:
    """Return ``x A x^H`` for rows x and a Hermitian matrix A, shape (M,)."""
    if not scipy.sparse.issparse(rows):
        return np.sum((rows @ matrix * rows.conj()).real, axis=1)
    entries = rows.tocoo()
    products = (rows @ matrix)[entries.row, entries.col] * entries.data.conj()
    return np.bincount(entries.row, weights=products.real, minlength=rows.shape[0])


def _whitened(factor: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return linalg.solve_triangular(factor, columns, lower=True, check_finite=False)


def _energies(columns: np.ndarray) -> np.ndarray:
    return np.sum((columns.conj() * columns).real, axis=0)
