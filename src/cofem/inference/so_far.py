"""What the stages of a fit have come to, for one that is stopped before its last stage ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cofem.inference.base import State
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome
from cofem.status import Status, StatusCode


@dataclass(frozen=True)
class SoFar:
    """Where a stage ended, or stands, without what only further steps would need: a part of Phi above all.

    Attributes
    ----------
    state : State
        The moments and precisions.
    form : Callable
        Makes the problem of the stage, with all data, of the one that is fitted.
    n_rows : int
        Number of data that it was fitted to.
    history, status, doubtful : dict, Status and bool
        As in `Outcome`.
    change : float
        Last relative change of the mean.
    error : float or None
        Mean squared error at the data that were held out, if some were and they were looked at.
    """

    state: State
    form: Callable[[Problem], Problem]
    n_rows: int
    history: dict[str, np.ndarray]
    status: Status
    doubtful: bool
    change: float
    error: float | None

    @classmethod
    def of(cls, outcome: Outcome) -> SoFar:
        """Take what is worth keeping of a stage's outcome."""
        problem, state = outcome.problem.shown(outcome.state)
        squares = outcome.figures.get("squares")
        return cls(
            State(state.alpha, state.mean, state.variance),
            problem.form,
            problem.n_rows,
            outcome.history,
            outcome.status,
            outcome.doubtful,
            float(outcome.history["change"][-1]),
            None if squares is None else float(np.mean(squares)),
        )

    def is_better_than(self, other: SoFar) -> bool:
        """Tell whether it has come at least as far as another one.

        What both predict of data that were held out tells. Of a fit to all data there are none, and the one
        whose mean moved less in its last step is closer to its end.
        """
        if self.error is not None and other.error is not None:
            return self.error <= other.error
        return self.change <= other.change

    def for_all(self, problem: Problem, end: str) -> Outcome:
        """Return it as the result for all data of a fit that was stopped, which `end` says how.

        Parameters
        ----------
        problem : Problem
            The problem with all data; its noise is NaN if it is not known.
        end : str
            What stopped the fit.
        """
        whole, message = self.form(problem), end
        if math.isfinite(problem.noise_var):
            whole = whole.with_noise(problem.noise_var)
        if self.n_rows < problem.n_rows:
            part = f"mean and variance are those of a fit to {self.n_rows} of the {problem.n_rows} data"
            if math.isfinite(problem.noise_var):
                message = f"{end}: {part}, which had come further"
            else:
                message = (
                    f"{end}, while the noise was still being learned: noise_std = "
                    f"{whole.noise_var**0.5 * problem.units.data:.3g} is what was known by then, and {part}"
                )
        status = replace(self.status, code=StatusCode.STOPPED, message=message)
        return Outcome(whole, self.state, self.history, status, self.doubtful)
