"""Whether what was taken for a line looks like a picture whose rows stand in it one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cofem.inference.analysis.process import samples_of
from cofem.inference.problem import Problem
from cofem.status import Caution

#: Side of a square from which on rows are compared, and pairs of samples that a mean takes at least.
LEAST_SIDE, FEWEST_PAIRS = 8, 100
#: Squared differences of samples one row apart, relative to those a quarter of a row nearer or further, and
#: relative to those two rows apart: 0.01 to 0.54 and 0.26 to 0.94 in eleven pictures with noise up to 10 % of
#: their range. In twelve series the first was 0.84 to 144, but for those that repeat after a row: there the
#: second was 0.99.
ALIKE, LESS_THAN_TWO_ROWS = 0.7, 0.96


def about_line(problem: Problem, analysis: Any, shape: tuple[int, ...] | None) -> list[str]:
    """Say so where ``analysis="auto"`` has taken for a line what may be a square picture.

    Phi tells the shape; that of ``Identity(n * n)`` is a line. In a picture, samples that are n apart are
    neighbours.

    Parameters
    ----------
    problem : Problem
        The problem.
    analysis : Any
        The user's; a shape that was given is what it is.
    shape : tuple of int or None
        The shape that Phi tells.
    """
    if not isinstance(analysis, str) or shape is None or max(shape) != math.prod(shape):
        return []
    size = math.prod(shape)
    side = math.isqrt(size)
    window = samples_of(problem)
    if side**2 != size or side < LEAST_SIDE or window is None:
        return []
    there = np.full(size, np.nan)
    there[window.places] = window.y / window.weights
    quarter = side // 4
    lags = side, side - quarter, side + quarter, 2 * side
    squares = [(there[lag:] - there[:-lag]) ** 2 for lag in lags]
    if min(np.count_nonzero(np.isfinite(square)) for square in squares) < FEWEST_PAIRS:
        return []
    here, nearer, further, two = (float(np.nanmean(square)) for square in squares)
    if not (here < ALIKE * min(nearer, further) and here < LESS_THAN_TWO_ROWS * two):
        return []
    return [
        Caution(
            f"analysis='auto' took the unknown for a line of {size} samples, the shape that Phi tells, but "
            f"samples {side} apart are alike: if it is a picture, give analysis=({side}, {side})"
        )
    ]
