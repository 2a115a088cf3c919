"""Second moments of ``B u``, part by part: arrays of M numbers are the largest there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import array_api_compat
import numpy as np

from cofem._arrays import Array, is_complex, namespace, number_like, reciprocal, squared_modulus
from cofem._packing import packable
from cofem.inference.analysis.problem import AnalysisProblem
from cofem.inference.base import State
from cofem.linalg.analysis import AnalysisSystem, RowPart

#: A variance that is nothing beside any other.
NOTHING = 1e-30
#: Rows from which on ratios of variances, which draws leave uncertain by a tenth, are kept in half precision.
HALF_FROM = 2**22
#: What variances of places are worth in draws: as many as ever count.
MANY = 32.0


@packable("analysis")
class Carry(NamedTuple):
    """What one E-step hands to the next."""

    #: Steps done.
    steps: int = 0
    #: Variances of the predictions of data that are held out, shape (H,); None if there are none.
    predicted: Array | None = None
    #: How many draws these come from; 0 if they are exact.
    draws: float = 0.0
    #: Variances of rows, shape (M,), relative to what they would be if A were its diagonal, averaged over
    #: steps (or their roots in half precision, see `stored_ratio`); variances themselves without `noise_var`.
    row_ratio: Array | None = None
    #: The same of places, shape (D,); None if unknown.
    place_ratio: Array | None = None
    #: Noise variance that A had; None if nothing is relative to its diagonal.
    noise_var: float | None = None
    #: The posterior's spread after the last steps, the present one last; see `AnalysisEM.unsettled`.
    spreads: tuple[float, ...] = ()


#: Gives the variances of the rows of a part, as an array that may be overwritten.
VarianceOf = Callable[[RowPart], Array]


class Averages(NamedTuple):
    """How new estimates of ratios are averaged: with earlier ones, and over neighbours."""

    old: Array | None
    share: float
    over_neighbours: bool


def on_rows(problem: AnalysisProblem, like: Array, part_of: Callable[[RowPart], Array]) -> Array:
    """Return numbers of all rows, shape (M,), from a function that gives those of a part."""
    parts = problem.rows.parts
    if len(parts) == 1:
        return part_of(parts[0])
    out = namespace(like).empty(
        (problem.rows.n_rows,), dtype=like.dtype, device=array_api_compat.device(like)
    )
    for part in parts:
        out[part.rows] = part_of(part)
    return out


def averaged_ratio(problem: AnalysisProblem, variance_of: VarianceOf, inverse: Array, how: Averages) -> Array:
    """Return variances of rows relative to those if A were its diagonal, shape (M,), averaged.

    These change little from step to step, and from place to place.
    """
    rows = problem.rows
    half = isinstance(inverse, np.ndarray) and rows.n_rows >= HALF_FROM

    def ratio_of(part: RowPart) -> Array:
        ratio = variance_of(part)
        ratio /= _rough(part, inverse)
        if how.over_neighbours:
            ratio = rows.pooled(ratio, part)
        ratio = mixed(ratio, None if how.old is None else stored_ratio(how.old, part, ratio), how.share)
        return np.sqrt(ratio, out=ratio) if half else ratio

    return on_rows(problem, np.empty(0, np.float16) if half else inverse, ratio_of)


def stored_ratio(ratios: Array, part: RowPart, like: Array) -> Array:
    """Return the ratios of a part, as an array of its own; of what is in half precision, the squares."""
    found = namespace(like).astype(ratios[part.rows], like.dtype, copy=True)
    if isinstance(ratios, np.ndarray) and ratios.dtype == np.float16:
        found *= found
    return found


def row_variances(problem: AnalysisProblem, state: State) -> Array:
    """Return the variances of ``B u``, shape (M,)."""
    return on_rows(problem, state.alpha, _variance_of(problem, state))


def row_power(problem: AnalysisProblem, state: State) -> Array:
    """Return ``|B mean|^2``, averaged over tasks, shape (M,)."""
    return on_rows(problem, state.alpha, lambda part: _power(part, state.mean))


def second_moments(problem: AnalysisProblem, state: State) -> Array:
    """Return ``E |(B u)_i|^2``, averaged over tasks, shape (M,)."""
    variance_of = _variance_of(problem, state)
    return on_rows(problem, state.alpha, lambda part: variance_of(part) + _power(part, state.mean))


def mixed(new: Array, old: Array | None, share: float) -> Array:
    """Return the average of both with these shares; the new one is overwritten."""
    if old is not None:
        new -= old
        new *= share
        new += old
    return new


def squared(x: Array) -> Array:
    """Return ``|x|^2``, where real in the memory of x."""
    if is_complex(x):
        return squared_modulus(x)
    x *= x
    return x


def _variance_of(problem: AnalysisProblem, state: State) -> VarianceOf:
    """Return what gives the variances of rows from the ratios that a state carries."""
    alpha, carry = state.alpha, state.carry
    inverse = None
    if carry.noise_var is not None:
        system = AnalysisSystem(problem.phi, problem.rows, alpha, carry.noise_var)
        inverse = reciprocal(system.diagonal())

    def variance_of(part: RowPart) -> Array:
        found = stored_ratio(carry.row_ratio, part, alpha)
        if inverse is not None:
            found *= _rough(part, inverse)
        return found

    return variance_of


def _rough(part: RowPart, inverse: Array) -> Array:
    """Return what variances of rows would be if A were its diagonal; rows of zeros have nearly none."""
    assert part.squares is not None
    found = part.squares.forward(inverse)
    found += number_like(found, NOTHING)
    return found


def _power(part: RowPart, mean: Array) -> Array:
    power = squared(part.operator.forward(mean))
    return power if power.ndim == 1 else namespace(power).mean(power, axis=0)
