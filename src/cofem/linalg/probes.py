"""Random probe vectors."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from cofem._arrays import namespace, on_device_of

Array = Any
ProbeDistribution = Literal["rademacher", "gaussian"]


def draw_probes(
    n_probes: int, size: int, *, like: Array, rng: np.random.Generator, distribution: ProbeDistribution
) -> Array:
    """Draw probes of shape (n_probes, size): independent entries, mean 0, variance 1.

    They are drawn by NumPy and moved to the library, device and precision of `like`, so that the
    same seed gives the same probes everywhere.
    """
    if distribution == "rademacher":
        probes: np.ndarray = rng.integers(0, 2, size=(n_probes, size), dtype=np.int8)
        probes *= 2
        probes -= 1
    else:
        probes = rng.standard_normal((n_probes, size))
    return namespace(like).astype(on_device_of(like, probes), like.dtype)
