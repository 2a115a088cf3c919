"""Figures of a fit, as displays: ``CoefficientsDisplay.from_posterior(post)`` and the like.

Each display takes an ``ax`` to draw into, or makes a figure of its own, and keeps both as ``ax_`` and
``figure_``. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cofem.operators import as_operator
from cofem.posterior import Posterior

__all__ = [
    "CoefficientsDisplay",
    "ConvergenceDisplay",
    "ImageDisplay",
    "RecoveryDisplay",
    "plot_fit",
    "plot_recovery",
]

# Okabe and Ito's blue and vermilion, which people with any kind of colour vision tell apart.
BLUE, RED = "#0072B2", "#D55E00"


def _axes(ax: Any, figsize: tuple[float, float] = (6, 4)) -> Any:
    """Return the axes to draw into; new ones lie in a figure of their own."""
    if ax is not None:
        return ax
    # The figure is made without pyplot, so that no global state or screen is touched.
    from matplotlib.figure import Figure

    return Figure(figsize=figsize, layout="constrained").subplots()


@dataclass
class _Display:
    figure_: Any = field(default=None, init=False, repr=False)
    ax_: Any = field(default=None, init=False, repr=False)

    def _start(self, ax: Any) -> Any:
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        return self.ax_

    def save(self, path: str | os.PathLike[str], dpi: int = 150) -> None:
        """Write the figure; the suffix decides the format.

        Examples
        --------
        >>> import numpy as np, os, tempfile
        >>> display = RecoveryDisplay(truth=np.array([1.0, 0.0]), mean=np.array([0.9, 0.0])).plot()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     display.save(folder + "/recovery.pdf")
        ...     os.listdir(folder)
        ['recovery.pdf']
        """
        if self.figure_ is None:
            raise RuntimeError(
                f"nothing is drawn yet: call plot() of the {type(self).__name__} before save()"
            )
        self.figure_.savefig(path, dpi=dpi)


@dataclass
class CoefficientsDisplay(_Display):
    """Coefficients with their credible intervals.

    Parameters
    ----------
    indices : ndarray of int
        Which coefficients are shown.
    mean, lower, upper : ndarray
        Their means and the bounds of their intervals.
    level : float
        Probability of the intervals.
    truth : ndarray or None
        Their true values, if known.

    Examples
    --------
    From the numbers themselves; those of a fit are drawn by `from_posterior`:

    >>> import numpy as np
    >>> mean, half = np.array([1.0, -0.5]), 0.2
    >>> display = CoefficientsDisplay(np.array([3, 17]), mean, mean - half, mean + half, level=0.9).plot()
    >>> display.ax_.get_legend_handles_labels()[1]
    ['mean, 90% interval']
    """

    indices: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    level: float
    truth: np.ndarray | None = None

    @classmethod
    def from_posterior(
        cls,
        post: Posterior,
        *,
        indices: Any = None,
        truth: np.ndarray | None = None,
        level: float = 0.95,
        ax: Any = None,
    ) -> CoefficientsDisplay:
        """Draw coefficients of a fit.

        Parameters
        ----------
        post : Posterior
            The fit.
        indices : array_like of int, optional
            Which coefficients; by default up to 60 of the support, those around its middle.
        truth : ndarray of shape (D,), optional
            The coefficients that made the data.
        level : float
            Probability of the intervals.
        ax : matplotlib axes, optional
            Where to draw.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
        >>> display = CoefficientsDisplay.from_posterior(post, indices=[0, 1])
        >>> display.indices.tolist()
        [0, 1]
        """
        if indices is None:
            support = post.support()
            support = support if support.size else np.arange(post.mean.size)
            middle = support.size // 2
            indices = support[max(0, middle - 30) : middle + 30]
        chosen = np.atleast_1d(np.asarray(indices))
        lower, upper = post.credible_interval(level)
        display = cls(
            chosen,
            np.real(post.mean[chosen]),
            np.real(lower[chosen]),
            np.real(upper[chosen]),
            level,
            None if truth is None else np.real(np.asarray(truth)[chosen]),
        )
        return display.plot(ax)

    def plot(self, ax: Any = None) -> CoefficientsDisplay:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a figure of its own by default.

        Examples
        --------
        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> left, right = Figure().subplots(1, 2)
        >>> one = np.array([1.0])
        >>> display = CoefficientsDisplay(np.array([3]), one, one - 0.1, one + 0.1, level=0.95).plot(right)
        >>> display.ax_ is right, display.figure_ is right.figure
        (True, True)
        """
        ax = self._start(ax)
        if self.truth is not None:
            ax.vlines(self.indices, 0, self.truth, color="0.75", lw=3, label="truth")
        ax.errorbar(
            self.indices,
            self.mean,
            yerr=np.stack([self.mean - self.lower, self.upper - self.mean]).clip(0),
            fmt="o",
            ms=3,
            lw=1,
            capsize=2,
            color=BLUE,
            label=f"mean, {self.level:.0%} interval",
        )
        ax.axhline(0, color="0.5", lw=0.5)
        ax.set(xlabel="coefficient", ylabel="value", title=f"{self.indices.size} coefficients")
        ax.ticklabel_format(axis="x", useOffset=False)
        ax.legend(frameon=False)
        return self


@dataclass
class RecoveryDisplay(_Display):
    """Posterior means against the known truth.

    Parameters
    ----------
    truth, mean : ndarray of shape (D,)
        What was and what was found.

    Examples
    --------
    >>> import numpy as np
    >>> display = RecoveryDisplay(truth=np.array([1.0, 0.0]), mean=np.array([0.9, 0.0])).plot()
    >>> display.ax_.get_title()
    'NRMSE 10.00%'
    """

    truth: np.ndarray
    mean: np.ndarray

    @classmethod
    def from_posterior(cls, post: Posterior, truth: np.ndarray, *, ax: Any = None) -> RecoveryDisplay:
        """Draw the means of a fit against the truth, shape (D,).

        Examples
        --------
        >>> import numpy as np, cofem
        >>> truth = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), truth, noise_std=0.1)
        >>> RecoveryDisplay.from_posterior(post, truth).nrmse < 0.1
        True
        """
        return cls(np.real(np.asarray(truth)), np.real(post.mean)).plot(ax)

    @property
    def nrmse(self) -> float:
        """``||mean - truth|| / ||truth||``.

        Examples
        --------
        >>> import numpy as np
        >>> round(RecoveryDisplay(truth=np.array([3.0, 4.0]), mean=np.array([3.0, 3.0])).nrmse, 6)
        0.2
        """
        return float(np.linalg.norm(self.mean - self.truth) / np.linalg.norm(self.truth))

    def plot(self, ax: Any = None) -> RecoveryDisplay:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a figure of its own by default.

        Examples
        --------
        >>> import numpy as np
        >>> display = RecoveryDisplay(truth=np.array([1.0, 0.0]), mean=np.array([0.9, 0.0])).plot()
        >>> display.ax_.get_xlabel(), display.ax_.get_ylabel()
        ('truth', 'posterior mean')
        """
        ax = self._start(ax)
        limit = 1.05 * max(np.abs(self.truth).max(), np.abs(self.mean).max()) or 1.0
        ax.plot([-limit, limit], [-limit, limit], color="0.6", lw=1)
        ax.plot(self.truth, self.mean, ".", ms=2, color=BLUE, rasterized=True)
        ax.set(xlabel="truth", ylabel="posterior mean", title=f"NRMSE {self.nrmse:.2%}", aspect="equal")
        return self


@dataclass
class ConvergenceDisplay(_Display):
    """Change of the mean over the outer steps.

    Parameters
    ----------
    iteration, change : ndarray
        Steps and the relative change of the mean in each.
    method : str
        Name of the method.

    Examples
    --------
    >>> import numpy as np
    >>> display = ConvergenceDisplay(np.array([2, 3]), np.array([0.1, 0.01]), method="em").plot()
    >>> display.ax_.get_title(), display.ax_.get_yscale()
    ('em, 3 steps', 'log')
    """

    iteration: np.ndarray
    change: np.ndarray
    method: str

    @classmethod
    def from_posterior(cls, post: Posterior, *, ax: Any = None) -> ConvergenceDisplay:
        """Draw the convergence of a fit.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
        >>> ConvergenceDisplay.from_posterior(post).method == post.method
        True
        """
        change = post.history["change"]
        known = np.isfinite(change) & (change > 0)
        return cls(post.history["iteration"][known], change[known], post.method).plot(ax)

    def plot(self, ax: Any = None) -> ConvergenceDisplay:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a figure of its own by default.

        Examples
        --------
        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> ax = Figure().subplots()
        >>> for method, change in (("em", [0.1, 0.05]), ("cofem", [0.1, 0.01])):  # both into one panel
        ...     display = ConvergenceDisplay(np.array([2, 3]), np.array(change), method).plot(ax)
        >>> len(ax.lines), ax.get_title()  # the title is that of the last
        (2, 'cofem, 3 steps')
        """
        ax = self._start(ax)
        if self.iteration.size:
            ax.semilogy(self.iteration, self.change, color=RED)
        last = int(self.iteration[-1]) if self.iteration.size else 0
        ax.set(
            xlabel="outer step", ylabel="relative change of the mean", title=f"{self.method}, {last} steps"
        )
        return self


@dataclass
class ImageDisplay(_Display):
    """Images side by side: original, input, recovery and a map of standard deviations.

    Parameters
    ----------
    panels : dict of str to ndarray
        Images by title; those whose titles end in `UNCERTAINTY` have colour scales of their own.

    Examples
    --------
    >>> import numpy as np
    >>> panels = {"recovery": np.eye(4), ImageDisplay.UNCERTAINTY: np.full((4, 4), 0.1)}
    >>> [ax.get_title() for ax in ImageDisplay(panels).plot().ax_]
    ['recovery', 'standard deviation']
    """

    panels: dict[str, np.ndarray]

    UNCERTAINTY = "standard deviation"

    @classmethod
    def from_posterior(  # noqa: PLR0913 (public)
        cls,
        post: Posterior,
        synthesis: Any,
        shape: tuple[int, int],
        *,
        original: np.ndarray | None = None,
        observed: np.ndarray | None = None,
        n_samples: int = 16,
        rng: int | np.random.Generator | None = 0,
        ax: Any = None,
    ) -> ImageDisplay:
        """Draw an image that was recovered as ``synthesis @ coefficients``.

        Parameters
        ----------
        post : Posterior
            The fit.
        synthesis : operator of shape (height * width, D) or None
            From coefficients to pixels; None if the unknown is the image itself, as with ``analysis=``.
        shape : tuple of int
            Height and width.
        original, observed : ndarray of that shape, optional
            The truth, and what was seen of it (NaN where nothing was).
        n_samples : int
            Posterior draws that the standard deviations of the pixels are taken from.
        rng : int or Generator
            Source of the draws.
        ax : sequence of matplotlib axes, optional
            One for each panel.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> from cofem.operators import DCT
        >>> post = cofem.fit(DCT((4, 4)).T, np.ones(16), noise_std=0.1)
        >>> display = ImageDisplay.from_posterior(post, DCT((4, 4)).T, (4, 4), n_samples=3)
        >>> list(display.panels)
        ['recovery', 'standard deviation']
        """
        if synthesis is None:
            mean, deviation = post.mean, post.std
        else:
            pixels = as_operator(synthesis)
            mean = pixels.forward(post.mean)
            deviation = np.std(pixels.forward(post.sample(n_samples, rng=rng)), axis=0, ddof=1)
        panels: dict[str, np.ndarray] = {}
        if original is not None:
            panels["original"] = np.asarray(original)
        if observed is not None:
            seen = np.isfinite(observed)
            panels[f"input, {seen.mean():.0%} of the pixels" if not seen.all() else "input"] = observed
        panels["recovery"] = np.real(mean).reshape(shape)
        panels[cls.UNCERTAINTY] = np.asarray(deviation).reshape(shape)
        return cls(panels).plot(ax)

    def plot(self, ax: Any = None) -> ImageDisplay:
        """Draw.

        Parameters
        ----------
        ax : sequence of matplotlib axes, optional
            One for each panel; by default a figure of its own, with up to three in a row, four in two rows,
            and so on.

        Examples
        --------
        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> axes = Figure().subplots(2, 1)
        >>> display = ImageDisplay({"original": np.eye(4), "recovery": 0.9 * np.eye(4)}).plot(axes)
        >>> [tuple(map(float, ax.images[0].get_clim())) for ax in axes]  # one scale of grey for all
        [(0.0, 1.0), (0.0, 1.0)]
        """
        spare = None
        if ax is None:
            from matplotlib.figure import Figure

            count = len(self.panels)
            columns = count if count < 4 else math.isqrt(count - 1) + 1
            rows = -(-count // columns)
            figure = Figure(figsize=(3.6 * columns, 3.9 * rows), layout="constrained")
            places = np.ravel(figure.subplots(rows, columns))
            for unused in places[count:]:
                unused.set_axis_off()
                spare = places[count]
            ax = places[:count]
        self.ax_ = np.atleast_1d(ax)
        self.figure_ = self.ax_[0].figure
        grey = [image for title, image in self.panels.items() if not title.endswith(self.UNCERTAINTY)]
        low = min(map(np.nanmin, grey), default=0.0)
        high = max(map(np.nanmax, grey), default=1.0)
        for axes, (title, image) in zip(self.ax_, self.panels.items(), strict=True):
            if title.endswith(self.UNCERTAINTY):
                shown = axes.imshow(image, cmap="magma", vmin=0)
                if spare is not None and axes is self.ax_[-1]:  # or the column of this panel would be wider
                    self.figure_.colorbar(shown, cax=spare.inset_axes((0.02, 0.125, 0.06, 0.75)))
                else:
                    self.figure_.colorbar(shown, ax=axes, shrink=0.75)
            else:
                axes.set_facecolor("#202020")
                axes.imshow(image, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
            axes.set(title=title, xticks=[], yticks=[])
        return self


def plot_recovery(
    post: Posterior, truth: np.ndarray, path: str | os.PathLike[str], n_shown: int = 60
) -> None:
    """Draw a fit against the known truth: coefficients with intervals, all coefficients, convergence.

    Parameters
    ----------
    post : Posterior
        The fit.
    truth : ndarray of shape (D,)
        The coefficients that made the data.
    path : path
        Where the figure is written; the suffix decides the format.
    n_shown : int
        How many coefficients the first panel shows, those around the middle.

    Examples
    --------
    >>> import numpy as np, cofem, os, tempfile
    >>> truth = np.array([1.0, 0.0, 0.0])
    >>> post = cofem.fit(np.eye(3), truth, noise_std=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_recovery(post, truth, folder + "/fit.png")
    ...     os.listdir(folder)
    ['fit.png']
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    coefficients, agreement, convergence = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    middle = truth.size // 2
    shown = np.arange(max(0, middle - n_shown // 2), min(truth.size, middle + n_shown // 2))
    CoefficientsDisplay.from_posterior(post, indices=shown, truth=truth, ax=coefficients)
    RecoveryDisplay.from_posterior(post, truth, ax=agreement)
    ConvergenceDisplay.from_posterior(post, ax=convergence)
    figure.savefig(path, dpi=150)


def plot_fit(post: Posterior, path: str | os.PathLike[str]) -> None:
    """Draw what a fit found when the truth is not known: all means, the support with intervals, convergence.

    Examples
    --------
    >>> import numpy as np, cofem, os, tempfile
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_fit(post, folder + "/fit.png")
    ...     os.listdir(folder)
    ['fit.png']
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    overview, coefficients, convergence = figure.subplots(1, 3, width_ratios=(1.5, 1.5, 1))
    overview.plot(np.real(post.mean), ".", ms=2, color=BLUE, rasterized=True)
    overview.set(xlabel="coefficient", ylabel="posterior mean", title=f"{post.mean.size:,} coefficients")
    CoefficientsDisplay.from_posterior(post, ax=coefficients)
    found = post.support().size
    coefficients.set_title(f"some of the {found:,} in the support" if found else "none in the support")
    ConvergenceDisplay.from_posterior(post, ax=convergence)
    figure.savefig(path, dpi=150)
