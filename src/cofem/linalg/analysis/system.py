r"""The linear system of a posterior in analysis form.

.. math:: A = \beta\Phi^H\Phi + B^H \mathrm{diag}(\alpha) B

It is solved by conjugate gradients, multiplied by the noise variance. Unlike in synthesis there is no bound
on the error from the residual alone: B has a null space. The preconditioner is close to A, so that the
residual in its norm stands for the error's energy.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse

from cofem._arrays import Array, is_complex, namespace, on_device_of, precision_of, real_dot, standard_normal
from cofem.linalg.analysis.null_space import NullSpace, WithoutNullSpace
from cofem.linalg.analysis.rows import Rows
from cofem.linalg.cg import CGResult, Measure, Progress, StopRule, conjugate_gradients, join_results
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.sparse_factor import SparseFactor, sparse_factor
from cofem.linalg.preconditioners.waves import WavePreconditioner, positive, wave_preconditioner
from cofem.linalg.preconditioners.whole_factor import FullFactor, a_little_larger, patience, whole_factor
from cofem.linalg.probes import random_signs
from cofem.operators.dictionary import Dictionary

#: Steps whose gain in energy stands for the error before them, where the preconditioner is a diagonal, and
#: where it is waves: the residual alone says too little. Third differences of 80 samples: it was small after
#: 14 steps, the mean off by two standard deviations. 30 x 30 pixels from 39 % of their cosines, shared by
#: neighbours: the mean was off by 1.8 standard deviations at most without a delay, 1.0 with 3, 0.3 with 6;
#: the RMSE was .213, .185, .166; products were 1, 3 and 6 times as many.
DELAY, WAVES_DELAY = 10, 1
#: Unknowns up to which ``B^H diag(alpha) B`` is kept by its diagonals, 13 for first and second differences of
#: a picture: a product takes 0.2 in place of 0.85 ms at 256 x 256, 1.4 in place of 4.2 ms at 512 x 512.
MOST_FOR_DIAGONALS = 2**19
#: Part of a residual, in units of rounding, below which nothing is left of it.
NOTHING_LEFT = 10.0


class _Rule(NamedTuple):
    """When a solve is done: see `AnalysisSystem.solve`."""

    tol: float
    reference: float | None
    max_iter: int
    sure: bool

    def measure(self, noise_var: float, known: np.ndarray, slowest: list[float]) -> Measure:
        """Return the measure of the error, relative to the root of the reference.

        Parameters
        ----------
        noise_var : float
            Noise variance.
        known : ndarray of shape (B,)
            Squared energy of what was solved for before.
        slowest : list of one float
            The largest error behind a residual so far; this is its memory.
        """

        def measure(progress: Progress) -> np.ndarray:
            against = noise_var * np.full(progress.rows.size, self.reference or 1.0)
            if self.reference is None:
                against = progress.energy + known[progress.rows]
            if self.sure:
                slowest[0] = max(slowest[0], progress.slowness())
                against /= slowest[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where(progress.preconditioned == 0, 0.0, np.sqrt(progress.preconditioned / against))

        return measure


@dataclass(frozen=True)
class AnalysisSystem:
    """``A = Phi^H Phi / noise_var + B^H diag(alpha) B``, and ways to solve with it.

    Parameters
    ----------
    phi : Dictionary
        Phi, shape (N, D).
    rows : Rows
        B, shape (M, D).
    alpha : array of shape (M,)
        Precisions of ``B u``.
    noise_var : float
        Noise variance.
    null : NullSpace or None
        What B does not see, which is solved for apart.
    at_once : int
        Most right-hand sides that are solved together.
    patience : int, optional
        Steps of conjugate gradients after which a factor of A takes their place, if one is to be had; by
        default as many as take its time.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Gradient, Mask
    >>> phi = Dictionary(Mask([0, 3], 4), like=np.zeros(1))
    >>> system = AnalysisSystem(phi, Rows(Gradient(4), like=np.zeros(1)), np.ones(3), 1e-6)
    >>> found = system.solve(system.of_data(np.array([[0.0, 3.0]])), tol=1e-6, reference=2.0, max_iter=50)
    >>> found.x.round(3).tolist()  # a straight line
    [[0.0, 1.0, 2.0, 3.0]]
    """

    phi: Dictionary
    rows: Rows
    alpha: Array
    noise_var: float
    null: NullSpace | None = None
    at_once: int = 32
    patience: int | None = None

    def apply(self, x: Array) -> Array:
        """Return ``noise_var A x`` for x of shape (B, D)."""
        prior = self._prior_diagonals
        if prior is None:
            out = self.phi.gram(x)
            self.rows.operator.add_weighted_product(x, self.alpha, self.noise_var, out)
            return out
        if self._sees_places:  # then Phi^H Phi is in the diagonals
            self.phi.counter.products += 2 * x.shape[0]
            out = namespace(x).empty_like(x)
            out[...] = 0
        else:
            out = self.phi.gram(x)
        for source, target in zip(x, out, strict=True):
            if is_complex(x):
                target += prior @ source.real.copy() + 1j * (prior @ source.imag.copy())
            else:
                target += prior @ source
        return out

    @cached_property
    def _prior_diagonals(self) -> scipy.sparse.dia_array | None:
        """``noise_var B^H diag(alpha) B`` by its diagonals, where that is the faster way."""
        if not isinstance(self.alpha, np.ndarray) or self.phi.shape[1] > MOST_FOR_DIAGONALS:
            return None
        found = self.rows.operator.weighted_gram(self.noise_var * self.alpha)
        if found is not None and self._sees_places:
            found.data[np.flatnonzero(found.offsets == 0)[0]] += self.phi.column_energy
        return found

    @property
    def _sees_places(self) -> bool:
        """Whether each datum sees one place, so that ``Phi^H Phi`` is a diagonal."""
        return self.phi.operator.facts.one_per_row

    def diagonal(self) -> Array:
        """Return the diagonal of A, shape (D,); some number in the place of zeros, where nobody sees."""
        found = self.rows.diagonal(self.alpha)
        found += self.phi.column_energy / self.noise_var
        return positive(found)

    @property
    def diagonal_is_exact(self) -> bool:
        """Whether `diagonal` is exact."""
        return self.rows.diagonal_is_exact and self.phi.column_norms_exact

    def of_data(self, v: Array) -> Array:
        """Return right-hand sides for ``A^-1 Phi^H v / noise_var``, v of shape (B, N)."""
        return self.phi.adjoint(v)

    def of_draws(self, count: int, rng: np.random.Generator, *, signs: bool = False) -> Array:
        """Return right-hand sides whose solutions are draws from ``N(0, A^-1)``, shape (count, D).

        With `signs` what is random are signs in place of normal numbers: mean and covariance of the draws are
        the same, and they take a tenth of the time to draw.
        """
        like, xp = self.phi.like, namespace(self.alpha)
        draw = random_signs if signs else standard_normal
        noise = draw((count, self.phi.shape[0]), like, rng)
        noise *= self.noise_var**0.5
        out = self.phi.adjoint(noise)
        for part in self.rows.parts:  # no array of that many numbers
            inside = draw((count, part.operator.shape[0]), like, rng)
            weight = xp.sqrt(self.alpha[part.rows])
            weight *= self.noise_var
            inside *= weight
            out += part.operator.adjoint(inside)
        return out

    def solve(
        self,
        rhs: Array,
        *,
        tol: float,
        reference: float | None,
        max_iter: int,
        guess: Array | None = None,
        sure: bool = False,
    ) -> CGResult:
        """Solve ``noise_var A x = rhs``, which is overwritten.

        Parameters
        ----------
        rhs : array of shape (B, D)
            Right-hand sides, times the noise variance.
        tol : float
            Error in the energy norm of A, relative to the root of `reference`.
        reference : float or None
            Squared energy that errors are compared with: N for a mean, D for a draw, which is what rows of B
            ask for; 1 for a draw of which no direction may be off by more than `tol` of its own standard
            deviation; None for that of each solution itself.
        max_iter : int
            Most steps.
        guess : array of shape (B, D), optional
            Where to start; overwritten.
        sure : bool
            Whether the steps are asked how large the error behind a residual is. Else it is taken for what it
            would be if the preconditioner were A.
        """
        results = []
        for start in range(0, rhs.shape[0], self.at_once):
            some = slice(start, min(start + self.at_once, rhs.shape[0]))
            x0 = None if guess is None else guess[some, :]
            results.append(self._solve_some(rhs[some, :], x0, _Rule(tol, reference, max_iter, sure)))
        if len(results) == 1:
            return results[0]
        joined = join_results(results)
        x = namespace(rhs).concat([result.x for result in results], axis=0)
        return CGResult(
            x, joined.iterations, joined.converged, joined.broken, joined.error, joined.applications
        )

    def _solve_some(self, rhs: Array, guess: Array | None, rule: _Rule) -> CGResult:
        steps = patience(self.phi, self.rows, self.alpha)
        if steps is None or isinstance(self._quick, SparseFactor):
            return self._iterate(self._quick, rhs, guess, rule)
        steps = steps if self.patience is None else self.patience
        first = None
        if steps:
            first = self._iterate(
                self._quick, rhs + 0, guess, rule._replace(max_iter=min(steps, rule.max_iter))
            )
            if first.converged.all() or steps >= rule.max_iter:
                return first
        if self._factor is not None:
            return self._iterate(self._factor, rhs, None, rule)
        return self._iterate(self._quick, rhs, guess if first is None else first.x, rule)

    def _iterate(
        self, ready: PosteriorPreconditioner, rhs: Array, guess: Array | None, rule: _Rule
    ) -> CGResult:
        """Solve by conjugate gradients with a preconditioner, what B does not see apart."""
        null, residual, x0 = self.null, rhs, guess
        slowest = self._slowest if ready is self._quick else [1.0]
        known = np.zeros(rhs.shape[0])
        if x0 is not None:
            residual -= self.apply(x0)
        delay = 0 if rule.sure else _delay(ready)
        if null is not None:
            share, before = null.share(residual), real_dot(residual, residual)
            known = real_dot(share, share * null.energies)
            correction = share @ null.seen
            x0 = correction if x0 is None else x0 + correction
            residual -= share @ null.product
            left = (
                real_dot(residual, residual) > (NOTHING_LEFT * np.finfo(precision_of(rhs)).eps) ** 2 * before
            )
            if not left.all():  # it was the null space's, and is rounding
                residual *= on_device_of(rhs, left[:, None].astype(precision_of(rhs)))
            ready = WithoutNullSpace(ready, null)
        measure = rule.measure(self.noise_var, known, slowest)
        if delay:
            measure = _with_what_steps_gain(measure, self.noise_var, rule.reference, delay)
        measure = _unless_rounding(measure, known, float(np.finfo(precision_of(rhs)).eps))
        stop = StopRule(rule.tol, rule.max_iter, min_iter=1, measure=measure)
        found = conjugate_gradients(self.apply, residual, stop, preconditioner=ready, x0=x0)
        return found if null is None else replace(found, x=null.without_unseen(found.x))

    def exact_variances(self) -> Array | None:
        """Return the diagonal of the inverse of A, shape (D,), where a factor gives it at once; else None."""
        singular = self.null is not None and self.null.unseen.shape[0] > 0
        if singular or not isinstance(self._quick, SparseFactor):
            return None
        found = self._quick.inverse_diagonal()
        if found is None:
            return None
        return on_device_of(self.alpha, (self.noise_var * found).astype(precision_of(self.alpha)))

    @cached_property
    def _quick(self) -> PosteriorPreconditioner:
        """What makes the system easy for conjugate gradients, and is quickly made."""
        factor = sparse_factor(self.phi, self.rows, self.alpha, self.noise_var)
        if factor is not None:
            singular = self.null is not None and self.null.unseen.shape[0] > 0
            return a_little_larger(factor) if singular else factor
        return wave_preconditioner(self.phi, self.rows, self.alpha, self.noise_var)

    @property
    def has_factor(self) -> bool:
        """Whether solves are by a factor from the first step on."""
        return isinstance(self._quick, SparseFactor)

    @cached_property
    def _factor(self) -> PosteriorPreconditioner | None:
        return whole_factor(self.phi, self.rows, self.alpha, self.noise_var)

    @cached_property
    def _slowest(self) -> list[float]:
        """The largest error behind a residual that solves with the quick preconditioner have found."""
        return [1.0]


def _delay(ready: PosteriorPreconditioner) -> int:
    if isinstance(ready, SparseFactor | FullFactor):
        return 0
    return DELAY if isinstance(ready, WavePreconditioner) and ready.grid is None else WAVES_DELAY


def _unless_rounding(measure: Measure, known: np.ndarray, eps: float) -> Measure:
    """Return a measure that is zero where a residual is rounding, which steps do not reduce."""

    def judged(progress: Progress) -> np.ndarray:
        found = measure(progress)
        size = (NOTHING_LEFT * eps) ** 2 * (progress.energy + known[progress.rows])
        return np.where(progress.preconditioned <= size, 0.0, found)

    return judged


def _with_what_steps_gain(measure: Measure, noise_var: float, reference: float | None, delay: int) -> Measure:
    """Return the larger of a measure and what the last steps gained (Hestenes and Stiefel 1952)."""
    past: deque[dict[int, float]] = deque(maxlen=delay + 1)

    def judged(progress: Progress) -> np.ndarray:
        past.append(dict(zip(progress.rows.tolist(), progress.energy.tolist(), strict=True)))
        if len(past) <= delay:
            return np.full(progress.rows.size, np.inf)
        before = np.array([past[0][row] for row in progress.rows.tolist()])
        against = progress.energy if reference is None else noise_var * reference
        with np.errstate(divide="ignore", invalid="ignore"):
            gained = np.sqrt((progress.energy - before) / against)
        return np.maximum(measure(progress), np.where(progress.energy > before, gained, 0.0))

    return judged
