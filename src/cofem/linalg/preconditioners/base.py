"""What a preconditioner of the posterior's linear systems is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from cofem._arrays import Array


class PosteriorPreconditioner(ABC):
    """An approximate inverse of a posterior's system, for rows as vectors."""

    #: What tolerances of a mean are multiplied by: below 1 where the bound on the error that a residual
    #: gives is sharp with this preconditioner, so that the error is as large as the bound.
    sharpness: ClassVar[float] = 1.0
    #: The same for probes.
    sharpness_for_probes: ClassVar[float] = 1.0

    def prepared(self) -> PosteriorPreconditioner:
        """Return what a solve needs; what is made for it is dropped when it ends."""
        return self

    def correction(self, r: Array) -> Array | None:
        """Return what a start with residual r must be corrected by, shape (B, n); None for nothing."""
        return None

    @abstractmethod
    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, n)."""
