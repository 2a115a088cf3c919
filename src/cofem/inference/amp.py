"""EM with approximate message passing as its E-step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array
from cofem._packing import packable
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.problem import Problem
from cofem.linalg.build import build_system
from cofem.linalg.diagonals import PosteriorContext
from cofem.linalg.diagonals.support import check_support, exact_variances
from cofem.linalg.direct import is_small
from cofem.status import Caution, StatusCode

#: Unrest up to which messages count as settled. On Gaussian dictionaries of mean 0 to 100 the final misfit of
#: the data was at most 0.7 noise deviations where AMP agreed with EM, and at least 4 where it did not.
MAX_UNREST = 3.0
#: Accuracy of the last mean and of the variances that are checked, and most CG steps for both.
FINAL_TOL, PROBE_TOL, CG_STEPS = 0.02, 0.1, 400
#: Probes of that check: messages have variances of their own, which may be wrong one by one.
PROBES = 16


#: Columns up to which all variances are compared, and how many of more.
ALL_EXACT, LOOKED_AT = 2048, 32
#: Share of the data in a coefficient, at least, that tells it from those that are zero.
OPEN = 0.05
#: Factor between the standard deviations of messages and posterior that is warned about: at most 1.12 on
#: Gaussian dictionaries, 1.2 on rows of a DCT, 1.6 to 14 on identity, wavelets and blurs, where a datum sees
#: few columns and a message that is not told from what it answers.
OFF = 1.25


@packable("amp")
class Messages(NamedTuple):
    """State of the message passing, handed from one E-step to the next."""

    mean: Array
    variance: Array
    residual: Array
    damping: float
    #: How far they are from a fixed point, as a misfit of the data in standard deviations of the noise.
    unrest: float
    #: The last state whose messages had settled.
    good: State


@dataclass(frozen=True)
class AMP(ExpectationMaximisation):
    """EM whose E-step is a few steps of generalised AMP (Fang et al. 2016).

    Sums over rows are treated as Gaussian, which holds for dictionaries with independent, zero-mean,
    sub-Gaussian entries; on others AMP may diverge. The steps are damped more when they grow; if that
    does not help, or if the messages have not settled in the end, the status is ``DIVERGED`` and the
    result is the last state that had settled (the prior, if there was none).

    Parameters
    ----------
    inner_steps : int
        AMP steps in each E-step.
    damping : float in (0, 1]
        Share of each new message that is taken; 1 for none.
    min_damping : float
        Diverged when even with this share the messages grow.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((40, 80))
    >>> z = np.zeros(80); z[[3, 17]] = 1, -1
    >>> cofem.fit(Phi, Phi @ z, noise_std=0.01, method="amp").support().tolist()
    [3, 17]
    """

    inner_steps: int = 10
    damping: float = 1.0
    min_damping: float = 0.05

    name: ClassVar[str] = "amp"
    several_tasks: ClassVar[bool] = False

    def memory(self, problem: Problem) -> tuple[float, str]:
        """Count a matrix of squared entries, unless the operator has a fast form of it."""
        if problem.phi.abs2() is not None and problem.phi.precision is None:
            return 0.0, ""
        n, d = problem.phi.shape
        return problem.real_dtype.itemsize * float(n * d), "the N x D matrix of squared entries"

    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """Pass messages from a mean of zero."""
        mean = np.zeros(problem.n_columns, problem.y.dtype)
        prior = State(alpha, mean, 1 / alpha)
        start = Messages(mean, 1 / alpha, np.zeros_like(problem.y), self.damping, np.inf, prior)
        return self._moments(problem, alpha, start)

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """Pass messages from the last ones."""
        return self._moments(problem, alpha, state.carry)

    def _moments(self, problem: Problem, alpha: Array, messages: Messages) -> Moments:
        """Pass messages; restart with more damping when they grow."""
        limit = 3 * float(np.linalg.norm(problem.y))
        damping = messages.damping
        while damping >= self.min_damping:
            passed = self._pass(problem, 1 / alpha, messages._replace(damping=damping), limit)
            if passed is not None:
                if passed.unrest <= MAX_UNREST:
                    passed = passed._replace(good=State(alpha, passed.mean, passed.variance))
                return Moments(passed.mean, passed.variance, passed)
            damping /= 2
        return Moments(messages.mean, messages.variance, messages, Info(end=StatusCode.DIVERGED))

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Check that the messages have settled: only then are they the moments they stand for."""
        messages = state.carry
        if ended is not StatusCode.DIVERGED and messages.unrest <= MAX_UNREST:
            return self._solved(problem, state, rng)
        grew = ended is StatusCode.DIVERGED
        what = f"grew even with damping {self.min_damping:g}" if grew else "did not settle"
        message = (
            f"AMP diverged: its messages {what}; the last state that had settled is returned. AMP needs "
            "a dictionary with independent zero-mean entries; use method='cofem' instead"
        )
        return messages.good, Info(end=StatusCode.DIVERGED, message=message)

    def _solved(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """Solve for the last mean, and compare the messages' variances with those of the posterior.

        Precisions were found with the variances of the messages, so that where these are wrong, so are they.
        """
        system = build_system(problem.phi, state.alpha, problem.noise_var)
        solution = system.solve(problem.y[None], tol=system.tolerance(FINAL_TOL), max_iter=CG_STEPS)

        def solve(b: Array) -> Array:
            return system.solve(b=b, tol=PROBE_TOL, max_iter=CG_STEPS).x

        notes: dict[str, str] = {}
        if solution.cg.converged.all():
            state = replace(state, mean=solution.x[0])
        else:
            notes["mean"] = Caution(f"the mean is that of the messages: {CG_STEPS} CG steps did not find it")
        context = PosteriorContext(problem.phi, state.alpha, problem.noise_var, solve)
        if problem.n_columns <= ALL_EXACT and is_small(problem.phi):
            exact = exact_variances(context, np.arange(problem.n_columns))
            notes |= _off(state.variance, exact)
            return replace(state, variance=context.clip(exact)), Info(notes=notes)
        some = _open_ones(state, rng)
        notes |= _off(state.variance[some], exact_variances(context, some))
        checked = check_support(context, state.mean, state.variance, rng, PROBES)
        notes |= {"support": checked.note} if checked.note else {}
        return replace(state, variance=checked.variance), Info(notes=notes)

    def _pass(self, problem: Problem, g: Array, messages: Messages, limit: float) -> Messages | None:
        """Run the inner steps; None when the residual grows beyond `limit`."""
        mean, variance, residual, share, _, good = messages
        squares = problem.phi.squares
        # Damping changes the fixed-point iteration, not its fixed points.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for _ in range(self.inner_steps):
                spread = squares.forward(variance)
                fit = problem.phi.forward(mean)
                new_residual = (problem.y - fit + residual * spread) / (spread + problem.noise_var)
                residual = share * new_residual + (1 - share) * residual
                noise = 1 / squares.adjoint(1 / (spread + problem.noise_var))
                pseudo = mean + noise * problem.phi.adjoint(residual)
                shrink = g / (g + noise)
                mean = share * (shrink * pseudo) + (1 - share) * mean
                variance = share * (shrink * noise) + (1 - share) * variance
                misfit = float(np.linalg.norm(problem.y - fit))
                if not (np.isfinite(np.sum(mean)) and misfit <= limit):
                    return None
        # At a fixed point the misfit of the data is noise_var times the residual message.
        error = float(np.linalg.norm(problem.y - fit - problem.noise_var * residual))
        unrest = error / np.sqrt(problem.n_rows * problem.noise_var)
        kind, real = problem.y.dtype, problem.real_dtype
        return Messages(mean.astype(kind), variance.astype(real), residual.astype(kind), share, unrest, good)


def _open_ones(state: State, rng: np.random.Generator) -> np.ndarray:
    """Choose some of the coefficients that the data say something about."""
    known = np.flatnonzero(1 - state.alpha * state.variance > OPEN)
    return np.sort(rng.choice(known, min(LOOKED_AT, known.size), replace=False))


def _off(messages: Array, exact: Array) -> dict[str, str]:
    """Warn where the variances of messages are not those of the posterior."""
    ratios = np.sqrt(messages / exact)
    worst = max(float(np.max(ratios, initial=1.0)), 1 / float(np.min(ratios, initial=1.0)))
    if worst <= OFF:
        return {}
    text = f"AMP found the precisions by standard deviations that are off by a factor of up to {worst:.2g}"
    return {"moments": Caution(f"{text}: entries of Phi are not like independent ones; use method='cofem'")}
