"""Cosine transforms of small blocks, as in JPEG: a basis that is local in space and in frequency."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem._arrays import Array, as_shape
from cofem.operators.base import Operator
from cofem.operators.facts import Facts
from cofem.operators.transforms import dispatch


class BlockDCT(Operator):
    """Orthonormal cosine transform of every block of a signal or an image by itself.

    The transpose is the inverse, so ``BlockDCT(n, b).T`` is the dictionary of local cosines. `row_groups`,
    which are `groups` of the transpose, label coefficients of the same frequency.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.
    block : int
        Length of the blocks along every axis; must divide each length.

    Examples
    --------
    >>> import numpy as np
    >>> W = BlockDCT(8, 4)
    >>> W @ np.ones(8)
    array([2., 0., 0., 0., 2., 0., 0., 0.])
    >>> W.T.groups  # coefficients of one frequency
    array([0, 1, 2, 3, 0, 1, 2, 3])
    """

    def __init__(self, shape: Any, block: int) -> None:
        self.signal_shape = as_shape(shape)
        (self.block,) = as_shape(block, "block")
        if any(length % self.block for length in self.signal_shape):
            raise ValueError(f"block must divide every length of shape {self.signal_shape}, got {block}")
        size = int(np.prod(self.signal_shape))
        super().__init__((size, size), facts=Facts(row_gram=1.0))
        # Every axis is split into blocks and the places within them; only the latter are transformed.
        self._split = tuple(part for n in self.signal_shape for part in (n // self.block, self.block))
        self._axes = tuple(range(-len(self._split) + 1, 0, 2))

    def _forward(self, x: Array) -> Array:
        return dispatch.dct(x, self._split, self._axes)

    def _adjoint(self, y: Array) -> Array:
        return dispatch.idct(y, self._split, self._axes)

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _row_groups(self) -> np.ndarray:
        """Coefficients of the same frequency belong together."""
        inside = np.meshgrid(*(np.arange(length) % self.block for length in self.signal_shape), indexing="ij")
        return np.ravel_multi_index(tuple(inside), (self.block,) * len(self.signal_shape)).ravel()

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        return f"BlockDCT({shape}, {self.block})"
