"""`cofem.inverse_diagonal`: the diagonal of the inverse of any positive definite operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from cofem._arrays import as_array, to_numpy
from cofem._warn import warn
from cofem.linalg.banded_inverse import LEAST_BLOCK
from cofem.linalg.banded_inverse import inverse_diagonal as banded_inverse_diagonal
from cofem.linalg.cg import StopRule, conjugate_gradients
from cofem.linalg.probes import random_signs
from cofem.operators import Diagonal, Operator, as_operator
from cofem.status import ConvergenceWarning

#: Up to this side the matrix is written out and factored, and up to how many diagonals it counts as banded.
EXACT_SIDE, WIDEST_BAND = 2048, 128
#: Probes solved at once: the error is looked at after each batch.
BATCH = 16


class InverseDiagonal(NamedTuple):
    """The diagonal of an inverse, and how far it can be trusted.

    Attributes
    ----------
    values : ndarray of shape (D,)
        The diagonal of ``A^-1``.
    standard_error : ndarray of shape (D,)
        Its standard error; zero where it is exact.
    probes : int
        How many systems were solved; 0 where the matrix was factored.
    applications : int
        To how many vectors A was applied.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> found = cofem.inverse_diagonal(np.diag([1.0, 4.0, 16.0]))
    >>> found.values.tolist(), found.probes
    ([1.0, 0.25, 0.0625], 0)
    """

    values: np.ndarray
    standard_error: np.ndarray
    probes: int
    applications: int


def inverse_diagonal(
    A: Any,
    *,
    rtol: float = 0.05,
    diagonal: Any = None,
    max_probes: int = 1024,
    solve_tol: float = 1e-6,
    rng: int | np.random.Generator | None = None,
) -> InverseDiagonal:
    """Return the diagonal of the inverse of a positive definite operator.

    A matrix of up to 2048 rows, and one with few diagonals (SciPy sparse, up to 128 beside the main one), is
    factored: the answer is exact. Otherwise systems with random signs p are solved in batches, and
    ``p * A^-1 p``, whose mean is the diagonal, is averaged until its standard error is small enough (Bekas,
    Kokiopoulou and Saad 2007). The relative error of an entry falls with the root of the number of probes,
    and is the smaller the more ``A^-1`` is dominated by its diagonal. With the diagonal of A known, rows and
    columns are first scaled so that it is one, which matters where units differ.

    Parameters
    ----------
    A : array, sparse matrix, LinearOperator, PyLops or cofem operator, shape (D, D)
        Hermitian and positive definite.
    rtol : float
        Root mean square, over the entries, of their relative standard errors, at which to stop.
    diagonal : array of shape (D,), optional
        The diagonal of A, where it is known: it makes systems and probes better, and is a bound, since no
        entry of the answer is below ``1 / diagonal``. Matrices that are stored know it.
    max_probes : int
        Most probes. With fewer than `rtol` asks for, there is a `ConvergenceWarning`.
    solve_tol : float
        Residual at which a system counts as solved, relative to its right-hand side.
    rng : int or numpy.random.Generator, optional
        Source of the probes.

    Returns
    -------
    InverseDiagonal
        ``values``, ``standard_error``, ``probes`` and ``applications``.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> from cofem.operators import Convolution, Identity
    >>> blur = Convolution([0.25, 0.5, 0.25], 5000)
    >>> A = blur.H @ blur + Identity(5000)  # the same on every place of a ring
    >>> found = cofem.inverse_diagonal(A, rng=0)
    >>> spectrum = np.cos(np.pi * np.arange(5000) / 5000) ** 4
    >>> bool(abs(found.values.mean() / np.mean(1 / (1 + spectrum)) - 1) < 0.01), found.probes
    (True, 32)
    """
    operator = as_operator(A)
    if operator.shape[0] != operator.shape[1] or operator.shape[0] < 1:
        raise ValueError(f"A must be square, got shape {operator.shape}")
    if not 0 < rtol < np.inf:
        raise ValueError(f"rtol must be positive, got {rtol!r}")
    if max_probes < 2:
        raise ValueError(f"max_probes must be at least 2, got {max_probes!r}")
    generator = np.random.default_rng(rng)
    operator = operator.astype(np.float64)
    like = np.zeros(1, np.complex128 if operator.is_complex else np.float64)
    _check_hermitian(operator, like, generator)
    exact = _exact(operator)
    if exact is not None:
        return InverseDiagonal(exact, np.zeros_like(exact), 0, 0)
    known = _known_diagonal(operator) if diagonal is None else to_numpy(as_array(diagonal, "diagonal"))
    goal = Goal(rtol, max_probes, solve_tol)
    if known is None:
        return _from_probes(operator, goal, like, generator)
    inverse = 1 / _checked_diagonal(known, operator.shape[0])
    root = Diagonal(np.sqrt(inverse))
    found = _from_probes(root @ operator @ root, goal, like, generator)
    # No entry of the inverse of a matrix with a diagonal of ones is below one.
    values = inverse * np.maximum(found.values, 1.0)
    return found._replace(values=values, standard_error=inverse * found.standard_error)


class Goal(NamedTuple):
    """When probes are enough, and when a system is solved."""

    rtol: float
    max_probes: int
    solve_tol: float


def _from_probes(
    operator: Operator, goal: Goal, like: np.ndarray, rng: np.random.Generator
) -> InverseDiagonal:
    size = operator.shape[0]
    count, applications = 0, 0
    mean, squares = np.zeros(size), np.zeros(size)
    stop = StopRule(goal.solve_tol, max_iter=max(1000, 2 * size))
    while True:
        batch = min(BATCH, goal.max_probes - count)
        probes = random_signs((batch, size), like, rng)
        result = conjugate_gradients(operator.forward, probes.copy(), stop)
        applications += result.applications
        if result.broken.any():
            raise ValueError(f"A must be positive definite and finite: {result.report()}")
        if not result.converged.all():
            warn(f"systems are solved inexactly: {result.report()}", ConvergenceWarning)
        for each in np.real(np.conj(probes) * result.x):
            count += 1  # Welford's recursion
            away = each - mean
            mean += away / count
            squares += away * (each - mean)
        error = np.sqrt(squares / (count - 1) / count)
        # An entry whose estimate is no better than noise is measured by what is typical.
        least = np.median(np.abs(mean))
        reached = float(np.sqrt(np.mean((error / np.maximum(np.abs(mean), least)) ** 2)))
        if reached <= goal.rtol or count >= goal.max_probes:
            break
    if reached > goal.rtol:
        warn(
            f"max_probes={goal.max_probes} left a relative error of {reached:.2g} (rtol={goal.rtol:g})",
            ConvergenceWarning,
        )
    return InverseDiagonal(np.maximum(mean, np.finfo(float).tiny), error, count, applications)


def _exact(operator: Operator) -> np.ndarray | None:
    """Return the diagonal where a factor is cheap, else None."""
    size = operator.shape[0]
    bands = _bands(operator.sparse_matrix())
    if bands is not None:
        found = banded_inverse_diagonal(bands).real
        if not (np.isfinite(found).all() and (found > 0).all()):
            raise ValueError("A must be positive definite, but its inverse has a diagonal that is not")
        return found
    if size > EXACT_SIDE:
        return None
    try:
        factor = scipy.linalg.cholesky(to_numpy(operator.to_dense()), lower=True)
    except np.linalg.LinAlgError as error:
        raise ValueError("A must be positive definite, and has no Cholesky factor") from error
    inverse = scipy.linalg.solve_triangular(factor, np.eye(size), lower=True)
    return np.sum(np.abs(inverse) ** 2, axis=0)


def _bands(matrix: Any) -> np.ndarray | None:
    """Return the diagonals below the main one, on a ring, if they are few."""
    if matrix is None:
        return None
    size = matrix.shape[0]
    entries = scipy.sparse.coo_array(matrix)
    entries.sum_duplicates()
    rows, columns = entries.coords
    offset = (rows - columns) % size
    reach = int(np.minimum(offset, size - offset).max(initial=0))
    if reach > WIDEST_BAND or size < 3 * max(reach, LEAST_BLOCK):
        return None
    below = offset <= reach
    bands = np.zeros((reach + 1, size), entries.dtype)
    bands[offset[below], columns[below]] = entries.data[below]
    return bands


def _known_diagonal(operator: Operator) -> np.ndarray | None:
    sparse = operator.sparse_matrix()
    if sparse is not None:
        return sparse.diagonal()
    stored = operator.stored_matrix()
    return None if stored is None else np.diagonal(stored[0]) * stored[1]


def _checked_diagonal(diagonal: np.ndarray, size: int) -> np.ndarray:
    if diagonal.shape != (size,):
        raise ValueError(f"diagonal must have shape ({size},), got {diagonal.shape}")
    diagonal = np.real(diagonal).astype(np.float64)
    if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
        raise ValueError("diagonal must be positive and finite, as that of a positive definite A is")
    return diagonal


def _check_hermitian(operator: Operator, like: np.ndarray, rng: np.random.Generator) -> None:
    # Not signs, of which few are different where there are few rows.
    probe = rng.standard_normal((1, operator.shape[0])).astype(like.dtype)
    forward, adjoint = operator.forward(probe), operator.adjoint(probe)
    if not np.linalg.norm(forward - adjoint) <= 1e-6 * np.linalg.norm(forward):
        raise ValueError("A must be Hermitian and finite, but A x and A^H x differ for a random x")
