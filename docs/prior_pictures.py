"""The small pictures of the table in priors.md: ``python docs/prior_pictures.py`` writes _static/priors/.

Each shows a signal of the kind that a prior is for, as the stems of its 48 coefficients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "_static" / "priors"
LENGTH, HEIGHT = 48, 40
# Okabe and Ito's blue and vermilion; both have a contrast of 3 and more on white.
BLUE, RED = "#0072B2", "#D55E00"


def signals() -> dict[str, list[np.ndarray]]:
    """Return signals by name; those of several tasks are drawn one above the other."""
    rng = np.random.default_rng(7)

    def at(places: list[int]) -> np.ndarray:
        signal = np.zeros(LENGTH)
        signal[places] = rng.choice([-1, 1], len(places)) * rng.uniform(0.5, 1, len(places))
        return signal

    spikes = [4, 13, 15, 29, 40]
    weak = at([9, 33]) + 0.12 * at([2, 17, 24, 38, 44])
    between = rng.standard_normal(LENGTH) * np.exp(-0.12 * rng.permutation(LENGTH))
    blocks = [*range(6, 12), *range(30, 36)]
    clusters = [*range(5, 9), *range(22, 29), 41, 42]
    steps = np.repeat([0.2, 0.9, 0.9, -0.4, -0.4, 0.5], LENGTH // 6)
    return {
        "sparse": [at(spikes)],
        "weak": [weak],
        "dense": [rng.uniform(0.2, 1, LENGTH) * rng.choice([-1, 1], LENGTH)],
        "between": [between / np.abs(between).max()],
        "blocks": [at(blocks)],
        "clusters": [at(clusters)],
        "tasks": [at(spikes), at(spikes)],
        "task-blocks": [at(blocks), at(blocks)],
        "differences": [steps],
        "nonnegative": [np.abs(at(spikes))],
    }


def draw(parts: list[np.ndarray]) -> str:
    """Return stems in SVG; a signal for each task, on its own line."""
    width, high = 3 * LENGTH, HEIGHT / len(parts)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}">']
    lines.append(f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>')
    for k, (part, colour) in enumerate(zip(parts, (BLUE, RED), strict=False)):
        below = part.min() < 0
        zero = high * (k + (0.5 if below else 0.95))
        scale = high * (0.45 if below else 0.85)
        lines.append(f'<path d="M0 {zero:.1f}h{width}" stroke="#999" stroke-width=".5"/>')
        stems = "".join(f"M{3 * j + 1.5} {zero:.1f}v{-scale * part[j]:.1f}" for j in np.flatnonzero(part))
        lines.append(f'<path d="{stems}" stroke="{colour}" stroke-width="2"/>')
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, parts in signals().items():
        (FOLDER / f"{name}.svg").write_text(draw(parts))


if __name__ == "__main__":
    main()
