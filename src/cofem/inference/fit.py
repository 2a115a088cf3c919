"""`cofem.fit`: from operator and data to the posterior."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np

from cofem.inference.base import State
from cofem.inference.loop import Callback, run
from cofem.inference.problem import Problem, make_problem
from cofem.inference.progress import progress_bar
from cofem.inference.registry import get_method
from cofem.posterior import Posterior
from cofem.status import ConvergenceWarning, Status


def fit(
    Phi: Any,
    y: Any,
    *,
    noise_std: float,
    method: Any = "auto",
    max_iter: int | None = None,
    tol: float | None = None,
    alpha_init: Any = None,
    rng: int | np.random.Generator | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Posterior:
    r"""Sparse Bayesian learning: recover a sparse z from ``y = Phi z + noise``, with its uncertainty.

    The model is ``z ~ N(0, diag(alpha)^-1)``, ``y ~ N(Phi z, noise_std^2 I)``; alpha is found by
    maximising the evidence ``p(y | alpha)``, which sends most of alpha to infinity.

    Parameters
    ----------
    Phi : array, sparse matrix, LinearOperator, PyLops or cofem operator, shape (N, D)
        The dictionary; anything that `cofem.as_operator` takes.
    y : array of shape (N,)
        The data, real or complex. Structured operators work in the precision of y.
    noise_std : float
        Standard deviation of the noise (for complex data, of ``|noise|``).
    method : str or method object
        ``"auto"``, ``"em"``, ``"irls"``, ``"amp"``, ``"vi"``, ``"seq"``, ``"cofem"``, or an object
        with settings such as ``cofem.CoFEM(probes=10)``.
    max_iter : int, optional
        Outer steps at the most; the default depends on the method.
    tol : float, optional
        Stop when the mean changes by less than this, relative to its norm (columns weighted by their
        norms), and the prior by less than a hundred times this. By default 1e-4, or 1 % (`cofem`: 3 %)
        of the noise if that is more. `seq` has a stop of its own (`Seq.min_gain`).
    alpha_init : float or array of shape (D,), optional
        Where alpha starts. By default every column is expected to explain the same share of y.
    rng : int or numpy.random.Generator, optional
        Source of randomness; the same seed gives the same result.
    callback : callable, optional
        Called after every outer step with a snapshot that has ``iteration, mean, variance, alpha,
        noise_std, elapsed, applications``; the fit stops when it returns True.
    progress : bool
        Draw a progress bar.

    Returns
    -------
    Posterior
        Mean, variance, samples, intervals, history and status.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> from cofem.operators import DCT, Mask
    >>> rng = np.random.default_rng(0)
    >>> rows = np.sort(rng.choice(256, 128, replace=False))
    >>> Phi = Mask(rows, 256) @ DCT(256).T
    >>> z = np.zeros(256); z[[5, 40, 99]] = 3, -2, 1
    >>> y = Phi @ z + 0.01 * rng.standard_normal(128)
    >>> post = cofem.fit(Phi, y, noise_std=0.01)
    >>> np.round(post.mean[[5, 40, 99]], 1).tolist(), set([5, 40, 99]) <= set(post.support())
    ([3.0, -2.0, 1.0], True)
    """
    operator, problem = make_problem(Phi, y, noise_std)
    chosen, why = get_method(method, problem)
    chosen.check(problem)
    generator = _check_rng(rng)
    steps = _check_max_iter(chosen.default_max_iter if max_iter is None else max_iter)
    tolerance = None if tol is None else _check_tol(tol)
    start = _check_alpha_init(chosen.alpha_init if alpha_init is None else alpha_init, problem)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {type(callback).__name__}")

    callbacks: list[Callback] = [] if callback is None else [callback]
    with progress_bar(
        progress, steps, chosen.default_tol if tolerance is None else tolerance, chosen.name
    ) as bar:
        outcome = run(
            problem,
            chosen,
            State(problem.start(start)),
            rng=generator,
            max_iter=steps,
            tol=tolerance,
            callbacks=callbacks + ([bar] if bar else []),
        )
    status = outcome.status
    if outcome.doubtful:
        warnings.warn(str(status), ConvergenceWarning, stacklevel=2)
    if why:
        status = Status(status.code, status.message, (*status.notes, why))

    unit, state = problem.units.coefficient, outcome.state
    return Posterior(
        mean=state.mean * unit,
        variance=state.variance * unit**2,
        alpha=state.alpha / unit**2,
        noise_std=float(noise_std),
        method=chosen.name,
        status=status,
        history=outcome.history,
        operator=operator,
        y=problem.y * problem.units.data,
    )


def _check_rng(rng: Any) -> np.random.Generator:
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise TypeError(f"rng must be a seed, a numpy.random.Generator or None, got {rng!r}") from error


def _check_max_iter(max_iter: Any) -> int:
    if isinstance(max_iter, bool) or not isinstance(max_iter, numbers.Integral):
        raise TypeError(f"max_iter must be an integer, got {max_iter!r}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    return int(max_iter)


def _check_tol(tol: Any) -> float:
    if isinstance(tol, bool) or not isinstance(tol, numbers.Real):
        raise TypeError(f"tol must be a number, got {tol!r}")
    if not 0 <= float(tol) < np.inf:
        raise ValueError(f"tol must be non-negative and finite, got {tol}")
    return float(tol)


def _check_alpha_init(alpha_init: Any, problem: Problem) -> Any:
    if alpha_init is None:
        return None
    alpha = np.asarray(alpha_init)
    if alpha.dtype.kind not in "uif":
        raise TypeError(f"alpha_init must be real numbers, got {alpha_init!r}")
    if alpha.shape not in ((), (problem.n_columns,)):
        raise ValueError(
            f"alpha_init must be a number or have shape ({problem.n_columns},), got shape {alpha.shape}"
        )
    if not (np.isfinite(alpha).all() and (alpha > 0).all()):
        raise ValueError("alpha_init must be positive and finite")
    return alpha
