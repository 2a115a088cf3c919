"""Spectral lines, complex data
============================

Spectral lines of a magnetic resonance spectrum, from a quarter of its samples; complex data.

Task: a free induction decay is measured at a random quarter of the time points (non-uniform sampling, which
saves measuring time); predict it at the others, and so find its lines.

Data: a recorded in-vivo proton spectrum that ships with hlsvdpropy (``hlsvdpropy.get_testdata``), its first
512 of 1024 complex samples, 0.256 ms apart. No truth is known but the samples that were left out.

Compared with: HLSVD (hlsvdpropy), the standard tool of magnetic resonance spectroscopy, which needs evenly
spaced samples: given all 512, or the first 128; and SPGL1 (basis pursuit denoising) given the same 128 random
samples and the same dictionary. Both are given the same noise level as cofem, or the best number of lines.

The dictionary holds decaying exponentials: 512 frequencies, each with 5 decay times.

Needs: hlsvdpropy, spgl1, setuptools < 81 (hlsvdpropy imports pkg_resources).
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/spectral_lines.png'

from __future__ import annotations

import warnings

import numpy as np
import spgl1
from _common import BLUE, GREEN, ORANGE, nrmse, save, save_curves, start, table, timed
from matplotlib.figure import Figure
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import FFT, Diagonal, Mask, hstack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pkg_resources, which it imports, is deprecated
    import hlsvdpropy

LENGTH, SEEN, DWELL = 512, 128, 0.256e-3
DECAY_TIMES = (0.02, 0.05, 0.1, 0.2, 0.4)


# %%
# The tool to compare with
# ------------------------
# HLSVD fits a sum of decaying oscillations, without a grid.


def hlsvd(samples: np.ndarray, lines: int) -> np.ndarray:
    """Fit evenly spaced samples by HLSVD; return the fit at all time points."""
    found = hlsvdpropy.hlsvd(samples, lines, 1000 * DWELL)
    return hlsvdpropy.create_hlsvd_fids(found, LENGTH, 1000 * DWELL, sum_results=True, convert=False)


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out = start(__doc__)
    rng = np.random.default_rng(0)
    recording = np.asarray(hlsvdpropy.get_testdata())
    recording /= abs(recording[0])
    # The end of the recording has no signal that changes from one sample to the next.
    noise_std = float(np.std(np.diff(recording[-200:])) / np.sqrt(2))
    signal, time = recording[:LENGTH], DWELL * np.arange(LENGTH)
    seen = np.sort(rng.choice(LENGTH, SEEN, replace=False))
    unseen = np.setdiff1d(np.arange(LENGTH), seen)

    synthesis = hstack([Diagonal(np.exp(-time / decay)) @ FFT(LENGTH).H for decay in DECAY_TIMES])
    Phi, y = Mask(seen, LENGTH) @ synthesis, signal[seen]

    def error(found: np.ndarray) -> str:
        return f"{nrmse(found[unseen], signal[unseen]):.1%}"

    rows = []
    for label, samples in [("all 512", signal), ("the first 128", signal[:SEEN])]:
        tried = [timed(hlsvd, samples, lines) for lines in (5, 10, 15, 20, 30)]
        even, seconds = min(tried, key=lambda result: nrmse(result[0][unseen], signal[unseen]))
        rows.append((f"HLSVD, {label} samples", error(even), f"{seconds:.1f}", "lines and their decays"))
    rows[0] = (*rows[0][:-1], "has seen what it is judged by")

    def basis_pursuit() -> np.ndarray:
        # The 1-norm wants columns of one norm; for cofem it makes no difference.
        scale = Diagonal(1 / Phi.column_norms())
        sigma = noise_std * np.sqrt(SEEN)
        found = spgl1.spg_bpdn(aslinearoperator(Phi @ scale), y, sigma, iter_lim=2000, verbosity=0)[0]
        return scale @ found

    coefficients, seconds = timed(basis_pursuit)
    pursuit = synthesis @ coefficients
    rows.append(("SPGL1, 128 random samples", error(pursuit), f"{seconds:.1f}", "coefficients"))

    post, seconds = timed(cofem.fit, Phi, y, noise_std=noise_std, max_iter=400, rng=0)
    print(f"cofem: {post.n_iter} steps, {post.support().size} in the support; {post.status}\n")
    mean, std = post.predict(synthesis, return_std=True, rng=1)
    # 95 % of a circular normal lie within sqrt(log 20) standard deviations.
    inside = np.mean((abs(mean - signal) < np.sqrt(np.log(20)) * std)[unseen])
    extra = f"95 % regions of unseen samples hold {inside:.0%}"
    rows.append(("cofem, 128 random samples", error(mean), f"{seconds:.1f}", extra))

    table(("method", "NRMSE of the unseen samples", "CPU s", "besides"), rows)

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = slice(20, 260)
    left.fill_between(
        1000 * time[shown],
        (mean.real - 1.96 * std / np.sqrt(2))[shown],
        (mean.real + 1.96 * std / np.sqrt(2))[shown],
        color=BLUE,
        alpha=0.3,
        lw=0,
        label="cofem, 95 % interval",
    )
    left.plot(1000 * time[shown], mean.real[shown], color=BLUE, lw=1, label="cofem, mean")
    visible = seen[(seen >= shown.start) & (seen < shown.stop)]
    left.plot(1000 * time[shown], signal.real[shown], ".", ms=2.5, color="0.5", label="unseen samples")
    left.plot(1000 * time[visible], signal.real[visible], "ko", ms=4, label="seen samples")
    left.set(xlabel="time in ms", ylabel="real part", title="Free induction decay")
    left.legend(frameon=False)
    frequency = np.fft.fftshift(np.fft.fftfreq(LENGTH, DWELL))
    near = (frequency > -150) & (frequency < 350)
    for name, samples, style in [
        ("all 512 samples", signal, {"color": "0.75", "lw": 5}),
        ("HLSVD, first 128", even, {"color": GREEN, "ls": ":"}),
        ("SPGL1, 128 at random", pursuit, {"color": ORANGE, "ls": "--"}),
        ("cofem, 128 at random", mean, {"color": BLUE}),
    ]:
        spectrum = abs(np.fft.fftshift(np.fft.fft(samples)))
        right.semilogy(frequency[near], spectrum[near], label=name, **style)
    right.set(xlabel="frequency in Hz", ylabel="magnitude", title="Spectrum")
    right.legend(frameon=False)
    save(figure, out / "spectral_lines.png", dpi=100)
    save_curves(right, out / "thumbnails/spectral_lines.png")


if __name__ == "__main__":
    main()
