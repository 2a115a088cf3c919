"""A standing adversary: random problems, each judged against exact formulas.

``python -m tests.adversary 2000`` draws so many problems from the families below, in turn:

- `synthesis`: kinds of dictionary, sizes, noise, priors and methods;
- `trees`: random compositions of operators;
- `analysis`: pictures and series, sparse in ``B u``, with the path of large problems forced on small ones;
- `afterwards`: what is made of a fit: files, refits, paths over noise levels.

A fit is *silently wrong* if it says that it has converged, warns of nothing, and yet one of its answers is
not
what the formulas say. Each family says which answers it looks at. ``--first N`` begins at another case, and
a
case is repeated by ``--first N 1``. The exit code is 1 if any fit is silently wrong.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import afterwards, analysis, synthesis, trees

FAMILIES: tuple[ModuleType, ...] = (synthesis, trees, analysis, afterwards)
#: Every kind of every family.
KINDS: tuple[tuple[ModuleType, str], ...] = tuple(
    (family, kind) for family in FAMILIES for kind in family.KINDS
)


def name_of(number: int) -> str:
    """Return the family and the kind of a case, in words."""
    family, kind = KINDS[number % len(KINDS)]
    return f"{family.__name__.rpartition('.')[2]}, {kind}"


def attack(number: int) -> tuple[Any, list[str]]:
    """Return case `number`, the same in every run, and what is silently wrong with it."""
    family, kind = KINDS[number % len(KINDS)]
    case = family.draw(kind, number)
    return case, family.judge(case)
