"""Coherent dictionaries: the default against exact EM, or many direct probes where EM is too large."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
from scipy.special import ndtri

import cofem
from cofem.experiments.bench.coverage import mean_share
from cofem.experiments.problems import COHERENT, RELATIVE_NOISE, SHARE, Case, dct, gaussian
from cofem.experiments.study.base import Check, Options, Report, Study, Table, at_most, grid, number
from cofem.experiments.study.measure import timed_fit, whole_fit
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

#: Size at which exact EM is at hand.
SIZE = 3072
#: Kinds and sizes at which it is not: those that need no matrix, and matrices of 0.5 GB.
OPERATORS = ("blur, width 2.5", "2-D blur, width 1.4", "decay 0.98", "random kernel", "Fourier of wavelets")
MATRICES = ("blocks, 0.95", "near duplicates")
LARGE = [(kind, 2**16) for kind in OPERATORS] + [(kind, 2**14) for kind in MATRICES]
LARGE += [(kind, 2**18) for kind in OPERATORS]
#: Direct probes are stopped after this many times the default's time, and not before so many seconds.
PATIENCE, LEAST_PATIENCE = 12.0, 60.0
#: The default's error over that of exact EM, and over that of direct probes.
SLACK = 1.05
#: The default's time over that of an incoherent problem, and over that of direct probes.
SLOWER, SHARE_OF_TIME = 4.0, 0.1
#: Error of the variances, learned over true noise, and probability of the intervals.
VARIANCE_ERROR, NOISE_FACTOR, LEVEL = 0.02, 1.5, 0.9
#: Shares inside of the intervals that count as right.
RIGHT = (0.85, 0.95)


class Coherent(Study):
    """Error, time and uncertainty on coherent dictionaries."""

    name = "coherent"
    summary = "dictionaries whose columns are alike: error against exact EM, time, learned noise, intervals"
    how = (
        "3 % of the coefficients are not zero, the noise is 1 % of the data, float64. *Default* is "
        "`cofem.CoFEM()` with the noise given, *learned* the same with the noise learned, *exact EM* 200 "
        "plain steps of `em` or `irls`, whichever factors the smaller matrix. *Incoherent* is the default on "
        "a quarter of the samples of cosines, or for matrices on Gaussian columns, of the same size, density "
        "and relative noise. *100 probes* is "
        '`cofem.CoFEM(diagonal="rademacher", probes=100)`, fresh ones in every step, at sizes that exact EM '
        "does not reach; it is stopped after 12 times the default's time (a minute at least), and its error "
        "is what it was then. *Variances* is the error that the gate's own checks found, averaged over those "
        "of the estimator it ended with (0 where variances are exact). Intervals of 90 %: of coefficients "
        "that are not zero, and of data taken once more with new noise. The ratio of errors is the median of "
        "those of each problem that exact EM was run on; beside it that of the medians, which are of "
        "different problems where errors spread (0.5 to 19 % on the wider blur)."
    )
    setting_columns = ("kind", "D")
    figures = ("variance_error", "ran_out", "nonzero", "new_data", "noise_ratio")

    def cells(self, options: Options) -> list[Cell]:
        """Every kind at the size of EM; those without a matrix at large sizes too."""
        small: list[dict[str, Value]] = [
            {"kind": kind, "D": SIZE // (12 if options.quick else 1)} for kind in COHERENT
        ]
        large: list[dict[str, Value]] = [{"kind": kind, "D": D} for kind, D in LARGE]
        seeds = options.seeds or (1 if options.quick else 10)
        cells = grid(small, ("default", "learned", "incoherent", "exact EM"), seeds)
        return cells if options.quick else cells + grid(large, ("default", "incoherent", "100 probes"), 1)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit to the end."""
        D = int(cell.setting["D"])
        case = COHERENT[str(cell.setting["kind"])](D, cell.seed)
        if cell.method == "incoherent":
            case = _incoherent(case, cell.seed)
        limit: dict[str, Any] = {"seed": cell.seed, "time_limit": options.time_limit}
        if cell.method == "exact EM":
            method: Any = cofem.EM() if case.Phi.shape[1] <= case.Phi.shape[0] else cofem.IRLS()
            return timed_fit(case, method, max_iter=200, tol=0.0, **limit)
        if cell.method == "100 probes":
            probes = cofem.CoFEM(diagonal="rademacher", probes=100)
            known = earlier.where("default", seed=cell.seed, **cell.setting).median("seconds")
            patience = max(PATIENCE * known, LEAST_PATIENCE) if known > 0 else math.inf
            limit["time_limit"] = min(options.time_limit, patience)
            return timed_fit(case, probes, **limit)
        noise: dict[str, Any] = {} if cell.method == "learned" else {"noise_std": case.noise_std}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cofem.ConvergenceWarning)
            start = time.perf_counter()
            post = cofem.fit(case.Phi, case.y, method=cofem.CoFEM(), rng=cell.seed, **noise)
            seconds = time.perf_counter() - start
        return whole_fit(case, post, seconds, _figures(case, post, cell.seed))

    def report(self, rows: Rows) -> Report:
        """Compare medians, kind by kind."""
        checks: list[Check] = []
        small = [self._line(kind, rows.where(kind=kind), checks) for kind in COHERENT]
        header = [
            "kind", "exact EM", "default", "ratio", "ratio of medians", "time / incoherent", "variances",
            "noise", "non-zero", "new data",
        ]  # fmt: skip
        tables = [Table("Medians; noise and intervals are those of *learned*:", header, small)]
        large = [self._large_line(kind, D, rows.where(kind=kind, D=D), checks) for kind, D in LARGE]
        large = [line for line in large if line]
        if large:
            header = ["kind", "D", "100 probes", "default", "ratio", "time / probes", "time / incoherent"]
            tables.append(Table("Sizes that exact EM does not reach:", header, large))
        ran_out = mean_share(rows.where("default"), "ran_out")
        checks.append(
            at_most("fits in which conjugate gradients ran out of steps", ran_out, 0.0, number(ran_out))
        )
        kinds = list(COHERENT)
        series = {
            name: (kinds, [self._judged(rows.where(kind=kind), name).median("nrmse") for kind in kinds])
            for name in ("exact EM", "default", "learned")
        }
        return Report(tables, checks, Plot(series, "", "NRMSE, %", "median NRMSE by kind of dictionary"))

    @staticmethod
    def _at(rows: Rows, method: str) -> Rows:
        """Rows of a method at the size of EM."""
        found = [size for size in rows.values("D") if size <= SIZE]
        return rows.where(method, D=found[-1]) if found else rows.where("nothing")

    def _judged(self, rows: Rows, method: str) -> Rows:
        """Rows of the problems that exact EM was run on: it takes minutes a fit, and may have fewer."""
        same = {row.cell.seed for row in self._at(rows, "exact EM")}
        return Rows(row for row in self._at(rows, method) if row.cell.seed in same)

    def _line(self, kind: str, rows: Rows, checks: list[Check]) -> list[str]:
        default, learned, exact, other = (
            self._at(rows, name) for name in ("default", "learned", "exact EM", "incoherent")
        )
        judged = self._judged(rows, "default")
        pairs = [(judged.where(seed=row.cell.seed), row.measurement) for row in exact]
        ratios = [found.median("nrmse") / theirs["nrmse"] for found, theirs in pairs if len(found)]
        ratio = float(np.median(ratios)) if ratios else math.nan
        of_medians = judged.median("nrmse") / exact.median("nrmse")
        slower = default.median("seconds") / other.median("seconds")
        error = default.median("variance_error")
        noise = learned.median("noise_ratio")
        shares = [mean_share(learned, name) for name in ("nonzero", "new_data")]
        checks += [
            at_most(f"{kind}: NRMSE, default / exact EM", ratio, SLACK, number(ratio)),
            at_most(f"{kind}: time / incoherent", slower, SLOWER, number(slower)),
            at_most(f"{kind}: error of the variances", error, VARIANCE_ERROR, number(error)),
        ]
        off = max(noise, 1 / noise) if noise > 0 else math.nan
        checks.append(at_most(f"{kind}: learned noise, factor off", off, NOISE_FACTOR, number(off)))
        for what, share in zip(("non-zero", "new data"), shares, strict=True):
            known = None if math.isnan(share) else RIGHT[0] <= share <= RIGHT[1]
            checks.append(
                Check(f"{kind}: 90 % intervals, {what}", "85 % to 95 %", number(100 * share, " %"), known)
            )
        return [
            kind,
            number(exact.median("nrmse"), " %"),
            number(judged.median("nrmse"), " %"),
            number(ratio),
            number(of_medians),
            number(slower),
            number(error),
            number(noise),
            *(number(100 * share, " %") for share in shares),
        ]

    @staticmethod
    def _large_line(kind: str, D: int, rows: Rows, checks: list[Check]) -> list[str]:
        default, probes, other = (rows.where(name) for name in ("default", "100 probes", "incoherent"))
        if not len(default):
            return []
        ratio = default.median("nrmse") / probes.median("nrmse")
        part = default.median("seconds") / probes.median("seconds")
        slower = default.median("seconds") / other.median("seconds")
        checks += [
            at_most(f"{kind}, D = {D}: NRMSE, default / 100 probes", ratio, SLACK, number(ratio)),
            at_most(f"{kind}, D = {D}: time / 100 probes", part, SHARE_OF_TIME, number(part)),
            at_most(f"{kind}, D = {D}: time / incoherent", slower, SLOWER, number(slower)),
        ]
        errors = [number(found.median("nrmse"), " %") for found in (probes, default)]
        return [kind, str(D), *errors, number(ratio), number(part), number(slower)]


def _incoherent(case: Case, seed: int) -> Case:
    """Draw a problem of the same size and kind whose columns are not alike, with the same relative noise."""
    D = case.z.size
    if isinstance(case.Phi, np.ndarray):
        f = case.Phi.shape[1] / case.Phi.shape[0]
        return gaussian(D, seed, f, SHARE, RELATIVE_NOISE * (SHARE * f) ** 0.5)
    # The data have the standard deviation of the coefficients, the root of the density.
    return dct(D, 4, SHARE, RELATIVE_NOISE * SHARE**0.5, seed)


def _figures(case: Case, post: cofem.Posterior, seed: int) -> dict[str, float]:
    """Say how good the uncertainty is."""
    errors, used = post.history["diagonal_error"], post.history["diagonal"]
    checked = np.isfinite(errors) & (used == used[-1])
    Phi = cofem.as_operator(case.Phi)
    rng = np.random.default_rng(10_000 + seed)
    noise = rng.standard_normal(case.y.size)
    if np.iscomplexobj(case.y):
        noise = (noise + 1j * rng.standard_normal(case.y.size)) / 2**0.5
    new = Phi @ case.z + case.noise_std * noise
    mean, std = post.predict(Phi, return_std=True)
    off = new - mean
    if np.iscomplexobj(off):  # the real and the imaginary parts, each with half the variance
        off, std = np.concatenate([off.real, off.imag]), np.tile(std, 2) / np.sqrt(2)
    lower, upper = post.credible_interval(LEVEL)
    held = (lower.real <= case.z.real) & (case.z.real <= upper.real)
    unchecked = 0.0 if str(used[-1]) == "exact" else math.nan  # these are not checked
    return {
        "variance_error": float(np.mean(errors[checked])) if checked.any() else unchecked,
        "ran_out": float("ran out of steps" in str(post.status)),
        "nonzero": float(np.mean(held[case.z != 0])),
        "new_data": float(np.mean(np.abs(off) <= ndtri(0.5 + LEVEL / 2) * std)),
        "noise_ratio": float(post.noise_std) / case.noise_std,
    }
