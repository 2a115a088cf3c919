"""Magnetic resonance image from undersampled k-space, with a map of its uncertainty.

Task: recover an image from 30 % of its Fourier coefficients, sampled at random and more densely at low
frequencies, with noise. The image is sparse in wavelets.

Data: a sagittal slice of a head that ships with matplotlib (``s1045.ima.gz``), averaged to 128 x 128 pixels.
Only its magnitude is stored, so k-space is computed from it: one coil, no phase.

Compared with: SigPy's ``L1WaveletRecon``, which MRI users have today, and PyLops' FISTA on the very
dictionary that cofem uses. Their penalty is tuned with the true image, which no user has; cofem is given
the noise level, which an MRI scanner measures.

Needs: sigpy, pylops.
"""

from __future__ import annotations

import numpy as np
import pylops
import sigpy.mri
from _common import nrmse, save, start, table, timed
from matplotlib import cbook
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import FFT, Mask, Wavelet
from cofem.plotting import ImageDisplay

SIZE, SHARE, NOISE_STD = 128, 0.3, 0.01
PENALTIES = (0.001, 0.002, 0.005, 0.01, 0.02)


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


def sigpy_image(kspace: np.ndarray, mask: np.ndarray, penalty: float) -> np.ndarray:
    """Recover by SigPy, whose k-space has the zero frequency in the middle."""
    app = sigpy.mri.app.L1WaveletRecon(
        np.fft.fftshift(kspace)[None],
        np.ones((1, SIZE, SIZE), np.complex64),
        penalty,
        weights=np.fft.fftshift(mask).astype(np.float32),
        wave_name="db4",
        max_iter=100,
        show_pbar=False,
    )
    return np.fft.ifftshift(app.run())


def main() -> None:
    """Run the example."""
    out = start(__doc__)
    rng = np.random.default_rng(0)
    image, mask = load_image(), draw_mask(rng)
    noise = rng.standard_normal((2, mask.sum())) * NOISE_STD / np.sqrt(2)
    y = (np.fft.fft2(image, norm="ortho")[mask] + noise[0] + 1j * noise[1]).astype(np.complex64)
    kspace = np.zeros((SIZE, SIZE), np.complex64)
    kspace[mask] = y
    filled = np.fft.ifft2(kspace, norm="ortho")

    synthesis = Wavelet((SIZE, SIZE), "db4").T
    Phi = Mask(mask) @ FFT((SIZE, SIZE)) @ synthesis

    def pixels(coefficients: np.ndarray) -> np.ndarray:
        return (synthesis @ coefficients).reshape(SIZE, SIZE)

    rows = [("zero-filled inverse FFT", f"{nrmse(abs(filled), image):.2%}", "0.0", "")]

    sigpy_image(kspace, mask, PENALTIES[0])  # compiles
    tried = [timed(sigpy_image, kspace, mask, penalty) for penalty in PENALTIES]
    best, seconds = min(tried, key=lambda result: nrmse(abs(result[0]), image))
    rows.append(("SigPy L1WaveletRecon", f"{nrmse(abs(best), image):.2%}", f"{seconds:.1f}", ""))

    dictionary = pylops.LinearOperator(aslinearoperator(Phi.astype(np.float32)))

    def fista(penalty: float) -> np.ndarray:
        # PyLops' soft threshold is half of eps.
        solve = pylops.optimization.sparsity.fista
        return pixels(solve(dictionary, y, niter=200, eps=2 * penalty, alpha=1.0, tol=1e-6)[0])

    tried = [timed(fista, penalty) for penalty in PENALTIES]
    lasso, seconds = min(tried, key=lambda result: nrmse(abs(result[0]), image))
    rows.append(("PyLops FISTA, same wavelets", f"{nrmse(abs(lasso), image):.2%}", f"{seconds:.1f}", ""))

    panels = {"original": image, "zero-filled input": abs(filled), "FISTA": abs(lasso)}
    for label, prior in [
        ("cofem, independent", cofem.Independent()),
        ("cofem, PatternCoupled(0.5)", cofem.PatternCoupled(0.5)),
    ]:
        post, seconds = timed(cofem.fit, Phi, y, noise_std=NOISE_STD, prior=prior, rng=0)
        recovery = pixels(post.mean)
        rows.append((label, f"{nrmse(abs(recovery), image):.2%}", f"{seconds:.1f}", ""))
        print(f"{label}: {post.n_iter} steps; {post.status}\n")
    draws, sampling = timed(post.sample, 32, rng=1)
    deviation = np.std(synthesis.forward(draws), axis=0, ddof=1).reshape(SIZE, SIZE)
    # Pixels are complex here: 95 % of a circular normal lie within sqrt(log 20) standard deviations.
    inside = abs(recovery - image) < np.sqrt(np.log(20)) * deviation
    extra = (
        f"standard deviations (32 draws, {sampling:.1f} s); 95 % regions hold {inside.mean():.0%} of the "
        f"pixels, {inside[image > 0.05].mean():.0%} of those in the head"
    )
    rows[-1] = (*rows[-1][:-1], extra)
    panels |= {"cofem": abs(recovery), ImageDisplay.UNCERTAINTY: deviation}

    table(("method", "NRMSE", "CPU s", "besides"), rows)
    display = ImageDisplay(panels).plot()
    display.figure_.suptitle(f"{SIZE} x {SIZE} pixels from {mask.mean():.0%} of k-space, noise {NOISE_STD}")
    save(display.figure_, out / "mri_wavelets.png", dpi=72)


if __name__ == "__main__":
    main()
