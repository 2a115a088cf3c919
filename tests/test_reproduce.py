"""`cofem reproduce`: every experiment runs, reports whatever came out, and the page says what holds."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cofem.cli import app
from cofem.experiments.reproduce import convergence
from cofem.experiments.reproduce.base import LABELS, ORDER, Estimates, skip_if_a_step_is_too_slow
from cofem.experiments.reproduce.growth import exponent
from cofem.experiments.reproduce.page import write_page
from cofem.experiments.reproduce.registry import EXPERIMENTS, get_experiments
from cofem.experiments.study.base import Options, Skipped, Study, open_results
from cofem.experiments.study.results import Cell, Measurement, Row, Rows
from cofem.experiments.study.runner import Run

QUICK = Options(quick=True, seeds=1, time_limit=60)


class Some(Study):
    """The first cells of an experiment."""

    def __init__(self, inner: Study, count: int) -> None:
        self.inner, self.count = inner, count
        for name in ("name", "summary", "how", "setting_columns", "figures"):
            setattr(self, name, getattr(inner, name))

    def cells(self, options: Options) -> list[Cell]:
        return self.inner.cells(options)[: self.count]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        return self.inner.measure(cell, options, earlier)

    def report(self, rows: Rows):
        return self.inner.report(rows)


#: Experiments that differ from another one in what is plotted, mostly.
LIKE_OTHERS = {"c", "d", "f"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in LIKE_OTHERS else ()) for name in EXPERIMENTS],
)
def test_first_cells_are_measured_and_shown(name: str, tmp_path: Path) -> None:
    experiment = Some(EXPERIMENTS[name], 2)
    Run([experiment], tmp_path, QUICK).go()
    with (tmp_path / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        assert row["reached"] == "True", row["note"]
        assert 0 < float(row["nrmse"]) < 200
        assert float(row["peak_mb"]) > 10
    files = write_page([experiment], tmp_path)
    text = files[-1].read_text()
    assert "data:image/png;base64," in text
    assert (tmp_path / f"figure-{name}.svg").exists()
    for check in experiment.report(open_results(experiment, tmp_path, True).rows).checks:
        assert check.what.split(".")[0][:30].replace(">", "&gt;") in text


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_are_distinct_and_those_of_the_paper(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for options in (QUICK, Options()):
        cells = experiment.cells(options)
        assert len({cell.key for cell in cells}) == len(cells) > 0
        assert all(tuple(cell.setting) == experiment.setting_columns for cell in cells)
        assert {cell.method for cell in cells} <= set(LABELS)
    cells = experiment.cells(Options())
    sizes = {int(cell.setting["D"]) for cell in cells}
    wanted = {
        "a": {1024},
        "b": {2**p for p in range(9, 16)},
        "c": {2**13, 2**15},
        "d": {2**p for p in range(9, 16)},
        "e": {2**15},
        "f": {2**p for p in range(12, 19)},
    }
    assert sizes == wanted.get(name, sizes)
    if name == "a":
        assert {cell.setting["f"] for cell in cells} == set(range(1, 9))
        assert {cell.seed for cell in cells} == set(range(25))
    shifted = experiment.cells(Options(first_seed=100, seeds=2))
    assert {cell.seed for cell in shifted} == {100, 101}


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("note", ["", "failed: ValueError: no", "skipped: no", "time limit of 1 s"])
def test_reports_of_any_outcome(name: str, note: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    figures = dict.fromkeys(experiment.figures, math.nan if note else 1.0)
    measured = Measurement(note=note, figures=figures)
    if not note:
        measured = Measurement(1.0, 2.0, 3.0, 1.0, True, 5.0, figures=figures)
    rows = Rows(Row(cell, measured) for cell in experiment.cells(Options(seeds=1)))
    report = experiment.report(rows)
    assert report.checks
    if note:
        assert not any(check.holds for check in report.checks)
    file = open_results(experiment, tmp_path, False)
    for row in rows:
        file.append(row)
    text = write_page([experiment], tmp_path)[-1].read_text()
    assert (note.split(": ")[-1] in text) or not note
    experiment.report(Rows(rows[:1]))


def test_a_claim_that_fails_is_shown_as_such(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["a"]
    errors = {"em": 1.0, "irls": 1.0, "amp": 3.0, "vi": 1.1, "seq": 1.0, "paper": 1.0, "auto": 1.0}
    rows = Rows(
        Row(cell, Measurement(nrmse=errors[cell.method], reached=True))
        for cell in experiment.cells(Options(seeds=1))
    )
    similar, vi, seq = experiment.report(rows).checks
    assert similar.holds is False
    assert "AMP 3.00x" in similar.measured
    assert vi.holds is False
    assert seq.holds is False
    good = {**errors, "amp": 1.1, "vi": 5.0}
    rows = Rows(
        Row(
            cell,
            Measurement(
                nrmse=good[cell.method] * (3 if cell.method == "seq" and int(cell.setting["f"]) > 4 else 1),
                reached=True,
            ),
        )
        for cell in experiment.cells(Options(seeds=1))
    )
    assert all(check.holds for check in experiment.report(rows).checks)


def test_a_claim_about_two_experiments_is_judged_with_both() -> None:
    def rows(name: str, seconds: float) -> Rows:
        return Rows(
            Row(cell, Measurement(seconds=seconds, reached=True))
            for cell in EXPERIMENTS[name].cells(Options(seeds=1))
        )

    structured = EXPERIMENTS["d"]
    (same,) = structured.compare(rows("d", 1.0), {"b": rows("b", 1.5)})
    (other,) = structured.compare(rows("d", 1.0), {"b": rows("b", 9.0)})
    (alone,) = structured.compare(rows("d", 1.0), {})
    assert (same.holds, other.holds, alone.holds) == (True, False, None)
    assert EXPERIMENTS["b"].compare(rows("b", 1.0), {}) == []


def stopped(seconds: float, applications: float, iterations: float) -> Measurement:
    return Measurement(seconds, applications, iterations, 5.0, False, note="time limit of 10 s")


def test_fits_that_were_stopped_have_an_estimated_time() -> None:
    def row(method: str, D: int, measured: Measurement) -> Row:
        return Row(Cell({"D": D}, method, 0), measured)

    done = Measurement(1.0, 1000.0, 30, 1.0, True)
    rows = Rows(
        [
            row("em", 512, Measurement(1.0, 0.0, 30, 1.0, True)),
            row("em", 1024, stopped(10.0, 0.0, 6)),
            row("paper", 512, done),
            row("paper", 1024, stopped(10.0, 250.0, 15)),
            row("irls", 1024, Measurement(note="failed: MemoryError: too large")),
            row("amp", 1024, stopped(10.0, 20.0, 2)),
        ]
    )
    times = Estimates(rows, 30)
    # Steps of EM cost the same; Algorithm 1 is a quarter through its applications, not half through.
    assert times.seconds("em", 1024) == pytest.approx(50.0)
    assert times.seconds("paper", 1024) == pytest.approx(40.0)
    assert times.seconds("paper", 512) == 1.0
    assert times.text("paper", 1024) == "≈ 40 s (15 steps)"
    assert times.text("irls", 1024) == "failed"
    assert math.isnan(times.seconds("amp", 1024)), "no fit of it came to its end"
    assert times.common(("em", "paper")) == [512, 1024]
    every, estimated = times.series()
    assert every["EM"] == ([512, 1024], [1.0, pytest.approx(50.0)])
    assert estimated["EM"] == ([1024], [pytest.approx(50.0)])
    with pytest.raises(Skipped, match="one step exceeded the time limit at D = 1024"):
        skip_if_a_step_is_too_slow(Cell({"D": 2048}, "em", 0), Rows([row("em", 1024, stopped(10.0, 0.0, 1))]))
    skip_if_a_step_is_too_slow(Cell({"D": 2048}, "em", 0), rows)


def test_times_to_the_target_grow_as_at_smaller_sizes() -> None:
    experiment = EXPERIMENTS["f"]
    rows = Rows()
    for cell in experiment.cells(Options(seeds=1)):
        D = int(cell.setting["D"])
        seconds = 1e-9 * D**2 if cell.method == "seq" else 1e-5 * D
        late = cell.method == "seq" and D > 2**15
        note = "time limit of 2 s" if late and D == 2**16 else "skipped: too slow" if late else ""
        measured = stopped(2.0, 1.0, 1.0) if late else Measurement(seconds, 1.0, 1.0, 1.9, True)
        figures = dict.fromkeys(experiment.figures, 1.0)
        rows.append(Row(cell, dataclasses.replace(measured, note=note, figures=figures)))
    report = experiment.report(rows)
    claim = report.checks[0]
    assert claim.holds is True
    assert f"{1e-4 * 2**18:.2g} at 2^18" in claim.measured
    assert report.tables[0].rows[-1][5] == f"≈ {1e-9 * 2.0**36:.3g} s"
    assert report.plot.hollow["Seq"][0] == [2**16, 2**17, 2**18]


def test_exponents_are_those_of_the_data() -> None:
    rows = Rows(
        Row(Cell({"problem": "dct", "D": D}, "em", 0), Measurement(seconds=1e-9 * D**2.5, reached=True))
        for D in (256, 512, 1024)
    )
    assert exponent(rows, "seconds") == pytest.approx(2.5, abs=1e-6)
    assert math.isnan(exponent(Rows(rows[:1]), "seconds"))


def test_convergence_stops_at_the_time_limit_and_says_so(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["e"]
    convergence._trace.cache_clear()
    options = Options(quick=True, seeds=1, time_limit=0)
    cells = experiment.cells(options)
    first = experiment.measure(cells[0], options, Rows())
    second = experiment.measure(cells[1], options, Rows())
    assert first.reached
    assert np.isfinite(first.nrmse)
    assert second.note.startswith("time limit of 0 s after step 1")
    convergence._trace.cache_clear()


def test_methods_keep_their_colours() -> None:
    assert len(ORDER) == 7
    assert get_experiments("all") == list(EXPERIMENTS.values())
    with pytest.raises(ValueError, match="no experiment is called 'z'"):
        get_experiments("z")


def test_command_line_resumes(tmp_path: Path) -> None:
    cli = CliRunner()
    refused = cli.invoke(app, ["reproduce", "z", "--out", str(tmp_path)])
    assert refused.exit_code == 2
    first = cli.invoke(app, ["reproduce", "e", "--out", str(tmp_path), "--seed", "7"])
    assert first.exit_code == 0, first.output
    before = (tmp_path / "e.csv").read_text()
    assert ",7," in before
    again = cli.invoke(app, ["reproduce", "e", "--out", str(tmp_path), "--seed", "7", "--resume"])
    assert again.exit_code == 0
    assert (tmp_path / "e.csv").read_text() == before
    page = (tmp_path / "report.html").read_text()
    assert "converges at the same rate as EM" in page
    assert "NumPy" in page
