"""Variances from posterior samples: always positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, is_complex, namespace, squared_modulus, standard_normal
from cofem._packing import packable
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)


@packable("paired")
class Shares(NamedTuple):
    """Mean squares of what was explained and of what was left, in units of the prior, over the steps."""

    explained: Array | float = 0.0
    left: Array | float = 0.0
    #: Relative variance of both, in units of that of one step.
    weight: float = 0.0
    #: Weight of these in the next average.
    keep: float = 0.0


@dataclass(frozen=True)
class Paired(DiagonalEstimator):
    r"""Draw from the prior and the data it would give, and see how much of the draw they explain.

    For a prior draw :math:`a` and data :math:`v = \Phi a + \varepsilon`, the posterior mean
    :math:`x = \Sigma\beta\Phi^H v` and the rest :math:`a - x` are independent with variances
    :math:`g_j\gamma_j` and :math:`g_j(1-\gamma_j)`, so that the share of :math:`|a - x|^2` estimates
    :math:`1 - \gamma_j = s_j / g_j`, always between 0 and 1. Shares are averaged over steps, since they
    change slowly.

    Parameters
    ----------
    samples : int
        Draws in each step.
    memory : float in [0, 1)
        Weight of the steps before.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import Dense
    >>> Phi = Dense(np.random.default_rng(0).standard_normal((20, 40)))
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), np.ones(40), 0.5)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(40)) / 0.5 + np.eye(40))
    >>> estimator = Paired(samples=200)
    >>> carry = estimator.init(context, np.random.default_rng(1))
    >>> rhs = estimator.right_hand_sides(context, carry, np.random.default_rng(1))
    >>> x = rhs.v @ Phi.to_dense() @ Sigma / 0.5  # the posterior means for the data v
    >>> found = estimator.estimate(context, carry, rhs, x)
    >>> error = np.abs(found.value - np.diag(Sigma))
    >>> bool((error < 4 * found.standard_error).all()), bool((error / np.diag(Sigma)).mean() < 0.1)
    (True, True)
    """

    samples: int = 4
    memory: float = 0.7

    name: ClassVar[str] = "paired"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Shares:
        """Begin with no draws."""
        return Shares()

    def quiet(self, carry: Any) -> bool:
        """Never: a few draws leave tens of percent of noise."""
        return False

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Draw coefficients from the prior and noisy data from them."""
        n, d = context.phi.shape
        draws = standard_normal((self.samples, d), context.like, rng)
        draws /= namespace(draws).sqrt(context.alpha)
        noise = standard_normal((self.samples, n), context.like, rng)
        noise *= context.noise_var**0.5
        noise += context.phi.forward(draws)
        return RightHandSides(v=noise, extra=draws)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Compare what was explained with what was left."""
        xp = namespace(x)
        explained = xp.mean(squared_modulus(x), axis=0) * context.alpha
        left = xp.mean(squared_modulus(rhs.extra - x), axis=0) * context.alpha
        keep = carry.keep
        explained = keep * carry.explained + (1 - keep) * explained
        left = keep * carry.left + (1 - keep) * left
        weight = keep**2 * carry.weight + (1 - keep) ** 2
        share = left / (explained + left)
        # Each mean square has relative variance 2 / samples (1 / samples for complex draws).
        kind = 1 if is_complex(x) else 2
        error = share * (1 - share) * float(np.sqrt(2 * kind * weight / self.samples))
        g = context.g
        shares = Shares(explained, left, weight, self.memory)
        return DiagonalEstimate(context.clip(g * share), g * error, shares, used=self.name)
