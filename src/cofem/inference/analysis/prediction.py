r"""The noise, and the density of data, from predictions of what a fit has not seen.

In pictures the error at data that were held out is mostly the posterior's own spread: at an edge it is large,
in the sky it is the noise. So the noise is the one under which they are most likely, each with the variance
of its own prediction,

.. math:: \sigma^2 = \arg\max_{\sigma^2} \sum_{i \in H} \log N(y_i; \varphi_i^H\mu, \sigma^2 + v_i).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofem._arrays import Array, is_complex, squared_modulus, to_numpy
from cofem.inference.base import State
from cofem.inference.problem import Problem
from cofem.operators import Operator

#: Squared errors, relative to their expected variance, count up to this: the data may not determine a
#: prediction at all, as that of the mean of a picture from its other frequencies.
LARGEST_ERROR = 25.0
#: Noise levels that are tried, relative to the data, and their number.
LEVELS = np.geomspace(1e-4, 1.0, 81)
#: How far the noise moves towards what was found in a step, in logarithms.
PACE = 0.5


@dataclass(frozen=True, eq=False)
class FromPredictions:
    """The noise under which data that were held out are most likely.

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
        squares, spread = self._errors(state)
        levels = LEVELS**2 * float(np.mean(to_numpy(squared_modulus(problem.y))))
        densities = [self._density(squares, spread, level) for level in levels]
        found = float(levels[int(np.argmax(densities))])
        return float(np.exp((1 - PACE) * np.log(problem.noise_var) + PACE * np.log(found)))

    def log_density(self, problem: Problem, state: State) -> float:
        """Return the mean log density of the data that were held out, in nats for each, in scaled units."""
        return self._density(*self._errors(state), problem.noise_var)

    def _errors(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        squares = to_numpy(squared_modulus(self.y - self.phi.forward(state.mean))).astype(np.float64)
        return squares, to_numpy(state.carry.predicted).astype(np.float64)

    def _density(self, squares: np.ndarray, spread: np.ndarray, noise_var: float) -> float:
        variance = spread + noise_var
        errors = np.minimum(squares / variance, LARGEST_ERROR)
        if is_complex(self.y):
            return -float(np.mean(np.log(np.pi * variance) + errors))
        return -0.5 * float(np.mean(np.log(2 * np.pi * variance) + errors))
