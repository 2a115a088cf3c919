"""Fingerprints of fits, to show that a restructuring leaves every result as it was, bit for bit.

``python tests/fingerprints.py record before.json`` in the old tree, ``python tests/fingerprints.py compare
before.json`` in the new one, on the same machine with the same packages: the last bits depend on both. Uses
public names only, so that it runs on either side of a change. A fingerprint is a hash of mean, variance,
alpha and noise level, with the number of outer steps and of applications of Phi.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

import cofem
from cofem.operators import (
    DCT,
    FFT,
    BlockDCT,
    Centred,
    Chunked,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    Mask,
    Wavelet,
    hstack,
    vstack,
)

Case = tuple[str, Callable[[], Any]]


def problem(Phi: Any, density: float = 0.05, noise: float = 0.01, seed: int = 0, tasks: int = 0) -> Any:
    """Return (Phi, y) with spikes of random size, complex ones for a complex dictionary."""
    operator, rng = cofem.as_operator(Phi), np.random.default_rng(seed)
    n, d = operator.shape

    def normal(*shape: int) -> np.ndarray:
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if operator.is_complex else real

    shape = (d, tasks) if tasks else (d,)
    z = np.zeros(shape, complex if operator.is_complex else float)
    chosen = rng.choice(d, max(1, round(density * d)), replace=False)
    z[chosen] = normal(chosen.size, *shape[1:])
    size = np.linalg.norm(operator @ z) / np.sqrt(n)
    return Phi, operator @ z + noise * size * normal(n, *shape[1:])


def gaussian(n: int, d: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def sampled(n: int, share: float, transform: Any, seed: int = 2) -> Any:
    rows = np.sort(np.random.default_rng(seed).choice(n, round(share * n), replace=False))
    return Mask(rows, n) @ transform


def kernel(width: float) -> np.ndarray:
    t = np.arange(-12, 13)
    return np.exp(-0.5 * (t / width) ** 2)


def dictionaries() -> dict[str, Any]:
    """Return one dictionary of each kind, large enough for CG and small enough for a second."""
    rng = np.random.default_rng(3)
    unequal = gaussian(200, 600) * 10 ** rng.uniform(-2, 2, 600)
    return {
        "dense": gaussian(300, 1000),
        "tall": gaussian(400, 300),
        "unequal": unequal,
        "correlated": np.cumsum(gaussian(300, 1000), axis=1) / 30 + gaussian(300, 1000, 5),
        "duplicated": np.repeat(gaussian(300, 500), 2, axis=1),
        "sparse": scipy.sparse.random_array((400, 1200), density=0.05, rng=np.random.default_rng(4)),
        "dct": sampled(2048, 0.25, DCT(2048).T),
        "dct2": sampled(1024, 0.5, DCT((32, 32)).T),
        "fourier": sampled(1024, 0.5, FFT(1024).H),
        "hartley": sampled(1024, 0.5, FFT(1024, real=True).T),
        "wavelet": sampled(1024, 0.6, Wavelet((32, 32), "db2").T),
        "fourier wavelets": sampled(1024, 0.5, FFT((32, 32)) @ Wavelet((32, 32), "haar").T),
        "blocks": sampled(4096, 0.5, BlockDCT((64, 64), 8).T),
        "blur": Convolution(kernel(1.5), 1024),
        "linear blur": Convolution(kernel(1.0), 900, mode="linear"),
        "stacks": vstack([hstack([Identity(400), DCT(400).T]), 0.5 * Dense(gaussian(200, 800))]),
        "scaled": 3 * sampled(1024, 0.4, DCT(1024).T) @ Diagonal(rng.uniform(0.5, 2, 1024)),
        "centred": Centred(Dense(gaussian(300, 900) + 2)),
        "chunked": Chunked(gaussian(300, 1000), rows=64),
        "complex": gaussian(200, 600) + 1j * gaussian(200, 600, 7),
        "scipy": scipy.sparse.linalg.aslinearoperator(gaussian(250, 700)),
        "small": gaussian(60, 120),
        "single": gaussian(300, 1000).astype(np.float32),
        "large dct": sampled(2**15, 0.25, DCT(2**15).T),
    }


class Function(scipy.sparse.linalg.LinearOperator):
    """Someone's own operator, without products of several vectors."""

    def __init__(self, matrix: np.ndarray) -> None:
        super().__init__(np.float64, matrix.shape)
        self.matrix = matrix

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.matrix @ x

    def _rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self.matrix.T @ y


def cases() -> Iterator[Case]:
    """Yield names and fits."""

    def fit(name: str, data: Any, **settings: Any) -> Case:
        return name, lambda: cofem.fit(*data, **({"rng": 0} | settings))

    kinds = dictionaries()
    for kind, Phi in kinds.items():
        yield fit(f"auto/{kind}", problem(Phi), noise_std=0.01)
        if kind not in ("tall", "large dct"):
            yield fit(f"cofem/{kind}", problem(Phi, seed=1), noise_std=0.02, method="cofem")
    yield fit("auto/own", problem(Function(gaussian(250, 700))), noise_std=0.01)
    single = problem(kinds["dct"])[1].astype(np.float32)
    yield fit("auto/dct float32", (kinds["dct"], single), noise_std=0.01)

    small, dense, dct = (problem(kinds[kind]) for kind in ("small", "dense", "dct"))
    for method in ("em", "irls", "amp", "vi", "seq"):
        yield fit(f"{method}/small", small, noise_std=0.05, method=method)
        yield fit(f"{method}/dct", dct, noise_std=0.01, method=method, max_iter=40)
    for method in ("em", "irls"):
        yield fit(f"{method}/complex", problem(kinds["complex"]), noise_std=0.05, method=method, max_iter=30)
    yield fit("em/accelerated", dense, noise_std=0.3, method=cofem.EM(accelerate=True))
    yield fit("paper/dct", dct, noise_std=0.01, method=cofem.CoFEM.paper(probes=8), max_iter=12)
    for diagonal in ("rademacher", "paired", "pooled", "self_consistent", "corrected", "exact"):
        method = cofem.CoFEM(diagonal=diagonal)
        yield fit(f"{diagonal}/dct", dct, noise_std=0.01, method=method, max_iter=25)
        yield fit(
            f"{diagonal}/wavelet", problem(kinds["wavelet"]), noise_std=0.01, method=method, max_iter=25
        )
    for settings in (
        dict(form="primal"),
        dict(form="dual"),
        dict(preconditioner="none"),
        dict(preconditioner="jacobi", form="primal"),
        dict(warm_start=False),
        dict(accelerate=False),
    ):
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        yield fit(f"dense {words}", dense, noise_std=0.3, method=cofem.CoFEM(**settings), max_iter=25)

    for kind in ("small", "tall", "dct", "dense", "complex", "blur", "wavelet", "single"):
        yield fit(f"learned/{kind}", problem(kinds[kind], seed=3))
    weights = np.random.default_rng(9).uniform(0.2, 5, 300)
    yield fit("weights/given", dense, noise_std=0.3, sample_weight=weights)
    yield fit("weights/learned", dense, sample_weight=weights)
    yield fit("noise of each", dense, noise_std=0.3 / np.sqrt(weights))
    yield fit("alpha_init", dct, noise_std=0.01, alpha_init=np.linspace(1, 5, 2048))
    yield fit("units", (1e8 * kinds["dense"], 1e-6 * dense[1]), noise_std=3e-7)

    priors = (cofem.Block(4), cofem.PatternCoupled(0.5), cofem.PatternCoupled(1.0, shape=(32, 32)))
    for prior in priors:
        data = problem(kinds["dct2"], seed=4)
        yield fit(f"{prior}/dct2", data, noise_std=0.01, prior=prior)
        yield fit(f"{prior}/learned", data, prior=prior)
    for kind in ("dense", "dct", "fourier", "small"):
        data = problem(kinds[kind], tasks=3)
        yield fit(f"multitask/{kind}", data, noise_std=0.01, prior=cofem.MultiTask())
        yield fit(f"multitask learned/{kind}", data, prior=cofem.MultiTask())
        yield fit(f"tasks/{kind}", data, noise_std=0.01)
    several = [problem(gaussian(n, 500, n), seed=5) for n in (150, 200)]
    lists = ([Phi for Phi, _ in several], [y for _, y in several])
    yield fit("lists/joined", lists, noise_std=0.1, prior=cofem.MultiTask())
    yield fit("lists/apart", lists, noise_std=0.1)
    Phi = kinds["dense"]
    z = np.abs(np.random.default_rng(6).standard_normal(1000)) * (np.arange(1000) % 25 == 0)
    for noise_std in (0.01, "learn"):
        yield fit(f"nonnegative/{noise_std}", (Phi, Phi @ z), noise_std=noise_std, nonnegative=True)

    yield from resumed(fit)
    yield from in_torch(fit)
    yield from estimators()


def resumed(fit: Callable[..., Case]) -> Iterator[Case]:
    """Yield fits that were interrupted and went on from their checkpoint."""

    def broken(data: Any, step: int, **settings: Any) -> Any:
        def stop(state: Any) -> None:
            if state.iteration == step and state.stage == settings.get("stage", state.stage):
                raise KeyboardInterrupt

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.npz")
            settings = {"rng": 0, "checkpoint": path, "checkpoint_every": "2 steps"} | settings
            try:
                cofem.fit(*data, callback=stop, **settings)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("the fit was over before the interruption")
            return cofem.fit(*data, resume=path, **settings)

    for kind, noise_std in (("dct", 0.01), ("dense", 0.3), ("small", "learn"), ("dct", "learn")):
        data = problem(dictionaries()[kind])
        yield f"resumed/{kind} {noise_std}", lambda d=data, s=noise_std: broken(d, 5, noise_std=s)
    data = problem(gaussian(60, 120))
    for method in ("em", "irls", "amp", "seq", "vi"):
        yield (
            f"resumed/{method}",
            lambda m=method: broken(data, 3, noise_std=0.05, method=m),
        )


def in_torch(fit: Callable[..., Case]) -> Iterator[Case]:
    try:
        import torch
    except ImportError:
        return
    kinds = dictionaries()
    for kind in ("dct", "dct2", "blur", "fourier"):
        Phi, y = problem(kinds[kind])
        yield fit(f"torch/{kind}", (Phi, torch.from_numpy(y)), noise_std=0.01)
    Phi, y = problem(kinds["dense"])
    tensors = (torch.from_numpy(Phi), torch.from_numpy(y))
    yield fit("torch/dense", tensors, noise_std=0.3)
    yield fit("torch/dense learned", tensors)
    yield fit("torch/vi", tensors, noise_std=0.3, method="vi", max_iter=50)
    yield fit("torch/block", tensors, noise_std=0.3, prior=cofem.Block(4))
    yield fit("torch/float32", (kinds["dct"], torch.from_numpy(problem(kinds["dct"])[1]).float()))


def estimators() -> Iterator[Case]:
    X = gaussian(120, 30, 11)
    y = 3 * X[:, 2] - X[:, 7] + 0.1 * gaussian(120, 1, 12)[:, 0]
    wide = gaussian(80, 200, 13)
    t = wide[:, 3] - wide[:, 9] + 0.1 * gaussian(80, 1, 14)[:, 0]
    yield "SBLRegressor", lambda: cofem.SBLRegressor(random_state=0).fit(X, y).posterior_
    yield "SBLRegressor wide", lambda: cofem.SBLRegressor(random_state=0).fit(wide, t).posterior_
    yield (
        "SBLRegressor sparse",
        lambda: cofem.SBLRegressor(random_state=0).fit(scipy.sparse.csr_array(wide), t).posterior_,
    )
    yield "RVMRegressor", lambda: cofem.RVMRegressor(gamma=0.1, random_state=0).fit(X[:, :3], y).posterior_
    both = np.stack([y, y[::-1]], axis=1)
    yield (
        "RVMRegressor two",
        lambda: cofem.RVMRegressor(gamma=0.1, random_state=0).fit(X[:, :3], both).posterior_,
    )


def fingerprint(post: Any) -> list[Any]:
    digest = hashlib.sha256()
    for name in ("mean", "variance", "alpha", "noise_std"):
        digest.update(np.ascontiguousarray(np.asarray(getattr(post, name))).tobytes())
    steps = post.history["applications"]
    return [digest.hexdigest()[:20], post.n_iter, float(steps[-1]), post.status.code.value]


def main(what: str, path: str, *words: str) -> int:
    before = json.loads(Path(path).read_text()) if what == "compare" else {}
    found: dict[str, list[Any]] = {}
    for name, run in cases():
        if words and not any(word in name for word in words):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = fingerprint(run())
        if what == "compare" and before.get(name) != found[name]:
            print(f"DIFFERS {name}: {before.get(name)} -> {found[name]}", flush=True)
    if what == "record":
        Path(path).write_text(json.dumps(found, indent=1))
        print(f"{len(found)} fits recorded")
        return 0
    same = sum(before.get(name) == value for name, value in found.items())
    print(f"{same} of {len(found)} fits are the same, bit for bit")
    return same != len(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
