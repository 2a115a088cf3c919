"""One number for each group of coefficients, from the trace that a single probe gives well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cofem.linalg.diagonals.base import Columns, DiagonalEstimate, DiagonalEstimator, Setting
from cofem.linalg.probes import draw_probes
from cofem.linalg.roots import bracketed_root

Array = Any

#: Groups with fewer coefficients than this share one number: their own trace would be too noisy.
SMALLEST_GROUP = 256


@dataclass(frozen=True)
class Pooled(DiagonalEstimator):
    r"""``s_j = 1 / (alpha_j + c theta_j)`` with one c for each group of coefficients.

    Exactly, :math:`s_j = 1/(\alpha_j + S_j)` with :math:`S_j = \phi_j^H C_{-j}^{-1}\phi_j`; in an
    incoherent dictionary :math:`S_j \approx c\,\theta_j`. The trace
    :math:`\Gamma = \sum_j \gamma_j = \sum_j (1 - \alpha_j s_j)` over a group comes from one probe with
    a small relative error, and :math:`\sum_j c\theta_j/(\alpha_j + c\theta_j) = \Gamma` gives c.

    Parameters
    ----------
    probes : int
        Probes in each step.
    groups : array of int, shape (D,), or None
        Group of each coefficient; None takes those that the operator names (wavelet subbands), or one.
    """

    probes: int = 1
    groups: Any = None

    name: ClassVar[str] = "pooled"

    def columns(self, setting: Setting, carry: Any, rng: np.random.Generator) -> Columns:
        """Draw probes, whitened by the prior."""
        probes = draw_probes(
            self.probes, setting.g.shape[0], like=setting.like, rng=rng, distribution="rademacher"
        )
        return Columns(b=probes / np.sqrt(setting.g), extra=probes)

    def estimate(self, setting: Setting, carry: Any, columns: Columns, x: Array) -> DiagonalEstimate:
        """Turn the probes' traces into one c for each group."""
        probes = columns.extra
        left = (np.conj(probes) * x).real / np.sqrt(setting.g)  # estimates 1 - gamma_j, one row a probe
        labels = setting.operator.groups if self.groups is None else self.groups
        members = _members(labels, setting.g.shape[0])
        c_theta = np.empty_like(setting.g)
        spread = np.empty_like(setting.g)
        for group in members:
            strength = setting.g[group] * setting.column_energy[group]  # theta / alpha
            gamma = strength.shape[0] - np.sum(left[:, group], axis=-1, dtype=float)
            total = float(np.mean(gamma))
            scale = solve_trace(strength, total, 1 / setting.noise_var)
            c_theta[group] = scale * setting.column_energy[group]
            spread[group] = _relative_error(left[:, group], total)
        value = setting.clip(setting.g / (1 + setting.g * c_theta))
        gamma = 1 - value / setting.g
        # d log s / d log c = -gamma
        return DiagonalEstimate(value, value * gamma * spread, used=self.name)


def solve_trace(strength: Array, gamma: float, largest: float) -> float:
    """Find the c with ``sum_j c t_j / (1 + c t_j) = gamma`` for strengths ``t_j = theta_j / alpha_j``.

    The left side grows from 0 to the number of positive strengths; c is at most `largest` (= beta,
    reached by a coefficient whose column is orthogonal to all others).

    Examples
    --------
    >>> import numpy as np
    >>> round(solve_trace(np.array([1.0, 1.0]), 1.0, 1e6), 6)
    1.0
    """

    def excess(log_c: float) -> float:
        ct = np.exp(log_c) * strength
        return float(np.sum(ct / (1 + ct), dtype=float)) - gamma

    high = np.log(largest)
    if excess(high) <= 0:
        return largest
    low = high - 5.0
    while excess(low) > 0:
        low -= 10.0
        if low < high - 200:  # gamma is zero or below: nothing was learned from the data
            return 0.0
    return float(np.exp(bracketed_root(excess, low, high, xtol=1e-4)))


def _members(labels: Any, size: int) -> list[Any]:
    """Index sets of the groups; the small ones together are one."""
    if labels is None:
        return [slice(None)]
    order = np.argsort(labels, kind="stable")
    _, starts = np.unique(np.asarray(labels)[order], return_index=True)
    groups = np.split(order, starts[1:])
    large = [group for group in groups if group.size >= SMALLEST_GROUP]
    small = [group for group in groups if group.size < SMALLEST_GROUP]
    if small:
        large.append(np.concatenate(small))
    return large


def _relative_error(left: Array, gamma: float) -> float:
    """Relative standard error of the trace: from the spread over j of the single probe's terms."""
    n_probes, size = left.shape
    if size < 2 or gamma <= 0:
        return np.inf
    return float(np.std(left, dtype=float) * np.sqrt(size / n_probes) / gamma)
