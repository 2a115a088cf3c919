"""A fast estimate, corrected coefficient by coefficient with what direct probes have shown so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, conj, namespace
from cofem._packing import packable
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.diagonals.self_consistent import SelfConsistent
from cofem.linalg.probes import draw_probes


@packable("corrected")
class Ratios(NamedTuple):
    """Ratios of direct to fast estimates so far."""

    #: The fast estimator's own carry.
    fast: Any
    #: Their average, over probes and steps.
    mean: Array | float = 0.0
    #: Number of steps averaged over.
    steps: int = 0
    #: Squared standard error of the average.
    spread: Array | float = 0.0


@dataclass(frozen=True)
class Corrected(DiagonalEstimator):
    """``s_j = r_j * fast_j`` with ratios r averaged over the direct probes of many steps.

    The fast estimate follows how the variances change from step to step; the ratio of direct to fast
    estimates is a property of a coefficient's surroundings in the dictionary and changes slowly, so it
    may be averaged over steps. That makes the noise of a few probes small on any dictionary.

    Parameters
    ----------
    probes : int
        Direct probes in each step.
    memory : float in [0, 1)
        Weight of the steps before in the average, once there are enough of them.
    fast : DiagonalEstimator
        The estimate that is corrected; one that needs no probes of its own.

    Examples
    --------
    Eight probes in each of forty steps, on columns that come in equal pairs:

    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import Dense
    >>> Phi = Dense(np.repeat(np.random.default_rng(0).standard_normal((20, 20)), 2, axis=1))
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), np.ones(40), 0.5)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(40)) / 0.5 + np.eye(40))
    >>> estimator, rng = Corrected(probes=8, memory=0.98), np.random.default_rng(1)
    >>> carry = estimator.init(context, rng)
    >>> for step in range(40):
    ...     rhs = estimator.right_hand_sides(context, carry, rng)
    ...     found = estimator.estimate(context, carry, rhs, rhs.b @ Sigma)
    ...     carry = found.carry
    >>> bool(np.abs(found.value / np.diag(Sigma) - 1).mean() < 0.1)
    True
    """

    probes: int = 8
    memory: float = 0.9
    fast: DiagonalEstimator = field(default_factory=SelfConsistent)

    name: ClassVar[str] = "corrected"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Ratios:
        """Begin with no ratios."""
        return Ratios(self.fast.init(context, rng))

    def quiet(self, carry: Any) -> bool:
        """Never: some percent of noise remain."""
        return False

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Ask for direct probes."""
        probes = draw_probes(
            self.probes, context.alpha.shape[0], like=context.like, rng=rng, distribution="rademacher"
        )
        scale = context.probe_scale()
        return RightHandSides(
            b=probes * scale, extra=(self.fast.right_hand_sides(context, carry.fast, rng), probes, scale)
        )

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Update the average ratio and apply it."""
        inner, ratio, steps, spread = carry
        wanted, probes, scale = rhs.extra
        fast = self.fast.estimate(context, inner, wanted, x[:0, :])
        xp = namespace(x)
        ratios = xp.real(conj(probes) * x) / (scale * fast.value)
        # A plain average while there are few steps, a fading one later.
        keep = min(self.memory, steps / (steps + 1))
        ratio = keep * ratio + (1 - keep) * xp.mean(ratios, axis=0)
        noise = xp.var(ratios, axis=0, correction=1) / self.probes if self.probes > 1 else np.inf
        spread = keep**2 * spread + (1 - keep) ** 2 * noise
        return DiagonalEstimate(
            context.clip(fast.value * ratio),
            fast.value * spread**0.5,
            Ratios(fast.carry, ratio, steps + 1, spread),
            used=self.name,
        )
