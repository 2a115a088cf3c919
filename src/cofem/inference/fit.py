"""`cofem.fit`: from operator and data to the posterior."""

from __future__ import annotations

import numbers
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from cofem._arrays import (
    as_array,
    in_precision,
    inner,
    namespace,
    on_device_of,
    size,
    to_numpy,
    transposed,
    without_gradients,
)
from cofem.inference.base import Method
from cofem.inference.checkpoint import Keeper, marks_of
from cofem.inference.loop import Callback, FitInterrupted, Outcome, run
from cofem.inference.noise import (
    ENOUGH_DATA,
    NOTHING_FOUND,
    STARTS,
    Continuation,
    FromEvidence,
    Learned,
    NoiseRule,
    held_out_parts,
    split,
)
from cofem.inference.problem import Problem, Ready, make_problem
from cofem.inference.progress import progress_bar
from cofem.inference.registry import choose_method, get_method
from cofem.operators import Operator, as_operator, block_diag, check_adjoint
from cofem.posterior import Posterior, join_tasks, split_tasks
from cofem.priors import PRIORS, Block, Independent, Prior
from cofem.priors.rectified import rectified_moments
from cofem.status import ConvergenceWarning, Status, StatusCode

#: Norm of a column, relative to the largest, below which what is found on it is pointed out.
WEAK_COLUMN = 1e-3


@without_gradients
def fit(
    Phi: Any,
    y: Any,
    *,
    noise_std: Any = "learn",
    method: Any = "auto",
    prior: Prior | None = None,
    nonnegative: bool = False,
    sample_weight: Any = None,
    max_iter: int | None = None,
    tol: float | None = None,
    alpha_init: Any = None,
    rng: int | np.random.Generator | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: Any = None,
    checkpoint_every: float | str | None = None,
    resume: Any = None,
) -> Posterior:
    r"""Sparse Bayesian learning: recover a sparse z from ``y = Phi z + noise``, with its uncertainty.

    The model is ``z ~ N(0, diag(alpha)^-1)``, ``y ~ N(Phi z, noise_std^2 I)``; alpha is found by
    maximising the evidence ``p(y | alpha)``, which sends most of alpha to infinity.

    Parameters
    ----------
    Phi : array, sparse matrix, LinearOperator, PyLops or cofem operator, shape (N, D); or a list of them
        The dictionary; anything that `cofem.as_operator` takes. A list, with a list for y, holds one for each
        task; they may differ in N.
    y : array of shape (N,) or (N, L)
        The data, real or complex. Structured operators work in the precision of y. L columns are L tasks:
        each by itself, unless the prior joins them (`cofem.MultiTask`). A PyTorch tensor, or an array of
        another library, stays on its device, and so does the posterior; see `docs/torch.md`.
    noise_std : "learn", float or array of shape (N,)
        Standard deviation of the noise (for complex data, of ``|noise|``), of all data or of each. By default
        it is learned from data that are held out; see `docs/noise.md`.
    method : str or method object
        ``"auto"``, ``"em"``, ``"irls"``, ``"amp"``, ``"vi"``, ``"seq"``, ``"cofem"``, or an object
        with settings such as ``cofem.CoFEM(probes=10)``.
    prior : Prior, optional
        Who shares a precision: `cofem.Independent` (the default), `cofem.MultiTask`, `cofem.Block`,
        `cofem.PatternCoupled`.
    nonnegative : bool
        Whether the coefficients are known not to be negative.
    sample_weight : array of shape (N,), optional
        Relative weights of the data: the noise of datum i has variance ``noise_std^2 / sample_weight[i]``.
    max_iter : int, optional
        Outer steps at the most; the default depends on the method.
    tol : float, optional
        Stop when the mean changes by less than this, relative to its norm (columns weighted by their
        norms), and the prior by less than a hundred times this or 10 %, whichever is more. By default 1e-4,
        or 1 % of the noise (`cofem`: 3 %) if that is more, once the posterior adds less than the noise to
        the variance of predictions, or no less than before. `seq` has a stop of its own (`Seq.min_gain`).
    alpha_init : float or array of shape (D,), optional
        Where alpha starts. By default every column is expected to explain the same share of y.
    rng : int or numpy.random.Generator, optional
        Source of randomness; the same seed gives the same result.
    callback : callable, optional
        Called after every outer step, also while the noise is learned, with a snapshot that has ``iteration,
        mean, variance, alpha, noise_std, elapsed, applications, change, stage``; see
        `cofem.inference.loop.Snapshot`. The fit stops when it returns True.
    progress : bool
        Draw a progress bar.
    checkpoint : path, optional
        File that the whole state of the fit is written to now and then, and when the fit ends, however it
        ends. Each time the file is replaced as a whole. If it cannot be written, the fit warns and goes on.
    checkpoint_every : float or str, optional
        Seconds between two checkpoints (60 by default), or a text such as ``"10 steps"``.
    resume : path, optional
        A checkpoint to go on from, with the same data and settings, to the very result that the fit would
        have had without a break. `rng` is taken from the file; `max_iter` may be raised to take more steps;
        what a callback stopped goes on. Give `checkpoint` as well to go on writing: if both are the same
        and there is no such file yet, the fit starts afresh, so that one command serves both.

    Returns
    -------
    Posterior
        Mean, variance, samples, intervals, history and status.

    Raises
    ------
    FitInterrupted
        On Ctrl-C: a `KeyboardInterrupt` with the attribute ``posterior``, the result so far. The
        checkpoint, if one is asked for, is written first.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> from cofem.operators import DCT, Mask
    >>> rng = np.random.default_rng(0)
    >>> rows = np.sort(rng.choice(256, 128, replace=False))
    >>> Phi = Mask(rows, 256) @ DCT(256).T
    >>> z = np.zeros(256); z[[5, 40, 99]] = 3, -2, 1
    >>> y = Phi @ z + 0.01 * rng.standard_normal(128)
    >>> post = cofem.fit(Phi, y, rng=0)
    >>> np.round(post.mean[[5, 40, 99]], 1).tolist(), set([5, 40, 99]) <= set(post.support())
    ([3.0, -2.0, 1.0], True)
    >>> 0.007 < post.noise_std < 0.015
    True
    """
    prior = _check_prior(prior)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {type(callback).__name__}")
    keeper = Keeper(_check_rng(rng), checkpoint, checkpoint_every, resume)
    settings = _Settings(
        method, prior, bool(nonnegative), max_iter, tol, alpha_init, keeper, callback, progress
    )
    try:
        return _fit_all(Phi, y, noise_std, sample_weight, settings)
    finally:
        keeper.flush()


def _fit_all(Phi: Any, y: Any, noise_std: Any, sample_weight: Any, settings: _Settings) -> Posterior:
    """Fit all tasks, together or one after the other."""
    if isinstance(Phi, list | tuple) and isinstance(y, list | tuple) and _are_tasks(Phi):
        return _fit_different(Phi, y, noise_std, sample_weight, settings)
    data = as_array(y)
    if data.ndim == 2 and not settings.prior.joins_tasks and data.shape[1] > 0:
        operator = as_operator(Phi)
        tasks = [
            _fit_one(operator, column, noise_std, sample_weight, settings, i)
            for i, column in enumerate(data[:, i] for i in range(data.shape[1]))
        ]
        return join_tasks(tasks)
    return _fit_one(Phi, data if data.ndim == 2 else y, noise_std, sample_weight, settings)


class _Settings:
    """What the user asked for, checked as far as it does not depend on the problem."""

    def __init__(
        self,
        method: Any,
        prior: Prior,
        nonnegative: bool,
        max_iter: Any,
        tol: Any,
        alpha_init: Any,
        keeper: Keeper,
        callback: Callback | None,
        progress: bool,
    ) -> None:
        self.method = method
        self.prior = prior
        self.nonnegative = nonnegative
        self.max_iter = None if max_iter is None else _check_max_iter(max_iter)
        self.tol = None if tol is None else _check_tol(tol)
        self.alpha_init = alpha_init
        self.keeper = keeper
        self.rng = keeper.rng
        self.callback = callback
        self.progress = progress
        self._start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the call, those before a break among them."""
        return time.perf_counter() - self._start

    def run(self, stage: str, problem: Problem, method: Method, **arguments: Any) -> Outcome:
        """Run a stage, or what is left of it, or take what came out of it when it was run before."""
        keeper = self.keeper
        outcome = keeper.take(stage, problem)
        if outcome is not None:
            return outcome
        record, keep = keeper.record(stage, method), keeper.keep(stage, method)
        outcome = run(
            problem, method, rng=keeper.rng, record=record, keep=keep, elapsed=self.elapsed, **arguments
        )
        self._start = min(self._start, time.perf_counter() - float(outcome.history["elapsed"][-1]))
        is_fit = stage.endswith("fit")
        if is_fit or outcome.status.code is not StatusCode.STOPPED:  # else it goes on when it is resumed
            # Of a stage that learned the noise nothing but that is needed, if it did.
            keeper.finish(stage, outcome, whole=is_fit or not outcome.status.converged)
        return outcome

    def callbacks(self, bar: Callback | None) -> list[Callback]:
        """Return what is to be called after every step: the user's function, and a progress bar."""
        return [callback for callback in (self.callback, bar) if callback is not None]

    def marks(self) -> dict[str, Any]:
        """Return what decides about the result, besides the problem and the number of steps."""
        names = ("method", "prior", "nonnegative", "tol", "alpha_init")
        return {name: getattr(self, name) for name in names}


def _fit_one(
    Phi: Any, y: Any, noise_std: Any, sample_weight: Any, settings: _Settings, task: int = 0
) -> Posterior:
    """Fit data that share one dictionary and one set of precisions."""
    ready = make_problem(
        Phi,
        y,
        noise_std,
        sample_weight=sample_weight,
        prior=settings.prior,
        nonnegative=settings.nonnegative,
    )
    problem = ready.problem
    chosen, why = get_method(settings.method, problem)
    chosen.check(problem)
    start = _check_alpha_init(
        chosen.alpha_init if settings.alpha_init is None else settings.alpha_init, problem
    )
    settings.keeper.belongs(task, problem.y, lambda: marks_of(problem, ready.noise, settings.marks()))
    notes: tuple[str, ...] = (why,) if why else ()
    if not ready.operator.takes_batches:
        notes += (
            "Phi has no product with several vectors (matmat, rmatmat), so that it is called for one vector "
            "at a time; probes and samples would gain from one",
        )
    if isinstance(noise_std, str) and ready.noise.std is not None:
        notes += ("y is zero everywhere, so that there was no noise to learn from it",)
    rule: NoiseRule | None = None
    stopped = False
    if ready.noise.std is None:
        if problem.n_rows >= ENOUGH_DATA * problem.n_columns and chosen.any_prior:
            rule = FromEvidence()
            power = inner(problem.y, problem.y) / size(problem.y)
            problem = problem.with_noise(0.1 * power or 1.0)
            notes += ("the noise was learned from the evidence, since data are plenty",)
        elif problem.n_rows < 2:
            raise ValueError("noise_std cannot be learned from a single datum; give noise_std")
        else:
            learned = _learn_noise(problem, settings, f"{task}/noise")
            problem = problem.with_noise(learned.noise_var)
            notes += (learned.note,)
            stopped = learned.stopped
            if stopped:  # a checkpoint is to go on from there, and not from what follows
                settings.keeper = Keeper(settings.rng)
    if rule is None and chosen.noise_continuation != 1 and not stopped:
        if not 1 <= chosen.noise_continuation < np.inf:
            raise ValueError(f"noise_continuation must be at least 1, got {chosen.noise_continuation!r}")
        rule = Continuation(problem.noise_var)
        problem = problem.with_noise(chosen.noise_continuation * problem.noise_var)
    try:
        outcome = _run(problem, chosen, start, settings, rule, f"{task}/fit", stopped)
    except FitInterrupted as interrupt:
        if interrupt.outcome is not None:
            interrupt.posterior = _posterior(ready, interrupt.outcome, chosen, interrupt.outcome.status)
        raise
    status = outcome.status
    fault = "" if status.code is StatusCode.FAILED else _fault(ready.operator, problem)
    if fault:
        status = Status(StatusCode.FAILED, fault, status.notes)
    if outcome.doubtful or fault:
        warnings.warn(str(status), ConvergenceWarning, stacklevel=5)
    status = Status(status.code, status.message, (*status.notes, *notes, *_about_weak_columns(outcome)))
    return _posterior(ready, outcome, chosen, status)


def _about_weak_columns(outcome: Outcome) -> tuple[str, ...]:
    """Say so where noise may have become large coefficients: the evidence does not know a column's scale."""
    theta, state = outcome.problem.column_energy, outcome.state
    xp = namespace(theta)
    found = state.alpha * state.variance < 0.5
    weak = theta < WEAK_COLUMN**2 * float(xp.max(theta))
    count = int(xp.count_nonzero(found & weak))
    if not count:
        return ()
    return (
        f"{count} of the {int(xp.count_nonzero(found))} coefficients that were found belong to columns of "
        f"Phi with norms below {WEAK_COLUMN:g} of the largest; through such a column noise looks like a "
        "large coefficient, so leave them out if that is not what you expect",
    )


def _fault(operator: Operator, problem: Problem) -> str:
    """Look at the operator once more after a fit, and say what is wrong with it by now; "" if nothing is."""
    real = problem.real_dtype
    dtype = np.result_type(real, np.complex64) if problem.is_complex else real
    try:
        check_adjoint(operator, n_vectors=1, dtype=dtype, like=problem.y)
    except Exception as error:
        return f"Phi changed during the fit, so that the result is in doubt: {type(error).__name__}: {error}"
    return ""


def _learn_noise(problem: Problem, settings: _Settings, stage: str) -> Learned:
    """Find the noise variance from data that are held out of a fit, or of several in turn."""
    parts = held_out_parts(problem.n_rows, settings.rng)
    found: list[float] = []
    power = inner(problem.y, problem.y) / size(problem.y)
    for number, rows in enumerate(parts, 1):
        title = "noise" if len(parts) == 1 else f"noise {number}/{len(parts)}"
        # Where the noise is known from other parts already, that is a good place to start.
        starts = (found[-1] / power, *STARTS) if found and found[-1] < NOTHING_FOUND * power else STARTS
        for turn, start in enumerate(starts):
            seen, rule = split(problem, rows, start)
            seen.phi.products = problem.phi.products
            method, _ = choose_method(seen)
            with progress_bar(settings.progress, method.default_max_iter, method.default_tol, title) as bar:
                outcome = settings.run(
                    f"{stage}/{number}/{turn}",
                    seen,
                    method,
                    start_alpha=partial(seen.start, None),
                    max_iter=method.default_max_iter,
                    tol=None,
                    callbacks=settings.callbacks(bar),
                    noise=rule,
                    title=title,
                )
            problem.phi.products = seen.phi.products
            noise_var = outcome.problem.noise_var
            if outcome.status.code is StatusCode.FAILED:
                warnings.warn(f"learning the noise: {outcome.status}", ConvergenceWarning, stacklevel=5)
            elif not outcome.status.converged:  # it may never have been allowed to rise
                noise_var = max(noise_var, rule(outcome.problem, outcome.state, True))
            if outcome.status.code is StatusCode.STOPPED:
                note = "a callback stopped the fit while the noise was learned; it is what was known by then"
                return Learned(float(np.median([*found, noise_var])), note, True)
            if noise_var < NOTHING_FOUND * power:
                break
        found.append(noise_var)
    count = sum(rows.size for rows in parts)
    turns = "" if len(parts) == 1 else f", {len(parts)} parts in turn"
    note = f"the noise was learned from {count} data held out{turns}"
    # The median, since a fit of one part may miss the signal.
    return Learned(float(np.median(found)), note, False)


def _run(
    problem: Problem,
    method: Method,
    start: Any,
    settings: _Settings,
    rule: NoiseRule | None,
    stage: str,
    stopped: bool,
) -> Outcome:
    """Run the fit itself; if it was stopped while the noise was learned, only the step a posterior needs."""
    steps = method.default_max_iter if settings.max_iter is None else settings.max_iter
    tol = method.default_tol if settings.tol is None else settings.tol
    with progress_bar(settings.progress, steps, tol, method.name) as bar:
        return settings.run(
            stage,
            problem,
            method,
            start_alpha=partial(problem.start, start),
            max_iter=steps,
            tol=settings.tol,
            callbacks=settings.callbacks(bar) + ([lambda snapshot: True] if stopped else []),
            noise=rule,
        )


def _posterior(ready: Ready, outcome: Outcome, method: Method, status: Status) -> Posterior:
    """Put the result into the user's units and layout."""
    problem, state = outcome.problem, outcome.state
    units = problem.units
    mean, variance = state.mean, state.variance
    gaussian = None
    if problem.nonnegative:
        gaussian = (units.apply(transposed(mean)), units.apply(variance, 2))
        mean, variance = rectified_moments(mean, variance)
    mean, variance = units.apply(transposed(mean)), units.apply(transposed(variance), 2)
    if mean.ndim == 2 and variance.ndim == 1:
        variance = namespace(variance).repeat(variance[:, None], mean.shape[1], axis=1)
    weights = ready.noise.weights
    y = problem.y * problem.units.data
    if weights is not None:
        weights = on_device_of(y, weights)
        y = y / in_precision(weights, problem.real_dtype.name)
    return Posterior(
        mean=mean,
        variance=variance,
        alpha=units.apply(state.alpha, -2),
        noise_std=problem.noise_var**0.5 * problem.units.data if ready.noise.std is None else ready.noise.std,
        method=method.name,
        status=status,
        history=outcome.history,
        operator=ready.operator,
        y=transposed(y),
        weights=weights,
        gaussian=gaussian,
    )


def _are_tasks(Phi: Sequence[Any]) -> bool:
    """Tell whether a list is one of dictionaries, as opposed to a matrix written as lists."""
    return len(Phi) > 0 and all(isinstance(part, Operator) or getattr(part, "ndim", 0) == 2 for part in Phi)


def _fit_different(
    Phis: Sequence[Any], ys: Sequence[Any], noise_std: Any, sample_weight: Any, settings: _Settings
) -> Posterior:
    """Fit tasks with dictionaries of their own: one block-diagonal one, precisions tied across tasks."""
    operators = [as_operator(Phi) for Phi in Phis]
    if len(operators) != len(ys):
        raise ValueError(f"Phi and y must be lists of the same length, got {len(operators)} and {len(ys)}")
    columns = {operator.shape[1] for operator in operators}
    if len(columns) > 1:
        raise ValueError(f"Phi must hold dictionaries with as many columns each, got {sorted(columns)}")
    data = [as_array(y) for y in ys]
    for i, (operator, part) in enumerate(zip(operators, data, strict=True)):
        if tuple(part.shape) != (operator.shape[0],):
            raise ValueError(f"y[{i}] must have shape ({operator.shape[0]},), got {tuple(part.shape)}")
    if not settings.prior.joins_tasks:
        if sample_weight is not None or not isinstance(noise_std, str | float | int):
            raise ValueError("noise of each datum is not known for lists of tasks that share nothing")
        tasks = [
            _fit_one(op, part, noise_std, None, settings, i)
            for i, (op, part) in enumerate(zip(operators, data, strict=True))
        ]
        return join_tasks(tasks)
    (size,) = columns
    joint = _Settings(
        settings.method,
        Block(np.tile(np.arange(size), len(operators))),
        settings.nonnegative,
        settings.max_iter,
        settings.tol,
        settings.alpha_init
        if np.ndim(settings.alpha_init) == 0
        else np.tile(settings.alpha_init, len(operators)),
        settings.keeper,
        settings.callback,
        settings.progress,
    )
    together = namespace(*data).concat(data)
    whole = _fit_one(block_diag(operators), together, noise_std, sample_weight, joint)
    return split_tasks(whole, operators)


def _check_prior(prior: Any) -> Prior:
    if prior is None:
        return Independent()
    if isinstance(prior, Prior):
        return prior
    names = ", ".join(f"cofem.{kind.__name__}()" for kind in PRIORS.values())
    raise TypeError(f"prior must be one of {names}, got {prior!r}")


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
    alpha = to_numpy(alpha_init)
    if alpha.dtype.kind not in "uif":
        raise TypeError(f"alpha_init must be real numbers, got {alpha_init!r}")
    if alpha.shape not in ((), (problem.n_columns,)):
        raise ValueError(
            f"alpha_init must be a number or have shape ({problem.n_columns},), got shape {alpha.shape}"
        )
    if not (np.isfinite(alpha).all() and (alpha > 0).all()):
        raise ValueError("alpha_init must be positive and finite")
    return alpha
