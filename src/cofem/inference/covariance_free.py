"""Covariance-free EM: the posterior's moments from linear systems solved by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from cofem._arrays import Array, as_rows, namespace
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State, state_of
from cofem.inference.problem import Problem
from cofem.inference.solver import CG_TOL, MANY_SWEEPS, PROBE_TOL, Carry, Solver
from cofem.inference.stopping import change_of_mean
from cofem.linalg.build import FormName, PreconditionerName
from cofem.linalg.cg import CGResult, join_results
from cofem.linalg.diagonals import (
    DIAGONALS,
    ContinuedContext,
    DiagonalEstimator,
    PosteriorContext,
    Rademacher,
)
from cofem.linalg.diagonals.support import check_support
from cofem.linalg.probes import ProbeDistribution
from cofem.status import StatusCode

#: Accuracy of the final mean: its error in the posterior's energy norm, root mean square over N.
FINAL_TOL = 0.02

#: `CoFEM.noise_tol` on blurs and the like, where neighbours share out what they explain in many small
#: steps: with 0.03 errors were 10 and 7 % above those of 200 steps of exact EM (decay 0.98, blur of width 1).
COHERENT_NOISE_TOL = 0.015

BROKEN = (
    "conjugate gradients broke down, because the operator gave values that are not finite or is not the "
    "adjoint it claims"
)

#: How a run ends that has nothing but message passing.
UNSETTLED = "message passing does not settle"

#: What a fit ends with whose last check failed where nothing better was left.
ROUGH_VARIANCES = (
    "the last check found rough variances, and no better estimate is at hand; where memory allows, "
    "method='irls' or 'em' is exact"
)
#: Note of a fit whose systems conjugate gradients did not solve.
FACTORED = "the systems were factored, since conjugate gradients ran out of steps"


@dataclass(frozen=True)
class CoFEM(ExpectationMaximisation):
    """Covariance-free EM (Lin, Song, Bilgic and Ba 2022), and beyond it.

    The E-step solves one linear system for the mean by conjugate gradients, and the variances come from
    an estimator that needs few further systems, or none: memory O(D), time O(one application) for each
    CG step; beside a matrix, up to half as many of its columns as it has rows. The outer loop is accelerated.

    Parameters
    ----------
    diagonal : str or DiagonalEstimator
        How the variances are estimated: ``"auto"`` (the fastest that direct probes do not contradict),
        ``"rademacher"`` (direct probes, as in the paper), ``"paired"``, ``"pooled"``,
        ``"clusters"``, ``"windows"``, ``"self_consistent"``, ``"corrected"``, ``"exact"``, or an object from
        `cofem.linalg.diagonals`.
    probes : int
        Number K of probes of ``diagonal="rademacher"``.
    probe_distribution : {"rademacher", "gaussian"}
        Distribution of their entries.
    cg_iterations : int
        Most CG steps U in one E-step.
    cg_tol : float
        Tolerance of the mean: root mean square over N of its error in the posterior's energy norm
        (0.1 means errors of a tenth of what the noise causes); 0.4 of it where columns that stand out
        precondition, see `preconditioner`. With ``stop="joint"``, the relative Frobenius norm of the
        residual.
    probe_tol : float
        Tolerance of the probes, relative to the solution in the posterior's energy norm.
    preconditioner : {"auto", "none", "spectral", "jacobi"}
        For the primal form: ``beta c + alpha`` with c the squared norm of Phi (`spectral`) or of each
        column (`jacobi`). `auto` takes `spectral` for orthonormal rows, a Fourier transform for what is like
        a convolution, else `jacobi`, and for the dual form the columns that stand out, if Phi stores its
        columns in double precision; see `cofem.linalg.preconditioners.large_columns`.
    form : {"auto", "primal", "dual"}
        Which linear system to iterate on; see `cofem.linalg.system`.
    warm_start : bool
        Start the mean's system from the last mean.
    stop : {"each", "joint"}
        Stop each system by its own error, or all by the paper's joint residual.
    accelerate : bool
        Extrapolate the outer steps (SQUAREM) while the estimator is quiet enough.
    alpha_init : float or None
        Where alpha starts; None for a start that does not depend on units.
    sweeps : bool
        Find the mean by message passing while that works (`cofem.linalg.message_passing`), and by conjugate
        gradients else and at the end.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((60, 120))
    >>> z = np.zeros(120); z[[3, 17]] = 1, -1
    >>> y = Phi @ z + 0.01 * rng.standard_normal(60)
    >>> post = cofem.fit(Phi, y, noise_std=0.01, method=cofem.CoFEM(diagonal="pooled"), rng=0)
    >>> np.round(post.mean[[3, 17]], 1).tolist()
    [1.0, -1.0]
    """

    diagonal: str | DiagonalEstimator = "auto"
    probes: int = 20
    probe_distribution: ProbeDistribution = "rademacher"
    cg_iterations: int = 400
    cg_tol: float = CG_TOL
    probe_tol: float = PROBE_TOL
    preconditioner: PreconditionerName = "auto"
    form: FormName = "auto"
    warm_start: bool = True
    stop: Literal["each", "joint"] = "each"
    accelerate: bool = True
    alpha_init: float | None = None
    sweeps: bool = True

    name: ClassVar[str] = "cofem"
    any_array: ClassVar[bool] = True
    noise_tol: ClassVar[float] = 0.03
    #: Whether conjugate gradients take over where message passing does not settle; else the run ends there.
    takes_over: ClassVar[bool] = True
    #: What sweeps may leave to go after the first updates of alpha, in place of `Sweeps.late_share`.
    late_share: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        for field in ("probes", "cg_iterations"):
            value = getattr(self, field)
            if int(value) != value or value < 1:
                raise ValueError(f"{field} must be a positive integer, got {value!r}")
        for field in ("cg_tol", "probe_tol"):
            if not 0 < getattr(self, field) < np.inf:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)!r}")
        choices: dict[str, tuple[str, ...]] = {
            "preconditioner": get_args(PreconditionerName),
            "form": get_args(FormName),
            "probe_distribution": get_args(ProbeDistribution),
            "stop": ("each", "joint"),
        }
        if not isinstance(self.diagonal, DiagonalEstimator):
            choices["diagonal"] = tuple(DIAGONALS)
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} must be one of {allowed}, got {getattr(self, field)!r}")

    @classmethod
    def paper(cls, probes: int = 20, cg_iterations: int = 400, cg_tol: float = 1e-8) -> CoFEM:
        """Algorithm 1 of the paper to the letter.

        alpha starts at 1; plain CG on ``beta Phi^T Phi + diag(alpha)`` from zero, all systems stopped
        together by ``||A X - B||_F < cg_tol ||B||_F``; unscaled Rademacher probes. A variance that
        comes out negative is set to zero, as in the authors' code, since Algorithm 1 would go on to
        a negative precision. ``post.alpha`` is the alpha that mean and variance belong to; the one
        Algorithm 1 returns is one update further, ``1 / (mean^2 + variance)``.

        `cg_tol` must be small because the joint norm is dominated by the largest column: on the paper's
        dense problem 1e-6 leaves the probes unsolved, on its DCT problems 1e-5 is enough.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> method = cofem.CoFEM.paper(probes=10)
        >>> method.diagonal, method.probes, method.accelerate, method.alpha_init
        ('rademacher', 10, False, 1.0)
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1, method=method, rng=0)
        >>> np.round(post.mean, 2).tolist()
        [0.99, 0.0, 0.0]
        """
        return cls(
            diagonal="rademacher",
            probes=probes,
            cg_iterations=cg_iterations,
            cg_tol=cg_tol,
            preconditioner="none",
            form="primal",
            warm_start=False,
            stop="joint",
            accelerate=False,
            alpha_init=1.0,
            sweeps=False,
        )

    def estimator(self, problem: Problem) -> DiagonalEstimator:
        """Return the diagonal estimator with its settings."""
        if isinstance(self.diagonal, DiagonalEstimator):
            return self.diagonal
        if self.diagonal == "rademacher":
            # The joint norm weighs probes against data, so there it must see them in the user's units.
            joint = self.stop == "joint"
            scale = problem.units.coefficient if joint else None
            return Rademacher(self.probes, self.probe_distribution, scale, clip=not joint)
        return DIAGONALS[self.diagonal]()

    @property
    def start_alpha(self) -> float | None:
        """Where alpha starts unless the user says otherwise."""
        return self.alpha_init

    @property
    def free_of_units(self) -> bool:
        """Whether columns may be brought to a common norm: not in Algorithm 1 to the letter."""
        return self.stop == "each"

    def accelerates(self, state: State) -> bool:
        """Extrapolate while the variances are free of noise."""
        return self.accelerate and state.carry.quiet

    def share_of_noise(self, state: State) -> float:
        """Return `noise_tol`, or less on a coherent dictionary."""
        return COHERENT_NOISE_TOL if state.carry.coherent else self.noise_tol

    def restarts(self, state: State) -> bool:
        """Start over once the variances turned out to be wrong: they may have led to another optimum."""
        return state.carry.misled

    def handed_on(self, state: State) -> Carry:
        """Return what is known of Phi and the estimators, without the start of a mean that is not kept."""
        carry: Carry = state.carry
        return carry._replace(dual=None, data=None, swept=0)

    def go_on(
        self, problem: Problem, alpha: Array, carry: Carry, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Begin with the estimator that took over, or was good in another fit."""
        solver = Solver(self, problem, alpha, carry)
        context = PosteriorContext(problem.phi, alpha, problem.noise_var, solver.solve_probes)
        return state_of(alpha, self._moments(problem, context, solver, rng))

    def variances_with(self, problem: Problem, state: State, added: Array) -> Array:
        """Return variances with precisions added, by the estimator that the fit has come to."""
        known = replace(state, carry=self.handed_on(state))
        alpha = problem.with_more_precision(state.alpha, added)
        moments = self.expectation(problem, alpha, known, np.random.default_rng(0))
        return state.variance if moments.variance is None else moments.variance

    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """Solve from zero."""
        solver = Solver(self, problem, alpha, Carry(None))
        context = PosteriorContext(problem.phi, alpha, problem.noise_var, solver.solve_probes)
        solver.carry = Carry(self.estimator(problem).init(context, rng))
        return self._moments(problem, context, solver, rng)

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """Solve from the last mean."""
        solver = Solver(self, problem, alpha, state.carry, before=state)
        context = ContinuedContext(
            problem.phi,
            alpha,
            problem.noise_var,
            solver.solve_probes,
            mean=state.mean,
            variance=state.variance,
            swept=state.carry.tau is not None and state.carry.quick,
            last=state.carry.last,
        )
        return self._moments(problem, context, solver, rng)

    def confirm(
        self, problem: Problem, state: State, info: Info, limit: float, rng: np.random.Generator
    ) -> tuple[State, Info, str]:
        """Take the moments once more where the mean is that of sweeps, or the variances were not checked.

        Sweeps that crawl look as if they had settled. So the mean is solved for by conjugate gradients: where
        that moves it by more than the stop rule allows, the fit goes on with them, and what probes that were
        solved for by sweeps said of the variances does not count.
        """
        state, info, unmet = super().confirm(problem, state, info, limit, rng)
        carry: Carry = state.carry
        if unmet or (carry.trusted and carry.tau is None):
            return state, info, unmet
        asked = replace(state, carry=carry._replace(last=not carry.trusted, confirms=True))
        found, more = state_of(state.alpha, self.expectation(problem, state.alpha, asked, rng))
        if more.end is StatusCode.FAILED:
            return state, more, more.message
        _, moved = change_of_mean(problem, found, state)
        if carry.tau is not None and moved > limit:
            known = {"diagonal": carry.diagonal, "quiet": carry.quiet, "trusted": carry.trusted}
            found = replace(found, carry=found.carry._replace(gave_up=True, tau=None, misled=False, **known))
            return found, info, f"message passing was off by {moved:.2g} (tol={limit:.2g})"
        # NaN stands for what was not looked at.
        figures = {name: x for name, x in more.figures.items() if isinstance(x, str) or not np.isnan(x)}
        info = replace(
            info,
            notes=info.notes | more.notes,
            figures=info.figures | figures,
            trouble=info.trouble or more.trouble,
            cg_iterations=max(info.cg_iterations, more.cg_iterations),
        )
        unmet = "" if found.carry.trusted else "the variances are in doubt"
        if moved > limit:
            unmet = f"the mean was off by {moved:.2g} (tol={limit:.2g})"
        if found.carry.misled:
            unmet = "the variances turned out to be wrong"
        if not unmet:  # what only further steps would need, long vectors
            return replace(found, carry=found.carry._replace(data=None)), info, ""
        return replace(found, previous_alpha=state.previous_alpha), info, unmet

    def _moments(
        self, problem: Problem, context: PosteriorContext, solver: Solver, rng: np.random.Generator
    ) -> Moments:
        """Solve for the mean and for what the estimator needs in one batch."""
        estimator, carry = self.estimator(problem), solver.carry
        wanted = estimator.right_hand_sides(context, carry.diagonal, rng)
        y, n_tasks = as_rows(problem.y), problem.n_tasks
        xp = namespace(y)
        v = y if wanted.v is None else xp.concat([y, wanted.v])
        n_probes = v.shape[0] - n_tasks + (0 if wanted.b is None else wanted.b.shape[0])
        swept = solver.sweep(y, wanted.exchange) if wanted.v is None else None
        if swept is not None:
            mean, dual = swept.x, swept.dual
            found = mean[:0, :] if wanted.b is None else solver.solve_probes(wanted.b)
        elif not self.takes_over:
            # What is known stays as it was.
            mean, variance = 0 * problem.y[..., :1] * context.alpha, 1 / context.alpha
            if solver.before is not None:
                mean, variance = solver.before.mean, solver.before.variance
            return Moments(mean, variance, carry, Info(end=StatusCode.MAX_ITER, message=UNSETTLED))
        else:
            # Where the mean confirms what sweeps found, probes need not wait for it.
            together = solver.exchange is None
            solution = solver.solve(v, wanted.b if together else None, n_tasks, n_probes if together else 0)
            if solution.cg.broken.any():
                return Moments(None, None, info=Info(end=StatusCode.FAILED, message=BROKEN))
            mean, found = solution.x[:n_tasks, :], solution.x[n_tasks:, :]
            if n_probes and together:
                mean = xp.asarray(mean, copy=True)  # the solutions for the probes need not stay
            dual = None if solution.dual is None else solution.dual[:n_tasks, :]
            del solution
            if n_probes and not together:
                found = solver.solve_probes(wanted.b)
        mean = xp.reshape(mean, (*problem.y.shape[:-1], -1))
        estimate = estimator.estimate(context, carry.diagonal, wanted, found)
        cg = join_results(solver.accounts)
        if cg.broken.any():
            return Moments(None, None, info=Info(end=StatusCode.FAILED, message=BROKEN))
        iterations = int(cg.iterations.max())
        new_carry = Carry(
            estimate.carry,
            dual,
            solver.steps(iterations),
            estimator.quiet(estimate.carry),
            estimate.misled,
            solver.factored,
            estimate.coherent,
            None if solver.exchange is None or estimate.misled else solver.exchange.tau,
            carry.swept + (swept is not None),
            0 if swept is None or swept.summed_up else swept.sweeps,
            carry.quick and (swept is None or swept.sweeps < MANY_SWEEPS),
            solver.gave_up,
            estimator.trusted(estimate.carry),
            data=None if solver.gave_up else solver.data,
        )
        info = Info(
            cg_iterations=iterations,
            figures={"diagonal": estimate.used, **estimate.figures},
            notes=estimate.notes | ({"systems": FACTORED} if solver.factored else {}),
            trouble=_trouble(cg),
        )
        return Moments(mean, estimate.value, new_carry, info)

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Solve for the mean once more, to the accuracy that the posterior deserves."""
        if self.stop == "joint":
            return state, Info()
        solver = Solver(self, problem, state.alpha, state.carry, before=state)
        solution = solver.solve(as_rows(problem.y), None, problem.n_tasks, 0, tol=FINAL_TOL)
        if solution.cg.broken.any():
            return state, Info(trouble=BROKEN)
        mean = namespace(solution.x).reshape(solution.x, state.mean.shape)
        state, trouble = replace(state, mean=mean), _trouble(solution.cg)
        solver.exchange = solver.last_exchange()
        state, notes = self._check_support(problem, state, solver, rng)
        if trouble and ended is StatusCode.CONVERGED:  # a mean that was not solved for has not converged
            why = f"the last mean: {trouble}"
            return state, Info(trouble=trouble, end=StatusCode.MAX_ITER, message=why, notes=notes)
        if ended is StatusCode.CONVERGED and self.estimator(problem).is_rough(state.carry.diagonal):
            return state, Info(trouble=trouble, end=StatusCode.MAX_ITER, message=ROUGH_VARIANCES, notes=notes)
        return state, Info(trouble=trouble, notes=notes)

    def _check_support(
        self, problem: Problem, state: State, solver: Solver, rng: np.random.Generator
    ) -> tuple[State, dict[str, str]]:
        """Look at the variances of what was found, one by one."""
        estimator = self.estimator(problem)
        if estimator.is_exact(state.carry.diagonal):
            return state, {}
        context = PosteriorContext(problem.phi, state.alpha, problem.noise_var, solver.solve_probes)
        checked = check_support(context, state.mean, state.variance, rng)
        notes = {"support": checked.note} if checked.note else {}
        return replace(state, variance=checked.variance), notes


def _trouble(cg: CGResult) -> str:
    if cg.converged.all():
        return ""
    return "conjugate gradients ran out of steps; raise cg_iterations or loosen cg_tol"
