"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy
import scipy

import cofem

#: In the folder of the results: for each benchmark, the machines that it was measured on.
FILE = "machine.json"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def describe_machine() -> dict[str, str]:
    """Return what figures depend on: cores, memory, processor, versions, threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    set_threads = [f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ]
    return {
        "processor": _processor(),
        "cores": str(cores),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, NumPy {numpy.__version__}, SciPy "
        f"{scipy.__version__}, cofem {cofem.__version__}",
        "threads": ", ".join(set_threads) or "BLAS as it is by default, FFTs up to one thread a core",
    }


def remember_machine(folder: Path, benchmark: str) -> None:
    """Note that a benchmark is measured on this machine; a new one is added to those before."""
    known = known_machines(folder)
    here = describe_machine()
    if here not in known.setdefault(benchmark, []):
        known[benchmark].append(here)
        (folder / FILE).write_text(json.dumps(known, indent=1) + "\n")


def forget_machines(folder: Path, benchmark: str) -> None:
    """Forget where a benchmark was measured, because it starts again."""
    known = known_machines(folder)
    if known.pop(benchmark, None):
        (folder / FILE).write_text(json.dumps(known, indent=1) + "\n")


def known_machines(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the machines of each benchmark, as far as the folder knows them."""
    file = folder / FILE
    return json.loads(file.read_text()) if file.exists() else {}


def machine_texts(names: Sequence[str], folder: Path) -> list[str]:
    """Say what was measured where, studies of the same machine together."""
    known = known_machines(folder)
    groups: dict[str, list[str]] = {}
    for name in names:
        for machine in known.get(name, [{"machine": "not recorded"}]):
            text = "; ".join(f"{key}: {value}" for key, value in machine.items())
            groups.setdefault(text, []).append(name)
    return [f"{', '.join(group)}: {text}" for text, group in groups.items()]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return "unknown"
