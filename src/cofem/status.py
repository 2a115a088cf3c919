"""How a fit ended, in a code for programs and in words for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ConvergenceWarning(UserWarning):
    """A fit met numerical trouble; the result is the last good state and its status says what to try."""


class StatusCode(Enum):
    """How a fit ended."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True)
class Status:
    """How a fit ended and what to try if that is not good enough.

    Attributes
    ----------
    code : StatusCode
        ``CONVERGED``, ``MAX_ITER``, ``STOPPED`` (by a callback), ``DIVERGED`` or ``FAILED``.
    message : str
        What happened, with advice.
    notes : tuple of str
        What was chosen on the way and why, and trouble that did not end the fit.

    Examples
    --------
    >>> print(Status(StatusCode.CONVERGED, "the mean changed by 5e-05", ("auto chose irls",)))
    converged: the mean changed by 5e-05. auto chose irls.
    """

    code: StatusCode
    message: str
    notes: tuple[str, ...] = field(default=())

    @property
    def converged(self) -> bool:
        """Whether the stop rule was met."""
        return self.code is StatusCode.CONVERGED

    def __str__(self) -> str:
        return f"{self.code.value}: " + " ".join(f"{text}." for text in (self.message, *self.notes))
