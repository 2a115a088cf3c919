"""The operator protocol: what a dictionary Phi of shape (N, D) can be asked, whatever it is made of."""

from __future__ import annotations

import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import array_api_compat
import numpy as np

from cofem._arrays import Array, DeviceCache, as_array, as_floating, as_indices, namespace, to_numpy
from cofem.operators import entries
from cofem.operators.boxes import Box
from cofem.operators.circulant import CirculantGram
from cofem.operators.combs import comb_gram, find_local_gram, nothing_is_known
from cofem.operators.diagonals import symmetric
from cofem.operators.entries import StoredMatrix
from cofem.operators.facts import Facts
from cofem.operators.filters import BlockCirculantGram, FilterBank, gram_at_offsets
from cofem.operators.symbols import check_basis
from cofem.operators.transforms import dispatch

if TYPE_CHECKING:
    import scipy.sparse

    from cofem.operators.spectral_atoms import Shifts, SpectralAtoms

#: Weights of shape (D,) by precision, "float32" or "float64".
Weights = Callable[[str], DeviceCache]


class FusedGram(Protocol):
    """A Gram operator of two factors in one go."""

    def pays(self, x: Array) -> bool:
        """Tell whether it is faster on ``x`` than one factor after the other."""

    def __call__(self, x: Array) -> Array:
        """Return the Gram operator applied to every vector along the last axis."""


class Operator(ABC):
    """A linear map from coefficients ``(..., D)`` to data ``(..., N)``, known by its action.

    A subclass calls ``super().__init__`` and implements ``_forward`` and ``_adjoint``, on the last axis of
    arrays with any leading batch axes. Both return new arrays and leave their input alone. Everything else
    here is derived; override a derived method where the structure allows something faster or exact.

    Parameters
    ----------
    shape : tuple of int
        ``(N, D)``.
    is_complex : bool
        Whether the entries of the operator are complex.
    precision : {"float32", "float64", None}
        Precision of the numbers that the operator stores; None if it stores none and computes in the
        precision of its input.
    facts : Facts
        What is certain about its structure.

    Examples
    --------
    >>> import numpy as np
    >>> class Reverse(Operator):
    ...     def __init__(self, n):
    ...         super().__init__((n, n), facts=Facts(row_gram=1.0))
    ...     def _forward(self, x):
    ...         return np.flip(x, axis=-1).copy()
    ...     def _adjoint(self, y):
    ...         return np.flip(y, axis=-1).copy()
    >>> Phi = Reverse(3)
    >>> Phi @ np.array([1.0, 2.0, 3.0])
    array([3., 2., 1.])
    >>> Phi.norm
    1.0
    """

    ndim = 2
    # Both make NumPy leave ``array @ Phi`` and ``scalar * Phi`` to the operator.
    __array_ufunc__ = None
    __array_priority__ = 1000.0
    # How tightly the expression in the repr binds: 1 sum, 2 product, 3 name or call.
    _binding: ClassVar[int] = 3

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        is_complex: bool = False,
        precision: str | None = None,
        facts: Facts = Facts(),  # noqa: B008 - frozen
    ) -> None:
        if shape[0] == shape[1]:  # a square matrix with orthogonal rows has orthogonal columns
            gram = facts.row_gram if facts.column_gram is None else facts.column_gram
            facts = replace(facts, row_gram=gram, column_gram=gram)
        self.shape = shape
        self.is_complex = is_complex
        self.precision = precision
        self.facts = facts

    @property
    def device_array(self) -> Array | None:
        """An array on the device where the numbers of the operator are; None for NumPy.

        An operator that has one works on arrays of that library and device only.

        Examples
        --------
        None for numbers in NumPy, and for an operator that stores none:

        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, 2.0]]).device_array is None, DCT(8).device_array is None
        (True, True)
        """
        return self._device_array()

    @property
    def home(self) -> Array | None:
        """Old name of `device_array`.

        Examples
        --------
        >>> import warnings
        >>> from cofem.operators import DCT
        >>> with warnings.catch_warnings(action="ignore"):
        ...     DCT(8).home is None
        True
        """
        warnings.warn("Operator.home is now called device_array", DeprecationWarning, stacklevel=2)
        return self.device_array

    def _device_array(self) -> Array | None:
        return None

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries; double precision if the operator has no precision of its own.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import FFT, Dense
        >>> Dense(np.eye(2, dtype=np.float32)).dtype, FFT(8).dtype
        (dtype('float32'), dtype('complex128'))
        """
        parts = np.dtype(self.precision or "float64")
        return np.result_type(parts, np.complex64) if self.is_complex else parts

    # --- action -------------------------------------------------------------------------------------

    @abstractmethod
    def _forward(self, x: Array) -> Array:
        """Apply the operator to checked ``x`` of shape (..., D); return a new array (..., N)."""

    @abstractmethod
    def _adjoint(self, y: Array) -> Array:
        """Apply the Hermitian adjoint to checked ``y`` of shape (..., N); return a new array (..., D)."""

    def _forward_overwriting(self, x: Array) -> Array:
        """Return ``_forward(x)``, free to destroy ``x``: composites call this on their own intermediates."""
        return self._forward(x)

    def _adjoint_overwriting(self, y: Array) -> Array:
        """Return ``_adjoint(y)``, free to destroy ``y``."""
        return self._adjoint(y)

    def _gram(self, x: Array) -> Array:
        return self._adjoint_overwriting(self._forward(x))

    def _gram_diagonal(self) -> Weights | None:
        """Return the diagonal of ``Phi^H Phi`` by precision, where that is diagonal, else None."""
        return None

    def _gram_between(self, weights: Weights) -> FusedGram | None:
        """Return a faster way to ``Phi^H diag(weights) Phi x`` than one after the other, if there is one."""
        return None

    def _adjoint_gram_between(self, weights: Weights) -> FusedGram | None:
        """Return the same for ``Phi^H`` in place of ``Phi``."""
        return None

    def forward(self, x: Array) -> Array:
        """Return ``Phi x`` for every vector along the last axis.

        Parameters
        ----------
        x : array of shape (..., D)
            Real or complex; integers and booleans are taken as float64.

        Returns
        -------
        array of shape (..., N)
            In the precision of ``x`` or of the operator, whichever is higher.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
        >>> Phi.forward(np.array([1.0, 1.0, 1.0]))
        array([3., 2.])
        >>> Phi.forward(np.ones((5, 3))).shape  # a batch of five vectors
        (5, 2)
        """
        return self._forward(self._checked(x, self.shape[1], "x"))

    def adjoint(self, y: Array) -> Array:
        """Return ``Phi^H y`` for every vector along the last axis.

        Parameters
        ----------
        y : array of shape (..., N)
            As for `forward`.

        Returns
        -------
        array of shape (..., D)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).adjoint(np.array([1.0]))
        array([1.-1.j, 2.+1.j])
        """
        return self._adjoint(self._checked(y, self.shape[0], "y"))

    def gram(self, x: Array) -> Array:
        """Return ``Phi^H Phi x`` for every vector along the last axis.

        Parameters
        ----------
        x : array of shape (..., D)
            As for `forward`.

        Returns
        -------
        array of shape (..., D)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0], [0.0, 1.0]])
        >>> Phi.gram(np.eye(2))  # all of Phi^H Phi, where that is small
        array([[1., 2.],
               [2., 5.]])
        """
        return self._gram(self._checked(x, self.shape[1], "x"))

    def dual_gram(self, v: Array, weights: Array | None = None) -> Array:
        """Return ``Phi diag(weights) Phi^H v`` for every vector along the last axis.

        Parameters
        ----------
        v : array of shape (..., N)
            As for `adjoint`.
        weights : array of shape (D,), optional
            Real numbers, or several rows of them as `v` has batches; ones by default.

        Returns
        -------
        array of shape (..., N)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0], [0.0, 1.0]])
        >>> Phi.dual_gram(np.eye(2), np.array([1.0, 10.0]))
        array([[41., 20.],
               [20., 10.]])
        """
        return self._dual_gram(self._checked(v, self.shape[0], "v"), weights)

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        back = self._adjoint(v)
        if weights is not None:
            back *= weights
        return self._forward_overwriting(back)

    @property
    def _fuses_dual(self) -> bool:
        """Whether `dual_gram` costs less than the two products it stands for."""
        return False

    @property
    def layout(self) -> str:
        """How the matrix is cut into chunks whose products are summed up; "" where it is in one piece.

        A checkpoint holds it: the last digits of a fit depend on it.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Distributed
        >>> (2 * Distributed(lambda i: np.eye(2), (2, 4), (2, 2))).layout, DCT(4).layout
        ('2 chunks of 2 columns', '')
        """
        return self._layout()

    def _layout(self) -> str:
        return "; ".join(filter(None, (part.layout for part in self._parts())))

    @property
    def takes_batches(self) -> bool:
        """Whether several vectors go through at once; False where a batch costs as much as one by one.

        Operators made of others take batches if all their parts do.

        Examples
        --------
        An operator of SciPy that was given no product with a matrix:

        >>> import numpy as np
        >>> from scipy.sparse.linalg import LinearOperator
        >>> from cofem.operators import DCT, as_operator
        >>> double = as_operator(LinearOperator((4, 4), matvec=lambda x: 2 * x, rmatvec=lambda y: 2 * y))
        >>> double.takes_batches, (double @ DCT(4)).takes_batches, DCT(4).takes_batches
        (False, False, True)
        """
        return all(part.takes_batches for part in self._parts())

    def _parts(self) -> tuple[Operator, ...]:
        """Return the operators that this one is made of."""
        return ()

    def _checked(self, x: Any, length: int, name: str) -> Array:
        x = as_floating(x, name)
        if x.ndim == 0 or x.shape[-1] != length:
            raise ValueError(
                f"{name} must have a last axis of length {length} for {self!r}, got shape {tuple(x.shape)}"
            )
        return x

    # --- entries ------------------------------------------------------------------------------------

    @cached_property
    def norm(self) -> float:
        """Spectral norm, the largest singular value.

        Exact where the structure gives it (orthonormal rows or columns, diagonal, circular convolution,
        and products of these with orthonormal factors); else a Lanczos estimate from below, usually within
        a relative 1e-3 and the same on every call.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> (3.0 * DCT(8)).norm
        3.0
        >>> round(Dense([[1.0, 1.0], [1.0, 1.0]]).norm, 3)
        2.0
        """
        return self._spectral_norm()

    def _spectral_norm(self) -> float:
        gram = self.facts.row_gram if self.facts.column_gram is None else self.facts.column_gram
        if gram is not None:
            return float(np.sqrt(gram))
        if self.facts.diagonal:
            moduli = entries.diagonal_moduli(self)
            return float(namespace(moduli).max(moduli))
        return entries.spectral_norm(self)

    def abs2(self) -> Operator | None:
        """Return the operator with entries ``|Phi_ij|^2``, or None if there is no cheap one.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense, Identity
        >>> Dense([[1.0, -2.0], [0.0, 3.0]]).abs2().to_dense()
        array([[1., 4.],
               [0., 9.]])
        >>> (DCT(8) + Identity(8)).abs2() is None
        True
        """
        return self._abs2()

    def _abs2(self) -> Operator | None:
        return None

    @cached_property
    def column_norms_exact(self) -> bool:
        """Whether `column_norms` is exact rather than estimated.

        Examples
        --------
        Of a sum of two transforms, the norms are written out if it is small, and probed if not:

        >>> from cofem.operators import DCT, Identity
        >>> [(DCT(n) + Identity(n)).column_norms_exact for n in (8, 4096)]
        [True, False]
        """
        return entries.has_exact_column_norms(self)

    def column_norms(self) -> Array:
        """Return the Euclidean norms of the columns.

        Exact if `column_norms_exact`. Else ``|Phi^H p|^2`` is averaged over 64 random sign vectors ``p``, the
        same on every call, which leaves a relative standard error of about 9 %.

        Returns
        -------
        array of shape (D,), float64
            A NumPy array, or one of the library that holds the numbers of the operator.

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[3.0, 0.0], [4.0, 2.0]]).column_norms()
        array([5., 2.])
        """
        return entries.column_norms(self)

    def norm_resolution(self, norms: Array) -> Array | float:
        """Return the norm of a column below which it cannot be told from zero, one number or one for each.

        Entries that are stored give norms to a few roundings each; norms that come out of a transform have
        errors that depend on the largest one.

        Parameters
        ----------
        norms : array of shape (D,)
            What `column_norms` returned.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense, Mask, Wavelet
        >>> Phi = Dense(np.diag([1.0, 1e-12]))
        >>> Phi.norm_resolution(Phi.column_norms())
        0.0
        >>> W = Mask([0, 3], 8) @ Wavelet(8, "haar").T  # wavelets at other samples are hidden by the mask
        >>> norms = W.column_norms()
        >>> bool(((norms > W.norm_resolution(norms)) == (W.to_dense() != 0).any(axis=0)).all())
        True
        """
        return self._norm_resolution(norms)

    def _norm_resolution(self, norms: Array) -> Array | float:
        return entries.norm_resolution(self, norms)

    def _adjoint_norm_resolution(self, norms: Array) -> Array | float:
        """Return the same for ``Phi^H`` in place of ``Phi``."""
        return entries.norm_resolution(self.H, norms)

    def columns(self, indices: Any) -> Array:
        """Return columns of the operator as the rows of an array.

        Parameters
        ----------
        indices : array_like of int, shape (K,)
            Which columns, from 0 to D - 1, in any order.

        Returns
        -------
        array of shape (K, N)
            Row ``k`` is the column ``Phi[:, indices[k]]``.

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).columns([2, 0])
        array([[3., 6.],
               [1., 4.]])
        """
        return self._columns(as_indices(indices, self.shape[1], "indices"))

    def _columns(self, indices: np.ndarray) -> Array:
        return entries.columns_by_application(self, indices)

    def rows(self, indices: Any) -> Array:
        """Return rows of the operator.

        Parameters
        ----------
        indices : array_like of int, shape (K,)
            Which rows, from 0 to N - 1, in any order.

        Returns
        -------
        array of shape (K, D)
            Row ``k`` is ``Phi[indices[k], :]``.

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).rows([1])
        array([[4., 5., 6.]])
        """
        return self._rows(as_indices(indices, self.shape[0], "indices"))

    def _rows(self, indices: np.ndarray) -> Array:
        return entries.rows_by_application(self, indices)

    def local_gram(self, indices: Any) -> Array:
        """Return the Gram matrices of small clusters of columns.

        Parameters
        ----------
        indices : array_like of int, shape (K, b)
            The columns of each of K clusters, from 0 to D - 1. Clusters may overlap.

        Returns
        -------
        array of shape (K, b, b)
            ``G[k, i, j] = <phi_m, phi_n>`` with ``m, n = indices[k, i], indices[k, j]``: entries of
            ``Phi^H Phi``.

        Notes
        -----
        In general every column that occurs is formed, a bounded number at a time. Faster are stored entries,
        orthonormal columns, diagonal operators, circular and full convolutions, Fourier coefficients of
        wavelets, multiples and stacks of these, and their products with orthonormal factors on the left or a
        diagonal one on the right. A part in single precision answers in single precision.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Convolution
        >>> blur = Convolution([1.0, 2.0, 1.0], 8)
        >>> np.round(blur.local_gram([[0, 1], [0, 4]]), 12) + 0.0
        array([[[6., 4.],
                [4., 6.]],
        <BLANKLINE>
               [[6., 0.],
                [0., 6.]]])
        """
        found = to_numpy(indices)
        if found.ndim != 2:
            raise ValueError(f"indices must have shape (K, b), got shape {found.shape}")
        checked = as_indices(found.reshape(-1), self.shape[1], "indices")
        return self._local_gram(checked.reshape(found.shape))

    def _local_gram(self, indices: np.ndarray) -> Array:
        return entries.local_gram(self, indices)

    def circulant_gram(self) -> CirculantGram | None:
        """Return a circular convolution that is like ``Phi^H Phi``, or None if none is known.

        Exact for circular convolutions; close for linear ones, for samples of either and for stacks of them.
        Where nothing is known about an operator, a few columns of ``Phi^H Phi`` are looked at.

        Examples
        --------
        >>> from cofem.operators import Convolution, Dense, Mask
        >>> blur = Convolution([1.0, 1.0], 4)
        >>> (Mask([0, 2], 4) @ blur).circulant_gram().eigenvalues.tolist()
        [2.0, 1.0, 0.0]
        >>> Dense([[1.0, 2.0]]).circulant_gram() is None
        True
        """
        return self._circulant_gram()

    def _circulant_gram(self) -> CirculantGram | None:
        return self._local

    @cached_property
    def _local(self) -> CirculantGram | None:
        """How columns are coupled with their neighbours, found by asking; None if they are not, or known."""
        return find_local_gram(self) if nothing_is_known(self) else None

    def _circulant_between(self, circulant: CirculantGram) -> CirculantGram | None:
        """Return what is like ``Phi^H C Phi`` for a circular convolution C of data, if that is one too."""
        return None

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

    def offset_gram(self, offsets: np.ndarray) -> np.ndarray | None:
        """Return ``<phi_j, phi_{j + offset}>`` for every column j, or None where that is not at hand.

        Parameters
        ----------
        offsets : ndarray of int, shape (m, number of axes)
            Offsets on the grid of `circulant_gram`, which repeats; what a linear convolution shifts beyond
            its grid has no meaning.

        Returns
        -------
        ndarray of shape (m, D) or None
            Exact, for convolutions and for samples and weights of them; else by products with combs, where
            columns are coupled with near ones only.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Convolution, Mask
        >>> seen = Mask([1, 3], 4) @ Convolution([1.0, 2.0], 4, causal=True)
        >>> seen.offset_gram(np.array([[0], [1]])).round(9).tolist()
        [[4.0, 1.0, 4.0, 1.0], [2.0, 0.0, 2.0, 0.0]]
        """
        return self._offset_gram(offsets, np.ones(self.shape[0]))

    def _offset_gram(self, offsets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        """Return the same with weights of the data, shape (N,)."""
        bank = self._filter_bank()
        if self._local is not None:
            return comb_gram(self, self._local, offsets, weights)
        if bank is None or bank.shape is None or not bank.is_exact or bank.response.shape[:2] != (1, 1):
            return None
        spectrum = bank.response[0, 0].astype(np.complex128)
        kernel = dispatch.from_spectrum(spectrum, bank.shape, real=bank.is_real)
        found = gram_at_offsets(kernel, weights.reshape(bank.shape), offsets)
        return found.reshape(len(offsets), -1)

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

    def _forward_into(self, x: Array, out: Array) -> None:
        """Write a product into `out`, a part of a larger array."""
        out[...] = self._forward(x)

    def add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        """Add ``factor B^H diag(weights) B x`` to `out`; differences do so band by band, which saves memory.

        Parameters
        ----------
        x : array of shape (..., D)
            Vectors.
        weights : array of shape (N,)
            Real numbers.
        factor : float
            A further number.
        out : array of the shape and type of x
            What it is added to.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> out = np.zeros(3)
        >>> Gradient(3).add_weighted_product(np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0]), 1.0, out)
        >>> out
        array([-1., -3.,  4.])
        """
        self._add_weighted_product(x, weights, factor, out)

    def _add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        inside = self.forward(x)
        inside *= weights
        inside *= factor
        out += self.adjoint(inside)

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

    def to_dense(self) -> Array:
        """Return the operator as an array of shape (N, D), which may share memory with the operator.

        Examples
        --------
        >>> from cofem.operators import Diagonal, Mask
        >>> (Mask([2, 0], 3) @ Diagonal([1.0, 2.0, 3.0])).to_dense()
        array([[0., 0., 3.],
               [1., 0., 0.]])
        """
        return self._to_dense()

    def _to_dense(self) -> Array:
        if self.shape[0] < self.shape[1]:  # fewer applications when it is built row by row
            return self.rows(np.arange(self.shape[0]))
        return self.columns(np.arange(self.shape[1])).T

    def astype(self, dtype: Any) -> Operator:
        """Return the operator with the numbers it stores in another precision.

        Parameters
        ----------
        dtype : dtype
            Its precision counts, single or double; whether the operator is complex does not change.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense(np.eye(2)).astype(np.float32).dtype
        dtype('float32')
        >>> Dense(1j * np.eye(2)).astype(np.float32).dtype
        dtype('complex64')
        """
        precision = np.dtype(dtype)
        if precision.name not in ("float32", "float64", "complex64", "complex128"):
            raise ValueError(f"dtype must be single or double precision, got {dtype!r}")
        return self._in_precision(precision.type(0).real.dtype.name)

    def _in_precision(self, precision: str) -> Operator:
        return self

    # --- the operator with some of its rows, or with other columns ----------------------------------

    def take_rows(self, indices: Any) -> Operator:
        """Return an operator of some rows, of its own kind where that is a matrix.

        Parameters
        ----------
        indices : array_like of int, shape (K,)
            Which rows, from 0 to N - 1, in any order.

        Returns
        -------
        Operator
            Of shape (K, D).

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Dense, Mask
        >>> Dense(np.eye(3)).take_rows([0, 2])
        <Dense(2, 3), shape (2, 3)>
        >>> (Mask([0, 3, 6], 8) @ DCT(8).T).take_rows([2])
        <Mask(1 of 8) @ DCT(8).T, shape (1, 8)>
        """
        return self._take_rows(as_indices(indices, self.shape[0], "indices"))

    def _take_rows(self, indices: np.ndarray) -> Operator:
        from cofem.operators.sampling import Mask

        return Mask(indices, self.shape[0]) @ self

    def _picked_again(self, indices: np.ndarray) -> Operator | None:
        """Return `take_rows` if that is an operator as cheap as this one on its own, else None."""
        return None

    def scale_columns(self, scale: Any) -> Operator:
        """Return the operator with each column multiplied by its own number, ``Phi @ Diagonal(scale)``.

        Parameters
        ----------
        scale : array_like of shape (D,)
            Finite numbers.

        Returns
        -------
        Operator
            A dense matrix gives another one, in its own precision.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, 2.0], [3.0, 4.0]]).scale_columns([1.0, 10.0]).to_dense()
        array([[ 1., 20.],
               [ 3., 40.]])
        >>> DCT(4).T.scale_columns(np.ones(4))
        <DCT(4).T @ Diagonal(4), shape (4, 4)>
        """
        return self._scale_columns(self._checked_row(scale, "scale"))

    def _scale_columns(self, scale: Array) -> Operator:
        from cofem.operators.sampling import Diagonal

        return self @ Diagonal(scale)

    def subtract_row(self, offset: Any) -> Operator:
        """Return the operator with one and the same row subtracted from every row.

        Parameters
        ----------
        offset : array_like of shape (D,)
            Finite numbers; complex ones only for a complex operator.

        Returns
        -------
        Operator
            A dense matrix gives another one, in its own precision; others give `Centred`.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, 2.0], [3.0, 4.0]]).subtract_row([2.0, 3.0]).to_dense()
        array([[-1., -1.],
               [ 1.,  1.]])
        >>> DCT(2).subtract_row([0.5, 0.5])
        <Centred(DCT(2)), shape (2, 2)>
        """
        return self._subtract_row(self._checked_row(offset, "offset"))

    def _subtract_row(self, offset: Array) -> Operator:
        from cofem.operators.centred import Centred

        return Centred(self, offset)

    def _checked_row(self, values: Any, name: str) -> Array:
        values = as_floating(values, name)
        if tuple(values.shape) != (self.shape[1],):
            raise ValueError(f"{name} must have shape ({self.shape[1]},), got {tuple(values.shape)}")
        return values

    # --- natural groups of coefficients -------------------------------------------------------------

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

    def row_parts(self) -> list[Operator]:
        """Return operators that are this one when they stand on top of each other, in their order.

        Each band of differences by itself, each part of a stack: work on one after the other needs no array
        of M numbers. By default the operator alone.

        Examples
        --------
        >>> from cofem.operators import DCT, Gradient, vstack
        >>> [part.shape for part in vstack([Gradient((2, 3)), DCT(6)]).row_parts()]
        [(3, 6), (4, 6), (6, 6)]
        """
        return self._row_parts()

    def _row_parts(self) -> list[Operator]:
        return [self]

    def _row_boxes(self) -> tuple[Box, ...] | None:
        return None

    def band_symbols(self, basis: str = "fourier") -> np.ndarray | None:
        """Return what each band of rows makes of the energy of each wave, or None if that is not known.

        A band B_b holds the rows of one label in `row_groups`. ``B_b^H B_b`` is, or is like, diagonal in the
        basis of waves, and these are its eigenvalues.

        Parameters
        ----------
        basis : {"fourier", "cosine"}
            "fourier": waves in the order of ``scipy.fft.fftn``; exact if the array is periodic.
            "cosine": in the order of ``scipy.fft.dctn`` of type II; exact for free first differences and
            for free mixed ones. Else they are those of an array without borders.

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

    # --- algebra ------------------------------------------------------------------------------------

    @property
    def H(self) -> Operator:
        """Hermitian adjoint, shape (D, N).

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).H.to_dense()
        array([[1.-1.j],
               [2.+1.j]])
        """
        return self._adjoint_operator()

    def _adjoint_operator(self) -> Operator:
        from cofem.operators.adjoints import Adjoint

        return Adjoint(self)

    @property
    def T(self) -> Operator:
        """Transpose, shape (D, N).

        Examples
        --------
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).T.to_dense()
        array([[1.+1.j],
               [2.-1.j]])
        """
        return self.H.conj()

    def conj(self) -> Operator:
        """Return the operator with complex conjugated entries.

        Examples
        --------
        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).conj().to_dense()
        array([[1.-1.j, 2.+1.j]])
        >>> Phi = DCT(8)
        >>> Phi.conj() is Phi  # it is real
        True
        """
        return self._conjugate_operator() if self.is_complex else self

    def _conjugate_operator(self) -> Operator:
        from cofem.operators.adjoints import Conjugate

        return Conjugate(self)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Operator):
            from cofem.operators.compose import compose

            return compose(self, other)
        other = as_array(other)
        if other.ndim == 1:
            return self.forward(other)
        if other.ndim == 2:
            return self.forward(other.T).T
        raise ValueError(f"Phi @ x wants x of shape (D,) or (D, L), got shape {tuple(other.shape)}")

    def __rmatmul__(self, other: Any) -> Any:
        other = as_array(other)
        if other.ndim not in (1, 2):
            raise ValueError(f"x @ Phi wants x of shape (N,) or (L, N), got shape {tuple(other.shape)}")
        return self.T.forward(other)

    def __add__(self, other: Any) -> Operator:
        if not isinstance(other, Operator):
            return NotImplemented
        from cofem.operators.compose import add

        return add(self, other)

    def __sub__(self, other: Any) -> Operator:
        return self + (-other) if isinstance(other, Operator) else NotImplemented

    def __neg__(self) -> Operator:
        return self * -1

    def __mul__(self, scalar: Any) -> Operator:
        if not _is_scalar(scalar):
            return NotImplemented
        from cofem.operators.compose import scale

        return scale(complex(scalar), self)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Operator:
        return self * (1 / complex(scalar)) if _is_scalar(scalar) else NotImplemented

    # --- the protocol of scipy.sparse.linalg --------------------------------------------------------

    def matvec(self, x: Array) -> Array:
        """Return ``Phi x`` for ``x`` of shape (D,) or (D, 1), in the same form, as SciPy's solvers ask.

        Examples
        --------
        >>> import numpy as np
        >>> from scipy.sparse.linalg import lsqr
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[2.0, 0.0], [0.0, 4.0]])
        >>> Phi.matvec(np.ones((2, 1))).shape
        (2, 1)
        >>> np.round(lsqr(Phi, np.array([2.0, 2.0]))[0], 6)
        array([1. , 0.5])
        """
        return self @ x

    def rmatvec(self, y: Array) -> Array:
        """Return ``Phi^H y`` for ``y`` of shape (N,) or (N, 1), in the same form.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).rmatvec(np.array([1.0]))
        array([1.-1.j, 2.+1.j])
        """
        return self.H @ y

    def matmat(self, x: Array) -> Array:
        """Return ``Phi x`` for ``x`` of shape (D, L).

        Examples
        --------
        Vectors are columns here, as in SciPy, and rows in `forward`:

        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
        >>> Phi.matmat(np.ones((3, 5))).shape, Phi.forward(np.ones((5, 3))).shape
        ((2, 5), (5, 2))
        """
        return self @ x

    def rmatmat(self, y: Array) -> Array:
        """Return ``Phi^H y`` for ``y`` of shape (N, L).

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0, 2.0], [0.0, 1.0]]).rmatmat(np.eye(2))
        array([[1., 0.],
               [2., 1.]])
        """
        return self.H @ y

    # What `pylops.LinearOperator(Phi)` asks.
    _matvec, _rmatvec = matvec, rmatvec

    # --- text ---------------------------------------------------------------------------------------

    def _expression(self) -> str:
        """Return the operator as one would type it, in short."""
        return f"{type(self).__name__}({self.shape[0]}, {self.shape[1]})"

    def _adjoint_expression(self) -> str:
        return self._bracketed(3) + (".H" if self.is_complex else ".T")

    def _bracketed(self, binding: int) -> str:
        """Return the expression, in brackets if it binds less tightly than ``binding``."""
        text = self._expression()
        return text if self._binding >= binding else f"({text})"

    def __str__(self) -> str:
        return self._expression()

    def __repr__(self) -> str:
        return f"<{self._expression()}, shape {self.shape}>"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, numbers.Number) or (array_api_compat.is_array_api_obj(value) and value.ndim == 0)
