"""Exact variances, where the problem or what is left of its support is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import array_api_compat
import numpy as np

from cofem._arrays import Array, conj, in_precision, namespace, on_device_of, precision_of, to_numpy
from cofem.linalg.banded_inverse import LEAST_BLOCK, inverse_diagonal
from cofem.linalg.decaying_shares import decaying_shares
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
from cofem.linalg.preconditioners.banded import gram_bands, known_bands
from cofem.linalg.preconditioners.decays import known_decay
from cofem.operators.dictionary import Dictionary

#: Coefficients count as gone when all of them together explain less than this share of the noise.
NEGLIGIBLE = 1e-3
#: Columns times squared reach up to which variances of what is coupled along a line are exact: about half a
#: second a step at most.
MOST_WORK = 2**30
#: Error of the strongest impulse up to which a kernel that breaks off counts as a decay, where bands could
#: take its place; and share of the energy that may be left out where samples are missing and there are none:
#: with more, single variances of strong signals were off by a factor of 25.
ERROR_OF_DECAY, LITTLE_LEFT_OUT = 0.2, 1e-6


@dataclass(frozen=True)
class Exact(DiagonalEstimator):
    """``diag(Sigma)`` by factoring a matrix: N x N, of the size of the live support, or with few diagonals.

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
        """Factor what has few diagonals, or else the live columns, written out."""
        if is_exact_on_a_line(context.phi):
            g = to_numpy(context.g).astype(np.float64)
            value = g * _shares_on_a_line(context.phi, g, context.noise_var)
            value = on_device_of(context.alpha, value.astype(precision_of(context.alpha)))
            return DiagonalEstimate(context.clip(value), 0.0, used=self.name, coherent=True)
        columns, g, live = live_columns(context)
        value = context.g
        if columns.shape[0]:
            found = exact_shares(columns, g, context.noise_var)
            if live is None:
                value = in_precision(in_precision(value, "float64") * found, precision_of(value))
            else:
                value[live] = g * found
        return DiagonalEstimate(context.clip(value), 0.0, used=self.name)


def is_exact_on_a_line(phi: Dictionary) -> bool:
    """Tell whether variances are exact in every step, since columns are coupled along a line."""
    if factorable_bands(phi) is not None:
        return True
    decay = known_decay(phi)
    return decay is not None and (decay.left_out <= LITTLE_LEFT_OUT or float(decay.seen.min()) > 0)


def _shares_on_a_line(phi: Dictionary, g: np.ndarray, noise_var: float) -> np.ndarray:
    """Return variances over prior variances; what a decay leaves out counts where bands can be factored."""
    decay, bands = known_decay(phi), factorable_bands(phi)
    if decay is not None and (bands is None or decay.error(g, noise_var) < ERROR_OF_DECAY):
        return decaying_shares(decay, g, noise_var)
    assert bands is not None
    return banded_shares(bands, g, noise_var)


#: Bands of decays in single precision, whose products are too coarse to tell that there are no others.
_IN_DOUBLE: WeakKeyDictionary[Dictionary, np.ndarray | None] = WeakKeyDictionary()


def _bands_in_double(phi: Dictionary) -> np.ndarray | None:
    if phi not in _IN_DOUBLE:
        like = np.zeros(1, np.complex128 if phi.is_complex else np.float64)
        double = Dictionary(phi.operator.astype("float64"), like=like, on_average=phi.on_average)
        _IN_DOUBLE[phi] = gram_bands(double)
    return _IN_DOUBLE[phi]


def factorable_bands(phi: Dictionary) -> np.ndarray | None:
    """Return the diagonals of ``Phi^H Phi``, where they are so few that variances are exact in every step."""
    bands = known_bands(phi)
    if bands is None and known_decay(phi) is not None and precision_of(phi.like) == "float32":
        bands = _bands_in_double(phi)
    if bands is None:
        return None
    reach, size = max(len(bands) - 1, LEAST_BLOCK), bands.shape[1]
    return bands if size >= 3 * reach and size * reach**2 <= MOST_WORK else None


def banded_shares(bands: np.ndarray, g: np.ndarray, noise_var: float) -> np.ndarray:
    """Return what `exact_shares` does, from the diagonals of ``Phi^H Phi``, shape (L + 1, D).

    Examples
    --------
    >>> import numpy as np
    >>> found = banded_shares(np.ones((1, 96)), np.repeat([1.0, 3.0], 48), 1.0)
    >>> found[[0, -1]].round(6).tolist()
    [0.5, 0.25]
    """
    root = np.sqrt(g / noise_var)
    matrix = np.stack([band * root * np.roll(root, -offset) for offset, band in enumerate(bands)])
    matrix[0] += 1
    return np.clip(inverse_diagonal(matrix), 0.0, 1.0)


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
