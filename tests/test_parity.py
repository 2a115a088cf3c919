"""The regressors beside scikit-learn's ARDRegression: its attributes, its own tests, its example."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_regression
from sklearn.linear_model.tests import test_bayes
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import cofem
from cofem.estimators import RVMRegressor, SBLRegressor


def sparse_case(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((200, 500)), np.zeros(500)
    w[rng.choice(500, 10, replace=False)] = 3 * rng.choice([-1, 1], 10)
    return X, w, X @ w + 0.5 * rng.standard_normal(200)


@pytest.mark.parametrize("seed", range(3))
def test_the_support_is_that_of_the_posterior(seed: int) -> None:
    X, w, y = sparse_case(seed)
    model = SBLRegressor(random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.support_, model.posterior_.support())
    np.testing.assert_array_equal(model.support_, np.flatnonzero(w))


def test_sigma_is_the_covariance_of_the_support() -> None:
    X, _, y = sparse_case()
    model = SBLRegressor(noise_std=0.5, fit_intercept=False).fit(X, y)
    exact = np.linalg.inv(X.T @ X / 0.25 + np.diag(model.lambda_))
    wanted = exact[np.ix_(model.support_, model.support_)]
    np.testing.assert_allclose(model.sigma_, wanted, rtol=1e-6, atol=1e-10)
    both = SBLRegressor(noise_std=0.5).fit(X, np.stack([y, -2 * y], axis=1))
    assert both.sigma_.shape == (2, len(both.support_), len(both.support_))
    together = SBLRegressor(noise_std=0.5, prior=cofem.MultiTask()).fit(X, np.stack([y, -2 * y], axis=1))
    assert together.sigma_.shape == (len(together.support_),) * 2


def test_scores_are_the_evidence_and_rise() -> None:
    X, y = make_regression(n_samples=100, n_features=20, n_informative=5, noise=8, random_state=42)
    model = SBLRegressor(compute_score=True, noise_std=8.0, method="em", tol=1e-6).fit(X, y)
    assert model.scores_.shape == (model.n_iter_,)
    assert (np.diff(model.scores_) > -1e-6).all()
    assert model.scores_[-1] == pytest.approx(model.posterior_.log_evidence().value, rel=1e-6)
    end_only = SBLRegressor(compute_score=True, noise_std=8.0, method="cofem").fit(X, y)
    assert end_only.scores_.shape == (1,)
    assert end_only.scores_[0] == pytest.approx(model.scores_[-1], abs=1.0)
    assert not hasattr(SBLRegressor(noise_std=8.0).fit(X, y), "scores_")
    two = SBLRegressor(compute_score=True, noise_std=8.0).fit(X, np.stack([y, y], axis=1))
    assert len(two.scores_) == 2


def test_what_the_example_of_ard_does() -> None:
    """The calls of scikit-learn's plot_ard.py, with the regressor in the place of ARDRegression."""
    X, y, w = make_regression(
        n_samples=100, n_features=100, n_informative=10, noise=8, coef=True, random_state=42
    )
    model = SBLRegressor(compute_score=True, max_iter=30).set_params(random_state=0).fit(X, y)
    assert model.coef_.shape == w.shape
    assert np.ndim(model.scores_) == 1
    assert np.isfinite(model.scores_).all()
    rng = np.random.RandomState(0)
    data = np.sort(rng.rand(100) * 10)[:, None]
    target = (np.sqrt(data) * np.sin(data))[:, 0] + 1.35 * rng.normal(0, 1, 100)
    features = PolynomialFeatures(degree=10, include_bias=False)
    pipeline = make_pipeline(features, StandardScaler(), SBLRegressor()).fit(data, target)
    mean, std = pipeline.predict(data, return_std=True)
    assert mean.shape == std.shape == (100,)


#: scikit-learn's tests of ARDRegression, but for those of its private methods.
THEIRS = [
    name
    for name, test in inspect.getmembers(test_bayes, inspect.isfunction)
    if name.startswith("test_") and "ARDRegression" in inspect.getsource(test) and name != "test_update_sigma"
]


#: Where the regressor answers otherwise, on purpose.
OTHERWISE = {
    "test_toy_ard_object": "three samples are too few to tell a small noise, and the status says so",
    "test_dtype_correctness": "asks 1e-9 and 1e-15, both nothing, to be the same to 1e-4",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(reason=OTHERWISE[name], strict=True))
        if name in OTHERWISE
        else name
        for name in THEIRS
    ],
)
@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
def test_scikit_learns_own_tests_of_ard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_bayes, "ARDRegression", SBLRegressor)
    choices = {
        "global_random_seed": [0, 1, 2],
        "Estimator": [SBLRegressor],
        "dtype": [np.float32, np.float64],
        "constructor_name": ["array"],
        "n_samples": [10],
        "n_features": [100],
    }
    test = getattr(test_bayes, name)
    wanted = list(inspect.signature(test).parameters)
    cases: list[dict[str, Any]] = [{}]
    for parameter in wanted:
        cases = [case | {parameter: value} for case in cases for value in choices[parameter]]
    assert cases
    for case in cases:
        test(**case)


def test_their_tests_are_found() -> None:
    assert {"test_update_of_sigma_in_ard", "test_toy_ard_object", "test_dtype_match"} <= set(THEIRS)


def test_tables_have_the_names_of_the_features() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.standard_normal((80, 3)), columns=["age", "height", "weight"])
    y = pandas.Series(2 * frame["height"] + 0.1 * rng.standard_normal(80), name="pressure")
    model = SBLRegressor(random_state=0).fit(frame, y)
    table = model.coef_table(0.9)
    assert table.index.tolist() == ["age", "height", "weight"]
    assert table["in_support"].tolist() == [False, True, False]
    np.testing.assert_array_equal(table["coef"], model.coef_)
    lower, upper = model.posterior_.credible_interval(0.9)
    np.testing.assert_array_equal(table[["lower", "upper"]], np.stack([lower, upper], axis=1))
    several = SBLRegressor(random_state=0).fit(frame, np.stack([y, -y], axis=1)).coef_table()
    assert several.loc[(1, "height"), "coef"] == pytest.approx(-2, abs=0.1)
    assert several["in_support"].tolist() == [False, True, False] * 2
    kernels = RVMRegressor(random_state=0).fit(frame, y).coef_table()
    assert kernels.index[0] == "x0"
    assert len(kernels) == 80
