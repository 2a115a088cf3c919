"""The paper's test problems and an exact dense posterior to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cofem.operators import DCT, Mask, as_operator
from cofem.operators.dictionary import Dictionary


@dataclass(frozen=True)
class Case:
    Phi: Any
    y: np.ndarray
    z: np.ndarray
    noise_std: float

    def nrmse(self, mean: np.ndarray) -> float:
        """In percent, as in the paper."""
        return 100 * float(np.linalg.norm(mean - self.z) / np.linalg.norm(self.z))


def dense_case(
    D: int = 1024,
    f: int = 4,
    density: float = 0.04,
    noise_std: float = 0.005,
    seed: int = 0,
    mean: float = 0.0,
) -> Case:
    """Phi ~ N(mean, 1), not normalised; spikes of +-1 (the paper's dense setting for mean = 0)."""
    rng = np.random.default_rng(seed)
    N, d = D // f, round(density * D)
    z = np.zeros(D)
    z[rng.choice(D, d, replace=False)] = rng.choice([-1.0, 1.0], d)
    Phi = mean + rng.standard_normal((N, D))
    return Case(Phi, Phi @ z + noise_std * rng.standard_normal(N), z, noise_std)


def dct_case(
    D: int = 1024, f: int = 4, density: float = 0.04, noise_std: float = 0.005, seed: int = 0
) -> Case:
    """Inverse DCT and an undersampling mask; N(0, 1) coefficients (the paper's structured setting)."""
    rng = np.random.default_rng(seed)
    N, d = D // f, round(density * D)
    z = np.zeros(D)
    z[rng.choice(D, d, replace=False)] = rng.standard_normal(d)
    Phi = Mask(np.sort(rng.choice(D, N, replace=False)), D) @ DCT(D).T
    return Case(Phi, Phi @ z + noise_std * rng.standard_normal(N), z, noise_std)


def complex_case(
    D: int = 64, f: int = 2, density: float = 0.06, noise_std: float = 0.01, seed: int = 0
) -> Case:
    rng = np.random.default_rng(seed)
    N, d = D // f, max(1, round(density * D))
    z = np.zeros(D, complex)
    z[rng.choice(D, d, replace=False)] = np.exp(2j * np.pi * rng.random(d))
    Phi = (rng.standard_normal((N, D)) + 1j * rng.standard_normal((N, D))) / np.sqrt(2 * N)
    noise = (rng.standard_normal(N) + 1j * rng.standard_normal(N)) / np.sqrt(2)
    return Case(Phi, Phi @ z + noise_std * noise, z, noise_std)


def dictionary(Phi: Any, dtype: Any = None) -> Dictionary:
    """Phi as a fit sees it, in double precision unless said otherwise."""
    operator = as_operator(Phi)
    return Dictionary(operator, like=np.zeros(1, operator.dtype if dtype is None else dtype))


def exact_posterior(
    Phi: Any, y: np.ndarray, alpha: np.ndarray, noise_std: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance by the textbook formulas, with a plain inverse."""
    Phi = Phi if isinstance(Phi, np.ndarray) else Phi.to_dense()
    beta = noise_std**-2
    covariance = np.linalg.inv(beta * Phi.conj().T @ Phi + np.diag(alpha))
    return beta * covariance @ Phi.conj().T @ y, covariance


def exact_log_evidence(Phi: Any, y: np.ndarray, alpha: np.ndarray, noise_std: float) -> float:
    """Log density of y under N(0, C), by brute force."""
    Phi = Phi if isinstance(Phi, np.ndarray) else Phi.to_dense()
    C = noise_std**2 * np.eye(y.size) + (Phi / alpha) @ Phi.conj().T
    _, log_det = np.linalg.slogdet(C)
    quadratic = np.vdot(y, np.linalg.solve(C, y)).real
    if np.iscomplexobj(Phi) or np.iscomplexobj(y):
        return float(-(y.size * np.log(np.pi) + log_det + quadratic))
    return float(-0.5 * (y.size * np.log(2 * np.pi) + log_det + quadratic))
