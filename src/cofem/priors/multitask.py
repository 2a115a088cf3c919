"""One precision for each coefficient, shared by several tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cofem.priors.base import Independent


@dataclass(frozen=True)
class MultiTask(Independent):
    """Tasks share their support: ``alpha_j = L / sum_l E |z_jl|^2`` (Ji, Dunson and Carin 2008).

    Data of shape (N, L) have one dictionary in common, and the variances are computed once for all tasks.
    Lists of dictionaries and data may differ in their numbers of rows.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((20, 40))
    >>> Z = np.zeros((40, 3)); Z[[3, 17]] = rng.standard_normal((2, 3))
    >>> Y = Phi @ Z + 0.01 * rng.standard_normal((20, 3))
    >>> post = cofem.fit(Phi, Y, noise_std=0.01, prior=cofem.MultiTask())
    >>> post.mean.shape, bool(np.abs(post.mean - Z).max() < 0.05)
    ((40, 3), True)
    """

    name: ClassVar[str] = "multi-task"
    joins_tasks: ClassVar[bool] = True
