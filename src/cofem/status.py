"""How a fit ended, in a code for programs and in words for people."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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


class ReliabilityWarning(UserWarning):
    """A fit has reason to doubt its own answer; `post.status.warnings` says why and what to try.

    Examples
    --------
    The noise that is given here is a thousand times too small:

    >>> import warnings, numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi, y = rng.standard_normal((50, 20)), rng.standard_normal(50)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", cofem.ReliabilityWarning)
    ...     post = cofem.fit(Phi, y, noise_std=0.001, rng=0)
    >>> [warning.category.__name__ for warning in caught], post.converged
    (['ReliabilityWarning'], False)
    """


@packable("caution")
class Caution(str):
    """A note that changes what the answer is worth: the status has it among its warnings.

    Examples
    --------
    >>> status = Status(StatusCode.CONVERGED, "done").with_notes("took 3 s", Caution("too few data"))
    >>> status.notes, status.warnings
    (('took 3 s',), ('too few data',))
    """

    __slots__ = ()

    def packed(self) -> dict[str, str]:
        """Return what a checkpoint holds."""
        return {"text": str(self)}

    @classmethod
    def unpacked(cls, fields: dict[str, str]) -> Caution:
        """Return the text that a checkpoint holds."""
        return cls(fields["text"])


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
    warnings : tuple of str
        Reasons to doubt the answer, and what to try. `cofem.fit` also issues them as a `ReliabilityWarning`.

    Examples
    --------
    >>> print(Status(StatusCode.CONVERGED, "the mean changed by 5e-05", ("auto chose irls",)))
    converged: the mean changed by 5e-05. auto chose irls.
    >>> print(Status(StatusCode.CONVERGED, "the mean changed by 5e-05", (), ("the noise seems too large",)))
    converged, but in doubt. Warning: the noise seems too large. the mean changed by 5e-05.
    """

    code: StatusCode
    message: str
    notes: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())

    @property
    def converged(self) -> bool:
        """Whether the stop rule was met and the fit has no reason to doubt its answer.

        Examples
        --------
        >>> Status(StatusCode.CONVERGED, "the mean changed by 5e-05").converged
        True
        >>> Status(StatusCode.STOPPED, "stopped by the callback").converged
        False
        >>> Status(StatusCode.CONVERGED, "done", warnings=("the noise seems too large",)).converged
        False
        """
        return self.settled and not self.warnings

    @property
    def settled(self) -> bool:
        """Whether the stop rule was met, whatever the answer is worth.

        Examples
        --------
        >>> Status(StatusCode.CONVERGED, "done", warnings=("the noise seems too large",)).settled
        True
        """
        return self.code is StatusCode.CONVERGED

    @property
    def heading(self) -> str:
        """How the fit ended, in a word or four.

        Examples
        --------
        >>> Status(StatusCode.CONVERGED, "done", warnings=("the noise seems too large",)).heading
        'converged, but in doubt'
        """
        doubted = self.settled and bool(self.warnings)
        return f"{self.code.value}, but in doubt" if doubted else self.code.value

    def with_notes(self, *notes: str) -> Status:
        """Return the status with more notes, those that are a `Caution` among its warnings; "" is left out.

        Examples
        --------
        >>> Status(StatusCode.CONVERGED, "done").with_notes("", Caution("too few data")).warnings
        ('too few data',)
        """
        plain = tuple(str(note) for note in notes if note and not isinstance(note, Caution))
        doubts = tuple(str(note) for note in notes if note and isinstance(note, Caution))
        return replace(self, notes=self.notes + plain, warnings=self.warnings + doubts)

    def __str__(self) -> str:
        doubts = [f"Warning: {text}" for text in self.warnings]
        texts = " ".join(f"{text}." for text in (*doubts, self.message, *self.notes))
        return f"{self.heading}{'.' if doubts else ':'} {texts}"
