"""Operators that pick or scale entries: Mask, Identity and Diagonal."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse

from cofem._arrays import (
    Array,
    DeviceCache,
    as_floating,
    as_indices,
    as_shape,
    conj,
    in_precision,
    is_complex,
    is_torch,
    namespace,
    precision_of,
    require_numpy,
    squared_modulus,
    to_numpy,
)
from cofem._blocks import LONG_VECTOR
from cofem.operators.action import Weights
from cofem.operators.base import Operator
from cofem.operators.circulant import CirculantGram
from cofem.operators.facts import Facts
from cofem.operators.filters import FilterBank

# Length of a scattered vector from which one assignment per vector beats one for the whole batch, which
# jumps between the vectors and so out of the cache.
_LONG_ENOUGH_TO_SCATTER_ALONE = 1024


class Mask(Operator):
    """Pick entries of a vector: the rows of the identity that were measured.

    Parameters
    ----------
    rows : array_like of int, shape (N,), or of bool, shape ``n``
        The picked entries, in order; entries may repeat. Or True for each picked entry, in C order.
    n : int or tuple of int, optional
        Length of the vector, or shape of the array it flattens in C order. May be left out for booleans.

    Examples
    --------
    >>> import numpy as np
    >>> Mask([3, 0], 4) @ np.array([10.0, 11.0, 12.0, 13.0])
    array([13., 10.])
    >>> Mask([True, False, True]).H @ np.array([1.0, 2.0])
    array([1., 0., 2.])
    """

    def __init__(self, rows: Any, n: Any = None) -> None:
        rows = to_numpy(rows)
        if rows.dtype == bool:
            shape = rows.shape if n is None else as_shape(n, "n")
            self.signal_shape = shape
            if rows.shape != shape or not rows.any():
                raise ValueError(
                    f"rows as booleans must have shape n = {shape} and pick at least one entry, "
                    f"got shape {rows.shape} with {rows.sum()} picked"
                )
            length = rows.size
            rows = np.flatnonzero(rows)
        elif n is None:
            raise ValueError("n, the length of the vector, must be given unless rows are booleans")
        else:
            self.signal_shape = as_shape(n, "n")
            length = int(np.prod(self.signal_shape))
            rows = as_indices(rows, length, "rows")
        self.indices = rows
        # rows = picked[position], with picked sorted and without repetitions: memory is then read in order,
        # which for random rows of a long vector is several times faster.
        in_order = bool((np.diff(rows) > 0).all())
        if in_order:  # then nothing of it need be kept
            self._picked, position, self._counts = rows, None, np.ones(1, dtype=np.intp)
        else:
            self._picked, position, self._counts = np.unique(rows, return_inverse=True, return_counts=True)
        self._unique = len(self._picked) == len(rows)
        self._position = position
        self._multiplicities: dict[str, DeviceCache] = {}
        self._cached_rows, self._cached_picked = DeviceCache(rows), DeviceCache(self._picked)
        self._cached_position = self._cached_rows if position is None else DeviceCache(position)
        super().__init__(
            (len(rows), length),
            facts=Facts(
                row_gram=1.0 if self._unique else None,
                diagonal=in_order and len(rows) == length,
                one_per_row=True,
                one_per_column=self._unique,
            ),
        )

    def _forward(self, x: Array) -> Array:
        xp = namespace(x)
        picked = xp.take(x, self._cached_picked.like(x), axis=-1)
        if self._position is None:
            return picked
        return xp.take(picked, self._cached_position.like(x), axis=-1)

    def _adjoint(self, y: Array) -> Array:
        if not isinstance(y, np.ndarray):
            return self._scattered(y)
        batch = y.shape[:-1]
        targets = self.indices
        if not self._unique:
            # Equal rows next to each other, then one sum for each run of them.
            together = np.take(y, self._sorting, axis=-1)
            y = np.add.reduceat(together, np.cumsum(self._counts) - self._counts, axis=-1)
            targets = self._picked
        vectors = y.reshape(-1, y.shape[-1])
        out = np.zeros((vectors.shape[0], self.shape[1]), dtype=y.dtype)
        if targets.shape[0] < _LONG_ENOUGH_TO_SCATTER_ALONE:
            out[:, targets] = vectors
        else:
            for i in range(vectors.shape[0]):
                out[i, ...][targets] = vectors[i, ...]
        return out.reshape(*batch, self.shape[1])

    def _scattered(self, y: Array) -> Array:
        """Do what `_adjoint` does, on other libraries than NumPy."""
        xp, batch = namespace(y), y.shape[:-1]
        if is_torch(y):
            out = xp.zeros((*batch, self.shape[1]), dtype=y.dtype, device=y.device)
            rows = self._cached_rows.like(y)
            return out.index_copy_(-1, rows, y) if self._unique else out.index_add_(-1, rows, y)
        if not self._unique:
            require_numpy(y, f"{self} with repeated rows")
        # The standard has no assignment by indices: entries are looked up, most in a zero at the end.
        zero = xp.zeros((*batch, 1), dtype=y.dtype, device=array_api_compat.device(y))
        return xp.take(xp.concat([y, zero], axis=-1), self._sources.like(y), axis=-1)

    @cached_property
    def _sources(self) -> DeviceCache:
        sources = np.full(self.shape[1], self.shape[0], dtype=np.intp)
        sources[self.indices] = np.arange(self.shape[0])
        return DeviceCache(sources)

    @cached_property
    def _sorting(self) -> np.ndarray:
        return np.argsort(self.indices, kind="stable")

    def _multiplicity(self, precision: str) -> DeviceCache:
        """How often each entry is picked, shape (n,): the diagonal of the Gram operator."""
        if precision not in self._multiplicities:
            multiplicity = np.zeros(self.shape[1], dtype=precision)
            multiplicity[self._picked] = self._counts
            if self.shape[1] >= LONG_VECTOR:  # who needs it brings it into an order of his own
                return DeviceCache(multiplicity)
            self._multiplicities[precision] = DeviceCache(multiplicity)
        return self._multiplicities[precision]

    def _gram_diagonal(self) -> Weights:
        return self._multiplicity

    def _take_rows(self, indices: np.ndarray) -> Operator:
        return Mask(self.indices[indices], self.shape[1])

    _picked_again = _take_rows

    def _gram(self, x: Array) -> Array:
        if self._unique and isinstance(x, np.ndarray) and self.shape[1] >= LONG_VECTOR:
            out = np.zeros_like(x)  # no array of weights to be kept
            out[..., self.indices] = x[..., self.indices]
            return out
        return x * self._multiplicity(precision_of(x)).like(x)

    def _spectral_norm(self) -> float:
        return float(np.sqrt(self._counts.max()))

    def _abs2(self) -> Operator:
        return self  # its entries are 0 and 1

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _row_places(self) -> np.ndarray:
        return self.indices

    def _sparse_matrix(self) -> scipy.sparse.csr_array:
        rows = np.arange(self.shape[0] + 1)
        return scipy.sparse.csr_array((np.ones(self.shape[0]), self.indices, rows), shape=self.shape)

    def _expression(self) -> str:
        return f"Mask({self.shape[0]} of {self.shape[1]})"


class Identity(Operator):
    """The identity.

    Parameters
    ----------
    n : int or tuple of int
        Length of the vectors, or shape of the arrays they flatten.

    Examples
    --------
    >>> Identity(3).to_dense()
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """

    def __init__(self, n: Any) -> None:
        self.signal_shape = as_shape(n, "n")
        length = int(np.prod(self.signal_shape))
        facts = Facts(row_gram=1.0, diagonal=True, one_per_row=True, one_per_column=True)
        super().__init__((length, length), facts=facts)

    def _forward(self, x: Array) -> Array:
        return namespace(x).asarray(x, copy=True)

    def _adjoint(self, y: Array) -> Array:
        return self._forward(y)

    def _gram(self, x: Array) -> Array:
        return self._forward(x)

    def _circulant_between(self, circulant: CirculantGram) -> CirculantGram | None:
        return circulant

    def _filter_bank(self) -> FilterBank:
        return FilterBank(None, np.ones((1, 1)), is_real=True)

    def _adjoint_operator(self) -> Operator:
        return self

    def _abs2(self) -> Operator:
        return self

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _row_places(self) -> np.ndarray:
        return np.arange(self.shape[0])

    def _band_symbols(self, basis: str) -> np.ndarray:
        return np.ones((1, *self.signal_shape))

    def _sparse_matrix(self) -> scipy.sparse.csr_array:
        return scipy.sparse.eye_array(self.shape[0], format="csr")

    def _add_weighted_gram(self, weights: np.ndarray, above: dict[int, np.ndarray]) -> bool:
        above[0] = above[0] + weights if 0 in above else weights.copy()
        return True

    def _expression(self) -> str:
        return f"Identity({self.shape[0]})"


class Diagonal(Operator):
    """Multiply each entry by its own number.

    Parameters
    ----------
    d : array_like of shape (D,)
        The diagonal: finite numbers, real or complex.

    Examples
    --------
    >>> import numpy as np
    >>> Diagonal([1.0, -2.0]) @ np.array([3.0, 4.0])
    array([ 3., -8.])
    """

    def __init__(self, d: Any) -> None:
        d = as_floating(d, "d")
        if d.ndim != 1 or d.shape[0] == 0:
            raise ValueError(f"d must be a non-empty vector, got shape {tuple(d.shape)}")
        xp = namespace(d)
        if not bool(xp.all(xp.isfinite(d))):
            raise ValueError("d must hold finite numbers, got NaN or infinite entries")
        power = squared_modulus(d)
        smallest, largest = float(xp.min(power)), float(xp.max(power))
        # Signs and phases: all moduli equal, up to the rounding of the phases.
        is_constant = largest - smallest <= 4 * float(xp.finfo(power.dtype).eps) * largest
        super().__init__(
            (d.shape[0], d.shape[0]),
            is_complex=is_complex(d),
            precision=precision_of(d),
            facts=Facts(
                row_gram=largest if is_constant else None,
                diagonal=True,
                one_per_row=True,
                one_per_column=True,
            ),
        )
        self.d = d
        self._cached = DeviceCache(d)

    def _device_array(self) -> Array | None:
        return self._cached.device_array

    def _forward(self, x: Array) -> Array:
        return x * self._cached.like(x)

    def _adjoint(self, y: Array) -> Array:
        return y * conj(self._cached.like(y))

    def _abs2(self) -> Operator:
        return Diagonal(squared_modulus(self.d))

    def _row_places(self) -> np.ndarray:
        return np.arange(self.shape[0])

    def _sparse_matrix(self) -> scipy.sparse.csr_array:
        return scipy.sparse.diags_array(to_numpy(self.d), format="csr")

    def _in_precision(self, precision: str) -> Operator:
        return self if precision == self.precision else Diagonal(in_precision(self.d, precision))

    def _expression(self) -> str:
        return f"Diagonal({self.shape[0]})"
