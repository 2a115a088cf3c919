"""The posterior of a fit: moments, intervals, samples, covariances, prediction, save and load."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from cofem.linalg.system import PosteriorSystem, Solution, choose_form, columns_at_once
from cofem.operators import Operator, as_operator
from cofem.status import ConvergenceWarning, Status, StatusCode

Array = Any

FORMAT = "cofem-posterior"
FORMAT_VERSION = 1

#: Accuracy of samples and covariances, in posterior standard deviations.
SOLVE_TOL = 1e-5
#: Right-hand sides solved at once: bounds memory to a few times this many vectors of length D.
SOLVE_BATCH = 32


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian posterior of the coefficients at the learned precisions.

    Attributes
    ----------
    mean, variance : ndarrays of shape (D,)
        Posterior mean and marginal variances: exact for `em` and `irls`, estimated for the others.
        For complex coefficients the variance is that of ``|z - mean|``.
    alpha : ndarray of shape (D,)
        Prior precisions that mean and variance belong to.
    noise_std : float
        Standard deviation of the noise.
    method : str
        Name of the algorithm.
    status : Status
        How the fit ended, with advice in words.
    history : dict of str to ndarray
        One entry for each outer step: ``iteration, elapsed, applications, cg_iterations, change,
        noise_std`` and what the method adds, such as ``log_evidence``. `applications` is the
        cumulative number of vectors that ``Phi^H Phi`` was applied to.
    operator : Operator or None
        The dictionary; None after `cofem.load` without one.
    y : ndarray of shape (N,)
        The data.

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
    noise_std: float
    method: str
    status: Status
    history: dict[str, np.ndarray]
    operator: Operator | None
    y: Array

    @property
    def std(self) -> Array:
        """Posterior standard deviations, shape (D,)."""
        return np.sqrt(self.variance)

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
            f"Posterior({self.mean.size} coefficients, {self.support().size} in the support, "
            f"method={self.method!r}, {self.n_iter} steps, {self.status.code.value})"
        )

    def support(self, level: float = 0.95) -> np.ndarray:
        """Find the coefficients that are all non-zero with probability at least `level`.

        A coefficient counts when its credible region at probability ``1 - (1 - level) / D`` (an
        interval, or a disc for complex coefficients) leaves out zero; by the union bound the regions
        of all D hold together with probability `level`.

        Parameters
        ----------
        level : float in (0, 1)
            Joint probability under the posterior.
        """
        tail = (1 - _check_level(level)) / self.mean.size
        threshold = -np.log(tail) if np.iscomplexobj(self.mean) else ndtri(tail / 2) ** 2
        return np.flatnonzero(np.abs(self.mean) ** 2 > threshold * self.variance)

    def credible_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Central interval of each coefficient that holds it with probability `level`.

        Returns
        -------
        lower, upper : arrays of shape (D,)
            For complex coefficients, the real and imaginary parts of the bounds are those of the
            intervals of the real and the imaginary part, each at `level`.
        """
        half = ndtri(0.5 + _check_level(level) / 2) * self.std
        half = half.astype(self.variance.dtype, copy=False)
        if np.iscomplexobj(self.mean):
            half = half / np.sqrt(2) * (1 + 1j)
        return self.mean - half, self.mean + half

    def sample(self, n: int = 1, rng: int | np.random.Generator | None = None) -> np.ndarray:
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
        ndarray of shape (n, D)
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n must be a positive integer, got {n!r}")
        system, generator = self._system(), np.random.default_rng(rng)
        draws = []
        for size in _batches(int(n)):
            prior = self._noise((size, self.mean.size), generator) * np.sqrt(system.g)
            noise = self._noise((size, self.y.size), generator) * self.noise_std
            solution = _solve(system, v=self.y - system.phi.forward(prior) - noise)
            draws.append((prior + solution.x).astype(self.mean.dtype))
        return np.concatenate(draws)

    def covariance(self, indices: Any) -> np.ndarray:
        """Posterior covariance of some coefficients: one linear system for each.

        Parameters
        ----------
        indices : sequence of int
            The k coefficients wanted.

        Returns
        -------
        ndarray of shape (k, k)
            ``E[(z_i - mu_i) conj(z_j - mu_j)]``.
        """
        chosen = np.atleast_1d(np.asarray(indices))
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or chosen.size == 0:
            raise TypeError(f"indices must be a sequence of integers, got {indices!r}")
        size = self.mean.size
        if (chosen < -size).any() or (chosen >= size).any():
            raise ValueError(f"indices must lie within the {size} coefficients, got {indices!r}")
        chosen = chosen % size
        system = self._system()
        rows, start = [], 0
        for count in _batches(chosen.size):
            unit = np.zeros((count, size), self._solve_dtype)
            unit[np.arange(count), chosen[start : start + count]] = 1
            rows.append(_solve(system, b=unit).x[:, chosen])
            start += count
        covariance = np.concatenate(rows).T
        return 0.5 * (covariance + covariance.conj().T)

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
        mean : ndarray of shape (M,)
        std : ndarray of shape (M,), if `return_std`
        """
        new = self._need_operator("predict") if Phi_new is None else as_operator(Phi_new)
        if new.shape[1] != self.mean.size:
            raise ValueError(f"Phi_new must have {self.mean.size} columns, got shape {new.shape}")
        mean = new.forward(self.mean)
        if not return_std:
            return mean
        n_new = new.shape[0]
        if n_new <= 256:
            system, parts = self._system(), []
            for block in np.array_split(np.eye(n_new, dtype=self._solve_dtype), -(-n_new // SOLVE_BATCH)):
                rows = new.adjoint(block)
                parts.append(np.einsum("ij,ij->i", rows.conj(), _solve(system, b=rows).x).real)
            variance = np.concatenate(parts)
        else:
            generator, total = np.random.default_rng(rng), np.zeros(n_new)
            for size in _batches(128):
                total += np.sum(np.abs(new.forward(self.sample(size, generator)) - mean) ** 2, axis=0)
            variance = total / 128
        if include_noise:
            variance = variance + self.noise_std**2
        return mean, np.sqrt(variance).astype(self.variance.dtype)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to an ``.npz`` file, whole or not at all.

        The file holds arrays and JSON only (no pickle). The operator is not stored: hand it to
        `cofem.load` again.
        """
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "noise_std": self.noise_std,
            "method": self.method,
            "status": [self.status.code.value, self.status.message, list(self.status.notes)],
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"history_{name}": values for name, values in self.history.items()}
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, header=np.array(json.dumps(header)), **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    @property
    def _solve_dtype(self) -> Any:
        return np.complex128 if np.iscomplexobj(self.mean) else np.float64

    def _need_operator(self, what: str) -> Operator:
        if self.operator is None:
            raise ValueError(f"{what} needs the operator; load with cofem.load(path, operator=Phi)")
        return self.operator

    def _system(self) -> PosteriorSystem:
        """Set up the posterior's linear system, in double precision."""
        operator = self._need_operator("this").astype(np.float64)
        g = 1 / self.alpha.astype(np.float64)
        form = choose_form(operator, g, self.noise_std**2, np.float64)
        curvature = operator.norm**2 if operator.facts.row_gram is not None else operator.column_norms() ** 2
        return PosteriorSystem(
            operator, g, self.noise_std**2, form, curvature, columns_at_once=columns_at_once(operator)
        )

    def _noise(self, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        """Draw standard normal numbers, circular ones for complex coefficients."""
        if not np.iscomplexobj(self.mean):
            return rng.standard_normal(shape)
        parts = rng.standard_normal((2, *shape)) / np.sqrt(2)
        return parts[0] + 1j * parts[1]


_ARRAYS = ("mean", "variance", "alpha", "y")


def load(path: str | os.PathLike[str], operator: Any = None) -> Posterior:
    """Read a posterior written by `Posterior.save`.

    Parameters
    ----------
    path : path
        The ``.npz`` file.
    operator : anything `cofem.as_operator` takes, optional
        The dictionary of the fit; needed again for `sample`, `covariance` and the like.

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
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            contents = {name: file[name] for name in file.files}
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
        arrays = {name: contents[name] for name in _ARRAYS}
        code, message, notes = header["status"]
        noise_std, method = header["noise_std"], header["method"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"path {str(path)!r} is damaged: {error} is missing") from error
    phi = None if operator is None else as_operator(operator)
    wanted = (arrays["y"].size, arrays["mean"].size)
    if phi is not None and phi.shape != wanted:
        raise ValueError(f"operator must have shape {wanted} as in the fit, got {phi.shape}")
    return Posterior(
        **arrays,
        noise_std=noise_std,
        method=method,
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
