"""Cosine transforms of small blocks, as in JPEG: a basis that is local in space and in frequency."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.fft

from cofem._arrays import Array, as_shape
from cofem.operators import array_transforms
from cofem.operators.base import Operator
from cofem.operators.facts import Facts
from cofem.operators.fourier import fft_workers, flatten, unflatten


class BlockDCT(Operator):
    """Orthonormal cosine transform of every block of a signal or an image by itself.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.
    block : int
        Length of the blocks along every axis; must divide each length.

    Examples
    --------
    >>> import numpy as np
    >>> BlockDCT(8, 4) @ np.ones(8)
    array([2., 0., 0., 0., 2., 0., 0., 0.])
    """

    def __init__(self, shape: Any, block: int) -> None:
        self.signal_shape = as_shape(shape)
        (self.block,) = as_shape(block, "block")
        if any(length % self.block for length in self.signal_shape):
            raise ValueError(f"block must divide every length of shape {self.signal_shape}, got {block}")
        size = int(np.prod(self.signal_shape))
        super().__init__((size, size), facts=Facts(row_gram=1.0))

    def _forward(self, x: Array) -> Array:
        return self._apply(scipy.fft.dctn, x)

    def _adjoint(self, y: Array) -> Array:
        return self._apply(scipy.fft.idctn, y)

    def _apply(self, transform: Any, x: Array) -> Array:
        # Every axis is split into blocks and the places within them; only the latter are transformed.
        pairs = [(length // self.block, self.block) for length in self.signal_shape]
        split = tuple(part for pair in pairs for part in pair)
        axes = tuple(range(-2 * len(pairs) + 1, 0, 2))
        if not isinstance(x, np.ndarray):
            anywhere = array_transforms.dct if transform is scipy.fft.dctn else array_transforms.idct
            return array_transforms.along_axes(anywhere, x, split, axes)
        array = unflatten(x, split, str(self))
        workers = fft_workers(array, 1)
        return flatten(transform(array, axes=axes, norm="ortho", workers=workers), len(split))

    def _column_groups(self) -> np.ndarray:
        """Coefficients of the same frequency belong together."""
        inside = np.meshgrid(*(np.arange(length) % self.block for length in self.signal_shape), indexing="ij")
        return np.ravel_multi_index(tuple(inside), (self.block,) * len(self.signal_shape)).ravel()

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        return f"BlockDCT({shape}, {self.block})"
