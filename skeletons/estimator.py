"""Skeleton of a diagonal estimator: copy to `src/cofem/linalg/diagonals/<name>.py`, rename, replace its rule.

CONTRIBUTING.md, "Add a diagonal estimator", has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, conj, namespace
from cofem._packing import packable
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.probes import draw_probes


# What one step hands to the next. Checkpoints hold it, under a name that no other type has.
@packable("skeleton-estimator")
class Average(NamedTuple):
    """Averages over the steps so far."""

    #: Of ``alpha_j s_j``, shape (D,), and of its square.
    mean: Array
    square: Array
    #: Number of steps.
    steps: int = 0


# Frozen, with every setting a field: a checkpoint recognises the estimator by its fields.
@dataclass(frozen=True)
class Remembered(DiagonalEstimator):
    """Direct probes of ``alpha_j s_j``, averaged over steps; older steps fade.

    Parameters
    ----------
    probes : int
        Probes in each step.
    memory : float
        Steps that the average remembers.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> from cofem.operators.dictionary import Dictionary
    >>> Phi = Dense(np.random.default_rng(0).standard_normal((20, 40)))
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), np.ones(40), 0.5)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(40)) / 0.5 + np.eye(40))
    >>> estimator, rng = Remembered(memory=1000), np.random.default_rng(1)
    >>> carry = estimator.init(context, rng)
    >>> for step in range(300):
    ...     rhs = estimator.right_hand_sides(context, carry, rng)
    ...     found = estimator.estimate(context, carry, rhs, rhs.b @ Sigma)  # solved by CG in a fit
    ...     carry = found.carry
    >>> bool(np.abs(found.value / np.diag(Sigma) - 1).mean() < 0.05)
    True
    """

    probes: int = 2
    memory: float = 20.0

    #: What `cofem.CoFEM(diagonal=...)` and the registry call it.
    name: ClassVar[str] = "remembered"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Average:
        """Return the carry of the first step."""
        zeros = namespace(context.alpha).zeros_like(context.alpha)
        return Average(zeros, zeros)

    def quiet(self, carry: Average) -> bool:
        """Tell whether the next estimate is free enough of noise for extrapolated steps."""
        return False

    def right_hand_sides(
        self, context: PosteriorContext, carry: Average, rng: np.random.Generator
    ) -> RightHandSides:
        """Return what is solved together with the mean; `extra` comes back in `estimate`."""
        size = context.alpha.shape[0]
        signs = draw_probes(self.probes, size, like=context.like, rng=rng, distribution="rademacher")
        # `b` is overwritten, so that it must be a new array.
        return RightHandSides(b=signs * namespace(signs).sqrt(context.alpha), extra=signs)

    def estimate(
        self, context: PosteriorContext, carry: Average, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Return variances, their standard error and the next carry, from the solutions x of `rhs`."""
        xp = namespace(x)
        share = xp.mean(xp.real(conj(rhs.extra) * x), axis=0) * xp.sqrt(context.alpha)
        weight = max(1 / (carry.steps + 1), 1 / self.memory)
        mean = carry.mean + weight * (share - carry.mean)
        square = carry.square + weight * (share * share - carry.square)
        spread = xp.sqrt(xp.abs(square - mean * mean) * weight) if carry.steps else xp.inf
        # Variances lie between `context.floor` and those of the prior, `context.g`.
        value = context.clip(mean * context.g)
        new = Average(mean, square, carry.steps + 1)
        return DiagonalEstimate(value, spread * context.g, carry=new, used=self.name)
