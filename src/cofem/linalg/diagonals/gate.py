"""The choice between estimators: a fast one while direct probes agree with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, inner, is_complex, namespace, to_numpy
from cofem._blocks import CACHE_BLOCK, blocks
from cofem._packing import packable
from cofem.linalg.build import right_hand_sides_at_once
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.diagonals.clusters import Clusters
from cofem.linalg.diagonals.corrected import Corrected
from cofem.linalg.diagonals.exact import Exact, is_exact_on_a_line
from cofem.linalg.diagonals.pooled import Pooled
from cofem.linalg.diagonals.self_consistent import SelfConsistent
from cofem.linalg.diagonals.windows import Windows
from cofem.linalg.find_couplings import has_couplings, like_convolution, plainly_coupled
from cofem.linalg.probes import Signs, draw_signs
from cofem.operators.dictionary import Dictionary

#: Mean squared relative error of what the data say about each coefficient that is tolerated. On incoherent
#: dictionaries of D = 4096 it was 0.00 to 0.01, on blurs 0.5 to 1.3, and where columns come in blocks 0.1.
TOLERATED = 0.02
#: Where only direct probes could take over, which take far more products and are noisy themselves (spots of
#: two widths behind a blur, 96 x 96 pixels: 170 s and 16.1 %, in place of 12 s and 17.3 %), so many times
#: that; or half of it in the variances themselves, over all coefficients.
BEFORE_FALLBACK = 5.0
#: Error that is pointed out.
ROUGH = 0.1
#: Checks in a row that leave doubt, all together, after which the estimates count as wrong; where nothing
#: better is left, the fit may end all the same, since more would not resolve it.
ENOUGH_DOUBT = 4
#: First step that is checked where the mean is found by message passing, unless the fit ends before.
SWEPT_CHECK = 40
#: Ratio of the mean energies of groups of columns from which on they need numbers of their own.
DIFFERENT = 3.0
#: Entries of Phi up to which the exact diagonal is used outright.
SMALL_ENTRIES = 2**18
#: Entries of Phi, and multiplications for a matrix of its shorter side, up to which the exact diagonal takes
#: over from a fast one that failed: about a second at most in each step.
MEDIUM_ENTRIES, MEDIUM_WORK = 2**23, 2**33


@packable("gate")
class Verdict(NamedTuple):
    """What the checks have found so far."""

    steps: int = 0
    next_check: int = 2
    checks: int = 0
    #: Those of the estimator that is used now.
    own_checks: int = 0
    error: float = np.nan
    standard_error: float = np.nan
    #: Checks in a row that were neither good nor bad enough; error and standard error are of all of them.
    doubtful: int = 0
    failed: tuple[str, ...] = ()
    #: Estimators that were not tried: the structure of Phi is against them.
    left_out: tuple[str, ...] = ()
    #: Whether the estimates are exact from now on, and whether they are those that nothing comes after.
    exact: bool = False
    last_resort: bool = False
    #: Whether the next estimate is free enough of noise for acceleration, as the estimator says.
    quiet: bool = True
    #: The current estimator's own carry, once it has one.
    inner: Any = None
    started: bool = False


class _Requested(NamedTuple):
    """What the gate asked for in a step."""

    estimator: DiagonalEstimator
    inner: Any
    rhs: RightHandSides
    #: How many of the solutions are the estimator's; those of the check probes follow.
    n_solutions: int
    signs: Signs | None


@dataclass(frozen=True)
class Gate(DiagonalEstimator):
    """Use the fastest estimator that direct probes do not contradict.

    Starts from what the structure allows: `exact` if Phi is small, else `self_consistent` (not where columns
    are plainly alike), then `pooled` if the operator names groups of coefficients, then `clusters` where
    couplings between columns are to be had.
    At the 2nd, 5th, 11th, ... step it solves for a few direct probes as well. With the ratios r of two
    independent direct estimates to the fast one, ``(r_1 - 1)(r_2 - 1)`` averaged over coefficients and pairs
    of probes is an unbiased estimate of the mean squared relative error. Most coefficients are soon known to
    be zero, whatever the estimate, and would hide errors in the others: with ``s = 1 / (alpha + S)`` and
    ``gamma = S s``, a relative error in S, which is all that the data say, is gamma times smaller in s. So
    the mean is divided by that of ``gamma^2``. If the result is larger than is tolerated by more than three
    of its standard errors, the fit starts over with the next estimator; the last one is exact if Phi is of
    medium size, else corrected by direct probes in every step. If it is larger by one of them, the check is
    repeated in the next step.

    Parameters
    ----------
    fallback : DiagonalEstimator
        Used on large dictionaries when every fast estimator has failed; on medium ones it is `exact`.
    tolerated : float
        Mean squared relative error that is tolerated; more where only `fallback` is left.
    small : int or None
        Entries of Phi up to which the exact diagonal is used outright; None for the usual number.

    Examples
    --------
    A small dictionary is factored; larger ones have a fast estimate to begin with:

    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import DCT, Dense
    >>> Phi, gate = Dense([[1.0, 0.0], [1.0, 1.0]]), Gate()
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), np.ones(2), 0.5)
    >>> carry = gate.init(context, np.random.default_rng(0))
    >>> rhs = gate.right_hand_sides(context, carry, np.random.default_rng(0))
    >>> found = gate.estimate(context, carry, rhs, np.zeros((0, 2)))
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(2)) / 0.5 + np.eye(2))
    >>> found.used, np.allclose(found.value, np.diag(Sigma))
    ('exact', True)
    >>> for n in (1024, 65536):
    ...     context = PosteriorContext(Dictionary(DCT(n), like=np.zeros(1)), np.ones(n), 0.5)
    ...     [estimator.name for estimator in gate.candidates(context)]
    ['self_consistent', 'exact']
    ['self_consistent', 'corrected']
    """

    fallback: DiagonalEstimator = field(default_factory=Corrected)
    tolerated: float = TOLERATED
    small: int | None = None

    name: ClassVar[str] = "auto"

    def candidates(self, context: PosteriorContext) -> Iterator[DiagonalEstimator]:
        """Yield the estimators in the order they are tried, each looked for when it is asked for."""
        n, d = context.phi.shape
        small = SMALL_ENTRIES if self.small is None else self.small
        if n * d <= small or is_exact_on_a_line(context.phi):
            yield Exact()
            return
        yield SelfConsistent()
        if context.phi.groups is not None:
            yield Pooled(probes=2)
        if has_couplings(context.phi):
            yield Clusters()
        if like_convolution(context.phi):
            yield Windows()  # among stored columns traces are better
        work = min(n, d) * n * d * (4 if context.phi.is_complex else 1)
        medium = n * d <= MEDIUM_ENTRIES and work <= MEDIUM_WORK
        yield Exact() if medium else self.fallback

    def _current(self, context: PosteriorContext, verdict: Verdict, without: str = "") -> DiagonalEstimator:
        """Return the first estimator that has not failed, and is not the one named."""
        failed = (*verdict.failed, *verdict.left_out, without)
        return next(estimator for estimator in self.candidates(context) if estimator.name not in failed)

    def _is_last_resort(self, estimator: DiagonalEstimator) -> bool:
        return estimator.name in (self.fallback.name, Exact.name)

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Verdict:
        """Begin with the fastest estimator."""
        verdict = Verdict()
        names = [estimator.name for estimator in self.candidates(context)]
        phi = context.phi
        alike = Clusters.name in names and phi.groups is None and plainly_coupled(phi)
        if alike or (Pooled.name in names and groups_differ(phi)):
            # Each rejection costs the steps before it, since the fit starts over.
            verdict = Verdict(left_out=(SelfConsistent.name,))
        return verdict._replace(inner=self._current(context, verdict).init(context, rng), started=True)

    def quiet(self, carry: Any) -> bool:
        """Ask the estimator that comes next."""
        return carry.quiet

    def is_exact(self, carry: Any) -> bool:
        """Tell whether the exact diagonal is used."""
        return carry.exact

    def trusted(self, carry: Any) -> bool:
        """Tell whether the estimates were checked and are not in doubt, or need no check."""
        if carry.exact:
            return True
        return carry.own_checks > 0 and (not carry.doubtful or carry.doubtful >= ENOUGH_DOUBT)

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Ask for what the current estimator needs, and draw check probes when a check is due."""
        verdict: Verdict = carry
        current = self._current(context, verdict)
        inner = verdict.inner if verdict.started else current.init(context, rng)
        wanted = current.right_hand_sides(context, inner, rng)
        signs, b = None, wanted.b
        last_resort = self._is_last_resort(current)
        # Message passing that settles is no proof, but a good sign: nothing is lost by a later look.
        first = SWEPT_CHECK if context.swept and not verdict.checks else 0
        # Nothing comes after the last resort: how good it is need be known at the end only.
        due = context.last or (not last_resort and verdict.steps + 1 >= max(verdict.next_check, first))
        if due and current.name != Exact.name:
            count = n_check_probes(context)
            signs = draw_signs(count, context.alpha.shape[0], rng)
            # With the mean where memory allows; else one after the other, when there is less else to keep.
            if count < right_hand_sides_at_once(context.phi):
                probes = _scaled(context, signs)
                b = probes if b is None else namespace(b).concat([b, probes])
        n_wanted = sum(part.shape[0] for part in (wanted.v, wanted.b) if part is not None)
        requested = _Requested(current, inner, wanted, n_wanted, signs)
        return RightHandSides(wanted.v, b, requested, wanted.exchange)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Estimate, and judge the estimate if a check is due."""
        verdict: Verdict = carry
        current, inner, wanted, n_wanted, signs = rhs.extra
        direct = None
        if signs is not None and x.shape[0] > n_wanted:
            direct = direct_estimates(context, signs, x[n_wanted:, :])
        elif signs is not None:
            direct = solve_probes(context, signs)
        estimate = current.estimate(context, inner, wanted, x[:n_wanted, :])
        verdict = verdict._replace(steps=verdict.steps + 1, inner=estimate.carry, started=True)
        figures, misled = {"diagonal_error": np.nan}, False
        if direct is not None:
            ratios = direct_ratios(direct, estimate.value)
            weight = context.effect_on_alpha(estimate.value)
            informed = _mean_square_share(context.alpha, estimate.value, weight)
            error, standard_error = (x / informed for x in squared_error(ratios, weight))
            figures["diagonal_error"] = error
            tolerated, last_resort = self.tolerated, self._is_last_resort(current)
            if last_resort or self._current(context, verdict, current.name).name == self.fallback.name:
                tolerated = max(BEFORE_FALLBACK * tolerated, 0.5 * tolerated / informed)
            verdict = _judged(verdict, error, standard_error, tolerated)
            wrong = verdict.error > tolerated + 3 * verdict.standard_error
            if (wrong or verdict.doubtful >= ENOUGH_DOUBT) and not last_resort:
                # The check probes are direct estimates themselves: use them for this step.
                value = context.clip(estimate.value * _mean_of_rows(ratios))
                misled = True
                failed = (*verdict.failed, current.name)
                verdict = verdict._replace(
                    steps=0, next_check=2, doubtful=0, own_checks=0, failed=failed, inner=None, started=False
                )
                estimate = DiagonalEstimate(value, estimate.uncertainty, used="check probes")
        following = self._current(context, verdict)
        verdict = verdict._replace(
            exact=following.name == "exact",
            last_resort=self._is_last_resort(following),
            quiet=following.quiet(verdict.inner) if verdict.started else True,
        )
        return DiagonalEstimate(
            estimate.value,
            estimate.uncertainty,
            verdict,
            estimate.used,
            {"diagonal": self._explain(context, verdict, following)},
            figures,
            misled,
            estimate.coherent,
        )

    def is_rough(self, carry: Any) -> bool:
        """Tell whether the last check of the estimates that are used has found large errors."""
        return bool(not carry.exact and carry.own_checks and carry.error > ROUGH + 3 * carry.standard_error)

    def _explain(self, context: PosteriorContext, verdict: Verdict, current: DiagonalEstimator) -> str:
        unequal = "the data see some groups of columns better than others"
        alike = "columns are much alike" if context.phi.groups is None else unequal
        alike = alike if verdict.left_out else ""
        why = f"'{verdict.failed[-1]}' failed" if verdict.failed else alike
        means = "variances are exact" if current.name == "exact" else f"variances by '{current.name}'"
        if not verdict.checks:
            return means if current.name == "exact" else f"{means}, not checked yet"
        if not verdict.own_checks and current.name != "exact":
            return f"{means}, because {why} (error {verdict.error:.2g}); not checked yet"
        found = (
            f"squared relative error {verdict.error:.2g} +- {verdict.standard_error:.1g} against direct "
            f"probes in the last of {verdict.checks} checks"
        )
        if self.is_rough(verdict):
            found += ": standard deviations are rough"
        return f"{means}, " + (f"because {why}: " if why else "") + found


def _judged(verdict: Verdict, error: float, standard_error: float, tolerated: float) -> Verdict:
    """Add a check to the verdict; one that leaves doubt is repeated, and taken together with what follows."""
    n = verdict.doubtful
    if n:
        error = (n * verdict.error + error) / (n + 1)
        standard_error = float(np.hypot(n * verdict.standard_error, standard_error)) / (n + 1)
    doubt = error > tolerated + standard_error
    return verdict._replace(
        error=error,
        standard_error=standard_error,
        checks=verdict.checks + 1,
        own_checks=verdict.own_checks + 1,
        doubtful=n + 1 if doubt else 0,
        next_check=verdict.steps + 1 if doubt else 2 * verdict.steps + 1,
    )


def groups_differ(phi: Dictionary) -> bool:
    """Tell whether the data see some of the named groups of columns far better than others.

    Then no one number can be right for all of them: on wavelets that a third of the Fourier coefficients are
    seen of, most of them low ones, `self_consistent` was wrong by 0.4 to 0.6, and failed its first check.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import FFT, Mask, Wavelet
    >>> wavelets = FFT(64) @ Wavelet(64, "haar").T
    >>> for rows in ([0, 1, 2], np.arange(64)):
    ...     groups_differ(Dictionary(Mask(rows, 64) @ wavelets, like=np.zeros(1)))
    True
    False
    """
    if phi.groups is None or phi.spectral_atoms() is None:
        return False
    energy = to_numpy(phi.column_energy)
    labels = np.asarray(phi.groups)
    means = np.bincount(labels, energy) / np.maximum(np.bincount(labels), 1)
    means = means[np.unique(labels)]
    return bool(np.max(means) > DIFFERENT * np.min(means))


def n_check_probes(context: PosteriorContext) -> int:
    """Probes that resolve the tolerated error: many coefficients need few."""
    pairs = 1e5 / context.alpha.shape[0]
    return int(np.clip(np.ceil(0.5 + np.sqrt(0.25 + 2 * pairs)), 2, 8))


def solve_probes(context: PosteriorContext, signs: Signs) -> list[Array]:
    """Solve for the probes and return the direct estimate from each, K arrays of shape (D,)."""
    assert context.solve is not None
    found: list[Array] = []
    at_once = right_hand_sides_at_once(context.phi)
    for start in range(0, signs.bits.shape[0], at_once):
        some = signs.some(slice(start, start + at_once))
        found += direct_estimates(context, some, context.solve(_scaled(context, some)))
    return found


def direct_estimates(context: PosteriorContext, signs: Signs, solutions: Array) -> list[Array]:
    """Turn the solutions for probes, shape (K, D), into direct estimates, in place."""
    solutions /= context.probe_scale()
    solutions *= signs.probes(solutions)
    estimates = namespace(solutions).real(solutions) if is_complex(solutions) else solutions
    return [estimates[i, :] for i in range(estimates.shape[0])]


def _scaled(context: PosteriorContext, signs: Signs) -> Array:
    probes = signs.probes(context.like)
    probes *= context.probe_scale()
    return probes


def direct_ratios(direct: list[Array], value: Array) -> list[Array]:
    """Divide direct estimates, which are overwritten, by the estimate in question."""
    for estimate in direct:
        estimate /= value
    return direct


def squared_error(ratios: Sequence[Array], weight: Array) -> tuple[float, float]:
    """Estimate the mean of ``(weight (ratio - 1))^2`` without the probes' own noise, and its standard error.

    Parameters
    ----------
    ratios : sequence of K >= 2 arrays of shape (D,)
        Direct estimates divided by the estimate in question, independent of each other.
    weight : array of shape (D,)
        Effect of each coefficient.
    """
    k, size = len(ratios), ratios[0].shape[0]
    xp = namespace(ratios[0])
    mean = square = 0.0
    for block in blocks(size, CACHE_BLOCK):
        deviation = weight[block] * (xp.stack([ratio[block] for ratio in ratios]) - 1.0)
        total = xp.sum(deviation, axis=0, dtype=xp.float64)
        # All ordered pairs of different probes: (sum)^2 minus the squares.
        pairs = (total**2 - xp.sum(deviation**2, axis=0, dtype=xp.float64)) / (k * (k - 1))
        mean += float(xp.sum(pairs)) / size
        square += float(xp.sum(pairs**2)) / size
    return mean, max(square - mean**2, 0.0) ** 0.5 / size**0.5


def _mean_square_share(alpha: Array, variance: Array, weight: Array) -> float:
    """Return the mean of ``(weight gamma)^2``, where ``gamma = 1 - alpha s``."""
    size, total = alpha.shape[0], 0.0
    for block in blocks(size, CACHE_BLOCK):
        part = weight[block] * (1 - alpha[block] * variance[block])
        total += inner(part, part)
    return max(total / size, 1e-300)


def _mean_of_rows(rows: Sequence[Array]) -> Array:
    return sum(rows[1:], rows[0]) / len(rows)
