"""Linear systems of a posterior in analysis form, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cofem._arrays import Array, conj, in_precision, namespace, on_device_of, standard_normal, to_numpy
from cofem._warn import warn
from cofem.linalg.analysis import AnalysisSystem, Rows
from cofem.linalg.analysis.null_space import null_space, spread_of
from cofem.linalg.cg import CGResult
from cofem.operators import Diagonal, Operator
from cofem.operators.dictionary import Dictionary
from cofem.posterior.solver import SOLVE_TOL
from cofem.status import ConvergenceWarning

#: Accuracy of draws in each direction, in its own standard deviations.
DRAW_TOL = 0.03
#: Unknowns, and entries of Phi and B, up to which the matrix is written out.
SMALL_SIDE, SMALL_ENTRIES = 1024, 2**22


@dataclass(frozen=True)
class AnalysisSolver:
    """Solves with ``A = (Phi^H Phi / noise_var + B^H diag(alpha) B) / scale``.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense, Gradient
    >>> solver = AnalysisSolver.of(Dense(np.eye(2)), Gradient(2), np.ones(1), 1.0, np.ones(2))
    >>> solver.for_count(1)(b=np.array([[3.0, 0.0]])).round(4)
    array([[2., 1.]])
    """

    system: AnalysisSystem
    scale: float = 1.0
    #: Variance, `scale` included, of directions that neither data nor prior determine.
    widest: float = 0.0

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

    @classmethod
    def of(
        cls,
        operator: Operator,
        analysis: Operator,
        alpha: Array,
        noise_var: float,
        variance: Array,
        weights: Array | None = None,
        scale: float = 1.0,
    ) -> AnalysisSolver:
        """Return the solver for a dictionary whose data are multiplied by `weights`, shape (N,).

        `variance`, that of the unknown, says what stands for an infinite one.
        """
        alpha = in_precision(alpha, "float64")
        white = operator.astype(np.float64)
        if weights is not None:
            white = Diagonal(in_precision(weights, "float64")) @ white
        phi = Dictionary(white, like=alpha)
        rows = Rows(analysis, alpha)
        null = null_space(phi, rows.null_basis)
        # A factor at once, where there is one: precisions may be ten orders of magnitude apart.
        solver = cls(AnalysisSystem(phi, rows, alpha, noise_var, null, patience=0), scale)
        if null is None or not null.unseen.shape[0]:
            return solver
        each = to_numpy(spread_of(null.unseen.T))
        most = int(np.argmax(each))
        unit = np.zeros((1, each.size))
        unit[0, most] = 1
        unit = on_device_of(phi.like, unit.astype(np.result_type(unit, to_numpy(phi.like[:0]))))
        known = null.without_unseen(solver.for_count(1)(b=null.without_unseen(unit)))
        rest = float(variance[most]) - float(to_numpy(known)[0, most].real)
        return replace(solver, widest=max(rest, 0.0) / float(each[most]))

    @property
    def phi(self) -> Dictionary:
        """Phi, for data of equal noise."""
        return self.system.phi

    def for_count(self, count: int) -> Callable[..., Array]:
        """Return a function from v or b to ``A^-1 (Phi^H v / (scale noise_var) + b)``."""
        return self._solve

    def _solve(self, v: Array | None = None, b: Array | None = None) -> Array:
        system, wide = self.system, 0.0
        if v is not None:
            right = system.of_data(v)
        else:
            assert b is not None
            right = self.scale * system.noise_var * b
            if self.widest and system.null is not None:
                wide = self._wide(b @ conj(system.null.unseen).T)
                right = system.null.without_unseen(right)
        steps = self._most_steps
        return _checked(system.solve(right, tol=SOLVE_TOL, reference=None, max_iter=steps, sure=True)) + wide

    def _wide(self, coefficients: Array) -> Array:
        """Return what is to be added for the directions that nobody sees."""
        assert self.system.null is not None
        return self.widest * coefficients @ self.system.null.unseen

    def draws(self, count: int, rng: np.random.Generator) -> Array:
        """Draw from ``N(0, A^-1)``, shape (count, D)."""
        system, wide = self.system, 0.0
        right = self.scale**0.5 * system.of_draws(count, rng)
        if self.widest and system.null is not None:
            numbers = standard_normal((count, system.null.unseen.shape[0]), system.phi.like, rng)
            wide = self._wide(numbers / self.widest**0.5)
        reference, steps = self.scale, self._most_steps
        found = system.solve(right, tol=DRAW_TOL, reference=reference, max_iter=steps, sure=True)
        return _checked(found) + wide

    @property
    def _most_steps(self) -> int:
        return max(1000, 4 * min(self.system.phi.shape[1], 5000))


def _checked(solved: CGResult) -> Array:
    if not solved.converged.all():
        warn(f"posterior solves are inexact: {solved.report()}", ConvergenceWarning)
    return namespace(solved.x).asarray(solved.x)
