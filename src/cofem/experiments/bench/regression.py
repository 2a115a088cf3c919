"""The regressor against scikit-learn's `ARDRegression`.

`main` reads a cell as JSON from its input, fits, and writes what it measured as JSON to its output:
`ARDRegression` has no callback, so only a process can be ended in time.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.datasets import load_diabetes, make_regression
from sklearn.linear_model import ARDRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from cofem._memory import available_bytes, describe_bytes
from cofem.estimators import SBLRegressor
from cofem.experiments.bench.dct_time import time_plot
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Skipped,
    Study,
    Table,
    at_least,
    at_most,
    grid,
    number,
    seconds,
    skip_if_too_slow,
)
from cofem.experiments.study.fresh import ask_fresh_process
from cofem.experiments.study.memory import peak_mb, reset_peak
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, Rows, Value, paired_ratio
from cofem.status import ConvergenceWarning

OURS, THEIRS = "SBLRegressor", "ARDRegression"
METHODS: dict[str, Callable[[int], Any]] = {
    OURS: lambda seed: SBLRegressor(random_state=seed),
    THEIRS: lambda seed: ARDRegression(),
}
#: Features that matter in the drawn problems, and samples that predictions are judged on.
INFORMATIVE, N_NEW = 20, 500
#: Largest difference of predictions, in percent of the targets' standard deviation, on ARDRegression's own
#: ground: where samples are plenty, and where they are not and the noise is learned in another way.
CLOSE, FAIRLY_CLOSE = 1.0, 5.0
EXAMPLES = {"diabetes": CLOSE, "polynomials": CLOSE, "few samples": FAIRLY_CLOSE}


#: Features of which predictions must not be blurred by those near zero, and their error in percent.
VERY_MANY, ERROR_OF_VERY_MANY = 100_000, 2.2


class Data(NamedTuple):
    """Training data, and samples with what a perfect prediction of them would be."""

    X: Any
    y: np.ndarray
    X_new: Any
    truth: np.ndarray


def _drawn(X: Any, N: int, rng: np.random.Generator) -> Data:
    coef = np.zeros(X.shape[1])
    where = rng.choice(X.shape[1], INFORMATIVE, replace=False)
    coef[where] = rng.choice([-1.0, 1.0], INFORMATIVE) * rng.uniform(1, 3, INFORMATIVE)
    signal = X @ coef
    signal = 9 * signal / np.std(signal) + 5
    return Data(X[:N], signal[:N] + rng.standard_normal(N), X[N:], signal[N:])


def gaussian(N: int, D: int, seed: int) -> Data:
    """Independent features."""
    rng = np.random.default_rng(seed)
    return _drawn(rng.standard_normal((N + N_NEW, D)), N, rng)


def sparse(N: int, D: int, seed: int) -> Data:
    """Features of which one in a hundred is not zero: a CSR matrix."""
    rng = np.random.default_rng(seed)
    shape = (N + N_NEW, D)
    X = scipy.sparse.random_array(shape, density=0.01, format="csr", rng=rng, data_sampler=_ones)
    return _drawn(X, N, rng)


def _ones(size: int) -> np.ndarray:
    return np.ones(size)


def diabetes(N: int, D: int, seed: int) -> Data:
    """Half of scikit-learn's diabetes data, and the other half to predict (its noise included)."""
    X, y = load_diabetes(return_X_y=True)
    X, X_new, y, y_new = train_test_split(X, y, train_size=N, random_state=seed)
    return Data(X, y, X_new, y_new)


def polynomials(N: int, D: int, seed: int) -> Data:
    """Powers of one variable, the second example of ARDRegression's page."""
    rng = np.random.RandomState(seed)  # as there, so that seed 0 is the example itself
    x = np.sort(10 - 10 * rng.rand(N))[:, None]
    truth = (np.sqrt(x) * np.sin(x))[:, 0]
    X = PolynomialFeatures(degree=D, include_bias=False).fit_transform(x)
    X = StandardScaler().fit_transform(X)
    return Data(X, truth + 1.35 * rng.normal(0, 1, N), X, truth)


def few_samples(N: int, D: int, seed: int) -> Data:
    """Ten of as many features as samples, the first example of ARDRegression's page."""
    X, signal, coef = make_regression(
        n_samples=N + N_NEW, n_features=D, n_informative=10, coef=True, random_state=seed
    )
    noise = 8 * np.random.default_rng(seed).standard_normal(N)
    return Data(X[:N], signal[:N] + noise, X[N:], X[N:] @ coef)


PROBLEMS: dict[str, Callable[[int, int, int], Data]] = {
    "wide": gaussian,
    "short": gaussian,
    "tall": gaussian,
    "sparse": sparse,
    "diabetes": diabetes,
    "polynomials": polynomials,
    "few samples": few_samples,
}


class Regression(Study):
    """Time and predictions of `SBLRegressor` against `ARDRegression`."""

    name = "regression"
    summary = "time and predictions of SBLRegressor against scikit-learn's ARDRegression"
    how = (
        f"Features from N(0, 1) (*sparse*: one in a hundred is 1, CSR), {INFORMATIVE} of them matter, the "
        "signal has a standard deviation of 9 and the noise of 1, to be learned. `cofem.SBLRegressor()` and "
        "`sklearn.linear_model.ARDRegression()` with their defaults, float64, each fit in a process of its "
        "own after a tiny one. The error is that of predictions of new samples, in percent of the standard "
        "deviation of the signal. The difference, on ARDRegression's own examples and on half of "
        "`load_diabetes`, is the root mean square between both predictions of the training samples, in "
        "percent of the standard deviation of the targets. ARDRegression needs two D x D matrices, and takes "
        "no sparse X."
    )
    setting_columns = ("problem", "N", "D")
    figures = ("difference",)

    def cells(self, options: Options) -> list[Cell]:
        """Every problem, both regressors."""
        settings = [("wide", 1000, D) for D in (1000, 3000, 10_000, VERY_MANY)]
        settings += [("short", 500, 3000), ("tall", 3000, 1000), ("sparse", 5000, 100_000)]
        if options.quick:
            settings = [("wide", 100, 300)]
        settings += [("diabetes", 221, 10), ("polynomials", 110, 10), ("few samples", 100, 100)]
        sweep: list[dict[str, Value]] = [{"problem": name, "N": N, "D": D} for name, N, D in settings]
        return grid(sweep, METHODS, options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit in a fresh process, which the time limit ends."""
        D = int(cell.setting["D"])
        if cell.method == THEIRS:
            if cell.setting["problem"] == "sparse":
                raise Skipped("ARDRegression takes no sparse X")
            free, needed = available_bytes(), 2 * 8.0 * D * D
            if free is not None and needed > free:
                raise Skipped(f"two D x D matrices need {describe_bytes(needed)} of memory")
        skip_if_too_slow(cell, earlier.where(problem=cell.setting["problem"]))
        request = {"setting": dict(cell.setting), "method": cell.method, "seed": cell.seed}
        try:
            return Measurement(**ask_fresh_process(__name__, request, options.time_limit))
        except subprocess.TimeoutExpired:
            return Measurement(seconds=options.time_limit, note=f"{TIME_LIMIT} of {options.time_limit:g} s")

    def report(self, rows: Rows) -> Report:
        """Compare times and errors, and predictions on the examples."""
        lines: list[list[str]] = []
        checks: list[Check] = []
        for problem in rows.values("problem"):
            of_problem = rows.where(problem=problem)
            for D in of_problem.values("D"):
                part = of_problem.where(D=D)
                ours, theirs = part.where(OURS), part.where(THEIRS)
                ratio, difference = paired_ratio(theirs, ours), ours.median("difference")
                line = [problem, str(part.values("N")[0]), str(D)]
                for runs in (ours, theirs):
                    line += [seconds(runs.median_to_target()), number(runs.median("nrmse"), " %")]
                    line.append(number(runs.median("peak_mb"), " MB"))
                lines.append([*line, str(ratio), number(difference, " %")])
                where = f"{problem}, D = {D}"
                if problem in EXAMPLES:
                    what = f"{where}: difference of predictions"
                    text = number(difference, " %")
                    checks.append(at_most(what, difference, EXAMPLES[problem], text, " %"))
                else:
                    if D == VERY_MANY and problem == "wide":
                        error = ours.median("nrmse")
                        what, text = f"{where}: error of SBLRegressor", number(error, " %")
                        checks.append(at_most(what, error, ERROR_OF_VERY_MANY, text, " %"))
                    what = f"{where}: time, ARDRegression / SBLRegressor"
                    checks.append(at_least(what, ratio.value, 1, str(ratio), "x"))
                    share = ours.median("nrmse") / theirs.median("nrmse")
                    what = f"{where}: error, SBLRegressor / ARDRegression"
                    checks.append(at_most(what, share, 1.1, number(share)))
        columns = [f"{name}: {what}" for name in METHODS for what in ("time", "error", "peak")]
        header = ["problem", "N", "D", *columns, "time ratio", "difference"]
        plot = time_plot(rows.where(problem="wide"), "time of a fit, N = 1000")
        return Report([Table("Fits to their end:", header, lines)], checks, plot)


def answer(setting: dict[str, Any], method: str, seed: int) -> Measurement:
    """Fit in this process and measure."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    data = PROBLEMS[setting["problem"]](setting["N"], setting["D"], seed)
    tiny = gaussian(30, 40, 0)
    METHODS[method](0).fit(tiny.X, tiny.y)
    model = METHODS[method](seed)
    reset_peak()
    start = time.perf_counter()
    model.fit(data.X, data.y)
    elapsed = time.perf_counter() - start
    peak = peak_mb()
    error = np.linalg.norm(model.predict(data.X_new) - data.truth)
    difference = math.nan
    if method == OURS and setting["problem"] in EXAMPLES:
        apart = model.predict(data.X) - ARDRegression().fit(data.X, data.y).predict(data.X)
        difference = 100 * float(np.sqrt(np.mean(apart**2)) / np.std(data.y))
    return Measurement(
        seconds=elapsed,
        iterations=model.n_iter_,
        nrmse=100 * float(error / np.linalg.norm(data.truth - data.truth.mean())),
        reached=True,
        peak_mb=peak,
        figures={"difference": difference},
    )


def main() -> None:
    """Answer the request on standard input."""
    json.dump(asdict(answer(**json.load(sys.stdin))), sys.stdout)
