"""A study that is stopped in the middle of a fit goes on from there: same figures, time carried on."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import cofem
from cofem.experiments import problems
from cofem.experiments.reproduce import convergence
from cofem.experiments.reproduce.registry import EXPERIMENTS
from cofem.experiments.study import fresh, measure
from cofem.experiments.study.base import Options, Study
from cofem.experiments.study.measure import timed_fit, traced_fit
from cofem.experiments.study.results import Cell
from cofem.experiments.study.runner import Run
from cofem.inference import checkpoint
from cofem.inference.checkpoint import keeper, store

QUICK = Options(quick=True, seeds=1, time_limit=60)
#: The step in which the fit is stopped.
STEP = 7


class Interrupting:
    """Presses Ctrl-C in step `STEP` of the fits that are watched, once, and notes the steps seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed = False
        self.seen: list[int] = []
        original = measure.Watch.__call__

        def call(watch, snapshot):
            answer = original(watch, snapshot)
            self.seen.append(snapshot.iteration)
            if self.armed and snapshot.iteration == STEP:
                self.armed = False
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(measure.Watch, "__call__", call)


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Interrupting:
    return Interrupting(monkeypatch)


def one_cell(study: Study, method: str, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Reduce a study to one cell, or to those of one fit."""
    cells = [cell for cell in study.cells(QUICK) if cell.method == method]
    first = cells[0]
    cells = [cell for cell in cells if cell.setting["D"] == first.setting["D"]]
    kept: list[Cell] = cells if "iteration" in study.setting_columns else cells[:1]
    monkeypatch.setattr(type(study), "cells", lambda self, options: kept)
    return study


def read(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "method"), [("a", "irls"), ("a", "amp"), ("e", "default")])
def test_an_interrupted_cell_goes_on_to_the_same_figures(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupting: Interrupting
) -> None:
    study = one_cell(EXPERIMENTS[name], method, monkeypatch)
    convergence._trace.cache_clear()
    Run([study], tmp_path / "whole", QUICK).go()
    assert not (tmp_path / "whole" / f"{name}.checkpoints").exists()

    convergence._trace.cache_clear()
    folder = tmp_path / "broken"
    interrupting.armed = True
    with pytest.raises(KeyboardInterrupt):
        Run([study], folder, QUICK).go()
    (file,) = (folder / f"{name}.checkpoints").glob("*.npz")
    record = checkpoint.read(file)["current"][2]
    assert record.iteration == STEP - 1

    interrupting.seen.clear()
    # What was spent before must count: more than all the rest could take.
    longer = dataclasses.replace(record, elapsed=1000.0)
    store.write(file, checkpoint.read(file) | {"current": (*checkpoint.read(file)["current"][:2], longer)})
    patient = dataclasses.replace(QUICK, time_limit=1e6)
    Run([study], folder, patient, resume=True).go()
    assert interrupting.seen[0] == STEP
    whole, broken = read(tmp_path / "whole", name), read(folder, name)
    assert len(whole) == len(broken) > 0
    for one, other in zip(whole, broken, strict=True):
        for column in one.keys() - {"seconds", "peak_mb"}:
            assert one[column] == other[column], column
    assert float(broken[-1]["seconds"]) > 1000 > float(whole[-1]["seconds"])
    assert not (folder / f"{name}.checkpoints").exists()


def test_a_new_run_starts_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupting: Interrupting
) -> None:
    study = one_cell(EXPERIMENTS["a"], "amp", monkeypatch)
    interrupting.armed = True
    with pytest.raises(KeyboardInterrupt):
        Run([study], tmp_path, QUICK).go()
    interrupting.seen.clear()
    Run([study], tmp_path, QUICK).go()
    assert interrupting.seen[0] == 1


def test_a_fit_in_a_fresh_process_goes_on(tmp_path: Path, interrupting: Interrupting) -> None:
    request = fresh.Request("dct", {"D": 256}, "default", 0, checkpoints=str(tmp_path / "kept"))
    whole = fresh.answer(dataclasses.replace(request, checkpoints=None))
    interrupting.armed = True
    with pytest.raises(KeyboardInterrupt):
        fresh.answer(request)
    (file,) = (tmp_path / "kept").iterdir()
    contents = checkpoint.read(file)
    late = dataclasses.replace(contents["current"][2], elapsed=1000.0)
    store.write(file, contents | {"current": (*contents["current"][:2], late)})
    resumed = fresh.fit_in_fresh_process(request)
    assert (resumed.nrmse, resumed.iterations, resumed.applications) == (
        whole.nrmse,
        whole.iterations,
        whole.applications,
    )
    assert resumed.seconds > 1000
    assert not list((tmp_path / "kept").iterdir())


def test_short_fits_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    original = store.write

    def write(path, contents):
        written.append(path)
        original(path, contents)

    monkeypatch.setattr(keeper, "write", write)
    case = problems.dct(256)
    timed_fit(case, cofem.CoFEM(), seed=0, checkpoints=tmp_path)
    assert not written
    monkeypatch.setattr(measure, "CHECKPOINT_EVERY", 0.0)  # now every fit is a long one
    timed_fit(case, cofem.CoFEM(), seed=0, checkpoints=tmp_path)
    assert written
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["checkpoint", "errors"])
def test_what_cannot_be_read_is_measured_anew(
    damage: str, tmp_path: Path, interrupting: Interrupting
) -> None:
    case = problems.dct(256)
    whole = traced_fit(case, cofem.CoFEM(), seed=0, steps=10)
    interrupting.armed = True
    with pytest.raises(KeyboardInterrupt):
        traced_fit(case, cofem.CoFEM(), seed=0, steps=10, checkpoints=tmp_path)
    (file,) = tmp_path.glob("*.npz" if damage == "checkpoint" else "*.jsonl")
    file.write_bytes(file.read_bytes()[:100])
    interrupting.seen.clear()
    again = traced_fit(case, cofem.CoFEM(), seed=0, steps=10, checkpoints=tmp_path)
    assert interrupting.seen[0] == 1
    np.testing.assert_array_equal([row.nrmse for row in again], [row.nrmse for row in whole])


def test_a_cell_that_fails_leaves_no_checkpoint(tmp_path: Path) -> None:
    case = problems.dct(256)
    broken = dataclasses.replace(case, y=np.full_like(case.y, np.nan))
    with pytest.raises(ValueError, match="y "):
        timed_fit(broken, cofem.CoFEM(), seed=0, checkpoints=tmp_path)
    assert not list(tmp_path.iterdir())
