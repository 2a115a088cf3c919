"""MRI from undersampled k-space
=============================

Magnetic resonance image from undersampled k-space, with a map of its uncertainty.

Task: recover an image from 30 % of its Fourier coefficients, sampled at random and more densely at low
frequencies, with noise.

Data: a sagittal slice of a head that ships with matplotlib (``s1045.ima.gz``), averaged to 128 x 128 pixels.
Only its magnitude is stored, so k-space is computed from it: one coil, no phase.

Compared with: SigPy's ``L1WaveletRecon`` and ``TotalVariationRecon``, which MRI users have today, and PyLops'
FISTA in wavelets. Their penalties are tuned with the true image, which no user has. cofem is given the noise
level, which an MRI scanner measures, and nothing else: ``analysis="auto"`` has it choose which differences
are sparse and how they share precisions. It is also run in synthesis, on the wavelets of FISTA.

Needs: sigpy, pylops.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/mri.png'

from __future__ import annotations

from typing import Any

import numpy as np
import pylops
import sigpy.mri
from _common import Scores, nrmse, save, save_pictures, start_with_seeds, timed
from matplotlib import cbook
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import FFT, Mask, Wavelet
from cofem.plotting import ImageDisplay

SIZE, SHARE, NOISE_STD = 128, 0.3, 0.01
PENALTIES = (0.001, 0.002, 0.005, 0.01, 0.02)
TV_PENALTIES = {300: (0.001, 0.0015, 0.002, 0.003, 0.005), 1000: (0.0005, 0.0007, 0.001, 0.0015, 0.002)}


# %%
# The picture and its frequencies
# -------------------------------
# Low frequencies are all sampled, higher ones ever less.


def load_image() -> np.ndarray:
    """Return the slice, from 0 to 1, in single precision."""
    with cbook.get_sample_data("s1045.ima.gz") as file:
        stored = np.frombuffer(file.read(), ">u2").reshape(256, 256)
    image = stored.reshape(SIZE, 2, SIZE, 2).mean(axis=(1, 3))
    return (image / image.max()).astype(np.float32)


def draw_mask(rng: np.random.Generator) -> np.ndarray:
    """Choose the frequencies, in the order of `numpy.fft`: all of the lowest, ever fewer of the higher."""
    frequency = np.fft.fftfreq(SIZE)
    density = (1 - np.clip(np.hypot(*np.meshgrid(frequency, frequency)) / 0.71, 0, 1)) ** 3
    factors = np.linspace(0.1, 20, 2000)
    shares = [np.minimum(1, factor * density).mean() for factor in factors]
    return rng.random((SIZE, SIZE)) < np.minimum(1, factors[np.searchsorted(shares, SHARE)] * density)


# %%
# The tools to compare with
# -------------------------
# SigPy has the zero frequency in the middle of k-space.


def by_sigpy(name: str, kspace: np.ndarray, penalty: float, steps: int, **options: Any) -> np.ndarray:
    """Recover by SigPy, whose k-space has the zero frequency in the middle."""
    kspace = np.fft.fftshift(kspace)[None]
    sensitivity, weights = np.ones(kspace.shape, np.complex64), (kspace[0] != 0).astype(np.float32)
    app = getattr(sigpy.mri.app, name)(
        kspace, sensitivity, penalty, weights=weights, max_iter=steps, show_pbar=False, **options
    )
    return np.fft.ifftshift(app.run())


# %%
# The comparison
# --------------
# The dictionary is ``Mask(k) @ FFT(shape)``.


def run(seed: int, image: np.ndarray, scores: Scores) -> dict[str, np.ndarray]:
    """Compare on one draw of frequencies and noise; return pictures."""
    rng = np.random.default_rng(seed)
    mask = draw_mask(rng)
    noise = rng.standard_normal((2, mask.sum())) * NOISE_STD / np.sqrt(2)
    y = (np.fft.fft2(image, norm="ortho")[mask] + noise[0] + 1j * noise[1]).astype(np.complex64)
    kspace = np.zeros(image.shape, np.complex64)
    kspace[mask] = y
    filled = np.fft.ifft2(kspace, norm="ortho")
    Phi, synthesis = Mask(mask) @ FFT(image.shape), Wavelet(image.shape, "db4").T
    dictionary = pylops.LinearOperator(aslinearoperator((Phi @ synthesis).astype(np.float32)))

    def error(found: np.ndarray) -> float:
        return nrmse(abs(found), image)

    def wavelets(penalty: float) -> np.ndarray:
        return by_sigpy("L1WaveletRecon", kspace, penalty, 100, wave_name="db4")

    def variation(setting: tuple[int, float]) -> np.ndarray:
        steps, penalty = setting
        return by_sigpy("TotalVariationRecon", kspace, penalty, steps)

    def fista(penalty: float) -> np.ndarray:
        # PyLops' soft threshold is half of eps.
        solve = pylops.optimization.sparsity.fista
        found = solve(dictionary, y, niter=200, eps=2 * penalty, alpha=1.0, tol=1e-6)[0]
        return (synthesis @ found).reshape(image.shape)

    scores.add("zero-filled inverse FFT", error(filled), 0.0)
    if seed == 0:
        wavelets(PENALTIES[0])  # compiles
    scores.tune("SigPy L1WaveletRecon, tuned", wavelets, PENALTIES, error)
    scores.tune("PyLops FISTA, tuned", fista, PENALTIES, error)
    for steps, penalties in TV_PENALTIES.items():
        settings = [(steps, penalty) for penalty in penalties]
        tv = scores.tune(f"SigPy TotalVariationRecon, {steps} steps, tuned", variation, settings, error)

    prior = cofem.PatternCoupled(0.5)
    post, seconds = timed(cofem.fit, Phi @ synthesis, y, noise_std=NOISE_STD, prior=prior, rng=seed)
    found = (synthesis @ post.mean).reshape(image.shape)
    scores.add("cofem, wavelets, PatternCoupled(0.5)", error(found), seconds)

    post, seconds = timed(cofem.fit, Phi, y, noise_std=NOISE_STD, analysis="auto", rng=seed)
    found, std = post.mean.reshape(image.shape), post.std.reshape(image.shape)
    # Pixels are complex: 95 % of a circular normal lie within sqrt(log 20) standard deviations.
    held = np.mean(abs(found - image) < np.sqrt(np.log(20)) * std)
    scores.add('cofem, analysis="auto"', error(found), seconds, held)
    print(f"    {post.n_iter} steps; {post.status}")
    return {
        "original": image,
        f"zero-filled, {error(filled):.1%}": abs(filled),
        f"total variation, {error(tv):.1%}": abs(tv),
        f"cofem, {error(found):.1%}": abs(found),
        ImageDisplay.UNCERTAINTY: std,
    }


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    image, scores = load_image(), Scores(".2%")
    panels = scores.over(seeds, run, image)
    scores.table("NRMSE")
    display = ImageDisplay(panels).plot()
    display.figure_.suptitle(f"{SIZE} x {SIZE} pixels from {SHARE:.0%} of k-space, noise {NOISE_STD}")
    save(display.figure_, out / "mri.png", dpi=72)
    save_pictures(list(panels.values())[-2:], out / "thumbnails/mri.png")


if __name__ == "__main__":
    main()
