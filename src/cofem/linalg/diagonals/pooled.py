"""One number for each group of coefficients, from the trace that a single probe gives well."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
SMALLEST_GROUP = 16


class Groups(NamedTuple):
    """Groups of coefficients that have a number each.

    Attributes
    ----------
    members : list
        Indices of the coefficients in each group; None is all of them.
    number : ndarray of int, shape (D,), or None
        The group of each coefficient; None if there is one group.
    """

    members: list[Any]
    number: np.ndarray | None = None

    @classmethod
    def of(cls, labels: Any, size: int) -> Groups:
        """Take them from the label of each of `size` coefficients; None makes one group.

        Examples
        --------
        Small groups are one:

        >>> import numpy as np
        >>> groups = Groups.of(np.repeat([0, 1, 2], [20, 3, 2]), 25)
        >>> [members.size for members in groups.members]
        [20, 5]
        >>> groups.for_each(np.array([1.0, 5.0]), np.zeros(1))[18:22].tolist()
        [1.0, 1.0, 5.0, 5.0]
        """
        members = _members(labels)
        if len(members) == 1:
            return cls(members)
        number = np.zeros(size, dtype=np.intp)
        for i, group in enumerate(members):
            number[group] = i
        return cls(members, number)

    def for_each(self, numbers: np.ndarray, like: Array) -> Any:
        """Give each coefficient the number of its group; one number for all stays one."""
        if self.number is None:
            return float(numbers[0])
        return on_device_of(like, numbers[self.number].astype(precision_of(like)))


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
        """Draw probes, whitened by what is known of the posterior."""
        probes = draw_probes(
            self.probes, context.alpha.shape[0], like=context.like, rng=rng, distribution="rademacher"
        )
        return RightHandSides(b=probes * context.probe_scale(), extra=probes)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Turn the probes' traces into one c for each group."""
        labels = context.phi.groups if self.groups is None else self.groups
        groups, g = Groups.of(labels, context.alpha.shape[0]), context.g
        traces = Traces.of(context, rhs.extra, x, groups)
        scales = traces.scales(g * context.phi.column_energy, 1 / context.noise_var)
        scale, spread = groups.for_each(scales, g), groups.for_each(traces.errors, g)
        value = context.clip(g / (1 + g * (scale * context.phi.column_energy)))
        gamma = 1 - value / g
        # d log s / d log c = -gamma
        return DiagonalEstimate(value, value * gamma * spread, used=self.name)


class Traces(NamedTuple):
    r"""Sums over each group of coefficients of ``w_j gamma_j``, as probes say.

    Probes are whitened by the standard deviations of the step before, and :math:`w_j = g_j / s_j` of that
    step. A sum of :math:`\gamma_j` alone would say next to nothing about groups that the data rule: there all
    is in :math:`1 - \gamma_j`, which drowns in what probes say about the others.

    Attributes
    ----------
    groups : Groups
        The groups.
    weight : array of shape (D,)
        The w.
    gammas : ndarray of shape (number of groups,)
        The sums.
    errors : ndarray of shape (number of groups,)
        Their relative standard errors.
    """

    groups: Groups
    weight: Array
    gammas: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, context: PosteriorContext, probes: Array, x: Array, groups: Groups) -> Traces:
        """Take them from solutions for probes.

        Parameters
        ----------
        context : PosteriorContext
            The posterior.
        probes, x : array of shape (K, D)
            The probes, and the solutions for them times `context.probe_scale`.
        groups : Groups
            The groups.
        """
        xp = namespace(x)
        scale = context.probe_scale()
        left = xp.real(conj(probes) * x) * scale  # estimates w_j (1 - gamma_j), one row a probe
        weight = scale * scale
        weight *= context.g
        gammas, errors = np.zeros(len(groups.members)), np.zeros(len(groups.members))
        for i, group in enumerate(groups.members):
            part, all_of_it = left, weight
            if group is not None:
                part, all_of_it = take(left, group, axis=1), take(weight, group, axis=0)
            sums = to_numpy(xp.sum(part, axis=-1, dtype=xp.float64))
            gammas[i] = float(np.mean(total(all_of_it) - sums))
            errors[i] = _relative_error(part, gammas[i])
        return cls(groups, weight, gammas, errors)

    def scales(self, strength: Array, largest: float) -> np.ndarray:
        """Return the c of each group with ``sum_j w_j c t_j / (1 + c t_j)`` as found; t has shape (D,)."""
        found = np.zeros(len(self.groups.members))
        for i, group in enumerate(self.groups.members):
            t, w = strength, self.weight
            if group is not None:
                t, w = take(t, group, axis=0), take(w, group, axis=0)
            found[i] = solve_trace(t, self.gammas[i], largest, w)
        return found


def solve_trace(strength: Array, gamma: float, largest: float, weight: Array | None = None) -> float:
    """Find the c with ``sum_j w_j c t_j / (1 + c t_j) = gamma`` for ``t_j = ||phi_j||^2 / alpha_j``.

    The left side grows from 0 to the sum of the weights; c is at most `largest` (= beta, reached by a
    coefficient whose column is orthogonal to all others).

    Examples
    --------
    >>> import numpy as np
    >>> round(solve_trace(np.array([1.0, 1.0]), 1.0, 1e6), 5)
    1.0
    """
    weighted = strength if weight is None else strength * weight
    whole = total(weighted)
    if gamma <= 0 or whole <= 0:  # nothing was learned from the data
        return 0.0

    most = float(np.finfo(precision_of(strength)).max) / 4

    def excess(log_c: float) -> tuple[float, float]:
        prior = min(math.exp(-log_c), most)
        both = prior + strength
        known = weighted / both
        found = total(known)
        if not found > 0:  # it is too small for the precision
            return -math.inf, 0.0
        # In logarithms the function is nearly straight.
        return math.log(found / gamma), prior * total(known / both) / found

    # The left side is at most c times its slope at zero, and concave: Newton's steps all go up.
    high = float(np.log(largest))
    low = min(float(np.log(gamma / whole)), high)
    return float(np.exp(newton_root(excess, low, low - 0.1, high)))


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
