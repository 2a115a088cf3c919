"""Skeleton of an algorithm: copy to `src/cofem/inference/<name>.py`, rename, replace the E-step.

CONTRIBUTING.md, "Add an algorithm", has the steps. This one is an E-step. An algorithm with another update
of alpha subclasses `Method` and writes `init` and `step`; `HeavyBall` in tests/extensions.py is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import linalg

from cofem._arrays import Array
from cofem._packing import packable
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.em import as_mean, data_columns
from cofem.inference.problem import Problem
from cofem.linalg.factor import safe_cholesky


# What one step hands to the next. Checkpoints hold it, under a name that no other type has.
@packable("skeleton")
class Products(NamedTuple):
    """Products that no step need form again."""

    #: ``Phi^H Phi``, shape (D, D).
    gram: np.ndarray
    #: ``Phi^H y``, shape (D, L).
    projection: np.ndarray


# Frozen, with every setting a field: a checkpoint recognises the method by its fields.
@dataclass(frozen=True)
class Inverse(ExpectationMaximisation):
    """EM with the inverse of ``A = beta Phi^H Phi + diag(alpha)`` written out.

    Parameters
    ----------
    most_columns : int
        Dictionaries with more columns are refused.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.01, method=Inverse())
    >>> post.support().tolist()
    [0]
    """

    most_columns: int = 2000

    #: What `cofem.fit(method=...)` and the registry call it.
    name: ClassVar[str] = "inverse"
    # What it can do. A problem beyond that is refused before any work. These are the defaults.
    complex_data: ClassVar[bool] = True
    several_tasks: ClassVar[bool] = True
    any_prior: ClassVar[bool] = True
    any_array: ClassVar[bool] = False  # True if it works on tensors as well
    # When it stops, unless the user says otherwise. These are the defaults.
    default_max_iter: ClassVar[int] = 100
    default_tol: ClassVar[float] = 1e-4

    def memory(self, problem: Problem) -> tuple[float, str]:
        """Return the bytes needed beyond vectors, and for what; what does not fit is refused."""
        return 16 * 3.0 * problem.n_columns**2, "three D x D matrices"

    def refusal(self, problem: Problem) -> Exception | None:
        """Return why it cannot work on a problem, beyond what the attributes say."""
        if problem.n_columns > self.most_columns:
            return ValueError(f"method='{self.name}' takes up to {self.most_columns} columns")
        return super().refusal(problem)

    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """E-step at the precisions that the fit starts from: make the carry, and take the moments."""
        phi = problem.phi.matrix  # or problem.phi.forward, adjoint, gram: those count as applications
        adjoint = phi.conj().T
        return self._moments(problem, alpha, Products(adjoint @ phi, adjoint @ data_columns(problem)))

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """E-step: the moments at `alpha`; `state` is the one before, with its carry."""
        return self._moments(problem, alpha, state.carry)

    def _moments(self, problem: Problem, alpha: Array, kept: Products) -> Moments:
        factor = safe_cholesky(kept.gram / problem.noise_var + np.diag(alpha.astype(np.float64)))
        covariance = linalg.cho_solve((factor, True), np.eye(problem.n_columns))
        mean = covariance @ kept.projection / problem.noise_var
        variance = np.diagonal(covariance).real.astype(problem.real_dtype)
        # Figures go into the history, notes into the status, `trouble` into a warning.
        info = Info(figures={"log_det": float(2 * np.sum(np.log(np.diagonal(factor).real)))})
        # In the layout and precision of the problem: (D,) for one task, (L, D) for several.
        return Moments(as_mean(mean, problem), variance, kept, info)
