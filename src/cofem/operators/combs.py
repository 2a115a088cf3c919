"""Which columns of an operator nothing is known about are coupled: found by asking it.

Many dictionaries of other libraries smear every coefficient over its neighbours: blurs, filters, kernels
that vary slowly. A few columns of ``Phi^H Phi`` tell whether that is so, and how far it reaches. All of its
entries near the diagonal then come from *combs*: vectors of ones that are further apart than columns are
coupled.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cofem._arrays import to_numpy
from cofem._blocks import blocks, vectors_at_once
from cofem.operators.circulant import CirculantGram
from cofem.operators.transforms import dispatch

if TYPE_CHECKING:
    from cofem.operators.base import Operator
    from cofem.operators.structure import Structure

#: Columns that are looked at, and the fewest of an operator that is.
LOOKED_AT, LEAST_COLUMNS = 12, 512
#: How far couplings may reach along each axis, by the number of axes: combs for all of them take products as
#: many as there are places within that reach.
FARTHEST = {1: 128, 2: 12, 3: 4}
#: Correlation with a neighbour from which on a column is coupled; energy of the other columns, relative to a
#: column's own, that may lie farther away than that.
COUPLED, ASTRAY = 0.1, 0.01
#: In roundings of the operator's precision: entries, relative to the diagonal, that are none; and the
#: difference between the products of a random vector with the operator and with a circular convolution.
ROUNDING, EXACT = 100, 1000
#: Differences between columns, relative to the diagonal, that do not matter.
SAME = 1e-3
#: Most products for all combs.
MOST_COMBS = 1024


def nothing_is_known(operator: Structure) -> bool:
    """Tell whether nothing is known about an operator that would say how its columns are coupled.

    Examples
    --------
    >>> from cofem.operators import DCT, Mask
    >>> nothing_is_known(Mask([0, 5], 1024) @ DCT(1024).T)
    False
    """
    facts = operator.facts
    return (
        operator.device_array is None
        and facts.row_gram is None
        and facts.column_gram is None
        and not facts.one_per_row
        and not facts.one_per_column
        and operator.groups is None
        and (not operator.stored_entries or operator.sparse_matrix() is not None)
        and operator.filter_bank() is None
        and operator.spectral_atoms() is None
    )


def columns_are_shifts(operator: Operator) -> bool:
    """Tell whether each column is the one before it, one row further down; by some of them.

    Looked at are matrices that are stored, and operators that nothing is known about.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.linalg import toeplitz
    >>> from cofem.operators import Dense
    >>> decay = np.r_[0.5 ** np.arange(5), np.zeros(15)]
    >>> columns_are_shifts(Dense(toeplitz(decay, np.zeros(20))))
    True
    >>> columns_are_shifts(Dense(np.random.default_rng(0).standard_normal((20, 20))))
    False
    """
    n_rows, n_columns = operator.shape
    looked_at = operator.stored_entries or nothing_is_known(operator)
    if not looked_at or min(n_rows, n_columns) < LOOKED_AT:
        return False
    chosen = np.linspace(0, n_columns - 2, LOOKED_AT).astype(int)
    before, after = (to_numpy(operator.columns(which)) for which in (chosen, chosen + 1))
    rounding = ROUNDING * _eps(operator) * np.abs(before).max()
    # One number in all columns is a constant, which says nothing about places.
    differ = np.abs(before[:, 1:] - before[:, :-1]).max() > rounding
    return bool(differ and np.abs(after[:, 1:] - before[:, :-1]).max() <= rounding)


def find_local_gram(operator: Structure) -> CirculantGram | None:
    """Look at a few columns of ``Phi^H Phi``; None where they are not local.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.ndimage import gaussian_filter1d
    >>> from scipy.sparse.linalg import LinearOperator
    >>> from cofem.operators import as_operator
    >>> def smooth(x):
    ...     return gaussian_filter1d(x, 1.5, mode="constant")
    >>> found = find_local_gram(as_operator(LinearOperator((600, 600), smooth, smooth, dtype=float)))
    >>> found.reach, found.repeats, found.is_exact
    ((12,), False, False)
    >>> found.table()[:3].round(3)
    array([0.188, 0.168, 0.121])
    """
    n_columns = operator.shape[1]
    if n_columns < LEAST_COLUMNS:
        return None
    chosen = np.sort(np.random.default_rng(0).choice(n_columns, LOOKED_AT, replace=False))
    units = np.zeros((LOOKED_AT, n_columns), dtype=operator.dtype)
    units[np.arange(LOOKED_AT), chosen] = 1
    found = to_numpy(operator.gram(units))
    own = found[np.arange(LOOKED_AT), chosen].real
    alive = own > 1e-12 * own.max()
    if not np.isfinite(found).all() or np.count_nonzero(alive) < LOOKED_AT // 2:
        return None
    found, own, chosen = found[alive], own[alive], chosen[alive]
    known = operator.column_shape
    for shape in [known] if known else _possible_grids(found / own[:, None], chosen):
        local = _on_one_grid(operator, found, chosen, shape)
        if local is not None:
            return local
    return None


def _possible_grids(found: np.ndarray, chosen: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Yield grids that columns may be places on: rows as long as a coupling is far, or one line.

    Examples
    --------
    A picture of 4 x 6 pixels, each of which is like those above and below it:

    >>> import numpy as np
    >>> seen = np.eye(24) + np.eye(24, k=6) + np.eye(24, k=-6)
    >>> list(_possible_grids(seen[[8, 9]], np.array([8, 9])))
    [(4, 6), (24,)]
    """
    size = found.shape[1]
    moduli = [np.abs(np.roll(row, -place)) for row, place in zip(found, chosen, strict=True)]
    typical = np.median(moduli, axis=0)
    for width in range(2, size // 2 + 1):
        beside = max(typical[width - 1], typical[width + 1])
        if size % width == 0 and typical[width] > max(COUPLED, beside):
            yield (size // width, width)
    yield (size,)


def _on_one_grid(
    operator: Structure, found: np.ndarray, chosen: np.ndarray, shape: tuple[int, ...]
) -> CirculantGram | None:
    """Return how columns are coupled on a grid, from a few of the Gram matrix; None if that is too far."""
    limit = FARTHEST.get(len(shape))
    if limit is None or min(shape) < 2:
        return None
    rounding, is_real = ROUNDING * _eps(operator), not operator.is_complex
    own = found[np.arange(len(chosen)), chosen].real
    # As seen from each of them, on a grid that repeats.
    places = np.stack(np.unravel_index(chosen, shape), axis=1)
    axes = tuple(range(len(shape)))
    seen = np.stack([np.roll(g.reshape(shape), -place, axes) for g, place in zip(found, places, strict=True)])
    if np.abs(seen - seen[0]).max() <= SAME * own.max():
        mean = np.mean(seen, axis=0)
        circulant = CirculantGram(shape, _eigenvalues(mean, is_real), is_real)
        if _is_exactly(operator, circulant):
            reach = _reach(np.abs(mean) / own.max(), rounding)
            return replace(circulant, reach=reach) if any(reach) else None
    own = own.reshape(-1, *(1 for _ in shape))
    around = _around(seen / own, places, limit, rounding)
    if around is None:
        return None
    window, reach = around
    inside = ~np.isnan(window).any(axis=tuple(range(1, window.ndim)))
    typical = (window * own)[inside] if inside.any() else window * own
    mean = np.nan_to_num(np.nanmean(typical, axis=0))
    mean = (mean + np.conj(np.flip(mean))) / 2
    return CirculantGram(
        shape,
        _eigenvalues(_on_grid(mean, shape), is_real),
        is_real,
        is_exact=False,
        repeats=_repeats(operator, shape, rounding),
        reach=reach,
    )


def _repeats(operator: Structure, shape: tuple[int, ...], rounding: float) -> bool:
    """Tell whether the first place of a grid is coupled with the last ones along an axis."""
    first = np.zeros(operator.shape[1], dtype=operator.dtype)
    first[0] = 1
    found = np.abs(to_numpy(operator.gram(first))).reshape(shape)
    ends = [np.take(found, range(n - n // 4, n), axis).max() for axis, n in enumerate(shape)]
    return bool(max(ends) > rounding * found.flat[0])


def _around(
    seen: np.ndarray, places: np.ndarray, limit: int, rounding: float
) -> tuple[np.ndarray, tuple[int, ...]] | None:
    """Return what lies around columns, NaN beyond the grid, and how far it reaches; None if that is too far.

    Parameters
    ----------
    seen : ndarray of shape (n, *shape)
        Columns of the Gram matrix as seen from their own places, relative to what is there.
    places : ndarray of int, shape (n, number of axes)
        The places.
    limit : int
        How far to look.
    rounding : float
        What is none.
    """
    shape = seen.shape[1:]
    sides = np.array([min(limit, (side - 1) // 2) for side in shape])
    steps = [np.arange(-side, side + 1) for side in sides]
    every = np.arange(len(seen))
    window = seen[np.ix_(every, *steps)]
    for out, place in zip(window, places, strict=True):
        inside = [(at + step >= 0) & (at + step < n) for at, step, n in zip(place, steps, shape, strict=True)]
        out[~functools.reduce(np.logical_and.outer, inside)] = np.nan
    axes = tuple(range(1, window.ndim))
    moduli = np.abs(window)
    astray = np.sum(np.abs(seen) ** 2, axis=axes) - np.nansum(moduli**2, axis=axes)
    beside = moduli.copy()
    beside[(slice(None), *sides)] = 0
    # At the ends of a grid that repeats, part of what is near lies on the other side: hence the medians.
    if np.median(astray) > ASTRAY or np.median(np.nanmax(beside, axis=axes)) < COUPLED:
        return None
    reach = _reach(_on_grid(np.nanmax(moduli, axis=0), shape), rounding)
    cut = (slice(side - r, side + r + 1) for side, r in zip(sides, reach, strict=True))
    return window[(slice(None), *cut)], reach


def _reach(moduli: np.ndarray, rounding: float) -> tuple[int, ...]:
    """Return how far correlations reach along each axis of a grid that repeats."""
    shape = np.array(moduli.shape)
    steps = np.argwhere(moduli > rounding)
    return tuple(int(r) for r in np.minimum(steps, shape - steps).max(axis=0))


def _on_grid(window: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a window around the first place of a grid that repeats."""
    table = np.zeros(shape, dtype=window.dtype)
    table[np.ix_(*((np.arange(m) - m // 2) % n for m, n in zip(window.shape, shape, strict=True)))] = window
    return table


def _eigenvalues(table: np.ndarray, is_real: bool) -> np.ndarray:
    """Return the spectrum of a convolution that is meant to be Hermitian and not negative."""
    table = table.astype(np.float64 if is_real else np.complex128)
    return np.maximum(dispatch.padded_spectrum(table, table.shape, real=is_real).real, 0.0)


def _is_exactly(operator: Structure, circulant: CirculantGram) -> bool:
    """Tell whether ``Phi^H Phi`` is a circular convolution, by its product with a random vector."""
    x = np.random.default_rng(1).standard_normal(operator.shape[1]).astype(operator.dtype)
    shape, is_real = circulant.shape, circulant.is_real
    spectrum = dispatch.padded_spectrum(x.reshape(shape), shape, real=is_real)
    filtered = dispatch.from_spectrum(spectrum * circulant.eigenvalues, shape, real=is_real)
    product = to_numpy(operator.gram(x))
    return bool(
        np.linalg.norm(product - filtered.ravel()) <= EXACT * _eps(operator) * np.linalg.norm(product)
    )


def _eps(operator: Structure) -> float:
    return float(np.finfo(operator.dtype).eps)


def comb_gram(
    operator: Structure, local: CirculantGram, offsets: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """Return ``<phi_j, W phi_{j + offset}>`` for all columns j, by combs; None where that takes too many.

    Parameters
    ----------
    operator : Operator
        Phi, of shape (N, D).
    local : CirculantGram
        What `find_local_gram` found, which knows how far columns are coupled.
    offsets : ndarray of int, shape (m, number of axes)
        Offsets, on a grid that repeats.
    weights : ndarray of shape (N,)
        The diagonal of W.

    Returns
    -------
    ndarray of shape (m, D) or None

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution
    >>> Phi = Convolution([1.0, 2.0], 512, causal=True)
    >>> local = find_local_gram(Phi)
    >>> comb_gram(Phi, local, np.array([[0], [1], [9]]), np.ones(512))[:, 5].round(9).tolist()
    [5.0, 2.0, 0.0]
    """
    shape = local.shape
    assert local.reach is not None
    reach = np.array(local.reach)
    near = np.flatnonzero((np.abs(offsets) <= reach).all(axis=1))
    steps = offsets[near]
    farthest = np.abs(steps).max(axis=0, initial=0)
    starts = [_comb_starts(n, r + f + 1) for n, r, f in zip(shape, reach, farthest, strict=True)]
    combs = list(itertools.product(*starts))
    if len(combs) > MOST_COMBS:
        return None
    values = np.zeros((len(offsets), operator.shape[1]), dtype=operator.dtype)
    for some in blocks(len(combs), vectors_at_once(max(operator.shape))):
        teeth = [
            np.ravel_multi_index(np.meshgrid(*comb, indexing="ij"), shape).ravel() for comb in combs[some]
        ]
        x = np.zeros((len(teeth), operator.shape[1]), dtype=operator.dtype)
        for comb, places in zip(x, teeth, strict=True):
            comb[places] = 1
        images = to_numpy(operator.forward(x))
        products = to_numpy(operator.adjoint(images * weights.astype(images.real.dtype)))
        for product, places in zip(products, teeth, strict=True):
            there = np.stack(np.unravel_index(places, shape), axis=1)[:, None, :] + steps
            there = np.ravel_multi_index(tuple(np.moveaxis(there, 2, 0)), shape, mode="wrap")
            # The product at j + offset is <phi_{j + offset}, phi_j>.
            values[near[:, None], places] = np.conj(product[there]).T
    return values


def _comb_starts(length: int, period: int) -> list[np.ndarray]:
    """Return combs along one axis, teeth at least a period apart, also across its ends; all places in turn.

    Examples
    --------
    >>> [comb.tolist() for comb in _comb_starts(7, 3)]
    [[0, 3], [1, 4], [2, 5], [6]]
    """
    ends = np.arange(max(length // period, 1) + 1) * length // max(length // period, 1)
    count = int(np.max(np.diff(ends)))
    return [ends[:-1][ends[:-1] + i < ends[1:]] + i for i in range(count)]
