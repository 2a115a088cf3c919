"""MRI with several coils
======================

Magnetic resonance image from several receive coils: Cartesian lines and radial spokes.

Task: recover a picture that eight coils have seen, each with a sensitivity of its own, from a third of the
lines of k-space (Cartesian, variable density, a fully sampled centre), and from 32 radial spokes, which lie
on no grid. The noise of the coils is correlated and of different strength; its covariance is known, as
scanners measure it before a scan.

Data: the head that ships with matplotlib, 128 x 128, with a smooth phase, seen through the birdcage maps of
SigPy. In the Cartesian case all methods are given maps that SigPy's ``EspiritCalib`` estimates from the
24 central lines; in the radial case the true maps.

Compared with: SigPy's ``SenseRecon``, ``L1WaveletRecon`` and ``TotalVariationRecon``, on the same whitened
data and maps, with their penalties tuned with the true image, which no user has. cofem is given the noise
(``Coils(maps, noise_cov)`` makes it 1), and nothing else: ``analysis="auto"``.

Tuning the other tools on radial data takes a minute and a half: ``--kinds Cartesian`` leaves them out, as
this page of the gallery does. :doc:`The tables </examples>` have both.

Needs: sigpy, finufft.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/coils.png'

from __future__ import annotations

from typing import Any

import numpy as np
import sigpy
import sigpy.mri
from _common import Scores, nrmse, save, save_pictures, start_with_kinds, timed
from matplotlib.figure import Figure
from mri import load_image

import cofem
from cofem.operators import FFT, NUFFT, Coils, Mask, Operator, block_diag
from cofem.plotting import ImageDisplay

COILS, SPOKES, CALIBRATION, SHARE, NOISE_STD = 8, 32, 24, 0.33, 0.02
PENALTIES = {
    "SenseRecon": (1.0, 10.0, 30.0, 100.0, 300.0),
    "L1WaveletRecon": (3.0, 10.0, 20.0, 50.0, 100.0),
    "TotalVariationRecon": (3.0, 5.0, 10.0, 20.0, 50.0),
}
STEPS = {"SenseRecon": 50, "L1WaveletRecon": 100, "TotalVariationRecon": 300}


# %%
# The measurement
# ---------------
# Lines of k-space, and noise that is correlated between coils.


def draw_lines(size: int, rng: np.random.Generator) -> np.ndarray:
    """Choose lines of k-space, zero frequency in the middle: all of the centre, ever fewer further out."""
    place = np.arange(size) - size // 2
    density = (1 - np.abs(place) / (size / 2)) ** 2 + 0.02
    inner = np.abs(place + 0.5) < CALIBRATION / 2
    order = np.argsort(-np.where(inner, np.inf, np.log(density) + rng.gumbel(size=size)))
    lines = np.zeros(size, bool)
    lines[order[: round(SHARE * size)]] = True
    return np.broadcast_to(lines, (size, size)).copy()


def draw_covariance(rng: np.random.Generator) -> np.ndarray:
    """Return a covariance of the coils' noise: neighbours are correlated, and some coils are noisier."""
    each = NOISE_STD * np.exp(0.4 * rng.standard_normal(COILS))
    distance = np.abs(np.subtract.outer(np.arange(COILS), np.arange(COILS)))
    distance = np.minimum(distance, COILS - distance)
    return np.outer(each, each) * 0.5**distance


def draw_noise(covariance: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return complex noise of that covariance, shape (coils, count)."""
    white = rng.standard_normal((2, COILS, count)) / np.sqrt(2)
    return np.linalg.cholesky(covariance) @ (white[0] + 1j * white[1])


# %%
# The tools to compare with
# -------------------------
# SigPy has the same whitened data and maps.


def by_sigpy(name: str, data: np.ndarray, maps: np.ndarray, penalty: float, **geometry: Any) -> np.ndarray:
    """Recover by SigPy, whose pictures and k-space have their origin in the middle."""
    app = getattr(sigpy.mri.app, name)
    return app(data, maps, penalty, max_iter=STEPS[name], show_pbar=False, **geometry).run()


def compare(
    kind: str, Phi: Operator, y: np.ndarray, image: np.ndarray, sigpys: tuple[Any, ...], scores: Scores
) -> dict[str, np.ndarray]:
    """Compare on one set of data; return pictures."""
    data, maps, geometry = sigpys

    def error(found: np.ndarray) -> float:
        return nrmse(abs(found), abs(image))

    best = {}
    for name, penalties in PENALTIES.items():
        best[name] = scores.tune(
            f"{kind}, SigPy {name}, tuned",
            lambda penalty, name=name: by_sigpy(name, data, maps, penalty, **geometry),
            penalties,
            error,
        )
    post, seconds = timed(cofem.fit, Phi, y, noise_std=1.0, analysis="auto", rng=0)
    found, std = (part.reshape(image.shape) for part in (post.mean, post.std))
    # The maps are known up to a phase: the magnitude is compared, within the interval of one real part.
    held = np.mean(abs(abs(found) - abs(image)) < 1.96 * std / np.sqrt(2))
    scores.add(f'{kind}, cofem, analysis="auto"', error(found), seconds, held)
    print(f"    {post.n_iter} steps; {post.status}")
    tv = best["TotalVariationRecon"]
    return {
        f"{kind}, original": abs(image),
        f"{kind}, total variation, {error(tv):.1%}": abs(tv),
        f"{kind}, cofem, {error(found):.1%}": abs(found),
        f"{kind}, {ImageDisplay.UNCERTAINTY}": std,
    }


# %%
# Two trajectories
# ----------------
# The dictionary is ``block_diag([F] * coils) @ Coils(maps, noise_cov)``, with ``F`` a masked FFT or a NUFFT.


def run(seed: int, image: np.ndarray, kinds: list[str], scores: Scores) -> dict[str, np.ndarray]:
    """Compare on one draw of lines and noise; return pictures."""
    rng = np.random.default_rng(seed)
    size = image.shape[0]
    true = sigpy.mri.birdcage_maps((COILS, size, size)).astype(np.complex64)
    covariance = draw_covariance(rng)

    mask = draw_lines(size, rng)
    kspace = sigpy.fft(true * image, axes=(-2, -1))
    kspace = mask * (kspace + draw_noise(covariance, size * size, rng).reshape(COILS, size, size))
    calibrated = Coils(np.ones((COILS, 1)), covariance)  # only to combine coils
    white = calibrated.whiten(kspace.reshape(COILS, -1)).reshape(kspace.shape).astype(np.complex64)
    maps = sigpy.mri.app.EspiritCalib(
        kspace.astype(np.complex64), calib_width=CALIBRATION, crop=0, show_pbar=False
    ).run()
    coils = Coils(maps, covariance)
    corner = np.fft.ifftshift(mask)
    Phi = block_diag([Mask(corner) @ FFT(image.shape)] * COILS) @ coils
    # Zero frequency is at the corner in FFT, and so is the origin of the picture, which these signs move.
    signs = (-1.0) ** np.add.outer(np.arange(size), np.arange(size))
    y = (signs * np.fft.ifftshift(white, axes=(1, 2)))[:, corner].ravel()
    white_maps = calibrated.whiten(maps.reshape(COILS, -1)).reshape(maps.shape).astype(np.complex64)
    sigpys: tuple[Any, ...] = (white, white_maps, {"weights": mask.astype(np.float32)})
    panels = compare("Cartesian", Phi, y, image, sigpys, scores) if "Cartesian" in kinds else {}
    if "radial" not in kinds:
        return panels

    angle = np.repeat(np.arange(SPOKES) * np.pi / SPOKES, size)
    radius = np.tile(np.arange(size) - size / 2 + 0.5, SPOKES)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    F = NUFFT(points, image.shape)
    data = (true * image).reshape(COILS, -1)
    data = F.forward(data) + draw_noise(covariance, F.shape[0], rng)
    coils = Coils(true, covariance)
    white = coils.whiten(data).astype(np.complex64)
    sigpys = (
        white,
        coils.maps.reshape(true.shape).astype(np.complex64),
        {"coord": points.astype(np.float32)},
    )
    return panels | compare("radial", block_diag([F] * COILS) @ coils, white.ravel(), image, sigpys, scores)


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds, kinds = start_with_kinds(__doc__, ("Cartesian", "radial"))
    magnitude, scores = load_image(), Scores(".2%")
    across = np.linspace(-1, 1, magnitude.shape[0])
    image = (magnitude * np.exp(0.8j * np.add.outer(across, across**2))).astype(np.complex64)
    panels = scores.over(seeds, run, image, kinds)
    scores.table("NRMSE")
    figure = Figure(figsize=(7.2, 8 * len(kinds)), layout="constrained")
    ImageDisplay(panels).plot(figure.subplots(2 * len(kinds), 2).ravel())
    seen = {"Cartesian": f"{SHARE:.0%} of the lines", "radial": f"{SPOKES} spokes"}
    figure.suptitle(f"{COILS} coils: {', '.join(seen[kind] for kind in kinds)}")
    save(figure, out / "coils.png", dpi=72)
    save_pictures(list(panels.values())[2:4], out / "thumbnails/coils.png")


if __name__ == "__main__":
    main()
