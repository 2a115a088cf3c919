"""Cosine transforms of long one-dimensional signals.

A transform of one line runs on one core and without its vector units, since scipy.fft shares out whole
lines. Here a line of n numbers is folded into n1 rows of n2, so that two sweeps of many short transforms
take the place of the long one (Bailey's four steps), and those use both. The cosine transform is the
Fourier transform of the even samples followed by the odd ones in reverse (Makhoul), turned by a phase.

Write v for the reordered signal, sample ``j = j1 n2 + j2`` and frequency ``k = k1 + n1 k2``. Then::

    W[k] = exp(-iπk/2n) sum_j v[j] exp(-2πi jk/n)
         = turn[k2] sum_j2 exp(-2πi j2 k2/n2) twiddle[j2, k1] sum_j1 v[j1 n2 + j2] exp(-2πi j1 k1/n1)

    turn[k2] = exp(-iπ k2/2 n2)        twiddle[j2, k1] = exp(-2πi (j2 + 1/4) k1/n)

and coefficient k is the real part of W[k], coefficient n - k minus its imaginary part, up to the scale. So
``k1 <= n1/2`` is enough, which the inner sum, the transform of real numbers, gives by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft

from cofem._arrays import Array
from cofem._blocks import CACHE_BLOCK, blocks, vectors_at_once
from cofem.operators.transforms.host_lines import ducc_fft, fft_workers

# From these lengths on a folded transform is the faster one in both directions, measured on two cores. In
# double precision the vector units hold only two numbers, so that there is less to gain.
_MIN_LENGTH = {"float32": 2**17, "float64": 2**21}
# From here on it is around weights, where the signal need not be put in order.
_MIN_LENGTH_AROUND = 2**17
# From so many lines on scipy.fft fills the vector units by itself, and was the faster one up to 2^19, the
# longest lines measured.
_MIN_BATCH = {"float32": 4, "float64": 2}
# Rows that lie a power of two apart compete for the same few places in the cache; this many numbers more,
# and they do not.
_PADDING = 16
# Parts in which rows go to the signal and back: the space for one of them is all that they need.
_PARTS = 4


def dct_long(x: np.ndarray, overwrite_x: bool = False) -> np.ndarray:
    """Orthonormal cosine transform (type II) of long signals along the last axis.

    Equal to ``scipy.fft.dct(x, norm="ortho")`` up to rounding; see `pays` for when it is faster.

    Parameters
    ----------
    x : ndarray of shape (..., n)
        Signals in single or double precision, real or complex. The length must have balanced factors, see
        `fold`.
    overwrite_x : bool
        If True, the contents of ``x`` may be destroyed, which saves memory.

    Returns
    -------
    ndarray of shape (..., n)
        Coefficients, in the type of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> dct_long(np.ones(2**16))[:2].round(6)
    array([256.,   0.])
    """
    tables = _tables_for(x)
    n1, n2 = tables.n1, tables.n2
    half = n1 // 2
    padded = np.empty((n1, n2 + _PADDING), dtype=x.real.dtype)[:, :n2]
    workers = fft_workers(tables.twiddle.shape)
    x, result = _input_and_result(x, overwrite_x)
    for signal, coefficients in _real_lines(x, result):
        even, odd = _even_and_odd(signal, n1, n2)
        padded[:half] = even
        padded[half:] = odd
        spectrum = scipy.fft.rfft(padded.T, axis=1, workers=workers)
        spectrum *= tables.twiddle
        spectrum = scipy.fft.fft(spectrum, axis=0, overwrite_x=True, workers=workers)
        _read(spectrum, coefficients, tables)
    return result


def idct_long(x: np.ndarray, overwrite_x: bool = False) -> np.ndarray:
    """Inverse, and transpose, of `dct_long`.

    Parameters
    ----------
    x : ndarray of shape (..., n)
        Coefficients in single or double precision, real or complex.
    overwrite_x : bool
        If True, the contents of ``x`` may be destroyed, which saves memory.

    Returns
    -------
    ndarray of shape (..., n)
        Signals, in the type of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.sin(np.arange(2**16))
    >>> np.allclose(idct_long(dct_long(x)), x)
    True
    """
    tables = _tables_for(x)
    n1, n2 = tables.n1, tables.n2
    half = n1 // 2
    spectrum = np.empty((n2, half + 1), dtype=tables.twiddle.dtype)
    workers = fft_workers(tables.twiddle.shape)
    x, result = _input_and_result(x, overwrite_x)
    # The last sweep goes in two parts, of a width that is no power of two either.
    width = n2 // 2 + _PADDING
    for coefficients, signal in _real_lines(x, result):
        _fill(spectrum, coefficients, tables)
        spectrum = scipy.fft.fft(spectrum, axis=0, overwrite_x=True, workers=workers)
        spectrum *= tables.twiddle
        even, odd = _even_and_odd(signal, n1, n2)
        for start in range(0, n2, width):
            part = slice(start, start + width)
            reordered = scipy.fft.hfft(spectrum[part].T, n1, axis=0, workers=workers)
            even[:, part] = reordered[:half]
            odd[:, part] = reordered[half:]
            del reordered  # before the next one is made
    return result


def dct_around_long(
    weights: np.ndarray, x: np.ndarray, gain: float | None = None, overwrite_x: bool = False
) -> np.ndarray:
    """Return ``dct(weights * idct(x))`` of one line without putting the signal into its order in between.

    Parameters
    ----------
    weights : ndarray of shape (n2, n1)
        A number for each sample, from `folded_long`.
    x : ndarray of n numbers, of shape (..., n)
        Coefficients, a real line.
    gain : float, optional
        Return ``x`` less this times the result instead.
    overwrite_x : bool
        If True, the contents of ``x`` may be destroyed, which saves memory.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.sin(np.arange(2**16))
    >>> np.allclose(dct_around_long(folded_long(np.ones(2**16)), x), x)
    True
    """
    tables, (line, result) = _tables_for(x), _input_and_result(x.reshape(-1), overwrite_x)
    workers = fft_workers(tables.twiddle.shape)
    spectrum = np.empty_like(tables.twiddle)
    _fill(spectrum, line, tables)
    spectrum = _down_columns(spectrum, workers)
    for rows in blocks(tables.n2, tables.n2 // _PARTS + _PADDING):
        part, twiddle = spectrum[rows], tables.twiddle[rows]
        part *= twiddle
        _around(weights[rows] if gain is None else 1 - gain * weights[rows], part, workers)
        part *= twiddle
    spectrum = _down_columns(spectrum, workers)
    _read(spectrum, result, tables)
    return result.reshape(x.shape)


def folded_long(signal: np.ndarray) -> np.ndarray:
    """Return a signal (n,) in the order and shape that `dct_around_long` has in between.

    Examples
    --------
    >>> import numpy as np
    >>> folded_long(np.arange(2**16)).shape
    (256, 256)
    """
    tables = _tables_for(signal)
    out = np.empty((tables.n2, tables.n1), dtype=signal.dtype)
    even, odd = _even_and_odd(signal, tables.n1, tables.n2)
    out[:, : tables.n1 // 2], out[:, tables.n1 // 2 :] = even.T, odd.T
    return out


def pays_around(x: Array) -> bool:
    """Tell whether `dct_around_long` can take ``x`` and is the fastest on it.

    Examples
    --------
    >>> import numpy as np
    >>> pays_around(np.ones(2**18)), pays_around(np.ones(2**10)), pays_around(np.ones((2, 2**18)))
    (True, False, False)
    """
    if not isinstance(x, np.ndarray) or x.dtype.char not in "fd":
        return False
    n = x.shape[-1]
    return n >= _MIN_LENGTH_AROUND and x.size == n and fold(n) is not None


def pays(x: Array) -> bool:
    """Tell whether `dct_long` and `idct_long` can take ``x`` and are faster on it than scipy.fft.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones((8, 2**18), dtype=np.float32)
    >>> pays(x[0]), pays(x), pays(x[0, :1024])
    (True, False, False)
    """
    if not isinstance(x, np.ndarray) or x.dtype.char not in "fdFD" or x.size == 0:
        return False
    n = x.shape[-1]
    precision = "float32" if x.dtype.char in "fF" else "float64"  # asking the dtype for its name takes 4 us
    return n >= _MIN_LENGTH[precision] and x.size // n < _MIN_BATCH[precision] and fold(n) is not None


@lru_cache(maxsize=256)
def fold(n: int) -> tuple[int, int] | None:
    """Return ``(n1, n2)`` into which to fold a line of ``n = n1 n2`` numbers, or None where none is good.

    Both are lengths that scipy.fft is fast at and of about the same size, and ``n1`` is even.

    Examples
    --------
    >>> fold(2**16), fold(3 * 2**14), fold(2 * 10007)
    ((256, 256), (192, 256), None)
    """
    root = n**0.5
    candidates = [
        n1
        for n1 in range(2 * max(int(root / 4), 1), 2 * int(root) + 1, 2)
        if n % n1 == 0
        and scipy.fft.next_fast_len(n1, real=True) == n1
        and scipy.fft.next_fast_len(n // n1) == n // n1
    ]
    if not candidates:
        return None
    n1 = min(candidates, key=lambda n1: abs(np.log(n1 / root)))
    return n1, n // n1


@dataclass(frozen=True)
class _Tables:
    """The constants of the transforms of one length in one precision; see the head of the module."""

    n1: int
    n2: int
    twiddle: np.ndarray
    forward_turn: np.ndarray
    backward_turn: np.ndarray


@lru_cache(maxsize=4)
def _tables(n: int, precision: str) -> _Tables:
    folded = fold(n)
    if folded is None:
        raise ValueError(f"length {n} has no two balanced factors that scipy.fft is fast at")
    n1, n2 = folded
    dtype = np.dtype("complex64" if precision == "float32" else "complex128")
    quarters = 4 * np.arange(n2)[:, None] + 1
    frequencies = np.arange(n1 // 2 + 1)
    twiddle = np.empty((n2, n1 // 2 + 1), dtype=dtype)
    for rows in blocks(n2, vectors_at_once(n1, CACHE_BLOCK)):  # in double precision, whatever the table's
        # The product of whole numbers is exact, so the angle is rounded once however long the signal.
        angles = quarters[rows] * frequencies * (np.pi / (2 * n))
        twiddle[rows].real = np.cos(angles)
        twiddle[rows].imag = -np.sin(angles)
    turn = np.exp(-0.5j * np.pi * np.arange(n2)[:, None] / n2)
    return _Tables(
        n1,
        n2,
        twiddle=_read_only(twiddle),
        forward_turn=_read_only((1j * np.sqrt(2 / n) * turn).astype(dtype)),
        backward_turn=_read_only((np.sqrt(0.5 / n) * turn).astype(dtype)),
    )


def _tables_for(x: np.ndarray) -> _Tables:
    return _tables(x.shape[-1], x.real.dtype.name)


def _fill(spectrum: np.ndarray, coefficients: np.ndarray, tables: _Tables) -> None:
    """Write the complex conjugate of W into `spectrum`, so that both directions share their tables."""
    half, by_frequency = tables.n1 // 2, coefficients.reshape(tables.n2, tables.n1)
    spectrum.real = by_frequency[:, : half + 1]
    spectrum.imag[:, 1:] = by_frequency[::-1, : half - 1 : -1]
    spectrum.imag[1:, 0] = by_frequency[:0:-1, 0]
    spectrum[0, 0] = np.sqrt(2.0) * coefficients[0]
    spectrum *= tables.backward_turn


def _read(spectrum: np.ndarray, coefficients: np.ndarray, tables: _Tables) -> None:
    """Read the coefficients off W before its last turn, which is overwritten."""
    half, by_frequency = tables.n1 // 2, coefficients.reshape(tables.n2, tables.n1)
    # A quarter of a turn further, the parts are coefficients n - k and k, with no sign to change.
    spectrum *= tables.forward_turn
    by_frequency[:, : half + 1] = spectrum.imag
    by_frequency[:, half + 1 :] = spectrum.real[::-1, half - 1 : 0 : -1]
    coefficients[0] *= np.sqrt(0.5)


def _down_columns(spectrum: np.ndarray, workers: int) -> np.ndarray:
    """Transform along the first axis, in place."""
    ducc = ducc_fft()
    if ducc is None:
        return scipy.fft.fft(spectrum, axis=0, overwrite_x=True, workers=workers)
    return ducc.c2c(spectrum, (0,), True, 0, spectrum, workers)


def _around(weights: np.ndarray, spectrum: np.ndarray, workers: int) -> None:
    """Go from rows of W to those of the signal, to their products with weights and back, in place."""
    ducc, n1 = ducc_fft(), weights.shape[1]
    if ducc is None:
        signal = scipy.fft.hfft(spectrum, n1, axis=1, workers=workers)
        signal *= weights
        spectrum[...] = scipy.fft.rfft(signal, axis=1, overwrite_x=True, workers=workers)
    else:
        signal = ducc.c2r(spectrum, (1,), n1, True, 0, None, workers)
        signal *= weights
        ducc.r2c(signal, (1,), True, 0, spectrum, workers)


def _read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


def _input_and_result(x: np.ndarray, overwrite_x: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return ``x`` in a layout that is fast to read, and the array for the result."""
    if x.ndim > 1 and x.strides[-1] != x.itemsize:
        # Lines that lie across each other in memory would each fetch all of it.
        x, overwrite_x = np.array(x, order="C"), True
    reusable = overwrite_x and x.flags.c_contiguous and x.flags.writeable
    return x, x if reusable else np.empty(x.shape, dtype=x.dtype)


def _real_lines(x: np.ndarray, result: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through the real lines of two arrays together; a complex line is two real ones."""
    for index in np.ndindex(x.shape[:-1]):
        line, result_line = x[index], result[index]
        yield line.real, result_line.real
        if np.iscomplexobj(x):
            yield line.imag, result_line.imag


def _even_and_odd(signal: np.ndarray, n1: int, n2: int) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the even samples, and of the odd ones in reverse, as ``n1 / 2`` rows each."""
    even, odd = signal[0::2], signal[1::2]
    return even.reshape(n1 // 2, n2), odd[::-1].reshape(n1 // 2, n2)
