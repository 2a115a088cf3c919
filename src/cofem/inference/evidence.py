"""The log evidence ``log p(y | alpha, beta)`` from its two ingredients."""

from __future__ import annotations

import math

from cofem.inference.problem import Problem


def log_evidence(problem: Problem, log_det: float, quadratic: float) -> float:
    """Log density of y, in the user's units, given ``log det C`` and ``y^H C^-1 y``.

    ``C = noise_var I + Phi diag(1/alpha) Phi^H`` is the covariance of y, and of each task's; the quadratic
    is the sum over tasks. Complex data are circular.
    """
    n, log_det = problem.y.size, log_det * problem.n_tasks
    log_unit = n * math.log(problem.units.data)
    if problem.is_complex:
        return -(n * math.log(math.pi) + log_det + quadratic) - 2 * log_unit
    return -0.5 * (n * math.log(2 * math.pi) + log_det + quadratic) - log_unit
