"""The problem in analysis form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cofem._arrays import Array, namespace, on_device_of
from cofem.inference.problem import Problem
from cofem.linalg.analysis import Rows
from cofem.operators import Operator
from cofem.priors import Prior, RowLayout

#: Share of the unknown's power that each row is expected to have at the start, relative to its norm.
SHARE_AT_START = 0.05
#: Largest precision, relative to what the data can resolve.
HEADROOM = {"float64": 1e10, "float32": 1e6}


@dataclass(frozen=True, eq=False)
class AnalysisProblem(Problem):
    """``y ~ N(Phi u, noise_var I)``, ``B u ~ N(0, diag(alpha)^-1)``, in scaled units.

    alpha has shape (M,), one precision for each row of B; means and variances are those of u, shape (D,).

    Attributes
    ----------
    rows : Rows
        B.
    held_out : Operator or None
        Rows of Phi whose data are predicted; see `cofem.inference.analysis.noise`.
    """

    rows: Rows = None  # type: ignore[assignment]
    held_out: Operator | None = None

    @classmethod
    def of(cls, problem: Problem, operator: Operator, prior: Prior) -> AnalysisProblem:
        """Return a problem in analysis form; the prior says who shares precisions among the rows of B."""
        rows = Rows(operator, problem.y)
        bound = prior.for_rows(RowLayout(rows.bands, operator.row_places, rows.grid))
        bound.check(rows.n_rows)
        return cls(
            problem.phi, problem.y, problem.noise_var, problem.units, bound, problem.nonnegative, rows=rows
        )

    def normalised(self) -> AnalysisProblem:
        """Return the problem itself: rows of B tie columns of Phi to each other."""
        return self

    def split(self, held_out: np.ndarray, noise_var: float) -> tuple[Problem, Operator, Array]:
        """Return the problem without some rows, which are predicted, those rows of Phi, and their data."""
        seen, unseen, y = super().split(held_out, noise_var)
        assert isinstance(seen, AnalysisProblem)
        return replace(seen, held_out=unseen), unseen, y

    def point(self, mean: Array, variance: Array) -> Array:
        """Return the mean: a constraint has no part in the fit, only in what is made of it."""
        return mean

    @property
    def n_precisions(self) -> int:
        """Number of rows of B."""
        return self.rows.n_rows

    @cached_property
    def weights(self) -> Array:
        """What changes of the unknown are weighted by: the same everywhere, also where nothing is seen."""
        energy = self.phi.column_energy
        return namespace(energy).zeros_like(energy) + self.phi.energy / self.n_columns

    @cached_property
    def prior_weights(self) -> Array:
        """What changes of the prior variances of rows are weighted by."""
        return self.rows.for_each(1 / np.maximum(self.rows.energies, 1e-300))

    @cached_property
    def alpha_cap(self) -> float:
        """Precision beyond which a row is zero for every purpose."""
        resolved = self.phi.energy / self.n_columns / self.noise_var
        largest = max(resolved, 1 / self._power, 1e-300)
        return HEADROOM[self.real_dtype.name] * largest / float(np.mean(self.rows.energies))

    @property
    def _power(self) -> float:
        """Mean square of the unknown, as far as the data tell."""
        return self.signal_power * self.n_rows / self.phi.energy

    def usual_start(self) -> Array:
        """Where alpha starts: every row has the same small share of the unknown's power."""
        start = self.rows.for_each(1 / (SHARE_AT_START * self._power * self.rows.energies))
        return on_device_of(self.y, start) if isinstance(start, np.ndarray) else start
