"""What a prior gains on data that have its structure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import cofem
from cofem.experiments.problems import Case
from cofem.experiments.study.base import Options, Report, Study, Table, at_most, grid, number
from cofem.experiments.study.measure import timed_fit
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows, Value
from cofem.operators import DCT, FFT, Mask, Operator

SIGMA = 0.002
#: NRMSE in percent that counts as recovered.
RECOVERED = 2.0


@dataclass(frozen=True)
class Structure:
    """Data with a structure, and the settings of a fit that knows it."""

    #: Makes a problem of D, the undersampling and a generator.
    make: Callable[[int, float, np.random.Generator], Case]
    settings: dict[str, Any]
    #: Turns the problem into the one that a fit without the structure gets.
    plain: Callable[[Case], Case] | None = None


def _samples(D: int, f: float, rng: np.random.Generator) -> Operator:
    return Mask(np.sort(rng.choice(D, round(D / f), replace=False)), D) @ DCT(D).T


def _observed(Phi: Operator, z: np.ndarray, rng: np.random.Generator) -> Case:
    clean = Phi @ z
    noise = rng.standard_normal(clean.shape)
    if np.iscomplexobj(clean):
        noise = (noise + 1j * rng.standard_normal(clean.shape)) / np.sqrt(2)
    return Case(Phi, clean + SIGMA * noise, z, SIGMA)


def tasks(D: int, f: float, rng: np.random.Generator) -> Case:
    """Four signals with their 0.04 D non-zeros at the same places."""
    z = np.zeros((D, 4))
    where = rng.choice(D, round(0.04 * D), replace=False)
    z[where] = rng.standard_normal((where.size, 4))
    return _observed(_samples(D, f, rng), z, rng)


def blocks(D: int, f: float, rng: np.random.Generator) -> Case:
    """0.04 D non-zeros in blocks of 8 whose edges are known."""
    z = np.zeros(D)
    where = rng.choice(D // 8, round(0.04 * D / 8), replace=False)[:, None] * 8 + np.arange(8)
    z[where.ravel()] = rng.standard_normal(where.size)
    return _observed(_samples(D, f, rng), z, rng)


def tasks_of_blocks(D: int, f: float, rng: np.random.Generator) -> Case:
    """Four signals with their 0.04 D non-zeros in the same blocks of 8, whose edges are known."""
    z = np.zeros((D, 4))
    where = rng.choice(D // 8, round(0.04 * D / 8), replace=False)[:, None] * 8 + np.arange(8)
    z[where.ravel()] = rng.standard_normal((where.size, 4))
    return _observed(_samples(D, f, rng), z, rng)


def clusters(D: int, f: float, rng: np.random.Generator) -> Case:
    """0.04 D non-zeros in runs of 4 to 12, anywhere."""
    z = np.zeros(D)
    while np.count_nonzero(z) < 0.04 * D:
        length, start = int(rng.integers(4, 13)), int(rng.integers(0, D - 12))
        z[start : start + length] = rng.standard_normal(length)
    return _observed(_samples(D, f, rng), z, rng)


def positive(D: int, f: float, rng: np.random.Generator) -> Case:
    """0.04 D non-zeros, none of them negative."""
    z = np.zeros(D)
    where = rng.choice(D, round(0.04 * D), replace=False)
    z[where] = np.abs(rng.standard_normal(where.size))
    return _observed(_samples(D, f, rng), z, rng)


def few(D: int, f: float, rng: np.random.Generator) -> Case:
    """0.04 D non-zeros of any sign, and nothing else to know: `cofem.Sparser` against the default."""
    z = np.zeros(D)
    where = rng.choice(D, round(0.04 * D), replace=False)
    z[where] = rng.standard_normal(where.size)
    return _observed(_samples(D, f, rng), z, rng)


def complex_spikes(D: int, f: float, rng: np.random.Generator) -> Case:
    """0.04 D complex spikes of an image whose 2-D Fourier transform is sampled."""
    side = math.isqrt(D)
    z = np.zeros(D, complex)
    where = rng.choice(D, round(0.04 * D), replace=False)
    z[where] = (rng.standard_normal(where.size) + 1j * rng.standard_normal(where.size)) / np.sqrt(2)
    rows = np.sort(rng.choice(D, round(D / f), replace=False))
    return _observed(Mask(rows, (side, side)) @ FFT((side, side)), z, rng)


class RealParts(Operator):
    """A complex operator as a real one: real parts first, imaginary parts after them."""

    def __init__(self, inner: Operator) -> None:
        super().__init__((2 * inner.shape[0], 2 * inner.shape[1]), facts=inner.facts)
        self.inner = inner

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return _parts(self.inner._forward(_whole(x)))

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return _parts(self.inner._adjoint(_whole(y)))


def _parts(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x.real, x.imag], axis=-1)


def _whole(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def as_real(case: Case) -> Case:
    """Return a complex problem with real and imaginary parts as coefficients of their own."""
    return Case(RealParts(case.Phi), _parts(case.y), _parts(case.z), case.noise_std / np.sqrt(2))


STRUCTURES = {
    "4 tasks": Structure(tasks, {"prior": cofem.MultiTask()}),
    "blocks of 8": Structure(blocks, {"prior": cofem.Block(8)}),
    "4 tasks of blocks": Structure(tasks_of_blocks, {"prior": cofem.MultiTask(cofem.Block(8))}),
    "clusters": Structure(clusters, {"prior": cofem.PatternCoupled(1.0)}),
    "non-negative": Structure(positive, {"nonnegative": True}),
    "complex": Structure(complex_spikes, {}, as_real),
    "few": Structure(few, {"prior": cofem.Sparser(3)}),
}


class Priors(Study):
    """Error with and without the structure, over the undersampling."""

    name = "priors"
    summary = "the error with a prior that knows the structure of the data, and without"
    how = (
        "D = 2^16, 0.04 D non-zeros from N(0, 1) with a structure, DCT samples (complex: 2-D FFT samples), "
        f"noise {SIGMA:g} known, float64, `cofem.CoFEM()`. Without the structure, tasks are fitted each by "
        "itself, and real and imaginary parts of complex coefficients are coefficients of their own. "
        f"*Data for {RECOVERED:g} %* is the smallest N of the sweep with which the median NRMSE is below."
    )
    setting_columns = ("structure", "D", "f")

    def cells(self, options: Options) -> list[Cell]:
        """Every structure and undersampling, with and without."""
        D, factors = (2**10, (4, 6)) if options.quick else (2**16, (4, 5, 6, 7, 8, 9, 10, 12, 14))
        sweep: list[dict[str, Value]] = [
            {"structure": structure, "D": D, "f": f} for structure in STRUCTURES for f in factors
        ]
        return grid(sweep, ("with", "without"), options.seeds or 1, options.first_seed)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit to the end."""
        structure = STRUCTURES[str(cell.setting["structure"])]
        rng = np.random.default_rng(cell.seed)
        case = structure.make(int(cell.setting["D"]), float(cell.setting["f"]), rng)
        settings = structure.settings if cell.method == "with" else {}
        if cell.method == "without" and structure.plain is not None:
            case = structure.plain(case)
        return timed_fit(
            case,
            cofem.CoFEM(),
            seed=cell.seed,
            time_limit=options.time_limit,
            max_iter=200,
            **settings,
        )

    def report(self, rows: Rows) -> Report:
        """Give errors over the undersampling, and the data needed."""
        factors = rows.values("f")
        lines, checks = [], []
        series: dict[str, tuple[list[float], list[float]]] = {}
        for structure in rows.values("structure"):
            part = rows.where(structure=structure)
            D = part.values("D")[0]
            needed = {}
            for method in ("with", "without"):
                errors = {f: part.where(method, f=f).median("nrmse") for f in factors}
                good = [f for f, error in errors.items() if error <= RECOVERED]
                needed[method] = D / max(good) if good else math.inf
                texts = [number(error, " %") for error in errors.values()]
                need = f"{needed[method]:.0f}" if good else "more than all"
                lines.append([structure, method, *texts, need])
                known = [(f, error) for f, error in errors.items() if not math.isnan(error)]
                if method == "with" and known:
                    series[structure] = ([f for f, _ in known], [error for _, error in known])
            ratio = needed["with"] / needed["without"] if math.isfinite(needed["with"]) else math.nan
            text = f"{needed['with']:.0f} against " + (
                f"{needed['without']:.0f}" if math.isfinite(needed["without"]) else "more than all"
            )
            what = f"{structure}: data for {RECOVERED:g} %, with / without"
            checks.append(at_most(what, ratio, 1.0, text))
        header = ["structure", "prior", *(f"f = {f}" for f in factors), f"data for {RECOVERED:g} %"]
        plot = Plot(series, "f = D / N", "NRMSE, %", "with the structure known", log_x=False, level=RECOVERED)
        return Report([Table("Median NRMSE:", header, lines)], checks, plot)
