"""What makes products come out the same, bit for bit, in whichever process they are computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


def aligned(value: Any) -> Any:
    """Return an array that begins where BLAS wants it: one from a network may not, and is summed otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> odd = np.frombuffer(bytes(17), dtype=np.uint8)[1:].view(np.float64)
    >>> aligned(odd).flags.aligned, aligned(None) is None
    (True, True)
    """
    if isinstance(value, np.ndarray) and not value.flags.aligned:
        return np.require(value, requirements=["A"])
    return value


_lock = threading.Lock()
_inside = 0
_limits: Any = None


@cache
def _controller() -> Any:
    """Return who controls the libraries in this process; looking for them takes a while."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@cache
def blas_kernel() -> str:
    """Return what processor BLAS has its kernels for, as OpenBLAS names it; "" where that is not known.

    Examples
    --------
    >>> isinstance(blas_kernel(), str)
    True
    """
    found = (getattr(library, "architecture", "") for library in _controller().lib_controllers)
    return next(filter(None, found), "")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have BLAS use one thread meanwhile, in this process.

    Sums then come out the same everywhere, and small matrices wait for no other thread. Several threads may
    be inside; the last one that leaves restores what was before.
    """
    global _inside, _limits

    with _lock:
        if _inside == 0:
            _limits = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limits.restore_original_limits()
