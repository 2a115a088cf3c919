"""Estimators of the posterior variances ``diag(Sigma)``, one interface, one file each."""

from cofem.linalg.diagonals.base import (
    ContinuedContext,
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.diagonals.clusters import Clusters
from cofem.linalg.diagonals.corrected import Corrected
from cofem.linalg.diagonals.exact import Exact
from cofem.linalg.diagonals.gate import Gate
from cofem.linalg.diagonals.paired import Paired
from cofem.linalg.diagonals.pooled import Pooled
from cofem.linalg.diagonals.rademacher import Rademacher
from cofem.linalg.diagonals.self_consistent import SelfConsistent
from cofem.linalg.diagonals.windows import Windows

DIAGONALS: dict[str, type[DiagonalEstimator]] = {
    estimator.name: estimator
    for estimator in (Gate, Rademacher, Paired, Pooled, Clusters, Windows, SelfConsistent, Corrected, Exact)
}

__all__ = [
    "DIAGONALS",
    "Clusters",
    "ContinuedContext",
    "Corrected",
    "DiagonalEstimate",
    "DiagonalEstimator",
    "Exact",
    "Gate",
    "Paired",
    "Pooled",
    "PosteriorContext",
    "Rademacher",
    "RightHandSides",
    "SelfConsistent",
    "Windows",
]
