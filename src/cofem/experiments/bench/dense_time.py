"""Time on dense Gaussian dictionaries, against the paper's algorithm and exact EM."""

from __future__ import annotations

import math

from cofem.experiments import problems
from cofem.experiments.bench.dct_time import time_plot
from cofem.experiments.study.base import (
    Options,
    Report,
    Skipped,
    Study,
    Table,
    at_least,
    at_most,
    grid,
    number,
    power,
    seconds,
    sizes,
    skip_if_too_slow,
)
from cofem.experiments.study.measure import timed_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Cell, Measurement, Ratio, Rows, paired_ratio

#: Label of the run of exact EM to its end, whose error sets the target of the others.
REFERENCE = "irls to its end"
#: How much larger than exact EM's final error the target is.
SLACK = 1.1
#: Two timings of the same thing differ by this much.
NOISE = 0.05
#: Slow methods are stopped after so many times what `auto` took, or after `AT_LEAST` seconds.
ENOUGH = {"paper": 30, "em": 10}
AT_LEAST = 60.0


class DenseTime(Study):
    """Time to 1.1 times the final error of exact EM."""

    name = "dense-time"
    summary = "time to the error of exact EM on dense Gaussian dictionaries"
    how = (
        "Entries of Phi from N(0, 1), N = D/4, 0.04 D spikes of +-1, noise 0.005 known, float64. The "
        "target is 1.1 times the NRMSE at which exact EM (`irls`, at most 100 steps) ends; the time of "
        "`irls` is when that very run passed it, if both are measured in one go. The paper's algorithm is "
        f"stopped after {ENOUGH['paper']} times what `auto` took, `em` after {ENOUGH['em']} times, neither "
        f"before {AT_LEAST:g} s; beyond the size at which `em` was stopped it is not tried."
    )
    setting_columns = ("D",)
    large = 2**13
    #: Ratio of times that is wanted of `irls`; and most applications of `auto`, from this D on.
    faster_than_irls = {2**13: 30, 2**14: 50}  # noqa: RUF012 (never modified)
    counted, applications = 2**12, 120

    def __init__(self) -> None:
        #: The reference runs of this process, step by step. `irls` would only repeat them.
        self._traces: dict[tuple[int, int], list[tuple[float, float, float]]] = {}

    def cells(self, options: Options) -> list[Cell]:
        """Every size and seed; the reference comes first."""
        sweep = sizes(8, 9) if options.quick else sizes(10, 11, 12, 13, 14)
        return grid(sweep, (REFERENCE, "auto", "paper", "irls", "em"), options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Run the reference to its end, or time a method to the target that it set."""
        D, seed = int(cell.setting["D"]), cell.seed
        case = problems.dense(D, seed=seed)
        limit = options.time_limit
        if cell.method == REFERENCE:
            trace = self._traces[D, seed] = []
            return timed_fit(case, METHODS["irls"], seed=seed, time_limit=limit, max_iter=100, trace=trace)
        if cell.method == "em":
            skip_if_too_slow(cell, earlier)
        target = SLACK * reference_error(earlier.where(REFERENCE, seed, D=D))
        if cell.method == "irls" and (D, seed) in self._traces:
            return _passing(self._traces[D, seed], target)
        ours = earlier.where("auto", seed, D=D)
        if cell.method in ENOUGH and ours:
            limit = min(limit, max(AT_LEAST, ENOUGH[cell.method] * ours[0].measurement.seconds))
        return timed_fit(
            case, METHODS[cell.method], seed=seed, target=target, time_limit=limit, max_iter=100, tol=0.0
        )

    def report(self, rows: Rows) -> Report:
        """Compare times, method by method."""
        methods = ("auto", "paper", "irls", "em")
        lines, checks = [], []
        for D in rows.values("D"):
            part = rows.where(D=D)
            ours = part.where("auto")
            ratios = {name: paired_ratio(part.where(name), ours) for name in methods[1:]}
            error = number(part.where(REFERENCE).median("nrmse"), " %")
            times = [seconds(part.where(name).median_to_target()) for name in methods]
            applications = ours.median("applications")
            shown = [str(ratio) for ratio in ratios.values()]
            lines.append([power(D), error, number(applications), *times, *shown])
            if self.large <= D:
                for name, wanted in (("paper", 20), ("irls", self.faster_than_irls.get(D, 3))):
                    what = f"D = {power(D)}: time, {name} / auto"
                    checks.append(at_least(what, ratios[name].value, wanted, str(ratios[name]), "x"))
            if self.counted <= D:
                what = f"D = {power(D)}: applications of auto"
                checks.append(at_most(what, applications, self.applications, number(applications)))
            best = _smaller(ratios["irls"], ratios["em"])
            what = f"D = {power(D)}: time, best of irls and em / auto"
            checks.append(at_least(what, best.value, 1 - NOISE, str(best), "x"))
        header = ["D", "EM's NRMSE", "applications of auto"]
        header += [*methods, *(f"{name} / auto" for name in methods[1:])]
        timed = Rows(row for row in rows if row.cell.method != REFERENCE)
        title = "time to 1.1 times the NRMSE of exact EM"
        return Report([Table("Time to the target:", header, lines)], checks, time_plot(timed, title))


def reference_error(reference: Rows) -> float:
    """Return the error of the reference run of a problem, which others are to reach."""
    if not reference or not reference[0].measurement.reached:
        raise Skipped("the reference run, which sets the target, did not come to its end")
    return reference[0].measurement.nrmse


def _passing(trace: list[tuple[float, float, float]], target: float) -> Measurement:
    """Return what a run had cost when it passed the target."""
    for step, (nrmse, elapsed, applications) in enumerate(trace, 1):
        if nrmse <= target:
            return Measurement(elapsed, applications, step, nrmse, True, note="within the reference run")
    raise Skipped("the reference run did not pass the target")


def _smaller(a: Ratio, b: Ratio) -> Ratio:
    known = [ratio for ratio in (a, b) if not math.isnan(ratio.value)]
    return min(known, key=lambda ratio: ratio.value, default=a)
