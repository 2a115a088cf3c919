"""Small steps of a regression: centred columns, common scales, weights, targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from cofem.operators import Centred, Operator

#: A centred column counts as zero below this many roundings of the column it came from.
ROUNDINGS = 100


def as_targets(y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the targets in the precision of X."""
    if y.ndim not in (1, 2):
        raise ValueError(f"y must have shape (n_samples,) or (n_samples, n_targets), got {y.shape}")
    if np.iscomplexobj(y):
        raise ValueError("Complex data not supported: y is complex; use cofem.fit")
    return y.astype(dtype)


def without_weightless(X: Any, y: np.ndarray, weights: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Leave out samples of weight zero."""
    rows = np.flatnonzero(weights)
    if rows.size == weights.size:
        return X, y, weights
    if rows.size < 2:
        raise ValueError(f"sample_weight must be positive for at least 2 samples, got {rows.size}")
    part = X.take_rows(rows) if isinstance(X, Operator) else X[rows]
    return part, y[rows], weights[rows]


def without_rounding(y: np.ndarray, offset: Any) -> np.ndarray:
    """Return centred targets, zero where they were constant: the fit would explain the rounding."""
    constant = np.max(np.abs(y), axis=0) <= 8 * np.finfo(y.dtype).eps * np.abs(offset)
    return np.where(constant, y.dtype.type(0), y)


def column_sizes(dictionary: Operator, offset: np.ndarray | None) -> np.ndarray:
    """Return the norms of the centred columns to within a factor of about three, 0 for constant columns.

    Scales make no difference to a fit, so it would take what rounding leaves of a constant for a feature.
    """
    rng = np.random.default_rng(0)
    probes = rng.standard_normal((4, dictionary.shape[0])).astype(dictionary.dtype)
    if offset is None:
        return np.max(np.abs(dictionary.adjoint(probes)), axis=0)
    size = np.max(np.abs(Centred(dictionary, offset).adjoint(probes)), axis=0)
    rounding = np.finfo(dictionary.dtype).eps * np.sqrt(dictionary.shape[0]) * np.abs(offset)
    return np.where(size > ROUNDINGS * rounding, size, 0)
