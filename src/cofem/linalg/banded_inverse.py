r"""The diagonal of the inverse of a matrix with few diagonals, on a line or on a ring.

Blocks of consecutive places are coupled with the next block only, but for the last one, which closes the
ring. The chain of all others is eliminated from its beginning, and the inverse is found from its end
(Takahashi's recursion, block by block); the last block is a separator. Time :math:`O(D L^2)`, memory
:math:`O(D L)`, for L diagonals beside the main one.
"""

from __future__ import annotations

import numpy as np

#: Fewest places in a block: smaller ones take longer to go through than they save.
LEAST_BLOCK = 32


def inverse_diagonal(bands: np.ndarray) -> np.ndarray:
    """Return the diagonal of the inverse of a positive definite matrix.

    Parameters
    ----------
    bands : ndarray of shape (L + 1, D)
        ``M[(j + d) % D, j]`` in row d; ``D >= 3 max(L, 32)``.

    Returns
    -------
    ndarray of shape (D,)

    Examples
    --------
    >>> import numpy as np
    >>> bands = np.array([np.full(120, 2.5), np.full(120, -1.0)])  # each is coupled with the next, on a ring
    >>> M = 2.5 * np.eye(120) - np.eye(120, k=1) - np.eye(120, k=-1)
    >>> M[0, -1] = M[-1, 0] = -1
    >>> np.allclose(inverse_diagonal(bands), np.diag(np.linalg.inv(M)))
    True
    """
    reach, size = len(bands) - 1, bands.shape[1]
    width = max(reach, LEAST_BLOCK)
    count = size // width - 1
    chain = count * width
    starts = width * np.arange(count)
    own = _entries(bands, starts, starts, width, width)
    below = _entries(bands, starts[1:], starts[:-1], width, width)
    last = _entries(bands, np.array([chain]), np.array([chain]), size - chain, size - chain)[0]
    # The last block is coupled with both ends of the chain.
    ends = _entries(bands, starts[[0, -1]], np.array([chain, chain]), width, size - chain)

    inverses = np.empty_like(own)
    steps = np.empty_like(below)
    images = np.empty((count, width, size - chain), dtype=own.dtype)
    left = own[0]
    for i in range(count):
        inverses[i] = _inverse(left)
        images[i] = (ends[0] if i == 0 else 0) + (ends[1] if i == count - 1 else 0)
        if i:
            images[i] -= steps[i - 1] @ images[i - 1]
        if i < count - 1:
            steps[i] = below[i] @ inverses[i]
            left = own[i + 1] - steps[i] @ np.conj(below[i]).T
    inner = inverses[-1]
    images[-1] = inner @ images[-1]
    diagonal = np.empty((count, width))
    diagonal[-1] = np.diagonal(inner).real
    for i in range(count - 2, -1, -1):
        back = np.conj(steps[i]).T
        inner = inverses[i] + back @ inner @ steps[i]
        images[i] = inverses[i] @ images[i] - back @ images[i + 1]
        diagonal[i] = np.diagonal(inner).real
    coupling = np.conj(ends[0]).T @ images[0] + np.conj(ends[1]).T @ images[-1]
    rest = _inverse(last - coupling)
    images = images.reshape(chain, -1)
    found = diagonal.ravel() + np.einsum("ij,ij->i", images @ rest, np.conj(images)).real
    return np.concatenate([found, np.diagonal(rest).real])


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a Hermitian matrix, as exactly Hermitian."""
    inverse = np.linalg.inv(matrix)
    return (inverse + np.conj(inverse).T) / 2


def _entries(bands: np.ndarray, rows: np.ndarray, columns: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return blocks of the matrix, shape (n, height, width), that begin at some rows and columns."""
    reach, size = len(bands) - 1, bands.shape[1]
    i = rows[:, None, None] + np.arange(height)[:, None]
    j = columns[:, None, None] + np.arange(width)
    down, up = (i - j) % size, (j - i) % size
    lower = np.where(down <= reach, bands[np.minimum(down, reach), j], 0)
    upper = np.where((up <= reach) & (up > 0), np.conj(bands[np.minimum(up, reach), i]), 0)
    return lower + upper
