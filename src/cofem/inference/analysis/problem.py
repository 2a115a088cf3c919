"""The problem in analysis form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cofem._arrays import Array, check_same_place, largest_part, namespace, on_device_of
from cofem.inference.base import State
from cofem.inference.problem import Problem
from cofem.linalg.analysis import Rows
from cofem.linalg.analysis.exact import common_null_space
from cofem.linalg.analysis.null_space import NullSpace, null_space, widest
from cofem.operators import Operator, as_operator, check_adjoint
from cofem.priors import Prior, RowLayout

#: Unknowns, and entries of Phi and B, up to which moments are exact.
SMALL_SIDE, SMALL_ENTRIES = 512, 2**21
#: Share of the unknown's power that each row is expected to have at the start, relative to its norm.
SHARE_AT_START = 0.05
#: Largest precision, relative to what the data can resolve.
HEADROOM = {"float64": 1e10, "float32": 1e6}


@dataclass(eq=False)
class WarmStart:
    """Where a fit to most of the data ended.

    Its arrays can be taken once: as large as those of the fit itself, they must not wait until that ends.

    Attributes
    ----------
    state : State or None
        The last state; None once it was taken.
    """

    state: State | None

    def take(self) -> State | None:
        """Return the state, and forget it."""
        state, self.state = self.state, None
        return state


@dataclass(frozen=True, eq=False)
class AnalysisProblem(Problem):
    """``y ~ N(Phi u, noise_var I)``, ``B u ~ N(0, diag(alpha)^-1)``, in scaled units.

    alpha has shape (M,), one precision for each row of B; means and variances are those of u, shape (D,).

    Attributes
    ----------
    rows : Rows
        B.
    held_out : Operator or None
        Rows of Phi whose data are predicted; see `cofem.inference.analysis.prediction`.
    undetermined : ndarray of shape (D, K) or None
        Directions that neither Phi nor B see, orthonormal, as far as they are known; None if there are none.
    null : NullSpace or None
        What B does not see, as far as it is known.
    warm : WarmStart or None
        Where the fit may start.
    scale : float
        What variances of the result are multiplied by, as data that were held out have it.
    """

    rows: Rows = None  # type: ignore[assignment]
    held_out: Operator | None = None
    undetermined: Array | None = None
    null: NullSpace | None = None
    warm: WarmStart | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, problem: Problem, operator: Operator, prior: Prior) -> AnalysisProblem:
        """Return a problem in analysis form; the prior says who shares precisions among the rows of B."""
        if not problem.phi.energy:
            raise ValueError("Phi must not be zero for analysis=...: the data say nothing of the unknown")
        rows = Rows(operator, problem.y)
        boxes = rows.boxes
        if boxes is None:
            layout = RowLayout(rows.bands, operator.row_places, rows.grid)
        else:
            layout = RowLayout(None, None, rows.grid, boxes)
        bound = prior.for_rows(layout)
        bound.check(rows.n_rows)
        found = cls(
            problem.phi, problem.y, problem.noise_var, problem.units, bound, problem.nonnegative, rows=rows
        )
        return replace(found, level=problem.level)._with_null_space()

    def with_noise(self, noise_var: float) -> AnalysisProblem:
        """Return the problem with another noise variance."""
        return replace(self, noise_var=noise_var)

    @property
    def first(self) -> None:
        """None: rows start as usual."""

    def with_constraint(self, mean: Array, variance: Array) -> None:
        """Return None: a constraint has no part in the fit."""

    def normalised(self) -> AnalysisProblem:
        """Return the problem itself: rows of B tie columns of Phi to each other."""
        return self

    def split(
        self, held_out: np.ndarray, noise_var: float, on_average: bool = False
    ) -> tuple[Problem, Operator, Array]:
        """Return the problem without some rows, which are predicted, those rows of Phi, and their data.

        Couplings of the columns of Phi have no part in the fit, so `on_average` changes nothing.
        """
        seen, unseen, y = super().split(held_out, noise_var)
        assert isinstance(seen, AnalysisProblem)
        return replace(seen, held_out=unseen)._with_null_space(), unseen, y

    @property
    def form(self) -> Callable[[Problem], Problem]:
        """What makes of a problem with all data the one that this is a part of, at the noise of this one."""
        rows, prior, noise_var, scale = self.rows, self.prior, self.noise_var, self.scale  # and not Phi

        def in_analysis(problem: Problem) -> Problem:
            given = (problem.phi, problem.y, noise_var, problem.units, prior, problem.nonnegative)
            return AnalysisProblem(*given, rows=rows, scale=scale)._with_null_space()

        return in_analysis

    def _with_null_space(self) -> AnalysisProblem:
        null = null_space(self.phi, self.rows.null_basis)
        found: Array | None = None if null is None or not null.unseen.shape[0] else null.unseen.T
        if self.is_small:
            found = common_null_space(self.phi.matrix, self.rows.matrix)
        return replace(self, undetermined=found, null=null)

    @property
    def widest(self) -> float:
        """Variance of `undetermined`: what stands for an infinite one."""
        assert self.undetermined is not None
        return widest(self.power, self.undetermined)

    @property
    def is_small(self) -> bool:
        """Whether all entries of Phi and B are to be had, for exact moments."""
        d, m = self.n_columns, max(self.rows.n_rows, self.n_rows)
        return isinstance(self.y, np.ndarray) and d <= SMALL_SIDE and d * m <= SMALL_ENTRIES

    def point(self, mean: Array, variance: Array) -> Array:
        """Return the mean: a constraint has no part in the fit, only in what is made of it."""
        return mean

    @property
    def in_analysis(self) -> bool:
        """Precisions are those of the rows of B."""
        return True

    @property
    def n_precisions(self) -> int:
        """Number of rows of B."""
        return self.rows.n_rows

    @cached_property
    def weights(self) -> Array:
        """What changes of the unknown are weighted by: the same everywhere, also where nothing is seen."""
        energy = self.phi.column_energy
        number = self.phi.energy / self.n_columns
        if isinstance(energy, np.ndarray):  # without memory
            return np.broadcast_to(energy.dtype.type(number), energy.shape)
        return namespace(energy).zeros_like(energy) + number

    @property
    def prior_weights(self) -> list[tuple[slice, Array | float]]:
        """Parts of alpha, and what changes of the prior variances of rows are weighted by in each."""
        weights = 1 / np.maximum(self.rows.energies, 1e-300)
        boxes = self.rows.boxes
        if boxes is None:
            return [(slice(None), self.rows.for_each(weights))]
        return [(slice(box.start, box.stop), w) for box, w in zip(boxes, weights.tolist(), strict=True)]

    @cached_property
    def alpha_cap(self) -> float:
        """Precision beyond which a row is zero for every purpose."""
        resolved = self.phi.energy / self.n_columns / self.noise_var
        largest = max(resolved, 1 / self.power, 1e-300)
        return HEADROOM[self.real_dtype.name] * largest / float(np.mean(self.rows.energies))

    @property
    def n_held_out(self) -> int:
        """Number of data that are held out."""
        return 0 if self.held_out is None else self.held_out.shape[0]

    @property
    def power(self) -> float:
        """Mean square of the unknown, as far as the data tell."""
        return self.signal_power * self.n_rows / self.phi.energy

    def usual_start(self) -> Array:
        """Where alpha starts: where an earlier fit ended, else with the same share of power in each row."""
        if self.warm is not None and self.warm.state is not None:
            return self.warm.state.alpha
        start = self.rows.for_each(1 / (SHARE_AT_START * self.power * self.rows.energies))
        return on_device_of(self.y, start) if isinstance(start, np.ndarray) else start


def is_left_open(analysis: Any) -> bool:
    """Tell whether an analysis operator is given by a shape or a name only.

    Examples
    --------
    >>> is_left_open((64, 64)), is_left_open("auto"), is_left_open(np.eye(2))
    (True, True, False)
    """
    is_shape = isinstance(analysis, tuple) and all(isinstance(n, int | np.integer) for n in analysis)
    is_number = isinstance(analysis, int | np.integer) and not isinstance(analysis, bool)
    return isinstance(analysis, str) or is_shape or is_number


def checked_analysis(analysis: Any, problem: Problem, n_columns: int) -> Any:
    """Return a shape or a name as it is, anything else as an operator that can be B; raise by name.

    Parameters
    ----------
    analysis : Operator, matrix, shape or str
        As for `cofem.fit`.
    problem : Problem
        The problem, for the kind of arrays.
    n_columns : int
        Number of unknowns of a task.
    """
    if is_left_open(analysis):
        return analysis
    try:
        operator = as_operator(analysis)
    except (TypeError, ValueError) as error:
        raise type(error)(f"analysis must be an operator, a shape or 'auto': {error}") from error
    if operator.shape[1] != n_columns or operator.shape[0] < 1:
        raise ValueError(
            f"analysis must have {n_columns} columns, as many as Phi, and a row at least, got shape "
            f"{operator.shape}"
        )
    if operator.is_complex and not problem.is_complex:
        raise ValueError("analysis must not be complex where Phi and y are real")
    if operator.device_array is not None:
        check_same_place(problem.y, operator.device_array, "the numbers of analysis")
    try:
        dtype = np.result_type(problem.real_dtype, np.complex64 if problem.is_complex else np.float32)
        same = operator.astype(problem.real_dtype)
        check_adjoint(same, n_vectors=1, dtype=dtype, like=problem.y)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], n_columns).astype(dtype)
        size = largest_part(same.forward(on_device_of(problem.y, signs)))
    except (TypeError, ValueError, FloatingPointError) as error:
        raise type(error)(f"analysis is not what it must be: {error}") from error
    if not np.isfinite(size) or size == 0:
        raise ValueError(f"analysis must be finite and not zero, but the largest part of a product is {size}")
    return operator
