"""Roots of scalar functions of large arrays."""

from __future__ import annotations

from collections.abc import Callable

from scipy.optimize import brentq


def bracketed_root(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """Find the root of `function` between `low` and `high`, where its signs differ, by Brent's method.

    SciPy wraps the function in one that refers to itself, so that whatever the function refers to stays in
    memory until the garbage collector runs; here it is let go at once.

    Examples
    --------
    >>> round(bracketed_root(lambda x: x * x - 2, 0.0, 2.0, xtol=1e-9), 6)
    1.414214
    """
    kept = [function]
    try:
        return float(brentq(lambda x: kept[0](x), low, high, xtol=xtol))
    finally:
        kept.clear()
