"""Operators from elsewhere: arrays, SciPy's sparse matrices and linear operators, PyLops."""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse

from cofem._arrays import Array, by_parts, require_numpy
from cofem.operators.base import Operator
from cofem.operators.chunked import Chunked
from cofem.operators.dense import Dense, Sparse


class Foreign(Operator):
    """An operator of another library, asked through ``matmat`` and ``rmatmat``: one call for a batch.

    Parameters
    ----------
    source : object
        With ``shape``, ``dtype``, ``matmat`` and ``rmatmat``, as SciPy's and PyLops' linear operators.
    precision : {"float32", "float64"}, optional
        Precision of what goes in and comes out; by default that of ``source``.
    """

    def __init__(self, source: Any, precision: str | None = None) -> None:
        dtype = np.result_type(source.dtype if source.dtype is not None else np.float64, np.float32)
        super().__init__(
            (int(source.shape[0]), int(source.shape[1])),
            is_complex=dtype.kind == "c",
            precision=precision or dtype.type(0).real.dtype.name,
        )
        self.source = source
        #: By product, whether it must be called for one vector at a time; known once it was tried.
        self._one_by_one: dict[str, bool] = {}

    @cached_property
    def takes_batches(self) -> bool:
        """Whether several vectors go through at once: not if SciPy's ``matmat`` calls ``matvec`` for each.

        Examples
        --------
        >>> import numpy as np
        >>> from scipy.sparse.linalg import aslinearoperator
        >>> Foreign(aslinearoperator(np.eye(2))).takes_batches
        True
        """
        return not _goes_one_by_one(self.source)

    def _forward(self, x: Array) -> Array:
        return self._apply("matmat", x, self.shape[0])

    def _adjoint(self, y: Array) -> Array:
        return self._apply("rmatmat", y, self.shape[1])

    def _apply(self, name: str, x: Array, length: int) -> np.ndarray:
        require_numpy(x, str(self))

        def apply(x: np.ndarray) -> np.ndarray:
            wanted = np.result_type(x.dtype, self.dtype)
            if x.size == 0:  # not every library takes a batch of no vectors
                return np.zeros((*x.shape[:-1], length), dtype=wanted)
            result = self._product(name, x.reshape(-1, x.shape[-1]).astype(wanted, copy=False))
            if result.dtype.kind == "c" and wanted.kind != "c":
                raise TypeError(f"{self} has dtype {self.dtype} but returned complex numbers for real ones")
            return result.astype(wanted, copy=False).reshape(*x.shape[:-1], length)

        return apply(x) if self.is_complex else by_parts(apply, x)

    def _product(self, name: str, vectors: np.ndarray) -> np.ndarray:
        """Return the products with the rows of an array, as rows of a new one."""
        if not self._one_by_one.get(name, False):
            # Some libraries write into what they are given, or return one and the same buffer in every call.
            # Compiled ones may want vectors that are contiguous, so each column of the batch is.
            batch = np.array(vectors, order="C").T
            try:
                result = np.array(self._numbers(name, batch).T, order="C")
            except (TypeError, ValueError):
                if name in self._one_by_one:
                    raise
                self._one_by_one[name] = True  # they may take no batch at all
                return self._product(name, vectors)
            if len(vectors) == 1 or name in self._one_by_one:
                return result
            # A source that fills one buffer and is called for each vector gives the last product for all.
            single = self._single(name, vectors[0])
            self._one_by_one[name] = not np.allclose(result[0], single, rtol=1e-3, atol=0, equal_nan=True)
            if not self._one_by_one[name]:
                return result
        return np.stack([self._single(name, vector) for vector in vectors])

    def _single(self, name: str, vector: np.ndarray) -> np.ndarray:
        """Return the product with one vector, as a new array."""
        return np.array(self._numbers(SINGLE[name], vector.copy())).reshape(-1)

    def _numbers(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return a product as the array of numbers that it must be, or say what it is in its place."""
        result = numbers_of(self.source, name, x)
        length = self.shape[1 if name.startswith("r") else 0]
        if result.size != length * (x.shape[1] if x.ndim > 1 else 1) or result.shape[:1] != (length,):
            raise ValueError(
                f"{name} of {type_of(self.source)} must return shape {(length, *x.shape[1:])} for an input "
                f"of shape {x.shape}, got {result.shape}"
            )
        return result

    def _in_precision(self, precision: str) -> Operator:
        return Foreign(self.source, precision)

    def _column_shape(self) -> tuple[int, ...] | None:
        """Return what PyLops calls ``dims``."""
        dims = getattr(self.source, "dims", None)
        shape = tuple(int(n) for n in dims) if isinstance(dims, (tuple, list)) else ()
        return shape if shape and math.prod(shape) == self.shape[1] else None

    def _expression(self) -> str:
        return f"{type(self.source).__name__}({self.shape[0]}, {self.shape[1]})"


#: The product with one vector, by that with several.
SINGLE = {"matmat": "matvec", "rmatmat": "rmatvec"}


def type_of(source: Any) -> str:
    """Return the full name of the class of an object."""
    return f"{type(source).__module__}.{type(source).__qualname__}"


def numbers_of(source: Any, name: str, x: np.ndarray) -> np.ndarray:
    """Return a product of another library's operator as an array, or say by name that it is none."""
    try:
        found = getattr(source, name)(x)
    except (TypeError, ValueError):
        # SciPy's class looks at the shape of what the user's function gave, whatever it is.
        found, own = x, getattr(source, f"_{SINGLE.get(name, name)}", None)
        with suppress(Exception):
            found = own(x if x.ndim == 1 else x[:, 0].copy())  # type: ignore[misc]
        name = SINGLE.get(name, name)
        if _is_numbers(found):
            raise
    if not _is_numbers(found):
        kind = f"dtype {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
        raise TypeError(f"{name} of {type_of(source)} must return an array of numbers, got {kind}")
    return np.asarray(found)


def _is_numbers(found: Any) -> bool:
    try:
        array = np.asarray(found)
    except ValueError:  # lists of different lengths
        return False
    return array.ndim > 0 and array.dtype.kind in "buifc"


def _goes_one_by_one(source: Any) -> bool:
    """Tell whether SciPy's product with a matrix calls the product with a vector for each column."""
    from scipy.sparse.linalg import LinearOperator  # a hundredth of a second that most fits do not need

    if not isinstance(source, LinearOperator) or type(source).matmat is not LinearOperator.matmat:
        return False
    called = False

    def spy(x: np.ndarray) -> np.ndarray:
        nonlocal called
        called = True
        return source.matvec(x)

    try:
        spied = copy.copy(source)
        spied.matvec = spy
        spied.matmat(np.zeros((source.shape[1], 2), dtype=source.dtype))
    except Exception:  # it is asked only for advice, and the code is someone else's
        return False
    return called


def as_operator(Phi: Any) -> Operator:
    """Return ``Phi`` as an operator.

    Parameters
    ----------
    Phi : Operator, array_like, scipy.sparse matrix or array, LinearOperator of SciPy or PyLops
        A dictionary of shape (N, D). An operator is returned as it is; a `numpy.memmap` is read a few rows
        at a time (`Chunked`); the blocks of a Dask array stay on the workers of the active client
        (`Distributed`).

    Returns
    -------
    Operator

    Examples
    --------
    >>> as_operator([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    <Dense(3, 2), shape (3, 2)>
    """
    if isinstance(Phi, Operator):
        return Phi
    if scipy.sparse.issparse(Phi):
        return Sparse(Phi)
    if isinstance(Phi, np.memmap) and Phi.ndim == 2:
        return Chunked(Phi)
    if array_api_compat.is_dask_array(Phi):
        from cofem.operators.distributed import Distributed  # which needs this module

        return Distributed.from_array(Phi)
    if hasattr(Phi, "matvec") and hasattr(Phi, "shape"):
        return _from_linear_operator(Phi)
    if array_api_compat.is_array_api_obj(Phi) or isinstance(Phi, (list, tuple)):
        return Dense(Phi)
    raise TypeError(
        "Phi must be an array, a SciPy sparse matrix, a SciPy or PyLops linear operator or a cofem operator, "
        f"got {type_of(Phi)}"
    )


def _from_linear_operator(source: Any) -> Operator:
    kind = type_of(source)
    if getattr(source, "clinear", True) is False:
        raise TypeError(f"Phi must be linear over the complex numbers, got {kind} with clinear=False")
    if not (hasattr(source, "matmat") and hasattr(source, "rmatmat") and hasattr(source, "dtype")):
        from scipy.sparse.linalg import aslinearoperator

        source = aslinearoperator(source)
    try:  # SciPy's class has the method whether or not it was given an adjoint
        numbers_of(source, "rmatvec", np.zeros(source.shape[0], dtype=source.dtype))
    except (NotImplementedError, AttributeError) as error:
        raise TypeError(f"Phi must have an adjoint, got {kind} without rmatvec") from error
    return Foreign(source)
