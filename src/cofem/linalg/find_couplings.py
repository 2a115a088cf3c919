"""How the couplings of columns are found.

Two kinds of dictionary can be asked without forming the Gram matrix:

- those that are like a convolution: the correlation is a function of the offset between two places;
- those that store their columns: pairs are found by their products with a few random vectors, and computed.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from cofem._arrays import conj, to_numpy
from cofem._blocks import blocks
from cofem.linalg.couplings import (
    CANDIDATES,
    CLOSE,
    COUPLED,
    SIZES,
    BlockGridCouplings,
    Couplings,
    GridCouplings,
    LocalCouplings,
    StoredCouplings,
)
from cofem.operators.circulant import CirculantGram
from cofem.operators.dictionary import Dictionary
from cofem.operators.entries import lookup
from cofem.operators.filters import BlockCirculantGram

#: Random vectors that pairs of stored columns are found by, and the correlation that is looked for: 3.6
#: standard errors of what they say.
SKETCH, FOUND = 64, 0.45
#: Correlation of two columns that is plain to see: on grids `self_consistent` failed wherever it was higher.
#: And for stored columns, with the random vectors for it; by chance one in 10^8 pairs looks like that.
PLAIN, PLAIN_STORED, FEW = 0.5, 0.8, 32
#: Correlation of stored columns that counts, once it is known.
STORED = 0.3
#: Most correlations that are kept for columns on a grid whose surroundings differ.
MOST_STORED = 2**24
#: Most columns that are compared with all others, and how many at a time.
MOST_COMPARED, COMPARED_AT_ONCE = 2**16, 128
#: Columns that one is compared with in the end: the most alike by random vectors. Where all columns are alike
#: (random walks, 700 x 3000), all pairs took 53 of the 60 seconds of a fit.
MOST_ALIKE, PAIRS_AT_ONCE = 32, 1024


def like_convolution(phi: Dictionary) -> bool:
    """Tell whether columns are coupled as places on a grid are."""
    return phi.circulant_gram() is not None or phi.block_circulant_gram() is not None


def has_couplings(phi: Dictionary) -> bool:
    """Tell whether couplings are to be had at a bounded cost."""
    if like_convolution(phi):
        return True
    return phi.device_array is None and bool(phi.stored_entries) and phi.shape[1] <= MOST_COMPARED


def plainly_coupled(phi: Dictionary) -> bool:
    """Tell, at little cost, whether some columns are so much alike that they must be looked at together.

    A mean over all coefficients would not show it where these are few: of 1200 stored columns 60 had a near
    copy, and the fit ended with an error of 2.5 in place of 0.27.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution, Dense
    >>> columns = np.random.default_rng(0).standard_normal((64, 128))
    >>> twice = np.concatenate([columns, columns[:, :5]], axis=1)
    >>> kinds = Convolution([1.0, 2.0, 1.0], 16), Dense(columns), Dense(twice)
    >>> [plainly_coupled(Dictionary(Phi, like=np.zeros(1))) for Phi in kinds]
    [True, False, True]
    """
    if not has_couplings(phi):
        return False
    circulant = phi.circulant_gram()
    if circulant is not None:
        table = np.abs(circulant.table()).ravel()
        return table.size > 1 and bool(table[1:].max() > PLAIN * table[0])
    if like_convolution(phi):
        return False
    pairs = _pairs_alike(phi, FEW, PLAIN_STORED)
    some = (pairs[part] for part in blocks(len(pairs), PAIRS_AT_ONCE))
    return any(np.any(np.abs(_cosines(phi, part)) > PLAIN_STORED) for part in some)


#: What was found for dictionaries in use: it depends on nothing else, and takes a while to find.
_KNOWN: WeakKeyDictionary[Dictionary, Couplings | None] = WeakKeyDictionary()


def find_couplings(phi: Dictionary) -> Couplings | None:
    """Find the couplings of a dictionary; None where there are none to speak of.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution
    >>> blur = Dictionary(Convolution([1.0, 2.0, 1.0], 16), like=np.zeros(1))
    >>> found = find_couplings(blur)
    >>> places, correlations = found.clusters(np.array([5]), np.ones(16), 8)
    >>> sorted(places[0].tolist()), places[0, -1].item()
    ([3, 4, 5, 6, 7], 5)
    """
    if phi not in _KNOWN:
        _KNOWN[phi] = _find(phi)
    return _KNOWN[phi]


def _find(phi: Dictionary) -> Couplings | None:
    circulant = phi.circulant_gram()
    if circulant is not None:
        found = _on_grid(circulant)
        if found is None or circulant.is_exact or phi.on_average or phi.device_array is not None:
            return found
        return _where_data_are_missing(phi, circulant, found) or found
    several = phi.block_circulant_gram()
    return _between_stored(phi) if several is None else _between_blocks(several)


def _on_grid(circulant: CirculantGram) -> GridCouplings | None:
    table = circulant.table()
    own = float(table.flat[0].real)
    if not own > 0:
        return None
    table = table / own
    moduli = np.abs(table)
    moduli.flat[0] = 0
    size = _size_for(1 + int(np.count_nonzero(moduli > CLOSE)))
    most = min(CANDIDATES * size, int(np.count_nonzero(moduli > COUPLED)))
    if not most:
        return None
    offsets = np.append(np.argsort(moduli, axis=None)[::-1][:most], 0)
    return GridCouplings(circulant.shape, offsets, lookup(table, circulant.shape, offsets[None])[0], size)


def _where_data_are_missing(
    phi: Dictionary, circulant: CirculantGram, average: GridCouplings
) -> LocalCouplings | None:
    """Compute the couplings of every column at the offsets of those that are the same everywhere."""
    shape = np.array(circulant.shape)
    for most in (CANDIDATES * average.size, 2 * average.size, average.size):
        offsets = np.append(average.offsets[:-1][: most - 1], 0)
        steps = np.stack(np.unravel_index(offsets, circulant.shape), axis=1)
        steps = np.where(steps > shape // 2, steps - shape, steps)
        differences = (steps[None, :] - steps[:, None]).reshape(-1, shape.size)
        distinct, between = np.unique(differences, axis=0, return_inverse=True)
        if len(distinct) * phi.shape[1] <= MOST_STORED:
            break
    else:
        return None
    gram = phi.offset_gram(distinct)
    if gram is None:
        return None
    own = gram[np.flatnonzero((distinct == 0).all(axis=1))[0]].real
    roots = np.sqrt(np.where(own > 1e-12 * own.max(), own, np.inf))  # columns of zeros are alone
    for row, step in zip(gram, distinct, strict=True):
        there = np.roll(roots.reshape(circulant.shape), -step, axis=tuple(range(shape.size)))
        row /= roots * there.ravel()
    gram[np.flatnonzero((distinct == 0).all(axis=1))[0]] = 1
    return LocalCouplings(
        circulant.shape, steps, between.reshape(len(steps), -1), gram, circulant.repeats, average.size
    )


def _between_blocks(circulant: BlockCirculantGram) -> BlockGridCouplings | None:
    tables = circulant.tables()
    q, grid = circulant.n_blocks, tables[0, 0].size
    own = np.sqrt([tables[a, a].flat[0].real for a in range(q)])
    if not own.min() > 0:
        return None
    # <phi_i, phi_j> by the offset i - j, for i in array a and j in array b: [b, a * grid + offset].
    lines = (tables / (own[:, None] * own).reshape(q, q, *(1 for _ in circulant.shape))).swapaxes(0, 1)
    lines = lines.reshape(q, q * grid)
    moduli = np.abs(lines)
    moduli[np.arange(q), grid * np.arange(q)] = 0
    size = _size_for(1 + int(np.count_nonzero(moduli > CLOSE, axis=1).max()))
    blocks, offsets, correlations = [], [], []
    for b in range(q):
        most = min(CANDIDATES * size, int(np.count_nonzero(moduli[b] > COUPLED)))
        coupled = np.append(np.argsort(moduli[b])[::-1][:most], grid * b)
        blocks.append(coupled // grid)
        offsets.append(coupled % grid)
        apart = np.zeros((coupled.size, coupled.size), dtype=np.intp)
        for here, period in zip(np.unravel_index(offsets[-1], circulant.shape), circulant.shape, strict=True):
            apart *= period
            apart += (here[:, None] - here) % period
        correlations.append(lines[blocks[-1], (grid * blocks[-1])[:, None] + apart])
    if max(len(found) for found in offsets) < 2:
        return None
    return BlockGridCouplings(circulant.shape, tuple(blocks), tuple(offsets), tuple(correlations), size)


def _size_for(count: int) -> int:
    return next((size for size in SIZES if size >= count), SIZES[-1])


def _between_stored(phi: Dictionary) -> StoredCouplings | None:
    n_columns = phi.shape[1]
    pairs = _pairs_alike(phi, SKETCH, FOUND)
    cosines = np.abs(_cosines(phi, pairs))
    pairs, cosines = pairs[cosines > STORED], cosines[cosines > STORED]
    if not len(pairs):
        return None
    # Each pair from both ends, by column and then by coupling.
    ends, others = np.concatenate([pairs, pairs[:, ::-1]]).T
    order = np.lexsort((-np.concatenate([cosines, cosines]), ends))
    ends, others = ends[order], others[order]
    counts = np.bincount(ends, minlength=n_columns)
    size = _size_for(1 + int(np.percentile(counts[counts > 0], 90)))
    size = min(size, SIZES[1])
    rank = np.arange(ends.size) - (np.cumsum(counts) - counts)[ends]
    near = rank < size - 1
    places = np.repeat(np.arange(n_columns)[:, None], size, axis=1)
    places[ends[near], rank[near]] = others[near]
    return StoredCouplings(places, _correlations(phi, places))


def _pairs_alike(phi: Dictionary, count: int, above: float) -> np.ndarray:
    """Return pairs of columns that `count` random vectors hold for alike, shape (K, 2), in order.

    The first of a pair is before the second. If they are very many, those that either end is most alike.
    """
    n_rows, n_columns = phi.shape
    vectors = np.random.default_rng(0).standard_normal((count, n_rows)).astype(phi.dtype)
    sketch = to_numpy(phi.adjoint(vectors))
    norms = np.linalg.norm(sketch, axis=0)
    sketch = sketch / np.where(norms > 0, norms, 1)
    sketch = sketch.astype(np.complex64 if np.iscomplexobj(sketch) else np.float32, copy=False)
    pairs, n_pairs = [np.zeros((0, 2), dtype=np.intp)], 0
    for block in blocks(n_columns, COMPARED_AT_ONCE):
        found = conj(sketch[:, block]).T @ sketch[:, block.start :]
        found = np.abs(found) if np.iscomplexobj(found) else found
        np.fill_diagonal(found, 0)  # a column and itself
        if max(found.max(), -found.min()) <= above:  # a third of the time that looking for them takes
            continue
        i, j = np.nonzero(np.abs(found) > above)
        pairs.append(block.start + np.stack([i[i < j], j[i < j]], axis=1))
        n_pairs += len(pairs[-1])
        if n_pairs > MOST_ALIKE * n_columns:
            return _pairs_most_alike(sketch, above)
    return np.concatenate(pairs)


def _pairs_most_alike(sketch: np.ndarray, above: float) -> np.ndarray:
    """Return each column's pairs with the `MOST_ALIKE` others that are most like it, as `_pairs_alike`."""
    n_columns = sketch.shape[1]
    codes = []
    for block in blocks(n_columns, COMPARED_AT_ONCE):
        found = np.abs(conj(sketch[:, block]).T @ sketch)
        own = np.arange(block.start, block.stop)
        found[own - block.start, own] = 0
        others = np.argpartition(-found, MOST_ALIKE, axis=1)[:, :MOST_ALIKE]
        own, others = np.broadcast_to(own[:, None], others.shape), others
        alike = np.take_along_axis(found, others, axis=1) > above
        own, others = own[alike], others[alike]
        codes.append(np.minimum(own, others) * n_columns + np.maximum(own, others))
    return np.stack(np.divmod(np.unique(np.concatenate(codes)), n_columns), axis=1)


def _cosines(phi: Dictionary, pairs: np.ndarray) -> np.ndarray:
    """Return ``<phi_i, phi_j>`` of pairs, shape (K, 2), relative to their norms."""
    return _correlated(phi, pairs)[:, 0, 1] if len(pairs) else np.zeros(0, dtype=phi.dtype)


def _correlated(phi: Dictionary, places: np.ndarray) -> np.ndarray:
    """Return the correlations in each of some clusters of columns, shape (K, b) -> (K, b, b)."""
    gram = to_numpy(phi.local_gram(places))
    power = np.diagonal(gram, axis1=1, axis2=2).real
    return gram / np.sqrt(np.maximum(power[:, :, None] * power[:, None, :], np.finfo(power.dtype).tiny))


def _correlations(phi: Dictionary, places: np.ndarray) -> np.ndarray:
    """Return the correlations in the cluster around each column, that column last, shape (D, b, b)."""
    size = places.shape[1]
    found = np.zeros((len(places), size, size), dtype=phi.dtype)
    # A place that fills up a small cluster is the column itself, and has its correlations only once.
    fills = places == places[:, -1:]
    fills[:, -1] = False
    coupled = np.flatnonzero(~fills[:, :-1].all(axis=1))
    if coupled.size:
        found[coupled] = _correlated(phi, places[coupled])
    found[fills[:, :, None] | fills[:, None, :]] = 0
    found[:, np.arange(size), np.arange(size)] = 1
    return found
