r"""The linear system of a posterior in analysis form.

.. math:: A = \beta\Phi^H\Phi + B^H \mathrm{diag}(\alpha) B

It is solved by conjugate gradients, multiplied by the noise variance. Unlike in synthesis there is no bound
on the error from the residual alone: B has a null space. The preconditioner is close to A, so that the
residual in its norm stands for the error's energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofem._arrays import Array, namespace, standard_normal
from cofem.linalg.analysis.rows import Rows
from cofem.linalg.cg import CGResult, Progress, StopRule, conjugate_gradients, join_results
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.sparse_factor import sparse_factor
from cofem.linalg.preconditioners.waves import wave_preconditioner
from cofem.operators.dictionary import Dictionary


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
    at_once : int
        Most right-hand sides that are solved together.

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
    at_once: int = 32

    def apply(self, x: Array) -> Array:
        """Return ``noise_var A x`` for x of shape (B, D)."""
        operator = self.rows.operator
        out = self.phi.gram(x)
        inside = operator.forward(x)
        inside *= self.noise_var * self.alpha
        out += operator.adjoint(inside)
        return out

    def of_data(self, v: Array) -> Array:
        """Return right-hand sides for ``A^-1 Phi^H v / noise_var``, v of shape (B, N)."""
        return self.phi.adjoint(v)

    def of_draws(self, count: int, rng: np.random.Generator) -> Array:
        """Return right-hand sides whose solutions are draws from ``N(0, A^-1)``, shape (count, D)."""
        like, xp = self.phi.like, namespace(self.alpha)
        noise = standard_normal((count, self.phi.shape[0]), like, rng)
        noise *= self.noise_var**0.5
        out = self.phi.adjoint(noise)
        inside = standard_normal((count, self.rows.n_rows), like, rng)
        inside *= xp.sqrt(self.alpha)
        inside *= self.noise_var
        out += self.rows.operator.adjoint(inside)
        return out

    def solve(
        self,
        rhs: Array,
        *,
        tol: float,
        reference: float | None,
        max_iter: int,
        guess: Array | None = None,
        preconditioner: PosteriorPreconditioner | None = None,
    ) -> CGResult:
        """Solve ``noise_var A x = rhs``, which is overwritten.

        Parameters
        ----------
        rhs : array of shape (B, D)
            Right-hand sides, times the noise variance.
        tol : float
            Error in the energy norm of A, relative to the root of `reference`.
        reference : float or None
            Squared energy that errors are compared with: N for a mean, D for a draw; None for that of each
            solution itself.
        max_iter : int
            Most steps.
        guess : array of shape (B, D), optional
            Where to start; overwritten.
        preconditioner : PosteriorPreconditioner, optional
            If it was made already.
        """
        ready = self.preconditioner() if preconditioner is None else preconditioner
        noise_var = self.noise_var

        def measure(progress: Progress) -> np.ndarray:
            against = (
                progress.energy if reference is None else np.full(progress.rows.size, noise_var * reference)
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where(progress.preconditioned == 0, 0.0, np.sqrt(progress.preconditioned / against))

        stop = StopRule(tol, max_iter, min_iter=1, measure=measure)
        results = []
        for start in range(0, rhs.shape[0], self.at_once):
            some = slice(start, start + self.at_once)
            residual, x0 = rhs[some, :], None if guess is None else guess[some, :]
            if x0 is not None:
                residual -= self.apply(x0)
            results.append(conjugate_gradients(self.apply, residual, stop, preconditioner=ready, x0=x0))
        if len(results) == 1:
            return results[0]
        joined = join_results(results)
        x = namespace(rhs).concat([result.x for result in results], axis=0)
        return CGResult(
            x, joined.iterations, joined.converged, joined.broken, joined.error, joined.applications
        )

    def preconditioner(self) -> PosteriorPreconditioner:
        """Return what makes the system easy for conjugate gradients."""
        factor = sparse_factor(self.phi, self.rows, self.alpha, self.noise_var)
        if factor is not None:
            return factor
        return wave_preconditioner(self.phi, self.rows, self.alpha, self.noise_var)
