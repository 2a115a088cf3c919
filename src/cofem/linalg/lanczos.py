"""Lanczos: the spectral density of a Hermitian operator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
from scipy.linalg import eigh_tridiagonal

from cofem._arrays import Array
from cofem.linalg.probes import draw_probes
from cofem.operators.lanczos import lanczos


def spectral_density(
    apply: Callable[[Array], Array],
    like: Array,
    size: int,
    *,
    steps: int,
    vectors: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the eigenvalue density by stochastic Lanczos quadrature.

    Parameters
    ----------
    apply : callable
        ``(B, size) -> (B, size)``, a Hermitian operator.
    like : array
        Any array of the precision and kind to work in.
    size : int
        Length of its vectors.
    steps, vectors : int
        Lanczos steps, from this many random starts at once.
    rng : numpy.random.Generator
        Source of the starts.

    Returns
    -------
    nodes, weights : ndarrays
        ``sum(weights * f(nodes))`` estimates the mean of f over the eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> nodes, weights = spectral_density(
    ...     lambda x: 2 * x, np.zeros(1), 50, steps=5, vectors=1, rng=np.random.default_rng(0))
    >>> np.round(nodes, 6).tolist(), np.round(weights, 6).tolist()
    ([2.0], [1.0])
    """
    rules = quadratures(apply, like, size, steps=steps, vectors=vectors, rng=rng)
    nodes, weights = zip(*rules, strict=True)
    return np.concatenate(nodes), np.concatenate(weights) / vectors


def trace_of_function(
    function: Callable[[np.ndarray], np.ndarray],
    apply: Callable[[Array], Array],
    like: Array,
    size: int,
    *,
    steps: int,
    vectors: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Estimate the trace of a function of a Hermitian operator, and the standard error of the estimate.

    Parameters are those of `spectral_density`; `function` acts on eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> value, error = trace_of_function(
    ...     np.log, lambda x: 2 * x, np.zeros(1), 50, steps=5, vectors=3, rng=np.random.default_rng(0))
    >>> round(value / 50, 6), round(error, 6)
    (0.693147, 0.0)
    """
    rules = quadratures(apply, like, size, steps=steps, vectors=vectors, rng=rng)
    values = size * np.array([np.sum(weights * function(nodes)) for nodes, weights in rules])
    error = np.std(values, ddof=1) / np.sqrt(vectors) if vectors > 1 else np.inf
    return float(np.mean(values)), float(error)


def quadratures(
    apply: Callable[[Array], Array],
    like: Array,
    size: int,
    *,
    steps: int,
    vectors: int,
    rng: np.random.Generator,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return one Gauss quadrature (nodes, weights that sum to 1) for each random start."""
    start = draw_probes(vectors, size, like=like, rng=rng, distribution="rademacher")
    diagonal: list[np.ndarray] = []
    off_diagonal: list[np.ndarray] = []
    for step in islice(lanczos(apply, start / float(np.sqrt(size))), min(steps, size)):
        diagonal.append(step.diagonal)
        if (step.coupling <= 1e-6 * np.abs(np.array(diagonal)).max(axis=0)).any():
            break
        off_diagonal.append(step.coupling)
    rules = []
    for k in range(vectors):
        d = np.array([entry[k] for entry in diagonal])
        e = np.array([entry[k] for entry in off_diagonal[: len(d) - 1]])
        values, ritz = eigh_tridiagonal(d, e)
        rules.append((values, ritz[0] ** 2))
    return rules
