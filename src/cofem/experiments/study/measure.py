"""One fit against the clock: to a target error, or to its end, within a time limit.

A fit may keep checkpoints, so that one that was interrupted goes on when it is measured again, its time and
its steps carried on. Its time then includes one more product with Phi and, if it takes longer than
`CHECKPOINT_EVERY`, a file written in every such interval. A shorter fit writes nothing unless it is
interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

import cofem
from cofem.experiments import problems
from cofem.experiments.problems import Case
from cofem.experiments.study.memory import peak_mb, reset_peak
from cofem.experiments.study.results import TIME_LIMIT, Measurement
from cofem.inference import checkpoint
from cofem.inference.record import Snapshot

#: Seconds between two checkpoints of a fit.
CHECKPOINT_EVERY = 60.0


class Kept(NamedTuple):
    """What is kept of a fit: its files, and how far it had come when they were written.

    Attributes
    ----------
    settings : dict
        For `cofem.fit`.
    log : Path or None
        File for the errors after each step, a JSON list ``[nrmse, seconds, applications]`` in each line.
    iteration : int
        Steps done.
    elapsed, applications : float
        What they had cost.
    errors : tuple of tuple
        Lines of the log, for the steps done.
    """

    settings: dict[str, Any]
    log: Path | None = None
    iteration: int = 0
    elapsed: float = 0.0
    applications: float = math.nan
    errors: tuple[tuple[float, float, float], ...] = ()


NOTHING_KEPT = Kept({})


@contextlib.contextmanager
def kept(folder: Path | str | None, *marks: Any, traced: bool = False) -> Iterator[Kept]:
    """Give a fit its files in `folder`, named after what the fit is; they stay only if it is interrupted.

    Parameters
    ----------
    folder : path or None
        Where the files are; made if need be. None to keep nothing.
    *marks : Any
        What tells the fit from others: arrays, settings, seeds.
    traced : bool
        Whether the errors after each step are kept as well.
    """
    if folder is None:
        yield NOTHING_KEPT
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256("\n".join(map(checkpoint.describe, marks)).encode()).hexdigest()[:16]
    path = Path(folder) / f"{name}.npz"
    log = path.with_suffix(".jsonl") if traced else None
    every = checkpoint.Every(CHECKPOINT_EVERY, at_end=False)
    settings = {"checkpoint": path, "checkpoint_every": every, "resume": path}
    try:
        found = _read(path, log)
    except (OSError, ValueError):  # there is none, or one of another version: the fit starts afresh
        found = NOTHING_KEPT
        _forget(path)
    if log is not None:  # steps after the last checkpoint come again
        log.write_text("".join(f"{json.dumps(error)}\n" for error in found.errors))
    try:
        yield found._replace(settings=settings, log=log)
    except Exception:
        _forget(path)
        raise
    _forget(path)


def _read(path: Path, log: Path | None) -> Kept:
    """Return how far an interrupted fit had come."""
    _, _, record = checkpoint.read(path)["current"]
    errors = []
    if log is not None:
        errors = [tuple(json.loads(line)) for line in log.read_text().splitlines()[: record.iteration]]
        if len(errors) < record.iteration:
            raise ValueError(f"{log} has {len(errors)} lines for {record.iteration} steps")
    applications = float(record.rows[record.iteration - 1]["applications"])
    return Kept({}, None, record.iteration, record.elapsed, applications, tuple(errors))


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".jsonl").unlink(missing_ok=True)


class Watch:
    """Callback that times a fit, stops it at a target or a time limit, and leaves itself out of the time.

    With ``trace=True`` it also notes the error after every step, in `errors`.

    The clock starts when the watch is made, which is to be right before the call.

    Parameters
    ----------
    case : Case
        The problem, which knows the error of a mean.
    target : float or None
        NRMSE in percent at which to stop.
    time_limit : float
        Seconds after which to stop.
    kept : Kept
        Where the fit goes on from, if it was interrupted.
    """

    def __init__(
        self,
        case: Case,
        target: float | None,
        time_limit: float,
        trace: bool = False,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        self._case = case
        self._trace = trace
        self.errors = list(kept.errors)
        self._log = kept.log
        self._target = target
        self._time_limit = time_limit
        self.reached = self.out_of_time = False
        self.nrmse = self.seconds_to_target = math.nan
        self.iterations = kept.iteration or math.nan
        self.applications = kept.applications
        self._watching = 0.0
        self._start = time.perf_counter() - kept.elapsed

    @property
    def seconds(self) -> float:
        """Time since the start, without that spent on watching."""
        return time.perf_counter() - self._start - self._watching

    def __call__(self, snapshot: Snapshot) -> bool:
        """Look at a step and tell whether to stop."""
        return self.look(snapshot.iteration, snapshot.applications, lambda: snapshot.mean)

    def look(self, iteration: int, applications: float, mean: Callable[[], np.ndarray]) -> bool:
        """Do the same for a step of any code; `mean` returns where it stands."""
        seconds, arrived = self.seconds, time.perf_counter()
        self.iterations, self.applications = iteration, applications
        if self._target is not None or self._trace:
            self.nrmse = self._case.nrmse(mean())
            self.errors.append((self.nrmse, seconds, applications))
            if self._log is not None:
                with self._log.open("a") as file:
                    file.write(f"{json.dumps(self.errors[-1])}\n")
            self.reached = self._target is not None and self.nrmse <= self._target
        self.out_of_time = not self.reached and seconds > self._time_limit
        self._watching += time.perf_counter() - arrived
        if self.reached:
            self.seconds_to_target = seconds
        return self.reached or self.out_of_time


@functools.cache
def warm_up(method: Any) -> None:
    """Fit something tiny once, so that no measurement includes what is loaded on first use."""
    case = problems.dct(256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=method, max_iter=3, rng=0)


def whole_fit(case: Case, post: cofem.Posterior, seconds: float, figures: dict[str, float]) -> Measurement:
    """Sum up a fit that ran to its end, for studies that call `cofem.fit` themselves."""
    return Measurement(
        seconds=seconds,
        applications=float(post.history["applications"][-1]),
        iterations=post.n_iter,
        nrmse=case.nrmse(post.mean),
        reached=True,
        note=f"{post.method}: {post.status.code.value}",
        figures=figures,
    )


def middle_of(run: Callable[[], Measurement], count: int) -> Measurement:
    """Repeat a short run, and return the one whose time is in the middle.

    Examples
    --------
    >>> times = iter([0.3, 0.1, 0.2])
    >>> middle_of(lambda: Measurement(seconds=next(times)), 3).seconds
    0.2
    """
    runs = [run() for _ in range(count)]
    middle = median_low(found.seconds for found in runs)
    return next(found for found in runs if found.seconds == middle)


def timed_fit(
    case: Case,
    method: Any,
    *,
    seed: int,
    target: float | None = None,
    time_limit: float = math.inf,
    checkpoints: Path | str | None = None,
    trace: list[tuple[float, float, float]] | None = None,
    **settings: Any,
) -> Measurement:
    """Fit and measure.

    Parameters
    ----------
    case : Case
        The problem.
    method : str or method object
        As for `cofem.fit`, and so are further `settings`.
    seed : int
        Seed of the fit.
    target : float, optional
        NRMSE in percent: the fit stops as soon as it is reached and what is returned is what that cost.
        Without one, the fit runs to its end.
    time_limit : float
        Seconds after which the fit is stopped, at the end of the outer step it is in.
    checkpoints : path, optional
        Folder for the checkpoint of this fit, from which it goes on if it was interrupted before.
    trace : list, optional
        Gets an NRMSE, the seconds and the applications so far after every step.
    """
    warm_up(method)
    marks = (case.y, method, seed, target, sorted(settings.items()))
    with kept(checkpoints, *marks, traced=trace is not None) as keeping, warnings.catch_warnings():
        reset_peak()
        watch = Watch(case, target, time_limit, trace=trace is not None, kept=keeping)
        # Trouble is in the status; only the last word of a run to its end matters here.
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        post = cofem.fit(
            case.Phi,
            case.y,
            noise_std=case.noise_std,
            method=method,
            rng=seed,
            callback=watch,
            **settings,
            **keeping.settings,
        )
        total = watch.seconds
    if trace is not None:
        trace += watch.errors
    seconds = watch.seconds_to_target if watch.reached else total
    note = ""
    if watch.out_of_time:
        note = f"{TIME_LIMIT} of {time_limit:g} s"
    elif not watch.reached:
        note = f"{post.method}: {post.status.code.value}"
    return Measurement(
        seconds=seconds,
        applications=watch.applications,
        iterations=watch.iterations,
        nrmse=watch.nrmse if watch.reached else case.nrmse(post.mean),
        reached=watch.reached if target is not None else not watch.out_of_time,
        peak_mb=peak_mb(),
        note=note,
    )


def traced_fit(
    case: Case,
    method: Any,
    *,
    seed: int,
    steps: int,
    time_limit: float = math.inf,
    alpha_init: float | None = None,
    checkpoints: Path | str | None = None,
) -> list[Measurement]:
    """Fit for `steps` outer steps and measure after each of them.

    Where the fit ends by itself, it stays where it is; where the time limit ends it, nothing follows.
    Parameters are those of `timed_fit`.
    """
    warm_up(method)
    marks = (case.y, method, seed, steps, alpha_init)
    with kept(checkpoints, *marks, traced=True) as keeping, warnings.catch_warnings():
        reset_peak()
        watch = Watch(case, None, time_limit, trace=True, kept=keeping)
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        cofem.fit(
            case.Phi,
            case.y,
            noise_std=case.noise_std,
            method=method,
            max_iter=steps,
            tol=0.0,
            alpha_init=alpha_init,
            rng=seed,
            callback=watch,
            **keeping.settings,
        )
    peak = peak_mb()
    rows = [
        Measurement(seconds, applications, iteration, nrmse, True, peak)
        for iteration, (nrmse, seconds, applications) in enumerate(watch.errors, 1)
    ]
    if watch.out_of_time:
        late = Measurement(note=f"{TIME_LIMIT} of {time_limit:g} s after step {len(rows)}")
        return rows + [late] * (steps - len(rows))
    return rows + rows[-1:] * (steps - len(rows))
