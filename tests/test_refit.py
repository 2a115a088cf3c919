"""Fits that start from another: the same answers as fits from the usual start, and fewer steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cofem
from cofem._refit import LARGEST_START, warm_start
from cofem.estimators import RVMRegressor, SBLRegressor
from cofem.experiments import problems
from cofem.operators import Gradient, Identity, Mask

CASE = problems.dct(1024, f=3, density=0.05, sigma=0.01, seed=3)


@pytest.fixture(scope="module")
def first() -> cofem.Posterior:
    return cofem.fit(CASE.Phi, CASE.y, noise_std=0.01, rng=0)


def test_the_same_data_again_take_fewer_steps(first: cofem.Posterior) -> None:
    again = cofem.refit(first, rng=0)
    assert again.n_iter < first.n_iter
    assert again.noise_std == first.noise_std
    assert np.linalg.norm(again.mean - first.mean) < 0.01 * np.linalg.norm(first.mean)


@pytest.mark.parametrize("sigma", [0.005, 0.03])
def test_another_noise_level_gives_what_a_fit_gives(sigma: float, first: cofem.Posterior) -> None:
    cold = cofem.fit(CASE.Phi, CASE.y, noise_std=sigma, rng=0)
    warm = cofem.refit(first, noise_std=sigma, rng=0)
    assert warm.noise_std == sigma
    assert np.linalg.norm(warm.mean - cold.mean) < 0.01 * np.linalg.norm(cold.mean)
    assert len(set(warm.support().tolist()) ^ set(cold.support().tolist())) <= 2  # of about fifty


def test_a_support_that_changed_is_found(first: cofem.Posterior) -> None:
    other = problems.dct(1024, f=3, density=0.05, sigma=0.01, seed=4)
    cold = cofem.fit(other.Phi, other.y, noise_std=0.01, rng=0)
    warm = cofem.refit(first, other.y, Phi=other.Phi, rng=0)
    assert other.nrmse(warm.mean) < 1.1 * other.nrmse(cold.mean)


def test_no_start_is_out_of_reach(first: cofem.Posterior) -> None:
    start = warm_start(first)
    kept = first.support()
    np.testing.assert_array_equal(start[kept], first.alpha[kept])
    energy = CASE.Phi.column_norms() ** 2
    share = np.mean(energy * first.mean**2)
    assert (start * share / energy).max() == pytest.approx(LARGEST_START)
    assert np.median(first.alpha) > np.median(start)


def test_a_path_is_in_the_order_asked_for() -> None:
    levels = [0.01, 0.3, 0.05]
    path = cofem.fit_path(CASE.Phi, CASE.y, levels, rng=0)
    assert [post.noise_std for post in path] == levels
    counts = [post.support().size for post in path]
    assert counts[0] > counts[2] > counts[1]
    assert CASE.nrmse(path[0].mean) < 5


def test_weights_tasks_and_analysis() -> None:
    rng = np.random.default_rng(0)
    Phi, z = rng.standard_normal((60, 40)), np.zeros(40)
    z[[3, 20]] = 1, -2
    each = np.where(np.arange(60) % 2, 0.05, 0.5)
    y = Phi @ z + each * rng.standard_normal(60)
    post = cofem.fit(Phi, y, noise_std=each, rng=0)
    again = cofem.refit(post, rng=0)
    np.testing.assert_allclose(again.weights, post.weights)
    np.testing.assert_allclose(again.mean, post.mean, atol=5e-3)
    together = cofem.fit(Phi, np.stack([y, -y], axis=1), noise_std=0.3, prior=cofem.MultiTask(), rng=0)
    again = cofem.refit(together, prior=cofem.MultiTask(), rng=0)
    np.testing.assert_allclose(again.mean, together.mean, atol=5e-3)
    steps = np.repeat([0.0, 2.0, 1.0], 20)
    seen = Mask(np.flatnonzero(rng.random(60) < 0.7), 60)
    data = seen @ steps + 0.05 * rng.standard_normal(seen.shape[0])
    differences = cofem.fit(seen, data, noise_std=0.05, analysis=Gradient(60), rng=0)
    again = cofem.refit(differences, prior=cofem.Independent(), noise_std=0.04, rng=0)
    cold = cofem.fit(seen, data, noise_std=0.04, analysis=Gradient(60), prior=cofem.Independent(), rng=0)
    assert again.analysis is not None
    assert again.n_iter < cold.n_iter
    assert np.sqrt(np.mean((again.mean - cold.mean) ** 2)) < 0.02


def test_weights_stay_with_their_data() -> None:
    # The first datum is worth ten thousand of the second one: 1.9975 is the answer without weights.
    Phi, y, weights = np.ones((2, 1)), np.array([1.0, 3.0]), np.array([1e4, 1.0])
    each = 0.1 / np.sqrt(weights)
    for given in (dict(noise_std=0.1, sample_weight=weights), dict(noise_std=each)):
        post = cofem.fit(Phi, y, rng=0, **given)
        for again in (
            cofem.refit(post, rng=0),
            cofem.refit(post, noise_std=0.2, rng=0),
            cofem.refit(post, y, rng=0),
            cofem.refit(post, y, noise_std=0.2, rng=0),
            cofem.refit(post, Phi=Phi, noise_std=0.2, rng=0),
        ):
            assert again.mean[0] == pytest.approx(1.0, abs=1e-3)
            np.testing.assert_allclose(again.weights, post.weights)
        kept = cofem.refit(post, noise_std="learn", rng=0)
        np.testing.assert_allclose(kept.weights, post.weights)
        with pytest.raises(ValueError, match="sample_weight must be given with y and Phi both new"):
            cofem.refit(post, y, Phi=Phi, rng=0)
        for new in (dict(sample_weight=np.ones(2), noise_std=0.1), dict(noise_std=np.array([0.1, 0.1]))):
            assert cofem.refit(post, y, Phi=Phi, rng=0, **new).mean[0] == pytest.approx(2.0, abs=5e-3)
    path = cofem.fit_path(Phi, y, [0.1, 0.2], sample_weight=weights, rng=0)
    assert [post.mean[0] for post in path] == pytest.approx([1.0, 1.0], abs=1e-3)


def test_what_post_tells_of_the_model_stays() -> None:
    rng = np.random.default_rng(0)
    Phi, z = rng.standard_normal((20, 40)), np.zeros(40)
    z[[3, 20]] = 1, 2
    y = Phi @ z + 0.1 * rng.standard_normal(20)
    post = cofem.fit(Phi, y, noise_std=0.1, nonnegative=True, rng=0)
    assert (cofem.refit(post, noise_std=0.2, rng=0).mean >= 0).all()
    assert cofem.refit(post, nonnegative=False, rng=0).gaussian is None


@pytest.mark.parametrize(
    "choice",
    [
        dict(analysis=24),
        dict(analysis="auto"),
        dict(analysis=24, prior=cofem.Independent()),
        dict(analysis=24, prior="auto"),
        dict(analysis=Gradient(24), prior="auto"),
        dict(prior="auto"),
    ],
    ids=str,
)
def test_paths_and_refits_may_choose_at_each_level(choice: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    steps = np.repeat([0.0, 2.0, 1.0], 8)
    Phi, levels = Identity(24), [0.05, 0.2]
    y = Phi @ steps + 0.05 * rng.standard_normal(24)
    path = cofem.fit_path(Phi, y, levels, rng=0, max_iter=10, **choice)
    assert [post.noise_std for post in path] == levels
    again = cofem.refit(path[1], noise_std=levels[0], rng=0, max_iter=10, **choice)
    for post in (path[0], again):
        assert np.sqrt(np.mean((post.mean - steps) ** 2)) < 0.1


def test_a_start_is_for_the_first_level() -> None:
    path = cofem.fit_path(CASE.Phi, CASE.y, [0.01, 0.03], alpha_init=1.0, rng=0)
    first = cofem.fit(CASE.Phi, CASE.y, noise_std=0.03, alpha_init=1.0, rng=0)
    np.testing.assert_array_equal(path[1].mean, first.mean)


def test_what_cannot_be_refitted_is_refused(first: cofem.Posterior, tmp_path: Any) -> None:
    apart = cofem.fit(np.eye(3), np.eye(3)[:, :2], noise_std=0.1)
    with pytest.raises(ValueError, match="refit each task"):
        cofem.refit(apart)
    first.save(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="Phi must be given"):
        cofem.refit(cofem.load(tmp_path / "fit.npz"))
    rows = cofem.fit(Identity(9), np.repeat([0.0, 1.0, 0.0], 3), noise_std=0.1, analysis=Gradient(9), rng=0)
    rows.save(tmp_path / "rows.npz")
    with pytest.raises(ValueError, match="analysis must be given"):
        cofem.refit(cofem.load(tmp_path / "rows.npz", operator=Identity(9)))
    with pytest.raises(ValueError, match="alpha_init is what post says"):
        cofem.refit(first, alpha_init=1.0)
    for levels in ([], [0.1, -1.0], 0.1):
        with pytest.raises(ValueError, match="noise_std must be a sequence"):
            cofem.fit_path(CASE.Phi, CASE.y, levels)


def test_estimators_start_from_their_last_fit() -> None:
    rng = np.random.default_rng(1)
    X, w = rng.standard_normal((150, 400)), np.zeros(400)
    w[:8] = 2.0
    y = X @ w + 0.3 * rng.standard_normal(150)
    cold = SBLRegressor(noise_std=0.3, random_state=0).fit(X, y)
    warm = SBLRegressor(noise_std=0.3, random_state=0, warm_start=True).fit(X, y)
    np.testing.assert_array_equal(warm.coef_, cold.coef_)
    steps = warm.n_iter_
    warm.fit(X, y)
    assert warm.n_iter_ < steps
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=0.03)
    warm.fit(X[:, :300], y)  # another number of columns: from the usual start
    np.testing.assert_array_equal(
        warm.coef_, SBLRegressor(noise_std=0.3, random_state=0).fit(X[:, :300], y).coef_
    )
    kernels = RVMRegressor(noise_std=0.3, warm_start=True, random_state=0, gamma=0.01).fit(X, y)
    before = kernels.predict(X)
    assert np.std(kernels.fit(X, y).predict(X) - before) < 0.05 * np.std(before)
