r"""Solve for the few coefficients that matter most exactly, inside of another preconditioner.

Late in a fit a few coefficients S are known well, and those next to each other on a blur make the system
nearly singular: there the other preconditioner takes hundreds of steps. With E the columns of the identity
for S and :math:`Q = E (E^H A E)^{-1} E^H`,

.. math:: P^{-1} = (I - Q A) M^{-1} + Q

takes them out (A-DEF2 of Tang, Nabben, Vuik and Erlangga 2009), at one more product with A in each step. It
asks for a start whose residual is zero on S. On blurs of D = 1024 with one percent of noise, steps fall from
38-49 to 2-5 (updates 25 and 50), and from 200 to 5 where two spikes are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse
from scipy.linalg import cho_solve

from cofem._arrays import Array, add_product, to_numpy
from cofem._blocks import BATCH_NUMBERS, blocks
from cofem.linalg.factor import safe_cholesky
from cofem.linalg.preconditioners.banded import ALL_OF_IT
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.circulant import CirculantGram
from cofem.operators.dictionary import Dictionary

#: A coefficient is in S if its ``noise_var alpha`` is below this share of ``||phi_j||^2``: the first that
#: leaves S no more than `LARGEST_SHARE` of the coefficients. As long as none does, all precisions are alike,
#: and the other preconditioner is enough.
KNOWN_WELL, LARGEST_SHARE = (0.1, 0.03, 0.01, 0.003, 0.001), 0.125
#: Entries of the Gram operator, relative to its diagonal, that are rounding errors.
ROUNDING = 1e-14
#: The Gram matrix is made for coefficients up to this many times the limit, so that it serves for later ones.
AHEAD = 3.0
#: Size of S up to which its matrix is dense: 2 ms in place of 7 (decay 0.98, 300 of 3072).
FEW = 512
#: Most entries of ``E^H A E``.
MOST_ENTRIES = 2**22
#: Most entries of the Gram matrix that are kept where they differ from column to column.
MOST_STORED = 2**24


@dataclass(frozen=True)
class Deflated(PosteriorPreconditioner):
    """Another preconditioner, with some coefficients taken out of the system.

    Attributes
    ----------
    inner : PosteriorPreconditioner
        M.
    phi : Dictionary
        Phi.
    alpha : ndarray of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    chosen : ndarray of int
        S.
    matrix : sparse array, or ndarray of a small S
        ``E^H A E``, where A is the system times the noise variance.
    solve : callable, optional
        Solves with it, for the columns of a matrix; once prepared.
    """

    inner: PosteriorPreconditioner
    phi: Dictionary
    alpha: np.ndarray
    noise_var: float
    chosen: np.ndarray
    matrix: scipy.sparse.csc_array | np.ndarray
    solve: Callable[[np.ndarray], np.ndarray] | None = None

    #: With 1, late checks took variances that were right to 0.3 % for wrong by 50 % (blur, D = 4096).
    sharpness_for_probes: ClassVar[float] = 0.3

    def prepared(self) -> Deflated:
        """Return the preconditioner with its factor."""
        if isinstance(self.matrix, np.ndarray):
            lower = safe_cholesky(self.matrix)
            return replace(
                self,
                inner=self.inner.prepared(),
                solve=lambda b: cho_solve((lower, True), b, check_finite=False),
            )
        from scipy.sparse.linalg import splu

        options = {"SymmetricMode": True}
        factor = splu(self.matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
        return replace(self, inner=self.inner.prepared(), solve=factor.solve)

    def correction(self, r: Array) -> Array:
        """Return ``Q r``: added to a solution, it makes the residual r zero on S."""
        assert self.solve is not None
        out = np.zeros_like(r)
        kind = self.matrix.dtype
        part = np.ascontiguousarray(r[:, self.chosen].T)
        if np.iscomplexobj(part) and kind.kind != "c":
            found = self.solve(part.real.astype(kind)) + 1j * self.solve(part.imag.astype(kind))
        else:
            found = self.solve(part.astype(kind))
        out[:, self.chosen] = found.T
        return out

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        self.inner.apply(r, out)
        product = add_product(self.phi.gram(out), self.noise_var, self.alpha, out)
        out += self.correction(r - product)


def deflated(
    inner: PosteriorPreconditioner, phi: Dictionary, alpha: Array, noise_var: float
) -> PosteriorPreconditioner:
    """Take what is known well out of a system, where that is little and its Gram matrix is at hand.

    Parameters
    ----------
    inner : PosteriorPreconditioner
        The preconditioner for the rest.
    phi : Dictionary
        Phi.
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.

    Returns
    -------
    PosteriorPreconditioner
        `inner` itself if there is nothing to take out.
    """
    if not isinstance(alpha, np.ndarray):
        return inner
    chosen, more = known_well(phi, alpha, noise_var)
    entries = gram_entries(phi) if chosen.size else None
    gram = None if entries is None else _known_gram(phi, entries, chosen, more)
    if gram is None:
        return inner
    if chosen.size <= FEW:
        dense = gram.toarray()
        dense[np.diag_indices(chosen.size)] += noise_var * alpha[chosen]
        return Deflated(inner, phi, alpha, noise_var, chosen, dense)
    matrix = gram + scipy.sparse.diags_array(noise_var * alpha[chosen].astype(np.float64))
    return Deflated(inner, phi, alpha, noise_var, chosen, scipy.sparse.csc_array(matrix))


class GramEntries(NamedTuple):
    """The entries of a Gram matrix that are not zero, by the offset between two columns on a grid.

    Attributes
    ----------
    shape : tuple of int
        The grid.
    offsets : ndarray of int, shape (m, number of axes)
        Offsets, of which one of each pair of opposite ones may be left out.
    values : ndarray of shape (m, D), or (m, 1) where they are the same for all columns
        ``<phi_j, phi_{j + offset}>``.
    repeats : bool
        Whether the grid repeats.
    once : ndarray of bool, shape (m,)
        Which offsets are their own opposites.
    to_check : bool
        Whether columns may be coupled at other offsets as well: how far was measured by some of them, or is
        known of a grid that repeats.
    """

    shape: tuple[int, ...]
    offsets: np.ndarray
    values: np.ndarray
    repeats: bool
    once: np.ndarray
    to_check: bool = False


#: The entries of dictionaries in use.
_ENTRIES: WeakKeyDictionary[Dictionary, GramEntries | None] = WeakKeyDictionary()


def gram_entries(phi: Dictionary) -> GramEntries | None:
    """Return the entries of ``Phi^H Phi``, where columns are like shifts and coupled with few others.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution, Mask
    >>> seen = Dictionary(Mask([1, 3], 4) @ Convolution([1.0, 2.0], 4, causal=True), like=np.zeros(1))
    >>> found = gram_entries(seen)
    >>> found.offsets.tolist(), found.values.round(9).tolist()
    ([[0], [1]], [[4.0, 1.0, 4.0, 1.0], [2.0, 0.0, 2.0, 0.0]])
    """
    if phi not in _ENTRIES:
        _ENTRIES[phi] = _find_entries(phi)
    return _ENTRIES[phi]


def _find_entries(phi: Dictionary) -> GramEntries | None:
    circulant = phi.circulant_gram()
    if circulant is None:
        return None
    table = circulant.table()
    shape = np.array(table.shape)
    moduli = np.abs(table)
    offsets = np.argwhere(moduli > ROUNDING * moduli.flat[0])
    offsets = np.where(offsets > shape // 2, offsets - shape, offsets)
    if circulant.reach is not None:
        offsets = offsets[(np.abs(offsets) <= circulant.reach).all(axis=1)]
    elif not circulant.repeats:
        offsets = _with_farther_ones(offsets, shape)
    offsets, once = _one_of_each_pair(offsets, circulant)
    if circulant.is_exact:
        values = np.conj(table[tuple(offsets.T)])[:, None]
        return GramEntries(circulant.shape, offsets, values, True, once)
    if offsets.shape[0] * phi.shape[1] > MOST_STORED:
        return None
    found = phi.offset_gram(offsets)
    if found is None:
        return None
    to_check = circulant.reach is not None or not circulant.repeats
    return GramEntries(circulant.shape, offsets, found, circulant.repeats, once, to_check)


def _with_farther_ones(offsets: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Add the offsets on the other side that look the same on a grid that repeats.

    Only along axes where columns are coupled across half of the grid: elsewhere hardly any reach that far,
    and `_is_gram_of` tells.

    Examples
    --------
    >>> _with_farther_ones(np.array([[0], [-1], [2]]), np.array([4])).ravel().tolist()
    [-2, -1, 0, 2, 3]
    >>> _with_farther_ones(np.array([[0], [-1]]), np.array([4])).ravel().tolist()
    [0, -1]
    """
    for axis, length in enumerate(shape):
        if 2 * int(np.abs(offsets[:, axis]).max()) >= length - 1:
            there = offsets[offsets[:, axis] != 0]
            there[:, axis] -= length * np.sign(there[:, axis])
            offsets = np.unique(np.concatenate([offsets, there]), axis=0)
    return offsets


def _one_of_each_pair(offsets: np.ndarray, circulant: CirculantGram) -> tuple[np.ndarray, np.ndarray]:
    """Leave one of each two opposite offsets, and tell which are their own opposites.

    The others follow from these. On a grid that repeats, half of an even length is its own opposite.
    """
    if not circulant.repeats:
        first = np.take_along_axis(offsets, np.argmax(offsets != 0, axis=1)[:, None], axis=1)[:, 0]
        offsets = offsets[first >= 0]
        return offsets, np.all(offsets == 0, axis=1)
    ahead, back = (
        np.ravel_multi_index(tuple(some.T), circulant.shape, mode="wrap") for some in (offsets, -offsets)
    )
    kept = ahead <= back
    return offsets[kept], (ahead == back)[kept]


def known_well(phi: Dictionary, alpha: np.ndarray, noise_var: float) -> tuple[np.ndarray, np.ndarray]:
    """Return S: the coefficients that the data say much more about than the prior, if they are few.

    And a larger set, of those that may be in S before long.
    """
    prior, energy = noise_var * alpha, phi.column_energy  # not their ratio: columns may be zero
    limit = next((r for r in KNOWN_WELL if np.mean(prior < r * energy) <= LARGEST_SHARE), 0.0)
    return np.flatnonzero(prior < limit * energy), np.flatnonzero(prior < AHEAD * limit * energy)


#: The last Gram matrix of a dictionary in use, and its columns: S changes little from step to step.
_KNOWN: WeakKeyDictionary[Dictionary, tuple[np.ndarray, scipy.sparse.csr_array]] = WeakKeyDictionary()


def _known_gram(
    phi: Dictionary, entries: GramEntries, chosen: np.ndarray, more: np.ndarray
) -> scipy.sparse.csr_array | None:
    """Return the Gram matrix of some columns, out of a larger one that is kept; `more` is what to keep."""
    if phi in _KNOWN:
        kept, gram = _KNOWN[phi]
        where = np.minimum(np.searchsorted(kept, chosen), kept.size - 1)
        if np.array_equal(kept[where], chosen):
            return gram[where][:, where]
    kept = more if more.size <= 2 * chosen.size else chosen
    found = sparse_gram(entries, kept)
    if found is None:
        return None
    if entries.to_check and not _is_gram_of(found, phi, kept):
        _ENTRIES[phi] = None
        return None
    _KNOWN[phi] = kept, found
    where = np.searchsorted(kept, chosen)
    return found[where][:, where]


def _is_gram_of(found: scipy.sparse.csr_array, phi: Dictionary, kept: np.ndarray) -> bool:
    """Tell whether nothing is missing in the Gram matrix of some columns, by one product.

    Where couplings were found by looking at a few columns, others may reach farther; and the two spikes of an
    echo are coupled at one offset, which may look like another one on a grid that repeats.
    """
    x = np.zeros(phi.shape[1], dtype=phi.dtype)
    x[kept] = np.random.default_rng(0).standard_normal(kept.size)
    product = to_numpy(phi.gram(x))[kept]
    wrong = np.linalg.norm(found @ x[kept] - product)
    return bool(wrong <= max(ALL_OF_IT, 100 * np.finfo(phi.dtype).eps) * np.linalg.norm(product))


def sparse_gram(entries: GramEntries, chosen: np.ndarray) -> scipy.sparse.csr_array | None:
    """Return the Gram matrix of some columns; None if it would not be sparse enough.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution
    >>> blur = Dictionary(Convolution([1.0, 2.0], 16), like=np.zeros(1))
    >>> sparse_gram(gram_entries(blur), np.array([3, 4, 9])).toarray().round(9).tolist()
    [[5.0, 2.0, 0.0], [2.0, 5.0, 0.0], [0.0, 0.0, 5.0]]
    """
    shape, offsets, values = entries.shape, entries.offsets, entries.values
    if 2 * len(offsets) * chosen.size > MOST_ENTRIES / LARGEST_SHARE:
        return None
    number = np.full(math.prod(shape), -1)
    number[chosen] = np.arange(chosen.size)
    rows, columns, found = [], [], []
    for some in blocks(chosen.size, max(1, BATCH_NUMBERS // len(offsets))):
        there = np.stack(np.unravel_index(chosen[some], shape), axis=1)[:, None, :] + offsets
        other = number[np.ravel_multi_index(tuple(np.moveaxis(there, 2, 0)), shape, mode="wrap")]
        if not entries.repeats:
            other[((there < 0) | (there >= np.array(shape))).any(axis=2)] = -1
        i, k = np.nonzero(other >= 0)
        rows.append(i + some.start)
        columns.append(other[i, k])
        value = values[k, chosen[some][i] if values.shape[1] > 1 else 0]
        found.append(np.where(entries.once[k], 0.5 * value, value))  # the other half comes from the adjoint
    row, column, value = (np.concatenate(part) for part in (rows, columns, found))
    half = scipy.sparse.coo_array((value, (row, column)), shape=(chosen.size, chosen.size)).tocsr()
    return scipy.sparse.csr_array(half + half.conj().T)
