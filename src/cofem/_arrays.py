"""Array helpers: the namespace of an array, its precision, and conversions at the door.

Numerical code asks for ``xp = namespace(x)`` and writes against the array API standard, so it runs on
any array library that follows it.
"""

from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

Array = Any
"""An array of any library that follows the array API standard."""

_COMPUTED_DTYPES = ("float32", "float64", "complex64", "complex128")


def namespace(*arrays: Array) -> Any:
    """Return the array namespace shared by ``arrays``.

    Examples
    --------
    >>> import numpy as np
    >>> namespace(np.ones(2)).__name__
    'array_api_compat.numpy'
    """
    return array_api_compat.array_namespace(*arrays)


def as_array(x: Any) -> Array:
    """Return ``x`` itself if it is an array of some library, else as a plain NumPy array, without a copy."""
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
    x = as_array(x)
    xp = namespace(x)
    if x.dtype in [getattr(xp, dtype) for dtype in _COMPUTED_DTYPES]:
        return x
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biufc":
        raise TypeError(f"{name} must hold numbers, got an array of dtype {x.dtype}")
    return xp.astype(x, xp.complex128 if is_complex(x) else xp.float64)


def is_complex(x: Array) -> bool:
    """Tell whether the array ``x`` is of a complex type."""
    return bool(namespace(x).isdtype(x.dtype, "complex floating"))


def precision_of(x: Array) -> str:
    """Return ``"float32"`` or ``"float64"``: the type of the real and imaginary parts of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> precision_of(np.ones(2, dtype=np.complex64))
    'float32'
    """
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
    else:
        out[...] = a * b


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


def on_device_of(x: Array, values: np.ndarray) -> Array:
    """Return the NumPy array ``values`` as an array of the library and on the device of ``x``."""
    if isinstance(x, np.ndarray):
        return values
    return namespace(x).asarray(values, device=array_api_compat.device(x))


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
    found = np.asarray(indices)
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
