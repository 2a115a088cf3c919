"""The operator protocol: what a dictionary Phi of shape (N, D) can be asked, whatever it is made of.

`Operator` is the last of four classes, each of which needs those before it only: `action.Action` (products),
`structure.Structure` (what is known), `matrix.Matrix` (entries, norms, Gram matrices), and here the algebra.
"""

from __future__ import annotations

import numbers
from dataclasses import replace
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from cofem._arrays import Array, as_array, as_floating, as_indices
from cofem.operators.facts import Facts
from cofem.operators.matrix import Matrix


class Operator(Matrix):
    """A linear map from coefficients ``(..., D)`` to data ``(..., N)``, known by its action.

    A subclass calls ``super().__init__`` and implements ``_forward`` and ``_adjoint``, on the last axis of
    arrays with any leading batch axes. Both return new arrays and leave their input alone. Everything else
    here is derived; override a derived method where the structure allows something faster or exact.

    Parameters
    ----------
    shape : tuple of int
        ``(N, D)``.
    is_complex : bool
        Whether the entries of the operator are complex.
    precision : {"float32", "float64", None}
        Precision of the numbers that the operator stores; None if it stores none and computes in the
        precision of its input.
    facts : Facts
        What is certain about its structure.

    Examples
    --------
    >>> import numpy as np
    >>> class Reverse(Operator):
    ...     def __init__(self, n):
    ...         super().__init__((n, n), facts=Facts(row_gram=1.0))
    ...     def _forward(self, x):
    ...         return np.flip(x, axis=-1).copy()
    ...     def _adjoint(self, y):
    ...         return np.flip(y, axis=-1).copy()
    >>> Phi = Reverse(3)
    >>> Phi @ np.array([1.0, 2.0, 3.0])
    array([3., 2., 1.])
    >>> Phi.norm
    1.0
    """

    ndim = 2
    # Both make NumPy leave ``array @ Phi`` and ``scalar * Phi`` to the operator.
    __array_ufunc__ = None
    __array_priority__ = 1000.0
    # How tightly the expression in the repr binds: 1 sum, 2 product, 3 name or call.
    _binding: ClassVar[int] = 3

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        is_complex: bool = False,
        precision: str | None = None,
        facts: Facts = Facts(),  # noqa: B008 - frozen
    ) -> None:
        if shape[0] == shape[1]:  # a square matrix with orthogonal rows has orthogonal columns
            gram = facts.row_gram if facts.column_gram is None else facts.column_gram
            facts = replace(facts, row_gram=gram, column_gram=gram)
        self.shape = shape
        self.is_complex = is_complex
        self.precision = precision
        self.facts = facts

    # --- algebra ------------------------------------------------------------------------------------

    @property
    def H(self) -> Operator:
        """Hermitian adjoint, shape (D, N).

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).H.to_dense()
        array([[1.-1.j],
               [2.+1.j]])
        """
        return self._adjoint_operator()

    def _adjoint_operator(self) -> Operator:
        from cofem.operators.adjoints import Adjoint

        return Adjoint(self)

    @property
    def T(self) -> Operator:
        """Transpose, shape (D, N).

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).T.to_dense()
        array([[1.+1.j],
               [2.-1.j]])
        """
        return self.H.conj()

    def conj(self) -> Operator:
        """Return the operator with complex conjugated entries.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).conj().to_dense()
        array([[1.-1.j, 2.+1.j]])
        >>> Phi = DCT(8)
        >>> Phi.conj() is Phi  # it is real
        True
        """
        return self._conjugate_operator() if self.is_complex else self

    def _conjugate_operator(self) -> Operator:
        from cofem.operators.adjoints import Conjugate

        return Conjugate(self)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Operator):
            from cofem.operators.compose import compose

            return compose(self, other)
        other = as_array(other)
        if other.ndim == 1:
            return self.forward(other)
        if other.ndim == 2:
            return self.forward(other.T).T
        raise ValueError(f"Phi @ x wants x of shape (D,) or (D, L), got shape {tuple(other.shape)}")

    def __rmatmul__(self, other: Any) -> Any:
        other = as_array(other)
        if other.ndim not in (1, 2):
            raise ValueError(f"x @ Phi wants x of shape (N,) or (L, N), got shape {tuple(other.shape)}")
        return self.T.forward(other)

    def __add__(self, other: Any) -> Operator:
        if not isinstance(other, Operator):
            return NotImplemented
        from cofem.operators.compose import add

        return add(self, other)

    def __sub__(self, other: Any) -> Operator:
        return self + (-other) if isinstance(other, Operator) else NotImplemented

    def __neg__(self) -> Operator:
        return self * -1

    def __mul__(self, scalar: Any) -> Operator:
        if not _is_scalar(scalar):
            return NotImplemented
        from cofem.operators.compose import scale

        return scale(complex(scalar), self)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Operator:
        return self * (1 / complex(scalar)) if _is_scalar(scalar) else NotImplemented

    # --- operators made from this one ---------------------------------------------------------------

    def take_rows(self, indices: Any) -> Operator:
        """Return an operator of some rows, of its own kind where that is a matrix.

        Parameters
        ----------
        indices : array_like of int, shape (K,)
            Which rows, from 0 to N - 1, in any order.

        Returns
        -------
        Operator
            Of shape (K, D).

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Dense, Mask
        >>> Dense(np.eye(3)).take_rows([0, 2])
        <Dense(2, 3), shape (2, 3)>
        >>> (Mask([0, 3, 6], 8) @ DCT(8).T).take_rows([2])
        <Mask(1 of 8) @ DCT(8).T, shape (1, 8)>
        """
        return self._take_rows(as_indices(indices, self.shape[0], "indices"))

    def _take_rows(self, indices: np.ndarray) -> Operator:
        from cofem.operators.sampling import Mask

        return Mask(indices, self.shape[0]) @ self

    def _picked_again(self, indices: np.ndarray) -> Operator | None:
        """Return `take_rows` if that is an operator as cheap as this one on its own, else None."""
        return None

    def row_parts(self) -> list[Operator]:
        """Return operators that are this one when they stand on top of each other, in their order.

        Each band of differences by itself, each part of a stack: work on one after the other needs no array
        of M numbers. By default the operator alone.

        Examples
        --------
        >>> from cofem.operators import DCT, Gradient, vstack
        >>> [part.shape for part in vstack([Gradient((2, 3)), DCT(6)]).row_parts()]
        [(3, 6), (4, 6), (6, 6)]
        """
        return self._row_parts()

    def _row_parts(self) -> list[Operator]:
        return [self]

    def _repeated(self, count: int) -> Operator | None:
        """Return the operator for `count` arrays, band by band; see `cofem.operators.stack.repeated`."""
        return None

    def scale_columns(self, scale: Any) -> Operator:
        """Return the operator with each column multiplied by its own number, ``Phi @ Diagonal(scale)``.

        Parameters
        ----------
        scale : array_like of shape (D,)
            Finite numbers.

        Returns
        -------
        Operator
            A dense matrix gives another one, in its own precision.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, 2.0], [3.0, 4.0]]).scale_columns([1.0, 10.0]).to_dense()
        array([[ 1., 20.],
               [ 3., 40.]])
        >>> DCT(4).T.scale_columns(np.ones(4))
        <DCT(4).T @ Diagonal(4), shape (4, 4)>
        """
        return self._scale_columns(self._checked_row(scale, "scale"))

    def _scale_columns(self, scale: Array) -> Operator:
        from cofem.operators.sampling import Diagonal

        return self @ Diagonal(scale)

    def subtract_row(self, offset: Any) -> Operator:
        """Return the operator with one and the same row subtracted from every row.

        Parameters
        ----------
        offset : array_like of shape (D,)
            Finite numbers; complex ones only for a complex operator.

        Returns
        -------
        Operator
            A dense matrix gives another one, in its own precision; others give `Centred`.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, 2.0], [3.0, 4.0]]).subtract_row([2.0, 3.0]).to_dense()
        array([[-1., -1.],
               [ 1.,  1.]])
        >>> DCT(2).subtract_row([0.5, 0.5])
        <Centred(DCT(2)), shape (2, 2)>
        """
        return self._subtract_row(self._checked_row(offset, "offset"))

    def _subtract_row(self, offset: Array) -> Operator:
        from cofem.operators.centred import Centred

        return Centred(self, offset)

    def _checked_row(self, values: Any, name: str) -> Array:
        values = as_floating(values, name)
        if tuple(values.shape) != (self.shape[1],):
            raise ValueError(f"{name} must have shape ({self.shape[1]},), got {tuple(values.shape)}")
        return values

    def astype(self, dtype: Any) -> Operator:
        """Return the operator with the numbers it stores in another precision.

        Parameters
        ----------
        dtype : dtype
            Its precision counts, single or double; whether the operator is complex does not change.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense(np.eye(2)).astype(np.float32).dtype
        dtype('float32')
        >>> Dense(1j * np.eye(2)).astype(np.float32).dtype
        dtype('complex64')
        """
        precision = np.dtype(dtype)
        if precision.name not in ("float32", "float64", "complex64", "complex128"):
            raise ValueError(f"dtype must be single or double precision, got {dtype!r}")
        return self._in_precision(precision.type(0).real.dtype.name)

    def _in_precision(self, precision: str) -> Operator:
        return self

    # --- the protocol of scipy.sparse.linalg --------------------------------------------------------

    def matvec(self, x: Array) -> Array:
        """Return ``Phi x`` for ``x`` of shape (D,) or (D, 1), in the same form, as SciPy's solvers ask.

        Examples
        --------
        >>> import numpy as np
        >>> from scipy.sparse.linalg import lsqr
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[2.0, 0.0], [0.0, 4.0]])
        >>> Phi.matvec(np.ones((2, 1))).shape
        (2, 1)
        >>> np.round(lsqr(Phi, np.array([2.0, 2.0]))[0], 6)
        array([1. , 0.5])
        """
        return self @ x

    def rmatvec(self, y: Array) -> Array:
        """Return ``Phi^H y`` for ``y`` of shape (N,) or (N, 1), in the same form.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).rmatvec(np.array([1.0]))
        array([1.-1.j, 2.+1.j])
        """
        return self.H @ y

    def matmat(self, x: Array) -> Array:
        """Return ``Phi x`` for ``x`` of shape (D, L).

        Examples
        --------
        Vectors are columns here, as in SciPy, and rows in `forward`:

        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
        >>> Phi.matmat(np.ones((3, 5))).shape, Phi.forward(np.ones((5, 3))).shape
        ((2, 5), (5, 2))
        """
        return self @ x

    def rmatmat(self, y: Array) -> Array:
        """Return ``Phi^H y`` for ``y`` of shape (N, L).

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0, 2.0], [0.0, 1.0]]).rmatmat(np.eye(2))
        array([[1., 0.],
               [2., 1.]])
        """
        return self.H @ y

    # What `pylops.LinearOperator(Phi)` asks.
    _matvec, _rmatvec = matvec, rmatvec

    # --- text ---------------------------------------------------------------------------------------

    def _expression(self) -> str:
        """Return the operator as one would type it, in short."""
        return f"{type(self).__name__}({self.shape[0]}, {self.shape[1]})"

    def _adjoint_expression(self) -> str:
        return self._bracketed(3) + (".H" if self.is_complex else ".T")

    def _bracketed(self, binding: int) -> str:
        """Return the expression, in brackets if it binds less tightly than ``binding``."""
        text = self._expression()
        return text if self._binding >= binding else f"({text})"

    def __str__(self) -> str:
        return self._expression()

    def __repr__(self) -> str:
        return f"<{self._expression()}, shape {self.shape}>"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, numbers.Number) or (array_api_compat.is_array_api_obj(value) and value.ndim == 0)
