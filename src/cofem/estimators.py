"""scikit-learn regressors over `cofem.fit`: linear in the features, or in kernels at the training samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS, pairwise_kernels
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from cofem._memory import available_bytes
from cofem.inference.fit import fit
from cofem.inference.mackay import MacKay
from cofem.inference.noise import ENOUGH_DATA
from cofem.operators import Centred, Dense, Diagonal, Mask, Operator, as_operator
from cofem.operators.kernel import KernelRows
from cofem.posterior import Posterior, can_factor, exact_variance, join_tasks
from cofem.priors import Prior

Array = Any

#: Numbers in one block of rows, and rows in it at the most.
BLOCK, BLOCK_ROWS = 2**22, 256
#: Share of the free memory that a kernel matrix may take.
KERNEL_SHARE = 0.25
#: Up to how many columns, if data are plenty, the stop rule is strict: there a step costs next to nothing.
FEW_COLUMNS, FEW_MAX_ITER, FEW_TOL = 256, 1000, 1e-8
#: Where the noise of a relevance vector machine starts, the least it may be (both relative to y), the
#: relative change at which it has settled, and how many fits there are at the most.
NOISE_START, NOISE_LEAST, NOISE_SETTLED, NOISE_FITS = 0.3, 1e-3, 0.02, 20
#: Ratio of the columns' norms from which on they are brought together before a fit.
SCALES_APART = 1e4
#: A centred column counts as zero below this many roundings of the column it came from.
ROUNDINGS = 100


class _SparseBayesianRegressor(RegressorMixin, BaseEstimator, ABC):
    """What both regressors do: centre, fit, predict. They differ in the dictionary made from X."""

    noise_std: Any
    method: Any
    prior: Prior | None
    positive: bool
    fit_intercept: bool
    max_iter: int | None
    tol: float | None
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
            X, y, weights = _without_weightless(X, y, weights)
        self._start(X)
        dictionary = self._dictionary(X)
        self._offset, self._varies = None, None
        y_offset: Any = np.zeros(y.shape[1:])
        if self.fit_intercept:
            share = np.full(y.shape[0], 1 / y.shape[0]) if weights is None else weights / weights.sum()
            y_offset = share @ y
            y = _without_rounding(y - y_offset.astype(y.dtype), y_offset)
            self._offset = dictionary.astype(np.float64).adjoint(share)
        size = _column_sizes(dictionary, self._offset)
        if not size.all():
            self._varies = (size > 0).astype(np.float64)
        dictionary = self._centred(dictionary)
        scale = _equalising_scales(size)
        scaled = dictionary if scale is None else _scaled_columns(dictionary, scale)
        if y.ndim == 2 and not (self.prior is not None and self.prior.joins_tasks):
            pairs = zip(y.T, np.ravel(y_offset), strict=True)
            posterior = join_tasks([self._posterior(scaled, one, weights, mean) for one, mean in pairs])
        else:
            posterior = self._posterior(scaled, y, weights, float(np.max(np.abs(y_offset))))
        self.posterior_ = posterior if scale is None else _in_units(posterior, scale, dictionary)
        self._take(y_offset)
        return self

    @property
    def _learns_noise(self) -> bool:
        return isinstance(self.noise_std, str) and self.noise_std == "learn"

    def _posterior(
        self, dictionary: Operator, y: np.ndarray, weights: np.ndarray | None, y_offset: float
    ) -> Posterior:
        """Fit one target, or several that share their precisions."""
        if self._learns_noise and not y.any():
            # There is no noise to learn: take the rounding of what was subtracted.
            noise_std = float(np.finfo(y.dtype).eps) * (abs(y_offset) or 1.0)
            return self._fit(dictionary, y, weights, noise_std, tol=1.0)
        return self._fit(dictionary, y, weights, self.noise_std, self.tol)

    def _fit(
        self,
        dictionary: Operator,
        y: np.ndarray,
        weights: np.ndarray | None,
        noise_std: Any,
        tol: float | None,
    ) -> Posterior:
        method, max_iter = self.method, self.max_iter
        n_samples, n_columns = dictionary.shape
        few = n_columns <= FEW_COLUMNS and n_samples >= ENOUGH_DATA * n_columns
        few = few and (isinstance(dictionary, Dense) or n_samples * n_columns <= BLOCK)
        if few and isinstance(method, str) and method == "auto" and self.prior is None and not self.positive:
            # With columns that look alike, EM and the default stop may end far from the optimum.
            method = MacKay()
            max_iter = FEW_MAX_ITER if max_iter is None else max_iter
            tol = FEW_TOL if tol is None else tol
        return fit(
            dictionary,
            y,
            noise_std=noise_std,
            method=method,
            prior=self.prior,
            nonnegative=self.positive,
            sample_weight=weights,
            max_iter=max_iter,
            tol=tol,
            rng=np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1)),
            progress=bool(self.verbose),
        )

    def _take(self, y_offset: Any) -> None:
        """Set the fitted attributes, with scikit-learn's names and layout."""
        posterior = self.posterior_
        self.coef_, self.coef_std_ = posterior.mean.T, posterior.std.T
        self.lambda_, self.alpha_ = posterior.alpha.T, 1 / posterior.noise_std**2
        self.n_iter_ = posterior.n_iter
        self.intercept_ = self.coef_.dtype.type(0)
        if self._offset is not None:
            self.intercept_ = (y_offset - self.coef_ @ self._offset).astype(self.coef_.dtype)
        if self.positive:
            self.support_ = posterior.support()
        else:
            kept = np.atleast_2d(_is_kept(self.coef_, self.coef_std_**2, self.lambda_))
            self.support_ = np.flatnonzero(kept.any(axis=0))

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
        if not can_factor(posterior):
            new = self._centred(self._dictionary(X))
            return posterior.predict(new, return_std=True, rng=0)[1]
        blocks = _blocks(X, posterior.mean.shape[0])
        rows = (self._centred(self._dictionary(block)).to_dense() for block in blocks)
        std = np.sqrt(exact_variance(posterior, rows) + posterior.noise_std**2)
        return std.astype(posterior.variance.dtype)

    def _centred(self, dictionary: Operator) -> Operator:
        """Return the dictionary as the fit sees it."""
        if self._offset is not None:
            if isinstance(dictionary, Dense):
                # Subtracting from the entries rounds once; a correction of products rounds each time.
                dictionary = Dense(dictionary.array - self._offset.astype(dictionary.array.dtype))
            else:
                dictionary = Centred(dictionary, self._offset)
        return dictionary if self._varies is None else _scaled_columns(dictionary, self._varies)

    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        if scipy.sparse.issparse(y):
            raise TypeError("y must be a dense array, got a sparse matrix")
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=("csr", "csc"),
            dtype=(np.float64, np.float32),
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=2,
        )
        return X, _as_targets(y, X.dtype)

    def _check_new_data(self, X: Any) -> Any:
        return validate_data(
            self, X, accept_sparse=("csr", "csc"), dtype=(np.float64, np.float32), reset=False
        )

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what is supported."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        return tags


class SBLRegressor(_SparseBayesianRegressor):
    """Linear regression with sparse Bayesian learning, a drop-in for scikit-learn's `ARDRegression`.

    Every coefficient has a prior precision of its own, found by maximising the evidence; those of features
    that explain nothing go to infinity. The data are used through products only, so X may be sparse or a
    linear operator. Units and scales of the features make no difference.

    Where the samples are at least twice as many as the features, the noise is learned from the evidence, as
    `ARDRegression` does; otherwise from samples that are held out in turn, since there the evidence
    underestimates it (see `docs/noise.md`).

    Parameters
    ----------
    noise_std : "learn" or float
        Standard deviation of the noise, where the weight of a sample is 1.
    method : str or method object
        As for `cofem.fit`.
    prior : Prior, optional
        As for `cofem.fit`; with `cofem.MultiTask` several targets share their precisions.
    positive : bool
        Whether the coefficients are known not to be negative.
    fit_intercept : bool
        Whether to centre X and y; without it, both are expected to be centred.
    max_iter, tol : int and float, optional
        Outer steps at the most, and the relative change of the coefficients at which to stop. By default
        1000 and 1e-8 for up to 256 features with at least twice as many samples, where steps are cheap; else
        as in `cofem.fit`.
    random_state : int, RandomState or None
        Source of randomness: which samples are held out for the noise, and random probes.
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
        Features that are kept: those for which a finite precision has the larger evidence (Tipping and
        Faul 2003), for one target at least. With ``positive=True``, those of ``posterior_.support()``.
    n_iter_ : int
        Number of outer steps.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, where X has them.
    posterior_ : Posterior
        The whole posterior, of the coefficients of the centred features. It holds on to the training data,
        which standard deviations of predictions need, and so does a pickle.

    Notes
    -----
    For up to 256 features with at least twice as many samples, ``method="auto"`` takes exact moments and
    the update of `ARDRegression` (MacKay's).

    `ARDRegression` has four parameters of Gamma priors, which are all zero here, and a threshold on
    `lambda_` that depends on the units of the features, where `support_` does not.

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

    def __init__(
        self,
        *,
        noise_std: Any = "learn",
        method: Any = "auto",
        prior: Prior | None = None,
        positive: bool = False,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.noise_std = noise_std
        self.method = method
        self.prior = prior
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
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
        check_consistent_length(X, y)
        self.n_features_in_ = X.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        return X, _as_targets(y, X.dtype)

    def _check_new_data(self, X: Any) -> Any:
        if not _is_operator(X):
            return super()._check_new_data(X)
        X = _real_operator(X)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have {self.n_features_in_} features, got shape {X.shape}")
        return X


class RVMRegressor(_SparseBayesianRegressor):
    """Relevance vector machine: sparse Bayesian learning with kernels at the training samples.

    The prediction is ``intercept_ + sum_j coef_[j] k(x, X_fit_[j])``, and few coefficients are kept: those
    of the relevance vectors (Tipping 2001). As in that paper, the noise is learned from the evidence: kernels
    are smooth, so there are far fewer degrees of freedom than samples.

    Parameters
    ----------
    kernel : str or callable
        A name that `sklearn.metrics.pairwise_kernels` knows, such as ``"rbf"``, ``"poly"`` or ``"linear"``,
        or a function of two samples.
    gamma, degree, coef0 : float
        Of the kernels that have them; by default ``gamma`` is ``1 / n_features``.
    kernel_params : dict, optional
        Further arguments of a callable kernel.
    cache_size : float, optional
        Megabytes (10^6 bytes) up to which the kernel matrix is stored. A larger one is computed again, a
        few rows at a time, whenever it is needed. By default a quarter of the free memory.
    noise_std, method, prior, positive, fit_intercept, max_iter, tol, random_state, verbose
        As for `SBLRegressor`. The noise that is learned is at least a thousandth of the targets' standard
        deviation.

    Attributes
    ----------
    coef_, coef_std_, lambda_ : ndarrays of shape (n_samples,) or (n_targets, n_samples)
        Posterior means, standard deviations and prior precisions of the kernels' coefficients.
    alpha_, intercept_, n_iter_, n_features_in_, feature_names_in_, posterior_
        As for `SBLRegressor`.
    X_fit_ : array or sparse matrix of shape (n_samples, n_features)
        The training samples of positive weight.
    support_ : ndarray of int
        Which of them are relevance vectors.
    relevance_vectors_ : array or sparse matrix of shape (len(support_), n_features)
        The relevance vectors.

    Notes
    -----
    Where the kernel is narrower than the distance between samples, every sample can be explained by a kernel
    of its own, and the noise that is learned is too small: widen the kernel or give `noise_std`.
    ``method="seq"`` keeps fewer vectors (of 1500 samples of a sinc curve 6, where "auto" kept 385, with the
    same error), but may stop at a poorer fit where there are several features.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> X = np.sort(rng.uniform(-10, 10, (100, 1)), axis=0)
    >>> y = np.sinc(X[:, 0] / np.pi) + 0.02 * rng.standard_normal(100)
    >>> model = cofem.RVMRegressor(gamma=0.1, random_state=0).fit(X, y)
    >>> len(model.support_) < 40, bool(model.score(X, y) > 0.98)
    (True, True)
    """

    def __init__(
        self,
        *,
        kernel: str | Callable[..., float] = "rbf",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1,
        kernel_params: dict[str, Any] | None = None,
        cache_size: float | None = None,
        noise_std: Any = "learn",
        method: Any = "auto",
        prior: Prior | None = None,
        positive: bool = False,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.cache_size = cache_size
        self.noise_std = noise_std
        self.method = method
        self.prior = prior
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def _start(self, X: Any) -> None:
        if not callable(self.kernel) and self.kernel not in PAIRWISE_KERNEL_FUNCTIONS:
            names = ", ".join(repr(name) for name in PAIRWISE_KERNEL_FUNCTIONS)
            raise ValueError(f"kernel must be callable or one of {names}, got {self.kernel!r}")
        if self.cache_size is not None and not self.cache_size >= 0:
            raise ValueError(f"cache_size must be non-negative or None, got {self.cache_size!r}")
        # CSR, since relevance vectors are rows.
        self.X_fit_ = X.tocsr() if scipy.sparse.issparse(X) else X

    def _posterior(
        self, dictionary: Operator, y: np.ndarray, weights: np.ndarray | None, y_offset: float
    ) -> Posterior:
        """Fit, set the noise to what the fit leaves (MacKay's update), and fit again until it settles."""
        if not (self._learns_noise and y.any()):
            return super()._posterior(dictionary, y, weights, y_offset)
        root = np.ones(y.shape[0]) if weights is None else np.sqrt(weights)
        size = float(np.sqrt(np.mean((root * y.T) ** 2)))
        noise_std, posterior = NOISE_START * size, None
        for _ in range(NOISE_FITS):
            try:
                posterior = self._fit(dictionary, y, weights, noise_std, self.tol)
            except scipy.linalg.LinAlgError:
                # Kernel matrices are close to singular; the noise before is the least that can be handled.
                if posterior is None:
                    raise
                break
            misfit = root * (y - posterior.predict()).T
            # Targets that share their precisions have one variance in common.
            variance = posterior.variance if y.ndim == 1 else posterior.variance[:, 0]
            explained = float(np.sum(1 - posterior.alpha * variance))
            freedom = max(y.shape[0] - explained, 0.1 * y.shape[0]) * posterior.n_tasks
            found = max(float(np.sqrt(np.sum(misfit**2) / freedom)), NOISE_LEAST * size)
            if abs(found / noise_std - 1) < NOISE_SETTLED:
                break
            noise_std = found
        assert posterior is not None
        return posterior

    def _take(self, y_offset: Any) -> None:
        super()._take(y_offset)
        self.relevance_vectors_ = self.X_fit_[self.support_]

    def _dictionary(self, X: Any) -> Operator:
        lazy = KernelRows(X.tocsr() if scipy.sparse.issparse(X) else X, self.X_fit_, self._kernel)
        size = lazy.dtype.itemsize * float(lazy.shape[0]) * lazy.shape[1]
        free = available_bytes()
        limit = np.inf if free is None else KERNEL_SHARE * free
        if self.cache_size is not None:
            limit = 1e6 * self.cache_size
        return Dense(lazy.to_dense()) if size <= limit else lazy

    def _kernel(self, X: Any, Y: Any) -> np.ndarray:
        if callable(self.kernel):
            named = self.kernel_params or {}
        else:
            named = {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        return pairwise_kernels(X, Y, metric=self.kernel, filter_params=True, **named)


# --- checks and small steps -----------------------------------------------------------------------------


def _is_operator(X: Any) -> bool:
    """Tell a linear operator from a matrix."""
    return isinstance(X, Operator) or (hasattr(X, "matvec") and hasattr(X, "shape"))


def _real_operator(X: Any) -> Operator:
    operator = as_operator(X)
    if operator.is_complex:
        raise ValueError(f"Complex data not supported: X is {operator!r}; use cofem.fit")
    return operator


def _as_targets(y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the targets in the precision of X."""
    if y.ndim not in (1, 2):
        raise ValueError(f"y must have shape (n_samples,) or (n_samples, n_targets), got {y.shape}")
    if np.iscomplexobj(y):
        raise ValueError("Complex data not supported: y is complex; use cofem.fit")
    return y.astype(dtype)


def _without_weightless(X: Any, y: np.ndarray, weights: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Leave out samples of weight zero."""
    rows = np.flatnonzero(weights)
    if rows.size == weights.size:
        return X, y, weights
    if rows.size < 2:
        raise ValueError(f"sample_weight must be positive for at least 2 samples, got {rows.size}")
    part = Mask(rows, X.shape[0]) @ X if isinstance(X, Operator) else X[rows]
    return part, y[rows], weights[rows]


def _without_rounding(y: np.ndarray, offset: Any) -> np.ndarray:
    """Return centred targets, zero where they were constant: the fit would explain the rounding."""
    constant = np.max(np.abs(y), axis=0) <= 8 * np.finfo(y.dtype).eps * np.abs(offset)
    return np.where(constant, y.dtype.type(0), y)


def _column_sizes(dictionary: Operator, offset: np.ndarray | None) -> np.ndarray:
    """Return the norms of the centred columns to within a factor of about three, 0 for constant columns.

    Scales make no difference to a fit, so it would take what rounding leaves of a constant for a feature.
    """
    rng = np.random.default_rng(0)
    probes = rng.standard_normal((4, dictionary.shape[0])).astype(dictionary.dtype)
    if offset is None:
        return np.max(np.abs(dictionary.adjoint(probes)), axis=0)
    size = np.max(np.abs(Centred(dictionary, offset).adjoint(probes)), axis=0)
    rounding = np.finfo(dictionary.dtype).eps * np.sqrt(dictionary.shape[0]) * np.abs(offset)
    return np.where(size > ROUNDINGS * rounding, size, 0)


def _equalising_scales(size: np.ndarray) -> np.ndarray | None:
    """Return powers of two that bring columns to a common norm; None where norms differ by little."""
    known = size[size > 0]
    if known.size == 0 or known.max() <= SCALES_APART * known.min():
        return None
    return np.exp2(-np.round(np.log2(np.where(size > 0, size, 1.0))))


def _scaled_columns(dictionary: Operator, scale: np.ndarray) -> Operator:
    if isinstance(dictionary, Dense):
        return Dense(dictionary.array * scale.astype(dictionary.array.dtype))
    return dictionary @ Diagonal(scale)


def _in_units(posterior: Posterior, scale: np.ndarray, dictionary: Operator) -> Posterior:
    """Return the posterior of the coefficients of `dictionary` from that of its scaled columns."""

    def times(values: np.ndarray, power: int) -> np.ndarray:
        factor = (scale**power).astype(values.dtype)
        return values * (factor if values.ndim == 1 else factor[:, None])

    gaussian, tasks = posterior.gaussian, posterior.tasks
    return replace(
        posterior,
        mean=times(posterior.mean, 1),
        variance=times(posterior.variance, 2),
        alpha=times(posterior.alpha, -2),
        operator=dictionary,
        gaussian=None if gaussian is None else (times(gaussian[0], 1), times(gaussian[1], 2)),
        tasks=None if tasks is None else tuple(_in_units(task, scale, dictionary) for task in tasks),
    )


def _is_kept(mean: np.ndarray, variance: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Tell for which coefficients the evidence, as a function of their precision, peaks at a finite one.

    That is ``q^2 > s`` in the terms of Tipping and Faul (2003), with ``s = 1 / variance - alpha`` and
    ``q = mean / variance``.
    """
    explained = 1 - alpha * variance
    # Less is rounding: a precision at its cap has lost all digits of what the data explain.
    return (mean**2 > variance * explained) & (explained > np.sqrt(np.finfo(mean.dtype).eps))


def _blocks(X: Any, length: int) -> Iterator[Any]:
    """Split samples into blocks of which `length` numbers each fit in memory."""
    step = max(1, min(BLOCK_ROWS, BLOCK // length))
    X = X.tocsr() if scipy.sparse.issparse(X) else X
    for start in range(0, X.shape[0], step):
        stop = min(start + step, X.shape[0])
        yield Mask(np.arange(start, stop), X.shape[0]) @ X if isinstance(X, Operator) else X[start:stop]
