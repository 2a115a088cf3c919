"""Experiments (c) and (e): convergence over iterations, dense and structured dictionary."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from cofem.experiments import problems
from cofem.experiments.exact_dct import ExactOnDCT
from cofem.experiments.reproduce.base import LABELS, ORDER, claim, series_over, settings_of
from cofem.experiments.study.base import Options, Report, Study, Table, grid, number, power, seconds
from cofem.experiments.study.measure import traced_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, Rows, Value

STEPS = 50
#: Errors count as equal within this factor.
SAME = 2.0


class Convergence(Study):
    """NRMSE after each iteration."""

    setting_columns = ("D", "iteration")

    def __init__(self, name: str, problem: str, algorithm: str, quick: int) -> None:
        self.name = name  # type: ignore[misc]
        self.problem = problem
        self.algorithm = algorithm
        self.quick_size = quick
        kind = "dense" if problem == "dense" else "structured (DCT)"
        self.summary = f"convergence, {kind} dictionary: NRMSE against the iteration"  # type: ignore[misc]
        self.how = (  # type: ignore[misc]
            f"D = 2^15 (quick: {power(2**quick)}), N = D / 4, 0.04 D non-zeros, noise 0.005 known, float64, "
            f"{STEPS} outer steps. EM is computed through its N x N matrix as in IRLS, whose iterates are "
            "the same (a test of this library compares them step by step) and which fits into memory"
            + ("" if problem == "dense" else ", by cosine sums in place of matrix products")
            + ". EM and Algorithm 1 start at alpha = 1."
        )

    def cells(self, options: Options) -> list[Cell]:
        """Every iteration of every method; a fit is made for the first one and kept for the others."""
        D = 2 ** (self.quick_size if options.quick else 15)
        methods = (self.algorithm, "default", "irls")
        return [
            cell
            for method in methods
            for iteration in range(1, STEPS + 1)
            for cell in grid([_setting(D, iteration)], [method], options.seeds or 1, options.first_seed)
        ]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Look the iteration up in the trace of the fit."""
        D = int(cell.setting["D"])
        trace = _trace(self.problem, D, cell.method, cell.seed, options.time_limit, options.checkpoints)
        return trace[int(cell.setting["iteration"]) - 1]

    def report(self, rows: Rows) -> Report:
        """Errors over iterations, and whether CoFEM follows EM."""
        errors = {
            method: {
                int(row.cell.setting["iteration"]): row.measurement.nrmse
                for row in rows.where(method)
                if not math.isnan(row.measurement.nrmse)
            }
            for method in rows.methods
        }
        shown = [k for k in (1, 2, 5, 10, 20, 30, 40, 50) if any(k in found for found in errors.values())]
        lines = []
        for method, found in errors.items():
            last = rows.where(method, iteration=max(found)) if found else Rows()
            note = next((r.measurement.note for r in rows.where(method) if r.measurement.note), "")
            lines.append(
                [
                    LABELS[method] if method != "irls" else "EM (as IRLS)",
                    *(number(found.get(k, math.nan), " %") for k in shown),
                    seconds(last.median("seconds")),
                    number(last.median("applications")),
                    note if note.startswith(TIME_LIMIT) else "",
                ]
            )
        header = ["method", *(f"step {k}" for k in shown), "time", "applications", ""]
        plot = Plot(
            {
                ("EM" if label == "IRLS" else label): points
                for label, points in series_over(rows, "iteration", lambda part: part.median("nrmse")).items()
            },
            "iteration",
            "NRMSE, %",
            f"({self.name}) {'dense' if self.problem == 'dense' else 'structured'} dictionary: convergence",
            log_x=False,
            order=ORDER,
            markers=False,
        )
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
        checks = [
            claim(
                "CoFEM converges at the same rate as EM.",
                f"NRMSE within a factor {SAME:g} of EM's after every common iteration",
                measured,
                holds,
            )
        ]
        return Report([Table("NRMSE after some iterations:", header, lines)], checks, plot)


def _setting(D: int, iteration: int) -> dict[str, Value]:
    return {"D": D, "iteration": iteration}


@functools.lru_cache(maxsize=2)
def _trace(
    problem: str, D: int, method: str, seed: int, time_limit: float, checkpoints: Path | None = None
) -> list[Measurement]:
    case = getattr(problems, problem)(D, seed=seed)
    start = settings_of(method, STEPS).get("alpha_init")
    chosen = ExactOnDCT() if method == "irls" and problem == "dct" else METHODS[method]
    return traced_fit(
        case,
        chosen,
        seed=seed,
        steps=STEPS,
        time_limit=time_limit,
        alpha_init=start,
        checkpoints=checkpoints,
    )
