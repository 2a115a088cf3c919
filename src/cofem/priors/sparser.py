"""Fewer coefficients than the independent prior keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar

from cofem._arrays import Array
from cofem.priors.base import Independent, Prior, RowLayout, capped_inverse

#: Strengths on the way to larger ones. At once from 1 to 2, one in three weak signals was lost.
RISES = (1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Sparser(Prior):
    r"""Each coefficient has a precision of its own, and few are kept: ``alpha_j = strength / m_j``.

    A Gamma prior on each precision, of shape ``(strength - 1) / 2`` and rate zero; in other words
    :math:`p(z) \propto |z|^{-strength}`. The independent prior (strength 1) keeps a coefficient where the
    data speak for it by one standard error: of many columns and noisy data, hundreds by chance. From the
    usual start weak signals would be lost before they are found. So the fit starts from where one with
    another prior ends, and the strength is raised step by step: to 1.5, 2, 3.

    Parameters
    ----------
    strength : float
        At least 1; 2 to 3 for weak signals in many columns.
    start : Prior
        The prior of the fit that comes first: the independent one, or ``Power(0.25)`` to ``Power(1)`` for
        signals so weak that the independent one mostly fits noise.

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
    start: Prior = field(default_factory=Independent)

    name: ClassVar[str] = "sparser"

    def __post_init__(self) -> None:
        wanted = isinstance(self.strength, Real) and not isinstance(self.strength, bool)
        if not wanted or not 1 <= self.strength < float("inf"):
            raise ValueError(f"strength must be a number of at least 1, got {self.strength!r}")
        if not isinstance(self.start, Prior):
            raise TypeError(f"start must be a prior such as Power(0.25), got {self.start!r}")

    @property
    def label(self) -> str:
        """The prior in a few words."""
        after = "" if self.start.is_independent else f", start={self.start.label}"
        return f"Sparser({self.strength:g}{after})"

    @property
    def free_of_units(self) -> bool:  # type: ignore[override]
        """Whether units of columns make no difference: not where the fit that comes first depends on them."""
        return self.start.free_of_units

    @property
    def libraries(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Array libraries that the update of the fit that comes first works on."""
        return self.start.libraries

    @property
    def is_independent(self) -> bool:  # type: ignore[override]
        """Whether it is the independent prior."""
        return self.strength == 1

    @property
    def prunes(self) -> bool:  # type: ignore[override]
        """Whether coefficients that were lost in a leap never come back."""
        return self.strength > 1

    @property
    def starts_from(self) -> Prior | None:
        """The prior of the fit that comes first: one a little less strong, or `start`."""
        if self.strength == 1:
            return None
        before = [rise for rise in RISES if rise < self.strength]
        return Sparser(before[-1], self.start) if before else self.start

    @property
    def leads_on(self) -> bool:
        """Whether a strength below 2: gains may begin after it."""
        return self.strength < 2

    def check(self, n_columns: int) -> None:
        """Refuse a prior to start from that does not fit the dictionary.

        Examples
        --------
        >>> from cofem import Power
        >>> Sparser(2, Power(0.5, [[0, 9]])).check(8)
        Traceback (most recent call last):
            ...
        ValueError: groups[0] must hold indices from 0 to 7, got [0, 9]
        """
        self.start.check(n_columns)

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
