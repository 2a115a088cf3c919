"""The algorithms by name, and the choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem._memory import available_bytes
from cofem.inference.amp import AMP
from cofem.inference.base import Method
from cofem.inference.cofem import CoFEM
from cofem.inference.em import EM
from cofem.inference.irls import IRLS
from cofem.inference.problem import Problem
from cofem.inference.seq import Seq
from cofem.inference.vi import VI
from cofem.linalg.direct import stored_matrix

METHODS: dict[str, type[Method]] = {method.name: method for method in (EM, IRLS, AMP, VI, Seq, CoFEM)}

#: Side of the matrix an exact method factors, up to which it is chosen by itself: with fast transforms `irls`
#: took 0.3 s and `cofem` 0.7 s at N = 256, but 1.3 s and 0.1 s at N = 512 (DCT, D = 4 N).
EXACT_SIDE = 256
#: The same where Phi is a matrix, of so many entries at the most: 1.3 s and 1.6 s at N = 512, D = 2048, but
#: 8.8 s and 6.2 s at N = 1024, D = 4096, and a regressor took 8.7 s and 3.0 s at N = 500, D = 3000.
EXACT_SIDE_OF_MATRIX, EXACT_ENTRIES_OF_MATRIX = 512, 2**20


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


def choose_method(problem: Problem) -> tuple[Method, str]:
    """Pick the fastest method that is safe on this problem, and say why.

    An exact one where its matrix is small; CoFEM otherwise.
    """
    n, d = problem.phi.shape
    if not isinstance(problem.y, np.ndarray):
        return CoFEM(), "method 'auto' chose 'cofem': the exact methods work on NumPy arrays only"
    exact = EM(accelerate=True) if d <= n else IRLS(accelerate=True)
    side, limit = min(n, d), available_bytes()
    fits = limit is None or exact.memory(problem)[0] < 0.5 * limit
    is_matrix = stored_matrix(problem.phi.operator) is not None and n * d <= EXACT_ENTRIES_OF_MATRIX
    largest = EXACT_SIDE_OF_MATRIX if is_matrix else EXACT_SIDE
    if side <= largest and n * d <= EXACT_SIDE * 16384 and fits:
        return exact, f"method 'auto' chose '{exact.name}': exact, and its {side} x {side} matrix is small"
    return CoFEM(), f"method 'auto' chose 'cofem': a {side} x {side} matrix would cost more than it saves"
