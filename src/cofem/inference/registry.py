"""The algorithms by name, and the choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem._memory import available_bytes
from cofem.inference.amp import AMP
from cofem.inference.base import Method
from cofem.inference.covariance_free import CoFEM
from cofem.inference.em import EM
from cofem.inference.irls import IRLS
from cofem.inference.problem import Problem
from cofem.inference.seq import Seq
from cofem.inference.vi import VI

METHODS: dict[str, type[Method]] = {method.name: method for method in (EM, IRLS, AMP, VI, Seq, CoFEM)}

#: Side of the matrix an exact method factors, up to which it is chosen by itself: with fast transforms `irls`
#: took 0.3 s and `cofem` 0.7 s at N = 256, but 1.3 s and 0.1 s at N = 512 (DCT, D = 4 N); with a dense Phi
#: 1.4 s and 0.5 s at N = 512, 6.6 s and 2.5 s with learned noise.
EXACT_SIDE = 256


def get_method(method: Any, problem: Problem) -> tuple[Method, str]:
    """Return the method object and, if it was chosen here, why."""
    if isinstance(method, Method):
        return method, ""
    if method == "auto":
        return choose_method(problem)
    if isinstance(method, str) and method in METHODS:
        return METHODS[method](), ""
    if isinstance(method, str):
        names = ", ".join(repr(name) for name in ("auto", *METHODS))
        raise ValueError(f"method must be one of {names} or a method object, got {method!r}")
    raise TypeError(f"method must be a name or a method object such as cofem.CoFEM(), got {method!r}")


def check_method(method: Method, problem: Problem) -> None:
    """Refuse at the door what a method cannot do, and name those that can."""
    refusal = method.refusal(problem)
    if refusal is None:
        return
    able = [repr(name) for name, kind in METHODS.items() if kind().refusal(problem) is None]
    advice = f"; use {' or '.join([', '.join(able[:-1]), able[-1]] if able[1:] else able)}" if able else ""
    raise type(refusal)(f"{refusal}{advice}")


def choose_method(problem: Problem) -> tuple[Method, str]:
    """Pick the fastest method that is safe on this problem, and say why.

    An exact one where its matrix is small; CoFEM otherwise.
    """
    n, d = problem.phi.shape
    if not isinstance(problem.y, np.ndarray):
        return CoFEM(), "method 'auto' chose 'cofem': the exact methods work on NumPy arrays only"
    exact: Method = EM(accelerate=True) if d <= n else IRLS(accelerate=True)
    if problem.n_tasks > 1 and problem.prior.averages and not problem.nonnegative and d > n:
        # Blocks over tasks: EM takes thousands of steps to send what is not needed to zero.
        exact = IRLS(update="mackay")
    side, limit = min(n, d), available_bytes()
    fits = limit is None or exact.memory(problem)[0] < 0.5 * limit
    if side <= EXACT_SIDE and n * d <= EXACT_SIDE * 16384 and fits:
        return exact, f"method 'auto' chose '{exact.name}': exact, and its {side} x {side} matrix is small"
    return CoFEM(), f"method 'auto' chose 'cofem': a {side} x {side} matrix would cost more than it saves"
