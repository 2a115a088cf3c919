"""Checkpoints: how far a fit has come, in a file, so that a fit that was killed goes on to the same result.

A fit is a sequence of runs of the one outer loop, its *stages*: ``0/noise/1/0`` learns the noise of the first
task with the first part of the data held out, from the first start; ``0/fit`` is the fit itself. The file
holds what came out of the stages that are done, where the one under way stands (a `Record`) and the state of
the random generator. A fit that is resumed walks through the same stages, takes the ones that are done from
the file, and steps on from the record. It is an ``.npz`` file of arrays and JSON, without pickle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cofem import __version__
from cofem.files import read_npz
from cofem.inference import amp, seq
from cofem.inference import cofem as covariance_free
from cofem.inference.base import Method, State
from cofem.inference.loop import Outcome, Record
from cofem.inference.problem import Problem
from cofem.linalg.diagonals import gate, self_consistent
from cofem.status import Status, StatusCode

FORMAT = "cofem-checkpoint"
FORMAT_VERSION = 3

#: Seconds between two checkpoints unless the user says otherwise.
DEFAULT_EVERY = 60.0

#: Random generators whose state can be restored.
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the fit itself goes on.

    Examples
    --------
    Here the folder is gone after the first step:

    >>> import tempfile, warnings, numpy as np, cofem
    >>> folder = tempfile.TemporaryDirectory()
    >>> options = dict(checkpoint=folder.name + "/run.npz", checkpoint_every="1 step")
    >>> options["callback"] = lambda state: folder.cleanup()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", cofem.CheckpointWarning)
    ...     post = cofem.fit(np.eye(3), np.ones(3), noise_std=0.1, **options)
    >>> [warning.category.__name__ for warning in caught], post.converged
    (['CheckpointWarning'], True)
    """


# --- values to arrays and JSON, and back --------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """What remains of a stage that is done."""

    state: State | None
    noise_var: float
    products: int
    history: dict[str, np.ndarray]
    status: Status
    doubtful: bool
    rng: Mapping[str, Any]


#: What states may be made of, besides arrays, numbers, texts, lists, tuples and dictionaries. The names are
#: those in the file and must not change.
KNOWN: dict[str, type[Any]] = {
    "state": State,
    "record": Record,
    "finished": Finished,
    "status": Status,
    "cofem": covariance_free.Carry,
    "gate": gate.Verdict,
    "self_consistent": self_consistent.Carry,
    "spectrum": self_consistent.Spectrum,
    "amp": amp.Messages,
    "seq": seq.Model,
}
_NAMES = {kind: name for name, kind in KNOWN.items()}


def pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` as something that JSON can hold; its arrays are put into `arrays`.

    Examples
    --------
    >>> import numpy as np
    >>> arrays = {}
    >>> tree = pack((1, np.ones(2), {"a": None}), arrays)
    >>> unpack(tree, arrays)
    (1, array([1., 1.]), {'a': None})
    """
    if isinstance(value, np.ndarray | np.generic):  # numbers of NumPy keep their precision
        name = f"a{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "number": name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, StatusCode):
        return {"code": value.value}
    if type(value) in _NAMES:
        names = getattr(value, "_fields", None) or [part.name for part in dataclasses.fields(value)]
        fields = {name: getattr(value, name) for name in names}
        if isinstance(value, Record):
            fields["rows"] = _columns(value.rows[: value.iteration])
        return {
            "kind": _NAMES[type(value)],
            "fields": {name: pack(part, arrays) for name, part in fields.items()},
        }
    if type(value) in (list, tuple):
        return {type(value).__name__: [pack(part, arrays) for part in value]}
    if isinstance(value, Mapping):
        return {"dict": [[pack(key, arrays), pack(part, arrays)] for key, part in value.items()]}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__module__}.{type(value).__qualname__}")


def unpack(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return what `pack` was given."""
    if not isinstance(tree, dict):
        return tree
    if "kind" in tree:
        fields = {name: unpack(part, arrays) for name, part in tree["fields"].items()}
        if tree["kind"] == "record":
            fields["rows"] = _rows(fields["rows"], fields["iteration"])
        return KNOWN[tree["kind"]](**fields)
    ((tag, content),) = tree.items()
    readers: dict[str, Callable[[], Any]] = {
        "array": lambda: arrays[content],
        "number": lambda: arrays[content][()],
        "code": lambda: StatusCode(content),
        "list": lambda: [unpack(part, arrays) for part in content],
        "tuple": lambda: tuple(unpack(part, arrays) for part in content),
        "dict": lambda: {unpack(key, arrays): unpack(part, arrays) for key, part in content},
    }
    return readers[tag]()


def _columns(rows: list[dict[str, float | str]]) -> dict[str, Any]:
    """Return the history as arrays: by name, the steps that have an entry and the entries."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: (
            np.array([i for i, row in enumerate(rows) if name in row], dtype=np.int64),
            np.array([row[name] for row in rows if name in row]),
        )
        for name in names
    }


def _rows(columns: dict[str, Any], count: int) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = [{} for _ in range(count)]
    for name, (steps, values) in columns.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            rows[step][name] = value
    return rows


# --- files --------------------------------------------------------------------------------------------


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all: beside it first, then in its place."""
    arrays: dict[str, np.ndarray] = {}
    header = {"format": FORMAT, "version": FORMAT_VERSION, "cofem": __version__}
    header["contents"] = pack(contents, arrays)
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            np.savez(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    with contextlib.suppress(OSError):  # the new name is safe once the folder is; not every system has this
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint; `ValueError` if it is none."""
    try:
        arrays = read_npz(path)
        header = json.loads(str(arrays.pop("header")))
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        version = int(header["version"])
    except FileNotFoundError as error:
        raise ValueError(f"resume: there is no file {str(path)!r}") from error
    except _UNREADABLE as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"resume must be a checkpoint of cofem.fit, but {str(path)!r} is not: {why}"
        ) from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"resume: {str(path)!r} was written by a newer cofem (format {version}, this one reads up to "
            f"{FORMAT_VERSION}); upgrade cofem to go on with it"
        )
    if version < FORMAT_VERSION:
        raise ValueError(
            f"resume: {str(path)!r} was written by an older cofem (format {version}, this one reads "
            f"{FORMAT_VERSION}); go on with it there, or start afresh"
        )
    try:
        contents = unpack(header["contents"], arrays)
        return {name: contents[name] for name in ("rng", "marks", "finished", "current")}
    except _UNREADABLE as error:
        raise ValueError(f"resume: {str(path)!r} is damaged ({type(error).__name__}: {error})") from error


_UNREADABLE = (
    OSError,
    KeyError,
    IndexError,
    ValueError,
    TypeError,
    EOFError,
    AttributeError,
    MemoryError,
    RecursionError,
    NotImplementedError,
    zipfile.BadZipFile,
)


# --- what a fit does with them ------------------------------------------------------------------------


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
        The file to write; None for none.
    every : float, str, Every or None
        See `Every`.
    resume : path or None
        The file to go on from. If it is the one to write and there is none yet, the fit starts afresh.
    """

    def __init__(
        self, rng: np.random.Generator, path: Any = None, every: Any = None, resume: Any = None
    ) -> None:
        self.rng = rng
        self.path = None if path is None else _as_path(path, "checkpoint")
        self.every = every if isinstance(every, Every) else Every(every)
        if path is None and every is not None:
            raise ValueError("checkpoint_every is of no use without checkpoint, the file to write")
        self.start: Mapping[str, Any] = rng.bit_generator.state
        self.marks: dict[str, dict[str, Any]] = {}
        self.finished: dict[str, Finished] = {}
        self.current: tuple[str, str, Record] | None = None
        self._old_marks: dict[str, dict[str, Any]] = {}
        self._source = ""
        self._written: Record | None = None
        self._when = time.monotonic()
        self._steps = 0
        self._complained = False
        if resume is not None:
            self._resume(_as_path(resume, "resume"))
        if self.path is not None:
            _check_target(self.path)
            if self.start["bit_generator"] not in BIT_GENERATORS:
                raise ValueError(f"rng must be one of {', '.join(BIT_GENERATORS)} for a checkpoint")

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
        self._old_marks = found["marks"]
        if self.current is not None and path == self.path:
            self._written = self.current[2]
        name = self.start["bit_generator"]
        if name not in BIT_GENERATORS:
            raise ValueError(f"resume: {self._source!r} names an unknown random generator {name!r}")
        if self.rng.bit_generator.state["bit_generator"] != name:
            self.rng = np.random.Generator(getattr(np.random, name)())
        self.rng.bit_generator.state = self.start

    def belongs(self, task: int, y: Any, marks: Callable[[], dict[str, Any]]) -> None:
        """Note what a task is; refuse to resume it from a file that belongs to another."""
        if not self.active:
            return
        if not isinstance(y, np.ndarray):
            raise TypeError(f"checkpoint and resume work on NumPy arrays only, got y as {type(y).__name__}")
        name = str(task)
        self.marks[name] = marks()
        old = self._old_marks.get(name, self.marks[name])
        for topic, value in self.marks[name].items():
            if not _agree(old.get(topic), value):
                raise ValueError(
                    f"resume: {self._source!r} belongs to another fit: its {topic} was "
                    f"{_short(old.get(topic))}, now it is {_short(value)}"
                )

    def take(self, stage: str, problem: Problem) -> Outcome | None:
        """Return what came out of a stage that is done; None if it is not."""
        done = self.finished.get(stage)
        if done is None:
            return None
        problem.phi.products = done.products
        self.rng.bit_generator.state = done.rng
        state = State(None) if done.state is None else done.state
        return Outcome(problem.with_noise(done.noise_var), state, done.history, done.status, done.doubtful)

    def record(self, stage: str, method: Method) -> Record | None:
        """Return where a stage stands; None if it has not begun."""
        if self.current is None or self.current[0] != stage:
            return None
        if self.current[1] != describe(method):
            raise ValueError(
                f"resume: {self._source!r} belongs to another fit: its method was {self.current[1]}, now it "
                f"is {describe(method)}"
            )
        return self.current[2]

    def keep(self, stage: str, method: Method) -> Callable[[Record], None] | None:
        """Return what the loop calls after every step of a stage."""
        if self.path is None:
            return None
        words = describe(method)

        def keep(record: Record) -> None:
            self.current = (stage, words, record)
            self._steps += 1
            if self.every.steps is not None:
                due = self._steps >= self.every.steps
            else:
                due = time.monotonic() - self._when >= self.every.seconds
            if due:
                self._write()

        return keep

    def finish(self, stage: str, outcome: Outcome, whole: bool) -> None:
        """Note what came out of a stage; with its state if the result needs it."""
        if self.path is None:
            return
        state = replace_carry(outcome.state) if whole else None
        self.finished[stage] = Finished(
            state,
            outcome.problem.noise_var,
            outcome.problem.phi.products,
            outcome.history if whole else {},
            outcome.status,
            outcome.doubtful,
            self.rng.bit_generator.state,
        )

    def flush(self) -> None:
        """Write down where the fit stands as it ends, by itself or because of an exception under way."""
        if self.every.at_end or sys.exc_info()[0] is not None:
            self._write()

    def _write(self) -> None:
        """Write down where the fit stands, if that is not in the file already."""
        if self.path is None or self.current is None or self.current[2] is self._written:
            return
        contents = {
            "rng": self.start,
            "marks": self.marks,
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
                warnings.warn(
                    f"checkpoint {str(self.path)!r} could not be written, the fit goes on without: {error}",
                    CheckpointWarning,
                    stacklevel=2,
                )
            self._complained = True
        self._when = time.monotonic()


def replace_carry(state: State) -> State:
    """Return a state without what only further steps would need."""
    return dataclasses.replace(state, carry=None, previous_alpha=None)


def marks_of(problem: Problem, noise: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a problem is known by: sizes, data, dictionary and settings."""
    operator, y = problem.phi.operator, problem.y
    rng = np.random.default_rng(0)
    image = operator.forward(rng.standard_normal(operator.shape[1]).astype(y.dtype))
    overlap = np.vdot(rng.standard_normal(operator.shape[0]), image)
    size = float(np.linalg.norm(image))
    return {
        "shape of Phi": str(operator.shape),
        "y": f"{y.dtype} {list(y.shape)} {digest(y)} in units of {problem.units.data:g}",
        "noise_std": describe(noise),
        # Floating-point numbers, since the last digits may depend on the number of threads.
        "Phi": [size, float(overlap.real), float(overlap.imag)],
        "unit of Phi": f"{problem.units.dictionary:g}",
        **{name: describe(value) for name, value in settings.items()},
    }


def describe(value: Any) -> str:
    """Return a text that is the same for the same settings, whatever arrays they hold.

    Examples
    --------
    >>> import cofem
    >>> describe(cofem.Block(2)), describe(None)
    ('Block(groups=2)', 'None')
    """
    if isinstance(value, np.ndarray):
        return f"array({value.dtype}, {list(value.shape)}, {digest(value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={describe(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(part) for part in value)}]"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)  # where an object lies in memory is no setting


def digest(array: np.ndarray) -> str:
    """Return a short hash of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _agree(old: Any, new: Any) -> bool:
    if isinstance(new, list) and isinstance(old, list) and len(old) == len(new):
        size = max(map(abs, new), default=0.0)
        return all(abs(a - b) <= 1e-4 * size for a, b in zip(old, new, strict=True))
    return bool(old == new)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _as_path(path: Any, name: str) -> Path:
    try:
        return Path(os.path.abspath(os.fsdecode(path)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be the path of a file, got {path!r}") from error


def _check_target(path: Path) -> None:
    """Refuse a file that cannot be written, or that holds something else."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"checkpoint must be the path of a file in a folder that exists, got {str(path)!r}")
    if path.is_file() and path.stat().st_size > 0 and not _is_checkpoint(path):
        raise ValueError(
            f"checkpoint {str(path)!r} exists and is not a checkpoint; it is left alone, choose another name"
        )


def _is_checkpoint(path: Path) -> bool:
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return bool(json.loads(str(file["header"]))["format"] == FORMAT)
    except _UNREADABLE:
        return False
