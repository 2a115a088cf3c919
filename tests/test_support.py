"""Which columns `support()` names: of twins the right one or none, of blocks whole ones."""

from __future__ import annotations

import numpy as np
import pytest

import cofem
from cofem.operators import Dense
from cofem.operators.base import Operator
from cofem.posterior import alternatives as module
from cofem.posterior.alternatives import alternatives
from cofem.posterior.support import _away_from_zero


def noise(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    real = rng.standard_normal(shape)
    return real if kind != "complex" else (real + 1j * rng.standard_normal(shape)) / np.sqrt(2)


def twins(seed: int, r: float, kind: str = "real", snr: float = 2.0, L: int = 1) -> tuple[np.ndarray, ...]:
    """Blocks of six columns alike to each other; one of three blocks' columns matters."""
    rng = np.random.default_rng(seed)
    base = np.repeat(noise(rng, (120, 30), kind), 6, axis=1)
    Phi = np.sqrt(r) * base + np.sqrt(1 - r) * noise(rng, (120, 180), kind)
    Z = np.zeros((180, L), Phi.dtype)
    causal = rng.choice(30, 3, False) * 6 + rng.integers(6, size=3)
    Z[causal] = rng.choice([-1, 1], (3, L)) * rng.uniform(0.5, 1.5, (3, L))
    signal = Phi @ Z
    sigma = np.sqrt(np.mean(np.abs(signal) ** 2)) / snr
    Y = signal + sigma * noise(rng, signal.shape, kind)
    return Phi, Y if L > 1 else Y[:, 0], causal, sigma


def shares(draws: int, r: float, snr: float, **settings) -> tuple[float, float, float, float]:
    """Return the shares of wrong ones and of causal ones found, by support() and by intervals alone."""
    counts = np.zeros(4)
    L = 4 if "tasks" in settings else 1
    kind = settings.pop("kind", "real")
    settings.pop("tasks", None)
    for seed in range(draws):
        Phi, y, causal, sigma = twins(seed, r, kind, snr, L)
        post = cofem.fit(Phi, y, noise_std=sigma, rng=0, **settings)
        for i, named in enumerate((post.support(), _away_from_zero(post, 0.95))):
            right = np.isin(named, causal).sum()
            counts[2 * i : 2 * i + 2] += named.size - right, right
    wrong, right, wrong_before, right_before = counts
    return (
        wrong / max(wrong + right, 1),
        right / (3 * draws),
        wrong_before / max(wrong_before + right_before, 1),
        right_before / (3 * draws),
    )


SPARSER = {"prior": cofem.Sparser(2)}


@pytest.mark.parametrize(
    ("r", "snr", "settings", "power"),
    [
        (0.95, 3.0, SPARSER, 0.6),
        (0.95, 2.0, {}, 0.4),
        (0.99, 10.0, {}, 0.9),
        (0.97, 2.0, {"kind": "complex"}, 0.3),
        (0.97, 1.0, {"prior": cofem.MultiTask(), "tasks": 4}, 0.2),
    ],
)
def test_of_twins_the_right_one_is_named_or_none(r: float, snr: float, settings: dict, power: float) -> None:
    wrong, found, _, before = shares(12, r, snr, **settings)
    assert wrong <= 0.05
    assert found >= power
    assert found <= before


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("r", "snr", "settings", "power"),
    [
        (0.95, 2.0, {}, 0.5),
        (0.95, 2.0, SPARSER, 0.5),
        (0.99, 3.0, {}, 0.1),
        (0.99, 3.0, SPARSER, 0.1),
        (0.99, 10.0, {}, 0.9),
    ],
)
def test_of_twins_few_are_wrong_over_200_draws(r: float, snr: float, settings: dict, power: float) -> None:
    wrong, found, _, _ = shares(200, r, snr, **settings)
    assert wrong <= 0.05 + 0.02
    assert found >= power


def test_columns_unlike_each_other_are_named_as_their_intervals_say() -> None:
    for seed in range(5):
        Phi, y, causal, sigma = twins(seed, 0.0)
        post = cofem.fit(Phi, y, noise_std=sigma, rng=0)
        np.testing.assert_array_equal(post.support(), _away_from_zero(post, 0.95))
        assert set(causal) <= set(post.support().tolist())
        assert not any("explain the data nearly as well" in note for note in post.status.notes)


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("L", [1, 3])
def test_chances_are_those_of_single_effects_without_the_group(kind: str, L: int) -> None:
    """Against the inverse covariance of the data without the group, written out."""
    chances = []
    for seed in range(6):
        Phi, Y, _, sigma = twins(seed, 0.97, kind, 2.0, L)
        post = cofem.fit(Phi, Y, noise_std=sigma, prior=cofem.MultiTask() if L > 1 else None, rng=0)
        found = np.asarray(_away_from_zero(post, 0.95))
        for j, each in zip(found.tolist(), alternatives(post, found), strict=True):
            columns = np.append(j, each.columns)
            known = 1 - post.alpha * (post.variance if L == 1 else post.variance[:, 0])
            group = np.append(j, each.columns[known[each.columns] > module.LIVE])
            assert set(each.columns) <= set(range(j - j % 6, j - j % 6 + 6)) - {j}
            g = 1 / post.alpha
            g[group] = 0
            C = sigma**2 * np.eye(120) + (Phi * g) @ Phi.conj().T
            T = np.linalg.inv(C)
            q = np.atleast_2d((Phi[:, columns].conj().T @ T @ Y).T)
            s = np.einsum("nk,nm,mk->k", Phi[:, columns].conj(), T, Phi[:, columns]).real
            energy = np.sum(np.abs(q) ** 2, axis=0)
            v = (energy[0] / s[0] / L - 1) / s[0]
            scale = 1.0 if kind == "complex" else 0.5
            log_factor = scale * (energy * v / (1 + v * s) - L * np.log1p(v * s))
            chance = 1 / np.exp(log_factor - log_factor[0]).sum()
            chances.append((each.chance, chance))
    ours, exact = np.array(chances).T
    assert len(chances) >= 8
    assert np.abs(ours - exact).max() < 0.12
    assert np.abs(ours - exact).mean() < 0.03


class ByProducts(Operator):
    """The same matrix, of which nothing but products is to be had."""

    def __init__(self, matrix: np.ndarray) -> None:
        super().__init__(matrix.shape)
        self.numbers = matrix

    def _forward(self, x):
        return x @ self.numbers.T

    def _adjoint(self, y):
        return y @ self.numbers


def test_products_are_enough_to_tell_twins(tmp_path) -> None:
    Phi, y, _, sigma = twins(3, 0.97)
    stored, products = (
        cofem.fit(A, y, noise_std=sigma, rng=0, method="irls") for A in (Phi, ByProducts(Phi))
    )
    np.testing.assert_array_equal(stored.support(), products.support())
    stored.save(tmp_path / "fit.npz")
    loaded = cofem.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(loaded.support(), _away_from_zero(stored, 0.95))
    again = cofem.load(tmp_path / "fit.npz", operator=Phi)
    np.testing.assert_array_equal(again.support(), stored.support())


def test_columns_unlike_all_others_are_looked_at_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    Phi, z = rng.standard_normal((200, 300)), np.zeros(300)
    z[:60] = 3.0
    post = cofem.fit(ByProducts(Phi), Phi @ z + 0.1 * rng.standard_normal(200), noise_std=0.1, rng=0)
    looked_at = []
    inner = module._Search._grams
    monkeypatch.setattr(module._Search, "_grams", lambda self, c: looked_at.append(c.size) or inner(self, c))
    assert post.support().size == 60
    assert sum(looked_at) == module.LOOKED_AT_FIRST


def test_a_twin_that_is_left_out_is_spoken_of() -> None:
    Phi, y, _, sigma = twins(0, 0.99, snr=1.0)
    post = cofem.fit(Phi, y, noise_std=sigma, prior=cofem.Sparser(2), rng=0)
    left_out = set(_away_from_zero(post, 0.95).tolist()) - set(post.support().tolist())
    assert left_out
    assert any("explain the data nearly as well" in note for note in post.status.notes)


def test_support_that_is_changed_by_its_user_stays_as_it_was() -> None:
    post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
    post.support()[:] = 2
    assert post.support().tolist() == [0]


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("how", ["one", "tasks", "lists"])
def test_blocks_are_found_by_their_ellipsoids(kind: str, how: str) -> None:
    named, before, wrong = 0, 0, 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        L = 1 if how == "one" else 2
        Phi, Z = noise(rng, (100, 200), kind), np.zeros((200, L), complex if kind == "complex" else float)
        for block in rng.choice(50, 4, False):
            Z[4 * block : 4 * block + 4] = noise(rng, (4, L), kind)
        Y = Phi @ Z + 1.2 * noise(rng, (100, L), kind)
        if how == "one":
            post = cofem.fit(Phi, Y[:, 0], noise_std=1.2, prior=cofem.Block(4), rng=0)
        else:
            data = (Phi, Y) if how == "tasks" else ([Phi, Dense(Phi)], list(Y.T))
            post = cofem.fit(*data, noise_std=1.2, prior=cofem.MultiTask(cofem.Block(4)), rng=0)
        true = np.flatnonzero(Z[:, 0])
        support = post.support()
        named += np.isin(support, true).sum()
        wrong += (~np.isin(support, true)).sum()
        before += np.isin(np.asarray(_away_from_zero(post, 0.95)), true).sum()
        if how == "one" and kind == "real":  # the ellipsoid, written out
            for block in range(50):
                places = np.arange(4 * block, 4 * block + 4)
                mean, covariance = post.mean[places], post.covariance(places)
                distance = mean @ np.linalg.solve(covariance, mean)
                tail = cofem.posterior.support.chdtri(4, 0.05 / 50)
                assert (places[0] in support) == (distance > tail)
    assert wrong == 0
    assert named >= 0.9 * 4 * 16
    assert before < named


def test_blocks_are_known_to_a_file(tmp_path) -> None:
    rng = np.random.default_rng(0)
    Phi, z = rng.standard_normal((60, 80)), np.zeros(80)
    z[:8] = rng.standard_normal(8)
    post = cofem.fit(Phi, Phi @ z + rng.standard_normal(60), noise_std=1.0, prior=cofem.Block(4), rng=0)
    post.save(tmp_path / "fit.npz")
    again = cofem.load(tmp_path / "fit.npz", operator=Phi)
    np.testing.assert_array_equal(again.support(), post.support())
    without = cofem.load(tmp_path / "fit.npz")  # a bound on the distances is all there is
    assert set(without.support().tolist()) <= set(post.support().tolist())
