"""Memory, open files and threads of this process."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from pathlib import Path

# Linux keeps the largest `ru_maxrss` across exec, so a child inherits that of its parent. The same figure
# of the program itself is in /proc; other systems have `ru_maxrss` only and do not inherit it.
_STATUS = Path("/proc/self/status")


def peak_mb() -> float:
    """Return the peak of the resident memory since `reset_peak`, in 10^6 bytes."""
    return _status_mb("VmHWM") if _STATUS.exists() else _ru_maxrss_mb()


def resident_mb() -> float:
    """Return the resident memory of this process in 10^6 bytes."""
    return _status_mb("VmRSS") if _STATUS.exists() else _ru_maxrss_mb()


def open_files() -> int:
    """Return the number of open file descriptors; 0 where the system does not tell."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder)) - 1  # the listing itself has one open
    return 0


def threads() -> int:
    """Return the number of threads; those of Python alone where the system does not tell."""
    return int(_status("Threads")) if _STATUS.exists() else threading.active_count()


def _status_mb(name: str) -> float:
    return _status(name) * 1024 / 1e6


def _status(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return math.nan


def _ru_maxrss_mb() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def reset_peak() -> None:
    """Forget the peak so far, which making the problem left; without it, the figure is too large."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
