"""Large pictures and volumes: parts of rows, parts of pictures, memory, and the noise of smooth ones."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import cofem
from cofem.experiments.bench.pictures import ellipsoids
from cofem.inference.analysis import choice, row_moments, tiles
from cofem.inference.analysis.problem import AnalysisProblem, WarmStart
from cofem.inference.base import State
from cofem.inference.prediction import Errors
from cofem.inference.problem import Problem
from cofem.linalg.analysis import Rows, rows, system
from cofem.linalg.preconditioners import whole_factor
from cofem.operators import (
    DCT,
    Convolution,
    Diagonal,
    Gradient,
    Identity,
    Mask,
    WaveletFrame,
    sampling,
    vstack,
)
from cofem.operators.dictionary import Dictionary

SHAPE = (6, 5, 4)


@pytest.mark.parametrize(
    "B",
    [
        Gradient(SHAPE),
        Gradient(SHAPE, "periodic", order=2),
        -3.0 * vstack([Gradient(SHAPE), Gradient(SHAPE, order=2, mixed=False), Identity(SHAPE)]),
        WaveletFrame(SHAPE, "haar", 1),
        DCT(120),
    ],
    ids=str,
)
def test_parts_on_top_of_each_other_are_the_operator(B) -> None:
    x = np.random.default_rng(0).standard_normal((2, 120))
    found = np.concatenate([part.forward(x) for part in B.row_parts()], axis=-1)
    np.testing.assert_allclose(found, B.forward(x), atol=1e-12)
    parts = Rows(B, like=x).parts
    assert [part.rows.stop - part.rows.start for part in parts] == [part.operator.shape[0] for part in parts]
    assert parts[-1].rows.stop == B.shape[0]


def test_second_differences_without_mixed_ones() -> None:
    pure = Gradient((4, 4), order=2, mixed=False).to_dense()
    np.testing.assert_array_equal(pure, Gradient((4, 4), order=2).to_dense()[: len(pure)])
    assert str(Gradient((4, 4), order=2, mixed=False)) == "Gradient((4, 4), order=2, mixed=False)"


def test_gram_of_a_large_mask_is_that_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((3, 8))
    for at in ([1, 4, 6], [6, 1]):
        small = Mask(at, 8).gram(x)
        monkeypatch.setattr(sampling, "LONG_VECTOR", 1)
        np.testing.assert_array_equal(Mask(at, 8).gram(x), small)
        monkeypatch.undo()


def masked(shape: tuple[int, ...], noise: float = 0.05, seed: int = 100):
    """Return a picture, which places are seen, and their data in single precision."""
    rng = np.random.default_rng(seed)
    picture = ellipsoids(shape, seed)
    seen = rng.random(shape) < 0.4
    y = picture[seen] + np.float32(noise) * rng.standard_normal(int(seen.sum()), dtype=np.float32)
    return picture, seen, y


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat pictures of 64 x 64 pixels as large ones."""
    for module in (tiles, choice):
        monkeypatch.setattr(module, "LARGE", 2**12)
        monkeypatch.setattr(module, "TILES", 3)
    monkeypatch.setattr(tiles, "PLACES", 2**10)
    monkeypatch.setattr(tiles, "FEWEST", 50)


@pytest.mark.usefixtures("small_is_large")
def test_a_tile_sees_what_the_whole_sees_there() -> None:
    shape = (70, 60)
    rng = np.random.default_rng(1)
    picture = rng.standard_normal(shape)
    at = rng.choice(picture.size, 3000, replace=False)
    Phi = Diagonal(rng.uniform(1, 2, 3000)) @ Mask(at, shape)
    y = Phi @ picture.ravel()
    found = list(tiles.tiles(Problem(Dictionary(Phi, like=y), y, 1.0), shape))
    assert len(found) == tiles.TILES
    corners = set()
    for tile in found:
        assert tile.shape == (32, 32)
        # The place of the tile is not told; a datum without noise tells it.
        inside = tile.problem.phi.forward(np.ones(32 * 32))
        values = tile.problem.y / inside
        first = np.flatnonzero(np.isclose(picture.ravel(), values[0]))
        assert first.size == 1
        corners.add(int(first[0]))
        assert np.isin(values.round(9), picture.ravel().round(9)).all()
    assert len(corners) == tiles.TILES  # spread over the picture


def test_small_pictures_have_no_tiles() -> None:
    Phi = Dictionary(Mask([0, 2], (2, 2)), like=np.zeros(1))
    assert list(tiles.tiles(Problem(Phi, np.ones(2), 1.0), (2, 2))) == []


@pytest.mark.usefixtures("small_is_large")
def test_candidates_for_a_large_picture_are_judged_on_parts_of_it() -> None:
    picture, seen, y = masked((64, 64))
    sizes = set()
    post = cofem.fit(
        Mask(seen), y, analysis="auto", rng=0, callback=lambda s: sizes.add((s.stage, s.mean.size)) and False
    )
    assert "in 3 parts of the whole" in str(post.status)
    assert {size for _, size in sizes} == {picture.size}  # callbacks do not see means of parts
    assert {stage for stage, _ in sizes} == {"noise", "fit"}  # of the whole there is one candidate
    error = (post.mean.reshape(picture.shape) - picture)[~seen]
    assert np.sqrt(np.mean(error**2)) < 0.5 * picture.std()


@pytest.mark.usefixtures("small_is_large")
def test_mixed_differences_of_a_large_volume_have_to_be_plainly_better() -> None:
    rng = np.random.default_rng(0)
    given = choice.candidates((16, 16, 16), None, Mask(rng.random((16,) * 3) < 0.4))
    assert [candidate.operator.shape[0] < 9 * 15**3 - 16**3 for candidate in given] == [True, True, False]
    assert len(choice.candidates((8, 8, 8), None, Mask(rng.random((8,) * 3) < 0.4))) == 2


@pytest.mark.usefixtures("small_is_large")
def test_a_break_while_parts_are_judged_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    _, seen, y = masked((64, 64))
    monkeypatch.setattr(cofem.AnalysisEM, "step", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        cofem.fit(Mask(seen), y, analysis="auto", rng=0)
    assert getattr(raised.value, "posterior", None) is None


def test_ratios_in_half_precision_change_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, seen, y = masked((40, 40))
    same = dict(noise_std=0.05, analysis=(40, 40), prior=cofem.Neighbours(3), rng=0, max_iter=8, tol=0)
    one = cofem.fit(Mask(seen), y, **same)
    monkeypatch.setattr(row_moments, "HALF_FROM", 0)
    other = cofem.fit(Mask(seen), y, **same)
    assert not np.array_equal(one.alpha, other.alpha)
    np.testing.assert_allclose(np.log(other.alpha), np.log(one.alpha), atol=0.05)
    assert np.abs(other.mean - one.mean).max() < 0.05 * one.std.min()


def test_a_warm_start_is_taken_once() -> None:
    state = State(np.ones(1), np.ones(1), np.ones(1))
    warm = WarmStart(state)
    assert warm.take() is state
    assert warm.take() is None


def test_memory_of_a_large_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_moments, "HALF_FROM", 0)
    monkeypatch.setattr(rows, "MOST_SYMBOLS", 0)
    monkeypatch.setattr(system, "MOST_FOR_DIAGONALS", 0)
    monkeypatch.setattr(whole_factor, "MOST_ON_PLANES", 0)
    picture, seen, y = masked((300, 300))
    same = dict(noise_std=0.05, prior=cofem.Neighbours(3), rng=0, max_iter=6, tol=0)
    cofem.fit(Mask(seen[:24, :24]), y[: int(seen[:24, :24].sum())], analysis=(24, 24), **same)
    tracemalloc.start()
    try:
        cofem.fit(Mask(seen), y, analysis=picture.shape, **same)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * 4 * picture.size


def test_noise_of_errors_that_grow_faster_than_variances() -> None:
    rng = np.random.default_rng(0)
    spread = np.exp(rng.normal(0.0, 1.0, 4000))
    squares = (spread**2 * 0.5 + 0.25) * rng.standard_normal(4000) ** 2
    errors = Errors(squares, spread, 8.0, of_complex=False)
    straight, bent = errors, errors.likely_bend(0.25)
    assert bent is not straight
    power = 2.0
    found = bent.likely_noise(power, bent.likely_both(0.25)[0])
    assert found == pytest.approx(0.25, rel=0.3)
    before = straight.likely_noise(power, straight.likely_both(0.25)[0])
    assert abs(np.log(found / 0.25)) < abs(np.log(before / 0.25))


def test_errors_as_large_as_variances_say_are_not_bent() -> None:
    rng = np.random.default_rng(1)
    spread = np.exp(rng.normal(0.0, 1.0, 4000))
    errors = Errors((spread + 0.25) * rng.standard_normal(4000) ** 2, spread, 8.0, of_complex=False)
    assert errors.likely_bend(0.25) is errors


def test_scale_of_intervals_is_nearer_to_1_where_the_noise_was_learned() -> None:
    rng = np.random.default_rng(2)
    errors = Errors((0.5 + 1.0) * rng.standard_normal(2000) ** 2, np.ones(2000), 8.0, of_complex=False)
    known, learned = errors.holding_scale(1.0), errors.holding_scale(1.0, learned=True)
    assert known < 0.9
    assert known <= learned <= 1.0


def test_windows_and_places_both_have_a_say() -> None:
    B = vstack([Gradient((7, 6)), Gradient((7, 6), order=2)])
    like = np.zeros(1)
    phi = Dictionary(Identity((7, 6)), like=like)
    moment = np.random.default_rng(3).gamma(1.0, size=B.shape[0])

    def precisions(prior: cofem.Neighbours) -> np.ndarray:
        problem = AnalysisProblem.of(Problem(phi, np.ones(42), 1.0), B, prior)
        return problem.prior.precisions_in_place(moment.copy(), 1e9)

    apart, together = precisions(cofem.Neighbours(3)), precisions(cofem.Neighbours(1, bands="together"))
    both = precisions(cofem.Neighbours(3, bands="both"))
    np.testing.assert_allclose(both, apart**0.7 * together**0.3)
    with pytest.raises(ValueError, match="bands must be 'apart', 'together' or 'both', got 'none'"):
        cofem.Neighbours(3, bands="none")


def test_a_blur_has_one_candidate_with_both() -> None:
    (only,) = choice.candidates((8, 8), None, Convolution(np.ones((3, 3)) / 9, (8, 8)))
    assert only.prior.bands == "both"
