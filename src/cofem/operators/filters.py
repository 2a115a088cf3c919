"""Circular convolutions between several arrays on one grid, and the Gram operators that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cofem._arrays import conj
from cofem.operators.transforms import dispatch


@dataclass(frozen=True)
class FilterBank:
    """A matrix of circular convolutions: q arrays on a grid in, p arrays out.

    Attributes
    ----------
    shape : tuple of int or None
        The grid; None for multiples of the identity, which have any.
    response : ndarray of shape (p, q, ...)
        For each frequency a p x q matrix; the layout is that of ``scipy.fft.rfftn`` if `is_real`, else of
        ``scipy.fft.fftn``.
    is_real : bool
        Whether all kernels are real.
    is_exact : bool
        Whether it is the operator itself.

    Examples
    --------
    >>> from cofem.operators import Convolution, Identity, hstack
    >>> found = hstack([Identity(4), Convolution([1.0, 1.0], 4)]).filter_bank()
    >>> found.shape, found.response.shape
    ((4,), (1, 2, 3))
    """

    shape: tuple[int, ...] | None
    response: np.ndarray
    is_real: bool
    is_exact: bool = True

    @property
    def adjoint(self) -> FilterBank:
        """The adjoint: q and p change places."""
        return replace(self, response=conj(np.swapaxes(self.response, 0, 1)))

    def times(self, factor: complex) -> FilterBank | None:
        """Return a multiple; None for a complex multiple of what is real."""
        if self.is_real and isinstance(factor, complex):
            return None
        return replace(self, response=factor * self.response)

    def after(self, other: FilterBank) -> FilterBank | None:
        """Return the product ``self @ other``, or None if the two are of different kinds."""
        return _joined([self, other], lambda one, two: np.einsum("ij...,jk...->ik...", one, two))

    def gram(self) -> BlockCirculantGram | None:
        """Return the Gram operator; None where the grid is not known."""
        if self.shape is None:
            return None
        # Frequencies first, so that each has its matrix in one piece.
        response = np.moveaxis(self.response, (0, 1), (-2, -1))
        eigenmatrices = conj(np.swapaxes(response, -1, -2)) @ response
        return BlockCirculantGram(self.shape, eigenmatrices, self.is_real, self.is_exact)


def stacked(parts: Sequence[FilterBank | None]) -> FilterBank | None:
    """Put filter banks on top of each other; None if one is missing or they are of different kinds."""
    return _joined(parts, lambda *responses: np.concatenate(responses, axis=0))


def _joined(parts: Sequence[FilterBank | None], join: Callable[..., np.ndarray]) -> FilterBank | None:
    known = [part for part in parts if part is not None]
    shapes = {part.shape for part in known} - {None}
    if len(known) < len(parts) or len(shapes) > 1:
        return None
    if not shapes:
        shape, responses = None, [part.response for part in known]
    else:
        example = next(part for part in known if part.shape is not None)
        shape, frequencies = example.shape, example.response.shape[2:]
        if any(part.is_real != example.is_real for part in known if part.shape is not None):
            return None
        responses = [_on_grid(part, frequencies) for part in known]
    return FilterBank(
        shape,
        join(*responses),
        all(part.is_real for part in known if part.shape is not None or shape is None),
        all(part.is_exact for part in known),
    )


def _on_grid(part: FilterBank, frequencies: tuple[int, ...]) -> np.ndarray:
    if part.shape is not None:
        return part.response
    response = part.response.reshape(*part.response.shape[:2], *(1 for _ in frequencies))
    return np.broadcast_to(response, (*part.response.shape[:2], *frequencies))


def gram_at_offsets(kernel: np.ndarray, weights: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return entries of the Gram matrix of a circular convolution whose data have weights.

    Parameters
    ----------
    kernel : ndarray
        The kernel, on all of the grid, with its origin first.
    weights : ndarray of the same shape
        What squares of data are multiplied by.
    offsets : ndarray of int, shape (m, number of axes)
        Offsets.

    Returns
    -------
    ndarray of shape (m, ...)
        ``<phi_j, phi_{j + offset}>`` for every place j of the grid.

    Examples
    --------
    Two samples of four are seen, and each column has two entries:

    >>> import numpy as np
    >>> kernel, seen = np.array([1.0, 2.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0])
    >>> gram_at_offsets(kernel, seen, np.array([[0], [1]])).round(9).tolist()
    [[4.0, 1.0, 4.0, 1.0], [2.0, 0.0, 2.0, 0.0]]
    """
    real = not np.iscomplexobj(kernel)
    spectrum = dispatch.padded_spectrum(weights.astype(kernel.dtype), kernel.shape, real=real)
    axes = tuple(range(kernel.ndim))
    found = np.empty((len(offsets), *kernel.shape), dtype=kernel.dtype)
    for row, offset in zip(found, offsets, strict=True):
        # A sum over data t of their weights times what both columns have there, by t - j.
        both = conj(kernel) * np.roll(kernel, offset, axis=axes)
        product = conj(dispatch.padded_spectrum(conj(both), kernel.shape, real=real))
        row[...] = dispatch.from_spectrum(spectrum * product, kernel.shape, real=real)
    return found


@dataclass(frozen=True)
class BlockCirculantGram:
    """Circular convolutions that stand for ``Phi^H Phi``, where coefficients are q arrays on one grid.

    Attributes
    ----------
    shape : tuple of int
        The grid; coefficients are q such arrays, one after the other, each flattened in C order.
    eigenmatrices : ndarray of shape (..., q, q)
        For each frequency a matrix that is Hermitian and not negative.
    is_real : bool
        Whether all kernels are real: frequencies are then those of ``scipy.fft.rfftn``.
    is_exact : bool
        Whether it is ``Phi^H Phi`` itself.

    Examples
    --------
    >>> from cofem.operators import Convolution, Identity, hstack
    >>> found = hstack([Identity(4), Convolution([1.0, 1.0], 4)]).block_circulant_gram()
    >>> found.n_blocks, found.eigenmatrices[0].real.tolist()
    (2, [[1.0, 2.0], [2.0, 4.0]])
    """

    shape: tuple[int, ...]
    eigenmatrices: np.ndarray
    is_real: bool
    is_exact: bool = True

    @property
    def n_blocks(self) -> int:
        """Number of arrays that coefficients are, q."""
        return self.eigenmatrices.shape[-1]

    def times(self, factor: float, is_exact: bool = True) -> BlockCirculantGram:
        """Return a multiple of it."""
        return replace(self, eigenmatrices=factor * self.eigenmatrices, is_exact=self.is_exact and is_exact)

    def tables(self) -> np.ndarray:
        """Return ``<phi_i, phi_j>`` for i in block a and j in block b by the offset ``i - j``: (q, q, ...).

        Examples
        --------
        >>> from cofem.operators import Convolution, Identity, hstack
        >>> Phi = hstack([Identity(4), Convolution([1.0, 2.0], 4, causal=True)])
        >>> Phi.block_circulant_gram().tables()[0, 1].round(9).tolist()
        [1.0, 2.0, 0.0, 0.0]
        """
        spectra = np.moveaxis(self.eigenmatrices, (-2, -1), (0, 1)).astype(np.complex128)
        return dispatch.from_spectrum(np.ascontiguousarray(spectra), self.shape, real=self.is_real)
