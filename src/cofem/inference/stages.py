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
from cofem.inference.record import Callback, Outcome, Record, Snapshot
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

    @property
    def rng(self) -> np.random.Generator:
        """The fit's source of randomness."""
        return self.keeper.rng

    @property
    def elapsed(self) -> float:
        """Seconds since the call, with those before a break."""
        return time.perf_counter() - self._start

    def drop_checkpoint(self) -> None:
        """Write nothing more: a checkpoint is to go on from where it stands, not from what follows."""
        self.keeper = Keeper(self.rng)

    def run(self, problem: Problem, method: Method, stage: Stage, one_step: bool = False) -> Outcome:
        """Run a stage, or what is left of it, or take what came out of it when it was run before.

        With `one_step` it is stopped after the first step.
        """
        if problem.nonnegative:  # whether it is to be run again must be known when it is resumed
            stage = stage._replace(kept=True)
        outcome = self._run_once(problem, method, stage, one_step)
        ended = outcome.status.code in (StatusCode.STOPPED, StatusCode.FAILED)
        if one_step or ended or not problem.nonnegative:
            return outcome
        again = outcome.problem.with_constraint(outcome.state.mean, outcome.state.variance)
        if again is None:
            return outcome
        return self._run_once(again, method, stage._replace(name=f"{stage.name}/constraint"), one_step)

    def _run_once(self, problem: Problem, method: Method, stage: Stage, one_step: bool) -> Outcome:
        keeper = self.keeper
        outcome = keeper.take(stage.name, problem)
        if outcome is not None:
            return outcome
        first = problem.first
        if first is not None and stage.before is None and not one_step:
            start = stage._replace(name=f"{stage.name}/start", title="start", kept=True, judge=None)
            before = self.run(first, method, start._replace(passes_on=True, loose=True))
            if before.status.code in (StatusCode.STOPPED, StatusCode.FAILED):
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
            if one_step:
                callbacks.append(lambda snapshot: True)
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
