"""What a benchmark measures, cell by cell, and the tidy CSV file it is kept in."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

Value = int | float | str | bool

#: How the note of a cell begins that was not tried, or was tried and raised.
SKIPPED, FAILED = "skipped: ", "failed: "
#: How the note of a cell begins that exceeded the time limit.
TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class Cell:
    """One thing to measure: a setting of the problem, a method and a repeat.

    Attributes
    ----------
    setting : mapping of str to int, float or str
        Columns that describe the problem, e.g. ``{"D": 4096}``.
    method : str
        Label of what is measured.
    seed : int
        Seed of problem and fit; repeats differ by it.
    """

    setting: Mapping[str, Value]
    method: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """What tells this cell from the others of its benchmark."""
        return (*(f"{name}={value}" for name, value in self.setting.items()), self.method, str(self.seed))

    def __str__(self) -> str:
        setting = ", ".join(f"{name} {value}" for name, value in self.setting.items())
        return f"{setting}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Measurement:
    """What came out of a cell; NaN for what was not measured.

    Attributes
    ----------
    seconds : float
        Time from the call to the target, or to the end of the run if the target was not reached.
    applications : float
        Number of vectors ``Phi^T Phi`` was applied to by then.
    iterations : float
        Outer steps by then.
    nrmse : float
        Relative error by then, in percent.
    reached : bool
        Whether the target was reached or, where there is none, whether the run came to its end.
    peak_mb : float
        Peak memory of the process in 10^6 bytes, where it was measured in a process of its own.
    note : str
        What there is to say, the reason of a failure above all.
    figures : mapping of str to float
        Further columns that one benchmark has and others have not.
    """

    seconds: float = math.nan
    applications: float = math.nan
    iterations: float = math.nan
    nrmse: float = math.nan
    reached: bool = False
    peak_mb: float = math.nan
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def skipped(self) -> bool:
        """Whether it was not tried at all."""
        return self.note.startswith(SKIPPED)

    def __getitem__(self, name: str) -> float:
        """Return a column by name, further figures included."""
        return self.figures[name] if name in self.figures else float(getattr(self, name))


MEASURED = tuple(f.name for f in fields(Measurement) if f.name not in ("note", "figures"))


@dataclass(frozen=True)
class Row:
    """A cell and what came out of it."""

    cell: Cell
    measurement: Measurement

    def __str__(self) -> str:
        return f"{self.cell}: {self.measurement.note or 'measured'}"


class Rows(list[Row]):
    """Rows of one benchmark, with the questions that its report asks."""

    def where(self, method: str | None = None, seed: int | None = None, **setting: Value) -> Rows:
        """Return the rows of a method, a seed and a setting, or of all of those not named."""
        return Rows(
            row
            for row in self
            if method in (None, row.cell.method)
            and seed in (None, row.cell.seed)
            and all(row.cell.setting.get(name) == value for name, value in setting.items())
        )

    def values(self, name: str) -> list[Any]:
        """Return the distinct values of a column of the setting, in the order in which they come."""
        return list(dict.fromkeys(row.cell.setting[name] for row in self))

    @property
    def methods(self) -> list[str]:
        """The distinct methods, in the order in which they come."""
        return list(dict.fromkeys(row.cell.method for row in self))

    def median(self, name: str) -> float:
        """Return the median of a measured column over what was measured; NaN if nothing was."""
        known = [row.measurement[name] for row in self if not math.isnan(row.measurement[name])]
        return float(median(known)) if known else math.nan

    def spread(self, name: str) -> tuple[float, float]:
        """Return the smallest and the largest of a measured column; NaN if nothing was measured."""
        known = [row.measurement[name] for row in self if not math.isnan(row.measurement[name])]
        return (min(known), max(known)) if known else (math.nan, math.nan)

    def median_to_target(self, name: str = "seconds") -> float:
        """Return the median cost of the target: infinite where it was not reached, NaN if none was tried."""
        tried = [row.measurement for row in self if not row.measurement.skipped]
        costs = [measured[name] if measured.reached else math.inf for measured in tried]
        return float(median(costs)) if costs else math.nan


@dataclass(frozen=True)
class Ratio:
    """How many times more one method costs than another; `at_least` if the dearer one never got there."""

    value: float
    at_least: bool = False

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "–"
        if self.value == 0:
            return "not reached"
        digits = f"{self.value:.1f}" if self.value < 20 else f"{self.value:.0f}"
        return f"{'> ' if self.at_least else ''}{digits}x"


def paired_ratio(dear: Rows, cheap: Rows, name: str = "seconds") -> Ratio:
    """Return the median over seeds of what `dear` cost, divided by what `cheap` cost, to the target.

    What a run that missed the target had cost by its end is a lower bound for `dear`; for `cheap` the
    ratio is then 0. Seeds that one of both has not or has skipped are left out, as those where `dear` failed.

    Examples
    --------
    >>> slow = Row(Cell({}, "slow", 0), Measurement(seconds=30.0, reached=True))
    >>> fast = Row(Cell({}, "fast", 0), Measurement(seconds=2.0, reached=True))
    >>> str(paired_ratio(Rows([slow]), Rows([fast])))
    '15.0x'
    """
    pairs = []
    for row in cheap:
        other = dear.where(seed=row.cell.seed)
        if other and not row.measurement.skipped and not math.isnan(other[0].measurement[name]):
            pairs.append((other[0].measurement, row.measurement))
    if not pairs:
        return Ratio(math.nan)
    ratios = [up[name] / down[name] if down.reached else 0.0 for up, down in pairs]
    return Ratio(float(median(ratios)), at_least=not all(up.reached for up, _ in pairs))


class ResultFile:
    """The CSV file of one benchmark. Every row is on disk as soon as it is appended.

    Parameters
    ----------
    path : Path
        The file; it is made with the first row.
    benchmark : str
        Name of the benchmark, the first column.
    setting_columns, figures : iterable of str
        Columns of this benchmark beside those that all have.
    quick : bool
        Whether rows come from the shortened sweep; one file holds one kind only.
    """

    def __init__(
        self, path: Path, benchmark: str, setting_columns: Iterable[str], figures: Iterable[str], quick: bool
    ) -> None:
        self.path = path
        self.benchmark = benchmark
        self.setting_columns = tuple(setting_columns)
        self.figures = tuple(figures)
        self.quick = quick
        self.rows = Rows(self._read())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        head, tail = ("benchmark", "quick"), ("note",)
        return (*head, *self.setting_columns, "method", "seed", *MEASURED, *self.figures, *tail)

    def append(self, row: Row) -> None:
        """Write one row; what was measured is given six digits."""
        cell, measured = row.cell, row.measurement
        entries: dict[str, Any] = {"benchmark": self.benchmark, "quick": self.quick, **cell.setting}
        entries |= {"method": cell.method, "seed": cell.seed, "note": measured.note}
        for name in (*MEASURED, *self.figures):
            value = getattr(measured, name, measured.figures.get(name, math.nan))
            entries[name] = value if isinstance(value, bool) else _number(value)
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            if is_new:
                writer.writeheader()
            writer.writerow(entries)
        self.rows.append(row)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells that are not in the file yet."""
        done = {row.cell.key for row in self.rows}
        return [cell for cell in cells if cell.key not in done]

    def _read(self) -> Iterable[Row]:
        if not self.path.exists():
            return
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != self.columns:
                raise ValueError(
                    f"{self.path} has columns {reader.fieldnames}, which are not those of this version; "
                    "move it away or choose another folder"
                )
            for entries in reader:
                yield self._row(entries)

    def _row(self, entries: dict[str, str]) -> Row:
        setting = {name: _parsed(entries[name]) for name in self.setting_columns}
        measured: dict[str, Any] = {
            name: float(entries[name] or "nan") for name in MEASURED if name != "reached"
        }
        return Row(
            Cell(setting, entries["method"], int(entries["seed"])),
            Measurement(
                **measured,
                reached=entries["reached"] == "True",
                note=entries["note"],
                figures={name: float(entries[name] or "nan") for name in self.figures},
            ),
        )


def is_quick(path: Path) -> bool:
    """Tell whether a result file holds the shortened sweep."""
    with path.open(newline="") as file:
        first: dict[str, str] = next(csv.DictReader(file), {})
    return first.get("quick") == "True"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _parsed(text: str) -> Value:
    converters: tuple[Callable[[str], Value], ...] = (int, float)
    for convert in converters:
        try:
            return convert(text)
        except ValueError:
            continue
    return text
