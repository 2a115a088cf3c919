"""Preconditioners of the posterior's linear systems: objects of one kind, one file each."""

from cofem.linalg.preconditioners.banded import BandedPreconditioner, from_bands
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.block_fourier import BlockFourierPreconditioner, from_blocks
from cofem.linalg.preconditioners.decays import DecayPreconditioner, from_decay
from cofem.linalg.preconditioners.deflation import Deflated, deflated
from cofem.linalg.preconditioners.diagonal import DiagonalPreconditioner
from cofem.linalg.preconditioners.fourier import FourierPreconditioner
from cofem.linalg.preconditioners.large_atoms import LargeAtoms, large_atoms
from cofem.linalg.preconditioners.large_columns import LargeColumns, large_columns
from cofem.linalg.preconditioners.waves import CosinePreconditioner, waves_of

__all__ = [
    "BandedPreconditioner",
    "BlockFourierPreconditioner",
    "CosinePreconditioner",
    "DecayPreconditioner",
    "Deflated",
    "DiagonalPreconditioner",
    "FourierPreconditioner",
    "LargeAtoms",
    "LargeColumns",
    "PosteriorPreconditioner",
    "deflated",
    "from_bands",
    "from_blocks",
    "from_decay",
    "large_atoms",
    "large_columns",
    "waves_of",
]
