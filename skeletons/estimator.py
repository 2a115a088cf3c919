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
class Known(NamedTuple):
    """What the steps so far have shown."""

    #: What the data say about each coefficient, ``1 / s_j - alpha_j``, shape (D,).
    information: Array
    #: Number of steps.
    steps: int = 0


# Frozen, with every setting a field: a checkpoint recognises the estimator by its fields.
@dataclass(frozen=True)
class Remembered(DiagonalEstimator):
    """Direct probes, averaged over steps through ``1 / s_j - alpha_j``, which changes slowly.

    Parameters
    ----------
    probes : int
        Probes in each step.
    memory : float
        Steps that the average remembers; older ones fade.

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

    probes: int = 8
    memory: float = 5.0

    #: What `cofem.CoFEM(diagonal=...)` and the registry call it.
    name: ClassVar[str] = "remembered"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Known:
        """Return the carry of the first step."""
        return Known(namespace(context.alpha).zeros_like(context.alpha))

    def quiet(self, carry: Known) -> bool:
        """Tell whether the next estimate is free enough of noise for extrapolated steps."""
        return False

    def is_exact(self, carry: Known) -> bool:
        """Tell whether the estimates are exact; if not, those of what was found are checked at the end."""
        return False

    def right_hand_sides(
        self, context: PosteriorContext, carry: Known, rng: np.random.Generator
    ) -> RightHandSides:
        """Return what is solved together with the mean; `extra` comes back in `estimate`."""
        size = context.alpha.shape[0]
        signs = draw_probes(self.probes, size, like=context.like, rng=rng, distribution="rademacher")
        # Probes over the last standard deviations have the least error. `b` is overwritten: a new array.
        scale = context.probe_scale()
        return RightHandSides(b=signs * scale, extra=(signs, scale))

    def estimate(
        self, context: PosteriorContext, carry: Known, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Return variances, their standard error and the next carry, from the solutions x of `rhs`."""
        xp, (signs, scale) = namespace(x), rhs.extra
        products = xp.real(conj(signs) * x) / scale  # each row estimates the variances
        direct = xp.mean(products, axis=0)
        weight = max(1 / (carry.steps + 1), 1 / self.memory)
        expected = 1 / (context.alpha + carry.information)
        # Variances lie between `context.floor` and those of the prior, `context.g`.
        value = context.clip(expected + weight * (direct - expected))
        # Steps that count by w, (1 - w) w, ...: the average has w / (2 - w) of the variance of one of them.
        error = xp.std(products, axis=0) * (weight / (2 - weight) / self.probes) ** 0.5
        return DiagonalEstimate(value, error, Known(1 / value - context.alpha, carry.steps + 1), self.name)
