"""Which prior
===========

Which prior: six kinds of signal, and what the prior that suits each of them gains.

Task: recover six signals of 256 coefficients from 80 noisy data each, with a Gaussian dictionary: few spikes,
spikes that are not negative, blocks at known places, clusters at unknown ones, four signals with one support,
and one in which everything matters a little.

Data: drawn, since the truth must be known for each kind.

Compared with: scikit-learn's ``LassoCV``, whose penalty comes from cross-validation. cofem is run with its
default prior, with the one that suits the kind, and with ``prior="auto"``, which chooses by data that it
holds out. It learns the noise each time.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/priors.png'

from __future__ import annotations

from typing import Any

import numpy as np
from _common import BLUE, Scores, nrmse, save, save_curves, start_with_seeds, timed
from matplotlib.figure import Figure
from sklearn.linear_model import LassoCV

import cofem

COLUMNS, DATA, TASKS, NOISE_STD = 256, 80, 4, 0.05
#: Each kind of signal, what is said of it in the code, and the settings that suit it.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "few spikes": ("Independent(), the default", {}),
    "not negative": ("nonnegative=True", {"nonnegative": True}),
    "known blocks": ("Block(8)", {"prior": cofem.Block(8)}),
    "clusters": ("PatternCoupled(1.0)", {"prior": cofem.PatternCoupled(1.0)}),
    "one support": ("MultiTask()", {"prior": cofem.MultiTask()}),
    "all matter": ("Power(2)", {"prior": cofem.Power(2)}),
}


# %%
# The signals
# -----------
# Each has shape (256, number of signals); only "one support" has more than one.


def draw(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return signals of a kind."""
    z = np.zeros((COLUMNS, TASKS if kind == "one support" else 1))
    if kind == "all matter":
        return 0.2 * rng.standard_normal(z.shape)
    if kind == "known blocks":
        places = (8 * rng.choice(COLUMNS // 8, 4, replace=False)[:, None] + np.arange(8)).ravel()
    elif kind == "clusters":
        starts = 40 * rng.choice(6, 3, replace=False) + rng.integers(0, 25, 3)
        places = (starts[:, None] + np.arange(11)).ravel()
    else:
        places = rng.choice(COLUMNS, 24, replace=False)
    z[places] = rng.standard_normal((places.size, z.shape[1]))
    return np.abs(z) if kind == "not negative" else z


# %%
# The comparison
# --------------
# The only difference between the fits of cofem is what they are told about the signal.


def run(seed: int, kind: str, scores: Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare on one signal; return it, the mean and the standard deviation of the fit that suits it."""
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((DATA, COLUMNS)) / np.sqrt(DATA)
    z = draw(kind, rng)
    Y = Phi @ z + NOISE_STD * rng.standard_normal((DATA, z.shape[1]))
    y = Y if z.shape[1] > 1 else Y[:, 0]

    def lasso() -> np.ndarray:
        models = [
            LassoCV(fit_intercept=False, cv=5, max_iter=20_000, tol=1e-3).fit(Phi, each) for each in Y.T
        ]
        return np.stack([model.coef_ for model in models], axis=1)

    def error(found: np.ndarray) -> float:
        return nrmse(found.reshape(z.shape), z)

    found, seconds = timed(lasso)
    scores.add("LassoCV", error(found), seconds)
    words, settings = KINDS[kind]
    suited = f"cofem, {words}" if settings else "cofem, default"
    fits = {"cofem, default": {}, suited: settings, "cofem, auto": {"prior": "auto"}}
    posts = {}
    for label, named in fits.items():
        posts[label], seconds = timed(cofem.fit, Phi, y, rng=seed, **named)
        lower, upper = (bound.reshape(z.shape) for bound in posts[label].credible_interval(0.95))
        held = np.mean((lower <= z) & (z <= upper))
        scores.add(label, error(posts[label].mean), seconds, held)
    post = posts[suited]
    return z[:, 0], post.mean.reshape(z.shape)[:, 0], post.std.reshape(z.shape)[:, 0]


# %%
# Run it
# ------
# A table for each kind. In the figure, grey is the truth, and blue what the prior that suits it found, with
# intervals of two standard deviations.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    figure = Figure(figsize=(10, 7), layout="constrained")
    for ax, kind in zip(figure.subplots(3, 2).ravel(), KINDS, strict=True):
        scores = Scores(".1%")
        truth, mean, std = scores.over(seeds, run, kind)
        scores.table(f"NRMSE, {kind}")
        place = np.arange(COLUMNS)
        ax.vlines(place, 0, truth, color="0.75", lw=3)
        live = np.flatnonzero(np.abs(mean) > 0.02 * np.abs(mean).max())
        ax.errorbar(place[live], mean[live], 2 * std[live], fmt=".", color=BLUE, ms=4, lw=0.8)
        ax.axhline(0, color="0.3", lw=0.5)
        ax.set_title(f"{kind}: {KINDS[kind][0]}", fontsize=10)
    save(figure, out / "priors.png", dpi=80)
    save_curves(figure.axes[3], out / "thumbnails/priors.png")


if __name__ == "__main__":
    main()
