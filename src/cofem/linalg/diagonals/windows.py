"""Clusters whose one number comes from draws of the posterior, of which the clusters explain most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, on_device_of, precision_of, squared_modulus, to_numpy
from cofem._blocks import blocks
from cofem._packing import packable
from cofem.linalg.couplings import Couplings, labels_of, on_grid, windows_at_once
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.diagonals.clusters import CLOSE_ENOUGH
from cofem.linalg.diagonals.pooled import solve_trace
from cofem.linalg.diagonals.shares import LIVE, in_clusters
from cofem.linalg.find_couplings import find_couplings
from cofem.linalg.probes import Signs, draw_signs

#: Draws where there are few coefficients, and coefficients from which on one is enough.
DRAWS, ENOUGH_COEFFICIENTS = 4, 2**12
#: How often clusters are computed at most in a step.
ROUNDS = 4


@packable("windows")
class Carry(NamedTuple):
    """The signs that draws are made of, for the data and for the coefficients, and the last c."""

    data: Signs
    coefficients: Signs
    scales: np.ndarray | None = None


@dataclass(frozen=True)
class Windows(DiagonalEstimator):
    r"""``s_j`` from clusters as in `Clusters`, with c from Rao-Blackwellised draws of the posterior.

    For a draw :math:`x = \Sigma b`, where :math:`b = \Phi^H e_1/\sigma + \alpha^{1/2} e_2` is known, and a
    window B around j,

    .. math:: s_j = \left[A_{BB}^{-1}\right]_{jj} + \mathrm{E}\left[(x_B - A_{BB}^{-1} b_B)_j^2\right],
              \qquad A = \Phi^H\Phi/\sigma^2 + \mathrm{diag}(\alpha).

    (Siden et al. 2018.) The first term is known, and the second is small where columns are coupled with few
    others. So a sum over all j has little noise, and fixes c far better than a trace does: on a blur of
    width 2.5 (D = 700, two draws) c was 0.54 to 0.58 of its largest value, from two probes 0.17 to 1.
    Where data are fewer than coefficients and say something about all of them, the trace is better.

    Examples
    --------
    Of an impulse that decays, half of the samples are seen, so that neighbours can be the same:

    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import Convolution, Mask
    >>> from cofem.linalg.diagonals import SelfConsistent
    >>> rows = np.flatnonzero(np.random.default_rng(0).random(256) < 0.5)
    >>> Phi = Mask(rows, 256) @ Convolution(0.7 ** np.arange(40), 256, causal=True)
    >>> alpha = np.geomspace(1, 1000, 256)
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), alpha, 0.01)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(256)) / 0.01 + np.diag(alpha))
    >>> errors = []
    >>> for estimator in (Windows(), SelfConsistent()):
    ...     carry = estimator.init(context, np.random.default_rng(1))
    ...     rhs = estimator.right_hand_sides(context, carry, np.random.default_rng(1))
    ...     x = np.zeros((0, 256)) if rhs.b is None else rhs.b @ Sigma
    ...     found = estimator.estimate(context, carry, rhs, x)
    ...     errors.append(np.abs(found.value / np.diag(Sigma) - 1).mean())
    >>> bool(errors[0] < 0.01), bool(errors[1] > 0.2)
    (True, True)
    """

    name: ClassVar[str] = "windows"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Carry:
        """Draw the signs, once: what changes from step to step then does so for a reason."""
        n, d = context.phi.shape
        count = int(np.clip(ENOUGH_COEFFICIENTS // d, 1, DRAWS))
        return Carry(draw_signs(count, n, rng), draw_signs(count, d, rng))

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Ask for draws of the posterior."""
        known: Carry = carry
        b = context.phi.adjoint(known.data.probes(context.phi.like)) / context.noise_var**0.5
        b += known.coefficients.probes(context.like) * context.alpha**0.5
        return RightHandSides(b=b, extra=to_numpy(b).copy())

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Find c and the variances that go with it."""
        known: Carry = carry
        g = to_numpy(context.g).astype(np.float64)
        strength = g * to_numpy(context.phi.column_energy).astype(np.float64)
        couplings = find_couplings(context.phi)
        largest = 1 / context.noise_var
        root = np.sqrt(g)
        # In units of the prior.
        live, sampled = sampled_variances(couplings, strength, largest, to_numpy(x) / root, rhs.extra * root)
        labels = labels_of(couplings)
        labels = np.zeros(g.size, dtype=np.intp) if labels is None else labels
        count = int(labels.max()) + 1
        # What the data say about all of these.
        gammas = np.maximum(np.bincount(labels[live], 1 - sampled, count), 0.0)
        scales = np.full(count, largest) if known.scales is None else known.scales
        shared = strength
        for _ in range(ROUNDS):
            before = scales
            shared = in_clusters(couplings, strength, before[labels])
            found = [solve_trace(shared[live[labels[live] == k]], gammas[k], largest) for k in range(count)]
            scales = np.maximum(found, 1e-12 * largest)
            if np.all(np.abs(np.log(scales / before)) < CLOSE_ENOUGH):
                break
        value = g / (1 + scales[labels] * shared)
        value = context.clip(on_device_of(context.alpha, value.astype(precision_of(context.alpha))))
        # Of the sum, from the spread of its terms; neighbours have theirs in common.
        spread = float(np.std(sampled)) * (live.size * (1 if couplings is None else couplings.size)) ** 0.5
        relative = spread / max(float(np.sum(gammas)), 1e-300)

        def uncertainty() -> Array:
            # d log s / d log c = -gamma
            return value * (1 - value * context.alpha) * relative

        return DiagonalEstimate(
            value,
            uncertainty,
            known._replace(scales=scales),
            used=self.name,
            coherent=on_grid(couplings),
        )


def sampled_variances(
    couplings: Couplings | None, strength: np.ndarray, beta: float, x: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which coefficients the data say something about, and unbiased estimates of their variances.

    Parameters
    ----------
    couplings : Couplings or None
        Which columns are in a window.
    strength : ndarray of shape (D,)
        ``g_j ||phi_j||^2``.
    beta : float
        Precision of the noise.
    x, b : ndarray of shape (K, D)
        Draws of the posterior and the right-hand sides that they solve, in units of the prior's standard
        deviations: ``x / sqrt(g)`` and ``b * sqrt(g)``.

    Returns
    -------
    live : ndarray of int, shape (n,)
    variances : ndarray of shape (n,)
        In units of the prior's.

    Examples
    --------
    A window of all columns needs no draws:

    >>> import numpy as np
    >>> from cofem.linalg.couplings import StoredCouplings
    >>> same = StoredCouplings(np.array([[1, 0], [0, 1]]), np.ones((2, 2, 2)))
    >>> Sigma = np.linalg.inv(np.ones((2, 2)) + np.eye(2))
    >>> b = np.array([[1.0, 3.0]])
    >>> live, found = sampled_variances(same, np.ones(2), 1.0, b @ Sigma, b)
    >>> np.allclose(found, np.diag(Sigma))
    True
    """
    known = beta * strength
    gamma = known / (1 + known)
    live = np.flatnonzero(gamma > LIVE * np.sqrt(np.mean(gamma**2)))
    if couplings is None:
        left = x[:, live] - b[:, live] / (1 + known[live])
        return live, 1 / (1 + known[live]) + np.mean(squared_modulus(left), axis=0)
    found = np.empty(live.size)
    root = np.sqrt(strength)
    for some in blocks(live.size, windows_at_once(couplings.size)):
        chosen = live[some]
        places, matrix = couplings.clusters(chosen, gamma, couplings.size)
        matrix = matrix * (beta * root[places][:, :, None] * root[places][:, None, :])
        diagonal = np.arange(matrix.shape[1])
        matrix[:, diagonal, diagonal] += 1
        unit = np.zeros((*places.shape, 1), dtype=matrix.dtype)
        unit[:, -1] = 1
        # The last row of the inverse, which is Hermitian.
        row = np.conj(np.linalg.solve(matrix, unit)[:, :, 0])
        # A place that fills up a small window has no part in it.
        fills = places == chosen[:, None]
        fills[:, -1] = False
        left = x[:, chosen] - np.einsum("nb,knb->kn", np.where(fills, 0, row), b[:, places])
        found[some] = row[:, -1].real + np.mean(squared_modulus(left), axis=0)
    return live, found
