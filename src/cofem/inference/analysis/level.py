"""What no candidate has a prior for is fitted first, so that nothing depends on how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cofem._arrays import inner, namespace
from cofem.inference.problem import Problem
from cofem.linalg.analysis import Rows
from cofem.linalg.analysis.null_space import null_space, unseen_by
from cofem.operators import Operator

#: Part of the data that must be left, in units of rounding: else there is nothing but the level.
LEAST_LEFT = 1e4


def without_level(problem: Problem, candidates: Sequence[Operator]) -> Problem:
    """Return the problem with what none of the candidates sees taken out of the data, by least squares.

    A fit to what is left is the same fit: without a prior there, mean and data move together. Where the noise
    starts, and how large changes are, would otherwise depend on it.

    Parameters
    ----------
    problem : Problem
        The problem.
    candidates : sequence of Operator
        Analysis operators.

    Examples
    --------
    >>> from cofem.operators import Gradient, Mask
    >>> from cofem.operators.dictionary import Dictionary
    >>> problem = Problem(Dictionary(Mask([0, 2], 3), like=np.zeros(1)), np.array([4.0, 6.0]), 1.0)
    >>> found = without_level(problem, [Gradient(3)])
    >>> found.y.round(9).tolist(), found.level.round(9).tolist()
    ([-1.0, 1.0], [5.0, 5.0, 5.0])
    """
    if problem.nonnegative:  # zero is a place of its own then
        return problem
    first, *others = dict.fromkeys(candidates)
    rows = Rows(first, problem.y)
    if rows.grid is None and rows.sparse is None:
        return problem
    basis = rows.null_basis
    for other in others:
        basis = basis[unseen_by(Rows(other, problem.y), basis)]
    null = null_space(problem.phi, basis)
    if null is None or not 0 < null.seen.shape[0] < problem.n_rows:
        return problem
    phi, y = problem.phi.operator, problem.y
    level = namespace(y).zeros_like(null.seen[0, :]) if y.ndim == 1 else None
    for _ in range(2):  # the second time for what rounding left
        share = null.share(phi.adjoint(y)) @ null.seen
        level = share if level is None else level + share
        y = y - phi.forward(share)
    eps = float(np.finfo(problem.real_dtype).eps)
    if inner(y, y) <= (LEAST_LEFT * eps) ** 2 * inner(problem.y, problem.y):
        return problem
    return replace(problem, y=y, level=level)
