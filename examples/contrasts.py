"""Several contrasts of one head
=============================

Several contrasts of one head, each from other lines of k-space: what they share helps all of them.

Task: recover three pictures of the same anatomy from a quarter of their Fourier coefficients each, sampled at
different places, with noise. Edges are at the same places; how bright a tissue is differs.

Data: the head that ships with matplotlib, 128 x 128, and two further contrasts that are made of it (the
brightness of tissues is changed by a curve that rises and falls), since no package ships several contrasts.

Compared with: PyLops' FISTA in the same wavelets, each contrast by itself, its penalty tuned with the true
pictures, which no user has; and cofem on each contrast by itself. ``MultiTask`` on a list of dictionaries
shares precisions between the contrasts. All are synthesis in the same wavelets; the noise is given.

Needs: pylops.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/contrasts.png'

from __future__ import annotations

import numpy as np
import pylops
from _common import Scores, nrmse, save, save_pictures, start_with_seeds, timed
from mri import draw_mask, load_image
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import FFT, Mask, Wavelet
from cofem.plotting import ImageDisplay

NOISE_STD, WAVELET = 0.01, "db4"
PENALTIES = (0.001, 0.002, 0.005, 0.01, 0.02)


# %%
# Three contrasts
# ---------------
# Two are made of the first.


def contrasts(image: np.ndarray) -> list[np.ndarray]:
    """Return three pictures of the same anatomy."""
    second = image * (1.3 - image) * 2
    third = np.where(image > 0.05, 1.1 - image, image * 4) * np.minimum(1, image * 10)
    return [each / each.max() for each in (image, second, third)]


# %%
# The comparison
# --------------
# A list of dictionaries with a list of data are tasks; ``MultiTask`` has them share precisions.


def run(seed: int, truths: list[np.ndarray], scores: Scores) -> dict[str, np.ndarray]:
    """Compare on one draw of frequencies and noise; return pictures."""
    rng = np.random.default_rng(seed)
    shape = truths[0].shape
    synthesis = Wavelet(shape, WAVELET).T
    dictionaries, data = [], []
    for truth in truths:
        mask = draw_mask(rng)
        noise = rng.standard_normal((2, mask.sum())) * NOISE_STD / np.sqrt(2)
        y = np.fft.fft2(truth, norm="ortho")[mask] + noise[0] + 1j * noise[1]
        data.append(y.astype(np.complex64))
        dictionaries.append(Mask(mask) @ FFT(shape) @ synthesis)

    def pictures(coefficients: np.ndarray) -> list[np.ndarray]:
        return [abs(synthesis @ each).reshape(shape) for each in coefficients.T]

    def error(found: list[np.ndarray]) -> float:
        return float(np.mean([nrmse(one, truth) for one, truth in zip(found, truths, strict=True)]))

    def fista(penalty: float) -> list[np.ndarray]:
        found = []
        for Phi, y in zip(dictionaries, data, strict=True):
            operator = pylops.LinearOperator(aslinearoperator(Phi.astype(np.float32)))
            solve = pylops.optimization.sparsity.fista
            found.append(solve(operator, y, niter=150, eps=2 * penalty, alpha=1.0, tol=1e-6)[0])
        return pictures(np.stack(found, axis=1))

    scores.tune("PyLops FISTA, each by itself, tuned", fista, PENALTIES, error)
    shown = {}
    for name, prior in {"each by itself": None, "MultiTask()": cofem.MultiTask()}.items():
        post, seconds = timed(cofem.fit, dictionaries, data, noise_std=NOISE_STD, prior=prior, rng=seed)
        found = pictures(np.asarray(post.mean))
        scores.add(f"cofem, {name}", error(found), seconds)
        print(f"    {post.n_iter} steps; {post.status}")
        shown |= {f"{i + 1}: {name}, {nrmse(each, truths[i]):.1%}": each for i, each in enumerate(found)}
    return {f"{i + 1}: original": truth for i, truth in enumerate(truths)} | shown


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    scores = Scores(".2%")
    panels = scores.over(seeds, run, contrasts(load_image()))
    scores.table("mean NRMSE of three contrasts")
    display = ImageDisplay(panels).plot()
    display.figure_.suptitle("Three contrasts from 30 % of their Fourier coefficients each")
    save(display.figure_, out / "contrasts.png", dpi=60)
    alone, together = list(panels.values())[5::3]  # the third contrast
    save_pictures((alone, together), out / "thumbnails/contrasts.png", ("gray", "gray"))


if __name__ == "__main__":
    main()
