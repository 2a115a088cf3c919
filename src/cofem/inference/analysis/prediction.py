r"""The noise, and the density of data, from predictions of what a fit has not seen.

In pictures the error at data that were held out is mostly the posterior's own spread: at an edge it is large,
in the sky it is the noise. So the noise is one under which they are likely, each with the variance
:math:`v_i` of its own prediction:

.. math:: L(\sigma^2) = \sum_{i \in H} \log t_K(y_i; \varphi_i^H\mu, \sigma^2 + v_i).

Variances come from K draws, hence Student's distribution in place of the normal one. Where predictions are so
uncertain that any small noise would do, the largest one that is nearly as likely as the best is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofem._arrays import Array, is_complex, squared_modulus, to_numpy
from cofem.inference.base import State
from cofem.inference.prediction import MOST_DRAWS, Errors
from cofem.inference.problem import Problem
from cofem.operators import Operator

#: Noise levels that are tried, relative to the data.
LEVELS = np.geomspace(1e-4, 1.0, 121)
#: How much less likely than the best noise a larger one may be, in nats.
NEARLY = 0.5
#: Data from which on that holds; of fewer, less: one standard error of a few is half of the noise.
ENOUGH = 100
#: How far the noise moves towards what was found in a step, in logarithms.
PACE = 0.5


@dataclass(frozen=True, eq=False)
class FromPredictions:
    """The noise under which data that were held out are likely.

    Parameters
    ----------
    phi : Operator
        Rows that were held out, shape (H, D).
    y : array of shape (H,) or (L, H)
        Their data.
    """

    phi: Operator
    y: Array

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        found = self.noise_var(problem, state)
        return float(np.exp((1 - PACE) * np.log(problem.noise_var) + PACE * np.log(found)))

    def noise_var(self, problem: Problem, state: State) -> float:
        """Return the largest noise variance that is nearly as likely as the best one."""
        errors = self._errors(state)
        nearly = NEARLY * min(1.0, errors.squares.size / ENOUGH)
        levels = LEVELS**2 * float(np.mean(to_numpy(squared_modulus(problem.y))))
        likelihood = np.array([float(np.sum(errors.log_densities(level))) for level in levels])
        return float(levels[np.flatnonzero(likelihood >= likelihood.max() - nearly)[-1]])

    def log_densities(self, problem: Problem, state: State) -> np.ndarray:
        """Return the log density of each datum that was held out, in nats, in scaled units."""
        return self._errors(state).log_densities(problem.noise_var).ravel()

    def _errors(self, state: State) -> Errors:
        squares = to_numpy(squared_modulus(self.y - self.phi.forward(state.mean))).astype(np.float64)
        spread = to_numpy(state.carry.predicted).astype(np.float64)
        return Errors(
            squares,
            spread,
            float(np.clip(state.carry.draws or MOST_DRAWS, 4.0, MOST_DRAWS)),
            is_complex(self.y),
        )
