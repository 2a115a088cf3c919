"""What columns share of what the data say, from small matrices: around tiles of a grid, or around columns.

Both functions take a start to add to: where nothing has moved since, small matrices are not computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from cofem._arrays import conj, squared_modulus
from cofem._blocks import blocks
from cofem._packing import packable
from cofem.linalg.couplings import SIZES, Couplings, StoredCouplings, windows_at_once
from cofem.linalg.factor import factors_above_identity
from cofem.linalg.tiles import Tiles

#: Numbers in factors of tiles that wait to be inverted together: 2 MB.
MOST_WAITING = 2**18
#: Coefficients whose gamma is below this share of its root mean square are not looked at in clusters.
LIVE = 0.1
#: Change of ``c t_j``, in logarithms and times gamma, up to which a cluster need not be computed again: the
#: largest among its members.
HARDLY_MOVED = 0.2


@packable("shares")
class Shares(NamedTuple):
    """Shares of their strengths that columns keep to themselves, and what they were computed for.

    Attributes
    ----------
    known : ndarray of shape (D,)
        ``c t_j`` of each column when its share was computed.
    share : ndarray of shape (D,)
        The shares.
    """

    known: np.ndarray
    share: np.ndarray

    def movement(self, known: np.ndarray) -> np.ndarray:
        """Return how far columns have moved since: changes of ``log(c t_j)``, times gamma; shape (D,).

        Examples
        --------
        >>> import numpy as np
        >>> before = Shares(np.array([1e9, 1e9, 1e-9]), np.ones(3))
        >>> before.movement(np.array([1e9, 2e9, 1e-8])).round(2).tolist()
        [0.0, 0.69, 0.0]
        """
        change = np.abs(np.log(np.maximum(known, 1e-300) / np.maximum(self.known, 1e-300)))
        gamma = np.maximum(known / (1 + known), self.known / (1 + self.known))
        return gamma * change

    def updated(self, known: np.ndarray, shared: np.ndarray, strength: np.ndarray) -> Shares:
        """Take over what was computed: the entries of `shared` that are not NaN."""
        computed = np.isfinite(shared)
        share = shared / np.where(strength > 0, strength, 1.0)
        return Shares(np.where(computed, known, self.known), np.where(computed, share, self.share))


def in_tiles(
    tiles: Tiles, strength: np.ndarray, scale: np.ndarray | float, before: Shares | None = None
) -> np.ndarray:
    """Return what `in_clusters` does, for all places in a tile at once.

    Parameters
    ----------
    tiles : Tiles
        Tiles on the grid.
    strength, scale, before
        As for `in_clusters`.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.linalg.find_couplings import find_couplings
    >>> from cofem.linalg.tiles import tiles_of
    >>> from cofem.operators import Convolution
    >>> from cofem.operators.dictionary import Dictionary
    >>> blur = Dictionary(Convolution([1.0, 2.0, 1.0], 16), like=np.zeros(1))
    >>> tiles = tiles_of(blur, find_couplings(blur))
    >>> Gram = blur.gram(np.eye(16)) / 6
    >>> np.allclose(1 / (1 + in_tiles(tiles, np.ones(16), 1.0)), np.diag(np.linalg.inv(np.eye(16) + Gram)))
    True
    """
    known = scale * strength
    gamma = known / (1 + known)
    typical = np.sqrt(np.mean(gamma**2))
    root = np.sqrt(known)
    scale = np.broadcast_to(scale, strength.shape)
    alike = bool(strength.size) and np.ptp(known) == 0  # as in a first step: all tiles are the same
    if alike:
        stale, most, shared = np.zeros(1, dtype=np.intp), np.full(1, np.inf), strength.copy()
    else:
        stale, shared = np.arange(tiles.starts.size), strength.copy()
        if before is not None:
            stale = stale[tiles.largest_beside(before.movement(known)) > HARDLY_MOVED]
            shared = np.full(strength.size, np.nan)
        members = tiles.members(stale)
        shared[members] = strength[members]
        most = gamma[members].max(axis=1, initial=0)
    parts = [
        (stale[most > typical], tiles.size),
        (stale[(most > LIVE * typical) & (most <= typical)], max(SIZES[0], tiles.size // 2)),
    ]
    width, waiting = tiles.width, 0
    pivots: list[tuple[np.ndarray, np.ndarray]] = []

    def settle() -> None:
        """Invert what is left of the tiles that wait; many at once take less time than block by block."""
        places, factor = (np.concatenate(part) for part in zip(*pivots, strict=True))
        left = inverses_of_lower(factor)
        shared[places] = (1 / np.sum(squared_modulus(left), axis=1) - 1) / scale[places]
        pivots.clear()

    for chosen, size in _in_blocks(parts, width):
        places, matrix = tiles.clusters(chosen, gamma, size)
        roots = root[places]
        matrix = matrix * roots[:, :, None]
        matrix *= roots[:, None, :]
        diagonal = np.arange(matrix.shape[1])
        matrix[:, diagonal, diagonal] += 1
        # What is left of the tile, once the others are taken out.
        # (A copy, or the whole factors would stay.)
        pivots.append((places[:, -width:], factors_above_identity(matrix)[:, -width:, -width:].copy()))
        waiting += chosen.size * width**2
        if waiting > MOST_WAITING:
            settle()
            waiting = 0
    if pivots:
        settle()
    if alike and tiles.starts.size > 1:
        shared[:] = np.mean(shared[tiles.members(stale)])
    return np.clip(shared, 0.0, strength)


def inverses_of_lower(factor: np.ndarray) -> np.ndarray:
    """Return the inverses of lower triangular matrices, shape (n, t, t): row by row, for all at once.

    A third of the time that LAPACK takes for one after the other (200 of 16 x 16).

    Examples
    --------
    >>> import numpy as np
    >>> inverses_of_lower(np.array([[[2.0, 0.0], [1.0, 4.0]]])).tolist()
    [[[0.5, 0.0], [-0.125, 0.25]]]
    """
    inverse = np.zeros_like(factor)
    size = factor.shape[-1]
    diagonal = np.arange(size)
    pivots = 1 / factor[:, diagonal, diagonal]
    inverse[:, diagonal, diagonal] = pivots
    for i in range(1, size):
        row = (factor[:, i, None, :i] @ inverse[:, :i, :i])[:, 0]
        inverse[:, i, :i] = -pivots[:, i, None] * row
    return inverse


def in_clusters(
    couplings: Couplings | None,
    strength: np.ndarray,
    scale: np.ndarray | float,
    before: Shares | None = None,
) -> np.ndarray:
    """Return ``t_j`` with ``s_j = g_j / (1 + c t_j)``: the strength of a column less what others share of it.

    Parameters
    ----------
    couplings : Couplings or None
        Which columns share.
    strength : ndarray of shape (D,)
        ``g_j ||phi_j||^2``.
    scale : float or ndarray of shape (D,)
        c.
    before : Shares, optional
        Shares of an earlier step. Where they still hold, the result is NaN; only stored columns and tiles are
        told apart like that.

    Examples
    --------
    Of two columns that are the same, each is known as if the other were noise:

    >>> import numpy as np
    >>> from cofem.linalg.couplings import StoredCouplings
    >>> same = StoredCouplings(np.array([[1, 0], [0, 1]]), np.ones((2, 2, 2)))
    >>> in_clusters(same, np.ones(2), 1.0)
    array([0.5, 0.5])
    """
    known = scale * strength
    if couplings is None:
        return strength
    gamma = known / (1 + known)
    typical = np.sqrt(np.mean(gamma**2))
    live, shared = gamma > LIVE * typical, strength.copy()
    if before is not None and isinstance(couplings, StoredCouplings):
        stale = couplings.largest_beside(before.movement(known)) > HARDLY_MOVED
        live &= stale
        shared[~stale] = np.nan
    live = np.flatnonzero(live)
    root = np.sqrt(strength)
    scale = np.broadcast_to(scale, strength.shape)
    strong = gamma[live] > typical
    parts = [(live[strong], couplings.size), (live[~strong], couplings.size_of_weak)]
    for chosen, size in _in_blocks(parts):
        places, matrix = couplings.clusters(chosen, gamma, size)
        roots = root[places]
        # In units of the prior: the identity, and what the data say.
        matrix = matrix * (scale[chosen, None, None] * roots[:, :, None] * roots[:, None, :])
        diagonal = np.arange(matrix.shape[1])
        matrix[:, diagonal, diagonal] += 1
        # The last pivot is what is left of the column that comes last, once the others are taken out.
        last = factors_above_identity(matrix)[:, -1, -1]
        shared[chosen] = ((conj(last) * last).real - 1) / scale[chosen]
    return np.clip(shared, 0.0, strength)


def _in_blocks(parts: Iterable[tuple[np.ndarray, int]], more: int = 0) -> Iterator[tuple[np.ndarray, int]]:
    for chosen, size in parts:
        for some in blocks(chosen.size, windows_at_once(size + more)):
            yield chosen[some], size
