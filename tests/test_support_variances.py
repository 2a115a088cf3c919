"""Standard deviations of what was found, one by one: two columns that are the same do not hide among many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import cofem
from cofem.linalg.diagonals import support
from cofem.operators import DCT, Chunked, Mask, hstack


def case(n: int, d: int, alike: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((n, d)) / n**0.5
    if alike == "two the same":
        Phi[:, 1] = Phi[:, 0]
    elif alike == "opposite":
        Phi[:, 1] = -3 * Phi[:, 0]
    elif alike == "five constant":
        Phi[:, :5] = n**-0.5
    elif alike == "nearly":
        Phi[:, 1] = Phi[:, 0] + 0.1 * Phi[:, 1]
    z = np.zeros(d)
    z[0] = 2
    z[rng.choice(np.arange(10, d), 20, replace=False)] = rng.standard_normal(20)
    return Phi, Phi @ z + 0.01 * rng.standard_normal(n)


def assert_right(post: cofem.Posterior, also: tuple[int, ...] = ()) -> None:
    """Standard deviations are right to 20 %, of the support and of what was asked for besides."""
    chosen = np.union1d(post.support(), also).astype(int)
    exact = np.sqrt(np.diagonal(post.covariance(chosen)).real)
    np.testing.assert_allclose(post.std[chosen], exact, rtol=0.2)


@pytest.mark.parametrize("noise_std", [0.01, "learn"])
@pytest.mark.parametrize("alike", ["two the same", "opposite", "five constant", "nearly", "none"])
def test_a_few_columns_that_are_alike(alike: str, noise_std: Any) -> None:
    Phi, y = case(300, 900, alike)
    post = cofem.fit(Phi, y, noise_std=noise_std, method="cofem", rng=0)
    assert_right(post, also=(0, 1))


@pytest.mark.parametrize("kind", ["dense", "sparse", "chunked"])
@pytest.mark.parametrize("alike", ["two the same", "five constant"])
def test_larger_dictionaries_that_store_their_columns(alike: str, kind: str) -> None:
    Phi, y = case(700, 2000, alike)
    make = {"dense": np.asarray, "sparse": scipy.sparse.csr_array, "chunked": Chunked}[kind]
    post = cofem.fit(make(Phi), y, noise_std=0.01, method=cofem.CoFEM(diagonal="self_consistent"), rng=0)
    assert_right(post, also=(0, 1))
    assert "were computed one by one: 0, 1" in str(post.status)


def test_dictionaries_that_store_nothing() -> None:
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(2048, 1024, replace=False))
    half = Mask(rows, 2048) @ DCT(2048).T
    Phi = hstack([half, Mask(np.arange(1024), 1024) @ half])  # every cosine is there twice
    z = np.zeros(4096)
    z[rng.choice(2048, 20, replace=False)] = rng.choice([-2, 2], 20)
    y = Phi @ z + 0.01 * rng.standard_normal(1024)
    post = cofem.fit(Phi, y, noise_std=0.01, method=cofem.CoFEM(diagonal="self_consistent"), rng=0)
    told = [
        note for note in (*post.status.notes, *post.status.warnings) if "20 %" in note or "one by one" in note
    ]
    assert told
    off = ~np.isclose(post.std[np.flatnonzero(z)], 0.7, rtol=0.3)
    # More are wrong than there are systems for, and the status says which.
    assert off.sum() <= 40 - support.MOST_SOLVES


def test_more_than_can_be_solved_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "MOST_SOLVES", 2)
    Phi, y = case(700, 2000, "five constant")
    post = cofem.fit(Phi, y, noise_std=0.01, method=cofem.CoFEM(diagonal="self_consistent"), rng=0)
    (note,) = (text for text in post.status.warnings if "may be off by more than 20 %" in text)
    named = {int(word) for word in note.split("others: ")[1].split(";")[0].split(", ")}
    exact = np.sqrt(np.diagonal(post.covariance(np.arange(5))))
    off = {j for j in range(5) if not 0.8 < post.std[j] / exact[j] < 1.25}
    assert off
    assert off <= named


def test_several_tasks_and_complex_data() -> None:
    Phi, y = case(300, 900, "two the same")
    both = np.stack([y, 2 * y], axis=1)
    post = cofem.fit(Phi, both, noise_std=0.01, prior=cofem.MultiTask(), method="cofem", rng=0)
    exact = np.sqrt(np.diagonal(post.covariance([0, 1])))
    np.testing.assert_allclose(post.std[[0, 1], 0], exact, rtol=0.2)
    turned = cofem.fit(Phi * np.exp(1j * np.arange(900)), y * (1 + 0j), noise_std=0.01, method="cofem", rng=0)
    assert_right(turned, also=(0, 1))


@pytest.mark.parametrize(
    "make", [np.asarray, scipy.sparse.csr_array, Chunked], ids=["dense", "sparse", "chunked"]
)
def test_copies_are_found_up_front(make: Any) -> None:
    Phi, y = case(60, 90, "none")
    Phi[:, [7, 30]] = Phi[:, [3]] * [1.0, -2.5]
    Phi[:, 50] = 0
    post = cofem.fit(make(Phi), y, noise_std=0.01)
    (note,) = (note for note in post.status.notes if "the same as another one" in note)
    assert note.startswith("3 columns of Phi are the same as another one up to a factor (3, 7, 30)")
    turned = Phi * np.exp(1j * np.arange(90))
    assert "3 columns of Phi" in str(cofem.fit(turned, y * 1j, noise_std=0.01).status)
    for seed in range(5):
        plain, y = case(40, 400, "nearly", seed)
        assert "the same as another" not in str(
            cofem.fit(make(plain), y, noise_std=0.01, max_iter=2, tol=0).status
        )
