"""The algorithms by name, and the choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem._memory import is_available
from cofem.inference.amp import AMP
from cofem.inference.base import ExpectationMaximisation, Method
from cofem.inference.covariance_free import CoFEM
from cofem.inference.em import EM
from cofem.inference.irls import IRLS
from cofem.inference.problem import Problem
from cofem.inference.seq import Seq
from cofem.inference.vi import VI
from cofem.linalg.diagonals.gate import Gate
from cofem.linalg.diagonals.self_consistent import has_gaussian_columns
from cofem.priors.multitask import OneAfterAnother
from cofem.status import Caution

METHODS: dict[str, type[Method]] = {method.name: method for method in (EM, IRLS, AMP, VI, Seq, CoFEM)}

#: Multiplications of a step of an exact method up to which it is chosen by itself: 2^23 take 0.3 to 1 ms (one
#: thread), so that a fit takes as long as the Python of one by message passing.
SMALL_WORK = 2**23
#: The same for dictionaries that message passing does not suit, where conjugate gradients take many steps: a
#: fit then takes about half a second.
MEDIUM_WORK = 2**27
#: The same for matrices whose columns are alike but no shifts of each other: at most 1.8 times the time of
#: conjugate gradients, and down to a fifth (columns that are random walks, 500 x 2000); and with at least as
#: many rows as columns, where these take 0.5 to 19 times as long (1000 x 1000 to 4000 x 2000). Nearly as many
#: will do: a part of the data has a tenth less.
ALIKE_WORK, TALL, TALL_WORK = 2**30, 0.8, 2**33
#: The same where coefficients share precisions: what many of them say together may be little for each.
TIED_WORK = 2**29
#: And where columns are so many times as many as data: there message passing is of no use, and a fit by
#: conjugate gradients stops early (100 x 20 000: an error of 36 in place of 13 %, and no faster).
WIDE, WIDE_WORK = 16, 2**30


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

    An exact one where its steps cost little, or where columns are alike and they cost a little more; CoFEM
    otherwise, without checks of the variances where these are wanted on the average only.
    """
    phi = problem.phi
    n, d = phi.shape
    if not isinstance(problem.y, np.ndarray):
        method = CoFEM(diagonal="clusters") if phi.on_average else CoFEM()
        return method, "method 'auto' chose 'cofem': the exact methods work on NumPy arrays only"
    exact: Method = EM(accelerate=True) if d <= n else IRLS(accelerate=True)
    if _tasks_make_em_crawl(problem):
        exact = IRLS(update="mackay")
    side, fits = min(n, d), is_available(exact.memory(problem)[0], 0.5)
    work = d**3 if d <= n else 2 * n * n * d
    if fits and (work <= SMALL_WORK or (work <= _most_work(problem) and not is_incoherent(problem))):
        return exact, f"method 'auto' chose '{exact.name}': exact, and its {side} x {side} matrix is small"
    if phi.on_average:  # a part that nothing but the noise is wanted of
        return CoFEM(diagonal="clusters"), ""
    return CoFEM(diagonal=Gate(small=0)), f"method 'auto' chose 'cofem' for its {n} x {d} Phi"


def _tasks_make_em_crawl(problem: Problem) -> bool:
    """Tell whether EM would take thousands of steps to send what is not needed to zero, over tasks.

    With blocks it does on any dictionary; coefficient by coefficient where columns look alike, or are far
    more than the data. Where they are like Gaussian ones, what EM leaves once the mean has settled is worth
    having.
    """
    prior, (n, d) = problem.prior, problem.phi.shape
    joined = problem.n_tasks > 1 or isinstance(prior, OneAfterAnother)
    if not joined or problem.nonnegative or d <= n:
        return False
    one = prior.within_a_task
    return one.averages or (one.is_independent and not is_incoherent(problem))


def about_crawling(problem: Problem, method: Method, tol: float | None) -> str:
    """Say that EM's update, which was asked for or is all that fits in memory, stops far from the optimum."""
    follows_em = isinstance(method, ExpectationMaximisation) and getattr(method, "update", "em") == "em"
    if tol is not None or not follows_em or not _tasks_make_em_crawl(problem):
        return ""
    return Caution(
        "over several tasks the steps of EM are so short here that the fit may have stopped far from the "
        "optimum, with too many coefficients; use method=cofem.IRLS(update='mackay') where memory allows, or "
        "name a tol"
    )


def _most_work(problem: Problem) -> int:
    """Return the multiplications of a step up to which an exact method is chosen if message passing fails."""
    phi, (n, d) = problem.phi, problem.phi.shape
    if d > WIDE * n:
        return TALL_WORK if _tasks_make_em_crawl(problem) else WIDE_WORK
    if phi.stored_matrix() is not None and not phi.is_like_a_convolution:
        return TALL_WORK if n >= TALL * d else ALIKE_WORK
    return MEDIUM_WORK if problem.prior.is_independent else TIED_WORK


def is_incoherent(problem: Problem) -> bool:
    """Tell whether message passing suits a dictionary, by its structure or a few products.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> from cofem.operators.dictionary import Dictionary
    >>> rng = np.random.default_rng(0)
    >>> matrix = rng.standard_normal((100, 400))
    >>> for columns in (matrix, np.cumsum(matrix, axis=1)):
    ...     is_incoherent(Problem(Dictionary(Dense(columns), like=np.zeros(1)), np.ones(100), 1.0))
    True
    False
    """
    phi = problem.phi
    if phi.groups is not None or phi.shape[1] > WIDE * phi.shape[0]:
        return False
    if phi.facts.row_gram is not None:
        return True
    if phi.stored_matrix() is None and phi.operator.sparse_matrix() is None:
        return False
    return has_gaussian_columns(phi)
