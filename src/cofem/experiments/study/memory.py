"""Memory of this process."""

from __future__ import annotations

import contextlib
import math
import sys
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


def _status_mb(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    return math.nan


def _ru_maxrss_mb() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def reset_peak() -> None:
    """Forget the peak so far, which making the problem left; without it, the figure is too large."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
