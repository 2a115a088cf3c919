"""Figures of a fit. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cofem.posterior import Posterior


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
        How many coefficients the first panel shows, taken around the middle of the support.

    Examples
    --------
    >>> import numpy as np, cofem, os, tempfile
    >>> truth = np.array([1.0, 0.0, 0.0])
    >>> post = cofem.fit(np.eye(3), truth, noise_std=0.1)
    >>> plot_recovery(post, truth, os.path.join(tempfile.mkdtemp(), "fit.png"))
    """
    # The figure is made without pyplot, so that no global state or screen is touched.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    coefficients, agreement, convergence = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    _draw_coefficients(coefficients, post, truth, n_shown)
    _draw_agreement(agreement, post, truth)
    _draw_convergence(convergence, post)
    figure.savefig(path, dpi=150)


def _draw_coefficients(ax: Any, post: Posterior, truth: np.ndarray, n_shown: int) -> None:
    lower, upper = post.credible_interval(0.95)
    middle = truth.size // 2
    shown = np.arange(max(0, middle - n_shown // 2), min(truth.size, middle + n_shown // 2))
    centre, half = post.mean[shown], (upper - lower)[shown] / 2
    ax.vlines(shown, 0, truth[shown], color="0.75", lw=3, label="truth")
    ax.errorbar(
        shown, centre, yerr=half, fmt="o", ms=3, lw=1, capsize=2, color="#0072B2", label="mean, 95 % interval"
    )
    ax.axhline(0, color="0.5", lw=0.5)
    ax.set(xlabel="coefficient", ylabel="value", title=f"{shown.size} of {truth.size:,} coefficients")
    ax.ticklabel_format(axis="x", useOffset=False)
    ax.legend(frameon=False)


def _draw_agreement(ax: Any, post: Posterior, truth: np.ndarray) -> None:
    limit = 1.05 * max(np.abs(truth).max(), np.abs(post.mean).max())
    ax.plot([-limit, limit], [-limit, limit], color="0.6", lw=1)
    ax.plot(truth, post.mean, ".", ms=2, color="#0072B2", rasterized=True)
    error = np.linalg.norm(post.mean - truth) / np.linalg.norm(truth)
    ax.set(xlabel="truth", ylabel="posterior mean", title=f"NRMSE {error:.2%}", aspect="equal")


def _draw_convergence(ax: Any, post: Posterior) -> None:
    change = post.history["change"]
    known = np.isfinite(change)
    ax.semilogy(post.history["iteration"][known], change[known], color="#D55E00")
    ax.set(xlabel="outer step", ylabel="relative change of the mean")
    ax.set_title(f"{post.method}, {post.n_iter} steps")
