"""The grammar of expressions: text to tokens to a tree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Longer expressions, deeper nested ones and those of more parts are refused: nobody writes them by hand.
LONGEST = 10_000
DEEPEST = 50
MOST_PARTS = 200

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


def tokens(text: str) -> list[Token]:
    """Return the pieces of a text."""
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


class Parser:
    """Recursive descent over the grammar at the head of the module."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._next = 0
        self._depth = 0
        parts = sum(token.kind == "postfix" or token.text in ("+", "@", "*", "(") for token in self._tokens)
        if parts > MOST_PARTS:
            raise ExpressionError(
                f"expression of {parts} parts (terms, factors, calls, .T and .H); {MOST_PARTS} are allowed"
            )

    def parse(self) -> Node:
        """Return the tree of the whole text."""
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
            raise ExpressionError(f"too large a number at column {token.position + 1}: {brief(token.text)}")
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


def brief(value: Any) -> str:
    """Return a value as a text of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def one_line(error: BaseException) -> str:
    """Return the words of an exception in one line."""
    return " ".join(str(error).split()) or type(error).__name__
