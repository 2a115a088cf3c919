"""What is known about the structure of an operator; by default nothing, which is None."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cofem.operators.action import Action
from cofem.operators.boxes import Box
from cofem.operators.decay import Decay
from cofem.operators.diagonals import symmetric
from cofem.operators.filters import BlockCirculantGram, FilterBank
from cofem.operators.symbols import check_basis

if TYPE_CHECKING:
    import scipy.sparse

    from cofem.operators.circulant import CirculantGram
    from cofem.operators.entries import StoredMatrix
    from cofem.operators.spectral_atoms import Shifts, SpectralAtoms


class Structure(Action):
    """Questions that an operator answers from what it is, without a product."""

    # --- stored numbers -----------------------------------------------------------------------------

    def stored_matrix(self) -> StoredMatrix | None:
        """Return the NumPy matrix that is all of the operator up to a factor, or None if there is none.

        Returns
        -------
        StoredMatrix or None
            A pair ``(array, factor)``: the matrix in memory, not to be changed, and what it is multiplied by.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Dense
        >>> array, factor = (2 * Dense(np.eye(2))).stored_matrix()
        >>> array.tolist(), factor
        ([[1.0, 0.0], [0.0, 1.0]], 2.0)
        >>> DCT(4).stored_matrix() is None
        True
        """
        return self._stored_matrix()

    def _stored_matrix(self) -> StoredMatrix | None:
        return None

    def sparse_matrix(self) -> scipy.sparse.csr_array | None:
        """Return the operator as a SciPy sparse array, or None if it has none that is cheap.

        Known of operators whose rows have few entries, and of products, sums, multiples, stacks and adjoints
        of those: what a sparse factorisation or multigrid needs.

        Returns
        -------
        scipy.sparse.csr_array or None
            Of shape (N, D); not to be changed.

        Examples
        --------
        >>> from cofem.operators import DCT, Gradient, Mask
        >>> (Mask([1], 3) @ (2 * Gradient(4))).sparse_matrix().toarray()
        array([[ 0., -2.,  2.,  0.]])
        >>> DCT(4).sparse_matrix() is None
        True
        """
        return self._sparse_matrix()

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        return None

    def largest_entry(self) -> float | None:
        """Return the largest modulus among real and imaginary parts of the stored entries.

        Returns
        -------
        float or None
            None where entries are not stored.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, -5.0], [2.0, 3.0]]).largest_entry()
        5.0
        >>> DCT(4).largest_entry() is None
        True
        """
        return self._largest_entry()

    def _largest_entry(self) -> float | None:
        return None

    @property
    def stored_entries(self) -> int:
        """How many entries are in memory or on disk, for `columns` to read; 0 if it applies the operator.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> (2 * Dense([[1.0, 2.0]])).stored_entries, DCT(4).stored_entries
        (2, 0)
        """
        return self._stored_entries()

    def _stored_entries(self) -> int:
        return 0

    # --- convolutions and Fourier transforms --------------------------------------------------------

    def filter_bank(self) -> FilterBank | None:
        """Return the circular convolutions on one grid that the operator is, or is like; else None.

        Exact for circular convolutions, multiples of the identity, and for what products and stacks make of
        them; close for linear convolutions.

        Examples
        --------
        >>> from cofem.operators import Convolution, hstack
        >>> blur = Convolution([1.0, 1.0], 4)
        >>> (blur @ hstack([blur, 2 * blur])).filter_bank().response.shape
        (1, 2, 3)
        """
        return self._filter_bank()

    def _filter_bank(self) -> FilterBank | None:
        return None

    def block_circulant_gram(self) -> BlockCirculantGram | None:
        """Return what `circulant_gram` does, where coefficients are two or more arrays on one grid.

        Examples
        --------
        >>> from cofem.operators import Convolution, Mask, hstack
        >>> blur = Convolution([1.0, 1.0], 4)
        >>> found = (Mask([0, 2], 4) @ hstack([blur, blur])).block_circulant_gram()
        >>> found.shape, found.n_blocks, found.is_exact
        ((4,), 2, False)
        >>> blur.block_circulant_gram() is None
        True
        """
        return self._block_circulant_gram()

    def _block_circulant_gram(self) -> BlockCirculantGram | None:
        bank = self._filter_bank()
        return None if bank is None or bank.response.shape[1] < 2 else bank.gram()

    def _circulant_between(self, circulant: CirculantGram) -> CirculantGram | None:
        """Return what is like ``Phi^H C Phi`` for a circular convolution C of data, if that is one too."""
        return None

    def decay(self) -> Decay | None:
        """Return how columns decay, where that is by one factor from each place to the next; else None.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Convolution, Mask
        >>> kernel = 0.5 ** np.arange(20)
        >>> Phi = Mask([0, 2], 3) @ Convolution(kernel, 3, mode="linear", causal=True)
        >>> Phi.decay().ratio, Phi.decay().seen.tolist()
        (0.5, [1.0, 0.0, 1.0])
        """
        return self._decay()

    def _decay(self) -> Decay | None:
        return None

    def shifted_rows(self) -> Shifts | None:
        """Return how rows are shifts of a few of them, or None where that is not known.

        Examples
        --------
        >>> from cofem.operators import Wavelet
        >>> Wavelet(4, "haar", level=1).shifted_rows().place.tolist()
        [[0, 2, 0, 2]]
        """
        return self._shifted_rows()

    def _shifted_rows(self) -> Shifts | None:
        return None

    def fourier_grid(self) -> tuple[int, ...] | None:
        """Return the grid of which the operator is the orthonormal Fourier transform; None for all others.

        Examples
        --------
        >>> from cofem.operators import DCT, FFT
        >>> FFT((2, 4)).fourier_grid(), DCT(4).fourier_grid()
        ((2, 4), None)
        """
        return self._fourier_grid()

    def _fourier_grid(self) -> tuple[int, ...] | None:
        return None

    def spectral_atoms(self) -> SpectralAtoms | None:
        """Return the spectra of atoms whose shifts the columns are: wavelets seen by Fourier coefficients.

        Returns
        -------
        SpectralAtoms or None
            With Gram matrices of columns and energies of data, which need no product with Phi; None for
            other operators.

        Examples
        --------
        >>> from cofem.operators import FFT, Mask, Wavelet
        >>> Phi = Mask([0, 1], 4) @ FFT(4) @ Wavelet(4, "haar", level=1).T
        >>> Phi.spectral_atoms().spectra.shape  # two bands
        (2, 4)
        """
        return self._spectral_atoms()

    def _spectral_atoms(self) -> SpectralAtoms | None:
        return None

    # --- what rows and columns stand for ------------------------------------------------------------

    @property
    def groups(self) -> np.ndarray | None:
        """Labels of natural groups of coefficients (wavelet subbands): None or integers of shape (D,).

        Examples
        --------
        >>> from cofem.operators import DCT, Wavelet
        >>> Wavelet(8, "haar", level=2).T.groups
        array([0, 0, 1, 1, 2, 2, 2, 2])
        >>> DCT(8).T.groups is None
        True
        """
        return self._column_groups()

    def _column_groups(self) -> np.ndarray | None:
        return None

    @property
    def row_groups(self) -> np.ndarray | None:
        """Labels of natural groups along the rows, which become `groups` of the adjoint.

        Examples
        --------
        >>> from cofem.operators import Wavelet
        >>> W = Wavelet(8, "haar", level=2)  # from a signal to coefficients
        >>> W.row_groups
        array([0, 0, 1, 1, 2, 2, 2, 2])
        """
        return self._row_groups()

    def _row_groups(self) -> np.ndarray | None:
        return None

    @property
    def column_shape(self) -> tuple[int, ...] | None:
        """Shape of the array that the operator acts on, flattened in C order; None if that is not known.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import FFT, Mask
        >>> (Mask([3, 5], 16) @ FFT((4, 4))).column_shape, Mask(np.ones((2, 3), bool)).column_shape
        ((4, 4), (2, 3))
        >>> FFT((4, 4)).H.column_shape is None
        True
        """
        return self._column_shape()

    def _column_shape(self) -> tuple[int, ...] | None:
        return None

    @property
    def row_places(self) -> np.ndarray | None:
        """Which of the D places each row belongs to, such as that of a difference: None or shape (N,).

        Examples
        --------
        >>> from cofem.operators import DCT, Gradient, Identity, vstack
        >>> vstack([Identity(3), Gradient(3)]).row_places
        array([0, 1, 2, 0, 1])
        >>> DCT(8).row_places is None
        True
        """
        return self._row_places()

    def _row_places(self) -> np.ndarray | None:
        return None

    @property
    def row_boxes(self) -> tuple[Box, ...] | None:
        """The bands of rows as boxes of the grid, one after the other; None if they are not such.

        Where it is known it says what `row_groups` and `row_places` do, in no memory.

        Examples
        --------
        >>> from cofem.operators import Gradient
        >>> [(box.start, box.origin, box.shape) for box in Gradient((2, 3)).row_boxes]
        [(0, (0, 0), (1, 3)), (3, (0, 0), (2, 2))]
        """
        return self._row_boxes()

    def _row_boxes(self) -> tuple[Box, ...] | None:
        return None

    # --- bands of rows ------------------------------------------------------------------------------

    def band_symbols(self, basis: str = "fourier") -> np.ndarray | None:
        """Return what each band of rows makes of the energy of each wave, or None if that is not known.

        A band B_b holds the rows of one label in `row_groups`. ``B_b^H B_b`` is, or is like, diagonal in the
        basis of waves, and this is its diagonal there.

        Parameters
        ----------
        basis : {"fourier", "cosine"}
            "fourier": waves in the order of ``scipy.fft.fftn``; exact if the array is periodic.
            "cosine": in the order of ``scipy.fft.dctn`` of type II; exact for free differences, of which
            the first and the mixed ones are diagonal. Else they are those of an array without borders.

        Returns
        -------
        ndarray of shape (number of bands, ...) or None
            The further axes are those of the array.

        Examples
        --------
        >>> from cofem.operators import DCT, Gradient
        >>> Gradient(4, "periodic").band_symbols().round(9).tolist()
        [[0.0, 2.0, 4.0, 2.0]]
        >>> Gradient(3).band_symbols("cosine").round(9).tolist()
        [[0.0, 1.0, 3.0]]
        >>> DCT(4).band_symbols() is None
        True
        """
        check_basis(basis)
        return self._band_symbols(basis)

    def _band_symbols(self, basis: str) -> np.ndarray | None:
        return None

    def each_band_symbol(self, basis: str = "fourier") -> Iterator[np.ndarray]:
        """Iterate over what `band_symbols` returns, with one band in memory where that can be.

        Examples
        --------
        >>> from cofem.operators import Gradient
        >>> [symbol.round(9).tolist() for symbol in Gradient(3).each_band_symbol("cosine")]
        [[0.0, 1.0, 3.0]]
        """
        check_basis(basis)
        return self._each_band_symbol(basis)

    def _each_band_symbol(self, basis: str) -> Iterator[np.ndarray]:
        found = self._band_symbols(basis)
        return iter(()) if found is None else iter(found)

    def weighted_gram(self, weights: np.ndarray) -> scipy.sparse.dia_array | None:
        """Return ``B^H diag(weights) B`` by its diagonals, or None if they are not few or not cheap.

        Known of differences that end at the border, of the identity, and of stacks of those: one product with
        it then takes the place of two with B.

        Parameters
        ----------
        weights : ndarray of shape (N,)
            Real numbers; the result has their precision.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Gradient
        >>> Gradient(3).weighted_gram(np.array([1.0, 2.0])).toarray()
        array([[ 1., -1.,  0.],
               [-1.,  3., -2.],
               [ 0., -2.,  2.]])
        >>> DCT(4).weighted_gram(np.ones(4)) is None
        True
        """
        above: dict[int, np.ndarray] = {}
        return symmetric(above) if self._add_weighted_gram(weights, above) else None

    def _add_weighted_gram(self, weights: np.ndarray, above: dict[int, np.ndarray]) -> bool:
        """Add the diagonals at and above the main one, by their offset and as SciPy keeps them, if known."""
        return False
