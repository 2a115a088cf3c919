"""Posteriors of several tasks, together and apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cofem._arrays import namespace, on_device_of, precision_of, to_numpy
from cofem.operators import Operator
from cofem.posterior.posterior import Posterior


def join_tasks(tasks: Sequence[Posterior]) -> Posterior:
    """Put posteriors of several tasks together as one."""
    longest = max(tasks, key=lambda task: task.n_iter)
    unsettled = [task.status for task in tasks if not task.status.settled]
    in_doubt = [task.status for task in tasks if task.status.warnings]
    worst = next(iter(unsettled + in_doubt), tasks[0].status)
    doubts = dict.fromkeys(text for status in in_doubt for text in status.warnings)
    worst = replace(worst, warnings=tuple(doubts))
    same = all(task.operator is tasks[0].operator for task in tasks)
    like = all(_alike(task, tasks[0]) for task in tasks)
    xp = namespace(tasks[0].mean)
    return Posterior(
        mean=xp.stack([task.mean for task in tasks], axis=1),
        variance=xp.stack([task.variance for task in tasks], axis=1),
        alpha=xp.stack([task.alpha for task in tasks], axis=1) if like else None,
        noise_std=np.array([task.noise_std for task in tasks]),
        method=tasks[0].method,
        status=worst,
        history=longest.history,
        operator=tasks[0].operator if same else None,
        y=xp.stack([task.y for task in tasks], axis=1) if same else None,
        weights=tasks[0].weights if same else None,
        tasks=tuple(tasks),
        analysis=tasks[0].analysis if like else None,
        blocks=tasks[0].blocks,
    )


def _alike(one: Posterior, other: Posterior) -> bool:
    """Tell whether the precisions of two tasks are those of the same rows."""
    first, second = one.analysis, other.analysis
    if one.alpha.shape != other.alpha.shape or (first is None) != (second is None):
        return False
    if first is None or second is None or first is second:
        return True
    # Operators that were learned look the same in words.
    vector = np.random.default_rng(0).standard_normal(first.shape[1]).astype(precision_of(one.mean))
    vector = on_device_of(one.mean, vector)
    return first.shape == second.shape and bool(
        np.array_equal(to_numpy(first.forward(vector)), to_numpy(second.forward(vector)))
    )


def split_tasks(whole: Posterior, operators: Sequence[Operator]) -> Posterior:
    """Take the posterior of a block-diagonal dictionary apart into those of its tasks.

    In analysis form, `analysis` and `alpha` are those of each task already.
    """
    n_columns = operators[0].shape[1]
    of_each = whole.analysis is not None
    ends = np.cumsum([operator.shape[0] for operator in operators])
    rows = [slice(end - op.shape[0], end) for end, op in zip(ends, operators, strict=True)]
    tasks = []
    for i, (operator, row) in enumerate(zip(operators, rows, strict=True)):
        column = slice(i * n_columns, (i + 1) * n_columns)
        gaussian = whole.gaussian
        tasks.append(
            replace(
                whole,
                mean=whole.mean[column],
                variance=whole.variance[column],
                alpha=whole.alpha if of_each else whole.alpha[column],
                operator=operator.astype(precision_of(whole.variance)),
                y=whole.y[row],
                weights=None if whole.weights is None else whole.weights[row],
                gaussian=None if gaussian is None else (gaussian[0][column], gaussian[1][column]),
                blocks=None if whole.blocks is None else whole.blocks[column],
            )
        )
    alpha = whole.alpha if of_each else whole.alpha[:n_columns]
    return replace(join_tasks(tasks), alpha=alpha, noise_std=whole.noise_std, history=whole.history)
