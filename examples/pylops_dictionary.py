"""A PyLops operator as dictionary
===============================

A PyLops operator as the dictionary: sea surface temperatures of which half are missing.

Task: fill in a series of which samples were lost, with the operators of PyLops: `Restriction` picks the
samples, the adjoint of `DCT` makes a series of cosines. `cofem.fit` takes their product as it is.

Data: the Nino 3 sea surface temperatures of PyWavelets (``pywt.data.nino``), 264 quarters from 1950 on;
half of them are left out.

Compared with: PyLops' own sparse solvers on the same operator, `fista` (penalty tuned with the samples that
were lost, which no user has) and `spgl1` (given the noise that cofem learned), and linear interpolation.

Needs: pylops, spgl1.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/pylops_dictionary.png'

from __future__ import annotations

import numpy as np
import pylops
import pywt
from _common import BLUE, nrmse, save, save_curves, start, table, timed
from matplotlib.figure import Figure
from pylops.optimization import sparsity

import cofem

SHARE = 0.5
PENALTIES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out = start(__doc__)
    rng = np.random.default_rng(0)
    years, series = pywt.data.nino()
    series = series - series.mean()
    length = series.size
    seen = np.sort(rng.choice(length, round(SHARE * length), replace=False))
    lost = np.setdiff1d(np.arange(length), seen)

    synthesis = pylops.signalprocessing.DCT(length).H
    Phi = pylops.Restriction(length, seen) @ synthesis
    y = series[seen]

    def error(found: np.ndarray) -> float:
        return nrmse(found[lost], series[lost])

    def row(label: str, found: np.ndarray, seconds: float, extra: str = "") -> tuple[str, ...]:
        return label, f"{error(found):.0%}", f"{seconds:.2f}", extra

    straight, seconds = timed(np.interp, np.arange(length), seen, y)
    rows = [row("linear interpolation", straight, seconds)]

    post, seconds = timed(cofem.fit, Phi, y, rng=0)
    print(f"cofem: {post.n_iter} steps, {post.support().size} in the support; {post.status}\n")
    mean, std = post.predict(synthesis, return_std=True, rng=1)
    inside = np.mean((abs(mean - series) < 1.96 * std)[lost])
    extra = f"noise {post.noise_std:.2f}; 95 % intervals hold {inside:.0%} of the lost samples"

    def fista(penalty: float) -> np.ndarray:
        # The soft threshold is half of eps.
        return synthesis @ sparsity.fista(Phi, y, niter=300, eps=2 * penalty, alpha=1.0, tol=1e-6)[0]

    best, lasso_seconds = min((timed(fista, penalty) for penalty in PENALTIES), key=lambda r: error(r[0]))
    rows.append(row("PyLops fista, tuned", best, lasso_seconds))
    sigma = post.noise_std * np.sqrt(y.size)
    (found, *_), pursuit_seconds = timed(sparsity.spgl1, Phi, y, sigma=sigma, iter_lim=500)
    rows.append(row("PyLops spgl1", synthesis @ found, pursuit_seconds))
    rows.append(row("cofem", mean, seconds, extra))
    table(("method", "NRMSE of the lost samples", "CPU s", "besides"), rows)

    figure = Figure(figsize=(11, 4), layout="constrained")
    ax = figure.subplots()
    ax.fill_between(
        years, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.2, lw=0, label="95 % interval"
    )
    ax.plot(years, mean, color=BLUE, lw=1, label="cofem, mean")
    ax.plot(years[lost], series[lost], "o", mfc="none", mec="0.4", ms=3.5, label="lost samples")
    ax.plot(years[seen], y, "k.", ms=5, label="seen samples")
    ax.set(
        xlabel="year",
        ylabel="standardised temperature",
        title="Nino 3 sea surface temperature, filled in with the cosines of PyLops",
        xlim=(1970, 2000),
    )
    ax.legend(frameon=False, ncols=4, loc="lower left")
    ax.set_ylim(-4, 4)
    save(figure, out / "pylops_dictionary.png", dpi=90)
    save_curves(ax, out / "thumbnails/pylops_dictionary.png", xlim=(1985, 1997))


if __name__ == "__main__":
    main()
