"""Random dictionaries with sparse coefficients, in synthesis form.

Wrong is

1. a mean that is not the posterior's at the precisions that the fit returned, by more than a tenth of what
   the
   noise causes,
2. a standard deviation of the support that is off by more than 20 %,
3. a log evidence that is off by more than four standard errors and a tenth of a nat,
4. an error more than half as large again as that of exact EM, and by more than 5 % of the signal, and
5. a noise that was learned and is off by more than a factor of two, where exact EM with the true noise
   finds
   the signal.
"""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse

import cofem
from cofem.operators import (
    DCT,
    FFT,
    Centred,
    Chunked,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    Mask,
    Wavelet,
    hstack,
)

from .silence import Case, noise_fault, quietly

#: Kinds whose columns hardly overlap: each datum tells of one or two coefficients.
DIAGONAL = ("identity", "diagonal", "orthonormal", "nearly diagonal")


#: Error of exact EM, relative to the signal, up to which the signal counts as found.
FOUND = 0.3


def dictionary(kind: str, rng: np.random.Generator) -> Any:
    """Return a random dictionary of a kind."""
    n = int(rng.integers(12, 160))
    d = int(n * rng.choice([0.5, 1.0, 1.5, 2.0, 4.0]))
    d = max(d, 8)
    matrix = rng.standard_normal((n, d))
    even = 8 * max(2, d // 8)
    rows = np.sort(rng.choice(even, max(4, even // int(rng.integers(2, 4))), replace=False))
    if kind == "dense":
        return matrix / n**0.5
    if kind == "correlated":
        for j in range(1, d):
            matrix[:, j] = 0.9 * matrix[:, j - 1] + 0.44 * matrix[:, j]
        return matrix / n**0.5
    if kind == "duplicated":
        matrix[:, 1::2] = matrix[:, : 2 * (d // 2) : 2] * rng.choice([-1, 1, 3])
        return matrix
    if kind == "nearly duplicated":
        matrix[:, 1::2] = matrix[:, : 2 * (d // 2) : 2] + 0.05 * matrix[:, 1::2]
        return matrix
    if kind == "unequal norms":
        return matrix * 10 ** rng.uniform(-5, 5, d)
    if kind == "large mean":
        return matrix + rng.uniform(0, 5)
    if kind == "sparse":
        return scipy.sparse.csr_array(matrix * (rng.random((n, d)) < 0.3))
    if kind == "complex":
        return matrix + 1j * rng.standard_normal((n, d))
    if kind == "dct":
        return Mask(rows, even) @ DCT(even).T
    if kind == "fourier":
        return Mask(rows, even) @ FFT(even).H
    if kind == "wavelet":
        return Mask(rows, even) @ Wavelet(even, "db2", level=2).T
    if kind == "blur":
        t = np.arange(-10, 11)
        kernel = np.exp(-0.5 * (t / rng.uniform(0.7, 2.5)) ** 2)
        return Convolution(kernel / kernel.sum(), max(24, d))
    if kind == "two bases":
        return hstack([Diagonal(np.ones(even)), 10.0 ** rng.integers(-6, 6) * DCT(even).T])
    if kind == "identity":
        return Identity(4 * d)
    if kind == "diagonal":
        return Diagonal(rng.choice([-1.0, 1.0], 4 * d) * rng.uniform(0.5, 2.0, 4 * d))
    if kind == "orthonormal":
        return [DCT(even).T, Wavelet(4 * even, "haar", level=1).T][rng.integers(2)]
    if kind == "nearly diagonal":
        return np.eye(2 * d) + 0.01 * rng.standard_normal((2 * d, 2 * d))
    if kind == "centred":
        return Centred(Dense(matrix + 3))
    assert kind == "chunked"
    return Chunked(matrix, rows=7)


KINDS = (
    "dense",
    "correlated",
    "duplicated",
    "nearly duplicated",
    "unequal norms",
    "large mean",
    "sparse",
    "complex",
    "dct",
    "fourier",
    "wavelet",
    "blur",
    "two bases",
    "centred",
    "chunked",
    *DIAGONAL,
)


def draw(kind: str, number: int) -> Case:
    """Return a case of a kind."""
    rng = np.random.default_rng([number, 20261116])
    return problem(dictionary(kind, rng), kind, rng, number)


def problem(Phi: Any, kind: str, rng: np.random.Generator, number: int) -> Case:
    """Return random coefficients and data for a dictionary, and how to fit them."""
    operator = cofem.as_operator(Phi)
    n, d = operator.shape
    share = [0.1, 0.2] if kind in DIAGONAL else [0.02, 0.05, 0.1]
    count = max(1, int(d * rng.choice(share)))
    shape = (d, 3) if rng.random() < 0.15 else (d,)
    z = np.zeros(shape, complex if operator.is_complex else float)
    where = rng.choice(d, count, replace=False)
    z[where] = rng.standard_normal((count, *shape[1:])) + (1j if operator.is_complex else 0)
    norms = np.where(operator.column_norms() > 0, operator.column_norms(), 1)
    z = (z.T / norms).T
    clean = operator @ z
    size = float(np.sqrt(np.mean(np.abs(clean) ** 2))) or 1.0
    noise_std = size * 10.0 ** rng.uniform(-4, -0.5)
    noise = rng.standard_normal(clean.shape)
    if operator.is_complex:
        noise = (noise + 1j * rng.standard_normal(clean.shape)) / np.sqrt(2)
    settings: dict[str, Any] = {"rng": number, "noise_std": noise_std}
    methods = ["auto", "cofem", "cofem", "irls", "em"]
    if len(shape) == 1 and not operator.is_complex:
        methods += ["seq", "amp", "vi"]
    settings["method"] = str(rng.choice(methods))
    if len(shape) == 2:
        settings["prior"] = cofem.MultiTask()
    elif settings["method"] in ("auto", "cofem", "irls") and rng.random() < 0.2:
        settings["prior"] = cofem.Block(2) if rng.random() < 0.5 else cofem.PatternCoupled(0.5)
    learned = 0.75 if kind in DIAGONAL else 0.25
    if settings["method"] not in ("em", "irls") and n > 12 and rng.random() < learned:
        settings["noise_std"] = "learn"
    words = f"{kind} {n} x {d}, {count} of size {size / noise_std:.3g} noises, {settings}"
    return Case(words, Phi, clean + noise_std * noise, z, noise_std, settings)


def judge(case: Case) -> list[str]:
    """Return what is silently wrong with the fit of a case."""
    # Beyond the smallest sizes variances are estimated: pretend that all are beyond.
    with mock.patch("cofem.linalg.diagonals.gate.SMALL_ENTRIES", 0):
        post, silent, wrong = quietly(lambda: cofem.fit(case.Phi, case.y, **case.settings))
    if not silent:
        return wrong
    operator = cofem.as_operator(case.Phi)
    Phi, y = operator.to_dense(), case.y
    # In units in which all columns have the norm one, an inverse is as good as it can be.
    norms = np.linalg.norm(Phi, axis=0)
    norms = np.where(norms > 0, norms, 1.0)
    Phi, alpha, noise_var = Phi / norms, post.alpha / norms**2, float(post.noise_std) ** 2
    precision = Phi.conj().T @ Phi / noise_var + np.diag(alpha)
    root = 1 / np.sqrt(np.diagonal(precision).real)
    covariance = np.linalg.inv(precision * np.outer(root, root)) * np.outer(root, root)
    mean = covariance @ (Phi.conj().T @ y) / noise_var
    error = (post.mean.T * norms).T - mean
    energy = np.sqrt(np.sum(np.real(np.conj(error) * (precision @ error))) / y.size)
    if energy > 0.1:
        wrong.append(f"mean off by {energy:.2g} of the noise")
    found = post.support()
    std = (post.std.T * norms).T[found]
    ratio = (std if std.ndim == 1 else std[:, 0]) / np.sqrt(np.diagonal(covariance).real[found])
    off = found[(ratio > 1.2) | (ratio < 1 / 1.2)]
    if off.size:
        wrong.append(f"std of {off.tolist()[:5]} off: {ratio.min():.3g} to {ratio.max():.3g}")
    with (
        mock.patch("cofem.linalg.evidence.EXACT_DETERMINANT", 0),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        evidence = post.log_evidence(rng=0)
    exact = log_evidence(Phi, y, alpha, noise_var)
    if not caught and abs(evidence.value - exact) > 4 * evidence.standard_error + 0.1 + 1e-7 * abs(exact):
        wrong.append(f"log evidence {evidence.value:.6g} +- {evidence.standard_error:.2g}, exact {exact:.6g}")
    if case.settings["method"] in ("auto", "cofem"):
        reference = {"method": "em", "max_iter": 500, "tol": 1e-5, "noise_std": case.noise_std}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            em = cofem.fit(case.Phi, y, **case.settings | reference)
        ours, theirs = (distance(p.mean, case.z, norms) for p in (post, em))
        if case.settings["noise_std"] != "learn" and ours > 1.5 * theirs + 0.05:
            wrong.append(f"error {ours:.3g}, exact EM {theirs:.3g}")
        if theirs < FOUND:
            wrong += noise_fault(post, case)
    return wrong


def distance(mean: np.ndarray, z: np.ndarray, norms: np.ndarray) -> float:
    return float(np.linalg.norm((mean - z).T * norms) / (np.linalg.norm(z.T * norms) or 1.0))


def log_evidence(Phi: np.ndarray, y: np.ndarray, alpha: np.ndarray, noise_var: float) -> float:
    C = noise_var * np.eye(len(Phi)) + (Phi / alpha) @ Phi.conj().T
    quadratic = float(np.vdot(y, np.linalg.solve(C, y)).real)
    log_det = np.linalg.slogdet(C)[1] * (1 if y.ndim == 1 else y.shape[1])
    if np.iscomplexobj(Phi) or np.iscomplexobj(y):
        return -(y.size * np.log(np.pi) + log_det + quadratic)
    return -0.5 * (y.size * np.log(2 * np.pi) + log_det + quadratic)
