"""Operators from text, e.g. ``mask(rows.npy) @ idct(512, 512)``: parsed, never evaluated as Python.

The grammar::

    sum      = product { "+" product }
    product  = factor { ("@" | "*") factor }
    factor   = number | ( call | "(" sum ")" ) { ".T" | ".H" }
    call     = name "(" [ argument { "," argument } ] ")"
    argument = [ name "=" ] ( sum | number | word | text | several )
    several  = "(" sum "," [ sum { "," sum } ] ")"

A word is a file name or a plain name without quotes; a text is in single or double quotes. What
a person would not write (too long, too deep, too large for memory) is refused before anything is built.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cofem._memory import available_bytes, describe_bytes
from cofem.files import SUFFIXES, check_unpacked, read_array, split_source
from cofem.operators import (
    DCT,
    FFT,
    BlockDCT,
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
    hstack,
    vstack,
)

#: Longer expressions, deeper nested ones and those of more parts are refused: nobody writes them by hand.
LONGEST = 10_000
DEEPEST = 50
MOST_PARTS = 200
#: Most axes of a signal, and its largest size where the system does not tell how much memory there is.
MOST_AXES = 16
LARGEST = 2**40

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>"[^"]*"|'[^']*')
  | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w./\\-]))
  | (?P<word>(?:\.{1,2}(?=[/\\]))?[\w/\\~][\w./\\~:-]*)
  | (?P<postfix>\.[TH](?!\w))
  | (?P<sign>[@*+(),=-])
)""",
    re.VERBOSE,
)


class ExpressionError(ValueError):
    """An operator expression that cannot be read; the message says where and why."""


class Token(NamedTuple):
    """A piece of the text and where it begins."""

    kind: str
    text: str
    position: int


@dataclass(frozen=True)
class Node:
    """What was read: a call, a product, a sum, a transpose or a plain value."""

    kind: str
    value: Any
    parts: tuple[Any, ...]
    position: int


def parse_operator(text: str) -> Operator:
    """Build an operator from an expression.

    The names are those of `NAMES`; ``cofem recover --list-operators`` and `docs/command-line.md` have the
    table. Lengths may stand as in Python, ``idct((48, 64))``, or by themselves, ``idct(48, 64)``. Files are
    read with `cofem.files.read_array`.

    Examples
    --------
    >>> parse_operator("2 * idct(8)").shape
    (8, 8)
    >>> import numpy as np, os, tempfile
    >>> rows = os.path.join(tempfile.mkdtemp(), "rows.npy")
    >>> np.save(rows, [0, 3, 5])
    >>> parse_operator(f"mask({rows}) @ idct(8)").shape
    (3, 8)
    """
    node = _Parser(text).parse()
    built = _build(node, None)
    if not isinstance(built, Operator):
        raise ExpressionError(
            f"an operator is wanted, e.g. mask(rows.npy) @ idct(1024); got {text.strip()!r}"
        )
    return built


def named_files(text: str) -> list[Path]:
    """Return the files that an expression names.

    Examples
    --------
    >>> named_files("mask(rows.npz:seen) @ convolution('my kernel.npy', 64, mode=linear)")
    [PosixPath('rows.npz'), PosixPath('my kernel.npy')]
    """
    words = (token.text.strip("'\"") for token in _tokens(text) if token.kind in ("word", "text"))
    paths = (split_source(os.path.expanduser(word))[0] for word in words)
    return [path for path in paths if path.suffix in SUFFIXES]


def _tokens(text: str) -> list[Token]:
    if len(text) > LONGEST:
        raise ExpressionError(f"expression of {len(text)} characters; {LONGEST} are allowed")
    found, position = [], 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            at = position + len(text[position:]) - len(text[position:].lstrip())
            raise ExpressionError(f"unexpected {text[at]!r} at column {at + 1}")
        kind = str(match.lastgroup)
        found.append(Token(kind, match.group(kind), match.start(kind)))
        position = match.end()
    return [*found, Token("end", "the end", end)]


class _Parser:
    """Recursive descent over the grammar at the head of the module."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        parts = sum(token.kind == "postfix" or token.text in ("+", "@", "*", "(") for token in self._tokens)
        if parts > MOST_PARTS:
            raise ExpressionError(
                f"expression of {parts} parts (terms, factors, calls, .T and .H); {MOST_PARTS} are allowed"
            )

    def parse(self) -> Node:
        node = self._sum()
        if self._peek().kind != "end":
            self._fail("an operator sign or the end")
        return node

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._peek().kind in ("sign", "postfix") and self._peek().text == text:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(repr(text))

    def _fail(self, wanted: str) -> None:
        token = self._peek()
        raise ExpressionError(f"{wanted} is wanted at column {token.position + 1}, got {token.text!r}")

    def _sum(self) -> Node:
        node = self._product()
        while self._peek().text == "+" and self._peek().kind == "sign":
            position = self._take().position
            node = Node("+", None, (node, self._product()), position)
        return node

    def _product(self) -> Node:
        node = self._factor()
        while self._peek().kind == "sign" and self._peek().text in ("@", "*"):
            token = self._take()
            node = Node(token.text, None, (node, self._factor()), token.position)
        return node

    def _factor(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ExpressionError(f"nested more than {DEEPEST} deep at column {self._peek().position + 1}")
        token = self._peek()
        if token.kind == "sign" and token.text == "-":
            self._next += 1
            if self._peek().kind != "number":
                self._fail("a number")
            inner = self._number(self._take())
            node = Node("value", -inner.value, (), token.position)
        elif token.kind == "number":
            node = self._number(self._take())
        elif token.kind == "text":
            self._next += 1
            node = Node("value", token.text[1:-1], (), token.position)
        elif token.kind == "word":
            node = self._call() if self._is_call() else Node("value", self._take().text, (), token.position)
        elif self._accept("("):
            node = self._within(token.position)
        else:
            self._fail("an operator or a number")
        while self._peek().kind == "postfix":
            mark = self._take()
            node = Node(mark.text, None, (node,), mark.position)
        self._depth -= 1
        return node

    def _within(self, position: int) -> Node:
        """Read what is in parentheses: a sum, or several with commas between them, as a tuple in Python."""
        parts = [self._sum()]
        if self._accept(")"):
            return parts[0]
        while self._accept(","):
            if self._peek().kind == "sign" and self._peek().text == ")":
                break
            parts.append(self._sum())
        self._expect(")")
        return Node("several", None, tuple(parts), position)

    def _is_call(self) -> bool:
        after = self._peek(1)
        return after.kind == "sign" and after.text == "("

    def _number(self, token: Token) -> Node:
        try:
            value: float | int = int(token.text) if token.text.isdigit() else float(token.text)
        except ValueError as error:  # Python reads 4300 digits
            raise ExpressionError(f"too long a number at column {token.position + 1}") from error
        if abs(value) > 1e300:
            raise ExpressionError(f"too large a number at column {token.position + 1}: {_brief(token.text)}")
        return Node("value", value, (), token.position)

    def _call(self) -> Node:
        name = self._take()
        self._expect("(")
        arguments: list[tuple[str | None, Node]] = []
        while not self._accept(")"):
            if arguments:
                self._expect(",")
            key = None
            after = self._peek(1)
            if self._peek().kind == "word" and after.kind == "sign" and after.text == "=":
                key = self._take().text
                self._next += 1
            arguments.append((key, self._sum()))
        return Node("call", name.text, tuple(arguments), name.position)


def _build(node: Node, n_columns: int | None) -> Any:
    """Turn a node into an operator or a value; `n_columns` is what stands to its right, if known."""
    if node.kind == "value":
        return node.value
    if node.kind == "call":
        return _call(node, n_columns)
    if node.kind == "several":
        return tuple(_build(part, None) for part in node.parts)
    try:
        if node.kind == "@":
            right = _operator(node.parts[1], n_columns)
            return _operator(node.parts[0], right.shape[0]) @ right
        if node.kind == "*":
            left, right = _build(node.parts[0], n_columns), _build(node.parts[1], n_columns)
            if isinstance(left, Operator) == isinstance(right, Operator):
                raise ExpressionError("'*' is for a number and an operator; operators are joined by '@'")
            return left * right
        if node.kind == "+":
            return _operator(node.parts[0], n_columns) + _operator(node.parts[1], n_columns)
        inner = _operator(node.parts[0], None)
        return inner.T if node.kind == ".T" else inner.H
    except ExpressionError:
        raise
    except _FAILURES as error:
        raise ExpressionError(f"{node.kind!r} at column {node.position + 1}: {_line(error)}") from error


def _operator(node: Node, n_columns: int | None) -> Operator:
    built = _build(node, n_columns)
    if not isinstance(built, Operator):
        raise ExpressionError(f"an operator is wanted at column {node.position + 1}, got {_brief(built)}")
    return built


def _call(node: Node, n_columns: int | None) -> Operator:
    if node.value not in NAMES:
        raise ExpressionError(
            f"unknown operator {node.value!r} at column {node.position + 1}; known are {', '.join(NAMES)}"
        )
    place, builder = f"{node.value} at column {node.position + 1}", NAMES[node.value].build
    positional = [_build(part, None) for key, part in node.parts if key is None]
    keys = [key for key, _ in node.parts if key is not None]
    _, *parameters = inspect.signature(builder).parameters.values()  # the first is for the place of the call
    known = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
    for key in keys:
        if key not in known:
            choices = f"; known are {', '.join(known)}" if known else "; it takes lengths or operators only"
            raise ExpressionError(f"{place}: there is no argument {key!r}{choices}")
        if keys.count(key) > 1:
            raise ExpressionError(f"{place}: the argument {key!r} is given twice")
    named = {key: _build(part, None) for key, part in node.parts if key is not None}
    try:
        call = inspect.signature(builder).bind(n_columns, *positional, **named)
    except TypeError as error:  # "missing a required argument: 'block'"
        raise ExpressionError(f"{place}: {error}; it takes {_signature(parameters)}") from error
    try:
        return builder(*call.args, **call.kwargs)
    except ExpressionError as error:
        raise ExpressionError(f"{place}: {error}") from error
    except _FAILURES as error:
        raise ExpressionError(f"{place}: {_line(error)}") from error


#: What operators and files raise on bad arguments.
_FAILURES = (ValueError, TypeError, ArithmeticError, IndexError, AttributeError, MemoryError, RecursionError)


def _signature(parameters: list[inspect.Parameter]) -> str:
    """Say what a name takes."""
    words = []
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            words.append(f"{each.name}...")
        elif each.kind is each.KEYWORD_ONLY:
            words.append(f"{each.name}=...")
        else:
            words.append(each.name)
    return ", ".join(words)


def _line(error: BaseException) -> str:
    """Return the words of an exception in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _brief(value: Any) -> str:
    """Return a value as a text of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _shape(lengths: tuple[Any, ...]) -> int | tuple[int, ...]:
    """Return the lengths of a signal's axes, if one vector of that size fits into memory."""
    lengths = _one_by_one(lengths)
    if not lengths or not all(isinstance(length, int) and length > 0 for length in lengths):
        got = ", ".join(_brief(length) for length in lengths[:MOST_AXES]) or "none"
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
        raise ExpressionError(f"{name} must be true or false, got {_brief(value)}")
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
            f"{path}: not a sparse matrix written by scipy.sparse.save_npz ({_line(error)})"
        ) from error
    return as_operator(matrix)


def _file(name: Any) -> str:
    if not isinstance(name, str):
        raise ExpressionError(f"a file ({', '.join(SUFFIXES)}) is wanted, got {_brief(name)}")
    return os.path.expanduser(name)


def _npy(file: Any) -> str:
    path = Path(_file(file))
    if path.suffix != ".npy":
        raise ExpressionError(f"a matrix in an .npy file is wanted, got {_brief(file)}")
    if not os.path.isfile(path):
        raise ExpressionError(f"{path}: no such file")
    return str(path)


def _stack(join: Callable[[list[Operator]], Operator]) -> Callable[..., Operator]:
    """Return a builder that takes operators."""
    return lambda n_columns, *operators: join(list(_one_by_one(operators)))


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
    "hstack": Name(_stack(hstack), "hstack(identity(1024), idct(1024))", "operators side by side"),
    "vstack": Name(_stack(vstack), "vstack(dct(1024), identity(1024))", "operators on top of each other"),
}
