"""`cofem recover`: from files to a posterior and a figure."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from cofem.expressions import ExpressionError, named_files, parse_operator
from cofem.files import check_writable, read_array, replacing, same_file, spare_paths, split_source
from cofem.posterior import Posterior

#: Seconds until a scheduler counts as not there.
CONNECTING = 10


@dataclass(frozen=True)
class Targets:
    """Where the results of a fit go.

    Parameters
    ----------
    out : Path
        The ``.npz`` file to write; read it again with `cofem.load`.
    plot : Path, optional
        The figure to write.
    force : bool
        Whether files that exist are replaced.
    """

    out: Path
    plot: Path | None = None
    force: bool = False

    def check(self, inputs: dict[str, Any], checkpoint: Any = None) -> None:
        """Refuse files that cannot be written, or that hold something that would be lost.

        Parameters
        ----------
        inputs : dict
            The files that are read, by what they are.
        checkpoint : path, optional
            The file that the fit writes.
        """
        if self.out.suffix != ".npz":
            raise ValueError(f"out must end in .npz, got {self.out}")
        if self.plot is not None:
            _check_figure(self.plot)
        named = {"out": self.out, "plot": self.plot, "checkpoint": checkpoint}
        written = {name: path for name, path in named.items() if path is not None}
        for (name, path), (other, second) in combinations(written.items(), 2):
            if same_file(path, second):
                raise ValueError(f"{name} and {other} must be different files, got {path} for both")
        for name, path in written.items():
            for source, read in inputs.items():
                if same_file(path, read) and (name, source) != ("checkpoint", "resume"):
                    raise ValueError(f"{name} {path} is the file of the {source}, which is never replaced")
            check_writable(path, name)
            if name != "checkpoint" and os.path.exists(path) and not self.force:
                raise ValueError(f"{name} {path} exists; give another name, or --force to replace it")

    def save(self, write: Callable[[Path], None], path: Path) -> Path:
        """Write a result to its place, or to another one if that fails; return where it is.

        Raises
        ------
        OSError
            If it could not be written anywhere.
        """
        failures = []
        if self.force or not os.path.exists(path):
            try:
                write(path)
                return path
            except OSError as error:
                failures.append(f"{path}: {error.strerror or error}")
        for spare in spare_paths(path):
            try:
                write(spare)
                return spare
            except OSError as error:
                failures.append(f"{spare}: {error.strerror or error}")
        raise OSError(f"the result could not be written anywhere ({'; '.join(failures)})")


@contextmanager
def connected(scheduler: str | None) -> Iterator[None]:
    """Have a Dask cluster hold what is distributed, while the fit runs; None for this machine alone.

    Parameters
    ----------
    scheduler : str or None
        Address of the scheduler.
    """
    if scheduler is None:
        yield
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError('scheduler needs Dask: pip install "cofem[dask]"') from error
    try:
        client = Client(scheduler, timeout=CONNECTING)
    except Exception as error:  # the address may be wrong in many ways
        raise OSError(f"scheduler {scheduler} does not answer: {error}") from error
    with client:
        yield


def recover_file(data: str, operator: str, targets: Targets, **settings: Any) -> Posterior:
    """Fit the data in a file, write the posterior and, if wanted, a figure, and print what was found.

    Whatever can be wrong with the files is found before the fit. If a result cannot be written when it is
    there, it is written beside its place or to the temporary folder. On Ctrl-C the result so far is written.

    Parameters
    ----------
    data : str
        File with y; see `cofem.files.read_array`.
    operator : str
        Expression for the dictionary; see `cofem.expressions.parse_operator`.
    targets : Targets
        Where the results go.
    **settings
        As for `cofem.fit`: the noise, the method, checkpoints and so on.
    """
    from rich.console import Console

    import cofem
    from cofem.plotting import plot_fit

    console = Console()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            inputs = {"data": split_source(data)[0]}
            inputs |= {f"operator ({path})": path for path in named_files(operator)}
            if settings.get("resume") is not None:
                inputs["resume"] = settings["resume"]
            targets.check(inputs, settings.get("checkpoint"))
            Phi = parse_operator(operator)
        except ExpressionError as error:
            raise ValueError(f"operator: {error}") from error
        y = read_array(data)
        try:
            post = cofem.fit(Phi, y, progress=True, **settings)
        except cofem.FitInterrupted as interrupt:
            so_far = interrupt.posterior
            if so_far is not None:
                _say(console, "What was found so far", targets.out, targets.save(so_far.save, targets.out))
            raise
    try:
        written = targets.save(post.save, targets.out)
    except OSError as error:
        kept = settings.get("checkpoint")
        hint = f"; the fit is in {kept}" if kept is not None and os.path.exists(kept) else ""
        raise OSError(f"{error}{hint}") from error
    others = (str(warning.message) for warning in caught if warning.category is not cofem.ReliabilityWarning)
    for text in dict.fromkeys([*post.status.warnings, *others]):
        console.print(f"Warning: {text}", markup=False)
    _report(console, post)
    _say(console, "Posterior", targets.out, written, f"; read it with cofem.load({str(written)!r})")
    if targets.plot is not None:

        def draw(path: Path) -> None:
            with replacing(path) as part:
                plot_fit(post, part)

        try:
            _say(console, "Figure", targets.plot, targets.save(draw, targets.plot))
        except Exception as error:  # the posterior is safe
            console.print(f"Warning: the figure was not written: {error}", markup=False)
    return post


def with_column(data: str, column: str) -> str:
    """Return the source of one column of a table.

    Examples
    --------
    >>> with_column("spectrum.csv", "flux")
    'spectrum.csv:flux'
    """
    path, key = split_source(data)
    if path.suffix != ".csv" or key is not None:
        raise ValueError(f"column is for the name of a .csv file, got data {data}")
    return f"{data}:{column}"


def _report(console: Any, post: Posterior) -> None:
    """Print a table of what was found."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    Phi = post.operator
    for label, value in [
        ("dictionary", "" if Phi is None else f"{Phi!r}, {Phi.shape[0]:,} x {Phi.shape[1]:,}"),
        ("method", f"{post.method}, {post.n_iter} steps"),
        ("noise", ", ".join(f"{std:.4g}" for std in np.ravel(post.noise_std))),
        ("coefficients in the support", f"{post.support().size:,}"),
        ("ended", f"{post.status.heading}: {post.status.message}"),
        *(("note", note) for note in post.status.notes),
    ]:
        table.add_row(label, Text(value))
    console.print(table)


def _say(console: Any, what: str, wanted: Path, written: Path, more: str = "") -> None:
    """Say where a result is."""
    if written != wanted:
        console.print(f"Warning: {wanted} could not be written", markup=False)
    console.print(f"{what} written to {written}{more}", markup=False)


def _check_figure(path: Path) -> None:
    """Refuse a figure whose kind is not known."""
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in kinds:
        raise ValueError(f"plot must end in one of {', '.join(f'.{kind}' for kind in kinds)}, got {path}")
