"""Fewer coefficients than the independent prior keeps."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from cofem._arrays import Array
from cofem.priors.base import Independent, Prior, RowLayout, capped_inverse


@dataclass(frozen=True)
class Sparser(Prior):
    r"""Each coefficient has a precision of its own, and few are kept: ``alpha_j = strength / m_j``.

    A Gamma prior on each precision, of shape ``(strength - 1) / 2`` and rate zero; in other words
    :math:`p(z) \propto |z|^{-strength}`. The independent prior (strength 1) keeps a coefficient where the
    data speak for it by one standard error: of many columns and noisy data, hundreds by chance. The fit
    starts from where one with the independent prior ends, since from the usual start weak signals would be
    lost before they are found.

    Parameters
    ----------
    strength : float
        At least 1; 2 to 3 for weak signals in many columns.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> Sparser(2).precisions(np.array([2.0, 0.0]), cap=1e12).tolist()
    [1.0, 1000000000000.0]
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((80, 200))
    >>> y = 0.8 * (Phi[:, 3] - Phi[:, 50]) + rng.standard_normal(80)
    >>> posts = [cofem.fit(Phi, y, noise_std=1.0, prior=prior) for prior in (cofem.Independent(), Sparser(2))]
    >>> kept = [int((post.alpha * post.variance < 0.5).sum()) for post in posts]
    >>> kept[1] < kept[0]
    True
    """

    strength: float = 2.0

    name: ClassVar[str] = "sparser"
    free_of_units: ClassVar[bool] = True

    def __post_init__(self) -> None:
        wanted = isinstance(self.strength, Real) and not isinstance(self.strength, bool)
        if not wanted or not 1 <= self.strength < float("inf"):
            raise ValueError(f"strength must be a number of at least 1, got {self.strength!r}")

    @property
    def is_independent(self) -> bool:  # type: ignore[override]
        """Whether it is the independent prior."""
        return self.strength == 1

    @property
    def starts_from(self) -> Prior | None:
        """The independent prior."""
        return None if self.strength == 1 else Independent()

    def for_rows(self, layout: RowLayout) -> Sparser:
        """Refuse: the degrees of freedom of rows would cancel the strength."""
        raise ValueError(
            "prior=Sparser() is for coefficients, not for the rows of an analysis operator; use "
            "Independent(), Power(p) or Neighbours()"
        )

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        return capped_inverse(second_moment * (1 / self.strength), cap)

    def slope(self, alpha: Array, second_moment: Array, cap: float) -> Array:
        """Return the derivative of what EM maximises, ``strength - alpha_j m_j``."""
        return self.strength - alpha * second_moment
