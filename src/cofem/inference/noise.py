r"""Learning the noise level.

With fewer data than coefficients, the evidence cannot tell noise from many small coefficients: each
precision is fitted to the very data that the noise is then judged by, and both EM's and MacKay's update
drift to a noise far too small. What the fit has not seen does not lie: a part of the data is held out, and

.. math:: \sigma^2 = \frac1{|H|}\sum_{i \in H} |y_i - \phi_i^H \mu|^2 - \frac1{|H|}\sum_{i \in H}
          \phi_i^H \Sigma \phi_i

is the noise, whatever the fit has made of the rest. It may fall at any time as the fit improves, and rises
only when the fit has settled. The last fit uses all data again, at the noise that was found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from cofem._arrays import (
    average,
    in_precision,
    inner,
    on_device_of,
    squared_modulus,
    take,
    total,
)
from cofem.inference.base import State
from cofem.inference.problem import Meter, Problem
from cofem.operators import Dense, Mask, Operator, Sparse

Array = Any

#: Data for each coefficient from which on the evidence is enough and nothing is held out.
ENOUGH_DATA = 2.0
#: Part of the data that is held out.
SHARE = 0.1
#: Held-out data wanted in all; where one part has fewer, several parts are held out in turn.
HELD_OUT_WANTED, MOST_PARTS = 200, 5
#: Part of the held-out error that the posterior's spread may explain. While coefficients are still on their
#: way to zero their variances are far too large, and would explain all of it.
MOST_SPREAD = 0.3
#: Where the noise variance starts, relative to the data; the second, if the signal was not found from there.
STARTS = (1e-3, 1e-6)
#: Noise relative to the data from which on the signal counts as not found.
NOTHING_FOUND = 0.8
#: Noise relative to the data below which the working precision sees none.
LEAST = {"float64": 1e-6, "float32": 1e-4}


class NoiseRule(Protocol):
    """How the noise follows from where a fit stands."""

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step; `settled` tells that the fit changes no more."""


@dataclass(frozen=True, eq=False)
class FromEvidence:
    """MacKay's update ``||y - Phi mean||^2 / (N - gamma)``, good where data are plenty."""

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        misfit = problem.y - problem.phi.forward(problem.point(state.mean, state.variance))
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
    """

    phi: Operator
    y: Array
    energy: Array

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        misfit = self.y - self.phi.forward(problem.point(state.mean, state.variance))
        error = average(squared_modulus(misfit))
        # Rows that were not fitted are in no special relation to Sigma, so its diagonal is enough.
        spread = inner(state.variance, self.energy) / self.y.shape[-1]
        found = error - min(spread, MOST_SPREAD * error)
        # Predictions that are worse than none say nothing about the noise.
        found = min(found, average(squared_modulus(self.y)))
        # A fit that has not found the signal yet takes it for noise, and would then never find it.
        return found if settled else min(found, problem.noise_var)


@dataclass(frozen=True, eq=False)
class Continuation:
    """A known noise that is approached from above, by half its variance a step.

    Parameters
    ----------
    noise_var : float
        The noise variance to end at.
    """

    noise_var: float

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        return max(self.noise_var, 0.5 * problem.noise_var)


class Learned(NamedTuple):
    """A noise level, where it comes from and whether a callback stopped the learning."""

    noise_var: float
    note: str
    stopped: bool


def held_out_parts(n_rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Choose the rows to hold out, one set for each fit."""
    size = max(1, round(SHARE * n_rows))
    count = min(MOST_PARTS, math.ceil(HELD_OUT_WANTED / size), n_rows // size)
    order = rng.permutation(n_rows)
    return [np.sort(order[i * size : (i + 1) * size]) for i in range(max(1, count))]


def split(problem: Problem, held_out: np.ndarray, start: float = STARTS[0]) -> tuple[Problem, FromHeldOut]:
    """Return the problem without some rows, and the rule that judges by them."""
    rest = np.setdiff1d(np.arange(problem.n_rows), held_out)
    operator = problem.phi.operator
    power = average(squared_modulus(problem.y))
    seen = Problem(
        Meter(take_rows(operator, rest)),
        take(problem.y, rest, axis=-1),
        start * power or 1.0,
        problem.units,
        problem.prior,
        problem.nonnegative,
    )
    unseen = take_rows(operator, held_out)
    energy = unseen.column_norms() ** 2
    energy = on_device_of(problem.y, energy) if isinstance(energy, np.ndarray) else energy
    energy = in_precision(energy, problem.real_dtype.name)
    return seen, FromHeldOut(unseen, take(problem.y, held_out, axis=-1), energy)


def take_rows(operator: Operator, rows: np.ndarray) -> Operator:
    """Return some rows of an operator, of its own kind where that is a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> take_rows(Dense(np.eye(3)), np.array([0, 2])).to_dense()
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    if isinstance(operator, Dense):
        return Dense(take(operator.array, rows, axis=0))
    if isinstance(operator, Sparse):
        return Sparse(operator.matrix[rows])
    factors = getattr(operator, "factors", (operator,))
    if isinstance(factors[0], Mask):
        first: Operator = Mask(factors[0].indices[rows], factors[0].shape[1])
        for factor in factors[1:]:
            first = first @ factor
        return first
    return Mask(rows, operator.shape[0]) @ operator


def least_noise(problem: Problem) -> float:
    """Return the noise variance below which the working precision sees none."""
    power = average(squared_modulus(problem.y))
    return LEAST[problem.real_dtype.name] ** 2 * power or 1e-300
