"""When fits in analysis form stop, and what their choices rest on."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pywt
import scipy.sparse
from scipy.ndimage import gaussian_filter

import cofem
from cofem.inference.analysis.problem import AnalysisProblem
from cofem.inference.analysis.process import band_whitening
from cofem.inference.analysis.residuals import about_residuals
from cofem.inference.analysis.rows_alike import about_line
from cofem.inference.base import State
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome
from cofem.linalg.analysis import Rows
from cofem.linalg.preconditioners import sparse_factor as factors
from cofem.linalg.preconditioners.sparse_factor import BandFactor, sparse_factor
from cofem.operators import Gradient, Identity, Mask, as_operator
from cofem.operators.dictionary import Dictionary
from cofem.status import Status, StatusCode


def projections(n: int, views: int) -> scipy.sparse.csr_array:
    """Sums over lines through the disc in an n x n picture, by linear interpolation, shape (views n, n^2)."""
    y, x = (axis.ravel() - (n - 1) / 2 for axis in np.mgrid[:n, :n])
    places = np.flatnonzero(x**2 + y**2 <= n**2 / 4)
    y, x = y[places], x[places]
    entries, rows, columns = [], [], []
    for view, angle in enumerate(np.pi * np.arange(views) / views):
        at = x * np.cos(angle) + y * np.sin(angle) + (n - 1) / 2
        low = np.floor(at).astype(int)
        for ray, weight in ((low, 1 - (at - low)), (low + 1, at - low)):
            inside = (ray >= 0) & (ray < n)
            entries.append(weight[inside])
            rows.append(view * n + ray[inside])
            columns.append(places[inside])
    where = np.concatenate(rows), np.concatenate(columns)
    return scipy.sparse.csr_array((np.concatenate(entries), where), shape=(views * n, n * n))


def slice_of_a_body(n: int) -> np.ndarray:
    y, x = 2 * np.mgrid[:n, :n] / (n - 1) - 1
    body, organ = (x / 0.8) ** 2 + (y / 0.9) ** 2 < 1, (x - 0.2) ** 2 + (y + 0.1) ** 2 < 0.2
    return body - 0.5 * organ + 0.3 * ((np.abs(x + 0.3) < 0.2) & (np.abs(y - 0.3) < 0.25))


def error(post: cofem.Posterior, u: np.ndarray) -> float:
    return float(np.linalg.norm(post.mean - u.ravel()) / np.linalg.norm(u))


def test_a_fit_of_projections_ends_where_further_steps_gain_little() -> None:
    """At the start the spread is as large as the unknown, and so is what passes for a small part of it."""
    u, Phi = slice_of_a_body(26), projections(26, 12)
    y = Phi @ u.ravel()
    noise_std = 0.01 * np.mean(y**2) ** 0.5
    y += noise_std * np.random.default_rng(0).standard_normal(y.size)
    same = dict(analysis=u.shape, noise_std=noise_std, prior=cofem.Neighbours(1, "together"), rng=0)
    post, longer = cofem.fit(Phi, y, **same), cofem.fit(Phi, y, tol=0.006, **same)
    assert post.converged
    assert error(post, u) < 1.15 * error(longer, u)


def test_candidates_are_told_with_standard_errors_and_a_sign() -> None:
    u, rng = slice_of_a_body(24), np.random.default_rng(0)
    seen = rng.random(u.shape) < 0.5
    y = u[seen] + 0.1 * rng.standard_normal(int(seen.sum()))
    notes = " ".join(cofem.fit(Mask(seen), y, analysis="auto", noise_std=0.1, rng=0).status.notes)
    number = r"[+-][0-9.e-]+ \+- [0-9.e-]+"
    assert re.search(rf"in nats a datum, higher is better: first and second differences.* {number}\)", notes)


def test_colours_are_a_third_axis() -> None:
    """Three pictures with the same edges: together they are as good as each by itself."""
    rng = np.random.default_rng(1)
    shades = [2.7 * gaussian_filter(rng.standard_normal((16, 16)), 1.3) for _ in range(3)]
    u = np.stack([slice_of_a_body(16) + shade for shade in shades], axis=2)
    seen = rng.random(u.shape) < 0.3
    y = u[seen] + 0.02 * rng.standard_normal(int(seen.sum()))
    same = dict(noise_std=0.02, prior=cofem.Neighbours(3), rng=0)
    together = cofem.fit(Mask(seen), y, analysis=u.shape, **same)
    apart = [
        cofem.fit(Mask(seen[..., i]), y[np.flatnonzero(seen) % 3 == i], analysis=(16, 16), **same).mean
        for i in range(3)
    ]
    assert error(together, u) < 1.1 * np.linalg.norm(np.stack(apart, 1).ravel() - u.ravel()) / np.linalg.norm(
        u
    )


def test_a_picture_that_is_taken_for_a_line_is_warned_about() -> None:
    rng = np.random.default_rng(0)
    u = slice_of_a_body(12).ravel() + 0.05 * rng.standard_normal(144)
    post = cofem.fit(Identity(144), u, analysis="auto", noise_std=0.05, rng=0)
    assert any("give analysis=(12, 12)" in warning for warning in post.status.warnings)

    def about(y: np.ndarray, analysis: Any = "auto") -> list[str]:
        data = cofem._fit.Data(Identity(400), y + 0.05 * rng.standard_normal(400), 0.05)
        problem = cofem._fit.prepare(data, cofem.Independent(), False).problem
        return about_line(problem, analysis, (400,))

    assert about(slice_of_a_body(20).ravel())
    assert not about(slice_of_a_body(20).ravel(), analysis=400)
    walk = 0.05 * np.cumsum(rng.standard_normal(400))
    for period in (20, 10, 37.3):  # a row long, half of one, and not
        assert not about(walk * (period == 10) + np.sin(2 * np.pi * np.arange(400) / period))


def test_a_band_has_a_factor_that_solves_exactly() -> None:
    B = band_whitening(0.95 ** np.arange(65), 1200)
    alpha = np.random.default_rng(1).gamma(2, size=1200)
    phi = Dictionary(Mask(np.arange(0, 1200, 3), 1200), like=np.zeros(1))
    factor = sparse_factor(phi, Rows(as_operator(B), like=np.zeros(1)), alpha, 0.04)
    assert isinstance(factor, BandFactor)
    whole = np.diag(np.arange(1200) % 3 == 0) + 0.04 * (B.T * alpha) @ B.toarray()
    right = np.random.default_rng(2).standard_normal((2, 1200))
    found = np.empty_like(right)
    factor.apply(right, found)
    np.testing.assert_allclose(found @ whole, right, atol=1e-9)


def test_a_series_whose_factor_memory_has_no_room_for_is_solved_by_steps(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    u = np.sin(np.arange(1200) / 20) + np.cumsum(0.05 * rng.standard_normal(1200))
    seen = rng.random(1200) < 0.7
    y = u[seen] + 0.2 * rng.standard_normal(int(seen.sum()))
    B = as_operator(band_whitening(0.98 ** np.arange(65), 1200))
    same = dict(analysis=B, prior=cofem.Power(2), noise_std=0.2, max_iter=3, tol=1.0, rng=0)
    by_factor = cofem.fit(Mask(seen), y, **same)
    monkeypatch.setattr(factors, "is_available", lambda needed, share: False)
    by_steps = cofem.fit(Mask(seen), y, **same)
    assert np.linalg.norm(by_steps.mean - by_factor.mean) < 0.1 * np.linalg.norm(by_factor.mean - u)


def test_noise_between_what_was_learned_and_a_quarter_of_it_is_found() -> None:
    """From a third of the pixels 1.3 times the noise was learned; 0.7 times it was no less likely."""
    u = pywt.data.aero().astype(float)[:480, :480].reshape(96, 5, 96, 5).mean(axis=(1, 3))
    u = (u - u.min()) / np.ptp(u)
    rng = np.random.default_rng(7)
    seen = rng.random(u.shape) < 0.35
    y = u[seen] + 0.1 * rng.standard_normal(int(seen.sum()))
    assert 0.8 < cofem.fit(Mask(seen), y, analysis="auto", rng=0).noise_std / 0.1 < 1.25


def test_signal_that_was_taken_for_noise_shows_in_neighbours_residuals() -> None:
    shape, rng = (20, 20), np.random.default_rng(0)
    waves = np.sin(np.indices(shape).sum(0) / 2)
    for noise_std, taken in ((0.9, True), (0.1, False)):
        y = waves.ravel() + 0.1 * rng.standard_normal(400)
        problem = AnalysisProblem.of(
            Problem(Dictionary(Identity(shape), like=y), y, noise_std**2),
            Gradient(shape),
            cofem.Independent(),
        )
        mean = np.zeros(400) if taken else waves.ravel()
        outcome = Outcome(
            problem, State(np.ones(760), mean, np.ones(400)), {}, Status(StatusCode.CONVERGED, ""), False
        )
        (told,) = about_residuals(outcome, learned=True) or ("",)
        assert ("residuals of neighbors are alike" in told) == taken
        assert about_residuals(outcome, learned=False) == []
