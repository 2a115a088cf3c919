"""Experiments (c) and (e): convergence over iterations, dense and structured dictionary."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from cofem.experiments import problems
from cofem.experiments.exact_dct import ExactOnDCT
from cofem.experiments.reproduce.base import LABELS, ORDER, claim, fitted_as, series_over, settings_of
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Study,
    Table,
    grid,
    number,
    power,
    seconds,
)
from cofem.experiments.study.measure import traced_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, Rows, Value

STEPS = 50
#: Errors count as equal within this factor.
SAME = 2.0
#: How far EM's error must have come down, relative to its first, for its rate to be seen.
CONVERGING = 0.5


class Convergence(Study):
    """NRMSE after each iteration."""

    setting_columns = ("D", "iteration")

    def __init__(
        self, name: str, problem: str, algorithm: str, quick: int, powers: tuple[int, ...] = (15,)
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.problem = problem
        self.algorithm = algorithm
        self.quick_size = quick
        #: Sizes as powers of two: the paper's, which comes last, and smaller ones that end sooner.
        self.powers = powers
        kind = "dense" if problem == "dense" else "structured (DCT)"
        self.summary = f"convergence, {kind} dictionary: NRMSE against the iteration"  # type: ignore[misc]
        also = "".join(f" and {power(2**p)}" for p in powers[:-1])
        self.how = (  # type: ignore[misc]
            f"D = 2^15{also} (quick: {power(2**quick)}), N = D / 4, 0.04 D non-zeros, noise 0.005 known, "
            f"float64, {STEPS} outer steps. EM is computed through its N x N matrix as in IRLS, whose "
            "iterates are the same (a test of this library compares them step by step) and which fits into "
            "memory"
            + ("" if problem == "dense" else ", by cosine sums in place of matrix products")
            + ". EM and Algorithm 1 start at alpha = 1"
            + ("; its joint tolerance is 1e-8, and 1e-9 at 2^15" if problem == "dense" else "")
            + ". A fit that exceeds the time limit is stopped, and "
            "its time for all steps is an estimate, marked ≈."
        )

    def cells(self, options: Options) -> list[Cell]:
        """Every iteration of every method; a fit is made for the first one and kept for the others."""
        methods = (self.algorithm, "default", "irls")
        return [
            cell
            for exponent in ((self.quick_size,) if options.quick else self.powers)
            for method in methods
            for iteration in range(1, STEPS + 1)
            for cell in grid(
                [_setting(2**exponent, iteration)], [method], options.seeds or 1, options.first_seed
            )
        ]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Look the iteration up in the trace of the fit."""
        D = int(cell.setting["D"])
        trace = _trace(self.problem, D, cell.method, cell.seed, options.time_limit, options.checkpoints)
        return trace[int(cell.setting["iteration"]) - 1]

    def report(self, rows: Rows) -> Report:
        """Errors over iterations, and whether CoFEM follows EM."""
        kind = "dense" if self.problem == "dense" else "structured"
        Ds = sorted(rows.values("D"))
        tables, checks, drawn = [], [], Ds[-1] if Ds else None
        for D in Ds:
            errors = {method: _errors(rows.where(method, D=D)) for method in rows.methods}
            where = f" at D = {power(D)}" if len(Ds) > 1 else ""
            tables.append(self._table(errors, rows.where(D=D), where))
            checks.append(self._claim(errors, where))
            if checks[-1].holds is not None:  # a size whose fits were stopped early shows no curves
                drawn = D
        largest = rows if drawn is None else rows.where(D=drawn)
        size = "" if drawn is None else f", D = {power(drawn)}"
        plot = Plot(
            {
                ("EM" if label == "IRLS" else label): points
                for label, points in series_over(
                    largest, "iteration", lambda part: part.median("nrmse")
                ).items()
            },
            "iteration",
            "NRMSE, %",
            f"({self.name}) {kind} dictionary: convergence" + size,
            log_x=False,
            order=ORDER,
            markers=False,
        )
        return Report(tables, checks, plot)

    @staticmethod
    def _table(errors: dict[str, dict[int, float]], rows: Rows, where: str) -> Table:
        shown = [k for k in (1, 2, 5, 10, 20, 30, 40, 50) if any(k in found for found in errors.values())]
        lines = []
        for method, found in errors.items():
            last = rows.where(method, iteration=max(found)) if found else Rows()
            note = next((r.measurement.note for r in rows.where(method) if r.measurement.note), "")
            stopped = note.startswith(TIME_LIMIT) and bool(found)
            whole = last.median("seconds") * STEPS / max(found) if stopped else math.nan
            lines.append(
                [
                    LABELS[method] if method != "irls" else "EM (as IRLS)",
                    *(number(found.get(k, math.nan), " %") for k in shown),
                    seconds(last.median("seconds")),
                    number(last.median("applications")),
                    f"{note}; {STEPS} steps ≈ {seconds(whole)} or more" if stopped else "",
                ]
            )
        header = ["method", *(f"step {k}" for k in shown), "time", "applications", ""]
        return Table(f"NRMSE after some iterations{where}:", header, lines)

    def _claim(self, errors: dict[str, dict[int, float]], where: str) -> Check:
        exact, ours = errors.get("irls", {}), errors.get(self.algorithm, {})
        both = [k for k in exact if k in ours]
        worst = max(both, key=lambda k: abs(math.log(ours[k] / exact[k])), default=None)
        measured = (
            f"over {len(both)} iterations the largest distance is {ours[worst] / exact[worst]:.2f}x, at "
            f"iteration {worst}; at the last one {ours[both[-1]]:.3g} % against {exact[both[-1]]:.3g} %"
            if worst
            else "–"
        )
        holds = max(ours[worst] / exact[worst], exact[worst] / ours[worst]) <= SAME if worst else None
        if worst and exact[both[-1]] > CONVERGING * exact[both[0]]:
            measured, holds = f"{measured}: too few to tell", None
        return claim(
            f"CoFEM converges at the same rate as EM{where}.",
            f"NRMSE within a factor {SAME:g} of EM's after every common iteration",
            measured,
            holds,
        )


def _errors(rows: Rows) -> dict[int, float]:
    """Return the error after each iteration, where there is one."""
    return {
        int(row.cell.setting["iteration"]): row.measurement.nrmse
        for row in rows
        if not math.isnan(row.measurement.nrmse)
    }


def _setting(D: int, iteration: int) -> dict[str, Value]:
    return {"D": D, "iteration": iteration}


@functools.lru_cache(maxsize=2)
def _trace(
    problem: str, D: int, method: str, seed: int, time_limit: float, checkpoints: Path | None = None
) -> list[Measurement]:
    case = getattr(problems, problem)(D, seed=seed)
    start = settings_of(method, STEPS).get("alpha_init")
    chosen = ExactOnDCT() if method == "irls" and problem == "dct" else METHODS[fitted_as(method, problem, D)]
    return traced_fit(
        case,
        chosen,
        seed=seed,
        steps=STEPS,
        time_limit=time_limit,
        alpha_init=start,
        checkpoints=checkpoints,
    )
