"""Cosine transforms of one line, through a complex Fourier transform of half its length.

ducc0 transforms one complex line with the vector units, one real line or its cosines without them. So the
line is reordered (Makhoul: the even samples, then the odd ones in reverse), two neighbours are taken for one
complex number, and what the Fourier transform makes of them is turned into cosines.

Write Z for the transform of the h = n / 2 complex numbers. Then, for 0 < k < h::

    X[k] = Re(P + Q)    X[n - k] = Im(Q - P)    P = a[k] Z[k]    Q = b[k] Z[h - k]

    a[k], conj(b[k]) = exp(-iπk/2n) (1 -+ i exp(-2πik/n)) / sqrt(2n)

and ``X[0], X[h] = (Re Z[0] +- Im Z[0]) / sqrt(n)``.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np

from cofem._arrays import Array
from cofem.operators.transforms.host_lines import complex_line, is_fast_for_ducc

# Lengths between which this was the fastest way, in one direction and around weights; docs/numerics.md.
_SHORTEST, _SHORTEST_AROUND, _LONGEST = 2**14, 2**12, 2**16


def dct_by_half(x: np.ndarray) -> np.ndarray:
    """Orthonormal cosine transform (type II) of one line, equal to SciPy's up to rounding.

    Parameters
    ----------
    x : ndarray of n numbers, of shape (..., n)
        A real line of even length; see `pays`.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("ducc0")
    >>> dct_by_half(np.ones(4)).round(12) + 0.0
    array([2., 0., 0., 0.])
    """
    return _to_coefficients(reordered(x.reshape(-1))).reshape(x.shape)


def idct_by_half(x: np.ndarray) -> np.ndarray:
    """Inverse, and transpose, of `dct_by_half`.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("ducc0")
    >>> idct_by_half(dct_by_half(np.arange(4.0))).round(12) + 0.0
    array([0., 1., 2., 3.])
    """
    signal, half = _to_signal(x.reshape(-1)), x.size // 2
    out = np.empty_like(signal)
    out[0::2] = signal[:half]
    out[::-2] = signal[half:]
    return out.reshape(x.shape)


def dct_around_by_half(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return ``dct(weights * idct(x))`` without putting the signal into its order in between.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        A number for each sample, from `reordered`.
    x : ndarray of n numbers, of shape (..., n)
        Coefficients.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("ducc0")
    >>> dct_around_by_half(reordered(np.ones(4)), np.arange(4.0)).round(12) + 0.0
    array([0., 1., 2., 3.])
    """
    signal = _to_signal(x.reshape(-1))
    signal *= weights
    return _to_coefficients(signal).reshape(x.shape)


def reordered(signal: np.ndarray) -> np.ndarray:
    """Return the even samples, then the odd ones in reverse.

    Examples
    --------
    >>> import numpy as np
    >>> reordered(np.arange(6))
    array([0, 2, 4, 5, 3, 1])
    """
    half = signal.size // 2
    out = np.empty_like(signal)
    out[:half] = signal[0::2]
    out[half:] = signal[::-2]
    return out


def pays(x: Array) -> bool:
    """Tell whether ``x`` is one line that `dct_by_half` and `idct_by_half` can take and are the fastest on.

    Examples
    --------
    >>> import numpy as np
    >>> pays(np.ones((2, 2**15))), pays(np.ones(2**15 - 1)), pays(np.ones(64))
    (False, False, False)
    """
    return _is_even_line(x, _SHORTEST)


def pays_around(x: Array) -> bool:
    """Tell the same of `dct_around_by_half`.

    Examples
    --------
    >>> import numpy as np
    >>> pays_around(np.ones((2, 4096))), pays_around(np.ones(4095)), pays_around(np.ones(64))
    (False, False, False)
    """
    return _is_even_line(x, _SHORTEST_AROUND)


def _is_even_line(x: Array, shortest: int) -> bool:
    if not isinstance(x, np.ndarray) or x.dtype.char not in "fd":
        return False
    n = x.shape[-1]
    return shortest <= n <= _LONGEST and n % 2 == 0 and x.size == n and is_fast_for_ducc(n // 2)


class _Tables(NamedTuple):
    """Factors of the transforms of one length in one precision; see the head of the module."""

    a: np.ndarray
    b: np.ndarray
    conjugate_a: np.ndarray


@lru_cache(maxsize=8)
def _tables(n: int, precision: str) -> _Tables:
    k = np.arange(n // 2)
    # The angles of the sum of both turns, each rounded once.
    single, both = np.exp(-0.5j * np.pi * k / n), np.exp(-0.5j * np.pi * (5 * k + n) / n)
    dtype = "complex64" if precision == "f" else "complex128"
    a, b = (table / sqrt(2 * n) for table in (single + both, (single - both).conj()))
    tables = _Tables(*(table.astype(dtype) for table in (a, b, a.conj())))
    for table in tables:
        table.flags.writeable = False
    return tables


def _to_coefficients(signal: np.ndarray) -> np.ndarray:
    """Transform a reordered signal, which is overwritten."""
    n, half = signal.size, signal.size // 2
    tables = _tables(n, signal.dtype.char)
    spectrum = complex_line(signal.view(tables.a.dtype))
    first = spectrum[0]
    own = tables.a * spectrum
    other = np.empty_like(own)
    np.multiply(tables.b[1:], spectrum[:0:-1], out=other[1:])
    out = signal
    out[0], out[half] = (first.real + first.imag) / sqrt(n), (first.real - first.imag) / sqrt(n)
    np.add(own.real[1:], other.real[1:], out=out[1:half])
    np.subtract(other.imag[1:], own.imag[1:], out=out[:half:-1])
    return out


def _to_signal(x: np.ndarray) -> np.ndarray:
    """Transform coefficients to a reordered signal."""
    n, half = x.size, x.size // 2
    tables = _tables(n, x.dtype.char)
    pair = np.empty_like(tables.a)
    pair.real = x[:half]
    pair.imag[0] = 0
    np.negative(x[:half:-1], out=pair.imag[1:])
    own = tables.conjugate_a * pair
    pair *= tables.b
    real, imaginary = own.real[1:], own.imag[1:]
    real += pair.real[:0:-1]
    imaginary -= pair.imag[:0:-1]
    own[0] = complex((x[0] + x[half]) / sqrt(n), (x[0] - x[half]) / sqrt(n))
    return complex_line(own, inverse=True).view(x.dtype)
