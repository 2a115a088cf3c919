"""Kernels between samples as dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cofem._blocks import BATCH_NUMBERS, blocks, vectors_at_once
from cofem.operators.base import Operator
from cofem.operators.chunked import RowChunked


class KernelRows(RowChunked):
    """A kernel between samples and centres, never stored: a few rows at a time are computed when needed.

    Parameters
    ----------
    samples, centres : arrays or sparse matrices of shape (N, F) and (D, F)
        Points with F features.
    kernel : callable
        From some samples, shape (n, F), and the centres to an array of shape (n, D), real.
    power : int
        What its entries are raised to.
    precision : {"float32", "float64"}, optional
        Of the entries; by default that of the points.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[0.0], [1.0], [2.0]])
    >>> Phi = KernelRows(points, points[:2], lambda x, c: np.exp(-np.abs(x - c.T)))
    >>> np.round(Phi @ np.array([1.0, 0.0]), 3)
    array([1.   , 0.368, 0.135])
    """

    def __init__(
        self,
        samples: Any,
        centres: Any,
        kernel: Callable[[Any, Any], np.ndarray],
        power: int = 1,
        precision: str | None = None,
    ) -> None:
        shape = (samples.shape[0], centres.shape[0])
        super().__init__(
            shape,
            # Fewer rows than could be read at once, since computing a kernel takes copies.
            vectors_at_once(shape[1], BATCH_NUMBERS),
            precision=precision or np.result_type(samples.dtype, centres.dtype).name,
        )
        self.samples = samples
        self.centres = centres
        self.kernel = kernel
        self.power = power

    def _chunk(self, rows: slice) -> np.ndarray:
        return self._computed(rows)

    def _computed(self, rows: slice | np.ndarray) -> np.ndarray:
        chunk = np.asarray(self.kernel(self.samples[rows], self.centres), dtype=self.dtype)
        return chunk if self.power == 1 else chunk**self.power

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([self._computed(indices[b]) for b in blocks(len(indices), self.chunk_rows)])

    def _stored_entries(self) -> int:
        return 0  # a column costs as much as all of them

    def _abs2(self) -> Operator:
        return KernelRows(self.samples, self.centres, self.kernel, 2 * self.power, self.precision)

    def _in_precision(self, precision: str) -> Operator:
        return KernelRows(self.samples, self.centres, self.kernel, self.power, precision)
