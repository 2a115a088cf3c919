"""Exact moments with MacKay's update of the precisions, for few columns and many data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cofem._arrays import average, squared_modulus
from cofem.inference.base import Info, State
from cofem.inference.em import EM
from cofem.inference.problem import Problem
from cofem.status import StatusCode

#: Where alpha starts, relative to the start of other methods, and the noise relative to the data up to which
#: that is broad enough. On eight draws of ARDRegression's example of polynomials, 0.1 ended at the evidence
#: of ARDRegression or above, 1 ended below it on two. With a noise of 0.45 of the data given, 0.1 ended below
#: the best on six of ten draws; less by the square of the excess, on one.
BROADER, NOISY = 0.1, 0.1
#: Share of a coefficient that data determine below which it may be given up at once, if its precision is to
#: grow by more than one over this in a step.
NEGLIGIBLE, LOST = 1e-3, 0.9


@dataclass(frozen=True)
class MacKay(EM):
    """EM's exact moments with the update ``alpha = (1 - alpha variance) / mean^2``, as in `ARDRegression`.

    Its fixed points are those of EM, and it gets there in far fewer steps, but the evidence may fall in one
    (MacKay 1992). `cofem.SBLRegressor` takes it where columns are few. Real data, one vector of them, the
    independent prior.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.01, method=MacKay())
    >>> post.support().tolist()
    [0]
    """

    accelerate: bool = True

    #: Of 4, 8, 16, 40 and 100, 16 took the fewest steps on nine problems (50 x 20, polynomials, diabetes).
    longest: ClassVar[float] = 16.0
    complex_data: ClassVar[bool] = False
    several_tasks: ClassVar[bool] = False

    def refusal(self, problem: Problem) -> Exception | None:
        """Refuse priors and constraints, which the update does not know."""
        if problem.nonnegative or not problem.prior.is_independent:
            return ValueError("MacKay's update has the independent prior built in, without constraints")
        return super().refusal(problem)

    def init(self, problem: Problem, alpha: np.ndarray, rng: np.random.Generator) -> tuple[State, Info]:
        """Begin with a broader prior than usual: fewer columns that look alike end in a poor optimum."""
        power = average(squared_modulus(problem.y))
        broader = BROADER * min(1.0, NOISY * power / problem.noise_var) ** 2
        return super().init(problem, alpha * alpha.dtype.type(broader), rng)

    def leap_weights(self, state: State) -> np.ndarray:
        """Return how far data determine each coefficient: precisions on their way to infinity do not count.

        These speed up until they are given up, so that all others had to wait: on 28 problems (50 x 20 to 400
        x 150, diabetes, polynomials) fits take 392 steps in place of 557, to the same evidence.
        """
        return np.maximum(1 - state.alpha * state.variance, 0)

    def maximisation(self, problem: Problem, state: State) -> np.ndarray:
        """Return the share of each coefficient that data determine, over its squared mean."""
        alpha = state.alpha
        explained = np.maximum(1 - alpha * state.variance, 0)
        least = explained / alpha.dtype.type(problem.alpha_cap)
        energy = state.mean**2
        # The data say nothing about a column of zeros, whose precision stays.
        image = np.divide(explained, np.maximum(energy, least), out=alpha.copy(), where=explained > 0)
        # With all others as they are, these would go on to infinity, by the same factor in every step.
        image[(explained < NEGLIGIBLE) & (alpha * energy < LOST * explained)] = problem.alpha_cap
        return image

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Take the moments at the noise that was learned last."""
        new, info = self._moments_at(problem, state.alpha, state, rng)
        return new, Info(notes=info.notes)
