"""Array helpers: the namespace of an array, its precision, and conversions at the door.

Numerical code asks for ``xp = namespace(x)`` and writes against the array API standard, so it runs on
any array library that follows it.
"""

import math
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import array_api_compat
import array_api_compat.numpy
import numpy as np

from cofem._blocks import CACHE_BLOCK, blocks

Array = Any
"""An array of any library that follows the array API standard."""

_COMPUTED_DTYPES = ("float32", "float64", "complex64", "complex128")
_PRECISIONS = {"f": "float32", "d": "float64", "F": "float32", "D": "float64"}  # by NumPy's letters


def namespace(*arrays: Array) -> Any:
    """Return the array namespace shared by ``arrays``.

    Examples
    --------
    >>> import numpy as np
    >>> namespace(np.ones(2)).__name__
    'array_api_compat.numpy'
    """
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:  # asked for thousands of times in a fit
        return array_api_compat.numpy
    return array_api_compat.array_namespace(*arrays)


def as_array(x: Any, name: str = "the array") -> Array:
    """Return ``x`` itself if it is an array of some library, else as a plain NumPy array, without a copy.

    Masked entries are refused: no product knows of them. `name` is what to call ``x`` then.
    """
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise ValueError(
            f"{name} must not have masked entries, got {np.ma.count_masked(x)}; leave them out, as in "
            "cofem.fit(Phi[~y.mask], y[~y.mask])"
        )
    if isinstance(x, np.ndarray) or not array_api_compat.is_array_api_obj(x):
        return np.asarray(x)
    return x


def as_floating(x: Any, name: str) -> Array:
    """Return ``x`` as an array in single or double precision, real or complex.

    Integers, booleans and unusual precisions become double precision; arrays that already are in one of
    the four working types are returned as they are.

    Parameters
    ----------
    x : array_like
        Numbers.
    name : str
        What to call ``x`` in an error message.

    Examples
    --------
    >>> as_floating([1, 2], "x")
    array([1., 2.])
    """
    if type(x) is np.ndarray and x.dtype.char in "fdFD" and x.dtype.isnative:  # nearly always
        return x
    x = as_array(x, name)
    xp = namespace(x)
    if x.dtype in [getattr(xp, dtype) for dtype in _COMPUTED_DTYPES]:
        return x
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biufc":
        raise TypeError(f"{name} must hold numbers, got an array of dtype {x.dtype}")
    return xp.astype(x, xp.complex128 if is_complex(x) else xp.float64)


def is_complex(x: Array) -> bool:
    """Tell whether the array ``x`` is of a complex type."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind == "c"
    return bool(namespace(x).isdtype(x.dtype, "complex floating"))


def precision_of(x: Array) -> str:
    """Return ``"float32"`` or ``"float64"``: the type of the real and imaginary parts of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> precision_of(np.ones(2, dtype=np.complex64))
    'float32'
    """
    if isinstance(x, np.ndarray) and x.dtype.char in _PRECISIONS:
        return _PRECISIONS[x.dtype.char]
    return f"float{namespace(x).finfo(x.dtype).bits}"


def in_precision(x: Array, precision: str) -> Array:
    """Return ``x``, real or complex as it is, with its parts in ``precision``; no copy if they are."""
    xp = namespace(x)
    complex_type = xp.complex64 if precision == "float32" else xp.complex128
    return xp.astype(x, complex_type if is_complex(x) else getattr(xp, precision), copy=False)


def conj(x: Array) -> Array:
    """Return the complex conjugate; a real array is returned as it is, without a copy."""
    return namespace(x).conj(x) if is_complex(x) else x


def squared_modulus(x: Array) -> Array:
    """Return ``|x|**2`` entry by entry, as a real array."""
    xp = namespace(x)
    return xp.real(x) ** 2 + xp.imag(x) ** 2 if is_complex(x) else x * x


def multiply_into(out: Array, a: Array, b: Array) -> None:
    """Write ``a * b`` into `out`, without a temporary where the library can."""
    if isinstance(out, np.ndarray):
        np.multiply(a, b, out=out)
    elif is_torch(out):
        sys.modules["torch"].mul(a, b, out=out)
    else:
        out[...] = a * b


def overwrite(x: Array, function: str) -> Array:
    """Return a function of ``x``, such as ``"exp"``, in the memory of ``x`` where the library can.

    Examples
    --------
    >>> import numpy as np
    >>> overwrite(np.array([1.0, 100.0]), "log").round(3).tolist()
    [0.0, 4.605]
    """
    if isinstance(x, np.ndarray):
        return getattr(np, function)(x, out=x)
    if is_torch(x):
        return getattr(sys.modules["torch"], function)(x, out=x)
    return getattr(namespace(x), function)(x)


def add_product(out: Array, factor: float, a: Array, b: Array) -> Array:
    """Do ``out += factor * a * b`` in place, without a temporary of that length, and return `out`.

    Examples
    --------
    >>> import numpy as np
    >>> add_product(np.ones((1, 2)), 0.5, np.array([2.0, 4.0]), np.ones((1, 2))).tolist()
    [[2.0, 3.0]]
    """
    if is_torch(out):
        return out.addcmul_(a, b, value=factor)
    if not isinstance(out, np.ndarray) or out.shape[-1] <= CACHE_BLOCK:
        out += factor * (a * b)
        return out
    scratch = np.empty((*out.shape[:-1], CACHE_BLOCK), dtype=out.dtype)
    for places in blocks(out.shape[-1], CACHE_BLOCK):
        block = (..., places)
        part = out[block]
        product = scratch[..., : part.shape[-1]]
        np.multiply(a[block], b[block], out=product)
        product *= factor
        part += product
    return out


def affine_product(factor: float, a: Array, offset: float, b: Array) -> Array:
    """Return ``(factor * a + offset) * b`` for a of shape (n,), without a temporary of that length.

    Examples
    --------
    >>> import numpy as np
    >>> affine_product(2.0, np.array([0.5, 1.0]), -1.0, np.ones((1, 2))).tolist()
    [[0.0, 1.0]]
    """
    if not isinstance(b, np.ndarray) or b.shape[-1] <= CACHE_BLOCK:
        weight = factor * a
        weight += offset
        return weight * b
    out = np.empty_like(b)
    scratch = np.empty(CACHE_BLOCK, dtype=a.dtype)
    for places in blocks(b.shape[-1], CACHE_BLOCK):
        part = a[places]
        weight = np.multiply(factor, part, out=scratch[: part.shape[0]])
        weight += offset
        np.multiply(weight, b[..., places], out=out[..., places])
    return out


def at_least(x: Array, bound: float) -> Array:
    """Return the larger of each entry of a real array and a number.

    Examples
    --------
    >>> import numpy as np
    >>> at_least(np.array([1.0, 3.0, np.nan]), 2.0).tolist()
    [2.0, 3.0, nan]
    """
    if isinstance(x, np.ndarray):  # `maximum` with a number takes four times as long
        return x.clip(x.dtype.type(bound), x.dtype.type(np.inf))
    return namespace(x).maximum(x, number_like(x, bound))


def at_most(x: Array, bound: float) -> Array:
    """Return the smaller of each entry of a real array and a number.

    Examples
    --------
    >>> import numpy as np
    >>> at_most(np.array([1.0, 3.0, np.nan]), 2.0).tolist()
    [1.0, 2.0, nan]
    """
    if isinstance(x, np.ndarray):
        return x.clip(x.dtype.type(-np.inf), x.dtype.type(bound))
    return namespace(x).minimum(x, number_like(x, bound))


def by_parts(apply: Callable[[Array], Array], x: Array) -> Array:
    """Apply a real linear map to ``x``; if ``x`` is complex, to its two parts stacked as one batch.

    Parameters
    ----------
    apply : callable
        Maps real arrays of shape ``(..., D)`` to real arrays of shape ``(..., N)``, linearly.
    x : array of shape (..., D)
        Real or complex.

    Returns
    -------
    array of shape (..., N)
        Real or complex as ``x`` is.
    """
    if not is_complex(x):
        return apply(x)
    xp = namespace(x)
    parts = apply(xp.stack([xp.real(x), xp.imag(x)]))
    return parts[0, ...] + 1j * parts[1, ...]


def is_foreign(x: Any) -> bool:
    """Tell whether ``x`` is an array of another library than NumPy."""
    return not isinstance(x, np.ndarray | np.generic) and array_api_compat.is_array_api_obj(x)


def is_torch(x: Array) -> bool:
    """Tell whether ``x`` is a PyTorch tensor."""
    return not isinstance(x, np.ndarray) and array_api_compat.is_torch_array(x)


def on_device_of(x: Array, values: np.ndarray) -> Array:
    """Return the NumPy array ``values`` as an array of the library and on the device of ``x``."""
    if isinstance(x, np.ndarray):
        return values
    if not values.flags.writeable or min(values.strides, default=0) < 0:
        values = values.copy()  # PyTorch takes neither
    return namespace(x).asarray(values, device=array_api_compat.device(x))


def to_numpy(x: Any) -> np.ndarray:
    """Return ``x``, an array of any library and device or a sequence, as a NumPy array."""
    if isinstance(x, np.ndarray) or not array_api_compat.is_array_api_obj(x):
        return np.asarray(x)
    if is_torch(x):
        return x.detach().resolve_conj().resolve_neg().cpu().numpy()
    main = namespace(x).__array_namespace_info__().default_device()
    return np.asarray(array_api_compat.to_device(x, main))


class DeviceCache:
    """Numbers that an operator stores, and their copies on the devices of its inputs, made once each.

    Parameters
    ----------
    values : array
        If a NumPy array, it is copied to the library and device of whatever it is needed for; an array of
        another library stays where it is.

    Examples
    --------
    >>> import numpy as np
    >>> DeviceCache(np.ones(2)).like(np.zeros(3))
    array([1., 1.])
    """

    def __init__(self, values: Array) -> None:
        self.values = values
        self._copies: dict[Any, Array] = {}

    @property
    def device_array(self) -> Array | None:
        """The numbers if they are on a device that inputs must be on too; None for NumPy."""
        return None if isinstance(self.values, np.ndarray) else self.values

    def like(self, x: Array) -> Array:
        """Return the numbers in the library and on the device of ``x``."""
        if isinstance(self.values, np.ndarray):
            if isinstance(x, np.ndarray):
                return self.values
            place = (type(x), array_api_compat.device(x))
            if place not in self._copies:
                self._copies[place] = on_device_of(x, self.values)
            return self._copies[place]
        check_same_place(x, self.values, "the operator's numbers")
        return self.values


def place(x: Array) -> str:
    """Say in words what library an array is of and where it is.

    Examples
    --------
    >>> import numpy as np
    >>> place(np.ones(2))
    'numpy.ndarray on cpu'
    """
    return f"{type(x).__module__}.{type(x).__qualname__} on {array_api_compat.device(x)}"


def library(x: Array) -> str:
    """Return the name of the library that an array is of.

    Examples
    --------
    >>> import numpy as np
    >>> library(np.ones(2))
    'numpy'
    """
    return type(x).__module__.partition(".")[0]


def check_same_place(x: Array, other: Array, name: str) -> None:
    """Raise ``TypeError`` unless both arrays are of one library and on one device."""
    if namespace(x) is not namespace(other) or array_api_compat.device(x) != array_api_compat.device(other):
        raise TypeError(f"{name} are {place(other)}, but the data are {place(x)}; move one to the other")


def number_like(x: Array, value: float) -> Any:
    """Return a number in the type of ``x`` and where it is, to go into functions of two arrays with it."""
    if isinstance(x, np.ndarray):
        return x.dtype.type(value)
    return namespace(x).asarray(value, dtype=x.dtype, device=array_api_compat.device(x))


def total(x: Array) -> float:
    """Return the sum of a real array, added up in double precision."""
    if isinstance(x, np.ndarray):  # asked for several times in each step: half of the time is the wrapper's
        return float(x.sum(dtype=np.float64))
    xp = namespace(x)
    return float(xp.sum(x, dtype=xp.float64))


def average(x: Array) -> float:
    """Return the mean of a real array, added up in double precision."""
    return total(x) / size(x)


def inner(a: Array, b: Array) -> float:
    """Return the real part of the inner product of two arrays of one shape.

    Examples
    --------
    >>> import numpy as np
    >>> inner(np.array([1j, 1.0]), np.array([1j, 2.0]))
    3.0
    """
    if isinstance(a, np.ndarray):
        return float(np.vdot(a, b).real)
    xp = namespace(a)
    return float(xp.real(vdot(xp.reshape(a, (-1,)), xp.reshape(b, (-1,)))))


def vdot(a: Array, b: Array) -> Array:
    """Return the inner product of two vectors, conjugated in the first, as an array without axes."""
    # The wrapper's vecdot is a product of matrices in PyTorch, several times slower.
    return sys.modules["torch"].vdot(a, b) if is_torch(a) else namespace(a).vecdot(a, b)


def reciprocal(x: Array) -> Array:
    """Return ``1 / x``; PyTorch's own division of a number by a tensor goes over memory twice."""
    return sys.modules["torch"].reciprocal(x) if is_torch(x) else 1 / x


def norm(x: Array) -> float:
    """Return the Euclidean norm of all entries."""
    return float(np.linalg.norm(x) if isinstance(x, np.ndarray) else namespace(x).linalg.vector_norm(x))


def size(x: Array) -> int:
    """Return the number of entries (a method, not a number, in PyTorch)."""
    return math.prod(x.shape)


def real_dot(a: Array, b: Array) -> np.ndarray:
    """Return the real part of the inner product of each row, as NumPy numbers.

    Examples
    --------
    >>> import numpy as np
    >>> real_dot(np.array([[1.0, 1.0j]]), np.array([[2.0, 1.0j]]))
    array([3.])
    """
    if isinstance(a, np.ndarray):  # called several times in each step: no detour
        return np.vecdot(a, b).real.astype(float)
    rows = range(a.shape[0])
    if is_torch(a) and len(rows) == 1:
        return np.array([vdot(a[0, :], b[0, :]).real.item()])
    xp = namespace(a)
    dot = xp.stack([vdot(a[i, :], b[i, :]) for i in rows]) if is_torch(a) else xp.vecdot(a, b)
    dot = xp.real(dot) if xp.isdtype(dot.dtype, "complex floating") else dot
    return np.asarray(to_numpy(dot), dtype=float)


def largest_part(x: Array) -> float:
    """Return the largest modulus among real and imaginary parts, without a copy; 0 for an empty array.

    Examples
    --------
    >>> import numpy as np
    >>> largest_part(np.array([1.0 - 3.0j, 2.0]))
    3.0
    """
    if not size(x):
        return 0.0
    xp = namespace(x)
    parts = (xp.real(x), xp.imag(x)) if is_complex(x) else (x,)
    return max(max(float(xp.max(part)), -float(xp.min(part))) for part in parts)


def standard_normal(shape: tuple[int, ...], like: Array, rng: np.random.Generator) -> Array:
    """Draw independent normal numbers of mean 0 and variance 1; complex ones are circular.

    They are drawn by NumPy in double precision, so that the same seed gives the same numbers everywhere.

    Parameters
    ----------
    shape : tuple of int
        Of the result.
    like : array
        The result is of its library, type and device.
    rng : numpy.random.Generator
        Source of the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> x = standard_normal((2, 1000), np.zeros(1, np.complex64), np.random.default_rng(0))
    >>> x.dtype, bool(abs(np.mean(np.abs(x) ** 2) - 1) < 0.1)
    (dtype('complex64'), True)
    """
    if not is_complex(like):
        numbers = rng.standard_normal(shape)
    else:
        real, imaginary = rng.standard_normal((2, *shape)) * np.sqrt(0.5)
        numbers = real + 1j * imaginary
    return namespace(like).astype(on_device_of(like, numbers), like.dtype, copy=False)


def transposed(x: Array) -> Array:
    """Return a vector as it is, and a matrix transposed."""
    return x if x.ndim == 1 else x.T


def as_rows(x: Array) -> Array:
    """Return a vector as a matrix of one row, and a matrix as it is."""
    return x if x.ndim == 2 else x[None, :]


def take(x: Array, indices: np.ndarray, axis: int) -> Array:
    """Return entries of ``x`` along an axis; ``indices`` is a NumPy array wherever ``x`` is."""
    return namespace(x).take(x, on_device_of(x, indices), axis=axis)


Function = TypeVar("Function", bound=Callable)


def without_gradients(function: Function) -> Function:
    """Make PyTorch, where it is in use, record nothing for derivatives inside of a function."""

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "no_grad"):
            return function(*arguments, **named)
        with torch.no_grad():
            return function(*arguments, **named)

    return wrapped  # type: ignore[return-value]


def require_numpy(x: Array, user: str) -> None:
    """Raise ``TypeError`` unless ``x`` is a NumPy array; ``user`` is what cannot take other arrays."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{user} works on NumPy arrays only, got {type(x).__module__}.{type(x).__qualname__}")


def as_shape(shape: Any, name: str = "shape") -> tuple[int, ...]:
    """Return ``shape``, an integer or a sequence of integers, as a tuple of positive integers.

    Examples
    --------
    >>> as_shape(4)
    (4,)
    """
    lengths = tuple(shape) if isinstance(shape, (tuple, list, np.ndarray)) else (shape,)
    if not lengths or not all(
        isinstance(length, (int, np.integer)) and not isinstance(length, bool) and length > 0
        for length in lengths
    ):
        raise ValueError(f"{name} must be a positive integer or a tuple of them, got {shape!r}")
    return tuple(int(length) for length in lengths)


def as_indices(indices: Any, length: int, name: str) -> np.ndarray:
    """Return ``indices`` as a one-dimensional integer array with values from 0 to ``length - 1``."""
    found = to_numpy(indices)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be a non-empty one-dimensional sequence of integers, "
            f"got shape {found.shape} and dtype {found.dtype}"
        )
    if found.min() < 0 or found.max() >= length:
        raise ValueError(
            f"{name} must lie in 0..{length - 1}, got values from {found.min()} to {found.max()}"
        )
    return found.astype(np.intp, copy=False)
