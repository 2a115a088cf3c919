"""Which coefficients are not zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, gammainccinv, ndtri

from cofem._arrays import (
    Array,
    as_rows,
    at_least,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    squared_modulus,
    to_numpy,
    transposed,
)
from cofem.posterior.alternatives import alternatives

if TYPE_CHECKING:
    from cofem.posterior.posterior import Posterior

#: Most coefficients of blocks for whose covariances linear systems are solved by conjugate gradients.
MOST_SYSTEMS = 512


def find_support(posterior: Posterior, level: float) -> Array:
    """Return the indices of the coefficients that are all non-zero with probability `level`.

    See `Posterior.support` for what that means.
    """
    if posterior.tasks is not None and (posterior.alpha is None or posterior.alpha.ndim == 2):
        apart = 1 - (1 - level) / posterior.n_tasks
        each = [to_numpy(find_support(task, apart)) for task in posterior.tasks]
        return on_device_of(posterior.mean, np.unique(np.concatenate(each)))
    if posterior.blocks is not None and not _has_constraint(posterior):
        return on_device_of(posterior.mean, _in_blocks(posterior, posterior.blocks, level))
    found = to_numpy(_away_from_zero(posterior, level))
    return on_device_of(posterior.mean, found[_certain(posterior, found, level)])


def about_the_support(posterior: Posterior, level: float = 0.95) -> str:
    """Say how many columns `find_support` leaves out because others may take their place."""
    if posterior.tasks is not None or posterior.blocks is not None:
        return ""
    found = to_numpy(_away_from_zero(posterior, level))
    left_out = found[~_certain(posterior, found, level)]
    if not left_out.size:
        return ""
    what = f"column {left_out[0]} is" if left_out.size == 1 else f"{left_out.size} columns are"
    return (
        f"{what} not in support(), though the coefficient is not zero in this fit: others, alike, explain "
        "the data nearly as well"
    )


def _certain(posterior: Posterior, found: np.ndarray, level: float) -> np.ndarray:
    """Tell which of the columns that were found are all the right ones with probability `level`."""
    doubt = np.array([1 - each.chance for each in alternatives(posterior, found)])
    order = np.argsort(doubt, kind="stable")
    certain = np.zeros(found.size, bool)
    certain[order[np.cumsum(doubt[order]) <= 1 - level]] = True
    return certain


def _away_from_zero(posterior: Posterior, level: float) -> Array:
    """Return the coefficients whose credible regions leave out zero."""
    gaussian = _before_the_constraint(posterior)
    mean, variance = (posterior.mean, posterior.variance) if gaussian is None else gaussian
    n_pooled = 1 if mean.ndim == 1 else mean.shape[1]
    tail = (1 - level) / mean.shape[0]
    xp = namespace(mean)
    # What underflowed to a variance of zero belongs to a mean of zero.
    variance = at_least(variance, float(np.finfo(precision_of(variance)).tiny))
    if gaussian is not None:
        distance = mean / xp.sqrt(variance)
        # A sum of so many normal numbers of variance 1.
        least = -float(ndtri(tail)) * n_pooled**0.5
    else:
        distance = squared_modulus(mean / xp.sqrt(variance))  # squares of large numbers overflow
        least = _quantile(n_pooled, tail, is_complex(mean))
    distance = distance if mean.ndim == 1 else xp.sum(distance, axis=1)
    return xp.nonzero(distance > least)[0]


def _quantile(count: int, tail: float, of_complex: bool) -> float:
    """Return what a sum of so many squared moduli of normal numbers exceeds with probability `tail`."""
    return float(gammainccinv(count, tail) if of_complex else chdtri(count, tail))


def _in_blocks(posterior: Posterior, labels: np.ndarray, level: float) -> np.ndarray:
    """Return the coefficients of the blocks whose ellipsoids leave out zero."""
    sizes = np.bincount(labels)
    tail = (1 - level) / sizes.size
    of_complex = is_complex(posterior.mean)
    least = np.array([_quantile(s * posterior.n_tasks, tail, of_complex) for s in np.unique(sizes)])
    least = least[np.searchsorted(np.unique(sizes), sizes)]
    each = [posterior] if posterior.tasks is None else list(posterior.tasks)
    distance = np.sum([_block_distances(task, labels, least / len(each)) for task in each], axis=0)
    return np.flatnonzero((distance > least)[labels])


def _block_distances(posterior: Posterior, labels: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return ``mean^H covariance^-1 mean`` of each block, the sum over tasks, or a lower bound of it.

    The bound by one coefficient stands for blocks that cannot be found, where Phi is not at hand, and where
    there are too many.
    """
    rows = np.asarray(to_numpy(as_rows(transposed(posterior.mean))))
    variance = to_numpy(posterior.variance).astype(np.float64)
    variance = np.maximum(variance if variance.ndim == 1 else variance[:, 0], np.finfo(float).tiny)
    square = squared_modulus(rows).sum(axis=0).astype(np.float64)
    distance = np.zeros(least.size)
    np.maximum.at(distance, labels, square / variance)
    if posterior.operator is None:
        return distance
    solver = posterior._synthesis_solver("support")
    # If all others were known, the covariance of a block would be smaller; and |sum a|^2 <= n sum |a|^2.
    sizes = np.bincount(labels)
    energy = to_numpy(solver.phi.column_energy) / solver.noise_var
    most = np.bincount(labels, (sizes[labels] * energy + to_numpy(solver.alpha)) * square)
    likely = np.flatnonzero(most > least)
    members = np.flatnonzero(np.isin(labels, likely))
    if members.size > MOST_SYSTEMS and not solver.can_factor:
        return distance
    order = members[np.argsort(labels[members], kind="stable")]
    if not order.size:
        return distance
    one = posterior if posterior.mean.ndim == 1 else posterior.task(0)
    start = 0
    for count in sizes[likely]:
        block = order[start : start + count]
        covariance = to_numpy(one.covariance(block))
        mean = rows[:, block]
        distance[labels[block[0]]] = np.sum((mean.conj() * np.linalg.solve(covariance, mean.T).T).real)
        start += count
    return distance


def _has_constraint(posterior: Posterior) -> bool:
    return posterior.gaussian is not None or any(task.gaussian for task in posterior.tasks or ())


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
