"""Gram operators that are, or are like, a circular convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cofem.operators.transforms import dispatch

#: Relative to the diagonal, what may differ between two directions, and couplings across half of a grid.
EVEN, AROUND = 0.03, 1e-6


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
    is_exact : bool
        Whether it is ``Phi^H Phi`` itself.
    repeats : bool
        Whether what is shifted beyond the grid comes back on its other side in ``Phi`` as well.
    reach : tuple of int, optional
        How far columns are coupled along each axis, where that was measured.

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
    is_exact: bool = True
    repeats: bool = True
    reach: tuple[int, ...] | None = None

    def times(self, factor: float, is_exact: bool = True) -> CirculantGram:
        """Return a multiple of it."""
        return replace(self, eigenvalues=factor * self.eigenvalues, is_exact=self.is_exact and is_exact)

    def plus(self, other: CirculantGram) -> CirculantGram | None:
        """Return the sum, or None where the two are of different kinds."""
        if (self.shape, self.is_real) != (other.shape, other.is_real):
            return None
        return replace(
            self,
            eigenvalues=self.eigenvalues + other.eigenvalues,
            is_exact=self.is_exact and other.is_exact,
            repeats=self.repeats and other.repeats,
            reach=_farther(self.reach, other.reach),
        )

    def table(self) -> np.ndarray:
        """Return ``<phi_i, phi_j>`` by the offset ``i - j``, modulo the shape.

        Examples
        --------
        >>> from cofem.operators import Convolution
        >>> Convolution([1.0, 2.0], 4).circulant_gram().table().round(9).tolist()
        [5.0, 2.0, 0.0, 2.0]
        """
        spectrum = self.eigenvalues.astype(np.complex128)
        return dispatch.from_spectrum(spectrum, self.shape, real=self.is_real)


def nearest_to_lags(lags: np.ndarray) -> CirculantGram:
    """Return the circular convolution nearest to a matrix, from sums of its entries over each lag, over n.

    Parameters
    ----------
    lags : ndarray of shape (2 n_1, ...)
        By ``i - j`` from -n to n - 1 along each axis.

    Examples
    --------
    Of ``[[2, 1], [1, 2]]`` the sums are 4 at lag 0 and 1 at lags -1 and 1:

    >>> import numpy as np
    >>> nearest_to_lags(np.array([0.0, 1.0, 4.0, 1.0]) / 2).eigenvalues.tolist()
    [3.0, 1.0]
    """
    folded = lags
    for axis, length in enumerate(lags.shape):
        shape = (*folded.shape[:axis], 2, length // 2, *folded.shape[axis + 1 :])
        folded = folded.reshape(shape).sum(axis=axis)
    spectrum = dispatch.padded_spectrum(folded.astype(np.complex128), folded.shape, real=False)
    return CirculantGram(folded.shape, np.maximum(spectrum.real, 0.0), False, is_exact=False, repeats=False)


def cosine_eigenvalues(circulant: CirculantGram) -> np.ndarray | None:
    """Return the eigenvalues of the same convolution on a grid that is mirrored at its borders.

    They belong to the cosine transform. Where a convolution ends at borders, a grid that repeats couples
    opposite borders; the mirrored one does not.

    Returns
    -------
    ndarray of the grid's shape, or None
        None where the grid repeats, or the convolution is not the same in both directions of each axis.

    Examples
    --------
    >>> from cofem.operators import Convolution
    >>> blur = Convolution([1.0, 2.0, 1.0], 6, mode="linear").circulant_gram()
    >>> cosine_eigenvalues(blur).round(3).tolist()
    [16.0, 13.928, 9.0, 4.0, 1.0, 0.072]
    >>> cosine_eigenvalues(Convolution([1.0, 2.0, 1.0], 6).circulant_gram()) is None
    True
    """
    if circulant.repeats or not circulant.is_real:
        return None
    table, shape = circulant.table(), circulant.shape
    own = abs(float(table.flat[0]))
    wide = np.zeros(tuple(2 * n for n in shape))
    steps = [np.arange(-((n - 1) // 2), (n - 1) // 2 + 1) for n in shape]
    wide[np.ix_(*(step % (2 * n) for step, n in zip(steps, shape, strict=True)))] = table[np.ix_(*steps)]
    for axis, n in enumerate(shape):
        if np.abs(np.take(table, n // 2, axis)).max() > AROUND * own:
            return None  # couplings reach around the grid
        mirrored = np.roll(np.flip(wide, axis), 1, axis)
        if np.abs(wide - mirrored).max() > EVEN * own:
            return None
        wide = (wide + mirrored) / 2
    spectrum = dispatch.padded_spectrum(wide, wide.shape, real=True).real
    return np.maximum(spectrum[tuple(slice(n) for n in shape)], 0.0)


def _farther(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the larger reach along each axis; None if one is not known."""
    return None if one is None or other is None else tuple(map(max, one, other))


def shifted(places: np.ndarray, offsets: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the places at some offsets from others on a grid that repeats, all flattened in C order.

    Parameters
    ----------
    places : ndarray of int, shape (n,)
        Places.
    offsets : ndarray of int, shape (m,)
        Offsets, each the place that it is from the first one; negative for the other direction.
    shape : tuple of int
        The grid.

    Returns
    -------
    ndarray of int, shape (n, m)

    Examples
    --------
    >>> import numpy as np
    >>> shifted(np.array([0, 5]), np.array([1, 3]), (2, 3)).tolist()
    [[1, 3], [3, 2]]
    """
    flat = np.zeros((places.size, offsets.size), dtype=np.intp)
    signs = np.sign(offsets)
    steps = np.unravel_index(np.abs(offsets), shape)
    for here, step, period in zip(np.unravel_index(places, shape), steps, shape, strict=True):
        flat *= period
        flat += (here[:, None] + signs * step) % period
    return flat
