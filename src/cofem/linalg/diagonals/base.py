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

    Examples
    --------
    Variances lie between `floor` and those of the prior, `g`:

    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> Phi, alpha = Dense([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0])
    >>> energy, like = Phi.column_norms() ** 2, np.zeros(1)
    >>> setting = Setting(phi=Phi, operator=Phi, alpha=alpha, noise_var=0.5, column_energy=energy, like=like)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(2)) / 0.5 + np.diag(alpha))
    >>> [np.round(bound, 3).tolist() for bound in (setting.floor, np.diag(Sigma), setting.g)]
    [[0.2, 0.25], [0.25, 0.312], [1.0, 0.5]]
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

    Examples
    --------
    Three probes are three systems:

    >>> import numpy as np
    >>> from cofem.linalg.diagonals import Rademacher
    >>> from cofem.operators import Identity
    >>> setting = Setting(Identity(8), Identity(8), np.ones(8), 0.5, np.ones(8), np.zeros(1))
    >>> columns = Rademacher(probes=3).columns(setting, None, np.random.default_rng(0))
    >>> columns.b.shape, columns.v is None
    ((3, 8), True)
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
    misled : bool
        Whether this and the estimates before turned out to be wrong.

    Examples
    --------
    A single probe is enough for orthogonal columns, but it cannot tell that it is:

    >>> import numpy as np
    >>> from cofem.linalg.diagonals import Rademacher
    >>> from cofem.operators import Diagonal
    >>> Phi, one = Diagonal([1.0, 2.0]), Rademacher(probes=1)
    >>> setting = Setting(Phi, Phi, np.ones(2), 0.5, Phi.column_norms() ** 2, np.zeros(1))
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(2)) / 0.5 + np.eye(2))
    >>> columns = one.columns(setting, None, np.random.default_rng(0))
    >>> found = one.estimate(setting, None, columns, columns.b @ Sigma)
    >>> np.allclose(found.value, np.diag(Sigma)), found.standard_error.tolist(), found.used
    (True, [inf, inf], 'rademacher')
    """

    value: Array
    uncertainty: Array | float | Callable[[], Array]
    carry: Any = None
    used: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    misled: bool = False

    @property
    def standard_error(self) -> Array | float:
        """Standard error of the estimate, shape (D,) or one number."""
        return self.uncertainty() if callable(self.uncertainty) else self.uncertainty


class DiagonalEstimator(ABC):
    """Estimates ``diag(Sigma)``; state goes through `carry`, never into the object.

    Examples
    --------
    One of one's own, which is exact for orthogonal columns and wants nothing solved:

    >>> import numpy as np, cofem
    >>> class Orthogonal(DiagonalEstimator):
    ...     name = "orthogonal"
    ...     def estimate(self, setting, carry, columns, x):
    ...         return DiagonalEstimate(setting.floor, 0.0, used=self.name)
    >>> Phi, y, method = np.diag([1.0, 2.0]), np.array([1.0, 1.0]), cofem.CoFEM(diagonal=Orthogonal())
    >>> post = cofem.fit(Phi, y, noise_std=0.1, method=method)
    >>> Sigma = np.linalg.inv(Phi.T @ Phi / 0.1**2 + np.diag(post.alpha))
    >>> np.allclose(post.variance, np.diag(Sigma))
    True
    """

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
