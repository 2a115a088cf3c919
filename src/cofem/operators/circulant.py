"""Gram operators that are, or are like, a circular convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class CirculantGram:
    """A circular convolution that stands for ``Phi^H Phi``: its eigenvalues, one for each frequency.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array that coefficients flatten, in C order.
    eigenvalues : ndarray
        Not negative, in the layout of ``scipy.fft.rfftn`` if `is_real`, else of ``scipy.fft.fftn``.
    is_real : bool
        Whether it is a convolution with a real kernel.

    Examples
    --------
    >>> from cofem.operators import Convolution
    >>> found = Convolution([1.0, 1.0], 4).circulant_gram()
    >>> found.shape, found.eigenvalues.tolist()
    ((4,), [4.0, 2.0, 0.0])
    """

    shape: tuple[int, ...]
    eigenvalues: np.ndarray
    is_real: bool

    def times(self, factor: float) -> CirculantGram:
        """Return a multiple of it."""
        return replace(self, eigenvalues=factor * self.eigenvalues)

    def plus(self, other: CirculantGram) -> CirculantGram | None:
        """Return the sum, or None where the two are of different kinds."""
        if (self.shape, self.is_real) != (other.shape, other.is_real):
            return None
        return replace(self, eigenvalues=self.eigenvalues + other.eigenvalues)
