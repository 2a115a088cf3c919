"""What makes products come out the same, bit for bit, in whichever process they are computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
_controller: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have BLAS use one thread meanwhile, in this process.

    Sums then come out the same everywhere, and small matrices wait for no other thread. Several threads may
    be inside; the last one that leaves restores what was before.
    """
    global _inside, _limits, _controller
    from threadpoolctl import ThreadpoolController

    with _lock:
        if _controller is None:  # looking for libraries takes a while
            _controller = ThreadpoolController()
        if _inside == 0:
            _limits = _controller.limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limits.restore_original_limits()
