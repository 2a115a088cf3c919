r"""A preconditioner of systems in analysis form: waves, between two scalings.

With precisions that are constant in each band b of B, and :math:`\Phi^H\Phi` close to a number or to a
convolution, A is diagonal for cosine or Fourier waves F:

.. math:: P = S^{1/2} F^H \bigl(\lambda + \sigma^2\sum_b \bar\alpha_b |B_b|^2\bigr) F S^{1/2},

where S brings the diagonal to what it is with the actual precisions, and :math:`\bar\alpha_b` is their
geometric mean in a band.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cofem._arrays import Array, namespace, on_device_of, precision_of, reciprocal
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.linalg.preconditioners.fourier import FourierPreconditioner
from cofem.operators.dictionary import Dictionary
from cofem.operators.transforms import dispatch


@dataclass(frozen=True)
class WavePreconditioner(PosteriorPreconditioner):
    """Multiply by `scale`, by `response` between two transforms if there is one, and by `scale` again.

    Attributes
    ----------
    scale : array of shape (D,)
        The scaling on both sides.
    grid : tuple of int or None
        Grid of the cosine waves; None for no transform.
    response : array of shape (D,) or None
        What waves are multiplied by.

    Examples
    --------
    >>> import numpy as np
    >>> P = WavePreconditioner(np.array([0.5, 0.1]))
    >>> r = np.ones((1, 2))
    >>> P.apply(r, r)
    >>> r.round(3).tolist()
    [[0.25, 0.01]]
    """

    scale: Array
    grid: tuple[int, ...] | None = None
    response: Array | None = None

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        found = r * self.scale
        if self.grid is not None:  # in its own memory
            found = dispatch.dct(found, self.grid, overwrite_x=True)
            found *= self.response
            found = dispatch.idct(found, self.grid, overwrite_x=True)
        found *= self.scale
        out[...] = found


def wave_preconditioner(
    phi: Dictionary, rows: Any, alpha: Array, noise_var: float
) -> PosteriorPreconditioner:
    """Return the preconditioner of ``Phi^H Phi + noise_var B^H diag(alpha) B``.

    Parameters
    ----------
    phi : Dictionary
        Phi.
    rows : Rows
        B; see `cofem.linalg.analysis`.
    alpha : array of shape (M,)
        Precisions.
    noise_var : float
        Noise variance.
    """
    xp = namespace(alpha)
    prior = noise_var * rows.diagonal(alpha)
    diagonal = prior + phi.column_energy
    circulant = phi.circulant_gram()
    if rows.grid is None:
        return WavePreconditioner(xp.sqrt(reciprocal(diagonal)))
    means = noise_var * rows.band_means(alpha)
    spectrum = rows.sum_of_symbols(means).ravel()
    if circulant is not None and circulant.shape == rows.grid:
        waves = rows.operator.band_symbols("fourier")
        if circulant.is_real:
            waves = waves[..., : circulant.shape[-1] // 2 + 1]
        level = float(np.mean(spectrum)) + phi.energy / phi.shape[1]
        spectrum = circulant.eigenvalues.astype(np.float64) + np.tensordot(means, waves, 1)
        scale = xp.sqrt(level * reciprocal(diagonal))
        response = on_device_of(alpha, (1 / spectrum).astype(precision_of(alpha)))
        return FourierPreconditioner(alpha, noise_var, alpha, circulant, scale, response)
    # What stands for Phi^H Phi is such that the geometric mean of the diagonal is right: where a quarter of
    # the pixels is seen and the noise is small, the arithmetic mean takes 10 times as many steps, and the
    # residual says 10 times too little about the error.
    typical = _geometric_mean(prior)
    spectrum += max(_geometric_mean(phi.column_energy + typical) - typical, 1e-6 * typical)
    scale = xp.sqrt(float(np.mean(spectrum)) * reciprocal(diagonal))
    response = on_device_of(alpha, (1 / spectrum).astype(precision_of(alpha)))
    return WavePreconditioner(scale, rows.grid, response)


def _geometric_mean(x: Array) -> float:
    return float(np.exp(float(namespace(x).mean(namespace(x).log(x)))))
