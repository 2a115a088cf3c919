"""The memory of a fit, in a process of its own so that nothing else counts.

`main` reads a request as JSON from its input, fits, and writes what it measured as JSON to its output;
`fit_in_fresh_process` is the other end. Studies with a `main` of their own use `ask_fresh_process`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import tracemalloc
from dataclasses import asdict, dataclass
from typing import Any

from cofem.experiments import problems
from cofem.experiments.study.measure import timed_fit, warm_up
from cofem.experiments.study.memory import resident_mb
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Measurement

#: Columns that a fit in a fresh process adds: memory before the fit, and what the fit added at its peak.
MEMORY_FIGURES = ("before_mb", "added_mb", "traced_mb")


@dataclass(frozen=True)
class Request:
    """A fit to measure.

    Attributes
    ----------
    problem : str
        Name of a maker in `cofem.experiments.problems`.
    arguments : dict
        Its arguments.
    method : str
        Label of the method.
    seed : int
        Seed of problem and fit.
    target : float or None
        NRMSE at which to stop, as for `timed_fit`.
    time_limit : float
        As for `timed_fit`.
    traced : bool
        Whether to count allocations (`tracemalloc`) in place of the memory of the process.
    max_iter, tol, alpha_init : int, float, float or None
        As for `cofem.fit`.
    checkpoints : str or None
        As for `timed_fit`.
    """

    problem: str
    arguments: dict[str, Any]
    method: str
    seed: int
    target: float | None = None
    time_limit: float = math.inf
    traced: bool = False
    max_iter: int | None = None
    tol: float | None = None
    alpha_init: float | None = None
    checkpoints: str | None = None


def ask_fresh_process(module: str, request: Any, time_limit: float | None = None) -> Any:
    """Run a module's `main` in a new Python process, a request as JSON in, and return the JSON that it wrote.

    Parameters
    ----------
    module : str
        Name of the module, whose `main` reads standard input and writes standard output.
    request : Any
        What JSON can hold.
    time_limit : float, optional
        Seconds after which the process is ended; `subprocess.TimeoutExpired` is raised then.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=time_limit,
    )
    if done.returncode != 0:
        last_words = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"process ended with code {done.returncode}: {last_words[0]}")
    return json.loads(done.stdout)


def fit_in_fresh_process(request: Request) -> Measurement:
    """Run a request in a new Python process and return what it measured."""
    return Measurement(**ask_fresh_process("cofem.experiments.study.fresh", asdict(request)))


def answer(request: Request) -> Measurement:
    """Make the problem, fit it in this process, and measure time and memory."""
    warm_up(METHODS[request.method])
    case = getattr(problems, request.problem)(**request.arguments, seed=request.seed)
    if request.traced:
        tracemalloc.start()
    before = resident_mb()
    measured = timed_fit(
        case,
        METHODS[request.method],
        seed=request.seed,
        target=request.target,
        time_limit=request.time_limit,
        max_iter=request.max_iter,
        tol=request.tol,
        alpha_init=request.alpha_init,
        checkpoints=request.checkpoints,
    )
    peak = measured.peak_mb
    figures = dict.fromkeys(MEMORY_FIGURES, math.nan)
    if request.traced:
        figures["traced_mb"] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    else:
        figures |= {"before_mb": before, "added_mb": peak - before}
    return dataclasses.replace(measured, figures=figures)


def main() -> None:
    """Answer the request on standard input."""
    request = Request(**json.load(sys.stdin))
    json.dump(asdict(answer(request)), sys.stdout)
