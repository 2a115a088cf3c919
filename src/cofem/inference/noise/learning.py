"""Strategies to learn the noise level: which one suits a problem, and those that need no fit or several.

`cofem.fit` takes `FromTheFit` where data are plenty, `LeastSquares` where there are fewer or columns hardly
overlap, and `HeldOutParts` otherwise; `cofem.RVMRegressor` takes `Refits`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cofem._arrays import average, inner, size, squared_modulus
from cofem.inference.base import Method
from cofem.inference.noise.held_out import HeldOutParts
from cofem.inference.noise.least_squares import LeastSquares
from cofem.inference.noise.rules import FromEvidence
from cofem.inference.noise.strategy import Learned, NoiseStrategy, Plan
from cofem.inference.problem import Problem
from cofem.inference.stages import Runner
from cofem.status import StatusCode

#: Data for each coefficient from which on the evidence is enough. It is maximised over precisions, so that
#: some of the noise counts as signal: of noise alone it said 0.86 of the truth at twice as many data, with a
#: false column in 18 to 34 % of draws, 0.94 at five times as many (15 %), 0.97 at ten times (4 %).
ENOUGH_FOR_EVIDENCE = 10
#: Data held out in all parts that are enough where nothing but the noise is wanted: of 144 fits with 200, 100
#: and 60 of them, 8, 9 and 8 were off by more than 1.5.
ENOUGH_FOR_NOISE = 100
#: Most parts there. Of 100 data all take part in turn: noise learned with ten seeds was apart by 2 to 5 %
#: (root mean square; 8 to 10 % with five parts), and off by 11 % (14 to 16 %), in up to 1.5 times the time.
MOST_PARTS = 10
#: Data that are enough in one part there, unless a fiftieth of all are more. With a tenth, signals near the
#: limit are missed, and are looked for once more with a fiftieth: twice the time, also of data that are
#: noisy indeed.
ENOUGH_IN_ONE = 400


def choose_strategy(problem: Problem, method: Method) -> NoiseStrategy:
    """Return the strategy that suits a problem."""
    if has_plenty(problem) and method.any_prior:
        return FromTheFit()
    return LeastSquares(HeldOutParts(enough=ENOUGH_IN_ONE, wanted=ENOUGH_FOR_NOISE, most_parts=MOST_PARTS))


def has_plenty(problem: Problem) -> bool:
    """Tell whether the evidence is enough to learn the noise from."""
    return problem.n_rows >= ENOUGH_FOR_EVIDENCE * problem.n_columns


class FromTheFit:
    """MacKay's update in every step of the fit itself, where data are plenty."""

    def learn(self, problem: Problem, plan: Plan, runner: Runner) -> Learned:
        """Run nothing: the fit learns the noise as it goes."""
        power = inner(problem.y, problem.y) / size(problem.y)
        note = "the noise was learned from the evidence, since data are plenty"
        return Learned(0.1 * power or 1.0, note, FromEvidence())


@dataclass(frozen=True)
class AlreadyLearned:
    """A noise that was found while priors were compared.

    Parameters
    ----------
    learned : Learned
        What was found.
    unit : float
        Unit of the data that it is in.
    each : bool
        Whether tasks that were compared together are now fitted one by one: each has a noise of its own.
    """

    learned: Learned
    unit: float
    each: bool = False

    def learn(self, problem: Problem, plan: Plan, runner: Runner) -> Learned:
        """Run nothing, unless each task has a noise of its own; a noise that was given stays."""
        if math.isfinite(problem.noise_var):
            return self.learned._replace(noise_var=problem.noise_var)
        if self.each and not self.learned.fault:
            found = choose_strategy(problem, plan.method).learn(problem, plan, runner)
            return found._replace(note="; ".join(filter(None, [self.learned.note, found.note])))
        scale = (self.unit / problem.units.data) ** 2
        return self.learned._replace(noise_var=self.learned.noise_var * scale)


@dataclass(frozen=True)
class Refits:
    """MacKay's update after a whole fit, and the fit again from its start, until the noise has settled.

    For kernels between samples, where N = D and precisions that a fit at too large a noise sent to infinity
    would not come back.

    Parameters
    ----------
    start, least : float
        Where the noise starts and the least it may be, relative to the data.
    settled : float
        Relative change at which it has settled.
    most : int
        Most fits.
    """

    start: float = 0.3
    least: float = 1e-3
    settled: float = 0.02
    most: int = 20

    def learn(self, problem: Problem, plan: Plan, runner: Runner) -> Learned:
        """Fit and update in turn; every fit has the same random numbers."""
        size = average(squared_modulus(problem.y)) ** 0.5
        noise_std, outcome = self.start * size, None
        random = runner.rng.bit_generator.state
        for number in range(self.most):
            runner.rng.bit_generator.state = random
            try:
                fitted = runner.run(
                    problem.with_noise(noise_std**2), plan.method, plan.stage(f"refit/{number}")
                )
            except ValueError as error:
                # Kernel matrices are close to singular; the noise before is the least that can be handled.
                if outcome is None or not isinstance(error.__cause__, np.linalg.LinAlgError):
                    raise
                break
            outcome = fitted
            if outcome.status.code in (StatusCode.STOPPED, StatusCode.FAILED):
                break
            found = max(FromEvidence()(outcome.problem, outcome.state, True) ** 0.5, self.least * size)
            if abs(found / noise_std - 1) < self.settled:
                break
            noise_std = found
        assert outcome is not None
        note = f"the noise was learned from the evidence, by {number + 1} fits"
        return Learned(outcome.problem.noise_var, note, outcome=outcome)
