"""Against SPGL1, the established solver of basis pursuit denoising."""

from __future__ import annotations

import importlib
import math
import time
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from cofem.experiments import problems
from cofem.experiments.bench.dct_time import time_plot
from cofem.experiments.bench.dense_time import reference_error
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Skipped,
    Study,
    Table,
    at_most,
    grid,
    number,
    power,
    seconds,
)
from cofem.experiments.study.measure import TIME_LIMIT, middle_of, timed_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Cell, Measurement, Rows, Value, paired_ratio

SPARSE, DENSER = 0.04, 0.1
#: Part of SPGL1's time in which its error is to be reached.
TIME = 0.3
#: Runs of either, of which the middle time counts: one of them may take a hundredth of a second.
RUNS = 3
TO_ITS_ERROR = "default to SPGL1's error"
ITERATIONS = 10_000
#: `info["stat"]` of a run that found its solution; the others are errors.
FOUND = (1, 2, 3, 4)


class SPGL1(Study):
    """Time and error against SPGL1."""

    name = "spgl1"
    summary = "time and error against SPGL1 (basis pursuit denoising)"
    how = (
        "DCT samples, N = D/4, coefficients from N(0, 1), noise 0.005, float64 for both. SPGL1 is "
        "`spg_bpdn` of the package `spgl1`, told the true norm of the noise, 0.005 sqrt(N), with at the "
        f"most {ITERATIONS:,} iterations and its default tolerances (`bp_tol` and `ls_tol` 1e-6, `opt_tol` "
        "and `dec_tol` 1e-4), on the same operator. `default to SPGL1's error` stops at the NRMSE that "
        f"SPGL1 ended with; the others run to their end. Each time is the middle one of {RUNS} runs."
    )
    setting_columns = ("D", "density")

    def cells(self, options: Options) -> list[Cell]:
        """Every size; SPGL1 first, since it sets the target."""
        exponents = (12,) if options.quick else (14, 16, 18)
        cells = []
        for density, methods in (
            (SPARSE, ("SPGL1", TO_ITS_ERROR, "default")),
            (DENSER, ("SPGL1", "default")),
        ):
            sweep: list[dict[str, Value]] = [{"D": 2**n, "density": density} for n in exponents]
            cells += grid(sweep, methods, options.repeats)
        return cells

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Run one solver."""
        D, density, seed = int(cell.setting["D"]), float(cell.setting["density"]), cell.seed
        case = problems.dct(D, f=4, density=density, seed=seed)
        if cell.method == "SPGL1":
            return middle_of(lambda: _run_spgl1(case, options.time_limit), RUNS)
        target = None
        if cell.method == TO_ITS_ERROR:
            target = reference_error(earlier.where("SPGL1", seed, **cell.setting))
        settings: dict[str, Any] = {"seed": seed, "target": target, "time_limit": options.time_limit}
        return middle_of(lambda: timed_fit(case, METHODS["default"], **settings), RUNS)

    def report(self, rows: Rows) -> Report:
        """Compare times and final errors."""
        lines: list[list[str]] = []
        checks: list[Check] = []
        for density in rows.values("density"):
            for D in rows.where(density=density).values("D"):
                part = rows.where(density=density, D=D)
                theirs, ours, reaching = (part.where(name) for name in ("SPGL1", "default", TO_ITS_ERROR))
                line = [f"{density:g} D", power(D)]
                for runs in (theirs, ours):
                    line += [seconds(runs.median_to_target()), number(runs.median("nrmse"), " %")]
                time = paired_ratio(theirs, reaching)
                lines.append([*line, seconds(reaching.median_to_target()), str(time)])
                where = f"D = {power(D)}, d = {density:g} D"
                if density == SPARSE:
                    share = ours.median("nrmse") / theirs.median("nrmse")
                    what = f"{where}: our time to its error / SPGL1's time"
                    spent = 1 / time.value if time.value else math.inf
                    checks.append(at_most(what, spent, TIME, number(spent)))
                    checks.append(at_most(f"{where}: our final NRMSE / SPGL1's", share, 0.55, number(share)))
                else:
                    error = ours.median("nrmse")
                    checks.append(at_most(f"{where}: our final NRMSE", error, 2.5, number(error, " %"), " %"))
        plot = time_plot(rows.where(density=SPARSE), f"time, d = {SPARSE:g} D")
        header = [
            "d",
            "D",
            "SPGL1: time",
            "NRMSE",
            "default: time",
            "NRMSE",
            "default to SPGL1's NRMSE",
            "ratio",
        ]
        return Report([Table("Runs to their end:", header, lines)], checks, plot)


class _OutOfTime(Exception):
    pass


def _run_spgl1(case: problems.Case, time_limit: float) -> Measurement:
    try:
        spgl1 = importlib.import_module("spgl1")
    except ImportError as error:
        raise Skipped("spgl1 is not installed (pip install spgl1)") from error
    operator = _with_deadline(case.Phi, time_limit)
    start = time.perf_counter()
    try:
        x, _, _, info = spgl1.spg_bpdn(
            operator, case.y, case.noise_std * len(case.y) ** 0.5, iter_lim=ITERATIONS
        )
    except _OutOfTime:
        return Measurement(seconds=time.perf_counter() - start, note=f"{TIME_LIMIT} of {time_limit:g} s")
    return Measurement(
        seconds=time.perf_counter() - start,
        applications=(info["nprodA"] + info["nprodAt"]) / 2,
        iterations=info["niters"],
        nrmse=case.nrmse(x),
        reached=info["stat"] in FOUND,
        note=f"SPGL1: stat {info['stat']}",
    )


def _with_deadline(Phi: Any, time_limit: float) -> LinearOperator:
    """Return Phi for SciPy; it has no callback, so its products end the run when the time is up."""
    deadline = time.perf_counter() + time_limit

    def timely(product: Any) -> Any:
        def apply(x: np.ndarray) -> np.ndarray:
            if time.perf_counter() > deadline:
                raise _OutOfTime
            return product(x)

        return apply

    return LinearOperator(Phi.shape, matvec=timely(Phi.matvec), rmatvec=timely(Phi.rmatvec), dtype=np.float64)
