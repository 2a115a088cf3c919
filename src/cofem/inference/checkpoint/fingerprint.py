"""What a fit is known by, so that a checkpoint of another one is refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cofem._arrays import is_foreign, library, to_numpy
from cofem.files import digest
from cofem.inference.problem import Problem
from cofem.operators import Operator
from cofem.operators.fingerprint import AGREEMENT, known_by


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
        "Phi": list(known_by(operator, y).numbers),
        **({"chunks of Phi": operator.layout} if operator.layout else {}),
        "unit of Phi": f"{problem.units.dictionary:g}",
        **{
            name: list(known_by(value, y).numbers) if isinstance(value, Operator) else describe(value)
            for name, value in settings.items()
        },
    }


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


def agree(old: Any, new: Any) -> bool:
    """Tell whether two parts of fingerprints are the same, numbers up to rounding."""
    if isinstance(new, list) and isinstance(old, list) and len(old) == len(new):
        size = max(map(abs, new), default=0.0)
        return all(abs(a - b) <= AGREEMENT["float32"] * size for a, b in zip(old, new, strict=True))
    return bool(old == new)


def short(value: Any) -> str:
    """Return a value as a text of bounded length."""
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
