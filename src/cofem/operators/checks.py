"""The entry ticket for an operator: its adjoint is its adjoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cofem._arrays import (
    Array,
    is_complex,
    is_torch,
    namespace,
    on_device_of,
    precision_of,
    to_numpy,
)
from cofem.operators.base import Operator


class Products(NamedTuple):
    """What products with random vectors were like.

    Attributes
    ----------
    forward, adjoint : ndarrays of shape (n_vectors,)
        Norms of ``Phi x`` and ``Phi^H y``.
    inner : ndarray of shape (n_vectors,)
        ``<y, Phi x>``.
    """

    forward: np.ndarray
    inner: np.ndarray
    adjoint: np.ndarray


def check_adjoint(
    operator: Operator,
    rng: int | np.random.Generator = 0,
    n_vectors: int = 2,
    rtol: float | None = None,
    dtype: Any = None,
    like: Array | None = None,
) -> None:
    """Check ``<Phi x, y> = <x, Phi^H y>`` on random real and complex vectors.

    Parameters
    ----------
    operator : Operator
        Of shape (N, D).
    rng : int or numpy.random.Generator
        Source of the vectors.
    n_vectors : int
        How many pairs, sent through as one batch.
    rtol : float, optional
        Largest difference, relative to the norms of the vectors; by default 1e-10 in double precision and
        1e-4 in single precision.
    dtype : dtype, optional
        Type of the vectors; by default both real and complex ones, in the operator's precision.
    like : array, optional
        An array of the library and on the device to check on; by default where the operator's numbers are.

    Raises
    ------
    ValueError
        If the inner products differ, or a result has the wrong shape or type or shares memory with its input.

    Examples
    --------
    >>> from cofem.operators import DCT, Mask
    >>> check_adjoint(Mask([0, 3], 8) @ DCT(8).T)
    >>> class Wrong(DCT):
    ...     _adjoint = DCT._forward
    >>> try:
    ...     check_adjoint(Wrong(8))
    ... except ValueError as error:
    ...     print(str(error).split(":")[0])
    the adjoint of <Wrong(8), shape (8, 8)> does not match it
    """
    compared_products(operator, rng, n_vectors, rtol, dtype, like)


def compared_products(
    operator: Operator,
    rng: int | np.random.Generator = 0,
    n_vectors: int = 2,
    rtol: float | None = None,
    dtype: Any = None,
    like: Array | None = None,
) -> Products:
    """Do what `check_adjoint` does, and return what was seen, of the last type of vectors."""
    rng = np.random.default_rng(rng)
    if dtype is None:
        real = np.dtype(operator.precision or "float64")
        dtypes = [real, np.result_type(real, np.complex64)]
    else:
        dtypes = [np.dtype(dtype)]
    single = np.finfo(dtypes[0]).dtype == np.float32
    rtol = (1e-4 if single else 1e-10) if rtol is None else rtol
    rows, columns = operator.shape
    like = operator.device_array if like is None else like
    for kind in dtypes:
        sample = np.zeros(1, kind)
        sample = sample if like is None else on_device_of(like, sample)
        x, y = (_drawn((n_vectors, length), sample, rng) for length in (columns, rows))
        forward = _checked_result(operator, "forward", x, rows)
        adjoint = _checked_result(operator, "adjoint", y, columns)
        left, right = _dot(y, forward), _dot(adjoint, x)
        scale = _size(forward) * _size(y) + _size(x) * _size(adjoint)
        # Written so that NaN fails.
        wrong = ~(np.abs(left - right) <= rtol * scale)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(
                f"the adjoint of {operator!r} does not match it: for a pair of "
                f"{'complex' if kind.kind == 'c' else 'real'} vectors <Phi x, y> = {left[k]:.10g} "
                f"but <x, Phi^H y> = {right[k]:.10g}"
            )
    return Products(_size(forward), left, _size(adjoint))


def _drawn(shape: tuple[int, int], like: Array, rng: np.random.Generator) -> Array:
    """Draw numbers between -1 and 1, which takes a third of the time of normal ones."""
    numbers = rng.uniform(-1, 1, shape)
    if is_complex(like):
        numbers = numbers + 1j * rng.uniform(-1, 1, shape)
    return namespace(like).astype(on_device_of(like, numbers), like.dtype)


def _dot(a: Array, b: Array) -> np.ndarray:
    """Inner product of each row, as NumPy numbers; rows of two types are brought to one."""
    xp = namespace(a)
    dtype = xp.result_type(a, b)
    return to_numpy(xp.vecdot(xp.astype(a, dtype, copy=False), xp.astype(b, dtype, copy=False)))


def _size(x: Array) -> np.ndarray:
    return to_numpy(namespace(x).linalg.vector_norm(x, axis=-1))


def _checked_result(operator: Operator, method: str, x: Array, length: int) -> Array:
    result = getattr(operator, method)(x)
    if result.shape != (*x.shape[:-1], length):
        raise ValueError(
            f"{method} of {operator!r} must return shape {(*x.shape[:-1], length)} for an input of shape "
            f"{tuple(x.shape)}, got {tuple(result.shape)}"
        )
    if _share_memory(result, x):
        raise ValueError(f"{method} of {operator!r} must return a new array, not its input")
    if _is_users_own(operator):
        xp, kept = namespace(result), to_numpy(result).copy()
        getattr(operator, method)(xp.zeros_like(x))
        if not np.array_equal(to_numpy(result), kept, equal_nan=True):
            raise ValueError(
                f"{method} of {operator!r} must return a new array in every call, but a later call changed "
                "what an earlier one had returned; return a copy"
            )
    xp, precision = namespace(x), precision_of(x)
    if operator.is_complex or is_complex(x):
        wanted = xp.complex64 if precision == "float32" else xp.complex128
    else:
        wanted = getattr(xp, precision)
    if result.dtype != wanted:
        raise ValueError(
            f"{method} of {operator!r} must return dtype {_name(wanted)} for an input of dtype "
            f"{_name(x.dtype)}, got dtype {_name(result.dtype)}"
        )
    return result


def _is_users_own(operator: Operator) -> bool:
    """Tell whether an operator, or a part of it, is of a class outside of this package."""
    own = type(operator).__module__.partition(".")[0] != "cofem"
    return own or any(_is_users_own(part) for part in operator._parts())


def _name(dtype: Any) -> str:
    return str(np.dtype(dtype)) if isinstance(dtype, type) else str(dtype)


def _share_memory(a: Array, b: Array) -> bool:
    if isinstance(a, np.ndarray):
        return np.shares_memory(a, b)
    if is_torch(a):
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    return a is b
