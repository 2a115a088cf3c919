"""What the matrix of an operator is like: columns, rows, norms and Gram matrices.

Answers come from the structure where that gives them, else from products (`entries`, `combs`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cofem._arrays import Array, as_indices, namespace, to_numpy
from cofem.operators import entries
from cofem.operators.circulant import CirculantGram
from cofem.operators.combs import comb_gram, find_local_gram, nothing_is_known
from cofem.operators.filters import gram_at_offsets
from cofem.operators.structure import Structure
from cofem.operators.transforms import dispatch

if TYPE_CHECKING:
    from cofem.operators.base import Operator


class Matrix(Structure):
    """Questions about the entries of an operator, of shape (N, D)."""

    # --- entries ------------------------------------------------------------------------------------

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

    # --- norms --------------------------------------------------------------------------------------

    @cached_property
    def norm(self) -> float:
        """Spectral norm, the largest singular value.

        Exact where the structure gives it (orthonormal rows or columns, diagonal, circular convolution,
        and products of these with orthonormal factors) and where there are at most 32 rows or columns; else
        a Lanczos estimate from below, usually within a relative 1e-3 and the same on every call.

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

    # --- Gram matrices ------------------------------------------------------------------------------

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

    def nearest_circulant(self) -> CirculantGram | None:
        """Return the circular convolution that is nearest to ``Phi^H Phi``, for preconditioners, or None.

        More is known than by `circulant_gram`: of samples of a Fourier transform it is ``Phi^H Phi`` itself;
        where that depends on the lag between two places alone, or on maps of coils too, it is the mean over
        each lag (T. Chan 1988).

        Examples
        --------
        >>> from cofem.operators import FFT, Mask
        >>> (Mask([0, 3], 4) @ FFT(4)).nearest_circulant().eigenvalues.tolist()
        [1.0, 0.0, 0.0, 1.0]
        """
        return self._nearest_circulant()

    def _nearest_circulant(self) -> CirculantGram | None:
        return self.circulant_gram()

    def _lag_gram(self) -> np.ndarray | None:
        """Return ``<phi_i, phi_j>`` by ``i - j``, -n to n - 1 along each axis, where it is the same."""
        known = self.nearest_circulant()
        if known is None or not known.is_exact or not known.repeats:
            return None
        return np.tile(known.table(), (2,) * len(known.shape))

    def _nearest_of_views(self, each: Operator) -> CirculantGram | None:
        """Return `nearest_circulant` of an operator of every view that this one gives of its unknown."""
        return None

    def _copied(self) -> Operator | None:
        """Return the operator whose copies this one has along its diagonal, if it is that."""
        return None

    @cached_property
    def _local(self) -> CirculantGram | None:
        """How columns are coupled with their neighbours, found by asking; None if they are not, or known."""
        return find_local_gram(self) if nothing_is_known(self) else None

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
