"""Pictures, volumes and series that are sparse in ``B u``, with the path of large problems forced.

Wrong is

1. a mean that is not the posterior's at the precisions that the fit returned: by more than 15 % of the
   noise in
   the norm of the posterior, or by more than a standard deviation somewhere,
2. standard deviations whose median, over what is seen or over what is not, is off by more than 25 %, or one
   that
   is off by more than a factor of 2.5,
3. draws or covariances that have other variances than the posterior,
4. an answer that depends on the offset of the data,
5. a noise that was learned and is off by more than a factor of two, where data see places, and
6. an error more than half as large again as that of the exact path, by more than 5 % of the picture, and by
   more than half as large again as its own standard deviations say.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

import cofem
from cofem.operators import DCT, Convolution, Dense, Gradient, Identity, Mask, WaveletFrame

from .silence import Case, noise_fault, quietly

#: How far answers may be off; see above.
MEAN, MEDIAN, SINGLE, OFFSET, SURPRISE = 0.15, 1.25, 2.5, 0.3, 1.5

KINDS = (
    "identity",
    "identity, line",
    "scattered places",
    "scattered places, line",
    "hole",
    "hole in a line",
    "end unseen",
    "odd shape",
    "volume",
    "blur",
    "cosines",
    "dense",
    "frame",
    "second differences",
    "periodic",
    "each row by itself",
    "null space",
    "auto",
    "flat",
)


def _picture(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return boxes on a slope, of size one."""
    places = np.indices(shape)
    picture = np.zeros(shape) + 0.5 * sum(places[i] / max(n, 2) for i, n in enumerate(shape))
    for _ in range(3):
        box = np.ones(shape, dtype=bool)
        for i, n in enumerate(shape):
            ends = np.sort(rng.uniform(0, n, 2))
            box &= (places[i] >= ends[0]) & (places[i] <= ends[1])
        picture += rng.uniform(-1, 1) * box
    return picture


def _hole(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return which places are seen around a hole of a third to a half of each axis."""
    seen = np.ones(shape, dtype=bool)
    part = []
    for n in shape:
        width = max(1, int(n * rng.uniform(0.3, 0.5)))
        start = int(rng.integers(0, n - width + 1))
        part.append(slice(start, start + width))
    seen[tuple(part)] = False
    return seen


def draw(kind: str, number: int) -> Case:
    """Return a case of a kind."""
    rng = np.random.default_rng([number, 20261120])
    line = kind.endswith("line") or kind in ("end unseen", "flat")
    if line:
        shape: tuple[int, ...] = (int(rng.integers(60, 400)),)
    elif kind == "odd shape":
        shape = [(1, 80), (3, 60), (80, 2), (7, 31), (5, 1, 30)][int(rng.integers(5))]
    elif kind == "volume":
        shape = (5, 6, 7)
    elif kind == "frame":  # with a dozen times as many rows as places
        shape = (int(rng.integers(6, 12)), int(rng.integers(6, 12)))
    else:
        shape = (int(rng.integers(8, 18)), int(rng.integers(8, 18)))
    size = int(np.prod(shape))
    analysis: Any = Gradient(shape)
    seen = rng.random(shape) < rng.uniform(0.4, 0.8)
    seen.flat[rng.choice(size, 2, replace=False)] = True
    Phi: Any = Mask(seen)
    if kind.startswith("identity"):
        Phi = Identity(shape)
    elif kind.startswith("hole"):
        Phi = Mask(_hole(shape, rng))
    elif kind == "end unseen":
        Phi = Mask(np.arange(size) < int(0.75 * size))
    elif kind == "blur":
        spot = np.exp(-0.5 * (np.arange(-3, 4) / rng.uniform(0.6, 1.2)) ** 2)
        kernel = np.outer(spot, spot)
        Phi = Convolution(kernel / kernel.sum(), shape)
    elif kind == "cosines":
        kept = rng.random(size) < 0.5
        kept[0] = True
        Phi = Mask(np.flatnonzero(kept), size) @ DCT(shape)
    elif kind == "dense":
        Phi = Dense(rng.standard_normal((size // 2, size)) / size**0.5)
    elif kind == "frame":
        analysis = WaveletFrame(shape, "haar", 2)
    elif kind == "second differences":
        analysis = Gradient(shape, order=2)
    elif kind == "periodic":
        analysis = Gradient(shape, "periodic")
    elif kind == "each row by itself":
        analysis = Gradient(shape, axes=1)
    elif kind == "null space":  # places that neither sees: a row of which nothing is seen
        seen[int(rng.integers(shape[0]))] = False
        analysis, Phi = Gradient(shape, axes=1), Mask(seen)
    elif kind == "auto":
        analysis = shape if rng.random() < 0.5 else "auto"
    picture = _picture(shape, rng) if kind != "flat" else np.zeros(shape)
    noise_std = float(10 ** rng.uniform(-2.5, -0.7))
    offset = float(rng.choice([0.0, 1.0, 1e3, 1e5]))
    clean = Phi @ (picture.ravel() + offset)
    y = clean + noise_std * rng.standard_normal(clean.shape)
    settings: dict[str, Any] = {"rng": number, "noise_std": noise_std, "analysis": analysis}
    if rng.random() < 0.5:
        settings["noise_std"] = "learn"
    if kind != "auto":
        settings["prior"] = [None, cofem.Neighbours(3)][int(rng.integers(2))]
        settings["method"] = cofem.AnalysisEM(exact=False)
    words = f"{kind} {shape}, {Phi.shape[0]} data, noise {noise_std:.3g}, offset {offset:g}, {settings}"
    return Case(words, Phi, y, picture.ravel() + offset, noise_std, settings)


def judge(case: Case) -> list[str]:
    """Return what is silently wrong with the fit of a case."""
    post, silent, wrong = quietly(lambda: cofem.fit(case.Phi, case.y, **case.settings))
    for name in ("mean", "std"):
        if np.isnan(getattr(post, name)).any():
            wrong.append(f"{name} holds NaN")
    if not silent:
        return wrong
    return [*wrong, *_moments(case, post), *_of_offsets(case, post), *_against_exact(case, post)]


def _moments(case: Case, post: cofem.Posterior) -> list[str]:
    """Compare the posterior with the exact formulas at its own precisions."""
    assert post.analysis is not None
    operator = cofem.as_operator(case.Phi)
    Phi, B = operator.to_dense(), post.analysis.to_dense().astype(np.float64)
    precision = Phi.T @ Phi / float(post.noise_std) ** 2
    precision = (precision + B.T @ (np.asarray(post.alpha, dtype=np.float64)[:, None] * B)) / post.scale
    values = np.linalg.eigvalsh(precision)
    if values[0] < 1e-13 * values[-1]:
        return ["neither data nor prior determine the unknown, and nothing was said"]
    covariance = np.linalg.inv(precision)
    mean = covariance @ (Phi.T @ case.y) / float(post.noise_std) ** 2 / post.scale
    exact = np.sqrt(np.diagonal(covariance))
    wrong = []
    error = post.mean - mean
    energy = float(np.sqrt(post.scale * error @ precision @ error / case.y.size))
    if energy > MEAN or np.abs(error / exact).max() > 1:
        wrong.append(f"mean off by {energy:.2g} of the noise, {np.abs(error / exact).max():.2g} deviations")
    seen = np.abs(Phi).max(axis=0) > 1e-9 * np.abs(Phi).max()
    ratio = post.std / exact
    for name, part in (("seen", seen), ("unseen", ~seen)):
        if part.any():
            wrong += _spread(ratio[part], name)
    chosen = np.random.default_rng(0).choice(post.mean.size, 3, replace=False)
    told = np.sqrt(np.diagonal(post.covariance(chosen))) / exact[chosen]
    if np.abs(np.log(told)).max() > np.log(1.1):
        wrong.append(f"covariance off: {told.round(2).tolist()}")
    drawn = np.std(post.sample(64, rng=0) - post.mean, axis=0) / exact
    if not 1 / MEDIAN < np.median(drawn) < MEDIAN or drawn.max() > 1.8 or drawn.min() < 0.5:
        wrong.append(f"draws have {np.median(drawn):.3g} ({drawn.min():.3g} to {drawn.max():.3g}) of std")
    return wrong


def _spread(ratio: np.ndarray, name: str) -> list[str]:
    if 1 / MEDIAN < np.median(ratio) < MEDIAN and ratio.min() > 1 / SINGLE and ratio.max() < SINGLE:
        return []
    return [
        f"std where {name}: {np.median(ratio):.3g} ({ratio.min():.3g} to {ratio.max():.3g}) of the exact one"
    ]


def _of_offsets(case: Case, post: cofem.Posterior) -> list[str]:
    """Compare with the fit to the data less what a constant explains."""
    assert post.analysis is not None
    ones = np.ones(post.mean.size)
    if np.abs(post.analysis @ ones).max() > 1e-9:
        return []
    offset = float(np.mean(case.z))
    y = case.y - cofem.as_operator(case.Phi) @ (offset * ones)
    other, silent, _ = quietly(lambda: cofem.fit(case.Phi, y, **case.settings))
    if not silent:
        return []
    moved = float(np.abs((post.mean - other.mean - offset) / other.std).max())
    noise = float(post.noise_std / other.noise_std)
    if moved < OFFSET and 1 / 1.1 < noise < 1.1:
        return []
    return [f"an offset of {offset:.3g} moves the mean by {moved:.2g} deviations, the noise by {noise:.3g}"]


def _against_exact(case: Case, post: cofem.Posterior) -> list[str]:
    """Compare with the exact path, and the noise with the truth."""
    places = cofem.as_operator(case.Phi).facts.one_per_row and case.y.size >= 100
    wrong = noise_fault(post, case) if places else []
    if "method" not in case.settings:
        return wrong
    settings = case.settings | {"method": replace(case.settings["method"], exact=True)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = cofem.fit(case.Phi, case.y, **settings)
    size = float(np.linalg.norm(case.z - case.z.mean())) or 1.0
    ours, theirs = (float(np.linalg.norm(p.mean - case.z)) / size for p in (post, other))
    # Where nothing is seen either may be nearer by chance: then its own spread must say so.
    surprise = float(np.linalg.norm(post.mean - case.z) / np.linalg.norm(post.std))
    if ours > 1.5 * theirs + 0.05 and surprise > SURPRISE:
        wrong.append(f"error {ours:.3g}, exact {theirs:.3g}")
    return wrong
