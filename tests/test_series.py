"""Series in analysis form: a process whose spectrum is learned, ``cofem.fit(Mask(seen), y, analysis=n)``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import linalg
from scipy.stats import multivariate_normal

import cofem
from cofem.inference.analysis import process as process_module
from cofem.inference.analysis.process import band_whitening, whitening
from cofem.inference.analysis.spectrum import Window, _Model, learn_spectrum, slope_of
from cofem.operators import Convolution, Gradient, Mask


def season(n: int, seed: int, noise: float = 0.2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A trend and a season of 12 samples with a harmonic: all samples, which are seen, and their data."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    u = 0.02 * t + np.sin(t / 40) + 1.5 * np.sin(2 * np.pi * t / 12) + 0.6 * np.cos(4 * np.pi * t / 12 + 1)
    seen = rng.random(n) < 2 / 3
    return u, seen, u[seen] + noise * rng.standard_normal(int(seen.sum()))


def data_window(seed: int = 0, n: int = 60) -> Window:
    _, seen, y = season(n, seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, y.size)
    return Window(y * weights, np.flatnonzero(seen), weights)


PARAMETERS = np.array([-1.0, 0.0, 0.0, np.log(0.02), 0.5, 0.0, -0.5, 0.08, np.log(0.01), 0.3, 0.4])


def test_the_evidence_is_the_density_of_the_data() -> None:
    window = data_window()
    model = _Model([window], 60, None, True)
    value, _ = model.loss(PARAMETERS)
    density, _ = model.density(PARAMETERS)
    f = model.circle.frequencies
    lags = np.arange(60)
    r = (density[:, None] * np.cos(2 * np.pi * f[:, None] * lags)).sum(axis=0)
    line = slope_of(60)
    K = linalg.toeplitz(r) + model.level + model.slope * np.outer(line, line)
    Phi = np.diag(window.weights) @ np.eye(60)[window.places]
    C = Phi @ K @ Phi.T + np.exp(-1.0) * np.eye(window.y.size)
    assert -value == pytest.approx(multivariate_normal(cov=C).logpdf(window.y), rel=1e-9)


def test_derivatives_of_the_evidence_are_those_of_differences() -> None:
    model = _Model([data_window(), data_window(1)], 60, None, True)
    _, gradient = model.loss(PARAMETERS)
    for i in range(PARAMETERS.size):
        if i == 2:  # the frequency of a bump at zero, which stays there
            continue
        step = np.zeros(PARAMETERS.size)
        step[i] = 1e-6
        slope = (model.loss(PARAMETERS + step)[0] - model.loss(PARAMETERS - step)[0]) / 2e-6
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_a_series_is_made_white() -> None:
    covariance = 3.0 * np.exp(-np.arange(40) / 7) + 1.0
    covariance[0] += 0.01
    B = whitening(covariance, 40, slope=2.0)
    line = slope_of(40)
    K = linalg.toeplitz(covariance) + 2.0 * np.outer(line, line)
    np.testing.assert_allclose(B @ K @ B.T, np.eye(40), atol=1e-9)


def test_a_band_is_exact_for_a_process_that_remembers_as_much() -> None:
    """One that remembers a sample: with two or with all of them, the inverse covariance is the same."""
    covariance = 0.8 ** np.arange(50)
    band = band_whitening(covariance[:3], 50)
    assert band.nnz <= 3 * 50
    np.testing.assert_allclose((band.T @ band).toarray(), linalg.inv(linalg.toeplitz(covariance)), atol=1e-9)


def test_seasons_are_found_and_intervals_hold() -> None:
    held, errors, noise = [], [], []
    for seed in range(3):
        u, seen, y = season(200, seed)
        post = cofem.fit(Mask(seen), y, analysis=200, rng=0)
        assert post.converged
        assert "spectrum was learned" in str(post.status)
        assert any("12" in note and "periods" in note for note in post.status.notes)
        noise.append(post.noise_std)
        off = (post.mean - u)[~seen]
        errors.append(np.sqrt(np.mean(off**2)))
        held.append(np.mean(np.abs(off) < 1.96 * post.std[~seen]))
    # On seed 1 the evidence is larger by 8 nats at half of the noise than at 0.17.
    assert 0.2 / 1.5 < np.exp(np.mean(np.log(noise))) < 0.2 * 1.5
    assert min(noise) > 0.2 / 2.2
    assert max(noise) < 0.2 * 1.5
    assert np.mean(errors) < 0.12  # differences alone: 0.4
    assert 0.88 < np.mean(held) <= 1.0


def test_predictions_and_draws_are_those_of_the_posterior() -> None:
    _, seen, y = season(120, 0)
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    mean, std = post.predict(np.eye(120), return_std=True, include_noise=False)
    np.testing.assert_allclose(mean, post.mean, rtol=1e-6)
    np.testing.assert_allclose(std, post.std, rtol=1e-3)
    draws = post.sample(2000, rng=0)
    np.testing.assert_allclose(draws.std(axis=0), post.std, rtol=0.15)
    assert post.analysis is not None
    assert post.alpha.shape == (120,)


def test_jumps_are_left_to_differences() -> None:
    rng = np.random.default_rng(0)
    u = np.repeat(rng.standard_normal(12), 25)
    seen = rng.random(300) < 2 / 3
    y = u[seen] + 0.05 * rng.standard_normal(int(seen.sum()))
    post = cofem.fit(Mask(seen), y, analysis=300, rng=0)
    assert "analysis by first and second differences" in str(post.status)
    assert np.sqrt(np.mean((post.mean - u) ** 2)) < 0.2


@pytest.mark.parametrize("kind", ["given", "weights", "float32", "units"])
def test_what_a_series_may_come_with(kind: str) -> None:
    u, seen, y = season(150, 0)
    options: dict[str, Any] = {"rng": 0}
    unit = 1.0
    if kind == "given":
        options["noise_std"] = 0.2
    if kind == "weights":
        options["sample_weight"] = np.full(y.size, 1.0)
    if kind == "float32":
        y = y.astype(np.float32)
    if kind == "units":
        unit = 1e6
    post = cofem.fit(Mask(seen), unit * y, analysis=150, **options)
    assert "spectrum was learned" in str(post.status)
    assert str(post.mean.dtype) == ("float32" if kind == "float32" else "float64")
    assert np.sqrt(np.mean((post.mean / unit - u)[~seen] ** 2)) < 0.2
    if kind == "given":
        assert post.noise_std == 0.2
    if kind in ("units", "weights"):
        plain = cofem.fit(Mask(seen), y, analysis=150, rng=0)
        np.testing.assert_allclose(post.mean / unit, plain.mean, atol=1e-3)


def test_white_parts_of_the_spectrum_count_as_noise() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(150)
    y = np.sin(t / 15) + 0.3 * rng.standard_normal(150)
    found = learn_spectrum([Window(y, t, np.ones(150))], 150)
    assert 0.2 < found.noise_var**0.5 < 0.4
    assert found.covariance(150)[0] - found.covariance(150)[1] < 0.3**2


@pytest.mark.nightly
def test_long_series_are_learned_in_windows() -> None:
    u, seen, y = season(1500, 0)
    post = cofem.fit(Mask(seen), y, analysis=1500, rng=0)
    assert "spectrum was learned" in str(post.status)
    assert post.analysis is not None
    assert post.analysis.sparse_matrix() is not None
    off = (post.mean - u)[~seen]
    assert np.sqrt(np.mean(off**2)) < 0.12
    assert 0.88 < np.mean(np.abs(off) < 1.96 * post.std[~seen]) <= 1.0


def test_an_operator_of_the_users_own_is_not_replaced() -> None:
    _, seen, y = season(60, 0)
    B = Gradient(60)
    for prior in (None, "auto"):
        post = cofem.fit(Mask(seen), y, analysis=B, prior=prior, rng=0)
        assert post.analysis is not None
        assert post.analysis.shape == B.shape
        assert "spectrum" not in str(post.status)


def test_other_data_than_samples_have_no_process() -> None:
    u, seen, _ = season(100, 0)
    blur = Mask(seen) @ Convolution(np.ones(3) / 3, 100)
    post = cofem.fit(blur, blur @ u, noise_std=0.1, analysis=100, rng=0)
    assert "differences" in str(post.status)
    complex_post = cofem.fit(Mask(seen), (u + 1j * u)[seen], noise_std=0.1, analysis=100, rng=0)
    assert "differences" in str(complex_post.status)


def test_ctrl_c_while_the_spectrum_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    _, seen, y = season(60, 0)

    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process_module, "learn_spectrum", pressed)
    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(Mask(seen), y, analysis=60, rng=0)
    assert caught.value.posterior is None


@pytest.mark.parametrize("level", [3e4, 1e5, 1e9])
def test_a_level_far_above_what_varies(level: float) -> None:
    """The covariance is singular to rounding, or nearly: there is an answer all the same."""
    rng = np.random.default_rng(0)
    n = 60
    truth = level + np.sin(np.arange(n) / 4)
    seen = np.sort(rng.choice(n, 45, replace=False))
    post = cofem.fit(Mask(seen, n), truth[seen] + 0.1 * rng.standard_normal(45), analysis=n, rng=0)
    assert np.isfinite(post.mean).all()
    if level < 1e9:
        assert np.sqrt(np.mean((post.mean - truth) ** 2)) < 0.2


def test_tasks_with_processes_of_their_own_have_no_common_operator() -> None:
    rng = np.random.default_rng(0)
    n = 60
    Y = np.stack([np.sin(np.arange(n) / 3), np.cumsum(rng.standard_normal(n))], axis=1)
    post = cofem.fit(Mask(np.arange(0, n, 2), n), Y[::2], analysis=n, rng=0)
    assert post.analysis is None
    assert post.alpha is None
    assert all(task.analysis is not None for task in post.tasks)
