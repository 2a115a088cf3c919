"""What `cofem reproduce` does."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cofem.experiments.reproduce.page import write_page
from cofem.experiments.reproduce.registry import EXPERIMENTS, get_experiments
from cofem.experiments.study.base import Options
from cofem.experiments.study.runner import Run
from cofem.experiments.study.screen import run_with_bar


def reproduce(name: str, folder: Path, options: Options, *, resume: bool) -> None:
    """Run experiments with a progress bar, then write figures and page, also after Ctrl-C."""
    console = Console()
    run = Run(get_experiments(name), folder, options, resume)
    try:
        run_with_bar(run, console)
    except KeyboardInterrupt:
        console.print("Stopped; what was measured is kept. Go on with --resume.")
        raise
    finally:
        files = write_page(EXPERIMENTS.values(), folder)
        console.print(f"{files[-1]} shows the results; tables and figures lie beside it")
