"""What residuals of neighbours say: noise leaves them apart, texture that was taken for it does not."""

from __future__ import annotations

import numpy as np

from cofem._arrays import to_numpy
from cofem.inference.analysis.problem import AnalysisProblem
from cofem.inference.base import State
from cofem.inference.record import Outcome
from cofem.status import Caution

#: Fewest pairs of neighbours that say anything.
FEWEST_PAIRS = 100
#: Their correlation above which a noise that was learned is in doubt. Nine pictures of 96 x 96, all or 35 %
#: of the pixels seen, noise 0.01 and 0.1: -0.53 to 0.09 where it was 0.75 to 1.3 of the truth, 0.15 to 0.31
#: on four fits of grass and gravel where it was 1.4 to 11.
LEFT_OVER = 0.1


def neighbours_alike(problem: AnalysisProblem, state: State, held_out: np.ndarray) -> float:
    """Return the correlation of the residuals of places that are next to each other; NaN for too few pairs.

    A mean that follows the noise of one place takes some of it over to those beside it, so that residuals of
    noise alone are correlated negatively: from -0.08 to -0.89, on eight pictures with noise of 0.5 to 10 % of
    their range. Of grass and gravel, whose finest details were taken for noise, it was -0.10 to 0.20.

    Parameters
    ----------
    problem : AnalysisProblem
        The problem with all data, each of which sees one place.
    state : State
        A fit to the data without some.
    held_out : ndarray of int
        Which these are.
    """
    grid, matrix = problem.rows.grid, problem.phi.operator.sparse_matrix()
    assert grid is not None
    assert matrix is not None
    residual = to_numpy(problem.y - problem.phi.forward(state.mean))
    seeing = np.diff(matrix.indptr) > 0
    seeing[held_out] = False
    there = np.full((*residual.shape[:-1], matrix.shape[1]), np.nan, dtype=residual.dtype)
    there[..., matrix.indices[matrix.indptr[:-1][seeing]]] = residual[..., seeing]
    there = there.reshape(*residual.shape[:-1], *grid)
    products = []
    for axis in problem.rows.axes:
        here = np.moveaxis(there, axis, 0)
        pair = (here[1:] * np.conj(here[:-1])).real
        products.append(pair[np.isfinite(pair)])
    together = np.concatenate(products)
    square = float(np.nanmean(np.abs(there) ** 2))
    if together.size < FEWEST_PAIRS or square == 0:
        return float("nan")
    return float(np.mean(together)) / square


def about_residuals(outcome: Outcome, learned: bool) -> list[str]:
    """Say so where residuals of neighbours are so alike that signal was taken for noise."""
    problem, state = outcome.problem, outcome.state
    assert isinstance(problem, AnalysisProblem)
    operator = problem.phi.operator
    places = operator.facts.one_per_row and operator.sparse_matrix() is not None
    if not (learned and places) or problem.rows.grid is None or not isinstance(state.mean, np.ndarray):
        return []
    alike = neighbours_alike(problem, state, np.zeros(0, dtype=int))
    if not alike > LEFT_OVER:
        return []
    noise_std = problem.noise_var**0.5 * problem.units.data
    return [
        Caution(
            f"the estimated noise, {noise_std:.3g}, seems too large: residuals of neighbors are alike "
            f"(correlation {alike:.2f}), so part of the signal was taken for noise. Give noise_std if you "
            "know it"
        )
    ]
