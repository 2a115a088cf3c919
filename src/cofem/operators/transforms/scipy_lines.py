"""What the transforms by scipy.fft share: how many threads they use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod

import scipy.fft

# Fewer numbers than this, or fewer lines, and starting threads costs more than it saves: pocketfft already
# takes up to eight lines at a time through the vector units of one core.
_MIN_NUMBERS_TO_SPLIT = 2**18
_MIN_LINES_TO_SPLIT = 8


def fft_workers(shape: Sequence[int], axes: Sequence[int] = (-1,)) -> int:
    """Return how many threads a transform of an array of this shape along some axes should use.

    A transform is split by lines along an axis, so a single one-dimensional transform stays on one thread.
    A larger number set with `scipy.fft.set_workers` is respected.

    Examples
    --------
    >>> fft_workers((64, 64))  # too small to be worth a thread
    1
    """
    numbers = prod(shape)
    lines = numbers // max(shape[axis] for axis in axes)
    if numbers < _MIN_NUMBERS_TO_SPLIT or lines < _MIN_LINES_TO_SPLIT:
        return scipy.fft.get_workers()
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(available, scipy.fft.get_workers())
