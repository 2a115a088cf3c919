"""One exponent between a precision for each coefficient and one for all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

from cofem._arrays import Array, at_least, namespace, precision_of
from cofem.priors.base import Prior, capped_inverse
from cofem.priors.block import Block

#: Second moments relative to their group's mean below which they count as that: powers of them stay finite.
LEAST_SHARE = {"float64": 1e-150, "float32": 1e-18}
#: Largest logarithm in the derivative of what the update maximises.
LARGEST_LOG = 60.0


@dataclass(frozen=True, eq=False)
class Power(Prior):
    r"""Between sparse and dense: ``alpha_j = n m_j^(p/2 - 1) / sum_i m_i^(p/2)`` within a group of n.

    It is EM's update for the prior :math:`\exp(-t|z|^p)` whose scale t is learned. p = 0 is
    `cofem.Independent`, p = 2 one precision for the group (`cofem.Block`, which is ridge regression with its
    penalty learned), p = 1 Laplace-like. Where signals are weak and columns many, p = 0 takes noise for
    coefficients; 0.25 to 0.5 does so less.

    Parameters
    ----------
    p : float
        The exponent, from 0 to 2.
    groups : int, array of int of shape (D,), or sequence of index arrays; optional
        The groups, as for `cofem.Block`, each with a scale of its own; by default all coefficients are one.

    Examples
    --------
    >>> import numpy as np
    >>> second_moment = np.array([1.0, 4.0, 0.25, 0.25])
    >>> Power(0).precisions(second_moment, cap=1e12).tolist()
    [1.0, 0.25, 4.0, 4.0]
    >>> Power(1).precisions(second_moment, cap=1e12).tolist()
    [1.0, 0.5, 2.0, 2.0]
    >>> Power(2, groups=2).precisions(second_moment, cap=1e12).tolist()
    [0.4, 0.4, 4.0, 4.0]
    """

    p: float = 0.5
    groups: Any = None

    name: ClassVar[str] = "power"

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, Real) or not 0 <= self.p <= 2:
            raise ValueError(f"p must be a number from 0 to 2, got {self.p!r}")

    @cached_property
    def _block(self) -> Block | None:
        return None if self.groups is None else Block(self.groups)

    @property
    def libraries(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Array libraries that the update works on: any, if there is one group."""
        return None if self.groups is None else Block.libraries

    @property
    def label(self) -> str:
        """The prior in a few words."""
        return f"Power({self.p:g})" if self.groups is None else f"Power({self.p:g}, groups)"

    @property
    def restraint(self) -> float:  # type: ignore[override]
        """How far it ties coefficients to each other: the exponent; a little less with several groups."""
        return self.p if self.groups is None else 0.9 * self.p

    @property
    def is_independent(self) -> bool:  # type: ignore[override]
        """Whether it is the independent prior: at p = 0."""
        return self.p == 0

    @property
    def free_of_units(self) -> bool:  # type: ignore[override]
        """Whether units of columns make no difference: at p = 0, where coefficients are not compared."""
        return self.p == 0

    @property
    def averages(self) -> bool:  # type: ignore[override]
        """Whether precisions are means over several coefficients: at p = 2 they are nothing else."""
        return self.p == 2

    def check(self, n_columns: int) -> None:
        """Refuse groups that do not fit the dictionary.

        Examples
        --------
        >>> Power(1, [[0, 1], [1, 2]]).check(4)
        Traceback (most recent call last):
            ...
        ValueError: groups[1] repeats a coefficient; blocks must not overlap
        """
        if self._block is not None:
            self._block.check(n_columns)

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        half = self.p / 2
        mean = self._means(second_moment)
        least = LEAST_SHARE[precision_of(second_moment)]
        share = at_least(second_moment / at_least(mean, 1 / cap), least)
        # One over alpha: shares of a group have the mean 1, so that nothing overflows.
        variance = mean * self._means(share**half) * share ** (1 - half)
        return capped_inverse(variance, cap)

    def slope(self, alpha: Array, second_moment: Array, cap: float) -> Array:
        r"""Return the derivative of what EM maximises, ``alpha m ((image / alpha)^(2 / (2 - p)) - 1)``.

        :math:`\exp(-t|z|^p) = \sup_a \exp(-a z^2/2)\,\varphi(a)` with
        :math:`\log\varphi \propto -a^{-p/(2-p)}`; the scale t is the best one throughout.
        """
        if self.p in (0, 2):
            return super().slope(alpha, second_moment, cap)
        xp = namespace(alpha)
        ratio = xp.log(self.precisions(second_moment, cap)) - xp.log(alpha)
        ratio = xp.clip(ratio * (2 / (2 - self.p)), -LARGEST_LOG, LARGEST_LOG)
        return alpha * second_moment * (xp.exp(ratio) - 1)

    def _means(self, values: Array) -> Array:
        """Return the mean over the group of each coefficient, shape (D,) or a scalar."""
        if self._block is None:
            return namespace(values).mean(values)
        return self._block.means(values)
