"""How much memory a method may ask for."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes() -> int | None:
    """Memory that can be had without swapping, or None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None


#: Bytes that are always there: asking the system takes longer than a step of a small fit.
LITTLE = 2**24


def is_available(needed: float, share: float = 1.0) -> bool:
    """Tell whether so many bytes are no more than a share of what can be had without swapping.

    Examples
    --------
    >>> is_available(1000), is_available(1e30)
    (True, False)
    """
    if needed <= LITTLE:
        return True
    limit = available_bytes()
    return limit is None or needed <= share * limit


def describe_bytes(n: float) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> describe_bytes(3.2e9)
    '3.2 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
