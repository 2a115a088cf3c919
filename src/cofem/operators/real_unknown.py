"""A dictionary of complex data whose coefficients are real."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem._arrays import Array, by_parts, is_complex, namespace, precision_of
from cofem.operators.base import Operator
from cofem.operators.interop import as_operator

#: Both parts of complex noise have half of its variance. With this factor each has all of it, so that
#: `noise_std` is that of ``|noise|``, as for complex coefficients.
UNIT = 2**0.5


class RealUnknown(Operator):
    r"""The real and the imaginary part of a dictionary on top of each other, for coefficients that are real.

    Data are then :math:`\sqrt 2\,(\Re y, \Im y)`, whose noise has the standard deviation of ``|noise|``.
    ``cofem.fit(Phi, y, real=True)`` is ``cofem.fit(RealUnknown(Phi), y)``.

    Parameters
    ----------
    operator : anything `cofem.as_operator` takes, shape (N, D)
        Phi, complex or, where the data alone are complex, real.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> from cofem.operators import FFT, Mask, RealUnknown
    >>> rng = np.random.default_rng(0)
    >>> Phi = Mask(np.sort(rng.choice(64, 20, replace=False)), 64) @ FFT(64)
    >>> z = np.zeros(64); z[[5, 40]] = 1, -2
    >>> noise = 0.05 * (rng.standard_normal(20) + 1j * rng.standard_normal(20))
    >>> post = cofem.fit(RealUnknown(Phi), Phi @ z + noise)
    >>> post.mean.dtype, post.support().tolist(), post.predict().dtype
    (dtype('float64'), [5, 40], dtype('complex128'))
    """

    def __init__(self, operator: Any) -> None:
        operator = as_operator(operator)
        facts = operator.facts
        super().__init__(
            (2 * operator.shape[0], operator.shape[1]),
            precision=operator.precision,
            facts=type(facts)(column_gram=None if facts.column_gram is None else 2 * facts.column_gram),
        )
        self.operator = operator

    def stack(self, y: Array, axis: int = 0) -> Array:
        """Return complex data, shape (N,) or (N, L), as the real ones that this is the dictionary of.

        Examples
        --------
        >>> import numpy as np
        >>> RealUnknown(np.eye(2)).stack(np.array([1 + 2j, 3])).round(3).tolist()
        [1.414, 4.243, 2.828, 0.0]
        """
        xp = namespace(y)
        parts = [xp.real(y), xp.imag(y)] if is_complex(y) else [y, xp.zeros_like(y)]
        return UNIT * xp.concat(parts, axis=axis)

    def unstack(self, v: Array) -> Array:
        """Return the complex data that real ones, shape (..., 2 N), stand for.

        Examples
        --------
        >>> import numpy as np
        >>> Phi = RealUnknown(np.eye(2))
        >>> np.allclose(Phi.unstack(Phi.stack(np.array([1 + 2j, 3]))), [1 + 2j, 3])
        True
        """
        xp, count = namespace(v), v.shape[-1] // 2
        v = xp.astype(v, xp.complex64 if precision_of(v) == "float32" else xp.complex128) / UNIT
        return v[..., :count] + 1j * v[..., count:]

    def _parts(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def _device_array(self) -> Array | None:
        return self.operator.device_array

    def _column_shape(self) -> tuple[int, ...] | None:
        return self.operator.column_shape

    def _forward(self, x: Array) -> Array:
        return by_parts(lambda x: self.stack(self.operator._forward(x), axis=-1), x)

    def _adjoint(self, y: Array) -> Array:
        def adjoint(v: Array) -> Array:
            found = self.operator._adjoint(2 * self.unstack(v))
            return namespace(found).real(found)

        return by_parts(adjoint, y)

    def _gram(self, x: Array) -> Array:
        def gram(x: Array) -> Array:
            found = self.operator._gram(x)
            return 2 * (namespace(found).real(found) if is_complex(found) else found)

        return by_parts(gram, x)

    def column_norms(self) -> Array:
        """Return the norms of the columns, shape (D,).

        Examples
        --------
        >>> RealUnknown([[3.0 + 4.0j, 0.0]]).column_norms().round(3).tolist()
        [7.071, 0.0]
        """
        return UNIT * self.operator.column_norms()

    def _columns(self, indices: np.ndarray) -> Array:
        return self.stack(self.operator._columns(indices), axis=-1)

    def _stored_entries(self) -> int:
        return 2 * self.operator.stored_entries

    def _in_precision(self, precision: str) -> Operator:
        return RealUnknown(self.operator._in_precision(precision))

    def _expression(self) -> str:
        return f"RealUnknown({self.operator})"
