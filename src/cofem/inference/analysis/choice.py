"""Which analysis operator, how far neighbours share precisions, and how large the noise is.

All three are judged by data that are held out: the candidate under which they are most likely is taken.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cofem._arrays import Array, as_shape, average, namespace, place, squared_modulus
from cofem.inference.analysis.method import AnalysisEM, is_coarse, pace_of, sees_places
from cofem.inference.analysis.prediction import FromPredictions
from cofem.inference.analysis.problem import AnalysisProblem, WarmStart
from cofem.inference.analysis.process import learn_process
from cofem.inference.analysis.residuals import neighbours_alike
from cofem.inference.analysis.tiles import LARGE, TILES, tiles
from cofem.inference.base import State
from cofem.inference.comparison import against, standard_error
from cofem.inference.loop import Stage
from cofem.inference.noise.held_out import HeldOutParts
from cofem.inference.noise.strategy import Plan
from cofem.inference.prediction import Errors
from cofem.inference.problem import Problem
from cofem.inference.record import FitInterrupted
from cofem.inference.stages import Runner
from cofem.operators import Gradient, Operator, as_operator, vstack
from cofem.operators.stack import repeated
from cofem.priors import Block, Independent, Neighbours, Power, Prior
from cofem.priors.multitask import OneAfterAnother
from cofem.status import StatusCode

#: Side of the windows along one axis: with 3 and 9 the noise of a yearly series was taken for its signal.
LONG_WINDOW = 21
#: Standard errors by which a candidate must be better than those before it.
PLAINLY = 3.0
#: Noise variance relative to that of the data above which others are judged for a small picture, and which.
MUCH_NOISE, LESS_NOISE = 0.03, (0.1, 0.01, 0.001)
#: Correlation of the residuals of neighbours above which less noise is judged for any picture, and how much
#: less, each in turn while it is better.
ALIKE, PARTS_OF_NOISE = -0.1, (1 / 4, 1 / 16, 1 / 64)
#: Variance of the data relative to their mean square below which they are constant.
CONSTANT = 1e-10
#: Parts held out in turn where a process was learned: it needs no part itself, and two tell what is plain.
PARTS_BESIDE_PROCESS = 2


class Candidate(NamedTuple):
    """An analysis operator, who shares precisions among its rows, and both in words.

    Where the operator was learned from the data, so were `noise_var` and `n_parameters` numbers in all. One
    with `else_process` is judged only where no process can be learned in its place. `shape` is the grid of
    those that could be judged on a part of it.
    """

    operator: Operator
    prior: Prior
    label: str
    noise_var: float | None = None
    n_parameters: int = 0
    else_process: bool = False
    shape: tuple[int, ...] | None = None


class Chosen(NamedTuple):
    """What the held-out data chose.

    Attributes
    ----------
    problem : AnalysisProblem
        The problem in analysis form, with all data, the noise that was found and where the fit may start.
    notes : tuple of str
        What was chosen and why.
    fault : str
        What went wrong.
    """

    problem: AnalysisProblem
    notes: tuple[str, ...] = ()
    fault: str = ""


def candidates(analysis: Any, prior: Prior | None, phi: Operator) -> list[Candidate]:
    """Return what is to be judged: one candidate where the user named the operator, several for a shape.

    Parameters
    ----------
    analysis : Operator, shape or "auto"
        As `cofem.inference.analysis.problem.checked_analysis` returns it.
    prior : Prior or None
        The user's; None to have it chosen with the operator.
    phi : Operator
        Phi, whose `column_shape` counts for "auto".
    """
    shape = _shape_of(analysis, phi)
    if shape is None:
        return [Candidate(as_operator(analysis), prior or Independent(), "")]
    if int(np.prod(shape)) != phi.shape[1]:
        raise ValueError(f"analysis as a shape must hold {phi.shape[1]} places, as many as Phi, got {shape}")
    both = _differences(shape)
    if prior is not None:
        return [Candidate(both, prior, "first and second differences, with the prior that was given")]
    if sum(n > 1 for n in shape) == 1 and max(shape) > 2:
        return _along_one_axis(shape, both)
    return _on_grid(shape, phi)


def over_tasks(given: list[Candidate], n_tasks: int) -> list[Candidate]:
    """Return candidates for the unknowns of several tasks in one vector, whose rows share precisions."""
    return [
        candidate._replace(
            operator=repeated(candidate.operator, n_tasks),
            prior=OneAfterAnother(candidate.prior.within_a_task, n_tasks),
            else_process=False,
            shape=None,
        )
        for candidate in given
    ]


def _differences(shape: tuple[int, ...], mixed: bool = True) -> Operator:
    """Return first and, where there are some, second differences."""
    first = Gradient(shape)
    return vstack([first, Gradient(shape, order=2, mixed=mixed)]) if max(shape) > 2 else first


def _on_grid(shape: tuple[int, ...], phi: Operator, like: tuple[int, ...] | None = None) -> list[Candidate]:
    """Return the candidates for a picture or a volume, or those for a part of one that has the shape `like`.

    Half of the second differences of a volume are mixed ones. In a large one they have to show that they are
    worth their memory: on volumes with edges errors are the same to 1 % without, on smooth ones 10 % larger.
    """
    both = _differences(shape)
    words = "first and second differences, shared by neighbours"
    if not phi.facts.one_per_row and phi.shape[0] >= phi.shape[1]:
        # Predictions of pixels that are blurred say next to nothing about single ones: of six pictures of
        # galaxies the log density differed by 0.003 nats a datum, the error by a tenth, the share of pixels
        # in 95 % intervals by a third.
        return [Candidate(both, Neighbours(3, bands="both"), f"{words} and together")]
    whole = shape if like is None else like
    together = "first and second differences, all of a place together"
    apart = Neighbours(1, bands="together")
    if sum(n > 1 for n in whole) < 3 or prod(whole) < LARGE or not phi.facts.one_per_row:
        return [
            Candidate(both, Neighbours(3), words, shape=shape),
            Candidate(both, apart, together, shape=shape),
        ]
    fewer = _differences(shape, mixed=False)
    return [
        Candidate(fewer, Neighbours(3), f"{words}, without mixed ones", shape=shape),
        Candidate(fewer, apart, f"{together}, without mixed ones", shape=shape),
        Candidate(both, Neighbours(3), words, shape=shape),
    ]


def candidates_among_rows(analysis: Any, phi: Operator) -> list[Candidate]:
    """Return what is to be judged for ``prior="auto"``: who shares precisions among the rows of an operator.

    Parameters
    ----------
    analysis, phi : as for `candidates`
        For a shape the candidates are those without a prior.
    """
    given = candidates(analysis, None, phi)
    if len(given) > 1:
        return given
    operator = given[0].operator
    priors: list[Prior] = [Independent(), Power(0.5), Power(2)]
    if operator.row_groups is not None:
        priors.append(Block(operator.row_groups))
        if operator.row_places is not None and operator.band_symbols() is not None:
            priors += [Neighbours(3), Neighbours(1, bands="together")]
    return [Candidate(operator, prior, prior.label) for prior in priors]


def _along_one_axis(shape: tuple[int, ...], both: Operator) -> list[Candidate]:
    """Return the candidates for a series: a window along one axis holds few places."""
    second = Gradient(shape, order=2)
    everywhere = Block(np.zeros(second.shape[0], dtype=np.intp))
    return [
        Candidate(second, everywhere, "second differences alike everywhere", else_process=True),
        Candidate(both, Neighbours(LONG_WINDOW), f"first and second differences, shared by {LONG_WINDOW}"),
        Candidate(
            both, Neighbours(1, bands="together"), "first and second differences, all of a place together"
        ),
    ]


def _shape_of(analysis: Any, phi: Operator) -> tuple[int, ...] | None:
    if isinstance(analysis, str):
        if analysis != "auto":
            raise ValueError(f"analysis must be an operator, a shape or 'auto', got {analysis!r}")
        if phi.column_shape is None:
            raise ValueError(
                "analysis='auto' needs to know the shape of the unknown, which Phi does not tell; give the "
                "shape itself, such as analysis=(512, 512)"
            )
        return phi.column_shape
    if isinstance(analysis, int | np.integer) and not isinstance(analysis, bool):
        return as_shape(analysis, "analysis")
    if isinstance(analysis, tuple) and all(isinstance(n, int | np.integer) for n in analysis):
        return as_shape(analysis, "analysis")
    return None


def choose(problem: Problem, given: list[Candidate], plan: Plan, runner: Runner) -> Chosen:
    """Fit what is left of the data under each candidate, and take the one that predicts the rest best.

    The noise is found on the way, unless it is known. Of a large picture or volume, candidates are judged on
    parts, so that of the whole there is but one.

    Parameters
    ----------
    problem : Problem
        The problem; its noise is NaN if it is to be learned.
    given : list of Candidate
        What is judged.
    plan : Plan
        The fit that follows.
    runner : Runner
        Runs the stages.
    """
    known = np.isfinite(problem.noise_var)
    if known and len(given) == 1:
        return Chosen(AnalysisProblem.of(problem, given[0].operator, given[0].prior))
    if problem.n_rows < 2:
        raise ValueError("noise_std cannot be learned from a single datum; give noise_std")
    several = len(given) > 1
    try:
        on_tiles = _judged_on_tiles(problem, given, plan, runner)
    except Broken as broken:
        whole = AnalysisProblem.of(problem, given[0].operator, given[0].prior)
        return Chosen(whole.with_noise(broken.noise_var), (), broken.fault)
    notes = []
    if on_tiles:
        best, words = _best(given, on_tiles)
        notes.append(f"{words} in {TILES} parts of the whole")
        given = [given[best]]
    parts = HeldOutParts().parts(problem.n_rows, runner.rng)
    given = with_process(problem, given)
    if given[0].noise_var is not None:
        parts = parts[:PARTS_BESIDE_PROCESS]
    found: list[Judged] = []
    for number, candidate in enumerate(given, 1):
        whole = AnalysisProblem.of(problem, candidate.operator, candidate.prior)
        name = f"{plan.task}/choice/{number}"
        title = f"choice {number}/{len(given)}" if len(given) > 1 else "noise"
        steps = pace_of(whole).judged_after if several else plan.method.default_max_iter
        try:
            found.append(judge(whole, candidate, parts, plan, runner, Stage(name, title, None, steps)))
        except Broken as broken:
            return Chosen(whole.with_noise(broken.noise_var), (), broken.fault)
        _forget_losers(found)
    best, words = _best(given, found)
    chosen = found[best]
    count = sum(rows.size for rows in parts)
    if len(given) > 1:
        notes.append(words)
    noise_var = float(np.median(chosen.noise))
    if not known and given[best].noise_var is not None:
        notes.append(
            "the noise was learned by the evidence, with the spectrum; intervals take both for certain, and "
            "may be a third too narrow"
        )
    elif not known:
        turns = "" if len(parts) == 1 else f", {len(parts)} parts in turn"
        notes.append(f"the noise was learned from predictions of {count} data held out{turns}")
    scale = float(np.exp(np.mean(np.log(chosen.scale))))
    if abs(np.log(scale)) > 0.1:
        notes.append(f"variances are multiplied by {scale:.2g}, as errors at data held out have it")
    ready = replace(chosen.problem.with_noise(noise_var), warm=WarmStart(chosen.last), scale=scale)
    return Chosen(ready, tuple(notes))


def judge(
    whole: AnalysisProblem,
    candidate: Candidate,
    parts: list[np.ndarray],
    plan: Plan,
    runner: Runner,
    stage: Stage,
) -> Judged:
    """Fit a candidate to the data without each part in turn, and look how it predicts that part.

    Details of a picture that are one place wide can be taken for noise. Where much noise was found, lower
    levels are judged as well, and the most likely one is kept: in a small, coarse picture always, since with
    few data held out a larger noise is always nearly as likely; in others if residuals of neighbours are
    alike, as those of a texture are.
    """
    power = average(squared_modulus(whole.y)) or 1.0
    first = check_analysis_method(plan.method, whole.y).first_noise(whole) * power
    best = _judge_from(first, whole, candidate, parts, plan, runner, stage)
    known = np.isfinite(whole.noise_var) or candidate.noise_var is not None
    if known or not sees_places(whole):
        return best
    varies = average(squared_modulus(whole.y - namespace(whole.y).mean(whole.y)))
    noise_var = float(np.median(best.noise))
    if noise_var < MUCH_NOISE * varies or varies < CONSTANT * power:
        return best
    coarse = is_coarse(whole)
    assert best.last is not None
    if not coarse and not neighbours_alike(whole, best.last, parts[-1]) > ALIKE:
        return best
    levels = [level * varies for level in LESS_NOISE] if coarse else [p * noise_var for p in PARTS_OF_NOISE]
    for number, level in enumerate(levels, 1):
        one = stage._replace(name=f"{stage.name}/level/{number}")
        found = _judge_from(level, whole.with_noise(level), candidate, parts, plan, runner, one)
        better = np.mean(np.concatenate(found.density)) > np.mean(np.concatenate(best.density))
        best = found if better else best
        if not (coarse or better):
            break
    return best


def _judge_from(
    first: float,
    whole: AnalysisProblem,
    candidate: Candidate,
    parts: list[np.ndarray],
    plan: Plan,
    runner: Runner,
    stage: Stage,
) -> Judged:
    """Judge a candidate; the noise variance starts at `first`, if it is learned."""
    known = np.isfinite(whole.noise_var)
    judged = Judged(whole, [], [], [], [])
    for part, rows in enumerate(parts, 1):
        start = whole.noise_var if known else (judged.noise[-1] if judged.noise else first)
        learned = candidate.noise_var
        seen, unseen, y = whole.split(rows, start if learned is None else learned)
        rule = FromPredictions(unseen, y, learned=not known)
        one = stage._replace(name=f"{stage.name}/{part}", alpha_init=plan.alpha_init)
        one = one._replace(kept=True, judge=rule.judge)
        if learned is not None:  # at the precision that was learned with it, which is 1
            one = one._replace(alpha_init=whole.units.apply(1.0, -2), max_iter=1)
        elif not known:
            one = one._replace(noise=rule)
        outcome = runner.run(seen, plan.method, one)
        if outcome.status.code is StatusCode.FAILED:
            raise Broken(outcome.problem.noise_var, outcome.status.message)
        if learned is not None:
            noise_var, likely, holding = learned, 1.0, 1.0
            final = outcome.problem
        else:
            noise_var = whole.noise_var if known else rule.noise_var(outcome.problem, outcome.state)
            final = outcome.problem.with_noise(noise_var)
            likely, holding = rule.scales(final, outcome.state)
        judged.noise.append(noise_var)
        judged.scale.append(holding)
        # Parameters that the same data were seen for make them likelier, as in Akaike's criterion.
        density = rule.log_densities(final, outcome.state, likely) - candidate.n_parameters / whole.n_rows
        judged.density.append(density)
        judged.errors.append(rule.errors(outcome.state))
        judged = judged._replace(last=outcome.state)
        del outcome, final, seen, unseen, rule  # the next one needs the memory
    return judged


def _judged_on_tiles(problem: Problem, given: list[Candidate], plan: Plan, runner: Runner) -> list[Judged]:
    """Judge candidates on parts of a large picture; none for one that is not, or where there is no choice.

    The user's callback is not shown means of parts.
    """
    shape = given[0].shape
    found: list[Judged] = []
    if len(given) < 2 or shape is None:
        return found
    quiet = Runner(runner.keeper, None, runner.progress)
    for t, tile in enumerate(tiles(problem, shape), 1):
        parts = HeldOutParts().parts(tile.problem.n_rows, runner.rng)[:1]
        for number, candidate in enumerate(_on_grid(tile.shape, tile.problem.phi.operator, shape), 1):
            whole = AnalysisProblem.of(tile.problem, candidate.operator, candidate.prior)
            name, title = f"{plan.task}/choice/{number}/tile/{t}", f"part {t}, choice {number}/{len(given)}"
            stage = Stage(name, title, None, pace_of(whole).judged_after)
            try:
                judged = judge(whole, candidate, parts, plan, quiet, stage)
            except FitInterrupted as interrupt:  # of a part, there is no result
                raise FitInterrupted(str(interrupt), None) from interrupt
            if t == 1:
                found.append(judged._replace(last=None))
            else:
                found[number - 1].density.extend(judged.density)
    return found


def _best(given: list[Candidate], found: list[Judged]) -> tuple[int, str]:
    """Return which candidate predicts best, and the choice in words."""
    densities = [np.concatenate(judged.density) for judged in found]
    best = best_of(densities)
    gains = ((given[i], densities[i] - densities[best]) for i in range(len(given)) if i != best)
    others = ", ".join(
        f"{one.label} {against(float(np.mean(gain)), standard_error(gain))}" for one, gain in gains
    )
    return best, (
        f"analysis by {given[best].label}: chosen by the log density of {densities[best].size} data held out "
        f"(against it, in nats a datum, higher is better: {others})"
    )


class Broken(Exception):
    """A candidate could not be judged: its fit failed."""

    def __init__(self, noise_var: float, fault: str) -> None:
        super().__init__(fault)
        self.noise_var, self.fault = noise_var, fault


def _forget_losers(found: list[Judged]) -> None:
    """Drop the arrays of candidates that others are plainly better than, in place."""
    best = best_of([np.concatenate(judged.density) for judged in found])
    for i, judged in enumerate(found):
        if i != best:
            found[i] = judged._replace(last=None)


def with_process(problem: Problem, given: list[Candidate]) -> list[Candidate]:
    """Put a process that is learned in the place of second differences alike everywhere, for a series."""
    if not given[0].else_process:
        return given
    try:
        process = learn_process(problem)
    except np.linalg.LinAlgError:  # a covariance that is singular to rounding: differences do without one
        return given
    except KeyboardInterrupt as interrupt:
        raise FitInterrupted(str(interrupt) or "the fit was interrupted", None) from interrupt
    if process is None:
        return given
    everywhere = Block(np.zeros(process.operator.shape[0], dtype=np.intp))
    first = Candidate(process.operator, everywhere, process.label, process.noise_var, process.n_parameters)
    return [first, *given[1:]]


def best_of(densities: list[np.ndarray]) -> int:
    """Return which candidate is best: the first, unless another is plainly better.

    Parameters
    ----------
    densities : list of ndarray of shape (H,)
        Log densities of the same data under each.

    Examples
    --------
    >>> import numpy as np
    >>> best_of([np.array([0.0, 1.0, 2.0]), np.array([0.1, 0.9, 2.1])])
    0
    >>> best_of([np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.1, 2.9])])
    1
    """
    best = 0
    for i in range(1, len(densities)):
        gain = densities[i] - densities[best]
        spread = float(np.std(gain)) / gain.size**0.5
        if float(np.mean(gain)) > PLAINLY * spread:
            best = i
    return best


class Judged(NamedTuple):
    """A candidate, and what each part of the data said."""

    problem: AnalysisProblem
    noise: list[float]
    scale: list[float]
    density: list[np.ndarray]
    errors: list[Errors]
    last: State | None = None


def check_analysis_method(method: Any, y: Array) -> AnalysisEM:
    """Return the method of a fit in analysis form to data y."""
    if isinstance(method, str) and method in ("auto", AnalysisEM.name):
        return AnalysisEM()
    if isinstance(method, AnalysisEM):
        if method.exact and not isinstance(y, np.ndarray):
            raise TypeError(f"AnalysisEM(exact=True) works on NumPy arrays only, but y or Phi is {place(y)}")
        return method
    raise ValueError(
        f"method must be 'auto' or a cofem.AnalysisEM object for fits with analysis=..., got {method!r}"
    )
