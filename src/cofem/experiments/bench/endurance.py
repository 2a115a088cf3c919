"""A long run: fits of all kinds over and over, in one process, which must neither grow nor drift.

`main` reads a request as JSON from its input, fits until the time is up, and writes what it measured as JSON
to its output; `run_in_fresh_process` is the other end.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

import cofem
from cofem.experiments import problems
from cofem.experiments.bench.priors import STRUCTURES
from cofem.experiments.problems import Case
from cofem.experiments.study.base import Check, Options, Report, Skipped, Study, Table, grid, number
from cofem.experiments.study.fresh import ask_fresh_process
from cofem.experiments.study.memory import open_files, resident_mb, threads
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import FAILED, Cell, Measurement, Rows, Value

#: Parts of the run, each one row: what is reported is a line through them.
WINDOWS, QUICK_WINDOWS = 60, 3
#: Length of the quick run.
QUICK_SECONDS = 3.0
#: Coefficients where products are fast, a power of four since some are images; matrices have fewer.
SIZE, QUICK_SIZE = 1024, 256
#: A quick run takes one kind in this many.
QUICK_EVERY = 6
#: Rounds before the clock starts: libraries load, caches and the allocator's pools fill.
WARM_UP_ROUNDS = 3
#: Growth over the whole run, relative to the resident memory, that counts as none.
TOLERATED_GROWTH = 0.01


# --- one round ----------------------------------------------------------------------------------------


class Fitted:
    """What came out of one kind of fit: the arrays that must never change, and the error."""

    def __init__(self, arrays: Iterable[Any], nrmse: float) -> None:
        self.nrmse = nrmse
        self.fingerprint = fingerprint(arrays)


def fingerprint(arrays: Iterable[Any]) -> str:
    """Return a hash of the bits, types and shapes of some arrays.

    Examples
    --------
    >>> import numpy as np
    >>> fingerprint([np.ones(2)]) == fingerprint([np.ones(2)])
    True
    >>> fingerprint([np.ones(2)]) == fingerprint([np.array([1, 1 + 1e-16])])
    True
    >>> fingerprint([np.ones(2)]) == fingerprint([np.array([1, 1 + 3e-16])])
    False
    """
    hashed = hashlib.sha256()
    for array in map(np.asarray, arrays):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _fitted(case: Case, post: cofem.Posterior, *more: Any) -> Fitted:
    return Fitted([post.mean, post.variance, post.alpha, post.noise_std, *more], case.nrmse(post.mean))


def _fit(case: Case, **settings: Any) -> Fitted:
    settings = {"noise_std": case.noise_std, "rng": 0} | settings
    return _fitted(case, cofem.fit(case.Phi, case.y, **settings))


def _used(D: int) -> Fitted:
    """Fit, and ask the posterior for all that it gives."""
    case = problems.dct(D)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method="cofem", rng=0)
    few = [0, D // 2]
    more = [post.sample(3, rng=0), *post.credible_interval(0.9), post.support(), post.covariance(few)]
    more += [*post.predict(case.Phi, return_std=True, rng=0), post.log_evidence(rng=0).value]
    return _fitted(case, post, *more)


def _checkpointed(D: int) -> Fitted:
    """Stop midway, go on from the file, and read the posterior back from another."""
    case = problems.dct(D)
    settings: dict[str, Any] = {"noise_std": case.noise_std, "method": "cofem", "rng": 0}
    with tempfile.TemporaryDirectory() as folder:
        path, saved = Path(folder) / "run.npz", Path(folder) / "fit.npz"
        cofem.fit(case.Phi, case.y, checkpoint=path, checkpoint_every="2 steps", max_iter=4, **settings)
        post = cofem.fit(case.Phi, case.y, resume=path, **settings)
        post.save(saved)
        return _fitted(case, post, cofem.load(saved, case.Phi).mean)


def _interrupted(D: int) -> Fitted:
    """Press Ctrl-C and take what there is."""

    def press(state: Any) -> None:
        if state.iteration == 4:
            raise KeyboardInterrupt

    case = problems.dct(D)
    try:
        cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method="cofem", rng=0, callback=press)
    except cofem.FitInterrupted as interrupt:
        return _fitted(case, interrupt.posterior)
    raise RuntimeError("the fit ended before it was interrupted")


def _regressor(D: int) -> Fitted:
    """Fit the scikit-learn estimator and predict."""
    case = problems.gaussian(D // 4, 0, f=0.5)
    model = cofem.SBLRegressor(random_state=0).fit(case.Phi, case.y)
    mean, std = model.predict(case.Phi[:10], return_std=True)
    arrays = [model.coef_, model.coef_std_, model.lambda_, model.alpha_, mean, std]
    return Fitted(arrays, case.nrmse(model.coef_))


def _single(case: Case) -> Case:
    """Return a dense problem in single precision."""
    return Case(case.Phi.astype(np.float32), case.y.astype(np.float32), case.z, case.noise_std)


def _structured(name: str) -> Callable[[int], Fitted]:
    structure = STRUCTURES[name]

    def fitted(D: int) -> Fitted:
        case = structure.make(D, 4, np.random.default_rng(0))
        return _fit(case, method="cofem", **structure.settings)

    return fitted


#: Kinds of fit, by name: of D, with problem and fit from fixed seeds.
KINDS: dict[str, Callable[[int], Fitted]] = {
    "cofem, DCT samples": lambda D: _fit(problems.dct(D), method="cofem"),
    "cofem, DCT samples, float32": lambda D: _fit(problems.dct(D, dtype=np.float32), method="cofem"),
    "cofem, dense": lambda D: _fit(problems.dense(D // 4), method="cofem"),
    "cofem, dense, float32": lambda D: _fit(_single(problems.dense(D // 4)), method="cofem"),
    "cofem, sparse": lambda D: _fit(problems.sparse_matrix(D // 4, 0), method="cofem"),
    "cofem, wavelets, complex": lambda D: _fit(problems.fourier_wavelets(D, 0), method="cofem"),
    "cofem, direct probes": lambda D: _fit(
        problems.dct(D // 4), method=cofem.CoFEM(diagonal="rademacher", probes=10), max_iter=10
    ),
    "auto": lambda D: _fit(problems.gaussian(D // 4, 0, f=1)),
    "em": lambda D: _fit(problems.dense(D // 16), method="em"),
    "irls": lambda D: _fit(problems.dense(D // 8), method="irls"),
    "irls, float32": lambda D: _fit(_single(problems.dense(D // 8)), method="irls"),
    "seq": lambda D: _fit(problems.dense(D // 4), method="seq"),
    "amp": lambda D: _fit(problems.dense(D // 4), method="amp"),
    "vi": lambda D: _fit(problems.dense(D // 4), method="vi", max_iter=50),
    "multi-task": _structured("4 tasks"),
    "block": _structured("blocks of 8"),
    "pattern": _structured("clusters"),
    "non-negative": _structured("non-negative"),
    "complex": _structured("complex"),
    "noise learned, DCT samples": lambda D: _fit(problems.dct(D), method="cofem", noise_std="learn"),
    "noise learned, dense": lambda D: _fit(problems.dense(D // 16), noise_std="learn"),
    "analysis": lambda D: _fit(problems.picture(D, 0), analysis="auto", noise_std="learn"),
    "posterior used": _used,
    "checkpoint, resume, save, load": _checkpointed,
    "Ctrl-C": _interrupted,
    "SBLRegressor": _regressor,
}


# --- the run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A part of the run.

    Attributes
    ----------
    seconds : float
        When it ended, since the end of the warm-up.
    rounds, fits : int
        Done in it.
    same : int
        Fits in it whose result is that of the first round, bit for bit.
    differing : tuple of str
        Kinds whose result is another.
    resident_mb : float
        Resident memory after a round and a collection of garbage, the mean over its rounds.
    open_files, threads : int
        Largest numbers after a round.
    round_seconds : float
        Median time of a round.
    nrmse : float
        Median over the kinds of the relative error in percent.
    """

    seconds: float
    rounds: int
    fits: int
    same: int
    differing: tuple[str, ...]
    resident_mb: float
    open_files: int
    threads: int
    round_seconds: float
    nrmse: float


def run(
    seconds: float, windows: int, size: int, kinds: Sequence[str], warm_up_rounds: int = WARM_UP_ROUNDS
) -> list[Window]:
    """Fit problems of all kinds, round after round; every window has a round at least.

    Parameters
    ----------
    seconds : float
        Length of the run without the warm-up.
    windows : int
        Parts to report on.
    size : int
        D of the problems.
    kinds : sequence of str
        Names in `KINDS`.
    warm_up_rounds : int
        Rounds before; the first of them says what the results are to be.
    """
    first = _round(size, kinds)
    for _ in range(warm_up_rounds - 1):
        _round(size, kinds)
    start = time.perf_counter()
    found = []
    for window in range(1, windows + 1):
        times: list[float] = []
        resident, files, tasks, errors = [], [], [], []
        same, differing = 0, set()
        while not times or time.perf_counter() - start < seconds * window / windows:
            began = time.perf_counter()
            results = _round(size, kinds)
            times.append(time.perf_counter() - began)
            changed = {kind for kind, result in results.items() if result != first[kind]}
            differing |= changed
            same += len(results) - len(changed)
            errors += [error for _, error in results.values()]
            del results
            gc.collect()
            resident.append(resident_mb())
            files.append(open_files())
            tasks.append(threads())
        found.append(
            Window(
                time.perf_counter() - start,
                len(times),
                len(times) * len(kinds),
                same,
                tuple(sorted(differing)),
                fmean(resident),
                max(files),
                max(tasks),
                median(times),
                median(errors),
            )
        )
    return found


def _round(size: int, kinds: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Fit each kind once and return fingerprints and errors."""
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        for name in kinds:
            fitted = KINDS[name](size)
            results[name] = (fitted.fingerprint, fitted.nrmse)
    return results


@functools.lru_cache(maxsize=1)
def run_in_fresh_process(
    seconds: float, windows: int, size: int, kinds: tuple[str, ...], warm_up_rounds: int
) -> list[Window]:
    """Run in a new Python process and return what it measured, which is kept: the cells of a run share it."""
    request = {"seconds": seconds, "windows": windows, "size": size, "kinds": kinds}
    found = ask_fresh_process(__name__, request | {"warm_up_rounds": warm_up_rounds})
    return [Window(**window) for window in found]


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of a straight line through points and its standard error; NaN below three points.

    Examples
    --------
    >>> import numpy as np
    >>> slope, error = line(np.arange(5.0), 2 * np.arange(5.0) + 1)
    >>> round(slope, 6), round(error, 6)
    (2.0, 0.0)
    """
    if x.size < 3 or np.ptp(x) == 0:
        return math.nan, math.nan
    centred = x - x.mean()
    energy = float(centred @ centred)
    slope = float(centred @ y) / energy
    residual = y - y.mean() - slope * centred
    return slope, math.sqrt(float(residual @ residual) / (x.size - 2) / energy)


class Endurance(Study):
    """Memory, open files, threads, time and results of a process that fits for half an hour."""

    name = "endurance"
    summary = "growth and drift of a process that fits for half an hour"
    how = (
        f"One process fits {len(KINDS)} kinds of problems over and over, each from fixed seeds, for as long "
        "as the time limit of a fit (`--time-limit`, half an hour by default), after "
        f"{WARM_UP_ROUNDS} rounds to warm up. D = {SIZE} for fast products, less for matrices. The kinds: "
        f"{'; '.join(KINDS)}. After every round garbage is collected and the resident memory, the open files "
        f"and the threads are noted; a row of the results is one of {WINDOWS} equal parts of the run, with "
        "means of the memory. Every result (means, variances, precisions, noise, and what else the kind "
        "computes) is compared with that of the first round bit for bit. The growth is the slope of a "
        "straight line through the memory of the parts, with its standard error."
    )
    setting_columns = ("minutes", "part")
    figures = ("at_minutes", "rounds", "fits", "same", "resident_mb", "open_files", "threads")

    def cells(self, options: Options) -> list[Cell]:
        """Take the parts of one run."""
        minutes = min(QUICK_SECONDS, options.time_limit) / 60 if options.quick else options.time_limit / 60
        parts = range(1, (QUICK_WINDOWS if options.quick else WINDOWS) + 1)
        settings: list[dict[str, Value]] = [{"minutes": minutes, "part": part} for part in parts]
        return grid(settings, ("all kinds",), 1)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Run all of it for the first part, and look the others up."""
        if any(row.measurement.note.startswith(FAILED) for row in earlier):
            raise Skipped("the run failed")
        seconds, kinds = 60 * float(cell.setting["minutes"]), tuple(KINDS)
        if options.quick:
            run = run_in_fresh_process(seconds, QUICK_WINDOWS, QUICK_SIZE, kinds[::QUICK_EVERY], 1)
        else:
            run = run_in_fresh_process(seconds, WINDOWS, SIZE, kinds, WARM_UP_ROUNDS)
        window = run[int(cell.setting["part"]) - 1]
        figures = {name: asdict(window)[name] for name in self.figures if name != "at_minutes"}
        return Measurement(
            seconds=window.round_seconds,
            nrmse=window.nrmse,
            reached=not window.differing,
            note=f"not as in the first round: {'; '.join(window.differing)}" if window.differing else "",
            figures={"at_minutes": window.seconds / 60} | figures,
        )

    def report(self, rows: Rows) -> Report:
        """Compare the ends of the run, and fit a line through its memory."""
        known = Rows(row for row in rows if not math.isnan(row.measurement["resident_mb"]))
        quarter = max(1, len(known) // 4)
        first, last = Rows(known[:quarter]), Rows(known[-quarter:])
        minutes, memory = (
            np.array([row.measurement[name] for row in known]) for name in ("at_minutes", "resident_mb")
        )
        slope, error = line(minutes / 60, memory)
        share = math.nan
        if len(known) >= 3:
            rise = slope * float(np.ptp(minutes)) / 60
            if math.isnan(slope):  # the clock stood still
                rise = last.median("resident_mb") - first.median("resident_mb")
            share = rise / first.median("resident_mb")
        totals = {
            name: sum(row.measurement[name] for row in known) if known else math.nan
            for name in ("rounds", "fits", "same")
        }
        names = {
            "resident memory": ("resident_mb", " MB"),
            "open files": ("open_files", ""),
            "threads": ("threads", ""),
            "time of a round": ("seconds", " s"),
        }
        lines = [
            [what, *(number(part.median(name), unit) for part in (first, last))]
            for what, (name, unit) in names.items()
        ]
        whole = Table(
            "The run:",
            ["rounds", "fits", "as in the first round", "growth of the memory"],
            [[*(f"{value:.0f}" for value in totals.values()), f"{slope:.3g} ± {error:.2g} MB / hour"]],
        )
        ends = Table("Medians over its first and its last quarter:", ["", "first", "last"], lines)
        plot = Plot(
            {"resident memory": (minutes.tolist(), memory.tolist())},
            "minutes",
            "MB",
            "fits of all kinds, over and over",
            log_x=False,
            log_y=False,
            from_zero=True,
        )
        return Report([whole, ends], _checks(totals, slope, error, share, first, last), plot)


def _checks(
    totals: dict[str, float], slope: float, error: float, share: float, first: Rows, last: Rows
) -> list[Check]:
    measured = not math.isnan(totals["fits"])
    holds: bool | None = None
    if not math.isnan(share):
        holds = share <= TOLERATED_GROWTH or slope <= 2 * error
    kept = {name: (first.median(name), last.median(name)) for name in ("open_files", "threads")}
    return [
        Check(
            "fits whose result differs from that of the first round",
            "0",
            f"{totals['fits'] - totals['same']:.0f} of {totals['fits']:.0f}" if measured else "–",
            totals["same"] == totals["fits"] if measured else None,
        ),
        Check(
            "growth of the resident memory over the run",
            f"<= {100 * TOLERATED_GROWTH:g} %, or within two standard errors of 0",
            f"{100 * share:.2g} %" if holds is not None else "–",
            holds,
        ),
        Check(
            "open files and threads, last against first quarter",
            "no more",
            ", ".join(f"{number(after)} against {number(before)}" for before, after in kept.values()),
            all(after <= before for before, after in kept.values()) if measured else None,
        ),
    ]


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    json.dump([asdict(window) for window in run(**request)], sys.stdout)
