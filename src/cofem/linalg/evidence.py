"""The log evidence ``log p(y | alpha, beta)``: from its two ingredients, and without a covariance matrix."""

from __future__ import annotations

import math
from typing import NamedTuple

import array_api_compat
import numpy as np

from cofem._arrays import Array, inner, is_complex, namespace, size, squared_modulus, total
from cofem.linalg.lanczos import trace_of_function
from cofem.operators import Operator

#: Smaller side of the dictionary up to which the determinant is computed exactly.
EXACT_DETERMINANT = 512


class LogEvidence(NamedTuple):
    """A log evidence in nats and the standard error of its estimate."""

    value: float
    standard_error: float


def log_evidence(
    phi: Operator, alpha: Array, noise_var: float, y: Array, mean: Array, log_det: float
) -> float:
    """Return the log density of y given the precisions, where ``log det C`` is known.

    Parameters
    ----------
    phi : Operator
        Shape (N, D).
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    y, mean : arrays of shape (L, N) and (L, D)
        The data and the posterior mean of each task.
    log_det : float
        ``log det C`` for ``C = noise_var I + Phi diag(1/alpha) Phi^H``; see `log_determinant`.
    """
    # y^H C^-1 y as the least of ||y - Phi z||^2 / noise_var + z^H diag(alpha) z, whose error is of
    # second order in that of the mean.
    misfit = y - phi.forward(mean)
    quadratic = inner(misfit, misfit) / noise_var + total(squared_modulus(mean) * alpha)
    return log_normal_density(size(y), y.shape[0] * log_det, quadratic, is_complex(y))


def log_determinant(
    phi: Operator,
    alpha: Array,
    noise_var: float,
    like: Array,
    *,
    vectors: int,
    steps: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return ``log det (noise_var I + Phi diag(1/alpha) Phi^H)`` and its standard error.

    By stochastic Lanczos quadrature with so many random `vectors` (as `like`) and `steps`, or exactly where
    the smaller side of Phi is at most 512.
    """
    n, d = phi.shape
    xp = namespace(like)
    g = 1 / alpha
    root = xp.sqrt(g)
    if n <= d:

        def relative(w: Array) -> Array:
            """``C / noise_var``."""
            return w + phi.forward(g * phi.adjoint(w)) / noise_var

        side = n
    else:

        def relative(w: Array) -> Array:
            """``I + G^1/2 Phi^H Phi G^1/2 / noise_var``, of the same determinant."""
            return w + root * phi.gram(root * w) / noise_var

        side = d
    if side <= EXACT_DETERMINANT:
        identity = xp.eye(side, dtype=like.dtype, device=array_api_compat.device(like))
        value, error = float(xp.linalg.slogdet(relative(identity))[1]), 0.0
    else:
        value, error = trace_of_function(np.log, relative, like, side, steps=steps, vectors=vectors, rng=rng)
    return value + n * math.log(noise_var), error


def log_normal_density(n: int, log_det: float, quadratic: float, circular: bool) -> float:
    """Return the log of a normal density of n numbers, real or circular complex ones.

    `log_det` is that of their covariance C, `quadratic` is ``y^H C^-1 y``.
    """
    if circular:
        return -(n * math.log(math.pi) + log_det + quadratic)
    return -0.5 * (n * math.log(2 * math.pi) + log_det + quadratic)
