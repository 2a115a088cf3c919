"""`cofem recover`: from files to a posterior and a figure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cofem.expressions import ExpressionError, parse_operator
from cofem.files import read_array
from cofem.posterior import Posterior
from cofem.status import ConvergenceWarning


def recover_file(data: str, operator: str, out: Path, plot: Path | None = None, **settings: Any) -> Posterior:
    """Fit the data in a file, write the posterior and, if wanted, a figure, and print what was found.

    Parameters
    ----------
    data : str
        File with y; see `cofem.files.read_array`.
    operator : str
        Expression for the dictionary; see `cofem.expressions.parse_operator`.
    out : Path
        The ``.npz`` file to write; read it again with `cofem.load`.
    plot : Path, optional
        The figure to write.
    **settings
        As for `cofem.fit`: the noise, the method, checkpoints and so on.
    """
    from rich.console import Console
    from rich.table import Table

    import cofem
    from cofem.plotting import plot_fit

    console = Console()
    if out.suffix != ".npz":
        raise ValueError(f"out must end in .npz, got {out}")
    for path in (out, plot):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}")
    try:
        Phi = parse_operator(operator)
    except ExpressionError as error:
        raise ValueError(f"operator: {error}") from error
    y = read_array(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.simplefilter("always", cofem.CheckpointWarning)
        post = cofem.fit(Phi, y, progress=True, **settings)
    post.save(out)
    table = Table(show_header=False)
    found = post.support()
    for label, value in [
        ("dictionary", f"{Phi!r}, {Phi.shape[0]:,} x {Phi.shape[1]:,}"),
        ("method", f"{post.method}, {post.n_iter} steps"),
        ("noise", ", ".join(f"{std:.4g}" for std in np.ravel(post.noise_std))),
        ("coefficients in the support", f"{found.size:,}"),
        ("ended", f"{post.status.code.value}: {post.status.message}"),
    ]:
        table.add_row(label, value)
    console.print(table)
    for warning in caught:
        console.print(f"Warning: {warning.message}", markup=False)
    console.print(f"Posterior written to {out}; read it with cofem.load({str(out)!r})", markup=False)
    if plot is not None:
        plot_fit(post, plot)
        console.print(f"Figure written to {plot}", markup=False)
    return post
