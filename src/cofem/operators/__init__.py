"""Operators: what the dictionary Phi is, from dense arrays to compositions of fast transforms."""

from cofem.operators.base import Operator
from cofem.operators.blocks import BlockDCT
from cofem.operators.centred import Centred
from cofem.operators.checks import check_adjoint
from cofem.operators.chunked import Chunked
from cofem.operators.coils import Coils
from cofem.operators.convolution import Convolution
from cofem.operators.dense import Dense, Sparse
from cofem.operators.distributed import Distributed
from cofem.operators.facts import Facts
from cofem.operators.fourier import DCT, FFT
from cofem.operators.gradient import Gradient
from cofem.operators.interop import as_operator
from cofem.operators.nonuniform import NUFFT
from cofem.operators.real_unknown import RealUnknown
from cofem.operators.sampling import Diagonal, Identity, Mask
from cofem.operators.stack import block_diag, hstack, vstack
from cofem.operators.wavelet_frame import WaveletFrame
from cofem.operators.wavelets import Wavelet

__all__ = [
    "DCT",
    "FFT",
    "NUFFT",
    "BlockDCT",
    "Centred",
    "Chunked",
    "Coils",
    "Convolution",
    "Dense",
    "Diagonal",
    "Distributed",
    "Facts",
    "Gradient",
    "Identity",
    "Mask",
    "Operator",
    "RealUnknown",
    "Sparse",
    "Wavelet",
    "WaveletFrame",
    "as_operator",
    "block_diag",
    "check_adjoint",
    "hstack",
    "vstack",
]
