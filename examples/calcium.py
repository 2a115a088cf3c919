"""Calcium imaging
===============

Calcium imaging: when did a neuron fire? Spikes from 100 000 samples, with their uncertainty.

Task: recover non-negative spikes from a trace in which each of them decays slowly, with noise.

Data: drawn, since nothing ships with a package. A neuron that fires in bursts, 100 000 samples at 30 per
second (55 minutes), each spike a decay of 0.9 from sample to sample, spikes of different heights, noise of
0.2 of a spike.

Compared with: the exact L1 solution by pooling of neighbours (the algorithm of OASIS, Friedrich, Zhou and
Paninski 2017, written here for a known decay), its penalty tuned with the true spikes, which no user has; and
the same without a penalty. cofem is given the kernel and learns the noise: ``nonnegative=True``, with its
default prior and with ``Sparser(2)``, for impulses that are known to be few (chosen on other traces).

The error is that of the calcium. Spikes count as found if one is reported within two samples; what is
reported is above a threshold, tuned with the truth for the other tool and the support of the posterior for
cofem.
"""

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/calcium.png'

from __future__ import annotations

import numpy as np
from _common import BLUE, GREEN, ORANGE, Scores, nrmse, save, save_curves, start_with_seeds, table, timed
from matplotlib import pyplot as plt

import cofem
from cofem.operators import Convolution

SAMPLES, DECAY, NOISE_STD, LENGTH = 100_000, 0.9, 0.2, 60
PENALTIES = (0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
NEAR = 2


# %%
# The trace
# ---------
# A neuron that fires in bursts.


def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return spikes, calcium and fluorescence."""
    bursts = np.repeat(rng.random(SAMPLES // 500) < 0.3, 500)
    spikes = (rng.random(SAMPLES) < np.where(bursts, 0.03, 0.003)) * rng.uniform(0.6, 1.4, SAMPLES)
    calcium = np.empty(SAMPLES)
    level = 0.0
    for i, spike in enumerate(spikes):
        level = DECAY * level + spike
        calcium[i] = level
    return spikes, calcium, calcium + NOISE_STD * rng.standard_normal(SAMPLES)


# %%
# The tool to compare with
# ------------------------
# Pooling solves the problem with an L1 penalty exactly, for one decay on a line.


def pooled(y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Return spikes and calcium that minimise ``|y - c|^2 / 2 + penalty * sum of spikes``, spikes >= 0.

    A pool is a stretch in which calcium only decays. Where the next pool would begin below what is left of
    the last one, the two are merged.
    """
    target = y - penalty * (1 - DECAY)
    target[-1] = y[-1] - penalty
    value, weight, length = np.empty(len(y)), np.empty(len(y)), np.empty(len(y), int)
    top = -1
    for each in target.tolist():
        top += 1
        value[top], weight[top], length[top] = each, 1.0, 1
        while top and value[top] < DECAY ** length[top - 1] * value[top - 1]:
            kept = DECAY ** length[top - 1]
            total = weight[top - 1] + kept**2 * weight[top]
            value[top - 1] = (weight[top - 1] * value[top - 1] + kept * weight[top] * value[top]) / total
            weight[top - 1], length[top - 1] = total, length[top - 1] + length[top]
            top -= 1
    starts = np.concatenate([[0], np.cumsum(length[:top])])
    age = np.arange(len(y)) - np.repeat(starts, length[: top + 1])
    calcium = np.repeat(np.maximum(value[: top + 1], 0), length[: top + 1]) * DECAY**age
    spikes = calcium - DECAY * np.concatenate([[0.0], calcium[:-1]])
    return np.maximum(spikes, 0), calcium


def f1(found: np.ndarray, spikes: np.ndarray) -> float:
    """Return the harmonic mean of precision and recall, of places within two samples."""
    true = np.flatnonzero(spikes)
    if not found.size:
        return 0.0

    def near(one: np.ndarray, other: np.ndarray) -> float:
        after = np.clip(np.searchsorted(other, one), 0, other.size - 1)
        before = np.maximum(after - 1, 0)
        return float(np.mean(np.minimum(abs(other[after] - one), abs(other[before] - one)) <= NEAR))

    precision, recall = near(found, true), near(true, found)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


# %%
# The comparison
# --------------
# cofem is given the kernel, as a causal convolution, and that spikes are not negative.


def run(seed: int, scores: Scores, marks: dict[str, list[float]]) -> tuple[np.ndarray, ...]:
    """Compare on one trace; return what the figure shows."""
    spikes, calcium, y = draw(np.random.default_rng(seed))

    def error(found: tuple[np.ndarray, np.ndarray]) -> float:
        return nrmse(found[1], calcium)

    plain, seconds = timed(pooled, y, 0.0)
    scores.add("pooling, no penalty", error(plain), seconds)
    best = scores.tune("pooling, L1, tuned", lambda penalty: pooled(y, penalty), PENALTIES, error)
    places = [np.flatnonzero(best[0] > threshold) for threshold in THRESHOLDS]
    marks.setdefault("pooling, L1, threshold tuned", []).append(max(f1(place, spikes) for place in places))

    kernel = DECAY ** np.arange(LENGTH)
    Phi = Convolution(kernel, SAMPLES, mode="linear", causal=True)
    for name, prior in {"default prior": None, "Sparser(2)": cofem.Sparser(2)}.items():
        post, seconds = timed(cofem.fit, Phi, y, nonnegative=True, prior=prior, rng=seed)
        found = (post.mean, Phi @ post.mean)
        lower, upper = post.credible_interval(0.95)
        live = np.flatnonzero(spikes)
        held = float(np.mean((spikes[live] >= lower[live]) & (spikes[live] <= upper[live])))
        scores.add(f"cofem, nonnegative=True, {name}", error(found), seconds, held)
        marks.setdefault(f"cofem, {name}, support", []).append(f1(np.asarray(post.support()), spikes))
        print(f"    noise {post.noise_std:.3f} (true {NOISE_STD}), {post.n_iter} steps; {post.status}")
    return y, spikes, best[0], post.mean, post.std


# %%
# Run it
# ------
# The table, and then the figure.


def main() -> None:
    """Run the example."""
    out, seeds = start_with_seeds(__doc__)
    scores, marks = Scores(".2%"), {}
    shown = next(iter([run(seed, scores, marks) for seed in seeds]))
    scores.table("NRMSE of the calcium")
    print()
    table(
        ("spikes", "F1"),
        [(name, f"{np.mean(each):.3f} ({min(each):.3f} to {max(each):.3f})") for name, each in marks.items()],
    )
    y, spikes, pooling, mean, std = shown
    start = int(np.argmax(np.convolve(spikes > 0, np.ones(400), "valid")))
    part = slice(start, start + 400)
    place = np.arange(400)
    figure, axes = plt.subplots(2, 1, figsize=(10, 5), sharex=True, layout="constrained")
    axes[0].plot(place, y[part], color="0.6", lw=0.8)
    axes[0].set_title("fluorescence")
    axes[1].vlines(place, 0, spikes[part], color="0.3", lw=3, alpha=0.4, label="true spikes")
    axes[1].plot(place, pooling[part], color=ORANGE, lw=1, label="pooling, L1, tuned")
    axes[1].plot(place, mean[part], color=BLUE, lw=1, label="cofem, Sparser(2)")
    axes[1].fill_between(place, 0, 1.96 * std[part], color=GREEN, alpha=0.2, label="1.96 standard deviations")
    axes[1].legend(ncols=4, fontsize=8)
    axes[1].set_xlabel("sample")
    save(figure, out / "calcium.png", dpi=72)
    save_curves(axes[1], out / "thumbnails/calcium.png", xlim=(0, 130))


if __name__ == "__main__":
    main()
