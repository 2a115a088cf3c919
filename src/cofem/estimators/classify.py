"""What both classifiers do: a logistic likelihood by a local bound, fitted as weighted regressions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from cofem._blocks import SMALL_MATRIX
from cofem._warn import warn
from cofem.estimators.base import SparseBayesianRegressor
from cofem.estimators.columns import without_weightless
from cofem.estimators.samples import ACCEPTED, SparseSamples
from cofem.operators import Operator
from cofem.priors import Prior
from cofem.status import ConvergenceWarning

#: Steps of each weighted regression, before weights and targets are found again.
INNER_STEPS = 10
#: Mean square of the linear predictor that precisions start from: a standard deviation of 2, as targets have.
EXPECTED_POWER = 4.0
#: Draws that variances at the training samples are taken from, where exact ones would be dear.
DRAWS = 16
#: Widening of a logistic curve by a variance: MacKay's approximation to its average.
WIDENING = np.pi / 8


class SparseBayesianClassifier(SparseSamples, ClassifierMixin, BaseEstimator, ABC):
    """What both classifiers do. They differ in the regression that is fitted with weights."""

    method: Any
    prior: Prior | str | None
    fit_intercept: bool
    class_weight: Any
    max_iter: int
    tol: float
    random_state: Any
    verbose: bool

    classes_: np.ndarray
    coef_: np.ndarray
    coef_std_: np.ndarray
    lambda_: np.ndarray
    intercept_: np.ndarray
    support_: np.ndarray
    n_iter_: np.ndarray
    estimators_: list[SparseBayesianRegressor]

    @abstractmethod
    def _regressor(self) -> SparseBayesianRegressor:
        """Return the regression that is fitted again and again, with `_regression_settings`."""

    def _regression_settings(self) -> dict[str, Any]:
        """Return the settings of that regression, but for those of its features."""
        return {
            "noise_std": 1.0,
            "method": self.method,
            "prior": self.prior,
            "fit_intercept": self.fit_intercept,
            "max_iter": INNER_STEPS,
            "tol": 0.0,  # as many steps as that
            "warm_start": True,
            "random_state": 0 if self.random_state is None else self.random_state,
            "verbose": self.verbose,
        }

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or (`SBLClassifier`) linear operator of shape (n_samples, n_features)
            Training data.
        y : array-like of shape (n_samples,)
            Labels of two or more classes.
        sample_weight : array-like of shape (n_samples,), optional
            How often each sample counts. Samples of weight zero are left out.

        Returns
        -------
        self : object
            The fitted classifier.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((200, 20))
        >>> model = cofem.SBLClassifier().fit(X, X[:, 3] > 0)
        >>> model.support_.tolist()
        [3]
        """
        X, y = self._check_training_data(X, y)
        check_classification_targets(y)
        weights = np.ones(len(y))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            X, y, weights = without_weightless(X, y, weights)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes, got only one class: {self.classes_[0]!r}")
        if self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, got {self.max_iter!r}")
        weights = weights * compute_class_weight(self.class_weight, classes=self.classes_, y=y)[labels]
        positives = range(1, 2) if len(self.classes_) == 2 else range(len(self.classes_))
        fits = [self._fit_one(X, labels == label, weights) for label in positives]
        self.estimators_ = [model for model, _ in fits]
        self.n_iter_ = np.array([steps for _, steps in fits], dtype=np.int32)
        for name in ("coef_", "coef_std_", "lambda_", "intercept_"):
            setattr(self, name, np.stack([getattr(model, name) for model in self.estimators_]))
        self.support_ = np.unique(np.concatenate([model.support_ for model in self.estimators_]))
        return self

    def _fit_one(
        self, X: Any, is_positive: np.ndarray, weights: np.ndarray
    ) -> tuple[SparseBayesianRegressor, int]:
        """Tell one class from the others.

        The logistic function is bounded from below by a Gaussian that touches it at ``+-xi`` (Jaakkola and
        Jordan 2000): a regression with the targets ``(t - 1/2) / w`` and the weights ``w = 2 lambda(xi)``.
        The best xi is the root of the expected square of the linear predictor.
        """
        model = self._regressor()
        model._expected_power = EXPECTED_POWER
        signs = np.where(is_positive, 0.5, -0.5)
        xi, before = np.zeros(len(signs)), np.full(len(signs), 0.5)
        for step in range(1, self.max_iter + 1):
            each = bound_weights(xi)
            model.fit(X, signs / each, sample_weight=weights * each)
            mean, variance = self._at_training_samples(model, X)
            after = expit(mean)
            change = float(np.max(np.abs(after - before)))
            if change < self.tol:
                return model, step
            xi, before = np.sqrt(mean**2 + variance), after
        warn(
            f"max_iter={self.max_iter} rounds did not settle: the last changed a probability by {change:.2g} "
            f"(tol={self.tol:g})",
            ConvergenceWarning,
        )
        return model, self.max_iter

    def _at_training_samples(self, model: SparseBayesianRegressor, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the linear predictor."""
        n_columns = model.coef_.shape[0]
        if X.shape[0] * n_columns <= SMALL_MATRIX:
            return predictor(model, X)
        operator = model._centred(model._dictionary(X))
        draws = model.posterior_.sample(DRAWS, rng=0) - model.coef_
        variance = np.mean(operator.forward(draws.astype(operator.dtype)) ** 2, axis=0)
        return np.asarray(model.predict(X), np.float64), variance.astype(np.float64)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log odds of a class, positive where it is the likelier one.

        They are the mean of the linear predictor, drawn towards zero by what is not known about it.

        Parameters
        ----------
        X : as for `fit`, shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,) for two classes, else (n_samples, n_classes)

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((200, 20))
        >>> model = cofem.SBLClassifier().fit(X, X[:, 3] > 0)
        >>> bool(model.decision_function(np.eye(20)[[3]])[0] > 0)
        True
        """
        check_is_fitted(self)
        X = self._check_new_data(X)
        scores = np.stack([log_odds(model, X) for model in self.estimators_], axis=1)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest classes.

        Parameters
        ----------
        X : as for `fit`, shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,)

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((200, 20))
        >>> model = cofem.SBLClassifier().fit(X, np.where(X[:, 3] > 0, "up", "down"))
        >>> model.predict(np.eye(20)[[3]] * 2).tolist()
        ['up']
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return self.classes_[(scores > 0).astype(int)]
        return self.classes_[np.argmax(scores, axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, averaged over the posterior.

        What is not known about the coefficients draws probabilities towards one half (MacKay's approximation
        to the average of a logistic function over a Gaussian). For more than two classes, the probabilities
        of one class against the others are scaled to sum to one.

        Parameters
        ----------
        X : as for `fit`, shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)

        Examples
        --------
        >>> import numpy as np, cofem
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((200, 20))
        >>> model = cofem.SBLClassifier().fit(X, X[:, 3] + 0.5 * rng.standard_normal(200) > 0)
        >>> np.round(model.predict_proba([np.zeros(20)]), 1).tolist()
        [[0.5, 0.5]]
        """
        odds = self.decision_function(X)
        if odds.ndim == 1:
            return np.stack([expit(-odds), expit(odds)], axis=1)
        shares = expit(odds)
        return shares / shares.sum(axis=1, keepdims=True)

    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, ensure_min_samples=2, **ACCEPTED)
        return X, np.asarray(y)


def bound_weights(xi: np.ndarray) -> np.ndarray:
    """Return ``2 lambda(xi) = tanh(xi / 2) / (2 xi)``, the curvature of the bound that touches at xi.

    Examples
    --------
    >>> bound_weights(np.array([0.0, 100.0])).tolist()
    [0.25, 0.005]
    """
    small = np.abs(xi) < 1e-4
    safe = np.where(small, 1.0, xi)
    return np.where(small, 0.25, np.tanh(safe / 2) / (2 * safe))


def predictor(model: SparseBayesianRegressor, X: Any | Operator) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the linear predictor of a regression whose noise is 1 at weight 1."""
    mean, std = model.predict(X, return_std=True)
    variance = np.maximum(std.astype(np.float64) ** 2 - 1.0, 0.0)
    weights = model.posterior_.weights
    if model.fit_intercept and weights is not None:
        variance += 1 / np.sum(weights**2)  # the intercept has a flat prior
    return mean.astype(np.float64), variance


def log_odds(model: SparseBayesianRegressor, X: Any | Operator) -> np.ndarray:
    """Return the log odds of the average of the logistic function over the posterior."""
    mean, variance = predictor(model, X)
    return mean / np.sqrt(1 + WIDENING * variance)
