"""What a fit is known by, so that a checkpoint of another one is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cofem._arrays import Array, is_foreign, library, on_device_of, to_numpy
from cofem.inference.problem import Problem
from cofem.operators import Operator


def fingerprint_of(problem: Problem, noise: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a problem is known by: sizes, data, dictionary and settings."""
    operator, y = problem.phi.operator, problem.y
    data = to_numpy(y)
    # The device may change between a break and going on, the library may not.
    kind = str(data.dtype) if isinstance(y, np.ndarray) else f"{library(y)} {data.dtype}"
    return {
        "shape of Phi": str(operator.shape),
        "y": f"{kind} {list(data.shape)} {digest(data)} in units of {problem.units.data:g}",
        "noise_std": describe(noise),
        "Phi": numbers_of(operator, y),
        **({"chunks of Phi": operator.layout} if operator.layout else {}),
        "unit of Phi": f"{problem.units.dictionary:g}",
        **{
            name: numbers_of(value, y) if isinstance(value, Operator) else describe(value)
            for name, value in settings.items()
        },
    }


def numbers_of(operator: Operator, like: Array) -> list[float]:
    """Return what a random vector makes of an operator: others of the same shape give something else.

    Floating-point numbers, since the last digits may depend on the number of threads.

    Examples
    --------
    >>> from cofem.operators import Gradient
    >>> numbers_of(Gradient(5), np.zeros(1)) == numbers_of(Gradient(5), np.zeros(1))
    True
    """
    rng = np.random.default_rng(0)
    probe = rng.standard_normal(operator.shape[1]).astype(to_numpy(like).dtype)
    image = to_numpy(operator.forward(on_device_of(like, probe)))
    overlap = np.vdot(rng.standard_normal(operator.shape[0]), image)
    return [float(np.linalg.norm(image)), float(overlap.real), float(overlap.imag)]


def describe(value: Any) -> str:
    """Return a text that is the same for the same settings, whatever arrays they hold.

    Examples
    --------
    >>> import cofem
    >>> describe(cofem.Block(2)), describe(None)
    ('Block(groups=2)', 'None')
    """
    if is_foreign(value):
        value = to_numpy(value)
    if isinstance(value, np.ndarray):
        return f"array({value.dtype}, {list(value.shape)}, {digest(value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={describe(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(part) for part in value)}]"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)  # where an object lies in memory is no setting


def digest(array: np.ndarray) -> str:
    """Return a short hash of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def agree(old: Any, new: Any) -> bool:
    """Tell whether two parts of fingerprints are the same, numbers up to rounding."""
    if isinstance(new, list) and isinstance(old, list) and len(old) == len(new):
        size = max(map(abs, new), default=0.0)
        return all(abs(a - b) <= 1e-4 * size for a, b in zip(old, new, strict=True))
    return bool(old == new)


def short(value: Any) -> str:
    """Return a value as a text of bounded length."""
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
