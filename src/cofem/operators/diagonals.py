"""Symmetric matrices with few diagonals."""

from __future__ import annotations

import numpy as np
import scipy.sparse


def symmetric(above: dict[int, np.ndarray]) -> scipy.sparse.dia_array:
    """Return the symmetric matrix with these diagonals at and above the main one.

    Parameters
    ----------
    above : dict from int to ndarray of shape (n,)
        By offset; entry j is the one in column j.

    Examples
    --------
    >>> import numpy as np
    >>> symmetric({0: np.array([1.0, 2.0]), 1: np.array([0.0, 5.0])}).toarray()
    array([[1., 5.],
           [5., 2.]])
    """
    n, dtype = above[0].size, above[0].dtype
    data = np.empty((2 * len(above) - 1, n), dtype)
    offsets: list[int] = []
    for offset, diagonal in sorted(above.items()):
        data[len(offsets)] = diagonal
        offsets.append(offset)
        if offset:
            mirrored = data[len(offsets)]
            mirrored[: n - offset] = diagonal[offset:]
            mirrored[n - offset :] = 0
            offsets.append(-offset)
    return scipy.sparse.dia_array((data, offsets), shape=(n, n))
