"""The noise from the error at data that are held out of a fit, or of several in turn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cofem._arrays import average, in_precision, inner, on_device_of, size, squared_modulus
from cofem.inference.base import Method
from cofem.inference.covariance_free import UNSETTLED, CoFEM
from cofem.inference.loop import Ended, Stage
from cofem.inference.noise.joint import WIDE, joint_method, run_jointly
from cofem.inference.noise.rules import (
    ENOUGH_FOR_MEDIAN,
    MOST_SPREAD,
    MOST_SPREAD_EARLY,
    FromHeldOut,
    least_noise,
    middle,
)
from cofem.inference.noise.second_tries import SecondTry, was_given_up
from cofem.inference.noise.strategy import Learned, Plan, with_few_data
from cofem.inference.prediction import MOST_DRAWS, Errors
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome
from cofem.inference.registry import choose_method
from cofem.inference.stages import Runner
from cofem.status import StatusCode

#: Data that were held out from which on those outside of their intervals are counted, and how many times as
#: many as there should be, and more than that many, are pointed out.
ENOUGH_TO_COUNT, FAR_MORE = 20, 2.5
#: Noise relative to the data from which on the signal counts as not found.
NOTHING_FOUND = 0.8
#: The same that later starts must be on the way to, see `SecondTry`.
SOMETHING = 0.64
#: Data below which a part by itself is fitted to its end, since each one counts (of 16, parts that ended with
#: the noise said 4 times too much in one of ten draws; of 20 to 26 they were as good). So are wide ones: of
#: 100 x 20 000, parts that ended with the noise said 1.06 in place of 0.50.
FEW_FOR_ROUGH = 20
#: Noise variance relative to the data from which on the signal may have been missed since too many data were
#: held out; how many are then: this share, so many at least, in each of three parts, and this share at most.
#: And how much less noise they must find: so much less that twenty data do not say so by chance. Of fewer
#: data than that takes, more parts have the largest share each.
MUCH_NOISE, FEW_HELD_OUT, FEWEST_HELD_OUT, MOST_HELD_OUT, FAR_LESS = 0.1, 0.02, 20, 0.05, 0.02
#: No second try where fewer than so many times as many were held out at first.
FAR_MORE_HELD_OUT = 1.5
#: Where the noise starts in second tries of few data, relative to all of them.
LOWER = 0.01
#: Where the noise starts, relative to the data, once a fit from the first start predicts no better than none:
#: from below it rises in a dozen turns, each of which has to settle.
FROM_ABOVE = 0.5
#: Noise variance relative to the data from which on parts that are fitted together go on to their end. Slow
#: progress looks as if the noise had settled: of 120 fits (DCT, D = 1024, N = D/3 to D/5, noise 0.03 and 0.1)
#: 4 were off by more than 1.5, and 2 of those that went on, in twice the time.
NOISY = 0.015
#: Data in a part from which on its spread counts as in other fits once it has ended: root mean square of the
#: logarithm of learned over true noise 0.118 in place of 0.121 (640 fits, seeds 600 to 609 and 700 to 709).
#: With parts of 10 the noise then depends on the last digits of Phi.
ENOUGH_IN_A_PART = 20
#: How many times as many data as tell the median of their errors there must be, for a part to have these.
MANY_TIMES = 4
#: Outer steps that EM takes at most; MacKay's update takes more.
USUAL_STEPS = 100
#: Most outer steps of a part that nothing but the noise is wanted of.
MOST_ROUGH_STEPS = 60


class Part(NamedTuple):
    """A fit to the data without some, and the noise that was found there."""

    outcome: Outcome
    noise_var: float
    method: Method

    @property
    def errors(self) -> Errors:
        """How far the predictions of the data that were held out are off."""
        figures = self.outcome.figures
        return Errors(figures["squares"], figures["spread"], MOST_DRAWS, self.outcome.problem.is_complex)


@dataclass(frozen=True)
class HeldOutParts:
    """The error at data that are held out of a fit, or of several in turn.

    Parameters
    ----------
    share : float
        Part of the data that is held out.
    enough : float
        Held-out data that are enough in one part, unless a fiftieth of all data are more.
    wanted, most_parts : int
        Held-out data wanted in all; where one part has fewer, several parts are held out in turn, so many at
        most.
    starts : tuple of float
        Where the noise variance starts, relative to the data; the second, if the signal was not found from
        there.
    judged : bool
        Whether priors are judged by the parts: variances of predictions are then exact where a factor is
        to be had, and checkpoints keep the precisions.
    """

    share: float = 0.1
    enough: float = math.inf
    wanted: int = 200
    most_parts: int = 5
    starts: tuple[float, ...] = (0.1, 1e-3, 1e-6)
    judged: bool = False

    def learn(self, problem: Problem, plan: Plan, runner: Runner) -> Learned:
        """Fit the rest of the data for each part, and take the median of what the parts say.

        Near the limit of what data tell, the rest may be too few to find the signal, which is then taken for
        noise. So where much noise was found, it is tried with fewer held out, unless few were; of few data,
        also from a lower noise: far less noise is taken for the truth.
        """
        if problem.n_rows < 2:
            raise ValueError("noise_std cannot be learned from a single datum; give noise_std")
        parts = self.parts(problem.n_rows, runner.rng, problem.phi.is_like_a_convolution)
        found = self._learn_from(problem, parts, plan, runner)
        little = found.noise_var < MUCH_NOISE * average(squared_modulus(problem.y))
        if little or found.fault or plan.before is not None or problem.n_tasks > 1:
            return found
        first = found.noise_var
        size = max(FEWEST_HELD_OUT, round(FEW_HELD_OUT * problem.n_rows))
        if size <= MOST_HELD_OUT * problem.n_rows:
            if parts[0].size < FAR_MORE_HELD_OUT * size:
                return found
            parts = _drawn_parts(problem.n_rows, size, 3, runner.rng)
            again = self._learn_one_by_one(problem, parts, plan, runner, first)
            why = "with more of them held out"
        elif sum(rows.size for rows in parts) >= FEWEST_HELD_OUT:
            again = self._learn_from_below(problem, plan, runner, first)
            why = "with more of them held out and from a larger noise"
        else:
            return found
        if again is None or again.fault:
            return found
        return again._replace(note=f"{again.note}: {why} the signal is not found")

    def _learn_from_below(self, problem: Problem, plan: Plan, runner: Runner, first: float) -> Learned | None:
        """Learn the noise from a lower start, and with fewer data held out in each of more parts.

        None where that does not find far less than at first.
        """
        size = max(1, round(MOST_HELD_OUT * problem.n_rows))
        count = max(self.most_parts, math.ceil(FEWEST_HELD_OUT / size))
        parts = _drawn_parts(problem.n_rows, size, count, runner.rng)
        method = joint_method(problem, parts) if plan.alpha_init is None else None
        if method is None:
            return None
        lower = replace(self, starts=(LOWER,))
        found = lower._learn_jointly(problem, parts, plan, runner, method, first)
        if found is None or found.fault or found.noise_var <= FAR_LESS * first:
            return found
        return None

    def _learn_from(self, problem: Problem, parts: list[np.ndarray], plan: Plan, runner: Runner) -> Learned:
        """Learn the noise from parts, all at once where that is possible."""
        method = joint_method(problem, parts) if plan.alpha_init is None else None
        learned = self._learn_jointly(problem, parts, plan, runner, method) if method is not None else None
        if learned is None:
            learned = self._learn_one_by_one(problem, parts, plan, runner)
        assert learned is not None
        return learned

    def _learn_one_by_one(
        self,
        problem: Problem,
        parts: list[np.ndarray],
        plan: Plan,
        runner: Runner,
        first: float | None = None,
    ) -> Learned | None:
        """Fit the rest of the data for each part in turn.

        With the noise that was found at `first`, None if the first two parts do not find far less. Near the
        limit a fit finds the signal or misses it, and one that misses it does not count.
        """
        found: list[float] = []
        errors: list[Errors] = []
        kind = "noise" if first is None else "noise/fewer"
        for number, rows in enumerate(parts, 1):
            title = "noise" if len(parts) == 1 else f"noise {number}/{len(parts)}"
            names = f"{plan.task}/{kind}/{number}", title
            known = found[-1] if found else None
            part = self.fit_part(problem, rows, plan, runner, names=names, known=known, first=first)
            if part.outcome.status.code is StatusCode.FAILED:
                median = float(np.median([*found, part.noise_var]))
                return Learned(median, "", fault=part.outcome.status.message)
            if first is None or part.noise_var <= FAR_LESS * first:
                found.append(part.noise_var)
                errors.append(part.errors)
            elif number == 2 and not found:
                return None
        # The median, since a fit of one part may miss the signal.
        squares = parts[0].size * problem.n_tasks * (2 if problem.is_complex else 1)
        noise_var = middle(found, squares)
        return _learned(problem, parts, noise_var, errors)

    def _learn_jointly(
        self,
        problem: Problem,
        parts: list[np.ndarray],
        plan: Plan,
        runner: Runner,
        method: Method,
        first: float | None = None,
    ) -> Learned | None:
        """Fit the rest of the data for all parts at once; None where they are better fitted one by one.

        `first` is what was found before, if anything.
        """
        power = average(squared_modulus(problem.y)) or 1.0
        learned: Learned | None = None
        for turn, start in enumerate(self.starts):
            name = f"{plan.task}/noise/{'all' if first is None else 'below'}/{turn}"
            wanted = SOMETHING * power if turn else first
            stage = Stage(name, "noise", None, MOST_ROUGH_STEPS, kept=True, passes_on=True)
            rough = stage._replace(rough=True, second_try=None if wanted is None else SecondTry(wanted))
            run = run_jointly(problem, parts, start * power, method, rough, runner)
            if run is None:
                break
            outcome, rule = run
            noise_var = outcome.problem.noise_var
            noisy = NOISY * power < noise_var < NOTHING_FOUND * power
            if noisy and first is None and outcome.status.settled:
                stage = stage._replace(name=f"{name}/on", before=Ended.of(outcome, method), loose=True)
                on = runner.run(outcome.problem, method, stage._replace(noise=rule, judge=rule.judge))
                outcome = outcome if on.status.message == UNSETTLED else on
                noise_var = outcome.problem.noise_var
            if outcome.status.code is StatusCode.FAILED:
                return Learned(noise_var, "", fault=outcome.status.message)
            if not outcome.status.settled:
                noise_var = max(noise_var, rule(outcome.problem, outcome.state, True))
            elif min(rule.sizes) >= ENOUGH_IN_A_PART and noise_var > least_noise(outcome.problem):
                last = replace(rule, most_spread=MOST_SPREAD)(outcome.problem, outcome.state, True)
                noise_var = max(last, least_noise(outcome.problem))
            found = noise_var < NOTHING_FOUND * power
            if learned is None or found:
                errors = Part(outcome, noise_var, method).errors
                learned = _learned(problem, parts, noise_var, [errors])
            # From a noise that is lower still, the first steps are the same.
            if found or was_given_up(outcome.status):
                break
        return learned

    def fit_part(
        self,
        problem: Problem,
        rows: np.ndarray,
        plan: Plan,
        runner: Runner,
        *,
        names: tuple[str, str],
        known: float | None = None,
        first: float | None = None,
    ) -> Part:
        """Fit the data without some rows, at a noise under which these are predicted as they should be.

        Parameters
        ----------
        problem : Problem
            The problem with all data.
        rows : ndarray of int
            Rows that are held out.
        plan, runner : Plan and Runner
            The fit that the noise is learned for, and what runs it.
        names : tuple of two str
            The stage's name and title.
        known : float or None
            A noise variance that is known from elsewhere, which is a good place to start.
        first : float or None
            The noise variance that was found at first, where this is a second try.
        """
        power = inner(problem.y, problem.y) / size(problem.y)
        if not power:  # there is nothing to learn from a task of zeros
            power, problem = 1.0, problem.with_noise(1.0)
        given = math.isfinite(problem.noise_var)
        starts = self.starts
        if given:
            starts = (problem.noise_var / power,)
        elif known is not None and known < NOTHING_FOUND * power:
            starts = (known / power, *starts)
        if plan.before is not None:  # from elsewhere it would not find more
            starts = starts[:1]
        part: Part | None = None
        roughly = not (self.judged or given) and may_be_rough(problem)
        left, turn = list(starts), -1
        while left:
            start, turn = left.pop(0), turn + 1
            seen, rule = split(problem, rows, start, roughly)
            rule = replace(rule, most=plan.most_noise)
            method = _method_of_part(problem, seen) if roughly else choose_method(seen)[0]
            name, title = f"{names[0]}/{turn}", names[1]
            steps = method.default_max_iter
            rough = roughly and steps <= USUAL_STEPS
            if rough:
                # Where columns act on few data each, signals are found place by place, and none is lost.
                rule = replace(rule, most_spread=MOST_SPREAD_EARLY, follows=rule.local)
                steps = min(steps, MOST_ROUGH_STEPS)
            judge = rule.judge_exactly if self.judged else rule.judge
            wanted = SOMETHING * power if start in self.starts[1:] else first
            at_first = rough and wanted is None and plan.before is None and start == self.starts[0]
            second_try = None if wanted is None else SecondTry(wanted)
            if rough and not rule.local and (at_first or second_try is not None):
                nothing = average(squared_modulus(rule.y))
                second_try = SecondTry(math.inf if wanted is None else wanted, nothing)
            stage = Stage(
                name,
                title,
                plan.alpha_init,
                steps,
                noise=None if given else rule,
                kept=True,
                judge=judge,
                before=plan.before,
                passes_on=self.judged,
                rough=rough,
                loose=plan.before is not None,
                second_try=second_try,
            )
            outcome = runner.run(seen, method, stage)
            noise_var = outcome.problem.noise_var
            if outcome.status.code is StatusCode.FAILED:
                return Part(outcome, noise_var, method)
            if not (given or outcome.status.settled):  # it may never have been allowed to rise
                noise_var = max(noise_var, rule(outcome.problem, outcome.state, True))
            found = noise_var < NOTHING_FOUND * power
            if part is None or found:
                part = Part(outcome, noise_var, method)
            if at_first and was_given_up(outcome.status):  # most is noise, which is found from above
                part, left = None, [FROM_ABOVE]
            elif found or given or was_given_up(outcome.status):
                break
        assert part is not None
        return part

    def parts(self, n_rows: int, rng: np.random.Generator, local: bool = False) -> list[np.ndarray]:
        """Choose the rows to hold out, one set for each fit.

        Where columns act on few data each (`local`), a part needs so many that a few may be far off.
        """
        share = min(self.share, max(self.enough / n_rows, FEW_HELD_OUT))
        size = max(1, round(share * n_rows))
        if local and n_rows >= MANY_TIMES * ENOUGH_FOR_MEDIAN:
            size = max(size, ENOUGH_FOR_MEDIAN)
        count = min(self.most_parts, math.ceil(self.wanted / size), n_rows // size)
        return _drawn_parts(n_rows, size, max(1, count), rng)


def _drawn_parts(n_rows: int, size: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw so many sets of rows of one size, in order, which have none in common."""
    order = rng.permutation(n_rows)
    return [np.sort(order[i * size : (i + 1) * size]) for i in range(count)]


def _method_of_part(problem: Problem, seen: Problem) -> Method:
    """Return the method for a part that nothing but the noise is wanted of.

    That for all data, if a part is exact only because it is a little smaller.
    """
    method, whole = choose_method(seen)[0], choose_method(problem)[0]
    return whole if isinstance(whole, CoFEM) and not isinstance(method, CoFEM) else method


def may_be_rough(problem: Problem) -> bool:
    """Tell whether parts may end once the noise has settled."""
    return problem.n_rows >= FEW_FOR_ROUGH and problem.n_columns <= WIDE * problem.n_rows


def about_intervals(errors: list[Errors], noise_var: float) -> str:
    """Say so where data that were held out lie outside of 95 % intervals far more often than they should."""
    count = sum(part.squares.size for part in errors)
    outside = sum(part.outside(noise_var, 0.95) for part in errors)
    if count < ENOUGH_TO_COUNT or outside <= FAR_MORE * 0.05 * count + FAR_MORE:
        return ""
    return (
        f"{outside} of the {count} data points held out lie outside their 95 % intervals, far more than "
        'expected: the prior does not suit the data. Try prior="auto"'
    )


def _learned(problem: Problem, parts: list[np.ndarray], noise_var: float, errors: list[Errors]) -> Learned:
    """Say where the noise comes from."""
    count = sum(rows.size for rows in parts)
    turns = "" if len(parts) == 1 else f", {len(parts)} parts in turn"
    note = f"the noise was learned from {count} data held out{turns}"
    learned = Learned(noise_var, note, doubt=about_intervals(errors, noise_var))
    return with_few_data(learned, problem)


def split(
    problem: Problem, held_out: np.ndarray, start: float, rough: bool = False
) -> tuple[Problem, FromHeldOut]:
    """Return the problem without some rows, its noise at `start` times the data, and the rule that judges.

    Of a circular convolution without some rows exact variances, or couplings place by place, may take a
    hundred times as long as of all rows: a rough fit does without.
    """
    circulant = problem.phi.circulant_gram()
    on_average = rough and circulant is not None and circulant.is_exact
    noise_var = start * average(squared_modulus(problem.y)) or 1.0
    seen, unseen, y = problem.split(held_out, noise_var, on_average)
    energy = unseen.column_norms() ** 2
    energy = on_device_of(problem.y, energy) if isinstance(energy, np.ndarray) else energy
    energy = in_precision(energy, problem.real_dtype.name)
    orthonormal = problem.phi.facts.row_gram is not None
    return seen, FromHeldOut(unseen, y, energy, problem.phi.is_like_a_convolution, orthonormal=orthonormal)
