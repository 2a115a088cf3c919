"""What the examples share: the command line, a clock, scores over several seeds, the table at the end."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from threadpoolctl import threadpool_limits

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; orange is darker than
# theirs, so that each has a contrast of 3 and more on white.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#C27F00", "#009E73", "#D55E00", "#CC79A7"


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
    return _start(_parser(description)).out


def start_with_seeds(description: str | None) -> tuple[Path, range]:
    """Do as `start`, with the option ``--seeds N``; return the folder for the figure and the seeds."""
    parser = _parser(description)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0 (%(default)s)")
    arguments = _start(parser)
    return arguments.out, range(arguments.seeds)


def start_with_kinds(description: str | None, kinds: tuple[str, ...]) -> tuple[Path, range, list[str]]:
    """Do as `start_with_seeds`, with the option ``--kinds``; return also the kinds of data to run."""
    parser = _parser(description)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0 (%(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds), help="of data (all)")
    arguments = _start(parser)
    return arguments.out, range(arguments.seeds), arguments.kinds


def start_on_cluster(description: str | None) -> tuple[Path, str | None]:
    """Do as `start`, with the option ``--scheduler``; return the folder and the address, if there is one."""
    parser = _parser(description)
    parser.add_argument("--scheduler", help="address of a scheduler; by default a cluster is started here")
    arguments = _start(parser)
    return arguments.out, arguments.scheduler


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = Path(__file__).parent / "figures"
    parser.add_argument("--out", type=Path, default=folder, help="folder for the figure (%(default)s)")
    return parser


def _start(parser: argparse.ArgumentParser) -> argparse.Namespace:
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    threadpool_limits(1)
    return arguments


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


class Score(NamedTuple):
    """What a method achieved on one seed: error, CPU seconds in all and of one run, share in intervals."""

    error: float
    seconds: float
    once: float
    held: float


@dataclass
class Scores:
    """Results of methods on several seeds.

    Parameters
    ----------
    shown : str
        Format of an error, of which less is better; its sign is not shown, so that decibels can be counted as
        ``-PSNR``.
    """

    shown: str = ".2%"
    found: dict[str, list[Score]] = field(default_factory=dict)

    def add(self, method: str, error: float, seconds: float, held: float = np.nan, once: Any = None) -> None:
        """Note the result of one seed; `seconds` are of all runs, `once` of the best one."""
        score = Score(error, seconds, seconds if once is None else once, held)
        self.found.setdefault(method, []).append(score)
        print(f"{method}: {self._number(error)}, {seconds:.1f} s", flush=True)

    def tune(
        self,
        method: str,
        run: Callable[[Any], Any],
        settings: Iterable[Any],
        error: Callable[[Any], float],
        *,
        before: float = 0.0,
        held: Callable[[Any], float] = lambda best: np.nan,
    ) -> Any:
        """Run with each setting, note the best result of all, judged by the truth, and return it.

        `before` are the seconds of what all runs start from; `held` is the share of the truth in intervals.
        """
        tried = [timed(run, setting) for setting in settings]
        best, once = min(tried, key=lambda result: error(result[0]))
        seconds = before + sum(more for _, more in tried)
        self.add(method, error(best), seconds, held(best), before + once)
        return best

    def over(self, seeds: Iterable[int], run: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``run(seed, *arguments, self)`` for each seed; return what the first one returned."""
        returned = []
        for seed in seeds:
            print(f"\nSeed {seed}")
            returned.append(run(seed, *arguments, self))
        return returned[0]

    def table(self, name: str) -> None:
        """Print mean and standard deviation over the seeds, mean times and mean shares."""
        rows = []
        for method, scores in self.found.items():
            errors, seconds, once, held = (np.array(column) for column in zip(*scores, strict=True))
            shares = "" if np.isnan(held).any() else f"{held.mean():.0%}"
            if shares and held.size > 1:
                shares += f" ({held.min():.0%} to {held.max():.0%})"
            times = [f"{np.mean(time):.{1 if np.mean(time) > 0.1 else 2}f}" for time in (seconds, once)]
            rows.append((method, self._spread(errors), *times, shares))
        print()
        table(("method", name, "CPU s, tuning counted", "CPU s, one run", "95 % intervals hold"), rows)

    def _number(self, error: float) -> str:
        return format(abs(error), self.shown)

    def _spread(self, errors: np.ndarray) -> str:
        spread = f" ± {self._number(errors.std(ddof=1))}" if errors.size > 1 else ""
        return self._number(errors.mean()) + spread


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
    path.parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi)
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
        ).save(path, optimize=True)
    print(f"\nFigure: {path} ({path.stat().st_size / 1000:.0f} kB)")


def save_pictures(
    pictures: Iterable[np.ndarray], path: Path, colours: tuple[str, str] = ("gray", "magma")
) -> None:
    """Write two pictures side by side, without words, for the gallery."""
    figure = Figure(figsize=(4, 2.8))
    for k, (picture, colour) in enumerate(zip(pictures, colours, strict=True)):
        width = picture.shape[1]  # a half of the card is higher than it is wide
        axes = figure.add_axes((0.5 * k, 0, 0.5, 1))
        axes.imshow(picture[:, round(0.05 * width) : round(0.77 * width)], cmap=colour, vmin=0, aspect="auto")
        axes.set_axis_off()
    save(figure, path, dpi=100)


def save_curves(axes: Any, path: Path, **limits: tuple[float, float]) -> None:
    """Write what one of the axes of a figure shows, without words, for the gallery. All else is lost."""
    figure = axes.figure
    for other in figure.axes:
        other.set_visible(other is axes)
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    figure.set_layout_engine("none")
    figure.set_size_inches(4, 2.8)
    axes.set_position((0.02, 0.03, 0.96, 0.94))
    axes.set(title="", **limits)
    axes.set_axis_off()
    save(figure, path, dpi=100)
