"""Regression on spectra
=====================

Regression on spectra with far more wavelengths than samples.

Task: predict the glucose concentration of a fermentation (g/l) from infrared spectra; 21 calibration samples,
410 wavenumbers from 950 to 1500 per cm after the usual preprocessing (a line through the ends subtracted,
first derivative by Savitzky-Golay, centred).

Data: the fermentation data that ship with chemotools: 21 samples measured off-line with their reference
concentrations, and on-line spectra of a real fermentation with 34 reference measurements, one of which has an
empty spectrum and is left out. On-line spectra differ from off-line ones in their baseline, so the second
error says how a method bears a change of conditions.

Compared with: partial least squares (scikit-learn's ``PLSRegression``), which is what chemometricians use,
``LassoCV``, ``ARDRegression`` and ``BayesianRidge``. The number of PLS components and the Lasso's penalty
come from inner cross-validation on the calibration samples. cofem learns the noise and, with prior="auto",
has its prior chosen by samples that are held out.

Needs: chemotools (for its data; pandas is not needed).
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/spectra_regression.png'

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chemotools.datasets
import numpy as np
from _common import BLUE, GREEN, ORANGE, RED, rmse, save, save_curves, start, table, timed
from matplotlib.figure import Figure
from scipy.signal import savgol_filter
from sklearn.cross_decomposition import PLSRegression
from sklearn.linear_model import ARDRegression, BayesianRidge, LassoCV
from sklearn.model_selection import GridSearchCV, KFold

import cofem

MINUTES_BETWEEN_SPECTRA = 1.25

#: From calibration spectra, their concentrations and new spectra to predictions and standard deviations.
Predictor = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


# %%
# The spectra
# -----------
# Calibration, then a real fermentation.


def load() -> tuple[np.ndarray, ...]:
    """Return calibration spectra and concentrations, then on-line times, spectra and concentrations."""
    folder = Path(chemotools.datasets.__file__).parent / "data"

    def read(name: str) -> np.ndarray:
        return np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1, ndmin=2)

    with open(folder / "train_spectra.csv") as file:
        wavenumbers = np.array(file.readline().split(","), float)
    used = (wavenumbers >= 950) & (wavenumbers <= 1500)
    reference = read("fermentation_hplc")
    online = read("fermentation_spectra")[:, used]
    nearest = np.rint(60 * reference[:, 0] / MINUTES_BETWEEN_SPECTRA).astype(int).clip(max=len(online) - 1)
    spectra = online[nearest]
    filled = np.std(spectra, axis=1) > 0
    return (
        preprocessed(read("train_spectra")[:, used]),
        read("train_hplc")[:, 0],
        reference[filled, 0],
        preprocessed(spectra[filled]),
        reference[filled, 1],
    )


def preprocessed(spectra: np.ndarray) -> np.ndarray:
    """Subtract the line through the ends of each spectrum, then differentiate."""
    position = np.linspace(0, 1, spectra.shape[1])
    line = spectra[:, :1] * (1 - position) + spectra[:, -1:] * position
    return savgol_filter(spectra - line, 15, 2, deriv=1)


# %%
# The methods
# -----------
# All predict a concentration, some with a standard deviation.


def by_estimator(make: Callable[[], Any], scaled: bool = False, with_std: bool = False) -> Predictor:
    """Return the predictor of a scikit-learn estimator; those with a fixed scale want columns scaled."""

    def predict(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        centre, scale = X.mean(axis=0), X.std(axis=0) if scaled else 1.0
        model = make().fit((X - centre) / scale, y)
        if with_std:
            mean, std = model.predict((new - centre) / scale, return_std=True)
            return mean, std
        return model.predict((new - centre) / scale).ravel(), None

    return predict


def by_cofem(prior: Any, **settings: Any) -> Predictor:
    """Return the predictor of cofem with a prior."""

    def predict(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        post = cofem.fit(X - X.mean(axis=0), y - y.mean(), prior=prior, rng=0, **settings)
        mean, std = post.predict(new - X.mean(axis=0), return_std=True)
        return mean + y.mean(), std

    return predict


def tuned_pls() -> GridSearchCV:
    """Return PLS with as many components as cross-validation likes best."""
    folds = KFold(6, shuffle=True, random_state=1)
    choices = {"n_components": list(range(1, 9))}
    return GridSearchCV(PLSRegression(scale=False), choices, cv=folds, scoring="neg_mean_squared_error")


# %%
# How they are judged
# -------------------
# Within the calibration by cross-validation, then on-line.


def cross_validated(
    predictor: Predictor, X: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Predict every calibration sample from the others, in seven parts."""
    mean, std = np.zeros(y.size), np.zeros(y.size)
    known = True
    for train, test in KFold(7, shuffle=True, random_state=0).split(X):
        mean[test], deviation = predictor(X[train], y[train], X[test])
        known = known and deviation is not None
        std[test] = 0 if deviation is None else deviation
    return mean, std if known else None


def coverage(mean: np.ndarray, std: np.ndarray | None, truth: np.ndarray) -> str:
    """Return the part of the true values inside their 95 % intervals."""
    return "" if std is None else f"{np.mean(abs(mean - truth) < 1.96 * std):.0%}"


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out = start(__doc__)
    X, y, hours, spectra, truth = load()
    methods: dict[str, Predictor] = {
        "PLSRegression, tuned": by_estimator(tuned_pls),
        "LassoCV": by_estimator(lambda: LassoCV(cv=6, max_iter=20000), scaled=True),
        "ARDRegression": by_estimator(ARDRegression, scaled=True, with_std=True),
        "BayesianRidge": by_estimator(BayesianRidge, with_std=True),
        "cofem, independent": by_cofem(cofem.Independent()),
        "cofem, Power(2)": by_cofem(cofem.Power(2)),
        'cofem, prior="auto"': by_cofem("auto"),
    }
    rows, online = [], {}
    for name, predictor in methods.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the Lasso's about convergence, in every part
            inner, inner_std = cross_validated(predictor, X, y)
            (mean, std), seconds = timed(predictor, X, y, spectra)
        online[name] = mean, std
        errors = (f"{rmse(inner, y):.2f}", f"{rmse(mean, truth):.1f}")
        covered = (coverage(inner, inner_std, y), coverage(mean, std, truth))
        rows.append((name, *errors, f"{seconds:.2f}", *covered))
    print(f"{cofem.compare(X - X.mean(axis=0), y - y.mean(), rng=0)}\n")

    header = ("method", "RMSE, cross-validated", "RMSE, on-line", "CPU s", "95 % hold, c.-v.", "on-line")
    table(header, rows)

    figure = Figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    left.plot(np.linspace(950, 1500, X.shape[1]), 1000 * X.T, color=BLUE, lw=0.6)
    left.plot(np.linspace(950, 1500, X.shape[1]), 1000 * spectra.T, color=ORANGE, lw=0.6)
    left.plot([], [], color=BLUE, label="calibration, off-line")
    left.plot([], [], color=ORANGE, label="fermentation, on-line")
    left.set(xlabel="wavenumber per cm", ylabel="first derivative x 1000", title="Spectra, preprocessed")
    left.legend(frameon=False)
    right.plot(hours, truth, "k-", lw=3, alpha=0.35, label="reference")
    for name, colour, marker in [
        ("PLSRegression, tuned", GREEN, "s"),
        ("cofem, independent", RED, "^"),
        ('cofem, prior="auto"', BLUE, "o"),
    ]:
        right.plot(hours, online[name][0], marker, ms=4, color=colour, label=name)
    mean, std = online['cofem, prior="auto"']
    right.fill_between(
        hours, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.12, lw=0, label="its 95 % interval"
    )
    right.set(xlabel="time in hours", ylabel="glucose in g/l", title="On-line prediction", ylim=(-60, 130))
    right.legend(frameon=False, ncols=2)
    save(figure, out / "spectra_regression.png", dpi=90)
    save_curves(right, out / "thumbnails/spectra_regression.png", ylim=(-20, 90))


if __name__ == "__main__":
    main()
