"""What an algorithm is: a first state, and a step from one state to the next, run by the loop."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import Array, as_rows, at_most, namespace, place, squared_modulus
from cofem._memory import available_bytes, describe_bytes, is_available
from cofem._packing import packable
from cofem.inference.acceleration import LONGEST, Leap, extrapolate, overshot, scaled_together
from cofem.inference.problem import Problem
from cofem.status import StatusCode

#: Share of the prior in what is known of a coefficient (``alpha s``) below which the data alone settle it. EM
#: brings it to its place in one step, and a leap adds nothing but errors of the mean, many times over:
#: coefficients of 40 standard deviations were lost in one (dense, D = 4096, `Sparser(2)` and `Sparser(3)`).
SETTLED_BY_DATA = 0.1


@packable("state")
@dataclass(frozen=True)
class State:
    """Everything an algorithm knows after a step, in scaled units.

    Attributes
    ----------
    alpha : array of shape (D,)
        Prior precisions that `mean` and `variance` belong to.
    mean : array of shape (D,) or (L, D)
        Posterior mean, a row for each task.
    variance : array of shape (D,)
        Posterior variances, which tasks with one dictionary have in common.
    carry : Any
        What the algorithm hands from step to step (warm starts and the like). A type of its own is declared
        with `cofem.packable`, so that checkpoints can hold it.
    previous_alpha : array of shape (D,) or None
        Precisions of the step before, if the next step may be extrapolated from both.
    """

    alpha: Array
    mean: Array
    variance: Array
    carry: Any = None
    previous_alpha: Array | None = None


@dataclass(frozen=True)
class Info:
    """What a step reports besides its state.

    Attributes
    ----------
    cg_iterations : int
        CG steps of the slowest system.
    figures : dict of str to float or str
        Further entries of the history, e.g. ``log_evidence``.
    notes : dict of str to str
        What was decided and why, by topic; the last word on each topic goes into the status. A
        `cofem.status.Caution` among them is a warning: it changes what the answer is worth.
    trouble : str
        What went wrong without ending the fit; "" if nothing did.
    end, message : StatusCode or None, str
        Set when the algorithm itself ends the fit, and why.
    """

    cg_iterations: int = 0
    figures: dict[str, float | str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    end: StatusCode | None = None
    message: str = ""


@dataclass(frozen=True)
class Moments:
    """What an E-step returns."""

    mean: Array
    variance: Array
    carry: Any = None
    info: Info = field(default_factory=Info)


@dataclass(frozen=True)
class Method(ABC):
    """An algorithm with its settings.

    Class attributes say up front what it needs, so that a pair that cannot work is refused
    before any work is done.
    """

    name: ClassVar[str]
    #: Whether it works on complex data.
    complex_data: ClassVar[bool] = True
    #: Whether it works on several data vectors that share their precisions.
    several_tasks: ClassVar[bool] = True
    #: Whether the prior and the non-negative constraint are the user's choice.
    any_prior: ClassVar[bool] = True
    #: Whether it works on arrays of any library, where they are; else on NumPy's only.
    any_array: ClassVar[bool] = False
    #: Outer steps when the user names none.
    default_max_iter: ClassVar[int] = 100
    #: Relative change of the mean at which it stops when the user names none.
    default_tol: ClassVar[float] = 1e-4
    #: It also stops, unless the user names a tol, when the mean changes by less than this in units of the
    #: noise: what changes far less than the noise allows to know is not worth further steps.
    noise_tol: ClassVar[float] = 0.01
    #: Whether it has a stop rule of its own, in place of the change of the mean.
    stops_itself: ClassVar[bool] = False

    def share_of_noise(self, state: State) -> float:
        """Return `noise_tol`, or what suits the state that a fit is in."""
        return self.noise_tol

    def tolerance(self, problem: Problem, state: State, size: float) -> float:
        """Return the relative change of the mean at which to stop, if the user names none.

        The method's own, or a small part of the noise if that is more.

        Parameters
        ----------
        problem : Problem
            The problem.
        state : State
            Where the fit stands.
        size : float
            Norm of the mean.
        """
        noise = (math.prod(problem.y.shape) * problem.noise_var) ** 0.5
        # Where the mean is as small as the noise itself, the noise is no measure for it.
        part = min(self.share_of_noise(state) * noise / size, 1e-2) if size > 0 else 0.0
        return max(self.default_tol, part)

    def unsettled(self, state: State) -> str:
        """Say what must settle besides the mean, in words, if the user names no tol; "" if nothing must."""
        return ""

    @property
    def start_alpha(self) -> float | None:
        """Where alpha starts unless the user says otherwise; None for a start free of units."""
        return None

    def wants_one_thread(self, problem: Problem) -> bool:
        """Tell whether matrices are so small that threads of BLAS would do nothing but wait."""
        return False

    @property
    def free_of_units(self) -> bool:
        """Whether columns may be brought to a common norm inside of the fit."""
        return True

    def memory(self, problem: Problem) -> tuple[float, str]:
        """Bytes needed beyond vectors of length D, and for what."""
        return 0.0, ""

    def refusal(self, problem: Problem) -> Exception | None:
        """Return why this method cannot work on a problem, as the error to raise; None if it can."""
        if not self.any_array and not isinstance(problem.y, np.ndarray):
            return TypeError(
                f"method='{self.name}' works on NumPy arrays only, but y or Phi is {place(problem.y)}"
            )
        if problem.is_complex and not self.complex_data:
            return ValueError(f"method='{self.name}' works on real data only, but y or Phi is complex")
        if problem.y.ndim == 2 and not self.several_tasks:
            return ValueError(
                f"method='{self.name}' works on one data vector, got y with a column for each of "
                f"{problem.n_tasks} tasks that share their precisions"
            )
        if not self.any_prior and (problem.nonnegative or not problem.prior.is_independent):
            return ValueError(f"method='{self.name}' has the independent prior built in, without constraints")
        needed, what = self.memory(problem)
        if not is_available(needed):
            return ValueError(
                f"method='{self.name}' needs {describe_bytes(needed)} for {what}, but only "
                f"{describe_bytes(available_bytes() or 0)} of memory is available"
            )
        return None

    @abstractmethod
    def init(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> tuple[State, Info]:
        """Return the first state: the moments at the precisions that the fit starts from."""

    @abstractmethod
    def step(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """Go from one state to the next."""

    def too_early(self, state: State) -> str:
        """Return why a fit cannot have settled yet, however little its mean changes; "" if it can."""
        return ""

    def settled(self, state: State) -> State:
        """Return what is kept of a state when its stage is done: not what only further steps would need."""
        return replace(state, carry=None, previous_alpha=None)

    def handed_on(self, state: State) -> Any:
        """Return what a fit that goes on from a state can use of its carry; None for nothing, see `go_on`."""
        return None

    def variances_with(self, problem: Problem, state: State, added: Array) -> Array:
        """Return variances of the last state with precisions, shape (D,), added, or what is larger: its own.

        From nothing but the state, with what is handed on of its carry: a fit that was resumed knows no more.
        """
        return state.variance

    def restarts(self, state: State) -> bool:
        """Tell whether the steps so far were misled, and the next one is to begin from the start again."""
        return False

    def go_on(
        self, problem: Problem, alpha: Array, carry: Any, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Return a first state with what earlier steps have learned: misled ones, or another fit's."""
        return self.init(problem, alpha, rng)

    def confirm(
        self, problem: Problem, state: State, info: Info, limit: float, rng: np.random.Generator
    ) -> tuple[State, Info, str]:
        """Look once more at a state that has settled.

        Returns the state to end with or go on from, what is to be said, and why the run must go on; "" if it
        may end. `limit` is the relative change of the mean that the stop rule allows.
        """
        return state, info, ""

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Bring the last state to its final accuracy, or withdraw it; `ended` says how the run ended.

        An `Info.end` returned here replaces how the run ended.
        """
        return state, Info()


@dataclass(frozen=True)
class ExpectationMaximisation(Method):
    """EM: an E-step at the current alpha, then the prior's update, ``alpha = 1 / (mean^2 + variance)``.

    A step updates alpha from the moments of the state and takes the moments at the new alpha, so that a
    state's moments always belong to its alpha.
    """

    #: Longest extrapolation of two steps.
    longest: ClassVar[float] = LONGEST

    @abstractmethod
    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """E-step at the precisions that the fit starts from."""

    @abstractmethod
    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """E-step: posterior moments at `alpha`; `state` is the one before."""

    def accelerates(self, state: State) -> bool:
        """Tell whether the next update may be extrapolated."""
        return False

    def leap_weights(self, state: State) -> Array | None:
        """Return how far each precision counts for the length of a leap, shape (D,); None for all alike."""
        return None

    def init(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> tuple[State, Info]:
        """Take the moments at the first alpha."""
        return state_of(alpha, self.first_expectation(problem, alpha, rng))

    def maximisation(self, problem: Problem, state: State) -> Array:
        """M-step: the precisions that follow from a state's moments."""
        return problem.rule.precisions(problem.second_moment(state.mean, state.variance), problem.alpha_cap)

    def step(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """Update alpha, then take the moments at it; undo an extrapolation that went too far."""
        image = self.maximisation(problem, state)
        if not (self.accelerates(state) and problem.prior.extrapolates):
            return self._moments_at(problem, image, state, rng)
        if state.previous_alpha is None:
            new, info = self._moments_at(problem, image, state, rng)
            return (new if new is state else replace(new, previous_alpha=state.alpha)), info
        weights = self.leap_weights(state)
        alpha = extrapolate(state.previous_alpha, state.alpha, image, self.longest, weights)
        if alpha is None:
            return self._moments_at(problem, image, state, rng)
        if problem.prior.prunes:
            settled = state.alpha * state.variance < SETTLED_BY_DATA
            alpha = namespace(alpha).where(settled, image, alpha)
        del image  # a long vector, which is made again if it is needed
        alpha = at_most(alpha, problem.alpha_cap)
        leap = Leap(state.alpha, alpha)
        before = _slope_at(problem, state, leap)
        new, info = self._moments_at(problem, alpha, state, rng)
        ended = info.end is not None
        if not ended and overshot(before, _slope_at(problem, new, leap)):
            return self._moments_at(problem, self.maximisation(problem, state), state, rng)
        return new, info

    def confirm(
        self, problem: Problem, state: State, info: Info, limit: float, rng: np.random.Generator
    ) -> tuple[State, Info, str]:
        """Scale all coefficients near zero together where they explain most of the data, and go on.

        EM brings them down too slowly to be seen, and they blur predictions. Earlier in a fit the same step
        leads to worse optima (DCT, d = 0.1 D: 13 in place of 1.8 %).
        """
        alpha = self._scaled_together(problem, state)
        if alpha is None:
            return state, info, ""
        new, more = self._moments_at(problem, alpha, state, rng)
        if new is state:
            return state, info, ""
        info = replace(info, cg_iterations=max(info.cg_iterations, more.cg_iterations))
        return new, info, "coefficients near zero were scaled together"

    def _scaled_together(self, problem: Problem, state: State) -> Array | None:
        """Return the precisions to go on from; None where there is nothing to gain, or not known to be."""
        plain = problem.prior.is_independent or (
            problem.prior.joins_tasks and problem.prior.within_a_task.is_independent
        )
        if not (plain and self.accelerates(state)) or problem.cut_moments or problem.in_analysis:
            return None
        square = as_rows(squared_modulus(state.mean))
        square = namespace(square).mean(square, axis=0)
        alpha = scaled_together(state.alpha, state.variance, square, problem.n_rows)
        return None if alpha is None else at_most(alpha, problem.alpha_cap)

    def _moments_at(
        self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator
    ) -> tuple[State, Info]:
        moments = self.expectation(problem, alpha, state, rng)
        if moments.info.end is StatusCode.FAILED:
            return state, moments.info
        return state_of(alpha, moments)


def state_of(alpha: Array, moments: Moments) -> tuple[State, Info]:
    """Return the state that moments at `alpha` make, and what the E-step reports."""
    return State(alpha, moments.mean, moments.variance, moments.carry), moments.info


def _slope_at(problem: Problem, state: State, leap: Leap) -> float:
    """Return the slope of what EM maximises at a state, along a leap."""
    second_moment = problem.second_moment(state.mean, state.variance)
    return leap.slope(problem.rule.slope(state.alpha, second_moment, problem.alpha_cap))
