"""The benchmark: every one runs and reports, nothing measured is lost, and the problems are as stated."""

from __future__ import annotations

import csv
import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import cofem
from cofem.cli import app
from cofem.experiments import problems
from cofem.experiments.bench import BENCHMARKS, Options, Run, Study, get_benchmarks, write_reports
from cofem.experiments.bench.authors import Authors
from cofem.experiments.bench.dense_time import REFERENCE, SLACK, DenseTime, _passing
from cofem.experiments.bench.profile import timed_products
from cofem.experiments.study.base import Report, Skipped, Table, grid, open_results, sizes
from cofem.experiments.study.measure import timed_fit
from cofem.experiments.study.results import Cell, Measurement, Ratio, Row, Rows, paired_ratio
from cofem.operators import DCT, Mask, Operator

QUICK = Options(quick=True, repeats=1, seeds=1, time_limit=60)


class First(Study):
    """The first cell of another benchmark."""

    def __init__(self, benchmark: Study) -> None:
        self.inner = benchmark
        for name in ("name", "summary", "how", "setting_columns", "figures"):
            setattr(self, name, getattr(benchmark, name))

    def cells(self, options: Options) -> list[Cell]:
        return self.inner.cells(options)[:1]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        return self.inner.measure(cell, options, earlier)

    def report(self, rows: Rows) -> Report:
        return self.inner.report(rows)


class Toy(Study):
    """Counts what is measured; fails, skips and is interrupted on demand."""

    name = "toy"
    summary = "a toy"
    how = "Nothing is measured."
    setting_columns = ("D",)
    figures = ("extra",)

    def __init__(self, trouble: dict[int, BaseException] | None = None) -> None:
        self.trouble = trouble or {}
        self.measured: list[int] = []

    def cells(self, options: Options) -> list[Cell]:
        return grid(sizes(1, 2, 3), ("default",), 1)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        D = int(cell.setting["D"])
        assert len(earlier) == sizes(1, 2, 3).index({"D": D})
        if D in self.trouble:
            raise self.trouble[D]
        self.measured.append(D)
        return Measurement(seconds=D / 3, nrmse=1.5, reached=True, figures={"extra": 7.0})

    def report(self, rows: Rows) -> Report:
        return Report([Table("All:", ["D", "s"], [[str(D), "x"] for D in rows.values("D")])])


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- the registry -----------------------------------------------------------------------------------


#: Benchmarks whose first cell takes seconds.
SLOW = {"endurance", "pictures", "distributed", "regression", "memory"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ()) for name in BENCHMARKS]
)
def test_first_quick_cell_is_measured_and_reported(name: str, tmp_path: Path) -> None:
    benchmark = First(BENCHMARKS[name])
    Run([benchmark], tmp_path, QUICK).go()
    (row,) = read(tmp_path / f"{name}.csv")
    assert row["benchmark"] == name
    assert row["quick"] == "True"
    assert not row["note"].startswith("failed")
    if not row["note"].startswith("skipped"):
        assert row["reached"] == "True"
        assert float(row["seconds"]) > 0
        assert 0 < float(row["nrmse"]) < 100
    write_reports([benchmark], tmp_path)
    text = (tmp_path / f"{name}.md").read_text()
    assert "Quick run" in text
    assert "| --- |" in text
    assert benchmark.summary in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
def test_cells_are_distinct_and_have_the_columns_stated(benchmark: Study) -> None:
    for options in (QUICK, Options()):
        cells = benchmark.cells(options)
        assert len({cell.key for cell in cells}) == len(cells) > 0
        assert all(tuple(cell.setting) == benchmark.setting_columns for cell in cells)


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
@pytest.mark.parametrize("note", ["", "failed: ValueError: no", "skipped: no", "time limit of 1 s"])
def test_reports_of_any_outcome(benchmark: Study, note: str) -> None:
    """Full sweeps that all went well, failed, were skipped or ran out of time; and a first row alone."""
    figures = dict.fromkeys(benchmark.figures, math.nan if note else 1.0)
    measured = Measurement(note=note, figures=figures)
    if not note:
        measured = Measurement(1.0, 2.0, 3.0, 1.0, True, 5.0, figures=figures)
    rows = Rows(Row(cell, measured) for cell in benchmark.cells(Options()))
    report = benchmark.report(rows)
    assert report.checks
    if note:
        assert not any(check.holds for check in report.checks)
    else:
        assert all(check.holds is not None for check in report.checks)
    benchmark.report(Rows(rows[:1]))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no benchmark is called nonsense; there are dct-time"):
        get_benchmarks(["nonsense"])


# --- runs -------------------------------------------------------------------------------------------


def test_resume_measures_only_what_is_missing(tmp_path: Path) -> None:
    stopped = Toy({4: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        Run([stopped], tmp_path, QUICK).go()
    assert [row["D"] for row in read(tmp_path / "toy.csv")] == ["2"]

    resumed = Toy()
    run = Run([resumed], tmp_path, QUICK, resume=True)
    assert run.n_cells == 2
    run.go()
    assert resumed.measured == [4, 8]
    assert [row["D"] for row in read(tmp_path / "toy.csv")] == ["2", "4", "8"]
    assert Run([Toy()], tmp_path, QUICK, resume=True).n_cells == 0


def test_a_new_run_keeps_the_one_before(tmp_path: Path) -> None:
    Run([Toy()], tmp_path, QUICK).go()
    first = (tmp_path / "toy.csv").read_text()
    again = Run([Toy()], tmp_path, QUICK)
    assert again.n_cells == 3
    assert (tmp_path / "toy.csv").read_text() == first  # not before it starts
    again.go()
    assert (tmp_path / "toy.previous.csv").read_text() == first
    assert (tmp_path / "toy.csv").read_text() == first


def test_failures_are_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    toy = Toy({2: ValueError("two\nlines"), 4: Skipped("not here")})
    seen: list[Any] = []
    Run([toy], tmp_path, QUICK).go(after=lambda _, row: seen.append(row.measurement.reached))
    failed, skipped, done = read(tmp_path / "toy.csv")
    assert failed["note"] == "failed: ValueError: two lines"
    assert failed["seconds"] == ""
    assert skipped["note"] == "skipped: not here"
    assert done["reached"] == "True"
    assert seen == [False, False, True]
    write_reports([toy], tmp_path)
    assert "D 2, default, seed 0: failed: ValueError: two lines" in (tmp_path / "toy.md").read_text()


def test_quick_and_full_results_never_mix(tmp_path: Path) -> None:
    Run([Toy()], tmp_path, QUICK).go()
    with pytest.raises(ValueError, match="holds a quick run"):
        Run([Toy()], tmp_path, Options(), resume=True)


def test_files_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.csv").write_text("benchmark,quick,note\ntoy,True,\n")
    with pytest.raises(ValueError, match="not those of this version"):
        open_results(Toy(), tmp_path, quick=True)


def test_results_survive_the_file(tmp_path: Path) -> None:
    benchmark = BENCHMARKS["spgl1"]
    measured = Measurement(1.25, 10.5, 3, 2.125, True, note="a, b")
    row = Row(Cell({"D": 4096, "density": 0.04}, "default", 2), measured)
    open_results(benchmark, tmp_path, quick=False).append(row)
    (back,) = open_results(benchmark, tmp_path, quick=False).rows
    assert back.cell == row.cell
    assert back.measurement.note == "a, b"
    for name in ("seconds", "applications", "iterations", "nrmse", "reached"):
        assert back.measurement[name] == measured[name]


def test_ratios_pair_seeds_and_say_when_they_are_bounds() -> None:
    def rows(method: str, *cells: tuple[float, bool]) -> Rows:
        return Rows(
            Row(Cell({}, method, seed), Measurement(seconds=s, reached=reached))
            for seed, (s, reached) in enumerate(cells)
        )

    fast = rows("fast", (1.0, True), (2.0, True), (4.0, True))
    assert paired_ratio(rows("slow", (10.0, True), (40.0, True), (20.0, True)), fast) == Ratio(10.0)
    assert str(paired_ratio(rows("slow", (100.0, False)), fast)) == "> 100x"
    assert str(paired_ratio(fast, rows("fast", (1.0, False)))) == "not reached"
    assert math.isnan(paired_ratio(rows("slow", (math.nan, False)), fast).value)


def test_command_line(tmp_path: Path) -> None:
    cli = CliRunner()
    listed = cli.invoke(app, ["bench", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in BENCHMARKS)
    refused = cli.invoke(app, ["bench", "nonsense", "--quick", "--out", str(tmp_path)])
    assert refused.exit_code == 2

    done = cli.invoke(app, ["bench", "scaling", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "scaling.png").exists()
    assert (tmp_path / "scaling.svg").exists()
    text = (tmp_path / "README.md").read_text()
    for word in ("cores", "NumPy", cofem.__version__, "threads", "time at D = 2^13 / at 2^12"):
        assert word in text

    for file in ("scaling.md", "README.md", "scaling.png"):
        (tmp_path / file).unlink()
    assert cli.invoke(app, ["bench", "--report", "--out", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "README.md").read_text() == text
    assert (tmp_path / "scaling.png").exists()


# --- measuring --------------------------------------------------------------------------------------


def test_a_fit_stops_at_the_target_and_costs_what_it_cost_by_then() -> None:
    case = problems.dct(1024)
    whole = timed_fit(case, cofem.CoFEM(), seed=0)
    assert whole.reached
    target = 3 * whole.nrmse
    part = timed_fit(case, cofem.CoFEM(), seed=0, target=target)
    assert part.reached
    assert part.nrmse <= target
    assert part.iterations < whole.iterations
    assert part.applications < whole.applications
    missed = timed_fit(case, cofem.CoFEM(), seed=0, target=1e-9, max_iter=2)
    assert not missed.reached
    assert missed.nrmse > 1e-9


def test_time_limit() -> None:
    late = timed_fit(problems.dct(1024), cofem.CoFEM(), seed=0, time_limit=0)
    assert not late.reached
    assert late.iterations == 1
    assert late.note.startswith("time limit")
    assert np.isfinite(late.nrmse)


# --- problems ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "shape", "d"),
    [
        (problems.dct(4096, f=4, density=0.1, dtype=np.float32), (1024, 4096), 410),
        (problems.dct(3000, f=6), (500, 3000), 120),
        (problems.dct2(64, f=4, density=0.04), (1024, 4096), 164),
        (problems.dense(1024, f=4), (256, 1024), 41),
    ],
)
def test_problems_are_as_stated(case: problems.Case, shape: tuple[int, int], d: int) -> None:
    assert case.Phi.shape == shape
    assert np.count_nonzero(case.z) == d
    assert case.noise_std == 0.005
    residual = case.y - cofem.as_operator(case.Phi) @ case.z
    assert np.std(residual) == pytest.approx(0.005, rel=0.15)


def test_problems_have_the_precision_and_the_values_asked_for() -> None:
    assert problems.dct(256, dtype=np.float32).y.dtype == np.float32
    assert set(np.unique(problems.dense(256).z)) == {-1.0, 0.0, 1.0}
    assert np.std(problems.dense(256).Phi) == pytest.approx(1, rel=0.05)
    again, other = problems.dct(256, seed=1), problems.dct(256, seed=2)
    np.testing.assert_array_equal(again.y, problems.dct(256, seed=1).y)
    assert not np.array_equal(again.y, other.y)


@pytest.mark.parametrize("kind", problems.KINDS)
def test_kinds_of_dictionary(kind: str) -> None:
    D, make = problems.KINDS[kind]
    case = make(D // 16, 0)
    Phi = cofem.as_operator(case.Phi)
    assert case.z.shape == (Phi.shape[1],)
    assert Phi.shape[1] == D // 16
    assert np.iscomplexobj(case.y) == Phi.is_complex
    residual = case.y - Phi @ case.z
    assert np.sqrt(np.mean(np.abs(residual) ** 2)) == pytest.approx(0.005, rel=0.4)
    assert case.nrmse(case.z) == 0
    assert case.nrmse(0 * case.z) == pytest.approx(100)
    assert case.nrmse(1.1 * case.z) == pytest.approx(10)


def test_error_is_measured_on_what_the_data_determine() -> None:
    twice = problems.duplicated(128, 0)
    swapped = twice.z.reshape(-1, 2)[:, ::-1].ravel()
    np.testing.assert_allclose(twice.Phi @ swapped, twice.Phi @ twice.z, atol=1e-12)
    assert twice.nrmse(swapped) == pytest.approx(0, abs=1e-9)

    decay = problems.autoregressive(256, 0)
    dense = decay.Phi.to_dense()
    # Two columns that the samples cannot tell apart but for their scale.
    unit = dense / np.linalg.norm(dense, axis=0)
    j = int(np.flatnonzero(np.sum(unit[:, :-1] * unit[:, 1:], axis=0) > 1 - 1e-12)[0])
    moved = decay.z.copy()
    moved[j] += 1.0
    moved[j + 1] -= np.linalg.norm(dense[:, j]) / np.linalg.norm(dense[:, j + 1])
    assert decay.nrmse(moved) == pytest.approx(0, abs=1e-6)


def test_dense_time_takes_the_time_of_irls_from_the_reference_run() -> None:
    study = DenseTime()
    rows: list[Row] = []
    cells = [cell for cell in study.cells(QUICK) if cell.setting["D"] == 256 and cell.method != "em"]
    for cell in cells:
        rows.append(Row(cell, study.measure(cell, QUICK, Rows(rows))))
    found = Rows(rows)
    reference, irls = found.where(REFERENCE)[0].measurement, found.where("irls")[0].measurement
    assert irls.reached
    assert irls.nrmse <= SLACK * reference.nrmse
    assert irls.iterations < reference.iterations
    assert irls.seconds < reference.seconds
    # A process that has not made the reference run measures on its own, and comes as far.
    again = DenseTime().measure(found.where("irls")[0].cell, QUICK, found)
    assert again.iterations == irls.iterations
    assert again.nrmse == pytest.approx(irls.nrmse)


def test_a_reference_run_that_never_passes_the_target_is_skipped() -> None:
    with pytest.raises(Skipped, match="did not pass the target"):
        _passing([(3.0, 0.1, 0.0), (2.0, 0.2, 0.0)], target=1.0)


def test_every_product_is_timed_once_and_the_operators_are_left_as_they_were():
    names = ("forward", "adjoint", "gram", "gradient_step")
    methods, own = [getattr(Operator, name) for name in names], dict(vars(Operator))
    Phi = Mask(np.arange(0, 16, 2), 16) @ DCT(16).T  # a product of two, each with products of its own
    with timed_products() as times:
        Phi.gram(np.ones(16))
        Phi.gradient_step(np.ones(16), 0.5, np.ones(16))
        Phi.forward(np.ones(16))
        with pytest.raises(ValueError, match="8"):
            Phi.adjoint(np.ones(3))
    assert len(times) == 4
    assert min(times) > 0
    assert [getattr(Operator, name) for name in names] == methods
    assert dict(vars(Operator)) == own


#: What the benchmark uses of the authors' code, with another algorithm inside.
OPERATORS = """
class DiscreteCosine1D:
    def __init__(self, length, use_fft):
        assert not use_fft
        self.length = length

class Undersampling:
    def __init__(self, mask, zero_out):
        assert not zero_out
        self.mask = mask

class Sequential:
    def __init__(self, ops, transposed):
        assert transposed == [True, False]
        self.cosines, self.samples = ops

    def __call__(self, x):
        assert x.shape == (self.cosines.length,)
"""
MODEL = """
import cofem, torch
from cofem.operators import DCT, Mask

class SBLModel:
    @classmethod
    def with_cofem(cls, num_iters, noise_precision, num_probes, cg_tol, max_cg_iters, precondition):
        assert (num_probes, cg_tol, max_cg_iters, precondition) == (20, 1e-7, 400, True)
        model = cls()
        model.noise_std = noise_precision**-0.5
        return model

    def fit(self, y, phi, logger):
        assert y.dtype == torch.float32
        mask = phi.samples.mask.numpy()
        found = cofem.fit(Mask(mask) @ DCT(mask.size).T, y.numpy(), noise_std=self.noise_std, rng=0)
        for step, factor in enumerate((0.0, 1.0, 1.0)):
            mean = torch.from_numpy(found.mean) * factor
            logger(step, torch.ones_like(mean), mean, torch.ones_like(mean))
"""


def test_the_authors_code_is_timed_until_it_reaches_the_target(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("torch")
    cell = next(cell for cell in Authors().cells(QUICK) if cell.method == "authors")
    monkeypatch.delenv("COFEM_AUTHORS_CODE", raising=False)
    with pytest.raises(Skipped, match="COFEM_AUTHORS_CODE"):
        Authors().measure(cell, QUICK, Rows())
    monkeypatch.setenv("COFEM_AUTHORS_CODE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(Skipped, match="sblearn"):
        Authors().measure(cell, QUICK, Rows())
    (tmp_path / "sblearn").mkdir()
    (tmp_path / "sblearn" / "operators.py").write_text(OPERATORS)
    (tmp_path / "sblearn" / "model.py").write_text(MODEL)
    importlib.invalidate_caches()
    found = Authors().measure(cell, QUICK, Rows())
    assert found.reached
    assert found.iterations == 2
    assert 0 < found.nrmse <= 2
    assert found.seconds > 0
    late = Authors().measure(cell, replace(QUICK, time_limit=0.0), Rows())
    assert not late.reached
    assert late.note == "time limit of 0 s"
