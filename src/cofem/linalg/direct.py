"""The posterior's linear systems through one Cholesky factor, where one side of Phi is small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

from cofem._arrays import conj
from cofem._blocks import blocks, vectors_at_once
from cofem.linalg.cg import CGResult
from cofem.linalg.factor import energy_of_columns, rank_update, safe_cholesky, solve_lower
from cofem.linalg.system import Solution
from cofem.operators import Operator

#: Smaller side of Phi up to which a factor may take the place of conjugate gradients: 32 MB, half a second.
EXACT_SIDE = 2048
#: Steps that conjugate gradients are taken to need for one right-hand side.
CG_STEPS = 50
#: Most vectors that Phi is applied to at once.
BATCH_VECTORS = 64
#: Columns of a stored matrix that are scaled and multiplied at once.
COLUMNS = 1024


def is_small(operator: Operator) -> bool:
    """Tell whether the smaller side of Phi allows a factor, and its products are NumPy's."""
    return operator.device_array is None and min(operator.shape) <= EXACT_SIDE


def is_cheaper(operator: Operator, count: int) -> bool:
    """Tell whether a factor costs fewer products with Phi than conjugate gradients for `count` systems."""
    return is_small(operator) and CG_STEPS * count >= min(operator.shape)


class DirectSystem:
    """``A = Phi^H Phi / noise_var + diag(alpha)``, factored through the smaller side of Phi.

    Parameters
    ----------
    phi : Operator
        Shape (N, D), on NumPy arrays.
    alpha : ndarray of shape (D,)
        Prior precisions, positive.
    noise_var : float
        Noise variance.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> system = DirectSystem(Dense(np.ones((1, 2))), np.ones(2), 1.0)
    >>> system.solve(v=np.array([[3.0]]))
    array([[1., 1.]])
    >>> np.round(system.variance(np.array([[1.0, 0.0]])), 6)
    array([0.666667])
    """

    def __init__(self, phi: Operator, alpha: np.ndarray, noise_var: float) -> None:
        self.phi, self.alpha, self.noise_var = phi, alpha, noise_var
        n_rows, n_columns = phi.shape
        at_once = min(BATCH_VECTORS, vectors_at_once(max(phi.shape)))
        self._by_columns = n_columns <= n_rows
        if self._by_columns:  # A itself
            matrix = _as_matrix(lambda units: phi.gram(units) / noise_var, n_columns, at_once, phi.dtype)
            matrix[np.diag_indices(n_columns)] += alpha
        elif (stored := phi.stored_matrix()) is not None:
            matrix = covariance_of_data(*stored, 1 / alpha, noise_var)
        else:
            matrix = _as_matrix(
                lambda units: phi.forward(phi.adjoint(units) / alpha), n_rows, at_once, phi.dtype
            )
            matrix[np.diag_indices(n_rows)] += noise_var
        self._factor = safe_cholesky(matrix)

    def solve(self, v: np.ndarray | None = None, b: np.ndarray | None = None) -> np.ndarray:
        """Return ``A^-1 Phi^H v / noise_var`` or ``A^-1 b`` for each row.

        Parameters
        ----------
        v : ndarray of shape (B, N)
            Data-side right-hand sides, or
        b : ndarray of shape (B, D)
            coefficient-side right-hand sides.

        Returns
        -------
        ndarray of shape (B, D)
        """
        if v is not None:
            if self._by_columns:
                return self._through_factor(self.phi.adjoint(v) / self.noise_var)
            return self.phi.adjoint(self._through_factor(v)) / self.alpha
        assert b is not None
        if self._by_columns:
            return self._through_factor(b)
        prior = b / self.alpha
        return prior - self.phi.adjoint(self._through_factor(self.phi.forward(prior))) / self.alpha

    def solution(self, v: np.ndarray | None, b: np.ndarray | None) -> Solution:
        """Solve for both kinds of right-hand sides, as `PosteriorSystem.solve` does; v comes first.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> system = DirectSystem(Dense(np.ones((1, 2))), np.ones(2), 1.0)
        >>> system.solution(np.array([[3.0]]), np.eye(2)[:1]).x.round(3).tolist()
        [[1.0, 1.0], [0.667, -0.333]]
        """
        parts = [] if v is None else [self.solve(v=v).astype(v.dtype)]
        parts += [] if b is None else [self.solve(b=b).astype(b.dtype)]
        x = np.concatenate(parts)
        broken = ~np.isfinite(x).all(axis=1)
        none = np.zeros(len(x))
        return Solution(x, None, CGResult(x, none.astype(int), ~broken, broken, none, 0))

    def variance(self, rows: np.ndarray) -> np.ndarray:
        """Return ``x A^-1 x^H`` for each row x, shape (B, D): the variance of ``x z``; shape (B,)."""
        columns = conj(rows)
        if self._by_columns:
            return energy_of_columns(self._whiten(columns))
        prior = columns / self.alpha
        known = energy_of_columns(self._whiten(self.phi.forward(prior)))
        return np.maximum(np.sum((rows * prior).real, axis=1) - known, 0.0)

    def _whiten(self, rows: np.ndarray) -> np.ndarray:
        return solve_lower(self._factor, rows.T)

    def _through_factor(self, rows: np.ndarray) -> np.ndarray:
        return linalg.cho_solve((self._factor, True), rows.T, check_finite=False).T


def covariance_of_data(
    matrix: np.ndarray, scalar: float | complex, g: np.ndarray, noise_var: float
) -> np.ndarray:
    """Return the lower triangle of ``C = noise_var I + |scalar|^2 M diag(g) M^H``, in double precision.

    By updates of rank `COLUMNS`, so that the matrix is never copied as a whole.

    Parameters
    ----------
    matrix : ndarray of shape (N, D)
        The matrix M.
    scalar : number
        What it is multiplied by.
    g : ndarray of shape (D,)
        Prior variances.
    noise_var : float
        Noise variance.

    Returns
    -------
    ndarray of shape (N, N), in Fortran order; what is above the diagonal is undefined

    Examples
    --------
    >>> import numpy as np
    >>> np.tril(covariance_of_data(np.eye(2), 2.0, np.array([1.0, 2.0]), 0.5))
    array([[4.5, 0. ],
           [0. , 8.5]])
    """
    n_rows, n_columns = matrix.shape
    kind = np.complex128 if np.iscomplexobj(matrix) else np.float64
    update, transposed = rank_update(kind)
    total = np.zeros((n_rows, n_rows), dtype=kind, order="F")
    root = abs(scalar) * np.sqrt(g.astype(np.float64))
    for part in blocks(n_columns, COLUMNS):
        # The transpose of a matrix in C order is one in Fortran order, and needs no copy.
        scaled = (matrix[:, part] * root[part]).conj()
        total = update(1.0, scaled.T, beta=1.0, c=total, trans=transposed, lower=1, overwrite_c=1)
    total[np.diag_indices(n_rows)] += noise_var
    return total


def _as_matrix(
    apply: Callable[[np.ndarray], np.ndarray], size: int, at_once: int, dtype: np.dtype
) -> np.ndarray:
    """Write out a Hermitian matrix, given by what it does to rows."""
    blocks = np.array_split(np.eye(size, dtype=dtype), -(-size // at_once))
    # Row i of the images is column i of the matrix.
    return np.concatenate([apply(units) for units in blocks]).conj()
