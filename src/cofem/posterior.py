"""The posterior of a fit: moments, intervals, samples, covariances, prediction, save and load."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from scipy.special import ndtri

from cofem._arrays import (
    as_rows,
    conj,
    in_precision,
    inner,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    size,
    squared_modulus,
    take,
    to_numpy,
    total,
    transposed,
    without_gradients,
)
from cofem.files import read_npz
from cofem.linalg.lanczos import trace_of_function
from cofem.linalg.system import PosteriorSystem, Solution, choose_form, columns_at_once
from cofem.operators import Diagonal, Operator, as_operator
from cofem.priors.rectified import rectified_draws, rectified_quantile
from cofem.status import ConvergenceWarning, Status, StatusCode

Array = Any

FORMAT = "cofem-posterior"
FORMAT_VERSION = 2

#: Accuracy of samples and covariances, in posterior standard deviations.
SOLVE_TOL = 1e-5
#: Right-hand sides solved at once: bounds memory to a few times this many vectors of length D.
SOLVE_BATCH = 32


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian posterior of the coefficients at the learned precisions.

    With ``nonnegative=True`` it is that Gaussian given that no coefficient is negative, coefficient by
    coefficient: `mean`, `variance`, intervals and samples are those of its truncated marginals.

    Attributes
    ----------
    mean, variance : arrays of shape (D,), or (D, L) for L tasks
        Of the library of the data, on their device, as all arrays here.
        Posterior mean and marginal variances: exact for `em` and `irls`, estimated for the others.
        For complex coefficients the variance is that of ``|z - mean|``.
    alpha : array of shape (D,), or (D, L) for tasks that share nothing
        Prior precisions that mean and variance belong to.
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
        For ``nonnegative=True``, mean and variance of the Gaussian before the constraint.
    tasks : tuple of Posterior or None
        The posteriors of tasks that were fitted with dictionaries or precisions of their own; see `task`.

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

    @property
    def n_tasks(self) -> int:
        """Number of tasks; 1 for a single data vector."""
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
        """Posterior standard deviations, of the shape of `mean`."""
        return namespace(self.variance).sqrt(self.variance)

    @property
    def converged(self) -> bool:
        """Whether the stop rule was met."""
        return self.status.converged

    @property
    def n_iter(self) -> int:
        """Number of outer steps."""
        return len(self.history["iteration"])

    def __repr__(self) -> str:
        return (
            f"Posterior({self.mean.shape[0]} coefficients, {self.support().shape[0]} in the support, "
            f"method={self.method!r}, {self.n_iter} steps, {self.status.code.value})"
        )

    @without_gradients
    def support(self, level: float = 0.95) -> Array:
        """Find the coefficients that are all non-zero with probability at least `level`.

        A coefficient counts when its credible region at probability ``1 - (1 - level) / D`` (an
        interval, or a disc for complex coefficients) leaves out zero; by the union bound the regions
        of all D hold together with probability `level`. With several tasks, one of them is enough. With
        ``nonnegative=True``, the Gaussian before the constraint is judged, by its lower tail.

        Parameters
        ----------
        level : float in (0, 1)
            Joint probability under the posterior.
        """
        tail = (1 - _check_level(level)) / size(self.mean)
        xp = namespace(self.mean)
        if self.tasks is not None and self.gaussian is None and any(t.gaussian for t in self.tasks):
            found = [task.support(level) for task in self.tasks]
            return np.unique(np.concatenate(found))
        if self.gaussian is not None:
            mean, variance = self.gaussian
            variance = variance if mean.ndim == 1 else variance[:, None]
            away = mean > -ndtri(tail) * np.sqrt(variance)
        else:
            threshold = float(-np.log(tail) if is_complex(self.mean) else ndtri(tail / 2) ** 2)
            away = xp.abs(self.mean) ** 2 > threshold * self.variance
        return xp.nonzero(away if away.ndim == 1 else xp.any(away, axis=1))[0]

    def credible_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Central interval of each coefficient that holds it with probability `level`.

        Returns
        -------
        lower, upper : arrays of the shape of `mean`
            For complex coefficients, the real and imaginary parts of the bounds are those of the
            intervals of the real and the imaginary part, each at `level`.
        """
        _check_level(level)
        if self.n_tasks > 1:
            lower, upper = zip(*self._each("credible_interval", level), strict=True)
            xp = namespace(self.mean)
            return xp.stack(lower, axis=1), xp.stack(upper, axis=1)
        if self.gaussian is not None:
            tails = (0.5 - level / 2, 0.5 + level / 2)
            lower, upper = (rectified_quantile(tail, *self.gaussian) for tail in tails)
            return lower, upper
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
            With ``nonnegative=True``, draws from the truncated marginals, independent of each other.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n must be a positive integer, got {n!r}")
        generator = np.random.default_rng(rng)
        if self.mean.ndim > 1:
            return namespace(self.mean).stack(self._each("sample", n, generator), axis=-1)
        if self.gaussian is not None:
            return rectified_draws(*self.gaussian, int(n), generator)
        system, y, xp = self._system(), self._white_y(), namespace(self.mean)
        draws = []
        for count in _batches(int(n)):
            prior = self._noise((count, self.mean.shape[0]), generator) * xp.sqrt(system.g)
            noise = self._noise((count, y.shape[0]), generator) * self.noise_std
            solution = _solve(system, v=y - system.phi.forward(prior) - noise)
            draws.append(xp.astype(prior + solution.x, self.mean.dtype))
        return xp.concat(draws)

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
        system = self._system()
        rows, start = [], 0
        for count in _batches(chosen.size):
            unit = np.zeros((count, n_columns), self._solve_dtype)
            unit[np.arange(count), chosen[start : start + count]] = 1
            rows.append(take(_solve(system, b=on_device_of(self.mean, unit)).x, chosen, axis=1))
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
            Also return the standard deviation of each prediction: exact for up to 256 rows,
            otherwise from 128 posterior samples (a relative error of 6 %).
        include_noise : bool
            Whether the standard deviation is that of new data (with noise) or of ``Phi_new z``.
        rng : int or numpy.random.Generator, optional
            Source of randomness of the samples.

        Returns
        -------
        mean : array of shape (M,), or (M, L) for L tasks
        std : array of the same shape, if `return_std`
        """
        xp = namespace(self.mean)
        if self.mean.ndim > 1:
            each = self._each("predict", Phi_new, return_std=return_std, include_noise=include_noise, rng=rng)
            if not return_std:
                return xp.stack(each, axis=1)
            return tuple(xp.stack(parts, axis=1) for parts in zip(*each, strict=True))
        new = self._need_operator("predict") if Phi_new is None else as_operator(Phi_new)
        if new.shape[1] != self.mean.shape[0]:
            raise ValueError(f"Phi_new must have {self.mean.shape[0]} columns, got shape {new.shape}")
        mean = new.forward(self.mean)
        if not return_std:
            return mean
        n_new = new.shape[0]
        if n_new <= 256 and self.gaussian is None:
            system, parts = self._system(), []
            for block in np.array_split(np.eye(n_new, dtype=self._solve_dtype), -(-n_new // SOLVE_BATCH)):
                rows = in_precision(new.adjoint(on_device_of(self.mean, block)), "float64")
                parts.append(xp.real(xp.sum(conj(rows) * _solve(system, b=rows).x, axis=-1)))
            variance = xp.concat(parts)
        else:
            generator, power = np.random.default_rng(rng), on_device_of(self.mean, np.zeros(n_new))
            for count in _batches(128):
                misfit = new.forward(self.sample(count, generator)) - mean
                power += xp.sum(squared_modulus(misfit), axis=0)
            variance = power / 128
        if include_noise:
            variance = variance + self.noise_std**2
        return mean, xp.astype(xp.sqrt(variance), self.variance.dtype)

    @without_gradients
    def log_evidence(self, vectors: int = 16, steps: int = 120, rng: Any = 0) -> LogEvidence:
        """Log of ``p(y | alpha, noise_std)``, to compare models of the same data.

        The determinant comes from stochastic Lanczos quadrature, or exactly where the smaller side of the
        dictionary is at most 512.

        Parameters
        ----------
        vectors, steps : int
            Random vectors and Lanczos steps: their product is the cost in applications.
        rng : int or numpy.random.Generator
            Source of the vectors.

        Returns
        -------
        LogEvidence
            ``value`` in nats and its ``standard_error`` (0 if exact).

        Examples
        --------
        >>> import numpy as np, cofem
        >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
        >>> post.log_evidence().standard_error
        0.0
        """
        if self.gaussian is not None or any(t.gaussian for t in self.tasks or ()):
            raise ValueError("log_evidence is not known with nonnegative=True")
        generator = np.random.default_rng(rng)
        if self.tasks is not None:
            each = self._each("log_evidence", vectors, steps, generator)
            spread = float(np.sqrt(sum(part.standard_error**2 for part in each)))
            return LogEvidence(sum(part.value for part in each), spread)
        system = self._system()
        like = self._noise((1, 1), np.random.default_rng(0))
        log_det, error = log_determinant(system, like, vectors, steps, generator)
        y = in_precision(as_rows(self._white_y()), "float64")
        mean = _solve(system, v=y).x
        # y^H C^-1 y as the least of ||y - Phi z||^2 / noise_var + z^H diag(alpha) z, whose error is of
        # second order in that of the mean.
        misfit = y - system.phi.forward(mean)
        quadratic = inner(misfit, misfit) / system.noise_var
        quadratic += total(squared_modulus(mean) * system.alpha)
        n = size(y)
        factor, constant = (1.0, np.log(np.pi)) if is_complex(y) else (0.5, np.log(2 * np.pi))
        value = -factor * (n * constant + y.shape[0] * log_det + quadratic)
        if self.weights is not None:  # the density of y itself, not of the weighted data
            value += 2 * factor * y.shape[0] * total(namespace(y).log(self.weights))
        return LogEvidence(float(value), factor * y.shape[0] * error)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to an ``.npz`` file, whole or not at all.

        The file holds arrays and JSON only (no pickle). The operator is not stored: hand it to
        `cofem.load` again.
        """
        header, arrays = self._contents()
        for i, task in enumerate(self.tasks or ()):
            inner, parts = task._contents()
            header.setdefault("tasks", []).append(inner)
            arrays |= {f"task{i}_{name}": values for name, values in parts.items()}
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    def _contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what is saved of this posterior: words and arrays."""
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "noise_std": np.asarray(self.noise_std).tolist(),
            "method": self.method,
            "status": [self.status.code.value, self.status.message, list(self.status.notes)],
        }
        arrays = {name: getattr(self, name) for name in (*_ARRAYS, "weights")}
        if self.gaussian is not None:
            arrays |= {"gaussian_mean": self.gaussian[0], "gaussian_variance": self.gaussian[1]}
        arrays |= {f"history_{name}": values for name, values in self.history.items()}
        return header, {name: to_numpy(values) for name, values in arrays.items() if values is not None}

    @property
    def _solve_dtype(self) -> Any:
        return np.complex128 if is_complex(self.mean) else np.float64

    def _need_operator(self, what: str) -> Operator:
        if self.operator is None:
            raise ValueError(f"{what} needs the operator; load with cofem.load(path, operator=Phi)")
        return self.operator

    def _system(self) -> PosteriorSystem:
        """Set up the posterior's linear system, in double precision."""
        operator = self._need_operator("this").astype(np.float64)
        if self.weights is not None:
            operator = Diagonal(in_precision(self.weights, "float64")) @ operator
        alpha = in_precision(self.alpha, "float64")
        form = choose_form(operator, alpha, self.noise_std**2, np.float64)
        if operator.facts.row_gram is not None:
            curvature: Any = operator.norm**2
        else:
            norms = operator.column_norms()
            curvature = (on_device_of(alpha, norms) if isinstance(norms, np.ndarray) else norms) ** 2
        return PosteriorSystem(
            operator, alpha, self.noise_std**2, form, curvature, columns_at_once=columns_at_once(operator)
        )

    def _white_y(self) -> Array:
        """Return the data as the solver sees them, a row for each task."""
        y = in_precision(transposed(self.y), "float64")
        return y if self.weights is None else y * self.weights

    def split(self, operators: Sequence[Operator]) -> Posterior:
        """Take the posterior of a block-diagonal dictionary apart into those of its tasks."""
        n_columns = operators[0].shape[1]
        ends = np.cumsum([operator.shape[0] for operator in operators])
        rows = [slice(end - op.shape[0], end) for end, op in zip(ends, operators, strict=True)]
        tasks = []
        for i, (operator, row) in enumerate(zip(operators, rows, strict=True)):
            column = slice(i * n_columns, (i + 1) * n_columns)
            tasks.append(
                replace(
                    self,
                    mean=self.mean[column],
                    variance=self.variance[column],
                    alpha=self.alpha[column],
                    operator=operator.astype(precision_of(self.variance)),
                    y=self.y[row],
                    weights=None if self.weights is None else self.weights[row],
                    gaussian=None
                    if self.gaussian is None
                    else (self.gaussian[0][column], self.gaussian[1][column]),
                )
            )
        return replace(
            join_tasks(tasks), alpha=self.alpha[:n_columns], noise_std=self.noise_std, history=self.history
        )

    def _noise(self, shape: tuple[int, int], rng: np.random.Generator) -> Array:
        """Draw standard normal numbers, circular ones for complex coefficients."""
        if not is_complex(self.mean):
            return on_device_of(self.mean, rng.standard_normal(shape))
        parts = rng.standard_normal((2, *shape)) / np.sqrt(2)
        return on_device_of(self.mean, parts[0] + 1j * parts[1])


class LogEvidence(NamedTuple):
    """A log evidence in nats and the standard error of its estimate."""

    value: float
    standard_error: float


#: Smaller side of the dictionary up to which the determinant is computed exactly.
EXACT_DETERMINANT = 512


def log_determinant(
    system: PosteriorSystem, like: Array, vectors: int, steps: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return ``log det (noise_var I + Phi diag(g) Phi^H)`` and its standard error; vectors are as `like`."""
    n, d = system.phi.shape
    xp = namespace(like)
    g = system.g
    root = xp.sqrt(g)
    if n <= d:

        def relative(w: Array) -> Array:
            """``C / noise_var``."""
            return w + system.phi.forward(g * system.phi.adjoint(w)) / system.noise_var

        side = n
    else:

        def relative(w: Array) -> Array:
            """``I + G^1/2 Phi^H Phi G^1/2 / noise_var``, of the same determinant."""
            return w + root * system.phi.gram(root * w) / system.noise_var

        side = d
    if side <= EXACT_DETERMINANT:
        identity = xp.eye(side, dtype=like.dtype, device=array_api_compat.device(like))
        value, error = float(xp.linalg.slogdet(relative(identity))[1]), 0.0
    else:
        value, error = trace_of_function(np.log, relative, like, side, steps=steps, vectors=vectors, rng=rng)
    return value + n * np.log(system.noise_var), error


def join_tasks(tasks: Sequence[Posterior]) -> Posterior:
    """Put posteriors of several tasks together as one."""
    longest = max(tasks, key=lambda task: task.n_iter)
    worst = next((task.status for task in tasks if not task.converged), tasks[0].status)
    same = all(task.operator is tasks[0].operator for task in tasks)
    xp = namespace(tasks[0].mean)
    return Posterior(
        mean=xp.stack([task.mean for task in tasks], axis=1),
        variance=xp.stack([task.variance for task in tasks], axis=1),
        alpha=xp.stack([task.alpha for task in tasks], axis=1),
        noise_std=np.array([task.noise_std for task in tasks]),
        method=tasks[0].method,
        status=worst,
        history=longest.history,
        operator=tasks[0].operator if same else None,
        y=xp.stack([task.y for task in tasks], axis=1) if same else None,
        weights=tasks[0].weights if same else None,
        tasks=tuple(tasks),
    )


_ARRAYS = ("mean", "variance", "alpha", "y")


def load(path: str | os.PathLike[str], operator: Any = None) -> Posterior:
    """Read a posterior written by `Posterior.save`.

    Parameters
    ----------
    path : path
        The ``.npz`` file.
    operator : anything `cofem.as_operator` takes, optional
        The dictionary of the fit, or a list of them as in the fit; needed again for `sample`,
        `covariance` and the like. The arrays of the posterior are NumPy's, or where the numbers of the
        operator are if that is another library.

    Examples
    --------
    >>> import numpy as np, cofem, tempfile, os
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
    >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
    >>> post.save(path)
    >>> cofem.load(path, operator=np.eye(3)).support().tolist()
    [0]
    """
    try:
        contents = read_npz(path)
        header = json.loads(str(contents.pop("header")))
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(
            f"path must be a file written by Posterior.save, but {str(path)!r} is not: {error}"
        ) from error
    if header["version"] > FORMAT_VERSION:
        raise ValueError(
            f"path {str(path)!r} was written by a newer cofem (format {header['version']}, this one reads "
            f"up to {FORMAT_VERSION}); upgrade cofem to read it"
        )
    try:
        return _rebuild(header, contents, operator)
    except (KeyError, IndexError) as error:
        raise ValueError(f"path {str(path)!r} is damaged: {error} is missing") from error


def _rebuild(header: dict[str, Any], contents: dict[str, np.ndarray], operator: Any) -> Posterior:
    """Make a posterior from what was saved."""
    tasks = []
    for i, part in enumerate(header.get("tasks", [])):
        prefix = f"task{i}_"
        parts = {
            name.removeprefix(prefix): values for name, values in contents.items() if name.startswith(prefix)
        }
        tasks.append(_rebuild(part, parts, operator[i] if isinstance(operator, list | tuple) else operator))
    y = contents["y"] if not tasks else contents.get("y")
    phi = None if operator is None or isinstance(operator, list | tuple) else as_operator(operator)
    if phi is not None and y is not None and phi.shape != (y.shape[0], contents["mean"].shape[0]):
        wanted = (y.shape[0], contents["mean"].shape[0])
        raise ValueError(f"operator must have shape {wanted} as in the fit, got {phi.shape}")
    code, message, notes = header["status"]
    noise_std = header["noise_std"]
    if phi is not None and phi.home is not None:
        kept = {"mean", "variance", "alpha", "y", "weights"} & contents.keys()
        contents = contents | {name: on_device_of(phi.home, contents[name]) for name in kept}
        y = contents.get("y")
    gaussian = None
    if "gaussian_mean" in contents:
        gaussian = (contents["gaussian_mean"], contents["gaussian_variance"])
    return Posterior(
        **{name: contents[name] for name in ("mean", "variance", "alpha")},
        y=y,
        weights=contents.get("weights"),
        gaussian=gaussian,
        tasks=tuple(tasks) or None,
        noise_std=np.array(noise_std) if isinstance(noise_std, list) else noise_std,
        method=header["method"],
        status=Status(StatusCode(code), message, tuple(notes)),
        history={
            name.removeprefix("history_"): values
            for name, values in contents.items()
            if name.startswith("history_")
        },
        operator=phi,
    )


def _solve(system: PosteriorSystem, v: Array | None = None, b: Array | None = None) -> Solution:
    max_iter = max(1000, 4 * min(system.phi.shape))
    b = None if b is None else namespace(b).asarray(b, copy=True)  # the solver would overwrite it
    solution = system.solve(v, b, tol=SOLVE_TOL, max_iter=max_iter)
    if not solution.cg.converged.all():
        warnings.warn(
            f"posterior solves are inexact: {solution.cg.report()}", ConvergenceWarning, stacklevel=4
        )
    return solution


def _batches(n: int) -> Iterator[int]:
    """Split n right-hand sides into batches of bounded size."""
    for start in range(0, n, SOLVE_BATCH):
        yield min(SOLVE_BATCH, n - start)


def _check_level(level: Any) -> float:
    if not isinstance(level, int | float | np.floating) or not 0 < level < 1:
        raise ValueError(f"level must be a probability between 0 and 1, got {level!r}")
    return float(level)
