"""What a fit asks of learning its noise, and what it gets: the parts that all strategies share."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from cofem._arrays import Array, average, size, squared_modulus
from cofem.inference.base import Method
from cofem.inference.loop import Ended, Stage
from cofem.inference.noise.rules import NoiseRule
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome
from cofem.inference.stages import Runner
from cofem.status import Caution

#: Data below which those that are held out are too few to learn a small noise from, see `least_from_few`. Not
#: more: scikit-learn's check that weights count samples has 9 of them.
FEW_DATA = 9


class Plan(NamedTuple):
    """The fit that the noise is learned for.

    Attributes
    ----------
    task : int
        Number of the task, which stages are named by.
    method : Method
        The algorithm.
    alpha_init : float, array or None
        Where alpha starts, in the user's units.
    max_iter : int
        Most outer steps.
    tol : float or None
        The user's tolerance.
    before : Ended or None
        The fit that this one goes on from, in place of `alpha_init`.
    most_noise : float
        Largest noise variance that may be learned.
    """

    task: int
    method: Method
    alpha_init: Array | float | None
    max_iter: int
    tol: float | None
    before: Ended | None = None
    most_noise: float = math.inf

    def stage(self, name: str = "fit", noise: NoiseRule | None = None) -> Stage:
        """Return the fit itself as a stage."""
        return Stage(f"{self.task}/{name}", "fit", self.alpha_init, self.max_iter, self.tol, noise)


class Learned(NamedTuple):
    """A noise level and where it comes from.

    Attributes
    ----------
    noise_var : float
        The noise variance.
    note : str
        Where it comes from.
    rule : NoiseRule or None
        How it goes on to change in the fit that follows; None if it is settled.
    outcome : Outcome or None
        The fit at that noise, if learning the noise has made it.
    fault : str
        What went wrong, if the noise could not be learned: it is then what was known by then.
    doubt : str
        What speaks against it; "" if nothing does.
    """

    noise_var: float
    note: str
    rule: NoiseRule | None = None
    outcome: Outcome | None = None
    fault: str = ""
    doubt: str = ""

    @property
    def remarks(self) -> tuple[str, str]:
        """Return what a status says of it."""
        return self.note, Caution(self.doubt)


class NoiseStrategy(Protocol):
    """A way to learn the noise."""

    def learn(self, problem: Problem, plan: Plan, runner: Runner) -> Learned:
        """Run what it takes; the noise variance of `problem` is not known."""


def least_from_few(problem: Problem) -> float:
    """Return the least noise variance that few data allow to claim; 0 where they are not few.

    Few data may be predicted without error by chance, or because they were centred: of two samples less their
    mean, each tells the other. The noise is then taken to be at least what it would be if a further datum,
    of the size of the others, were noise alone.
    """
    count = size(problem.y)
    return 0.0 if count >= FEW_DATA else average(squared_modulus(problem.y)) / (count + 1)


def with_few_data(learned: Learned, problem: Problem) -> Learned:
    """Raise a noise level to what few data allow to claim, and say so."""
    least = least_from_few(problem)
    if learned.noise_var >= least:
        return learned
    share = (least / average(squared_modulus(problem.y))) ** 0.5
    note = (
        f"{learned.note}; {size(problem.y)} data are too few to tell a small noise, so it was taken to be "
        f"{100 * share:.0f} % of the data: give noise_std if you know it"
    )
    return learned._replace(noise_var=least, note=note)
