"""Sparse Bayesian learning for very large dictionaries, without covariance matrices."""

from cofem.inference.amp import AMP
from cofem.inference.cofem import CoFEM
from cofem.inference.em import EM
from cofem.inference.fit import fit
from cofem.inference.irls import IRLS
from cofem.inference.seq import Seq
from cofem.inference.vi import VI
from cofem.operators import as_operator
from cofem.posterior import Posterior, load
from cofem.status import ConvergenceWarning, Status, StatusCode

__version__ = "0.1.0"

__all__ = [
    "AMP",
    "EM",
    "IRLS",
    "VI",
    "CoFEM",
    "ConvergenceWarning",
    "Posterior",
    "Seq",
    "Status",
    "StatusCode",
    "as_operator",
    "fit",
    "load",
]
