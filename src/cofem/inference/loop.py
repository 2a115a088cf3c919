"""The one outer loop: history, stop rule, callbacks, progress."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cofem._arrays import as_rows, inner, namespace, reciprocal, transposed
from cofem.inference.base import Info, Method, State
from cofem.inference.noise import NoiseRule, least_noise
from cofem.inference.problem import Problem
from cofem.linalg.cg import weighted_energy
from cofem.status import Status, StatusCode

Array = Any
logger = logging.getLogger("cofem")

#: Relative change of the prior standard deviations in a step that a fit may stop with.
PRIOR_CHANGE = 0.1
#: Variance that the posterior adds to a prediction, relative to the noise, at which a fit may stop: the
#: NRMSE was smallest where it was 0.5 to 3 (dense and DCT, f = 2 to 5); above 1, intervals are too wide.
SPREAD = 1.0
#: Its relative change in a step at which it counts as settled where it is.
SPREAD_CHANGE = 0.03
#: Relative change of the noise variance in a step below which it counts as settled.
NOISE_SETTLED = 0.02


@dataclass(frozen=True)
class Snapshot:
    """What a callback sees after each outer step, in the user's units.

    While the noise is learned, `stage` is ``"noise"``, or ``"noise 2/5"`` where several parts of the data are
    held out in turn, and the moments are those of a fit to the rest of the data; afterwards it is ``"fit"``.
    Steps are counted anew in each stage; `elapsed`, the seconds since the call of `cofem.fit`, and
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


Callback = Callable[[Snapshot], bool | None]


@dataclass(frozen=True)
class Outcome:
    """The last good state, the history and how the run ended."""

    problem: Problem
    state: State
    history: dict[str, np.ndarray]
    status: Status
    #: Whether the result itself is in doubt, as opposed to trouble that was overcome on the way.
    doubtful: bool


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C inside a fit: a `KeyboardInterrupt` that holds what was computed until then.

    Attributes
    ----------
    posterior : Posterior or None
        The posterior after the last whole step, with status ``STOPPED``; None while the noise was still
        being learned, or before the first step was done.

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
        self.posterior: Any = None


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
    trouble : str
        What went wrong in the last step without ending the fit.
    rows : list of dict
        The history, one entry for each step; entries beyond `iteration` do not count.
    decisions, troubles : dict
        What was decided by topic, and how often each trouble was met.
    status : Status or None
        How the run ended, if it did by its own rule.
    """

    state: State
    noise_var: float
    rng: Mapping[str, Any]
    iteration: int = 0
    products: int = 0
    elapsed: float = 0.0
    change: float = np.inf
    limit: float = 0.0
    before: float = 0.0
    trouble: str = ""
    rows: list[dict[str, float | str]] = field(default_factory=list)
    decisions: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, int] = field(default_factory=dict)
    status: Status | None = None


def run(
    problem: Problem,
    method: Method,
    start_alpha: Callable[[], Array],
    *,
    rng: np.random.Generator,
    max_iter: int,
    tol: float | None,
    callbacks: list[Callback],
    noise: NoiseRule | None = None,
    record: Record | None = None,
    keep: Callable[[Record], None] | None = None,
    title: str = "fit",
    elapsed: float = 0.0,
) -> Outcome:
    """Step `method` until the mean settles, a callback stops it or the steps run out.

    `start_alpha` makes the precisions to start from: made here, they need not outlive the first step; a
    method that was misled may ask for them again.
    With a `noise` rule the noise is set anew after every step, and must settle as well. With a `record` the
    run goes on from there. `keep` is handed a record after every step. `title` is what the run is for, and
    `elapsed` the seconds that were spent before it; both are for the callbacks.
    """
    if record is None:
        state = State(start_alpha())
        record = Record(state, problem.noise_var, rng.bit_generator.state, elapsed=elapsed)
    else:
        state, problem = record.state, problem.with_noise(record.noise_var)
        problem.phi.products = record.products
        rng.bit_generator.state = record.rng
    start = time.perf_counter() - record.elapsed
    rows = record.rows[: record.iteration]
    status = record.status
    try:
        while status is None:
            iteration = record.iteration + 1
            if iteration > max_iter:
                status = Status(
                    StatusCode.MAX_ITER,
                    f"stopped after max_iter={max_iter} steps; the mean still changed by {record.change:.2g} "
                    f"(tol={record.limit:.2g}). Raise max_iter to go on",
                )
                break
            if state.mean is not None and method.restarts(state):
                state = State(start_alpha(), carry=state.carry)
            step = _step(problem, method, state, rng, tol, noise, record.before)
            if step.info.end is StatusCode.FAILED:
                why = f"step {iteration} failed and was undone: {step.info.message}"
                status = Status(StatusCode.FAILED, why)
                break
            snapshot = Snapshot(
                iteration,
                time.perf_counter() - start,
                problem.phi.applications,
                step.change,
                title,
                problem,
                step.state,
            )
            rows.append(_row(snapshot, step.info))
            logger.debug("%s step %d: change %.3g, %s", method.name, iteration, step.change, step.info)
            settled = step.settled and not method.stops_itself
            status = _judge(snapshot, step.info, settled, step.limit, callbacks)
            problem, state = step.next_problem, step.next_state
            record = Record(
                state,
                problem.noise_var,
                rng.bit_generator.state,
                iteration,
                problem.phi.products,
                snapshot.elapsed,
                step.change,
                step.limit,
                step.before,
                step.info.trouble,
                rows,
                record.decisions | step.info.notes,
                _counted(record.troubles, step.info.trouble),
                # What a callback stopped may go on; what failed may be tried again.
                None if status is None or status.code is StatusCode.STOPPED else status,
            )
            if keep is not None:
                keep(record)
        if status.code is not StatusCode.FAILED:
            try:
                state, last = method.finish(problem, state, status.code, rng)
            except Exception as error:
                last = Info(
                    end=StatusCode.FAILED,
                    message=f"the final accuracy was not reached: {type(error).__name__}: {error}",
                )
            if last.end is not None:
                status = Status(last.end, last.message)
            troubles = _counted(record.troubles, last.trouble)
            record = replace(record, state=state, troubles=troubles, trouble=last.trouble or record.trouble)
    except KeyboardInterrupt as interrupt:
        outcome = None
        if record.iteration > 0:
            stopped = Status(StatusCode.STOPPED, f"interrupted after step {record.iteration}")
            outcome = _outcome(problem.with_noise(record.noise_var), record, stopped)
        raise FitInterrupted(str(interrupt) or "the fit was interrupted", outcome) from interrupt
    outcome = _outcome(problem, record, status)
    logger.info("%s: %s", method.name, outcome.status)
    return outcome


class _Step(NamedTuple):
    """A step: the state it came to, how far that is, and where the next one starts."""

    info: Info
    state: State
    change: float
    limit: float
    before: float
    settled: bool
    next_problem: Problem
    next_state: State


def _step(
    problem: Problem,
    method: Method,
    state: State,
    rng: np.random.Generator,
    tol: float | None,
    noise: NoiseRule | None,
    before: float,
) -> _Step:
    """Take a step; what goes wrong in it is told by `Info.end`, but in the first step it is raised."""
    try:
        new, info = method.step(problem, state, rng)
        if info.end is not StatusCode.FAILED and not _is_finite(new):
            why = "it gave values that are not finite; check the operator, or use float64"
            info = replace(info, end=StatusCode.FAILED, message=why)
        if info.end is StatusCode.FAILED and state.mean is None:
            raise FloatingPointError("Phi gave values that are not finite in the first step; check it")
        if info.end is not StatusCode.FAILED:
            size, change = _change(problem, new, state)
            limit = _tolerance(problem, method, size) if tol is None else tol
            # An inexact E-step may leave the mean alone while alpha still moves, so both must have settled.
            # Extrapolated steps alternate with plain ones, which are shorter: both must be short.
            calm = change <= limit and before <= limit
            paired = state.previous_alpha is not None or new.previous_alpha is not None
            before = change if paired else 0.0
            allowed = max(100 * limit, PRIOR_CHANGE)
            settled = calm and _prior_change(new, state, problem.column_energy) <= allowed
            if settled and tol is None and method.noise_tol > 0:
                settled = _spread_settled(problem, new, state)
            if noise is None:
                return _Step(info, new, change, limit, before, settled, problem, new)
            next_problem, next_state, quiet = _renew_noise(problem, new, noise, settled)
            return _Step(info, new, change, limit, before, settled and quiet, next_problem, next_state)
    except Exception as error:
        if state.mean is None and isinstance(error, np.linalg.LinAlgError):
            raise ValueError(
                f"noise_std = {problem.noise_var**0.5 * problem.units.data:.3g} is too small for method="
                f"'{method.name}' on this Phi: its matrix is singular to rounding ({error}); use a larger "
                "one, or method='cofem'"
            ) from error
        if state.mean is None:  # nothing is lost, and the caller sees where it happened
            raise
        info = Info(end=StatusCode.FAILED, message=f"{type(error).__name__}: {error}")
    return _Step(info, state, np.inf, 0.0, before, False, problem, state)


def _outcome(problem: Problem, record: Record, status: Status) -> Outcome:
    """Sum a run up."""
    doubtful = bool(record.trouble) or status.code in (StatusCode.DIVERGED, StatusCode.FAILED)
    notes = [f"{text} (in {count} of {record.iteration} steps)" for text, count in record.troubles.items()]
    status = Status(status.code, status.message, (*notes, *record.decisions.values()))
    history: dict[str, list[float | str]] = defaultdict(list)
    for row in record.rows[: record.iteration]:
        for name, value in row.items():
            history[name].append(value)
    arrays = {name: np.asarray(values) for name, values in history.items()}
    return Outcome(problem, record.state, arrays, status, doubtful)


def _counted(troubles: dict[str, int], trouble: str) -> dict[str, int]:
    return troubles | {trouble: troubles.get(trouble, 0) + 1} if trouble else troubles


def _renew_noise(
    problem: Problem, state: State, noise: NoiseRule, settled: bool
) -> tuple[Problem, State, bool]:
    """Set the noise anew; steps before a large change are no ground to extrapolate from."""
    noise_var = max(noise(problem, state, settled), least_noise(problem))
    ratio = noise_var / problem.noise_var
    if not np.isfinite(ratio):
        return problem, state, True
    near = abs(np.log(ratio)) < NOISE_SETTLED
    return problem.with_noise(noise_var), state if near else replace(state, previous_alpha=None), near


def _judge(
    snapshot: Snapshot, info: Info, settled: bool, tol: float, callbacks: list[Callback]
) -> Status | None:
    """Decide whether the run ends here. Every callback sees every step."""
    answers = [callback(snapshot) for callback in callbacks]
    if info.end is not None:
        return Status(info.end, info.message)
    if any(answers):
        return Status(StatusCode.STOPPED, f"a callback stopped the fit at step {snapshot.iteration}")
    if settled:
        return Status(
            StatusCode.CONVERGED,
            f"the mean changed by {snapshot.change:.2g} (tol={tol:.2g}) at step {snapshot.iteration}",
        )
    return None


def _row(snapshot: Snapshot, info: Info) -> dict[str, float | str]:
    """Return a step's entry in the history."""
    names = ("iteration", "elapsed", "applications", "change", "noise_std")
    row = {name: getattr(snapshot, name) for name in names}
    return row | {"cg_iterations": info.cg_iterations} | info.figures


def _change(problem: Problem, new: State, old: State) -> tuple[float, float]:
    """Norm of the mean and its relative change, coefficients weighted by their columns' norms.

    The weights make both independent of the units of each column, as the model itself is.
    """
    mean, column_energy = problem.point(new.mean, new.variance), problem.column_energy
    size = _norm(mean, column_energy)
    if old.mean is None:
        return size, np.inf
    difference = _norm(mean - problem.point(old.mean, old.variance), column_energy)
    return size, difference / size if size > 0 else (0.0 if difference == 0 else np.inf)


def _tolerance(problem: Problem, method: Method, size: float) -> float:
    """Relative change at which to stop: the method's own, or a small part of the noise if that is more."""
    noise = (math.prod(problem.y.shape) * problem.noise_var) ** 0.5
    # Where the mean is as small as the noise itself, the noise is no measure for it.
    return max(method.default_tol, min(method.noise_tol * noise / size, 1e-2) if size > 0 else 0.0)


def _prior_change(new: State, old: State, column_energy: Array) -> float:
    """Relative change of the prior standard deviations, weighted like the mean's."""
    xp = namespace(new.alpha)
    deviation = reciprocal(xp.sqrt(new.alpha))
    size = _norm(deviation, column_energy)
    deviation -= reciprocal(xp.sqrt(old.alpha))
    return _norm(deviation, column_energy) / size if size > 0 else 0.0


def _spread_settled(problem: Problem, new: State, old: State) -> bool:
    """Tell whether the variances have come down to the noise, or come down no more.

    Coefficients on their way to zero have long stopped to change the mean when they still blur predictions
    at rows that were not measured: ``sum_j theta_j s_j`` is N times the variance that they add there.
    """
    spread, before = (inner(problem.column_energy, state.variance) for state in (new, old))
    small = spread <= SPREAD * problem.n_rows * problem.noise_var
    return small or abs(before - spread) <= SPREAD_CHANGE * spread


def _norm(x: Array, column_energy: Array) -> float:
    return float(np.sum(weighted_energy(as_rows(x), column_energy))) ** 0.5


def _is_finite(state: State) -> bool:
    # A sum is not finite as soon as one term is not, and needs no temporary array.
    if state.mean is None:
        return False
    xp = namespace(state.mean)
    return bool(xp.isfinite(xp.sum(state.mean))) and bool(xp.isfinite(xp.sum(state.variance)))
