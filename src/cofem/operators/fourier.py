"""What the operators built on scipy.fft share."""

import os
from math import prod

import numpy as np
import scipy.fft

from cofem._arrays import require_numpy

# Fewer numbers than this, or fewer lines, and starting threads costs more than it saves: pocketfft already
# takes up to eight lines at a time through the vector units of one core.
_MIN_NUMBERS_TO_SPLIT = 2**18
_MIN_LINES_TO_SPLIT = 8


def fft_workers(x: np.ndarray, n_axes: int) -> int:
    """Return how many threads a transform of ``x`` along its last ``n_axes`` axes should use.

    A transform is split by lines along an axis, so a single one-dimensional transform stays on one thread.
    A larger number set with `scipy.fft.set_workers` is respected.
    """
    lines = x.size // max(x.shape[-n_axes:])
    if x.size < _MIN_NUMBERS_TO_SPLIT or lines < _MIN_LINES_TO_SPLIT:
        return scipy.fft.get_workers()
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(available, scipy.fft.get_workers())


def unflatten(x: np.ndarray, shape: tuple[int, ...], user: str) -> np.ndarray:
    """Return vectors (..., D) as arrays (..., *shape), where D is the size of ``shape``."""
    require_numpy(x, user)
    return x.reshape(*x.shape[:-1], *shape)


def flatten(x: np.ndarray, n_axes: int) -> np.ndarray:
    """Return the last ``n_axes`` axes of ``x`` as one, in C order."""
    return x.reshape(*x.shape[:-n_axes], prod(x.shape[-n_axes:]))
