"""Exact moments and degrees of freedom of small problems in analysis form: the oracle of the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from cofem.linalg.factor import safe_cholesky

#: Eigenvalues of ``B^H diag(alpha) B`` below this, relative to the largest, belong to its null space.
NULL = 1e-12


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


def exact_moments(
    phi: np.ndarray, rows: np.ndarray, alpha: np.ndarray, noise_var: float, y: np.ndarray
) -> ExactMoments:
    """Return the moments of u in ``y = Phi u + noise``, whose prior has the precision ``B^H diag(alpha) B``.

    Parameters
    ----------
    phi : ndarray of shape (N, D)
        Phi.
    rows : ndarray of shape (M, D)
        B.
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
    >>> found = exact_moments(np.array([[1.0, 0.0]]), np.array([[-1.0, 1.0]]), np.array([4.0]), 0.5, np.ones((1, 1)))
    >>> found.mean.ravel().round(9).tolist(), found.variance.round(9).tolist(), found.row_variance.round(9).tolist()
    ([1.0, 1.0], [0.5, 0.75], [0.25])
    """
    matrix = phi.conj().T @ phi / noise_var + rows.conj().T @ (alpha[:, None] * rows)
    factor = safe_cholesky(matrix)
    mean = linalg.cho_solve((factor, True), phi.conj().T @ y / noise_var, check_finite=False)
    inverse = linalg.cho_solve((factor, True), np.eye(len(matrix)), check_finite=False)
    row_variance = np.sum((rows @ inverse * rows.conj()).real, axis=1)
    return ExactMoments(mean, np.diagonal(inverse).real.copy(), np.maximum(row_variance, 0.0), factor)


def exact_freedom(rows: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return ``alpha_i [B (B^H diag(alpha) B)^+ B^H]_ii``, shape (M,)."""
    scaled = np.sqrt(alpha.astype(np.float64))[:, None] * rows
    values, vectors = linalg.eigh(scaled.conj().T @ scaled, check_finite=False)
    kept = values > NULL * values[-1]
    projected = scaled @ (vectors[:, kept] / np.sqrt(values[kept]))
    return np.minimum(_energies(projected.T), 1.0).astype(alpha.dtype)


def _whitened(factor: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return linalg.solve_triangular(factor, columns, lower=True, check_finite=False)


def _energies(columns: np.ndarray) -> np.ndarray:
    return np.sum((columns.conj() * columns).real, axis=0)
