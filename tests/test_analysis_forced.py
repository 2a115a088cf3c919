"""Fits in analysis form on the path of large problems, forced on small ones, against exact formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import cofem
from cofem import AnalysisEM, StatusCode
from cofem.inference.analysis import method
from cofem.linalg.analysis import AnalysisSystem, Rows
from cofem.linalg.analysis.far import variance_from_afar
from cofem.linalg.analysis.null_space import WIDEST, null_basis, null_space
from cofem.linalg.cg import Progress, StopRule, conjugate_gradients
from cofem.linalg.preconditioners import sparse_factor, whole_factor
from cofem.operators import DCT, FFT, Convolution, Gradient, Identity, Mask, WaveletFrame, vstack
from cofem.operators.dictionary import Dictionary

from .test_analysis import exact

FORCED = AnalysisEM(exact=False)


def without_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing but conjugate gradients, as for what is too large for a factor."""
    monkeypatch.setattr(sparse_factor, "MOST_UNKNOWNS", 0)
    monkeypatch.setattr(whole_factor, "MOST_ON_PLANES", 0)
    monkeypatch.setattr(whole_factor, "MOST_FULL", 0)


def assert_one_answer(post: cofem.Posterior, Phi: Any, y: np.ndarray, rough: float = 0.2) -> None:
    """Mean, deviations, covariance and draws are those of the exact posterior at the precisions found."""
    mean, covariance = exact(Phi, post.analysis, y, np.asarray(post.alpha, float), post.noise_std)
    covariance = post.scale * covariance
    std = np.sqrt(np.diagonal(covariance).real)
    assert np.abs((post.mean - mean) / std).max() < 0.2
    off = np.log(post.std / std)
    assert np.sqrt(np.mean(off**2)) < rough
    assert np.abs(off).max() < np.log(2)
    some = np.linspace(0, std.size - 1, 5).astype(int)
    close = 0.01 * np.sqrt(np.outer(std[some], std[some])) * std[some].max()
    assert (np.abs(post.covariance(some) - covariance[np.ix_(some, some)]) < np.maximum(close, 1e-12)).all()
    drawn = post.sample(200, rng=0) - post.mean
    ratio = np.sqrt(np.mean(np.abs(drawn) ** 2, axis=0)) / std
    assert ratio.min() > 0.75
    assert ratio.max() < 1.3


def half_unseen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen = np.ones((18, 18), dtype=bool)
    seen[:11] = False
    return seen, np.sin(2 * np.pi * np.indices((18, 18)).sum(0) / 8), np.full(324, 0.01)


def gap_in_lines() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen = np.ones(180, dtype=bool)
    seen[45:135] = False
    u = np.sin(np.arange(60) / 9) * np.array([[1.0], [2.0], [3.0]])
    return seen.reshape(3, 60), u, np.full(180, 0.01)


def noise_alone() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen = np.ones((14, 14), dtype=bool)
    seen[10:] = False
    return seen, np.zeros((14, 14)), np.ones(196)


def odd_holes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen = np.random.default_rng(5).random((13, 17)) < 0.5
    seen[3:8, 4:12] = False
    seen[10:, 14:] = False
    return seen, np.hypot(*np.indices((13, 17))) / 9 + (np.indices((13, 17))[1] > 9), np.full(221, 0.05)


HOLES: dict[str, Callable] = {
    "half": half_unseen,
    "lines": gap_in_lines,
    "noise": noise_alone,
    "odd": odd_holes,
}


@pytest.mark.parametrize("way", ["factor", "steps"])
@pytest.mark.parametrize("name", HOLES)
def test_inside_and_beside_holes_there_is_one_answer(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, u, noise = HOLES[name]()
    if way == "steps":
        without_factors(monkeypatch)
    else:  # which comes after steps, as in larger pictures
        monkeypatch.setattr(sparse_factor, "MOST_UNKNOWNS", 0)
    y = (u.ravel() + noise * np.random.default_rng(1).standard_normal(u.size))[seen.ravel()]
    post = cofem.fit(Mask(seen), y, analysis=seen.shape, noise_std=float(noise[0]), method=FORCED, rng=0)
    assert_one_answer(post, Mask(seen), y)


def test_a_large_hole_as_it_was_reported() -> None:
    seen = np.ones((64, 64), dtype=bool)
    seen[:40] = False
    u = np.sin(2 * np.pi * np.indices(seen.shape).sum(0) / 8)
    y = u[seen] + 0.01 * np.random.default_rng(0).standard_normal(int(seen.sum()))
    post = cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    some = np.flatnonzero(~seen.ravel())[::97]
    std = np.sqrt(np.diagonal(post.covariance(some)))
    assert np.abs(np.log(post.std[some] / std)).max() < np.log(1.5)
    assert 0.9 < np.median(post.std[some] / std) < 1.1


@pytest.mark.parametrize("kind", ["blur", "fourier", "cosines", "volume"])
def test_other_data_have_one_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    shape: tuple[int, ...] = (6, 6, 6) if kind == "volume" else (14, 13)
    u = np.add.reduce(np.indices(shape)) / 6.0 + (np.indices(shape)[0] > 4)
    Phi = {
        "blur": Convolution(np.ones((3, 3)) / 9, (14, 13)),
        "fourier": Mask(np.append(0, 1 + rng.permutation(181)[:80]), 182) @ FFT((14, 13)),
        "cosines": Mask(np.append(0, 1 + rng.permutation(181)[:80]), 182) @ DCT((14, 13)),
        "volume": Mask(np.add.reduce(np.indices((6, 6, 6))) % 3 == 0),
    }[kind]
    y = Phi @ u.ravel() + 0.05 * rng.standard_normal(Phi.shape[0])
    without_factors(monkeypatch)
    post = cofem.fit(Phi, y, analysis=shape, noise_std=0.05, method=FORCED, rng=0)
    assert_one_answer(post, Phi, y, rough=0.25)


# --- what has no prior ------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [pytest.param(1e3, marks=pytest.mark.nightly), 1e6])
@pytest.mark.parametrize("kind", ["series", "picture", "forced", "blur", "slope", "apart", "known"])
def test_nothing_depends_on_what_has_no_prior(kind: str, offset: float) -> None:
    rng = np.random.default_rng(0)
    analysis: Any = "auto"
    options: dict[str, Any] = {"rng": 0}
    shape = (90,) if kind in ("series", "slope") else (8, 9)
    Phi: Any = Identity(90) if kind == "series" else Mask(rng.random(shape) < 0.7)
    null = np.ones(shape)
    if kind == "forced":
        options["method"] = FORCED
    if kind == "blur":
        Phi = Convolution(np.ones((3, 3)) / 9, shape)
    if kind == "slope":
        analysis, null = Gradient(90, order=2), np.arange(90) / 30 - 7
    if kind == "apart":
        analysis, null = Gradient(shape, axes=1), np.arange(8.0)[:, None] + np.zeros(shape)
    if kind == "known":
        options["noise_std"] = 0.05
    u = np.sin(np.add.reduce(np.indices(shape)) / 4)
    y = Phi @ u.ravel() + 0.05 * rng.standard_normal(Phi.shape[0])
    there = offset * null.ravel()
    one = cofem.fit(Phi, y, analysis=analysis, **options)
    other = cofem.fit(Phi, y + Phi @ there, analysis=analysis, **options)
    np.testing.assert_allclose(other.noise_std, one.noise_std, rtol=0.01)
    np.testing.assert_allclose(other.mean - there, one.mean, atol=0.02)
    np.testing.assert_allclose(other.std, one.std, rtol=0.05)
    np.testing.assert_allclose(other.y, y + Phi @ there)


def test_callbacks_and_breaks_see_the_level() -> None:
    seen: list[float] = []

    def stop(snapshot: Any) -> bool:
        seen.append(float(np.mean(snapshot.mean)))
        return len(seen) == 3

    y = 1e4 + np.sin(np.arange(80) / 5)
    post = cofem.fit(Identity(80), y, analysis=Gradient(80), noise_std=0.1, callback=stop, rng=0)
    assert post.status.code is StatusCode.STOPPED
    np.testing.assert_allclose([*seen, post.mean.mean()], y.mean(), rtol=1e-6)

    def interrupt(snapshot: Any) -> bool:
        if snapshot.iteration == 3:
            raise KeyboardInterrupt
        return False

    with pytest.raises(cofem.FitInterrupted) as broken:
        cofem.fit(Identity(80), y, analysis=Gradient(80), callback=interrupt, rng=0)
    np.testing.assert_allclose(broken.value.posterior.mean.mean(), y.mean(), rtol=1e-6)


def blind(kind: str, n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if kind == "slope":
        return Mask([n // 2], n), Gradient(n, order=2)
    if kind == "columns":
        B = scipy.sparse.random_array((n, n), density=0.05, rng=rng).tolil()
        B[:, :3] = 0
        return Mask(np.arange(2, n, 2), n), B.tocsr()
    if kind == "lines":
        seen = np.ones((n // 10, 10), dtype=bool)
        seen[2:4] = False
        return Mask(seen), Gradient(seen.shape, axes=1)
    if kind == "dense":
        return rng.standard_normal((n // 4, n)), rng.standard_normal((n // 2, n))
    return rng.standard_normal((n // 4, n)), Mask(np.arange(n // 2), n) @ DCT(n)


@pytest.mark.parametrize("n", [120, 600])
@pytest.mark.parametrize("kind", ["slope", "columns", "lines", "dense", "waves"])
def test_directions_that_nobody_sees_are_treated_alike_at_all_sizes(kind: str, n: int) -> None:
    Phi, B = blind(kind, n)
    rng = np.random.default_rng(1)
    y = 2 + rng.standard_normal(Phi.shape[0])
    way = FORCED if n < 512 else "auto"
    alpha = np.full(B.shape[0], 3.0)
    same = dict(noise_std=0.1, analysis=B, alpha_init=alpha, max_iter=1, tol=0, rng=0)
    with pytest.warns(cofem.ReliabilityWarning, match="null space"):
        post = cofem.fit(Phi, y, method=way, **same)
    assert "null space" in post.status.warnings[0]
    P, R = (
        A if isinstance(A, np.ndarray) else A.todense() if scipy.sparse.issparse(A) else A.to_dense()
        for A in (Phi, B)
    )
    P, R = np.asarray(P), np.asarray(R)
    values, vectors = np.linalg.eigh(P.T @ P / 0.01 + 3.0 * R.T @ R)
    known = values > 1e-13 * values[-1]
    inverse = (vectors[:, known] / values[known]) @ vectors[:, known].T
    mean = inverse @ P.T @ y / 0.01
    projector = vectors[:, known] @ vectors[:, known].T
    np.testing.assert_allclose(projector @ post.mean, mean, atol=0.02 * np.abs(mean).max())
    unseen = 1 - np.diagonal(projector)
    wide = unseen > 1e-9
    assert wide.any()
    assert (post.std[unseen > 0.5 * unseen.max()] > 0.3 * WIDEST * np.abs(y).mean() / 30).all()
    if (~wide).any():
        ratio = post.std[~wide] / np.sqrt(np.diagonal(inverse)[~wide])
        assert ratio.min() > 0.6
        assert ratio.max() < 1.6
    some = np.flatnonzero(wide)[:3]
    np.testing.assert_allclose(np.sqrt(np.diagonal(post.covariance(some))), post.std[some], rtol=0.02)
    spread = np.sqrt(np.mean((post.sample(100, rng=0)[:, some] - post.mean[some]) ** 2, axis=0))
    np.testing.assert_allclose(spread, post.std[some], rtol=0.35)


def test_two_ends_of_a_series_that_is_held_out_in_turn() -> None:
    post = cofem.fit(Mask([0, 599], 600), [1.0, 2.0], noise_std=0.1, analysis=600, rng=0)
    np.testing.assert_allclose(post.mean[[0, -1]], [1.0, 2.0], atol=0.1)
    assert np.isfinite(post.std).all()


@pytest.mark.parametrize(
    ("B", "count"),
    [
        (Gradient(9), 1),
        (Gradient(9, order=2), 2),
        (Gradient((4, 5), order=2), 3),
        (Gradient((4, 5), order=2, mixed=False), 4),
        (Gradient((4, 5), axes=1), 4),
        (vstack([Gradient((4, 5)), Gradient((4, 5), order=2)]), 1),
        (Gradient((4, 5), "periodic"), 1),
        (WaveletFrame((4, 5)), 0),
        (cofem.as_operator(scipy.sparse.csr_array(np.diff(np.eye(6), axis=0)[[0, 1, 3, 4]])), 2),
        (cofem.as_operator(np.diff(np.eye(6), axis=0)), 1),
    ],
)
def test_null_spaces_of_operators(B: Any, count: int) -> None:
    basis = null_basis(Rows(B, np.zeros(1)))
    assert basis.shape == (count, B.shape[1])
    np.testing.assert_allclose(basis @ basis.T, np.eye(count), atol=1e-12)
    assert all(np.abs(B @ direction).max() < 1e-12 for direction in basis)
    assert B.shape[1] - np.linalg.matrix_rank(B.to_dense()) == count


# --- solves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1e1, 1e3, 1e6])
def test_steps_tell_how_large_the_error_behind_a_residual_is(spread: float) -> None:
    rng = np.random.default_rng(0)
    values = np.geomspace(1 / spread, 1, 200)
    b = rng.standard_normal((1, 200)) * np.sqrt(values)
    found: list[tuple[float, float]] = []

    def measure(progress: Progress) -> np.ndarray:
        true = float(np.sum(progress.residual**2 / values))
        found.append((true, float(progress.preconditioned[0]) * progress.slowness()))
        return np.sqrt(progress.preconditioned)

    conjugate_gradients(lambda x: values * x, b, StopRule(1e-9, 60, measure=measure))
    true, said = np.array(found[4:]).T
    assert (said > 0.3 * true).all()
    assert (said[true > 1e-12] < 50 * true[true > 1e-12]).all()


def test_variances_from_afar_are_unbiased_and_nearly_exact() -> None:
    rng = np.random.default_rng(0)
    seen = np.ones((16, 16), dtype=bool)
    seen[:10] = False
    B = vstack([Gradient((16, 16)), Gradient((16, 16), order=2)])
    phi, rows = Dictionary(Mask(seen), like=np.zeros(1)), Rows(B, np.zeros(1))
    alpha = rng.gamma(2.0, size=B.shape[0])
    system = AnalysisSystem(phi, rows, alpha, 1e-3, null_space(phi, rows.null_basis))
    _, covariance = exact(Mask(seen), B, np.zeros(int(seen.sum())), alpha, 1e-3**0.5)
    inverse = 1 / system.diagonal()
    variances = [
        variance_from_afar(system, inverse, np.random.default_rng(k), 1e-6, 500)[0] for k in range(3)
    ]
    ratio = np.array(variances) / np.diagonal(covariance)
    assert np.sqrt(np.mean(np.log(ratio) ** 2)) < 0.15
    assert abs(np.mean(ratio) - 1) < 0.05


def test_systems_that_are_far_from_solved_get_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    B, Phi = rng.standard_normal((90, 60)), rng.standard_normal((20, 60))
    phi, rows = Dictionary(cofem.as_operator(Phi), like=np.zeros(1)), Rows(cofem.as_operator(B), np.zeros(1))
    alpha = 10.0 ** rng.uniform(-6, 6, 90)
    system = AnalysisSystem(phi, rows, alpha, 0.1)
    right = rng.standard_normal((2, 60))
    found = system.solve(right.copy(), tol=1e-8, reference=1, max_iter=500, sure=True)
    assert found.converged.all()
    assert found.iterations.max() < 20
    A = Phi.T @ Phi + 0.1 * B.T @ (alpha[:, None] * B)
    np.testing.assert_allclose(found.x, np.linalg.solve(A, right.T).T, rtol=1e-5, atol=1e-9)
    monkeypatch.setattr(whole_factor, "MOST_FULL", 0)
    slow = AnalysisSystem(phi, rows, alpha, 0.1).solve(right, tol=1e-8, reference=1, max_iter=60, sure=True)
    assert not slow.converged.all()


def test_a_transform_of_a_thousand_is_not_fitted_by_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 29 s with exact moments, for the same answer."""
    monkeypatch.setattr(method, "exact_moments", None)
    monkeypatch.setattr(Rows, "matrix", None)
    rng = np.random.default_rng(0)
    u = DCT(1024).T @ (3 * rng.standard_normal(1024) * (rng.random(1024) < 0.05))
    seen = rng.random(1024) < 0.5
    y = u[seen] + 0.05 * rng.standard_normal(int(seen.sum()))
    post = cofem.fit(Mask(seen), y, noise_std=0.05, analysis=DCT(1024), rng=0)
    assert np.linalg.norm(post.mean - u) < 0.05 * np.linalg.norm(u)
