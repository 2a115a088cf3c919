"""Parts of a dictionary that live apart: how it is cut, what a part is, and how it is loaded."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from cofem._arrays import largest_part, squared_modulus
from cofem._blocks import blocks, vectors_at_once
from cofem.operators.base import Operator
from cofem.operators.chunked import RowChunked
from cofem.operators.dense import Dense
from cofem.operators.interop import as_operator
from cofem.operators.same_bits import aligned

#: Numbers of a block that is converted to another type at a time: few enough for the cache.
CONVERTED_AT_ONCE = 2**19


class ChunkError(RuntimeError):
    """A chunk of a dictionary could not be had; the message names it.

    Examples
    --------
    >>> str(ChunkError("chunk 3 of 8 could not be loaded"))
    'chunk 3 of 8 could not be loaded'
    """


@dataclass(frozen=True)
class Layout:
    """How a matrix is cut into chunks of whole rows or whole columns.

    Attributes
    ----------
    shape : tuple of int
        ``(N, D)``.
    axis : int
        0 for chunks of rows, 1 for chunks of columns.
    sizes : tuple of int
        Rows, or columns, of each chunk.
    """

    shape: tuple[int, int]
    axis: int
    sizes: tuple[int, ...]

    @classmethod
    def checked(cls, shape: Any, chunks: Any) -> Layout:
        """Return the layout for a shape and chunks as Dask has them; refuse what is none.

        Parameters
        ----------
        shape : tuple of int
            ``(N, D)``.
        chunks : pair
            For rows and for columns: the size of all chunks but the last, or the size of each, or -1 for one
            chunk. Either rows or columns are cut.

        Examples
        --------
        >>> Layout.checked((5, 7), (2, -1)).sizes, Layout.checked((5, 7), (5, (3, 4))).axis
        ((2, 2, 1), 1)
        """
        try:
            n, d = (int(length) for length in shape)
        except (TypeError, ValueError) as error:
            raise ValueError(f"shape must be (N, D), got {shape!r}") from error
        if min(n, d) < 1:
            raise ValueError(f"shape must have rows and columns, got {(n, d)}")
        if not isinstance(chunks, tuple | list) or len(chunks) != 2:
            raise ValueError(f"chunks must be (rows, columns) of a chunk, got {chunks!r}")
        each = [_sizes(length, part, chunks) for length, part in zip((n, d), chunks, strict=True)]
        if len(each[0]) > 1 and len(each[1]) > 1:
            raise ValueError(
                f"chunks must cut rows or columns, not both, got {len(each[0])} x {len(each[1])} chunks; "
                "give -1 for one of them"
            )
        axis = 1 if len(each[1]) > 1 else 0
        return cls((n, d), axis, each[axis])

    @property
    def count(self) -> int:
        """Number of chunks."""
        return len(self.sizes)

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each chunk ends along the axis."""
        return np.cumsum(self.sizes)

    def part(self, k: int) -> slice:
        """Return the rows, or columns, of chunk k."""
        end = int(self.ends[k])
        return slice(end - self.sizes[k], end)

    def chunk_shape(self, k: int) -> tuple[int, int]:
        """Return the shape of chunk k."""
        return (self.sizes[k], self.shape[1]) if self.axis == 0 else (self.shape[0], self.sizes[k])

    def split(self, indices: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return, for each chunk that holds some of `indices`, which of them, and their places in it."""
        owner = np.searchsorted(self.ends, indices, side="right")
        found = {}
        for k in np.unique(owner).tolist():
            which = np.flatnonzero(owner == k)
            found[k] = (which, indices[which] - self.part(k).start)
        return found

    def describe(self, k: int) -> str:
        """Return what chunk k is, for messages."""
        part, name = self.part(k), ("rows", "columns")[self.axis]
        return f"chunk {k} of {self.count} ({name} {part.start} to {part.stop - 1})"

    def describe_all(self) -> str:
        """Return the layout in words that are the same for the same layout alone."""
        name = ("rows", "columns")[self.axis]
        if len(set(self.sizes[:-1])) <= 1:
            return f"{self.count} chunks of {self.sizes[0]} {name}"
        return f"chunks of {', '.join(map(str, self.sizes))} {name}"


def _sizes(length: int, part: Any, chunks: Any) -> tuple[int, ...]:
    wrong = f"chunks must be positive sizes that cover {length}, or -1 for all, got {part!r} in {chunks!r}"
    if isinstance(part, tuple | list):
        sizes = tuple(int(size) for size in part)
        if any(size < 1 for size in sizes) or sum(sizes) != length:
            raise ValueError(wrong)
        return sizes
    if part is None or part == -1:
        return (length,)
    if isinstance(part, bool) or not isinstance(part, int | np.integer) or part < 1:
        raise ValueError(wrong)
    return tuple(some.stop - some.start for some in blocks(length, int(part)))


# --- a chunk where it lives ---------------------------------------------------------------------------------


class Chunk:
    """A chunk in memory, as it was loaded, and the operators that it is in each precision.

    Parameters
    ----------
    stored : ndarray or Operator
        Numbers of any type; or an operator.
    """

    def __init__(self, stored: np.ndarray | Operator) -> None:
        self.stored = aligned(stored)
        self._operators: dict[str, Operator] = {}

    def operator(self, precision: str) -> Operator:
        """Return the chunk as an operator that computes in a precision; an array is not copied for it."""
        found = self._operators.get(precision)
        if found is None:
            if isinstance(self.stored, Operator):
                found = self.stored.astype(precision)
            elif self.stored.dtype == _type_in(precision, self.stored):
                found = Dense(self.stored)
            else:
                found = Converted(self.stored, precision)
            self._operators[precision] = found
        return found

    def __sizeof__(self) -> int:  # what Dask goes by
        return 200 + (self.stored.nbytes if isinstance(self.stored, np.ndarray) else bytes_of(self.stored))

    def __reduce__(self) -> tuple[Any, ...]:
        return Chunk, (self.stored,)


class Converted(RowChunked):
    """A matrix in memory whose numbers are converted to the precision of the fit a few rows at a time.

    Parameters
    ----------
    stored : ndarray of shape (N, D)
        Numbers of another type: genotypes in a byte each, or single precision in a fit in double precision.
    precision : {"float32", "float64"}
        The precision of products.
    squared : bool
        Whether the entries are the squared moduli of those.

    Examples
    --------
    >>> import numpy as np
    >>> Converted(np.array([[1, 2], [0, 1]], dtype=np.int8), "float32") @ np.ones(2, dtype=np.float32)
    array([3., 1.], dtype=float32)
    """

    def __init__(self, stored: np.ndarray, precision: str, squared: bool = False) -> None:
        n, d = stored.shape
        is_complex = stored.dtype.kind == "c" and not squared
        super().__init__(
            (n, d), vectors_at_once(d, CONVERTED_AT_ONCE), is_complex=is_complex, precision=precision
        )
        self.stored, self.squared = stored, squared

    def _chunk(self, rows: slice) -> np.ndarray:
        converted = self.stored[rows].astype(_type_in(self.precision or "float64", self.stored), copy=False)
        return squared_modulus(converted) if self.squared else converted

    def _largest_entry(self) -> float:
        return max(largest_part(chunk) for _, chunk in self._chunks())

    def _abs2(self) -> Operator:
        return Converted(self.stored, self.precision or "float64", squared=True)


def _type_in(precision: str, stored: np.ndarray) -> np.dtype:
    parts = np.dtype(precision)
    return np.result_type(parts, np.complex64) if stored.dtype.kind == "c" else parts


def bytes_of(operator: Operator) -> int:
    """Return about how many bytes the numbers that an operator stores take."""
    matrix = operator.sparse_matrix()
    if matrix is not None:
        return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)
    return operator.stored_entries * operator.dtype.itemsize


@dataclass(frozen=True)
class Recipe:
    """How a chunk is made, wherever that is done.

    Attributes
    ----------
    load : callable
        From the number of a chunk to the chunk: an array, a SciPy sparse matrix or an operator.
    layout : Layout
        How the matrix is cut.
    dtype : numpy.dtype
        What arrays are kept as; whether it is complex holds for all chunks.
    """

    load: Any
    layout: Layout
    dtype: np.dtype

    def chunk_bytes(self, k: int) -> int:
        """Return the bytes of chunk k, if it is an array."""
        n, d = self.layout.chunk_shape(k)
        return n * d * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all chunks, if they are arrays."""
        return self.layout.shape[0] * self.layout.shape[1] * self.dtype.itemsize

    def submitted(self, client: Any, k: int, address: str, retries: int) -> Any:
        """Return a Dask future for chunk k on one worker and no other."""
        return client.submit(self, k, key=_name(k), workers=[address], retries=retries)

    def __call__(self, k: int) -> Chunk:
        """Load chunk k, or say which one could not be loaded."""
        try:
            loaded = self.load(k)
        except Exception as error:
            raise self._failed(k, f"could not be loaded: {type(error).__name__}: {error}") from error
        return self.made(k, loaded)

    def made(self, k: int, loaded: Any) -> Chunk:
        """Check what was loaded for chunk k, and make it a chunk."""
        stored = self._as_stored(k, loaded)
        wanted = self.layout.chunk_shape(k)
        if tuple(stored.shape) != wanted:
            raise self._failed(k, f"must have shape {wanted}, got {tuple(stored.shape)}")
        is_complex = stored.is_complex if isinstance(stored, Operator) else stored.dtype.kind == "c"
        if is_complex and self.dtype.kind != "c":
            raise self._failed(k, f"is complex, but dtype={self.dtype} says real numbers")
        return Chunk(stored)

    def _as_stored(self, k: int, loaded: Any) -> np.ndarray | Operator:
        if isinstance(loaded, Operator):
            return loaded
        if scipy.sparse.issparse(loaded) or hasattr(loaded, "matvec"):
            try:
                return as_operator(loaded)
            except (TypeError, ValueError) as error:
                raise self._failed(k, str(error)) from error
        array = np.asarray(loaded)
        if array.dtype.kind not in "biufc" or array.ndim != 2:
            raise self._failed(k, f"must be a matrix of numbers, got {array.dtype} of shape {array.shape}")
        if array.dtype.kind == "c" and self.dtype.kind != "c":
            raise self._failed(k, f"is complex, but dtype={self.dtype} says real numbers")
        array = np.ascontiguousarray(array, dtype=self.dtype)
        if array.dtype.kind in "fc" and not all(
            np.isfinite(array[rows]).all() for rows in blocks(len(array), vectors_at_once(array.shape[1]))
        ):
            raise self._failed(k, "must hold finite numbers, got NaN or infinite entries")
        return array

    def _failed(self, k: int, why: str) -> ChunkError:
        return ChunkError(f"{self.layout.describe(k)} {why}")


def _name(k: int) -> str:
    """Return the name of a task that loads chunk k; a new one each time, since it may have failed before."""
    return f"cofem-chunk-{k}-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class BlockRecipe(Recipe):
    """Chunks that are the blocks of a Dask array, which Dask computes.

    Attributes
    ----------
    load : sequence of Delayed
        The blocks.
    """

    load: Any

    def submitted(self, client: Any, k: int, address: str, retries: int) -> Any:
        """Return a Dask future for chunk k on one worker; what it is made from may be elsewhere."""
        block = client.compute(self.load[k], workers=[address], allow_other_workers=True, retries=retries)
        bare = replace(self, load=None)
        return client.submit(bare.made, k, block, key=_name(k), workers=[address], retries=retries)

    def __call__(self, k: int) -> Chunk:
        """Compute block k here."""
        try:
            loaded = self.load[k].compute(scheduler="synchronous")
        except Exception as error:
            raise self._failed(k, f"could not be loaded: {type(error).__name__}: {error}") from error
        return self.made(k, loaded)
