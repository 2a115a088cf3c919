r"""Dictionaries of shifted atoms that are seen by Fourier coefficients, such as wavelets in an MRI scan.

A shift multiplies a spectrum by a phase. So all columns of a subband have the same modulus at each frequency,
and :math:`\langle\varphi_i, w \varphi_j\rangle`, with weights w of the frequencies, is a function of the two
subbands and of the offset between the two places: one Fourier transform for each pair of subbands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from cofem._arrays import Array, to_numpy
from cofem.operators.base import Operator
from cofem.operators.transforms import dispatch


class Shifts(NamedTuple):
    """Columns that are shifts of a few of them, on a grid that repeats.

    Attributes
    ----------
    shape : tuple of int
        The grid.
    atoms : ndarray of int, shape (q,)
        The column in each group that all others of it are shifts of.
    group : ndarray of int, shape (D,)
        The group of each column.
    place : ndarray of int, shape (number of axes, D)
        How far each column is shifted.
    stride : ndarray of int, shape (q,)
        What all shifts in a group are multiples of, a power of two.
    """

    shape: tuple[int, ...]
    atoms: np.ndarray
    group: np.ndarray
    place: np.ndarray
    stride: np.ndarray


@dataclass(frozen=True)
class SpectralAtoms:
    """Fourier coefficients, or some of them, of columns that are shifts of a few atoms.

    Attributes
    ----------
    shifts : Shifts
        The columns.
    spectra : ndarray of shape (q, *grid)
        The spectra of the atoms.
    squares : Operator or None
        Squared entries of what makes data of the spectrum, shape (N, size of the grid), one for each datum;
        None if the spectrum is the data.
    scale : ndarray of shape (D,) or None
        What columns are multiplied by.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import FFT, Mask, Wavelet
    >>> Phi = Mask([0, 1, 5], 8) @ FFT(8) @ Wavelet(8, "haar", level=2).T
    >>> found, matrix = Phi.spectral_atoms(), Phi.to_dense()
    >>> np.allclose(found.energies(np.arange(8.0)), np.abs(matrix) ** 2 @ np.arange(8.0))
    True
    >>> some = np.array([0, 3, 5, 6])
    >>> weights = np.array([1.0, 2.0, 3.0])
    >>> expected = matrix[:, some].conj().T @ (weights[:, None] * matrix[:, some])
    >>> np.allclose(found.gram(some, weights), expected)
    True
    """

    shifts: Shifts
    spectra: np.ndarray
    squares: Operator | None = None
    scale: np.ndarray | None = None

    @classmethod
    def of(cls, transform: Operator, dictionary: Operator) -> SpectralAtoms | None:
        """Take them from a Fourier transform of all of a grid, and what is transformed."""
        grid = transform.fourier_grid()
        shifts = None if grid is None else dictionary.H.shifted_rows()
        if shifts is None or grid != shifts.shape:
            return None
        spectra = to_numpy(transform.forward(dictionary.columns(shifts.atoms)))
        return cls(shifts, spectra.reshape(-1, *grid))

    def seen_by(self, first: Operator) -> SpectralAtoms | None:
        """Return them for ``first @ Phi``, where each row of `first` has one entry."""
        squares = first.abs2()
        if squares is None:
            return None
        return replace(self, squares=squares if self.squares is None else squares @ self.squares)

    def times(self, scale: Array | complex) -> SpectralAtoms:
        """Return them for columns that are multiplied by `scale`, one number or one for each."""
        scale = np.abs(to_numpy(scale)) if np.ndim(scale) == 0 else to_numpy(scale)
        if np.ndim(scale) == 0:
            return replace(self, spectra=float(scale) * self.spectra)
        return replace(self, scale=scale if self.scale is None else scale * self.scale)

    def energies(self, g: np.ndarray) -> np.ndarray:
        """Return ``sum_j g_j |phi_j|^2`` for each datum, shape (N,)."""
        n_groups = len(self.spectra)
        sums = np.bincount(self.shifts.group, self._squared_scale(g), n_groups)
        powers = np.tensordot(sums, np.abs(self.spectra) ** 2, 1).ravel()
        return powers if self.squares is None else to_numpy(self.squares.forward(powers))

    def column_energies(self, weights: np.ndarray) -> np.ndarray:
        """Return ``<phi_j, weights phi_j>`` for each column, with weights of shape (N,)."""
        of_atoms = np.reshape(np.abs(self.spectra) ** 2, (len(self.spectra), -1)) @ self._spread(weights)
        return self._squared_scale(of_atoms[self.shifts.group])

    def gram(self, chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return ``<phi_i, weights phi_j>`` for some columns, shape (K, K), with weights of shape (N,)."""
        groups = self.shifts.group[chosen]
        matrix = np.empty((chosen.size, chosen.size), dtype=np.complex128)
        members = [np.flatnonzero(groups == i) for i in range(len(self.spectra))]
        for one, other, table in self._tables(self._spread(weights), [bool(m.size) for m in members]):
            rows, columns = members[one], members[other]
            stride = int(min(self.shifts.stride[[one, other]]))
            block = _at_offsets(
                table, *(self.shifts.place[:, chosen[part]] // stride for part in (rows, columns))
            )
            matrix[np.ix_(rows, columns)] = block
            if one != other:
                matrix[np.ix_(columns, rows)] = block.conj().T
        if self.scale is not None:
            scale = self.scale[chosen]
            matrix *= np.conj(scale)[:, None] * scale
        return matrix

    def local_gram(self, indices: np.ndarray) -> np.ndarray:
        """Return the Gram matrices of small clusters of columns, (K, b, b) for indices of shape (K, b).

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import FFT, Mask, Wavelet
        >>> Phi = Mask([0, 1, 5], 8) @ FFT(8) @ Wavelet(8, "haar", level=2).T
        >>> some = Phi.to_dense()[:, [1, 4, 6]]
        >>> np.allclose(Phi.spectral_atoms().local_gram(np.array([[1, 4, 6]]))[0], some.conj().T @ some)
        True
        """
        shifts, groups = self.shifts, self.shifts.group[indices]
        found = np.empty((*indices.shape, indices.shape[1]), dtype=np.complex128)
        present = np.isin(np.arange(len(self.spectra)), groups).tolist()
        n_rows = self.spectra[0].size if self.squares is None else self.squares.shape[0]
        for one, other, table in self._tables(self._spread(np.ones(n_rows)), present):
            stride = int(min(shifts.stride[[one, other]]))
            # The table is for places of the first less those of the second; the other way it is conjugated.
            for first, second, turned in ((one, other, False), (other, one, True))[: 1 + (one != other)]:
                k, i, j = np.nonzero((groups[:, :, None] == first) & (groups[:, None, :] == second))
                apart = shifts.place[:, indices[k, i]] - shifts.place[:, indices[k, j]]
                apart = (-apart if turned else apart) // stride
                values = table[tuple(a % n for a, n in zip(apart, table.shape, strict=True))]
                found[k, i, j] = np.conj(values) if turned else values
        if self.scale is not None:
            scale = self.scale[indices]
            found *= np.conj(scale)[:, :, None] * scale[:, None, :]
        return found

    def _tables(self, weights: np.ndarray, wanted: list[bool]) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield ``<phi_i, weights phi_j>`` by place of i less that of j, for pairs of groups.

        All places are multiples of the finer of two strides, so frequencies that differ by a period of that
        grid are as one.
        """
        strides = self.shifts.stride
        order = [int(i) for i in np.argsort(strides, kind="stable") if wanted[i]]
        weights = weights.reshape(self.shifts.shape)
        for position, one in enumerate(order):
            others = order[position:]
            folded = _folded(np.conj(self.spectra[one]) * weights * self.spectra[others], int(strides[one]))
            flat = folded.reshape(len(others), -1)
            found = flat.shape[1] ** 0.5 * dispatch.ifft(flat, folded.shape[1:])
            for other, row in zip(others, found, strict=True):
                yield one, other, row.reshape(folded.shape[1:])

    def _spread(self, weights: np.ndarray) -> np.ndarray:
        return weights if self.squares is None else to_numpy(self.squares.adjoint(weights))

    def _squared_scale(self, g: np.ndarray) -> np.ndarray:
        return g if self.scale is None else g * np.abs(self.scale) ** 2


def atoms_of_product(factors: Sequence[Operator]) -> SpectralAtoms | None:
    """Return the atoms of a product of operators, or None where it is not of this kind."""
    first, *rest = factors
    *left, last = factors
    if not rest:
        return first.spectral_atoms()
    if last.facts.diagonal:
        ones = np.ones(last.shape[1], dtype=last.dtype)
        return scaled_atoms(atoms_of_product(left), last.forward(ones))
    if first.facts.one_per_row:
        known = atoms_of_product(rest)
        return None if known is None else known.seen_by(first)
    return SpectralAtoms.of(first, last) if len(rest) == 1 else None


def scaled_atoms(atoms: SpectralAtoms | None, scale: Array | complex) -> SpectralAtoms | None:
    """Return the atoms, if there are any, of columns that are multiplied by `scale`."""
    return None if atoms is None else atoms.times(scale)


def _folded(spectra: np.ndarray, stride: int) -> np.ndarray:
    """Add up frequencies that are the same on every `stride`-th place of each axis but the first."""
    for axis in range(1, spectra.ndim) if stride > 1 else ():
        shape = spectra.shape
        spectra = spectra.reshape(*shape[:axis], stride, shape[axis] // stride, *shape[axis + 1 :])
        spectra = np.sum(spectra, axis=axis)
    return spectra


def _at_offsets(table: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Look up a table by the difference of places, of shapes (number of axes, n) and (number of axes, m)."""
    index = np.zeros((rows.shape[1], columns.shape[1]), dtype=np.intp)
    for axis, n in enumerate(table.shape):
        index *= n
        index += (rows[axis][:, None] - columns[axis]) % n
    return table.ravel()[index]


def shifts_of_bands(shape: tuple[int, ...], bands: list[tuple[tuple[int, ...], int, int]]) -> Shifts:
    """Return the shifts where coefficients are bands of ``(shape, start, stride)``, one after the other.

    Examples
    --------
    >>> found = shifts_of_bands((4,), [((2,), 0, 2), ((2,), 2, 2)])
    >>> found.atoms.tolist(), found.place.tolist()
    ([0, 2], [[0, 2, 0, 2]])
    """
    places = [np.indices(of_band).reshape(len(shape), -1) * stride for of_band, _, stride in bands]
    sizes = [prod(of_band) for of_band, _, _ in bands]
    return Shifts(
        shape,
        np.array([start for _, start, _ in bands]),
        np.repeat(np.arange(len(bands)), sizes),
        np.concatenate(places, axis=1),
        np.array([stride for _, _, stride in bands]),
    )
