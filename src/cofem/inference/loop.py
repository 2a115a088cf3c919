"""The one outer loop."""

from __future__ import annotations

import cmath
import logging
import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from cofem._arrays import Array, inner, namespace
from cofem.inference.base import Info, Method, State
from cofem.inference.noise.rules import Bounded, NoiseRule, least_noise
from cofem.inference.noise.second_tries import SecondTry, given_up
from cofem.inference.problem import Problem
from cofem.inference.record import FitInterrupted, Outcome, Record, Snapshot
from cofem.inference.stopping import FAR_RISE, Judgement, NoiseChange, judge, judge_first
from cofem.status import Status, StatusCode

logger = logging.getLogger("cofem")


class Judge(Protocol):
    """Who looks at where a stage ended."""

    def __call__(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """Return figures by name."""


class Ended(NamedTuple):
    """Where a fit ended, for another to go on from.

    Attributes
    ----------
    alpha : array of shape (D,)
        Its precisions, in the user's units.
    method : Method
        Its method; another one can use nothing but the precisions.
    carry : Any
        What that knows by then, so that the variances need not be checked as if nothing were known of Phi.
    """

    alpha: Array
    method: Method
    carry: Any

    @classmethod
    def of(cls, outcome: Outcome, method: Method) -> Ended:
        """Return where an outcome ended."""
        alpha = outcome.problem.units.apply(outcome.state.alpha, -2)
        return cls(alpha, method, method.handed_on(outcome.state))


class Stage(NamedTuple):
    """What a run of the loop is for, where it starts and when it ends.

    Attributes
    ----------
    name : str
        What the checkpoint knows it by, such as ``"0/fit"``.
    title : str
        What callbacks are told: ``"fit"``, or ``"noise 2/5"``.
    alpha_init : float, array of shape (D,) or None
        Where alpha starts, in the user's units; None for the default. The array is made when it is needed:
        it need not outlive the first step, and a method that was misled may ask for it again.
    max_iter : int
        Most steps.
    tol : float or None
        The user's tolerance; None for the default stop rule.
    noise : NoiseRule or None
        Sets the noise after every step; it must settle as well. None for a noise that is known.
    kept : bool
        Whether a checkpoint keeps the last state of a stage that is not the fit.
    judge : Judge or None
        Makes figures of where the stage ended, which the outcome and the checkpoint hold.
    before : Ended or None
        The fit that this one goes on from, in place of `alpha_init`; see `Problem.first`.
    passes_on : bool
        Whether another one goes on from where this one ends: the last mean is not solved for once more, and
        checkpoints keep what the method knows.
    rough : bool
        Whether nothing but the noise is wanted: the run ends once that has settled.
    loose : bool
        Whether the mean may still change a little at the end, as in a fit on the way to another.
    second_try : SecondTry or None
        What is asked of the noise rule while the run goes on, or it is given up; None for a first try.
    """

    name: str
    title: str
    alpha_init: Array | float | None
    max_iter: int
    tol: float | None = None
    noise: NoiseRule | None = None
    kept: bool = False
    judge: Judge | None = None
    before: Ended | None = None
    passes_on: bool = False
    rough: bool = False
    loose: bool = False
    second_try: SecondTry | None = None

    @property
    def start(self) -> Array | float | None:
        """Where alpha starts, in the user's units."""
        return self.alpha_init if self.before is None else self.before.alpha


class Watch(Protocol):
    """Who looks on while the loop runs: the clock, the callbacks, the checkpoint."""

    @property
    def rng(self) -> np.random.Generator:
        """The fit's source of randomness."""

    @property
    def elapsed(self) -> float:
        """Seconds since the call of `cofem.fit`, without those between a break and going on."""

    def stops(self, snapshot: Snapshot) -> bool:
        """Show a step to every callback; tell whether one of them ends the run."""

    def keep(self, record: Record) -> None:
        """Note where the run stands."""


def run(
    problem: Problem, method: Method, stage: Stage, watch: Watch, record: Record | None = None
) -> Outcome:
    """Step `method` until the mean settles, a callback stops it or the steps run out.

    With a `record` the run goes on from there, and `problem` has its noise.
    """
    status = None if record is None else record.status
    if stage.noise is not None:
        stage = stage._replace(noise=Bounded(stage.noise, least_noise(problem)))
    try:
        if record is None:
            step = _first_step(problem, method, stage, watch.rng)
            record, status = _note(step, method, stage, watch, None)
            problem = step.next_problem
        while status is None:
            if record.iteration >= stage.max_iter:
                status = _out_of_steps(record, stage)
                break
            if stage.second_try is not None and stage.noise is not None:
                says = partial(stage.noise, problem, record.state, True)
                if not stage.second_try.is_promising(record.rows[: record.iteration], says):
                    status = given_up(record.iteration)
                    break
            step = _next_step(problem, method, stage, record, watch.rng)
            if step.info.end is StatusCode.FAILED:
                status = Status(
                    StatusCode.FAILED,
                    f"step {record.iteration + 1} failed and was undone: {step.info.message}",
                )
                break
            if step.judgement.settled and not stage.rough:
                record = replace(record, state=step.state)  # the one before need not stay in memory
                step = _confirmed(step, method, watch.rng)
                if step.info.end is StatusCode.FAILED:
                    why = f"step {record.iteration + 1} could not be confirmed: {step.info.message}"
                    status = Status(StatusCode.FAILED, why)
                    break
            record, status = _note(step, method, stage, watch, record)
            problem = step.next_problem
        if status.code is not StatusCode.FAILED and problem.prior.relaxation != 1:
            record, status = _relaxed(problem, method, record, status, watch.rng)
        if status.code is not StatusCode.FAILED and not (stage.rough or stage.passes_on):
            record, status = _finish(problem, method, record, status, watch.rng)
    except KeyboardInterrupt as interrupt:
        outcome = None
        if record is not None:
            stopped = Status(StatusCode.STOPPED, f"interrupted after step {record.iteration}")
            outcome = Outcome.of(problem.with_noise(record.noise_var), record, stopped)
        raise FitInterrupted(str(interrupt) or "the fit was interrupted", outcome) from interrupt
    outcome = Outcome.of(problem, record, status)
    logger.info("%s: %s", method.name, outcome.status)
    return outcome


#: Why a step is undone.
NOT_FINITE = "it gave values that are not finite; check the operator, or use float64"


class _Step(NamedTuple):
    """A step: the state it came to, how far that is, and where the next one starts."""

    info: Info
    problem: Problem
    state: State
    judgement: Judgement
    next_problem: Problem
    next_state: State


def _first_step(problem: Problem, method: Method, stage: Stage, rng: np.random.Generator) -> _Step:
    """Take the first step. What goes wrong is raised: nothing is lost, and the caller sees where it was."""
    try:
        alpha, before = problem.start(stage.start), stage.before
        if before is not None and before.method == method and before.carry is not None:
            state, info = method.go_on(problem, alpha, before.carry, rng)
        else:
            state, info = method.init(problem, alpha, rng)
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"noise_std = {problem.noise_var**0.5 * problem.units.data:.3g} is too small for method="
            f"'{method.name}' on this Phi: its matrix is singular to rounding ({error}); use a larger one"
            + ("" if method.name == "cofem" else ", or method='cofem'")
        ) from error
    if info.end is StatusCode.FAILED or not _is_finite(state):
        raise FloatingPointError("Phi gave values that are not finite in the first step; check it")
    return _with_noise(problem, state, judge_first(problem, method, state, stage.tol), stage, info)


def _next_step(
    problem: Problem, method: Method, stage: Stage, record: Record, rng: np.random.Generator
) -> _Step:
    """Take a step; what goes wrong in it is told by `Info.end`, and the state is left as it was."""
    old = record.state
    restarts = method.restarts(old)
    try:
        if restarts:
            new, info = method.go_on(problem, problem.start(stage.start), old.carry, rng)
        else:
            new, info = method.step(problem, old, rng)
        if info.end is not StatusCode.FAILED and not _is_finite(new):
            info = replace(info, end=StatusCode.FAILED, message=NOT_FINITE)
        if info.end is not StatusCode.FAILED:
            if restarts:
                judgement = judge_first(problem, method, new, stage.tol)
            else:
                judgement = judge(
                    problem, method, (old, new), stage.tol, record.before, stage.rough, stage.loose
                )
            return _with_noise(problem, new, judgement, stage, info)
    except TimeoutError:  # the caller's own, as from a signal
        raise
    except Exception as error:
        info = Info(end=StatusCode.FAILED, message=f"{type(error).__name__}: {error}")
    return _Step(info, problem, old, Judgement(np.inf, 0.0), problem, old)


def _confirmed(step: _Step, method: Method, rng: np.random.Generator) -> _Step:
    """Let the method look once more at a state that has settled; `Info.end` tells what goes wrong."""
    judgement, state, unmet = step.judgement, step.state, ""
    try:
        state, info, unmet = method.confirm(step.problem, state, step.info, judgement.limit, rng)
    except TimeoutError:  # the caller's own, as from a signal
        raise
    except Exception as error:
        info = Info(end=StatusCode.FAILED, message=f"{type(error).__name__}: {error}")
    if info.end is not StatusCode.FAILED and not _is_finite(state):
        info = replace(info, end=StatusCode.FAILED, message=NOT_FINITE)
    judgement = judgement._replace(unmet=unmet)
    return step._replace(info=info, state=state, judgement=judgement, next_state=state)


def _with_noise(problem: Problem, state: State, judgement: Judgement, stage: Stage, info: Info) -> _Step:
    """Set the noise for the next step; steps before a large change are no ground to extrapolate from."""
    if stage.noise is None:
        return _Step(info, problem, state, judgement, problem, state)
    noise_var = stage.noise(problem, state, judgement.settled)
    if not np.isfinite(noise_var / problem.noise_var):
        return _Step(info, problem, state, judgement, problem, state)
    change, settled = NoiseChange(noise_var / problem.noise_var, stage.rough), judgement.settled
    if settled and not change.settled:
        judgement = judgement._replace(unmet="the noise still changes")
    if settled and change.rises_far and not judgement.firm:
        change = NoiseChange(FAR_RISE, stage.rough)
        noise_var = FAR_RISE * problem.noise_var
    following = state if change.steady else replace(state, previous_alpha=None)
    return _Step(info, problem, state, judgement, problem.with_noise(noise_var), following)


def _note(
    step: _Step, method: Method, stage: Stage, watch: Watch, last: Record | None
) -> tuple[Record, Status | None]:
    """Show a step to who looks on, and decide whether the run ends with it."""
    info, judgement = step.info, step.judgement
    iteration = 1 if last is None else last.iteration + 1
    rows = [] if last is None else last.rows
    del rows[iteration - 1 :]  # of steps that a break undid
    snapshot = Snapshot(
        iteration,
        watch.elapsed,
        step.problem.phi.applications,
        judgement.change,
        stage.title,
        *step.problem.shown(step.state),
    )
    rows.append(snapshot.row(info))
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: %s", method.name, snapshot.describe(info))
    stopped = watch.stops(snapshot)
    status = None
    if info.end is not None:
        status = Status(info.end, info.message)
    elif stopped:
        status = Status(StatusCode.STOPPED, f"a callback stopped the fit at step {iteration}")
    elif judgement.settled and not method.stops_itself:
        status = Status(
            StatusCode.CONVERGED,
            f"the mean changed by {judgement.change:.2g} (tol={judgement.limit:.2g}) at step {iteration}",
        )
    record = Record(
        state=step.next_state,
        noise_var=step.next_problem.noise_var,
        rng=watch.rng.bit_generator.state,
        iteration=iteration,
        products=step.problem.phi.counter.products,
        elapsed=snapshot.elapsed,
        change=judgement.change,
        limit=judgement.limit,
        before=judgement.before,
        unmet=judgement.unmet,
        rows=rows,
        trouble=info.trouble,
        decisions=info.notes if last is None else last.decisions | info.notes,
        troubles=({info.trouble: 1} if info.trouble else {}) if last is None else last.counted(info.trouble),
        # What a callback stopped may go on; what failed may be tried again.
        status=None if status is None or status.code is StatusCode.STOPPED else status,
    )
    watch.keep(record)
    return record, status


def _relaxed(
    problem: Problem, method: Method, record: Record, status: Status, rng: np.random.Generator
) -> tuple[Record, Status]:
    """Take the moments at a share of the precisions, where the prior says so."""
    old = state = record.state
    try:
        state, info = method.go_on(problem, problem.prior.relaxation * old.alpha, old.carry, rng)
    except TimeoutError:
        raise
    except Exception as error:
        info = Info(end=StatusCode.FAILED, message=f"{type(error).__name__}: {error}")
    if info.end is StatusCode.FAILED or not _is_finite(state):
        why = f"the moments at relaxed precisions were not found: {info.message or NOT_FINITE}"
        return record, Status(StatusCode.FAILED, why)
    return replace(record, state=state), status


def _finish(
    problem: Problem, method: Method, record: Record, status: Status, rng: np.random.Generator
) -> tuple[Record, Status]:
    """Bring the last state to its final accuracy."""
    state = record.state
    try:
        state, last = method.finish(problem, state, status.code, rng)
    except TimeoutError:
        raise
    except Exception as error:
        why = f"the final accuracy was not reached: {type(error).__name__}: {error}"
        last = Info(end=StatusCode.FAILED, message=why)
    if last.end is not None:
        status = Status(last.end, last.message)
    # It belongs to the last step, whose own trouble is counted already.
    troubles = record.troubles if last.trouble == record.trouble else record.counted(last.trouble)
    trouble = last.trouble or record.trouble
    decisions = record.decisions | last.notes
    return replace(record, state=state, troubles=troubles, trouble=trouble, decisions=decisions), status


def _out_of_steps(record: Record, stage: Stage) -> Status:
    return Status(
        StatusCode.MAX_ITER,
        f"stopped after max_iter={stage.max_iter} steps: {record.unmet or 'its own stop rule was not met'}. "
        "Raise max_iter to go on",
    )


def _is_finite(state: State) -> bool:
    # A sum is not finite as soon as one term is not, and needs no temporary array; that of squares takes a
    # third of the time, but may be too large.
    xp = namespace(state.mean)
    return all(
        math.isfinite(inner(x, x)) or cmath.isfinite(complex(xp.sum(x))) for x in (state.mean, state.variance)
    )
