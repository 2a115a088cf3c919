"""Covariance-free EM: the posterior's moments from linear systems solved by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.problem import Problem
from cofem.linalg.cg import CGResult
from cofem.linalg.diagonal import ProbeDistribution, draw_probes, estimate_diagonal
from cofem.linalg.system import Form, PosteriorSystem, choose_form, remember_steps
from cofem.status import StatusCode

Array = Any


#: Accuracy of the final mean: its error in the posterior's energy norm, root mean square over N.
FINAL_TOL = 0.02


BROKEN = (
    "conjugate gradients broke down, because the operator gave values that are not finite or is not the "
    "adjoint it claims"
)


class Carry(NamedTuple):
    """What one E-step hands to the next."""

    #: ``C^-1 y``, the warm start of the dual form.
    dual: Array | None
    #: CG steps that each form of the system took of late.
    steps: dict[Form, float]


@dataclass(frozen=True)
class CoFEM(ExpectationMaximisation):
    """Covariance-free EM (Lin, Song, Bilgic and Ba 2022).

    The E-step solves ``probes + 1`` linear systems at once by conjugate gradients: one for the mean,
    the others with random right-hand sides, which give the variances. Time O(one application) for
    each CG step and column, memory O(probes * D).

    Parameters
    ----------
    probes : int
        Number K of random probes.
    cg_iterations : int
        CG steps U at the most in one E-step.
    cg_tol : float
        Tolerance of the mean: root mean square over N of its error in the posterior's energy norm
        (0.1 means errors of a tenth of what the noise causes). With ``stop="joint"``, the relative
        Frobenius norm of the residual.
    probe_tol : float
        Tolerance of the probes, relative to the solution in the posterior's energy norm.
    preconditioner : {"auto", "none", "spectral", "jacobi"}
        For the primal form: ``beta c + alpha`` with c the squared norm of Phi (`spectral`) or of each
        column (`jacobi`). `auto` takes `spectral` for orthonormal rows, else `jacobi`.
    form : {"auto", "primal", "dual"}
        Which linear system to iterate on; see `cofem.linalg.system`.
    probe_distribution : {"rademacher", "gaussian"}
        Distribution of the probes' entries.
    scale_probes : bool
        Scale the probes by the last standard deviations, which makes the variance of the diagonal
        estimate a sum of squared correlations instead of covariances.
    warm_start : bool
        Start the mean's system from the last mean. (The probes are drawn afresh in each step: reused
        ones would repeat their error in the same coefficients.)
    stop : {"each", "joint"}
        Stop each column by its own error, or all by the paper's joint residual.
    alpha_init : float or None
        Where alpha starts; None for a start that does not depend on units.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((60, 120))
    >>> z = np.zeros(120); z[[3, 17]] = 1, -1
    >>> post = cofem.fit(Phi, Phi @ z, noise_std=0.01, method=cofem.CoFEM(probes=10), rng=0)
    >>> post.support().tolist()
    [3, 17]
    """

    probes: int = 20
    cg_iterations: int = 400
    cg_tol: float = 0.05
    probe_tol: float = 0.1
    preconditioner: Literal["auto", "none", "spectral", "jacobi"] = "auto"
    form: Literal["auto", "primal", "dual"] = "auto"
    probe_distribution: ProbeDistribution = "rademacher"
    scale_probes: bool = True
    warm_start: bool = True
    stop: Literal["each", "joint"] = "each"
    alpha_init: float | None = None  # type: ignore[misc]

    name: ClassVar[str] = "cofem"

    def __post_init__(self) -> None:
        for field, low in (("probes", 1), ("cg_iterations", 1)):
            if int(getattr(self, field)) != getattr(self, field) or getattr(self, field) < low:
                raise ValueError(
                    f"{field} must be an integer of at least {low}, got {getattr(self, field)!r}"
                )
        for field in ("cg_tol", "probe_tol"):
            if not 0 < getattr(self, field) < np.inf:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)!r}")
        for field, allowed in (
            ("preconditioner", ("auto", "none", "spectral", "jacobi")),
            ("form", ("auto", "primal", "dual")),
            ("probe_distribution", ("rademacher", "gaussian")),
            ("stop", ("each", "joint")),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} must be one of {allowed}, got {getattr(self, field)!r}")

    @classmethod
    def paper(cls, probes: int = 20, cg_iterations: int = 400, cg_tol: float = 1e-8) -> CoFEM:
        """Algorithm 1 of the paper to the letter.

        `cg_tol` must be small because the joint norm is dominated by the largest column: on the paper's
        dense problem 1e-6 leaves the probes unsolved, on its DCT problems 1e-5 is enough.

        alpha starts at 1; plain CG on ``beta Phi^T Phi + diag(alpha)`` from zero, all columns stopped
        together by ``||A X - B||_F < cg_tol ||B||_F``; unscaled Rademacher probes. A variance that
        comes out negative is set to zero, as in the authors' code, since Algorithm 1 would go on to
        a negative precision. ``post.alpha`` is the alpha that mean and variance belong to; the one
        Algorithm 1 returns is one update further, ``1 / (mean^2 + variance)``.
        """
        return cls(
            probes=probes,
            cg_iterations=cg_iterations,
            cg_tol=cg_tol,
            preconditioner="none",
            form="primal",
            scale_probes=False,
            warm_start=False,
            stop="joint",
            alpha_init=1.0,
        )

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """Solve for the mean and the probes in one batch."""
        steps = {} if state.carry is None else state.carry.steps
        system = self._system(problem, 1 / alpha, steps)
        probes = draw_probes(
            self.probes, problem.n_columns, like=problem.y, rng=rng, distribution=self.probe_distribution
        )
        # The joint norm weighs probes against data, so there it must see them in the user's units.
        scale: Any = problem.units.coefficient if self.stop == "joint" else 1.0
        if self.scale_probes and state.variance is not None:
            scale = 1 / np.sqrt(state.variance)
        warm = self.warm_start and state.mean is not None
        tol: Any = self.cg_tol
        if self.stop == "each":
            tol = np.array([self.cg_tol] + [self.probe_tol] * self.probes)
        solution = system.solve(
            problem.y[None],
            probes * scale,
            tol=tol,
            max_iter=self.cg_iterations,
            x0=state.mean[None] if warm and system.form == "primal" else None,
            dual0=state.carry.dual if warm and system.form == "dual" else None,
            norm="frobenius" if self.stop == "joint" else "loose",
        )
        if solution.cg.broken.any():
            return Moments(None, None, info=Info(end=StatusCode.FAILED, message=BROKEN))
        mean = solution.x[0]
        variance = estimate_diagonal(probes, solution.x[1:], scale).value
        if self.stop == "joint":
            variance = np.maximum(variance, 0)
        else:
            variance = np.clip(variance, 1 / (alpha + problem.column_energy / problem.noise_var), 1 / alpha)
        cg_iterations = int(solution.cg.iterations.max())
        carry = Carry(
            None if solution.dual is None else solution.dual[:1],
            remember_steps(steps, system.form, cg_iterations),
        )
        info = Info(cg_iterations=cg_iterations, trouble=_trouble(solution.cg))
        return Moments(mean, variance.astype(problem.real_dtype, copy=False), carry, info)

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Solve for the mean once more, to the accuracy that the posterior deserves."""
        if self.stop == "joint":
            return state, Info()
        system = self._system(problem, 1 / state.alpha, state.carry.steps)
        solution = system.solve(
            problem.y[None],
            tol=FINAL_TOL,
            max_iter=self.cg_iterations,
            x0=state.mean[None] if system.form == "primal" else None,
            dual0=state.carry.dual if system.form == "dual" else None,
            norm="posterior",
        )
        if solution.cg.broken.any():
            return state, Info(trouble=BROKEN)
        return replace(state, mean=solution.x[0]), Info(trouble=_trouble(solution.cg))

    def _system(self, problem: Problem, g: Array, steps: dict[Form, float]) -> PosteriorSystem:
        form: Form
        if self.form == "auto":
            form = choose_form(problem.phi.operator, g, problem.noise_var, problem.real_dtype, steps)
        else:
            form = self.form
        kind = self.preconditioner
        if kind == "auto":
            kind = "jacobi" if problem.phi.operator.facts.row_gram is None else "spectral"
        curvature: Any = problem.column_energy if kind == "jacobi" else problem.gain
        return PosteriorSystem(problem.phi, g, problem.noise_var, form, curvature, kind != "none")


def _trouble(cg: CGResult) -> str:
    return (
        ""
        if cg.converged.all()
        else "conjugate gradients ran out of steps; raise cg_iterations or loosen cg_tol"
    )
