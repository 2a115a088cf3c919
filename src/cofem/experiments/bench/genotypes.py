"""Weak signals among very many correlated columns: `prior="auto"` against LassoCV."""

from __future__ import annotations

import time
import warnings
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LassoCV

import cofem
from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    at_least,
    at_most,
    grid,
    number,
    seconds,
)
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

OURS, DEFAULT, THEIRS = "auto prior", "default prior", "LassoCV"
#: Columns in a block, their correlation, columns that matter, samples that predictions are judged on.
BLOCK, CORRELATION, CAUSAL, N_NEW = 20, 0.9, 20, 1000
#: Standard deviations to either side that 90 % of normal numbers are within.
WITHIN_90 = 1.6448536269514722
#: Time relative to LassoCV's, and the share of new data in 90 % intervals, least and most.
TIME, HELD = 2.0, (85.0, 95.0)


class Genotypes(NamedTuple):
    """Columns, data, new samples and what a perfect prediction of them would be; the noise is 1."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    signal_new: np.ndarray


def draw(N: int, D: int, seed: int) -> Genotypes:
    """Draw columns in blocks, of which a few matter; half of the variance of the data is noise.

    Examples
    --------
    >>> data = draw(200, 100, 0)
    >>> data.X.shape, bool(0.8 < np.corrcoef(data.X[:, 0], data.X[:, 1])[0, 1] < 1)
    ((200, 100), True)
    """
    rng = np.random.default_rng(seed)

    def columns(count: int) -> np.ndarray:
        shared = rng.standard_normal((count, D // BLOCK))
        own = rng.standard_normal((count, D))
        own *= (1 - CORRELATION) ** 0.5
        own += CORRELATION**0.5 * np.repeat(shared, BLOCK, axis=1)
        return own

    z = np.zeros(D)
    z[rng.choice(D, CAUSAL, replace=False)] = rng.standard_normal(CAUSAL)
    X = columns(N)
    z /= np.std(X @ z)
    y = X @ z + rng.standard_normal(N)
    X_new = columns(N_NEW)
    return Genotypes(X, y, X_new, X_new @ z)


class WeakSignals(Study):
    """Correlation of predictions with the true signal, time and intervals."""

    name = "genotypes"
    summary = 'weak signals among very many correlated columns: prior="auto" against LassoCV'
    how = (
        f"Columns from N(0, 1) in blocks of {BLOCK}, correlated {CORRELATION:g} in a block; {CAUSAL} of them "
        "matter; half of the variance of the data is noise, which is learned. Predictions of "
        f"{N_NEW} new samples: their correlation with the true signal, and the share of new data in 90 % "
        "intervals. LassoCV has its defaults. Times are those of the processor."
    )
    setting_columns = ("N", "D")
    figures = ("correlation", "held")

    def cells(self, options: Options) -> list[Cell]:
        """Both sizes, ours and theirs; the default prior at the smaller one, where it ends in minutes."""
        sizes = [(100, 400)] if options.quick else [(500, 5000), (1000, 50_000)]
        sweep: list[dict[str, Value]] = [{"N": N, "D": D} for N, D in sizes]
        few = grid(sweep[:1], (DEFAULT,), options.repeats)
        return [*grid(sweep, (OURS, THEIRS), options.repeats), *few]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit and predict."""
        data = draw(int(cell.setting["N"]), int(cell.setting["D"]), cell.seed)
        start, held = time.process_time(), float("nan")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about steps that ran out, theirs and ours
            if cell.method == THEIRS:
                model = LassoCV().fit(np.asfortranarray(data.X), data.y)
                elapsed = time.process_time() - start
                predicted = model.predict(data.X_new)
            else:
                prior = "auto" if cell.method == OURS else None
                post = cofem.fit(data.X, data.y, prior=prior, rng=cell.seed)
                elapsed = time.process_time() - start
                predicted, std = post.predict(data.X_new, return_std=True)
                y_new = data.signal_new + np.random.default_rng(cell.seed).standard_normal(N_NEW)
                held = 100 * float(np.mean(np.abs(y_new - predicted) < WITHIN_90 * std))
        correlation = float(np.corrcoef(predicted, data.signal_new)[0, 1])
        off = np.linalg.norm(predicted - data.signal_new) / np.linalg.norm(data.signal_new)
        figures = {"correlation": correlation, "held": held}
        return Measurement(elapsed, nrmse=100 * float(off), reached=True, figures=figures)

    def report(self, rows: Rows) -> Report:
        """Compare with LassoCV."""
        lines, checks = [], []
        for D in rows.values("D"):
            part = rows.where(D=D)
            for method in (OURS, DEFAULT, THEIRS):
                runs = part.where(method)
                if len(runs):
                    figures = [runs.median("correlation"), runs.median("held")]
                    taken = seconds(runs.median("seconds"))
                    lines.append([str(D), method, number(figures[0]), number(figures[1], " %"), taken])
            ours, theirs = part.where(OURS), part.where(THEIRS)
            gain = ours.median("correlation") - theirs.median("correlation")
            checks.append(at_least(f"D = {D}: correlation, auto less LassoCV", gain, 0.0, f"{gain:+.3f}"))
            ratio = ours.median("seconds") / theirs.median("seconds")
            checks.append(at_most(f"D = {D}: time, auto / LassoCV", ratio, TIME, number(ratio)))
            held, (least, most) = ours.median("held"), HELD
            what, text = f"D = {D}: new data in 90 % intervals", number(held, " %")
            checks.append(at_least(what, held, least, text, " %"))
            checks.append(at_most(what, held, most, text, " %"))
        header = ["D", "method", "correlation", "in 90 % intervals", "time"]
        return Report([Table("Medians:", header, lines)], checks)
