"""What a study is: cells to measure, how to measure one, and what the results say."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, ResultFile, Rows, Value


class Skipped(Exception):
    """Raised by a benchmark for a cell that cannot be measured here, with the reason."""


@dataclass(frozen=True)
class Options:
    """How much to measure.

    Attributes
    ----------
    quick : bool
        A shortened sweep for a first look, in place of the sizes that the targets are about.
    repeats : int
        Repeats of a timing.
    seeds : int or None
        Problems that an error is measured on; by default as many as the benchmark asks for.
    time_limit : float
        Seconds after which a fit is stopped and counts as not having reached its target.
    first_seed : int
        Seed of the first problem; the others follow.
    checkpoints : Path or None
        Folder that long fits keep their state in, so that one that was interrupted goes on; None for none.
    """

    quick: bool = False
    repeats: int = 3
    seeds: int | None = None
    time_limit: float = 1800.0
    first_seed: int = 0
    checkpoints: Path | None = None


@dataclass(frozen=True)
class Check:
    """A target and whether it holds; None where nothing was measured."""

    what: str
    target: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """The answer in words."""
        return {True: "holds", False: "does not hold", None: "not measured"}[self.holds]


@dataclass(frozen=True)
class Table:
    """A table with a line above it that says what it shows."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """What the rows of a study say."""

    tables: Sequence[Table]
    checks: Sequence[Check] = ()
    plot: Plot | None = None
    remarks: Sequence[str] = field(default=())


class Study(ABC):
    """Something to measure and to report on; one module and one row in a registry each."""

    name: ClassVar[str]
    #: One line for the list.
    summary: ClassVar[str]
    #: What was measured and how, for the report.
    how: ClassVar[str]
    #: Columns that describe the problem.
    setting_columns: ClassVar[tuple[str, ...]]
    #: Measured columns beside those that every benchmark has.
    figures: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def cells(self, options: Options) -> list[Cell]:
        """Return what there is to measure, in that order."""

    @abstractmethod
    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Measure one cell; `earlier` are the rows so far. What it raises is recorded as a failure."""

    @abstractmethod
    def report(self, rows: Rows) -> Report:
        """Say what the rows mean. They may be incomplete."""

    def compare(self, rows: Rows, others: Mapping[str, Rows]) -> list[Check]:
        """Return the checks that need the rows of other studies, by name, as well; none by default."""
        return []


def result_path(study: Study, folder: Path) -> Path:
    """Return where the results of a study are kept."""
    return folder / f"{study.name}.csv"


def open_results(study: Study, folder: Path, quick: bool) -> ResultFile:
    """Return the result file of a study; it need not exist yet."""
    path = result_path(study, folder)
    return ResultFile(path, study.name, study.setting_columns, study.figures, quick)


def grid(
    settings: Iterable[Mapping[str, Value]], methods: Iterable[str], seeds: int, first_seed: int = 0
) -> list[Cell]:
    """Return all combinations, methods innermost: what is compared runs one after the other."""
    methods = list(methods)
    return [
        Cell(setting, method, seed)
        for setting in settings
        for seed in range(first_seed, first_seed + seeds)
        for method in methods
    ]


def sizes(*exponents: int) -> list[dict[str, Value]]:
    """Return the settings of a sweep over D, from its powers of two."""
    return [{"D": 2**exponent} for exponent in exponents]


def skip_if_too_slow(cell: Cell, earlier: Rows, column: str = "D") -> None:
    """Raise `Skipped` for a method that exceeded the time limit at a smaller size."""
    size = cell.setting[column]
    for row in earlier.where(cell.method):
        smaller = row.cell.setting[column]
        if smaller < size and row.measurement.note.startswith(TIME_LIMIT):  # type: ignore[operator]
            raise Skipped(f"it exceeded the time limit at {column} = {smaller}")


def at_least(what: str, value: float, target: float, text: str, unit: str = "") -> Check:
    """Return the check that `value`, written as `text`, is at least `target`."""
    return Check(what, f">= {target:g}{unit}", text, None if math.isnan(value) else value >= target)


def at_most(what: str, value: float, target: float, text: str, unit: str = "") -> Check:
    """Return the check that `value`, written as `text`, is at most `target`."""
    return Check(what, f"<= {target:g}{unit}", text, None if math.isnan(value) else value <= target)


def power(D: int) -> str:
    """Write a size as people think of it.

    Examples
    --------
    >>> power(4096), power(5000)
    ('2^12', '5000')
    """
    exponent = D.bit_length() - 1
    return f"2^{exponent}" if 2**exponent == D else str(D)


def seconds(value: float) -> str:
    """Write a time; infinite stands for a target that was not reached."""
    if math.isinf(value):
        return "not reached"
    return number(value, " s")


def number(value: float, unit: str = "") -> str:
    """Write a number with three digits.

    Examples
    --------
    >>> number(1234.5), number(0.01234, " s"), number(float("nan"))
    ('1234', '0.0123 s', '–')
    """
    if math.isnan(value):
        return "–"
    return (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}") + unit
