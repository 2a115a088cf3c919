"""A fast estimate, corrected coefficient by coefficient with what direct probes have shown so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import conj, namespace
from cofem.linalg.diagonals.base import Columns, DiagonalEstimate, DiagonalEstimator, Setting
from cofem.linalg.diagonals.rademacher import probe_scale
from cofem.linalg.diagonals.self_consistent import SelfConsistent
from cofem.linalg.probes import draw_probes

Array = Any


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
    >>> from cofem.operators import Dense
    >>> Phi = Dense(np.repeat(np.random.default_rng(0).standard_normal((20, 20)), 2, axis=1))
    >>> setting = Setting(Phi, Phi, np.ones(40), 0.5, Phi.column_norms() ** 2, np.zeros(1))
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(40)) / 0.5 + np.eye(40))
    >>> estimator, carry, rng = Corrected(probes=8, memory=0.98), None, np.random.default_rng(1)
    >>> for step in range(40):
    ...     columns = estimator.columns(setting, carry, rng)
    ...     found = estimator.estimate(setting, carry, columns, columns.b @ Sigma)
    ...     carry = found.carry
    >>> bool(np.abs(found.value / np.diag(Sigma) - 1).mean() < 0.1)
    True
    """

    probes: int = 8
    memory: float = 0.9
    fast: DiagonalEstimator = field(default_factory=SelfConsistent)

    name: ClassVar[str] = "corrected"

    def quiet(self, carry: Any) -> bool:
        """Never: some percent of noise remain."""
        return False

    def columns(self, setting: Setting, carry: Any, rng: np.random.Generator) -> Columns:
        """Ask for direct probes."""
        inner = None if carry is None else carry[0]
        probes = draw_probes(
            self.probes, setting.alpha.shape[0], like=setting.like, rng=rng, distribution="rademacher"
        )
        scale = probe_scale(setting)
        return Columns(b=probes * scale, extra=(self.fast.columns(setting, inner, rng), probes, scale))

    def estimate(self, setting: Setting, carry: Any, columns: Columns, x: Array) -> DiagonalEstimate:
        """Update the average ratio and apply it."""
        inner, ratio, steps, spread = carry or (None, 0.0, 0, 0.0)
        wanted, probes, scale = columns.extra
        fast = self.fast.estimate(setting, inner, wanted, x[:0, :])
        xp = namespace(x)
        ratios = xp.real(conj(probes) * x) / (scale * fast.value)
        # A plain average while there are few steps, a fading one later.
        keep = min(self.memory, steps / (steps + 1))
        ratio = keep * ratio + (1 - keep) * xp.mean(ratios, axis=0)
        noise = xp.var(ratios, axis=0, correction=1) / self.probes if self.probes > 1 else np.inf
        spread = keep**2 * spread + (1 - keep) ** 2 * noise
        return DiagonalEstimate(
            setting.clip(fast.value * ratio),
            fast.value * spread**0.5,
            (fast.carry, ratio, steps + 1, spread),
            used=self.name,
        )
