"""What the experiments share: names of the methods, and series over a column of the setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cofem.experiments.study.base import Check, seconds
from cofem.experiments.study.results import FAILED, TIME_LIMIT, Rows

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

NO_GPU = "not measured: this machine has no GPU"


def settings_of(method: str, steps: int) -> dict[str, Any]:
    """Return how to run a method: that many EM steps from alpha = 1 as in the paper, or to its own end."""
    if method not in EM_STEPS:
        return {}
    return {"max_iter": steps, "tol": 0.0, "alpha_init": 1.0}


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


def common(rows: Rows, methods: Sequence[str], column: str = "D", name: str = "seconds") -> list[int]:
    """Return the settings at which all methods got to their end, in order."""
    return sorted(
        x
        for x in rows.values(column)
        if all(_ended(rows.where(method, **{column: x}), name) for method in methods)
    )


def _ended(rows: Rows, name: str) -> bool:
    return bool(rows) and all(
        row.measurement.reached and not math.isnan(row.measurement[name]) for row in rows
    )
