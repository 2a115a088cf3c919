"""What B does not see: directions of the unknown that have no prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from cofem._arrays import Array, conj, is_complex, namespace, on_device_of, to_numpy
from cofem.linalg.analysis.exact import common_null_space
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.dictionary import Dictionary

#: Numbers of a basis up to which it is made.
MOST_NUMBERS = 2**24
#: Unknowns and entries of a B that is not sparse up to which its null space is computed.
SMALL_SIDE, SMALL_ENTRIES = 2**11, 2**22
#: Rounding of a product with B or Phi, in units of that of a number.
ROUNDING = 1e3
EPS = float(np.finfo(np.float64).eps)
#: Standard deviation that stands for an infinite one, relative to the size of the unknown.
WIDEST = 1e3


@dataclass(frozen=True)
class NullSpace:
    """The null space of B, as Phi sees it.

    Attributes
    ----------
    seen, product : array of shape (K, D)
        A basis of what Phi sees of it, for which ``Phi^H Phi`` is a diagonal, and its products with that.
    energies : array of shape (K,)
        The diagonal.
    unseen : array of shape (K', D)
        An orthonormal basis of what Phi does not see.
    """

    seen: Array
    product: Array
    energies: Array
    unseen: Array

    def share(self, r: Array) -> Array:
        """Return the coefficients of `seen` in a solution whose right-hand side is r, shape (B, K)."""
        return r @ conj(self.seen).T / self.energies

    def without_unseen(self, x: Array) -> Array:
        """Return vectors, shape (B, D), less what they have of the directions that nobody sees."""
        return x - (x @ conj(self.unseen).T) @ self.unseen if self.unseen.shape[0] else x


@dataclass(frozen=True)
class WithoutNullSpace(PosteriorPreconditioner):
    """Another preconditioner, with what has no prior taken out of the system and solved for exactly.

    It may be the slowest direction by far, which holds nearly all of the posterior's variance and none of the
    energy that a solver looks at. As in deflated conjugate gradients (Saad et al. 2000), which ask for a
    start whose residual has nothing of it.
    """

    inner: PosteriorPreconditioner
    null: NullSpace

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        self.inner.apply(r, out)
        if self.null.unseen.shape[0]:
            out[...] = self.null.without_unseen(out)
        out -= (out @ conj(self.null.product).T / self.null.energies) @ self.null.seen


def null_basis(rows: Any) -> np.ndarray:
    """Return an orthonormal basis of the null space of B, shape (K, D), as far as it is known.

    Differences do not see a constant, a slope or a product of slopes; along other axes, and where rows of a
    sparse B tie no places to each other, these are parts of the unknown. That of another B is computed if it
    is small.

    Parameters
    ----------
    rows : Rows
        B.

    Examples
    --------
    >>> from cofem.linalg.analysis import Rows
    >>> from cofem.operators import Gradient
    >>> null_basis(Rows(Gradient(4), np.zeros(1))).round(3).tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """
    size = rows.operator.shape[1]
    if rows.operator.facts.column_gram is not None:  # it keeps all lengths
        return np.zeros((0, size))
    if rows.grid is not None:
        labels, smooth = _arrays_apart(rows)
    elif rows.sparse is not None:
        labels, smooth = _parts(rows.sparse), [np.arange(size, dtype=np.float64)]
    elif (
        isinstance(rows.like, np.ndarray)
        and size <= SMALL_SIDE
        and prod(rows.operator.shape) <= SMALL_ENTRIES
    ):
        found = common_null_space(np.zeros((1, size)), rows.matrix)
        return np.zeros((0, size)) if found is None else found.T
    else:
        return np.zeros((0, size))
    count, basis = int(labels.max()) + 1, np.zeros((0, size))
    for direction in [np.ones(size), *smooth]:
        if (count + basis.shape[0]) * size > MOST_NUMBERS:
            break
        each = np.zeros((count, size))
        each[labels, np.arange(size)] = direction
        least = ROUNDING * EPS * size**0.5 * np.linalg.norm(each, axis=1)
        each -= (each @ basis.T) @ basis
        norms = np.linalg.norm(each, axis=1)
        each = each[norms > least] / norms[norms > least, None]
        basis = np.concatenate([basis, each[unseen_by(rows, each)]])
    return basis


def _arrays_apart(rows: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return which of the arrays that rows do not go across a place is in, and slopes and their products."""
    shape = rows.grid
    along = [axis for axis in range(len(shape)) if axis - len(shape) in rows.axes and shape[axis] > 1]
    index = np.indices(shape, sparse=True)
    apart = [axis for axis in range(len(shape)) if axis not in along]
    label = np.zeros(shape, dtype=np.intp)
    for axis in apart:
        label = label * shape[axis] + index[axis]
    smooth = []
    for chosen in range(1, 2 ** len(along)):
        product = np.ones(shape)
        for k, axis in enumerate(along):
            if chosen >> k & 1:
                product = product * (index[axis] / (shape[axis] - 1) - 0.5)
        smooth.append(product.ravel())
    return label.ravel(), smooth


def _parts(matrix: scipy.sparse.csr_array) -> np.ndarray:
    """Return which part each place is in, if rows tie places to each other."""
    pattern = scipy.sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    pattern.data[matrix.data == 0] = 0
    pattern.eliminate_zeros()
    graph = scipy.sparse.block_array([[None, pattern], [pattern.T, None]])
    labels = connected_components(graph, directed=False)[1][matrix.shape[0] :]
    found: np.ndarray = np.unique(labels, return_inverse=True)[1]
    return found


def unseen_by(rows: Any, directions: np.ndarray) -> np.ndarray:
    """Tell which of some unit vectors, shape (K, D), B makes nothing of but rounding errors."""
    operator = rows.operator.astype(np.float64)
    level = ROUNDING * EPS * np.sqrt(float(rows.energies @ rows.sizes) / directions.shape[1])
    images = (operator.forward(on_device_of(rows.like, direction)) for direction in directions)
    return np.array([float(np.linalg.norm(to_numpy(image))) <= level for image in images], dtype=bool)


def null_space(phi: Dictionary, basis: np.ndarray) -> NullSpace | None:
    """Return the null space of B as Phi sees it; None if there is none, or it is not known.

    Parameters
    ----------
    phi : Dictionary
        Phi.
    basis : ndarray of shape (K, D)
        As of `null_basis`.
    """
    if not basis.shape[0]:
        return None
    dtype = np.result_type(basis.dtype, np.complex64) if is_complex(phi.like) else basis.dtype
    whole = on_device_of(phi.like, basis.astype(dtype))
    gram = to_numpy(phi.operator.adjoint(phi.operator.forward(whole)))
    energies, vectors = np.linalg.eigh(to_numpy(whole).conj() @ gram.T)
    eps = float(np.finfo(energies.dtype).eps)
    least = max(phi.energy / phi.shape[1] * (ROUNDING * eps) ** 2, 10 * eps * energies.size * energies[-1])
    seen = energies > least
    turned = (vectors.T @ basis).astype(gram.dtype)
    product = np.ascontiguousarray((vectors.T @ gram)[seen])
    # One direction is what it was, and need not be in memory twice.
    kept = basis if basis.shape[0] == 1 and seen.all() and gram.dtype == basis.dtype else turned[seen]
    product = gram if kept is basis else product
    parts = (kept, product, energies[seen], turned[~seen])
    return NullSpace(*(on_device_of(phi.like, part) for part in parts))


def widest(power: float, unseen: Array) -> float:
    """Return the variance of orthonormal directions that nobody sees, shape (D, K): a bound, for infinity.

    Parameters
    ----------
    power : float
        Mean square of the unknown, as far as the data tell.
    unseen : array of shape (D, K)
        The directions.

    Examples
    --------
    >>> widest(4.0, np.full((4, 1), 0.5))
    16000000.0
    """
    return WIDEST**2 * power / float(namespace(unseen).max(spread_of(unseen)))


def spread_of(unseen: Array) -> Array:
    """Return what the variance of each place is, if that of orthonormal directions is 1, shape (D,)."""
    xp = namespace(unseen)
    return xp.sum(xp.abs(unseen) ** 2, axis=1)
