"""The product in half a minute: a photograph from a quarter of its pixels, with a map of its uncertainty."""

from __future__ import annotations

import time
from pathlib import Path

#: How the same is done in Python, for the last line of the demo.
IN_PYTHON = 'post = cofem.fit(Mask(seen), image[seen], analysis="auto")  # post.mean, post.std, post.sample()'


def run_demo(out: Path, seed: int) -> Path:
    """Recover the image, print what came out and return the path of the figure."""
    import numpy as np
    import pywt
    from rich.console import Console
    from rich.table import Table

    import cofem
    from cofem.operators import Mask
    from cofem.plotting import ImageDisplay

    console = Console()
    rng = np.random.default_rng(seed)
    image = (pywt.data.camera() / 255).astype(np.float32)
    seen = rng.random(image.shape) < 0.25
    console.print(
        f"A photograph of {image.shape[0]} x {image.shape[1]} pixels, of which {seen.mean():.0%} are seen. "
        "Its differences from pixel to pixel are sparse; how neighbours share precisions, and the noise, are "
        "learned from pixels that are held out."
    )
    start = time.perf_counter()
    post = cofem.fit(Mask(seen), image[seen], analysis="auto", rng=seed, progress=True)
    seconds = time.perf_counter() - start

    out.mkdir(parents=True, exist_ok=True)
    figure = out / "demo.png"
    display = ImageDisplay.from_posterior(
        post, None, image.shape, original=image, observed=np.where(seen, image, np.nan)
    )
    display.save(figure)
    recovery, deviation = display.panels["recovery"], display.panels[ImageDisplay.UNCERTAINTY]
    unseen = ~seen
    error = np.abs(recovery - image)[unseen]
    psnr = -10 * np.log10(np.mean((recovery - image)[unseen] ** 2))
    spread = np.hypot(deviation[unseen], post.noise_std)
    table = Table(show_header=False)
    for label, value in [
        ("method", f"{post.method}, {post.n_iter} steps, {seconds:.1f} s"),
        ("error at the pixels that were not seen", f"PSNR {psnr:.2f} dB"),
        ("noise that was learned (grey levels from 0 to 1)", f"{post.noise_std:.3f}"),
        ("pixels that were not seen, within two standard deviations", f"{np.mean(error < 2 * spread):.1%}"),
        ("ended", post.status.code.value),
    ]:
        table.add_row(label, value)
    console.print(table)
    console.print(f"Original, input, recovery and standard deviations: {figure}")
    console.print(f"In Python: {IN_PYTHON}", markup=False, highlight=False)
    return figure
