"""Factors of small Hermitian matrices on any array library, by SciPy's LAPACK for NumPy arrays.

NumPy and SciPy each bring a BLAS of their own, whose threads stay on the processor for a while when done.
Products of the one between factors of the other then wait for a core: steps of `irls` took 23 ms in place of
5 ms (N = 205, D = 1024, two cores). So what goes with a factor goes through SciPy's. That does not help where
others, such as the caller, have just used NumPy's: a factor of 150 x 150 then takes 8 ms in place of 0.07. So
small ones are left to one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np
from scipy import linalg
from scipy.linalg import blas, lapack

from cofem._arrays import Array, conj, is_complex, namespace, squared_modulus

#: Side of a matrix up to which one thread is the better choice: steps of `irls` and `em` are up to three
#: times as fast where it is 100 to 300. From 500 on they take 1.1 to 1.3 times as long.
ONE_THREAD = 300


def hermitian_product(a: Array, scale: float = 1.0, adjoint: bool = False) -> Array:
    """Return ``scale a a^H``, or ``scale a^H a``; only its lower triangle counts.

    Examples
    --------
    >>> import numpy as np
    >>> np.tril(hermitian_product(np.array([[1.0, 2.0]]), adjoint=True)).tolist()
    [[1.0, 0.0], [2.0, 4.0]]
    """
    if isinstance(a, np.ndarray):
        update, code = rank_update(a.dtype)
        return update(scale, a, trans=code if adjoint else 0, lower=1)
    return scale * (conj(a).T @ a if adjoint else a @ conj(a).T)


def add_to_diagonal(matrix: Array, number: float) -> Array:
    """Return a matrix with a number added to its diagonal, in place where the library can."""
    if isinstance(matrix, np.ndarray):
        matrix[np.diag_indices_from(matrix)] += number
        return matrix
    identity = namespace(matrix).eye(
        matrix.shape[0], dtype=matrix.dtype, device=array_api_compat.device(matrix)
    )
    return matrix + number * identity


def cholesky(matrix: Array) -> Array:
    """Return the lower Cholesky factor of a matrix whose lower triangle counts, and which is overwritten.

    Examples
    --------
    >>> import numpy as np
    >>> cholesky(np.array([[4.0, 0.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    if isinstance(matrix, np.ndarray):
        return linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    try:
        return namespace(matrix).linalg.cholesky(matrix)
    except RuntimeError as error:  # PyTorch's own kind
        raise np.linalg.LinAlgError(str(error)) from error


def inverse_of_lower(factor: Array) -> Array:
    """Return the inverse of a lower triangular matrix, which may be overwritten."""
    if isinstance(factor, np.ndarray):
        return LAPACK[factor.dtype.kind][2](factor, lower=1, overwrite_c=1)[0]
    return namespace(factor).linalg.inv(factor)


def solve_lower(factor: Array, b: Array) -> Array:
    """Solve ``factor x = b`` for a lower triangular factor and the columns of b.

    Examples
    --------
    >>> import numpy as np
    >>> solve_lower(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 4.0], [1.0, 5.0]])).tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    if isinstance(factor, np.ndarray):
        if not b.flags.c_contiguous or b.ndim != 2:
            return linalg.solve_triangular(factor, b, lower=True, check_finite=False)
        # ``x^T factor^T = b^T``: what LAPACK would copy to Fortran's order, and back, is in it as it is.
        solve = blas.get_blas_funcs("trsm", (factor, b))
        return solve(1.0, factor, b.T, side=1, lower=1, trans_a=1).T
    return namespace(factor).linalg.solve(factor, b)


def energy_of_columns(matrix: Array) -> Array:
    """Return the sum of ``|.|^2`` along each column.

    Examples
    --------
    >>> import numpy as np
    >>> energy_of_columns(np.array([[1.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 4.0]
    """
    if isinstance(matrix, np.ndarray):
        if not np.iscomplexobj(matrix):
            return np.einsum("ij,ij->j", matrix, matrix)
        return sum(np.einsum("ij,ij->j", part, part) for part in (matrix.real, matrix.imag))
    return namespace(matrix).sum(squared_modulus(matrix), axis=0)


#: BLAS's products of matrices, and LAPACK's factor, solver and inverse of triangles, in
#: double precision by the kind of number: looking them up takes as long as using them on a matrix of 20 x 20.
GEMM = {"f": blas.dgemm, "c": blas.zgemm}
LAPACK = {
    "f": (lapack.dpotrf, lapack.dpotrs, lapack.dtrtri),
    "c": (lapack.zpotrf, lapack.zpotrs, lapack.ztrtri),
}


def solve_factored(factor: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve ``factor factor^H x = b`` for the columns of b, all in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> solve_factored(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[4.0], [2.0]])).tolist()
    [[1.0], [0.0]]
    """
    kind = "c" if is_complex(b) else factor.dtype.kind
    x, _ = LAPACK[kind][1](factor, b, lower=1)
    return x


def safe_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a covariance; what rounding took from its diagonal is put back.

    Examples
    --------
    >>> import numpy as np
    >>> bool(np.isfinite(safe_cholesky(np.ones((3, 3)) - 1e-16 * np.eye(3))).all())
    True
    """
    factor, failed = LAPACK[matrix.dtype.kind][0](matrix, lower=1, clean=1)
    if not failed:
        return factor
    rest = matrix.shape[0] * np.finfo(np.float64).eps * float(np.diagonal(matrix).real.max())
    return linalg.cholesky(matrix + rest * np.eye(len(matrix)), lower=True, check_finite=False)


def factors_above_identity(matrices: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factors of the identity plus Gram matrices, shape (n, b, b).

    Where entries of a Gram matrix are known on the average only, it may have negative eigenvalues: these are
    made up for on all of the diagonal, so that a pivot may be larger than that of a column by itself.

    Examples
    --------
    >>> import numpy as np
    >>> gram = np.array([[[1.0, -3.0], [-3.0, 1.0]], [[1.0, 0.0], [0.0, 8.0]]])
    >>> factors_above_identity(np.eye(2) + gram).round(3).tolist()
    [[[2.0, 0.0], [-1.5, 1.323]], [[1.414, 0.0], [0.0, 3.0]]]
    """
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        size = matrices.shape[-1]
        missing = np.maximum(1 - np.linalg.eigvalsh(matrices)[:, 0], 0)
        return np.linalg.cholesky(matrices + missing[:, None, None] * np.eye(size))


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
    gemm = GEMM["c" if "c" in (a.dtype.kind, b.dtype.kind) else "f"]
    if not a.flags.c_contiguous:
        return gemm(1.0, a, b, trans_a=2 if adjoint else 0)
    # In Fortran's order, what is stored is the transpose.
    return conj(gemm(1.0, a.T, conj(b))) if adjoint else gemm(1.0, a.T, b, trans_a=1)
