"""Against the code that the paper's authors have published, which is fetched and not part of this project."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from cofem.experiments import problems
from cofem.experiments.bench.dct_time import TARGET, time_plot
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Skipped,
    Study,
    Table,
    at_least,
    at_most,
    grid,
    number,
    power,
    seconds,
)
from cofem.experiments.study.measure import Watch, middle_of, timed_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, Rows, Value, paired_ratio

#: Environment variable with the folder that their repository was cloned into.
FOLDER = "COFEM_AUTHORS_CODE"
OURS, THEIRS = "default", "authors"
SPARSE, DENSER = 0.04, 0.1
#: Most applications to the target, by density; least ratio of times, by D.
APPLICATIONS = {SPARSE: 50, DENSER: 180}
SPEEDUPS = {2**14: 250, 2**16: 300, 2**18: 300}
#: Fits of ours, of which the middle time counts: one of them may take a hundredth of a second.
FITS = 3


class Authors(Study):
    """Time to 2 % on the DCT problem, default against the authors' own code."""

    name = "authors"
    summary = "time to an NRMSE of 2 % on DCT samples, against the code of the paper's authors"
    how = (
        "Inverse DCT and random samples, N = D/4, coefficients from N(0, 1), noise 0.005 known, float32 for "
        "both. Theirs is `al5250/sparse-bayes-learn` on its SciPy transforms, with 20 probes, its "
        f"preconditioner, a tolerance of 1e-7 and at most 400 CG steps; set {FOLDER} to the folder of a "
        "clone, and install PyTorch. Both are watched after every outer step, and that is left out of the "
        f"time; ours is the middle one of {FITS} fits. Applications count everything: checks, and the look "
        "at the operator before the first step."
    )
    setting_columns = ("D", "density")

    def cells(self, options: Options) -> list[Cell]:
        """Every size and seed; the authors' code where a tenth of the coefficients is not zero."""
        exponents = (11,) if options.quick else (14, 16, 18)
        cells = []
        for density, methods in ((DENSER, (OURS, THEIRS)), (SPARSE, (OURS,))):
            sweep: list[dict[str, Value]] = [{"D": 2**n, "density": density} for n in exponents]
            cells += grid(sweep, methods, options.repeats)
        return cells

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Time one method to the target."""
        D, density, seed = int(cell.setting["D"]), float(cell.setting["density"]), cell.seed
        case = problems.dct(D, f=4, density=density, seed=seed, dtype=np.float32)
        if cell.method == THEIRS:
            return _run_theirs(case, seed, options.time_limit)
        settings: dict[str, Any] = {"seed": seed, "target": TARGET, "max_iter": 100, "tol": 0.0}
        fit = middle_of(
            lambda: timed_fit(case, METHODS[OURS], time_limit=options.time_limit, **settings), FITS
        )
        # The process has held the authors' arrays as well.
        return replace(fit, peak_mb=math.nan)

    def report(self, rows: Rows) -> Report:
        """Compare times, and say how many applications ours took."""
        lines: list[list[str]] = []
        checks: list[Check] = []
        for density in rows.values("density"):
            for D in rows.where(density=density).values("D"):
                part = rows.where(density=density, D=D)
                ours, theirs = part.where(OURS), part.where(THEIRS)
                ratio, applications = paired_ratio(theirs, ours), ours.median("applications")
                line = [f"{density:g} D", power(D), seconds(theirs.median_to_target())]
                line += [seconds(ours.median_to_target()), str(ratio), number(applications)]
                lines.append([*line, number(ours.median("iterations"))])
                where = f"D = {power(D)}, d = {density:g} D"
                most = APPLICATIONS[density]
                checks.append(
                    at_most(f"{where}: applications to 2 %", applications, most, number(applications))
                )
                if density == DENSER and D in SPEEDUPS:
                    what = f"{where}: time, authors / default"
                    checks.append(at_least(what, ratio.value, SPEEDUPS[D], str(ratio), "x"))
        header = ["d", "D", "authors: time", "default: time", "time ratio", "applications", "steps"]
        plot = time_plot(rows.where(density=DENSER), f"time to an NRMSE of 2 %, d = {DENSER:g} D")
        return Report([Table("Cost of the target:", header, lines)], checks, plot)


class _Done(Exception):
    pass


def _run_theirs(case: problems.Case, seed: int, time_limit: float) -> Measurement:
    """Run the authors' code until the target is reached."""
    torch, operators, model = _their_code()
    torch.manual_seed(seed)
    mask = np.zeros(case.Phi.shape[1], dtype=bool)
    mask[case.Phi.factors[0].indices] = True
    parts = [
        operators.DiscreteCosine1D(length=mask.size, use_fft=False),
        operators.Undersampling(torch.from_numpy(mask), zero_out=False),
    ]
    phi, y = operators.Sequential(ops=parts, transposed=[True, False]), torch.from_numpy(case.y)
    settings = {"num_probes": 20, "cg_tol": 1e-7, "max_cg_iters": 400, "precondition": True}
    fit = model.SBLModel.with_cofem(num_iters=100, noise_precision=case.noise_std**-2, **settings)
    phi(torch.zeros(mask.size))  # what is loaded on first use is not counted
    watch = Watch(case, TARGET, time_limit)

    def look(step: int, alpha: Any, mean: Any, variance: Any) -> None:
        if watch.look(step + 1, math.nan, mean.numpy):
            raise _Done

    with contextlib.suppress(_Done):
        fit.fit(y, phi, look)
    total = watch.seconds
    return Measurement(
        seconds=watch.seconds_to_target if watch.reached else total,
        iterations=watch.iterations,
        nrmse=watch.nrmse,
        reached=watch.reached,
        note=f"{TIME_LIMIT} of {time_limit:g} s" if watch.out_of_time else "",
    )


def _their_code() -> tuple[Any, Any, Any]:
    """Return PyTorch, and the authors' modules of operators and models."""
    folder = os.environ.get(FOLDER)
    if not folder:
        raise Skipped(f"{FOLDER} does not name a clone of the authors' repository")
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        operators, model = (importlib.import_module(f"sblearn.{name}") for name in ("operators", "model"))
        return importlib.import_module("torch"), operators, model
    except ImportError as error:
        raise Skipped(f"the authors' code or PyTorch cannot be imported ({error})") from error
