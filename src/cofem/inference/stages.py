"""The runner of a fit's stages: one clock, callbacks, progress bar and checkpoint for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from cofem.inference.base import Method
from cofem.inference.checkpoint.keeper import Keeper
from cofem.inference.loop import Ended, Stage, run
from cofem.inference.problem import Problem
from cofem.inference.progress import progress_bar
from cofem.inference.record import Callback, FitInterrupted, FitStopped, Outcome, Record, Snapshot
from cofem.inference.so_far import SoFar
from cofem.operators.same_bits import one_blas_thread
from cofem.status import StatusCode


class Runner:
    """Runs stages: learning the noise, the fit.

    Parameters
    ----------
    keeper : Keeper
        The fit's memory and source of randomness.
    callback : callable, optional
        The user's.
    progress : bool
        Whether to draw a progress bar.
    """

    def __init__(self, keeper: Keeper, callback: Callback | None = None, progress: bool = False) -> None:
        self.keeper = keeper
        self.callback = callback
        self.progress = progress
        self._start = time.perf_counter()
        #: The best of what the stages came to, by task and shape of the mean.
        self._so_far: dict[tuple[int, tuple[int, ...]], SoFar] = {}

    @property
    def rng(self) -> np.random.Generator:
        """The fit's source of randomness."""
        return self.keeper.rng

    @property
    def elapsed(self) -> float:
        """Seconds since the call, with those before a break."""
        return time.perf_counter() - self._start

    def run(self, problem: Problem, method: Method, stage: Stage) -> Outcome:
        """Run a stage, or what is left of it, or take what came out of it when it was run before.

        Raises
        ------
        FitStopped
            If a callback stops it, unless it is the fit itself and nothing before came further.
        """
        if problem.nonnegative:  # whether it is to be run again must be known when it is resumed
            stage = stage._replace(kept=True)
        outcome = self._run_once(problem, method, stage)
        if outcome.status.code is StatusCode.FAILED or not problem.nonnegative:
            return outcome
        again = outcome.problem.with_constraint(outcome.state.mean, outcome.state.variance)
        if again is None:
            return outcome
        return self._run_once(again, method, stage._replace(name=f"{stage.name}/constraint"))

    def so_far(self, task: int, problem: Problem) -> SoFar | None:
        """Return the best of what the stages of a task have come to; None before the first whole step."""
        return self._so_far.get((task, _shape_of_mean(problem)))

    def _run_once(self, problem: Problem, method: Method, stage: Stage) -> Outcome:
        """Run a stage, and keep in mind what it came to if nothing before came further."""
        is_fit = stage.title == "fit"
        if is_fit and problem.in_analysis:  # it starts where they ended, and needs the memory
            self._so_far.clear()
        try:
            outcome = self._run_stage(problem, method, stage)
        except FitInterrupted as interrupt:
            if interrupt.outcome is not None:
                self._note(stage, interrupt.outcome)
            raise
        best = self._note(stage, outcome)
        if outcome.status.code is StatusCode.STOPPED and not (is_fit and best):
            raise FitStopped(outcome.status.message)
        return outcome

    def _note(self, stage: Stage, outcome: Outcome) -> bool:
        """Keep what a stage came to, if nothing before it came further; tell whether that is so."""
        if outcome.state is None or outcome.status.code is StatusCode.FAILED:
            return False
        if stage.judge is not None and not outcome.figures:
            outcome = replace(outcome, figures=stage.judge(outcome.problem, outcome.state))
        new = SoFar.of(outcome)
        place = (int(stage.name.partition("/")[0]), tuple(new.state.mean.shape))
        old = self._so_far.get(place)
        best = old is None or new.is_better_than(old)
        if best:
            self._so_far[place] = new
        return best

    def _run_stage(self, problem: Problem, method: Method, stage: Stage) -> Outcome:
        keeper = self.keeper
        outcome = keeper.take(stage.name, problem)
        if outcome is not None:
            return outcome
        first = problem.first
        if first is not None and stage.before is None:
            start = stage._replace(name=f"{stage.name}/start", title="start", kept=True, judge=None)
            before = self.run(first, method, start._replace(passes_on=True, loose=True))
            if before.status.code is StatusCode.FAILED:
                return before
            problem = problem.with_noise(before.problem.noise_var)
            stage = stage._replace(before=Ended.of(before, method))
        began = self.elapsed
        record = keeper.record(stage.name, method)
        if record is not None:
            problem = problem.with_noise(record.noise_var)
            problem.phi.counter.products = record.products
            self.rng.bit_generator.state = record.rng
            self._start = min(self._start, time.perf_counter() - record.elapsed)
            began = float(record.rows[0]["elapsed"])
        is_fit = stage.title == "fit"
        tol = method.default_tol if stage.tol is None else stage.tol
        label = method.name if is_fit else stage.title
        with progress_bar(self.progress, stage.max_iter, tol, label) as bar:
            callbacks = [callback for callback in (self.callback, bar) if callback is not None]
            watch = _Watch(self, callbacks, keeper.keep(stage.name, method))
            with one_blas_thread() if method.wants_one_thread(problem) else nullcontext():
                outcome = run(problem, method, stage, watch, record)
        if stage.judge is not None and outcome.status.code is not StatusCode.FAILED:
            figures = stage.judge(outcome.problem, outcome.state)
            figures["seconds"] = np.array(self.elapsed - began)
            outcome = replace(outcome, figures=figures)
        if is_fit or outcome.status.code is not StatusCode.STOPPED:  # else it goes on when it is resumed
            # Of a stage that learned the noise nothing but that is needed, if it did.
            whole = is_fit or stage.kept or not outcome.status.settled
            state = method.settled(outcome.state)
            if stage.passes_on or problem.nonnegative:  # the constraint is met after the fit
                state = replace(state, carry=method.handed_on(outcome.state))
            keeper.finish(stage.name, outcome, state if whole else None)
        return outcome


def _shape_of_mean(problem: Problem) -> tuple[int, ...]:
    return (*problem.y.shape[:-1], problem.n_columns)


class _Watch:
    """What the loop sees of a runner."""

    def __init__(self, runner: Runner, callbacks: Sequence[Callback], keep: Callable[[Record], None]) -> None:
        self.runner, self.callbacks, self.keep = runner, callbacks, keep

    @property
    def rng(self) -> np.random.Generator:
        return self.runner.rng

    @property
    def elapsed(self) -> float:
        return self.runner.elapsed

    def stops(self, snapshot: Snapshot) -> bool:
        answers = [callback(snapshot) for callback in self.callbacks]  # every callback sees every step
        return any(answers)
