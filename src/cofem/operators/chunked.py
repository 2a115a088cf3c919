"""Dense dictionaries that are larger than memory: a few rows at a time are read or computed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from cofem._arrays import Array, conj, require_numpy
from cofem._blocks import BATCH_NUMBERS, CHUNK_BYTES, blocks, vectors_at_once
from cofem.operators.base import Operator
from cofem.operators.entries import gram_of_rows


class RowChunked(Operator):
    """A dictionary whose rows come a chunk at a time; every product is one pass over the chunks.

    A subclass says in `_chunk` what some rows are. Works on NumPy arrays.

    Parameters
    ----------
    shape : tuple of int
        ``(N, D)``.
    rows : int
        Rows of a chunk.
    is_complex, precision
        As for `Operator`.
    """

    def __init__(
        self, shape: tuple[int, int], rows: int, *, is_complex: bool = False, precision: str | None = None
    ) -> None:
        super().__init__(shape, is_complex=is_complex, precision=precision)
        self.chunk_rows = rows

    @abstractmethod
    def _chunk(self, rows: slice) -> np.ndarray:
        """Return some rows of Phi, of `dtype`."""

    def _chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        for rows in blocks(self.shape[0], self.chunk_rows):
            yield rows, self._chunk(rows)

    def _forward(self, x: Array) -> Array:
        require_numpy(x, str(self))
        out = np.empty((*x.shape[:-1], self.shape[0]), np.result_type(x.dtype, self.dtype))
        for part, chunk in self._chunks():
            out[..., part] = x @ chunk.T
        return out

    def _adjoint(self, y: Array) -> Array:
        require_numpy(y, str(self))
        out = np.zeros((*y.shape[:-1], self.shape[1]), np.result_type(y.dtype, self.dtype))
        for part, chunk in self._chunks():
            out += conj(conj(y[..., part]) @ chunk)
        return out

    def _gram(self, x: Array) -> Array:
        require_numpy(x, str(self))
        out = np.zeros((*x.shape[:-1], self.shape[1]), np.result_type(x.dtype, self.dtype))
        for _, chunk in self._chunks():
            out += conj(conj(x @ chunk.T) @ chunk)
        return out

    def _columns(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), self.shape[0]), self.dtype)
        for part, chunk in self._chunks():
            out[:, part] = chunk[:, indices].T
        return out

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), self.shape[1]), self.dtype)
        for part in blocks(self.shape[0], self.chunk_rows):
            wanted = np.flatnonzero((indices >= part.start) & (indices < part.stop))
            if wanted.size:  # other chunks are not read
                out[wanted] = self._chunk(part)[indices[wanted] - part.start]
        return out

    def _local_gram(self, indices: np.ndarray) -> np.ndarray:
        # One pass over the rows, however many clusters there are.
        n_clusters, width = indices.shape
        out = np.zeros((n_clusters, width, width), self.dtype)
        for part, chunk in self._chunks():
            length = part.stop - part.start
            for some in blocks(n_clusters, vectors_at_once(width * length, BATCH_NUMBERS)):
                columns = chunk[:, indices[some].reshape(-1)].T
                out[some] += gram_of_rows(columns.reshape(-1, width, length))
        return out

    def _stored_entries(self) -> int:
        return self.shape[0] * self.shape[1]

    def _to_dense(self) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        for part, chunk in self._chunks():
            out[part] = chunk
        return out

    def column_norms(self) -> np.ndarray:
        """Return the Euclidean norms of the columns, in one pass over the rows; shape (D,), float64.

        Examples
        --------
        >>> import numpy as np
        >>> Chunked(np.array([[3.0, 0.0], [4.0, 2.0]]), rows=1).column_norms()
        array([5., 2.])
        """
        if self._norms is None:
            total = np.zeros(self.shape[1])
            for _, chunk in self._chunks():
                total += np.einsum("ij,ij->j", chunk.conj(), chunk).real
            self._norms = np.sqrt(total)
        return self._norms.copy()

    _norms: np.ndarray | None = None

    @property
    def column_norms_exact(self) -> bool:
        """Whether `column_norms` is exact: it is.

        Examples
        --------
        >>> import numpy as np
        >>> Chunked(np.ones((4, 3)), rows=2).column_norms_exact
        True
        """
        return True


class Chunked(RowChunked):
    """A dense dictionary of which only some rows are in memory at a time.

    Each product reads the dictionary once, and so does ``Phi^H Phi``; chunks are converted to the precision
    of the fit as they are read. `cofem.as_operator` makes one of a `numpy.memmap` by itself.

    Parameters
    ----------
    Phi : object with ``shape``, ``dtype`` and row slices ``Phi[i:j]``, shape (N, D)
        A `numpy.memmap`, an HDF5 or Zarr data set, a Dask array or the like, of real or complex numbers.
    rows : int, optional
        Rows of a chunk; by default as many as fit into 64 MiB.

    Examples
    --------
    >>> import numpy as np
    >>> Phi = Chunked(np.arange(12.0).reshape(4, 3), rows=2)
    >>> Phi @ np.ones(3)
    array([ 3., 12., 21., 30.])
    """

    def __init__(self, Phi: Any, rows: int | None = None, precision: str | None = None) -> None:
        shape, dtype = tuple(int(n) for n in Phi.shape), np.dtype(Phi.dtype)
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(f"Phi must be a matrix with rows and columns, got shape {shape}")
        if dtype.kind not in "biufc":
            raise TypeError(f"Phi must hold numbers, got dtype {dtype}")
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise ValueError(f"rows must be a positive integer, got {rows!r}")
        stored = "float32" if dtype in (np.float32, np.complex64) else "float64"
        precision, is_complex = precision or stored, dtype.kind == "c"
        converted = np.dtype(precision).itemsize * (2 if is_complex else 1)
        fitting = max(1, CHUNK_BYTES // (shape[1] * max(dtype.itemsize, converted)))
        super().__init__((shape[0], shape[1]), rows or fitting, is_complex=is_complex, precision=precision)
        self.source = Phi

    def _chunk(self, rows: slice) -> np.ndarray:
        chunk = np.asarray(self.source[rows]).astype(self.dtype, copy=False)
        if not np.isfinite(np.sum(chunk)) and not np.isfinite(chunk).all():
            raise ValueError(
                f"Phi must be finite, got NaN or infinite values in rows {rows.start} and following"
            )
        return chunk

    def _in_precision(self, precision: str) -> Operator:
        return self if precision == self.precision else Chunked(self.source, self.chunk_rows, precision)

    def _expression(self) -> str:
        return f"Chunked({self.shape[0]}, {self.shape[1]})"
