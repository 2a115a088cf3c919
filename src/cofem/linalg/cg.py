"""Batched preconditioned conjugate gradients with a stop for each right-hand side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import linalg

from cofem._arrays import (
    Array,
    is_torch,
    multiply_into,
    namespace,
    on_device_of,
    precision_of,
    real_dot,
    take,
)
from cofem._blocks import CACHE_BLOCK, blocks

#: The measure is not evaluated while the residual says that it is still this many times its tolerance.
FAR = 1.5
#: But it is evaluated at least every so many steps (and never before a system may stop).
LOOK_EVERY = 6
#: Systems that are asked how slow they are, and how much more than the largest error that an earlier residual
#: stood for may be behind this one: 1 to 3.7 times as much on holes, masks and samples of transforms.
MOST_ASKED, STILL_MORE = 2, 4.0


class Progress(NamedTuple):
    """What a stopping measure may read about the systems that are still iterating.

    Attributes
    ----------
    residual : array of shape (B, n)
        ``b - A x``.
    energy : ndarray of shape (B,)
        Squared energy norm of all steps together; ``||x||_A^2`` when started from zero.
    rows : ndarray of int
        Which right-hand sides these are.
    preconditioned : ndarray of shape (B,)
        Squared norm of the residual, in that of the preconditioner's inverse.
    lengths, ratios : list of ndarray
        How far each step went, and what the last direction had a share of in the next, for each right-hand
        side from the first one on.
    """

    residual: Array
    energy: np.ndarray
    rows: np.ndarray
    preconditioned: np.ndarray
    lengths: list[np.ndarray]
    ratios: list[np.ndarray]

    def slowness(self) -> float:
        """Return about how large the squared energy of errors is, relative to `preconditioned`.

        The inverse of the smallest eigenvalue of the preconditioned matrix is a bound. Lanczos' tridiagonal
        matrix, which the steps say, has one that falls towards it (Golub and Van Loan 2013, 11.3.3). What
        earlier residuals stood for, as later steps gained it, is often far less (Meurant, Papez and Tichy
        2021). A few systems are asked, since they have the matrix in common.
        """
        if not self.lengths:
            return 1.0
        some = self.rows[:MOST_ASKED]
        lengths, ratios = np.array(self.lengths)[:, some], np.array(self.ratios)[:, some]
        diagonal = 1 / lengths
        diagonal[1:] += ratios[:-1] / lengths[:-1]
        beside = np.sqrt(ratios[:-1]) / lengths[:-1]
        bounds = [1 / _smallest_eigenvalue(*each) for each in zip(diagonal.T, beside.T, strict=True)]
        # Relative to the residual now; each step gains its length times the residual before it.
        residuals = np.cumprod(1 / ratios[::-1], axis=0)
        gained = np.cumsum(lengths[::-1] * residuals, axis=0)
        found = np.minimum(bounds, STILL_MORE * np.max(gained / residuals, axis=0))
        return float(np.nanmax(found, initial=1.0))


class Measure(Protocol):
    """An error measure: one non-negative number for each system still iterating."""

    def __call__(self, progress: Progress) -> np.ndarray:
        """Return the error of each system; it is solved once this is at most its tolerance."""


class Preconditioner(Protocol):
    """An approximate inverse of the matrix, Hermitian and positive definite."""

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, n)."""


class StopRule(NamedTuple):
    """When a solve is done.

    Attributes
    ----------
    tol : float or ndarray of shape (B,)
        A system is solved once `measure` is at most this.
    max_iter : int
        At most so many steps.
    min_iter : int
        At least so many, unless the residual is exactly zero: a warm start that already meets the tolerance
        would otherwise come back unchanged.
    measure : Measure, optional
        The error that is compared with `tol`; by default the residual relative to the initial one.
    """

    tol: float | np.ndarray
    max_iter: int
    min_iter: int = 0
    measure: Measure | None = None


@dataclass(frozen=True)
class CGResult:
    """Solution and account of one batched solve.

    Attributes
    ----------
    x : array of shape (B, n)
        The solutions.
    iterations : ndarray of int, shape (B,)
        Steps each system took.
    converged : ndarray of bool, shape (B,)
        Whether each system met its tolerance.
    broken : ndarray of bool, shape (B,)
        Systems whose step was not finite or met a direction of non-positive curvature; they
        keep the last finite iterate.
    error : ndarray of shape (B,)
        The stopping measure at the end.
    applications : int
        Number of vectors the matrix was applied to.
    """

    x: Array
    iterations: np.ndarray
    converged: np.ndarray
    broken: np.ndarray
    error: np.ndarray
    applications: int

    def report(self) -> str:
        """Say in words how the solve ended."""
        if self.converged.all():
            return f"all {self.converged.size} systems solved in at most {self.iterations.max()} steps"
        words = []
        short = ~self.converged & ~self.broken
        if short.any():
            words.append(
                f"{short.sum()} of {short.size} systems ran out of steps after "
                f"{self.iterations[short].max()} (worst error {self.error[short].max():.2g})"
            )
        if self.broken.any():
            words.append(
                f"{self.broken.sum()} of {self.broken.size} systems broke down: the operator returned "
                "non-finite values, or is not positive definite in this precision"
            )
        return "; ".join(words)


def join_results(results: Sequence[CGResult]) -> CGResult:
    """Put the accounts of several batches together as one; the solutions are not, ``x`` is None."""
    return CGResult(
        None,
        np.concatenate([result.iterations for result in results]),
        np.concatenate([result.converged for result in results]),
        np.concatenate([result.broken for result in results]),
        np.concatenate([result.error for result in results]),
        sum(result.applications for result in results),
    )


def relative_residual(b: Array) -> Measure:
    """Measure ``||r||_2 / ||b||_2`` of each system."""
    size = np.sqrt(real_dot(b, b))
    size[size == 0] = 1.0

    def measure(progress: Progress) -> np.ndarray:
        return np.sqrt(real_dot(progress.residual, progress.residual)) / size[progress.rows]

    return measure


def frobenius_residual(b: Array) -> Measure:
    """Measure ``||A X - B||_F / ||B||_F``: the paper's, one number shared by all systems."""
    size = np.sqrt(real_dot(b, b).sum()) or 1.0

    def measure(progress: Progress) -> np.ndarray:
        error = np.sqrt(real_dot(progress.residual, progress.residual).sum()) / size
        return np.full(progress.rows.size, error)

    return measure


# Values that are not finite are looked for and reported as broken systems, not warned about one by one.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def conjugate_gradients(
    apply: Callable[[Array], Array],
    residual: Array,
    stop: StopRule,
    *,
    preconditioner: Preconditioner | None = None,
    x0: Array | None = None,
) -> CGResult:
    """Solve ``A x = b`` for a batch of right-hand sides, A Hermitian positive definite.

    Each system stops by itself and leaves the batch when it does, so that later applications
    of A cost only what is still needed. The vectors that are iterated on are the caller's own:
    `residual` and `x0` are overwritten.

    Parameters
    ----------
    apply : callable
        ``(B', n) -> (B', n)``, applies A to each row. The array that it returns must be a new one: it is
        used as scratch space.
    residual : array of shape (B, n)
        ``b - A x0``, one system in each row; b itself when there is no `x0`. Overwritten.
    stop : StopRule
        When each system is done.
    preconditioner : Preconditioner, optional
        None for none.
    x0 : array of shape (B, n), optional
        Initial guess; zero by default. Overwritten: it becomes the solution.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[4.0, 1.0], [1.0, 3.0]])
    >>> result = conjugate_gradients(lambda x: x @ A, np.array([[1.0, 2.0]]), StopRule(1e-12, max_iter=10))
    >>> np.round(result.x @ A, 6).tolist(), bool(result.converged.all())
    ([[1.0, 2.0]], True)
    """
    r = residual
    xp = namespace(r)
    n_systems = r.shape[0]
    measure = relative_residual(r) if stop.measure is None else stop.measure
    tolerance = np.broadcast_to(np.asarray(stop.tol, dtype=float), (n_systems,))
    applications = 0
    x = xp.zeros_like(r) if x0 is None else x0

    solution = x
    iterations = np.zeros(n_systems, dtype=int)
    converged = np.zeros(n_systems, dtype=bool)
    broken = np.zeros(n_systems, dtype=bool)
    error = np.full(n_systems, np.inf)
    precondition = _copy if preconditioner is None else preconditioner.apply

    p = xp.empty_like(r)
    precondition(r, p)
    rz = real_dot(r, p)
    rows = np.arange(n_systems)
    energy = np.zeros(n_systems)

    # The measure in units of sqrt(rz) changes little from step to step, but for the first few.
    ratio = np.zeros(n_systems)
    lengths: list[np.ndarray] = []
    ratios: list[np.ndarray] = []
    for step in range(stop.max_iter + 1):
        now = ratio * np.sqrt(rz)
        far = np.isfinite(now) & (now > FAR * tolerance[rows])
        if (step >= stop.min_iter and (not far.all() or step % LOOK_EVERY == 0)) or step == stop.max_iter:
            now = measure(Progress(r, energy, rows, rz, lengths, ratios))
            ratio = now / np.sqrt(rz)
        # A zero residual is the exact answer whatever the measure thinks (zero b, exact x0).
        now = np.where(rz == 0, 0.0, now)
        finite = np.isfinite(rz)
        error[rows] = np.where(finite, now, np.inf)
        done = finite & (now <= tolerance[rows]) & ((step >= stop.min_iter) | (rz == 0))
        converged[rows[done]] = True
        broken[rows[~finite]] = True
        leave = done | ~finite
        if step == stop.max_iter:
            leave[:] = True
        if leave.any():
            if solution is not x:
                _put_rows(solution, rows[leave], _take_rows(x, leave))
            if leave.all():
                break
            stay = ~leave
            if solution is x:
                solution = xp.asarray(x, copy=True)
            rows, energy, rz, ratio = rows[stay], energy[stay], rz[stay], ratio[stay]
            x, r, p = _take_rows(x, stay), _take_rows(r, stay), _take_rows(p, stay)

        a_p = apply(p)
        applications += rows.size
        curvature = real_dot(p, a_p)
        # A broken system takes a zero step here and is caught as non-finite above.
        good = np.isfinite(curvature) & (curvature > 0) & (rz > 0)
        length = np.where(good, rz / np.where(good, curvature, 1.0), 0.0)
        # Long vectors are few: the product, once it is spent, is scratch space for all that follows.
        scratch = a_p
        _add_scaled(r, -length, a_p, scratch)
        _add_scaled(x, length, p, scratch)
        iterations[rows] += 1
        energy += length * rz
        precondition(r, scratch)
        rz_new = np.where(good, real_dot(r, scratch), np.nan)
        _scale_and_add(p, rz_new / rz, scratch)
        for history, values in ((lengths, length), (ratios, rz_new / rz)):
            history.append(np.full(n_systems, np.nan))
            history[-1][rows] = values
        rz = rz_new
        del a_p, scratch

    return CGResult(solution, iterations, converged, broken, error, applications)


def _smallest_eigenvalue(diagonal: np.ndarray, beside: np.ndarray) -> float:
    if not (np.isfinite(diagonal).all() and np.isfinite(beside).all()):
        return np.nan  # a system that broke down
    if diagonal.size == 1:
        return float(diagonal[0])
    return float(linalg.eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(0, 0))[0])


def _copy(r: Array, out: Array) -> None:
    out[...] = r


def weighted_energy(x: Array, weight: Array) -> np.ndarray:
    """``sum_j weight_j |x_j|^2`` of each row of x, shape (B, n), as NumPy numbers.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_energy(np.array([[1.0, 2.0]]), np.array([1.0, 0.5])).tolist()
    [3.0]
    """
    return real_dot(x, weight * x)


def divided_energy(x: Array, divisor: Array) -> np.ndarray:
    """``sum_j |x_j|^2 / divisor_j`` of each row of x, shape (B, n), as NumPy numbers.

    Examples
    --------
    >>> import numpy as np
    >>> divided_energy(np.array([[1.0, 2.0]]), np.array([1.0, 2.0])).tolist()
    [3.0]
    """
    if not isinstance(x, np.ndarray):
        return real_dot(x, x / divisor)
    total = np.zeros(x.shape[0])
    for block in blocks(x.shape[1], CACHE_BLOCK):
        total += real_dot(x[:, block], x[:, block] / divisor[block])
    return total


def _add_scaled(target: Array, scale: np.ndarray, direction: Array, scratch: Array) -> None:
    """Do ``target += scale * direction`` row by row, in place; `scale` has one number for each row.

    `scratch`, of the same shape, is overwritten; it may be `direction` itself.
    """
    # Not BLAS's axpy: it is three times faster on an idle machine, but on a busy one its threads wait for
    # each other at every call (4.3 s in place of 0.3 s for a fit of D = 2^14). In blocks that are short
    # enough for one thread it is no faster within a fit.
    if is_torch(target) and scale.size == 1:
        target.add_(direction, alpha=float(scale[0]))
    elif is_torch(target):
        target.addcmul_(_one_for_each_row(scale, target).to(target.dtype), direction)
    else:
        multiply_into(scratch, _number_or_rows(scale, target), direction)
        target += scratch


def _scale_and_add(target: Array, scale: np.ndarray, addend: Array) -> None:
    """Do ``target = scale * target + addend`` row by row, in place."""
    target *= _number_or_rows(scale, target)
    target += addend


def _number_or_rows(scale: np.ndarray, like: Array) -> Any:
    return float(scale[0]) if scale.size == 1 else _one_for_each_row(scale, like)


def _one_for_each_row(scale: np.ndarray, like: Array) -> Array:
    return on_device_of(like, scale[:, None].astype(precision_of(like)))


def _take_rows(x: Array, chosen: np.ndarray) -> Array:
    """Return the rows of x where `chosen` is True."""
    return x[chosen] if isinstance(x, np.ndarray) else take(x, np.flatnonzero(chosen), axis=0)


def _put_rows(target: Array, rows: np.ndarray, values: Array) -> None:
    if isinstance(target, np.ndarray):
        target[rows] = values
        return
    for i, row in enumerate(rows.tolist()):
        target[row, :] = values[i, :]
