"""How a fit ended, in a code for programs and in words for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cofem._packing import packable


class ConvergenceWarning(UserWarning):
    """A fit met numerical trouble or ran out of steps; its status says what to try.

    Examples
    --------
    Three steps are too few for this:

    >>> import warnings, numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi, y = rng.standard_normal((50, 100)), rng.standard_normal(50)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", cofem.ConvergenceWarning)
    ...     post = cofem.fit(Phi, y, noise_std=0.01, max_iter=3, rng=0)
    >>> [warning.category.__name__ for warning in caught], "Raise max_iter" in str(post.status)
    (['ConvergenceWarning'], True)
    """


@packable("code")
class StatusCode(Enum):
    """How a fit ended.

    Attributes
    ----------
    CONVERGED
        The stop rule was met.
    MAX_ITER
        The outer steps that were allowed ran out before that.
    STOPPED
        A callback or Ctrl-C ended the fit.
    DIVERGED
        The method went astray; the result is the last good state.
    FAILED
        The operator or the arithmetic failed; the message says how.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> post = cofem.fit(np.eye(3), np.ones(3), noise_std=0.1, callback=lambda state: state.iteration == 2)
    >>> post.status.code
    <StatusCode.STOPPED: 'stopped'>
    >>> [code.value for code in cofem.StatusCode]
    ['converged', 'max_iter', 'stopped', 'diverged', 'failed']
    """

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    DIVERGED = "diverged"
    FAILED = "failed"


@packable("status")
@dataclass(frozen=True)
class Status:
    """How a fit ended and what to try if that is not good enough.

    Attributes
    ----------
    code : StatusCode
        ``CONVERGED``, ``MAX_ITER``, ``STOPPED`` (by a callback or Ctrl-C), ``DIVERGED`` or ``FAILED``.
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
        """Whether the stop rule was met.

        Examples
        --------
        >>> Status(StatusCode.CONVERGED, "the mean changed by 5e-05").converged
        True
        >>> Status(StatusCode.STOPPED, "stopped by the callback").converged
        False
        """
        return self.code is StatusCode.CONVERGED

    def __str__(self) -> str:
        return f"{self.code.value}: " + " ".join(f"{text}." for text in (self.message, *self.notes))
