"""Run benchmarks cell by cell; every cell is on disk as soon as it is done."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from cofem.experiments.study.base import Options, Skipped, Study, open_results, result_path
from cofem.experiments.study.machine import forget_machines, remember_machine
from cofem.experiments.study.results import FAILED, SKIPPED, Cell, Measurement, ResultFile, Row, is_quick

#: Called with a cell before it is measured and, with its row, after.
Before = Callable[[Study, Cell], None]
After = Callable[[Study, Row], None]


class Run:
    """A run of some benchmarks into a folder.

    Parameters
    ----------
    benchmarks : sequence of Study
        What to run.
    folder : Path
        Where the results go.
    options : Options
        How much to measure.
    resume : bool
        Keep what is there and measure what is missing; a fit that was interrupted goes on from its
        checkpoint, if the study keeps one. Otherwise results that are there are set aside.
    """

    def __init__(
        self, benchmarks: Sequence[Study], folder: Path, options: Options, resume: bool = False
    ) -> None:
        self.options = options
        self.folder = folder
        self.resume = resume
        self._plan: list[tuple[Study, list[Cell]]] = []
        for benchmark in benchmarks:
            path = result_path(benchmark, folder)
            if path.exists() and is_quick(path) != options.quick:
                kind = "full" if options.quick else "quick"
                raise ValueError(f"{path} holds a {kind} run; choose another folder")
            cells = benchmark.cells(options)
            if resume:
                cells = open_results(benchmark, folder, options.quick).missing(cells)
            self._plan.append((benchmark, cells))

    @property
    def n_cells(self) -> int:
        """Number of cells to measure."""
        return sum(len(cells) for _, cells in self._plan)

    def go(self, before: Before | None = None, after: After | None = None) -> None:
        """Measure every cell. One that fails is recorded with the reason, and the rest goes on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for benchmark, cells in self._plan:
            # Only now, so that a run that is stopped before keeps what this benchmark has.
            checkpoints = self.folder / f"{benchmark.name}.checkpoints"
            if not self.resume:
                self._set_aside(benchmark)
                shutil.rmtree(checkpoints, ignore_errors=True)
            options = dataclasses.replace(self.options, checkpoints=checkpoints)
            results = open_results(benchmark, self.folder, self.options.quick)
            if cells:
                remember_machine(self.folder, benchmark.name)
            for cell in cells:
                if before:
                    before(benchmark, cell)
                row = Row(cell, _measure(benchmark, cell, options, results))
                results.append(row)
                if after:
                    after(benchmark, row)
            shutil.rmtree(checkpoints, ignore_errors=True)

    def _set_aside(self, benchmark: Study) -> None:
        """Keep the results of an earlier run as ``<name>.previous.csv``."""
        path = result_path(benchmark, self.folder)
        if path.exists():
            path.replace(path.with_suffix(".previous.csv"))
        forget_machines(self.folder, benchmark.name)


def _measure(benchmark: Study, cell: Cell, options: Options, results: ResultFile) -> Measurement:
    try:
        return benchmark.measure(cell, options, results.rows)
    except Skipped as reason:
        return Measurement(note=f"{SKIPPED}{reason}")
    except Exception as error:  # whatever it is, it must not cost the other cells
        text = " ".join(str(error).split())
        return Measurement(note=f"{FAILED}{type(error).__name__}: {text}")
