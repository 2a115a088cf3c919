"""Variances from small clusters of columns that are coupled, for coherent dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, conj, on_device_of, precision_of, to_numpy
from cofem._blocks import blocks
from cofem._packing import packable
from cofem.linalg.couplings import Couplings, find_couplings, labels_of, on_grid, windows_at_once
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.diagonals.pooled import Traces
from cofem.linalg.probes import Signs, draw_signs

#: Coefficients whose gamma is below this share of its root mean square are not looked at in clusters.
LIVE = 0.1
#: Change of c, in logarithms, up to which the clusters need not be computed again.
CLOSE_ENOUGH = 0.1
#: Coefficients from which on one probe is enough.
ENOUGH_COEFFICIENTS = 2**11
#: How often they are computed at most, in a first step and in others.
FIRST_ROUNDS, ROUNDS = 6, 2


@packable("clusters")
class Carry(NamedTuple):
    """The probe, and the last c."""

    signs: Signs
    #: One number for each group.
    scales: np.ndarray | None = None


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
        return Carry(draw_signs(int(np.clip(ENOUGH_COEFFICIENTS // size, 1, 8)), size, rng))

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Ask for the probe, whitened by what is known of the posterior."""
        probes = carry.signs.probes(context.like)
        return RightHandSides(b=probes * context.probe_scale(), extra=probes)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Find c and the variances that go with it."""
        known: Carry = carry
        g = to_numpy(context.g).astype(np.float64)
        strength = g * to_numpy(context.phi.column_energy).astype(np.float64)
        couplings = find_couplings(context.phi)
        traces = Traces.of(context, rhs.extra, x, labels_of(couplings))
        traces = traces._replace(weight=to_numpy(traces.weight).astype(np.float64))
        largest = 1 / context.noise_var
        scales = known.scales
        rounds = ROUNDS
        if scales is None:
            scales, rounds = traces.scales(strength, largest), FIRST_ROUNDS
        shared = strength
        for _ in range(rounds):
            before = scales
            shared = in_clusters(couplings, strength, traces.for_each(before, strength))
            scales = traces.scales(shared, largest)
            if np.all(np.abs(np.log(np.maximum(scales, 1e-300) / np.maximum(before, 1e-300))) < CLOSE_ENOUGH):
                break
        value = g / (1 + traces.for_each(scales, strength) * shared)
        value = context.clip(on_device_of(context.alpha, value.astype(precision_of(context.alpha))))

        def uncertainty() -> Array:
            # d log s / d log c = -gamma
            return value * (1 - value * context.alpha) * traces.for_each(traces.errors, value)

        return DiagonalEstimate(
            value,
            uncertainty,
            known._replace(scales=scales),
            used=self.name,
            coherent=on_grid(couplings),
        )


def in_clusters(couplings: Couplings | None, strength: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    """Return ``t_j`` with ``s_j = g_j / (1 + c t_j)``: the strength of a column less what others share of it.

    Parameters
    ----------
    couplings : Couplings or None
        Which columns share.
    strength : ndarray of shape (D,)
        ``g_j ||phi_j||^2``.
    scale : float or ndarray of shape (D,)
        c.

    Examples
    --------
    Of two columns that are the same, each is known as if the other were noise:

    >>> import numpy as np
    >>> from cofem.linalg.couplings import StoredCouplings
    >>> same = StoredCouplings(np.array([[1, 0], [0, 1]]), np.ones((2, 2, 2)))
    >>> in_clusters(same, np.ones(2), 1.0)
    array([0.5, 0.5])
    """
    known = scale * strength
    if couplings is None:
        return strength
    gamma = known / (1 + known)
    live = np.flatnonzero(gamma > LIVE * np.sqrt(np.mean(gamma**2)))
    shared = strength.copy()
    root = np.sqrt(strength)
    scale = np.broadcast_to(scale, strength.shape)
    strong = gamma[live] > np.sqrt(np.mean(gamma**2))
    parts = [(live[strong], couplings.size), (live[~strong], couplings.size_of_weak)]
    for chosen, size in _in_blocks(parts):
        places, matrix = couplings.clusters(chosen, gamma, size)
        roots = root[places]
        # In units of the prior: the identity, and what the data say.
        matrix = matrix * (scale[chosen, None, None] * roots[:, :, None] * roots[:, None, :])
        diagonal = np.arange(matrix.shape[1])
        matrix[:, diagonal, diagonal] += 1
        # The last pivot is what is left of the column that comes last, once the others are taken out.
        last = np.linalg.cholesky(matrix)[:, -1, -1]
        shared[chosen] = ((conj(last) * last).real - 1) / scale[chosen]
    return np.maximum(shared, 0.0)


def _in_blocks(parts: Iterable[tuple[np.ndarray, int]]) -> Iterator[tuple[np.ndarray, int]]:
    for chosen, size in parts:
        for some in blocks(chosen.size, windows_at_once(size)):
            yield chosen[some], size
