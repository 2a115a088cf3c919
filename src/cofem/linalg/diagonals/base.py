"""What a diagonal estimator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import namespace, reciprocal
from cofem.linalg.system import Dictionary
from cofem.operators import Operator

Array = Any


@dataclass(frozen=True)
class Setting:
    """The posterior whose variances are wanted, and what is known about it.

    Attributes
    ----------
    phi : Dictionary
        Phi, shape (N, D); its products are counted.
    operator : Operator
        The same, for its structural facts.
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance ``1 / beta``.
    column_energy : array of shape (D,)
        ``theta_j = ||phi_j||^2``.
    like : array
        Any array of the precision, library and kind (real or complex) of the coefficients.
    mean : array of shape (D,) or (L, D), or None
        Mean of the step before, a row for each task.
    variance : array of shape (D,) or None
        Variances of the step before.
    solve : callable
        Solves for ``Sigma b``, b of shape (B, D), which is overwritten.
    """

    phi: Dictionary
    operator: Operator
    alpha: Array
    noise_var: float
    column_energy: Array
    like: Array
    mean: Array | None = None
    variance: Array | None = None
    solve: Callable[[Array], Array] | None = None

    @property
    def g(self) -> Array:
        """Prior variances ``1 / alpha``, shape (D,)."""
        return reciprocal(self.alpha)

    @property
    def floor(self) -> Array:
        """Lower bound of the variances, ``1 / (alpha + beta theta)``: all other coefficients known."""
        total = self.column_energy / self.noise_var
        total += self.alpha
        return reciprocal(total)

    def clip(self, variance: Array) -> Array:
        """Keep variances within their exact bounds: `floor` and the prior variance."""
        xp = namespace(variance)
        # Not `clip`, which takes four times as long with arrays for bounds.
        clipped = xp.minimum(xp.maximum(variance, self.floor), self.g)
        return xp.astype(clipped, self.alpha.dtype, copy=False)


@dataclass(frozen=True)
class Columns:
    """Right-hand sides that an estimator wants solved together with the mean.

    `v` has shape (B1, N) and is solved for ``Sigma beta Phi^H v``, `b` has shape (B2, D) and is solved
    for ``Sigma b`` and overwritten. `extra` is handed back to the estimator.
    """

    v: Array | None = None
    b: Array | None = None
    extra: Any = None


@dataclass(frozen=True)
class DiagonalEstimate:
    """An estimate of the variances and how far it may be off.

    Attributes
    ----------
    value : array of shape (D,)
        The estimate.
    uncertainty : array of shape (D,), float or callable
        Its standard error; infinite where a single probe cannot tell, zero for exact values. Where it is
        not at hand, what computes it.
    carry : Any
        What the estimator wants back in the next step.
    used : str
        Name of the estimator that made it.
    notes : dict of str to str
        What was decided and why, by topic.
    figures : dict of str to float
        Entries for the history.
    """

    value: Array
    uncertainty: Array | float | Callable[[], Array]
    carry: Any = None
    used: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def standard_error(self) -> Array | float:
        """Standard error of the estimate, shape (D,) or one number."""
        return self.uncertainty() if callable(self.uncertainty) else self.uncertainty


class DiagonalEstimator(ABC):
    """Estimates ``diag(Sigma)``; state goes through `carry`, never into the object."""

    name: ClassVar[str]

    def quiet(self, carry: Any) -> bool:
        """Tell whether the next estimate is free enough of noise for acceleration to build on it."""
        return True

    def columns(self, setting: Setting, carry: Any, rng: np.random.Generator) -> Columns:
        """Return what must be solved with the mean; nothing by default."""
        return Columns()

    @abstractmethod
    def estimate(self, setting: Setting, carry: Any, columns: Columns, x: Array) -> DiagonalEstimate:
        """Return the estimate, given the solutions x (B1 + B2, D) of `columns`."""
