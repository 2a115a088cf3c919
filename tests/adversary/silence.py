"""What counts as silent: no warning, no doubt in the status."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import cofem

#: Words of a note that say of a method that its moments are approximate.
CAVEAT = "of a bound"


@dataclass(frozen=True)
class Case:
    """A problem and how it is to be fitted."""

    words: str
    Phi: Any
    y: np.ndarray
    z: np.ndarray
    noise_std: float
    settings: dict[str, Any]


def quietly(fit: Callable[[], cofem.Posterior]) -> tuple[cofem.Posterior, bool, list[str]]:
    """Return a posterior, whether its fit was silent, and which warnings no user should ever see."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post = fit()
    told = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    leaked = [f"{w.category.__name__}: {w.message}" for w in caught if w not in told]
    caveat = any(CAVEAT in note for note in post.status.notes)
    return post, post.converged and not told and not caveat, leaked


def noise_fault(post: cofem.Posterior, case: Case, factor: float = 2.0) -> list[str]:
    """Say so where a noise that was learned is off by more than a factor and what few data make likely."""
    if case.settings.get("noise_std", "learn") != "learn":
        return []
    allowed = factor * np.exp(3 / np.sqrt(2 * case.y.size))
    ratio = float(np.sqrt(np.mean(np.square(post.noise_std)))) / case.noise_std
    if 1 / allowed < ratio < allowed:
        return []
    return [f"noise {ratio:.3g} of the truth, {allowed:.2g} allowed"]
