"""Precisions coupled between neighbours, for signals that cluster without known edges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from cofem._arrays import Array, as_shape, namespace
from cofem.priors.base import Prior, capped_inverse


@dataclass(frozen=True)
class PatternCoupled(Prior):
    r"""The precision of a coefficient is shared in part with its neighbours (Fang, Shen, Li and Wang 2015).

    Coefficient j has the prior precision ``a_j + coupling * sum_i a_i`` over its neighbours i; the update is
    ``a_j = 1 / (m_j + coupling * sum_i m_i)``, so that a coefficient beside large ones is not pruned.

    Parameters
    ----------
    coupling : float
        Weight of each neighbour, from 0 (independent) to 1.
    shape : int or tuple of int, optional
        Shape of the array of coefficients, in C order; neighbours are those along its axes. One axis by
        default.

    Examples
    --------
    >>> import numpy as np
    >>> PatternCoupled(0.0).precisions(np.array([1.0, 2.0]), cap=1e12).tolist()
    [1.0, 0.5]
    >>> PatternCoupled(1.0).precisions(np.array([4.0, 0.0, 4.0]), cap=1e12).tolist()
    [0.375, 0.625, 0.375]
    """

    coupling: float = 1.0
    shape: Any = None

    name: ClassVar[str] = "pattern-coupled"
    #: The update is an approximation of the M-step, for which there is no safeguard.
    extrapolates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (isinstance(self.coupling, int | float) and 0 <= self.coupling <= 1):
            raise ValueError(f"coupling must be between 0 and 1, got {self.coupling!r}")
        if self.shape is not None:
            as_shape(self.shape, "shape")

    def check(self, n_columns: int) -> None:
        """Refuse a shape that does not hold all coefficients.

        Examples
        --------
        >>> PatternCoupled(shape=(2, 3)).check(8)
        Traceback (most recent call last):
            ...
        ValueError: shape must hold 8 coefficients, got (2, 3)
        """
        self._axes(n_columns)

    def _axes(self, n_columns: int) -> tuple[int, ...]:
        axes = (n_columns,) if self.shape is None else as_shape(self.shape, "shape")
        if math.prod(axes) != n_columns:
            raise ValueError(f"shape must hold {n_columns} coefficients, got {axes}")
        return axes

    def spread(self, x: Array) -> Array:
        """Add to each entry its neighbours', times the coupling; shape (D,).

        Examples
        --------
        >>> import numpy as np
        >>> PatternCoupled(0.5).spread(np.array([0.0, 4.0, 0.0, 0.0])).tolist()
        [2.0, 4.0, 2.0, 0.0]
        >>> PatternCoupled(0.5, shape=(2, 2)).spread(np.array([0.0, 4.0, 0.0, 0.0])).tolist()
        [2.0, 4.0, 0.0, 2.0]
        """
        xp = namespace(x)
        array = xp.reshape(x, self._axes(x.shape[0]))
        total = xp.asarray(array, copy=True)
        weight = float(self.coupling)
        for axis in range(array.ndim):
            ahead = [slice(None)] * array.ndim
            behind = [slice(None)] * array.ndim
            ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
            total[tuple(ahead)] += weight * array[tuple(behind)]
            total[tuple(behind)] += weight * array[tuple(ahead)]
        return xp.reshape(total, (-1,))

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        return self.spread(capped_inverse(self.spread(second_moment), cap))
