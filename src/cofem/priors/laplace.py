"""The most likely coefficients under a Laplace prior: the lasso, with its penalty from the noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from typing import ClassVar

from cofem._arrays import Array, at_least, namespace
from cofem.priors.base import Prior, RowLayout, capped_inverse

#: Squared norm of a column, relative to the largest one, below which it counts as this.
ZERO = 1e-24


@dataclass(frozen=True)
class Laplace(Prior):
    r"""The mode of a Laplace prior, ``alpha_j = threshold |phi_j| / (noise_std |mean_j|)``.

    A coefficient is zero unless the data speak for it by `threshold` standard errors: the fit ends at the
    minimum of :math:`|y - \Phi z|^2/2 + threshold\,\sigma\sum_j|\phi_j||z_j|`, the lasso. Updates by second
    moments, as with the other priors, count what a coefficient may still be as if it were there; of weak
    signals in very many columns that is mostly noise. Those by the mean alone do not. There is one minimum;
    a coefficient that reaches zero stays there, so a fit must not start with zeros. Variances are those of
    the Gaussian with the precisions it ends with: coefficients at zero have none.

    Parameters
    ----------
    threshold : float
        In standard errors, positive; 1.5 to 3 for weak signals in many columns.
    relax : float
        Share of the penalty at which the coefficients that were found are taken at the end, above 0 and at
        most 1. The lasso pulls them all towards zero; 0.5 halves their precisions, and predictions are
        nearer to the truth: the relaxed lasso (Meinshausen, 2007).

    Examples
    --------
    >>> import numpy as np, cofem
    >>> Laplace(2).precisions(np.array([4.0, 0.0]), cap=1e12).tolist()  # columns and noise of 1
    [1.0, 1000000000000.0]
    >>> Phi, y = np.eye(3), np.array([5.0, -3.0, 1.0])
    >>> post = cofem.fit(Phi, y, noise_std=1.0, prior=Laplace(2), tol=1e-6)
    >>> np.round(post.mean, 3).tolist()
    [3.0, -1.0, 0.0]
    >>> post = cofem.fit(Phi, y, noise_std=1.0, prior=Laplace(2, relax=0.5), tol=1e-6)
    >>> np.round(post.mean, 3).tolist()
    [3.75, -1.5, 0.0]
    """

    threshold: float = 2.0
    relax: float = 1.0
    #: Norms of the columns over the noise, shape (D,): one over the standard errors; None if all are 1.
    resolution: Array | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "laplace"
    free_of_units: ClassVar[bool] = True
    of_mode: ClassVar[bool] = True

    def __post_init__(self) -> None:
        wanted = isinstance(self.threshold, Real) and not isinstance(self.threshold, bool)
        if not wanted or not 0 < self.threshold < float("inf"):
            raise ValueError(f"threshold must be a positive number, got {self.threshold!r}")
        if not isinstance(self.relax, Real) or isinstance(self.relax, bool) or not 0 < self.relax <= 1:
            raise ValueError(f"relax must be a number above 0 and at most 1, got {self.relax!r}")

    @property
    def label(self) -> str:
        """The prior in a few words."""
        return f"Laplace({self.threshold:.3g}{'' if self.relax == 1 else f', relax={self.relax:g}'})"

    @property
    def relaxation(self) -> float:  # type: ignore[override]
        """Share of the precisions that is kept at the end."""
        return self.relax

    def for_columns(self, energy: Array, noise_var: float) -> Laplace:
        """Return the prior for columns of these squared norms and data with this noise."""
        # Columns of zeros must not divide zero by zero: what is zero stays so, whatever its penalty.
        energy = at_least(energy, ZERO * (float(namespace(energy).max(energy)) or 1.0))
        return replace(self, resolution=namespace(energy).sqrt(energy / noise_var))

    def at_noise(self, ratio: float) -> Laplace:
        """Return the one with the same penalty, ``threshold * noise_std``, at another noise."""
        return replace(self, threshold=self.threshold / ratio)

    def for_rows(self, layout: RowLayout) -> Laplace:
        """Refuse: what standard errors rows have is not known."""
        raise ValueError(
            "prior=Laplace() is for coefficients, not for the rows of an analysis operator; use "
            "Independent(), Power(p) or Neighbours()"
        )

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step, from the squares of the mean."""
        size = namespace(second_moment).sqrt(second_moment) * (1 / self.threshold)
        return capped_inverse(size if self.resolution is None else size / self.resolution, cap)

    def slope(self, alpha: Array, second_moment: Array, cap: float) -> Array:
        """Return the derivative of what updates maximise, ``penalty_j^2 / alpha_j - alpha_j mean_j^2``."""
        penalty = self.threshold if self.resolution is None else self.threshold * self.resolution
        return penalty * penalty / alpha - alpha * second_moment
