"""What filters do to waves: squared responses by frequency, in a Fourier or a cosine basis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

#: Full turn of the last wave, by the name of the basis.
_TURNS = {"fourier": 2 * np.pi, "cosine": np.pi}


def check_basis(basis: str) -> None:
    """Raise ``ValueError`` unless ``basis`` is the name of one."""
    if basis not in _TURNS:
        raise ValueError(f"basis must be one of {', '.join(_TURNS)}, got {basis!r}")


def angles(shape: tuple[int, ...], basis: str) -> list[np.ndarray]:
    """Return the phase that each wave of a basis gains from one place to the next, for each axis.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    basis : {"fourier", "cosine"}
        Waves in the order of ``scipy.fft.fftn`` or of ``scipy.fft.dctn``.

    Examples
    --------
    >>> import numpy as np
    >>> np.degrees(angles((4,), "fourier")[0]).round().tolist()
    [0.0, 90.0, 180.0, 270.0]
    >>> np.degrees(angles((4,), "cosine")[0]).round().tolist()
    [0.0, 45.0, 90.0, 135.0]
    """
    return [_TURNS[basis] * np.arange(n) / n for n in shape]


def outer(factors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the product of one vector for each axis, an array with as many axes.

    Examples
    --------
    >>> import numpy as np
    >>> outer([np.array([1.0, 2.0]), np.array([3.0, 4.0])]).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    return reduce(np.multiply.outer, factors)
