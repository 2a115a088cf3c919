"""Estimators of the posterior variances ``diag(Sigma)``, each with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cofem._arrays import namespace

Array = Any
ProbeDistribution = Literal["rademacher", "gaussian"]


@dataclass(frozen=True)
class DiagonalEstimate:
    """An estimate of a diagonal and how far it may be off.

    Attributes
    ----------
    value : array of shape (D,)
        The estimate.
    standard_error : array of shape (D,)
        Its standard error (infinite for a single probe); zero for exact values.
    """

    value: Array
    standard_error: Array


def draw_probes(
    n_probes: int, size: int, *, like: Array, rng: np.random.Generator, distribution: ProbeDistribution
) -> Array:
    """Draw probes of shape (n_probes, size): independent entries, mean 0, variance 1.

    They are drawn by NumPy and moved to the library, device and precision of `like`, so that the
    same seed gives the same probes everywhere.
    """
    xp = namespace(like)
    if distribution == "rademacher":
        probes: np.ndarray = rng.integers(0, 2, size=(n_probes, size), dtype=np.int8)
        probes *= 2
        probes -= 1
    else:
        probes = rng.standard_normal((n_probes, size))
    return xp.astype(xp.asarray(probes), like.dtype)


def estimate_diagonal(probes: Array, solutions: Array, scale: Array | float = 1.0) -> DiagonalEstimate:
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

    Examples
    --------
    >>> import numpy as np
    >>> M = np.diag([1.0, 2.0, 3.0])
    >>> p = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    >>> estimate_diagonal(p, p @ M).value.tolist()
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
    return DiagonalEstimate(value / scale, spread / scale)
