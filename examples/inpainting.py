"""Inpainting a photograph
=======================

Inpainting: a photograph from 40 % of its pixels.

Task: fill in the pixels that were not seen, and remove the noise from those that were. The noise is
not known.

Data: the cameraman of PyWavelets (``pywt.data.camera``), averaged to 256 x 256 pixels, with noise of 2 % and
of 10 % of the range added.

Compared with: scikit-image's ``inpaint_biharmonic``, alone and followed by ``denoise_tv_chambolle``, whose
weight is tuned with the true image, which no user has. cofem is given the pixels and nothing else:
``analysis="auto"`` has it choose which differences are sparse and how they share precisions, and learn the
noise, from pixels that it holds out.

Needs: scikit-image.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/inpainting.png'

from __future__ import annotations

import numpy as np
import pywt
from _common import Scores, save, save_pictures, start_with_seeds, timed
from skimage.restoration import denoise_tv_chambolle, inpaint_biharmonic

import cofem
from cofem.operators import Mask
from cofem.plotting import ImageDisplay

SIZE, SHARE = 256, 0.4
WEIGHTS = {0.02: (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1), 0.1: (0.05, 0.07, 0.1, 0.12, 0.15, 0.2)}


# %%
# The comparison
# --------------
# The dictionary is ``Mask(seen)``: which pixels were seen.


def run(seed: int, image: np.ndarray, noise_std: float, scores: Scores) -> dict[str, np.ndarray]:
    """Compare on one draw of pixels and noise; return pictures."""
    rng = np.random.default_rng(seed)
    seen = rng.random(image.shape) < SHARE
    noise = {std: std * rng.standard_normal(image.shape).astype(np.float32) for std in WEIGHTS}
    observed = image + noise[noise_std]

    def error(found: np.ndarray) -> float:
        return float(10 * np.log10(np.mean((found - image)[~seen] ** 2)))

    smooth, before = timed(inpaint_biharmonic, np.where(seen, observed, 0), ~seen)
    scores.add("inpaint_biharmonic", error(smooth), before)
    name, weights = "the same and denoise_tv_chambolle, tuned", WEIGHTS[noise_std]
    best = scores.tune(name, lambda w: denoise_tv_chambolle(smooth, w), weights, error, before=before)

    post, seconds = timed(cofem.fit, Mask(seen), observed[seen], analysis="auto", rng=seed)
    found, std = post.mean.reshape(image.shape), post.std.reshape(image.shape)
    held = np.mean((abs(found - image) < 1.96 * std)[~seen])
    scores.add('cofem, analysis="auto"', error(found), seconds, held)
    print(f"    noise {post.noise_std:.3f}; {post.n_iter} steps; {post.status}")
    return {
        "original": image,
        f"input, {seen.mean():.0%} of the pixels": np.where(seen, observed, np.nan),
        f"biharmonic and TV, {-error(best):.1f} dB": best,
        f"cofem, {-error(found):.1f} dB": found,
        ImageDisplay.UNCERTAINTY: std,
    }


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    image = (pywt.data.camera() / 255).reshape(SIZE, 2, SIZE, 2).mean(axis=(1, 3)).astype(np.float32)
    results = {noise_std: Scores(".2f") for noise_std in WEIGHTS}
    panels = [scores.over(seeds, run, image, noise_std) for noise_std, scores in results.items()]
    for noise_std, scores in results.items():
        scores.table(f"PSNR of the unseen in dB, noise {noise_std:.0%}")
    display = ImageDisplay(panels[0]).plot()
    save(display.figure_, out / "inpainting.png", dpi=72)
    save_pictures(list(panels[0].values())[-2:], out / "thumbnails/inpainting.png")
    titles = list(panels[0])
    row = {title: panels[0][title] for title in (titles[1], *titles[-2:])}  # input, cofem, standard deviation
    save(ImageDisplay(row).plot().figure_, out / "thumbnails/inpainting-row.png", dpi=72)


if __name__ == "__main__":
    main()
