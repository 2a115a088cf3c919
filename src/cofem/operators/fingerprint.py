"""What an operator is known by: a few numbers that others of the same shape do not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cofem._arrays import Array, is_complex, precision_of
from cofem.operators.base import Operator
from cofem.operators.checks import compared_products

#: How far the numbers of one operator may be apart, relative to the largest. A matrix and a function, NumPy,
#: PyLops and PyTorch were up to 1e-15 apart in double and 5e-7 in single precision, a NUFFT and its matrix
#: 6e-5 in single precision. One row of 400 that is another one makes 1e-2, one of 500 000 makes 8e-4, and one
#: entry of 400 x 1000 makes 1e-3; what is below 1e-6 does not matter to a posterior.
AGREEMENT = {"float64": 1e-6, "float32": 2e-4}

#: What is known from the check of each operator when it came in, so that nobody has to multiply again.
_KNOWN: WeakKeyDictionary[Operator, Fingerprint] = WeakKeyDictionary()


@dataclass(frozen=True)
class Fingerprint:
    """What products with one fixed pair of random vectors are like.

    Attributes
    ----------
    dtype : str
        Type of the vectors.
    numbers : sequence of float
        Norm of ``Phi x``, real and imaginary part of ``<y, Phi x>``, norm of ``Phi^H y``.

    Examples
    --------
    >>> from cofem.operators import as_operator
    >>> matrix = np.random.default_rng(0).standard_normal((20, 30))
    >>> one = known_by(as_operator(matrix), np.zeros(1))
    >>> one.agrees(known_by(as_operator(matrix.T).T, np.zeros(1)))
    True
    >>> one.agrees(known_by(as_operator(matrix[::-1]), np.zeros(1)))
    False
    """

    dtype: str
    numbers: Sequence[float]

    def agrees(self, other: Fingerprint) -> bool:
        """Tell whether the other one is that of the same operator, up to rounding."""
        precision = np.dtype(self.dtype).type(0).real.dtype.name
        return self.dtype == other.dtype and self.distance(other) <= AGREEMENT[precision]

    def distance(self, other: Fingerprint) -> float:
        """Return how far the numbers are apart at most, relative to the largest one."""
        apart = max(abs(a - b) for a, b in zip(self.numbers, other.numbers, strict=True))
        return apart / (max(map(abs, (*self.numbers, *other.numbers))) or 1.0)


def known_by(operator: Operator, like: Array, again: bool = False) -> Fingerprint:
    """Check the adjoint of an operator, and return what it is known by.

    Parameters
    ----------
    operator : Operator
        Of shape (N, D).
    like : array
        An array of the library, on the device and of the type that products are wanted in.
    again : bool
        Whether to multiply also where the numbers are known.

    Raises
    ------
    ValueError
        If the adjoint is wrong; see `cofem.operators.check_adjoint`.
    """
    dtype = np.result_type(precision_of(like), np.complex64 if is_complex(like) else np.float32)
    known = _KNOWN.get(operator)
    if known is None or known.dtype != dtype.name or again:
        seen: Any = compared_products(operator, n_vectors=1, dtype=dtype, like=like)
        inner = complex(seen.inner[0])
        numbers = (float(seen.forward[0]), inner.real, inner.imag, float(seen.adjoint[0]))
        known = _KNOWN[operator] = Fingerprint(dtype.name, numbers)
    return known
