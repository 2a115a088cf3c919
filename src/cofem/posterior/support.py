"""Which coefficients are not zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, gammainccinv, ndtri

from cofem._arrays import (
    Array,
    at_least,
    is_complex,
    namespace,
    precision_of,
    size,
    squared_modulus,
)

if TYPE_CHECKING:
    from cofem.posterior.posterior import Posterior


def find_support(posterior: Posterior, level: float) -> Array:
    """Return the indices of the coefficients that are all non-zero with probability `level`.

    See `Posterior.support` for what that means.
    """
    shared = posterior.mean.ndim == 2 and posterior.alpha.ndim == 1
    gaussian = _before_the_constraint(posterior)
    mean, variance = (posterior.mean, posterior.variance) if gaussian is None else gaussian
    n_pooled = mean.shape[1] if shared else 1
    tail = (1 - level) / (size(mean) / n_pooled)
    xp = namespace(mean)
    # What underflowed to a variance of zero belongs to a mean of zero.
    variance = at_least(variance, float(np.finfo(precision_of(variance)).tiny))
    if gaussian is not None:
        distance = mean / xp.sqrt(variance)
        # A sum of so many normal numbers of variance 1.
        least = -float(ndtri(tail)) * n_pooled**0.5
    else:
        distance = squared_modulus(mean) / variance
        # A sum of so many squared moduli of normal numbers, chi-squared.
        least = float(gammainccinv(n_pooled, tail) if is_complex(mean) else chdtri(n_pooled, tail))
    if shared:
        distance = xp.sum(distance, axis=1)
    away = distance > least
    return xp.nonzero(away if away.ndim == 1 else xp.any(away, axis=1))[0]


def _before_the_constraint(posterior: Posterior) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean and variance of the Gaussian, of one shape, where coefficients must not be negative."""
    if posterior.gaussian is not None:
        mean, variance = posterior.gaussian
        return mean, variance if mean.ndim == 1 else np.repeat(variance[:, None], mean.shape[1], axis=1)
    each = [task.gaussian for task in posterior.tasks or () if task.gaussian is not None]
    if not each:
        return None
    means, variances = zip(*each, strict=True)
    return np.stack(means, axis=1), np.stack(variances, axis=1)
