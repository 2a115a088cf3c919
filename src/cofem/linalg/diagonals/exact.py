"""Exact variances, where the problem or what is left of its support is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import Array, in_precision, namespace, precision_of, take, to_numpy
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
from cofem.operators import Mask

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

    def estimate(self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array) -> DiagonalEstimate:
        """Write out the live columns and factor."""
        live = live_columns(context)
        value = context.g
        if live.size:
            columns = in_precision(context.phi.columns(live), "float64")  # rows are columns of Phi
            g = in_precision(take(value, live, axis=0), "float64")
            found = in_precision(exact_variances(columns, g, context.noise_var), precision_of(value))
            place = Mask(live, value.shape[0])
            xp = namespace(value)
            value = xp.where(place.adjoint(xp.ones_like(found)) > 0, place.adjoint(found), value)
        return DiagonalEstimate(context.clip(value), 0.0, used=self.name)


def live_columns(context: PosteriorContext) -> np.ndarray:
    """Columns that remain when the weakest, which together hardly add to the noise, are left out."""
    strength = to_numpy(context.g * context.phi.column_energy)
    order = np.argsort(strength)
    total = np.cumsum(strength[order], dtype=float)
    gone = int(np.searchsorted(total, NEGLIGIBLE * context.noise_var))
    return np.sort(order[gone:])


def exact_variances(columns: Array, g: Array, noise_var: float) -> Array:
    """``diag((Phi^H Phi / noise_var + diag(1/g))^-1)`` for the transpose of Phi, shape (D, N).

    Through the smaller of D x D and N x N.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> np.round(exact_variances(np.eye(2), np.ones(2), 1.0), 6).tolist()
    [0.5, 0.5]
    """
    d, n = columns.shape
    scaled = columns * namespace(g).sqrt(g)[:, None]
    if d <= n:
        # I + beta G^1/2 Phi^H Phi G^1/2, whose inverse has the shares 1 - gamma on its diagonal
        matrix = add_to_diagonal(hermitian_product(scaled.T, 1 / noise_var, adjoint=True), 1.0)
        return g * energy_of_columns(inverse_of_lower(cholesky(matrix)))
    factor = cholesky(add_to_diagonal(hermitian_product(scaled.T), noise_var))
    return g * (1 - energy_of_columns(solve_lower(factor, scaled.T)))
