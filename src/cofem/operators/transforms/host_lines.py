"""Transforms of NumPy arrays along some axes: by ducc0 where it is installed and faster, or by SciPy.

ducc0 is the successor of the library inside of scipy.fft. A call costs it 1 us where SciPy takes 10, complex
transforms of one line use the vector units, and those along several axes are 1.2 to 2.5 times as fast. SciPy
is the faster one for several long lines and for long lengths with a large prime factor; docs/numerics.md has
the figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import prod
from typing import Any

import numpy as np
import scipy.fft

# Fewer numbers than this, or fewer lines, and starting threads costs more than it saves: pocketfft already
# takes up to eight lines at a time through the vector units of one core.
_MIN_NUMBERS_TO_SPLIT = 2**18
_MIN_LINES_TO_SPLIT = 8
# Longest lines that ducc0 is given, alone and beside others: cosines, complex waves, waves of real numbers.
_COSINES, _WAVES, _HALF_WAVES = (2**16, 2**12), (2**20, 2**13), (2**18, 2**18)
# From this length on a length with a large prime factor goes to SciPy.
_LONG = 2**15
# Whether one thread is all there is.
_alone: ContextVar[bool] = ContextVar("alone", default=False)


def cosines(
    x: np.ndarray, axes: Sequence[int], inverse: bool = False, overwrite_x: bool = False
) -> np.ndarray:
    """Orthonormal cosine transform (type II) along some axes, or its inverse.

    Parameters
    ----------
    x : ndarray
        Real or complex.
    axes : sequence of int
        Axes to transform along.
    inverse : bool
        Whether to apply the inverse, which is the transpose.
    overwrite_x : bool
        If True, the contents of ``x`` may be destroyed.

    Returns
    -------
    ndarray of the shape of ``x``

    Examples
    --------
    >>> import numpy as np
    >>> cosines(np.ones((2, 2)), (0, 1)).round(12).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """
    workers = fft_workers(x.shape, axes)
    if x.dtype.char in "fd" and _by_ducc(x.shape, axes, _COSINES):
        out = x if overwrite_x and x.flags.c_contiguous and x.flags.writeable else None
        return ducc_fft().dct(x, 3 if inverse else 2, axes, 1, out, workers)
    transform = scipy.fft.idctn if inverse else scipy.fft.dctn
    return transform(x, axes=axes, norm="ortho", workers=workers, overwrite_x=overwrite_x)


def waves(x: np.ndarray, axes: Sequence[int], inverse: bool = False, overwrite_x: bool = False) -> np.ndarray:
    """Orthonormal Fourier transform along some axes, or its inverse, with the parameters of `cosines`.

    Examples
    --------
    >>> import numpy as np
    >>> waves(np.ones(4), (0,)).real.tolist()
    [2.0, 0.0, 0.0, 0.0]
    """
    workers = fft_workers(x.shape, axes)
    if x.dtype.char in "fdFD" and _by_ducc(x.shape, axes, _WAVES):
        same = overwrite_x and x.dtype.char in "FD" and x.flags.c_contiguous and x.flags.writeable
        return ducc_fft().c2c(x, axes, not inverse, 1, x if same else None, workers)
    transform = scipy.fft.ifftn if inverse else scipy.fft.fftn
    return transform(x, axes=axes, norm="ortho", workers=workers, overwrite_x=overwrite_x)


def spectrum(x: np.ndarray, shape: tuple[int, ...], real: bool) -> np.ndarray:
    """Do for NumPy what `dispatch.padded_spectrum` does, with its parameters; not divided by anything.

    Examples
    --------
    >>> import numpy as np
    >>> spectrum(np.ones(2), (4,), real=True)
    array([2.+0.j, 1.-1.j, 0.+0.j])
    """
    axes = last_axes(shape)
    whole = (*x.shape[: -len(shape)], *shape)
    workers = fft_workers(whole, axes)
    longest = _HALF_WAVES if real else _WAVES
    if x.dtype.char in ("fd" if real else "fdFD") and _by_ducc(whole, axes, longest):
        if x.shape != whole:
            padded = np.zeros(whole, x.dtype)
            corner: tuple[Any, ...] = tuple(slice(size) for size in x.shape[-len(shape) :])
            padded[(..., *corner)] = x
            x = padded
        if real:
            return ducc_fft().r2c(x, axes, True, 0, None, workers)
        return ducc_fft().c2c(x, axes, True, 0, None, workers)
    transform = scipy.fft.rfftn if real else scipy.fft.fftn
    return transform(x, s=shape, axes=axes, workers=workers)


def from_spectrum(spectra: np.ndarray, shape: tuple[int, ...], real: bool) -> np.ndarray:
    """Inverse of `spectrum`, in the padded shape; the contents of ``spectra`` may be destroyed.

    Examples
    --------
    >>> import numpy as np
    >>> from_spectrum(spectrum(np.ones(2), (4,), real=True), (4,), real=True)
    array([1., 1., 0., 0.])
    """
    axes = last_axes(shape)
    whole = (*spectra.shape[: -len(shape)], *shape)
    workers = fft_workers(whole, axes)
    longest = _HALF_WAVES if real else _WAVES
    if spectra.dtype.char in "FD" and _by_ducc(whole, axes, longest):
        if real:
            return ducc_fft().c2r(spectra, axes, shape[-1], False, 2, None, workers, spectra.flags.writeable)
        out = spectra if spectra.flags.c_contiguous and spectra.flags.writeable else None
        return ducc_fft().c2c(spectra, axes, False, 2, out, workers)
    inverse = scipy.fft.irfftn if real else scipy.fft.ifftn
    return inverse(spectra, s=shape, axes=axes, workers=workers, overwrite_x=True)


def complex_line(x: np.ndarray, inverse: bool = False) -> np.ndarray:
    """Transform one complex line in place, by ducc0; both directions are divided by nothing.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("ducc0")
    >>> complex_line(np.ones(4, complex)).real.tolist()
    [4.0, 0.0, 0.0, 0.0]
    """
    return ducc_fft().c2c(x, None, not inverse, 0, x, 1)


def is_fast_for_ducc(length: int) -> bool:
    """Tell whether ducc0 is there and fast at lines of this length.

    Examples
    --------
    >>> is_fast_for_ducc(100_003)
    False
    """
    return ducc_fft() is not None and (length < _LONG or scipy.fft.next_fast_len(length) == length)


def last_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the last axes, as many as a shape has.

    Examples
    --------
    >>> last_axes((8, 9))
    (-2, -1)
    """
    return tuple(range(-len(shape), 0))


@contextmanager
def one_fft_thread() -> Iterator[None]:
    """Have transforms use one thread meanwhile: where as many processes as cores share a machine.

    Examples
    --------
    >>> with one_fft_thread():
    ...     fft_workers((2048, 2048))
    1
    """
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def fft_workers(shape: Sequence[int], axes: Sequence[int] = (-1,)) -> int:
    """Return how many threads a transform of an array of this shape along some axes should use.

    A transform is split by lines along an axis, so a single one-dimensional transform stays on one thread.
    A larger number set with `scipy.fft.set_workers` is respected; within `one_fft_thread` it is one.

    Examples
    --------
    >>> fft_workers((64, 64))  # too small to be worth a thread
    1
    """
    if _alone.get():
        return 1
    numbers = prod(shape)
    lines = numbers // max(shape[axis] for axis in axes)
    if numbers < _MIN_NUMBERS_TO_SPLIT or lines < _MIN_LINES_TO_SPLIT:
        return scipy.fft.get_workers()
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(available, scipy.fft.get_workers())


@cache
def ducc_fft() -> Any:
    """Return ducc0's module of transforms, or None where it is not installed.

    Examples
    --------
    >>> ducc_fft() is None or hasattr(ducc_fft(), "c2c")
    True
    """
    try:
        import ducc0
    except ImportError:
        return None
    return ducc0.fft


def _by_ducc(shape: Sequence[int], axes: Sequence[int], longest: tuple[int, int]) -> bool:
    """Tell whether ducc0 is there and the faster one."""
    lengths, numbers = [shape[axis] for axis in axes], prod(shape)
    return (
        numbers > 0
        and max(lengths) <= longest[numbers > max(lengths)]
        and all(is_fast_for_ducc(length) for length in lengths)
    )
