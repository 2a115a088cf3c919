"""Exact variances, where the problem or what is left of its support is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from cofem._arrays import Array, conj, in_precision, namespace, precision_of
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.factor import (
    add_to_diagonal,
    cholesky,
    energy_of_columns,
    hermitian_product,
    inverse_of_lower,
    solve_lower,
)

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
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import Dense
    >>> Phi, alpha = Dense([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0])
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), alpha, 0.5)
    >>> found = Exact().estimate(context, None, RightHandSides(), None)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(2)) / 0.5 + np.diag(alpha))
    >>> np.allclose(found.value, np.diag(Sigma)), found.standard_error
    (True, 0.0)
    """

    name: ClassVar[str] = "exact"

    def is_exact(self, carry: Any) -> bool:
        """Tell that they are."""
        return True

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Write out the live columns and factor."""
        columns, g, live = live_columns(context)
        value = context.g
        if columns.shape[0]:
            found = exact_shares(columns, g, context.noise_var)
            if live is None:
                value = in_precision(in_precision(value, "float64") * found, precision_of(value))
            else:
                value[live] = g * found
        return DiagonalEstimate(context.clip(value), 0.0, used=self.name)


def live_columns(context: PosteriorContext) -> tuple[Array, Array, np.ndarray | None]:
    """Write out the columns that remain without the weakest, which together hardly add to the noise.

    Returns
    -------
    columns : array of shape (K, N), in double precision
        Columns of Phi, one in each row.
    g : array of shape (K,), in double precision
        Their prior variances.
    live : ndarray of int, shape (K,), or None
        Which columns they are. None for all of them, where arrays cannot be picked from without leaving
        their device; those that are left out then have a g of zero, and are as good as gone.
    """
    phi, g = context.phi, context.g
    strength = g * phi.column_energy
    limit = NEGLIGIBLE * context.noise_var
    if isinstance(strength, np.ndarray):
        order = np.argsort(strength)
        total = np.cumsum(strength[order], dtype=float)
        live = np.sort(order[int(np.searchsorted(total, limit)) :])
        columns = phi.columns(live) if live.size else np.empty((0, phi.shape[0]))
        return in_precision(columns, "float64"), in_precision(g[live], "float64"), live
    xp = namespace(strength)
    g, strength = in_precision(g, "float64"), in_precision(strength, "float64")
    in_order = xp.sort(strength)
    gone = int(xp.count_nonzero(xp.cumulative_sum(in_order) < limit))
    least = float(in_order[gone]) if gone < strength.shape[0] else np.inf
    g = xp.where(strength >= least, g, xp.zeros_like(g))
    identity = xp.eye(phi.shape[0], dtype=context.like.dtype, device=array_api_compat.device(g))
    rows = conj(phi.operator.adjoint(identity))
    return in_precision(rows, "float64").T, g, None


def exact_shares(columns: Array, g: Array, noise_var: float) -> Array:
    """Return ``diag((Phi^H Phi / noise_var + diag(1/g))^-1) / g`` for the transpose of Phi, shape (D, N).

    Through the smaller of D x D and N x N.

    Examples
    --------
    >>> import numpy as np
    >>> np.round(exact_shares(np.eye(2), np.array([1.0, 0.0]), 1.0), 6).tolist()
    [0.5, 1.0]
    """
    d, n = columns.shape
    scaled = columns * namespace(g).sqrt(g)[:, None]
    if d <= n:
        # I + beta G^1/2 Phi^H Phi G^1/2, whose inverse has the shares 1 - gamma on its diagonal
        matrix = add_to_diagonal(hermitian_product(scaled.T, 1 / noise_var, adjoint=True), 1.0)
        return energy_of_columns(inverse_of_lower(cholesky(matrix)))
    factor = cholesky(add_to_diagonal(hermitian_product(scaled.T), noise_var))
    return 1 - energy_of_columns(solve_lower(factor, scaled.T))
