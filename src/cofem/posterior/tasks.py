"""Posteriors of several tasks, together and apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cofem._arrays import namespace, precision_of
from cofem.operators import Operator
from cofem.posterior.posterior import Posterior


def join_tasks(tasks: Sequence[Posterior]) -> Posterior:
    """Put posteriors of several tasks together as one."""
    longest = max(tasks, key=lambda task: task.n_iter)
    worst = next((task.status for task in tasks if not task.converged), tasks[0].status)
    same = all(task.operator is tasks[0].operator for task in tasks)
    like = all(
        task.alpha.shape == tasks[0].alpha.shape and str(task.analysis) == str(tasks[0].analysis)
        for task in tasks
    )
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
    )


def split_tasks(whole: Posterior, operators: Sequence[Operator]) -> Posterior:
    """Take the posterior of a block-diagonal dictionary apart into those of its tasks."""
    n_columns = operators[0].shape[1]
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
                alpha=whole.alpha[column],
                operator=operator.astype(precision_of(whole.variance)),
                y=whole.y[row],
                weights=None if whole.weights is None else whole.weights[row],
                gaussian=None if gaussian is None else (gaussian[0][column], gaussian[1][column]),
            )
        )
    return replace(
        join_tasks(tasks), alpha=whole.alpha[:n_columns], noise_std=whole.noise_std, history=whole.history
    )
