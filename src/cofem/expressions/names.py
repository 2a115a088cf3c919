"""What stands behind the names in an expression."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cofem._memory import available_bytes, describe_bytes
from cofem.expressions.grammar import ExpressionError, brief, one_line
from cofem.files import SUFFIXES, check_unpacked, read_array
from cofem.operators import (
    DCT,
    FFT,
    NUFFT,
    BlockDCT,
    Coils,
    Convolution,
    Dense,
    Diagonal,
    Distributed,
    Gradient,
    Identity,
    Mask,
    Operator,
    Wavelet,
    WaveletFrame,
    as_operator,
    block_diag,
    hstack,
    vstack,
)

#: Most axes of a signal, and its largest size where the system does not tell how much memory there is.
MOST_AXES = 16
LARGEST = 2**40
#: Most copies of an operator along the diagonal.
MOST_COPIES = 2**16


def _shape(lengths: tuple[Any, ...]) -> int | tuple[int, ...]:
    """Return the lengths of a signal's axes, if one vector of that size fits into memory."""
    lengths = _one_by_one(lengths)
    if not lengths or not all(isinstance(length, int) and length > 0 for length in lengths):
        got = ", ".join(brief(length) for length in lengths[:MOST_AXES]) or "none"
        raise ExpressionError(f"lengths must be positive whole numbers, got {got}")
    if len(lengths) > MOST_AXES:
        raise ExpressionError(f"a signal of {len(lengths)} axes; {MOST_AXES} are allowed")
    size, available = prod(lengths), available_bytes()
    limit = LARGEST if available is None else min(LARGEST, available // 8)
    if size > limit:
        raise ExpressionError(
            f"a signal of length {size:.4g} takes {describe_bytes(8.0 * size)}; at most {limit:.4g} fit into "
            "memory"
        )
    return lengths[0] if len(lengths) == 1 else lengths


def _one_by_one(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that stand by themselves, or in one tuple as in Python."""
    return given[0] if len(given) == 1 and isinstance(given[0], tuple) else given


def _transform(make: Callable[[Any], Operator]) -> Callable[..., Operator]:
    """Return a builder that takes the lengths of the axes."""
    return lambda n_columns, *lengths: make(_shape(lengths))


def _mask(n_columns: int | None, rows: str, *lengths: int) -> Operator:
    picked = read_array(_file(rows))
    if picked.dtype == bool:
        return Mask(picked)
    length = _shape(lengths) if lengths else n_columns
    if length is None:
        raise ExpressionError("of what length? Put it after the file, e.g. mask(rows.npy, 1024)")
    if picked.dtype.kind == "f":  # as numbers from a .csv file are
        if not (np.isfinite(picked).all() and (picked == np.round(picked)).all()):
            raise ExpressionError(f"rows must be whole numbers or booleans, got {picked.dtype} in {rows}")
        picked = picked.astype(np.int64)
    return Mask(picked, length)


def _wavelet(
    n_columns: int | None, *lengths: Any, wavelet: str | None = None, level: int | None = None
) -> Operator:
    names = [a for a in (*lengths, wavelet) if isinstance(a, str)]
    if len(names) != 1 or not isinstance(wavelet, str | None):
        raise ExpressionError("one wavelet is wanted after the lengths, e.g. wavelet(512, 512, db4)")
    shape = _shape(tuple(a for a in lengths if not isinstance(a, str)))
    return Wavelet(shape, names[0], level=level)


def _inverse_wavelet(
    n_columns: int | None, *lengths: Any, wavelet: str | None = None, level: int | None = None
) -> Operator:
    return _wavelet(n_columns, *lengths, wavelet=wavelet, level=level).T


def _wavelet_frame(
    n_columns: int | None, *lengths: int, wavelet: str = "haar", level: int | None = None
) -> Operator:
    return WaveletFrame(_shape(lengths), wavelet, level=level)


def _convolution(
    n_columns: int | None,
    kernel: str,
    *lengths: int,
    mode: str = "circular",
    output: str = "same",
    centre: str | None = None,
    causal: str | None = None,
) -> Operator:
    shape = _shape(lengths) if lengths else n_columns
    if shape is None:
        raise ExpressionError("of what length? Put it after the file, e.g. convolution(kernel.npy, 1024)")
    flags = {"centre": _flag("centre", centre), "causal": _flag("causal", causal)}
    return Convolution(read_array(_file(kernel)), shape, mode=mode, output=output, **flags)


def _flag(name: str, value: Any) -> bool | None:
    """Return what ``true`` and ``false`` mean; None if nothing was said."""
    if value is None:
        return None
    meanings = {"true": True, "false": False}
    if not isinstance(value, str) or value.lower() not in meanings:
        raise ExpressionError(f"{name} must be true or false, got {brief(value)}")
    return meanings[value.lower()]


def _sparse(n_columns: int | None, file: str) -> Operator:
    import scipy.sparse

    path = Path(_file(file))
    if not os.path.isfile(path):
        raise ExpressionError(f"{path}: no such file")
    try:
        check_unpacked(path)
        matrix = scipy.sparse.load_npz(path)
        if hasattr(matrix, "check_format"):  # indices beyond the shape would be read from anywhere
            matrix.check_format(full_check=True)
    except Exception as error:  # a foreign archive fails in many ways
        raise ExpressionError(
            f"{path}: not a sparse matrix written by scipy.sparse.save_npz ({one_line(error)})"
        ) from error
    return as_operator(matrix)


def _file(name: Any) -> str:
    if not isinstance(name, str):
        raise ExpressionError(f"a file ({', '.join(SUFFIXES)}) is wanted, got {brief(name)}")
    return os.path.expanduser(name)


def _npy(file: Any) -> str:
    path = Path(_file(file))
    if path.suffix != ".npy":
        raise ExpressionError(f"a matrix in an .npy file is wanted, got {brief(file)}")
    if not os.path.isfile(path):
        raise ExpressionError(f"{path}: no such file")
    return str(path)


def _stack(join: Callable[[list[Operator]], Operator]) -> Callable[..., Operator]:
    """Return a builder that takes operators."""
    return lambda n_columns, *operators: join(list(_one_by_one(operators)))


def _block_diagonal(n_columns: int | None, *operators: Any, copies: int = 1) -> Operator:
    if not isinstance(copies, int) or not 1 <= copies <= MOST_COPIES:
        raise ExpressionError(f"copies must be a whole number from 1 to {MOST_COPIES}, got {brief(copies)}")
    return block_diag(list(_one_by_one(operators)) * copies)


class Name(NamedTuple):
    """What stands behind a name: how it is built, how it is typed, and what it is."""

    #: The first argument is the number of columns that the place of the call asks for.
    build: Callable[..., Operator]
    typed: str
    meaning: str


NAMES: dict[str, Name] = {
    "mask": Name(_mask, "mask(rows.npy, 1024)", "some entries of a signal, by indices or booleans"),
    "dct": Name(_transform(DCT), "dct((48, 64))", "cosine transform"),
    "idct": Name(_transform(lambda shape: DCT(shape).T), "idct((48, 64))", "its inverse"),
    "blockdct": Name(
        lambda n_columns, *lengths, block: BlockDCT(_shape(lengths), block),
        "blockdct((48, 64), block=8)",
        "cosine transform of every block by itself",
    ),
    "iblockdct": Name(
        lambda n_columns, *lengths, block: BlockDCT(_shape(lengths), block).T,
        "iblockdct((48, 64), block=8)",
        "its inverse",
    ),
    "fft": Name(_transform(FFT), "fft((48, 64))", "orthonormal Fourier transform"),
    "ifft": Name(_transform(lambda shape: FFT(shape).H), "ifft((48, 64))", "its inverse"),
    "rfft": Name(
        _transform(lambda shape: FFT(shape, real=True)),
        "rfft((48, 64))",
        "Fourier transform in real numbers (Hartley's)",
    ),
    "irfft": Name(_transform(lambda shape: FFT(shape, real=True).H), "irfft((48, 64))", "its inverse"),
    "wavelet": Name(_wavelet, "wavelet((48, 64), db4, level=3)", "periodic wavelet transform"),
    "iwavelet": Name(_inverse_wavelet, "iwavelet((48, 64), db4, level=3)", "wavelets from coefficients"),
    "waveletframe": Name(
        _wavelet_frame, "waveletframe((48, 64), wavelet=haar, level=3)", "undecimated wavelets"
    ),
    "gradient": Name(
        lambda n_columns, *lengths, boundary="free", order=1: Gradient(_shape(lengths), boundary, order),
        "gradient((48, 64), boundary=free, order=1)",
        "differences along all axes",
    ),
    "convolution": Name(
        _convolution,
        "convolution(kernel.npy, 500, mode=linear, causal=true)",
        "convolution with a kernel; mode is circular or linear, output same or full; centre, causal",
    ),
    "dense": Name(lambda n_columns, file: Dense(read_array(_file(file))), "dense(matrix.npy)", "a matrix"),
    "distributed": Name(
        lambda n_columns, file: Distributed.from_npy(_npy(file)),
        "distributed(matrix.npy)",
        "a matrix whose chunks are read and kept by the workers of a Dask cluster",
    ),
    "sparse": Name(_sparse, "sparse(matrix.npz)", "a matrix written by scipy.sparse.save_npz"),
    "identity": Name(_transform(Identity), "identity(1024)", "the identity"),
    "diagonal": Name(
        lambda n_columns, file: Diagonal(read_array(_file(file))),
        "diagonal(weights.npy)",
        "every entry times a number",
    ),
    "nufft": Name(
        lambda n_columns, points, *lengths: NUFFT(read_array(_file(points)), _shape(lengths)),
        "nufft(points.npy, (48, 64))",
        "Fourier coefficients at any points, one in each row of the file",
    ),
    "coils": Name(
        lambda n_columns, maps: Coils(read_array(_file(maps))),
        "coils(maps.npy)",
        "a picture as each coil sees it, by maps of shape (coils, height, width)",
    ),
    "blockdiag": Name(
        _block_diagonal,
        "blockdiag(fft((48, 64)), copies=8)",
        "operators along the diagonal: each has data of its own, as that of each coil",
    ),
    "hstack": Name(_stack(hstack), "hstack(identity(1024), idct(1024))", "operators side by side"),
    "vstack": Name(_stack(vstack), "vstack(dct(1024), identity(1024))", "operators on top of each other"),
}
