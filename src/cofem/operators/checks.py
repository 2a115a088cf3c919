"""The entry ticket for an operator: its adjoint is its adjoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_array_api_obj

from cofem._arrays import (
    Array,
    conj,
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
    operator: Any,
    rng: int | np.random.Generator = 0,
    n_vectors: int = 2,
    rtol: float | None = None,
    dtype: Any = None,
    like: Array | None = None,
) -> None:
    """Check ``<Phi x, y> = <x, Phi^H y>`` on random real and complex vectors.

    Parameters
    ----------
    operator : Operator, array_like, scipy.sparse matrix or array, LinearOperator of SciPy or PyLops
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
    TypeError
        If a result is no array.

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
    if not isinstance(operator, Operator):
        from cofem.operators.interop import as_operator  # which needs operators that are checked

        operator = as_operator(operator)
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
        apart = np.abs(left - right)
        wrong = ~(apart <= rtol * scale)
        if wrong.any():  # what is left of constant columns that were centred is the rounding of their mean
            wrong = ~(apart <= rtol * scale + _size(x) * _size(y) * _rounding(operator, x))
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(
                f"the adjoint of {operator!r} does not match it: for a pair of "
                f"{'complex' if kind.kind == 'c' else 'real'} vectors <Phi x, y> = {left[k]:.10g} "
                f"but <x, Phi^H y> = {right[k]:.10g}. {_advice(operator, x, y)}"
            )
    return Products(_size(forward), left, _size(adjoint))


def _rounding(operator: Operator, like: Array) -> float:
    """Return the norm of a column of zeros that cannot be told from zero."""
    zeros = on_device_of(like, np.zeros(operator.shape[1]))
    return float(np.max(to_numpy(operator.norm_resolution(zeros))))


def _advice(operator: Operator, x: Array, y: Array) -> str:
    """Say what to do about an adjoint that is none, as far as products with a few vectors tell."""
    xp = namespace(x)
    x, y = (xp.concat([z, xp.flip(z, axis=-1), xp.roll(z, 1, axis=-1)]) for z in (x, y))
    left, right = _dot(y, operator.forward(x)), _dot(operator.adjoint(y), x)
    with np.errstate(all="ignore"):
        ratios = right / left
    if np.isfinite(ratios).all() and np.ptp(np.abs(ratios)) <= 1e-3 * abs(ratios[0]) and ratios[0]:
        ratio = ratios[0].real if abs(ratios[0].imag) <= 1e-3 * abs(ratios[0]) else ratios[0]
        return f"The adjoint is {ratio:.6g} times what it must be: divide it by that"
    if is_complex(x) and np.allclose(left, _dot(conj(operator.adjoint(conj(y))), x), rtol=1e-3):
        return "The adjoint is the transpose: conjugate what it multiplies by"
    return (
        "The adjoint takes the steps of the product backwards, each by its own conjugate transpose: what the "
        "product picks, it puts back into zeros, and adds up what was picked twice. Compare "
        "as_operator(Phi).to_dense() with as_operator(Phi).H.to_dense().conj().T in a small size"
    )


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
    result = _product(operator, method, x)
    if tuple(result.shape) != (*x.shape[:-1], length):
        raise ValueError(
            f"{method} of {operator!r} must return shape {(*x.shape[:-1], length)} for an input of shape "
            f"{tuple(x.shape)}, got {tuple(result.shape)}"
        )
    if _share_memory(result, x):
        raise ValueError(f"{method} of {operator!r} must return a new array, not its input")
    if _users_parts(operator):
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


def _product(operator: Operator, method: str, x: Array) -> Array:
    """Return a product, or say by name which operator returned something else than an array."""
    try:
        result: Array = getattr(operator, method)(x)
    except (TypeError, AttributeError):  # another operator may have got it before
        for part in _users_parts(operator):
            for name, length in (("forward", part.shape[1]), ("adjoint", part.shape[0])):
                zeros = np.zeros((1, length), to_numpy(x[:1]).dtype)
                _check_array(part, name, x, getattr(part, name)(on_device_of(x, zeros)))
        raise
    _check_array(operator, method, x, result)
    return result


def _check_array(operator: Operator, method: str, x: Array, result: Any) -> None:
    if not (is_array_api_obj(result) and namespace(result) is namespace(x)):
        raise TypeError(
            f"{method} of {operator!r} must return an array like the one it is given, {_class(x)}, got "
            f"{_class(result)}"
        )


def _class(value: Any) -> str:
    return type(value).__name__ if value is None else f"{type(value).__module__}.{type(value).__qualname__}"


def _users_parts(operator: Operator) -> list[Operator]:
    """Return the parts of an operator that are of a class outside of this package."""
    own = [] if type(operator).__module__.partition(".")[0] == "cofem" else [operator]
    return own + [part for whole in operator._parts() for part in _users_parts(whole)]


def _name(dtype: Any) -> str:
    return str(np.dtype(dtype)) if isinstance(dtype, type) else str(dtype)


def _share_memory(a: Array, b: Array) -> bool:
    if isinstance(a, np.ndarray):
        return np.shares_memory(a, b)
    if is_torch(a):
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    return a is b
