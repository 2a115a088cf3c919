"""Linear systems of a posterior, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from cofem._arrays import (
    Array,
    conj,
    in_precision,
    is_complex,
    namespace,
    on_device_of,
    squared_modulus,
    total,
)
from cofem._warn import warn
from cofem.linalg.build import build_system
from cofem.linalg.direct import DirectSystem, is_cheaper, is_small
from cofem.linalg.system import PosteriorSystem
from cofem.operators import Diagonal, Operator
from cofem.operators.dictionary import Dictionary
from cofem.status import ConvergenceWarning

#: Accuracy of samples and covariances, in posterior standard deviations.
SOLVE_TOL = 1e-5
#: How far ``y^H C^-1 y`` may be off for the evidence, in nats.
QUADRATIC_TOL = 0.02
#: Right-hand sides solved at once: bounds memory to a few times this many vectors of length D.
SOLVE_BATCH = 32


@dataclass(frozen=True)
class PosteriorSolver:
    """Solves with ``A = Phi^H Phi / noise_var + diag(alpha)``, by a factor or by conjugate gradients.

    Attributes
    ----------
    phi : Dictionary
        The dictionary for which the noise is equal, in double precision.
    alpha : array of shape (D,)
        Prior precisions, in double precision.
    noise_var : float
        Noise variance.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> solver = PosteriorSolver.of(Dense(np.ones((1, 2))), np.ones(2), 1.0)
    >>> solver.for_count(1)(v=np.array([[3.0]]))
    array([[1., 1.]])
    """

    phi: Dictionary
    alpha: Array
    noise_var: float

    @classmethod
    def of(
        cls, operator: Operator, alpha: Array, noise_var: float, weights: Array | None = None
    ) -> PosteriorSolver:
        """Return the solver for a dictionary whose data are multiplied by `weights`, shape (N,)."""
        alpha = in_precision(alpha, "float64")
        white = operator.astype(np.float64)
        if weights is not None:
            white = Diagonal(in_precision(weights, "float64")) @ white
        return cls(Dictionary(white, like=alpha), alpha, noise_var)

    @property
    def can_factor(self) -> bool:
        """Whether a factor is to be had: in NumPy, with a dictionary of a small side."""
        return isinstance(self.alpha, np.ndarray) and is_small(self.phi)

    def for_count(self, count: int) -> Callable[..., Array]:
        """Return a function from v or b to ``Sigma (beta Phi^H v + b)``, the cheaper one for `count` rows."""
        if isinstance(self.alpha, np.ndarray) and is_cheaper(self.phi, count):
            return self._factored().solve
        return partial(self._solve, build_system(self.phi, self.alpha, self.noise_var))

    def mean_for_evidence(self, y: Array) -> Array:
        """Return the means of data y, shape (L, N), so accurate that ``y^H C^-1 y`` follows from them.

        In the dual form rounding may be far above the tolerance where prior variances are 1e16 times the
        noise; the primal form then corrects the mean.
        """
        mean = self.for_count(y.shape[0])(v=y)
        left = self.phi.adjoint(y - self.phi.forward(mean)) / self.noise_var - self.alpha * mean
        # An upper bound on what y^H C^-1 y is too large by, as the mean is where it is least.
        excess = total(squared_modulus(left) / self.alpha)
        if not excess > QUADRATIC_TOL:
            return mean
        primal = build_system(self.phi, self.alpha, self.noise_var, form="primal")
        return mean + self._solve(primal, b=left)

    def exact_variances(self, blocks: Iterable[np.ndarray]) -> np.ndarray:
        """Return the variances of ``x z`` for rows x, given in blocks of shape (B, D)."""
        system = self._factored()
        return np.concatenate([system.variance(rows) for rows in blocks])

    def _solve(self, system: PosteriorSystem, v: Array | None = None, b: Array | None = None) -> Array:
        """Solve by conjugate gradients, or by a factor where they run out of steps and one is to be had."""
        max_iter = max(1000, 4 * min(system.phi.shape))
        spare = None if b is None else namespace(b).asarray(b, copy=True)  # the solver would overwrite it
        solution = system.solve(v, spare, tol=SOLVE_TOL, max_iter=max_iter)
        if not solution.cg.converged.all():
            if self.can_factor:
                return self._factored().solve(v, b)
            warn(f"posterior solves are inexact: {solution.cg.report()}", ConvergenceWarning)
        return solution.x

    def _factored(self) -> DirectSystem:
        return DirectSystem(self.phi, self.alpha, self.noise_var)


def rows_of(operator: Operator, like: Array) -> Iterator[Array]:
    """Write out an operator in double precision, a few rows at a time, where `like` is."""
    n_rows, start = operator.shape[0], 0
    for count in batches(n_rows):
        unit = np.eye(count, n_rows, start, np.complex128 if is_complex(like) else np.float64)
        yield conj(in_precision(operator.adjoint(on_device_of(like, unit)), "float64"))
        start += count


def batches(n: int) -> Iterator[int]:
    """Split n right-hand sides into batches of bounded size."""
    for start in range(0, n, SOLVE_BATCH):
        yield min(SOLVE_BATCH, n - start)
