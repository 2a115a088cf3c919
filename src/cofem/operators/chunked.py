"""Dense dictionaries that are larger than memory: read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cofem._arrays import Array, conj, require_numpy
from cofem.operators.base import Operator

#: Bytes of a chunk: large enough for BLAS, small enough for any memory.
CHUNK_BYTES = 2**26


class Chunked(Operator):
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
        super().__init__((shape[0], shape[1]), is_complex=dtype.kind == "c", precision=precision or stored)
        self.source = Phi
        self.rows = rows or max(1, CHUNK_BYTES // (shape[1] * max(dtype.itemsize, self.dtype.itemsize)))

    def _chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, self.shape[0], self.rows):
            part = slice(start, min(start + self.rows, self.shape[0]))
            chunk = np.asarray(self.source[part]).astype(self.dtype, copy=False)
            if not np.isfinite(np.sum(chunk)) and not np.isfinite(chunk).all():
                raise ValueError(
                    f"Phi must be finite, got NaN or infinite values in rows {start} and following"
                )
            yield part, chunk

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

    def column_norms(self) -> np.ndarray:
        """Return the Euclidean norms of the columns, in one pass over the rows; shape (D,), float64."""
        if self._norms is None:
            total = np.zeros(self.shape[1])
            for _, chunk in self._chunks():
                total += np.einsum("ij,ij->j", chunk.conj(), chunk).real
            self._norms = np.sqrt(total)
        return self._norms

    _norms: np.ndarray | None = None

    @property
    def column_norms_exact(self) -> bool:
        """Whether `column_norms` is exact: it is."""
        return True

    def _in_precision(self, precision: str) -> Operator:
        return self if precision == self.precision else Chunked(self.source, self.rows, precision)

    def _expression(self) -> str:
        return f"Chunked({self.shape[0]}, {self.shape[1]})"
