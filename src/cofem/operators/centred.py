"""A dictionary less its mean row."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem._arrays import (
    Array,
    DeviceCache,
    as_floating,
    conj,
    in_precision,
    is_complex,
    namespace,
    precision_of,
    take,
)
from cofem.operators.base import Operator
from cofem.operators.entries import to_device_of
from cofem.operators.sampling import Diagonal

#: A centred column counts as zero below this many roundings of what was subtracted.
ROUNDINGS = 100


class Centred(Operator):
    """Every row less one and the same row, ``Phi - 1 offset^T``, without writing it out.

    With centred data, a fit on it is one with an intercept ``mean(y) - offset^T z``. A sparse matrix stays
    sparse, a transform stays fast.

    Parameters
    ----------
    operator : Operator
        Phi, shape (N, D).
    offset : array_like of shape (D,), optional
        What is subtracted from each row; the mean of the rows by default, so that columns sum to zero.
        Complex numbers only for a complex Phi.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> Phi = Dense([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0]])
    >>> Centred(Phi).to_dense()
    array([[-1. ,  0. , -0.5],
           [ 1. ,  0. ,  0.5]])
    """

    def __init__(self, operator: Operator, offset: Any = None) -> None:
        if offset is None:
            share = np.full(operator.shape[0], 1 / operator.shape[0])
            offset = conj(operator.astype(np.float64).adjoint(to_device_of(operator, share)))
        offset = as_floating(offset, "offset")
        if offset.shape != (operator.shape[1],):
            raise ValueError(f"offset must have shape ({operator.shape[1]},), got {tuple(offset.shape)}")
        if is_complex(offset) and not operator.is_complex:
            raise TypeError(f"offset must be real for the real {operator!r}, got {offset.dtype}")
        super().__init__(
            operator.shape,
            is_complex=operator.is_complex,
            precision=operator.precision or precision_of(offset),
        )
        self.operator = operator
        self.offset = offset
        self._cached = DeviceCache(offset)

    def _parts(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def _device_array(self) -> Array | None:
        return self.operator.device_array if self._cached.device_array is None else self.offset

    def _forward(self, x: Array) -> Array:
        out, offset = self._matched(self.operator._forward(x))
        xp = namespace(out)
        out -= xp.matmul(xp.astype(x, out.dtype, copy=False), offset)[..., None]
        return out

    def _adjoint(self, y: Array) -> Array:
        out, offset = self._matched(self.operator._adjoint(y))
        xp = namespace(out)
        total = xp.sum(xp.astype(y, out.dtype, copy=False), axis=-1, keepdims=True)
        out -= total * conj(offset)
        return out

    def _matched(self, out: Array) -> tuple[Array, Array]:
        """Return a product and the offset in one precision and kind."""
        xp, offset = namespace(out), self._cached.like(out)
        if self.operator.precision is None:  # then the offset has a say in the precision
            out = xp.astype(out, xp.result_type(out.dtype, offset.dtype), copy=False)
        return out, xp.astype(offset, out.dtype, copy=False)

    def _columns(self, indices: np.ndarray) -> Array:
        if not self.stored_entries:
            return super()._columns(indices)
        out, offset = self._matched(self.operator._columns(indices))
        return out - take(offset, indices, axis=0)[:, None]

    def _rows(self, indices: np.ndarray) -> Array:
        if not self.stored_entries:
            return super()._rows(indices)
        out, offset = self._matched(self.operator._rows(indices))
        return out - offset

    def _stored_entries(self) -> int:
        return self.operator.stored_entries

    def _norm_resolution(self, norms: Array) -> Array:
        # What is left of a constant column is the rounding of what was subtracted.
        eps = float(np.finfo(self.dtype).eps)
        subtracted = self.shape[0] ** 0.5 * abs(self._cached.like(norms))
        return ROUNDINGS * eps * subtracted + self.operator._norm_resolution(norms + subtracted)

    def _abs2(self) -> Operator | None:
        squares = None if self.is_complex else self.operator.abs2()
        if squares is None:
            return None
        # (p - c)^2 = (p^2 + c^2) - 2 c p
        scales = Diagonal(in_precision(self.offset, self.dtype.name))
        return Centred(squares, -(self.offset**2)) - 2 * self.operator @ scales

    def _in_precision(self, precision: str) -> Operator:
        operator = self.operator._in_precision(precision)
        # Beside an operator with a precision, the offset keeps all its digits for a later `astype`.
        kept = self.offset if operator.precision is not None else in_precision(self.offset, precision)
        return Centred(operator, kept)

    def _expression(self) -> str:
        return f"Centred({self.operator})"
