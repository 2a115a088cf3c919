"""How likely each column that was found is the right one of those that look like it.

A column j was found; another one k, alike to it, may have made the same data. With j and what its neighbours
have taken of it out of the model, the data are explained by one column again: by k with the Bayes factor of a
single effect (as in SuSiE), from ``q_k = phi_k^H T y`` and ``s_k = phi_k^H T phi_k``, where T is the inverse
covariance of the data without the group. The share of j among all that are alike to it is its chance.

T is not formed. Near j it is ``kappa / noise_var``: kappa, at most 1, is what other columns leave of the data
there, and follows from the posterior variance of j, which a model of the group alone must have as well. So a
few products with Phi for each column are enough. Against T itself, on blocks of six at r = 0.9 to 0.99, real
and complex, 24 kinds of 60 draws: as few wrong ones, and as many right ones to about 1 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cofem._arrays import (
    as_rows,
    in_precision,
    is_complex,
    on_device_of,
    squared_modulus,
    to_numpy,
    transposed,
)
from cofem.operators.dictionary import Dictionary
from cofem.posterior.solver import PosteriorSolver, batches

if TYPE_CHECKING:
    from cofem.posterior.posterior import Posterior

#: Cosine from which on columns are alike: what is less so has at most a quarter of the evidence.
ALIKE = 0.5
#: Share of a coefficient that data determine from which on it may have taken a part of what its neighbour is.
LIVE = 0.01
#: Most columns of a group, and columns that are looked at first where there are more and Phi is not stored:
#: if none of them is like another one, none is.
LARGEST_GROUP, LOOKED_AT_FIRST = 16, 32
#: Halvings of the interval that kappa lies in.
HALVINGS = 40


class Alternatives(NamedTuple):
    """Columns that are alike to one that was found, and the logarithms of their odds against it."""

    columns: np.ndarray
    log_odds: np.ndarray

    @property
    def chance(self) -> float:
        """Probability that it is the one that was found, and none of these."""
        return float(1 / (1 + np.exp(np.minimum(self.log_odds, 700)).sum()))

    def joined(self, other: Alternatives) -> Alternatives:
        """Return those that are alternatives for both of two tasks, by both."""
        both, first, second = np.intersect1d(self.columns, other.columns, return_indices=True)
        return Alternatives(both, self.log_odds[first] + other.log_odds[second])


NONE = Alternatives(np.zeros(0, np.intp), np.zeros(0))


def alternatives(posterior: Posterior, found: np.ndarray) -> list[Alternatives]:
    """Return the alternatives of each column that was found; none where Phi is not at hand.

    Parameters
    ----------
    posterior : Posterior
        Of one task, or of several that share their precisions.
    found : ndarray of int
        The columns.

    Examples
    --------
    The first two columns are nearly the same:

    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((60, 20))
    >>> Phi[:, 1] = Phi[:, 0] + 0.01 * rng.standard_normal(60)
    >>> post = cofem.fit(Phi, Phi[:, 0] + Phi[:, 7] + 0.1 * rng.standard_normal(60), noise_std=0.1)
    >>> [each.columns.tolist() for each in alternatives(post, np.array([0, 7]))]
    [[1], []]
    """
    if posterior.tasks is not None:
        each = [alternatives(task, found) for task in posterior.tasks]
        return [_joined(of_tasks) for of_tasks in zip(*each, strict=True)]
    if posterior.operator is None or not found.size:
        return [NONE] * found.size
    return _Search(posterior, found).run()


def _joined(of_tasks: tuple[Alternatives, ...]) -> Alternatives:
    whole = of_tasks[0]
    for other in of_tasks[1:]:
        whole = whole.joined(other)
    return whole


class _Search:
    """The search for alternatives, with what all of it needs."""

    def __init__(self, posterior: Posterior, found: np.ndarray) -> None:
        assert posterior.operator is not None
        mean, variance = (
            (posterior.mean, posterior.variance) if posterior.gaussian is None else posterior.gaussian
        )
        solver = PosteriorSolver.of(posterior.operator, posterior.alpha, 1.0, posterior.weights)
        self.phi: Dictionary = solver.phi
        self.found, self.noise_var = found, float(posterior.noise_std) ** 2
        rows = in_precision(as_rows(transposed(mean)), "float64")
        left = as_rows(posterior._white_y()) - self.phi.forward(rows)
        self.correlated = to_numpy(self.phi.adjoint(left)) / self.noise_var
        self.complex, self.like = is_complex(rows), rows
        self.mean = to_numpy(rows)
        variance = to_numpy(in_precision(variance, "float64"))
        self.variance = variance if variance.ndim == 1 else variance[:, 0]
        self.alpha = to_numpy(solver.alpha)
        self.energy = to_numpy(self.phi.column_energy)
        self.known = 1 - self.alpha * self.variance
        self.is_found = np.zeros(self.alpha.shape, bool)
        self.is_found[found] = True

    def run(self) -> list[Alternatives]:
        """Look at all of them, if those that are looked at first are not unlike all others."""
        first = self.found
        if not self.phi.stored_entries and first.size > LOOKED_AT_FIRST:
            first = self.found[np.linspace(0, self.found.size - 1, LOOKED_AT_FIRST).astype(int)]
            if not any(each.columns.size for each in self._of(first)):
                return [NONE] * self.found.size
        return self._of(self.found)

    def _of(self, columns: np.ndarray) -> list[Alternatives]:
        searched, start = [], 0
        for count in batches(columns.size):
            chunk = columns[start : start + count]
            grams = self._grams(chunk)
            searched += [self._of_one(j, gram) for j, gram in zip(chunk.tolist(), grams, strict=True)]
            start += count
        return searched

    def _grams(self, columns: np.ndarray) -> np.ndarray:
        """Return ``phi_k^H phi_j`` for all k, a row for each column j."""
        units = np.zeros((columns.size, self.alpha.size), np.complex128 if self.complex else np.float64)
        units[np.arange(columns.size), columns] = 1
        return to_numpy(self.phi.gram(on_device_of(self.like, units)))

    def _of_one(self, j: int, gram: np.ndarray) -> Alternatives:
        """Compare a column with those alike to it; j comes first in all that follows."""
        share = squared_modulus(gram)
        alike = (share >= ALIKE**2 * self.energy * self.energy[j]) & (self.energy > 0) & ~self.is_found
        others = np.flatnonzero(alike)
        if not others.size:
            return NONE
        live = others[self.known[others] > LIVE]
        weight = self.known[live] * (share[live] / self.energy[live]) ** 0.5
        group = np.append(j, live[np.argsort(-weight)[: LARGEST_GROUP - 1]])
        rows = gram[None, :] if group.size == 1 else np.vstack([gram, self._grams(group[1:])])
        candidates = np.append(j, others)
        precision = _share_left(rows[:, group], self.alpha[group], self.variance[j], self.noise_var)
        precision /= self.noise_var
        q = self.correlated[:, candidates] + precision * self.mean[:, group] @ rows[:, candidates]
        log_factors = _log_bayes_factors(q, precision * self.energy[candidates], self.complex)
        return Alternatives(others, log_factors[1:] - log_factors[0])


def _share_left(gram: np.ndarray, alpha: np.ndarray, variance: float, noise_var: float) -> float:
    """Return the kappa with which a group by itself gives its first coefficient its posterior variance."""
    root = alpha**-0.5
    strength, vectors = np.linalg.eigh(root[:, None] * gram * root / noise_var)
    weight = squared_modulus(vectors[0]) / alpha[0]
    low, high = 0.0, 1.0
    if np.sum(weight / (1 + strength)) >= variance:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_wide = np.sum(weight / (1 + middle * strength)) > variance
        low, high = (middle, high) if too_wide else (low, middle)
    return high


def _log_bayes_factors(q: np.ndarray, s: np.ndarray, of_complex: bool) -> np.ndarray:
    """Return the log Bayes factor of an effect of each column by itself, shape (K,).

    The prior variance of the effect, of columns of one norm, is the most likely one for the first.
    """
    n_tasks = q.shape[0]
    energy = squared_modulus(q).sum(axis=0)
    ratio = max(energy[0] / (s[0] * n_tasks) - 1, np.finfo(float).eps)  # v s, the same for all
    return (1.0 if of_complex else 0.5) * (energy / s * ratio / (1 + ratio) - n_tasks * np.log1p(ratio))
