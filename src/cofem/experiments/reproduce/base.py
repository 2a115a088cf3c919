"""What the experiments share: names of the methods, and series over a column of the setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cofem.experiments.study.base import Check, Skipped, seconds
from cofem.experiments.study.results import FAILED, TIME_LIMIT, Cell, Rows

#: How methods are called in figures and tables, in the order of their colours.
LABELS = {
    "em": "EM",
    "irls": "IRLS",
    "amp": "AMP",
    "vi": "VI",
    "seq": "Seq",
    "paper": "CoFEM (Algorithm 1)",
    "paper 2e-5": "CoFEM (Algorithm 1)",
    "auto": "cofem default",
    "default": "cofem default",
}
#: The labels once each, so that a method has the same colour in every figure.
ORDER = tuple(dict.fromkeys(LABELS.values()))

#: Methods that take a fixed number of EM steps; the others stop by themselves.
EM_STEPS = ("em", "irls", "amp", "vi", "paper", "paper 2e-5")

#: Fewer steps than this say little about the time of one: larger sizes are then not tried.
FEW_STEPS = 2

NO_GPU = "not measured: this machine has no GPU"


def settings_of(method: str, steps: int) -> dict[str, Any]:
    """Return how to run a method: that many EM steps from alpha = 1 as in the paper, or to its own end."""
    if method not in EM_STEPS:
        return {}
    return {"max_iter": steps, "tol": 0.0, "alpha_init": 1.0}


#: Size from which on the joint tolerance of 1e-8 is too large for Algorithm 1 on a dense dictionary: its
#: conjugate gradients end before the precisions make a difference, and its error stands still.
NEEDS_SMALLER_TOL = 2**15


def fitted_as(method: str, problem: str, D: int) -> str:
    """Return the label of what is fitted for a method at a size: Algorithm 1 with a tolerance that it needs.

    Examples
    --------
    >>> fitted_as("paper", "dense", 2**14), fitted_as("paper", "dense", 2**15)
    ('paper', 'paper 1e-9')
    """
    return "paper 1e-9" if method == "paper" and problem == "dense" and D >= NEEDS_SMALLER_TOL else method


Series = dict[str, tuple[list[float], list[float]]]


def series_over(rows: Rows, column: str, value: Callable[[Rows], float]) -> Series:
    """Return one line for each method: a figure of its rows over a column of the setting."""
    series: Series = {}
    for method in rows.methods:
        part = rows.where(method)
        points = [(x, value(part.where(**{column: x}))) for x in part.values(column)]
        points = [(x, y) for x, y in points if math.isfinite(y)]
        if points:
            series[LABELS[method]] = ([x for x, _ in points], [y for _, y in points])
    return series


def bands_over(rows: Rows, column: str, name: str) -> Series:
    """Return the range of a figure over the repeats, for each method and where it has points."""
    bands: Series = {}
    for method in rows.methods:
        part = rows.where(method)
        ranges = [part.where(**{column: x}).spread(name) for x in part.values(column)]
        ranges = [(low, high) for low, high in ranges if not math.isnan(low)]
        if ranges:
            bands[LABELS[method]] = ([low for low, _ in ranges], [high for _, high in ranges])
    return bands


class Estimates:
    """Times of a fixed number of steps by method and size, also of fits that the time limit stopped.

    Steps of EM, IRLS and AMP cost the same, so that the time of a few gives that of all. Algorithm 1 takes
    more CG iterations in later steps; its time is that of an application, times the applications of the
    largest fit that came to its end. These hardly depend on the size.

    Parameters
    ----------
    rows : Rows
        What was measured.
    steps : int
        Number of outer steps of a whole fit.
    """

    def __init__(self, rows: Rows, steps: int) -> None:
        self._rows = rows
        self._steps = steps

    def known(self, method: str, D: int) -> bool:
        """Tell whether all fits of a method at a size came to their end."""
        return _ended(self._rows.where(method, D=D), "seconds")

    def seconds(self, method: str, D: int) -> float:
        """Return the time, measured or estimated; NaN where there is none."""
        part = self._rows.where(method, D=D)
        if self.known(method, D) or not part:
            return part.median("seconds")
        share = self._share(part, self._rows.where(method))
        late = all(row.measurement.reached or row.measurement.note.startswith(TIME_LIMIT) for row in part)
        return part.median("seconds") / share if late and share > 0 else math.nan

    def _share(self, part: Rows, method: Rows) -> float:
        """Return the part of a whole fit that was done when the time was up; NaN if nobody knows."""
        if not part.median("applications") > 0:
            return part.median("iterations") / self._steps
        whole = Rows(row for row in method if row.measurement.reached)
        largest = whole.where(D=max(whole.values("D"))) if whole else Rows()
        return part.median("applications") / largest.median("applications")

    def text(self, method: str, D: int) -> str:
        """Write the time; an estimate has a mark and the number of steps that it is made from."""
        part = self._rows.where(method, D=D)
        found = self.seconds(method, D)
        if self.known(method, D) or math.isnan(found):
            return time_text(part)
        steps = round(part.median("iterations"))
        return f"≈ {seconds(found)} ({steps} step{'s' * (steps != 1)})"

    def common(self, methods: Sequence[str]) -> list[int]:
        """Return the sizes at which all methods have a time, in order."""
        return sorted(
            D for D in self._rows.values("D") if not any(math.isnan(self.seconds(m, D)) for m in methods)
        )

    def series(self) -> tuple[Series, Series]:
        """Return the times over D by the label of the method: all of them, and those estimated."""
        every = series_over(self._rows, "D", self._of_rows)
        late = Rows(row for row in self._rows if not self.known(row.cell.method, int(row.cell.setting["D"])))
        return every, series_over(late, "D", self._of_rows)

    def _of_rows(self, part: Rows) -> float:
        cell = part[0].cell
        return self.seconds(cell.method, int(cell.setting["D"]))


def skip_if_a_step_is_too_slow(cell: Cell, earlier: Rows) -> None:
    """Raise `Skipped` for a method that took fewer than `FEW_STEPS` in the time limit at a smaller size."""
    for row in earlier.where(cell.method):
        smaller, found = int(row.cell.setting["D"]), row.measurement
        if (
            smaller < int(cell.setting["D"])
            and found.note.startswith(TIME_LIMIT)
            and found.iterations < FEW_STEPS
        ):
            raise Skipped(f"one step exceeded the time limit at D = {smaller}")


def time_text(rows: Rows) -> str:
    """Write the time of some repeats, or in a word why there is none."""
    late = [row.measurement for row in rows if not row.measurement.reached]
    if not late:
        return seconds(rows.median("seconds"))
    note = late[0].note
    if note.startswith(TIME_LIMIT):
        return f"stopped at {seconds(late[0].seconds)}"
    return "skipped" if late[0].skipped else "failed" if note.startswith(FAILED) else "did not get there"


def claim(text: str, criterion: str, measured: str, holds: bool | None) -> Check:
    """Return a claim of the paper, how it is judged, what was measured and whether it holds."""
    return Check(text, criterion, measured, holds)


def gpu_claim(text: str) -> Check:
    """Return a claim about GPUs, which is not judged on a machine that has none."""
    return claim(text, "–", NO_GPU, None)


def _ended(rows: Rows, name: str) -> bool:
    return bool(rows) and all(
        row.measurement.reached and not math.isnan(row.measurement[name]) for row in rows
    )
