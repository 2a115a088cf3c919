"""Directions of the unknown that neither data nor prior determine."""

from __future__ import annotations

from cofem.inference.analysis.problem import AnalysisProblem
from cofem.linalg.analysis.null_space import WIDEST
from cofem.status import Caution


def about_null_space(problem: AnalysisProblem) -> list[str]:
    """Say so where neither data nor prior determine the unknown.

    Of a large B that is neither sparse nor differences only the number of rows is known.
    """
    known = 0 if problem.undetermined is None else problem.undetermined.shape[1]
    count = max(known, problem.n_columns - problem.n_rows - problem.rows.n_rows)
    if not count:
        return []
    spread = (
        f"it is given {WIDEST:g} times the size of the unknown"
        if known == count
        else "post.std leaves it out"
    )
    text = (
        f"Phi and analysis have a common null space of {count} dimension{'s' if count > 1 else ''}: what the "
        "posterior says about it is arbitrary, since neither data nor prior say anything. The mean has none "
        f"of it, and its standard deviation is infinite ({spread}). Stack rows onto analysis that see it, "
        "such as a small multiple of the identity"
    )
    return [Caution(text)]
