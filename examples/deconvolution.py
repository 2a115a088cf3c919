"""Deconvolution of galaxies
=========================

Deconvolution: galaxies of the Hubble deep field, blurred and noisy.

Task: undo a blur whose point-spread function is known (a Gaussian of standard deviation 2 pixels), with noise
of 1 % of the range.

Data: 96 x 96 pixels of the Hubble deep field that ships with scikit-image
(``skimage.data.hubble_deep_field``), in grey. Blur and noise are added, so that the truth is known.

Compared with: scikit-image's ``richardson_lucy`` (number of steps tuned with the true image) and ``wiener``
(balance tuned likewise). cofem is given the noise level, and in the last row that light is not negative,
which Richardson-Lucy takes for granted; ``analysis="auto"`` has it choose which differences are sparse and
how they share precisions.

Needs: scikit-image.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/deconvolution.png'

from __future__ import annotations

import numpy as np
from _common import Scores, nrmse, save, save_pictures, start_with_seeds, timed
from skimage import color, data, restoration

import cofem
from cofem.operators import Convolution
from cofem.plotting import ImageDisplay

SIZE, MARGIN, NOISE_STD = 96, 8, 0.01
STEPS = (5, 10, 20, 30, 40, 60, 80, 120)
BALANCES = (0.001, 0.003, 0.01, 0.03, 0.1)
#: Errors are counted without the margin, where the tools differ in what they take to be outside.
INNER = (slice(MARGIN, -MARGIN), slice(MARGIN, -MARGIN))


# %%
# The blur
# --------
# A spot of two pixels.


def gaussian(width: float) -> np.ndarray:
    """Return a Gaussian spot of that standard deviation in pixels and of sum 1."""
    reach = np.arange(1 - np.ceil(4 * width), np.ceil(4 * width))
    profile = np.exp(-(reach**2) / (2 * width**2))
    return np.outer(profile, profile) / profile.sum() ** 2


# %%
# The comparison
# --------------
# The dictionary is ``Convolution(psf, shape)``; its grid tells ``analysis="auto"`` the rest.


def run(seed: int, image: np.ndarray, scores: Scores) -> dict[str, np.ndarray]:
    """Compare on one draw of the noise; return pictures."""
    psf = gaussian(2.0)
    blur = Convolution(psf, image.shape)
    y = blur @ image.ravel() + NOISE_STD * np.random.default_rng(seed).standard_normal(image.size)
    observed = y.reshape(image.shape)
    positive = np.clip(observed, 0, None)

    def error(found: np.ndarray) -> float:
        return nrmse(found[INNER], image[INNER])

    def lucy(steps: int) -> np.ndarray:
        return restoration.richardson_lucy(positive, psf, steps, clip=False)

    def wiener(balance: float) -> np.ndarray:
        return restoration.wiener(observed, psf, balance, clip=False)

    scores.add("none: the input", error(observed), 0.0)
    best = scores.tune("richardson_lucy, tuned", lucy, STEPS, error)
    scores.tune("wiener, tuned", wiener, BALANCES, error)
    for label, nonnegative in (('cofem, analysis="auto"', False), ("the same, nonnegative=True", True)):
        options = {"noise_std": NOISE_STD, "analysis": "auto", "nonnegative": nonnegative, "rng": seed}
        post, seconds = timed(cofem.fit, blur, y, **options)
        found, std = post.mean.reshape(image.shape), post.std.reshape(image.shape)
        lower, upper = (bound.reshape(image.shape)[INNER] for bound in post.credible_interval(0.95))
        held = np.mean((lower < image[INNER]) & (image[INNER] < upper))
        scores.add(label, error(found), seconds, held)
        print(f"    {post.n_iter} steps; {post.status}")
    panels = {
        "original": image,
        "input": observed,
        f"richardson_lucy, {error(best):.1%}": best,
        f"cofem, {error(found):.1%}": found,
    }
    # The brightest core would leave the rest of the sky black.
    panels = {title: np.clip(panel, 0, np.percentile(image, 99.8)) for title, panel in panels.items()}
    return panels | {ImageDisplay.UNCERTAINTY: std}


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    image = color.rgb2gray(data.hubble_deep_field())[232 : 232 + SIZE, 300 : 300 + SIZE]
    scores = Scores(".1%")
    panels = scores.over(seeds, run, image)
    scores.table("NRMSE")
    display = ImageDisplay(panels).plot()
    save(display.figure_, out / "deconvolution.png", dpi=64)
    save_pictures(list(panels.values())[-2:], out / "thumbnails/deconvolution.png")


if __name__ == "__main__":
    main()
