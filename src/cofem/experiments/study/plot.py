"""The one kind of plot that benchmarks need: lines over sizes, or points over names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; orange is darker and violet
# takes the place of light blue, so that each has a contrast of 3 and more on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C27F00", "#5D3A9B", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Plot:
    """What to draw.

    Attributes
    ----------
    series : mapping of str to (x, y)
        By label. Where x are names rather than numbers, points are drawn in place of lines.
    x_label, y_label, title : str
        Texts.
    log_x, log_y : bool
        Logarithmic axes (x in powers of two).
    level : float or None
        A target, drawn as a horizontal line.
    bands : mapping of str to (low, high)
        By label: what lies between is shaded.
    order : sequence of str
        Labels in the order of colours and markers, so that they mean the same in several plots.
    markers : bool
        Whether points are marked on the lines.
    from_zero : bool
        Whether y starts at zero, so that small changes look small.
    hollow : mapping of str to (x, y)
        By label: points of the series that are estimates, whose markers are hollow.
    """

    series: Mapping[str, tuple[Sequence[float] | Sequence[str], Sequence[float]]]
    x_label: str
    y_label: str
    title: str
    log_x: bool = True
    log_y: bool = True
    level: float | None = None
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    order: Sequence[str] = ()
    markers: bool = True
    from_zero: bool = False
    hollow: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)


def draw(plot: Plot, path: Path) -> list[Path]:
    """Draw a plot to PNG and SVG and return the files; nothing is drawn without points.

    `path` is that of the files but for their suffix.
    """
    # The figure is made without pyplot, so that no global state or screen is touched.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    named = any(isinstance(x, str) for xs, _ in plot.series.values() for x in xs)
    if not any(len(xs) for xs, _ in plot.series.values()):
        return []
    figure = Figure(figsize=(9 if named else 6, 4), layout="constrained")
    ax = figure.subplots()
    order = list(plot.order) or list(plot.series)
    for label, (xs, ys) in plot.series.items():
        if not len(xs):
            continue
        i = order.index(label) % len(COLOURS)
        style, marker = "none" if named else "-", MARKERS[i] if plot.markers else None
        ax.plot(xs, ys, marker=marker, markersize=5, color=COLOURS[i], linestyle=style, label=label)
        if label in plot.hollow:
            ax.plot(
                *plot.hollow[label],
                marker=marker, markersize=5, color=COLOURS[i], markerfacecolor="white", linestyle="none",
            )  # fmt: skip
        if label in plot.bands:
            ax.fill_between(xs, *plot.bands[label], color=COLOURS[i], alpha=0.15, linewidth=0)
    if plot.level is not None:
        ax.axhline(plot.level, color="0.5", lw=1, ls="--", label="target")
    if plot.log_x and not named:
        ax.set_xscale("log", base=2)
    if plot.log_y:
        ax.set_yscale("log")
    if plot.from_zero:
        ax.set_ylim(bottom=0)
    if named:
        ax.tick_params(axis="x", rotation=35)
        for text in ax.get_xticklabels():
            text.set_horizontalalignment("right")
    ax.grid(alpha=0.3)
    ax.set(xlabel=plot.x_label, ylabel=plot.y_label, title=plot.title)
    ax.legend(frameon=False)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    # Neither date nor random names, so that the same results give the same files.
    with rc_context({"svg.hashsalt": "cofem"}):
        figure.savefig(files[0], dpi=150)
        figure.savefig(files[1], metadata={"Date": None})
    return files
