"""The posterior of a fit: moments, intervals, samples, covariances, prediction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from cofem._arrays import (
    Array,
    as_rows,
    conj,
    in_precision,
    is_complex,
    namespace,
    on_device_of,
    squared_modulus,
    standard_normal,
    take,
    to_numpy,
    total,
    transposed,
    without_gradients,
)
from cofem._warn import warn
from cofem.inference.analysis.method import AnalysisEM
from cofem.linalg.direct import CG_STEPS, is_cheaper
from cofem.linalg.evidence import LogEvidence, log_determinant, log_evidence
from cofem.operators import Operator, RealUnknown, as_operator
from cofem.operators.fingerprint import Fingerprint
from cofem.posterior.analysis import AnalysisSolver
from cofem.posterior.constrained import AnalysisModel, ConstrainedModel, SynthesisModel, solve_constrained
from cofem.posterior.solver import PosteriorSolver, batches, rows_of
from cofem.posterior.support import find_support
from cofem.priors.rectified import rectified_interval
from cofem.status import ConvergenceWarning, Status

#: How many draws standard deviations of predictions are taken from, if there are more rows than this (each
#: takes a linear system), or than as many as the draws would take steps, where a factor is to be had.
N_DRAWS, EXACT_ROWS, DIRECT_ROWS = 128, 256, 128 * CG_STEPS


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian posterior of the coefficients at the learned precisions.

    With ``nonnegative=True`` `mean` is the mode: the most likely coefficients, all together, none of them
    negative. Draws are such modes for data and a prior that are perturbed as the model says. `variance` and
    intervals are those of Gaussians that are cut off at zero, one for each coefficient: as wide as draws, or
    up to a third wider where columns are similar.

    Attributes
    ----------
    mean, variance : arrays of shape (D,), or (D, L) for L tasks
        Of the library of the data, on their device, as all arrays here.
        Posterior mean and marginal variances: exact for `em` and `irls`, estimated for the others.
        For complex coefficients the variance is that of ``|z - mean|``.
    alpha : array of shape (D,), or (D, L) for tasks that share nothing
        Prior precisions that mean and variance belong to. None for tasks that chose analysis operators of
        different shapes; see `task`.
    noise_std : float, or ndarray of shape (L,) for tasks that share nothing
        Standard deviation of the noise, given or learned (where a datum has the weight 1).
    method : str
        Name of the algorithm.
    status : Status
        How the fit ended, with advice in words.
    history : dict of str to ndarray
        One entry for each outer step: ``iteration, elapsed, applications, cg_iterations, change,
        noise_std`` and what the method adds, such as ``log_evidence``. `applications` is the
        cumulative number of vectors that ``Phi^H Phi`` was applied to. For tasks that share nothing, that
        of the task with most steps.
    operator : Operator or None
        The dictionary; None after `cofem.load` without one, and for tasks with dictionaries of their own.
    y : array of shape (N,) or (N, L)
        The data; None for tasks with dictionaries of their own.
    weights : ndarray of shape (N,) or None
        What each datum was multiplied by to make the noise equal.
    gaussian : tuple of two ndarrays or None
        For ``nonnegative=True``, mean and variance of the Gaussian that is cut off at zero, for each
        coefficient: where its mean is positive, that is the mode.
    tasks : tuple of Posterior or None
        The posteriors of tasks that were fitted with dictionaries or precisions of their own; see `task`.
    analysis : Operator or None
        For ``cofem.fit(..., analysis=B)``, the operator B of shape (M, D); `alpha` then has shape (M,). None
        after `cofem.load` without one, and for tasks that chose operators of their own.
    blocks : ndarray of int of shape (D,) or None
        For priors under which blocks of coefficients are zero or not as a whole (`cofem.Block`), the block of
        each coefficient.
    scale : float
        In analysis form, what the covariance is multiplied by, as errors at data that were held out have it;
        below 1 only where these stand for all of the unknown, as pixels do.
    fingerprints : dict of str to Fingerprint
        What the operators of a fit are known by, as far as the file said that it was loaded from.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
    >>> post.support().tolist(), post.converged
    ([0], True)
    """

    mean: Array
    variance: Array
    alpha: Array
    noise_std: Any
    method: str
    status: Status
    history: dict[str, np.ndarray]
    operator: Operator | None
    y: Array
    weights: Array | None = None
    gaussian: tuple[Array, Array] | None = None
    tasks: tuple[Posterior, ...] | None = None
    analysis: Operator | None = None
    scale: float = 1.0
    blocks: np.ndarray | None = None
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)

    @property
    def n_tasks(self) -> int:
        """Number of tasks; 1 for a single data vector.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> cofem.fit(np.eye(3), np.eye(3)[:, :2], noise_std=0.1, prior=cofem.MultiTask()).n_tasks
        2
        """
        return 1 if self.mean.ndim == 1 else self.mean.shape[1]

    def task(self, index: int) -> Posterior:
        """Return the posterior of one task by itself.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.eye(3)[:, :2], noise_std=0.1, prior=cofem.MultiTask())
        >>> post.task(1).mean.shape
        (3,)
        """
        if not -self.n_tasks <= index < self.n_tasks:
            raise ValueError(f"index must be that of one of the {self.n_tasks} tasks, got {index}")
        if self.tasks is not None:
            return self.tasks[index]
        if self.mean.ndim == 1:
            return self
        gaussian = None if self.gaussian is None else (self.gaussian[0][:, index], self.gaussian[1])
        return replace(
            self,
            mean=self.mean[:, index],
            variance=self.variance[:, index],
            y=self.y[:, index],
            gaussian=gaussian,
        )

    def _each(self, name: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call a method of every task."""
        return [getattr(self.task(i), name)(*arguments, **named) for i in range(self.n_tasks)]

    @property
    def std(self) -> Array:
        """Posterior standard deviations, of the shape of `mean`.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1, method="em")
        >>> round(float(post.std[0]), 2)  # one datum for one coefficient: that of the noise
        0.1
        """
        return namespace(self.variance).sqrt(self.variance)

    @property
    def converged(self) -> bool:
        """Whether the stop rule was met.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> Phi, y = np.eye(3), np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(Phi, y, noise_std=0.1, method="em", max_iter=2)
        >>> post.converged, post.status.code.value
        (False, 'max_iter')
        >>> cofem.fit(Phi, y, noise_std=0.1, method="em").converged
        True
        """
        return self.status.converged

    @property
    def n_iter(self) -> int:
        """Number of outer steps.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1, method="em", max_iter=2)
        >>> post.n_iter, post.history["iteration"].tolist()
        (2, [1, 2])
        """
        return len(self.history["iteration"])

    @property
    def _in_analysis(self) -> bool:
        """Whether the unknown is sparse in what an operator makes of it, which may not be at hand."""
        return self.analysis is not None or self.method == AnalysisEM.name

    def __repr__(self) -> str:
        if self._in_analysis:
            words = "" if self.analysis is None else f", sparse in {self.analysis}"
            return (
                f"Posterior({self.mean.shape[0]} unknowns{words}, method={self.method!r}, "
                f"{self.n_iter} steps, {self.status.code.value})"
            )
        return (
            f"Posterior({self.mean.shape[0]} coefficients, {self.support().shape[0]} in the support, "
            f"method={self.method!r}, {self.n_iter} steps, {self.status.code.value})"
        )

    @without_gradients
    def support(self, level: float = 0.95) -> Array:
        """Find the coefficients that are all non-zero with probability at least `level`.

        A coefficient counts when its credible region at probability ``1 - (1 - level) / D`` leaves out zero;
        by the union bound the regions of all D coefficients hold together with probability `level`, under the
        posterior at the learned precisions. The region is

        1. for one task, an interval around the mean, or a disc for complex coefficients;
        2. for L tasks that share their precisions (`cofem.MultiTask`), an ellipsoid for the L values of the
           coefficient together, with ``sum_l |z_l - mean_l|^2 / variance_l`` below the quantile of the
           chi-squared distribution with L degrees of freedom (2 L for complex coefficients, of twice the
           sum): the coefficient is non-zero in one task at least, and small means in many tasks add up;
        3. for L tasks that share nothing, one for each task, at ``1 - (1 - level) / (D L)``; one of them is
           enough.

        Of columns that look alike (a cosine of 0.5 and more), the one that was found may stand for another
        that would explain the data nearly as well. Its chance is its share of the Bayes factors of all that
        are like it. Those are left out with which one at least would be wrong with a probability above
        ``1 - level``. It takes a few products with Phi for each column that was found; without Phi (after
        `cofem.load`) it is not looked at.

        With `cofem.Block` whole blocks count, each by the ellipsoid of its coefficients' covariance, at
        ``1 - (1 - level)`` over the number of blocks; blocks that look alike are not told apart.

        With ``nonnegative=True``, the Gaussian that is cut off at zero is judged by its lower tail; for tasks
        that share their precisions, that of the sum over tasks of the coefficient in units of its standard
        deviation.

        Parameters
        ----------
        level : float in (0, 1)
            Joint probability under the posterior.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> y = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), y, noise_std=0.1, method="em", rng=0)
        >>> post.support().tolist()
        [0]
        """
        if self._in_analysis:
            raise ValueError(
                "support is that of coefficients; with analysis=B the unknown itself is not sparse. Look at "
                "B @ post.mean, or at predict(B, return_std=True, include_noise=False)"
            )
        kept = self.__dict__.setdefault("_supports", {})
        level = _check_level(level)
        if level not in kept:
            kept[level] = find_support(self, level)
        return namespace(self.mean).asarray(kept[level], copy=True)

    def credible_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Central interval of each coefficient that holds it with probability `level`.

        With ``nonnegative=True`` it is the shortest one, which begins at zero where zero is likely.

        Returns
        -------
        lower, upper : arrays of the shape of `mean`
            For complex coefficients, the real and imaginary parts of the bounds are those of the
            intervals of the real and the imaginary part, each at `level`.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> y = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), y, noise_std=0.1, method="em", rng=0)
        >>> lower, upper = post.credible_interval(0.9)
        >>> bool(lower[0] < 1.0 < upper[0])
        True
        """
        _check_level(level)
        if self.n_tasks > 1:
            lower, upper = zip(*self._each("credible_interval", level), strict=True)
            xp = namespace(self.mean)
            return xp.stack(lower, axis=1), xp.stack(upper, axis=1)
        if self.gaussian is not None:
            return rectified_interval(level, *self.gaussian)
        half = float(ndtri(0.5 + level / 2)) * self.std
        if is_complex(self.mean):
            half = half / float(np.sqrt(2)) * (1 + 1j)
        return self.mean - half, self.mean + half

    @without_gradients
    def sample(self, n: int = 1, rng: int | np.random.Generator | None = None) -> Array:
        """Draw from the posterior ``N(mu, Sigma)`` at the learned precisions, matrix-free.

        Each draw perturbs prior and data and solves one linear system (Papandreou and Yuille 2010);
        it is exact up to the solver's tolerance, 1e-5 posterior standard deviations.

        Parameters
        ----------
        n : int
            Number of draws.
        rng : int or numpy.random.Generator, optional
            Source of randomness.

        Returns
        -------
        array of shape (n, D), or (n, D, L) for L tasks
            With ``nonnegative=True``, each draw is what the data and a draw from the prior, both with noise,
            come to under the constraint, exactly zero in places; one to four systems for each.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> y = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), y, noise_std=0.1, method="em", rng=0)
        >>> post.sample(5, rng=0).shape
        (5, 3)
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n must be a positive integer, got {n!r}")
        generator = np.random.default_rng(rng)
        if self.mean.ndim > 1:
            return namespace(self.mean).stack(self._each("sample", n, generator), axis=-1)
        return namespace(self.mean).concat(list(self._draws(int(n), generator)))

    def _draws(self, n: int, rng: np.random.Generator) -> Iterator[Array]:
        """Draw in batches, those of one task."""
        if self.gaussian is not None:
            model = self._constrained_model("sample")
            for count in batches(n):
                yield np.stack([self._constrained_draw(model, rng) for _ in range(count)])
            return
        if self._in_analysis:
            draws = self._analysis_solver("sample").draws
            for count in batches(n):
                yield namespace(self.mean).astype(self.mean + draws(count, rng), self.mean.dtype)
            return
        solver, y, xp = self._synthesis_solver("sample"), self._white_y(), namespace(self.mean)
        solve, spread = solver.for_count(n), 1 / xp.sqrt(solver.alpha)
        like = in_precision(self.mean, "float64")
        for count in batches(n):
            prior = standard_normal((count, self.mean.shape[0]), like, rng) * spread
            noise = standard_normal((count, y.shape[0]), like, rng) * self.noise_std
            yield xp.astype(prior + solve(v=y - solver.phi.forward(prior) - noise), self.mean.dtype)

    def _constrained_draw(self, model: ConstrainedModel, rng: np.random.Generator) -> np.ndarray:
        found = solve_constrained(model, self.mean, rng)
        if not found.solved:
            warn("posterior draws are inexact: the search with the constraint ran out", ConvergenceWarning)
        return found.x.astype(self.mean.dtype)

    @without_gradients
    def covariance(self, indices: Any) -> Array:
        """Posterior covariance of some coefficients: one linear system for each.

        Parameters
        ----------
        indices : sequence of int
            The k coefficients wanted.

        Returns
        -------
        array of shape (k, k)
            ``E[(z_i - mu_i) conj(z_j - mu_j)]``; tasks with one dictionary and shared precisions have it in
            common, others have shape (k, k, L).

        Examples
        --------
        >>> import numpy as np, cofem
        >>> y = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), y, noise_std=0.1, method="em", rng=0)
        >>> post.covariance([0, 1]).shape
        (2, 2)
        """
        if self.gaussian is not None or any(t.gaussian for t in self.tasks or ()):
            raise ValueError(
                "covariance is not known with nonnegative=True, where marginals are; use variance"
            )
        if self.tasks is not None:
            return namespace(self.mean).stack(self._each("covariance", indices), axis=-1)
        chosen = np.atleast_1d(to_numpy(indices))
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or chosen.size == 0:
            raise TypeError(f"indices must be a sequence of integers, got {indices!r}")
        n_columns = self.mean.shape[0]
        if (chosen < -n_columns).any() or (chosen >= n_columns).any():
            raise ValueError(f"indices must lie within the {n_columns} coefficients, got {indices!r}")
        chosen = chosen % n_columns
        solve = self._solver("covariance").for_count(chosen.size)
        rows, start = [], 0
        for count in batches(chosen.size):
            unit = np.zeros((count, n_columns), np.complex128 if is_complex(self.mean) else np.float64)
            unit[np.arange(count), chosen[start : start + count]] = 1
            rows.append(take(solve(b=on_device_of(self.mean, unit)), chosen, axis=1))
            start += count
        covariance = namespace(self.mean).concat(rows).T
        return 0.5 * (covariance + conj(covariance).T)

    @without_gradients
    def predict(
        self, Phi_new: Any = None, *, return_std: bool = False, include_noise: bool = True, rng: Any = None
    ) -> Any:
        """Predict data ``Phi_new z``.

        Parameters
        ----------
        Phi_new : anything `cofem.as_operator` takes, shape (M, D); optional
            Rows to predict at; the dictionary of the fit by default.
        return_std : bool
            Also return the standard deviation of each prediction: exact for up to 256 rows, and for up to
            6400 if the smaller side of the dictionary is at most 2048; otherwise from 128 posterior samples
            (a relative error of 6 %).
        include_noise : bool
            Whether the standard deviation is that of new data (with noise) or of ``Phi_new z``.
        rng : int or numpy.random.Generator, optional
            Source of randomness of the samples.

        Returns
        -------
        mean : array of shape (M,), or (M, L) for L tasks
        std : array of the same shape, if `return_std`

        Examples
        --------
        >>> import numpy as np, cofem
        >>> y = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), y, noise_std=0.1, method="em", rng=0)
        >>> mean, std = post.predict(np.ones((2, 3)), return_std=True)
        >>> mean.shape, bool((std > 0.1).all())
        ((2,), True)
        """
        if self.mean.ndim > 1:
            xp = namespace(self.mean)
            each = self._each("predict", Phi_new, return_std=return_std, include_noise=include_noise, rng=rng)
            if not return_std:
                return xp.stack(each, axis=1)
            return tuple(xp.stack(parts, axis=1) for parts in zip(*each, strict=True))
        new = self._need_operator("predict") if Phi_new is None else as_operator(Phi_new)
        if new.is_complex and not is_complex(self.mean):
            new = RealUnknown(new)
        if isinstance(new, RealUnknown):
            return self._predict_complex(new, return_std, include_noise, rng)
        return self._predict(new, return_std, include_noise, rng)

    def _predict_complex(self, new: RealUnknown, return_std: bool, include_noise: bool, rng: Any) -> Any:
        """Predict complex data by coefficients that are real: both parts, whose variances add up."""
        found = self._predict(new, return_std, False, rng)
        if not return_std:
            return new.unstack(found)
        mean, variance = new.unstack(found[0]), squared_modulus(new.unstack(found[1]))
        if include_noise:
            variance = variance + self.noise_std**2
        return mean, namespace(variance).sqrt(variance)

    def _predict(self, new: Operator, return_std: bool, include_noise: bool, rng: Any) -> Any:
        xp = namespace(self.mean)
        if new.shape[1] != self.mean.shape[0]:
            raise ValueError(f"Phi_new must have {self.mean.shape[0]} columns, got shape {new.shape}")
        mean = new.forward(self.mean)
        if not return_std:
            return mean
        n_new = new.shape[0]
        solver = None if self.gaussian is not None else self._solver("predict")
        if (
            isinstance(solver, PosteriorSolver)
            and n_new <= DIRECT_ROWS
            and solver.can_factor
            and is_cheaper(solver.phi, n_new)
        ):
            variance = solver.exact_variances(rows_of(new, self.mean))
        elif solver is not None and n_new <= EXACT_ROWS:
            solve, parts = solver.for_count(n_new), []
            for rows in rows_of(new, self.mean):
                parts.append(xp.real(xp.sum(rows * solve(b=conj(rows)), axis=-1)))
            variance = xp.concat(parts)
        else:
            power = on_device_of(self.mean, np.zeros(n_new))
            for draws in self._draws(N_DRAWS, np.random.default_rng(rng)):
                power += xp.sum(squared_modulus(new.forward(draws) - mean), axis=0)
            variance = power / N_DRAWS
        if include_noise:
            variance = variance + self.noise_std**2
        return mean, xp.astype(xp.sqrt(variance), self.variance.dtype)

    @without_gradients
    def log_evidence(self, vectors: int = 16, steps: int = 1000, rng: Any = 0) -> LogEvidence:
        """Log of ``p(y | alpha, noise_std)``, to compare models of the same data.

        The determinant is exact where the smaller side of the dictionary is at most 512. Otherwise up to 512
        columns that matter most are taken out of it exactly, and the rest is estimated by stochastic Lanczos
        quadrature.

        Parameters
        ----------
        vectors : int
            Random vectors. The standard error falls with their root; with a single one it is infinite.
        steps : int
            Most Lanczos steps with each vector. Steps end as soon as they add little to the standard error,
            most often after 8 to 50; each is one application for each vector.
        rng : int or numpy.random.Generator
            Source of the vectors.

        Returns
        -------
        LogEvidence
            ``value`` in nats and its ``standard_error`` (0 if exact): the spread over the vectors, with
            Student's factor for few of them, and what is left of the error of the quadrature.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
        >>> post.log_evidence().standard_error
        0.0
        """
        if self.gaussian is not None or any(t.gaussian for t in self.tasks or ()):
            raise ValueError("log_evidence is not known with nonnegative=True")
        if self._in_analysis:
            raise ValueError("log_evidence is not known with analysis=..., where the prior may be improper")
        _check_count(vectors, "vectors")
        _check_count(steps, "steps")
        generator = np.random.default_rng(rng)
        if self.tasks is not None:
            each = self._each("log_evidence", vectors, steps, generator)
            spread = float(np.sqrt(sum(part.standard_error**2 for part in each)))
            return LogEvidence(sum(part.value for part in each), spread)
        solver = self._synthesis_solver("log_evidence")
        phi, alpha, noise_var = solver.phi, solver.alpha, solver.noise_var
        y = in_precision(as_rows(self._white_y()), "float64")
        mean = solver.mean_for_evidence(y)
        log_det, error = log_determinant(
            phi, alpha, noise_var, mean, vectors=vectors, steps=steps, rng=generator
        )
        value = log_evidence(phi, alpha, noise_var, y, mean, log_det)
        if self.weights is not None:  # the density of y itself, not of the weighted data
            value += (2 if is_complex(y) else 1) * y.shape[0] * total(namespace(y).log(self.weights))
        return LogEvidence(value, (1.0 if is_complex(y) else 0.5) * y.shape[0] * error)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to an ``.npz`` file, whole or not at all.

        The file holds arrays and JSON only (no pickle). The operators Phi and, in analysis form, B are not
        stored: hand them to `cofem.load` again, which knows them by what they make of a random vector.

        Examples
        --------
        >>> import numpy as np, cofem
        >>> y = np.array([1.0, 0.0, 0.0])
        >>> post = cofem.fit(np.eye(3), y, noise_std=0.1, method="em", rng=0)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     post.save(folder + "/fit.npz")
        ...     bool((cofem.load(folder + "/fit.npz").mean == post.mean).all())
        True
        """
        from cofem.posterior.file import save  # it needs this class

        save(self, path)

    def _need_operator(self, what: str) -> Operator:
        if self.operator is None:
            raise ValueError(f"{what} needs the operator; load with cofem.load(path, operator=Phi)")
        return self.operator

    def _analysis_solver(self, what: str) -> AnalysisSolver:
        """Return the posterior's systems in analysis form."""
        if self.analysis is None:
            raise ValueError(f"{what} needs the analysis operator; load with cofem.load(path, analysis=B)")
        operator, noise_var = self._need_operator(what), self.noise_std**2
        shape = (self.alpha, noise_var, self.variance, self.weights, self.scale)
        return AnalysisSolver.of(operator, self.analysis, *shape)

    def _solver(self, what: str) -> PosteriorSolver | AnalysisSolver:
        """Return the posterior's systems; `what` needs them."""
        return self._analysis_solver(what) if self._in_analysis else self._synthesis_solver(what)

    def _synthesis_solver(self, what: str) -> PosteriorSolver:
        """Return the posterior's systems in synthesis form."""
        return PosteriorSolver.of(self._need_operator(what), self.alpha, self.noise_std**2, self.weights)

    def _constrained_model(self, what: str) -> ConstrainedModel:
        """Return what draws without negative coefficients are solved for with."""
        if self._in_analysis:
            return AnalysisModel(self._analysis_solver(what), self._white_y())
        return SynthesisModel(self._synthesis_solver(what), self._white_y())

    def _white_y(self) -> Array:
        """Return the data as the solver sees them, a row for each task."""
        y = in_precision(transposed(self.y), "float64")
        return y if self.weights is None else y * self.weights


def _check_count(count: Any, name: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(f"{name} must be a positive integer, got {count!r}")
    if count < 1:
        raise ValueError(f"{name} must be a positive integer, got {count!r}")


def _check_level(level: Any) -> float:
    if not isinstance(level, int | float | np.floating) or not 0 < level < 1:
        raise ValueError(f"level must be a probability between 0 and 1, got {level!r}")
    return float(level)
