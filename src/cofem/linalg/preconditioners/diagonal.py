"""A diagonal preconditioner of the primal system."""

from __future__ import annotations

from dataclasses import dataclass

from cofem._arrays import Array, multiply_into, reciprocal
from cofem.linalg.preconditioners.base import PosteriorPreconditioner


@dataclass(frozen=True)
class DiagonalPreconditioner(PosteriorPreconditioner):
    """Multiply each entry by its own number.

    Attributes
    ----------
    inverse : array of shape (D,)
        The numbers.

    Examples
    --------
    >>> import numpy as np
    >>> P = DiagonalPreconditioner.of(np.array([1.0, 3.0]), noise_var=2.0, energy=2.0)
    >>> r = np.ones((1, 2))
    >>> P.apply(r, r)
    >>> r.tolist()
    [[0.25, 0.125]]
    """

    inverse: Array

    @classmethod
    def of(cls, alpha: Array, noise_var: float, energy: Array | float) -> DiagonalPreconditioner:
        """Return ``1 / (energy + noise_var alpha)``; `energy` stands for the diagonal of ``Phi^H Phi``."""
        diagonal = noise_var * alpha
        diagonal += energy
        return cls(reciprocal(diagonal))

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        multiply_into(out, self.inverse, r)
