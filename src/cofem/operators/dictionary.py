"""Phi as a fit sees it: an operator that counts its products and remembers its norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from cofem._arrays import (
    Array,
    in_precision,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    total,
)
from cofem.operators.base import Operator
from cofem.operators.circulant import CirculantGram
from cofem.operators.combs import columns_are_shifts
from cofem.operators.dense import Dense
from cofem.operators.entries import StoredMatrix
from cofem.operators.filters import BlockCirculantGram
from cofem.operators.spectral_atoms import SpectralAtoms


class ProductCounter:
    """How many vectors Phi or its adjoint was applied to; shared by all that is derived from one Phi."""

    def __init__(self) -> None:
        self.products = 0


class Dictionary(Operator):
    """An operator whose products are counted and checked, and whose norms are computed once.

    Products through `forward`, `adjoint` and `gram` count, whoever asks for them; looking at entries
    (`columns`, `column_norms`) does not. What `take_rows` returns shares the count.

    Parameters
    ----------
    operator : Operator
        Phi, shape (N, D).
    like : array
        Any array of the precision, library, device and kind (real or complex) of the coefficients.
    norms : array of shape (D,), optional
        The norms of the columns, where they are known already.
    counter : ProductCounter, optional
        The count to add to; a new one by default.
    on_average : bool
        Whether variances are wanted by couplings of columns on the average over a grid alone, where a few
        rows are missing that would make them differ from place to place.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> phi = Dictionary(Dense([[3.0, 0.0], [4.0, 2.0]]), like=np.zeros(1))
    >>> phi.gram(np.ones((5, 2))).shape, phi.applications  # Phi^H Phi on five vectors
    ((5, 2), 5.0)
    >>> phi.take_rows(np.array([1])).forward(np.ones(2)).tolist(), phi.applications
    ([6.0], 5.5)
    >>> phi.column_energy.tolist(), phi.energy
    ([25.0, 4.0], 29.0)
    """

    def __init__(
        self,
        operator: Operator,
        like: Array,
        *,
        norms: Array | None = None,
        counter: ProductCounter | None = None,
        on_average: bool = False,
    ) -> None:
        super().__init__(
            operator.shape,
            is_complex=operator.is_complex,
            precision=operator.precision,
            facts=operator.facts,
        )
        self.operator = operator
        self.like = like
        self.counter = ProductCounter() if counter is None else counter
        self.on_average = on_average
        if norms is not None:
            self.column_energy = self._energy_of(norms)  # what is known need not be computed

    # --- products ----------------------------------------------------------------------------------

    @property
    def applications(self) -> float:
        """Number of vectors that ``Phi^H Phi`` was applied to, in halves.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT
        >>> phi = Dictionary(DCT(8), like=np.zeros(1))
        >>> y = phi.forward(np.ones(8))
        >>> phi.applications
        0.5
        """
        return self.counter.products / 2

    def forward(self, x: Array) -> Array:
        """Return ``Phi x`` for x of shape (..., D), counted.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[1.0, 2.0]]), like=np.zeros(1)).forward(np.ones(2))
        array([3.])
        """
        return self._counted(self.operator.forward, x, self.shape[0])

    def adjoint(self, y: Array) -> Array:
        """Return ``Phi^H y`` for y of shape (..., N), counted.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[1.0, 2.0]]), like=np.zeros(1)).adjoint(np.ones(1))
        array([1., 2.])
        """
        return self._counted(self.operator.adjoint, y, self.shape[1])

    def gram(self, x: Array) -> Array:
        """Return ``Phi^H Phi x`` for x of shape (..., D), counted as two products.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[1.0, 2.0]]), like=np.zeros(1)).gram(np.ones(2))
        array([3., 6.])
        """
        return self._counted(self.operator.gram, x, self.shape[1], 2)

    def gradient_step(
        self, x: Array, gain: float, shift: Array | None = None, overwrite_x: bool = False
    ) -> Array:
        """Return ``x - gain Phi^H Phi x + shift`` for x of shape (..., D), counted as two products.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> phi = Dictionary(Dense([[1.0, 2.0]]), like=np.zeros(1))
        >>> phi.gradient_step(np.ones(2), 0.5), phi.applications
        (array([-0.5, -2. ]), 1.0)
        """

        def step(x: Array) -> Array:
            return self.operator.gradient_step(x, gain, shift, overwrite_x)

        return self._counted(step, x, self.shape[1], 2)

    def dual_gram(self, v: Array, weights: Array | None = None) -> Array:
        """Return ``Phi diag(weights) Phi^H v`` for v of shape (..., N), counted as two products.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> phi = Dictionary(Dense([[1.0, 2.0]]), like=np.zeros(1))
        >>> phi.dual_gram(np.ones(1), np.array([1.0, 10.0])), phi.applications
        (array([41.]), 1.0)
        """
        return self._counted(lambda v: self.operator.dual_gram(v, weights), v, self.shape[0], 2)

    def _counted(self, product: Callable[[Array], Array], x: Array, length: int, products: int = 1) -> Array:
        out = product(x)
        # The operator was right when it was looked at first; it may be a user's own and change its mind.
        wanted = (*x.shape[:-1], length)
        is_real = not is_complex(x) and not self.is_complex
        if tuple(out.shape) != wanted or (is_real and is_complex(out)):
            raise ValueError(
                f"Phi must return {'real' if is_real else 'complex'} numbers of shape {wanted} for an input "
                f"of shape {x.shape}, got dtype {out.dtype} and shape {out.shape}"
            )
        self.counter.products += products * math.prod(x.shape[:-1])
        return out

    def _forward(self, x: Array) -> Array:
        return self.operator._forward(x)

    def _adjoint(self, y: Array) -> Array:
        return self.operator._adjoint(y)

    def take_rows(self, indices: Any, on_average: bool = False) -> Dictionary:
        """Return some rows, with the same count; the same object while somebody has it, and what it knows.

        Parameters
        ----------
        indices : array of int
            The rows.
        on_average : bool
            As in `Dictionary`.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT
        >>> phi = Dictionary(DCT(8), like=np.zeros(1))
        >>> phi.take_rows([0, 3]).counter is phi.counter
        True
        """
        key = np.asarray(indices).tobytes(), on_average
        found = self._taken.get(key)
        if found is None:
            rows = self.operator.take_rows(indices)
            found = Dictionary(rows, self.like, counter=self.counter, on_average=on_average)
            self._taken[key] = found
        return found

    @cached_property
    def _taken(self) -> WeakValueDictionary[tuple[bytes, bool], Dictionary]:
        return WeakValueDictionary()

    # --- what is computed once ----------------------------------------------------------------------

    @property
    def norms(self) -> Array:
        """Norms of the columns, shape (D,), in the precision and on the device of the fit.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[3.0, 0.0], [4.0, 2.0]]), like=np.zeros(1)).norms
        array([5., 2.])
        """
        return namespace(self.column_energy).sqrt(self.column_energy)  # not kept: it is a long vector

    @property
    def is_zero(self) -> Array:
        """Which columns cannot be told from zero, shape (D,), on the device of the fit.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[3.0, 0.0]]), like=np.zeros(1)).is_zero
        array([False,  True])
        """
        norms = self.norms
        return norms <= self.operator.norm_resolution(norms)

    def with_scaled_columns(self, scale: Array) -> Dictionary:
        """Return the dictionary with its columns multiplied by `scale`, shape (D,), with the same count.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> phi = Dictionary(Dense([[3.0, 0.0], [4.0, 2.0]]), like=np.zeros(1))
        >>> phi.with_scaled_columns(np.array([1.0, 2.0])).norms
        array([5., 4.])
        """
        scaled = self.operator.scale_columns(scale)
        norms = self.norms
        moved = on_device_of(norms, scale) if isinstance(scale, np.ndarray) else scale
        norms = norms * moved
        return Dictionary(scaled, self.like, norms=norms, counter=self.counter, on_average=self.on_average)

    @cached_property
    def column_energy(self) -> Array:
        """``||phi_j||^2``, shape (D,), in the precision and on the device of the fit.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[3.0, 0.0], [4.0, 2.0]]), like=np.zeros(1)).column_energy
        array([25.,  4.])
        """
        return self._energy_of(self.operator.column_norms())

    def _energy_of(self, norms: Array) -> Array:
        precision = precision_of(self.like)
        if isinstance(norms, np.ndarray):
            norms = on_device_of(self.like, norms.astype(precision))
        norms = in_precision(norms, precision)
        return norms * norms

    @cached_property
    def energy(self) -> float:
        """``||Phi||_F^2``, the sum of the column energies.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Identity
        >>> Dictionary(Identity(3), like=np.zeros(1)).energy
        3.0
        """
        return total(self.column_energy)

    @cached_property
    def least_energy(self) -> float:
        """Smallest ``||phi_j||^2``.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[3.0, 0.0], [4.0, 2.0]]), like=np.zeros(1)).least_energy
        4.0
        """
        return float(namespace(self.column_energy).min(self.column_energy))

    @cached_property
    def gain(self) -> float:
        """``||Phi||_2^2``, the largest eigenvalue of ``Phi^H Phi``.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT
        >>> Dictionary(2.0 * DCT(8), like=np.zeros(1)).gain
        4.0
        """
        return float(self.operator.norm) ** 2

    @cached_property
    def matrix(self) -> np.ndarray:
        """All entries, shape (N, D), in double precision, for the methods that need them.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Identity
        >>> Dictionary(Identity(2), like=np.zeros(1)).matrix
        array([[1., 0.],
               [0., 1.]])
        """
        matrix = self.operator.to_dense()
        return np.asarray(matrix, dtype=np.complex128 if np.iscomplexobj(matrix) else np.float64)

    @cached_property
    def squares(self) -> Operator:
        """The operator with entries ``|Phi_ij|^2``, written out where there is no cheap one.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[1.0, -2.0]]), like=np.zeros(1)).squares.to_dense()
        array([[1., 4.]])
        """
        squares = self.operator.abs2()
        precision = precision_of(self.like)
        return Dense(np.abs(self.matrix).astype(precision) ** 2) if squares is None else squares

    # --- the operator's own answers -----------------------------------------------------------------

    def column_norms(self) -> Array:
        """Return the Euclidean norms of the columns, as the operator gives them.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dictionary(Dense([[3.0, 0.0], [4.0, 2.0]]), like=np.zeros(1)).column_norms()
        array([5., 2.])
        """
        return self.operator.column_norms()

    @property
    def column_norms_exact(self) -> bool:
        """Whether `column_norms` is exact rather than estimated.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT
        >>> Dictionary(DCT(8), like=np.zeros(1)).column_norms_exact
        True
        """
        return self.operator.column_norms_exact

    def _columns(self, indices: np.ndarray) -> Array:
        columns = self.operator._columns(indices)
        return on_device_of(self.like, columns) if isinstance(columns, np.ndarray) else columns

    def _rows(self, indices: np.ndarray) -> Array:
        return self.operator._rows(indices)

    def _local_gram(self, indices: np.ndarray) -> Array:
        return self.operator._local_gram(indices)

    @cached_property
    def _known_circulant(self) -> CirculantGram | None:
        return self.operator.circulant_gram()

    def _circulant_gram(self) -> CirculantGram | None:
        return self._known_circulant

    @cached_property
    def is_like_a_convolution(self) -> bool:
        """Whether columns are shifts of each other, on a grid or a line, or close to that.

        Examples
        --------
        >>> import numpy as np
        >>> from scipy.linalg import toeplitz
        >>> from cofem.operators import DCT, Dense
        >>> decay = np.r_[0.5 ** np.arange(5), np.zeros(15)]
        >>> Dictionary(Dense(toeplitz(decay, np.zeros(20))), like=np.zeros(1)).is_like_a_convolution
        True
        >>> Dictionary(DCT(20), like=np.zeros(1)).is_like_a_convolution
        False
        """
        return self.circulant_gram() is not None or columns_are_shifts(self.operator)

    @cached_property
    def _known_nearest(self) -> CirculantGram | None:
        return self.operator.nearest_circulant()

    def _nearest_circulant(self) -> CirculantGram | None:
        return self._known_nearest

    @cached_property
    def _known_blocks(self) -> BlockCirculantGram | None:
        return self.operator.block_circulant_gram()

    def _block_circulant_gram(self) -> BlockCirculantGram | None:
        return self._known_blocks

    @cached_property
    def _known_atoms(self) -> SpectralAtoms | None:
        return self.operator.spectral_atoms()

    def _spectral_atoms(self) -> SpectralAtoms | None:
        return self._known_atoms

    def _offset_gram(self, offsets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        return self.operator._offset_gram(offsets, weights)

    def _stored_matrix(self) -> StoredMatrix | None:
        return self.operator.stored_matrix()

    def _largest_entry(self) -> float | None:
        return self.operator.largest_entry()

    def _parts(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def _device_array(self) -> Array | None:
        return self.operator.device_array

    def _spectral_norm(self) -> float:
        return self.operator.norm

    def _abs2(self) -> Operator | None:
        return self.operator.abs2()

    def _stored_entries(self) -> int:
        return self.operator.stored_entries

    def _to_dense(self) -> Array:
        return self.operator.to_dense()

    def _in_precision(self, precision: str) -> Operator:
        return self.operator._in_precision(precision)

    def _column_groups(self) -> np.ndarray | None:
        return self.operator.groups

    def _row_groups(self) -> np.ndarray | None:
        return self.operator.row_groups

    def _column_shape(self) -> tuple[int, ...] | None:
        return self.operator.column_shape

    def _adjoint_operator(self) -> Operator:
        return self.operator.H

    def _expression(self) -> str:
        return str(self.operator)
