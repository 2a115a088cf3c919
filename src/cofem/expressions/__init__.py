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

from cofem.expressions.build import named_files, parse_operator
from cofem.expressions.grammar import DEEPEST, LONGEST, MOST_PARTS, ExpressionError
from cofem.expressions.names import NAMES

__all__ = [
    "DEEPEST",
    "LONGEST",
    "MOST_PARTS",
    "NAMES",
    "ExpressionError",
    "named_files",
    "parse_operator",
]
