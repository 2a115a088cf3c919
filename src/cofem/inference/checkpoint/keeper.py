"""The memory of a fit: what is done, where it stands, and when to write that down."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cofem._arrays import Array
from cofem._packing import packable, to_place
from cofem._warn import warn
from cofem.inference.base import Method, State
from cofem.inference.checkpoint.fingerprint import agree, describe, short
from cofem.inference.checkpoint.lock import Lock
from cofem.inference.checkpoint.store import (
    CheckpointWarning,
    as_path,
    check_target,
    has_content,
    read,
    read_fingerprints,
    write,
)
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome, Record
from cofem.status import Status

#: Seconds between two checkpoints unless the user says otherwise.
DEFAULT_EVERY = 60.0

#: Random generators whose state can be restored.
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


@packable("finished")
@dataclass(frozen=True)
class Finished:
    """What remains of a stage that is done; of one that learned the noise no state."""

    state: State | None
    noise_var: float
    products: int
    history: dict[str, np.ndarray]
    status: Status
    doubtful: bool
    rng: Mapping[str, Any]
    figures: dict[str, np.ndarray] = field(default_factory=dict)


class Every:
    """How often a checkpoint is written.

    Parameters
    ----------
    interval : float, str or None
        Seconds, or a text such as ``"10 steps"``; None for `DEFAULT_EVERY`.
    at_end : bool
        Whether to write also when the fit ends by itself; it is always written when the fit is interrupted.

    Examples
    --------
    >>> Every("10 steps").steps, Every(2.5).seconds
    (10, 2.5)
    """

    def __init__(self, interval: Any = None, at_end: bool = True) -> None:
        self.at_end = at_end
        self.steps: int | None = None
        self.seconds = DEFAULT_EVERY
        wanted = f"checkpoint_every must be seconds or a text such as '10 steps', got {interval!r}"
        if isinstance(interval, str):
            match = re.fullmatch(r"\s*(\d+)\s+steps?\s*", interval)
            if match is None or int(match[1]) < 1:
                raise ValueError(wanted)
            self.steps = int(match[1])
        elif interval is not None:
            if isinstance(interval, bool) or not isinstance(interval, int | float | np.number):
                raise TypeError(wanted)
            if not 0 <= interval < np.inf:
                raise ValueError(wanted)
            self.seconds = float(interval)


class Keeper:
    """The memory of one fit: what is done, where it stands, and when to write that down.

    Parameters
    ----------
    rng : numpy.random.Generator
        The fit's source of randomness.
    path : path or None
        The file to write; None for none. Nobody else may write it until `close`. A checkpoint of another fit
        is not replaced.
    every : float, str, Every or None
        See `Every`.
    resume : path or None
        The file to go on from. If it is the one to write and there is none yet, the fit starts afresh.
    """

    def __init__(
        self, rng: np.random.Generator, path: Any = None, every: Any = None, resume: Any = None
    ) -> None:
        self.rng = rng
        self.path = None if path is None else as_path(path, "checkpoint")
        self.every = every if isinstance(every, Every) else Every(every)
        if path is None and every is not None:
            raise ValueError("checkpoint_every is of no use without checkpoint, the file to write")
        self.start: Mapping[str, Any] = rng.bit_generator.state
        self.fingerprints: dict[str, dict[str, Any]] = {}
        self.finished: dict[str, Finished] = {}
        self.current: tuple[str, str, Record] | None = None
        self._old_fingerprints: dict[str, dict[str, Any]] = {}
        self._in_the_way: dict[str, dict[str, Any]] = {}
        self._may_write = False
        self._lock: Lock | None = None
        self._source = ""
        self._like: Array = np.zeros(0)  # where the data of the task under way are
        self._written: Record | None = None
        self._when = time.monotonic()
        self._steps = 0
        self._complained = False
        try:
            self._open(None if resume is None else as_path(resume, "resume"))
        except BaseException:
            self._release()
            raise

    def _open(self, resume: Path | None) -> None:
        """Take the file to write, and read the one to go on from."""
        if self.path is not None:
            check_target(self.path)
            self._lock = Lock(self.path)
        if resume is not None:
            self._resume(resume)
        if self.path is None:
            return
        if self.start["bit_generator"] not in BIT_GENERATORS:
            raise ValueError(f"rng must be one of {', '.join(BIT_GENERATORS)} for a checkpoint")
        if self.path != resume and has_content(self.path):
            self._in_the_way = read_fingerprints(self.path)
            if len(self._in_the_way) > 1:  # its other tasks would be lost before they could be compared
                raise ValueError(
                    f"checkpoint {str(self.path)!r} exists and holds {len(self._in_the_way)} tasks; "
                    f"{self._advice()}"
                )

    def _advice(self) -> str:
        return "go on with that fit by resume=..., choose another name, or delete the file"

    @property
    def active(self) -> bool:
        """Whether there is anything to write or to go on from."""
        return self.path is not None or bool(self._source)

    def _resume(self, path: Path) -> None:
        if path == self.path and not path.exists():
            return
        found = read(path)
        self._source = str(path)
        self.start, self.finished, self.current = found["rng"], found["finished"], found["current"]
        self._old_fingerprints = found["fingerprints"]
        if self.current is not None and path == self.path:
            self._written = self.current[2]
        name = self.start["bit_generator"]
        if name not in BIT_GENERATORS:
            raise ValueError(f"resume: {self._source!r} names an unknown random generator {name!r}")
        if self.rng.bit_generator.state["bit_generator"] != name:
            self.rng = np.random.Generator(getattr(np.random, name)())
        self.rng.bit_generator.state = self.start

    def check_fingerprint(self, task: int, y: Any, make: Callable[[], dict[str, Any]]) -> None:
        """Note what a task is; refuse to resume it from a file that belongs to another, or to replace one."""
        if not self.active:
            return
        self._like = y
        name, new = str(task), make()
        differs = _difference(self._old_fingerprints.get(name, new), new)
        if differs:
            raise ValueError(f"resume: {self._source!r} belongs to another fit: {differs}")
        differs = _difference(self._in_the_way.get(name, new), new)
        if differs:
            raise ValueError(
                f"checkpoint {str(self.path)!r} exists and belongs to another fit: {differs}; "
                f"{self._advice()}"
            )
        self.fingerprints[name] = new
        self._may_write = True  # not before: what stands in the file is still to be protected

    def take(self, stage: str, problem: Problem) -> Outcome | None:
        """Return what came out of a stage that is done; None if it is not."""
        done = self.finished.get(stage)
        if done is None:
            return None
        problem.phi.counter.products = done.products
        self.rng.bit_generator.state = done.rng
        return Outcome(
            problem.with_noise(done.noise_var),
            to_place(done.state, problem.y),
            done.history,
            done.status,
            done.doubtful,
            done.figures,
        )

    def record(self, stage: str, method: Method) -> Record | None:
        """Return where a stage stands; None if it has not begun."""
        if self.current is None or self.current[0] != stage:
            return None
        if self.current[1] != describe(method):
            raise ValueError(
                f"resume: {self._source!r} belongs to another fit: its method was {self.current[1]}, now it "
                f"is {describe(method)}"
            )
        record: Record = to_place(self.current[2], self._like)
        return record

    def keep(self, stage: str, method: Method) -> Callable[[Record], None]:
        """Return what the loop calls after every step of a stage."""
        words = describe(method)

        def keep(record: Record) -> None:
            if self.path is None:
                return
            self.current = (stage, words, record)
            self._steps += 1
            if self.every.steps is not None:
                due = self._steps >= self.every.steps
            else:
                due = time.monotonic() - self._when >= self.every.seconds
            if due:
                self._write()

        return keep

    def finish(self, stage: str, outcome: Outcome, state: State | None) -> None:
        """Note what came out of a stage; with its state and history if the result needs them."""
        if self.path is None:
            return
        self.finished[stage] = Finished(
            state,
            outcome.problem.noise_var,
            outcome.problem.phi.counter.products,
            {} if state is None else outcome.history,
            outcome.status,
            outcome.doubtful,
            self.rng.bit_generator.state,
            outcome.figures,
        )

    def close(self) -> None:
        """Write down where the fit stands as it ends, by itself or because of an exception under way."""
        try:
            if self.every.at_end or sys.exc_info()[0] is not None:
                self._write()
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _write(self) -> None:
        """Write down where the fit stands, if that is not in the file already."""
        if self.path is None or not self._may_write:
            return
        if self.current is None or self.current[2] is self._written:
            return
        contents = {
            "rng": self.start,
            "fingerprints": self._old_fingerprints | self.fingerprints,
            # The record of a stage is as good as its result, and can be gone on from with more steps.
            "finished": {name: done for name, done in self.finished.items() if name != self.current[0]},
            "current": self.current,
        }
        self._steps = 0
        try:
            write(self.path, contents)
            self._written, self._complained = self.current[2], False
        except (OSError, TypeError) as error:
            if not self._complained:
                warn(
                    f"checkpoint {str(self.path)!r} could not be written, the fit goes on without: {error}",
                    CheckpointWarning,
                )
            self._complained = True
        self._when = time.monotonic()


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say in what two fingerprints differ first; "" if in nothing."""
    for topic, value in new.items():
        if not agree(old.get(topic), value):
            return f"its {topic} was {short(old.get(topic))}, now it is {short(value)}"
    return ""
