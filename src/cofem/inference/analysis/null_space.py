"""Directions of the unknown that neither data nor prior determine."""

from __future__ import annotations

import numpy as np

from cofem._arrays import inner, on_device_of
from cofem.inference.analysis.problem import AnalysisProblem
from cofem.status import Caution

#: Arrays that rows do not go across that are looked at.
MOST_APART = 16


def about_null_space(problem: AnalysisProblem) -> list[str]:
    """Say so where neither data nor prior determine the unknown.

    In large problems only the constant and slopes are tried, which differences do not see.
    """
    if problem.is_small:
        count = 0 if problem.undetermined is None else problem.undetermined.shape[1]
    else:
        count = sum(_is_unseen(problem, direction) for direction in _smooth(problem))
    if not count:
        return []
    text = (
        f"Phi and analysis have a common null space of {count} dimension{'s' if count > 1 else ''}: what the "
        "posterior says about it is arbitrary, since neither data nor prior say anything. Stack rows onto "
        "analysis that see it, such as a small multiple of the identity"
    )
    return [Caution(text)]


def _smooth(problem: AnalysisProblem) -> list[np.ndarray]:
    """Return the constant and a slope along each axis, or those of arrays that rows do not go across."""
    shape = problem.rows.grid or (problem.n_columns,)
    apart = [axis for axis in range(len(shape)) if axis - len(shape) not in problem.rows.axes]
    apart = [axis for axis in apart if shape[axis] > 1] if problem.rows.grid else []
    whole = [np.ones(shape)]
    for axis in range(len(shape)):
        if axis not in apart and shape[axis] > 1:
            ramp = np.linspace(-1.0, 1.0, shape[axis])
            ramp = ramp.reshape([-1 if i == axis else 1 for i in range(len(shape))])
            whole.append(np.broadcast_to(ramp, shape))
    found = []
    for place in list(np.ndindex(*(shape[axis] for axis in apart)))[:MOST_APART]:
        for direction in whole:
            part = np.zeros(shape)
            where: list[slice | int] = [slice(None)] * len(shape)
            for axis, index in zip(apart, place, strict=True):
                where[axis] = index
            part[tuple(where)] = direction[tuple(where)]
            found.append(part.ravel())
    return found


def _is_unseen(problem: AnalysisProblem, direction: np.ndarray) -> bool:
    rows, phi = problem.rows, problem.phi
    dtype = np.result_type(problem.real_dtype, np.complex64 if problem.is_complex else np.float32)
    vector = on_device_of(problem.y, direction.astype(dtype))
    unit = float(direction @ direction) / problem.n_columns
    little = (1e3 * float(np.finfo(problem.real_dtype).eps)) ** 2
    seen = rows.operator.forward(vector)
    if inner(seen, seen) > little * unit * float(rows.energies @ rows.sizes):
        return False
    image = phi.operator.forward(vector)
    return inner(image, image) <= little * unit * phi.energy
