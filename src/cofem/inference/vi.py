"""Inverse-free variational inference with a diagonal posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cofem._arrays import Array, in_precision, namespace
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.problem import Problem
from cofem.status import StatusCode


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
        pull = problem.phi.adjoint(problem.y - problem.phi.forward(state.mean))
        pull += self._half_curvature(problem) * state.mean
        return self._moments(problem, alpha, pull)

    def _half_curvature(self, problem: Problem) -> float:
        # The norm is estimated for some operators; a bound that is too low would not be one.
        return 1.01 * problem.phi.gain

    def _moments(self, problem: Problem, alpha: Array, pull: Array) -> Moments:
        beta = 1 / problem.noise_var
        variance = 1 / (beta * self._half_curvature(problem) + alpha)
        variance = in_precision(variance, problem.real_dtype.name)
        mean = namespace(pull).astype(beta * pull * variance, problem.y.dtype, copy=False)
        return Moments(mean, variance)
