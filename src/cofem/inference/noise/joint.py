"""Parts of the data that are held out, fitted together: one dictionary with a block for each part.

Where a fit is mostly Python's own time, or waits for a matrix to come from memory, five fits in one take
little longer than one. Each block has coefficients and precisions of its own, and the rows that its part
leaves. By message passing, products with all blocks are one batched product with Phi; of few data, all blocks
are factored in one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from cofem._arrays import Array, average, in_precision, is_complex, squared_modulus
from cofem.inference.base import ExpectationMaximisation, Info, Method, Moments, State
from cofem.inference.covariance_free import UNSETTLED, CoFEM
from cofem.inference.irls import IRLS, exact_moments
from cofem.inference.loop import Ended, Stage
from cofem.inference.noise.rules import MOST_SPREAD_EARLY, FromHeldOut, middle
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome
from cofem.inference.registry import is_incoherent
from cofem.inference.stages import Runner
from cofem.linalg.diagonals import DiagonalEstimator
from cofem.linalg.diagonals.self_consistent import as_gaussian_as
from cofem.operators.dictionary import Dictionary
from cofem.operators.row_parts import RowParts
from cofem.status import StatusCode

#: Data from which on message passing is faster: exact steps of fewer take less than its Python.
ENOUGH_ROWS = 48
#: Noise variance relative to the data below which most parts have found their signal. One that has not goes
#: on for long at a noise far too small for it (17 s of 18 in a fit of 205 x 1024), and does not count.
#: Before, it is those that still move that find something.
SIGNAL_FOUND = 0.01
#: Columns for each datum up to which parts may end with the noise, together or one by one.
WIDE = 16


@dataclass(frozen=True, eq=False)
class JointProblem(Problem):
    """The data without each of several parts, side by side.

    Attributes
    ----------
    block : Problem or None
        The first of them by itself, which callbacks are shown.
    parts : RowParts or None
        What is left of Phi in each.
    """

    block: Problem | None = None
    parts: RowParts | None = None

    @property
    def n_fits(self) -> int:
        """Number of blocks, once most of them have found their signal; one before."""
        assert self.parts is not None
        found = self.noise_var <= SIGNAL_FOUND * average(squared_modulus(self.y))
        return len(self.parts.kept) if found else 1

    def shown(self, state: State) -> tuple[Problem, State]:
        """Return the first block."""
        assert self.block is not None
        place = slice(0, self.block.n_columns)
        state = State(state.alpha[place], state.mean[place], state.variance[place])
        return self.block.with_noise(self.noise_var), state


@dataclass(frozen=True, eq=False)
class FromParts(FromHeldOut):
    """The median of what the parts say, less its bias, each by the rule of `FromHeldOut`.

    Parameters
    ----------
    sizes : tuple of int
        How many data each part holds out; they follow each other in `y`.
    lost : int
        How many further parts have lost their signal, and count as if they said that all is noise.
    """

    sizes: tuple[int, ...] = ()
    lost: int = 0

    @cached_property
    def _starts(self) -> np.ndarray:
        """Where each part begins."""
        return np.cumsum([0, *self.sizes[:-1]])

    def __call__(self, problem: Problem, state: State, settled: bool) -> float:
        """Return the noise variance for the next step."""
        error = self.errors(state)
        energies = (state.variance * self.column_energy).reshape(len(self.sizes), -1)
        spread = energies.sum(axis=1) / self.sizes
        said = map(self.less_spread, error.tolist(), spread.tolist())
        squares = min(self.sizes) * (2 if is_complex(self.y) else 1)
        found = middle([*said, *self.lost * [math.inf]], squares)
        found = min(found, average(squared_modulus(self.y)))
        return found if settled else min(found, problem.noise_var)

    def errors(self, state: State) -> np.ndarray:
        """Return the mean squared error of each part."""
        errors = squared_modulus(self.y - self.phi.forward(state.mean))
        return np.add.reduceat(errors, self._starts) / self.sizes


@dataclass(frozen=True)
class ExactParts(IRLS):
    """Exact EM on every block, as `IRLS` on each."""

    def moments(self, problem: Problem, alpha: Array) -> Moments:
        """Factor the covariance of the data of each block, and whiten its columns with it."""
        assert isinstance(problem, JointProblem)
        assert problem.parts is not None
        phi, noise_var = problem.parts.matrices, problem.noise_var
        blocks, n_rows, n_columns = phi.shape
        g = 1 / alpha.astype(np.float64).reshape(blocks, n_columns)
        y = problem.y.reshape(blocks, n_rows, 1)
        found = [exact_moments(phi[i], y[i], g[i], noise_var) for i in range(blocks)]
        mean = np.concatenate([each.mean for each in found]).ravel()
        explained = np.concatenate([each.explained for each in found])
        floor = 1 / (alpha + problem.phi.column_energy.astype(np.float64) / noise_var)
        variance = np.maximum(g.ravel() * (1 - explained), floor)
        log_det, quadratic = (sum(values) for values in zip(*(each[2:] for each in found), strict=True))
        info = Info(figures={"log_evidence": problem.log_evidence(log_det, quadratic)})
        return Moments(mean.astype(problem.y.dtype), variance.astype(problem.real_dtype), None, info)


@dataclass(frozen=True)
class SweptParts(CoFEM):
    """`CoFEM` by message passing and the self-consistent equation alone.

    Systems of all blocks together are too large to be solved in another way (205 x 1024: 17 s in place of
    0.1 s). Nor is the last mean solved for, or a variance checked: nothing but what the parts say of data
    that were held out is wanted.
    """

    diagonal: str | DiagonalEstimator = "self_consistent"

    takes_over: ClassVar[bool] = False
    #: With 0.15 and 0.2, as elsewhere, 3 to 22 % more products for the same noise.
    late_share: ClassVar[float | None] = 0.4

    def confirm(
        self, problem: Problem, state: State, info: Info, limit: float, rng: np.random.Generator
    ) -> tuple[State, Info, str]:
        """Scale coefficients near zero together, if that pays."""
        return ExpectationMaximisation.confirm(self, problem, state, info, limit, rng)

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Return the state as it is."""
        return state, Info()


def joint_method(problem: Problem, parts: Sequence[np.ndarray]) -> Method | None:
    """Return the method that fits all parts together; None where they are better fitted one by one."""
    plain = isinstance(problem.y, np.ndarray) and problem.y.ndim == 1
    plain = plain and problem.prior.is_independent and not (problem.nonnegative or problem.in_analysis)
    if len(parts) < 2 or not plain:
        return None
    if problem.n_rows < ENOUGH_ROWS:
        exact = problem.n_columns <= WIDE * problem.n_rows and not problem.phi.is_like_a_convolution
        return ExactParts(accelerate=True) if exact else None
    if problem.n_columns > WIDE * problem.n_rows or not is_incoherent(problem):
        return None
    return SweptParts()


def run_jointly(
    problem: Problem,
    parts: Sequence[np.ndarray],
    noise_var: float,
    method: Method,
    stage: Stage,
    runner: Runner,
) -> tuple[Outcome, FromParts] | None:
    """Fit the rest of the data for all parts at once; None where no more than half of them keep their signal.

    A part that has lost its signal is fitted at a noise far too small for it, and soon takes as many columns
    as it has data: sweeps do not settle then. The one whose predictions are worst is left out, and the others
    go on.
    """
    left = list(parts)
    while True:
        seen, rule = split_jointly(problem, left, noise_var)
        rule = replace(rule, most_spread=MOST_SPREAD_EARLY, lost=len(parts) - len(left))
        outcome = runner.run(seen, method, stage._replace(noise=rule, judge=rule.judge))
        if outcome.status.message != UNSETTLED:
            return outcome, rule
        worst = int(np.argmax(rule.errors(outcome.state)))
        alpha = np.delete(Ended.of(outcome, method).alpha.reshape(len(left), -1), worst, axis=0)
        del left[worst]
        if 2 * len(left) <= len(parts):
            return None
        noise_var = outcome.problem.noise_var
        stage = stage._replace(name=f"{stage.name}/less", before=Ended(alpha.ravel(), method, None))


def split_jointly(
    problem: Problem, parts: Sequence[np.ndarray], noise_var: float
) -> tuple[JointProblem, FromParts]:
    """Return the problem without each of the parts, and the rule that judges by all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> problem = Problem(Dictionary(Dense(np.eye(4)), like=np.zeros(1)), np.arange(4.0), 1.0)
    >>> joint, rule = split_jointly(problem, [np.array([0]), np.array([3])], 0.5)
    >>> joint.phi.shape, joint.y.tolist(), rule.y.tolist()
    ((6, 8), [1.0, 2.0, 3.0, 0.0, 1.0, 2.0], [0.0, 3.0])
    """
    phi, operator = problem.phi, problem.phi.operator
    kept = [np.setdiff1d(np.arange(problem.n_rows), rows) for rows in parts]
    left = RowParts(operator, kept)
    joint = as_gaussian_as(Dictionary(left, phi.like, counter=phi.counter), phi)
    columns = problem.units.columns
    units = problem.units if columns is None else replace(problem.units, columns=np.tile(columns, len(parts)))
    block = replace(problem, phi=phi.take_rows(kept[0]), y=problem.y[kept[0]], noise_var=noise_var)
    y = problem.y[np.concatenate(kept)]
    seen = JointProblem(joint, y, noise_var, units, problem.prior, block=block, parts=left)
    held_out = RowParts(operator, parts)
    rule = FromParts(
        held_out,
        problem.y[np.concatenate(parts)],
        in_precision(held_out.column_norms() ** 2, problem.real_dtype.name),
        orthonormal=phi.facts.row_gram is not None,
        sizes=tuple(rows.size for rows in parts),
    )
    return seen, rule
