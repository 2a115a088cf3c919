"""Exact variances, where the problem or what is left of its support is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from scipy import linalg

from cofem._arrays import Array, conj, in_precision, namespace
from cofem.linalg.diagonals.base import Columns, DiagonalEstimate, DiagonalEstimator, Setting
from cofem.linalg.direct import rank_update

#: Coefficients count as gone when all of them together explain less than this share of the noise.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class Exact(DiagonalEstimator):
    """``diag(Sigma)`` by factoring a matrix, N x N or of the size of the live support.

    Coefficients whose prior variance is so small that together they add less than a thousandth to the
    noise are left out: their variance is that of the prior.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> Phi, alpha = Dense([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0])
    >>> setting = Setting(Phi, Phi, alpha, 0.5, Phi.column_norms() ** 2, np.zeros(1))
    >>> found = Exact().estimate(setting, None, Columns(), None)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(2)) / 0.5 + np.diag(alpha))
    >>> np.allclose(found.value, np.diag(Sigma)), found.standard_error
    (True, 0.0)
    """

    name: ClassVar[str] = "exact"

    def estimate(self, setting: Setting, carry: Any, columns: Columns, x: Array) -> DiagonalEstimate:
        """Write out the live columns and factor."""
        if not isinstance(setting.alpha, np.ndarray):
            return DiagonalEstimate(setting.clip(_variances_anywhere(setting)), 0.0, used=self.name)
        live = live_columns(setting)
        if live.size == 0:
            return DiagonalEstimate(setting.clip(setting.g), 0.0, used=self.name)
        matrix = setting.operator.columns(live)  # rows are columns of Phi
        kind = np.complex128 if np.iscomplexobj(matrix) else np.float64
        value = setting.g
        value[live] = exact_variances(matrix.astype(kind), value[live].astype(np.float64), setting.noise_var)
        return DiagonalEstimate(setting.clip(value), 0.0, used=self.name)


def live_columns(setting: Setting) -> np.ndarray:
    """Columns that remain when the weakest, which together hardly add to the noise, are left out."""
    strength = setting.g * setting.column_energy
    order = np.argsort(strength)
    total = np.cumsum(strength[order], dtype=float)
    gone = int(np.searchsorted(total, NEGLIGIBLE * setting.noise_var))
    return np.sort(order[gone:])


def exact_variances(columns: np.ndarray, g: np.ndarray, noise_var: float) -> np.ndarray:
    """``diag((Phi^H Phi / noise_var + diag(1/g))^-1)`` for the transpose of Phi, shape (D, N).

    Through the smaller of D x D and N x N.

    Examples
    --------
    >>> import numpy as np
    >>> np.round(exact_variances(np.eye(2), np.ones(2), 1.0), 6).tolist()
    [0.5, 0.5]
    """
    d, n = columns.shape
    scaled = columns * np.sqrt(g)[:, None]
    update, adjoint = rank_update(scaled.dtype)
    if d <= n:
        # I + beta G^1/2 Phi^H Phi G^1/2, whose inverse has the shares 1 - gamma on its diagonal
        matrix = update(1 / noise_var, scaled.T, trans=adjoint, lower=1)
        matrix[np.diag_indices_from(matrix)] += 1
        factor = linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        inverse, _ = linalg.lapack.get_lapack_funcs("trtri", (factor,))(factor, lower=1, overwrite_c=1)
        return g * np.einsum("ij,ij->j", inverse.conj(), inverse).real
    matrix = update(1.0, scaled.T, lower=1)
    matrix[np.diag_indices_from(matrix)] += noise_var
    factor = linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    white = linalg.solve_triangular(factor, scaled.T, lower=True, check_finite=False)
    return g * (1 - np.einsum("ij,ij->j", white.conj(), white).real)


def _variances_anywhere(setting: Setting) -> Array:
    """Do what `Exact` does, on any array library, in double precision."""
    n, d = setting.phi.shape
    xp = namespace(setting.alpha)
    g = in_precision(setting.g, "float64")
    device = array_api_compat.device(g)
    strength = g * in_precision(setting.column_energy, "float64")
    in_order = xp.sort(strength)
    gone = int(xp.count_nonzero(xp.cumulative_sum(in_order) < NEGLIGIBLE * setting.noise_var))
    if gone == d:
        return g
    # What is left out has no variance to begin with, rather than no column.
    live = xp.where(strength >= in_order[gone], g, xp.zeros_like(g))
    identity = xp.eye(min(n, d), dtype=setting.like.dtype, device=device)
    if d <= n:
        matrix = in_precision(setting.operator.gram(identity), "float64")
        root = xp.sqrt(live)
        matrix = root[:, None] * (matrix / setting.noise_var) * root[None, :]
        inverse = xp.linalg.inv(matrix + xp.eye(d, dtype=matrix.dtype, device=device))
        return g * xp.real(xp.linalg.diagonal(inverse))
    rows = in_precision(setting.operator.adjoint(identity), "float64")  # row i is that of Phi, conjugated
    matrix = conj(rows * live) @ rows.T
    matrix = matrix + setting.noise_var * xp.eye(n, dtype=matrix.dtype, device=device)
    solved = xp.linalg.solve(matrix, conj(rows))
    return g * (1 - live * xp.real(xp.sum(rows * solved, axis=0)))
