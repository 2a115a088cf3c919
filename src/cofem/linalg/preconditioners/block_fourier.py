r"""The Fourier preconditioner where coefficients are several arrays on one grid.

With :math:`\Phi^H\Phi \approx F^H \Lambda F`, a q x q matrix :math:`\Lambda` for each frequency, and the
precisions of array b all equal to :math:`\bar\alpha_b`, the system is one small matrix for each frequency.
Both sides are scaled as in `FourierPreconditioner`, so that the diagonal is right for any precisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from cofem._arrays import Array, namespace, on_device_of, precision_of
from cofem._blocks import BATCH_NUMBERS, blocks
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.deflation import (
    LARGEST_SHARE,
    MOST_ENTRIES,
    ROUNDING,
    Deflated,
    known_well,
)
from cofem.linalg.preconditioners.fourier import BetweenScalings, scaling_to
from cofem.operators.circulant import shifted
from cofem.operators.dictionary import Dictionary
from cofem.operators.filters import BlockCirculantGram


@dataclass(frozen=True)
class BlockFourierPreconditioner(BetweenScalings):
    """Multiply by the inverse of ``Lambda + noise_var alpha`` at each frequency, between two scalings.

    Its attributes are those of `BetweenScalings`; the response has shape (q, q, ...).

    Examples
    --------
    With equal precisions in each array it is the inverse:

    >>> import numpy as np
    >>> from cofem.operators import Convolution, Identity, hstack
    >>> Phi = hstack([Identity(4), Convolution([1.0, 2.0, 1.0], 4)])
    >>> alpha, energy = np.repeat([1.0, 3.0], 4), np.repeat([1.0, 6.0], 4)
    >>> P = BlockFourierPreconditioner(alpha, 0.5, energy, Phi.block_circulant_gram()).prepared()
    >>> r = np.arange(8.0)[None, :]
    >>> x = np.empty_like(r)
    >>> P.apply(r, x)
    >>> np.allclose(Phi.gram(x) + 0.5 * alpha * x, r)
    True
    """

    circulant: BlockCirculantGram

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the arrays that a vector flattens: q of them on one grid."""
        return (self.circulant.n_blocks, *self.circulant.shape)

    def prepared(self) -> BlockFourierPreconditioner:
        """Return the preconditioner with its numbers."""
        xp = namespace(self.alpha)
        n_blocks = self.circulant.n_blocks
        # The geometric mean, as with one array.
        means = xp.mean(xp.log(xp.reshape(self.alpha, (n_blocks, -1))), axis=1)
        typical = self.noise_var * np.exp([float(mean) for mean in means])
        level = on_device_of(self.alpha, np.repeat(typical, self.alpha.shape[0] // n_blocks))
        level = xp.astype(level, self.alpha.dtype, copy=False)
        scale = scaling_to(self.alpha, self.noise_var, self.energy, level)
        inverse = np.linalg.inv(self.circulant.eigenmatrices.astype(np.complex128) + np.diag(typical))
        inverse = np.ascontiguousarray(np.moveaxis(inverse, (-2, -1), (0, 1)))
        kind = np.complex64 if precision_of(self.alpha) == "float32" else np.complex128
        return replace(self, scale=scale, response=on_device_of(self.alpha, inverse.astype(kind)))

    def respond(self, spectra: Array) -> Array:
        """Return the spectra, shape (B, q, ...), times a matrix for each frequency."""
        assert self.response is not None
        xp, rows = namespace(spectra), range(self.circulant.n_blocks)
        return xp.stack([xp.sum(self.response[i, ...] * spectra, axis=1) for i in rows], axis=1)


def from_blocks(
    phi: Dictionary, alpha: Array, noise_var: float, circulant: BlockCirculantGram
) -> PosteriorPreconditioner:
    """Return the preconditioner, with what is known well taken out where its Gram matrix is at hand.

    Parameters
    ----------
    phi : Dictionary
        Phi.
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    circulant : BlockCirculantGram
        What stands for ``Phi^H Phi``.
    """
    fourier = BlockFourierPreconditioner(alpha, noise_var, phi.column_energy, circulant)
    if not circulant.is_exact or not isinstance(alpha, np.ndarray):
        return fourier
    chosen, _ = known_well(phi, alpha, noise_var)
    gram = sparse_block_gram(circulant, chosen) if chosen.size else None
    if gram is None:
        return fourier
    matrix = gram + scipy.sparse.diags_array(noise_var * alpha[chosen].astype(np.float64))
    return Deflated(fourier, phi, alpha, noise_var, chosen, scipy.sparse.csc_array(matrix))


def sparse_block_gram(circulant: BlockCirculantGram, chosen: np.ndarray) -> scipy.sparse.coo_array | None:
    """Return the Gram matrix of some columns; None if it would not be sparse enough.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Convolution, Identity, hstack
    >>> Phi = hstack([Identity(16), Convolution([1.0, 2.0], 16, causal=True)])
    >>> gram = sparse_block_gram(Phi.block_circulant_gram(), np.array([4, 19, 20]))
    >>> gram.toarray().round(9).tolist()
    [[1.0, 2.0, 1.0], [2.0, 5.0, 2.0], [1.0, 2.0, 5.0]]
    """
    tables = circulant.tables()
    grid = int(np.prod(circulant.shape))
    own = np.sqrt([table[a].flat[0].real for a, table in enumerate(tables)])
    number = np.full((len(tables), grid), -1)
    number.flat[chosen] = np.arange(chosen.size)
    rows, columns, values = [], [], []
    for a, b in np.ndindex(len(tables), len(tables)):
        table = tables[a, b].ravel()
        offsets = np.flatnonzero(np.abs(table) > ROUNDING * own[a] * own[b])
        mine = np.flatnonzero(chosen // grid == a)
        if offsets.size * mine.size > MOST_ENTRIES / LARGEST_SHARE:
            return None
        for some in blocks(mine.size, max(1, BATCH_NUMBERS // max(offsets.size, 1))):
            other = number[b][shifted(chosen[mine[some]] - a * grid, -offsets, circulant.shape)]
            i, k = np.nonzero(other >= 0)
            rows.append(mine[some][i])
            columns.append(other[i, k])
            values.append(table[offsets[k]])
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return scipy.sparse.coo_array(entries, shape=(chosen.size, chosen.size))
