import numpy as np
import pytest

from cofem.linalg.diagonals.rademacher import estimate_diagonal
from cofem.linalg.probes import draw_probes


def covariance(n=60, seed=0):
    rng = np.random.default_rng(seed)
    F = rng.standard_normal((n, n // 2)) * np.geomspace(1, 1e-2, n)[:, None]
    return F @ F.T + np.diag(np.geomspace(1, 1e-3, n))


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
@pytest.mark.parametrize("scaled", [False, True])
def test_unbiased_and_the_standard_error_is_honest(distribution, scaled):
    M = covariance()
    n, exact = len(M), np.diagonal(M)
    rng = np.random.default_rng(1)
    scale = 1 / np.sqrt(exact) if scaled else 1.0
    repeats, K = 400, 16
    values, errors = [], []
    for _ in range(repeats):
        p = draw_probes(K, n, like=exact, rng=rng, distribution=distribution)
        value, error = estimate_diagonal(p, (p * scale) @ M, scale)
        values.append(value)
        errors.append(error)
    mean, spread = np.mean(values, axis=0), np.std(values, axis=0)
    z = (mean - exact) / (spread / np.sqrt(repeats))
    assert np.abs(z).max() < 4.5
    assert 0.8 < np.std(z) < 1.25
    # The reported error squared is the variance of the estimate (exactly, for Rademacher probes).
    ratio = np.sqrt(np.mean(np.square(errors), axis=0)) / spread
    limits = (0.85, 1.15) if distribution == "rademacher" else (0.7, 1.2)
    assert limits[0] < np.median(ratio) < limits[1]


def test_complex_hermitian_matrix():
    rng = np.random.default_rng(0)
    F = rng.standard_normal((20, 20)) + 1j * rng.standard_normal((20, 20))
    M = F @ F.conj().T
    p = draw_probes(4000, 20, like=M, rng=rng, distribution="rademacher")
    value, error = estimate_diagonal(p, p @ M.T)
    assert not np.iscomplexobj(value)
    assert np.all(np.abs(value - np.diagonal(M).real) < 5 * error)


def test_diagonal_matrix_needs_one_probe_and_says_the_error_is_unknown():
    p = draw_probes(1, 5, like=np.zeros(5), rng=np.random.default_rng(0), distribution="rademacher")
    value, error = estimate_diagonal(p, p * np.arange(1.0, 6.0))
    assert value.tolist() == [1, 2, 3, 4, 5]
    assert np.isinf(error).all()


def test_scaling_by_standard_deviations_helps_unequal_variances():
    M = covariance()
    exact, n = np.diagonal(M), len(M)

    def rms(scale):
        rng = np.random.default_rng(0)
        p = draw_probes(2000, n, like=exact, rng=rng, distribution="rademacher")
        return np.sqrt(np.mean((estimate_diagonal(p, (p * scale) @ M, scale)[1] / exact) ** 2))

    assert rms(1 / np.sqrt(exact)) < 0.2 * rms(1.0)
