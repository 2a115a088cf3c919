"""What a diagonal estimator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, namespace, reciprocal, squared_modulus
from cofem.linalg.message_passing import Exchange
from cofem.operators.dictionary import Dictionary


@dataclass(frozen=True)
class PosteriorContext:
    """The posterior whose variances are wanted, and what is known about it.

    Before the first step that is the prior; a `ContinuedContext` knows the moments of the step before.

    Attributes
    ----------
    phi : Dictionary
        Phi, shape (N, D).
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance ``1 / beta``.
    solve : callable or None
        Solves for ``Sigma b``, b of shape (B, D), which is overwritten; only a fit has one.
    swept : bool
        Whether the mean before was found by message passing, which speaks for self-consistent variances.
    last : bool
        Whether the fit is about to end with variances that were never checked.

    Examples
    --------
    Variances lie between `floor` and those of the prior, `g`:

    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> phi = Dictionary(Dense([[1.0, 0.0], [1.0, 1.0]]), like=np.zeros(1))
    >>> context = PosteriorContext(phi, alpha=np.array([1.0, 2.0]), noise_var=0.5)
    >>> Sigma = np.linalg.inv(phi.gram(np.eye(2)) / 0.5 + np.diag(context.alpha))
    >>> [np.round(bound, 3).tolist() for bound in (context.floor, np.diag(Sigma), context.g)]
    [[0.2, 0.25], [0.25, 0.312], [1.0, 0.5]]
    """

    phi: Dictionary
    alpha: Array
    noise_var: float
    solve: Callable[[Array], Array] | None = None
    swept: bool = False
    last: bool = False

    @property
    def like(self) -> Array:
        """Any array of the precision, library and kind (real or complex) of the coefficients."""
        return self.phi.like

    @property
    def g(self) -> Array:
        """Prior variances ``1 / alpha``, shape (D,)."""
        return reciprocal(self.alpha)

    @property
    def floor(self) -> Array:
        """Lower bound of the variances, ``1 / (alpha + beta ||phi_j||^2)``: all other coefficients known."""
        total = self.phi.column_energy / self.noise_var
        total += self.alpha
        return reciprocal(total)

    def clip(self, variance: Array) -> Array:
        """Keep variances within their exact bounds: `floor` and the prior variance."""
        xp = namespace(variance)
        # Not `clip`, which takes four times as long with arrays for bounds.
        clipped = xp.minimum(xp.maximum(variance, self.floor), self.g)
        return xp.astype(clipped, self.alpha.dtype, copy=False)

    def probe_scale(self) -> Array:
        """Return inverse standard deviations, shape (D,), as far as they are known."""
        return namespace(self.alpha).sqrt(self.alpha)

    def effect_on_alpha(self, variance: Array) -> Array:
        """Return the change of log alpha for a relative change of the variance: ``s / (|mean|^2 + s)``."""
        return namespace(variance).ones_like(variance)


@dataclass(frozen=True)
class ContinuedContext(PosteriorContext):
    """A posterior one step after another one, whose moments are known.

    Attributes
    ----------
    mean : array of shape (D,) or (L, D)
        Mean of the step before, a row for each task.
    variance : array of shape (D,)
        Variances of the step before.
    """

    mean: Array = field(kw_only=True)
    variance: Array = field(kw_only=True)

    def probe_scale(self) -> Array:
        """Return the inverse of the last standard deviations, shape (D,)."""
        return namespace(self.alpha).sqrt(reciprocal(self.variance))

    def effect_on_alpha(self, variance: Array) -> Array:
        """Return the change of log alpha for a relative change of the variance: ``s / (|mean|^2 + s)``."""
        power = squared_modulus(self.mean)
        return variance / ((power if power.ndim == 1 else namespace(power).mean(power, axis=0)) + variance)


class RightHandSides(NamedTuple):
    """What an estimator wants solved together with the mean.

    `v` has shape (B1, N) and is solved for ``Sigma beta Phi^H v``, `b` has shape (B2, D) and is solved
    for ``Sigma b`` and overwritten. `extra` is handed back to the estimator. With an `exchange` the mean may
    be found by message passing.

    Examples
    --------
    Three probes are three systems:

    >>> import numpy as np
    >>> from cofem.linalg.diagonals import Rademacher
    >>> from cofem.operators import Identity
    >>> context = PosteriorContext(Dictionary(Identity(8), like=np.zeros(1)), np.ones(8), 0.5)
    >>> rhs = Rademacher(probes=3).right_hand_sides(context, None, np.random.default_rng(0))
    >>> rhs.b.shape, rhs.v is None
    ((3, 8), True)
    """

    v: Array | None = None
    b: Array | None = None
    extra: Any = None
    exchange: Exchange | None = None


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
    coherent : bool
        Whether neighbours on a grid share what they explain, which takes a fit many small steps.

    Examples
    --------
    A single probe is enough for orthogonal columns, but it cannot tell that it is:

    >>> import numpy as np
    >>> from cofem.linalg.diagonals import Rademacher
    >>> from cofem.operators import Diagonal
    >>> phi, one = Dictionary(Diagonal([1.0, 2.0]), like=np.zeros(1)), Rademacher(probes=1)
    >>> context = PosteriorContext(phi, np.ones(2), 0.5)
    >>> Sigma = np.linalg.inv(phi.gram(np.eye(2)) / 0.5 + np.eye(2))
    >>> rhs = one.right_hand_sides(context, None, np.random.default_rng(0))
    >>> found = one.estimate(context, None, rhs, rhs.b @ Sigma)
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
    coherent: bool = False

    @property
    def standard_error(self) -> Array | float:
        """Standard error of the estimate, shape (D,) or one number."""
        return self.uncertainty() if callable(self.uncertainty) else self.uncertainty


class DiagonalEstimator(ABC):
    """Estimates ``diag(Sigma)``; state goes through `carry`, never into the object.

    A carry of a type of its own is declared with `cofem.packable`, so that checkpoints can hold it.

    Examples
    --------
    One of one's own, which is exact for orthogonal columns and wants nothing solved:

    >>> import numpy as np, cofem
    >>> class Orthogonal(DiagonalEstimator):
    ...     name = "orthogonal"
    ...     def estimate(self, context, carry, rhs, x):
    ...         return DiagonalEstimate(context.floor, 0.0, used=self.name)
    >>> Phi, y, method = np.diag([1.0, 2.0]), np.array([1.0, 1.0]), cofem.CoFEM(diagonal=Orthogonal())
    >>> post = cofem.fit(Phi, y, noise_std=0.1, method=method)
    >>> Sigma = np.linalg.inv(Phi.T @ Phi / 0.1**2 + np.diag(post.alpha))
    >>> np.allclose(post.variance, np.diag(Sigma))
    True
    """

    name: ClassVar[str]

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Any:
        """Return the carry of the first step; None by default, for estimators without a state."""
        return None

    def quiet(self, carry: Any) -> bool:
        """Tell whether the next estimate is free enough of noise for acceleration to build on it."""
        return True

    def is_exact(self, carry: Any) -> bool:
        """Tell whether the estimates are exact."""
        return False

    def is_rough(self, carry: Any) -> bool:
        """Tell whether the last check of the estimates has found large errors."""
        return False

    def trusted(self, carry: Any) -> bool:
        """Tell whether a fit may end with these estimates; if not, it looks once more (`context.last`)."""
        return True

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Return what must be solved with the mean; nothing by default."""
        return RightHandSides()

    @abstractmethod
    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Return the estimate, given the solutions x (B1 + B2, D) of `rhs`."""
