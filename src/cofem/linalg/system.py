r"""The linear systems behind the posterior, in two equivalent forms.

With prior variances :math:`g = 1/\alpha`, noise variance :math:`\sigma^2 = 1/\beta`,
:math:`A = \beta\Phi^H\Phi + \mathrm{diag}(\alpha)`, :math:`\Sigma = A^{-1}` and
:math:`C = \sigma^2 I + \Phi\,\mathrm{diag}(g)\,\Phi^H`, every quantity of the posterior is

.. math:: x = \Sigma\,(\beta\Phi^H v + b)
            = g b + g\,\Phi^H C^{-1} (v - \Phi\, g b)

for some data-side vector v (the mean has v = y, b = 0) and coefficient-side vector b (a probe
has v = 0, b = p). The left side is a D x D system (`primal`), the right one N x N (`dual`).

- `primal`, preconditioned by ``beta c + alpha``, takes few steps when the rows of Phi are
  orthonormal up to scale (``Phi Phi^H = c I``) or when N >= D.
- `dual` takes few steps otherwise, fewest with the columns that stand out in a preconditioner
  (`cofem.linalg.preconditioners.large_columns`), and keeps its accuracy in float32 at any signal-to-noise
  ratio: its matrix has no near-null space, where the primal one holds rounding errors that are
  ``beta c / alpha`` times the machine epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cofem._arrays import Array, add_product, namespace, real_dot, reciprocal
from cofem.linalg.cg import (
    CGResult,
    Measure,
    Progress,
    StopRule,
    conjugate_gradients,
    divided_energy,
    frobenius_residual,
    join_results,
)
from cofem.linalg.preconditioners import PosteriorPreconditioner
from cofem.operators.dictionary import Dictionary

Form = Literal["primal", "dual"]
Norm = Literal["posterior", "frobenius"]


class Solution(NamedTuple):
    """Solutions of a posterior system.

    Attributes
    ----------
    x : array of shape (B, D)
        ``Sigma (beta Phi^H v + b)`` for each right-hand side.
    dual : array of shape (B, N) or None
        ``C^-1 (v - Phi g b)`` when the dual form was used; a warm start for the next solve.
    cg : CGResult
        The account of the solve.
    """

    x: Array
    dual: Array | None
    cg: CGResult


@dataclass(frozen=True)
class PosteriorSystem:
    """``A = Phi^H Phi / noise_var + diag(alpha)`` and ways to solve with it.

    `cofem.linalg.build.build_system` chooses form and preconditioner.

    Parameters
    ----------
    phi : Dictionary
        Shape (N, D).
    alpha : array of shape (D,)
        Prior precisions, positive.
    noise_var : float
        Noise variance.
    form : {"primal", "dual"}
        Which of the two equivalent systems is iterated on.
    preconditioner : PosteriorPreconditioner, optional
        Of the system of that form (the primal one times the noise variance).
    at_once : int, optional
        Most right-hand sides that are solved together, to save memory; all by default. The joint norm needs
        all of them and takes no notice.
    """

    phi: Dictionary
    alpha: Array
    noise_var: float
    form: Form = "dual"
    preconditioner: PosteriorPreconditioner | None = None
    at_once: int | None = None

    @property
    def g(self) -> Array:
        """Prior variances ``1 / alpha``, shape (D,)."""
        return reciprocal(self.alpha)

    def tolerance(self, tol: float) -> float:
        """Return the tolerance to ask for where the error of a mean is to be `tol`."""
        return tol if self.preconditioner is None else self.preconditioner.sharpness * tol

    def probe_tolerance(self, tol: float) -> float:
        """Return the tolerance to ask for where the error of a probe's solution is to be `tol`."""
        return tol if self.preconditioner is None else self.preconditioner.sharpness_for_probes * tol

    def _prepared(self) -> PosteriorPreconditioner | None:
        return None if self.preconditioner is None else self.preconditioner.prepared()

    def solve(
        self,
        v: Array | None = None,
        b: Array | None = None,
        *,
        tol: float | np.ndarray,
        max_iter: int,
        guess: Array | None = None,
        norm: Norm = "posterior",
    ) -> Solution:
        """Solve for ``Sigma (beta Phi^H v + b)``, a batch of right-hand sides at once.

        They are first those of `v`, then those of `b`.

        Parameters
        ----------
        v : array of shape (B1, N), optional
            Data-side right-hand sides; `tol` bounds ``||x - x*|| / sqrt(N)`` in the `norm` below.
        b : array of shape (B2, D), optional
            Coefficient-side right-hand sides; `tol` is relative to the energy norm of the solution. The
            primal form overwrites them.
        tol : float or ndarray of shape (B1 + B2,)
            Tolerance of each.
        max_iter : int
            Most CG steps.
        guess : array of shape (B0, D) or, in the dual form, (B0, N), optional
            Where to start for the first B0 right-hand sides of `v`: their solutions, or in the dual form
            `Solution.dual`. The primal form overwrites it. A guess that is far worse than zero is not used.
        norm : {"posterior", "frobenius"}
            The posterior's energy norm ``||x - x*||_A`` of each, or the paper's one residual norm
            for all together.
        """
        n_data = 0 if v is None else v.shape[0]
        count = n_data + (0 if b is None else b.shape[0])
        tol = np.broadcast_to(np.asarray(tol, dtype=float), (count,))
        solve = self._solve_primal if self.form == "primal" else self._solve_dual
        at_once = self.at_once
        if at_once is None or count <= at_once or norm == "frobenius":
            return solve(v, b, StopRule(tol, max_iter, min_iter=1), guess, norm)
        parts = []
        for start in range(0, count, at_once):
            data = slice(min(start, n_data), min(start + at_once, n_data))
            probes = slice(max(start - n_data, 0), max(start + at_once - n_data, 0))
            stop = StopRule(tol[start : start + at_once], max_iter, min_iter=1)
            parts.append(solve(_rows(v, data), _rows(b, probes), stop, _rows(guess, data), norm))
        duals = [part.dual for part in parts if part.dual is not None]
        return Solution(
            _stack([part.x for part in parts]),
            _stack(duals) if duals else None,
            join_results([part.cg for part in parts]),
        )

    def _solve_primal(
        self, v: Array | None, b: Array | None, stop: StopRule, x0: Array | None, norm: Norm
    ) -> Solution:
        # Both sides are multiplied by the noise variance: one pass over memory less in each step.
        alpha, noise_var = self.alpha, self.noise_var

        def apply(x: Array) -> Array:
            return add_product(self.phi.gram(x), noise_var, alpha, x)

        n_data = 0 if v is None else v.shape[0]
        if b is not None:
            b *= noise_var
        if v is None:
            data = None
        elif x0 is None:
            data = self.phi.adjoint(v)
        else:
            # The residual of the data first: no more products than the residual of the system costs anyway.
            guessed = slice(0, x0.shape[0])
            fitted = self.phi.forward(x0)
            along = real_dot(v[guessed, :], fitted)
            misfit = namespace(v).asarray(v, copy=True)
            misfit[guessed, :] -= fitted
            del fitted
            data = self.phi.adjoint(misfit)
            del misfit
            left = add_product(data[guessed, :], -noise_var, alpha, x0)
            if _far_off(along, along - real_dot(left, x0)):
                data, x0 = self.phi.adjoint(v), None
        residual = _stack([part for part in (data, b) if part is not None])
        preconditioner = self._prepared()
        correction = None if preconditioner is None else preconditioner.correction(residual)
        known = 0.0 if correction is None else real_dot(residual, correction)
        if norm == "posterior":
            measure = self._whitened_residual(n_data, known)
        else:
            right = data if v is None or x0 is None else self.phi.adjoint(v)
            measure = frobenius_residual(_stack([part for part in (right, b) if part is not None]))
        start = x0 if x0 is None or x0.shape == residual.shape else _extended(x0, residual)
        del data, b, x0  # what is iterated on now belongs to CG alone
        if correction is not None:
            residual -= apply(correction)
            start = correction if start is None else start + correction
        stop = stop._replace(measure=measure)
        cg = conjugate_gradients(apply, residual, stop, preconditioner=preconditioner, x0=start)
        return Solution(cg.x, None, cg)

    def _solve_dual(
        self, v: Array | None, b: Array | None, stop: StopRule, dual0: Array | None, norm: Norm
    ) -> Solution:
        n_data = 0 if v is None else v.shape[0]
        g = self.g
        parts = [] if v is None else [v]
        prior_energy = np.zeros(n_data)
        if b is not None:
            gb = g * b
            parts += [-self.phi.forward(gb)]
            prior_energy = np.concatenate([prior_energy, real_dot(b, gb)])

        def apply(w: Array) -> Array:
            out = self.phi.dual_gram(w, g)
            out += self.noise_var * w
            return out

        residual = namespace(parts[0]).asarray(_stack(parts), copy=len(parts) == 1)
        measure = (
            frobenius_residual(residual) if norm == "frobenius" else self._dual_residual(n_data, prior_energy)
        )
        start = None
        if dual0 is not None:
            product = apply(dual0)
            guessed = residual[: dual0.shape[0], :]
            if not _far_off(real_dot(dual0, guessed), real_dot(dual0, product)):
                start = _extended(dual0, residual)
                guessed -= product
        stop = stop._replace(measure=measure)
        cg = conjugate_gradients(apply, residual, stop, preconditioner=self._prepared(), x0=start)
        x = self.phi.adjoint(cg.x)
        x *= g
        if b is not None:
            x[n_data:, :] += gb
        return Solution(x, cg.x, cg)

    def _whitened_residual(self, n_data: int, known: np.ndarray | float = 0.0) -> Measure:
        """Bound the error: ``||x - x*||_A^2 = r^H Sigma r <= sum_j |r_j|^2 / alpha_j``.

        `known` is the energy of what a start was corrected by, which conjugate gradients do not see.
        """
        n_rows = self.phi.shape[0]

        def measure(progress: Progress) -> np.ndarray:
            squared = divided_energy(progress.residual, self.alpha) / self.noise_var**2
            before = known if isinstance(known, float) else known[progress.rows]
            energy = (progress.energy + before) / self.noise_var
            reference = np.where(progress.rows < n_data, n_rows, energy)
            return _root_ratio(squared, reference)

        return measure

    def _dual_residual(self, n_data: int, prior_energy: np.ndarray) -> Measure:
        """Bound the error that a dual residual r leaves: ``||x - x*||_A^2 <= ||r||^2 / noise_var``."""
        n_rows = self.phi.shape[0]

        def measure(progress: Progress) -> np.ndarray:
            squared = real_dot(progress.residual, progress.residual) / self.noise_var
            is_data = progress.rows < n_data
            prior = prior_energy[progress.rows]
            # ||x||_A^2 = b^H Sigma b = b^H G b - (energy of the dual solution)
            energy = np.maximum(prior - progress.energy, 1e-12 * prior)
            return _root_ratio(squared, np.where(is_data, n_rows, energy))

        return measure


#: A guess x of the solution x* may have ``x^H A x`` up to this many times ``Re x^H b``; above 2 it is worse
#: than zero, but early in a fit that often is no harm, and a few steps less than from zero.
FAR_OFF = 30.0


def _far_off(along: np.ndarray, energy: np.ndarray) -> bool:
    """Tell from ``Re x^H b`` and ``x^H A x`` whether guesses x are too bad to start from.

    Without a bound, solutions that are cut short may feed on themselves: a mean that is too large makes the
    next precisions too small, and the next solution starts from there. With it, no start is larger than
    `FAR_OFF` times the solution, in the norm of A.
    """
    return bool((energy > FAR_OFF * along).any())


def _root_ratio(squared: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """``sqrt(squared / reference)``, infinite where the reference is still zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squared == 0, 0.0, np.sqrt(squared / reference))


def _stack(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else namespace(*parts).concat(parts, axis=0)


def _rows(array: Array | None, rows: slice) -> Array | None:
    """Return some rows of an array, None if there are none."""
    return (
        None if array is None or rows.start == rows.stop or rows.start >= array.shape[0] else array[rows, :]
    )


def _extended(guess: Array, like: Array) -> Array:
    """Copy an initial guess for the first few systems and extend it to all; the others start from zero."""
    xp = namespace(like)
    if guess.shape == like.shape:
        return xp.asarray(guess, copy=True)
    start = xp.zeros_like(like)
    start[: guess.shape[0], :] = guess
    return start
