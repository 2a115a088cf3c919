"""Far more columns than data: what is near zero must not take up the data."""

from __future__ import annotations

import numpy as np
import pytest

import cofem
from cofem.experiments.bench.everyday import features
from cofem.inference import base
from cofem.inference.acceleration import scaled_together
from tests.problems import exact_posterior


def error_and_share(N: int, D: int, seed: int, method: str) -> tuple[float, float]:
    """Error of the mean, and the share of new data in their 90 % intervals."""
    case = features(N, D, seed)
    post = cofem.fit(case.Phi, case.y, noise_std=0.5, method=method, rng=0)
    assert post.status.settled
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((400, D))
    predicted, std = post.predict(rows, return_std=True)
    new = rows @ case.z + 0.5 * rng.standard_normal(400)
    return case.nrmse(post.mean), float(np.mean(np.abs(new - predicted) < 1.645 * std))


@pytest.mark.parametrize("method", ["irls", "cofem"])
@pytest.mark.parametrize(("N", "D"), [(100, 3000), pytest.param(120, 6000, marks=pytest.mark.nightly)])
def test_wide_fits_do_not_stop_while_all_columns_blur_predictions(
    N: int, D: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = cofem.IRLS(accelerate=True) if method == "irls" else cofem.CoFEM()
    now = np.array([error_and_share(N, D, seed, chosen) for seed in (2, 3, 4)])
    monkeypatch.setattr(base, "scaled_together", lambda *given: None)
    before = np.array([error_and_share(N, D, seed, chosen) for seed in (2, 3, 4)])
    ratios = now[:, 0] / before[:, 0]
    assert ratios.max() < 1.02
    assert np.exp(np.mean(np.log(ratios))) < 0.8
    assert before[:, 1].min() == 1.0
    assert 0.9 < now[:, 1].mean() < 0.99


def test_a_wide_fit_that_found_nothing_goes_on() -> None:
    """A draw on which the fit settled at half of the signal, and called that converged."""
    case = features(100, 20_000, 101)
    assert case.nrmse(cofem.fit(case.Phi, case.y, noise_std=0.5, rng=0).mean) < 5


def test_the_common_scale_is_where_the_evidence_is_largest() -> None:
    """One factor for the precisions of all columns, none of which counts: exact moments, by turns."""
    rng = np.random.default_rng(0)
    Phi, y = rng.standard_normal((30, 600)), rng.standard_normal(30)
    alpha = np.full(600, 5.0)
    for _ in range(20):
        mean, covariance = exact_posterior(Phi, y, alpha, 0.1)
        scaled = scaled_together(alpha, np.diagonal(covariance), mean**2, 30)
        if scaled is None:
            break
        alpha = scaled
    else:
        raise AssertionError("it does not settle")

    def log_evidence(scale: float) -> float:
        C = 0.01 * np.eye(30) + scale * Phi @ Phi.T / alpha[0]
        return -np.linalg.slogdet(C)[1] - y @ np.linalg.solve(C, y)

    found = [log_evidence(scale) for scale in (0.6, 1.0, 1.7)]
    assert max(found) == found[1]
