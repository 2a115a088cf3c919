"""What a fit says of its own answer: warnings first, and `converged` only without them."""

from __future__ import annotations

import numpy as np
import pytest

import cofem
from cofem.experiments import problems
from cofem.inference.notes import DOUBTFUL_ERROR, EXPECTED_ERROR
from cofem.status import Caution, Status, StatusCode


def weak_problem(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return 30 data of 60 correlated columns, all of which matter a little."""
    rng = np.random.default_rng(4)
    Phi = rng.standard_normal((30, 60)) + 2 * rng.standard_normal((30, 1))
    return Phi, Phi @ rng.standard_normal(60) + noise * rng.standard_normal(30)


def expected_error(post: cofem.Posterior) -> float:
    return float(np.sqrt(np.sum(post.variance) / np.sum(post.mean**2)))


def test_a_fit_that_expects_to_be_far_off_warns_and_has_not_converged() -> None:
    Phi, y = weak_problem(15.0)
    with pytest.warns(cofem.ReliabilityWarning, match="expected relative error"):
        post = cofem.fit(Phi, y, noise_std=15.0, method="em", max_iter=500)
    assert expected_error(post) > DOUBTFUL_ERROR
    assert post.status.code is StatusCode.CONVERGED
    assert not post.converged
    assert str(post.status).startswith("converged, but in doubt. Warning: ")
    assert f"{100 * expected_error(post):.0f} %" in post.status.warnings[0]


def test_a_moderate_expected_error_is_a_note() -> None:
    Phi, y = weak_problem(5.0)
    post = cofem.fit(Phi, y, noise_std=5.0, method="em", max_iter=500)
    found = expected_error(post)
    assert EXPECTED_ERROR < found < DOUBTFUL_ERROR
    assert post.status.warnings == ()
    assert post.converged
    assert any(f"{100 * found:.0f} %" in note for note in post.status.notes)


def test_a_good_fit_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    case = problems.dct(512, f=2, density=0.05, sigma=0.01, seed=3)
    post = cofem.fit(case.Phi, case.y, rng=0)
    assert post.converged
    assert post.status.warnings == ()
    assert not recwarn.list


def test_warnings_of_one_task_are_those_of_all() -> None:
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((60, 20))
    y = np.stack([Phi[:, 0] + 0.01 * rng.standard_normal(60), rng.standard_normal(60)], axis=1)
    with pytest.warns(cofem.ReliabilityWarning):
        post = cofem.fit(Phi, y, noise_std=0.01)
    good, bad = post.tasks
    assert good.converged
    assert bad.status.warnings
    assert post.status.warnings == bad.status.warnings
    assert not post.converged


def test_warnings_survive_a_file_and_a_checkpoint(tmp_path) -> None:
    Phi, y = weak_problem(15.0)
    post = cofem.fit(Phi, y, noise_std=15.0, max_iter=500, checkpoint=tmp_path / "fit.npz")
    assert post.status.warnings
    post.save(tmp_path / "post.npz")
    assert cofem.load(tmp_path / "post.npz").status == post.status
    again = cofem.fit(Phi, y, noise_std=15.0, max_iter=500, resume=tmp_path / "fit.npz")
    assert again.status == post.status


def test_cautions_are_warnings_and_empty_words_are_left_out() -> None:
    status = Status(StatusCode.MAX_ITER, "out of steps").with_notes("a", "", Caution("b"), Caution(""))
    assert (status.notes, status.warnings) == (("a",), ("b",))
    assert str(status) == "max_iter. Warning: b. out of steps. a."


def test_a_table_is_told_of_similar_columns_in_its_own_terms() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((80, 1)) + 0.5 * rng.standard_normal((80, 12))
    y = table.sum(axis=1) + 0.3 * rng.standard_normal(80)
    with pytest.warns(cofem.ReliabilityWarning, match="overlap strongly"):
        status = cofem.fit(table, y, noise_std=0.3).status
    text = next(warning for warning in status.warnings if "overlap strongly" in warning)
    assert "similar columns" in text
    assert not any(word in text for word in ("wider", "smooth", "grid", "sharp"))
    assert all(len(words.split()) <= 60 for words in (*status.warnings, *status.notes))
