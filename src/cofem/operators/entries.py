"""What an operator tells about its entries through its action alone: columns, rows, norms, local Grams."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg

from cofem._arrays import (
    Array,
    at_least,
    conj,
    in_precision,
    namespace,
    norm,
    on_device_of,
    squared_modulus,
    take,
    to_numpy,
)
from cofem._blocks import SMALL_MATRIX, blocks, vectors_at_once
from cofem.operators.lanczos import lanczos

if TYPE_CHECKING:
    from cofem.operators.matrix import Matrix

_PROBES = 64
#: Most steps for a norm, and the fewest: in a space where all directions but one are nearly alike, the first
#: steps may not see that one, however small their residual is.
_LANCZOS_STEPS, _LEAST_STEPS = 100, 5
#: Rows or columns up to which a norm is computed in place of estimated. In few dimensions, a random start is
#: often nearly orthogonal to the vector that is looked for.
_EXACT_SIDE = 32


class StoredMatrix(NamedTuple):
    """A matrix in memory and what it is multiplied by.

    Attributes
    ----------
    array : ndarray of shape (N, D)
        The matrix; not to be changed.
    factor : float or complex
        The operator is ``factor * array``.
    """

    array: np.ndarray
    factor: float | complex


def _is_small(operator: Matrix) -> bool:
    """Tell whether writing out all entries of ``operator`` is cheap."""
    return operator.shape[0] * operator.shape[1] <= SMALL_MATRIX


def to_device_of(operator: Matrix, values: np.ndarray) -> Array:
    """Return ``values`` where the operator works: in NumPy, or on the device of its numbers."""
    return values if operator.device_array is None else on_device_of(operator.device_array, values)


def like_entries_of(operator: Matrix, values: Array) -> Array:
    """Return entries of a part of ``operator`` in the type and on the device of its own entries."""
    if isinstance(values, np.ndarray):
        values = to_device_of(operator, values)
    xp = namespace(values)
    return xp.astype(values, getattr(xp, operator.dtype.name), copy=False)


# --- columns and rows ---------------------------------------------------------------------------------------


def columns_by_application(operator: Matrix, indices: np.ndarray) -> Array:
    """Return the columns ``indices`` as rows, shape (K, N): unit vectors sent through in blocks."""
    return _images_of_units(operator, operator.forward, operator.shape[1], indices)


def rows_by_application(operator: Matrix, indices: np.ndarray) -> Array:
    """Return the rows ``indices``, shape (K, D): unit vectors sent through the adjoint in blocks."""
    return conj(_images_of_units(operator, operator.adjoint, operator.shape[0], indices))


def _images_of_units(
    operator: Matrix, apply: Callable[[Array], Array], length: int, indices: np.ndarray
) -> Array:
    images = []
    for block in blocks(len(indices), vectors_at_once(max(operator.shape))):
        chosen = indices[block]
        units = np.zeros((len(chosen), length), dtype=operator.dtype)
        units[np.arange(len(chosen)), chosen] = 1
        images.append(apply(to_device_of(operator, units)))
    return namespace(images[0]).concat(images)


# --- local Gram matrices ------------------------------------------------------------------------------------


def local_gram(operator: Matrix, indices: np.ndarray) -> Array:
    """Return Gram matrices of clusters of columns, shape (K, b, b), from facts or else from columns."""
    facts = operator.facts
    if facts.column_gram is not None:
        return equal_places(operator, indices) * facts.column_gram
    if facts.diagonal:
        ones = to_device_of(operator, np.ones(operator.shape[1], dtype=operator.dtype))
        power = squared_modulus(take(operator.forward(ones), indices.reshape(-1), axis=0))
        power = namespace(power).reshape(power, (*indices.shape, 1))
        return equal_places(operator, indices) * power
    atoms = operator.spectral_atoms()
    if atoms is not None:
        return atoms.local_gram(indices)
    return gram_of_columns(operator._columns, operator.shape[0], indices)


def equal_places(operator: Matrix, indices: np.ndarray) -> Array:
    """Return 1 where two places of a cluster are one and the same column, else 0: shape (K, b, b)."""
    same = indices[:, :, None] == indices[:, None, :]
    return to_device_of(operator, same.astype(operator.dtype))


def gram_of_columns(columns: Callable[[np.ndarray], Array], length: int, indices: np.ndarray) -> Array:
    """Return Gram matrices of clusters of columns, a bounded number of columns at a time.

    Parameters
    ----------
    columns : callable
        From indices (K,) to columns as rows, shape (K, N).
    length : int
        N.
    indices : ndarray of shape (K, b)
        The clusters.
    """
    n_clusters, width = indices.shape
    grams = []
    for block in blocks(n_clusters, vectors_at_once(width * length)):
        # Clusters may overlap: each column is asked for once.
        distinct, places = np.unique(indices[block], return_inverse=True)
        found = take(columns(distinct), places.reshape(-1), axis=0)
        grams.append(gram_of_rows(namespace(found).reshape(found, (-1, width, length))))
    return namespace(grams[0]).concat(grams)


def gram_of_rows(vectors: Array) -> Array:
    """Return ``<v_i, v_j>`` for the rows of each matrix in a batch, shape (K, b, n) -> (K, b, b)."""
    xp = namespace(vectors)
    return xp.matmul(conj(vectors), xp.matrix_transpose(vectors))


def lookup(table: Array, shape: tuple[int, ...], places: np.ndarray) -> Array:
    """Look up an even function of position differences, for local Gram matrices.

    Parameters
    ----------
    table : array
        Entry ``m`` belongs to the difference ``m``, modulo the shape of the table.
    shape : tuple of int
        Shape of the array whose places, flattened in C order, columns are at.
    places : ndarray of shape (K, b)
        Places.

    Returns
    -------
    array of shape (K, b, b)
        Entry ``[k, i, j]`` is the one for ``places[k, i] - places[k, j]``.
    """
    flat = np.zeros((*places.shape, places.shape[1]), dtype=np.intp)
    for position, period in zip(np.unravel_index(places, shape), table.shape, strict=True):
        flat *= period
        flat += (position[:, :, None] - position[:, None, :]) % period
    xp = namespace(table)
    found = take(xp.reshape(table, (-1,)), flat.reshape(-1), axis=0)
    return xp.reshape(found, flat.shape)


# --- norms --------------------------------------------------------------------------------------------------


def diagonal_moduli(operator: Matrix) -> Array:
    """Return the moduli of the diagonal, shape (D,), of an operator that is diagonal."""
    ones = to_device_of(operator, np.ones(operator.shape[1], dtype=operator.dtype))
    return in_precision(abs(operator.forward(ones)), "float64")


def has_exact_column_norms(operator: Matrix) -> bool:
    """Tell whether `column_norms` needs no random probes."""
    facts = operator.facts
    return (
        facts.column_gram is not None
        or facts.diagonal
        or operator.abs2() is not None
        or operator.spectral_atoms() is not None
        or _is_small(operator)
        or _local_energies(operator) is not None
    )


def column_norms(operator: Matrix) -> Array:
    """Return the norms of the columns, shape (D,), exact if there is a cheap way, else estimated."""
    if operator.facts.column_gram is not None:
        return to_device_of(operator, np.full(operator.shape[1], np.sqrt(operator.facts.column_gram)))
    if operator.facts.diagonal:
        return diagonal_moduli(operator)
    squares = operator.abs2()
    if squares is not None:
        # Differences of Fourier sums can round to just below zero.
        energy = squares.adjoint(to_device_of(operator, np.ones(operator.shape[0])))
        return namespace(energy).sqrt(at_least(energy, 0.0))
    atoms = operator.spectral_atoms()
    if atoms is not None:
        return np.sqrt(np.maximum(atoms.column_energies(np.ones(operator.shape[0])), 0.0))
    if _is_small(operator):
        columns = operator.columns(np.arange(operator.shape[1]))
        return in_precision(namespace(columns).linalg.vector_norm(columns, axis=-1), "float64")
    energies = _local_energies(operator)
    return _probed_column_norms(operator) if energies is None else np.sqrt(np.maximum(energies, 0.0))


def _local_energies(operator: Matrix) -> np.ndarray | None:
    """Return ``||phi_j||^2`` of columns that are coupled with near ones only, by combs; None for others."""
    circulant = operator.circulant_gram()
    if circulant is None:
        return None
    if circulant.is_exact:
        return np.full(operator.shape[1], circulant.table().flat[0].real)
    found = operator.offset_gram(np.zeros((1, len(circulant.shape)), dtype=np.intp))
    return None if found is None else found[0].real.astype(np.float64)


#: Norms that cannot be told from zero, relative to the largest: from sums of squares of a transform, which
#: are exact to the root of a rounding; from the columns themselves, in double and in single precision.
_RESOLUTION_OF_SQUARES = 1e-6
_RESOLUTION = {"float64": 1e-13, "float32": 1e-5}


def norm_resolution(operator: Matrix, norms: Array) -> float:
    """Return the norm of a column below which it cannot be told from zero."""
    facts = operator.facts
    if facts.column_gram is not None or facts.diagonal or operator.stored_entries:
        return 0.0
    largest = float(namespace(norms).max(norms))
    if operator.abs2() is not None or operator.spectral_atoms() is not None:
        return _RESOLUTION_OF_SQUARES * largest
    return _RESOLUTION[operator.precision or "float64"] * largest


def _probed_column_norms(operator: Matrix) -> Array:
    # For random signs p, the mean of |Phi^H p|^2 is the vector of squared column norms.
    rng = np.random.default_rng(0)
    total = to_device_of(operator, np.zeros(operator.shape[1]))
    xp = namespace(total)
    for block in blocks(_PROBES, vectors_at_once(max(operator.shape))):
        probes = rng.choice([-1.0, 1.0], size=(block.stop - block.start, operator.shape[0]))
        images = operator.adjoint(to_device_of(operator, probes.astype(operator.dtype)))
        total += xp.sum(squared_modulus(images), axis=0)
    return xp.sqrt(total / _PROBES)


def spectral_norm(operator: Matrix, rtol: float = 1e-3) -> float:
    """Return the largest singular value, from the smaller of ``Phi^H Phi`` and ``Phi Phi^H``.

    Parameters
    ----------
    operator : Operator
        Of shape (N, D).
    rtol : float
        Stop Lanczos steps once the residual bounds the relative distance to an eigenvalue of the Gram
        operator by this.

    Returns
    -------
    float
        Exact up to rounding if N or D is at most 32. Else an estimate, at most the true norm: Lanczos steps
        never bring a wrong largest value.
    """
    side = operator if operator.shape[1] <= operator.shape[0] else operator.H
    if side.shape[1] <= _EXACT_SIDE:
        gram = to_numpy(_images_of_units(side, side.gram, side.shape[1], np.arange(side.shape[1])))
        _check_finite(operator, gram)
        return float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0.0)))
    rng = np.random.default_rng(0)
    start = rng.standard_normal(side.shape[1]).astype(side.dtype)
    start /= np.linalg.norm(start)
    steps = lanczos(
        lambda x: side.gram(x[0, :])[None, :],
        to_device_of(operator, start)[None, :],
        norms=lambda x: np.array([norm(x)]),
    )
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    largest = 0.0
    for step in islice(steps, _LANCZOS_STEPS):
        diagonal.append(float(step.diagonal[0]))
        _check_finite(operator, step.diagonal)
        coupling = float(step.coupling[0])
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, off_diagonal)
        largest = max(float(values[-1]), 0.0)
        settled = coupling * abs(vectors[-1, -1]) <= rtol * largest
        if (settled and len(diagonal) >= _LEAST_STEPS) or coupling == 0:
            break
        off_diagonal.append(coupling)
    return float(np.sqrt(largest))


def _check_finite(operator: Matrix, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise FloatingPointError(f"Phi gave values that are not finite: {operator!r}")
