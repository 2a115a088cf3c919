"""What the estimators report beside scikit-learn's attributes: the evidence, and tables with names."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem.posterior import Posterior


def scores(posterior: Posterior) -> Any:
    """Return the log evidence at every step where the method knows it, else at the end."""
    if posterior.tasks is not None:
        return [scores(task) for task in posterior.tasks]
    each = posterior.history.get("log_evidence")
    return np.array([posterior.log_evidence().value]) if each is None else np.asarray(each)


def coef_table(posterior: Posterior, names: np.ndarray | None, level: float) -> Any:
    """Return a pandas table of the coefficients.

    Parameters
    ----------
    posterior : Posterior
        Of D coefficients, and L targets.
    names : ndarray of shape (D,) or None
        Names of the features; None for x0, x1, ...
    level : float
        Probability of the intervals.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("coef_table needs pandas: pip install pandas") from error
    n_columns, n_tasks = posterior.mean.shape[0], posterior.n_tasks
    features = [f"x{i}" for i in range(n_columns)] if names is None else names.tolist()
    lower, upper = posterior.credible_interval(level)
    supported = np.zeros(posterior.mean.shape, bool)
    each = [supported] if posterior.mean.ndim == 1 else list(supported.T)
    for task, flags in enumerate(each):
        shared = posterior.tasks is None
        flags[posterior.support() if shared else posterior.task(task).support()] = True
    columns = {
        "coef": posterior.mean,
        "std": posterior.std,
        "lower": lower,
        "upper": upper,
        "in_support": supported,
    }
    index: Any = pandas.Index(features, name="feature")
    if posterior.mean.ndim == 2:
        index = pandas.MultiIndex.from_product([range(n_tasks), features], names=["target", "feature"])
    return pandas.DataFrame(
        {name: np.ravel(np.asarray(value).T) for name, value in columns.items()}, index=index
    )
