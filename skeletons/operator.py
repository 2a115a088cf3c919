"""Skeleton of an operator: copy to `src/cofem/operators/<topic>.py`, rename, replace the moving average.

CONTRIBUTING.md, "Add an operator", has the steps; docs/operators.md says what each further method buys.
"""

from __future__ import annotations

from cofem._arrays import Array, namespace
from cofem.operators.base import Operator


class MovingAverage(Operator):
    """Averages over all windows of a signal, shape (n - width + 1, n).

    Parameters
    ----------
    n : int
        Length of the signal.
    width : int
        Length of a window, at most n.

    Examples
    --------
    >>> import numpy as np
    >>> MovingAverage(5, 3) @ np.array([3.0, 0.0, 0.0, 6.0, 0.0])
    array([1., 2., 2.])
    """

    def __init__(self, n: int, width: int) -> None:
        # Refuse what cannot work, by the name of the argument.
        if not 1 <= width <= n:
            raise ValueError(f"width must be from 1 to {n}, got {width}")
        self.width = width
        # is_complex: whether entries are complex. precision: that of stored numbers; this one stores none.
        # facts=Facts(row_gram=1.0) and the like: what is certain about the structure. Nothing is here.
        super().__init__((n - width + 1, n))

    # --- what must be there: act on the last axis, any leading axes, return a new array ----------------

    def _forward(self, x: Array) -> Array:
        rows = self.shape[0]
        total = x[..., :rows] / self.width  # a new array; the input is left alone
        for shift in range(1, self.width):
            total += x[..., shift : shift + rows] / self.width
        return total

    def _adjoint(self, y: Array) -> Array:
        # Of a complex operator: the conjugate transpose.
        xp, (rows, n) = namespace(y), self.shape
        spread = xp.zeros((*y.shape[:-1], n), dtype=y.dtype, device=y.device)
        for shift in range(self.width):
            spread[..., shift : shift + rows] += y / self.width
        return spread

    # --- what may be there: each has a default that is slower, or less exact ---------------------------

    def _abs2(self) -> Operator:
        # The operator of |Phi_ij|^2 makes the norms of the columns exact.
        return self / self.width

    def _expression(self) -> str:
        # How one would type it, for `repr` and error messages.
        return f"MovingAverage({self.shape[1]}, {self.width})"
