"""The classifiers: conventions, an exact bound, calibration, many classes, many features."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import cofem
from cofem.estimators import RVMClassifier, SBLClassifier, classify
from cofem.estimators.classify import bound_weights

BOTH = pytest.mark.parametrize("Classifier", [SBLClassifier, RVMClassifier])

KERNELS = "a repeated sample brings a repeated kernel, which a weight does not"
EXPECTED = {
    "RVMClassifier": {
        "check_sample_weight_equivalence_on_dense_data": KERNELS,
        "check_sample_weight_equivalence_on_sparse_data": KERNELS,
    }
}


@parametrize_with_checks(
    [SBLClassifier(), RVMClassifier(max_iter=2)],  # few rounds, since there are many checks
    expected_failed_checks=lambda estimator: EXPECTED.get(type(estimator).__name__, {}),
)
@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def logistic_case(n: int, d: int = 30, seed: int = 0, scale: float = 1.5) -> tuple[np.ndarray, ...]:
    """Four features matter; labels are drawn with the probabilities p."""
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, d)), np.zeros(d)
    w[[1, 5, 9, 20]] = scale * np.array([1, -1, 1, 0.7])
    p = expit(X @ w + 0.5)
    return X, rng.random(n) < p, p


def test_the_bound_touches_the_logistic_function_and_is_below_it() -> None:
    a = np.linspace(-6, 6, 401)
    for xi in (0.0, 1e-5, 0.3, 2.0, 5.0):
        curvature = bound_weights(np.array(xi))
        bound = expit(xi) * np.exp((a - xi) / 2 - curvature / 2 * (a**2 - xi**2))
        assert (bound <= expit(a) * (1 + 1e-9)).all()
        at = expit(xi) * np.exp(0.0)
        assert at == pytest.approx(expit(xi))
    np.testing.assert_allclose(bound_weights(np.array([1e-4, 1e-3])), 0.25, rtol=1e-6)


def test_a_settled_fit_maximises_the_bound() -> None:
    """At the end the mean is that of the weighted regression whose weights come from its own predictions."""
    X, y, _ = logistic_case(300)
    model = SBLClassifier(tol=1e-6, max_iter=500, fit_intercept=False).fit(X, y)
    regression = model.estimators_[0]
    alpha = model.lambda_[0]
    weights = np.full(300, 0.25)
    for _ in range(200):
        covariance = np.linalg.inv((X.T * weights) @ X + np.diag(alpha))
        mean = covariance @ X.T @ np.where(y, 0.5, -0.5)
        xi = np.sqrt((X @ mean) ** 2 + np.einsum("ij,jk,ik->i", X, covariance, X))
        weights = bound_weights(xi)
    np.testing.assert_allclose(model.coef_[0], mean, atol=2e-3)
    np.testing.assert_allclose(model.coef_std_[0], np.sqrt(np.diag(covariance)), rtol=0.02, atol=1e-4)
    np.testing.assert_allclose(regression.posterior_.weights**2, weights, rtol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_features_are_found_and_probabilities_are_calibrated(seed: int) -> None:
    X, y, p = logistic_case(4000, seed=seed)
    model = SBLClassifier().fit(X[:400], y[:400])
    assert {1, 5, 9} <= set(model.support_.tolist()) <= {1, 5, 9, 20}
    found = model.predict_proba(X[400:])[:, 1]
    assert np.sqrt(np.mean((found - p[400:]) ** 2)) < 0.07
    assert log_loss(y[400:], found) < log_loss(y[400:], p[400:]) + 0.03
    for low in np.arange(0, 1, 0.2):  # as many are positive as the probabilities say
        part = (found >= low) & (found < low + 0.2)
        assert abs(found[part].mean() - y[400:][part].mean()) < 0.08


def test_what_is_not_known_draws_probabilities_to_one_half() -> None:
    X, y, _ = logistic_case(60)
    model = SBLClassifier().fit(X, y)
    far = 20 * X[:40]
    plug_in = expit(far @ model.coef_[0] + model.intercept_[0])
    averaged = model.predict_proba(far)[:, 1]
    assert (np.abs(averaged - 0.5) <= np.abs(plug_in - 0.5) + 1e-12).all()
    assert np.abs(averaged - plug_in).max() > 1e-3
    # Against the average over draws of the coefficients.
    draws = model.estimators_[0].posterior_.sample(4000, rng=0)
    offset = np.asarray(model.estimators_[0]._offset)
    centre = float(model.intercept_[0] + model.coef_[0] @ offset)
    near = X[:40]
    wanted = expit((near - offset) @ draws.T + centre).mean(axis=1)
    np.testing.assert_allclose(model.predict_proba(near)[:, 1], wanted, atol=0.02)


@BOTH
def test_several_classes(Classifier: Any) -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = make_pipeline(StandardScaler(), Classifier(tol=0.05)).fit(X, names)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    P = model.predict_proba(X)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert model.score(X, names) > 0.85
    last = model[-1]
    assert last.coef_.shape == (3, 4 if Classifier is SBLClassifier else 150)
    assert last.intercept_.shape == last.n_iter_.shape == (3,)
    again = clone(model).fit(X, names)
    np.testing.assert_array_equal(again.predict_proba(X), P)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), P)


@BOTH
def test_labels_that_nothing_predicts_leave_features_out(Classifier: Any) -> None:
    losses = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, y = rng.standard_normal((1150, 300)), rng.random(1150) < 0.5
        model = Classifier().fit(X[:150], y[:150])
        losses.append(log_loss(y[150:], model.predict_proba(X[150:])))
        if not model.support_.size:
            assert "were left out" in model.estimators_[0].posterior_.status.message
    assert np.mean(losses) < 0.705
    assert max(losses) < 0.75


def test_rounds_end_where_samples_held_out_are_predicted_best() -> None:
    """All rounds had 0.79 here, chance has 0.71."""
    rng = np.random.default_rng(51)
    X = rng.standard_normal((1650, 300))
    y = rng.random(1650) < expit(1.5 * X[:, 0] - 1.5 * X[:, 1] + X[:, 2])
    model = SBLClassifier().fit(X[:150], y[:150])
    assert log_loss(y[150:], model.predict_proba(X[150:])) < 0.58
    status = model.estimators_[0].posterior_.status
    assert status.code is cofem.StatusCode.CONVERGED
    assert "held out best" in status.message
    assert model.n_iter_[0] < 15


def test_the_status_is_that_of_the_rounds() -> None:
    X, y, _ = logistic_case(300)
    status = SBLClassifier().fit(X, y).estimators_[0].posterior_.status
    assert status.converged
    assert "rounds changed a probability by" in status.message
    with pytest.warns(cofem.ConvergenceWarning):
        status = SBLClassifier(max_iter=2).fit(X, y).estimators_[0].posterior_.status
    assert status.code is cofem.StatusCode.MAX_ITER


def test_a_prior_is_chosen_by_samples_that_are_held_out() -> None:
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((1200, 60)), rng.standard_normal(60) / 5
    y = rng.random(1200) < expit(X @ w)
    plain, auto = (SBLClassifier(prior=prior).fit(X[:200], y[:200]) for prior in (None, "auto"))
    losses = [log_loss(y[200:], model.predict_proba(X[200:])) for model in (plain, auto)]
    assert losses[1] < losses[0]


@pytest.mark.nightly
def test_words_of_documents_take_no_more_than_a_minute() -> None:
    """More than 553 s before; L1 with the best penalty for these very test data has 0.547."""
    rng = np.random.default_rng(0)
    n, d = 2400, 50_000
    share = 1 / (np.arange(d) + 10.0) ** 0.9
    lengths = rng.poisson(120, n)
    words = rng.choice(d, lengths.sum(), p=share / share.sum())
    X = scipy.sparse.csr_array((np.ones(words.size), (np.repeat(np.arange(n), lengths), words)), shape=(n, d))
    X.sum_duplicates()
    X.data = (1 + np.log(X.data)) * np.log(n / (1 + np.bincount(X.indices, minlength=d)))[X.indices]
    X = scipy.sparse.csr_array(scipy.sparse.diags_array(1 / np.sqrt((X**2).sum(axis=1))) @ X)
    w = np.zeros(d)
    w[rng.choice(np.arange(20, 1000), 40, False)] = 30 * rng.standard_normal(40)
    eta = X @ w
    y = rng.random(n) < expit(eta - np.median(eta[:1400]))
    started = time.process_time()
    model = SBLClassifier().fit(X[:1400], y[:1400])
    assert time.process_time() - started < 60
    assert log_loss(y[1400:], model.predict_proba(X[1400:])) < 0.6


@pytest.mark.nightly
def test_digits_and_cancer() -> None:
    X, y = load_digits(return_X_y=True)
    A, B, a, b = train_test_split(X[:600], y[:600], random_state=0, stratify=y[:600])
    assert make_pipeline(StandardScaler(), SBLClassifier(tol=0.02)).fit(A, a).score(B, b) > 0.9
    X, y = load_breast_cancer(return_X_y=True)
    A, B, a, b = train_test_split(X, y, random_state=0, stratify=y)
    for classifier in (SBLClassifier(), RVMClassifier()):
        model = make_pipeline(StandardScaler(), classifier).fit(A, a)
        assert model.score(B, b) > 0.93
        assert log_loss(b, model.predict_proba(B)) < 0.2
        assert len(model[-1].support_) < 10


def test_weights_of_classes_and_samples() -> None:
    X, y, _ = logistic_case(400)
    counts = np.random.default_rng(1).integers(0, 3, 400)
    weighted = SBLClassifier().fit(X, y, sample_weight=counts)
    repeated = SBLClassifier().fit(X.repeat(counts, axis=0), y.repeat(counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=0.02)
    rare = np.flatnonzero(y)[:30]
    rows = np.concatenate([rare, np.flatnonzero(~y)])
    plain = SBLClassifier().fit(X[rows], y[rows])
    balanced = SBLClassifier(class_weight="balanced").fit(X[rows], y[rows])
    assert balanced.predict(X).mean() > plain.predict(X).mean()
    named = SBLClassifier(class_weight={False: 1.0, True: 3.0}).fit(X[rows], y[rows])
    assert named.predict(X).mean() > plain.predict(X).mean()


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csc_array, aslinearoperator])
def test_sparse_matrices_and_operators(make: Any) -> None:
    X, y, _ = logistic_case(200)
    X[np.abs(X) < 0.5] = 0
    dense = SBLClassifier().fit(X, y)
    other = SBLClassifier().fit(make(X), y)
    np.testing.assert_allclose(other.predict_proba(make(X)), dense.predict_proba(X), atol=0.01)


def test_draws_serve_where_exact_variances_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = logistic_case(300)
    exact = SBLClassifier().fit(X, y)
    monkeypatch.setattr(classify, "SMALL_MATRIX", 0)
    drawn = SBLClassifier().fit(X, y)
    np.testing.assert_allclose(drawn.predict_proba(X), exact.predict_proba(X), atol=0.03)


@pytest.mark.nightly
def test_a_hundred_thousand_sparse_features() -> None:
    rng = np.random.default_rng(0)
    n, d = 600, 100_000
    X = scipy.sparse.random_array((n, d), density=2e-4, rng=rng, format="lil")
    X[:, :5] = rng.standard_normal((n, 5))
    X = X.tocsr()
    w = np.zeros(d)
    w[:5] = [3, -3, 3, -3, 2]
    y = rng.random(n) < expit(X @ w)
    model = SBLClassifier(random_state=0, max_iter=8, tol=0.05).fit(X[:400], y[:400])
    assert model.coef_.shape == (1, d)
    assert set(model.support_.tolist()) <= set(range(5))
    assert len(model.support_) >= 4
    assert model.score(X[400:], y[400:]) > 0.85


def test_bad_input_is_refused() -> None:
    X, y, _ = logistic_case(40)
    with pytest.raises(ValueError, match="only one class"):
        SBLClassifier().fit(X, np.ones(40))
    with pytest.raises(ValueError, match="max_iter must be at least 1"):
        SBLClassifier(max_iter=0).fit(X, y)
    with pytest.raises(ValueError, match="Unknown label type"):
        SBLClassifier().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="Complex data not supported"):
        SBLClassifier().fit(aslinearoperator(X * 1j), y)
    with pytest.raises(ValueError, match="kernel must be callable or one of"):
        RVMClassifier(kernel="nonsense").fit(X, y)
    with pytest.warns(cofem.ConvergenceWarning, match="rounds did not settle"):
        SBLClassifier(max_iter=2).fit(X, y)
