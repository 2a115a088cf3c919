"""Exact expectation-maximisation through the D x D posterior covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cofem._arrays import Array
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.problem import Problem
from cofem.linalg.factor import (
    ONE_THREAD,
    energy_of_columns,
    inverse_of_lower,
    product,
    safe_cholesky,
    solve_factored,
)


@dataclass(frozen=True)
class EM(ExpectationMaximisation):
    """EM with the exact E-step, ``Sigma = (beta Phi^H Phi + diag(alpha))^-1``.

    Time O(D^3) a step, memory O(D^2). Always computes in double precision.

    Parameters
    ----------
    accelerate : bool
        Extrapolate the outer steps (SQUAREM), where plain EM would take a step at a time.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> Phi = np.eye(3)
    >>> post = cofem.fit(Phi, np.array([1.0, 0.0, 0.0]), noise_std=0.01, method=cofem.EM())
    >>> post.support().tolist()
    [0]
    """

    accelerate: bool = False

    name: ClassVar[str] = "em"

    def accelerates(self, state: State) -> bool:
        """Extrapolate if asked to: the moments are exact."""
        return self.accelerate

    def wants_one_thread(self, problem: Problem) -> bool:
        """Tell whether the matrix that is factored is small."""
        return problem.n_columns <= ONE_THREAD

    def memory(self, problem: Problem) -> tuple[float, str]:
        """Phi, the Gram matrix and the covariance (factored in place, then inverted)."""
        n, d = problem.phi.shape
        size = 16 if problem.is_complex else 8
        return size * (n * d + 3.0 * d * d), "Phi and three D x D matrices"

    def variances_with(self, problem: Problem, state: State, added: Array) -> Array:
        """Return exact variances with precisions added."""
        alpha = problem.with_more_precision(state.alpha, added)
        return self.first_expectation(problem, alpha, np.random.default_rng(0)).variance

    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """Multiply out ``Phi^H Phi``, and take the moments."""
        phi = problem.phi.matrix
        return self._moments(problem, alpha, phi.conj().T @ phi)

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """Take the moments, with ``Phi^H Phi`` from the step before."""
        return self._moments(problem, alpha, state.carry)

    def _moments(self, problem: Problem, alpha: Array, gram: np.ndarray) -> Moments:
        """Factor ``A = beta Phi^H Phi + diag(alpha)`` and invert it."""
        phi, beta = problem.phi.matrix, 1 / problem.noise_var
        alpha = alpha.astype(np.float64)
        matrix = beta * gram
        matrix.flat[:: matrix.shape[0] + 1] += alpha
        factor = safe_cholesky(matrix)
        y = data_columns(problem)
        mean = solve_factored(factor, beta * product(phi, y, adjoint=True))
        log_det_a = 2 * float(np.log(factor.diagonal().real).sum())
        variance = energy_of_columns(inverse_of_lower(factor))  # the diagonal of (L L^H)^-1
        log_det = log_det_a + problem.n_rows * np.log(problem.noise_var) - float(np.log(alpha).sum())
        quadratic = beta * float(np.vdot(y, y - product(phi, mean)).real)
        info = Info(figures={"log_evidence": problem.log_evidence(log_det, quadratic)})
        real = problem.real_dtype
        return Moments(as_mean(mean, problem), variance.astype(real), gram, info)


def data_columns(problem: Problem) -> np.ndarray:
    """Return the data in double precision as columns, shape (N, L)."""
    kind = np.complex128 if problem.is_complex else np.float64
    return np.atleast_2d(problem.y).T.astype(kind)


def as_mean(columns: np.ndarray, problem: Problem) -> np.ndarray:
    """Return means of shape (D, L) in the layout and precision of the problem."""
    return np.ascontiguousarray(columns.T, dtype=problem.y.dtype).reshape(*problem.y.shape[:-1], -1)
