r"""Moments, quantiles and draws of a Gaussian that is cut off at zero: ``z ~ N(mu, s)`` given ``z >= 0``.

With ``a = -mu / sqrt(s)`` and the hazard ``h(a) = phi(a) / Q(a)`` of the normal distribution,

.. math:: E z = \sqrt s\,(h - a), \qquad E z^2 = s\,(1 - a (h - a)).

For means far below zero both differences cancel. The continued fraction
``h(a) - a = 1 / (a + 2 / (a + 3 / ...)) = 1 / c_2`` does not: with ``c_k = a + k / c_{k+1}``,

.. math:: E z = \sqrt s / c_2, \qquad E z^2 = 2 s / (c_2 c_3), \qquad
          \mathrm{Var}\,z = s\,(a + 4/c_3 - 3/c_4) / (c_2^2 c_3).
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr, ndtri, ndtri_exp

from cofem._arrays import Array

#: From this many standard deviations below zero on, the continued fraction is used.
FAR_BELOW = 4.0
#: Its depth: at `FAR_BELOW`, the relative error is then below 1e-13.
DEPTH = 80


def rectified_moments(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Mean and variance of ``N(mean, variance)`` given that it is not negative.

    Examples
    --------
    >>> import numpy as np
    >>> mean, variance = rectified_moments(np.array([0.0, -1e3]), np.array([1.0, 1.0]))
    >>> bool(np.isclose(mean[0], np.sqrt(2 / np.pi))), bool(np.isclose(mean[1], 1e-3, rtol=1e-5))
    (True, True)
    """
    first, _, spread = _moments(mean, variance)
    return first.astype(mean.dtype), spread.astype(variance.dtype)


def rectified_second_moment(mean: Array, variance: Array) -> Array:
    """``E z^2`` of ``N(mean, variance)`` given that it is not negative."""
    return _moments(mean, variance)[1].astype(variance.dtype)


def _moments(mean: Array, variance: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mu, s = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(variance, np.float64))
    sigma = np.sqrt(s)
    a = -mu / sigma
    excess = np.sqrt(2 / np.pi) / erfcx(np.minimum(a, FAR_BELOW) / np.sqrt(2)) - a  # h(a) - a
    first = sigma * excess
    second = s * (1 - a * excess)
    spread = s * (1 - a * excess - excess**2)
    far = a > FAR_BELOW
    if far.any():
        b, v, sd = a[far], s[far], sigma[far]
        c = b
        tail = {}
        for k in range(DEPTH, 1, -1):
            c = b + k / c
            if k <= 4:
                tail[k] = c
        first[far] = sd / tail[2]
        second[far] = 2 * v / (tail[2] * tail[3])
        spread[far] = v * (b + 4 / tail[3] - 3 / tail[4]) / (tail[2] ** 2 * tail[3])
    return first, second, np.maximum(spread, 0.0)


def rectified_quantile(probability: float | Array, mean: Array, variance: Array) -> Array:
    """Quantiles of ``N(mean, variance)`` given that it is not negative.

    Examples
    --------
    >>> import numpy as np
    >>> float(np.round(rectified_quantile(0.5, np.array([0.0]), np.array([1.0]))[0], 4))
    0.6745
    """
    mu, sigma = np.asarray(mean, dtype=np.float64), np.sqrt(np.asarray(variance, dtype=np.float64))
    a = -mu / sigma
    # The upper tail, in logarithms: P(z > q) = Q((q - mu) / sigma) / Q(a).
    upper = np.log1p(-np.asarray(probability, dtype=np.float64))
    x = -ndtri_exp(np.minimum(upper + log_ndtr(-a), 0.0))
    # Far below zero, mu + sigma x cancels; there the tail is exponential to first order.
    far = a > 1e4
    quantile = np.where(far, -sigma * upper / np.maximum(a, 1.0), mu + sigma * x)
    return np.maximum(quantile, 0.0).astype(np.asarray(mean).dtype)


def rectified_interval(level: float, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Shortest interval that holds `level` of ``N(mean, variance)`` given that it is not negative.

    It begins at zero where zero is likely, and is central around the mean elsewhere.

    Examples
    --------
    >>> import numpy as np
    >>> lower, upper = rectified_interval(0.9, np.array([-1.0, 0.0, 1.0, 9.0]), np.ones(4))
    >>> lower.round(2).tolist(), upper.round(2).tolist()
    ([0.0, 0.0, 0.0, 7.36], [1.15, 1.64, 2.38, 10.64])
    """
    mu, sigma = np.asarray(mean, dtype=np.float64), np.sqrt(np.asarray(variance, dtype=np.float64))
    half = sigma * ndtri(0.5 * (1 + level * ndtr(mu / sigma)))
    one_sided = half >= mu
    kind = np.asarray(mean).dtype
    lower = np.where(one_sided, 0.0, mu - half).astype(kind)
    upper = np.where(one_sided, rectified_quantile(level, mean, variance), mu + half).astype(kind)
    return lower, upper


def rectified_draws(mean: Array, variance: Array, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n times from every ``N(mean_j, variance_j)`` given that it is not negative, shape (n, D)."""
    return rectified_quantile(rng.random((n, mean.shape[0])), mean, variance)
