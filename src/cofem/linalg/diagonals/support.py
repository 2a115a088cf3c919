"""Variances of the coefficients that were found, checked one by one at the end of a fit.

A fast estimate is right on average, which two columns that are the same among a thousand do not change. Their
own variances are then far too small. So those that were found are looked at once more:

1. Where Phi stores its columns, those that share more with live ones than the estimate says are suspected.
2. Otherwise those for which a few probes on the support disagree with the estimate are; all of them where
   the smaller side of Phi is at most `WRITTEN_SIDE`.

If there are any, all variances of the support are computed by a factor where that side is small.

Elsewhere those of suspects are, one linear system each, `MOST_SOLVES` of them at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cofem._arrays import (
    Array,
    conj,
    in_precision,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    squared_modulus,
    to_numpy,
)
from cofem._blocks import WRITTEN_OUT, blocks, vectors_at_once
from cofem.linalg.build import right_hand_sides_at_once
from cofem.linalg.diagonals.base import PosteriorContext
from cofem.linalg.direct import DirectSystem, is_small
from cofem.linalg.probes import draw_signs
from cofem.operators import Mask
from cofem.status import Caution

#: Standard deviations from zero at which a coefficient counts as found here.
FOUND = 3.0
#: Smaller side of Phi up to which all variances of the support come from a factor: of a Phi that stores its
#: columns, and of one that has to be written out. For a DCT with N = 512 that took a third of the fit, and
#: 90 % of the standard deviations were within 4 % of the estimates; with N = 341 three of fifty coefficients
#: were in the support of a fit, and not in that of the same fit from another start.
FACTOR_SIDE, WRITTEN_SIDE = 512, 384
#: How much more, or less, of a column may lie along live ones (a sum of squared cosines) than its estimate
#: takes into account: the precision from the data is about (1 - sum) times that of the column alone.
SHARED = 0.15
#: Share that the data have in a coefficient from which on it is live.
LIVE = 0.1
#: Most columns that are compared with each other.
COMPARED_COLUMNS = 2048
#: Probes on the support, the relative deviation and how many of its standard errors make a suspect.
PROBES, DEVIATION, ERRORS = 2, 0.5, 4.0
#: Share of probes that are off by more than so many times the estimate from which on all are suspects. In
#: incoherent dictionaries probes scatter by up to about the estimate itself (DCT, as many found as 0.4 N).
MANY, FAR_OFF = 0.05, 5.0
#: Most linear systems for suspects, and how many of them, the worst first, clear the others if none was
#: wrong: at D = 2^16 on a blur 32 took as long as two incoherent fits, and none was off by more than 10 %.
MOST_SOLVES, FIRST_SOLVES = 32, 8
#: Ratio of exact to estimated variance that is pointed out (20 % in the standard deviation).
POINTED_OUT = 1.44


class SupportCheck(NamedTuple):
    """Variances after the check, and what there is to say about them."""

    variance: Array
    note: str = ""


def check_support(
    context: PosteriorContext, mean: Array, variance: Array, rng: np.random.Generator, probes: int = PROBES
) -> SupportCheck:
    """Return the variances with those of suspects in the support computed exactly.

    Parameters
    ----------
    context : PosteriorContext
        The posterior; its `solve` is used.
    mean : array of shape (D,) or (L, D)
        Its mean, a row for each task.
    variance : array of shape (D,)
        The estimate.
    rng : numpy.random.Generator
        Source of the probes.
    probes : int
        How many; more where estimates may be wrong one by one.

    Examples
    --------
    Two columns are the same, which the estimate does not know of:

    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> from cofem.operators.dictionary import Dictionary
    >>> Phi = np.random.default_rng(0).standard_normal((30, 20))
    >>> Phi[:, 1] = Phi[:, 0]
    >>> context = PosteriorContext(Dictionary(Dense(Phi), like=np.zeros(1)), np.ones(20), 0.01)
    >>> checked = check_support(context, np.ones(20), context.floor, np.random.default_rng(0))
    >>> Sigma = np.linalg.inv(Phi.T @ Phi / 0.01 + np.eye(20))
    >>> bool(context.floor[0] < 0.01), np.allclose(checked.variance, np.diag(Sigma))
    (True, True)
    """
    xp = namespace(variance)
    power = squared_modulus(mean)
    power = power if power.ndim == 1 else xp.max(power, axis=0)
    found = to_numpy(xp.nonzero(power > FOUND**2 * variance)[0])
    del power  # a long vector
    if not found.size:
        return SupportCheck(variance)
    phi = context.phi
    written = not phi.stored_entries and isinstance(variance, np.ndarray)
    small = min(phi.shape) <= (WRITTEN_SIDE if written else FACTOR_SIDE)
    if phi.stored_entries:
        suspects = _alike(context, variance, found)
    elif small:
        suspects = found
    else:
        suspects = _off(context, variance, found, rng, probes)
    if suspects.size and small and is_small(phi) and isinstance(variance, np.ndarray):
        suspects, exact = found, exact_variances(context, found)
    else:
        # Stored columns are suspects for a reason, others often by chance.
        first = MOST_SOLVES if phi.stored_entries else min(FIRST_SOLVES, MOST_SOLVES)
        exact = _solve_for(context, suspects[:first])
        if not phi.stored_entries and not _wrong(exact, variance, suspects[:first]).any():
            suspects = suspects[:first]
        elif suspects[first:MOST_SOLVES].size:
            exact = xp.concat([exact, _solve_for(context, suspects[first:MOST_SOLVES])])
    if not exact.shape[0]:
        return SupportCheck(variance)
    solved, left = suspects[: exact.shape[0]], suspects[exact.shape[0] :]
    pick = Mask(solved, variance.shape[0])
    wrong = solved[_wrong(exact, variance, solved)]
    exact = in_precision(exact, precision_of(variance))
    variance = xp.where(pick.adjoint(xp.ones_like(exact)) > 0, pick.adjoint(exact), variance)
    return SupportCheck(context.clip(variance), _note(wrong, left))


def _wrong(exact: Array, variance: Array, solved: np.ndarray) -> np.ndarray:
    """Tell which of the variances that were solved for are to be pointed out."""
    if not solved.size:
        return np.zeros(0, dtype=bool)
    ratio = to_numpy(exact / Mask(solved, variance.shape[0]).forward(variance))
    return (ratio > POINTED_OUT) | (ratio < 1 / POINTED_OUT)


def _note(wrong: np.ndarray, left: np.ndarray) -> str:
    """Say which variances were computed again, or should be."""
    if not wrong.size:
        return ""
    if left.size:
        return Caution(
            f"the standard deviations of {left.size} coefficients may be off by more than 20 %, because "
            f"their columns are like others: {_listed(left)}; post.covariance computes them exactly"
        )
    return (
        f"the columns of {wrong.size} coefficients that were found are like others, and their standard "
        f"deviations were computed one by one: {_listed(wrong)}"
    )


def _units(context: PosteriorContext, indices: np.ndarray) -> Array:
    """Return unit vectors in the rows of an array, where the coefficients are."""
    units = np.zeros((indices.size, context.phi.shape[1]), dtype=precision_of(context.like))
    units[np.arange(indices.size), indices] = 1
    return namespace(context.like).astype(on_device_of(context.like, units), context.like.dtype)


def _alike(context: PosteriorContext, variance: Array, found: np.ndarray) -> np.ndarray:
    """Return those of the support that share more, or less, with live columns than their estimates say."""
    xp = namespace(variance)
    known = to_numpy(1 - context.alpha * variance)
    # What the estimate leaves of the precision that the data would give to a column alone.
    alone = to_numpy(variance * context.phi.column_energy / context.noise_var)
    left = known / np.maximum(alone, np.finfo(alone.dtype).tiny)  # nothing is known of a column of zeros
    live = np.flatnonzero(known > LIVE)
    most = min(COMPARED_COLUMNS, vectors_at_once(context.phi.shape[0], WRITTEN_OUT))
    chosen = np.concatenate([found, np.setdiff1d(live, found)])[:most]
    columns = context.phi.columns(chosen)
    norms = xp.linalg.vector_norm(columns, axis=1, keepdims=True)
    columns = columns / xp.where(norms > 0, norms, xp.ones_like(norms))
    count = min(found.size, chosen.size)
    cosines = to_numpy(squared_modulus(conj(columns[:count, :]) @ columns.T))
    cosines[np.arange(count), np.arange(count)] = 0
    shared = cosines @ np.clip(known[chosen], 0, 1)
    # Of the many that are hardly live, a share of 1 / N each.
    rest = (np.sum(known) - np.sum(known[chosen])) / context.phi.shape[0]
    excess = np.abs(shared + rest - (1 - left[chosen[:count]]))
    order = np.argsort(excess)[::-1]
    return found[order[excess[order] > SHARED]]


def _off(
    context: PosteriorContext, variance: Array, found: np.ndarray, rng: np.random.Generator, probes: int
) -> np.ndarray:
    """Return those of the support that probes on it contradict, the worst first."""
    assert context.solve is not None
    pick = Mask(found, variance.shape[0])
    scale = 1 / namespace(variance).sqrt(pick.forward(variance))
    signs = draw_signs(probes, found.size, rng).probes(context.like)
    # One after the other: a probe is as long as all coefficients.
    solved = [pick.forward(context.solve(pick.adjoint(signs[k : k + 1, :] * scale))) for k in range(probes)]
    ratios = np.real(to_numpy(conj(signs) * namespace(signs).concat(solved) * scale))
    deviation = np.abs(ratios.mean(axis=0) - 1)
    order = np.argsort(deviation)[::-1]
    if np.mean(np.abs(ratios - 1) > FAR_OFF) > MANY:
        return found[order]  # no probe can be trusted to clear any of them
    spread = 1.4826 * float(np.median(np.abs(ratios - 1)))
    return found[order[deviation[order] > max(DEVIATION, ERRORS * spread / probes**0.5)]]


def exact_variances(context: PosteriorContext, indices: np.ndarray) -> np.ndarray:
    """Return the variances of some coefficients, by a factor where Phi is small, else by linear systems."""
    phi = context.phi
    if not is_small(phi):
        return to_numpy(_solve_for(context, indices))
    system = DirectSystem(phi, context.alpha.astype(np.float64), context.noise_var)
    parts = blocks(indices.size, vectors_at_once(phi.shape[1]))
    return np.concatenate([np.zeros(0), *(system.variance(_units(context, indices[some])) for some in parts)])


def _solve_for(context: PosteriorContext, indices: np.ndarray) -> Array:
    """Return the variances of some coefficients, one linear system each."""
    if not indices.size:
        return np.zeros(0)
    assert context.solve is not None
    found = []
    for some in blocks(indices.size, right_hand_sides_at_once(context.phi)):
        solved = context.solve(_units(context, indices[some]))
        solved = namespace(solved).real(solved) if is_complex(solved) else solved
        found += [solved[i, j] for i, j in enumerate(indices[some].tolist())]
        del solved  # before the next one is made
    return namespace(context.like).stack(found)


def _listed(indices: np.ndarray, most: int = 8) -> str:
    words = ", ".join(map(str, np.sort(indices)[:most].tolist()))
    return words if indices.size <= most else f"{words}, ..."
