"""The entry ticket for an operator: its adjoint is its adjoint."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem.operators.base import Operator


def check_adjoint(
    operator: Operator,
    rng: int | np.random.Generator = 0,
    n_vectors: int = 2,
    rtol: float | None = None,
    dtype: Any = None,
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

    Raises
    ------
    ValueError
        If the inner products differ, or a result has the wrong shape or type or shares memory with its input.

    Examples
    --------
    >>> from cofem.operators import DCT, Mask
    >>> check_adjoint(Mask([0, 3], 8) @ DCT(8).T)
    """
    rng = np.random.default_rng(rng)
    if dtype is None:
        real = np.dtype(operator.precision or "float64")
        dtypes = [real, np.result_type(real, np.complex64)]
    else:
        dtypes = [np.dtype(dtype)]
    single = np.finfo(dtypes[0]).dtype == np.float32
    rtol = (1e-4 if single else 1e-10) if rtol is None else rtol
    rows, columns = operator.shape
    for kind in dtypes:
        x = _draw(rng, (n_vectors, columns), kind)
        y = _draw(rng, (n_vectors, rows), kind)
        forward = _checked_result(operator, "forward", x, rows)
        adjoint = _checked_result(operator, "adjoint", y, columns)
        left = np.vecdot(y, forward)
        right = np.vecdot(adjoint, x)
        size = np.linalg.norm
        scale = size(forward, axis=-1) * size(y, axis=-1) + size(x, axis=-1) * size(adjoint, axis=-1)
        # Written so that NaN fails.
        wrong = ~(np.abs(left - right) <= rtol * scale)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(
                f"the adjoint of {operator!r} does not match it: for a pair of "
                f"{'complex' if kind.kind == 'c' else 'real'} vectors <Phi x, y> = {left[k]:.10g} "
                f"but <x, Phi^H y> = {right[k]:.10g}"
            )


def _draw(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    if dtype.kind != "c":
        return rng.standard_normal(shape, dtype=dtype)
    x = np.empty(shape, dtype)
    x.real, x.imag = (rng.standard_normal(shape, dtype=x.real.dtype) for _ in range(2))
    return x


def _checked_result(operator: Operator, method: str, x: np.ndarray, length: int) -> np.ndarray:
    result = getattr(operator, method)(x)
    if result.shape != (*x.shape[:-1], length):
        raise ValueError(
            f"{method} of {operator!r} must return shape {(*x.shape[:-1], length)} for an input of shape "
            f"{x.shape}, got {result.shape}"
        )
    if np.shares_memory(result, x):
        raise ValueError(f"{method} of {operator!r} must return a new array, not its input")
    is_complex = operator.is_complex or x.dtype.kind == "c"
    wanted = np.result_type(x.dtype, np.complex64) if is_complex else x.dtype
    if result.dtype != wanted:
        raise ValueError(
            f"{method} of {operator!r} must return dtype {wanted} for an input of dtype {x.dtype}, "
            f"got dtype {result.dtype}"
        )
    return result
