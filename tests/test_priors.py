"""Priors, tasks, the constraint, complex data and their combinations, against exact EM written out here."""

from __future__ import annotations

import itertools
import logging
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.optimize import nnls
from sklearn.linear_model import Lasso

import cofem
from cofem.experiments import problems
from cofem.inference.irls import FIRST_STEPS
from cofem.operators import DCT, FFT, Dense, Mask, block_diag
from cofem.priors import PRIORS
from cofem.priors.rectified import (
    rectified_draws,
    rectified_interval,
    rectified_moments,
    rectified_quantile,
    rectified_second_moment,
)

NOISE = 0.05


def spikes(D: int, count: int, L: int, kind: str, rng: np.random.Generator, clustered: bool) -> np.ndarray:
    """Coefficients (D, L) that all tasks have at the same places."""
    where = rng.choice(D // 4, count // 4, replace=False)[:, None] * 4 + np.arange(4)
    where = where.ravel() if clustered else rng.choice(D, count, replace=False)
    z = np.zeros((D, L), complex if kind == "complex" else float)
    z[where] = rng.standard_normal((where.size, L))
    if kind == "complex":
        z[where] += 1j * rng.standard_normal((where.size, L))
    return np.abs(z) if kind == "nonnegative" else z


def make(
    kind: str, L: int, seed: int = 0, D: int = 48, N: int = 24
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((N, D))
    if kind == "complex":
        Phi = (Phi + 1j * rng.standard_normal((N, D))) / np.sqrt(2)
    Z = spikes(D, 8, L, kind, rng, clustered=True)
    noise = rng.standard_normal((N, L))
    if kind == "complex":
        noise = (noise + 1j * rng.standard_normal((N, L))) / np.sqrt(2)
    return Phi, Phi @ Z + NOISE * noise, Z


def truncated(mean: float, variance: float) -> tuple[float, float]:
    """First two moments of a Gaussian cut off at zero, by numerical quadrature."""
    sigma = variance**0.5
    # The density relative to its largest value on the half line, where it does not underflow.
    peak = max(mean, 0.0)

    def weight(z: float) -> float:
        return np.exp(-0.5 * ((z - mean) ** 2 - (peak - mean) ** 2) / variance)

    width = sigma if mean > 0 else min(sigma, variance / max(-mean, 1e-300))
    edges = [0.0, *(peak + width * np.array([0.5, 1, 2, 4, 8, 16, 32])), peak + 60 * width]
    if mean > 0:
        edges = sorted({0.0, *np.clip(mean + sigma * np.arange(-9, 10), 0, None).tolist()})
    total = np.zeros(3)
    for low, high in itertools.pairwise(edges):
        for k in range(3):
            total[k] += integrate.quad(lambda z, k=k: z**k * weight(z), low, high, epsabs=0, epsrel=1e-13)[0]
    return total[1] / total[0], total[2] / total[0]


def exact_em(
    Phi, Y, update, steps: int, nonnegative: bool = False, start: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """EM as in a textbook: dense, all at once; `update` makes alpha from the second moments (D,).

    One that is `of_mode` makes it from the squares of the mean and of the columns' norms.
    """
    D = Phi.shape[1]
    # The library's start: each column is expected to explain the same share of the data.
    power = np.mean(np.abs(Y) ** 2)
    theta = np.sum(np.abs(Phi) ** 2, axis=0)
    alpha = theta * D / (Phi.shape[0] * (power - NOISE**2)) if start is None else start
    of_mode = getattr(update, "of_mode", False)
    moment = None
    for _ in range(steps):
        if moment is not None:
            alpha = update(moment, theta) if of_mode else update(moment)
        covariance = np.linalg.inv(Phi.conj().T @ Phi / NOISE**2 + np.diag(alpha))
        mean = covariance @ Phi.conj().T @ Y / NOISE**2
        variance = np.diagonal(covariance).real
        if nonnegative:
            cut = np.array([[truncated(m, v) for m, v in zip(c, variance, strict=True)] for c in mean.T])
            moment = np.mean(cut[..., 0] ** 2 if of_mode else cut[..., 1], axis=0)
        else:
            moment = np.mean(np.abs(mean) ** 2, axis=1) + (0 if of_mode else variance)
    return mean, variance, alpha


def exact_fit(Phi, Y, update, steps: int, nonnegative: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """EM, again by moments cut off at zero if coefficients are plainly negative, and the constrained mode."""
    mean, variance, alpha = exact_em(Phi, Y, update, steps)
    if nonnegative:
        energy = np.sum(np.abs(Phi) ** 2, axis=0)[:, None] * mean**2
        if energy[mean < -3 * variance[:, None] ** 0.5].sum() > 0.001 * energy.sum():
            mean, variance, alpha = exact_em(Phi, Y, update, steps, nonnegative=True)
        stacked = np.vstack([Phi / NOISE, np.diag(alpha**0.5)])
        norms = np.linalg.norm(stacked, axis=0)
        zero = np.zeros(alpha.size)
        mean = np.stack([nnls(stacked / norms, np.append(y / NOISE, zero))[0] / norms for y in Y.T], axis=1)
    return mean, variance, alpha


def blocks_of_four(moment: np.ndarray) -> np.ndarray:
    return np.repeat(1 / moment.reshape(-1, 4).mean(axis=1), 4)


def coupled(moment: np.ndarray, weight: float = 0.5) -> np.ndarray:
    n = moment.size
    C = np.eye(n) + weight * (np.eye(n, k=1) + np.eye(n, k=-1))
    return C @ (1 / (C @ moment))


def power(moment: np.ndarray, p: float = 0.5, size: int = 12) -> np.ndarray:
    alpha = np.empty_like(moment)
    for start in range(0, moment.size, size):
        m = moment[start : start + size]
        alpha[start : start + size] = m.size * m ** (p / 2 - 1) / np.sum(m ** (p / 2))
    return alpha


def lasso(mean_square: np.ndarray, theta: np.ndarray, threshold: float = 2.0) -> np.ndarray:
    return threshold * theta**0.5 / (NOISE * mean_square**0.5)


lasso.of_mode = True  # type: ignore[attr-defined]

UPDATES = {
    "independent": (cofem.Independent(), lambda m: 1 / m),
    "multi-task": (cofem.MultiTask(), lambda m: 1 / m),
    "block": (cofem.Block(4), blocks_of_four),
    "power": (cofem.Power(0.5, 12), power),
    "laplace": (cofem.Laplace(2), lasso),
    "pattern-coupled": (cofem.PatternCoupled(0.5), coupled),
}
#: Priors over tasks; the same updates, of second moments that are averaged over the tasks.
OVER_TASKS = {
    name: (cofem.MultiTask(prior), update)
    for name, (prior, update) in UPDATES.items()
    if name != "multi-task"
}

#: The combinations that exist; `docs/priors.md` has the same table.
METHODS = {
    "em": {"real", "complex", "nonnegative", "tasks", "priors"},
    "irls": {"real", "complex", "nonnegative", "tasks", "priors"},
    "cofem": {"real", "complex", "nonnegative", "tasks", "priors"},
    "vi": {"real", "complex", "nonnegative", "tasks", "priors"},
    "amp": {"real", "complex", "nonnegative", "priors"},
    "seq": {"real"},
}


def test_every_prior_is_in_the_table() -> None:
    # Neighbours are those of the rows of an analysis operator: `tests/test_analysis.py`. Sparser starts from
    # another fit: `test_sparser_follows_exact_em`.
    assert set(UPDATES) == set(PRIORS) - {"neighbours", "sparser"}


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_sparser_follows_exact_em(kind: str) -> None:
    """Six steps with the prior that it starts from, then six with each strength on the way."""
    Phi, Y, _ = make(kind, 1)
    for start in (cofem.Independent(), cofem.Block(4)):
        alpha = exact_em(Phi, Y, lambda m, start=start: start.precisions(m, np.inf), 6)[2]
        for strength in (1.5, 2.0, 2.5):
            mean, _, alpha = exact_em(Phi, Y, lambda m, s=strength: s / m, 6, start=alpha)
        prior = cofem.Sparser(2.5, start)
        post = cofem.fit(Phi, Y[:, 0], noise_std=NOISE, prior=prior, method="irls", max_iter=6, tol=0)
        np.testing.assert_allclose(post.alpha, alpha, rtol=1e-4)
        np.testing.assert_allclose(post.mean, mean[:, 0], atol=1e-5)


def test_sparser_loses_no_coefficient_in_a_leap() -> None:
    """A draw on which one of 30 standard deviations was lost, and with it 4.5 % of the signal."""
    case = problems.gaussian(1024, seed=2, f=4, density=0.04, sigma=0.005)
    errors = []
    for strength in (1.0, 3.0):
        post = cofem.fit(case.Phi, case.y, noise_std=0.005, prior=cofem.Sparser(strength), rng=0)
        errors.append(np.linalg.norm(post.mean - case.z))
        assert np.all(post.mean[np.abs(case.z) > 20 * 0.005] != 0)
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("method", ["em", "irls", "cofem"])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_laplace_is_the_lasso(method: str, scale: float) -> None:
    """Whatever the units of columns: each has the penalty that its own norm and the noise make."""
    Phi, Y, _ = make("real", 1)
    norms = np.linalg.norm(Phi, axis=0)
    model = Lasso(alpha=2 * NOISE / len(Y), fit_intercept=False, tol=1e-10, max_iter=10**5)
    wanted = model.fit(Phi / norms, Y[:, 0]).coef_ / norms
    units = np.where(np.arange(len(norms)) % 2, scale, 1.0)
    post = cofem.fit(
        Phi * units, Y[:, 0], noise_std=NOISE, prior=cofem.Laplace(2), method=method, tol=1e-7, max_iter=3000
    )
    np.testing.assert_allclose(post.mean * units, wanted, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("method", ["em", "irls", "cofem"])
def test_a_relaxed_laplace_keeps_what_the_lasso_found_at_a_share_of_the_penalty(method: str) -> None:
    Phi, Y, _ = make("real", 3)
    settings = dict(noise_std=NOISE, method=method, tol=1e-7, max_iter=3000)
    for y, joint in ((Y[:, 0], False), (Y, True)):
        priors = (cofem.Laplace(2), cofem.Laplace(2, relax=0.3))
        lasso, post = (
            cofem.fit(Phi, y, prior=cofem.MultiTask(prior) if joint else prior, **settings)
            for prior in priors
        )
        np.testing.assert_allclose(post.alpha, 0.3 * lasso.alpha, rtol=1e-3)
        precision = Phi.T @ Phi / NOISE**2 + np.diag(0.3 * lasso.alpha)
        wanted = np.linalg.solve(precision, Phi.T @ y / NOISE**2)
        np.testing.assert_allclose(post.mean, wanted, atol=1e-3 * np.abs(wanted).max())
        assert np.linalg.norm(Phi @ post.mean - y) < np.linalg.norm(Phi @ lasso.mean - y)
        assert post.converged


def test_a_relaxed_fit_that_fails_at_its_end_keeps_the_lasso(monkeypatch: pytest.MonkeyPatch) -> None:
    Phi, Y, _ = make("real", 1)
    lasso = cofem.fit(Phi, Y[:, 0], noise_std=NOISE, prior=cofem.Laplace(2), method="em")

    def fails(self, problem, alpha, carry, rng):
        raise OSError("the disk is gone")

    monkeypatch.setattr(cofem.EM, "go_on", fails)
    with pytest.warns(cofem.ConvergenceWarning, match="relaxed precisions were not found: OSError: the disk"):
        post = cofem.fit(Phi, Y[:, 0], noise_std=NOISE, prior=cofem.Laplace(2, 0.5), method="em")
    assert post.status.code is cofem.StatusCode.FAILED
    np.testing.assert_array_equal(post.mean, lasso.mean)


def test_laplace_over_tasks_is_the_group_lasso() -> None:
    """What is kept has a gradient of the length of its penalty, what is not a shorter one."""
    for kind in ("real", "complex"):
        Phi, Y, _ = make(kind, 3)
        post = cofem.fit(
            Phi, Y, noise_std=NOISE, prior=cofem.MultiTask(cofem.Laplace(2)), tol=1e-7, max_iter=3000
        )
        pull = np.linalg.norm(Phi.conj().T @ (Y - Phi @ post.mean), axis=1)
        penalty = 2 * NOISE * np.linalg.norm(Phi, axis=0) * 3**0.5  # mean squares: a share for each task
        kept = np.linalg.norm(post.mean, axis=1) > 1e-3 * np.abs(post.mean).max()
        assert 4 <= kept.sum() < 48
        np.testing.assert_allclose(pull[kept], penalty[kept], rtol=0.02)
        assert (pull[~kept] < 1.02 * penalty[~kept]).all()


def test_laplace_leaves_columns_of_zeros_at_zero() -> None:
    Phi, Y, _ = make("real", 1)
    Phi[:, [3, 30]] = 0
    post = cofem.fit(Phi, Y[:, 0], noise_std=NOISE, prior=cofem.Laplace(2))
    assert post.status.settled
    assert np.array_equal(post.mean[[3, 30]], [0, 0])


def test_laplace_is_refused_for_rows() -> None:
    with pytest.raises(ValueError, match=r"prior=Laplace\(\) is for coefficients"):
        cofem.fit(
            np.eye(8), np.ones(8), noise_std=1.0, prior=cofem.Laplace(), analysis=cofem.operators.Gradient(8)
        )


@pytest.mark.parametrize("kind", ["real", "complex", "nonnegative"])
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("method", ["em", "irls", "cofem"])
def test_exact_methods_and_cofem_follow_exact_em(name: str, kind: str, method: str) -> None:
    prior, update = UPDATES[name]
    L = 3 if name == "multi-task" else 1
    Phi, Y, _ = make(kind, L)
    steps = 6
    mean, _, alpha = exact_fit(Phi, Y, update, steps, kind == "nonnegative")
    if method == "cofem":
        method = cofem.CoFEM(diagonal="exact", cg_tol=1e-9, cg_iterations=5000, accelerate=False)
    post = cofem.fit(
        Phi,
        Y if L > 1 else Y[:, 0],
        noise_std=NOISE,
        prior=prior,
        nonnegative=kind == "nonnegative",
        method=method,
        max_iter=steps,
        tol=0,
        rng=0,
    )
    tolerance = 1e-6 if isinstance(method, str) else 1e-4
    np.testing.assert_allclose(post.alpha, alpha, rtol=100 * tolerance)
    wanted = mean
    assert kind != "nonnegative" or (post.mean >= 0).all()
    np.testing.assert_allclose(
        post.mean.reshape(wanted.shape), wanted, atol=10 * tolerance * np.abs(wanted).max()
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["real", "complex", "nonnegative"])
@pytest.mark.parametrize("name", UPDATES)
def test_every_combination_works_or_is_refused_at_the_door(name: str, kind: str, method: str) -> None:
    prior, _ = UPDATES[name]
    L = 3 if name == "multi-task" else 1
    Phi, Y, Z = make(kind, L, seed=1, N=32)
    arguments = dict(noise_std=NOISE, prior=prior, nonnegative=kind == "nonnegative", method=method, rng=0)
    y = Y if L > 1 else Y[:, 0]
    exists = kind in METHODS[method]
    exists &= L == 1 or "tasks" in METHODS[method]
    exists &= name == "independent" or "priors" in METHODS[method]
    if not exists:
        with pytest.raises(ValueError, match=f"method='{method}'"):
            cofem.fit(Phi, y, **arguments)
        return
    post = cofem.fit(Phi, y, **arguments)
    found = post.mean.reshape(Z.shape)
    error = np.linalg.norm(found - Z) / np.linalg.norm(Z)
    # VI is biased, as the paper says; the others recover.
    assert error < (0.9 if method == "vi" else 0.1)
    assert np.iscomplexobj(post.mean) == (kind == "complex")
    lower, upper = post.credible_interval(0.9)
    assert lower.shape == upper.shape == post.mean.shape == post.std.shape
    draws = post.sample(3, rng=0)
    assert draws.shape == (3, *post.mean.shape)
    if kind == "nonnegative":
        assert min(post.mean.min(), lower.min(), draws.min()) >= 0


@pytest.mark.parametrize("kind", ["real", "complex", "nonnegative"])
@pytest.mark.parametrize("name", OVER_TASKS)
@pytest.mark.parametrize("several", [False, True], ids=["one dictionary", "several dictionaries"])
def test_priors_over_tasks_follow_exact_em(name: str, kind: str, several: bool) -> None:
    prior, update = OVER_TASKS[name]
    Phi, Y, _ = make(kind, 3)
    mean, _, alpha = exact_fit(Phi, Y, update, 6, kind == "nonnegative")
    data = ([Phi] * 3, list(Y.T)) if several else (Phi, Y)
    post = cofem.fit(
        *data,
        noise_std=NOISE,
        prior=prior,
        nonnegative=kind == "nonnegative",
        method="irls",
        max_iter=6,
        tol=0,
    )
    np.testing.assert_allclose(post.alpha, alpha, rtol=1e-4)
    np.testing.assert_allclose(post.mean, mean, atol=1e-5 * np.abs(mean).max())


@pytest.mark.parametrize("name", [name for name in OVER_TASKS if name != "laplace"])  # refused for rows
def test_priors_over_tasks_work_in_analysis_form(name: str) -> None:
    """With B = 1 the fit is the one without it."""
    prior, _ = OVER_TASKS[name]
    Phi, Y, _ = make("real", 3, N=32)
    plain = cofem.fit(Phi, Y, noise_std=NOISE, prior=prior, method="irls", tol=1e-6, max_iter=500)
    form = cofem.fit(Phi, Y, noise_std=NOISE, prior=prior, analysis=np.eye(48), tol=1e-6, max_iter=500)
    np.testing.assert_allclose(form.mean, plain.mean, atol=2e-3)


def test_mackays_update_for_blocks_over_tasks_ends_where_em_does() -> None:
    """Its fixed points are EM's: a step from one leads nowhere."""
    Phi, Y, _ = make("real", 3, N=32)
    settings = dict(noise_std=NOISE, prior=cofem.MultiTask(cofem.Block(4)))
    chosen = cofem.fit(Phi, Y, **settings)
    assert chosen.method == "irls"
    # So long that what MacKay's update gives up at once is zero here too.
    slow = cofem.fit(Phi, Y, method=cofem.IRLS(accelerate=True), tol=1e-10, max_iter=10_000, **settings)
    assert chosen.n_iter < slow.n_iter
    np.testing.assert_allclose(chosen.mean, slow.mean, atol=1e-2)
    np.testing.assert_array_equal(chosen.support(), slow.support())
    step = dict(alpha_init=slow.alpha, max_iter=FIRST_STEPS + 2, tol=0)  # the first ones are EM's own
    after = cofem.fit(Phi, Y, method=cofem.IRLS(update="mackay"), **step, **settings)
    np.testing.assert_allclose(after.mean, slow.mean, atol=1e-5)
    with pytest.raises(ValueError, match="update must be"):
        cofem.IRLS(update="newton")


def lead_field(n_sensors: int, n_sources: int, seed: int) -> np.ndarray:
    """Potentials of dipoles in a ball at sensors around its upper half: smooth, alike, of unequal norms."""
    rng = np.random.default_rng(seed)
    sensors, places = rng.standard_normal((n_sensors, 3)), rng.standard_normal((n_sources, 3))
    sensors[:, 2] = np.abs(sensors[:, 2])
    sensors, places = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (sensors, places))
    moments = places + 0.5 * rng.standard_normal(places.shape)
    way = sensors[:, None] - 0.85 * rng.uniform(0.6, 1, (n_sources, 1)) * places
    field = (way * moments).sum(axis=2) / np.linalg.norm(way, axis=2) ** 3
    return field - field.mean(axis=0)


@pytest.mark.parametrize(("snr", "learn"), [(2.0, False), (1.0, False), (1.0, True)])
def test_sources_behind_sensors_are_found_as_blocks_of_one_are(snr: float, learn: bool) -> None:
    """EM stops at step 2, or 200 nats below: over tasks its steps are short where columns look alike."""
    Phi = lead_field(60, 1000, seed=3)
    rng = np.random.default_rng(3)
    Z = np.zeros((1000, 50))
    where = rng.choice(
        np.flatnonzero(np.linalg.norm(Phi, axis=0) > np.median(np.linalg.norm(Phi, axis=0))), 5
    )
    Z[where] = (
        np.sin(np.outer(np.arange(1, 6), np.arange(50) / 8)) / np.linalg.norm(Phi[:, where], axis=0)[:, None]
    )
    signal = Phi @ Z
    sigma = np.sqrt(np.mean(signal**2)) / snr
    settings = dict(noise_std="learn" if learn else sigma, rng=0)
    Y = signal + sigma * rng.standard_normal(signal.shape)
    post, blocks = (
        cofem.fit(Phi, Y, prior=cofem.MultiTask(prior), **settings)
        for prior in (cofem.Independent(), cofem.Block(1))
    )
    assert post.status.code is cofem.StatusCode.CONVERGED
    assert post.n_iter < 60
    assert post.log_evidence().value > blocks.log_evidence().value - 1
    assert len(post.support()) <= 8
    if not learn:
        slow = cofem.fit(Phi, Y, prior=cofem.MultiTask(), method="irls", **settings)
        assert slow.log_evidence().value < post.log_evidence().value - 50
        assert any("steps of EM are so short" in text for text in slow.status.warnings)


def test_mackays_update_after_steps_of_em_finds_what_data_just_allow() -> None:
    """From the start it ends at errors of 5, 31 and 31 % of these."""
    for seed in (577, 580, 582):
        rng = np.random.default_rng(seed)
        Phi, Z = rng.standard_normal((64, 256)), np.zeros((256, 3))
        Z[rng.choice(256, 30, False)] = rng.standard_normal((30, 3))
        signal = Phi @ Z
        sigma = np.sqrt(np.mean(signal**2)) / 100
        Y = signal + sigma * rng.standard_normal(signal.shape)
        post = cofem.fit(Phi, Y, noise_std=sigma, prior=cofem.MultiTask(), method=cofem.IRLS(update="mackay"))
        assert np.linalg.norm(post.mean - Z) < 0.02 * np.linalg.norm(Z)


@pytest.mark.parametrize("size", [0.0, 1e-3])
def test_mackays_update_gives_up_all_columns_where_there_is_no_signal(size: float) -> None:
    rng = np.random.default_rng(0)
    Phi, Y = rng.standard_normal((20, 300)), size * rng.standard_normal((20, 4))
    prior, method = cofem.MultiTask(cofem.Block(3)), cofem.IRLS(update="mackay")
    post = cofem.fit(Phi, Y, noise_std=1.0, prior=prior, method=method)
    assert post.status.code is cofem.StatusCode.CONVERGED  # its warning is about the noise
    assert not post.mean.any()
    assert np.all((post.variance > 0) & (post.variance < 1e-10))


def test_tasks_without_a_joint_prior_are_still_fitted_alone() -> None:
    Phi, Y, _ = make("real", 3)
    batch = cofem.fit(Phi, Y, noise_std=NOISE, prior=cofem.Block(4), method="irls")
    single = cofem.fit(Phi, Y[:, 1], noise_std=NOISE, prior=cofem.Block(4), method="irls")
    np.testing.assert_array_equal(batch.mean[:, 1], single.mean)


@pytest.mark.parametrize("method", ["irls", "cofem", "em"])
@pytest.mark.parametrize(("p", "same"), [(0, cofem.Independent()), (2, cofem.Block(48))])
def test_power_at_its_ends_is_independent_and_one_block(p: float, same, method: str) -> None:
    Phi, Y, _ = make("real", 1)
    arguments = dict(noise_std=NOISE, method=method, rng=0)
    power, other = (cofem.fit(Phi, Y[:, 0], prior=prior, **arguments) for prior in (cofem.Power(p), same))
    assert power.n_iter == other.n_iter
    np.testing.assert_allclose(power.alpha, other.alpha, rtol=1e-8)
    np.testing.assert_allclose(power.mean, other.mean, atol=1e-10)


@pytest.mark.parametrize("p", [0.25, 1.0, 1.7])
def test_extrapolated_steps_of_power_end_where_plain_ones_do(p: float) -> None:
    Phi, Y, _ = make("real", 1)
    slow, fast = (
        cofem.fit(
            Phi,
            Y[:, 0],
            noise_std=NOISE,
            prior=cofem.Power(p),
            method=cofem.IRLS(accelerate=accelerate),
            tol=1e-7,
            max_iter=3000,
        )
        for accelerate in (False, True)
    )
    assert fast.n_iter < slow.n_iter
    np.testing.assert_allclose(fast.mean, slow.mean, atol=1e-3 * np.abs(slow.mean).max())


def test_power_lets_no_number_overflow() -> None:
    moment = np.array([0.0, 1e-300, 1e-20, 1.0, 1e20])
    for kind in (np.float64, np.float32):
        for p in (0, 0.5, 1, 2):
            alpha = cofem.Power(p).precisions(moment.astype(kind), cap=1e14)
            assert alpha.dtype == kind
            assert (alpha > 0).all()
            assert (alpha <= 1e14 * (1 + 1e-6)).all()
    np.testing.assert_array_equal(cofem.Power(1).precisions(np.zeros(3), cap=1e3), np.full(3, 1e3))


@pytest.mark.parametrize(
    ("make_prior", "error", "words"),
    [
        (lambda: cofem.Power(-0.1), ValueError, "p must be a number from 0 to 2, got -0.1"),
        (lambda: cofem.Power("1"), ValueError, "p must be a number from 0 to 2"),
        (lambda: cofem.Sparser(0.5), ValueError, "strength must be a number of at least 1, got 0.5"),
        (lambda: cofem.Laplace(0), ValueError, "threshold must be a positive number, got 0"),
        (lambda: cofem.Laplace("2"), ValueError, "threshold must be a positive number, got '2'"),
        (lambda: cofem.Laplace(2, 0), ValueError, "relax must be a number above 0 and at most 1, got 0"),
        (lambda: cofem.Laplace(2, 1.5), ValueError, "relax must be a number above 0 and at most 1, got 1.5"),
        (lambda: cofem.Sparser(2, 0.25), TypeError, "start must be a prior such as Power"),
        (lambda: cofem.MultiTask(cofem.MultiTask()), ValueError, "prior must be one for a single task"),
        (lambda: cofem.MultiTask(3), TypeError, "prior must be a prior such as"),
    ],
)
def test_priors_that_make_no_sense_are_refused_by_name(make_prior, error, words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make_prior()


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_blocks_that_are_tasks_of_their_own_equal_multi_task(kind: str) -> None:
    """Lists of dictionaries, all the same, are the same as one dictionary with several columns of data."""
    Phi, Y, _ = make(kind, 3)
    arguments = dict(noise_std=NOISE, prior=cofem.MultiTask(), method="irls", max_iter=10, tol=0)
    joint = cofem.fit(Phi, Y, **arguments)
    lists = cofem.fit([Phi] * 3, list(Y.T), **arguments)
    np.testing.assert_allclose(lists.mean, joint.mean, atol=1e-8)
    np.testing.assert_allclose(lists.variance, joint.variance, rtol=1e-8)
    np.testing.assert_allclose(lists.alpha, joint.alpha, rtol=1e-8)
    assert lists.sample(2, rng=0).shape == (2, 48, 3)
    np.testing.assert_allclose(
        lists.covariance([0, 5])[:, :, 1], joint.covariance([0, 5]), rtol=1e-3, atol=1e-9
    )


def test_tasks_with_different_numbers_of_data(tmp_path) -> None:
    rng = np.random.default_rng(0)
    Z = spikes(48, 8, 2, "real", rng, clustered=False)
    Phis = [rng.standard_normal((n, 48)) for n in (20, 30)]
    ys = [Phi @ z + NOISE * rng.standard_normal(len(Phi)) for Phi, z in zip(Phis, Z.T, strict=True)]
    post = cofem.fit(Phis, ys, noise_std=NOISE, prior=cofem.MultiTask(), rng=0)
    assert np.linalg.norm(post.mean - Z) < 0.1 * np.linalg.norm(Z)
    assert post.task(1).y.shape == (30,)
    post.save(tmp_path / "tasks.npz")
    back = cofem.load(tmp_path / "tasks.npz", operator=Phis)
    np.testing.assert_array_equal(back.mean, post.mean)
    np.testing.assert_array_equal(back.task(0).sample(2, rng=1), post.task(0).sample(2, rng=1))


def test_tasks_that_share_nothing_equal_single_fits() -> None:
    Phi, Y, _ = make("real", 3)
    batch = cofem.fit(Phi, Y, noise_std=NOISE, method="irls")
    for i in range(3):
        single = cofem.fit(Phi, Y[:, i], noise_std=NOISE, method="irls")
        np.testing.assert_array_equal(batch.mean[:, i], single.mean)
        np.testing.assert_array_equal(batch.alpha[:, i], single.alpha)
        np.testing.assert_array_equal(batch.task(i).variance, single.variance)
    assert batch.predict().shape == Y.shape


def test_common_diagonal_is_computed_once_for_all_tasks() -> None:
    """L tasks cost L columns and the check probes once, not L times."""
    case = problems.dct(2048, seed=0)
    rng = np.random.default_rng(0)
    Y = np.stack([case.Phi @ (case.z * rng.standard_normal(2048)) for _ in range(4)], axis=1)
    Y += 0.005 * rng.standard_normal(Y.shape)
    probes = cofem.CoFEM(diagonal="rademacher", probes=20, stop="each", accelerate=False)
    one = cofem.fit(case.Phi, Y[:, 0], noise_std=0.005, method=probes, max_iter=3, tol=0, rng=0)
    four = cofem.fit(
        case.Phi, Y, noise_std=0.005, method=probes, prior=cofem.MultiTask(), max_iter=3, tol=0, rng=0
    )
    assert four.history["applications"][-1] < 1.6 * one.history["applications"][-1]


@pytest.mark.parametrize(
    ("groups", "labels"),
    [
        (3, [0, 0, 0, 1, 1, 1, 2]),
        (np.array([5, 5, 1, 1, 5, 2, 2]), [2, 2, 0, 0, 2, 1, 1]),
        ([[1, 2], np.array([6])], [2, 0, 0, 3, 4, 5, 1]),
    ],
)
def test_blocks_may_be_given_in_three_ways(groups, labels) -> None:
    found = cofem.Block(groups).labels(7)
    wanted = np.asarray(labels)
    assert np.array_equal(found[:, None] == found, wanted[:, None] == wanted)


def test_pattern_coupling_in_two_dimensions() -> None:
    moment = np.zeros((4, 5))
    moment[1, 2] = 1.0
    spread = cofem.PatternCoupled(0.25, (4, 5)).spread(moment.ravel()).reshape(4, 5)
    wanted = moment.copy()
    wanted[[0, 2, 1, 1], [2, 2, 1, 3]] = 0.25
    np.testing.assert_array_equal(spread, wanted)


@pytest.mark.parametrize(
    ("name", "D", "N"), [("block", 512, 80), ("pattern-coupled", 512, 80), ("multi-task", 512, 80)]
)
def test_structure_helps_where_there_is_some(name: str, D: int, N: int) -> None:
    rng = np.random.default_rng(2)
    L = 4 if name == "multi-task" else 1
    prior = {
        "block": cofem.Block(8),
        "pattern-coupled": cofem.PatternCoupled(1.0),
        "multi-task": cofem.MultiTask(),
    }
    z = np.zeros((D, L))
    where = (rng.choice(D // 8, 5, replace=False)[:, None] * 8 + np.arange(8)).ravel()
    z[where] = rng.standard_normal((40, L))
    Phi = rng.standard_normal((N, D)) / N**0.5
    Y = Phi @ z + 0.01 * rng.standard_normal((N, L))
    y = Y if L > 1 else Y[:, 0]

    def error(prior) -> float:
        post = cofem.fit(Phi, y, noise_std=0.01, prior=prior, rng=0)
        return float(np.linalg.norm(post.mean.reshape(z.shape) - z) / np.linalg.norm(z))

    with_structure, without = error(prior[name]), error(cofem.Independent())
    assert with_structure < 0.1
    assert with_structure < 0.5 * without


def test_constraint_helps_where_it_holds() -> None:
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((64, 512)) / 8
    z = np.zeros(512)
    z[rng.choice(512, 24, replace=False)] = np.abs(rng.standard_normal(24)) + 0.2
    y = Phi @ z + 0.01 * rng.standard_normal(64)
    free = cofem.fit(Phi, y, noise_std=0.01, rng=0)
    bound = cofem.fit(Phi, y, noise_std=0.01, nonnegative=True, rng=0)
    assert np.linalg.norm(bound.mean - z) < 0.1 * np.linalg.norm(z)
    assert np.linalg.norm(bound.mean - z) < 0.5 * np.linalg.norm(free.mean - z)
    assert set(np.flatnonzero(z > 0.3)) <= set(bound.support())
    with pytest.raises(ValueError, match="covariance"):
        bound.covariance([0])
    with pytest.raises(ValueError, match="log_evidence"):
        bound.log_evidence()


def test_intervals_with_the_constraint_begin_at_zero_where_zero_is_likely() -> None:
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((64, 128)) / 8
    z = np.zeros(128)
    z[:10] = np.abs(rng.standard_normal(10)) + 0.3
    y = Phi @ z + 0.02 * rng.standard_normal(64)
    post = cofem.fit(Phi, y, noise_std=0.02, nonnegative=True, rng=0)
    lower, upper = post.credible_interval(0.9)
    assert (lower[z == 0] == 0).mean() > 0.8
    assert (lower[z > 0] > 0).all()
    assert ((lower <= z) & (z <= upper))[z == 0].mean() > 0.85
    assert (lower <= post.mean).all()
    assert (post.mean <= upper).all()


@pytest.mark.parametrize("t", [-3.0, -0.5, 0.2, 1.0, 3.0, 20.0])
def test_rectified_interval_holds_its_level_and_is_the_shortest(t: float) -> None:
    mean, variance = np.array([2 * t]), np.array([4.0])
    lower, upper = rectified_interval(0.8, mean, variance)

    def held(low: float, high: float) -> float:
        cut = stats.truncnorm(-t, np.inf, loc=2 * t, scale=2)
        return float(cut.cdf(high) - cut.cdf(low))

    assert held(lower[0], upper[0]) == pytest.approx(0.8, abs=1e-8)
    for shift in (-0.05, 0.05):
        assert held(max(lower[0] + shift, 0.0), upper[0] + shift + min(lower[0] + shift, 0.0)) <= 0.8 + 1e-8


@pytest.mark.parametrize("negative", [False, True])
def test_moments_are_cut_off_where_the_mean_contradicts_the_constraint(negative: bool) -> None:
    """Both branches are in the tests against exact EM as well; here it is said which is which."""
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((30, 40))
    z = np.zeros(40)
    z[:5] = -1.0 if negative else 1.0
    stages = []
    cofem.fit(
        Phi,
        Phi @ z + 0.01 * rng.standard_normal(30),
        noise_std=0.01,
        nonnegative=True,
        method="irls",
        callback=lambda s: stages.append(s.iteration),
    )
    assert stages.count(1) == (2 if negative else 1)


@pytest.mark.parametrize("f", [3, 6])
@pytest.mark.parametrize("kind", ["dct", "dense"])
def test_the_constraint_does_not_cost_accuracy(kind: str, f: int) -> None:
    """Over seeds; single ones are in `cofem bench priors`."""
    ratios = []
    for seed in range(300, 304):
        rng = np.random.default_rng(seed)
        D, N = 256, round(256 / f)
        rows = np.sort(rng.choice(D, N, replace=False))
        Phi = Mask(rows, D) @ DCT(D).T if kind == "dct" else rng.standard_normal((N, D))
        z = np.zeros(D)
        z[rng.choice(D, 10, replace=False)] = np.abs(rng.standard_normal(10))
        y = Phi @ z + 0.005 * rng.standard_normal(N)
        free, bound = (cofem.fit(Phi, y, noise_std=0.005, nonnegative=n, rng=0) for n in (False, True))
        ratios.append(np.linalg.norm(bound.mean - z) / np.linalg.norm(free.mean - z))
    assert max(ratios) < 1.02


# --- moments of the rectified Gaussian ---------------------------------------------------------------


@settings(max_examples=60)
@given(st.floats(-40, 40), st.floats(-6, 6))
def test_rectified_moments_equal_quadrature(t: float, log_scale: float) -> None:
    sigma = 10**log_scale
    mean, variance = np.array([t * sigma]), np.array([sigma**2])
    first, second = truncated(t * sigma, sigma**2)
    found, spread = rectified_moments(mean, variance)
    assert found[0] == pytest.approx(first, rel=1e-10)
    assert rectified_second_moment(mean, variance)[0] == pytest.approx(second, rel=1e-10)
    assert spread[0] == pytest.approx(second - first**2, rel=1e-6 if t > -20 else 1e-3)


def test_rectified_moments_far_below_zero_are_those_of_an_exponential() -> None:
    mean = -(10.0 ** np.arange(2, 13))
    found, spread = rectified_moments(mean, np.ones_like(mean))
    np.testing.assert_allclose(found, -1 / mean, rtol=3e-4)
    np.testing.assert_allclose(spread, 1 / mean**2, rtol=1e-3)
    assert np.all(np.isfinite(rectified_quantile(0.95, mean, np.ones_like(mean))))
    np.testing.assert_allclose(rectified_quantile(0.5, mean, np.ones(11)), -np.log(2) / mean, rtol=1e-3)


def test_rectified_quantiles_and_draws() -> None:
    mean, variance = np.array([-3.0, 0.0, 2.0]), np.array([1.0, 4.0, 0.25])
    for j in range(3):
        sigma = variance[j] ** 0.5
        exact = stats.truncnorm(-mean[j] / sigma, np.inf, loc=mean[j], scale=sigma)
        for p in (0.01, 0.5, 0.99):
            assert rectified_quantile(p, mean, variance)[j] == pytest.approx(exact.ppf(p), rel=1e-8)
    draws = rectified_draws(mean, variance, 20_000, np.random.default_rng(0))
    first, spread = rectified_moments(mean, variance)
    assert (draws >= 0).all()
    np.testing.assert_allclose(draws.mean(axis=0), first, atol=5 * np.sqrt(spread / 20_000).max())
    np.testing.assert_allclose(draws.var(axis=0), spread, rtol=0.06)


# --- noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dct", "dense"])
@pytest.mark.parametrize("sigma", [0.001, 0.03])
def test_noise_is_learned(kind: str, sigma: float) -> None:
    case = getattr(problems, kind)(512, f=3, sigma=sigma, seed=5)
    post = cofem.fit(case.Phi, case.y, rng=0)
    known = cofem.fit(case.Phi, case.y, noise_std=sigma, rng=0)
    assert 1 / 1.5 < post.noise_std / sigma < 1.5
    assert case.nrmse(post.mean) < 1.15 * case.nrmse(known.mean)
    assert any("held out" in note for note in post.status.notes)


def test_noise_is_learned_from_the_evidence_where_data_are_plenty() -> None:
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((300, 20))
    y = Phi[:, :3].sum(axis=1) + 0.3 * rng.standard_normal(300)
    post = cofem.fit(Phi, y)
    assert post.noise_std == pytest.approx(0.3, rel=0.1)
    assert any("from the evidence" in note for note in post.status.notes)


def test_learned_noise_follows_units_and_complex_data() -> None:
    Phi, Y, _ = make("complex", 1, D=256, N=128)
    y = Y[:, 0]
    post = cofem.fit(Phi, y, rng=0)
    assert 1 / 1.5 < post.noise_std / NOISE < 1.5
    scaled = cofem.fit(Phi, 1e6 * y, rng=0)
    assert scaled.noise_std == pytest.approx(1e6 * post.noise_std, rel=1e-3)


def test_noise_of_each_sample() -> None:
    rng = np.random.default_rng(3)
    Phi = rng.standard_normal((80, 120))
    z = np.zeros(120)
    z[[3, 17, 60]] = 1, -1, 2
    each = 10 ** rng.uniform(-3, 0, 80)
    y = Phi @ z + each * rng.standard_normal(80)
    post = cofem.fit(Phi, y, noise_std=each, method="irls", tol=0, max_iter=20)
    # The same as data and rows divided by their noise.
    white = cofem.fit(Phi / each[:, None], y / each, noise_std=1.0, method="irls", tol=0, max_iter=20)
    np.testing.assert_allclose(post.mean, white.mean, atol=1e-6)
    np.testing.assert_allclose(post.variance, white.variance, rtol=1e-4)
    np.testing.assert_allclose(post.covariance([3, 17]), white.covariance([3, 17]), rtol=1e-3, atol=1e-12)
    difference = post.log_evidence().value - (white.log_evidence().value - np.sum(np.log(each)))
    assert abs(difference) < 1e-3
    weighted = cofem.fit(
        Phi, y, noise_std=0.1, sample_weight=(0.1 / each) ** 2, method="irls", tol=0, max_iter=20
    )
    np.testing.assert_allclose(weighted.mean, post.mean, atol=1e-6)
    learned = cofem.fit(Phi, y, sample_weight=(0.1 / each) ** 2, rng=0)
    assert 1 / 1.6 < learned.noise_std / 0.1 < 1.6


def test_noise_free_and_constant_data_end_well() -> None:
    case = problems.dct(256, f=2, sigma=1e-12, seed=0)
    post = cofem.fit(case.Phi, case.y, rng=0)
    assert case.nrmse(post.mean) < 1
    zero = cofem.fit(case.Phi, np.zeros(128), rng=0)
    assert not zero.mean.any()
    assert np.isfinite(zero.noise_std)


# --- evidence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_log_evidence_is_exact_where_small(kind: str) -> None:
    Phi, Y, _ = make(kind, 2)
    post = cofem.fit(Phi, Y, noise_std=NOISE, prior=cofem.MultiTask(), method="irls")
    C = NOISE**2 * np.eye(24) + Phi @ np.diag(1 / post.alpha) @ Phi.conj().T
    value = 0.0
    for y in Y.T:
        quadratic = np.vdot(y, np.linalg.solve(C, y)).real
        log_det = np.linalg.slogdet(C)[1]
        if kind == "complex":
            value -= 24 * np.log(np.pi) + log_det + quadratic
        else:
            value -= 0.5 * (24 * np.log(2 * np.pi) + log_det + quadratic)
    found = post.log_evidence()
    assert found.standard_error == 0
    assert found.value == pytest.approx(value, rel=1e-6)


def test_log_evidence_of_large_problems_has_an_honest_error() -> None:
    case = problems.dct(4096, f=4, seed=1)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, rng=0)
    Phi = case.Phi.to_dense()
    C = case.noise_std**2 * np.eye(1024) + (Phi / post.alpha) @ Phi.T
    value = -0.5 * (1024 * np.log(2 * np.pi) + np.linalg.slogdet(C)[1] + case.y @ np.linalg.solve(C, case.y))
    found = [post.log_evidence(rng=seed) for seed in range(6)]
    z = np.array([(part.value - value) / part.standard_error for part in found])
    assert np.abs(z).max() < 5
    assert abs(z.mean()) < 2.5
    assert found[0].standard_error < 0.01 * abs(value)


def test_log_evidence_picks_the_right_model() -> None:
    """The prior that has the structure of the data, and the dictionary in which they are sparse."""
    Phi, Y, _ = make("real", 1, seed=4, N=20)
    y = Y[:, 0]
    evidence = {
        size: cofem.fit(Phi, y, noise_std=NOISE, prior=cofem.Block(size), method="irls").log_evidence().value
        for size in (4, 16, 48)
    }
    assert max(evidence, key=evidence.get) == 4
    case = problems.dct(1024, f=2, seed=0)
    rows = case.Phi.factors[0]
    right = cofem.fit(case.Phi, case.y, noise_std=0.005, rng=0).log_evidence()
    wrong = cofem.fit(rows @ FFT(1024, real=True).T, case.y, noise_std=0.005, rng=0).log_evidence()
    assert right.value - wrong.value > 10 * (right.standard_error + wrong.standard_error)


def test_block_diagonal_operator() -> None:
    rng = np.random.default_rng(0)
    parts = [Dense(rng.standard_normal((3, 4))), Mask([0, 2], 4) @ DCT(4).T]
    joint = block_diag(parts)
    wanted = np.zeros((5, 8))
    wanted[:3, :4], wanted[3:, 4:] = (part.to_dense() for part in parts)
    np.testing.assert_allclose(joint.to_dense(), wanted, atol=1e-12)
    np.testing.assert_allclose(joint.column_norms(), np.linalg.norm(wanted, axis=0), atol=1e-12)
    assert joint.norm == pytest.approx(np.linalg.norm(wanted, 2), rel=1e-3)
    cofem.operators.check_adjoint(joint)


# --- few data, wrong shapes, the log --------------------------------------------------------------------


@pytest.mark.parametrize("n_features", [1, 3, 40])
@pytest.mark.parametrize("n_samples", [2, 3, 4])
def test_few_samples_do_not_promise_what_they_cannot_know(n_samples: int, n_features: int) -> None:
    """Centred samples tell each other, so that held-out ones may be predicted without any error."""
    scores = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((40, n_features))
        y = X[:, 0] + 0.5 * rng.standard_normal(40)
        model = cofem.SBLRegressor(random_state=0).fit(X[:n_samples], y[:n_samples])
        assert model.posterior_.noise_std > 0.4 * np.std(y[:n_samples])
        mean, std = model.predict(X[10:], return_std=True)
        scores.append(np.median(np.abs(mean - y[10:]) / std))
    assert np.median(scores) < 3


def test_the_status_says_that_data_were_too_few() -> None:
    X = np.array([[1.0], [2.0]])
    model = cofem.SBLRegressor().fit(X, 3 * X[:, 0])
    assert model.posterior_.noise_std == pytest.approx(1.5 / 3**0.5)
    assert "2 data are too few to tell a small noise, so it was taken to be 58 % of the data" in str(
        model.posterior_.status
    )


def test_ten_data_are_judged_by_what_was_held_out() -> None:
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((10, 12))
    post = cofem.fit(Phi, Phi[:, 3] + 0.001 * rng.standard_normal(10), rng=0)
    assert post.noise_std < 0.05
    assert "too few" not in str(post.status)


def test_data_of_the_wrong_length_are_named_as_they_were_given() -> None:
    with pytest.raises(ValueError, match=r"^y must have shape \(4,\).* got \(3, 5\)$"):
        cofem.fit(np.eye(4), np.ones((3, 5)))


def test_the_log_of_a_step_can_be_read(monkeypatch) -> None:
    Phi = np.random.default_rng(0).standard_normal((20, 40))
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = records.append
    # The root's handlers are asked, as pytest's own were: what cofem logs must reach them.
    root, logger = logging.getLogger(), logging.getLogger("cofem")
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        cofem.fit(Phi, Phi[:, 3], noise_std=0.1, method="cofem", max_iter=2, rng=0)
    finally:
        logger.setLevel(level)
    lines = [record.getMessage() for record in records if record.levelname == "DEBUG"]
    assert len(lines) == 2
    pattern = (
        r"cofem: fit, step 2: change [\d.e-]+, noise_std 0\.1, \d+ applications, \d+ CG steps; variances.*"
    )
    assert re.fullmatch(pattern, lines[1])


def test_settings_may_be_numbers_of_numpy() -> None:
    assert cofem.Power(np.float32(0.5)).p == 0.5
    assert cofem.Sparser(np.int64(2)).strength == 2


def test_sparser_is_refused_for_rows_of_an_analysis_operator() -> None:
    with pytest.raises(ValueError, match="prior=Sparser"):
        cofem.fit(
            np.eye(8), np.ones(8), noise_std=0.1, analysis=cofem.operators.Gradient(8), prior=cofem.Sparser(2)
        )
