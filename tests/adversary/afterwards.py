"""What is made of a fit: files, refits, paths over noise levels, new data.

Wrong is an answer that differs from the one that the same question had before: of a posterior that was
saved and
loaded, of a refit, of a path whose levels are fitted one by one. Another dictionary of the same shape must
be
refused.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import cofem

from . import synthesis
from .silence import Case, quietly

KINDS = ("saved", "another operator", "refitted", "path", "new rows", "refitted in analysis form")
#: Kinds of dictionary that are taken in turn.
_OF = ("dense", "dct", "complex", "blur", "sparse", "wavelet", "correlated")


def draw(kind: str, number: int) -> Case:
    """Return a case of a kind: a problem, and what is done with its fit."""
    rng = np.random.default_rng([number, 20261121])
    Phi = synthesis.dictionary(_OF[number % len(_OF)], rng)
    case = synthesis.problem(Phi, _OF[number % len(_OF)], rng, number)
    settings: dict[str, Any] = {"rng": number, "noise_std": case.noise_std}
    if case.y.ndim == 1 and rng.random() < 0.5:
        settings["sample_weight"] = rng.uniform(0.2, 3.0, case.y.shape[0])
    if case.y.ndim == 2:
        settings["prior"] = cofem.MultiTask()
    if kind == "refitted in analysis form":
        d = int(rng.integers(40, 120))
        z = np.repeat(rng.standard_normal(4), d // 4 + 1)[:d]
        y = z + case.noise_std * rng.standard_normal(d)
        settings = {"rng": number, "noise_std": case.noise_std, "analysis": (d,)}
        case = Case(case.words, cofem.operators.Identity(d), y, z, case.noise_std, settings)
    words = f"{kind}: {case.words}; with {settings}"
    return Case(words, case.Phi, case.y, case.z, case.noise_std, settings | {"kind": kind})


def judge(case: Case) -> list[str]:
    """Return what is silently wrong with what is made of a fit."""
    settings = dict(case.settings)
    kind = settings.pop("kind")
    post, _, wrong = quietly(lambda: cofem.fit(case.Phi, case.y, **settings))
    return [*wrong, *_DONE[kind](case, settings, post)]


def _differs(name: str, found: Any, wanted: Any, tol: float) -> list[str]:
    size = float(np.max(np.abs(wanted))) or 1.0
    gap = float(np.max(np.abs(np.asarray(found) - np.asarray(wanted)))) / size
    return [] if gap <= tol else [f"{name} differs by {gap:.2g}"]


def _saved(case: Case, settings: dict[str, Any], post: cofem.Posterior) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        post.save(Path(folder) / "fit.npz")
        again = cofem.load(Path(folder) / "fit.npz", operator=case.Phi)
    wrong = [] if again.status == post.status else ["another status"]
    for name in ("mean", "std"):
        wrong += _differs(name, getattr(again, name), getattr(post, name), 0.0)
    return wrong + _differs("draws", again.sample(2, rng=0), post.sample(2, rng=0), 1e-9)


def _another_operator(case: Case, settings: dict[str, Any], post: cofem.Posterior) -> list[str]:
    other = cofem.as_operator(case.Phi).to_dense()
    at = np.random.default_rng(0).integers(other.shape[1])
    other[:, at] += 0.1 * np.abs(other).max()
    with tempfile.TemporaryDirectory() as folder:
        post.save(Path(folder) / "fit.npz")
        try:
            cofem.load(Path(folder) / "fit.npz", operator=other)
        except ValueError:
            return []
    return ["another dictionary was accepted"]


def _refitted(case: Case, settings: dict[str, Any], post: cofem.Posterior) -> list[str]:
    """A refit to other data is a fit to them: exact formulas, at its own precisions."""
    level = 1.5 * case.noise_std
    again, silent, wrong = quietly(
        lambda: cofem.refit(post, noise_std=level, rng=0, prior=settings.get("prior"))
    )
    if not silent:
        return wrong
    Phi = cofem.as_operator(case.Phi).to_dense()
    weights = np.asarray(settings.get("sample_weight", np.ones(case.y.shape[0])))
    norms = np.linalg.norm(Phi, axis=0)
    norms = np.where(norms > 0, norms, 1)
    scaled = np.sqrt(weights)[:, None] * Phi / norms
    precision = scaled.conj().T @ scaled / level**2 + np.diag(again.alpha / norms**2)
    right = scaled.conj().T @ (np.sqrt(weights) * case.y.T).T / level**2
    error = (again.mean.T * norms).T - np.linalg.solve(precision, right)
    energy = float(np.sqrt(np.sum(np.real(np.conj(error) * (precision @ error))) / case.y.size))
    return wrong + ([f"mean off by {energy:.2g} of the noise"] if energy > 0.1 else [])


def _path(case: Case, settings: dict[str, Any], post: cofem.Posterior) -> list[str]:
    levels = [case.noise_std, 3 * case.noise_std]
    rest = {name: value for name, value in settings.items() if name != "noise_std"}
    found = cofem.fit_path(case.Phi, case.y, levels, **rest)
    wrong = [] if [float(p.noise_std) for p in found] == levels else ["levels out of order"]
    return wrong + [f"no mean at {p.noise_std}" for p in found if not np.isfinite(p.mean).all()]


def _new_rows(case: Case, settings: dict[str, Any], post: cofem.Posterior) -> list[str]:
    """Predictions at some rows are those of the whole, and so are their spreads."""
    if case.y.ndim == 2:
        return []
    rows = cofem.as_operator(case.Phi).to_dense()[:5]
    mean, std = post.predict(rows, return_std=True, include_noise=False)
    wrong = _differs("prediction", mean, rows @ post.mean, 1e-9)
    found = np.where(np.asarray(post.alpha * post.variance) < 1)[0]
    covariance = post.covariance(np.arange(post.mean.size)) if found.size else None
    if covariance is None:
        return wrong
    exact = np.sqrt(np.einsum("ij,jk,ik->i", rows, covariance, rows.conj()).real)
    return wrong + _differs("spread of predictions", std, exact, 1e-3)


def _refitted_in_analysis(case: Case, settings: dict[str, Any], post: cofem.Posterior) -> list[str]:
    again, silent, wrong = quietly(lambda: cofem.refit(post, noise_std=case.noise_std, rng=0))
    if not silent:
        return wrong
    return wrong + ([] if again.mean.shape == post.mean.shape else ["another shape"])


_DONE = {
    "saved": _saved,
    "another operator": _another_operator,
    "refitted": _refitted,
    "path": _path,
    "new rows": _new_rows,
    "refitted in analysis form": _refitted_in_analysis,
}
