"""The operator market: small operators of every kind, by name, for the tests that all of them must pass."""

import numpy as np
import pylops
import pywt
import scipy.sparse
import scipy.sparse.linalg

from cofem.operators import (
    DCT,
    FFT,
    NUFFT,
    BlockDCT,
    Centred,
    Chunked,
    Coils,
    Convolution,
    Dense,
    Diagonal,
    Distributed,
    Gradient,
    Identity,
    Mask,
    Operator,
    RealUnknown,
    Sparse,
    Wavelet,
    WaveletFrame,
    as_operator,
    block_diag,
    hstack,
    vstack,
)
from cofem.operators.kernel import KernelRows

_rng = np.random.default_rng(20)
_DECAY = 0.7 ** np.arange(9.0)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _complex(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape) + 1j * _rng.standard_normal(shape)


def _as_scipy(matrix: np.ndarray) -> scipy.sparse.linalg.LinearOperator:
    return scipy.sparse.linalg.LinearOperator(
        matrix.shape,
        matvec=lambda x: matrix @ x,
        rmatvec=lambda y: matrix.conj().T @ y,
        dtype=matrix.dtype,
    )


def _as_scipy_with_batches(matrix: np.ndarray) -> scipy.sparse.linalg.LinearOperator:
    return scipy.sparse.linalg.LinearOperator(
        matrix.shape,
        matvec=lambda x: matrix @ x,
        rmatvec=lambda y: matrix.conj().T @ y,
        matmat=lambda x: matrix @ x,
        rmatmat=lambda y: matrix.conj().T @ y,
        dtype=matrix.dtype,
    )


def _sparse(rows: int, columns: int, dtype: type) -> scipy.sparse.coo_array:
    return scipy.sparse.random_array((rows, columns), density=0.4, rng=_rng, dtype=dtype)


def _kernel(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.exp(-np.abs(samples - centres.T))


def _in_chunks(rows: int, operator: KernelRows) -> KernelRows:
    operator.chunk_rows = rows
    return operator


def _distributed(matrix: np.ndarray, chunks: tuple[int, int]) -> Distributed:
    axis = 0 if chunks[0] > 0 else 1
    parts = np.split(matrix, range(chunks[axis], matrix.shape[axis], chunks[axis]), axis=axis)
    return Distributed(parts.__getitem__, matrix.shape, chunks, dtype=matrix.dtype)


MARKET: dict[str, Operator] = {
    "dense wide": Dense(_real(4, 7)),
    "dense tall float32": Dense(_real(9, 3).astype(np.float32)),
    "dense complex": Dense(_complex(5, 6)),
    "dense complex64": Dense(_complex(6, 5).astype(np.complex64)),
    "dense row": Dense(_real(1, 6)),
    "dense column": Dense(_real(6, 1)),
    "dense one by one": Dense([[-3]]),
    "dense Fortran order": Dense(np.asfortranarray(_real(5, 4))),
    "dense zero": Dense(np.zeros((3, 4))),
    "sparse CSR": Sparse(_sparse(5, 8, np.float64).tocsr()),
    "sparse COO float32": Sparse(_sparse(6, 4, np.float32)),
    "sparse complex CSC": Sparse(scipy.sparse.csc_matrix(_complex(4, 5))),
    "identity": Identity(5),
    "identity one": Identity(1),
    "diagonal": Diagonal([1.0, -2.0, 0.0, 3.0]),
    "diagonal signs": Diagonal([1.0, -1.0, -1.0]),
    "diagonal phases": Diagonal(np.exp(1j * _real(6))),
    "mask": Mask([1, 4, 5], 8),
    "mask out of order": Mask([6, 0, 3], 7),
    "mask repeated": Mask([2, 5, 2, 0, 2], 6),
    "mask of one": Mask([0], 1),
    "mask permutation": Mask([2, 0, 1], 3),
    "mask of image": Mask(_rng.random((4, 3)) < 0.5),
    "DCT even": DCT(8),
    "DCT odd": DCT(7),
    "DCT one": DCT(1),
    "DCT two": DCT(2),
    "DCT image": DCT((4, 5)),
    "DCT volume": DCT((2, 3, 4)),
    "block DCT": BlockDCT(12, 4),
    "chunked": Chunked(_real(7, 5), rows=3),
    "chunked complex64": Chunked(_complex(4, 6).astype(np.complex64), rows=1),
    "kernel": KernelRows(_real(7, 1), _real(5, 1), _kernel),
    "kernel in chunks": _in_chunks(2, KernelRows(_real(7, 1), _real(5, 1), _kernel)),
    "kernel float32": _in_chunks(
        3, KernelRows(_real(4, 1).astype(np.float32), _real(6, 1).astype(np.float32), _kernel)
    ),
    "block DCT image": BlockDCT((4, 6), 2),
    "block diagonal": block_diag([Dense(_real(3, 4)), Mask([2, 0], 4) @ DCT(4).T]),
    "FFT even": FFT(8),
    "FFT odd": FFT(5),
    "FFT one": FFT(1),
    "FFT image": FFT((3, 4)),
    "Hartley even": FFT(8, real=True),
    "Hartley odd": FFT(7, real=True),
    "Hartley one": FFT(1, real=True),
    "Hartley image": FFT((4, 3), real=True),
    "wavelet haar": Wavelet(8, "haar"),
    "wavelet db4": Wavelet(24, "db4"),
    "wavelet longer than signal": Wavelet(4, "db4", level=2),
    "wavelet biorthogonal": Wavelet(16, "bior2.4", level=2),
    "wavelet reverse biorthogonal": Wavelet(24, "rbio3.1", level=3),
    "wavelet dmey": Wavelet(16, "dmey", level=2),
    "wavelet image": Wavelet((8, 12), "sym4", level=2),
    "wavelet biorthogonal image": Wavelet((4, 8), pywt.Wavelet("bior1.3"), level=2),
    "wavelet volume": Wavelet((4, 2, 2), "haar", level=1),
    "wavelet frame": WaveletFrame(9),
    "wavelet frame of two": WaveletFrame(2),
    "wavelet frame db4": WaveletFrame(5, "db4", level=2),
    "wavelet frame image": WaveletFrame((5, 6), "sym2", level=2),
    "wavelet frame volume": WaveletFrame((3, 1, 2), "haar", level=1),
    "gradient": Gradient(7),
    "gradient periodic": Gradient(6, "periodic"),
    "gradient second": Gradient(5, order=2),
    "gradient second periodic": Gradient(5, "periodic", order=2),
    "gradient second periodic of two": Gradient(2, "periodic", order=2),
    "gradient image": Gradient((3, 4)),
    "gradient image periodic": Gradient((4, 3), "periodic"),
    "gradient second image": Gradient((4, 5), order=2),
    "gradient second image periodic": Gradient((3, 4), "periodic", order=2),
    "gradient second of a narrow image": Gradient((2, 4), order=2),
    "gradient volume": Gradient((2, 3, 1)),
    "gradient second volume": Gradient((2, 3, 3), order=2),
    "gradient of each image": Gradient((2, 3, 4), axes=(1, 2)),
    "gradient second of each image": Gradient((2, 3, 4), order=2, axes=(1, -1)),
    "gradient from time to time": Gradient((4, 2, 2), "periodic", axes=0),
    "convolution circular": Convolution(_real(3), 8),
    "convolution circular even from start": Convolution(_real(4), 7, centre=False),
    "convolution circular causal": Convolution(_DECAY, 13, causal=True),
    "convolution circular causal image": Convolution(_DECAY.reshape(3, 3), (5, 4), causal=True),
    "convolution same causal": Convolution(_DECAY, 13, mode="linear", causal=True),
    "convolution same causal with long kernel": Convolution(_DECAY, 4, mode="linear", causal=True),
    "convolution same causal complex": Convolution(
        _DECAY * 1j ** np.arange(9), 7, mode="linear", causal=True
    ),
    "convolution same causal float32": Convolution(_DECAY.astype(np.float32), 12, mode="linear", causal=True),
    "convolution same causal image": Convolution(_DECAY.reshape(3, 3), (4, 5), mode="linear", causal=True),
    "convolution full causal": Convolution(_DECAY, 6, mode="linear", output="full", causal=True),
    "convolution circular float32": Convolution(_real(3).astype(np.float32), 9),
    "convolution circular complex": Convolution(_complex(4), 6),
    "convolution circular image": Convolution(_real(2, 3), (4, 5)),
    "convolution same": Convolution(_real(4), 9, mode="linear"),
    "convolution same with long kernel": Convolution(_real(9), 4, mode="linear"),
    "convolution full": Convolution(_real(3), 7, mode="linear", output="full"),
    "convolution full complex": Convolution(_complex(4), 5, mode="linear", output="full"),
    "convolution same image": Convolution(_real(3, 2), (4, 5), mode="linear"),
    "convolution full image": Convolution(_real(2, 2), (3, 4), mode="linear", output="full"),
    "convolution one": Convolution([2.0], 1),
    "SciPy operator": as_operator(_as_scipy(_real(5, 7))),
    "SciPy operator float32": as_operator(_as_scipy(_real(4, 3).astype(np.float32))),
    "SciPy operator complex": as_operator(_as_scipy(_complex(3, 4))),
    "SciPy operator with batches": as_operator(_as_scipy_with_batches(_real(6, 4))),
    "SciPy matrix": as_operator(scipy.sparse.linalg.aslinearoperator(_complex(4, 5))),
    "PyLops derivative": as_operator(pylops.FirstDerivative((4, 3), axis=0)),
    "PyLops matrix": as_operator(pylops.MatrixMult(_real(3, 5))),
    "PyLops FFT": as_operator(pylops.signalprocessing.FFT(8)),
}
MARKET |= {
    "masked DCT": Mask([6, 1, 3], 8) @ DCT(8).T,
    "masked image wavelet": Mask(_rng.random((4, 8)) < 0.6) @ Wavelet((4, 8), "db2", level=1).T,
    "masked complex FFT": Mask([0, 2, 3], 6) @ FFT(6),
    "repeated mask of Hartley": Mask([1, 1, 4], 5) @ FFT(5, real=True),
    "blurred wavelet": Mask([0, 3, 5, 6], 8) @ Convolution(_real(3), 8) @ Wavelet(8, "haar").T,
    "scaled columns": DCT(6).T @ Diagonal(_real(6)),
    "scaled rows": Diagonal(_complex(4)) @ Dense(_real(4, 5)),
    "scaled columns of a matrix": Dense(_real(4, 5)) @ Diagonal(_complex(5)),
    "centred and scaled": Centred(Sparse(_sparse(6, 4, np.float64))) @ Diagonal(_real(4)),
    "picked columns": Dense(_real(4, 6)) @ Mask([5, 0, 2], 6).H,
    "product of dense": Dense(_real(4, 6)) @ Dense(_real(6, 3)),
    "unitary on the left": FFT(4) @ Dense(_real(4, 5)),
    "real multiple": -2.5 * Dense(_real(3, 4)),
    "complex multiple": (1 - 2j) * DCT(5),
    "complex multiple of complex": 1j * FFT(4),
    "zero multiple": 0 * DCT(4),
    "sum": DCT(5) + Identity(5) - 0.5 * Dense(_real(5, 5)),
    "sum of diagonals": Identity(4) + Diagonal(_real(4)) @ Diagonal(_complex(4)),
    "sum of mixed precision": Dense(_real(3, 4).astype(np.float32)) + Dense(_real(3, 4)),
    "product with a sum": Mask([0, 2], 4) @ (FFT(4) + Identity(4)),
    "transpose of complex": FFT(5).T,
    "conjugate of dense": Dense(_complex(3, 5)).conj(),
    "centred dense": Centred(Dense(_real(6, 4))),
    "centred sparse float32": Centred(Sparse(_sparse(6, 4, np.float32)), _real(4)),
    "centred complex": Centred(Dense(_complex(4, 5))),
    "centred DCT": Centred(Mask([1, 4, 2], 6) @ DCT(6).T),
    "real unknown of dense": RealUnknown(Dense(_complex(4, 5))),
    "real unknown of Fourier rows": RealUnknown(Mask([1, 4, 2], 6) @ FFT(6)),
    "real unknown of FFT": RealUnknown(FFT(5)),
    "real unknown of real": RealUnknown(Dense(_real(3, 4))),
    "centred kernel": Centred(KernelRows(_real(6, 1), _real(5, 1), _kernel)),
    "adjoint of product": (Mask([1, 2], 6) @ FFT(6)).H,
    "transpose of product": (Diagonal(_complex(6)) @ Mask([1, 2], 6).H).T,
    "hstack": hstack([Identity(6), DCT(6).T]),
    "hstack with complex": hstack([Dense(_real(4, 3)), FFT(4), Dense(_real(4, 1))]),
    "hstack with groups": Mask([0, 3, 4], 8) @ hstack([Wavelet(8, "db2", level=1).T, DCT(8).T]),
    "vstack": vstack([Identity(4), DCT(4), 2 * FFT(4, real=True)]),
    "vstack without squares": vstack([Mask([0, 1], 5), Dense(_real(4, 2)) @ Dense(_real(2, 5))]),
    "vstack of convolutions": vstack([Convolution(_real(3), 8), 2 * Convolution(_complex(2), 8)]),
    "vstack of single precision": vstack([Dense(_real(3, 4).astype(np.float32)), DCT(4)]),
    "unitary on the left of a convolution": FFT((3, 4)) @ Convolution(_real(2, 3), (3, 4)),
    "scaled columns of a convolution": Convolution(_real(3), 7) @ Diagonal(_complex(7)),
    "multiple of a masked convolution": (2 - 1j) * (Mask([4, 0, 3], 6) @ Convolution(_real(3), 6)),
    "multiple of a product": 3.0 * (Mask([2, 0], 4) @ DCT(4).T @ Diagonal(_real(4))),
    "matrix of SciPy's in a product": Mask([0, 2, 1], 5) @ as_operator(_as_scipy(_real(5, 4))),
    "block DCT transposed": Mask([3, 0, 7], 8) @ BlockDCT(8, 4).T,
    "vstack of gradients": vstack([Gradient((3, 4)), 0.5 * Gradient((3, 4), order=2), Identity((3, 4))]),
    "gradient of a mask": Gradient(5, "periodic") @ Mask([4, 0, 3], 5).H,
    "stack of stacks": vstack([hstack([Identity(3), Dense(_real(3, 2))]), Dense(_complex(2, 5))]),
    "distributed columns": _distributed(_real(5, 8), (-1, 3)),
    "distributed rows": _distributed(_real(7, 4), (2, -1)),
    "distributed complex64": _distributed(_complex(4, 6).astype(np.complex64), (-1, 2)),
    "distributed bytes": _distributed(_rng.integers(-1, 2, (6, 5)).astype(np.int8), (4, -1)),
    "multiple of distributed columns": (2 - 1j) * _distributed(_real(3, 6), (-1, 2)),
    "mask of distributed columns": Mask([2, 0], 4) @ _distributed(_real(4, 6), (-1, 4)) @ Diagonal(_real(6)),
    "mask of distributed rows": Mask([2, 0], 4) @ _distributed(_real(4, 6), (3, -1)),
}
# Last, so that the numbers drawn for the others stay what they were.
MARKET |= {
    "coils": Coils(_complex(3, 5)),
    "coils real float32": Coils(_real(2, 3, 4).astype(np.float32)),
    "coils of one": Coils(np.exp(1j * _real(1, 4))),
    "coils whitened": Coils(_complex(2, 2, 3), noise_cov=[[2.0, 0.5j], [-0.5j, 1.0]]),
    "NUFFT": NUFFT(_rng.uniform(-4, 4, 7), 8),
    "NUFFT odd": NUFFT(_rng.uniform(-9, 9, 4), 5),
    "NUFFT image": NUFFT(_rng.uniform(-2, 2, (6, 2)), (4, 5)),
    "NUFFT volume": NUFFT(_rng.uniform(-2, 2, (5, 3)), (2, 3, 4)),
    "Fourier coefficients of coils": block_diag([Mask([0, 3, 1], 6) @ FFT(6)] * 2) @ Coils(_complex(2, 6)),
    "radial coils": block_diag([NUFFT(_rng.uniform(-2, 2, (4, 2)), (2, 3))] * 2) @ Coils(_complex(2, 2, 3)),
    "block diagonal of one": block_diag([Dense(_real(3, 4))] * 3),
}
