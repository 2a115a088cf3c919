"""The one outer loop: history, stop rule, callbacks, progress."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cofem._arrays import as_rows, inner, namespace, transposed
from cofem.inference.base import Info, Method, State
from cofem.inference.noise import NoiseRule, least_noise
from cofem.inference.problem import Problem
from cofem.linalg.cg import weighted_energy
from cofem.status import Status, StatusCode

Array = Any
logger = logging.getLogger("cofem")

#: Relative change of the prior standard deviations in a step that a fit may stop with.
PRIOR_CHANGE = 0.1
#: Variance that the posterior adds to a prediction, relative to the noise, at which a fit may stop: the
#: NRMSE was smallest where it was 0.5 to 3 (dense and DCT, f = 2 to 5); further up, intervals are too wide.
SPREAD = 2.0
#: Its relative change in a step at which it counts as settled where it is.
SPREAD_CHANGE = 0.03
#: Relative change of the noise variance in a step below which it counts as settled.
NOISE_SETTLED = 0.02


@dataclass(frozen=True)
class Snapshot:
    """What a callback sees after each outer step, in the user's units."""

    iteration: int
    elapsed: float
    applications: float
    change: float
    _problem: Problem
    _state: State

    @property
    def mean(self) -> Array:
        """Posterior mean, shape (D,), or (D, L) for L tasks."""
        point = self._problem.point(self._state.mean, self._state.variance)
        return transposed(point) * self._problem.units.coefficient

    @property
    def variance(self) -> Array:
        """Posterior variances, shape (D,)."""
        return self._state.variance * self._problem.units.coefficient**2

    @property
    def alpha(self) -> Array:
        """Prior precisions, shape (D,)."""
        return self._state.alpha / self._problem.units.coefficient**2

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise."""
        return self._problem.noise_var**0.5 * self._problem.units.data


Callback = Callable[[Snapshot], bool | None]


@dataclass(frozen=True)
class Outcome:
    """The last good state, the history and how the run ended."""

    problem: Problem
    state: State
    history: dict[str, np.ndarray]
    status: Status
    #: Whether the result itself is in doubt, as opposed to trouble that was overcome on the way.
    doubtful: bool


def run(
    problem: Problem,
    method: Method,
    state: State,
    *,
    rng: np.random.Generator,
    max_iter: int,
    tol: float | None,
    callbacks: list[Callback],
    noise: NoiseRule | None = None,
) -> Outcome:
    """Step `method` until the mean settles, a callback stops it or the steps run out.

    With a `noise` rule the noise is set anew after every step, and must settle as well.
    """
    start = time.perf_counter()
    history: dict[str, list[float | str]] = defaultdict(list)
    decisions: dict[str, str] = {}
    troubles: Counter[str] = Counter()
    status: Status | None = None
    before = 0.0

    for iteration in range(1, max_iter + 1):
        accelerates = state.trail is not None
        new, info = method.step(problem, state, rng)
        accelerates = accelerates or new.trail is not None
        if info.end is StatusCode.FAILED or not _is_finite(new):
            if state.mean is None:
                raise FloatingPointError("Phi gave values that are not finite in the first step; check it")
            reason = info.message or "it gave values that are not finite; check the operator, or use float64"
            status = Status(StatusCode.FAILED, f"step {iteration} failed and was undone: {reason}")
            break
        size, change = _change(problem, new, state)
        limit = _tolerance(problem, method, size) if tol is None else tol
        # An inexact E-step may leave the mean alone while alpha still moves, so both must have settled.
        # Extrapolated steps alternate with plain ones, which are shorter: both must be short.
        calm = change <= limit and before <= limit
        before = change if accelerates else 0.0
        settled = calm and _prior_change(new, state, problem.column_energy) <= max(100 * limit, PRIOR_CHANGE)
        if settled and tol is None and method.noise_tol > 0:
            settled = _spread_settled(problem, new, state)
        state = new
        decisions |= info.notes
        if info.trouble:
            troubles[info.trouble] += 1
        snapshot = Snapshot(
            iteration, time.perf_counter() - start, problem.phi.applications, change, problem, state
        )
        _record(history, snapshot, info)
        logger.debug("%s step %d: change %.3g, %s", method.name, iteration, change, info)
        if noise is not None:
            problem, state, quiet = _renew_noise(problem, state, noise, settled)
            settled = settled and quiet
        status = _judge(snapshot, info, settled and not method.stops_itself, limit, callbacks)
        if status is not None:
            break
    else:
        status = Status(
            StatusCode.MAX_ITER,
            f"stopped after max_iter={max_iter} steps; the mean still changed by {change:.2g} "
            f"(tol={limit:.2g}). Raise max_iter to go on",
        )
    assert status is not None
    if status.code is not StatusCode.FAILED:
        state, last = method.finish(problem, state, status.code, rng)
        if last.end is not None:
            status = Status(last.end, last.message)
        if last.trouble:
            troubles[last.trouble] += 1
            info = last
    doubtful = bool(info.trouble) or status.code in (StatusCode.DIVERGED, StatusCode.FAILED)
    notes = [f"{text} (in {count} of {iteration} steps)" for text, count in troubles.items()]
    status = Status(status.code, status.message, (*notes, *decisions.values()))
    logger.info("%s: %s", method.name, status)
    arrays = {name: np.asarray(values) for name, values in history.items()}
    return Outcome(problem, state, arrays, status, doubtful)


def _renew_noise(
    problem: Problem, state: State, noise: NoiseRule, settled: bool
) -> tuple[Problem, State, bool]:
    """Set the noise anew; steps before a large change are no ground to extrapolate from."""
    noise_var = max(noise(problem, state, settled), least_noise(problem))
    ratio = noise_var / problem.noise_var
    if not np.isfinite(ratio):
        return problem, state, True
    near = abs(np.log(ratio)) < NOISE_SETTLED
    return problem.with_noise(noise_var), state if near else replace(state, trail=None), near


def _judge(
    snapshot: Snapshot, info: Info, settled: bool, tol: float, callbacks: list[Callback]
) -> Status | None:
    """Decide whether the run ends here. Every callback sees every step."""
    answers = [callback(snapshot) for callback in callbacks]
    if info.end is not None:
        return Status(info.end, info.message)
    if any(answers):
        return Status(StatusCode.STOPPED, f"a callback stopped the fit at step {snapshot.iteration}")
    if settled:
        return Status(
            StatusCode.CONVERGED,
            f"the mean changed by {snapshot.change:.2g} (tol={tol:.2g}) at step {snapshot.iteration}",
        )
    return None


def _record(history: dict[str, list[float | str]], snapshot: Snapshot, info: Info) -> None:
    for name in ("iteration", "elapsed", "applications", "change", "noise_std"):
        history[name].append(getattr(snapshot, name))
    history["cg_iterations"].append(info.cg_iterations)
    for name, value in info.figures.items():
        history[name].append(value)


def _change(problem: Problem, new: State, old: State) -> tuple[float, float]:
    """Norm of the mean and its relative change, coefficients weighted by their columns' norms.

    The weights make both independent of the units of each column, as the model itself is.
    """
    mean, column_energy = problem.point(new.mean, new.variance), problem.column_energy
    size = _norm(mean, column_energy)
    if old.mean is None:
        return size, np.inf
    difference = _norm(mean - problem.point(old.mean, old.variance), column_energy)
    return size, difference / size if size > 0 else (0.0 if difference == 0 else np.inf)


def _tolerance(problem: Problem, method: Method, size: float) -> float:
    """Relative change at which to stop: the method's own, or a small part of the noise if that is more."""
    noise = (math.prod(problem.y.shape) * problem.noise_var) ** 0.5
    # Where the mean is as small as the noise itself, the noise is no measure for it.
    return max(method.default_tol, min(method.noise_tol * noise / size, 1e-2) if size > 0 else 0.0)


def _prior_change(new: State, old: State, column_energy: Array) -> float:
    """Relative change of the prior standard deviations, weighted like the mean's."""
    deviation = new.alpha**-0.5
    size = _norm(deviation, column_energy)
    deviation -= old.alpha**-0.5
    return _norm(deviation, column_energy) / size if size > 0 else 0.0


def _spread_settled(problem: Problem, new: State, old: State) -> bool:
    """Tell whether the variances have come down to the noise, or come down no more.

    Coefficients on their way to zero have long stopped to change the mean when they still blur predictions
    at rows that were not measured: ``sum_j theta_j s_j`` is N times the variance that they add there.
    """
    spread, before = (inner(problem.column_energy, state.variance) for state in (new, old))
    small = spread <= SPREAD * problem.n_rows * problem.noise_var
    return small or abs(before - spread) <= SPREAD_CHANGE * spread


def _norm(x: Array, column_energy: Array) -> float:
    return float(np.sum(weighted_energy(as_rows(x), column_energy))) ** 0.5


def _is_finite(state: State) -> bool:
    # A sum is not finite as soon as one term is not, and needs no temporary array.
    if state.mean is None:
        return False
    xp = namespace(state.mean)
    return bool(xp.isfinite(xp.sum(state.mean))) and bool(xp.isfinite(xp.sum(state.variance)))
