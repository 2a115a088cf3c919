"""Which prior: candidates are judged by how likely data are that were held out of the fits.

The fits that learn the noise hold data out anyway. Each candidate is fitted to the rest of them, and the one
whose predictions have the largest log density at what was held out is taken.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cofem._arrays import average, squared_modulus
from cofem.inference.analysis.choice import Broken, Candidate, candidates, judge, with_process
from cofem.inference.analysis.method import AnalysisEM, pace_of
from cofem.inference.analysis.problem import AnalysisProblem
from cofem.inference.comparison import Compared, Comparison, standard_error
from cofem.inference.judged import Judged, together
from cofem.inference.loop import Ended, Stage
from cofem.inference.noise.held_out import HeldOutParts
from cofem.inference.noise.learning import FromTheFit, choose_strategy, has_plenty
from cofem.inference.noise.rules import STRONG
from cofem.inference.noise.strategy import Learned, Plan, with_few_data
from cofem.inference.problem import Problem
from cofem.inference.stages import Runner
from cofem.operators import Operator
from cofem.operators.dictionary import Dictionary
from cofem.priors import Block, Independent, Laplace, MultiTask, PatternCoupled, Power, Prior, Sparser
from cofem.status import StatusCode

#: Exponents from the independent prior on, and strengths beyond it, in the order in which they are tried.
EXPONENTS, STRENGTHS = (0.25, 0.5, 1.0), (1.5, 2.0, 3.0)
#: Thresholds that are tried where signals are weak, in standard errors, as long as they gain; stronger priors
#: start from the first. And the share of the penalty that is kept: with all of it `Laplace` is judged by how
#: far it pulls towards zero, not by what it found.
THRESHOLDS, RELAX = (2.0, 2.5, 3.0, 3.5), 0.5
#: Share of noise in the variance of the data from which on signals are weak.
WEAK = 0.1
#: Data below which every one of them is held out once, in this many parts.
FEW_DATA, MANY_PARTS = 100, 10
#: Standard errors below the best within which the default is as good, and where data are few the prior that
#: ties coefficients most. With the best as it was, spikes behind a wavelet went from 7 % of error to 46 % for
#: 0.4 of one: what is held out of a band says little about what lies outside of it.
AS_GOOD = 2.0
#: Parts that priors are judged by, at most, where data are not few and the best one is all that is asked for.
MOST_PARTS = 2
#: Data held out in one part that are enough where signals are strong.
ENOUGH_FOR_STRONG = 100
#: Where the noise variance starts, relative to the data, as in `HeldOutParts`. From above: of weak signals,
#: fits that begin far below the noise follow it, settle after hundreds of steps and end elsewhere.
STARTS = (0.3, 1e-3, 1e-6)
#: Data from which on a prior may be dropped early, and standard errors by which it must be worse.
ENOUGH_TO_DROP, PLAINLY = 20, 3.0


class Jury:
    """Judges priors by the same parts of the data.

    Parameters
    ----------
    problem : Problem
        The problem; its noise is NaN if it is to be learned.
    plan : Plan
        The fit that follows.
    runner : Runner
        Runs the stages.
    drops : bool
        Whether a prior that is plainly worse than the best after some parts is judged by these alone.
    with_analysis : bool
        Whether the unknown may be one that an operator makes sparse; those fits have a method of their own.
    """

    def __init__(
        self, problem: Problem, plan: Plan, runner: Runner, drops: bool, with_analysis: bool = False
    ) -> None:
        self.few = problem.n_rows < FEW_DATA
        most = MANY_PARTS if self.few else 5
        self.held_out = HeldOutParts(most_parts=most, starts=STARTS, judged=True)
        self.problem, self.plan, self.runner, self.drops = problem, plan, runner, drops
        self.all_parts = self.held_out.parts(problem.n_rows, runner.rng)
        self.parts = self.all_parts
        if drops and not self.few:
            enough = self.all_parts[0].size >= ENOUGH_FOR_STRONG
            self.parts = self.all_parts[: 1 if enough else MOST_PARTS]
        self.judged: list[Judged] = []
        self.gains: list[float] = []
        self.power = average(squared_modulus(problem.y)) or 1.0
        self.with_analysis = with_analysis and isinstance(problem.y, np.ndarray)
        #: Dictionaries without the rows of each part, kept so that what is known of them is found once.
        self._dictionaries: dict[int, Dictionary] = {}

    def judge(self, prior: Prior, label: str = "", start: int | None = None) -> int:
        """Fit the rest of the data for each part, and note how well the part is predicted.

        Parameters
        ----------
        prior : Prior
            The prior.
        label : str
            In words; by default its own.
        start : int or None
            Number of a prior that the fits go on from.

        Returns
        -------
        int
            Its number.
        """
        known = math.isfinite(self.problem.noise_var)
        found = Judged(prior, label or prior.label, [], [], [], known, (0.0, 0.0), start=start)
        self._add(self._fit_parts(found, len(self.judged) + 1))
        return len(self.judged) - 1

    def judge_by_more(self, number: int) -> None:
        """Go on with a prior that was judged, by the parts that it was not judged by."""
        self.judged[number] = self._fit_parts(self.judged[number], number + 1)
        self.gains = [float(np.mean(self._gain(judged, self.judged[0]))) for judged in self.judged]

    def judge_by_usual(self) -> None:
        """Judge by as many parts as weak signals take, also what was judged by one part alone."""
        if self.drops and len(self.parts) < MOST_PARTS <= len(self.all_parts):
            self.parts = self.all_parts[:MOST_PARTS]
            for number in range(len(self.judged)):
                self.judge_by_more(number)

    def judge_rivals(self) -> None:
        """Judge by all parts what the choice is between.

        That is the best, a mode where signals are weak, and the default where it is one to two standard
        errors behind the best by the parts so far.
        """
        best, default = self.best, self.default
        rivals = {best, *self.modes[:2]}
        if default is not None and self._is_as_good(default, AS_GOOD) and not self._is_as_good(default, 1.0):
            rivals.add(default)
        in_analysis = self.judged[best].analysis is not None
        if not (self.few or in_analysis) and len(rivals) > 1:
            self.parts = self.all_parts
            for number in sorted(rivals):
                self.judge_by_more(number)

    def _fit_parts(self, found: Judged, number: int) -> Judged:
        """Fit the rest of the data for each part that is not in `found`, unless it is plainly worse."""
        prior = found.prior
        problem = replace(self.problem, prior=prior)
        alone = problem.y.ndim == 2 and not prior.joins_tasks
        tasks = [replace(problem, y=y) for y in problem.y] if alone else [problem]
        products, seconds = problem.phi.counter.products, 0.0
        for part, rows in list(enumerate(self.parts))[len(found.errors) :]:
            errors = []
            for task, one in enumerate(tasks):
                place = part * len(tasks) + task
                plan, guess = self.plan, self._known_noise(found, part, task)
                ends = [] if found.start is None else self.judged[found.start].ends
                if len(ends) > place:
                    plan = plan._replace(before=ends[place])
                if len(ends) > place or prior.of_mode:  # what these do not explain is not all noise
                    plan = plan._replace(most_noise=guess or math.inf)
                names = f"{self.plan.task}/choice/{number}/{part + 1}/{task}", f"choice {number}"
                fitted = self.held_out.fit_part(one, rows, plan, self.runner, names=names, known=guess)
                status = fitted.outcome.status
                if status.code is StatusCode.FAILED:
                    raise Broken(fitted.noise_var, status.message)
                self._dictionaries[part] = fitted.outcome.problem.phi
                errors.append(fitted.errors)
                found.noise.append(fitted.noise_var)
                found.ends.append(Ended.of(fitted.outcome, fitted.method))
                seconds += float(fitted.outcome.figures["seconds"])
            found.errors.append(together(errors))
            if self.drops and self.judged and not prior.leads_on and self._is_plainly_worse(found):
                found = found._replace(dropped=part + 1 < len(self.parts))
                break
        applications = (problem.phi.counter.products - products) / 2
        return found._replace(cost=(found.cost[0] + applications, found.cost[1] + seconds))

    def _add(self, found: Judged) -> None:
        """Note what was judged, and what it gains over the first one."""
        self.judged.append(found)
        self.gains.append(float(np.mean(self._gain(found, self.judged[0]))))

    def judge_in_analysis(self, candidate: Candidate) -> None:
        """Judge an unknown that is not sparse itself, but what an operator makes of it, by the same parts.

        One whose fit fails is left out.
        """
        problem, number = self.problem, len(self.judged) + 1
        whole = AnalysisProblem.of(problem, candidate.operator, candidate.prior)
        plan = self.plan._replace(method=AnalysisEM(), alpha_init=None)
        steps = pace_of(whole).judged_after
        stage = Stage(f"{plan.task}/choice/{number}/analysis", f"choice {number}", None, steps)
        products, begin = problem.phi.counter.products, time.perf_counter()
        try:
            found = judge(whole, candidate, self.parts, plan, self.runner, stage)
        except Broken:
            return
        cost = (problem.phi.counter.products - products) / 2, time.perf_counter() - begin
        self._add(
            Judged(
                candidate.prior,
                f"analysis by {candidate.label}",
                found.errors,
                found.noise,
                [],
                math.isfinite(problem.noise_var) or candidate.noise_var is not None,
                cost,
                analysis=candidate.operator,
                penalty=candidate.n_parameters / problem.n_rows,
            )
        )

    def _known_noise(self, found: Judged, part: int, task: int) -> float | None:
        """Return the noise variance to start from: the least that another prior has found for the part.

        Errors at what was held out are noise and what a prior gets wrong, so that the least is the nearest.
        """
        known = []
        for judged in self.judged:
            if len(judged.errors) <= part:
                continue
            fits = len(judged.noise) // len(judged.errors)  # for each part: one, or one for each task
            known += judged.noise[part * fits + task % fits :][:1]
        return min(known) if known else found.noise[-1] if found.noise else None

    def _is_plainly_worse(self, found: Judged) -> bool:
        gain = self._gain(found, self.judged[self.best])
        return gain.size >= ENOUGH_TO_DROP and float(np.mean(gain)) < -PLAINLY * standard_error(gain)

    def _gain(self, one: Judged, other: Judged) -> np.ndarray:
        """Return the differences of log densities over the parts that both were judged by."""
        shared = min(len(one.errors), len(other.errors))
        return one.densities(shared) - other.densities(shared)

    @property
    def share_of_noise(self) -> float:
        """Share of noise in the variance of the data, by the prior that predicts best so far."""
        return self.judged[self.best].noise_var / self.power

    @property
    def best(self) -> int:
        """Number of the prior that gains most over the first one so far."""
        kept = [i for i, judged in enumerate(self.judged) if not judged.dropped]
        return max(kept, key=lambda i: self.gains[i])

    @property
    def default(self) -> int | None:
        """Number of the prior that a fit has without a choice; None if it was not judged."""
        usual = (Independent(), MultiTask(Independent()))
        return next((i for i, judged in enumerate(self.judged) if judged.prior in usual), None)

    def _is_as_good(self, number: int, standard_errors: float) -> bool:
        """Tell whether a prior is within so many standard errors of the best."""
        gain = self._gain(self.judged[number], self.judged[self.best])
        return number == self.best or float(np.mean(gain)) > -standard_errors * standard_error(gain)

    @property
    def chosen(self) -> int:
        """Number of the prior to take: the best or one that is nearly as good, and safer.

        The default, where it is within two standard errors of the best. Of few data several priors are, and
        the one that ties coefficients most is the safest. Of weak signals in many columns, a mode within one
        standard error of the best is taken: it is the only one, where other fits end in one of many.
        """
        best, default = self.best, self.default
        chosen = default if default is not None and self._is_as_good(default, AS_GOOD) else best
        if chosen == best and not self.few and not self.judged[best].prior.of_mode:
            chosen = next((i for i in self.modes if self._is_as_good(i, 1.0)), best)
        for i, judged in enumerate(self.judged):
            simpler = judged.prior.restraint > self.judged[chosen].prior.restraint
            if self.few and simpler and not judged.dropped and self._is_as_good(i, AS_GOOD):
                chosen = i
        return chosen

    @property
    def modes(self) -> list[int]:
        """Numbers of the priors whose fits end at a mode, the best first."""
        found = [i for i, judged in enumerate(self.judged) if judged.prior.of_mode and not judged.dropped]
        return sorted(found, key=lambda i: -self.gains[i])

    def comparison(self) -> Comparison:
        """Return the table."""
        unit = self.problem.units.data
        best, rows = self.best, []
        # Densities of complex data are those of a plane.
        shift = (2 if self.problem.is_complex else 1) * math.log(unit)
        for i, judged in enumerate(self.judged):
            density = judged.densities()
            gain = self._gain(judged, self.judged[best])
            prior, noise_var = judged.to_fit
            rows.append(
                Compared(
                    prior,
                    judged.label if prior == judged.prior else prior.label,
                    float(np.mean(density)) - shift,
                    0.0 if i == best else float(np.mean(gain)),
                    0.0 if i == best else standard_error(gain),
                    judged.outside,
                    noise_var**0.5 * unit,
                    density.size,
                    *judged.cost,
                    judged.analysis,
                )
            )
        return Comparison(tuple(rows), self.chosen)


def search(jury: Jury, operator: Operator) -> None:
    """Judge the priors that make sense for a dictionary, each kind as long as it gains.

    Sparser ones come first where signals are strong; if they gain, denser ones are out of the question.

    Parameters
    ----------
    jury : Jury
        Judges them.
    operator : Operator
        Phi, whose groups and grid of columns count.
    """
    joint = jury.problem.y.ndim == 2

    def over_tasks(prior: Prior) -> Prior:
        return MultiTask(prior) if joint else prior

    def gained(last: float) -> bool:
        return not jury.judged[-1].dropped and jury.gains[-1] > last

    def try_sparser(start: Prior, begun: int) -> None:
        for strength in STRENGTHS:  # each goes on from where the last one ended
            begun = jury.judge(over_tasks(Sparser(strength, start)), start=begun)
            if jury.judged[begun].dropped:
                break

    start: Prior = Independent()
    begun, exponent, last = jury.judge(over_tasks(start)), 0.0, 0.0
    strong = jury.share_of_noise < STRONG
    if strong:
        try_sparser(start, begun)
    if not strong or jury.best == 0:
        jury.judge_by_usual()
    for p in EXPONENTS if jury.best == 0 else ():
        judged = jury.judge(over_tasks(Power(p)))
        if not gained(last):
            break
        if not exponent:  # of weak signals the independent prior leaves little but noise to start from
            start, begun = Power(p), judged
        last, exponent = jury.gains[-1], p
    if jury.best == 0 or exponent:
        if not jury.judged[-1].dropped:  # else still denser signals are out of the question
            jury.judge(over_tasks(Power(2)), "one precision for all")
        wide = jury.problem.n_columns > jury.problem.n_rows
        if exponent and wide and jury.share_of_noise > WEAK:
            last = -math.inf
            for threshold in THRESHOLDS:
                judged = jury.judge(over_tasks(Laplace(threshold, RELAX)))
                if not gained(last):
                    break
                if threshold == THRESHOLDS[0]:
                    start, begun = Laplace(threshold, RELAX), judged
                last = jury.gains[-1]
        if exponent or not strong:
            try_sparser(start, begun)
    groups = operator.groups
    if groups is not None and 1 < np.unique(groups).size < operator.shape[1]:
        jury.judge(over_tasks(Block(groups)), "one precision for each natural group")
        if exponent > 0:
            jury.judge(over_tasks(Power(exponent, groups)), f"Power({exponent:g}) in each natural group")
    shape = operator.column_shape
    if shape is not None and max(shape) > 1:
        jury.judge(over_tasks(PatternCoupled(1.0, shape)))
    if joint:
        jury.judge(Independent(), "each task by itself")
    elif shape is not None and max(shape) > 2 and jury.with_analysis:
        for candidate in with_process(jury.problem, candidates(shape, None, operator)):
            jury.judge_in_analysis(candidate)
    if not joint:
        jury.judge_rivals()


class Chosen(NamedTuple):
    """What the held-out data chose.

    Attributes
    ----------
    prior : Prior
        The prior.
    learned : Learned
        The noise that goes with it.
    comparison : Comparison or None
        The table; None if it was stopped before there was one.
    """

    prior: Prior
    learned: Learned
    comparison: Comparison | None

    @property
    def in_analysis(self) -> bool:
        """Whether it is one in analysis form."""
        return self.comparison is not None and self.comparison.best.analysis is not None


def choose_prior(
    problem: Problem, operator: Operator, plan: Plan, runner: Runner, with_analysis: bool
) -> Chosen:
    """Judge the priors that make sense, and return the best one with the noise that goes with it."""
    if problem.n_rows < 2:
        raise ValueError('prior="auto" cannot be chosen by a single datum; name a prior')
    jury = Jury(problem, plan, runner, True, with_analysis)
    try:
        search(jury, operator)
    except Broken as broken:
        return _as_known(jury, broken)
    best, table = jury.judged[jury.chosen], jury.comparison()
    if has_plenty(problem) and not best.known:  # the fit learns the noise as it goes, as it would by itself
        return Chosen(best.prior, FromTheFit().learn(problem, plan, runner), table)
    alone = problem.y.ndim == 1  # tasks by themselves learn their noise one by one, later
    if alone and best.prior == Independent() and not best.known:  # the fit is then the one without a choice
        usual = replace(problem, prior=best.prior)
        return Chosen(best.prior, choose_strategy(usual, plan.method).learn(usual, plan, runner), table)
    prior, noise_var = best.to_fit
    count = sum(rows.size for rows in jury.parts)
    turns = "" if len(jury.parts) == 1 else f", {len(jury.parts)} parts in turn"
    note = "" if best.known else f"the noise was learned from {count} data held out{turns}"
    return Chosen(prior, with_few_data(Learned(noise_var, note), problem), table)


def _as_known(jury: Jury, broken: Broken) -> Chosen:
    """Return what was known when a fit of the comparison failed."""
    best = jury.judged[jury.chosen] if jury.judged else None
    prior, found = (Independent(), broken.noise_var) if best is None else best.to_fit
    if best is not None and best.analysis is not None:
        prior = Independent()
    return Chosen(prior, Learned(found, "", fault=broken.fault), None)
