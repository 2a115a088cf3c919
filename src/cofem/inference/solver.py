"""The linear systems of one E-step of `CoFEM`: message passing, conjugate gradients or a factor."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cofem._arrays import Array, as_rows, namespace, reciprocal
from cofem._blocks import blocks
from cofem._packing import packable
from cofem.inference.base import State
from cofem.inference.problem import Problem
from cofem.linalg.build import FADE, build_system, remember_steps
from cofem.linalg.cg import CGResult
from cofem.linalg.diagonals.self_consistent import omega_of
from cofem.linalg.direct import DirectSystem, is_small
from cofem.linalg.message_passing import (
    EARLY,
    SHARE,
    SHARE_OF_PROBES,
    Before,
    Exchange,
    GaussianSweeps,
    OrthonormalSweeps,
    Swept,
    Target,
    settle,
)
from cofem.linalg.system import Form, PosteriorSystem, Solution

if TYPE_CHECKING:
    from cofem.inference.covariance_free import CoFEM

#: Tolerances of means and probes that the user does not name.
CG_TOL, PROBE_TOL = 0.05, 0.1
#: Products with a stored N x D matrix and its adjoint that take as long as a factor of the system, for each
#: row (0.04 to 0.14 at N = 256 to 2048, one thread), and how many take as long as one for a batch of K:
#: ``a + b K``, since a product with few vectors at once is slow (3.4 for two, 5.5 for ten, at N = 768).
FACTOR_COST, BATCH_COST = 0.1, (3.0, 0.25)
#: Rows up to which neither takes long.
FEW_ROWS = 256
#: Sweeps for one alpha from which on a dictionary may be coherent: incoherent ones took 2 to 9.
MANY_SWEEPS = 12


@packable("cofem")
class Carry(NamedTuple):
    """What one E-step hands to the next."""

    #: The diagonal estimator's own.
    diagonal: Any
    #: ``C^-1 y``, the warm start of the dual form; None if the primal form was solved.
    dual: Array | None = None
    #: CG steps that each form of the system took recently.
    steps: dict[Form, float] = {}  # noqa: RUF012 (never modified)
    #: Whether the next variances will be free of noise.
    quiet: bool = False
    #: Whether the variances so far turned out to be wrong.
    misled: bool = False
    #: Whether systems are factored, since conjugate gradients ran out of steps.
    factored: bool = False
    #: Whether neighbours are so alike that a fit converges slowly.
    coherent: bool = False
    #: The precision of what the data say, where the mean was found by message passing.
    tau: float | None = None
    #: In how many steps it was, in how many sweeps in the last one, and whether it took few in every one.
    swept: int = 0
    sweeps: int = 0
    quick: bool = True
    #: Whether message passing failed once, and is not tried again.
    gave_up: bool = False
    #: Whether a fit may end with these variances, and whether it would have ended here, if so.
    trusted: bool = True
    last: bool = False
    #: Whether the mean is that of conjugate gradients in the next step, to see whether message passing, which
    #: goes on to solve for probes, was right.
    confirms: bool = False
    #: ``Phi^H y``, where message passing over orthonormal rows asks for it in every sweep.
    data: Array | None = None


class Solver:
    """The systems of one E-step, with an account of what was solved.

    Parameters
    ----------
    method : CoFEM
        Form, preconditioner and tolerances.
    problem : Problem
        The problem.
    alpha : array of shape (D,)
        The precisions that the moments are wanted at.
    carry : Carry
        What the step before handed on.
    before : State, optional
        The state to start from; none to start from zero.
    """

    def __init__(
        self, method: CoFEM, problem: Problem, alpha: Array, carry: Carry, before: State | None = None
    ) -> None:
        self.method, self.carry, self.before = method, carry, before
        self.phi, self.alpha, self.noise_var = problem.phi, alpha, problem.noise_var
        #: Whether conjugate gradients ran out of steps, here or before, and whether they were asked at all.
        self.factored, self.iterated = carry.factored, False
        self.accounts: list[CGResult] = []
        #: Whether message passing failed, here or before; the precisions of its messages where it did not.
        self.gave_up = carry.gave_up
        self.exchange: Exchange | None = None
        self.data = carry.data
        self._factor: DirectSystem | None = None

    @cached_property
    def system(self) -> PosteriorSystem:
        """The system for conjugate gradients, made when it is needed."""
        # After message passing nothing is known about the forms.
        steps = self.carry.steps if self.carry.tau is None else None
        settings: dict[str, Any] = {"form": self.method.form, "preconditioner": self.method.preconditioner}
        return build_system(self.phi, self.alpha, self.noise_var, steps=steps, **settings)

    def sweep(self, y: Array, exchange: Exchange | None) -> Swept | None:
        """Find the means by message passing, where the estimator and the dictionary allow it."""
        method = self.method
        chosen = method.form != "auto" or method.preconditioner != "auto"
        if exchange is None or self.gave_up or self.factored or chosen or not method.sweeps:
            return None
        known, carry = self.before, self.carry
        if carry.confirms:
            self.exchange = None if carry.tau is None else exchange
            return None
        before = None
        if known is not None:
            sweeps = carry.sweeps if carry.swept > EARLY else 0  # at first their number jumps
            before = Before(as_rows(known.mean), known.alpha, carry.tau, carry.dual, sweeps)
        if self.data is None and self.phi.facts.row_gram is not None:
            self.data = self.phi.adjoint(y)
        target = Target(self.phi, self.alpha, self.noise_var, y=y, data=self.data)
        swept = self._swept(target, exchange, before)
        self.exchange, self.gave_up = (exchange, False) if swept else (None, True)
        return swept

    def last_exchange(self) -> Exchange | None:
        """Return the precisions of the messages where message passing found the last mean, else None."""
        tau, alpha = self.carry.tau, self.alpha
        return None if tau is None else Exchange(tau, omega_of(alpha, reciprocal(alpha + tau)))

    def _swept(self, target: Target, exchange: Exchange, before: Before | None = None) -> Swept | None:
        orthonormal = self.phi.facts.row_gram is not None
        with np.errstate(over="ignore", invalid="ignore"):
            sweeps = (OrthonormalSweeps if orthonormal else GaussianSweeps)(target, exchange)
            # Who asks for better means, or better probes, has them.
            late_share = self.method.late_share or sweeps.late_share
            share = SHARE if self.carry.swept < EARLY else late_share
            asked = self.method.cg_tol / CG_TOL
            if target.b is not None:
                share, asked = SHARE_OF_PROBES, self.method.probe_tol / PROBE_TOL
            swept = settle(sweeps, before, share * min(asked, 1.0))
        if swept is not None:
            rows = swept.x.shape[0]
            none, count = np.zeros(rows), np.full(rows, swept.sweeps)
            self.accounts.append(CGResult(None, count, none == 0, none != 0, none, rows * swept.sweeps))
        return swept

    def solve(
        self, v: Array, b: Array | None, n_tasks: int, n_probes: int, tol: float | None = None
    ) -> Solution:
        """Solve for the means, which come first, and the probes; each to its own tolerance.

        Where conjugate gradients run out of steps for a mean and a factor is to be had, that is taken, in
        this step and in those that follow. It is also taken where it should cost less.
        """
        method, each = self.method, self.method.stop == "each"
        kept = None if b is None or not self.can_factor else namespace(b).asarray(b, copy=True)
        direct = self.factored or self._factor is not None or self.cheaper_to_factor(n_tasks + n_probes)
        if not direct:
            self.iterated = True
            tols = [
                self.system.tolerance(method.cg_tol if tol is None else tol),
                self.system.probe_tolerance(method.probe_tol),
            ]
            solution = self.system.solve(
                v,
                b,
                tol=np.repeat(tols, [n_tasks, n_probes]) if each else method.cg_tol,
                max_iter=method.cg_iterations,
                guess=self.guess(),
                norm="posterior" if each else "frobenius",
            )
            unsolved = not solution.cg.converged[:n_tasks].all() and not solution.cg.broken.any()
            self.factored = direct = self.can_factor and unsolved
        if direct:
            solution = self.factor().solution(v, kept)
        self.accounts.append(replace(solution.cg, x=None))
        return solution

    def solve_probes(self, b: Array) -> Array:
        """Solve for further probes, which are overwritten."""
        method = self.method
        if self.exchange is not None:
            swept = self._swept_probes(b, self.exchange)
            if swept is not None:
                return swept
        if self.factored or self._factor is not None:
            solution = self.factor().solution(None, b)
        else:
            tol = self.system.probe_tolerance(method.probe_tol)
            solution = self.system.solve(b=b, tol=tol, max_iter=method.cg_iterations)
        self.accounts.append(replace(solution.cg, x=None))
        return solution.x

    def _swept_probes(self, b: Array, exchange: Exchange) -> Array | None:
        """Find the solutions by message passing; None where that does not settle."""
        # Transforms of long vectors are faster one by one, products with a matrix all at once.
        at_once = b.shape[0] if self.phi.facts.row_gram is None else 1
        found = []
        for some in blocks(b.shape[0], at_once):
            swept = self._swept(Target(self.phi, self.alpha, self.noise_var, b=b[some, :]), exchange)
            if swept is None:
                return None
            found.append(swept.x)
        return found[0] if len(found) == 1 else namespace(b).concat(found)

    @property
    def can_factor(self) -> bool:
        """Whether the matrix of the system is small enough to be factored; not in Algorithm 1."""
        return self.method.stop == "each" and isinstance(self.alpha, np.ndarray) and is_small(self.phi)

    def factor(self) -> DirectSystem:
        """Return the system, factored."""
        if self._factor is None:
            self._factor = DirectSystem(self.phi, self.alpha.astype(np.float64), self.noise_var)
        return self._factor

    def cheaper_to_factor(self, count: int) -> bool:
        """Tell whether conjugate gradients are expected to take longer, on a matrix that is stored."""
        n_rows, n_columns = self.phi.shape
        chosen = self.method.form != "auto" or self.method.preconditioner != "auto"
        if chosen or not FEW_ROWS < n_rows < n_columns or not self.can_factor:
            return False
        if self.phi.stored_matrix() is None:
            return False
        at_once = 1.0 if count == 1 else BATCH_COST[0] + BATCH_COST[1] * count
        return min(self.carry.steps.values(), default=0.0) * at_once > FACTOR_COST * n_rows

    def steps(self, iterations: int) -> dict[Form, float]:
        """Return what the forms cost by now; a factor tells nothing, and what was known fades."""
        known = self.carry.steps
        if self.iterated or self.factored:
            return remember_steps(known, self.system.form, iterations)
        return {form: FADE * cost for form, cost in known.items()}

    def guess(self) -> Array | None:
        """Warm start of the mean, in the form of the system.

        The mean moves by ``-Sigma diag(mean) (change of alpha)`` to first order; the diagonal of Sigma
        predicts most of it.
        """
        before = self.before
        if before is None or not self.method.warm_start:
            return None
        if self.system.form == "dual":
            return before.carry.dual
        return as_rows(before.mean / (1 + before.variance * (self.alpha - before.alpha)))
