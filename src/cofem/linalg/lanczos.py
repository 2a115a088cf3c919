"""Lanczos: the spectral density of a Hermitian operator, and quadratic forms of its logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from cofem._arrays import Array
from cofem.linalg.probes import draw_probes
from cofem.operators.lanczos import lanczos

#: Lanczos steps before brackets are looked at first, and how many times as many until the next look.
FIRST_LOOK, LOOK_AGAIN = 8, 1.3
#: Steps after which a law of the spectrum is compared with what was found; how far the means of the entries
#: may be off, and each of them. Gaussian, sparse and sign matrices of 768 x 3072 had
#: 0.01 to 0.03 and 0.07 at most, neighbours correlated by 0.3 or one column in ten nearly twice 0.08 to 0.11.
LOOK, LAW_MEAN, LAW_EACH = 6, 0.05, 0.2
#: Starts of these steps for few rows; from so many on one tells as much.
LOOK_STARTS, MANY_ROWS = 2, 1000
#: The same of small matrices, over the square root of their rows (20 Gaussian ones each of 51 x 256 to 205 x
#: 1024: 0.74 and 3.1 at most; neighbours correlated by 0.5: from 1.4 on, 2.4 and 4.8 on average).
SMALL_LAW_MEAN, SMALL_LAW_EACH = 0.8, 3.1
#: What is left of a start after a step, relative to A, that is rounding.
NOTHING_LEFT = 1e-12


class SpectralDensity(NamedTuple):
    """Eigenvalues of a Hermitian operator.

    Attributes
    ----------
    nodes, weights : ndarrays
        ``sum(weights * f(nodes))`` estimates the mean of f over the eigenvalues.
    """

    nodes: np.ndarray
    weights: np.ndarray


def spectral_density(
    apply: Callable[[Array], Array],
    like: Array,
    size: int,
    *,
    steps: int,
    vectors: int,
    rng: np.random.Generator,
) -> SpectralDensity:
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
    return SpectralDensity(np.concatenate(nodes), np.concatenate(weights) / vectors)


class Brackets(NamedTuple):
    """Bounds on ``v^H log(A) v`` for each start v, and the steps that they took.

    Attributes
    ----------
    lower, upper : ndarrays of shape (B,)
        The bounds; equal where the steps have seen all that the start sees of A.
    steps : int
        Lanczos steps.
    """

    lower: np.ndarray
    upper: np.ndarray
    steps: int


def bracket_log(
    apply: Callable[[Array], Array],
    start: Array,
    least: float,
    *,
    steps: int,
    close: Callable[[Brackets], bool],
) -> Brackets:
    """Bracket ``v^H log(A) v`` for a positive Hermitian A, with as many Lanczos steps as that takes.

    Gauss's quadrature lies above it and Gauss-Radau's, with a node at a lower bound on the eigenvalues, lies
    below (Golub and Meurant, Matrices, Moments and Quadrature with Applications, 2010, chapter 6).

    Parameters
    ----------
    apply : callable
        ``(B, n) -> (B, n)``, the operator A.
    start : array of shape (B, n)
        Start vectors v of norm one.
    least : float
        A positive number that no eigenvalue of A is below.
    steps : int
        Most Lanczos steps.
    close : callable
        Tells whether brackets are good enough; asked now and then.

    Examples
    --------
    >>> import numpy as np
    >>> found = bracket_log(
    ...     lambda x: x * np.array([1.0, 3.0, 4.0]), np.full((1, 3), 3**-0.5), 0.5, steps=2,
    ...     close=lambda brackets: False)
    >>> bool(found.lower[0] < np.log(12) / 3 < found.upper[0]), found.steps
    (True, 2)
    """
    diagonal: list[np.ndarray] = []
    coupling: list[np.ndarray] = []
    ends = np.zeros(start.shape[0], dtype=int)  # the step after which nothing is left of a start
    following = FIRST_LOOK
    for step in islice(lanczos(apply, start), steps):
        diagonal.append(step.diagonal)
        coupling.append(step.coupling)
        count = len(diagonal)
        nothing_left = step.coupling <= NOTHING_LEFT * np.abs(diagonal).max(axis=0)
        ends = np.where((ends == 0) & nothing_left, count, ends)
        if count >= following or count == steps or ends.all():
            following = math.ceil(LOOK_AGAIN * count)
            found = _brackets(np.array(diagonal), np.array(coupling), ends, least)
            if ends.all() or close(found):
                break
    return found


def _brackets(diagonal: np.ndarray, coupling: np.ndarray, ends: np.ndarray, least: float) -> Brackets:
    """Return Gauss's and Gauss-Radau's quadrature of the logarithm for each start."""
    count = len(diagonal)
    least *= 1 - 1e-8  # or rounding would decide where it is an eigenvalue
    lower, upper = np.empty(ends.size), np.empty(ends.size)
    for k, end in enumerate(ends):
        size = end or count
        d, e = diagonal[:size, k], coupling[:size, k]
        lower[k] = upper[k] = _quadrature_of_log(d, e[:-1], least)
        if not end:
            last = least + e[-1] ** 2 / _last_pivot(d - least, e[:-1])
            lower[k] = min(upper[k], _quadrature_of_log(np.append(d, last), e, least))
    return Brackets(lower, upper, count)


def _quadrature_of_log(diagonal: np.ndarray, beside: np.ndarray, least: float) -> float:
    values, ritz = eigh_tridiagonal(diagonal, beside)
    return float(np.sum(ritz[0] ** 2 * np.log(np.maximum(values, least))))


def _last_pivot(diagonal: np.ndarray, beside: np.ndarray) -> float:
    """Return the last pivot of a positive tridiagonal matrix; what rounds to below zero is cut off."""
    smallest = float(np.finfo(float).eps * np.abs(diagonal).max()) or float(np.finfo(float).tiny)
    pivot = max(float(diagonal[0]), smallest)
    for entry, neighbour in zip(diagonal[1:], beside, strict=True):
        pivot = max(float(entry - neighbour**2 / pivot), smallest)
    return pivot


def quadratures(
    apply: Callable[[Array], Array],
    like: Array,
    size: int,
    *,
    steps: int,
    vectors: int,
    rng: np.random.Generator,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a Gauss quadrature (nodes, weights that sum to 1) for each random start."""
    diagonal, beside = _entries(apply, like, size, steps=steps, vectors=vectors, rng=rng)
    return [_quadrature(diagonal[:, k], beside[: len(diagonal) - 1, k]) for k in range(vectors)]


def _entries(
    apply: Callable[[Array], Array],
    like: Array,
    size: int,
    *,
    steps: int,
    vectors: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries on and beside the diagonals, shape (k, vectors); fewer where a start is used up."""
    start = draw_probes(vectors, size, like=like, rng=rng, distribution="rademacher")
    diagonal: list[np.ndarray] = []
    beside: list[np.ndarray] = []
    for step in islice(lanczos(apply, start / float(np.sqrt(size))), min(steps, size)):
        diagonal.append(step.diagonal)
        if (step.coupling <= 1e-6 * np.abs(np.array(diagonal)).max(axis=0)).any():
            break
        beside.append(step.coupling)
    return np.array(diagonal), np.array(beside).reshape(len(beside), vectors)


def looks_gaussian(
    apply: Callable[[Array], Array], like: Array, shape: tuple[int, int], rng: np.random.Generator
) -> bool:
    """Tell whether a few Lanczos steps are as those of ``M^H M`` for a matrix M of Gaussian columns.

    Parameters
    ----------
    apply : callable
        ``(B, D) -> (B, D)``, the product with ``M^H M``, whose columns have norm one.
    like : array
        Any array of the precision and kind to work in.
    shape : tuple of two int
        The shape (N, D) of M.
    rng : numpy.random.Generator
        Source of the starts.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gaussian = rng.standard_normal((300, 900))
    >>> for M in (gaussian, np.cumsum(gaussian, axis=1)):
    ...     M = M / np.linalg.norm(M, axis=0)
    ...     looks_gaussian(lambda x: x @ M.T @ M, np.zeros(1), M.shape, rng)
    True
    False
    """
    vectors = 1 if shape[0] >= MANY_ROWS else LOOK_STARTS
    diagonal, beside = _entries(apply, like, shape[1], steps=LOOK, vectors=vectors, rng=rng)
    return len(beside) == LOOK and GaussianLaw(*shape).fits(diagonal, beside)


class GaussianLaw(NamedTuple):
    """The eigenvalues of ``M^H M`` for Gaussian columns of norm one: those of Marchenko and Pastur.

    Lanczos has 1, 1 + q, 1 + q, ... on the diagonal and sqrt(q) beside it, with q columns for each row.

    Attributes
    ----------
    rows, columns : float
        The shape of M. Small matrices differ from the law by chance.

    Examples
    --------
    A quarter as many rows as columns; three quarters of the eigenvalues are zero:

    >>> nodes, weights = GaussianLaw(100, 400).quadrature(40)
    >>> round(float(weights[nodes < 1e-6].sum()), 3), round(float(weights @ nodes), 3)
    (0.75, 1.0)
    """

    rows: float
    columns: float

    def fits(self, diagonal: np.ndarray, beside: np.ndarray) -> bool:
        """Tell whether the entries of a few steps, for each start, are those of the law but for chance."""
        q = self.columns / self.rows
        ratios = np.concatenate([diagonal[1:] / (1 + q), beside / q**0.5])
        means = np.array([np.mean(diagonal[1:]) / (1 + q), np.mean(beside) / q**0.5])
        chance = self.rows**-0.5
        mean, each = max(LAW_MEAN, SMALL_LAW_MEAN * chance), max(LAW_EACH, SMALL_LAW_EACH * chance)
        return bool(np.abs(means - 1).max() < mean and np.abs(ratios - 1).max() < each)

    def quadrature(self, count: int) -> SpectralDensity:
        """Return `count` nodes with their weights."""
        q = self.columns / self.rows
        diagonal = np.full(count, 1 + q)
        diagonal[0] = 1.0
        nodes, weights = _quadrature(diagonal, np.full(count - 1, q**0.5))
        return SpectralDensity(np.maximum(nodes, 0.0), weights)


def _quadrature(diagonal: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, ritz = eigh_tridiagonal(diagonal, beside)
    return values, ritz[0] ** 2
