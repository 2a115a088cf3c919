"""The Lanczos recurrence, for a batch of starts at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cofem._arrays import Array, namespace, on_device_of, precision_of, real_dot, to_numpy


class LanczosStep(NamedTuple):
    """What one step adds to the tridiagonal matrix of each start.

    Attributes
    ----------
    diagonal : ndarray of shape (B,)
        Entry on the diagonal.
    coupling : ndarray of shape (B,)
        Entry beside it, to the next step; also the norm of what the step has left.
    """

    diagonal: np.ndarray
    coupling: np.ndarray


def row_norms(x: Array) -> np.ndarray:
    """Return the Euclidean norm of each row, as NumPy numbers."""
    return to_numpy(namespace(x).linalg.vector_norm(x, axis=-1)).astype(float)


def lanczos(
    apply: Callable[[Array], Array], start: Array, norms: Callable[[Array], np.ndarray] = row_norms
) -> Iterator[LanczosStep]:
    """Run Lanczos steps on a Hermitian operator until the caller stops.

    Vectors are not orthogonalised again: that would need all of them in memory, and it only brings copies of
    values already found.

    Parameters
    ----------
    apply : callable
        ``(B, n) -> (B, n)``, the operator; it returns a new array.
    start : array of shape (B, n)
        Start vectors of norm one.
    norms : callable
        Norm of each row; libraries have several ways to compute it, which round differently.

    Yields
    ------
    LanczosStep
        Once a coupling is zero, what comes later for that start says nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from itertools import islice
    >>> steps = lanczos(lambda x: x * np.array([1.0, 3.0]), np.full((1, 2), 0.5**0.5))
    >>> [np.round(step.diagonal, 6).tolist() for step in islice(steps, 2)]
    [[2.0], [2.0]]
    """
    vector, previous = start, namespace(start).zeros_like(start)
    coupling = np.zeros(start.shape[0])
    while True:
        image = apply(vector)
        with np.errstate(over="ignore", invalid="ignore"):  # callers look at what they are given
            diagonal = real_dot(vector, image)
            image = image - _column(diagonal, start) * vector
            image -= _column(coupling, start) * previous
            coupling = norms(image)
        yield LanczosStep(diagonal, coupling)
        previous, vector = vector, image / _column(np.where(coupling == 0, 1.0, coupling), start)


def _column(numbers: np.ndarray, like: Array) -> Array:
    """Return one number for each row, as a column of the precision, library and device of `like`."""
    return on_device_of(like, numbers[:, None].astype(precision_of(like)))
