"""One fit against the clock: to a target error, or to its end, within a time limit."""

from __future__ import annotations

import functools
import math
import time
import warnings
from typing import Any

import cofem
from cofem.experiments import problems
from cofem.experiments.problems import Case
from cofem.experiments.study.memory import peak_mb, reset_peak
from cofem.experiments.study.results import TIME_LIMIT, Measurement
from cofem.inference.loop import Snapshot


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
    """

    def __init__(self, case: Case, target: float | None, time_limit: float, trace: bool = False) -> None:
        self._case = case
        self._trace = trace
        self.errors: list[tuple[float, float, float]] = []
        self._target = target
        self._time_limit = time_limit
        self.reached = self.out_of_time = False
        self.nrmse = self.iterations = self.applications = self.seconds_to_target = math.nan
        self._watching = 0.0
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time since the start, without that spent on watching."""
        return time.perf_counter() - self._start - self._watching

    def __call__(self, snapshot: Snapshot) -> bool:
        """Look at a step and tell whether to stop."""
        seconds, arrived = self.seconds, time.perf_counter()
        self.iterations, self.applications = snapshot.iteration, snapshot.applications
        if self._target is not None or self._trace:
            self.nrmse = self._case.nrmse(snapshot.mean)
            self.errors.append((self.nrmse, seconds, snapshot.applications))
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


def timed_fit(
    case: Case,
    method: Any,
    *,
    seed: int,
    target: float | None = None,
    time_limit: float = math.inf,
    max_iter: int | None = None,
    tol: float | None = None,
    alpha_init: float | None = None,
    **settings: Any,
) -> Measurement:
    """Fit and measure.

    Parameters
    ----------
    case : Case
        The problem.
    method : str or method object
        As for `cofem.fit`, and so are `max_iter`, `tol`, `alpha_init` and further `settings`.
    seed : int
        Seed of the fit.
    target : float, optional
        NRMSE in percent: the fit stops as soon as it is reached and what is returned is what that cost.
        Without one, the fit runs to its end.
    time_limit : float
        Seconds after which the fit is stopped, at the end of the outer step it is in.
    """
    warm_up(method)
    reset_peak()
    watch = Watch(case, target, time_limit)
    with warnings.catch_warnings():
        # Trouble is in the status; only the last word of a run to its end matters here.
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        post = cofem.fit(
            case.Phi,
            case.y,
            noise_std=case.noise_std,
            method=method,
            max_iter=max_iter,
            tol=tol,
            alpha_init=alpha_init,
            rng=seed,
            callback=watch,
            **settings,
        )
    seconds = watch.seconds_to_target if watch.reached else watch.seconds
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
) -> list[Measurement]:
    """Fit for `steps` outer steps and measure after each of them.

    Where the fit ends by itself, it stays where it is; where the time limit ends it, nothing follows.
    """
    warm_up(method)
    reset_peak()
    watch = Watch(case, None, time_limit, trace=True)
    with warnings.catch_warnings():
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
