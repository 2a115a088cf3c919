"""The long run notices what it is for: growth, drift, and files or threads left behind."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cofem.experiments.bench import Options
from cofem.experiments.bench import endurance as module
from cofem.experiments.bench.endurance import KINDS, Endurance, Fitted, line, run
from cofem.experiments.study.base import Skipped
from cofem.experiments.study.memory import open_files, threads
from cofem.experiments.study.results import Cell, Measurement, Row, Rows
from cofem.inference.registry import METHODS


def rows(slope: float = 0.0, noise: float = 0.1, same: int = 50, files: int = 0) -> Rows:
    """Half an hour in sixty parts, 400 MB and `slope` MB an hour, `files` left open in every part."""
    rng = np.random.default_rng(0)
    found = Rows()
    for cell in Endurance().cells(Options()):
        minutes = 0.5 * int(cell.setting["part"])
        memory = 400 + slope * minutes / 60 + noise * rng.standard_normal()
        figures = {"at_minutes": minutes, "rounds": 2, "fits": 50, "same": same, "resident_mb": memory}
        figures |= {"open_files": 5 + files * int(cell.setting["part"]), "threads": 1}
        found.append(Row(cell, Measurement(seconds=5.0, nrmse=1.0, reached=True, figures=figures)))
    return found


def verdicts(found: Rows) -> list[bool | None]:
    return [check.holds for check in Endurance().report(found).checks]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (rows(), [True, True, True]),
        (rows(same=49), [False, True, True]),
        (rows(slope=40.0), [True, False, True]),  # 20 MB, 5 %
        (rows(slope=4.0), [True, True, True]),  # 2 MB, 0.5 %: certain, but small
        (rows(slope=12.0, noise=50.0), [True, True, True]),  # more, but not to be told from none
        (rows(files=1), [True, True, False]),
        (Rows(), [None, None, None]),
    ],
)
def test_targets_hold_where_they_should(found: Rows, expected: list[bool | None]) -> None:
    assert verdicts(found) == expected


def test_report_gives_the_slope_and_the_totals() -> None:
    report = Endurance().report(rows(slope=40.0, noise=1.0))
    rounds, fits, same, growth = report.tables[0].rows[0]
    assert (rounds, fits, same) == ("120", "3000", "3000")
    slope, error = growth.removesuffix(" MB / hour").split(" ± ")
    assert abs(float(slope) - 40) < 4 * float(error) < 10


def test_standard_error_of_the_slope_is_honest() -> None:
    rng = np.random.default_rng(1)
    x = np.linspace(0, 1, 30)
    found = [line(x, 3 * x + rng.standard_normal(30)) for _ in range(400)]
    z = [(slope - 3) / error for slope, error in found]
    assert np.std(z) == pytest.approx(1, abs=0.15)
    assert math.isnan(line(x[:2], x[:2])[0])


def test_a_run_tells_drift_and_what_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def drifting(D: int) -> Fitted:
        calls.append(D)
        return Fitted([np.array([1.0 + (len(calls) > 3)])], nrmse=2.0)

    monkeypatch.setattr(
        module, "KINDS", {"steady": lambda D: Fitted([np.ones(2)], 1.0), "drifting": drifting}
    )
    windows = run(0.0, 4, 64, ["steady", "drifting"], warm_up_rounds=1)
    assert [window.rounds for window in windows] == [1, 1, 1, 1]
    assert [window.same for window in windows] == [2, 2, 1, 1]
    assert [window.differing for window in windows] == [(), (), ("drifting",), ("drifting",)]
    assert all(window.resident_mb > 10 and window.nrmse == 1.5 for window in windows)


def test_kinds_repeat_bit_for_bit_and_differ_from_each_other() -> None:
    names = ["em", "SBLRegressor", "Ctrl-C", "checkpoint, resume, save, load"]
    first = {name: KINDS[name](64).fingerprint for name in names}
    assert {name: KINDS[name](64).fingerprint for name in names} == first
    assert len(set(first.values())) == len(names)


def test_a_run_that_failed_is_not_tried_again_for_every_part() -> None:
    failed = Rows([Row(Cell({"minutes": 1.0, "part": 1}, "all kinds", 0), Measurement(note="failed: no"))])
    with pytest.raises(Skipped, match="the run failed"):
        Endurance().measure(Cell({"minutes": 1.0, "part": 2}, "all kinds", 0), Options(), failed)


def test_open_files_and_threads_are_counted(tmp_path) -> None:
    before = open_files()
    with (tmp_path / "one").open("w"), (tmp_path / "two").open("w"):
        assert open_files() == before + 2
    assert open_files() == before
    assert threads() >= 1


def test_every_method_takes_part() -> None:
    for name in METHODS:
        assert any(kind.split(",")[0] == name for kind in KINDS), name
