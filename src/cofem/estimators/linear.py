"""Regression and classification that are linear in the features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array, check_consistent_length, column_or_1d

from cofem.estimators.base import SparseBayesianRegressor
from cofem.estimators.classify import SparseBayesianClassifier
from cofem.estimators.columns import as_targets
from cofem.operators import Operator, as_operator
from cofem.priors import Prior


class SBLRegressor(SparseBayesianRegressor):
    """Linear regression with sparse Bayesian learning, a drop-in for scikit-learn's `ARDRegression`.

    Every coefficient has a prior precision of its own, found by maximising the evidence; those of features
    that explain nothing go to infinity. The data are used through products only, so X may be sparse or a
    linear operator. Units and scales of the features make no difference.

    With ten samples or more for each feature, the noise comes from the evidence, as with `ARDRegression`.
    With fewer that would be too small: it then comes from the residual of least squares, and below two
    samples a feature from samples that are held out in turn (see `docs/noise.md`).

    Parameters
    ----------
    noise_std : "learn" or float
        Standard deviation of the noise, where the weight of a sample is 1.
    method : str or method object
        As for `cofem.fit`.
    prior : Prior or "auto", optional
        As for `cofem.fit`. "auto" has it chosen by samples that are held out, for each target by itself. With
        `cofem.MultiTask` several targets share their precisions.
    positive : bool
        Whether the coefficients are known not to be negative.
    fit_intercept : bool
        Whether to centre X and y; without it, both are expected to be centred.
    max_iter, tol : int and float, optional
        Most outer steps, and the relative change of the coefficients at which to stop. By default
        1000 and 1e-8 for up to 256 features with at least twice as many samples, where steps are cheap; else
        as in `cofem.fit`.
    compute_score : bool
        Whether to have `scores_`.
    warm_start : bool
        Whether a further fit starts from the precisions of the last one, as `cofem.refit` does. It needs one
        target, or targets that share their precisions, and as many columns.
    random_state : int, RandomState or None
        Source of randomness: which samples are held out for the noise, and random probes. By default 0, so
        that fits to the same data agree; None draws a new seed in each fit.
    verbose : bool
        Draw a progress bar.

    Attributes
    ----------
    coef_, coef_std_ : ndarrays of shape (n_features,) or (n_targets, n_features)
        Posterior means and standard deviations of the coefficients.
    alpha_ : float or ndarray of shape (n_targets,)
        Precision of the noise, ``1 / noise_std**2``.
    lambda_ : ndarray of the shape of `coef_`
        Precisions of the coefficients; of shape (n_features,) if a joint prior ties the targets.
    intercept_ : float or ndarray of shape (n_targets,)
        Prediction where all features are zero.
    support_ : ndarray of int
        Features that are all relevant with probability 0.95, for one target at least: those of
        ``posterior_.support()``. For another probability, ask ``posterior_.support(level)``.
    sigma_ : ndarray of shape (n_relevant, n_relevant), or (n_targets, ...)
        Posterior covariance of the coefficients in `support_`.
    scores_ : ndarray of shape (n_steps,)
        With ``compute_score=True``, the log evidence at every outer step, for methods that compute it anyway
        (exact ones and "seq"); of others, at the end only, shape (1,). A list of arrays for several targets
        that share nothing. Not known with ``positive=True``.
    n_iter_ : int
        Number of outer steps.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has them.
    posterior_ : Posterior
        The whole posterior, of the coefficients of the centred features. It holds on to the training data,
        which standard deviations of predictions need, and so does a pickle.

    Notes
    -----
    For up to 256 features with at least twice as many samples, ``method="auto"`` takes exact moments and
    the update of `ARDRegression` (MacKay's).

    `ARDRegression` has four parameters of Gamma priors, which are all zero here, and a threshold on
    `lambda_` that depends on the units of the features, where `support_` does not. Its `coef_` are zero below
    that threshold; here they are small and have a `coef_std_`.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 20))
    >>> y = 3 * X[:, 2] - 2 * X[:, 7] + 5 + 0.1 * rng.standard_normal(60)
    >>> model = cofem.SBLRegressor(random_state=0).fit(X, y)
    >>> np.round(model.coef_[[2, 7]], 1).tolist(), round(float(model.intercept_), 1)
    ([3.0, -2.0], 5.0)
    >>> mean, std = model.predict(X[:5], return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((5,), True)
    """

    def __init__(  # noqa: PLR0913 (public)
        self,
        *,
        noise_std: Any = "learn",
        method: Any = "auto",
        prior: Prior | str | None = None,
        positive: bool = False,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float | None = None,
        compute_score: bool = False,
        warm_start: bool = False,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.noise_std = noise_std
        self.method = method
        self.prior = prior
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.compute_score = compute_score
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _dictionary(self, X: Any) -> Operator:
        return as_operator(X)

    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        if not _is_operator(X):
            return super()._check_training_data(X, y)
        X = _real_operator(X)
        if X.shape[0] < 2 or X.shape[1] < 1:
            raise ValueError(f"X must have at least 2 samples and 1 feature, got shape {X.shape}")
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        _note_features(self, X, y)
        return X, as_targets(y, X.dtype)

    def _check_new_data(self, X: Any) -> Any:
        if not _is_operator(X):
            return super()._check_new_data(X)
        X = _real_operator(X)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have {self.n_features_in_} features, got shape {X.shape}")
        return X


class SBLClassifier(SparseBayesianClassifier):
    """Linear classification with sparse Bayesian learning: logistic regression that finds its features.

    Every coefficient has a prior precision of its own, found by maximising the evidence, so that there is no
    penalty to tune. The logistic likelihood is bounded by Gaussians (Jaakkola and Jordan 2000); each round is
    a weighted regression by `SBLRegressor`, so X may be sparse or a linear operator with many features.

    Parameters
    ----------
    method : str or method object
        As for `cofem.fit`.
    prior : Prior or "auto", optional
        As for `cofem.fit`. "auto" tries the independent prior and `cofem.Power` (0.5, 1, 2), and takes the
        one under which samples that are held out have the least log loss, for each class by itself.
    fit_intercept : bool
        Whether to have an intercept, with a flat prior.
    class_weight : dict, "balanced" or None
        Weights of the classes, as in `sklearn.linear_model.LogisticRegression`.
    max_iter : int
        Most rounds.
    tol : float
        Largest change of a probability at the training samples at which to stop.
    random_state : int, RandomState or None
        Source of randomness: random probes. By default 0, so that fits to the same data agree.
    verbose : bool
        Draw progress bars.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    coef_, coef_std_, lambda_ : ndarrays of shape (1, n_features), or (n_classes, n_features)
        Posterior means, standard deviations and precisions of the coefficients: of the second of two
        classes, or of each class against the others.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Linear predictor where all features are zero.
    support_ : ndarray of int
        Features in the support of one class at least; see `Posterior.support`.
    n_iter_ : ndarray of int
        Rounds for each class.
    estimators_ : list of SBLRegressor
        The last regression for each class, with its ``posterior_``, whose status says how the rounds ended.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has them.

    Notes
    -----
    With fewer than five samples for each feature, the number of rounds is chosen by samples that are held out
    in three parts, since further rounds fit new samples ever worse; and where no round predicts them better
    than the shares of the classes do, all features are left out.

    A round takes up to 10 steps of a fit at the precisions of the last. Where X has more than 2^22 entries,
    the variances that the bound needs come from 16 posterior draws. See `docs/classification.md`.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 50))
    >>> y = 2 * X[:, 4] - 3 * X[:, 9] + rng.logistic(size=300) > 0
    >>> model = cofem.SBLClassifier().fit(X, y)
    >>> model.support_.tolist(), bool(model.score(X, y) > 0.85)
    ([4, 9], True)
    """

    def __init__(  # noqa: PLR0913 (public)
        self,
        *,
        method: Any = "auto",
        prior: Prior | str | None = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        max_iter: int = 100,
        tol: float = 5e-3,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.prior = prior
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def _regressor(self) -> SparseBayesianRegressor:
        return SBLRegressor(**self._regression_settings())

    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        if not _is_operator(X):
            return super()._check_training_data(X, y)
        X = _real_operator(X)
        y = column_or_1d(y, warn=True)
        _note_features(self, X, y)
        return X, y

    def _check_new_data(self, X: Any) -> Any:
        return _real_operator(X) if _is_operator(X) else super()._check_new_data(X)


def _note_features(
    estimator: SparseBayesianRegressor | SparseBayesianClassifier, X: Operator, y: Any
) -> None:
    """Do for an operator what scikit-learn's `validate_data` does for a matrix, once it is checked."""
    check_consistent_length(X, y)
    estimator.n_features_in_ = X.shape[1]
    estimator.__dict__.pop("feature_names_in_", None)  # of an earlier fit


def _is_operator(X: Any) -> bool:
    """Tell a linear operator from a matrix."""
    return isinstance(X, Operator) or (hasattr(X, "matvec") and hasattr(X, "shape"))


def _real_operator(X: Any) -> Operator:
    operator = as_operator(X)
    if operator.is_complex:
        raise ValueError(f"Complex data not supported: X is {operator!r}; use cofem.fit")
    return operator
