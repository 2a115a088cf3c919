"""The `cofem` command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Sparse Bayesian learning for very large dictionaries.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def main() -> None:
    """Sparse Bayesian learning for very large dictionaries, without covariance matrices."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder the figure is written to.")] = Path("out"),
    size: Annotated[int, typer.Option(min=256, help="Number D of coefficients.")] = 2**18,
    seed: Annotated[int, typer.Option(help="Seed of the signal and of the fit.")] = 0,
) -> None:
    """Recover a sparse signal from a quarter of its samples, and say how surely.

    Example: cofem demo --out out
    """
    # Heavy imports happen where they are used, to keep `cofem --help` quick.
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    import cofem
    from cofem.operators import DCT, Mask
    from cofem.plotting import plot_recovery

    console = Console()
    rng = np.random.default_rng(seed)
    n_rows, n_spikes, noise_std = size // 4, size // 25, 0.005
    truth = np.zeros(size, np.float32)
    truth[rng.choice(size, n_spikes, replace=False)] = rng.standard_normal(n_spikes)
    Phi = Mask(np.sort(rng.choice(size, n_rows, replace=False)), size) @ DCT(size).T
    y = (Phi @ truth + noise_std * rng.standard_normal(n_rows)).astype(np.float32)
    console.print(
        f"A signal of {size:,} samples whose DCT has {n_spikes:,} non-zero coefficients; "
        f"{n_rows:,} samples are seen, with noise of standard deviation {noise_std}."
    )

    start = time.perf_counter()
    post = cofem.fit(Phi, y, noise_std=noise_std, rng=seed, progress=True)
    seconds = time.perf_counter() - start

    lower, upper = post.credible_interval(0.95)
    found, real = post.support(), np.flatnonzero(truth)
    covered = np.mean((lower <= truth)[real] & (truth <= upper)[real])
    table = Table(show_header=False)
    for label, value in [
        ("method", f"{post.method}, {post.n_iter} steps, {seconds:.1f} s"),
        ("relative error (NRMSE)", f"{np.linalg.norm(post.mean - truth) / np.linalg.norm(truth):.2%}"),
        ("coefficients in the support", f"{found.size:,}"),
        ("of these truly non-zero", f"{np.isin(found, real).mean():.2%}"),
        ("median standard deviation there", f"{np.median(post.std[found]):.4f}"),
        ("true non-zeros inside their 95 % interval", f"{covered:.1%}"),
        ("ended", post.status.code.value),
    ]:
        table.add_row(label, value)
    console.print(table)

    out.mkdir(parents=True, exist_ok=True)
    figure = out / "demo.png"
    plot_recovery(post, truth, figure)
    console.print(f"Figure written to {figure}")


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Benchmarks to run; all if none is named.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results: benchmarks/results, or benchmarks/results-quick if quick.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A shortened sweep for a first look.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Measure only what is not there yet.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Repeats of a timing: 3, or 1 if quick.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Problems that errors are measured on.")] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which a fit is stopped: 1800, or 60 if quick.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Only write the reports anew.")] = False,
    list_names: Annotated[bool, typer.Option("--list", help="List the benchmarks.")] = False,
) -> None:
    """Measure time, memory and error against other methods, into tables and plots.

    Every measurement is on disk as soon as it is done: stop with Ctrl-C, go on with --resume.

    Example: cofem bench dct-time memory --quick
    """
    from cofem.experiments.bench.command import list_benchmarks, run_command
    from cofem.experiments.study.base import Options

    if list_names:
        list_benchmarks()
        return
    folder = out or Path("benchmarks") / ("results-quick" if quick else "results")
    limit = time_limit if time_limit is not None else (60.0 if quick else 1800.0)
    options = Options(quick, repeats or (1 if quick else 3), seeds, limit)
    try:
        run_command(names or [], folder, options, resume=resume, report_only=report)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
