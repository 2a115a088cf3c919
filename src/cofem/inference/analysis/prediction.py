r"""The noise, and the density of data, from predictions of what a fit has not seen.

In pictures the error at data that were held out is mostly the posterior's own spread: at an edge it is large,
in the sky it is the noise. So the noise is one under which they are likely, each with the variance
:math:`v_i` of its own prediction:

.. math:: L(\sigma^2, c) = \sum_{i \in H} \log t_K(y_i; \varphi_i^H\mu, \sigma^2 + c v_i).

Where data see single places, :math:`c v_i` may be :math:`c v_i^{1 + p}` as well, for one p from 0 to 1. The
number c is there because the posterior's own variances are not quite true: the prior is not, and
precisions are fitted. Variances come from K draws, hence Student's distribution in place of the normal one.
Where predictions are so uncertain that any small noise would do, the largest one that is nearly as likely as
the best is taken.

Another number is the one by which variances of the result are multiplied, so that 95 % intervals hold 95 % of
what was held out. It is below 1 only for what these data speak of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofem._arrays import Array, is_complex, squared_modulus, to_numpy
from cofem.inference.analysis.row_moments import MANY
from cofem.inference.base import State
from cofem.inference.prediction import MOST_DRAWS, Errors
from cofem.inference.problem import Problem
from cofem.operators import Operator

#: How far the noise moves towards what was found in a step, in logarithms.
PACE = 0.5
#: Steps in which it moves there at once: at first it is a guess.
AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class FromPredictions:
    """The noise under which data that were held out are likely.

    Parameters
    ----------
    phi : Operator
        Rows that were held out, shape (H, D).
    y : array of shape (H,) or (L, H)
        Their data.
    learned : bool
        Whether the noise is learned from them.
    """

    phi: Operator
    y: Array
    learned: bool = True

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        found = self.noise_var(problem, state)
        pace = 1.0 if state.carry.steps <= AT_ONCE else PACE
        return float(np.exp((1 - pace) * np.log(problem.noise_var) + pace * np.log(found)))

    def noise_var(self, problem: Problem, state: State) -> float:
        """Return the largest noise variance that is nearly as likely as the best one."""
        errors = self.errors(state)
        power = float(np.mean(to_numpy(squared_modulus(problem.y))))
        first = errors.likely_noise(power)
        errors = self._bent(errors, state, first)
        return errors.likely_noise(power, errors.likely_both(first)[0])

    def scales(self, problem: Problem, state: State) -> tuple[float, float]:
        """Return what variances are to be multiplied by to be likely, and for intervals to hold 95 %."""
        errors = self.errors(state)
        holding = errors.holding_scale(problem.noise_var, self.learned)
        holding = self._with_regard_to_silence(holding, state)
        return self._bent(errors, state, problem.noise_var).likely_scale(problem.noise_var), holding

    def _with_regard_to_silence(self, holding: float, state: State) -> float:
        """Return a scale that shrinks no more than in proportion to what the held-out data speak of.

        Of places that are like those held out, nearly all; less where some are far from any datum, as in a
        hole. Sums over places (blurs, Fourier coefficients) say nothing of what no sum sees, so that nothing
        is shrunk: with 32 x 32 and 40 x 40 pixels, eleven of eleven fits that were had intervals that hold
        less for it, by 0.2 to 4 %.
        """
        if holding >= 1:
            return holding
        if not self.phi.facts.one_per_row:
            return 1.0
        energy = float(np.sum(to_numpy(self.phi.column_norms()).astype(np.float64) ** 2))
        anywhere = energy * float(np.mean(to_numpy(state.variance).astype(np.float64)))
        here = float(np.sum(to_numpy(state.carry.predicted).astype(np.float64)))
        share = min(1.0, here / anywhere) if anywhere > 0 else 1.0
        return 1.0 - share * (1.0 - holding)

    def log_densities(self, problem: Problem, state: State, scale: float) -> np.ndarray:
        """Return the log density of each datum that was held out, in nats, in scaled units."""
        errors = self._bent(self.errors(state), state, problem.noise_var)
        return errors.log_densities(problem.noise_var, scale).ravel()

    def _bent(self, errors: Errors, state: State, noise_var: float) -> Errors:
        # Of few draws, the smallest and the largest are so by chance; at first all is a guess.
        known = state.carry.draws >= MANY and state.carry.steps > AT_ONCE
        return errors.likely_bend(noise_var) if known else errors

    def judge(self, problem: Problem, state: State) -> dict[str, np.ndarray]:
        """Return the squared errors at what was held out."""
        return {"squares": self.errors(state).squares}

    def errors(self, state: State) -> Errors:
        """Return the squared errors at what was held out, and how large they are expected to be."""
        squares = to_numpy(squared_modulus(self.y - self.phi.forward(state.mean))).astype(np.float64)
        spread = to_numpy(state.carry.predicted).astype(np.float64)
        return Errors(
            squares,
            spread,
            float(np.clip(state.carry.draws or MOST_DRAWS, 4.0, MOST_DRAWS)),
            is_complex(self.y),
        )
