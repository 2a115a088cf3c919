"""Preconditioners of the posterior's linear systems: objects of one kind, one file each."""

from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.deflation import Deflated, deflated
from cofem.linalg.preconditioners.diagonal import DiagonalPreconditioner
from cofem.linalg.preconditioners.fourier import FourierPreconditioner
from cofem.linalg.preconditioners.large_columns import LargeColumns, large_columns

__all__ = [
    "Deflated",
    "DiagonalPreconditioner",
    "FourierPreconditioner",
    "LargeColumns",
    "PosteriorPreconditioner",
    "deflated",
    "large_columns",
]
