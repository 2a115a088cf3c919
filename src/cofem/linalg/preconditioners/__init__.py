"""Preconditioners of the posterior's linear systems: objects of one kind, one file each."""

from cofem.linalg.preconditioners.banded import BandedPreconditioner, banded
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.block_fourier import BlockFourierPreconditioner, block_fourier
from cofem.linalg.preconditioners.deflation import Deflated, deflated
from cofem.linalg.preconditioners.diagonal import DiagonalPreconditioner
from cofem.linalg.preconditioners.fourier import FourierPreconditioner
from cofem.linalg.preconditioners.large_columns import LargeColumns, large_columns

__all__ = [
    "BandedPreconditioner",
    "BlockFourierPreconditioner",
    "Deflated",
    "DiagonalPreconditioner",
    "FourierPreconditioner",
    "LargeColumns",
    "PosteriorPreconditioner",
    "banded",
    "block_fourier",
    "deflated",
    "large_columns",
]
