"""The operator B of ``B u``, and what a fit wants to know about its rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import NamedTuple

import array_api_compat
import numpy as np
import scipy.sparse

from cofem._arrays import (
    Array,
    DeviceCache,
    in_precision,
    inner,
    is_torch,
    namespace,
    on_device_of,
    precision_of,
    to_numpy,
)
from cofem._windows import window_means, window_sums
from cofem.linalg.analysis.exact import exact_freedom
from cofem.linalg.analysis.null_space import null_basis
from cofem.operators import Operator
from cofem.operators.boxes import Box
from cofem.operators.dictionary import Dictionary

#: Entries of B up to which its degrees of freedom are computed exactly.
SMALL_ENTRIES = 2**18
#: Vectors that the diagonal of ``B^H diag(alpha) B`` is estimated from where entries are not to be had.
PROBES = 16
#: Numbers of all symbols up to which they are kept; else they are computed when they are needed, which takes
#: a tenth of a product.
MOST_SYMBOLS = 2**21
#: Share of entries that are not zero up to which products with them are faster than with all.
THIN = 0.1


class RowPart(NamedTuple):
    """Some rows of B, which follow each other: a band of differences, or all rows of an operator that is one.

    Attributes
    ----------
    rows : slice
        Which rows.
    operator : Operator
        Those rows of B.
    squares : Operator or None
        Their squared entries; None if those are not to be had.
    boxes : tuple of Box or None
        Its bands as boxes of the grid, the first row of the part being number 0.
    """

    rows: slice
    operator: Operator
    squares: Operator | None
    boxes: tuple[Box, ...] | None


class Rows:
    """B, shape (M, D), with its bands, the places of its rows and what both say about precisions.

    Parameters
    ----------
    operator : Operator
        B.
    like : array
        Any array of the precision, library and device of the unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Gradient
    >>> rows = Rows(Gradient((4, 4)), like=np.zeros(1))
    >>> rows.n_rows, rows.n_bands, rows.grid
    (24, 2, (4, 4))
    >>> rows.diagonal(np.ones(24)).reshape(4, 4)[0].tolist()
    [2.0, 3.0, 3.0, 2.0]
    """

    def __init__(self, operator: Operator, like: Array) -> None:
        self.operator = operator.astype(precision_of(like))
        self.like = like
        self._gram: tuple[Dictionary, scipy.sparse.csr_array | None] | None = None
        self._full_gram: tuple[Dictionary, np.ndarray] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows M."""
        return self.operator.shape[0]

    @cached_property
    def bands(self) -> np.ndarray:
        """Which band each row belongs to, numbered from 0, shape (M,)."""
        labels = self.operator.row_groups
        return np.zeros(self.n_rows, dtype=np.intp) if labels is None else np.asarray(labels, dtype=np.intp)

    @cached_property
    def boxes(self) -> tuple[Box, ...] | None:
        """The bands as boxes of the grid, where they are such: then `bands` need not be in memory."""
        found = self.operator.row_boxes
        return found if found and self.operator.column_shape is not None else None

    @cached_property
    def parts(self) -> list[RowPart]:
        """B in parts, so that work on its rows needs arrays of the grid only, where bands are boxes.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> [part.rows for part in Rows(Gradient((2, 2)), like=np.zeros(1)).parts]
        [slice(0, 2, None), slice(2, 4, None)]
        """
        if self.boxes is None:
            return [RowPart(slice(0, self.n_rows), self.operator, self._squares, None)]
        found, start = [], 0
        for operator in self.operator.row_parts():
            rows = slice(start, start + operator.shape[0])
            squares = None if self._squares is None else operator.abs2()
            boxes = tuple(
                box._replace(start=box.start - start)
                for box in self.boxes
                if rows.start <= box.start < rows.stop
            )
            found.append(RowPart(rows, operator, squares, boxes))
            start = rows.stop
        return found

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many rows each band has."""
        if self.boxes is not None:
            return np.array([box.size for box in self.boxes])
        return np.bincount(self.bands)

    @property
    def n_bands(self) -> int:
        """Number of bands."""
        return self.sizes.size

    def symbols(self) -> Iterator[np.ndarray]:
        """Iterate over what each band makes of the energy of cosine waves, shape of the grid."""
        if self._few_symbols is not None:
            return iter(self._few_symbols)
        return (symbol.astype(np.float32) for symbol in self.operator.each_band_symbol("cosine"))

    @cached_property
    def _few_symbols(self) -> list[np.ndarray] | None:
        """All symbols, where they are few enough to be kept."""
        if self.n_bands * self.operator.shape[1] > MOST_SYMBOLS:
            return None
        return [symbol.astype(np.float32) for symbol in self.operator.each_band_symbol("cosine")]

    def sum_of_symbols(self, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the symbols over bands, shape of the grid, in double precision."""
        assert self.grid is not None
        total = np.zeros(self.grid)
        for weight, symbol in zip(weights, self.symbols(), strict=True):
            total += weight * symbol
        return total

    @cached_property
    def grid(self) -> tuple[int, ...] | None:
        """Shape of the array of places, where symbols are known."""
        stacks = self.operator.column_shape is None or self.boxes is None
        if stacks:  # parts of a stack may disagree
            found = self.operator.band_symbols("cosine")
            return None if found is None else found.shape[1:]
        first = next(self.operator.each_band_symbol("cosine"), None)
        return None if first is None else first.shape

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Axes of the grid that rows go along, counted from the last, -1: along others are arrays apart.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> Rows(Gradient((3, 4, 4), axes=(1, 2)), like=np.zeros(1)).axes
        (-2, -1)
        """
        found: set[int] = set()
        grid = self.grid or ()
        for symbol in self.symbols() if grid else ():
            # A product over axes: where it is largest, none of the others is zero.
            top = [int(i) for i in np.unravel_index(int(np.argmax(symbol)), grid)]
            for axis in range(len(grid)):
                where: list[int | slice] = [*top]
                where[axis] = slice(None)
                line = symbol[tuple(where)]
                if (line != line[0]).any():
                    found.add(axis - len(grid))
        return tuple(sorted(found))

    @cached_property
    def energies(self) -> np.ndarray:
        """Mean squared norm of the rows of each band."""
        if self.grid is not None:
            return np.array([symbol.mean(dtype=np.float64) for symbol in self.symbols()])
        norms = to_numpy(self.operator.H.column_norms()).astype(np.float64)
        return np.bincount(self.bands, weights=norms**2) / self.sizes

    def for_each(self, numbers: np.ndarray) -> Array:
        """Give each row the number of its band, shape (M,), where the unknown is."""
        values = np.asarray(numbers, dtype=precision_of(self.like))
        values = np.repeat(values, self.sizes) if self.boxes is not None else values[self.bands]
        return on_device_of(self.like, values)

    def band_means(self, alpha: Array) -> np.ndarray:
        """Return the geometric mean of the precisions in each band.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> Rows(Gradient(5), like=np.zeros(1)).band_means(np.array([1.0, 4.0, 1.0, 4.0])).tolist()
        [2.0]
        """
        if self.boxes is not None:  # no second array of that size
            xp, parts = namespace(alpha), (alpha[box.start : box.stop] for box in self.boxes)
            return np.exp([float(np.mean(to_numpy(xp.log(part)), dtype=np.float64)) for part in parts])
        return np.exp(self.band_sums(namespace(alpha).log(alpha)) / self.sizes)

    def band_sums(self, values: Array, weights: Array | None = None) -> np.ndarray:
        """Return the sums of numbers of rows, shape (M,), over each band, times weights if there are any.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> Rows(Gradient((2, 2)), like=np.zeros(1)).band_sums(np.array([1.0, 2.0, 3.0, 4.0])).tolist()
        [3.0, 7.0]
        """
        if self.boxes is not None:  # no second array of that size
            spans = [slice(box.start, box.stop) for box in self.boxes]
            if weights is None:
                return np.array([float(np.sum(to_numpy(values[span]), dtype=np.float64)) for span in spans])
            return np.array([inner(values[span], weights[span]) for span in spans])
        products = to_numpy(values if weights is None else values * weights)
        if self._starts is not None:
            return np.add.reduceat(products, self._starts, dtype=np.float64)
        return np.bincount(self.bands, weights=products, minlength=self.n_bands)

    @cached_property
    def _starts(self) -> np.ndarray | None:
        """Where each band starts, if one follows the other."""
        if self.boxes is not None:
            return np.array([box.start for box in self.boxes])
        in_order = bool((np.diff(self.bands) >= 0).all()) and bool((self.sizes > 0).all())
        return np.cumsum(self.sizes) - self.sizes if in_order else None

    def diagonal(self, alpha: Array) -> Array:
        """Return the diagonal of ``B^H diag(alpha) B``, shape (D,): exact, or as far as it is to be had."""
        squares = self._squares
        if squares is not None:
            return in_precision(squares.adjoint(alpha), precision_of(alpha))
        places = self.operator.row_places
        if places is not None:
            weights = to_numpy(alpha).astype(np.float64) * self.energies[self.bands]
            found = np.bincount(places, weights=weights, minlength=self.operator.shape[1])
            return on_device_of(alpha, found.astype(precision_of(alpha)))
        # Squared entries of B^H sqrt(alpha) p, for signs p, have the diagonal as their mean.
        xp = namespace(alpha)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, self.n_rows))
        probes = on_device_of(alpha, signs.astype(precision_of(alpha))) * xp.sqrt(alpha)
        found = xp.mean(xp.abs(self.operator.adjoint(probes)) ** 2, axis=0)
        return found + 1e-3 * float(xp.mean(found))

    @property
    def diagonal_is_exact(self) -> bool:
        """Whether `diagonal` is exact."""
        return self._squares is not None

    def pooled(self, values: Array, part: RowPart) -> Array:
        """Average numbers of the rows of a part over the same band at neighbouring places, if there are some.

        They may be overwritten.
        """
        grid = self.grid
        if grid is None or not _is_assigned_to(values):
            return values
        if part.boxes is not None:
            for box in part.boxes:
                means = window_means(box.of(values), 1, self.axes)
                values[box.start : box.stop] = namespace(values).reshape(means, (-1,))
            return values
        if self.operator.row_places is None:
            return values
        index, counts = self._cells
        where, xp = index.like(values), namespace(values)
        cells = xp.zeros(
            (self.n_bands * prod(grid),), dtype=values.dtype, device=array_api_compat.device(values)
        )
        cells[where] = values
        sums = window_sums(xp.reshape(cells, (self.n_bands, *grid)), 1, self.axes)
        return xp.reshape(sums, (-1,))[where] * counts.like(values)

    @cached_property
    def _cells(self) -> tuple[DeviceCache, DeviceCache]:
        """The cell of each row in an array of all bands, and the inverse number of rows around each."""
        grid, places = self.grid, self.operator.row_places
        assert grid is not None
        index = self.bands * prod(grid) + places
        present = np.zeros(self.n_bands * prod(grid))
        present[index] = 1
        counts = window_sums(present.reshape(self.n_bands, *grid), 1, self.axes).ravel()[index]
        return DeviceCache(index), DeviceCache((1 / counts).astype(precision_of(self.like)))

    def pooled_places(self, values: Array, kind: Array | None = None) -> Array:
        """Average numbers of places, shape (D,), over neighbours, where there are some, of the same kind.

        Parameters
        ----------
        values : array of shape (D,)
            The numbers.
        kind : array of shape (D,), optional
            1 for places of one kind, 0 for those of the other.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> rows = Rows(Gradient(4), like=np.zeros(1))
        >>> rows.pooled_places(np.array([1.0, 3.0, 50.0, 70.0]), np.array([1.0, 1.0, 0.0, 0.0])).tolist()
        [2.0, 2.0, 60.0, 60.0]
        """
        grid = self.grid
        if grid is None or not _is_assigned_to(values):
            return values
        xp = namespace(values)
        values = xp.reshape(values, grid)
        if kind is None:
            return xp.reshape(window_means(values, 1, self.axes), (-1,))
        kind = xp.reshape(kind, grid)
        found = xp.zeros_like(values)
        for one in (kind, 1 - kind):
            sums = window_sums(values * one, 1, self.axes)
            sums /= xp.where(one > 0, window_sums(one, 1, self.axes), 1)
            sums *= one
            found += sums
        return xp.reshape(found, (-1,))

    @property
    def has_squares(self) -> bool:
        """Whether the squared entries of B are to be had as an operator."""
        return self._squares is not None

    @cached_property
    def _squares(self) -> Operator | None:
        return self.operator.abs2()

    def freedom(self, alpha: Array) -> Array:
        r"""Return how many degrees of freedom each row stands for, shape (M,).

        .. math:: \nu_i = \alpha_i [B (B^H \mathrm{diag}(\alpha) B)^+ B^H]_{ii}

        is between 0 and 1 and sums to the rank of B: 1 for each row of an invertible B, less in a redundant
        one. Exact for small B; with bands of a stationary process where waves are known; else the same for
        every row.

        Examples
        --------
        First and second differences of 8 samples have rank 7:

        >>> import numpy as np
        >>> from cofem.operators import Gradient, vstack
        >>> B = vstack([Gradient(8), Gradient(8, order=2)])
        >>> rows = Rows(B, like=np.zeros(1))
        >>> nu = rows.freedom(np.ones(13))
        >>> round(float(nu.sum()), 6), bool((nu > 0).all() and (nu <= 1).all())
        (7.0, True)
        """
        n, d = self.operator.shape
        if not self.freedom_of_bands:
            return on_device_of(alpha, exact_freedom(self.matrix, to_numpy(alpha), self._rank))
        if self.grid is None:
            return self.for_each(np.full(self.n_bands, min(1.0, d / n)))
        return self.for_each(self.stationary_freedom(alpha))

    def freedom_by_bands(self, alpha: Array) -> list[tuple[slice, float]] | None:
        """Return `freedom` as the rows of each band and a number for them; None if that varies there."""
        if not self.freedom_of_bands or self.grid is None or self.boxes is None:
            return None
        numbers = self.stationary_freedom(alpha).tolist()
        return [(slice(box.start, box.stop), number) for box, number in zip(self.boxes, numbers, strict=True)]

    @property
    def freedom_of_bands(self) -> bool:
        """Whether all rows of a band have the same degrees of freedom."""
        return prod(self.operator.shape) > SMALL_ENTRIES

    def stationary_freedom(self, alpha: Array) -> np.ndarray:
        """Return the degrees of freedom of a row of each band, if alpha were constant in each band."""
        means = self.band_means(alpha)
        inverse = self.sum_of_symbols(means / means.max())
        np.maximum(inverse, 1e-12 * float(inverse.max()), out=inverse)
        np.reciprocal(inverse, out=inverse)
        parts = [float(np.vdot(symbol, inverse)) for symbol in self.symbols()]
        return np.minimum(np.array(parts) * (means / means.max()) / self.sizes, 1.0)

    @cached_property
    def sparse(self) -> scipy.sparse.csr_array | None:
        """B as a sparse array of real numbers, if it is one."""
        matrix = self.operator.sparse_matrix()
        return None if matrix is None or np.iscomplexobj(matrix.data) else matrix.astype(np.float64)

    def weighted_gram(self, weights: np.ndarray) -> np.ndarray | scipy.sparse.csr_array:
        """Return ``B^H diag(weights) B``, in double precision, sparse if B is."""
        if self._thin is None:
            scaled = np.sqrt(weights)[:, None] * self.matrix  # of X^T X, NumPy computes one half
            return scaled.conj().T @ scaled
        found = self._thin.conj().T @ (scipy.sparse.diags_array(weights) @ self._thin)
        return found if self.sparse is not None else found.toarray()

    @cached_property
    def _thin(self) -> scipy.sparse.csr_array | None:
        """B as a sparse array, also where only its entries show that it is one; then not for large B."""
        if self.sparse is not None:
            return self.sparse
        if np.count_nonzero(self.matrix) > THIN * self.matrix.size:
            return None
        return scipy.sparse.csr_array(self.matrix)

    def gram_of(self, phi: Dictionary) -> scipy.sparse.csr_array | None:
        """Return ``Phi^H Phi`` as a sparse array of real numbers, if it is one; the last one is kept."""
        if self._gram is None or self._gram[0] is not phi:
            matrix = phi.operator.sparse_matrix()
            if matrix is None or np.iscomplexobj(matrix.data):
                self._gram = phi, None
            else:
                self._gram = phi, (matrix.T @ matrix).tocsr()
        return self._gram[1]

    def full_gram_of(self, phi: Dictionary) -> np.ndarray:
        """Return ``Phi^H Phi`` as an array, in double precision; the last one is kept."""
        if self._full_gram is None or self._full_gram[0] is not phi:
            gram = self.gram_of(phi)
            self._full_gram = phi, phi.matrix.conj().T @ phi.matrix if gram is None else gram.toarray()
        return self._full_gram[1]

    @cached_property
    def null_basis(self) -> np.ndarray:
        """An orthonormal basis of what B does not see, shape (K, D), as far as it is known."""
        return null_basis(self).astype(precision_of(self.like))

    @cached_property
    def _rank(self) -> int:
        return int(np.linalg.matrix_rank(self.matrix))

    @cached_property
    def matrix(self) -> np.ndarray:
        """All entries, shape (M, D), in double precision; for small B."""
        matrix = to_numpy(self.operator.to_dense())
        return np.asarray(matrix, dtype=np.complex128 if np.iscomplexobj(matrix) else np.float64)


def _is_assigned_to(x: Array) -> bool:
    """Tell whether parts of such arrays can be assigned to by indices."""
    return isinstance(x, np.ndarray) or is_torch(x)
