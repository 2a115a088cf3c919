"""What `cofem bench` draws on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cofem.experiments.bench.registry import BENCHMARKS, get_benchmarks
from cofem.experiments.bench.report import write_reports
from cofem.experiments.study.base import Options
from cofem.experiments.study.runner import Run
from cofem.experiments.study.screen import run_with_bar


def list_benchmarks() -> None:
    """Print the benchmarks."""
    table = Table("name", "what it measures")
    for benchmark in BENCHMARKS.values():
        table.add_row(benchmark.name, benchmark.summary)
    Console().print(table)


def run_command(
    names: Sequence[str], folder: Path, options: Options, *, resume: bool, report_only: bool
) -> None:
    """Run the named benchmarks with a progress bar, then write the reports, also after Ctrl-C."""
    console = Console()
    benchmarks = get_benchmarks(names)
    run = None if report_only else Run(benchmarks, folder, options, resume)
    try:
        if run is not None:
            run_with_bar(run, console)
    except KeyboardInterrupt:
        console.print("Stopped; what was measured is kept. Go on with --resume.")
        raise
    finally:
        files = write_reports(BENCHMARKS.values(), folder)
        console.print(f"{len(files)} files written; {files[-1]} joins them")
