"""Variances from small clusters of columns that are coupled, for coherent dictionaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, on_device_of, precision_of, to_numpy
from cofem._packing import packable
from cofem.linalg.couplings import Couplings, GridCouplings, StoredCouplings, labels_of, on_grid
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.diagonals.pooled import Groups, Traces
from cofem.linalg.diagonals.shares import Shares, in_clusters, in_tiles
from cofem.linalg.find_couplings import find_couplings
from cofem.linalg.probes import Signs, draw_signs
from cofem.linalg.tiles import tiles_of
from cofem.operators.dictionary import Dictionary

#: Change of c, in logarithms, up to which the clusters need not be computed again, and how often they are at
#: most, in steps after the first; and for stored columns, where they take less time than products do (near
#: duplicates, median of 6 seeds: errors of 0.004, not 0.015; a 2-D blur would take a fifth longer).
CLOSE_ENOUGH, ROUNDS = 0.1, 2
CLOSE_STORED, ROUNDS_STORED = 0.05, 4
#: How often they are computed at most in a first step.
FIRST_ROUNDS = 6
#: Coefficients from which on one probe is enough, for operators and for matrices, where products with several
#: vectors at once cost little more and N is often far below D.
ENOUGH, ENOUGH_STORED = 2**13, 2**14
#: Change of c, in logarithms, that may go unseen, and the most steps without a probe; changes of the
#: strengths from which on nothing is taken to be known.
UNSEEN, LONGEST_PAUSE, FAR = 0.05, 4, 0.5
#: Change of strengths since the clusters were computed, in logarithms and weighted by gamma, up to which they
#: need not be computed again, where they are computed all or none.
HARDLY_MOVED = 0.1


@packable("scales")
class KnownScales(NamedTuple):
    """The c of each group, and what tells when to look at them again.

    In the first few steps they change tenfold, later by a few percent, and a probe takes several times as
    many products as the mean does.
    """

    values: np.ndarray
    #: Relative standard errors.
    errors: np.ndarray
    #: Strengths at which they were measured, shape (D,).
    strength: np.ndarray
    #: How much they changed for a change of the strengths, both in logarithms.
    pace: float = np.inf
    #: Steps since they were measured.
    since: int = 0

    def hold(self, strength: np.ndarray, groups: Groups) -> bool:
        """Tell whether they are still good at other strengths.

        Examples
        --------
        >>> import numpy as np
        >>> known = KnownScales(np.ones(1), np.zeros(1), np.ones(4), pace=1.0)
        >>> [known.hold(change * np.ones(4), Groups([None])) for change in (1.02, 1.2)]
        [True, False]
        """
        if self.since >= LONGEST_PAUSE:
            return False
        moved = self.distance(strength, groups)
        return moved < FAR and self.pace * moved < UNSEEN

    def distance(self, strength: np.ndarray, groups: Groups) -> float:
        """Return the change of strengths since then, in logarithms: a mean square weighted by gamma."""
        known = groups.for_each(self.values, strength) * strength
        return log_distance(strength, self.strength, known / (1 + known))

    def updated(self, values: np.ndarray, traces: Traces, strength: np.ndarray) -> KnownScales:
        """Take over new values."""
        moved = np.abs(np.log(np.maximum(values, 1e-300) / np.maximum(self.values, 1e-300)))
        weights = np.maximum(traces.gammas, 0)
        change = float(np.average(moved, weights=weights)) if weights.any() else np.inf
        pace = change / max(self.distance(strength, traces.groups), 1e-9)
        # One step in which nothing happened is no promise.
        pace = max(pace, 0.5 * self.pace) if np.isfinite(self.pace) else 2 * pace
        return KnownScales(values, traces.errors, strength, pace)


def log_distance(strength: np.ndarray, before: np.ndarray, weight: np.ndarray) -> float:
    """Return the root of the weighted mean of ``log(strength / before)^2``.

    Examples
    --------
    >>> import numpy as np
    >>> round(log_distance(np.array([1.0, np.e, 0.0]), np.array([1.0, 1.0, 0.0]), np.ones(3)), 3)
    0.577
    """
    change = np.log(np.maximum(strength, 1e-300) / np.maximum(before, 1e-300))
    return float((weight @ change**2 / max(np.sum(weight), 1e-300)) ** 0.5)


@packable("clusters")
class Carry(NamedTuple):
    """The probe, the last c, and the last clusters."""

    signs: Signs
    known: KnownScales | None = None
    shares: Shares | None = None


@dataclass(frozen=True)
class Clusters(DiagonalEstimator):
    r"""``s_j`` from the inverse over j and the columns that it is coupled with most.

    Exactly, :math:`\Sigma_{BB} = (\mathrm{diag}(\alpha_B) + \Phi_B^H C_{-B}^{-1}\Phi_B)^{-1}` for any set B
    of columns. With :math:`C_{-B}^{-1} \approx c\,I`,

    .. math:: s_j = \left[(\mathrm{diag}(\alpha_B) + c\,\Phi_B^H\Phi_B)^{-1}\right]_{jj},

    where c is such that :math:`\sum_j \gamma_j` is what a probe says, as in `Pooled`, which has clusters of
    one. The probe is drawn once: it has a part in one number for each group only, and what changes from
    step to step then does so for a reason.

    Examples
    --------
    Neighbours of a blur share what the data say about them:

    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import Convolution
    >>> from cofem.linalg.diagonals import Pooled
    >>> Phi = Convolution(np.exp(-0.1 * np.arange(-9, 10) ** 2), 64)
    >>> alpha = np.geomspace(1, 1000, 64)
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), alpha, 0.01)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(64)) / 0.01 + np.diag(alpha))
    >>> errors = []
    >>> for estimator in (Clusters(), Pooled()):
    ...     carry = estimator.init(context, np.random.default_rng(1))
    ...     rhs = estimator.right_hand_sides(context, carry, np.random.default_rng(1))
    ...     found = estimator.estimate(context, carry, rhs, rhs.b @ Sigma)
    ...     errors.append(np.abs(found.value / np.diag(Sigma) - 1).mean())
    >>> np.round(errors, 2).tolist()
    [0.03, 0.34]
    """

    name: ClassVar[str] = "clusters"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Carry:
        """Draw the probe; several where few coefficients would make its sums too noisy."""
        size = context.alpha.shape[0]
        enough = ENOUGH_STORED if context.phi.stored_entries else ENOUGH
        return Carry(draw_signs(int(np.clip(enough // size, 1, 8)), size, rng))

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Ask for the probe, whitened by what is known of the posterior, unless c hardly changes."""
        groups = _groups(context)
        if carry.known is not None and carry.known.hold(_strength(context), groups):
            return RightHandSides()
        probes = carry.signs.probes(context.like)
        return RightHandSides(b=probes * context.probe_scale(), extra=probes)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Find c and the variances that go with it."""
        known: KnownScales | None = carry.known
        g = to_numpy(context.g).astype(np.float64)
        couplings = find_couplings(context.phi)
        clusters = _Clusters(context.phi, couplings, _strength(context), carry.shares)
        groups = _groups(context)
        if rhs.b is None and known is not None:
            known = known._replace(since=known.since + 1)
            shared = clusters.shared(groups.for_each(known.values, g))
        else:
            traces = Traces.of(context, rhs.extra, x, groups)
            traces = traces._replace(weight=to_numpy(traces.weight).astype(np.float64))
            scales, shared = _consistent(clusters, traces, known, 1 / context.noise_var)
            new = KnownScales(scales, traces.errors, clusters.strength)
            known = new if known is None else known.updated(scales, traces, clusters.strength)
        value = g / (1 + groups.for_each(known.values, g) * shared)
        value = context.clip(on_device_of(context.alpha, value.astype(precision_of(context.alpha))))

        def uncertainty() -> Array:
            # d log s / d log c = -gamma
            return value * (1 - value * context.alpha) * groups.for_each(known.errors, value)

        return DiagonalEstimate(
            value,
            uncertainty,
            Carry(carry.signs, known, clusters.shares),
            used=self.name,
            coherent=on_grid(couplings),
        )


def _strength(context: PosteriorContext) -> np.ndarray:
    return to_numpy(context.g * context.phi.column_energy).astype(np.float64)


def _groups(context: PosteriorContext) -> Groups:
    """Return what has a c of its own: arrays side by side, else what the operator names."""
    labels = labels_of(find_couplings(context.phi))
    return Groups.of(context.phi.groups if labels is None else labels, context.alpha.shape[0])


class _Clusters:
    """Clusters at some strengths, computed where those of an earlier step will not do."""

    def __init__(
        self, phi: Dictionary, couplings: Couplings | None, strength: np.ndarray, shares: Shares | None
    ) -> None:
        self.phi, self.couplings, self.strength, self.shares = phi, couplings, strength, shares

    def shared(self, scale: np.ndarray | float) -> np.ndarray:
        """Return ``t_j``, see `in_clusters`, from what is known of the clusters where that will do."""
        if self.couplings is None:
            return self.strength
        known, before = scale * self.strength, self.shares
        if isinstance(self.couplings, GridCouplings):
            found = in_tiles(tiles_of(self.phi, self.couplings), self.strength, scale, before)
        elif before is None or isinstance(self.couplings, StoredCouplings) or self._moved(before, known):
            found = in_clusters(self.couplings, self.strength, scale, before)
        else:
            return before.share * self.strength
        if before is None:
            before = Shares(known, np.ones(known.size))
        self.shares = before.updated(known, found, self.strength)
        return self.shares.share * self.strength

    def forget(self) -> None:
        """Compute the clusters again when they are asked for next: c is another one."""
        self.shares = None

    @staticmethod
    def _moved(before: Shares, known: np.ndarray) -> bool:
        return log_distance(known, before.known, known / (1 + known)) > HARDLY_MOVED


def _consistent(
    clusters: _Clusters, traces: Traces, known: KnownScales | None, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Find the c that the traces ask for, and the clusters at that c.

    Parameters
    ----------
    clusters : _Clusters
        The clusters.
    traces : Traces
        What the probes say.
    known : KnownScales or None
        The c of the step before.
    largest : float
        The largest c there is.
    """
    stored = not on_grid(clusters.couplings)
    close, rounds = (CLOSE_STORED, ROUNDS_STORED) if stored else (CLOSE_ENOUGH, ROUNDS)
    if known is None:
        scales, rounds = traces.scales(clusters.strength, largest), FIRST_ROUNDS
    else:
        scales = known.values
    shared = clusters.strength
    for round in range(rounds):
        before = scales
        if round and stored:
            clusters.forget()
        shared = clusters.shared(traces.groups.for_each(before, shared))
        scales = traces.scales(shared, largest)
        if np.all(np.abs(np.log(np.maximum(scales, 1e-300) / np.maximum(before, 1e-300))) < close):
            break
    return scales, shared
