"""Sequential maximisation of the evidence: add, re-estimate or delete one coefficient at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import linalg

from cofem._arrays import Array
from cofem._blocks import blocks, vectors_at_once
from cofem._packing import packable
from cofem.inference.base import Info, Method, State
from cofem.inference.problem import Problem
from cofem.status import StatusCode


@packable("seq")
@dataclass(frozen=True)
class Model:
    """The active set and its statistics.

    Attributes
    ----------
    active : ndarray of int, shape (d,)
        Coefficients in the model.
    alpha, mean : ndarrays of shape (d,)
        Their precisions and posterior means.
    covariance : ndarray of shape (d, d)
        Their posterior covariance.
    sparsity, quality : ndarrays of shape (D,)
        ``S_j = phi_j^T C^-1 phi_j`` and ``Q_j = phi_j^T C^-1 y`` of every column.
    log_evidence : float
        Log evidence of the model.
    """

    active: np.ndarray
    alpha: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    sparsity: np.ndarray
    quality: np.ndarray
    log_evidence: float


@dataclass(frozen=True)
class Seq(Method):
    """Tipping and Faul's fast marginal likelihood maximisation (2003).

    Starts from an empty model; each outer step takes the one action (add, re-estimate or delete a
    coefficient) that raises the evidence most. Time O(d^2 + one application) a step, memory
    O(D + d^2); columns of Phi are computed when needed, so structured operators work.

    Parameters
    ----------
    min_gain : float
        Converged when no action would raise the log evidence by more than this (nats).

    Examples
    --------
    >>> import numpy as np, cofem
    >>> Phi = np.array([[1.0, 0.0, 0.6], [0.0, 1.0, 0.8]])
    >>> post = cofem.fit(Phi, np.array([1.0, 0.0]), noise_std=0.01, method="seq")
    >>> post.support().tolist(), post.status.code.value
    ([0], 'converged')
    """

    min_gain: float = 1e-4

    name: ClassVar[str] = "seq"
    complex_data: ClassVar[bool] = False
    several_tasks: ClassVar[bool] = False
    any_prior: ClassVar[bool] = False
    default_max_iter: ClassVar[int] = 1_000_000
    stops_itself: ClassVar[bool] = True

    def init(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> tuple[State, Info]:
        """Take the first action of an empty model; `alpha` is not used."""
        return self._act(problem, empty_model(problem))

    def step(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """Take the best action, or end if it is not worth it."""
        return self._act(problem, state.carry)

    def _act(self, problem: Problem, model: Model) -> tuple[State, Info]:
        index, alpha, gain = best_action(model)
        end, message = None, ""
        if gain > self.min_gain:
            model = apply_action(problem, model, index, alpha, gain)
        else:
            end = StatusCode.CONVERGED
            message = f"no action raises the log evidence by more than {self.min_gain:g} nats"
        figures: dict[str, float | str] = {
            "log_evidence": model.log_evidence,
            "active": float(model.active.size),
        }
        return _as_state(problem, model), Info(figures=figures, end=end, message=message)

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Compute the moments afresh."""
        return _as_state(problem, refresh(problem, state.carry)), Info()


def empty_model(problem: Problem) -> Model:
    """Model without coefficients, where C is the noise alone."""
    beta = 1 / problem.noise_var
    y = problem.y.astype(np.float64)
    log_det = problem.n_rows * np.log(problem.noise_var)
    return Model(
        active=np.zeros(0, int),
        alpha=np.zeros(0),
        mean=np.zeros(0),
        covariance=np.zeros((0, 0)),
        sparsity=beta * _exact_column_energy(problem),
        quality=beta * problem.phi.adjoint(y),
        log_evidence=problem.log_evidence(log_det, beta * float(y @ y)),
    )


def best_action(model: Model) -> tuple[int, float, float]:
    """Find the action that raises the evidence most: (column, its new alpha, gain in nats).

    A new alpha of infinity removes the column from the model.
    """
    # s and q are the statistics with the column itself taken out of C. For a column in the model,
    # variance = 1 / (alpha + s) and mean = q / (alpha + s) give them without cancellation.
    s_out, q_out = model.sparsity.copy(), model.quality.copy()
    inside = model.active
    variance = np.diagonal(model.covariance)
    s_out[inside] = np.maximum(1 / variance - model.alpha, 0)
    q_out[inside] = model.mean / variance
    worth = q_out**2 - s_out
    gains = np.full(worth.size, -np.inf)
    target = np.full(worth.size, np.inf)
    useful = (worth > 0) & (s_out > 0)
    target[useful] = s_out[useful] ** 2 / worth[useful]
    ratio = q_out[useful] ** 2 / s_out[useful]
    gains[useful] = 0.5 * (ratio - 1 - np.log(ratio))
    # Gains of columns in the model are relative to where they stand now.
    now = _alone(model.alpha, s_out[inside], q_out[inside])
    best = np.where(useful[inside], gains[inside], 0.0)
    gains[inside] = best - now
    index = int(np.argmax(gains))
    return index, float(target[index]), float(gains[index])


def _alone(alpha: np.ndarray, s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Evidence that a column adds at precision alpha: ``(log a/(a+s) + q^2/(a+s)) / 2``."""
    return 0.5 * (np.log(alpha / (alpha + s)) + q**2 / (alpha + s))


def apply_action(problem: Problem, model: Model, index: int, alpha: float, gain: float) -> Model:
    """Give column `index` precision `alpha` (infinity removes it); rank-one updates of everything."""
    position = np.flatnonzero(model.active == index)
    if position.size == 0:
        return _add(problem, model, index, alpha, gain)
    return _change(problem, model, int(position[0]), alpha, gain)


def _add(problem: Problem, model: Model, index: int, alpha: float, gain: float) -> Model:
    beta = 1 / problem.noise_var
    unit = np.zeros(problem.n_columns)
    unit[index] = 1.0
    overlap = problem.phi.adjoint(problem.phi.forward(unit))[model.active]
    direction = beta * (model.covariance @ overlap)
    variance = 1 / (alpha + model.sparsity[index])
    mean = variance * model.quality[index]
    # What is new in the column, as coefficients, and its overlap with every column.
    unit[model.active] -= direction
    change = beta * problem.phi.adjoint(problem.phi.forward(unit))
    d = model.active.size
    covariance = np.empty((d + 1, d + 1))
    covariance[:d, :d] = model.covariance + variance * np.outer(direction, direction)
    covariance[:d, d] = covariance[d, :d] = -variance * direction
    covariance[d, d] = variance
    return Model(
        active=np.append(model.active, index),
        alpha=np.append(model.alpha, alpha),
        mean=np.append(model.mean - mean * direction, mean),
        covariance=covariance,
        sparsity=model.sparsity - variance * change**2,
        quality=model.quality - mean * change,
        log_evidence=model.log_evidence + gain,
    )


def _change(problem: Problem, model: Model, at: int, alpha: float, gain: float) -> Model:
    column = model.covariance[:, at]
    # 1 / (alpha_new - alpha_old) vanishes on removal, where alpha_new is infinite.
    weight = 1 / (column[at] + 1 / (alpha - model.alpha[at]))
    spread = np.zeros(problem.n_columns)
    spread[model.active] = column
    change = problem.phi.adjoint(problem.phi.forward(spread)) / problem.noise_var
    new = Model(
        active=model.active,
        alpha=model.alpha.copy(),
        mean=model.mean - weight * model.mean[at] * column,
        covariance=model.covariance - weight * np.outer(column, column),
        sparsity=model.sparsity + weight * change**2,
        quality=model.quality + weight * model.mean[at] * change,
        log_evidence=model.log_evidence + gain,
    )
    new.alpha[at] = alpha
    return new if np.isfinite(alpha) else _drop(new, at)


def _drop(model: Model, at: int) -> Model:
    return Model(
        active=np.delete(model.active, at),
        alpha=np.delete(model.alpha, at),
        mean=np.delete(model.mean, at),
        covariance=np.delete(np.delete(model.covariance, at, 0), at, 1),
        sparsity=model.sparsity,
        quality=model.quality,
        log_evidence=model.log_evidence,
    )


def refresh(problem: Problem, model: Model) -> Model:
    """Compute covariance, mean, quality and evidence afresh, free of the drift of rank-one updates.

    Costs O(d^3 + d applications), no more than the d additions that made the model. (The sparsity
    statistic of all D columns would cost a solve for each; it is kept.)
    """
    beta, active = 1 / problem.noise_var, model.active
    if active.size == 0:
        return empty_model(problem)
    gram = np.concatenate(
        [problem.phi.adjoint(block)[:, active] for block in _column_blocks(problem, active)]
    )
    matrix = beta * 0.5 * (gram + gram.T)
    matrix[np.diag_indices_from(matrix)] += model.alpha
    factor = linalg.cho_factor(matrix, lower=True)
    covariance = linalg.cho_solve(factor, np.eye(active.size))
    y = problem.y.astype(np.float64)
    mean = beta * linalg.cho_solve(factor, problem.phi.adjoint(y)[active])
    coefficients = np.zeros(problem.n_columns)
    coefficients[active] = mean
    misfit = y - problem.phi.forward(coefficients)
    log_det = (
        2 * np.sum(np.log(np.diagonal(factor[0])))
        + problem.n_rows * np.log(problem.noise_var)
        - np.sum(np.log(model.alpha))
    )
    return Model(
        active=active,
        alpha=model.alpha,
        mean=mean,
        covariance=covariance,
        sparsity=model.sparsity,
        quality=beta * problem.phi.adjoint(misfit),
        log_evidence=problem.log_evidence(float(log_det), beta * float(y @ misfit)),
    )


def _column_blocks(problem: Problem, indices: np.ndarray) -> Iterator[np.ndarray]:
    """Columns of Phi, a few at a time."""
    for some in blocks(indices.size, vectors_at_once(problem.n_columns)):
        yield problem.phi.columns(indices[some]).astype(np.float64, copy=False)


def _exact_column_energy(problem: Problem) -> np.ndarray:
    """``||phi_j||^2`` to rounding: the sequential statistics build on it."""
    if problem.phi.column_norms_exact:
        return problem.phi.column_norms().astype(np.float64) ** 2
    blocks = _column_blocks(problem, np.arange(problem.n_columns))
    return np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks])


def _as_state(problem: Problem, model: Model) -> State:
    real = problem.real_dtype
    alpha = np.full(problem.n_columns, problem.alpha_cap, real)
    mean = np.zeros(problem.n_columns, real)
    variance = np.full(problem.n_columns, 1 / problem.alpha_cap, real)
    alpha[model.active] = model.alpha
    mean[model.active] = model.mean
    variance[model.active] = np.diagonal(model.covariance)
    return State(alpha, mean, variance, model)
