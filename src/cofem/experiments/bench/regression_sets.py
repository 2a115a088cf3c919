"""`SBLRegressor(prior="auto")` against scikit-learn's regressors, on the data sets that ship with it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.linear_model import ARDRegression, BayesianRidge, LassoCV
from sklearn.model_selection import KFold

from cofem.estimators import SBLRegressor
from cofem.experiments.study.base import Options, Report, Study, Table, at_most, grid, number
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

OURS, DEFAULT = "auto prior", "default prior"
METHODS: dict[str, Callable[[int], Any]] = {
    OURS: lambda seed: SBLRegressor(prior="auto", random_state=seed),
    DEFAULT: lambda seed: SBLRegressor(random_state=seed),
    "ARDRegression": lambda seed: ARDRegression(),
    "BayesianRidge": lambda seed: BayesianRidge(),
    "LassoCV": lambda seed: LassoCV(),
}
#: Samples of the drawn sets, and the error wanted, relative to that of scikit-learn's best.
DRAWN, WANTED = 200, 1.02


def powers(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return data with the squares and cubes of the features beside them."""
    return np.hstack([X, X**2, X**3]), y


SETS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "diabetes, squares and cubes": lambda: powers(*datasets.load_diabetes(return_X_y=True)),
    "linnerud": lambda: datasets.load_linnerud(return_X_y=True),
    "friedman 1": lambda: datasets.make_friedman1(DRAWN, noise=1.0, random_state=0),
    "friedman 2": lambda: datasets.make_friedman2(DRAWN, noise=1.0, random_state=0),
    "friedman 3": lambda: datasets.make_friedman3(DRAWN, noise=0.1, random_state=0),
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
}


class RegressionSets(Study):
    """Errors of predictions in five parts of eight data sets."""

    name = "regression-sets"
    summary = 'errors of SBLRegressor(prior="auto") and scikit-learn\'s regressors on its own data sets'
    how = (
        "Five parts in turn are predicted from the rest, split anew for each seed. The error is the root "
        "mean square of all predictions, in percent of the standard deviation of the target; of several "
        "targets (linnerud), over all of them. Friedman's sets have 200 samples and noise of 1, 1 and 0.1; "
        "digits and breast cancer have their labels as numbers. All with their defaults."
    )
    setting_columns = ("set",)

    def cells(self, options: Options) -> list[Cell]:
        """Every set, all regressors."""
        names = ("friedman 1", "linnerud") if options.quick else tuple(SETS)
        sweep: list[dict[str, Value]] = [{"set": name} for name in names]
        return grid(sweep, METHODS, options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Predict every part from the others."""
        X, y = SETS[str(cell.setting["set"])]()
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        errors, start = [], time.process_time()
        for train, test in KFold(5, shuffle=True, random_state=cell.seed).split(X):
            for target in targets.T:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about steps that ran out, theirs and ours
                    model = METHODS[cell.method](cell.seed).fit(X[train], target[train])
                errors.append(np.mean((model.predict(X[test]) - target[test]) ** 2) / np.var(target))
        elapsed = time.process_time() - start
        return Measurement(seconds=elapsed, nrmse=100 * float(np.mean(errors)) ** 0.5, reached=True)

    def report(self, rows: Rows) -> Report:
        """Compare with the best of scikit-learn's."""
        lines, checks = [], []
        for name in rows.values("set"):
            part = rows.where(set=name)
            error = {method: part.where(method).median("nrmse") for method in METHODS}
            best = min(value for method, value in error.items() if method not in (OURS, DEFAULT))
            lines.append([name, *(number(value, " %") for value in error.values())])
            ratio = error[OURS] / best
            checks.append(
                at_most(f"{name}: error, auto / best of scikit-learn's", ratio, WANTED, number(ratio))
            )
        header = ["set", 'SBLRegressor(prior="auto")', "SBLRegressor()", *list(METHODS)[2:]]
        return Report([Table("Median errors:", header, lines)], checks)
