"""The complexity table: growth of time and memory with D, fitted from measurements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cofem.experiments.reproduce.base import LABELS, ORDER, claim, series_over, settings_of
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Study,
    Table,
    grid,
    number,
    power,
    skip_if_too_slow,
)
from cofem.experiments.study.fresh import MEMORY_FIGURES, Request, fit_in_fresh_process
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

#: Sizes (powers of two) by method, dense and DCT: large enough for the leading term to rule.
SIZES = {
    "em": (range(9, 13), range(9, 13)),
    "irls": (range(10, 14), range(10, 14)),
    "amp": (range(10, 14), range(14, 19)),
    "vi": (range(10, 14), range(14, 19)),
    "seq": (range(9, 13), range(10, 14)),
    "paper": (range(10, 14), ()),
    "paper 2e-5": ((), range(13, 18)),
    "default": (range(10, 14), range(14, 20)),
}
QUICK_SIZES = {
    "em": (range(8, 11), range(8, 11)),
    "irls": (range(9, 12), range(9, 12)),
    "amp": (range(9, 12), range(12, 16)),
    "vi": (range(9, 12), range(12, 16)),
    "seq": (range(8, 11), range(8, 11)),
    "paper": (range(8, 11), ()),
    "paper 2e-5": ((), range(11, 14)),
    "default": (range(9, 12), range(12, 16)),
}
#: Exponents of D when N and d grow with D: the paper's table, with tau_D = D N for a dense dictionary and
#: D log D for the DCT.
PAPER = {
    "em": {"dense": (3, 2), "dct": (3, 2)},
    "irls": {"dense": (3, 2), "dct": (3, 2)},
    "amp": {"dense": (2, 2), "dct": (2, 2)},
    "vi": {"dense": (2, 1), "dct": (1, 1)},
    "seq": {"dense": (3, 2), "dct": (3, 2)},
    "paper": {"dense": (2, 1), "dct": (1, 1)},
    "paper 2e-5": {"dense": (2, 1), "dct": (1, 1)},
    "default": {"dense": (2, 1), "dct": (1, 1)},
}
BIG_O = {
    "em": ("T_em D^3", "D^2"),
    "irls": ("T_em (D N^2 + N^3)", "D^2"),
    "amp": ("T_em T_amp D N", "D N"),
    "vi": ("T_em tau_D", "D"),
    "seq": ("D d^2", "D + d^2"),
    "paper": ("T_em tau_D U K", "D K"),
    "paper 2e-5": ("T_em tau_D U K", "D K"),
    "default": ("–", "–"),
}
STEPS = 5
#: A measured exponent agrees if it is at most this much above the paper's.
SLACK = 0.35
#: Less memory than this is that of libraries and buffers.
LEAST_MB = 8.0


class Growth(Study):
    """Exponents of D in time and memory."""

    name = "table"
    summary = "growth of time and memory with D, beside the paper's complexity table"
    how = (
        f"N = D / 4, 0.04 D non-zeros, noise 0.005 known, float64, {STEPS} outer steps (Seq: to its end), "
        "each fit in a process of its own. The exponent is the slope of a straight line through the "
        "logarithms of time, or of the memory that the fit added at its peak (above the data and the "
        "dictionary), over log D. Sizes differ by method so that the leading term rules in a run of seconds "
        f"to minutes. Where less than {LEAST_MB:g} MB were added at the largest size, no exponent is given."
    )
    setting_columns = ("problem", "D")
    figures = MEMORY_FIGURES

    def cells(self, options: Options) -> list[Cell]:
        """Take the sizes of each method, on both kinds of dictionary."""
        table = QUICK_SIZES if options.quick else SIZES
        settings: list[tuple[str, dict[str, Value]]] = [
            (method, {"problem": problem, "D": 2**exponent})
            for method, both in table.items()
            for problem, exponents in zip(("dense", "dct"), both, strict=True)
            for exponent in exponents
        ]
        return [
            cell
            for method, setting in settings
            for cell in grid([setting], [method], options.seeds or 1, options.first_seed)
        ]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Take a few steps."""
        problem = str(cell.setting["problem"])
        skip_if_too_slow(cell, earlier.where(problem=problem))
        request = Request(
            problem,
            {"D": cell.setting["D"]},
            cell.method,
            cell.seed,
            time_limit=options.time_limit,
            checkpoints=str(options.checkpoints) if options.checkpoints else None,
            **(settings_of(cell.method, STEPS) or _own_settings(cell.method)),
        )
        return fit_in_fresh_process(request)

    def report(self, rows: Rows) -> Report:
        """Fitted exponents beside the paper's."""
        lines, checks = [], []
        for method in rows.methods:
            for problem in ("dense", "dct"):
                part = rows.where(method, problem=problem)
                if not part:
                    continue
                time, memory = exponent(part, "seconds"), exponent(part, "added_mb")
                Ds = part.values("D")
                wanted = PAPER[method][problem]
                lines.append(
                    [
                        LABELS[method],
                        problem,
                        f"{power(min(Ds))} to {power(max(Ds))}",
                        f"O({BIG_O[method][0]})" if method in BIG_O and BIG_O[method][0] != "–" else "–",
                        str(wanted[0]),
                        number(time),
                        f"O({BIG_O[method][1]})" if BIG_O[method][1] != "–" else "–",
                        str(wanted[1]),
                        number(memory),
                    ]
                )
                if method != "default":
                    checks.append(_check(method, problem, wanted, time, memory))
        header = [
            "method",
            "problem",
            "D",
            "time, paper",
            "exponent of D",
            "measured",
            "memory, paper",
            "exponent of D",
            "measured",
        ]
        shown = rows.where(problem="dct")
        kind = "structured" if shown else "dense"
        plot = Plot(
            series_over(shown or rows, "D", lambda part: part.median("seconds")),
            "D",
            f"seconds for {STEPS} iterations (Seq: to its end)",
            f"{kind} dictionary: growth of time",
            order=ORDER,
        )
        return Report([Table("Exponents of D:", header, lines)], checks, plot)


def exponent(rows: Rows, name: str) -> float:
    """Return the slope of log(figure) over log(D), by least squares; NaN where there is too little."""
    points = [(D, rows.where(D=D).median(name)) for D in rows.values("D") if _all_ended(rows.where(D=D))]
    points = [(D, value) for D, value in points if value > 0]
    if len(points) < 2 or (name == "added_mb" and max(value for _, value in points) < LEAST_MB):
        return math.nan
    D, value = np.log(np.array(points)).T
    return float(np.polyfit(D, value, 1)[0])


def _own_settings(method: str) -> dict[str, Any]:
    """Return the steps of a method that is none of the paper's EM algorithms; Seq has no steps to count."""
    return {} if method == "seq" else {"max_iter": STEPS, "tol": 0.0}


def _all_ended(rows: Rows) -> bool:
    return all(row.measurement.reached for row in rows)


def _power(exponent: float) -> str:
    return "too little to tell" if math.isnan(exponent) else f"D^{exponent:.2f}"


def _check(method: str, problem: str, wanted: tuple[int, int], time: float, memory: float) -> Check:
    known = [
        (found, most) for found, most in zip((time, memory), wanted, strict=True) if not math.isnan(found)
    ]
    holds = all(found <= most + SLACK for found, most in known) if known else None
    return claim(
        f"{LABELS[method]}, {problem}: time grows as D^{wanted[0]}, memory as D^{wanted[1]}.",
        f"measured exponents at most {SLACK:g} larger",
        f"time {_power(time)}, memory {_power(memory)}",
        holds,
    )
