"""Operators from the tree of an expression."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from cofem.expressions.grammar import ExpressionError, Node, Parser, brief, one_line, tokens
from cofem.expressions.names import NAMES
from cofem.files import SUFFIXES, split_source
from cofem.operators import (
    Operator,
)


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
    node = Parser(text).parse()
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
    words = (token.text.strip("'\"") for token in tokens(text) if token.kind in ("word", "text"))
    paths = (split_source(os.path.expanduser(word))[0] for word in words)
    return [path for path in paths if path.suffix in SUFFIXES]


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
        raise ExpressionError(f"{node.kind!r} at column {node.position + 1}: {one_line(error)}") from error


def _operator(node: Node, n_columns: int | None) -> Operator:
    built = _build(node, n_columns)
    if not isinstance(built, Operator):
        raise ExpressionError(f"an operator is wanted at column {node.position + 1}, got {brief(built)}")
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
        raise ExpressionError(f"{place}: {one_line(error)}") from error


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
