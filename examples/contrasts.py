"""Several contrasts of one head
=============================

Several contrasts of one head, each from other lines of k-space: what they share helps all of them.

Task: recover three pictures of the same anatomy from a quarter of their Fourier coefficients each, sampled at
different places, with noise. Edges are at the same places; how bright a tissue is differs.

Data: the head that ships with matplotlib, 128 x 128, and two further contrasts that are made of it (the
brightness of tissues is changed by a curve that rises and falls), since no package ships several contrasts.

Compared with: PyLops' FISTA in wavelets and SigPy's total variation, each contrast by itself, their penalties
tuned with the true pictures, which no user has; and cofem on each contrast by itself. ``MultiTask`` on a list
of dictionaries has the contrasts share precisions: a difference is small, or not, in all of them. cofem is
given the noise level and nothing else.

Needs: pylops, sigpy.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/contrasts.png'

from __future__ import annotations

import numpy as np
import pylops
from _common import Scores, nrmse, save, save_pictures, start_with_seeds, timed
from matplotlib import pyplot as plt
from mri import by_sigpy, draw_mask, load_image
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import FFT, Mask, Wavelet
from cofem.plotting import ImageDisplay

NOISE_STD, WAVELET = 0.01, "db4"
PENALTIES = (0.001, 0.002, 0.005, 0.01, 0.02)
TV_PENALTIES, TV_STEPS = (0.0005, 0.0007, 0.001, 0.0015, 0.002), 1000


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
    operators, data, kspaces = [], [], []
    for truth in truths:
        mask = draw_mask(rng)
        noise = rng.standard_normal((2, mask.sum())) * NOISE_STD / np.sqrt(2)
        y = np.fft.fft2(truth, norm="ortho")[mask] + noise[0] + 1j * noise[1]
        data.append(y.astype(np.complex64))
        operators.append(Mask(mask) @ FFT(shape))
        kspaces.append(np.zeros(shape, np.complex64))
        kspaces[-1][mask] = y

    def error(found: list[np.ndarray]) -> float:
        return float(np.mean([nrmse(abs(one), truth) for one, truth in zip(found, truths, strict=True)]))

    def fista(penalty: float) -> list[np.ndarray]:
        found = []
        for Phi, y in zip(operators, data, strict=True):
            operator = pylops.LinearOperator(aslinearoperator((Phi @ synthesis).astype(np.float32)))
            solve = pylops.optimization.sparsity.fista
            found.append(solve(operator, y, niter=150, eps=2 * penalty, alpha=1.0, tol=1e-6)[0])
        return [(synthesis @ each).reshape(shape) for each in found]

    def variation(penalty: float) -> list[np.ndarray]:
        return [by_sigpy("TotalVariationRecon", kspace, penalty, TV_STEPS) for kspace in kspaces]

    scores.tune("PyLops FISTA, each by itself, tuned", fista, PENALTIES, error)
    name = f"SigPy TotalVariationRecon, {TV_STEPS} steps, each by itself, tuned"
    tv = scores.tune(name, variation, TV_PENALTIES, error)
    shown = {f"total variation, {nrmse(abs(one), truths[i]):.1%}": abs(one) for i, one in enumerate(tv)}
    for name, prior in {"each by itself": None, "MultiTask()": cofem.MultiTask()}.items():
        given = {"noise_std": NOISE_STD, "prior": prior, "analysis": "auto", "rng": seed}
        post, seconds = timed(cofem.fit, operators, data, **given)
        found = [mean.reshape(shape) for mean in np.asarray(post.mean).T]
        # Pixels are complex: 95 % of a circular normal lie within sqrt(log 20) standard deviations.
        off = [abs(one - truth).ravel() for one, truth in zip(found, truths, strict=True)]
        held = np.mean(np.array(off) < np.sqrt(np.log(20)) * np.asarray(post.std).T)
        scores.add(f'cofem, analysis="auto", {name}', error(found), seconds, held)
        print(f"    {post.n_iter} steps; {post.status}")
        shown |= {f"{name}, {nrmse(abs(one), truths[i]):.1%}": abs(one) for i, one in enumerate(found)}
    return {f"contrast {i + 1}": truth for i, truth in enumerate(truths)} | shown


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
    figure, axes = plt.subplots(4, 3, figsize=(9, 12), layout="constrained")
    ImageDisplay(panels).plot(ax=axes.ravel())
    figure.suptitle("Three contrasts from 30 % of their Fourier coefficients each")
    save(figure, out / "contrasts.png", dpi=60)
    alone, together = list(panels.values())[8::3]  # the third contrast
    save_pictures((alone, together), out / "thumbnails/contrasts.png", ("gray", "gray"))


if __name__ == "__main__":
    main()
