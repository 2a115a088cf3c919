"""A diagonal preconditioner of the primal system."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cofem._arrays import Array, multiply_into, reciprocal
from cofem.linalg.preconditioners.base import PosteriorPreconditioner


@dataclass(frozen=True)
class DiagonalPreconditioner(PosteriorPreconditioner):
    """Multiply each entry by its own number, ``1 / (energy + noise_var alpha)``.

    The numbers are computed for each solve: a vector less to keep in between.

    Attributes
    ----------
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    energy : float or array of shape (D,)
        What stands for the diagonal of ``Phi^H Phi``.
    inverse : array of shape (D,), optional
        The numbers, if they are known.

    Examples
    --------
    >>> import numpy as np
    >>> P = DiagonalPreconditioner(np.array([1.0, 3.0]), noise_var=2.0, energy=2.0).prepared()
    >>> r = np.ones((1, 2))
    >>> P.apply(r, r)
    >>> r.tolist()
    [[0.25, 0.125]]
    """

    alpha: Array
    noise_var: float
    energy: Array | float
    inverse: Array | None = None

    def prepared(self) -> DiagonalPreconditioner:
        """Return the preconditioner with its numbers."""
        diagonal = self.noise_var * self.alpha
        diagonal += self.energy
        return replace(self, inverse=reciprocal(diagonal))

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        assert self.inverse is not None
        multiply_into(out, self.inverse, r)
