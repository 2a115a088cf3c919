"""The posterior's linear systems through one Cholesky factor, where one side of Phi is small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg
from scipy.linalg import blas

from cofem._arrays import conj, squared_modulus
from cofem.operators import Dense, Operator
from cofem.operators.compose import Scaled

#: Smaller side of Phi up to which a factor may take the place of conjugate gradients: 32 MB, half a second.
EXACT_SIDE = 2048
#: Steps that conjugate gradients are taken to need for one right-hand side.
CG_STEPS = 50
#: Numbers in one batch of vectors that Phi is applied to, and how many vectors at the most.
BATCH, BATCH_VECTORS = 2**22, 64
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
        at_once = max(1, min(BATCH_VECTORS, BATCH // max(phi.shape)))
        self._by_columns = n_columns <= n_rows
        if self._by_columns:  # A itself
            matrix = _as_matrix(lambda units: phi.gram(units) / noise_var, n_columns, at_once, phi.dtype)
            matrix[np.diag_indices(n_columns)] += alpha
        elif (stored := _stored_matrix(phi)) is not None:
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

    def variance(self, rows: np.ndarray) -> np.ndarray:
        """Return ``x A^-1 x^H`` for each row x, shape (B, D): the variance of ``x z``; shape (B,)."""
        columns = conj(rows)
        if self._by_columns:
            return _energies(self._whiten(columns))
        prior = columns / self.alpha
        known = _energies(self._whiten(self.phi.forward(prior)))
        return np.maximum(np.sum((rows * prior).real, axis=1) - known, 0.0)

    def _whiten(self, rows: np.ndarray) -> np.ndarray:
        return linalg.solve_triangular(self._factor, rows.T, lower=True, check_finite=False)

    def _through_factor(self, rows: np.ndarray) -> np.ndarray:
        return linalg.cho_solve((self._factor, True), rows.T, check_finite=False).T


def _stored_matrix(operator: Operator) -> tuple[np.ndarray, float | complex] | None:
    """Return the NumPy matrix that an operator stores and the number it is multiplied by; None if none.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import DCT, Dense
    >>> matrix, scalar = _stored_matrix(2 * Dense(np.eye(2)))
    >>> matrix.tolist(), float(scalar)
    ([[1.0, 0.0], [0.0, 1.0]], 2.0)
    >>> _stored_matrix(DCT(4)) is None
    True
    """
    scalar: float | complex = 1.0
    if isinstance(operator, Scaled):
        scalar, operator = operator.scalar, operator.operator
    if isinstance(operator, Dense) and isinstance(operator.array, np.ndarray):
        return operator.array, scalar
    return None


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
    for start in range(0, n_columns, COLUMNS):
        part = slice(start, min(start + COLUMNS, n_columns))
        # The transpose of a matrix in C order is one in Fortran order, and needs no copy.
        scaled = (matrix[:, part] * root[part]).conj()
        total = update(1.0, scaled.T, beta=1.0, c=total, trans=transposed, lower=1, overwrite_c=1)
    total[np.diag_indices(n_rows)] += noise_var
    return total


# NumPy and SciPy each bring a BLAS of their own, whose threads stay on the processor for a while when done.
# Products of the one between factors of the other then wait for a core: steps of `irls` took 23 ms in
# place of 5 ms (N = 205, D = 1024, two cores). So what goes with a factor goes through SciPy's.


def rank_update(dtype: Any) -> tuple[Callable[..., np.ndarray], int]:
    """Return SciPy's function for ``A A^H``, one triangle of it, and its code for ``A^H A``.

    Examples
    --------
    >>> import numpy as np
    >>> update, adjoint = rank_update(np.float64)
    >>> np.tril(update(1.0, np.array([[1.0, 2.0]]), trans=adjoint, lower=1)).tolist()
    [[1.0, 0.0], [2.0, 4.0]]
    """
    return (blas.zherk, 2) if np.dtype(dtype).kind == "c" else (blas.dsyrk, 1)


def product(a: np.ndarray, b: np.ndarray, adjoint: bool = False) -> np.ndarray:
    """Return ``a b``, or ``a^H b``, of two matrices in double precision; `a` is not copied.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> product(a, np.eye(2)[:, :1]).tolist(), product(a, np.eye(2)[:, :1], adjoint=True).tolist()
    ([[1.0], [3.0]], [[1.0], [2.0]])
    """
    gemm = blas.get_blas_funcs("gemm", (a, b))
    if not a.flags.c_contiguous:
        return gemm(1.0, a, b, trans_a=2 if adjoint else 0)
    # In Fortran's order, what is stored is the transpose.
    return conj(gemm(1.0, a.T, conj(b))) if adjoint else gemm(1.0, a.T, b, trans_a=1)


def safe_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a covariance; what rounding took from its diagonal is put back.

    Examples
    --------
    >>> import numpy as np
    >>> bool(np.isfinite(safe_cholesky(np.ones((3, 3)) - 1e-16 * np.eye(3))).all())
    True
    """
    try:
        return linalg.cholesky(matrix, lower=True, check_finite=False)
    except linalg.LinAlgError:
        diagonal = np.diagonal(matrix).real
        rest = matrix.shape[0] * np.finfo(np.float64).eps * float(diagonal.max())
        return linalg.cholesky(matrix + rest * np.eye(len(matrix)), lower=True, check_finite=False)


def _as_matrix(
    apply: Callable[[np.ndarray], np.ndarray], size: int, at_once: int, dtype: np.dtype
) -> np.ndarray:
    """Write out a Hermitian matrix, given by what it does to rows."""
    blocks = np.array_split(np.eye(size, dtype=dtype), -(-size // at_once))
    # Row i of the images is column i of the matrix.
    return np.concatenate([apply(units) for units in blocks]).conj()


def _energies(columns: np.ndarray) -> np.ndarray:
    return np.sum(squared_modulus(columns), axis=0)
