r"""How the noise follows from where a fit stands.

With fewer data than coefficients, the evidence cannot tell noise from many small coefficients: each
precision is fitted to the very data that the noise is then judged by, and both EM's and MacKay's update
drift to a noise far too small. What the fit has not seen does not lie: a part of the data is held out, and

.. math:: \sigma^2 = \frac1{|H|}\sum_{i \in H} |y_i - \phi_i^H \mu|^2 - \frac1{|H|}\sum_{i \in H}
          \phi_i^H \Sigma \phi_i

is the noise, whatever the fit has made of the rest. It may fall at any time as the fit improves, and rises
only when the fit has settled. The last fit uses all data again, at the noise that was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np

from cofem._arrays import (
    Array,
    average,
    inner,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    squared_modulus,
    to_numpy,
    total,
)
from cofem._blocks import blocks, vectors_at_once
from cofem.inference.base import State
from cofem.inference.problem import Problem
from cofem.linalg.build import build_system
from cofem.linalg.direct import DirectSystem, is_small
from cofem.operators import Operator

#: Part of the held-out error that the posterior's spread may explain. While coefficients are still on their
#: way to zero their variances are far too large, and would explain all of it. And where a fit ends as soon as
#: the noise has settled, with larger ones.
MOST_SPREAD, MOST_SPREAD_EARLY = 0.3, 0.25
#: Rise of the noise variance in a step, where it may rise before the fit has settled.
FASTEST_RISE = 2.0
#: Held-out data from which on their median says something, the median of the square of a normal number (real,
#: complex) of variance 1, and the ratio of what the median says to the mean below which a few are far off. Of
#: normal errors that are real, the ratio is below in 4.9 % of draws of 20, 1.6 % of 40, 0.06 % of 100.
ENOUGH_FOR_MEDIAN, MEDIAN_OF_SQUARES, HEAVY_TAILS = 20, (0.4549, 0.6931), 0.5
#: Tolerance of the linear system for the posterior's spread, and its most steps.
SPREAD_TOL, SPREAD_STEPS = 0.1, 400
#: Share of noise in the variance of the data up to which signals are strong, and data from which on these are
#: judged without a factor: of 21 spectra, whose columns are much alike, the diagonal chose the wrong prior.
STRONG, MANY = 0.01, 100
#: Smaller side of a Phi that is not stored up to which variances of predictions are exact.
EXACT_SIDE = 256
#: Noise relative to the data below which the working precision sees none.
LEAST = {"float64": 1e-6, "float32": 1e-4}


class NoiseRule(Protocol):
    """How the noise follows from where a fit stands."""

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step; `settled` tells that the fit changes no more."""


class FromEvidence:
    """MacKay's update ``||y - Phi mean||^2 / (N - gamma)``, good where data are plenty."""

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        # With a constraint, too: gamma is the freedom of the Gaussian before it, and so must be the misfit.
        misfit = problem.y - problem.phi.forward(state.mean)
        gamma = total(1 - state.alpha * state.variance)
        freedom = problem.n_tasks * max(problem.n_rows - gamma, 0.1 * problem.n_rows)
        return total(squared_modulus(misfit)) / freedom


@dataclass(frozen=True, eq=False)
class FromHeldOut:
    """The error at data that the fit has not seen, less what the posterior's spread explains of it.

    Parameters
    ----------
    phi : Operator
        Rows of the dictionary that were held out, shape (H, D).
    y : array of shape (H,) or (L, H)
        Their data.
    column_energy : array of shape (D,)
        Squared norms of the columns of these rows.
    local : bool
        Whether columns act on few data each, so that the error of most data counts. Elsewhere errors that
        are far off are what the model cannot explain, and count as noise: for the photograph of the demo
        the median says 0.015, and the fit follows it from 25.1 to 24.1 dB.
    most_spread : float
        Part of the error that the posterior's spread may explain.
    orthonormal : bool
        Whether the rows of the dictionary are orthonormal up to scale, those that were held out among them.
    follows : bool
        Whether the noise may rise before the fit has settled.
    most : float
        Largest noise variance that may be found, where another fit has predicted these data so well.
    """

    phi: Operator
    y: Array
    column_energy: Array
    local: bool = False
    most_spread: float = MOST_SPREAD
    orthonormal: bool = False
    follows: bool = False
    most: float = np.inf

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        error = self._error(problem.point(state.mean, state.variance))
        if problem.nonnegative:
            # Means of coefficients that are cut off at zero one by one add up to too much where columns are
            # alike; those of the Gaussian before do not.
            error = min(error, self._error(state.mean))
        found = self.less_spread(error, self._spread(problem, state, settled))
        # Predictions that are worse than none say nothing about the noise.
        found = min(found, average(squared_modulus(self.y)), self.most)
        # A fit that has not found the signal yet takes it for noise, and would then never find it.
        if self.follows:
            return min(found, FASTEST_RISE * problem.noise_var)
        return found if settled else min(found, problem.noise_var)

    def less_spread(self, error: float, spread: float) -> float:
        """Return a mean squared error less what the spread explains of it.

        A spread that is larger than the error says nothing. Small coefficients take up the noise of the data
        that they were fitted to; at other rows that adds to the error, but less where rows are orthonormal.
        """
        unknown = self.orthonormal and spread >= error
        share = MOST_SPREAD_EARLY if unknown else self.most_spread
        return error - min(spread, share * error)

    def _spread(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the mean of ``phi_i^H Sigma phi_i`` over the rows that were held out."""
        # Rows that were not fitted are in no special relation to Sigma, so its diagonal is enough.
        spread = inner(state.variance, self.column_energy) / self.y.shape[-1]
        if not self.local or state.alpha.ndim > 1:
            return spread
        # But neighbours on a grid share what a datum says, so that their errors cancel in the next one: on a
        # 2-D blur of width 1.4 the diagonal says 3 times too much, and the noise was 0.89 of the truth.
        if settled:
            return min(spread, self._probed_spread(problem, state))
        # A row that would have the share h in its own fit has the spread noise_var h / (1 - h) without it.
        share = min(max(total(1 - state.alpha * state.variance) / problem.n_rows, 0.0), 0.999)
        return min(spread, problem.noise_var * share / (1 - share))

    def _probed_spread(self, problem: Problem, state: State) -> float:
        """Return that mean from one linear system, for the rows with random signs; always the same ones."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(1, self.y.shape[-1]))
        signs = on_device_of(self.y, signs.astype(precision_of(self.y)))
        rows = self.phi.adjoint(namespace(self.y).astype(signs, self.y.dtype))
        system = build_system(problem.phi, state.alpha, problem.noise_var)
        tol = system.probe_tolerance(SPREAD_TOL)
        solved = system.solve(b=namespace(rows).asarray(rows, copy=True), tol=tol, max_iter=SPREAD_STEPS)
        return inner(rows, solved.x) / self.y.shape[-1]

    def judge(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """Return the squared errors, and the variances of predictions as far as the diagonal tells."""
        spread = spread_of(self.phi, state.variance)
        squares = self.squares(problem, state)
        # As much of it as counts for the noise.
        least = self.most_spread * float(np.mean(squares)) / max(float(np.mean(spread)), 1e-300)
        return {"squares": squares, "spread": min(1.0, least) * spread}

    def judge_exactly(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """Return the squared errors and the variances of predictions, exact ones where that costs little.

        Of many data and strong signals the diagonal is enough: what is left of the spread are coefficients on
        their way to zero.
        """
        operator = problem.phi.operator
        cheap = operator.stored_matrix() is not None or min(operator.shape) <= EXACT_SIDE
        strong = problem.noise_var < STRONG * average(squared_modulus(problem.y))
        strong = strong and problem.n_rows >= MANY
        if strong or not (isinstance(problem.y, np.ndarray) and is_small(operator) and cheap):
            spread = spread_of(self.phi, state.variance)
        else:
            system = DirectSystem(operator, state.alpha.astype(np.float64), problem.noise_var)
            at_once = vectors_at_once(operator.shape[1])
            parts = blocks(self.phi.shape[0], at_once)
            rows = (self.phi.rows(np.arange(part.start, part.stop)) for part in parts)
            spread = np.concatenate([system.variance(part) for part in rows])
        return {"squares": self.squares(problem, state), "spread": spread}

    def squares(self, problem: Problem, state: State) -> np.ndarray:
        """Return the squared errors of the predictions, shape (H,) or (L, H)."""
        points = [problem.point(state.mean, state.variance)]
        points += [state.mean] if problem.nonnegative else []
        found = [to_numpy(squared_modulus(self.y - self.phi.forward(point))) for point in points]
        return min((errors.astype(np.float64) for errors in found), key=np.mean)

    def _error(self, point: Array) -> float:
        misfit = self.y - self.phi.forward(point)
        return error_of_most(misfit) if self.local else average(squared_modulus(misfit))


def spread_of(rows: Operator, variance: Array) -> np.ndarray:
    """Return variances of predictions from those of the coefficients alone, shape (H,).

    Rows that were not fitted are in no special relation to the other entries of Sigma. Where squares of the
    rows are not to be had, all get the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> spread_of(Dense([[1.0, 2.0]]), np.array([0.5, 1.0])).tolist()
    [4.5]
    """
    squared = rows.abs2()
    if squared is not None:
        return np.maximum(to_numpy(squared.forward(variance)).astype(np.float64), 0.0)
    energy = to_numpy(rows.column_norms()).astype(np.float64) ** 2
    return np.full(rows.shape[0], float(energy @ to_numpy(variance)) / rows.shape[0])


def error_of_most(misfit: Array) -> float:
    """Return the mean squared error, or that of most data if a few are far off.

    Where columns act on few data each (a decay, a blur), a datum that was held out may be the very one that
    tells whether a spike came before or after it. The error there is the spike, however small the noise;
    elsewhere it is the noise. The median tells them apart.

    Examples
    --------
    >>> import numpy as np
    >>> errors = np.random.default_rng(0).standard_normal(400)
    >>> errors[::40] = 50.0
    >>> bool(np.mean(errors**2) > 60), bool(0.8 < error_of_most(errors) < 1.2)
    (True, True)
    """
    power = to_numpy(squared_modulus(misfit)).astype(np.float64).ravel()
    mean = float(np.mean(power))
    if power.size < ENOUGH_FOR_MEDIAN:
        return mean
    of_most = float(np.median(power)) / MEDIAN_OF_SQUARES[is_complex(misfit)]
    return of_most if of_most < HEAVY_TAILS * mean else mean


def middle(said: Sequence[float], squares: int) -> float:
    """Return the median of what parts say, each from so many squares, less its bias.

    The median of mean squares is below their mean: of ten parts of ten real data by 5.5 %, of three by 3.7 %.

    Examples
    --------
    >>> import numpy as np
    >>> draws = np.random.default_rng(0).chisquare(10, (4000, 10)) / 10
    >>> bool(abs(np.mean([middle(said, 10) for said in draws.tolist()]) - 1) < 0.01)
    True
    """
    half = -(-len(said) // 2)
    # Not NumPy's median, which takes 50 us.
    return median(said) / (1 - 2 / (3 * max(squares, 1)) * (1 - 1 / half))


def least_noise(problem: Problem) -> float:
    """Return the noise variance below which the working precision sees none."""
    power = average(squared_modulus(problem.y))
    return LEAST[precision_of(problem.y)] ** 2 * power or 1e-300


class Bounded(NamedTuple):
    """Another rule, and the least noise variance that it may set.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Identity
    >>> from cofem.operators.dictionary import Dictionary
    >>> problem = Problem(Dictionary(Identity(2), like=np.zeros(1)), np.ones(2), 1.0)
    >>> Bounded(lambda problem, state, settled: 0.0, least_noise(problem))(problem, None, True) > 0
    True
    """

    rule: NoiseRule
    least: float

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        return max(self.rule(problem, state, settled), self.least)
