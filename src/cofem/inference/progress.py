"""The progress bar of a fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from cofem.inference.record import Callback, Snapshot


@contextmanager
def progress_bar(shown: bool, max_iter: int, tol: float, name: str) -> Iterator[Callback | None]:
    """Yield a callback that draws a bar, or None when none is wanted.

    A fit ends by its tolerance or by its number of steps, whichever comes first, so the bar shows
    the nearer of the two ends (the first on a logarithmic scale).
    """
    if not shown:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(name, total=1.0, note="starting")

        def draw(snapshot: Snapshot) -> None:
            share = snapshot.iteration / max_iter
            if tol > 0 and 0 < snapshot.change < 1:
                share = max(share, math.log(snapshot.change) / math.log(min(tol, 0.5)))
            note = f"step {snapshot.iteration}, change {snapshot.change:.1e}"
            bar.update(task, completed=min(share, 1.0), note=note)

        yield draw
        bar.update(task, completed=1.0)
