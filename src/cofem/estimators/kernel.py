"""Regression and classification with kernels at the training samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS, pairwise_kernels

from cofem._memory import available_bytes
from cofem.estimators.base import SparseBayesianRegressor
from cofem.estimators.classify import SparseBayesianClassifier
from cofem.inference.noise.learning import Refits
from cofem.operators import Dense, Operator
from cofem.operators.kernel import KernelRows
from cofem.priors import Prior

#: Share of the free memory that a kernel matrix may take.
KERNEL_SHARE = 0.25


class RVMRegressor(SparseBayesianRegressor):
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
    noise_std, method, prior, positive, fit_intercept, max_iter, tol, compute_score, warm_start
        As for `SBLRegressor`.
    random_state, verbose
        As for `SBLRegressor`. The noise that is learned is at least a thousandth of the targets' standard
        deviation.

    Attributes
    ----------
    coef_, coef_std_, lambda_ : ndarrays of shape (n_samples,) or (n_targets, n_samples)
        Posterior means, standard deviations and prior precisions of the kernels' coefficients.
    alpha_, intercept_, sigma_, scores_, n_iter_, n_features_in_, feature_names_in_, posterior_
        As for `SBLRegressor`.
    X_fit_ : array or sparse matrix of shape (n_samples, n_features)
        The training samples of positive weight.
    support_ : ndarray of int
        Which of them are relevance vectors: ``posterior_.support()``.
    relevance_vectors_ : array or sparse matrix of shape (n_relevant, n_features)
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

    def __init__(  # noqa: PLR0913 (public)
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
        self.compute_score = compute_score
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    #: As in Tipping's paper: kernels are smooth, so there are fewer degrees of freedom than samples.
    _noise_strategy = Refits()

    def _start(self, X: Any) -> None:
        if not callable(self.kernel) and self.kernel not in PAIRWISE_KERNEL_FUNCTIONS:
            names = ", ".join(repr(name) for name in PAIRWISE_KERNEL_FUNCTIONS)
            raise ValueError(f"kernel must be callable or one of {names}, got {self.kernel!r}")
        if self.cache_size is not None and not self.cache_size >= 0:
            raise ValueError(f"cache_size must be non-negative or None, got {self.cache_size!r}")
        # CSR, since relevance vectors are rows.
        self.X_fit_ = X.tocsr() if scipy.sparse.issparse(X) else X

    def _count_columns(self, X: Any) -> int:
        return X.shape[0]

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


class RVMClassifier(SparseBayesianClassifier):
    """Relevance vector machine for classes: kernels at the training samples, of which few are kept.

    As `SBLClassifier`, with the features ``k(x, X_fit[j])`` (Tipping 2001).

    Parameters
    ----------
    kernel, gamma, degree, coef0, kernel_params, cache_size
        As for `RVMRegressor`.
    method, prior, fit_intercept, class_weight, max_iter, tol, random_state, verbose
        As for `SBLClassifier`.

    Attributes
    ----------
    classes_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As for `SBLClassifier`.
    coef_, coef_std_, lambda_ : ndarrays of shape (1, n_samples), or (n_classes, n_samples)
        Posterior means, standard deviations and precisions of the kernels' coefficients.
    support_ : ndarray of int
        Which training samples are relevance vectors, of one class at least.
    estimators_ : list of RVMRegressor
        The last regression for each class, with its ``posterior_`` and ``X_fit_``.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2))
    >>> model = cofem.RVMClassifier().fit(X, (X**2).sum(axis=1) > 1)
    >>> bool(model.score(X, (X**2).sum(axis=1) > 1) > 0.95), len(model.support_) < 20
    (True, True)
    """

    def __init__(  # noqa: PLR0913 (public)
        self,
        *,
        kernel: str | Callable[..., float] = "rbf",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1,
        kernel_params: dict[str, Any] | None = None,
        cache_size: float | None = None,
        method: Any = "auto",
        prior: Prior | str | None = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        max_iter: int = 100,
        tol: float = 5e-3,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.cache_size = cache_size
        self.method = method
        self.prior = prior
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def _regressor(self) -> SparseBayesianRegressor:
        return RVMRegressor(
            kernel=self.kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            kernel_params=self.kernel_params,
            cache_size=self.cache_size,
            **self._regression_settings(),
        )
