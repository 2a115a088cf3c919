"""`cofem.compare` and prior="auto": which prior the data choose."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import cofem
from cofem.experiments import problems
from cofem.experiments.bench.genotypes import draw
from cofem.inference import choice
from cofem.inference.judged import Judged
from cofem.inference.noise.rules import FromHeldOut, spread_of
from cofem.inference.prediction import Errors
from cofem.operators import DCT, Convolution, Dense, Gradient, Mask, Wavelet
from tests.problems import exact_posterior


def make(seed: int = 0, n: int = 40, d: int = 60, sparse: bool = True, noise: float = 0.1):
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((n, d)) / n**0.5
    z = np.zeros(d)
    where = rng.choice(d, 6, replace=False) if sparse else np.arange(d)
    z[where] = rng.standard_normal(where.size) * (3 if sparse else 1)
    return Phi, Phi @ z + noise * rng.standard_normal(n), z


def figures(table: cofem.Comparison) -> list[tuple]:
    return [(r.label, r.density, r.difference, r.standard_error, r.outside, r.count) for r in table.rows]


def test_compare_is_deterministic_and_says_what_it_cost() -> None:
    Phi, y, _ = make()
    tables = [cofem.compare(Phi, y, [cofem.Independent(), cofem.Power(0.5)], rng=3) for _ in range(2)]
    assert figures(tables[0]) == figures(tables[1])
    assert tables[0].seconds > 0
    slow = cofem.compare(Mask(np.arange(0, 600, 2), 600) @ DCT(600).T, np.ones(300), [cofem.Power(1)], rng=0)
    assert slow.applications > 0
    text = repr(tables[0]).splitlines()
    assert len(text) == 3
    assert text[0].split()[0] == "prior"
    assert sum(line.endswith("chosen") for line in text) == 1


def test_sparse_signals_choose_sparse_priors_and_dense_ones_choose_ridge() -> None:
    Phi, y, _ = make(sparse=True)
    sparse = cofem.compare(Phi, y, rng=0)
    assert sparse.prior.name in ("independent", "sparser") or sparse.prior.p < 1
    Phi, y, _ = make(n=60, d=20, sparse=False)
    dense = cofem.compare(Phi, y, rng=0)
    assert dense.prior.p >= 1
    assert dense.best.difference == 0
    assert all(row.difference <= 0 for row in dense.rows)


def test_auto_fits_with_what_compare_chooses_and_says_so() -> None:
    Phi, y, _ = make(n=60, d=20, sparse=False)
    table = cofem.compare(Phi, y, rng=0)
    post = cofem.fit(Phi, y, prior="auto", rng=0)
    assert f'prior="auto" chose {table.best.label}' in str(post.status)
    # Data are plenty: the noise is learned as it would be without a choice.
    same = cofem.fit(Phi, y, prior=table.prior, rng=0)
    np.testing.assert_allclose(post.mean, same.mean, atol=1e-8)
    Phi, y, _ = make(sparse=False)
    table, post = cofem.compare(Phi, y, rng=0), cofem.fit(Phi, y, prior="auto", rng=0)
    assert table.prior != cofem.Independent()
    assert post.noise_std == pytest.approx(table.best.noise_std)


def test_auto_with_a_noise_that_is_known_keeps_it() -> None:
    Phi, y, _ = make()
    post = cofem.fit(Phi, y, prior="auto", noise_std=0.1, rng=0)
    assert post.noise_std == 0.1
    assert 'prior="auto" chose' in str(post.status)


def test_natural_groups_and_grids_are_tried_where_there_are_some() -> None:
    rng = np.random.default_rng(0)
    waves = Mask(np.sort(rng.choice(64, 40, replace=False)), 64) @ Wavelet(64, "haar", level=3).T
    labels = [row.label for row in cofem.compare(waves, rng.standard_normal(40), noise_std=0.5, rng=0).rows]
    assert "one precision for each natural group" in labels
    pixels = Mask(rng.random((6, 6)) < 0.8)
    labels = [
        row.label
        for row in cofem.compare(pixels, rng.standard_normal(pixels.shape[0]), noise_std=0.5, rng=0).rows
    ]
    assert any("PatternCoupled" in label for label in labels)
    assert any("analysis by first and second differences" in label for label in labels)


def series(seed: int = 0) -> tuple[Mask, np.ndarray, np.ndarray]:
    """Return two thirds of a smooth curve of 60 samples, which no few samples make up."""
    rng = np.random.default_rng(seed)
    truth = np.sin(np.arange(60) / 6) + 0.3 * np.cos(np.arange(60) / 2.5)
    seen = rng.random(60) < 0.65
    return Mask(seen), truth[seen] + 0.05 * rng.standard_normal(seen.sum()), truth


def test_auto_finds_that_an_unknown_on_a_grid_is_not_sparse_itself() -> None:
    Phi, y, truth = series()
    table = cofem.compare(Phi, y, rng=0)
    assert table.best.analysis is not None
    assert [row.analysis is not None for row in table.rows].count(True) == 3
    post = cofem.fit(Phi, y, prior="auto", rng=0)
    assert post.analysis is not None
    assert f'prior="auto" chose {table.best.label}' in str(post.status)
    by_hand = cofem.fit(Phi, y, analysis=60, rng=0)
    default = cofem.fit(Phi, y, rng=0)
    errors = [np.linalg.norm(found.mean - truth) for found in (post, by_hand, default)]
    assert errors[0] < 1.3 * errors[1]
    assert errors[0] < 0.2 * errors[2]
    assert 'prior="auto"' in str(default.status)


def test_spikes_behind_a_blur_stay_spikes() -> None:
    rng = np.random.default_rng(1)
    z = np.zeros(150)
    z[rng.choice(150, 8, replace=False)] = rng.choice([-1.0, 1.0], 8)
    Phi = Convolution(np.exp(-0.5 * (np.arange(-6, 7) / 1.5) ** 2), 150)
    y = Phi @ z + 0.02 * rng.standard_normal(Phi.shape[0])
    post = cofem.fit(Phi, y, prior="auto", rng=0)
    assert post.analysis is None
    assert np.linalg.norm(post.mean - z) < 0.1 * np.linalg.norm(z)


def test_the_default_stays_where_another_prior_is_not_plainly_better() -> None:
    """Behind a wavelet, which passes a band, another was 0.4 standard errors better, and off by 46 %."""
    rng = np.random.default_rng(0)
    z = np.zeros(200)
    z[rng.choice(200, 12, replace=False)] = rng.choice([-1.0, 1.0], 12) * rng.uniform(0.3, 1, 12)
    squares = (np.pi * 25 * 0.004 * np.arange(-20, 21)) ** 2
    Phi = Convolution((1 - 2 * squares) * np.exp(-squares), 200)
    y = Phi @ z
    y += 0.02 * np.abs(y).max() * rng.standard_normal(y.size)
    table = cofem.compare(Phi, y, rng=0)
    first, best = table.rows[0], max(table.rows, key=lambda row: row.difference)
    assert first.difference > -2 * first.standard_error
    assert best is not first
    assert table.prior == cofem.Independent()
    text = table.in_words()
    assert f"{best.label} is no more than two standard errors better, and less safe" in text
    assert f"against {best.label}, in nats a datum, higher is better: Independent() -" in text
    assert "higher is better" in repr(table).splitlines()[0]


def test_a_method_that_is_named_keeps_to_its_form() -> None:
    Phi, y, _ = series()
    table = cofem.compare(Phi, y, method="em", noise_std=0.05, rng=0)
    assert all(row.analysis is None for row in table.rows)


@cache
def whole_in_analysis_form() -> tuple[cofem.Posterior, list[str]]:
    """Return the fit that those which were broken off are compared with, and the stages of its steps."""
    Phi, y, _ = series()
    stages: list[str] = []
    same = dict(rng=5, prior="auto", noise_std=0.05)
    return cofem.fit(Phi, y, callback=lambda snapshot: stages.append(snapshot.stage), **same), stages


@pytest.mark.parametrize("stage", ["the last choice", "fit"])
def test_an_auto_fit_in_analysis_form_goes_on_to_the_same_result(tmp_path, stage: str) -> None:
    Phi, y, _ = series()
    same = dict(rng=5, prior="auto", noise_std=0.05)
    whole, stages = whole_in_analysis_form()
    assert whole.analysis is not None
    last = next(name for name in reversed(stages) if name.startswith("choice") and "/" not in name)
    path = tmp_path / "auto.npz"
    arguments = dict(checkpoint=path, checkpoint_every="100 steps", **same)

    def breaks(snapshot) -> None:
        if snapshot.stage == (stage if stage == "fit" else last):
            raise Break

    with pytest.raises(Break):
        cofem.fit(Phi, y, callback=breaks, **arguments)
    again = cofem.fit(Phi, y, resume=path, **arguments)
    np.testing.assert_array_equal(again.mean, whole.mean)
    np.testing.assert_array_equal(again.std, whole.std)


def test_tasks_are_judged_together_and_each_by_itself() -> None:
    Phi, _, z = make()
    rng = np.random.default_rng(1)
    Y = Phi @ (z[:, None] * rng.standard_normal((1, 3))) + 0.1 * rng.standard_normal((40, 3))
    table = cofem.compare(Phi, Y, [cofem.Independent(), cofem.MultiTask()], noise_std=0.1, rng=0)
    assert table.prior.joins_tasks
    assert table.rows[0].count == table.rows[1].count == 120
    post = cofem.fit(Phi, Y, prior="auto", noise_std=0.1, rng=0)
    assert post.mean.shape == (60, 3)
    assert post.alpha.shape == (60,)


def test_lists_of_dictionaries_choose_task_by_task() -> None:
    Phi, y, _ = make(n=30, d=20)
    lists = cofem.fit([Phi, Phi], [y, -y], prior="auto", noise_std=0.1, rng=0)
    assert lists.mean.shape == (20, 2)
    assert 'prior="auto" chose' in str(lists.task(1).status)


def test_auto_chooses_among_the_rows_of_an_analysis_operator() -> None:
    rng = np.random.default_rng(0)
    u = np.repeat([0.0, 2.0, 1.0], 40)
    y = u + 0.1 * rng.standard_normal(120)
    post = cofem.fit(np.eye(120), y, prior="auto", analysis=Gradient(120), rng=0)
    assert "chosen by the log density" in str(post.status)
    assert np.abs(post.mean - u).mean() < 0.1


class Break(Exception):
    pass


def breaks_at(number: int):
    calls = [0]

    def callback(snapshot) -> None:
        calls[0] += 1
        if calls[0] == number:
            raise Break

    return callback


@cache
def whole_comparison() -> cofem.Comparison:
    Phi, y, _ = make(n=30, d=40)
    return cofem.compare(Phi, y, rng=5)


@cache
def whole_auto_fit() -> cofem.Posterior:
    Phi, y, _ = make(n=30, d=40)
    return cofem.fit(Phi, y, prior="auto", rng=5)


@pytest.mark.parametrize("number", [3, 130])
def test_a_comparison_that_was_broken_off_goes_on_to_the_same_table(tmp_path, number: int) -> None:
    Phi, y, _ = make(n=30, d=40)
    whole = whole_comparison()
    path = tmp_path / "compare.npz"
    arguments = dict(rng=5, checkpoint=path, checkpoint_every="40 steps")
    with pytest.raises(Break):
        cofem.compare(Phi, y, callback=breaks_at(number), **arguments)
    assert figures(cofem.compare(Phi, y, resume=path, **arguments)) == figures(whole)


@pytest.mark.parametrize("number", [3, 130])
def test_an_auto_fit_that_was_broken_off_goes_on_to_the_same_result(tmp_path, number: int) -> None:
    Phi, y, _ = make(n=30, d=40)
    whole = whole_auto_fit()
    path = tmp_path / "auto.npz"
    arguments = dict(rng=5, checkpoint=path, checkpoint_every="40 steps", prior="auto")
    with pytest.raises(Break):
        cofem.fit(Phi, y, callback=breaks_at(number), **arguments)
    again = cofem.fit(Phi, y, resume=path, **arguments)
    np.testing.assert_array_equal(again.mean, whole.mean)
    assert again.status == whole.status
    with pytest.raises(ValueError, match="prior"):
        cofem.fit(Phi, y, rng=5, resume=path)


def test_a_callback_that_stops_a_comparison_gets_what_is_known_by_then() -> None:
    Phi, y, _ = make(n=30, d=40)
    seen = []

    def stop(snapshot) -> bool:
        seen.append(snapshot.stage)
        return len(seen) > 60

    post = cofem.fit(Phi, y, prior="auto", rng=0, callback=stop)
    assert not post.converged
    assert "a callback stopped the fit at step" in str(post.status)
    assert "a fit to 27 of the 30 data" in str(post.status)
    assert seen[0] == "choice 1"


def test_sparser_starts_from_the_independent_prior_and_keeps_fewer() -> None:
    Phi, y, _ = make(n=60, d=200, noise=0.5)
    arguments = dict(noise_std=0.5, method="irls")
    independent = cofem.fit(Phi, y, **arguments)
    stages = []
    sparser = cofem.fit(
        Phi, y, prior=cofem.Sparser(2.5), callback=lambda s: stages.append(s.stage), **arguments
    )
    assert stages[0] == "start"
    assert stages[-1] == "fit"
    kept = [np.count_nonzero(p.alpha * p.variance < 0.5) for p in (sparser, independent)]
    assert kept[0] < kept[1]


@pytest.mark.nightly
def test_weak_signals_among_correlated_columns_are_found() -> None:
    """Where the default follows the noise: a draw on which it does."""
    data = draw(150, 600, 105)
    found = {}
    for prior in (None, "auto"):
        post = cofem.fit(data.X, data.y, prior=prior, rng=0)
        found[prior] = np.corrcoef(post.predict(data.X_new), data.signal_new)[0, 1]
        assert 0.7 < post.noise_std < 1.4 or prior is None
    assert found["auto"] > found[None] + 0.05


@pytest.mark.nightly
def test_the_lasso_is_taken_for_weak_signals_and_not_for_many_small_ones() -> None:
    """Few of many columns, correlated; and all of them a little. Draws that nothing was chosen on."""
    few = draw(300, 1200, 110)
    table = cofem.compare(few.X, few.y, noise_std=1.0, rng=0)
    assert isinstance(table.prior, cofem.Laplace)
    judged = {row.label: row.count for row in table.rows}
    assert judged[table.prior.label] == 150  # by all parts, and the others by two
    assert judged["Power(0.25)"] == 60
    rng = np.random.default_rng(110)
    X = rng.standard_normal((200, 300))
    signal = X @ rng.standard_normal(300) / 300**0.5
    table = cofem.compare(X, signal + rng.standard_normal(200), noise_std=1.0, rng=0)
    assert isinstance(table.prior, cofem.Power)


def test_the_noise_of_a_mode_counts_what_it_gets_wrong_and_its_penalty_stays() -> None:
    rng = np.random.default_rng(0)
    errors = Errors(4.0 * rng.standard_normal(400) ** 2, np.zeros(400), 1e9, of_complex=False)
    mode = Judged(cofem.Laplace(2, 0.5), "", [errors], [1.0], [], False, (0.0, 0.0))
    prior, noise_var = mode.to_fit
    assert 3.2 < noise_var < 4.9
    assert prior.threshold * noise_var**0.5 == pytest.approx(2.0)
    assert prior.relax == 0.5
    known = mode._replace(known=True)
    assert known.to_fit == (cofem.Laplace(2, 0.5), 1.0)
    sparse = mode._replace(prior=cofem.Independent())
    assert sparse.to_fit == (cofem.Independent(), 1.0)


def test_strong_signals_are_not_tried_denser_where_sparser_priors_gain() -> None:
    case = problems.dense(256, f=2, seed=0)
    labels = [row.label for row in cofem.compare(case.Phi, case.y, rng=0).rows]
    assert labels == ["Independent()", "Sparser(1.5)", "Sparser(2)", "Sparser(3)"]


def test_the_independent_prior_has_the_noise_of_a_fit_without_a_choice(monkeypatch) -> None:
    """Near the limit of what data allow, the two parts that priors are judged by do not find the signal."""
    case = problems.dense(1024, f=5, seed=541)
    monkeypatch.setattr(choice, "search", lambda jury, operator: jury.judge(cofem.Independent()))
    usual, chosen = (cofem.fit(case.Phi, case.y, rng=0, prior=prior) for prior in (None, "auto"))
    assert "5 parts in turn" in str(chosen.status)
    assert chosen.noise_std == pytest.approx(usual.noise_std, rel=0.3)


def test_the_noise_is_at_most_what_another_prior_found() -> None:
    rule = FromHeldOut(Dense(np.eye(3)), np.array([1.0, -1.0, 1.0]), np.ones(3))
    problem = cofem._fit.prepare(
        cofem._fit.Data(np.eye(3), np.ones(3), 0.1), cofem.Independent(), False
    ).problem
    state = cofem.inference.base.State(np.ones(3), np.zeros(3), np.zeros(3))
    assert rule(problem, state, True) == 1.0
    assert replace(rule, most=0.25)(problem, state, True) == 0.25


def test_exact_spread_of_predictions_is_that_of_the_posterior() -> None:
    Phi, y, _ = make(n=30, d=20)
    held = np.arange(5)
    alpha = np.full(20, 2.0)
    problem = cofem._fit.prepare(cofem._fit.Data(Phi, y, 0.1), cofem.Independent(), False).problem
    seen, unseen, rest = problem.split(held, problem.noise_var)
    mean, covariance = exact_posterior(seen.phi.matrix, seen.y, alpha, seen.noise_var**0.5)
    rule = FromHeldOut(unseen, rest, unseen.column_norms() ** 2)
    state = cofem.inference.base.State(alpha, mean, np.diagonal(covariance))
    found = rule.judge_exactly(seen, state)
    rows = problem.phi.matrix[held]
    np.testing.assert_allclose(found["spread"], np.einsum("ij,jk,ik->i", rows, covariance, rows), rtol=1e-8)
    np.testing.assert_allclose(found["squares"], (rest - rows @ mean) ** 2)
    np.testing.assert_allclose(
        spread_of(Dense(rows), np.diagonal(covariance)), rows**2 @ np.diagonal(covariance)
    )


def test_the_status_names_auto_where_the_default_does_not_hold_the_data_it_predicts() -> None:
    """Heavy tails: the noise that is learned is far below a few data, which its intervals miss."""
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((300, 400)) / 17
    y = 0.01 * rng.standard_normal(300)
    post = cofem.fit(Phi, y, rng=0)
    assert "lie outside" not in str(post.status)
    errors = Errors(np.r_[np.full(80, 1e-4), np.full(20, 1.0)], np.zeros(100), 8.0, of_complex=False)
    note = cofem.inference.noise.held_out.about_intervals([errors], 0.01)
    assert 'prior="auto"' in note
    assert "20 of the 100 data points" in note


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    Phi, y, _ = make()
    with pytest.raises(TypeError, match="priors must be a list of priors"):
        cofem.compare(Phi, y, cofem.Independent())
    with pytest.raises(TypeError, match="priors must hold priors"):
        cofem.compare(Phi, y, ["auto"])
    with pytest.raises(ValueError, match="groups"):
        cofem.compare(Phi, y, [cofem.Block([[0, 500]])])
    with pytest.raises(ValueError, match="single datum"):
        cofem.compare(Phi[:1], y[:1])
    with pytest.raises(ValueError, match="alpha_init"):
        cofem.fit(Phi, y, prior="auto", alpha_init=1.0)
    with pytest.raises(ValueError, match="method='seq'"):
        cofem.fit(Phi, y, prior="auto", method="seq")
    with pytest.raises(TypeError, match='prior must be "auto" or one of'):
        cofem.fit(Phi, y, prior="best")


def test_regressor_takes_auto() -> None:
    Phi, y, _ = make(n=60, d=20, sparse=False)
    model = cofem.SBLRegressor(prior="auto", random_state=0).fit(Phi, y + 3)
    assert 'prior="auto" chose' in str(model.posterior_.status)
    assert model.score(Phi, y + 3) > 0.9
    both = cofem.SBLRegressor(prior="auto", random_state=0).fit(Phi, np.stack([y, -y], axis=1))
    assert both.coef_.shape == (2, 20)


def test_tasks_that_are_chosen_one_by_one_have_the_noise_that_was_given() -> None:
    """Tasks are compared in common units, and fitted in their own."""
    rng = np.random.default_rng(0)
    Phi, X = rng.standard_normal((80, 30)), np.zeros((30, 2))
    X[:, 0], X[4, 1] = 16 * rng.standard_normal(30), 1.0
    post = cofem.fit(Phi, Phi @ X + 0.5 * rng.standard_normal((80, 2)), prior="auto", noise_std=0.5, rng=0)
    assert "each task by itself" in str(post.status)
    for task in post.tasks:
        covariance = np.linalg.inv(Phi.T @ Phi / 0.25 + np.diag(task.alpha))
        np.testing.assert_allclose(task.std, np.sqrt(np.diagonal(covariance)), rtol=1e-3)


@pytest.mark.parametrize("noise", [{}, {"noise_std": 0.1}])
def test_data_that_are_zero(noise: dict[str, float]) -> None:
    Phi = np.random.default_rng(0).standard_normal((40, 10))
    y = Phi[:, 2]
    for data in (0 * y, np.stack([y, 0 * y], axis=1)):
        post = cofem.fit(Phi, data, prior="auto", rng=0, **noise)
        assert np.isfinite(post.mean).all()
        zeros = post.mean if data.ndim == 1 else post.mean[:, 1]
        np.testing.assert_allclose(zeros, 0.0, atol=1e-9)
