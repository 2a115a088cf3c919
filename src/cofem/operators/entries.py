"""What an operator tells about its entries through its action alone: columns and norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from cofem._arrays import (
    Array,
    in_precision,
    inner,
    namespace,
    norm,
    number_like,
    on_device_of,
    squared_modulus,
)

if TYPE_CHECKING:
    from cofem.operators.base import Operator

# Entries (N * D) up to which an operator is written out rather than probed.
_SMALL = 2**22
# Numbers in one block of vectors pushed through an operator at once.
_BLOCK = 2**22
_PROBES = 64
_LANCZOS_STEPS = 100


def _is_small(operator: Operator) -> bool:
    """Tell whether writing out all entries of ``operator`` is cheap."""
    return operator.shape[0] * operator.shape[1] <= _SMALL


def _vectors_per_block(operator: Operator) -> int:
    return max(1, _BLOCK // max(operator.shape))


def at_home(operator: Operator, values: np.ndarray) -> Array:
    """Return ``values`` where the operator works: in NumPy, or where its numbers are."""
    return values if operator.home is None else on_device_of(operator.home, values)


def columns_by_application(operator: Operator, indices: np.ndarray) -> Array:
    """Return the columns ``indices`` as rows, shape (K, N): unit vectors sent through in blocks."""
    step = _vectors_per_block(operator)
    blocks = []
    for start in range(0, len(indices), step):
        chosen = indices[start : start + step]
        units = np.zeros((len(chosen), operator.shape[1]), dtype=operator.dtype)
        units[np.arange(len(chosen)), chosen] = 1
        blocks.append(operator.forward(at_home(operator, units)))
    return namespace(blocks[0]).concat(blocks)


def diagonal_moduli(operator: Operator) -> Array:
    """Return the moduli of the diagonal, shape (D,), of an operator that is diagonal."""
    ones = at_home(operator, np.ones(operator.shape[1], dtype=operator.dtype))
    return in_precision(abs(operator.forward(ones)), "float64")


def has_exact_column_norms(operator: Operator) -> bool:
    """Tell whether `column_norms` needs no random probes."""
    facts = operator.facts
    return (
        facts.column_gram is not None or facts.diagonal or operator.abs2() is not None or _is_small(operator)
    )


def column_norms(operator: Operator) -> Array:
    """Return the norms of the columns, shape (D,), exact if there is a cheap way, else estimated."""
    if operator.facts.column_gram is not None:
        return at_home(operator, np.full(operator.shape[1], np.sqrt(operator.facts.column_gram)))
    if operator.facts.diagonal:
        return diagonal_moduli(operator)
    squares = operator.abs2()
    if squares is not None:
        # Differences of Fourier sums can round to just below zero.
        energy = squares.adjoint(at_home(operator, np.ones(operator.shape[0])))
        xp = namespace(energy)
        return xp.sqrt(xp.maximum(energy, number_like(energy, 0.0)))
    if _is_small(operator):
        columns = operator.columns(np.arange(operator.shape[1]))
        return in_precision(namespace(columns).linalg.vector_norm(columns, axis=-1), "float64")
    return _probed_column_norms(operator)


def _probed_column_norms(operator: Operator) -> Array:
    # For random signs p, the mean of |Phi^H p|^2 is the vector of squared column norms.
    rng = np.random.default_rng(0)
    total = at_home(operator, np.zeros(operator.shape[1]))
    xp = namespace(total)
    step = _vectors_per_block(operator)
    for start in range(0, _PROBES, step):
        probes = rng.choice([-1.0, 1.0], size=(min(step, _PROBES - start), operator.shape[0]))
        images = operator.adjoint(at_home(operator, probes.astype(operator.dtype)))
        total += xp.sum(squared_modulus(images), axis=0)
    return xp.sqrt(total / _PROBES)


def spectral_norm(operator: Operator, rtol: float = 1e-3) -> float:
    """Estimate the largest singular value by Lanczos steps on the smaller of ``Phi^H Phi``, ``Phi Phi^H``.

    Parameters
    ----------
    operator : Operator
        Of shape (N, D).
    rtol : float
        Stop once the residual bounds the relative distance to an eigenvalue of the Gram operator by this.

    Returns
    -------
    float
        At most the true norm, up to rounding. Vectors are not orthogonalised again: that would need all of
        them in memory, and it only brings copies of values already found, never a wrong largest one.
    """
    side = operator if operator.shape[1] <= operator.shape[0] else operator.H
    rng = np.random.default_rng(0)
    start = rng.standard_normal(side.shape[1]).astype(side.dtype)
    start /= np.linalg.norm(start)
    vector = at_home(operator, start)
    previous = namespace(vector).zeros_like(vector)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    coupling = largest = 0.0
    for _ in range(_LANCZOS_STEPS):
        image = side.gram(vector)
        diagonal.append(inner(vector, image))
        if not np.isfinite(diagonal[-1]):
            raise FloatingPointError(f"Phi gave values that are not finite: {operator!r}")
        image = image - diagonal[-1] * vector - coupling * previous
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, off_diagonal)
        largest = max(float(values[-1]), 0.0)
        coupling = norm(image)
        if coupling * abs(vectors[-1, -1]) <= rtol * largest or coupling == 0:
            break
        off_diagonal.append(coupling)
        previous, vector = vector, image / coupling
    return float(np.sqrt(largest))
