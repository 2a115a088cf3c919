"""The progress bar of a run."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cofem.experiments.study.base import Study
from cofem.experiments.study.results import Cell, Row
from cofem.experiments.study.runner import Run


def run_with_bar(run: Run, console: Console) -> None:
    """Measure with a bar that shows the cell, how many are done and the time left; say what went wrong."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Cells differ in length by orders of magnitude, so the speed is that over the whole run.
    with Progress(*columns, console=console, speed_estimate_period=1e9) as bar:
        task = bar.add_task("", total=run.n_cells)

        def before(study: Study, cell: Cell) -> None:
            bar.update(task, description=f"{study.name}: {cell}")

        def after(study: Study, row: Row) -> None:
            if not row.measurement.reached:
                bar.console.print(f"{study.name}: {row}")
            bar.advance(task)

        run.go(before, after)
