"""What both regressors do: centre, fit, predict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from cofem._blocks import SMALL_MATRIX, blocks, vectors_at_once
from cofem._fit import fit_tasks
from cofem._refit import warm_start
from cofem.estimators.columns import (
    as_targets,
    column_sizes,
    without_rounding,
    without_weightless,
)
from cofem.estimators.report import coef_table, scores
from cofem.estimators.samples import ACCEPTED, SparseSamples
from cofem.inference.checkpoint import Keeper
from cofem.inference.mackay import MacKay
from cofem.inference.noise.least_squares import ENOUGH_DATA
from cofem.inference.noise.strategy import NoiseStrategy
from cofem.inference.prepare import Data
from cofem.inference.settings import Settings
from cofem.inference.stages import Runner
from cofem.operators import Diagonal, Operator
from cofem.posterior import Posterior, join_tasks
from cofem.posterior.solver import PosteriorSolver
from cofem.priors import Prior

#: Most rows in one block of samples.
BLOCK_ROWS = 256
#: Up to how many columns, if data are plenty, steps cost next to nothing; how many are then taken at most,
#: and the change of the mean at which they end. On ten problems predictions were up to 1e-3 of the deviation
#: of y from where they end at last, those of ARDRegression up to 0.06; 1e-6 takes 1.1 to 3 times the steps.
FEW_COLUMNS, FEW_MAX_ITER, FEW_TOL = 256, 1000, 1e-4


class SparseBayesianRegressor(SparseSamples, RegressorMixin, BaseEstimator, ABC):
    """What both regressors do: centre, fit, predict. They differ in the dictionary made from X."""

    noise_std: Any
    method: Any
    prior: Prior | str | None
    positive: bool
    fit_intercept: bool
    max_iter: int | None
    tol: float | None
    compute_score: bool
    warm_start: bool
    random_state: Any
    verbose: bool

    coef_: np.ndarray
    coef_std_: np.ndarray
    alpha_: Any
    lambda_: np.ndarray
    intercept_: Any
    support_: np.ndarray
    n_iter_: int
    posterior_: Posterior

    #: How the noise is learned; None to choose by the problem, as `cofem.fit` does.
    _noise_strategy: NoiseStrategy | None = None

    #: Mean square of the linear predictor that the first of several rounds expects, None outside of rounds.
    #: In rounds a warm start goes on at the precisions as they are (else they are bounded, so that
    #: coefficients can come back), and neither start nor update depends on how many samples there are.
    _expected_power: float | None = None

    def _start(self, X: Any) -> None:
        """Note what the dictionary needs to know about the training data."""

    @abstractmethod
    def _dictionary(self, X: Any) -> Operator:
        """Return the features of the samples, shape (n_samples, D)."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or (`SBLRegressor`) linear operator of shape (n_samples, n_features)
            Training data. A sparse matrix or an operator is not made dense, unless it is small (at most 2^22
            entries and at most 256 samples or features) and exact computation is faster.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            Relative weights: the noise of sample i has the variance ``1 / (alpha_ * sample_weight[i])``.
            Samples of weight zero are left out.

        Returns
        -------
        self : object
            The fitted regressor.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((60, 20))
        >>> y = 3 * X[:, 2] + 5
        >>> y[0] = 1000  # an outlier, which has no weight
        >>> weight = np.ones(60); weight[0] = 0
        >>> model = cofem.SBLRegressor(noise_std=0.1).fit(X, y, sample_weight=weight)
        >>> round(float(model.coef_[2]), 2), round(float(model.intercept_), 2)
        (3.0, 5.0)
        """
        X, y = self._check_training_data(X, y)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            X, y, weights = without_weightless(X, y, weights)
        before = self._before(X)
        self._start(X)
        dictionary = self._dictionary(X)
        self._offset, self._varies = None, None
        y_offset: Any = np.zeros(y.shape[1:])
        if self.fit_intercept:
            share = np.full(y.shape[0], 1 / y.shape[0]) if weights is None else weights / weights.sum()
            y_offset = share @ y
            y = without_rounding(y - y_offset.astype(y.dtype), y_offset)
            self._offset = dictionary.astype(np.float64).adjoint(share)
        size = column_sizes(dictionary, self._offset)
        if not size.all():
            self._varies = (size > 0).astype(np.float64)
        dictionary = self._centred(dictionary)
        if y.ndim == 2 and not (isinstance(self.prior, Prior) and self.prior.joins_tasks):
            pairs = zip(y.T, np.ravel(y_offset), strict=True)
            posterior = join_tasks(
                [
                    self._posterior(Data(dictionary, one, self.noise_std, weights), mean, before)
                    for one, mean in pairs
                ]
            )
        else:
            data = Data(dictionary, y, self.noise_std, weights)
            posterior = self._posterior(data, float(np.max(np.abs(y_offset))), before)
        self.posterior_ = posterior
        self._take(y_offset)
        return self

    @property
    def _learns_noise(self) -> bool:
        return isinstance(self.noise_std, str) and self.noise_std == "learn"

    def _before(self, X: Any) -> Posterior | None:
        """Return the fit to start from, if there is one and it is of one target and as many columns."""
        before: Posterior | None = getattr(self, "posterior_", None) if self.warm_start else None
        n_columns = self._count_columns(X)
        usable = before is not None and before.tasks is None and before.mean.shape[0] == n_columns
        return before if usable else None

    def _count_columns(self, X: Any) -> int:
        return X.shape[1]

    def _posterior(self, data: Data, y_offset: float, before: Posterior | None) -> Posterior:
        """Fit one target, or several that share their precisions."""
        if self._learns_noise and not data.y.any():
            # There is no noise to learn: take the rounding of what was subtracted.
            noise_std = float(np.finfo(data.y.dtype).eps) * (abs(y_offset) or 1.0)
            return self._fit(data._replace(noise_std=noise_std), 1.0, None)
        if self._expected_power is not None:
            start = self._first_alpha(data) if before is None else before.alpha
        else:
            start = None if before is None else warm_start(before)
        return self._fit(data, self.tol, start)

    def _first_alpha(self, data: Data) -> np.ndarray:
        """Return precisions at which every column explains the same share of the power that is expected."""
        weights = np.ones(data.Phi.shape[0]) if data.sample_weight is None else data.sample_weight
        energy = np.asarray((Diagonal(np.sqrt(weights)) @ data.Phi).column_norms(), np.float64) ** 2
        energy = np.where(energy > 0, energy, energy.max() or 1.0)
        return data.Phi.shape[1] * energy / (weights.sum() * self._expected_power)

    def _fit(self, data: Data, tol: float | None, alpha_init: np.ndarray | None) -> Posterior:
        method, max_iter = self.method, self.max_iter
        dictionary = data.Phi
        n_samples, n_columns = dictionary.shape
        few = n_columns <= FEW_COLUMNS and n_samples >= ENOUGH_DATA * n_columns
        few = few and self._expected_power is None
        few = few and (dictionary.stored_matrix() is not None or n_samples * n_columns <= SMALL_MATRIX)
        if few and isinstance(method, str) and method == "auto" and self.prior is None and not self.positive:
            # With columns that look alike, EM and the default stop may end far from the optimum.
            method = MacKay()
            max_iter = FEW_MAX_ITER if max_iter is None else max_iter
            tol = FEW_TOL if tol is None else tol
        settings = Settings.checked(
            method=method,
            prior=self.prior,
            nonnegative=self.positive,
            max_iter=max_iter,
            tol=tol,
            noise=self._noise_strategy,
            alpha_init=alpha_init,
        )
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        runner = Runner(Keeper(rng), progress=bool(self.verbose))
        return fit_tasks(data, settings, runner)

    def _take(self, y_offset: Any) -> None:
        """Set the fitted attributes, with scikit-learn's names and layout."""
        posterior = self.posterior_
        self.coef_, self.coef_std_ = posterior.mean.T, posterior.std.T
        self.lambda_, self.alpha_ = posterior.alpha.T, 1 / posterior.noise_std**2
        self.n_iter_ = posterior.n_iter
        self.intercept_ = self.coef_.dtype.type(0)
        if self._offset is not None:
            self.intercept_ = (y_offset - self.coef_ @ self._offset).astype(self.coef_.dtype)
        self.support_ = np.asarray(posterior.support())
        self.__dict__.pop("scores_", None)  # of an earlier fit
        if self.compute_score and not self.positive:
            self.scores_ = scores(posterior)

    @property
    def sigma_(self) -> np.ndarray:
        """Posterior covariance of the features in `support_`, computed when asked for.

        Shape (k, k) for the k features of `support_`, or (n_targets, k, k) for targets that share nothing.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((60, 20))
        >>> model = cofem.SBLRegressor(noise_std=0.1).fit(X, 3 * X[:, 2] - X[:, 7])
        >>> model.support_.tolist(), model.sigma_.shape
        ([2, 7], (2, 2))
        """
        check_is_fitted(self)
        count = len(self.support_)
        tasks = self.posterior_.tasks
        shape = (count, count) if tasks is None else (len(tasks), count, count)
        if count == 0:
            return np.zeros(shape, self.coef_.dtype)
        covariance = np.asarray(self.posterior_.covariance(self.support_))
        return (
            np.moveaxis(covariance, -1, 0).astype(self.coef_.dtype)
            if tasks
            else covariance.astype(self.coef_.dtype)
        )

    def coef_table(self, level: float = 0.95) -> Any:
        """Return the coefficients as a pandas table, by the names of the features.

        Parameters
        ----------
        level : float
            Probability of the intervals.

        Returns
        -------
        pandas.DataFrame
            A row for each feature (for each target and feature, if there are several): ``coef``, ``std``,
            ``lower``, ``upper`` and ``in_support``.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((60, 2))
        >>> model = cofem.SBLRegressor(noise_std=0.1).fit(X, 3 * X[:, 1])
        >>> model.coef_table().round(1).loc["x1", "coef"]  # doctest: +SKIP
        3.0
        """
        check_is_fitted(self)
        names = (
            getattr(self, "feature_names_in_", None) if self.coef_.shape[-1] == self.n_features_in_ else None
        )
        return coef_table(self.posterior_, names, level)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : as for `fit`, shape (n_samples, n_features)
            Samples.
        return_std : bool
            Also return the standard deviations of new targets, noise included. They are exact if
            the training data have at most 2048 samples or at most 2048 columns, or if X has at most 256
            rows; else they come from 128 posterior samples (a relative error of 6 %). As in
            `ARDRegression`, the intercept counts as known.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
        std : ndarray of the same shape, if `return_std`

        Examples
        --------
        >>> import numpy as np, cofem
        >>> X = np.random.default_rng(0).standard_normal((60, 20))
        >>> model = cofem.SBLRegressor(noise_std=0.1).fit(X, 3 * X[:, 2] + 5)
        >>> mean, std = model.predict(np.eye(20)[[2, 7]], return_std=True)
        >>> np.round(mean, 1).tolist(), bool((std >= 0.1).all())  # the noise is in them
        ([8.0, 5.0], True)
        """
        check_is_fitted(self)
        X = self._check_new_data(X)
        mean = self._dictionary(X).forward(self.coef_).T + self.intercept_
        if not return_std:
            return mean
        posterior = self.posterior_
        each = [self._standard_deviation(posterior.task(i), X) for i in range(posterior.n_tasks)]
        return mean, each[0] if mean.ndim == 1 else np.stack(each, axis=1)

    def _standard_deviation(self, posterior: Posterior, X: Any) -> np.ndarray:
        """Return the standard deviations of new data of one target."""
        solver = None
        if posterior.gaussian is None and posterior.operator is not None:
            noise_var = posterior.noise_std**2
            solver = PosteriorSolver.of(posterior.operator, posterior.alpha, noise_var, posterior.weights)
        if solver is None or not solver.can_factor:
            new = self._centred(self._dictionary(X))
            return posterior.predict(new, return_std=True, rng=0)[1]
        blocks = _blocks(X, posterior.mean.shape[0])
        rows = (self._centred(self._dictionary(block)).to_dense() for block in blocks)
        std = np.sqrt(solver.exact_variances(rows) + posterior.noise_std**2)
        return std.astype(posterior.variance.dtype)

    def _centred(self, dictionary: Operator) -> Operator:
        """Return the dictionary as the fit sees it."""
        if self._offset is not None:
            dictionary = dictionary.subtract_row(self._offset)
        return dictionary if self._varies is None else dictionary.scale_columns(self._varies)

    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        if scipy.sparse.issparse(y):
            raise TypeError("y must be a dense array, got a sparse matrix")
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, ensure_min_samples=2, **ACCEPTED)
        return X, as_targets(y, X.dtype)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what is supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _blocks(X: Any, length: int) -> Iterator[Any]:
    """Split samples into blocks of which `length` numbers each fit in memory."""
    X = X.tocsr() if scipy.sparse.issparse(X) else X
    for rows in blocks(X.shape[0], min(BLOCK_ROWS, vectors_at_once(length))):
        is_operator = isinstance(X, Operator)
        yield X.take_rows(np.arange(rows.start, rows.stop)) if is_operator else X[rows]
