r"""The diagonal of the inverse of a matrix with few diagonals, on a line or on a ring.

Blocks of consecutive places are coupled with the next block only, but for the last one, which closes the
ring. The chain of all others is eliminated from its beginning, and the inverse is found from its end
(Takahashi's recursion, block by block); the last block is a separator. Time :math:`O(D L^2)`, memory
:math:`O(D L)`, for L diagonals beside the main one.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from cofem.linalg.factor import product, solve_lower

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
    own, below = _blocks(bands, count, width)
    last = _entries(bands, np.array([chain]), np.array([chain]), size - chain, size - chain)[0]
    # The last block is coupled with both ends of the chain.
    ends = _entries(bands, starts[[0, -1]], np.array([chain, chain]), width, size - chain)

    inverses, steps = np.empty_like(own), np.empty_like(below)
    eliminated, is_ring = _Eliminated(own[0]), bool(ends[0].any())
    coupling = ends[0]  # with the last block
    for i in range(count):
        inverses[i] = eliminated.inverse
        if is_ring or i == count - 1:
            last = eliminated.what_is_left(last, coupling, coupling)
        if i < count - 1:
            up = np.conj(below[i]).T
            steps[i] = product(below[i], inverses[i])
            end = ends[1] if i == count - 2 else np.zeros_like(coupling)
            coupling = eliminated.what_is_left(end, up, coupling) if is_ring else end
            eliminated = _Eliminated(eliminated.what_is_left(own[i + 1], up, up))
    rest = _Eliminated(last).inverse
    if not is_ring:
        return _on_a_line(inverses, steps, ends[1], rest)
    images = np.zeros((count, width, size - chain), dtype=own.dtype)
    images[0] += ends[0]
    images[-1] += ends[1]
    for i in range(1, count):
        images[i] -= product(steps[i - 1], images[i - 1])
    inner = inverses[-1]
    images[-1] = product(inner, images[-1])
    diagonal = np.empty((count, width))
    diagonal[-1] = np.diagonal(inner).real
    for i in range(count - 2, -1, -1):
        inner = inverses[i] + _around(steps[i], inner)
        images[i] = product(inverses[i], images[i]) - product(steps[i], images[i + 1], adjoint=True)
        diagonal[i] = np.diagonal(inner).real
    images = images.reshape(chain, -1)
    found = diagonal.ravel() + np.einsum("ij,ij->i", product(images, rest), np.conj(images)).real
    return np.concatenate([found, np.diagonal(rest).real])


def _on_a_line(inverses: np.ndarray, steps: np.ndarray, end: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return the diagonal where the ring is open: the last block, of inverse `rest`, is one of the chain."""
    coupling = product(inverses[-1], end)
    inner = inverses[-1] + product(coupling, product(rest, np.conj(coupling).T))
    found = [np.diagonal(rest).real, np.diagonal(inner).real]
    for i in range(len(steps) - 1, -1, -1):
        inner = inverses[i] + _around(steps[i], inner)
        found.append(np.diagonal(inner).real)
    return np.concatenate(found[::-1])


def _around(step: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Return ``step^H inner step``."""
    return product(step, product(inner, step), adjoint=True)


def _blocks(bands: np.ndarray, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks on the diagonal, shape (n, width, width), and those below them, one fewer."""
    reach = len(bands) - 1
    skewed = np.zeros((count, width, 2 * width + 1), dtype=bands.dtype)
    skewed[:, :, : reach + 1] = bands[:, : count * width].T.reshape(count, width, reach + 1)
    # Read in lines that are one shorter, column b of a block moves down by b.
    columns = skewed.reshape(count, -1)[:, : 2 * width * width].reshape(count, width, 2 * width)
    lower = np.swapaxes(columns[:, :, :width], 1, 2)
    own = lower + np.conj(np.swapaxes(np.tril(lower, -1), 1, 2))
    return own, np.ascontiguousarray(np.swapaxes(columns[:-1, :, width:], 1, 2))


class _Eliminated:
    """A block that is eliminated: a positive definite matrix, its factor and its inverse.

    Rounding may have made it an indefinite one, which has no factor.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        factor, failed = lapack.get_lapack_funcs("potrf", (matrix,))(matrix, lower=1)
        self.factor = None if failed else factor
        if failed:
            inverse = np.linalg.inv(matrix)
            self.inverse = np.asarray((inverse + np.conj(inverse).T) / 2)
            return
        inverse, _ = lapack.get_lapack_funcs("potri", (factor,))(factor, lower=1)
        inverse = np.tril(inverse)
        self.inverse = np.asarray(inverse + np.conj(np.tril(inverse, -1)).T)

    def what_is_left(self, block: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return ``block - left^H inverse right``.

        By the factor, whose condition is the root of the matrix's: by the inverse, variances of strong
        signals were off by a hundredth where samples are missing.
        """
        if self.factor is None:
            return block - product(left, product(self.inverse, right), adjoint=True)
        half = solve_lower(self.factor, np.ascontiguousarray(left))
        other = half if right is left else solve_lower(self.factor, np.ascontiguousarray(right))
        return block - product(half, other, adjoint=True)


def _entries(bands: np.ndarray, rows: np.ndarray, columns: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return blocks of the matrix, shape (n, height, width), that begin at some rows and columns."""
    reach, size = len(bands) - 1, bands.shape[1]
    i = rows[:, None, None] + np.arange(height)[:, None]
    j = columns[:, None, None] + np.arange(width)
    down, up = (i - j) % size, (j - i) % size
    lower = np.where(down <= reach, bands[np.minimum(down, reach), j], 0)
    upper = np.where((up <= reach) & (up > 0), np.conj(bands[np.minimum(up, reach), i]), 0)
    return lower + upper
