"""When a fit has settled: the stop rules of the outer loop.

A fit may stop when all of these hold:

1. The mean changed by at most `tol` in the last step, and in the one before where steps come in pairs
   (extrapolated ones alternate with plain ones, which are shorter).
2. The prior standard deviations changed by at most 100 `tol`, or 10 % if that is more: an inexact E-step may
   leave the mean alone while alpha still moves.
3. Unless the user named a `tol`: the variance that the posterior adds to predictions is at most that of the
   noise, or changes no more. Coefficients on their way to zero have long stopped to change the mean when they
   still blur predictions at rows that were not measured. And whatever else the method asks for: in analysis
   form `tol` is a share of the posterior's spread, which must have come down first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cofem._arrays import Array, as_rows, inner, namespace, reciprocal
from cofem.inference.base import Method, State
from cofem.inference.problem import Problem
from cofem.linalg.cg import weighted_energy

#: Relative change of the prior standard deviations in a step that a fit may stop with.
PRIOR_CHANGE = 0.1
#: Variance that the posterior adds to a prediction, relative to the noise, at which a fit may stop: the
#: NRMSE was smallest where it was 0.5 to 3 (dense and DCT, f = 2 to 5); above 1, intervals are too wide.
SPREAD = 1.0
#: Its relative change in a step at which it counts as settled where it is.
SPREAD_CHANGE = 0.03
#: Relative change of the noise variance in a step below which it counts as settled.
NOISE_SETTLED = 0.02
#: Change of the mean, in units of the noise and relative to itself, at which the noise is looked at where
#: nothing else is wanted: an error of a tenth of the noise in the mean changes what is held out by 1 %.
ROUGH_SHARE, ROUGH_MOST = 0.1, 0.03
#: How many times as much the mean may change in a fit that another one goes on from, and how much at most:
#: starts then take a third of the steps, and the last errors of 16 DCT problems changed by -38 to +12 %.
LOOSE, LOOSE_MOST = 10.0, 0.01
#: Most that the noise variance rises in a step unless the mean has settled by the method's own rule: a fit
#: that has not found the signal yet takes it for noise. And the fall in a step that may be extrapolated.
FAR_RISE, SLOW_FALL = 1.3, 0.5


class Judgement(NamedTuple):
    """How far a step went, and whether the fit has settled.

    Attributes
    ----------
    change : float
        Relative change of the mean; infinite for a first step.
    limit : float
        The change that is small enough.
    before : float
        Change that must be small as well for the next step to end the run.
    unmet : str
        Which condition of the stop rule is not met, in words; "" if all are.
    firm : bool
        Whether the mean has settled by the method's own rule, where less is enough to look at the noise.
    """

    change: float
    limit: float
    before: float = 0.0
    unmet: str = "only one step was taken"
    firm: bool = True

    @property
    def settled(self) -> bool:
        """Whether the stop rule is met."""
        return not self.unmet


def judge_first(problem: Problem, method: Method, state: State, tol: float | None) -> Judgement:
    """Judge a first step, which has nothing to compare with."""
    size = _norm(problem.point(state.mean, state.variance), problem.weights)
    return Judgement(np.inf, method.tolerance(problem, state, size) if tol is None else tol)


def judge(
    problem: Problem,
    method: Method,
    states: tuple[State, State],
    tol: float | None,
    before: float,
    rough: bool = False,
    loose: bool = False,
) -> Judgement:
    """Judge a step by the stop rule.

    Parameters
    ----------
    problem, method
        What is fitted, and how.
    states : tuple of State
        The state before the step and the one after it.
    tol : float or None
        The user's tolerance.
    before : float
        `Judgement.before` of the step before.
    rough : bool
        Whether nothing but the noise is wanted: the mean alone counts, and may still change a little.
    loose : bool
        Whether another fit goes on from there, so that the mean may still change a little.
    """
    old, new = states
    size, change = change_of_mean(problem, new, old)
    limit = method.tolerance(problem, new, size) if tol is None else tol
    if loose and tol is None:
        limit = max(limit, min(LOOSE * limit, LOOSE_MOST))
    paired = old.previous_alpha is not None or new.previous_alpha is not None
    following = change if paired else 0.0
    early = method.too_early(new)
    if early:
        return Judgement(change, limit, following, early, firm=False)
    if rough:
        firm, limit = max(change, before) <= limit, max(limit, rough_limit(problem, size))
        return Judgement(change, limit, following, _mean_unmet(change, before, limit), firm)
    return Judgement(change, limit, following, _unmet(problem, method, states, tol, (change, before, limit)))


def _unmet(
    problem: Problem,
    method: Method,
    states: tuple[State, State],
    tol: float | None,
    changes: tuple[float, float, float],
) -> str:
    """Say which condition is not met; the changes are the last one, the one before and the limit."""
    (old, new), (change, before, limit) = states, changes
    moves = _mean_unmet(change, before, limit)
    if moves:
        return moves
    allowed = max(100 * limit, PRIOR_CHANGE)
    moved = change_of_prior(new, old, problem.prior_weights)
    if moved > allowed:
        return f"the prior standard deviations still changed by {moved:.2g} in a step ({allowed:.2g} allowed)"
    if tol is None and method.noise_tol > 0 and not spread_settled(problem, new, old):
        return "the variance of predictions is above the noise and still falls"
    return method.unsettled(new) if tol is None else ""


def _mean_unmet(change: float, before: float, limit: float) -> str:
    largest = max(change, before)
    return f"the mean still changed by {largest:.2g} in a step (tol={limit:.2g})" if largest > limit else ""


def rough_limit(problem: Problem, size: float) -> float:
    """Return the relative change of the mean at which the noise may be looked at; `size` is its norm."""
    noise = (math.prod(problem.y.shape) * problem.noise_var) ** 0.5
    return min(ROUGH_SHARE * noise / size, ROUGH_MOST) if size > 0 else 0.0


def change_of_mean(problem: Problem, new: State, old: State) -> tuple[float, float]:
    """Norm of the mean and its relative change, coefficients weighted by their columns' norms.

    The weights make both independent of the units of each column, as the model itself is. Of several fits
    side by side the one in the middle counts: what is wanted of them is what most of them say, and one that
    does not find its signal may go on for long.
    """
    mean, energy = problem.point(new.mean, new.variance), problem.weights
    moved = mean - problem.point(old.mean, old.variance)
    if problem.n_fits == 1:
        size, difference = _norm(mean, energy), _norm(moved, energy)
        return size, difference / size if size > 0 else (0.0 if difference == 0 else np.inf)
    count = problem.n_fits
    mean, moved, energy = (array.reshape(count, -1) for array in (mean, moved, energy))
    sizes, differences = (np.sqrt(weighted_energy(array, energy)) for array in (mean, moved))
    changes = differences / np.maximum(sizes, np.finfo(float).tiny)
    middle = np.argsort(changes)[count // 2]
    return count**0.5 * float(sizes[middle]), float(changes[middle])


def change_of_prior(new: State, old: State, weights: Iterable[tuple[slice, Array | float]]) -> float:
    """Relative change of the prior standard deviations, weighted like the mean's, part by part."""
    xp = namespace(new.alpha)
    size = moved = 0.0
    for part, weight in weights:
        deviation = reciprocal(xp.sqrt(new.alpha[part]))
        size += _norm(deviation, weight) ** 2
        deviation -= reciprocal(xp.sqrt(old.alpha[part]))
        moved += _norm(deviation, weight) ** 2
    return (moved / size) ** 0.5 if size > 0 else 0.0


def spread_settled(problem: Problem, new: State, old: State) -> bool:
    """Tell whether the variances have come down to the noise, or come down no more.

    ``sum_j ||phi_j||^2 s_j`` is N times the variance that they add to predictions at rows that were not
    measured.
    """
    spread, before = (inner(problem.phi.column_energy, state.variance) for state in (new, old))
    small = spread <= SPREAD * problem.n_rows * problem.noise_var
    return small or abs(before - spread) <= SPREAD_CHANGE * spread


class NoiseChange(NamedTuple):
    """What a change of the noise means for the steps that follow.

    Attributes
    ----------
    ratio : float
        The noise variance over that of the step before.
    rough : bool
        Whether nothing but the noise is wanted.

    Examples
    --------
    >>> NoiseChange(1.03, rough=False).steady, NoiseChange(1.03, rough=True).steady
    (False, True)
    """

    ratio: float
    rough: bool

    @property
    def settled(self) -> bool:
        """Whether the noise has settled."""
        return abs(math.log(self.ratio)) < NOISE_SETTLED

    @property
    def steady(self) -> bool:
        """Whether steps before and after it may be extrapolated from: it is small, or one that goes on."""
        return self.settled or (self.rough and SLOW_FALL < self.ratio <= FAR_RISE)

    @property
    def rises_far(self) -> bool:
        """Whether it is a rise that takes several steps unless the mean has settled by the method's rule."""
        return self.rough and self.ratio > FAR_RISE


def _norm(x: Array, weights: Array | float) -> float:
    return float(weighted_energy(as_rows(x), weights).sum()) ** 0.5
