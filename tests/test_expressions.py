"""Operators from text and arrays from files: what is read is right, what is wrong is refused in one line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cofem.expressions import DEEPEST, LONGEST, NAMES, ExpressionError, parse_operator
from cofem.files import read_array
from cofem.operators import DCT, FFT, BlockDCT, Convolution, Identity, Mask, Wavelet, hstack

RNG = np.random.default_rng(0)
ROWS = np.array([5, 0, 3, 9])
KERNEL = np.array([1.0, 2.0, 0.5])
MATRIX = RNG.standard_normal((5, 16))
FLAGS = RNG.random((4, 4)) < 0.5


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", ROWS)
    np.savetxt("rows.csv", ROWS, delimiter=",")
    np.save("flags.npy", FLAGS)
    np.save("kernel.npy", KERNEL)
    np.save("my-kernel.v2.npy", KERNEL)
    np.save("matrix.npy", MATRIX)
    np.save("weights.npy", np.arange(1.0, 17))
    np.savez("several.npz", rows=ROWS, kernel=KERNEL)
    np.savez("one.npz", ROWS)
    scipy.sparse.save_npz("sparse.npz", scipy.sparse.csr_array(MATRIX))
    np.save("fractions.npy", np.array([0.5, 1.0]))
    (tmp_path / "sub").mkdir()
    np.save("sub/rows.npy", ROWS)
    return tmp_path


GOOD = {
    "mask(rows.npy) @ idct(16)": lambda: Mask(ROWS, 16) @ DCT(16).T,
    "mask(rows.csv, 16) @ dct(16).T": lambda: Mask(ROWS, 16) @ DCT(16).T,
    "mask(sub/rows.npy) @ idct(4, 4)": lambda: Mask(ROWS, 16) @ DCT((4, 4)).T,
    "mask('several.npz:rows', 16)": lambda: Mask(ROWS, 16),
    "mask(several.npz:rows, 16)": lambda: Mask(ROWS, 16),
    "mask(one.npz, 16)": lambda: Mask(ROWS, 16),
    "mask(flags.npy) @ idct(4, 4)": lambda: Mask(FLAGS) @ DCT((4, 4)).T,
    "mask(rows.npy) @ fft(16)": lambda: Mask(ROWS, 16) @ FFT(16),
    "ifft(16)": lambda: FFT(16).H,
    "mask(rows.npy) @ iblockdct(4, 4, block=2)": lambda: Mask(ROWS, 16) @ BlockDCT((4, 4), 2).T,
    "blockdct(16, block=4)": lambda: BlockDCT(16, 4),
    "rfft(16) + irfft(16)": lambda: FFT(16, real=True) + FFT(16, real=True).H,
    "mask(rows.npy) @ iwavelet(4, 4, haar)": lambda: Mask(ROWS, 16) @ Wavelet((4, 4), "haar").T,
    'wavelet(16, "db2", level=1)': lambda: Wavelet(16, "db2", level=1),
    "convolution(kernel.npy, 16)": lambda: Convolution(KERNEL, 16),
    "convolution(my-kernel.v2.npy, 16, mode=linear)": lambda: Convolution(KERNEL, 16, mode="linear"),
    "mask(rows.npy) @ convolution(kernel.npy) @ idct(16)": lambda: (
        Mask(ROWS, 16) @ Convolution(KERNEL, 16) @ DCT(16).T
    ),
    "dense(matrix.npy)": lambda: MATRIX,
    "sparse(sparse.npz)": lambda: MATRIX,
    "2.5e-1 * identity(16)": lambda: 0.25 * Identity(16),
    "-2 * (dense(matrix.npy) @ diagonal(weights.npy))": lambda: -2 * (MATRIX * np.arange(1.0, 17)),
    "hstack(identity(16), idct(16))": lambda: hstack([Identity(16), DCT(16).T]),
    "vstack(dense(matrix.npy), identity(16))": lambda: np.vstack([MATRIX, np.eye(16)]),
    "( dense(matrix.npy).T ).H": lambda: MATRIX,
}


@pytest.mark.parametrize("text", GOOD)
def test_expressions_give_the_operator_they_say(text: str, files: Path) -> None:
    wanted = GOOD[text]()
    wanted = wanted if isinstance(wanted, np.ndarray) else wanted.to_dense()
    np.testing.assert_allclose(parse_operator(text).to_dense(), wanted, atol=1e-12)


def test_every_name_is_tried() -> None:
    tried = " ".join(GOOD)
    assert [name for name in NAMES if f"{name}(" not in tried] == []


BAD = {
    "": "an operator or a number is wanted at column 1, got 'the end'",
    "   ": "an operator or a number is wanted",
    "3": "an operator is wanted",
    "rows.npy": "an operator is wanted",
    "mask(rows.npy)": "of what length",
    "mask(missing.npy, 16)": "missing.npy: no such file",
    "mask(rows.txt, 16)": "rows.txt: unknown kind of file",
    "mask(fractions.npy, 16)": "rows must be whole numbers or booleans",
    "mask(rows.npy, 4)": "mask at column 1: rows must lie in 0..3",
    "mask(several.npz, 16)": "holds 2 arrays; name one of rows, kernel",
    "mask(several.npz:z, 16)": "has no array 'z'",
    "mask(16)": "a file (.npy, .npz, .csv) is wanted, got 16",
    "idct()": "lengths must be positive whole numbers",
    "idct(2.5)": "lengths must be positive whole numbers",
    "idct(-4)": "lengths must be positive whole numbers",
    "idct(16": "',' is wanted at column 8",
    "idct(16))": "an operator sign or the end is wanted at column 9",
    "idct(16) idct(16)": "an operator sign or the end is wanted",
    "idct(16) @ ": "an operator or a number is wanted",
    "idct(16) @ 3": "an operator is wanted at column 12, got 3",
    "idct(16) * idct(16)": "operators are joined by '@'",
    "idct(16) @ idct(8)": "'@' at column 10",
    "idct(16) + idct(8)": "'+' at column 10",
    "spline(16)": "unknown operator 'spline' at column 1; known are mask",
    "__import__('os')": "unknown operator '__import__'",
    "idct(16).real": "unexpected '.' at column 9",
    "wavelet(16)": "one wavelet is wanted",
    "wavelet(16, nonsense)": "wavelet at column 1",
    "idct(16, level=2)": "unexpected keyword argument 'level'",
    "sparse(rows.npy)": "not a sparse matrix",
    "idct(16); rm": "unexpected ';' at column 9",
    "(" * (DEEPEST + 1) + "idct(4)" + ")" * (DEEPEST + 1): "nested more than",
    "1 * " * LONGEST: "characters",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_expressions_are_refused_with_the_place_and_the_reason(text: str, files: Path) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_operator(text)
    assert BAD[text] in str(caught.value)
    assert "\n" not in str(caught.value)


PIECES = st.sampled_from(
    ["mask(", "idct(", "fft(", "wavelet(", "dense(", "hstack(", ")", ",", "@", "*", "+", "=", "-", ".T", ".H"]
    + [
        "rows.npy",
        "matrix.npy",
        "several.npz:rows",
        "haar",
        "16",
        "4",
        "0.5",
        "1e400",
        "'",
        '"',
        " ",
        "..",
        "/",
    ]
    + ["__class__", "lambda", "\x00", "é"]
)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=12))
def test_any_text_gives_an_operator_or_an_error_that_says_why(pieces: list[str]) -> None:
    with contextlib.suppress(ExpressionError):
        assert len(parse_operator("".join(pieces)).shape) == 2


# --- files ------------------------------------------------------------------------------------------


def test_files_are_read(files: Path) -> None:
    np.testing.assert_array_equal(read_array("rows.npy"), ROWS)
    np.testing.assert_array_equal(read_array("rows.csv"), ROWS)
    np.testing.assert_array_equal(read_array("several.npz:kernel"), KERNEL)
    (files / "table.csv").write_text("1,2\n3,4\n")
    np.testing.assert_array_equal(read_array("table.csv"), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.npy", b""),
        ("empty.npz", b""),
        ("empty.csv", b""),
        ("text.npy", b"not an array"),
        ("text.npz", b"not an archive"),
        ("text.csv", b"a,b\nc,d\n"),
        ("ragged.csv", b"1,2\n3\n"),
        ("binary.csv", bytes(range(128, 256))),
        (
            "huge.npy",
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9000000000000,), }",
        ),
    ],
)
def test_files_that_hold_no_numbers_are_refused_by_name(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")) as caught:
        read_array(str(path))
    assert "\n" not in str(caught.value)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    np.save(tmp_path / "trap.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "trap.npz", np.array([Trap()], dtype=object))
    for name in ("trap.npy", "trap.npz"):
        with pytest.raises(ValueError, match="trap"):
            read_array(str(tmp_path / name))
    assert not (tmp_path / "sprung").exists()


@settings(max_examples=100)
@given(st.binary(max_size=200), st.sampled_from([".npy", ".npz", ".csv"]))
def test_any_bytes_give_numbers_or_a_value_error(tmp_path_factory, content: bytes, suffix: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"data{suffix}"
    path.write_bytes(content)
    with contextlib.suppress(ValueError):
        assert read_array(str(path)).dtype.kind in "biufc"
