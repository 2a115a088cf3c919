"""One number for each group of coefficients, from the trace that a single probe gives well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import (
    Array,
    conj,
    in_precision,
    namespace,
    on_device_of,
    precision_of,
    take,
    to_numpy,
    total,
)
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.probes import draw_probes
from cofem.linalg.roots import newton_root

#: Groups with fewer coefficients than this share one number: their own trace would be too noisy.
SMALLEST_GROUP = 256


@dataclass(frozen=True)
class Pooled(DiagonalEstimator):
    r"""``s_j = 1 / (alpha_j + c ||phi_j||^2)`` with one c for each group of coefficients.

    Exactly, :math:`s_j = 1/(\alpha_j + S_j)` with :math:`S_j = \phi_j^H C_{-j}^{-1}\phi_j`; in an
    incoherent dictionary :math:`S_j \approx c\,\|\phi_j\|^2`. The trace
    :math:`\Gamma = \sum_j \gamma_j = \sum_j (1 - \alpha_j s_j)` over a group comes from one probe with
    a small relative error, and :math:`\sum_j c\|\phi_j\|^2/(\alpha_j + c\|\phi_j\|^2) = \Gamma` gives c.

    Parameters
    ----------
    probes : int
        Probes in each step.
    groups : array of int, shape (D,), or None
        Group of each coefficient; None takes those that the operator names (wavelet subbands), or one.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import DCT, Mask
    >>> Phi = Mask(np.random.default_rng(0).choice(256, 64, replace=False), 256) @ DCT(256).T
    >>> alpha = np.geomspace(1, 1000, 256)
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), alpha, 0.01)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(256)) / 0.01 + np.diag(alpha))
    >>> rhs = Pooled().right_hand_sides(context, None, np.random.default_rng(1))
    >>> found = Pooled().estimate(context, None, rhs, rhs.b @ Sigma)
    >>> rhs.b.shape[0], bool(np.abs(found.value / np.diag(Sigma) - 1).mean() < 0.1)  # from one probe
    (1, True)
    """

    probes: int = 1
    groups: Any = None

    name: ClassVar[str] = "pooled"

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Draw probes, whitened by the prior."""
        probes = draw_probes(
            self.probes, context.alpha.shape[0], like=context.like, rng=rng, distribution="rademacher"
        )
        return RightHandSides(b=probes * namespace(context.alpha).sqrt(context.alpha), extra=probes)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Turn the probes' traces into one c for each group."""
        probes = rhs.extra
        xp = namespace(x)
        g = context.g
        left = xp.real(conj(probes) * x) * xp.sqrt(context.alpha)  # estimates 1 - gamma_j, one row a probe
        labels = context.phi.groups if self.groups is None else self.groups
        members = _members(labels)
        number = np.zeros(g.shape[0], dtype=np.intp)  # of the group, for each coefficient
        scales, spreads = np.zeros(len(members)), np.zeros(len(members))
        strengths = g * context.phi.column_energy
        for i, group in enumerate(members):
            part, strength = left, strengths
            if group is not None:
                number[group] = i
                part, strength = take(left, group, axis=1), take(strengths, group, axis=0)
            traces = to_numpy(xp.sum(part, axis=-1, dtype=xp.float64))
            gamma = float(np.mean(strength.shape[0] - traces))
            scales[i] = solve_trace(strength, gamma, 1 / context.noise_var)
            spreads[i] = _relative_error(part, gamma)
        scale, spread = _by_group(scales, number, g), _by_group(spreads, number, g)
        value = context.clip(g / (1 + g * (scale * context.phi.column_energy)))
        gamma = 1 - value / g
        # d log s / d log c = -gamma
        return DiagonalEstimate(value, value * gamma * spread, used=self.name)


def solve_trace(strength: Array, gamma: float, largest: float) -> float:
    """Find the c with ``sum_j c t_j / (1 + c t_j) = gamma`` for strengths ``t_j = ||phi_j||^2 / alpha_j``.

    The left side grows from 0 to the number of positive strengths; c is at most `largest` (= beta,
    reached by a coefficient whose column is orthogonal to all others).

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> round(solve_trace(np.array([1.0, 1.0]), 1.0, 1e6), 5)
    1.0
    """
    weight = total(strength)
    if gamma <= 0 or weight <= 0:  # nothing was learned from the data
        return 0.0

    def excess(log_c: float) -> tuple[float, float]:
        ct = float(np.exp(log_c)) * strength
        known = ct / (1 + ct)
        found = total(known)
        # In logarithms the function is nearly straight.
        return float(np.log(found / gamma)), total(known / (1 + ct)) / found

    # The left side is at most c times the sum of the strengths, and concave: Newton's steps all go up.
    high = float(np.log(largest))
    low = min(float(np.log(gamma / weight)), high)
    return float(np.exp(newton_root(excess, low, low - 0.1, high)))


def _by_group(numbers: np.ndarray, group: np.ndarray, like: Array) -> Any:
    """Give each coefficient the number of its group; one number for all stays one."""
    if numbers.size == 1:
        return float(numbers[0])
    return on_device_of(like, numbers[group].astype(precision_of(like)))


def _members(labels: Any) -> list[Any]:
    """Index sets of the groups; the small ones together are one, and None is all."""
    if labels is None:
        return [None]
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
    deviation = float(np.std(left, dtype=float)) if isinstance(left, np.ndarray) else _deviation(left)
    return deviation * float(np.sqrt(size / n_probes)) / gamma


def _deviation(x: Array) -> float:
    xp = namespace(x)
    return float(xp.std(in_precision(x, "float64")))
