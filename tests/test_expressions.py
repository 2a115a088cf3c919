"""Operators from text and arrays from files: what is read is right, what is wrong is refused in one line."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cofem import files as files_module
from cofem.expressions import DEEPEST, LONGEST, MOST_PARTS, NAMES, ExpressionError, parse_operator
from cofem.files import read_array, read_npz
from cofem.operators import (
    DCT,
    FFT,
    NUFFT,
    BlockDCT,
    Coils,
    Convolution,
    Dense,
    Gradient,
    Identity,
    Mask,
    Wavelet,
    WaveletFrame,
    block_diag,
    hstack,
)

RNG = np.random.default_rng(0)
ROWS = np.array([5, 0, 3, 9])
KERNEL = np.array([1.0, 2.0, 0.5])
MATRIX = RNG.standard_normal((5, 16))
POINTS = np.random.default_rng(1).uniform(-2, 2, (3, 2))
MAPS = np.random.default_rng(2).standard_normal((2, 4, 4, 2)) @ np.array([1.0, 1.0j])
FLAGS = RNG.random((4, 4)) < 0.5


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path = tmp_path / "here"
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save("rows.npy", ROWS)
    np.savetxt("rows.csv", ROWS, delimiter=",")
    (tmp_path / "table.csv").write_text("day,row\n" + "".join(f"d{row},{row}\n" for row in ROWS))
    np.save("flags.npy", FLAGS)
    np.save("kernel.npy", KERNEL)
    np.save("my-kernel.v2.npy", KERNEL)
    np.save("matrix.npy", MATRIX)
    np.save("weights.npy", np.arange(1.0, 17))
    np.save("points.npy", POINTS)
    np.save("maps.npy", MAPS)
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
    "mask(./rows.npy) @ idct(16)": lambda: Mask(ROWS, 16) @ DCT(16).T,
    "mask(../here/sub/rows.npy, 16)": lambda: Mask(ROWS, 16),
    "mask(~/sub/rows.npy, 16)": lambda: Mask(ROWS, 16),
    "wavelet(16, wavelet=db2, level=1)": lambda: Wavelet(16, "db2", level=1),
    "convolution(kernel.npy, 16, causal=true)": lambda: Convolution(KERNEL, 16, causal=True),
    "convolution(kernel.npy, 16, mode=linear, causal=True)": lambda: Convolution(
        KERNEL, 16, mode="linear", causal=True
    ),
    "convolution(kernel.npy, 16, causal=false)": lambda: Convolution(KERNEL, 16),
    "convolution(kernel.npy, 16, centre=false)": lambda: Convolution(KERNEL, 16, centre=False),
    "convolution(kernel.npy, 16, mode=linear, output=full)": lambda: Convolution(
        KERNEL, 16, mode="linear", output="full"
    ),
    "idct((4, 4))": lambda: DCT((4, 4)).T,
    "idct((16,))": lambda: DCT(16).T,
    "mask(rows.npy, (4, 4)) @ iwavelet((4, 4), haar)": lambda: Mask(ROWS, 16) @ Wavelet((4, 4), "haar").T,
    "hstack((identity(16), idct(16),))": lambda: hstack([Identity(16), DCT(16).T]),
    "mask('table.csv:row', 16)": lambda: Mask(ROWS, 16),
    "mask(sub/rows.npy) @ idct(4, 4)": lambda: Mask(ROWS, 16) @ DCT((4, 4)).T,
    "mask('several.npz:rows', 16)": lambda: Mask(ROWS, 16),
    "mask(several.npz:rows, 16)": lambda: Mask(ROWS, 16),
    "mask(one.npz, 16)": lambda: Mask(ROWS, 16),
    "mask(flags.npy) @ idct(4, 4)": lambda: Mask(FLAGS) @ DCT((4, 4)).T,
    "mask(rows.npy) @ fft(16)": lambda: Mask(ROWS, 16) @ FFT(16),
    "ifft(16)": lambda: FFT(16).H,
    "mask(rows.npy) @ iblockdct(4, 4, block=2)": lambda: Mask(ROWS, 16) @ BlockDCT((4, 4), 2).T,
    "blockdct(16, block=4)": lambda: BlockDCT(16, 4),
    "gradient(4, 4)": lambda: Gradient((4, 4)),
    "gradient(16, boundary=periodic, order=2)": lambda: Gradient(16, "periodic", order=2),
    "waveletframe(4, 4)": lambda: WaveletFrame((4, 4)),
    "waveletframe(16, wavelet=db2, level=2)": lambda: WaveletFrame(16, "db2", level=2),
    "rfft(16) + irfft(16)": lambda: FFT(16, real=True) + FFT(16, real=True).H,
    "mask(rows.npy) @ iwavelet(4, 4, haar)": lambda: Mask(ROWS, 16) @ Wavelet((4, 4), "haar").T,
    'wavelet(16, "db2", level=1)': lambda: Wavelet(16, "db2", level=1),
    "convolution(kernel.npy, 16)": lambda: Convolution(KERNEL, 16),
    "convolution(my-kernel.v2.npy, 16, mode=linear)": lambda: Convolution(KERNEL, 16, mode="linear"),
    "mask(rows.npy) @ convolution(kernel.npy) @ idct(16)": lambda: (
        Mask(ROWS, 16) @ Convolution(KERNEL, 16) @ DCT(16).T
    ),
    "dense(matrix.npy)": lambda: MATRIX,
    "distributed(matrix.npy)": lambda: MATRIX,
    "sparse(sparse.npz)": lambda: MATRIX,
    "2.5e-1 * identity(16)": lambda: 0.25 * Identity(16),
    "-2 * (dense(matrix.npy) @ diagonal(weights.npy))": lambda: -2 * (MATRIX * np.arange(1.0, 17)),
    "hstack(identity(16), idct(16))": lambda: hstack([Identity(16), DCT(16).T]),
    "vstack(dense(matrix.npy), identity(16))": lambda: np.vstack([MATRIX, np.eye(16)]),
    "( dense(matrix.npy).T ).H": lambda: MATRIX,
    "nufft(points.npy, (4, 4))": lambda: NUFFT(POINTS, (4, 4)),
    "blockdiag(mask(rows.npy, (4, 4)) @ fft((4, 4)), copies=2) @ coils(maps.npy)": lambda: (
        block_diag([Mask(ROWS, (4, 4)) @ FFT((4, 4))] * 2) @ Coils(MAPS)
    ),
    "blockdiag(dense(matrix.npy), identity(2))": lambda: block_diag([Dense(MATRIX), Identity(2)]),
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
    "blockdiag(identity(4), copies=0)": "copies must be a whole number from 1 to 65536, got 0",
    "blockdiag()": "operators must be a non-empty sequence",
    "nufft(points.npy, 4)": "points must have shape (M, 1)",
    "coils(weights.npy)": "maps must have shape (coils",
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
    "idct((4, 4)": "',' is wanted at column 12",
    "idct((4, 4), 2)": "lengths must be positive whole numbers, got (4, 4), 2",
    "idct((4, idct(2)))": "lengths must be positive whole numbers",
    "(4, 4)": "an operator is wanted",
    "idct(16) @ (4, 4)": "an operator is wanted at column 12, got (4, 4)",
    "(idct(4), 2) + idct(4)": "an operator is wanted at column 1",
    "mask(table.csv:night, 16)": "has no column 'night'; there are day, row",
    "convolution(kernel.npy, 16, centre=yes)": "centre must be true or false, got yes",
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
    "idct(16, level=2)": "idct at column 1: there is no argument 'level'; it takes lengths or operators only",
    "wavelet(64, wavlet='db4')": "wavelet at column 1: there is no argument 'wavlet'; known are wavelet,",
    "wavelet(64, db4, wavelet=db2)": "one wavelet is wanted",
    "mask(rows.npy, n_columns=16)": "there is no argument 'n_columns'; known are rows",
    "blockdct(16)": "missing a required argument: 'block'; it takes lengths..., block=...",
    "mask()": "missing a required argument: 'rows'",
    "dense(matrix.npy, 4)": "too many positional arguments; it takes file",
    "wavelet(16, db2, level=1, level=1)": "the argument 'level' is given twice",
    "convolution(kernel.npy, 16, causal=yes)": "causal must be true or false, got yes",
    "convolution(kernel.npy, 16, mode=reflect)": "mode must be one of",
    "idct(1000000000000000)": "a signal of length 1e+15 takes 8e+03 TB; at most ",
    "idct(100000, 100000, 100000)": "a signal of length 1e+15 takes",
    "mask(rows.npy, 1000000000000000)": "a signal of length 1e+15 takes",
    "convolution(kernel.npy, 1000000000000000)": "a signal of length 1e+15 takes",
    f"idct({'1, ' * 80}4)": "a signal of 81 axes; 16 are allowed",
    f"idct({'9' * 5000})": "too long a number at column 6",
    f"idct({'9' * 400})": "too large a number at column 6",
    "1e400 * idct(4)": "too large a number at column 1",
    " + ".join(["idct(4)"] * 1000): "1999 parts (terms, factors, calls, .T and .H); 200 are allowed",
    "idct(4)" + ".T" * 4000: "expression of 4001 parts",
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


def test_as_many_parts_as_are_allowed_are_built(files: Path) -> None:
    x = np.arange(4.0)
    terms = parse_operator(" + ".join(["idct(4)"] * (MOST_PARTS // 2)))
    np.testing.assert_allclose(terms @ x, MOST_PARTS // 2 * (DCT(4).T @ x))
    for text in (" @ ".join(["idct(4)"] * (MOST_PARTS // 2)), "idct(4)" + " * 2" * (MOST_PARTS - 1)):
        assert (parse_operator(text) @ x).shape == (4,)
        assert repr(parse_operator(text))


def test_a_sparse_matrix_with_indices_out_of_its_shape_is_refused(files: Path) -> None:
    with np.load("sparse.npz") as file:
        arrays = dict(file)
    arrays["indices"][3] = 10**6
    np.savez("bad.npz", **arrays)
    with pytest.raises(ExpressionError, match=r"bad.npz: not a sparse matrix"):
        parse_operator("sparse(bad.npz)")


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


def test_tables_with_a_header(files: Path) -> None:
    (files / "flux.csv").write_text('time,"flux, raw"\n1,2\n3,4\n')
    np.testing.assert_array_equal(read_array("flux.csv"), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(read_array("flux.csv:flux, raw"), [2, 4])
    np.testing.assert_array_equal(read_array("flux.csv:0"), [1, 3])
    np.savetxt("saved.csv", [[1, 2], [3, 4]], delimiter=",", header="a,b")
    np.testing.assert_array_equal(read_array("saved.csv:b"), [2, 4])
    (files / "bare.csv").write_text("1,2\n3,4\n")
    np.testing.assert_array_equal(read_array("bare.csv:1"), [2, 4])
    np.testing.assert_array_equal(read_array("table.csv:row"), ROWS)  # beside a column of words


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("a,b\n1,2\n", "t.csv:c", "t.csv: has no column 'c'; there are a, b"),
        ("1,2\n3,4\n", "t.csv:c", "t.csv: has no column 'c'; it has no header: give a number, from 0"),
        ("a,a\n1,2\n", "t.csv:a", "t.csv: has 2 columns 'a'; give the number of one, from 0"),
        ("1,b\n3,4\n", "t.csv", "t.csv: could not convert"),  # no header: a number that was mistyped
        ("a,b\n1,2\n", "t.csv:7", "t.csv: "),
        ("a,b\n", "t.csv", "t.csv: "),
    ],
)
def test_columns_that_are_not_there(
    text: str, source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv") as caught:
        read_array(source)
    assert str(caught.value).startswith(message)


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "sheet.csv").write_bytes(b"\xef\xbb\xbf1.5,2\r\n3,4\r\n")
    np.testing.assert_array_equal(read_array(str(tmp_path / "sheet.csv")), [[1.5, 2], [3, 4]])


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_files_that_are_cut_short_are_refused_by_name(share: float, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"y{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, np.arange(100.0))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=rf"y\{suffix}: ") as caught:
        read_array(str(path))
    assert "\n" not in str(caught.value)


def test_what_unpacks_to_more_than_the_memory_is_refused_with_the_figure(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, y=np.zeros(2_000_000))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(files_module, "available_bytes", lambda: 1_000_000)
    with pytest.raises(ValueError, match=r"bomb\.npz: takes 16 MB of memory once it is read; 1 MB are free"):
        read_array(str(path))
    with pytest.raises(ValueError, match="takes 16 MB"):
        read_npz(path)
    with pytest.raises(ExpressionError, match="takes 16 MB"):
        parse_operator(f"sparse({path})")


def test_an_array_in_an_archive_cannot_claim_to_be_larger_than_it_is(tmp_path: Path) -> None:
    path = tmp_path / "claim.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (900000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", b"\x93NUMPY\x01\x00v\x00" + header + bytes(80))
    with pytest.raises(ValueError, match=r"claim\.npz: is cut short .* takes 7.2 GB, there are 80 B"):
        read_array(str(path))


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
