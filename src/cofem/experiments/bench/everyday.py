"""What fits of everyday sizes cost: noise learned and known, against ARDRegression, and hard dictionaries."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import cofem
from cofem.experiments import problems
from cofem.experiments.problems import Case
from cofem.experiments.study.base import Check, Options, Report, Study, Table, at_most, grid, number, seconds
from cofem.experiments.study.results import Cell, Measurement, Rows, Value
from cofem.operators import Convolution

#: Learned over known noise; time at D over that at 2 D; `SBLRegressor` over `ARDRegression`, and from so many
#: features on.
LEARNED, SHRINKING, SLOWER, FASTER, MANY = 2.5, 1.1, 1.5, 1.0, 200
#: Samples and features.
SHAPES = ("50x20", "100x200", "200x2000", "500x1000", "3000x1000")
#: Fits are repeated for so many seconds, and so often at most; the shortest time counts.
SECONDS, REPEATS = 1.0, 50


def diabetes(seed: int) -> Case:
    """Cubic features of scikit-learn's diabetes data, 353 x 285: ill-conditioned, and no truth is known."""
    from sklearn.datasets import load_diabetes
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    X, y = load_diabetes(return_X_y=True)
    features = PolynomialFeatures(3, include_bias=False).fit_transform(X)
    rows = np.random.default_rng(seed).permutation(len(y))[:353]
    features = StandardScaler().fit_transform(features[rows])
    return Case(features, y[rows] - y[rows].mean(), np.zeros(features.shape[1]), math.nan)


def calcium(seed: int, length: int = 20_000) -> Case:
    """Spikes that decay, as in calcium imaging."""
    rng = np.random.default_rng(seed)
    z = rng.poisson(0.03, length).astype(float)
    Phi = Convolution(0.95 ** np.arange(100), (length,), causal=True)
    return Case(Phi, Phi @ z + 0.1 * rng.standard_normal(length), z, 0.1)


def cosines(seed: int) -> Case:
    """Four tones at 369 irregular times, in 2104 cosines and sines of four times too many frequencies."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 1, 369))
    phases = 2 * np.pi * np.outer(times, np.arange(1052) / 4)
    z = np.zeros(2104)
    z[rng.choice(np.arange(4, 2104), 4, replace=False)] = (1.0, 0.5, 0.7, 0.3)
    Phi = np.concatenate([np.cos(phases), np.sin(phases)], axis=1)
    return Case(Phi, Phi @ z + 0.1 * rng.standard_normal(369), z, 0.1)


def features(n_rows: int, n_columns: int, seed: int) -> Case:
    """Independent features, of which few count."""
    rng = np.random.default_rng(seed)
    z = np.zeros(n_columns)
    z[rng.choice(n_columns, 5, replace=False)] = 2 * rng.standard_normal(5)
    Phi = rng.standard_normal((n_rows, n_columns))
    return Case(Phi, Phi @ z + 0.5 * rng.standard_normal(n_rows), z, 0.5)


#: Problems with the seconds that a fit with a learned noise may take.
HARD: dict[str, tuple[Callable[[int], Case], float]] = {
    "diabetes": (diabetes, 1.0),
    "calcium": (calcium, 5.0),
    "cosines": (cosines, 3.0),
    "100 x 20000": (lambda seed: features(100, 20_000, seed), 4.0),
    "20 x 10, one step": (lambda seed: features(20, 10, seed), 0.002),
    "20 x 10": (lambda seed: features(20, 10, seed), 0.002),
}


class Everyday(Study):
    """CPU time of fits of everyday sizes."""

    name = "everyday"
    summary = "CPU time on everyday sizes: noise learned and known, against ARDRegression, hard dictionaries"
    how = (
        "`cofem.fit` with nothing but dictionary and data (*learned*), and with the true noise (*known*); "
        "dense and DCT: N = D/4, 0.04 D non-zeros, noise 0.01, float64. Features: five of them count, "
        "noise 0.5. CPU time of the process; fits are repeated for a second, and the shortest time counts. "
        "Set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1. *20 x 10* has the noise given; "
        "of one step, it is what a fit costs beside its steps."
    )
    setting_columns = ("problem", "size")
    figures = ("noise_ratio",)

    def cells(self, options: Options) -> list[Cell]:
        """Sizes that double, shapes and hard dictionaries."""
        quick, count = options.quick, 1 if options.quick else options.repeats
        sweep: list[dict[str, Value]] = []
        for kind, last in (("dct", 20), ("dense", 13)):
            sweep += [{"problem": kind, "size": 2**k} for k in (range(6, 9) if quick else range(6, last + 1))]
        cells = grid(sweep, ("known", "learned"), count, options.first_seed)
        shapes: list[dict[str, Value]] = [
            {"problem": "features", "size": size} for size in SHAPES[: 2 if quick else None]
        ]
        cells += grid(shapes, ("SBLRegressor", "ARDRegression"), count, options.first_seed)
        hard: list[dict[str, Value]] = [{"problem": name, "size": 0} for name in HARD]
        methods = ("learned",)
        return cells + grid(hard[-1:] if quick else hard, methods, count, options.first_seed)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit, a few times if that is short."""
        name, size = str(cell.setting["problem"]), cell.setting["size"]
        if name == "features":
            n_rows, n_columns = (int(part) for part in str(size).split("x"))
            case = features(n_rows, n_columns, cell.seed)
        elif name in HARD:
            case = HARD[name][0](cell.seed)
        else:
            case = getattr(problems, name)(int(size), f=4, sigma=0.01, seed=cell.seed)
        (mean, noise_std), shortest = (case.z, math.nan), math.inf
        begun = time.process_time()
        for _ in range(REPEATS):
            start = time.process_time()
            mean, noise_std = _fit(case, name, cell)
            shortest = min(shortest, time.process_time() - start)
            if time.process_time() - begun > SECONDS:
                break
        known = np.any(case.z)
        return Measurement(
            seconds=shortest,
            nrmse=case.nrmse(mean) if known else math.nan,
            reached=True,
            figures={"noise_ratio": noise_std / case.noise_std},
        )

    def report(self, rows: Rows) -> Report:
        """Compare what belongs together."""
        lines: list[list[str]] = []
        checks: list[Check] = []
        for kind in ("dct", "dense"):
            part = rows.where(problem=kind)
            for D in part.values("size"):
                known, learned = (part.where(way, size=D).median("seconds") for way in ("known", "learned"))
                ratio = part.where("learned", size=D).median("noise_ratio")
                lines.append([f"{kind}, D = {D}", seconds(known), seconds(learned), number(ratio)])
                if D >= 2**8 and not (kind == "dct" and D > 2**18):
                    what, times = f"{kind}, D = {D}: learned / known noise", learned / known
                    checks.append(at_most(what, times, LEARNED, number(times, "x"), "x"))
                for way, here in (("known", known), ("learned", learned)):
                    twice = part.where(way, size=2 * D)
                    if twice:
                        what, times = (
                            f"{kind}, {way}: time at D = {D} / at {2 * D}",
                            here / twice.median("seconds"),
                        )
                        checks.append(at_most(what, times, SHRINKING, number(times, "x"), "x"))
        part = rows.where(problem="features")
        for size in part.values("size"):
            names = ("ARDRegression", "SBLRegressor")
            theirs, ours = (part.where(name, size=size).median("seconds") for name in names)
            ratio = part.where("SBLRegressor", size=size).median("noise_ratio")
            lines.append([f"features, {size}", f"{seconds(theirs)} (ARD)", seconds(ours), number(ratio)])
            most = FASTER if int(str(size).split("x")[1]) >= MANY else SLOWER
            what, times = f"{size}: SBLRegressor / ARDRegression", ours / theirs
            checks.append(at_most(what, times, most, number(times, "x"), "x"))
        for name, (_, limit) in HARD.items():
            part = rows.where("learned", problem=name)
            if part:
                took, ratio = part.median("seconds"), part.median("noise_ratio")
                lines.append([name, "–", seconds(took), number(ratio)])
                checks.append(at_most(f"{name}: CPU time", took, limit, seconds(took), " s"))
        header = ["problem", "known noise", "learned noise", "learned / true noise"]
        return Report([Table("CPU time:", header, lines)], checks)


def _fit(case: Case, name: str, cell: Cell) -> tuple[np.ndarray, float]:
    """Fit once, and return the mean and the noise."""
    from sklearn.linear_model import ARDRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if cell.method == "ARDRegression":
            found = ARDRegression().fit(case.Phi, case.y)
            return found.coef_, float(found.alpha_) ** -0.5
        if cell.method == "SBLRegressor" or name == "diabetes":
            model = cofem.SBLRegressor(random_state=cell.seed).fit(case.Phi, case.y)
            return model.coef_, float(model.posterior_.noise_std)
        settings: dict[str, Any] = {"nonnegative": True} if name == "calcium" else {}
        if cell.method == "known" or name.startswith("20 x 10"):
            settings["noise_std"] = case.noise_std
        if name == "20 x 10, one step":
            settings["max_iter"] = 1
        post = cofem.fit(case.Phi, case.y, rng=cell.seed, **settings)
    return post.mean, float(post.noise_std)
