"""The scikit-learn regressors: conventions, agreement with ARDRegression, exact uncertainty, odd inputs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_regression
from sklearn.linear_model import ARDRegression
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import cofem
from cofem.estimators import RVMRegressor, SBLRegressor
from cofem.linalg import direct
from cofem.operators import Centred, Dense, Sparse, kernel

BOTH = pytest.mark.parametrize("Regressor", [SBLRegressor, RVMRegressor])

COUNTS = (
    "sample_weight says how precise a sample is, not how often it was drawn: the noise is learned from as "
    "many samples as there are, and repeated samples bring repeated kernels"
)
EXPECTED = {
    "RVMRegressor": {
        "check_sample_weight_equivalence_on_dense_data": COUNTS,
        "check_sample_weight_equivalence_on_sparse_data": COUNTS,
    }
}


@parametrize_with_checks(
    [SBLRegressor(), RVMRegressor()],
    expected_failed_checks=lambda estimator: EXPECTED.get(type(estimator).__name__, {}),
)
@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def linear_case(n: int = 60, d: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three features matter; the means are far from zero."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + rng.uniform(-3, 3, d)
    X[rng.random((n, d)) < 0.3] = 0
    return X, 3 * X[:, 0] - 2 * X[:, 3] + X[:, 6] + 4 + 0.1 * rng.standard_normal(n)


def exact_posterior(model: Any, X: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance at the learned precisions, of coefficients of weighted centred features."""
    mean = np.average(X, axis=0, weights=weights)
    centred = X - mean
    precision = model.alpha_ * (centred.T * weights) @ centred + np.diag(model.lambda_)
    return mean, np.linalg.inv(precision)


# --- against ARDRegression ------------------------------------------------------------------------------


def test_diabetes_is_predicted_as_by_ard() -> None:
    X, y = load_diabetes(return_X_y=True)
    theirs, ours = ARDRegression().fit(X, y), SBLRegressor(random_state=0).fit(X, y)
    (their_mean, their_std), (mean, std) = (m.predict(X, return_std=True) for m in (theirs, ours))
    np.testing.assert_allclose(mean, their_mean, atol=1e-3 * y.std())
    np.testing.assert_allclose(std, their_std, rtol=1e-3)
    assert ours.alpha_ == pytest.approx(theirs.alpha_, rel=1e-3)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-3)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-4)
    for name in ("coef_", "lambda_"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape


def test_polynomials_are_fitted_as_by_ard() -> None:
    """The second example of ARDRegression's page; its ten features look much alike."""
    rng = np.random.RandomState(0)
    x = np.sort(10 - 10 * rng.rand(110))[:, None]
    y = (np.sqrt(x) * np.sin(x))[:, 0] + 1.35 * rng.normal(0, 1, 110)
    features = (PolynomialFeatures(degree=10, include_bias=False), StandardScaler())
    theirs = make_pipeline(*features, ARDRegression()).fit(x, y)
    ours = make_pipeline(*features, SBLRegressor(random_state=0)).fit(x, y)
    mean, std = ours.predict(x, return_std=True)
    their_mean, their_std = theirs.predict(x, return_std=True)
    np.testing.assert_allclose(mean, their_mean, atol=1e-3 * y.std())
    np.testing.assert_allclose(std, their_std, rtol=1e-3)


def test_with_few_samples_the_noise_is_not_underestimated() -> None:
    """The first example of ARDRegression's page: it takes much of the noise for signal."""
    X, y, coef = make_regression(
        n_samples=100, n_features=100, n_informative=10, noise=8, coef=True, random_state=42
    )
    theirs, ours = ARDRegression().fit(X, y), SBLRegressor(random_state=0).fit(X, y)
    assert np.linalg.norm(ours.predict(X) - theirs.predict(X)) < 0.04 * np.linalg.norm(y - y.mean())
    assert np.linalg.norm(ours.coef_ - coef) < 0.7 * np.linalg.norm(theirs.coef_ - coef)
    assert 6 < ours.alpha_**-0.5 < 10
    assert set(np.flatnonzero(coef)) <= set(ours.support_)


@BOTH
def test_three_samples_of_the_ard_docstring(Regressor: Any) -> None:
    model = Regressor(random_state=0).fit([[0, 0], [1, 1], [2, 2]], [0, 1, 2])
    np.testing.assert_allclose(model.predict([[1, 1]]), [1], atol=0.01)


# --- the same answer whatever X is ----------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [60, 12])
def test_every_kind_of_X_gives_the_dense_answer(n: int, weighted: bool) -> None:
    X, y = linear_case(n)
    weights = np.random.default_rng(1).integers(0, 4, n) if weighted else None
    settings: dict[str, Any] = dict(noise_std=0.1, max_iter=60)
    dense = SBLRegressor(**settings).fit(X, y, sample_weight=weights)
    mean, std = dense.predict(X, return_std=True)
    for make in (scipy.sparse.csr_array, scipy.sparse.csc_matrix, aslinearoperator, Dense, Sparse):
        other = make(scipy.sparse.csr_array(X)) if make is Sparse else make(X)
        model = SBLRegressor(**settings).fit(other, y, sample_weight=weights)
        np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-5)
        np.testing.assert_allclose(model.intercept_, dense.intercept_, atol=1e-5)
        assert model.n_features_in_ == 8
        for samples in (other, X):
            got = model.predict(samples, return_std=True)
            np.testing.assert_allclose(got[0], mean, atol=1e-5)
            np.testing.assert_allclose(got[1], std, rtol=1e-4)


def test_sparse_X_is_never_made_dense() -> None:
    """10^5 features would take 4 GB if they were."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((5000, 100_000), density=1e-4, rng=rng, format="csr")
    X.data += 1
    y = 5 * X[:, [7]].toarray()[:, 0] + 3 + 0.1 * rng.standard_normal(5000)
    X_new = X[:3]
    model = SBLRegressor(noise_std=0.1, max_iter=5, random_state=0).fit(X, y)
    assert model.predict(X_new).shape == (3,)
    assert model.intercept_ == pytest.approx(3, abs=0.1)


# --- uncertainty ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [60, 7])
def test_standard_deviations_are_exact(n: int, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = linear_case(n)
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.5, 2, n) if weighted else np.ones(n)
    new = rng.standard_normal((300, 8))
    model = SBLRegressor(random_state=0).fit(X, y, sample_weight=weights if weighted else None)
    mean, covariance = exact_posterior(model, X, weights)
    wanted = np.sqrt(np.einsum("ij,jk,ik->i", new - mean, covariance, new - mean) + 1 / model.alpha_)
    np.testing.assert_allclose(model.predict(new, return_std=True)[1], wanted, rtol=1e-6)
    np.testing.assert_allclose(model.coef_std_, np.sqrt(np.diag(covariance)), rtol=1e-6)

    monkeypatch.setattr(direct, "EXACT_SIDE", 0)  # linear systems for few rows, samples for many
    np.testing.assert_allclose(model.predict(new[:50], return_std=True)[1], wanted[:50], rtol=1e-4)
    np.testing.assert_allclose(model.predict(new, return_std=True)[1], wanted, rtol=0.35)


def test_standard_deviations_of_kernels_are_exact() -> None:
    X, y = linear_case(40)
    model = RVMRegressor(random_state=0).fit(X, y)
    K = pairwise_kernels(X, metric="rbf")
    mean, covariance = exact_posterior(model, K, np.ones(40))
    new = pairwise_kernels(X[:9] + 0.1, X, metric="rbf") - mean
    wanted = np.sqrt(np.einsum("ij,jk,ik->i", new, covariance, new) + 1 / model.alpha_)
    np.testing.assert_allclose(model.predict(X[:9] + 0.1, return_std=True)[1], wanted, rtol=1e-5)


def test_intervals_hold_what_they_say() -> None:
    """Averaged over fits: one of 200 samples knows the noise to 5 %, which moves its coverage by 1 %."""
    covered = []
    for seed in range(8):
        X, y = linear_case(2000, seed=seed)
        model = SBLRegressor(random_state=0).fit(X[:200], y[:200])
        mean, std = model.predict(X[200:], return_std=True)
        covered.append(np.mean(np.abs(y[200:] - mean) < 1.96 * std))
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


# --- scales and weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("decades", [2, 12])
@pytest.mark.parametrize("n", [60, 30])
def test_scales_of_features_change_nothing(n: int, decades: int) -> None:
    X, y = linear_case(n, 20)
    scale = 10 ** np.random.default_rng(3).uniform(-decades, decades, 20)
    plain, scaled = (SBLRegressor(random_state=0).fit(Z, y) for Z in (X, X * scale))
    np.testing.assert_array_equal(scaled.support_, plain.support_)
    kept = plain.support_
    np.testing.assert_allclose(scaled.coef_ * scale, plain.coef_, atol=2e-3)
    for name, power in (("coef_std_", 1), ("lambda_", -2)):
        got = getattr(scaled, name) * scale**power
        np.testing.assert_allclose(got[kept], getattr(plain, name)[kept], rtol=0.02)
    mean, std = plain.predict(X, return_std=True)
    got_mean, got_std = scaled.predict(X * scale, return_std=True)
    np.testing.assert_allclose(got_mean, mean, atol=1e-3)
    np.testing.assert_allclose(got_std, std, rtol=1e-2)


def test_several_targets_survive_scales_and_constraint() -> None:
    X, y = linear_case()
    scale = 10.0 ** np.array([-9, 0, 0, 0, 0, 0, 9, 0])
    Y = np.stack([y, -y], axis=1)
    plain, scaled = (SBLRegressor(positive=True, noise_std=2, max_iter=20).fit(Z, Y) for Z in (X, X * scale))
    np.testing.assert_allclose(scaled.coef_ * scale, plain.coef_, rtol=1e-6)
    assert (plain.coef_ >= 0).all()
    assert scaled.posterior_.task(1).gaussian[0].shape == (8,)
    got = scaled.predict(X * scale, return_std=True)
    for ours, wanted in zip(got, plain.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


@BOTH
def test_weight_zero_leaves_a_sample_out(Regressor: Any) -> None:
    X, y = linear_case()
    weights = np.ones(60)
    weights[40:] = 0
    weighted = Regressor(random_state=0).fit(X, y, sample_weight=weights)
    without = Regressor(random_state=0).fit(X[:40], y[:40])
    np.testing.assert_allclose(weighted.predict(X), without.predict(X), atol=1e-4)


def test_at_known_noise_weights_count_samples() -> None:
    X, y = linear_case()
    counts = np.random.default_rng(4).integers(1, 4, 60)
    settings: dict[str, Any] = dict(noise_std=0.1)
    weighted = SBLRegressor(**settings).fit(X, y, sample_weight=counts)
    repeated = SBLRegressor(**settings).fit(X.repeat(counts, axis=0), y.repeat(counts))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=2e-3)
    assert weighted.intercept_ == pytest.approx(repeated.intercept_, abs=2e-3)


def test_noisier_samples_count_less() -> None:
    X, y = linear_case(200)
    rng = np.random.default_rng(5)
    bad = np.arange(200) % 2 == 0
    y = y + np.where(bad, 5.0, 0.0) * rng.standard_normal(200)
    weights = np.where(bad, 0.1**2 / 5**2, 1.0)
    plain, weighted = (SBLRegressor().fit(X, y, sample_weight=w) for w in (None, weights))
    truth = 3 * X[:, 0] - 2 * X[:, 3] + X[:, 6] + 4
    assert np.std(weighted.predict(X) - truth) < 0.2 * np.std(plain.predict(X) - truth)
    assert weighted.alpha_**-0.5 == pytest.approx(0.1, rel=0.15)


# --- several targets ------------------------------------------------------------------------------------


@BOTH
def test_targets_are_fitted_each_by_itself(Regressor: Any) -> None:
    X, y = linear_case()
    Y = np.stack([y, X[:, 1], np.full(60, 0.1)], axis=1)
    model = Regressor(random_state=0).fit(X, Y)
    n_columns = 8 if Regressor is SBLRegressor else 60
    for name in ("coef_", "coef_std_", "lambda_"):
        assert getattr(model, name).shape == (3, n_columns)
    assert model.alpha_.shape == model.intercept_.shape == (3,)
    mean, std = model.predict(X, return_std=True)
    for i in range(3):
        alone = Regressor(random_state=0).fit(X, Y[:, i])
        got = alone.predict(X, return_std=True)
        np.testing.assert_allclose(mean[:, i], got[0], atol=1e-10)
        np.testing.assert_allclose(std[:, i], got[1], rtol=1e-6)


@BOTH
def test_targets_may_share_their_precisions(Regressor: Any) -> None:
    X, y = linear_case()
    rng = np.random.default_rng(6)
    Y = y[:, None] + 0.1 * rng.standard_normal((60, 3))
    model = Regressor(prior=cofem.MultiTask(), random_state=0).fit(X, Y)
    assert model.lambda_.ndim == 1
    assert np.ndim(model.alpha_) == 0
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (60, 3)
    assert model.score(X, Y) > 0.98


# --- in the company of other tools ----------------------------------------------------------------------


@BOTH
def test_pipeline_grid_search_clone_and_pickle(Regressor: Any) -> None:
    X, y = linear_case()
    pipeline = make_pipeline(StandardScaler(), Regressor(random_state=0))
    name = Regressor.__name__.lower()
    search = GridSearchCV(pipeline, {f"{name}__noise_std": ["learn", 0.1, 50.0]}, cv=3).fit(X, y)
    assert search.best_params_[f"{name}__noise_std"] != 50.0
    model = search.best_estimator_
    again = clone(model).fit(X, y)
    back = pickle.loads(pickle.dumps(model))
    for other in (again, back):
        for got, wanted in zip(
            other.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)


def test_names_of_features() -> None:
    pandas = pytest.importorskip("pandas")
    X, y = linear_case()
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    model = SBLRegressor(random_state=0).fit(frame, y)
    assert model.feature_names_in_.tolist() == list("abcdefgh")
    # A frame is stored by columns, so that sums are rounded in another order.
    wanted = SBLRegressor(random_state=0).fit(X, y).predict(X)
    np.testing.assert_allclose(model.predict(frame), wanted, rtol=1e-10)
    assert not hasattr(model.fit(aslinearoperator(X), y), "feature_names_in_")


# --- odd inputs -----------------------------------------------------------------------------------------

X0, Y0 = linear_case()
ODD: dict[str, tuple[Any, np.ndarray]] = {
    "constant y": (X0, np.full(60, 0.1)),
    "constant y, few samples": (X0[:6], np.full(6, 0.1)),
    "zero y, single precision": (X0.astype(np.float32), np.zeros(60, np.float32)),
    "two samples": (X0[:2], Y0[:2]),
    "two equal samples": (X0[[0, 0]], Y0[[0, 0]]),
    "one feature": (X0[:, :1], Y0),
    "zero column": (X0 * (np.arange(8) != 1), Y0),
    "constant columns": (np.full((60, 3), 0.1), Y0),
    "constant sparse columns": (scipy.sparse.csc_array(np.full((60, 3), 0.1)), Y0),
    "zeros": (np.zeros((60, 3)), Y0),
    "duplicated features": (np.hstack([X0, X0]), Y0),
    "large offset": (X0 + 1e6, Y0),
    "large and small": (X0 * 1e40, Y0 * 1e-40),
    "integers": (np.arange(120).reshape(60, 2) % 7, np.arange(60)),
    "integer sparse": (scipy.sparse.csr_array(np.arange(120).reshape(60, 2) % 7), np.arange(60)),
    "booleans": (X0 > 0, Y0),
    "no noise": (X0, X0 @ np.arange(8.0)),
    "single precision": (X0.astype(np.float32), Y0),
}


@BOTH
@pytest.mark.parametrize("name", ODD)
def test_odd_data_give_finite_results(Regressor: Any, name: str) -> None:
    X, y = ODD[name]
    model = Regressor(random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert (std > 0).all()
    for values in (mean, std, model.coef_, model.coef_std_, model.lambda_, model.alpha_):
        assert np.isfinite(values).all()
    assert np.mean((mean - y) ** 2) <= np.var(y) * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    "name", ["zero column", "duplicated features", "large offset", "large and small", "single precision"]
)
def test_odd_data_are_fitted_well(name: str) -> None:
    X, y = ODD[name]
    model = SBLRegressor(random_state=0).fit(X, y)
    assert model.score(X, y) > 0.99
    assert model.coef_.dtype == X.dtype


def test_data_without_noise_are_fitted_exactly() -> None:
    X, y = ODD["no noise"]
    assert SBLRegressor(random_state=0).fit(X, y).score(X, y) > 1 - 1e-9


def test_constant_features_are_left_out() -> None:
    """Rounding leaves 1e-17 of a constant, which units-free learning would take for a feature."""
    rng = np.random.default_rng(0)
    plain = SBLRegressor(random_state=0).fit(X0, Y0)
    for make in (np.asarray, scipy.sparse.csr_array, aslinearoperator):
        X = np.hstack([X0, np.full((60, 1), 0.1), np.full((60, 1), 1e9)])
        model = SBLRegressor(random_state=0).fit(make(X), Y0)
        np.testing.assert_array_equal(model.coef_[8:], 0)
        np.testing.assert_allclose(model.coef_[:8], plain.coef_, atol=1e-3)
        X_new = np.hstack([X0[:5], rng.standard_normal((5, 2))])
        np.testing.assert_allclose(model.predict(make(X_new)), plain.predict(X0[:5]), atol=1e-2)


@pytest.mark.parametrize(
    ("settings", "X", "y", "match"),
    [
        ({}, X0[:1], Y0[:1], "1 sample"),
        ({}, aslinearoperator(X0[:1]), Y0[:1], "at least 2 samples"),
        ({}, aslinearoperator(X0 * 1j), Y0, "Complex data not supported"),
        ({}, aslinearoperator(X0), Y0 * 1j, "Complex data not supported"),
        ({}, aslinearoperator(X0), Y0[:5], "inconsistent numbers of samples"),
        ({}, aslinearoperator(X0), Y0 * np.nan, "NaN"),
        ({"noise_std": -1.0}, X0, Y0, "noise_std must be positive"),
        ({"noise_std": "guess"}, X0, Y0, "noise_std must be 'learn'"),
        ({"method": "x"}, X0, Y0, "method must be one of"),
        ({"max_iter": 0}, X0, Y0, "max_iter must be at least 1"),
    ],
)
def test_bad_input_is_refused(settings: dict[str, Any], X: Any, y: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SBLRegressor(**settings).fit(X, y)


def test_bad_weights_samples_and_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        SBLRegressor().fit(X0, Y0, sample_weight=np.arange(60) == 3)
    with pytest.raises(ValueError, match="Negative values"):
        SBLRegressor().fit(X0, Y0, sample_weight=-np.ones(60))
    with pytest.raises(TypeError, match="y must be a dense array"):
        SBLRegressor().fit(X0, scipy.sparse.csr_array(Y0[:, None]))
    with pytest.raises(ValueError, match="must have 8 features"):
        SBLRegressor(random_state=0).fit(X0, Y0).predict(aslinearoperator(X0[:, :3]))
    with pytest.raises(ValueError, match="kernel must be callable or one of 'additive_chi2'"):
        RVMRegressor(kernel="nonsense").fit(X0, Y0)
    with pytest.raises(ValueError, match="cache_size must be non-negative"):
        RVMRegressor(cache_size=-1).fit(X0, Y0)


# --- relevance vectors ----------------------------------------------------------------------------------


def sinc_case(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tipping's example."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-10, 10, (n, 1))
    truth = np.sinc(X[:, 0] / np.pi)
    return X, truth, truth + 0.05 * rng.standard_normal(n)


@pytest.mark.parametrize("n", [100, 300])
def test_few_relevance_vectors_recover_a_curve(n: int) -> None:
    X, truth, y = sinc_case(n)
    model = RVMRegressor(gamma=0.1, random_state=0).fit(X, y)
    assert np.sqrt(np.mean((model.predict(X) - truth) ** 2)) < 0.4 * 0.05
    assert model.alpha_**-0.5 == pytest.approx(0.05, rel=0.2)
    assert len(model.support_) < 0.25 * n
    np.testing.assert_array_equal(model.relevance_vectors_, X[model.support_])
    sequential = RVMRegressor(gamma=0.1, method="seq").fit(X, y)
    assert len(sequential.support_) <= 10
    np.testing.assert_allclose(sequential.predict(X), model.predict(X), atol=0.05)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array, scipy.sparse.csc_array])
def test_a_kernel_that_is_not_stored_gives_the_same(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = linear_case(40)
    settings: dict[str, Any] = dict(noise_std=0.3, random_state=0)
    stored = RVMRegressor(**settings).fit(make(X), y)
    assert isinstance(stored.posterior_.operator, Dense)
    monkeypatch.setattr(kernel, "BATCH_NUMBERS", 7 * 40)  # blocks of seven rows, and a last one of five
    lazy = RVMRegressor(cache_size=0, **settings).fit(make(X), y)
    assert isinstance(lazy.posterior_.operator, Centred)
    for got, wanted in zip(lazy.predict(X, return_std=True), stored.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_kernels_by_name_and_by_function() -> None:
    X, y = linear_case(40)
    named = RVMRegressor(kernel="poly", gamma=1.0, degree=2, coef0=3, random_state=0).fit(X, y)
    given = RVMRegressor(
        kernel=lambda a, b, shift: (a @ b + shift) ** 2, kernel_params={"shift": 3}, random_state=0
    ).fit(X, y)
    np.testing.assert_allclose(given.predict(X), named.predict(X), rtol=1e-4)
    linear = RVMRegressor(kernel="linear", random_state=0).fit(X, y)
    assert linear.score(X, y) > 0.99
