r"""A preconditioner for convolutions along one axis of which some data are missing, or that end at borders.

A Fourier transform knows how columns are coupled on the average only. Where each column is coupled with few
neighbours, the system is a matrix with few diagonals, which is factored in :math:`D L^2` operations. On a
grid that repeats, the couplings of its two ends are left out. What is left is a Gram matrix as well, that of
the convolution in which the data beyond the end are apart from those at the beginning, so that it can be
factored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy.linalg

from cofem._arrays import Array, to_numpy
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.dictionary import Dictionary

#: Most diagonals beside the main one, and most entries of all of them.
MOST_DIAGONALS, MOST_ENTRIES = 256, 2**24
#: Entries of the Gram operator, relative to its diagonal, that are rounding errors.
ROUNDING = 1e-14
#: What other entries of the Gram matrix may add to a product, relative to it.
ALL_OF_IT = 1e-9
#: What is added to the diagonal, relative to its largest entry, until there is a factor.
MADE_UP = (1e-13, 1e-11, 1e-9, 1e-7, 1e-5)


@dataclass(frozen=True)
class BandedPreconditioner(PosteriorPreconditioner):
    """Solve with the couplings of neighbours and the prior.

    Attributes
    ----------
    bands : ndarray of shape (L + 1, D)
        ``<phi_{j + d}, phi_j>`` in row d.
    alpha : ndarray of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    factor : ndarray of shape (L + 1, D), optional
        The Cholesky factor, once prepared.

    Examples
    --------
    >>> import numpy as np
    >>> P = BandedPreconditioner(np.array([[2.0, 2.0, 2.0], [1.0, 1.0, 0.0]]), np.ones(3), 0.5).prepared()
    >>> x = np.empty((1, 3))
    >>> P.apply(np.array([[3.5, 4.5, 3.5]]), x)
    >>> x.round(12).tolist()
    [[1.0, 1.0, 1.0]]
    """

    bands: np.ndarray
    alpha: np.ndarray
    noise_var: float
    factor: np.ndarray | None = None

    #: As in `FourierPreconditioner`.
    sharpness_for_probes: ClassVar[float] = 0.3

    def prepared(self) -> BandedPreconditioner:
        """Return the preconditioner with its factor."""
        matrix = self.bands.copy()
        matrix[0] += self.noise_var * self.alpha
        # Rounding errors of the bands, which a very small alpha would not hide; more of them where some
        # columns are hardly seen.
        matrix[0] *= 1 + 1e-13
        largest = float(self.bands[0].real.max())
        for more in (0.0, *MADE_UP):
            matrix[0] += more * largest
            factor, failed = scipy.linalg.get_lapack_funcs("pbtrf", (matrix,))(matrix, lower=1)
            if not failed:
                return replace(self, factor=factor)
        raise np.linalg.LinAlgError("the couplings of neighbours are those of no Gram matrix")

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        out[...] = scipy.linalg.cho_solve_banded((self.factor, True), r.T).T


#: The bands of dictionaries in use.
_KNOWN: WeakKeyDictionary[Dictionary, np.ndarray | None] = WeakKeyDictionary()


def from_bands(phi: Dictionary, alpha: Array, noise_var: float) -> BandedPreconditioner | None:
    """Return the preconditioner, or None where it is not at hand.

    Parameters
    ----------
    phi : Dictionary
        Phi.
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution, DCT, Mask
    >>> seen = Dictionary(Mask([0, 2, 5], 8) @ Convolution([1.0, 2.0], 8, causal=True), like=np.zeros(1))
    >>> from_bands(seen, np.ones(8), 0.1).bands.round(9)[0] + 0.0
    array([1., 4., 1., 0., 4., 1., 0., 4.])
    >>> from_bands(Dictionary(DCT(8), like=np.zeros(1)), np.ones(8), 0.1) is None
    True
    """
    bands = known_bands(phi) if isinstance(alpha, np.ndarray) else None
    if bands is None:
        return None
    bands = bands.copy()
    for offset in range(1, len(bands)):
        bands[offset, -offset:] = 0
    return BandedPreconditioner(bands, alpha, noise_var)


def known_bands(phi: Dictionary) -> np.ndarray | None:
    """Return what `gram_bands` does, computed once."""
    if phi not in _KNOWN:
        _KNOWN[phi] = gram_bands(phi)
    return _KNOWN[phi]


def gram_bands(phi: Dictionary) -> np.ndarray | None:
    """Return the diagonals of the Gram matrix, if it has few and is not a circulant; else None.

    None as well around a ring, where columns are coupled across a third of it, and where variances are wanted
    on the average only.

    Row d, of L + 1, has ``<phi_{j + d}, phi_j>``, where ``j + d`` begins again at the end of the grid.
    """
    circulant = phi.circulant_gram()
    if circulant is None or circulant.is_exact or len(circulant.shape) > 1:
        return None
    if phi.on_average or phi.device_array is not None:
        return None
    size = phi.shape[1]
    if circulant.reach is None:
        moduli = np.abs(circulant.table())
        offsets = np.flatnonzero(moduli > ROUNDING * moduli[0])
        reach = int(np.minimum(offsets, size - offsets).max(initial=0))
    else:
        reach = circulant.reach[0]
    # Around a ring, couplings that reach farther than a third of it need not be those of a line as well.
    too_far = 3 * reach >= size if circulant.repeats else 2 * reach >= size
    if too_far or reach > MOST_DIAGONALS or (reach + 1) * size > MOST_ENTRIES:
        return None
    bands = phi.offset_gram(np.arange(reach + 1)[:, None])
    if bands is None:
        return None
    if not circulant.repeats:  # what is beyond a border has no meaning
        for offset in range(1, reach + 1):
            bands[offset, -offset:] = 0
    bands = np.conj(bands)
    return bands if _are_all_of(bands, phi) else None


def _are_all_of(bands: np.ndarray, phi: Dictionary) -> bool:
    """Tell whether a Gram matrix has no further diagonals, by one product.

    Where couplings were found by looking at a few columns, others may reach farther.
    """
    size, reach = bands.shape[1], len(bands) - 1
    x = np.random.default_rng(0).standard_normal((size,))
    found = bands[0] * x
    for offset in range(1, reach + 1):
        found += np.roll(bands[offset] * x, offset) + np.conj(bands[offset]) * np.roll(x, -offset)
    product = to_numpy(phi.operator.gram(x.astype(phi.dtype)))
    return bool(np.linalg.norm(found - product) <= ALL_OF_IT * np.linalg.norm(product))
