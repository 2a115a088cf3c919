"""What a run of the loop leaves behind: snapshots for callbacks, records to go on from, the outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cofem._arrays import Array, transposed
from cofem._packing import packable
from cofem.inference.base import Info, State
from cofem.inference.problem import Problem
from cofem.status import Status, StatusCode

Row = dict[str, float | str]


@dataclass(frozen=True)
class Snapshot:
    """What a callback sees after each outer step, in the user's units.

    While the noise is learned, `stage` is ``"noise"``, or ``"noise 2/5"`` where several parts of the data are
    held out in turn, and the moments are those of a fit to the rest of the data; afterwards it is ``"fit"``.
    Steps are counted again from 1 in each stage; `elapsed`, the seconds since the call of `cofem.fit`, and
    `applications`, of one task, go on.
    """

    iteration: int
    elapsed: float
    applications: float
    change: float
    stage: str
    _problem: Problem
    _state: State

    @property
    def mean(self) -> Array:
        """Posterior mean, shape (D,), or (D, L) for L tasks."""
        point = self._problem.point(self._state.mean, self._state.variance)
        return self._problem.units.apply(transposed(point))

    @property
    def variance(self) -> Array:
        """Posterior variances, shape (D,)."""
        return self._problem.units.apply(self._state.variance, 2)

    @property
    def alpha(self) -> Array:
        """Prior precisions, shape (D,)."""
        return self._problem.units.apply(self._state.alpha, -2)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise."""
        return self._problem.noise_var**0.5 * self._problem.units.data

    def row(self, info: Info) -> Row:
        """Return a step's entry in the history."""
        names = ("iteration", "elapsed", "applications", "change", "noise_std")
        row = {name: getattr(self, name) for name in names}
        return row | {"cg_iterations": info.cg_iterations} | info.figures

    def describe(self, info: Info) -> str:
        """Return a step as a line for the log."""
        line = (
            f"{self.stage}, step {self.iteration}: change {self.change:.3g}, noise_std {self.noise_std:.3g}, "
            f"{self.applications:.0f} applications, {info.cg_iterations} CG steps"
        )
        return "; ".join([line, *info.notes.values(), *filter(None, [info.trouble, info.message])])


Callback = Callable[[Snapshot], bool | None]


@packable("record")
@dataclass(frozen=True)
class Record:
    """Where a run stands after a step: all that it takes to go on from there to the same result.

    Attributes
    ----------
    state : State
        The state.
    noise_var : float
        Noise variance for the next step.
    rng : dict
        State of the random generator.
    iteration : int
        Steps done.
    products : int
        Products with Phi, for the count of applications.
    elapsed : float
        Seconds since the call of `cofem.fit`, without those between a break and going on.
    change, limit : float
        Last change of the mean, and the one that is small enough.
    before : float
        Change that must be small as well for the next step to end the run.
    unmet : str
        Which condition of the stop rule is not met.
    rows : list of dict
        The history, one entry for each step; entries beyond `iteration` do not count.
    trouble : str
        What went wrong in the last step without ending the fit.
    decisions, troubles : dict
        What was decided by topic, and how often each trouble was met.
    status : Status or None
        How the run ended, if it did by its own rule.
    """

    state: State
    noise_var: float
    rng: Mapping[str, Any]
    iteration: int
    products: int
    elapsed: float
    change: float
    limit: float
    before: float
    unmet: str
    rows: list[Row]
    trouble: str = ""
    decisions: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, int] = field(default_factory=dict)
    status: Status | None = None

    def counted(self, trouble: str) -> dict[str, int]:
        """Return how often each trouble was met, with one more."""
        return self.troubles | {trouble: self.troubles.get(trouble, 0) + 1} if trouble else self.troubles

    def packed(self) -> dict[str, Any]:
        """Return the fields for a file: the history by columns, which is far smaller."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        rows = self.rows[: self.iteration]
        names = dict.fromkeys(name for row in rows for name in row)
        fields["rows"] = {
            name: (
                np.array([i for i, row in enumerate(rows) if name in row], dtype=np.int64),
                np.array([row[name] for row in rows if name in row]),
            )
            for name in names
        }
        return fields

    @classmethod
    def unpacked(cls, fields: dict[str, Any]) -> Record:
        """Return the record that `packed` was called on."""
        rows: list[Row] = [{} for _ in range(fields["iteration"])]
        for name, (steps, values) in fields["rows"].items():
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                rows[step][name] = value
        return cls(**(fields | {"rows": rows}))


@dataclass(frozen=True)
class Outcome:
    """The last good state, the history and how the run ended.

    The state of a stage that learned the noise is not kept in checkpoints; it is then taken from one without.
    """

    problem: Problem
    state: Any
    history: dict[str, np.ndarray]
    status: Status
    #: Whether the result itself is in doubt, as opposed to trouble that was overcome on the way.
    doubtful: bool
    #: What the stage's judge made of it.
    figures: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, record: Record, status: Status) -> Outcome:
        """Sum a run up."""
        doubtful = bool(record.trouble) or status.code in (StatusCode.DIVERGED, StatusCode.FAILED)
        notes = [
            f"{text} (in {count} of {record.iteration} steps)" for text, count in record.troubles.items()
        ]
        status = replace(status, notes=(), warnings=()).with_notes(*notes, *record.decisions.values())
        columns: dict[str, list[float | str]] = defaultdict(list)
        for row in record.rows[: record.iteration]:
            for name, value in row.items():
                columns[name].append(value)
        history = {name: np.asarray(values) for name, values in columns.items()}
        return cls(problem, record.state, history, status, doubtful)


class FitStopped(Exception):
    """A callback stopped a fit while another stage, such as one that learned the noise, had come further."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C inside a fit: a `KeyboardInterrupt` that holds what was computed until then.

    Attributes
    ----------
    posterior : Posterior or None
        The best so far, with status ``STOPPED``: after the last whole step, or while the noise was still
        being learned and soon after, that of the fit to most of the data that came furthest, at the noise
        known by then; the status says so. None before the first whole step.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> def press_ctrl_c(state):
    ...     if state.iteration == 2:
    ...         raise KeyboardInterrupt
    >>> try:
    ...     cofem.fit(np.eye(3), np.ones(3), noise_std=0.1, method="em", callback=press_ctrl_c)
    ... except cofem.FitInterrupted as interrupt:
    ...     print(interrupt.posterior.n_iter, interrupt.posterior.status.code.value)
    1 stopped
    """

    def __init__(self, message: str, outcome: Outcome | None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.where = "interrupted" if outcome is None else outcome.status.message
        self.posterior: Any = None
