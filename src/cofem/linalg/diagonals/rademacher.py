"""Direct probing of the diagonal, as in the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import Array, at_least, namespace
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.probes import ProbeDistribution, draw_probes


def estimate_diagonal(probes: Array, solutions: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
    r"""Estimate ``diag(M)`` from probes p and ``M (scale * p)`` (Bekas, Kokiopoulou and Saad 2007).

    .. math:: s_j = \sum_k \bar p_{kj}\,(M\,\mathrm{diag}(c)\,p_k)_j \,/\, (c_j \sum_k |p_{kj}|^2)

    is unbiased for every positive `scale` c when the entries of p are Rademacher. The variance of s_j
    comes from the off-diagonal entries, each weighted by ``(c_i / c_j)^2``; ``c_j = 1 / sqrt(s_j)``
    turns them into posterior correlations, which are at most 1 however unequal the variances are.

    Parameters
    ----------
    probes, solutions : arrays of shape (K, D)
        Probes and ``M (scale * probe)``.
    scale : array of shape (D,) or float
        The scale c that the probes were multiplied by.

    Returns
    -------
    value, standard_error : arrays of shape (D,)
        The estimate and its standard error, infinite for a single probe.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> M = np.diag([1.0, 2.0, 3.0])
    >>> p = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    >>> value, standard_error = estimate_diagonal(p, p @ M)
    >>> value.tolist()
    [1.0, 2.0, 3.0]
    """
    xp = namespace(probes)
    is_complex = xp.isdtype(solutions.dtype, "complex floating")
    products = xp.real(xp.conj(probes) * solutions) if is_complex else probes * solutions
    weights = xp.real(xp.conj(probes) * probes) if is_complex else probes * probes
    total = xp.sum(weights, axis=0)
    value = xp.sum(products, axis=0) / total
    n_probes = probes.shape[0]
    if n_probes == 1:
        spread = xp.full_like(value, xp.inf)
    else:
        misfit = products - value * weights
        spread = xp.sqrt(xp.sum(misfit * misfit, axis=0) * (n_probes / (n_probes - 1))) / total
    return value / scale, spread / scale


@dataclass(frozen=True)
class Rademacher(DiagonalEstimator):
    """``s_j`` from probes: unbiased on every dictionary, noisy.

    Parameters
    ----------
    probes : int
        Number of probes.
    distribution : {"rademacher", "gaussian"}
        Distribution of their entries.
    scale : float or None
        What the probes are multiplied by. None takes the inverse of the last standard deviations.
    clip : bool
        Keep the estimate within its exact bounds, or (as in the paper's code) only non-negative.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import Dense
    >>> Phi = Dense(np.random.default_rng(0).standard_normal((20, 40)))
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), np.ones(40), 0.5)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(40)) / 0.5 + np.eye(40))
    >>> estimator = Rademacher(probes=100)
    >>> rhs = estimator.right_hand_sides(context, None, np.random.default_rng(1))
    >>> found = estimator.estimate(context, None, rhs, rhs.b @ Sigma)  # solved by CG in a fit
    >>> error = np.abs(found.value - np.diag(Sigma))
    >>> bool((error < 4 * found.standard_error).all()), bool((error / np.diag(Sigma)).mean() < 0.1)
    (True, True)
    """

    probes: int = 20
    distribution: ProbeDistribution = "rademacher"
    scale: float | None = None
    clip: bool = True

    name: ClassVar[str] = "rademacher"

    def quiet(self, carry: Any) -> bool:
        """Never: the noise of a few probes is of the order of ten percent."""
        return False

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Draw fresh probes; reused ones would repeat their error in the same coefficients."""
        probes = draw_probes(
            self.probes, context.alpha.shape[0], like=context.like, rng=rng, distribution=self.distribution
        )
        scale = context.probe_scale() if self.scale is None else self.scale
        return RightHandSides(b=probes * scale, extra=(probes, scale))

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Average over the probes."""
        probes, scale = rhs.extra
        value, error = estimate_diagonal(probes, x, scale)
        value = context.clip(value) if self.clip else _non_negative(value, context.alpha)
        return DiagonalEstimate(value, error, used=self.name)


def _non_negative(x: Array, like: Array) -> Array:
    return namespace(x).astype(at_least(x, 0.0), like.dtype)
