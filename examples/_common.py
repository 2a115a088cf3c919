"""What the examples share: the command line, a clock, the table at the end."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"


def start(description: str | None) -> Path:
    """Read the command line and limit every library to one thread.

    Parameters
    ----------
    description : str
        Docstring of the example, shown by ``--help``.

    Returns
    -------
    Path
        Folder for the figure.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = Path(__file__).parent / "figures"
    parser.add_argument("--out", type=Path, default=folder, help="folder for the figure (%(default)s)")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    threadpool_limits(1)
    return out


def timed(function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Any, float]:
    """Call a function; return what it returns and the seconds of processor time it took."""
    begin = time.process_time()
    result = function(*arguments, **named)
    return result, time.process_time() - begin


def nrmse(found: np.ndarray, truth: np.ndarray) -> float:
    """Return ``||found - truth|| / ||truth||``."""
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def rmse(found: np.ndarray, truth: np.ndarray) -> float:
    """Return the root mean square of the difference."""
    return float(np.sqrt(np.mean(np.abs(found - truth) ** 2)))


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table in Markdown."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("| " + " | ".join(cells) + " |")


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure as a PNG of 256 colours, to keep the file small, and tell where it is."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi)
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
        ).save(path, optimize=True)
    print(f"\nFigure: {path} ({path.stat().st_size / 1000:.0f} kB)")
