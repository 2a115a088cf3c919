"""`cofem.fit`: from operator and data to the posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cofem._arrays import (
    Array,
    as_array,
    in_precision,
    namespace,
    on_device_of,
    precision_of,
    transposed,
    without_gradients,
)
from cofem._warn import warn
from cofem.inference.analysis.choice import (
    candidates,
    candidates_among_rows,
    check_analysis_method,
    choose,
    over_tasks,
)
from cofem.inference.analysis.level import without_level
from cofem.inference.analysis.null_space import about_null_space
from cofem.inference.analysis.problem import AnalysisProblem, checked_analysis
from cofem.inference.analysis.residuals import about_residuals
from cofem.inference.analysis.rows_alike import about_line
from cofem.inference.base import Method
from cofem.inference.checkpoint import Keeper
from cofem.inference.checkpoint.fingerprint import fingerprint_of
from cofem.inference.choice import choose_prior
from cofem.inference.noise.learning import AlreadyLearned, choose_strategy
from cofem.inference.noise.strategy import Learned, Plan
from cofem.inference.notes import (
    about_copies,
    about_expected_error,
    about_the_data,
    about_the_fit,
    about_weak_columns,
    fault_of,
)
from cofem.inference.prepare import Data, PreparedProblem, check_data_shape, prepare
from cofem.inference.problem import Problem
from cofem.inference.record import Callback, FitInterrupted, FitStopped, Outcome
from cofem.inference.registry import about_crawling, check_method, get_method
from cofem.inference.settings import Settings, check_alpha_init, check_callback, check_rng, is_auto
from cofem.inference.so_far import SoFar
from cofem.inference.stages import Runner
from cofem.operators import Operator, as_operator, block_diag
from cofem.posterior import Posterior, join_tasks, split_tasks
from cofem.posterior.constrained import clipped, constrained
from cofem.posterior.silence import about_silence
from cofem.posterior.support import about_the_support
from cofem.priors import Independent, MultiTask, Power, Prior
from cofem.priors.multitask import OneAfterAnother
from cofem.status import ConvergenceWarning, ReliabilityWarning, Status, StatusCode


@without_gradients
def fit(  # noqa: PLR0913 (public)
    Phi: Any,
    y: Any,
    *,
    noise_std: Any = "learn",
    method: Any = "auto",
    prior: Prior | str | None = None,
    analysis: Any = None,
    nonnegative: bool = False,
    real: bool = False,
    sample_weight: Any = None,
    max_iter: int | None = None,
    tol: float | None = None,
    alpha_init: Any = None,
    rng: int | np.random.Generator | None = 0,
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
    prior : Prior or "auto", optional
        Who shares a precision: `cofem.Independent` (the default), `cofem.MultiTask`, `cofem.Block`,
        `cofem.Power`, `cofem.Sparser`, `cofem.Laplace`, `cofem.PatternCoupled`. "auto" takes the one under
        which data that are held out are most likely, and `post.status` says which; `cofem.compare` shows the
        table.
    analysis : operator B of shape (M, D), matrix, shape or "auto"; optional
        The unknown u itself is not sparse, but ``B u`` is: differences of a picture
        (`cofem.operators.Gradient`), an undecimated wavelet frame (`cofem.operators.WaveletFrame`), any
        operator. `prior` then says who shares precisions among the M rows, and `post.alpha` has shape (M,).
        A shape such as ``(512, 512)``, or "auto" where Phi knows it, has first or second differences and the
        sharing among neighbours (`cofem.Neighbours`) chosen by data that are held out. See
        `docs/analysis.md`.
    nonnegative : bool
        Whether the coefficients are known not to be negative. ``post.mean`` is then the posterior's mode, the
        most likely values of all coefficients together, not their averages.
    real : bool
        Whether the coefficients are known to be real where Phi or y is complex. Data are then
        ``sqrt(2)`` times their real and imaginary parts, see `cofem.operators.RealUnknown`: those are
        ``post.y``; ``post.predict()`` is complex, and `noise_std` that of ``|noise|`` as ever.
    sample_weight : array of shape (N,), optional
        Relative weights of the data: the noise of datum i has variance ``noise_std^2 / sample_weight[i]``.
    max_iter : int, optional
        Most outer steps; the default depends on the method.
    tol : float, optional
        Stop when the mean changes by less than this, relative to its norm (columns weighted by their
        norms), and the prior by less than a hundred times this or 10 %, whichever is more. By default 1e-4,
        or 1 % of the noise (`cofem`: 3 %) if that is more, once the posterior adds less than the noise to
        the variance of predictions, or no less than before. `seq` has a stop of its own (`Seq.min_gain`).
    alpha_init : float or array of shape (D,), optional
        Where alpha starts. By default every column is expected to explain the same share of y.
    rng : int, numpy.random.Generator or None
        Source of randomness. The same seed gives the same result, and so does the default; None draws a new
        seed in each call.
    callback : callable, optional
        Called after every outer step, also while the noise is learned, with a snapshot that has ``iteration,
        mean, variance, alpha, noise_std, elapsed, applications, change, stage``; see
        `cofem.inference.record.Snapshot`. The fit stops when it returns True.
    progress : bool
        Draw a progress bar.
    checkpoint : path, optional
        File that the whole state of the fit is written to now and then, and when the fit ends, however it
        ends. Each time the file is replaced as a whole. If it cannot be written, the fit warns and goes on.
        A checkpoint of another fit, or one that another fit is writing, is refused.
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
        On Ctrl-C: a `KeyboardInterrupt` with the attribute ``posterior``, the result so far, also while the
        noise is learned; None before the first whole step. The checkpoint, if one is asked for, is written
        first.

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
    settings = Settings.checked(
        method=method,
        prior=prior,
        analysis=analysis,
        nonnegative=nonnegative,
        max_iter=max_iter,
        tol=tol,
        alpha_init=alpha_init,
    )
    keeper = Keeper(check_rng(rng), checkpoint, checkpoint_every, resume)
    try:
        runner = Runner(keeper, check_callback(callback), progress)
        return fit_tasks(Data(Phi, y, noise_std, sample_weight).stacked(real), settings, runner)
    finally:
        keeper.close()


def fit_tasks(data: Data, settings: Settings, runner: Runner) -> Posterior:
    """Fit all tasks, together or one after the other."""
    if data.are_tasks:
        return _fit_different(data, settings, runner)
    y = as_array(data.y, "y")
    chooses = settings.auto and settings.analysis is None
    if y.ndim == 2 and not (settings.prior.joins_tasks or chooses) and y.shape[1] > 0:
        operator = as_operator(data.Phi)
        check_data_shape(y, operator)
        columns = (y[:, i] for i in range(y.shape[1]))
        tasks = [
            fit_task(data._replace(Phi=operator, y=column), settings, runner, task)
            for task, column in enumerate(columns)
        ]
        return join_tasks(tasks)
    return fit_task(data._replace(y=y) if y.ndim == 2 else data, settings, runner)


def fit_task(data: Data, settings: Settings, runner: Runner, task: int = 0) -> Posterior:
    """Fit data that share one dictionary and one set of precisions."""
    if settings.analysis is not None:
        return fit_in_analysis(data, settings, runner, task)
    if settings.auto:
        return fit_with_chosen_prior(data, settings, runner, task)
    prepared = prepare(data, settings.prior, settings.nonnegative)
    problem = prepared.problem
    method, why = get_method(settings.method, problem)
    check_method(method, problem)
    problem = problem.normalised() if method.free_of_units else problem
    start = method.start_alpha if settings.alpha_init is None else settings.alpha_init
    max_iter = method.default_max_iter if settings.max_iter is None else settings.max_iter
    plan = Plan(task, method, check_alpha_init(start, problem.n_columns), max_iter, settings.tol)
    if settings.asked is None:  # else it was checked before the prior was chosen
        runner.keeper.check_fingerprint(
            task, problem.y, lambda: fingerprint_of(problem, prepared.noise, settings.fingerprint())
        )
    notes = [why, *about_the_data(data, prepared), *about_copies(problem)]
    notes.append(about_crawling(problem, method, settings.tol))
    learned = None if prepared.noise.std is None else Learned(problem.noise_var, "")
    try:
        if learned is None or settings.asked is not None:
            strategy = settings.noise or choose_strategy(problem, method)
            learned = strategy.learn(problem, plan, runner)
            notes += learned.remarks
        outcome = learned.outcome or _run(problem, plan, runner, learned)
    except (FitInterrupted, FitStopped) as end:
        known = problem
        if learned is not None and learned.rule is None:
            known = problem.with_noise(learned.noise_var)
        return _cut_short(end, runner.so_far(task, known), prepared, known, method)
    return _concluded(prepared, outcome, method, learned, tuple(notes), settings)


def fit_with_chosen_prior(data: Data, settings: Settings, runner: Runner, task: int = 0) -> Posterior:
    """Compare priors by data that are held out, and fit all data with the best one."""
    prepared, plan = prepare_choice(data, settings, runner, task)
    problem = prepared.problem
    try:
        chosen = choose_prior(problem, prepared.operator, plan, runner, is_auto(settings.method))
    except (FitInterrupted, FitStopped) as end:
        return _cut_short(end, runner.so_far(task, problem), prepared, problem, plan.method)
    table = chosen.comparison
    if chosen.in_analysis:
        assert table is not None
        return fit_in_analysis(data, settings.in_analysis(prepared.operator), runner, task, table.in_words())
    learned = chosen.learned
    if table is not None:
        words = [table.in_words(), learned.note]
        learned = learned._replace(note="; ".join(filter(None, words)))
    each = problem.y.ndim == 2 and not isinstance(chosen.prior, MultiTask)
    after = settings.with_prior(chosen.prior, AlreadyLearned(learned, problem.units.data, each))
    return fit_task(data, after, runner, task) if problem.y.ndim == 1 else fit_tasks(data, after, runner)


def prepare_choice(
    data: Data, settings: Settings, runner: Runner, task: int = 0
) -> tuple[PreparedProblem, Plan]:
    """Set up the problem that priors are compared on, and what is asked of the fits."""
    joint: Prior = MultiTask() if np.ndim(data.y) == 2 else Independent()
    prepared = prepare(data, joint, settings.nonnegative)
    problem = prepared.problem
    if settings.alpha_init is not None:
        raise ValueError("alpha_init needs a prior that is named, and there are several to choose from")
    method, _ = get_method(settings.method, problem)
    check_method(method, replace(problem, prior=Power(1)))
    runner.keeper.check_fingerprint(
        task, problem.y, lambda: fingerprint_of(problem, prepared.noise, settings.fingerprint())
    )
    return prepared, Plan(task, method, None, method.default_max_iter, settings.tol)


def fit_in_analysis(
    data: Data,
    settings: Settings,
    runner: Runner,
    task: int = 0,
    note: str = "",
    tasks: Sequence[Operator] = (),
) -> Posterior:
    """Fit data whose unknown is not sparse itself, but what an operator makes of it; `note` says why.

    With `tasks`, data and Phi are those of several tasks, which have these dictionaries and share precisions.
    """
    prepared = prepare(data, Independent(), settings.nonnegative)
    synthesis = prepared.problem
    method = check_analysis_method(settings.method, synthesis.y)
    phi = tasks[0] if tasks else prepared.operator
    analysis = checked_analysis(settings.analysis, synthesis, phi.shape[1])
    if settings.auto:
        given = candidates_among_rows(analysis, phi)
    else:
        given = candidates(analysis, settings.prior if settings.prior_given else None, phi)
    of_one = given[0].operator
    if tasks:  # the prior that joins them was given, so that there is one candidate
        given = over_tasks(given, len(tasks))
    max_iter = method.default_max_iter if settings.max_iter is None else settings.max_iter
    for candidate in given:
        candidate.prior.check_arrays(synthesis.y)
    start = check_alpha_init(settings.alpha_init, given[0].operator.shape[0])
    if start is not None and len(given) > 1:
        raise ValueError("alpha_init needs a fixed analysis operator, and there are several to choose from")
    plan = Plan(task, method, start, max_iter, settings.tol)
    if settings.asked is None:  # else it was checked before this form was chosen
        asked = settings.fingerprint() | {"analysis": analysis}
        runner.keeper.check_fingerprint(
            task, synthesis.y, lambda: fingerprint_of(synthesis, prepared.noise, asked)
        )
    chosen = None
    synthesis = without_level(synthesis, [candidate.operator for candidate in given])
    try:
        chosen = choose(synthesis, given, plan, runner)
        if chosen.problem.warm is not None:
            plan = plan._replace(alpha_init=None)
        learned = Learned(chosen.problem.noise_var, "", fault=chosen.fault)
        outcome = _run(chosen.problem, plan, runner, learned)
    except (FitInterrupted, FitStopped) as end:
        known = synthesis if chosen is None else synthesis.with_noise(chosen.problem.noise_var)
        so_far = runner.so_far(task, known)
        return _cut_short(end, so_far, prepared, known, method, (of_one, tasks))
    about = (*about_line(synthesis, settings.analysis, phi.column_shape), *about_null_space(chosen.problem))
    left_over = about_residuals(outcome, learned=prepared.noise.std is None)
    notes = (*about_the_data(data, prepared), note, *chosen.notes, *about, *left_over)
    post = _concluded(prepared, outcome, method, learned, notes, settings)
    return _split_in_analysis(post, outcome, of_one, tasks) if tasks else post


def _split_in_analysis(
    post: Posterior, outcome: Outcome, of_one: Operator, tasks: Sequence[Operator]
) -> Posterior:
    """Take a posterior in analysis form apart into those of its tasks, whose rows are those of `of_one`."""
    prior = outcome.problem.prior
    assert isinstance(prior, OneAfterAnother)
    rows = of_one.astype(precision_of(post.variance))
    return split_tasks(replace(post, alpha=prior.of_one(post.alpha), analysis=rows), tasks)


def _concluded(
    prepared: PreparedProblem,
    outcome: Outcome,
    method: Method,
    learned: Learned,
    notes: tuple[str, ...],
    settings: Settings,
) -> Posterior:
    """Say in the status what there is to say, and return the posterior."""
    problem = outcome.problem
    words = list(notes)
    status = outcome.status
    fault = "" if status.code is StatusCode.FAILED else fault_of(prepared.operator, problem)
    if learned.fault:
        noise_std = learned.noise_var**0.5 * problem.units.data
        known = f"the noise could not be learned, and is what was known by then ({noise_std:.3g})"
        fault = f"{known}: {learned.fault}"
    if fault:
        status = replace(status, code=StatusCode.FAILED, message=fault)
    # With tol=0, a number of steps is what was asked for.
    cut_short = status.code is StatusCode.MAX_ITER and settings.tol != 0
    if outcome.doubtful or fault or cut_short:
        warn(str(status), ConvergenceWarning)
    problem, state = problem.shown(outcome.state)
    outcome = replace(outcome, problem=problem, state=state, status=status)
    post = _posterior(prepared, outcome, method)
    expected = outcome
    if post.gaussian is not None:
        outcome = _with_constraint(outcome, post, post.gaussian[1])
        expected = _with_constraint(outcome, post, post.variance)
    if status.code is not StatusCode.FAILED:
        words += about_the_fit(outcome, learned=prepared.noise.std is None)
        words += about_silence(post) if status.code is not StatusCode.STOPPED else []
    words += [*about_weak_columns(outcome), *about_expected_error(expected)]
    # Looked at here where products cost next to nothing, else in `Posterior.support` alone.
    stored = prepared.operator.stored_matrix() is not None and isinstance(post.mean, np.ndarray)
    if stored and post.analysis is None and status.code is not StatusCode.FAILED:
        words.append(about_the_support(post))
    status = post.status.with_notes(*words)
    if status.warnings:
        warn("; ".join(status.warnings), ReliabilityWarning)
    return replace(post, status=status)


def _with_constraint(outcome: Outcome, post: Posterior, spread: Array) -> Outcome:
    """Return an outcome with the mean given that nothing is negative, and these variances."""
    units = outcome.problem.units
    mean, variance = transposed(units.apply(post.mean, -1)), transposed(units.apply(spread, -2))
    return replace(outcome, state=replace(outcome.state, mean=mean, variance=variance))


def _run(problem: Problem, plan: Plan, runner: Runner, learned: Learned) -> Outcome:
    """Run the fit itself."""
    problem = problem.with_noise(learned.noise_var)
    return runner.run(problem, plan.method, plan.stage(noise=learned.rule))


def _cut_short(
    end: FitInterrupted | FitStopped,
    so_far: SoFar | None,
    prepared: PreparedProblem,
    problem: Problem,
    method: Method,
    several: tuple[Operator, Sequence[Operator]] | None = None,
) -> Posterior:
    """Return the best so far of a fit that a callback stopped; raise Ctrl-C on, with it."""
    post = None
    if so_far is not None:
        outcome = so_far.for_all(problem, end.where)
        status = outcome.status.with_notes(*about_expected_error(outcome))
        outcome = replace(outcome, status=status)
        if status.warnings and isinstance(end, FitStopped):
            warn("; ".join(status.warnings), ReliabilityWarning)
        post = _posterior(prepared, outcome, method)
        if several is not None and several[1]:
            post = _split_in_analysis(post, outcome, *several)
    if isinstance(end, FitStopped) and post is not None:
        return post
    if isinstance(end, FitInterrupted):
        end.posterior = post
    raise end


def _posterior(prepared: PreparedProblem, outcome: Outcome, method: Method) -> Posterior:
    """Put the result into the user's units and layout."""
    problem, state = outcome.problem.shown(outcome.state)
    units = problem.units
    mean, variance = state.mean, state.variance
    rows, scale = None, 1.0
    if isinstance(problem, AnalysisProblem):
        rows, scale = problem.rows.operator, problem.scale
        variance = scale * variance
    mean, variance = units.apply(transposed(mean)), units.apply(transposed(variance), 2)
    if mean.ndim == 2 and variance.ndim == 1:
        variance = namespace(variance).repeat(variance[:, None], mean.shape[1], axis=1)
    weights = prepared.noise.weights
    y = (prepared if problem.in_analysis else outcome).problem.y * problem.units.data
    if weights is not None:
        weights = on_device_of(y, weights)
        y = y / in_precision(weights, problem.real_dtype.name)
    post = Posterior(
        mean=mean,
        variance=variance,
        alpha=units.apply(state.alpha, -2),
        noise_std=problem.noise_var**0.5 * problem.units.data
        if prepared.noise.std is None
        else prepared.noise.std,
        method=method.name,
        status=outcome.status,
        history=outcome.history,
        operator=prepared.operator,
        analysis=rows,
        scale=scale,
        y=transposed(y),
        weights=weights,
        blocks=None if rows is not None else problem.prior.blocks(problem.n_columns),
    )
    if not problem.nonnegative:
        return post

    def variances_with(added: np.ndarray) -> np.ndarray:
        return scale * units.apply(method.variances_with(problem, state, units.apply(added, 2)), 2)

    if outcome.status.code is StatusCode.FAILED:
        return clipped(post)
    try:
        return constrained(post, variances_with)
    except KeyboardInterrupt as interrupt:
        words = str(interrupt) or "the fit was interrupted"
        stopped = FitInterrupted(words, None)
        stopped.posterior = clipped(replace(post, status=Status(StatusCode.STOPPED, words)))
        raise stopped from interrupt


def _fit_different(data: Data, settings: Settings, runner: Runner) -> Posterior:
    """Fit tasks with dictionaries of their own: one block-diagonal one, precisions tied across tasks."""
    operators = [as_operator(Phi) for Phi in data.Phi]
    if len(operators) != len(data.y):
        raise ValueError(
            f"Phi and y must be lists of the same length, got {len(operators)} and {len(data.y)}"
        )
    columns = {operator.shape[1] for operator in operators}
    if len(columns) > 1:
        raise ValueError(f"Phi must hold dictionaries with as many columns each, got {sorted(columns)}")
    ys = [as_array(y, "y") for y in data.y]
    for i, (operator, y) in enumerate(zip(operators, ys, strict=True)):
        if tuple(y.shape) != (operator.shape[0],):
            raise ValueError(f"y[{i}] must have shape ({operator.shape[0]},), got {tuple(y.shape)}")
    if not settings.prior.joins_tasks:
        if data.sample_weight is not None or not isinstance(data.noise_std, str | float | int):
            raise ValueError("noise of each datum is not known for lists of tasks that share nothing")
        tasks = [
            fit_task(data._replace(Phi=operator, y=y), settings, runner, i)
            for i, (operator, y) in enumerate(zip(operators, ys, strict=True))
        ]
        return join_tasks(tasks)
    together = data._replace(Phi=block_diag(operators), y=namespace(*ys).concat(ys))
    if settings.analysis is not None:
        if np.ndim(settings.alpha_init) > 0:
            raise ValueError("alpha_init must be a number for lists of dictionaries with analysis=...")
        return fit_in_analysis(together, settings, runner, tasks=operators)
    start, count = settings.alpha_init, len(operators)
    joint = replace(
        settings,
        prior=OneAfterAnother(settings.prior.within_a_task, count),
        alpha_init=start if np.ndim(start) == 0 else np.tile(start, count),
    )
    try:
        return split_tasks(fit_task(together, joint, runner), operators)
    except FitInterrupted as interrupt:
        if interrupt.posterior is not None:
            interrupt.posterior = split_tasks(interrupt.posterior, operators)
        raise
