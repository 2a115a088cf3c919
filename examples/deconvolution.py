"""Deconvolution: galaxies of the Hubble deep field, blurred and noisy.

Task: undo a blur whose point-spread function is known (a Gaussian of standard deviation 2 pixels), with noise
of 1 % of the range.

Data: 96 x 96 pixels of the Hubble deep field that ships with scikit-image
(``skimage.data.hubble_deep_field``), in grey. Blur and noise are added, so that the truth is known.

Compared with: scikit-image's ``richardson_lucy`` (number of steps tuned with the true image), ``wiener``
(balance tuned likewise) and ``unsupervised_wiener`` (nothing to tune). cofem is given the noise level.

The dictionary says that the sky is a sum of few Gaussian spots of two sizes on an even background; the sizes
were chosen among a few with the true image, as the comparators' settings were. Single pixels as the
dictionary do much worse than every comparator, and wavelets still worse: detail that the blur all but removes
costs nothing in the evidence, and comes back with large coefficients.

Needs: scikit-image.
"""

from __future__ import annotations

import numpy as np
from _common import nrmse, save, start, table, timed
from skimage import color, data, restoration

import cofem
from cofem.operators import Convolution, Identity, Operator, hstack
from cofem.plotting import ImageDisplay

SIZE, MARGIN, NOISE_STD = 96, 8, 0.01
STEPS = (3, 5, 8, 12, 20, 40)
BALANCES = (0.001, 0.003, 0.01, 0.03, 0.1)


def spot(width: float) -> np.ndarray:
    """Return a Gaussian of that standard deviation in pixels."""
    reach = np.arange(-np.ceil(4 * width), np.ceil(4 * width) + 1)
    profile = np.exp(-(reach**2) / (2 * width**2))
    return np.outer(profile, profile)


def spots(*widths: float) -> Operator:
    """Return the dictionary of Gaussian spots of these widths at every pixel, of norm 1 each."""
    kernels = (spot(width) for width in widths)
    return hstack([Convolution(kernel / np.linalg.norm(kernel), (SIZE, SIZE)) for kernel in kernels])


def error(found: np.ndarray, image: np.ndarray) -> float:
    """Return the NRMSE without the margin, where the tools differ in what they take to be outside."""
    inner = slice(MARGIN, -MARGIN)
    return nrmse(found[inner, inner], image[inner, inner])


def main() -> None:
    """Run the example."""
    out = start(__doc__)
    rng = np.random.default_rng(0)
    image = color.rgb2gray(data.hubble_deep_field())[232 : 232 + SIZE, 300 : 300 + SIZE]
    psf = spot(2.0)[1:-1, 1:-1]
    psf /= psf.sum()
    blur = Convolution(psf, (SIZE, SIZE))
    y = blur @ image.ravel() + NOISE_STD * rng.standard_normal(image.size)
    observed = y.reshape(image.shape)

    rows = [("none: the input", f"{error(observed, image):.1%}", "0.0", "")]
    positive = np.clip(observed, 0, None)
    tried = [timed(restoration.richardson_lucy, positive, psf, steps, clip=False) for steps in STEPS]
    lucy, seconds = min(tried, key=lambda result: error(result[0], image))
    rows.append(("scikit-image richardson_lucy", f"{error(lucy, image):.1%}", f"{seconds:.1f}", ""))
    tried = [timed(restoration.wiener, observed, psf, balance, clip=False) for balance in BALANCES]
    wiener, seconds = min(tried, key=lambda result: error(result[0], image))
    rows.append(("scikit-image wiener", f"{error(wiener, image):.1%}", f"{seconds:.1f}", ""))
    (found, _), seconds = timed(restoration.unsupervised_wiener, observed, psf, clip=False, rng=0)
    rows.append(("scikit-image unsupervised_wiener", f"{error(found, image):.1%}", f"{seconds:.1f}", ""))

    background = np.median(y)
    for label, synthesis in [
        ("cofem, single pixels", Identity(image.size)),
        ("cofem, spots of widths 1.5 and 3", spots(1.5, 3.0)),
    ]:
        post, seconds = timed(cofem.fit, blur @ synthesis, y - background, noise_std=NOISE_STD, rng=0)
        recovery = (synthesis @ post.mean).reshape(image.shape) + background
        rows.append((label, f"{error(recovery, image):.1%}", f"{seconds:.1f}", ""))
        print(f"{label}: {post.n_iter} steps, {post.support().size} in the support; {post.status}\n")
    draws, sampling = timed(post.sample, 12, rng=1)
    deviation = np.std(synthesis.forward(draws), axis=0, ddof=1).reshape(image.shape)
    inside = np.mean(abs(recovery - image) < 1.96 * deviation)
    extra = (
        f"standard deviations (12 draws, {sampling:.1f} s); 95 % intervals hold {inside:.0%} of the pixels"
    )
    rows[-1] = (*rows[-1][:-1], extra)

    table(("method", "NRMSE", "CPU s", "besides"), rows)
    panels = {
        "original": image,
        "input": observed,
        f"richardson_lucy, {error(lucy, image):.0%}": lucy,
        f"wiener, {error(wiener, image):.0%}": wiener,
        f"cofem, {error(recovery, image):.0%}": recovery,
    }
    # The brightest core would leave the rest of the sky black.
    panels = {title: np.clip(panel, 0, np.percentile(image, 99.8)) for title, panel in panels.items()}
    display = ImageDisplay(panels | {ImageDisplay.UNCERTAINTY: deviation}).plot()
    save(display.figure_, out / "deconvolution.png", dpi=64)


if __name__ == "__main__":
    main()
