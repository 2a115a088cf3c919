"""Linear systems of a posterior in analysis form, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg

from cofem._arrays import Array, in_precision, namespace
from cofem._warn import warn
from cofem.linalg.analysis import AnalysisSystem, Rows
from cofem.linalg.cg import CGResult
from cofem.operators import Diagonal, Operator
from cofem.operators.dictionary import Dictionary
from cofem.posterior.solver import SOLVE_TOL
from cofem.status import ConvergenceWarning

#: Accuracy of draws, relative to their spread.
DRAW_TOL = 1e-3
#: Unknowns, and entries of Phi and B, up to which a factor is taken: conjugate gradients take hundreds of
#: steps where precisions are ten orders of magnitude apart.
SMALL_SIDE, SMALL_ENTRIES = 1024, 2**22
#: Pivots, relative to the largest, below which a factor is rounding.
SINGULAR = 1e-14


@dataclass(frozen=True)
class AnalysisSolver:
    """Solves with ``A = (Phi^H Phi / noise_var + B^H diag(alpha) B) / scale``.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense, Gradient
    >>> solver = AnalysisSolver.of(Dense(np.eye(2)), Gradient(2), np.ones(1), 1.0)
    >>> solver.for_count(1)(b=np.array([[3.0, 0.0]])).round(4)
    array([[2., 1.]])
    """

    system: AnalysisSystem
    scale: float = 1.0

    @cached_property
    def matrix(self) -> np.ndarray | None:
        """``noise_var scale A``; None if the problem is large."""
        system = self.system
        phi, rows = system.phi, system.rows
        d, m = phi.shape[1], max(rows.n_rows, phi.shape[0])
        if not isinstance(system.alpha, np.ndarray) or d > SMALL_SIDE or d * m > SMALL_ENTRIES:
            return None
        weighted = (system.noise_var * system.alpha)[:, None] * rows.matrix
        matrix: np.ndarray = phi.matrix.conj().T @ phi.matrix + rows.matrix.conj().T @ weighted
        return matrix

    @cached_property
    def _factor(self) -> np.ndarray | None:
        """Its Cholesky factor; None if the problem is large, or the matrix singular."""
        if self.matrix is None:
            return None
        try:
            factor: np.ndarray = linalg.cholesky(self.matrix, lower=True, check_finite=False)
        except linalg.LinAlgError:
            return None
        pivots = np.diagonal(factor).real ** 2
        return factor if pivots.min() > SINGULAR * pivots.max() else None

    @classmethod
    def of(
        cls,
        operator: Operator,
        analysis: Operator,
        alpha: Array,
        noise_var: float,
        weights: Array | None = None,
        scale: float = 1.0,
    ) -> AnalysisSolver:
        """Return the solver for a dictionary whose data are multiplied by `weights`, shape (N,)."""
        alpha = in_precision(alpha, "float64")
        white = operator.astype(np.float64)
        if weights is not None:
            white = Diagonal(in_precision(weights, "float64")) @ white
        phi = Dictionary(white, like=alpha)
        return cls(AnalysisSystem(phi, Rows(analysis, alpha), alpha, noise_var), scale)

    @property
    def phi(self) -> Dictionary:
        """Phi, for data of equal noise."""
        return self.system.phi

    def for_count(self, count: int) -> Callable[..., Array]:
        """Return a function from v or b to ``A^-1 (Phi^H v / (scale noise_var) + b)``."""
        return self._solve

    def _solve(self, v: Array | None = None, b: Array | None = None) -> Array:
        system = self.system
        right: Array = system.of_data(v) if v is not None else self.scale * system.noise_var * b  # type: ignore[operator]
        if self._factor is not None:
            return self._exactly(right)
        return _checked(system.solve(right, tol=SOLVE_TOL, reference=None, max_iter=self._most_steps))

    def _exactly(self, right: np.ndarray) -> np.ndarray:
        solved: np.ndarray = linalg.cho_solve((self._factor, True), right.T, check_finite=False)
        return solved.T

    def draws(self, count: int, rng: np.random.Generator) -> Array:
        """Draw from ``N(0, A^-1)``, shape (count, D)."""
        system = self.system
        right = self.scale**0.5 * system.of_draws(count, rng)
        if self._factor is not None:
            return self._exactly(right)
        found = system.solve(right, tol=DRAW_TOL, reference=system.phi.shape[1], max_iter=self._most_steps)
        return _checked(found)

    @property
    def _most_steps(self) -> int:
        return max(1000, 4 * min(self.system.phi.shape[1], 5000))


def _checked(solved: CGResult) -> Array:
    if not solved.converged.all():
        warn(f"posterior solves are inexact: {solved.report()}", ConvergenceWarning)
    return namespace(solved.x).asarray(solved.x)
