"""Inverse-free variational inference with a diagonal posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, at_least, in_precision, inner, namespace, squared_modulus
from cofem._packing import packable
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.problem import Problem
from cofem.inference.stopping import change_of_mean
from cofem.status import StatusCode

#: Steps from which the pace is taken, and how many steps as long as the last one may be left. Of 60 fits that
#: stopped where steps were 1e-5 (identity, transforms, blurs, dense ones) 54 were less than a thousand such
#: steps from their end, the others up to 16 000: on a plateau, or about to leave a saddle point.
LOOKED_BACK, MOST_STEPS_LEFT = 8, 1000.0
#: Part of the steps so far that must have been short: a slow rate shows once the faster ones have died down.
CALM = 0.1
#: Change of the mean that is rounding alone, in units of the precision.
ROUNDINGS = 10.0


@packable("vi")
class Pace(NamedTuple):
    """How far the last steps went.

    Attributes
    ----------
    changes : tuple of float
        Relative changes of the mean in the last steps.
    steps : int
        Steps in all.
    calm : int
        How many of them, the last ones, were short enough to end with.
    settled : bool
        Whether the last one was.
    """

    changes: tuple[float, ...] = ()
    steps: int = 0
    calm: int = 0
    settled: bool = False

    def still_to_go(self, rounding: float) -> float:
        """Return how far steps that become shorter, or longer, by the same factor go in all.

        Examples
        --------
        >>> round(Pace((0.4, 0.2, 0.1)).still_to_go(0.0), 9), Pace((0.1, 0.2)).still_to_go(0.0)
        (0.1, inf)
        """
        first, last, count = self.changes[0], self.changes[-1], len(self.changes)
        if last <= rounding:
            return 0.0
        factor = (last / first) ** (1 / (count - 1)) if count > 1 and first > 0 else math.inf
        return last * factor / (1 - factor) if factor < 1 else math.inf


@dataclass(frozen=True)
class VI(ExpectationMaximisation):
    r"""Variational inference on a relaxed bound (Duan et al. 2017): one application a step.

    The misfit is replaced by a quadratic bound at the last mean w,

    .. math:: \|y - \Phi z\|^2 \le \|y - \Phi w\|^2 + 2 (z - w)^H \Phi^H (\Phi w - y) + \tfrac T2 \|z - w\|^2,

    with ``T >= 2 ||Phi||^2``, which makes the posterior diagonal. Fast and small, but it optimises a
    bound that is loose when N < D, so its answer is biased.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.01, method="vi")
    >>> post.support().tolist()
    [0]
    """

    name: ClassVar[str] = "vi"
    default_max_iter: ClassVar[int] = 2000
    default_tol: ClassVar[float] = 1e-5
    any_array: ClassVar[bool] = True
    #: Its steps are short, so a small one says little.
    noise_tol: ClassVar[float] = 0.0

    def step(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """Take a step, and remember how far the last few went."""
        new, info = super().step(problem, state, rng)
        if new is state:
            return new, info
        old: Pace = state.carry or Pace()
        changes = (*old.changes, change_of_mean(problem, new, state)[1])[-LOOKED_BACK:]
        return replace(new, carry=Pace(changes, old.steps + 1, old.calm if old.settled else 0)), info

    def confirm(
        self, problem: Problem, state: State, info: Info, limit: float, rng: np.random.Generator
    ) -> tuple[State, Info, str]:
        """Go on where short steps add up to much, or where coefficients near zero are about to grow."""
        pace: Pace = state.carry
        pace = pace._replace(calm=pace.calm + 1, settled=True)
        left = pace.still_to_go(ROUNDINGS * float(np.finfo(problem.real_dtype).eps))
        unmet = ""
        if left > MOST_STEPS_LEFT * limit:
            unmet = f"steps are short, but at their pace the mean is still off by {left:.2g}"
        elif pace.calm < CALM * pace.steps:
            return replace(state, carry=pace), info, "steps have not been short for long"
        elif self._about_to_grow(problem, state):
            unmet = "coefficients near zero still grow"
        return (replace(state, carry=pace._replace(calm=0)) if unmet else state), info, unmet

    def _about_to_grow(self, problem: Problem, state: State) -> bool:
        """Tell whether coefficients near zero belong elsewhere, by more than the noise of a datum.

        With all others as they are, the bound has its maximum over alpha_j where
        ``mean_j = (|q_j|^2 - s) / (|q_j|^2 s) q_j``, and at zero unless ``|q_j|^2 > s``; here ``s`` is the
        precision that the bound gives the data, and ``q = s mean + beta Phi^H (y - Phi mean)``. It grows from
        near zero at a steady rate, and is not seen in the mean for long.
        """
        plain = problem.prior.is_independent and not problem.nonnegative and problem.y.ndim == 1
        if not (plain and problem.phi.gain):
            return False
        # Fourth powers of the data are beyond single precision.
        q = in_precision(self._pull(problem, state.mean), "float64") / problem.noise_var
        s = self._half_curvature(problem) / problem.noise_var
        power, now = squared_modulus(q), squared_modulus(in_precision(state.mean, "float64"))
        there = at_least(power - s, 0.0) ** 2 / (at_least(power, s) * s**2)
        grows = namespace(there).where(there > 4 * now, there, 0 * there)
        return inner(grows, in_precision(problem.phi.column_energy, "float64")) > problem.noise_var

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Say what the moments are."""
        words = "mean and variances are those of a bound, which is loose where columns are not orthogonal"
        return state, Info(notes={"bound": words})

    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """Take the diagonal posterior of the bound at a mean of zero."""
        return self._moments(problem, alpha, problem.phi.adjoint(problem.y))

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """Take the diagonal posterior of the bound at the last mean."""
        return self._moments(problem, alpha, self._pull(problem, state.mean))

    def _pull(self, problem: Problem, mean: Array) -> Array:
        pull = problem.phi.adjoint(problem.y - problem.phi.forward(mean))
        pull += self._half_curvature(problem) * mean
        return pull

    def _half_curvature(self, problem: Problem) -> float:
        # The norm is estimated for some operators; a bound that is too low would not be one.
        return 1.01 * problem.phi.gain

    def _moments(self, problem: Problem, alpha: Array, pull: Array) -> Moments:
        beta = 1 / problem.noise_var
        variance = 1 / (beta * self._half_curvature(problem) + alpha)
        variance = in_precision(variance, problem.real_dtype.name)
        mean = namespace(pull).astype(beta * pull * variance, problem.y.dtype, copy=False)
        return Moments(mean, variance)
