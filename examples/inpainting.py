"""Inpainting: a photograph from 40 % of its pixels.

Task: fill in the pixels that were not seen, and remove the noise from those that were.

Data: the cameraman of PyWavelets (``pywt.data.camera``), averaged to 256 x 256 pixels, with noise of 2 % and
of 10 % of the range added. The dictionary is the cosine transform of the whole image.

Compared with: scikit-image's ``inpaint_biharmonic``, alone and followed by ``denoise_tv_chambolle`` (its
weight tuned with the true image, which no user has), and SciPy's cubic ``griddata``. cofem learns the
noise, or is given it.

A photograph is not sparse in cosines, but how fast its coefficients fall off with the frequency is: with
``prior=Block(rings)`` those of like frequency and direction share a precision, 240 in all.

Needs: scikit-image.
"""

from __future__ import annotations

import numpy as np
import pywt
from _common import save, start, table, timed
from scipy.interpolate import griddata
from skimage.restoration import denoise_tv_chambolle, inpaint_biharmonic

import cofem
from cofem.operators import DCT, Mask
from cofem.plotting import ImageDisplay

SIZE, SHARE = 256, 0.4
WEIGHTS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2)


def rings(n: int) -> np.ndarray:
    """Label each cosine coefficient of an n x n image by its frequency and its direction."""
    vertical, horizontal = np.indices((n, n))
    radius = np.log1p(np.hypot(vertical, horizontal))
    angle = np.arctan2(vertical, horizontal)
    ring = np.digitize(radius, np.linspace(0, radius.max(), 40))
    return (6 * ring + np.digitize(angle, np.linspace(0, np.pi / 2, 6, endpoint=False))).ravel()


def interpolated(seen: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Fill in by cubic interpolation, and by the nearest pixel outside of the seen ones' hull."""
    where, everywhere = np.argwhere(seen), tuple(np.indices(seen.shape))
    cubic = griddata(where, pixels, everywhere, method="cubic")
    return np.where(np.isnan(cubic), griddata(where, pixels, everywhere, method="nearest"), cubic)


def main() -> None:
    """Run the example."""
    out = start(__doc__)
    rng = np.random.default_rng(0)
    image = (pywt.data.camera() / 255).reshape(SIZE, 2, SIZE, 2).mean(axis=(1, 3)).astype(np.float32)
    seen = rng.random(image.shape) < SHARE
    synthesis = DCT(image.shape).T
    Phi = Mask(seen) @ synthesis

    def psnr(recovery: np.ndarray) -> str:
        return f"{-10 * np.log10(np.mean((recovery - image)[~seen] ** 2)):.1f}"

    panels = {}
    rows = []
    for noise_std in (0.02, 0.1):
        observed = image + noise_std * rng.standard_normal(image.shape).astype(np.float32)
        name = f"{noise_std:.0%}"
        smooth, seconds = timed(inpaint_biharmonic, np.where(seen, observed, 0), ~seen)
        rows.append((name, "scikit-image inpaint_biharmonic", psnr(smooth), f"{seconds:.1f}", ""))
        tried = [timed(denoise_tv_chambolle, smooth, weight) for weight in WEIGHTS]
        best, more = min(tried, key=lambda result: np.mean((result[0] - image)[~seen] ** 2))
        rows.append((name, "the same and denoise_tv_chambolle", psnr(best), f"{seconds + more:.1f}", ""))
        cubic, seconds = timed(interpolated, seen, observed[seen])
        rows.append((name, "SciPy griddata, cubic", psnr(cubic), f"{seconds:.1f}", ""))
        for label, prior, known in [
            ("cofem, independent", cofem.Independent(), "learn"),
            ("cofem, Block(rings)", cofem.Block(rings(SIZE)), "learn"),
            ("cofem, Block(rings), noise given", cofem.Block(rings(SIZE)), noise_std),
        ]:
            post, seconds = timed(cofem.fit, Phi, observed[seen], noise_std=known, prior=prior, rng=0)
            recovery = (synthesis @ post.mean).reshape(image.shape)
            draws, sampling = timed(post.sample, 32, rng=1)
            deviation = np.std(synthesis.forward(draws), axis=0, ddof=1).reshape(image.shape)
            inside = np.mean((abs(recovery - image) < 1.96 * deviation)[~seen])
            extra = (
                f"noise {post.noise_std:.3f}; standard deviations (32 draws, {sampling:.1f} s), "
                f"95 % intervals hold {inside:.0%} of the unseen"
            )
            rows.append((name, label, psnr(recovery), f"{seconds:.1f}", extra))
            print(f"{label}, noise {name}: {post.n_iter} steps; {post.status}\n")
        if not panels:
            panels = {
                "original": image,
                f"input, {seen.mean():.0%} of the pixels": np.where(seen, observed, np.nan),
                f"biharmonic and TV, {psnr(best)} dB": best,
                f"cofem, {psnr(recovery)} dB": recovery,
                ImageDisplay.UNCERTAINTY: deviation,
            }

    table(("noise", "method", "PSNR of the unseen in dB", "CPU s", "besides"), rows)
    display = ImageDisplay(panels).plot()
    save(display.figure_, out / "inpainting.png", dpi=72)


if __name__ == "__main__":
    main()
