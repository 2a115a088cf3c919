r"""Variances that come from afar: inside a hole, a few smooth directions hold nearly all.

For any basis Q of some directions with :math:`Q^H A Q = I`, and a draw x with :math:`A x = b`, what x has of
them is :math:`Q Q^H b`. It is independent of the rest, and its variances are known, so that only the rest
needs draws:

.. math:: \operatorname{var} x_j = (Q Q^H)_{jj} + E |x_j - (Q Q^H b)_j|^2.

At each place the direction of that place alone joins Q. The basis are the solutions with draws as right-hand
sides, in which slow directions stand out; that of a draw leaves out what came of itself.
"""

from __future__ import annotations

import numpy as np

from cofem._arrays import (
    Array,
    conj,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    squared_modulus,
    to_numpy,
)
from cofem.linalg.analysis.system import AnalysisSystem
from cofem.linalg.cg import CGResult

#: Variance of a place's mean given its neighbours, relative to its variance given them, from which on it
#: comes from afar. At most 5 to 29 in twelve pictures of which data see 25 or 40 % of the pixels; 70 with a
#: hole of 20 x 25, 400 with more than half of 64 x 64 unseen, 10^6 in a gap of three lines. Of 1 % of the
#: places at least 5 to 14 in the pictures, 48 and more with holes.
FAR, FAR_IN_A_PART, PART = 40.0, 16.0, 0.01
#: Draws: the error of a standard deviation in a hole is 10 % with 8, 5 % with 16, 2.4 % with 32 (26 % with 8
#: draws alone, 17 % with 16).
DRAWS = 16
#: Error of the solutions that make the basis, relative to their size.
BASIS_TOL = 0.1
#: Share of what a direction has in common with others, from which on it is theirs to rounding.
ROUNDING = 1e3
#: Part of the diagonal that is left at least, where other directions have nearly all of it.
LEAST = 1e-3


def comes_from_afar(system: AnalysisSystem, remote: Array) -> bool:
    """Tell whether variances are to be had by `variance_from_afar`: always where a factor makes that cheap.

    Parameters
    ----------
    system : AnalysisSystem
        A.
    remote : array of shape (D,)
        Variance of the mean of each place given its neighbours, relative to its variance given them.
    """
    xp = namespace(remote)
    share = float(xp.count_nonzero(remote > FAR_IN_A_PART)) / remote.shape[0]
    return system.has_factor or share > PART or float(xp.max(remote)) > FAR


def variance_from_afar(
    system: AnalysisSystem, inverse: Array, rng: np.random.Generator, tol: float, max_iter: int
) -> tuple[Array, CGResult]:
    """Return the variances of all places, shape (D,), and the account of the draws.

    Parameters
    ----------
    system : AnalysisSystem
        A.
    inverse : array of shape (D,)
        The inverse of its diagonal.
    rng : numpy.random.Generator
        For the draws.
    tol : float
        Error of a draw, relative to its energy.
    max_iter : int
        Most steps of a solve.
    """
    noise_var, size, xp = system.noise_var, inverse.shape[0], namespace(inverse)
    precision = precision_of(inverse)
    kind = np.result_type(precision, np.complex64) if is_complex(system.phi.like) else np.dtype(precision)
    right = system.of_draws(DRAWS, rng, signs=True)
    b = right / noise_var
    solved = system.solve(right, tol=tol, reference=size, max_iter=max_iter, sure=True)
    x = solved.x
    basis = system.solve(noise_var * x, tol=BASIS_TOL, reference=None, max_iter=max_iter).x
    product = system.apply(basis) / noise_var
    gram = to_numpy(conj(basis) @ product.T).astype(np.result_type(kind, np.float64))
    norms = 1 / np.sqrt(np.maximum(np.diagonal(gram).real, 1e-300))
    gram = norms[:, None] * gram * norms
    total = xp.zeros_like(inverse)
    for i in range(DRAWS):
        others = np.delete(np.arange(DRAWS), i)
        values, vectors = np.linalg.eigh(gram[np.ix_(others, others)])
        known = values > ROUNDING * np.finfo(precision).eps * values[-1]
        turn = np.zeros((int(known.sum()), DRAWS), dtype=gram.dtype)
        turn[:, others] = (vectors[:, known] / np.sqrt(values[known])).T * norms[others]
        turn = on_device_of(x, turn.astype(kind))
        q, a_q = turn @ basis, turn @ product
        share = conj(q) @ b[i, :]
        alone = 1 - xp.sum(q * conj(a_q), axis=0)
        left = xp.maximum(1 / inverse - xp.sum(squared_modulus(a_q), axis=0), LEAST / inverse)
        rest = x[i, :] - share @ q - alone * (b[i, :] - share @ a_q) / left
        total += xp.sum(squared_modulus(q), axis=0) + squared_modulus(alone) / left + squared_modulus(rest)
    return total / DRAWS, solved
