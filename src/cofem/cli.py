"""The `cofem` command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Sparse Bayesian learning for very large dictionaries.",
    no_args_is_help=True,
    add_completion=False,
)


def _show_version(asked: bool) -> None:
    """Say which version this is, and end."""
    if asked:
        from cofem import __version__

        typer.echo(f"cofem {__version__}")
        raise typer.Exit


def _list_operators(asked: bool) -> None:
    """Say which names an expression may have, and end."""
    if asked:
        from cofem.expressions import NAMES

        width = max(len(name.typed) for name in NAMES.values())
        for name in NAMES.values():
            typer.echo(f"{name.typed:<{width}}  {name.meaning}")
        typer.echo("joined by A @ B, A + B, 2 * A, A.T and A.H")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Sparse Bayesian learning for very large dictionaries, without covariance matrices."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder the figure is written to.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the pixels that are seen, and of the fit.")] = 0,
) -> None:
    """Recover a photograph from a quarter of its pixels, with a map of how sure each pixel is.

    Example: cofem demo --out out
    """
    from cofem.demo import run_demo

    run_demo(out, seed)


@app.command()
def recover(  # noqa: PLR0913 (public)
    data: Annotated[str, typer.Option(help="File with the data y: .npy, .npz (or .npz:name), .csv.")],
    operator: Annotated[
        str,
        typer.Option(help='The dictionary, e.g. "mask(rows.npy) @ idct(262144)"; names: --list-operators.'),
    ],
    column: Annotated[
        str | None,
        typer.Option(help="Column of a .csv file: its name in the header, or its number, from 0."),
    ] = None,
    noise_std: Annotated[
        float | None,
        typer.Option(help="Standard deviation of the noise; learned if left out.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the posterior is written (.npz).")] = Path("result.npz"),
    plot: Annotated[Path | None, typer.Option(help="Where a figure is written, if wanted.")] = None,
    method: Annotated[str, typer.Option(help="Method: auto, cofem, em, irls, amp, vi or seq.")] = "auto",
    nonnegative: Annotated[
        bool, typer.Option("--nonnegative", help="The coefficients are known not to be negative.")
    ] = False,
    max_iter: Annotated[int | None, typer.Option(help="Most outer steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File the fit is written to every minute and on Ctrl-C.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Checkpoint to go on from.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Dask scheduler, e.g. tcp://host:8786, whose workers hold distributed(Phi.npy)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace --out and --plot if they exist; never what is read.")
    ] = False,
    list_operators: Annotated[
        bool,
        typer.Option(
            "--list-operators",
            help="List what an operator may be made of.",
            is_eager=True,
            callback=_list_operators,
        ),
    ] = False,
) -> None:
    """Recover sparse coefficients from your own data.

    Files that exist are not replaced without --force. With the same file for --checkpoint and --resume, a
    command that was stopped goes on when it is repeated.

    With --scheduler, the matrix in distributed(Phi.npy) is read and kept by the workers of a Dask cluster.

    Example: cofem recover --data y.npy --operator "mask(rows.npy) @ idct(262144)" --plot result.png
    """
    from cofem.recover import Targets, connected, recover_file, with_column

    try:
        with connected(scheduler):
            recover_file(
                data if column is None else with_column(data, column),
                operator,
                Targets(out, plot, force),
                noise_std="learn" if noise_std is None else noise_std,
                method=method,
                nonnegative=nonnegative,
                max_iter=max_iter,
                rng=seed,
                checkpoint=checkpoint,
                resume=resume,
            )
    except KeyboardInterrupt as interrupt:
        saved = (
            f"; go on with --resume {checkpoint}" if checkpoint is not None and checkpoint.exists() else ""
        )
        typer.echo(f"cofem recover: stopped by Ctrl-C{saved}", err=True)
        raise typer.Exit(130) from interrupt
    except (ValueError, TypeError, ArithmeticError, OSError, MemoryError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, MemoryError):
            reason = f"out of memory: {reason}"
        typer.echo(f"cofem recover: {reason}", err=True)
        raise typer.Exit(2) from error


class Scale(StrEnum):
    """How much of an experiment to run."""

    quick = "quick"
    paper = "paper"


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="a, b, c, d, e, f, table, or all.")],
    scale: Annotated[
        Scale, typer.Option(help="Smaller sizes for a first look, or the paper's.")
    ] = Scale.quick,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results: reproduction/<scale>.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first repetition.")] = 0,
    repeats: Annotated[int | None, typer.Option(min=1, help="Repetitions, in place of the paper's.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Measure only what is not there yet.")] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds after which a fit is stopped: 600, or 30 if quick."),
    ] = None,
) -> None:
    """Run the experiments of the paper: figures, tables, and one page that says which claims hold.

    Every measurement is on disk as soon as it is done: stop with Ctrl-C, go on with --resume.

    Example: cofem reproduce all --scale quick --out reproduction/quick
    """
    from cofem.experiments.reproduce.command import reproduce as run
    from cofem.experiments.study.base import Options

    quick = scale is Scale.quick
    limit = time_limit if time_limit is not None else (30.0 if quick else 600.0)
    options = Options(quick, seeds=repeats, time_limit=limit, first_seed=seed)
    try:
        run(experiment, out or Path("reproduction") / scale.value, options, resume=resume)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
def bench(  # noqa: PLR0913 (public)
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
    report: Annotated[bool, typer.Option("--report", help="Only write the reports again.")] = False,
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
