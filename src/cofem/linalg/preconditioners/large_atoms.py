r"""The preconditioner from the columns that stand out, for shifted atoms seen by Fourier coefficients.

As in `cofem.linalg.preconditioners.large_columns`, the matrix of the dual system is close to

.. math:: P = T + \sum_{j \in L} g_j \varphi_j\varphi_j^H, \qquad
          T = \sigma^2 I + \mathrm{diag}\Bigl(\sum_{j \notin L} g_j |\varphi_j|^2\Bigr).

Where prior variances are the same within each subband the dual matrix is diagonal, so T has a number for each
frequency: the bands differ in how much they add to it. No column is stored. The small matrix of Woodbury's
formula comes from the atoms' spectra (`Operator.spectral_atoms`), and products with the columns of L are
products with Phi.

CG steps for the mean and for a probe, from zero, D = 4096, a third of the coefficients seen, alpha of updates
4 / 8 / 12 / 20 of a default fit: one tau for all 186 and 151 / 56 and 39 / 20 and 13 / 12 and 6, as here 18
and 15 / 18 and 14 / 14 and 12 / 7 and 4; the primal form takes 43 / 187 / 150 / 40 for the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_solve

from cofem._arrays import Array
from cofem.linalg.factor import safe_cholesky
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.dictionary import Dictionary
from cofem.operators.spectral_atoms import SpectralAtoms

#: A column belongs to L if ``g_j phi_j^H T^-1 phi_j`` is above this.
STANDS_OUT = 1.0
#: Most columns of L, as a share of N, and at all: a complex factor of 3000 takes two seconds.
SHARE_OF_ROWS, MOST_COLUMNS = 0.25, 3000
#: T depends on L and L on T; so often they are found again.
ROUNDS = 3


@dataclass(frozen=True)
class LargeAtoms(PosteriorPreconditioner):
    """``(T + Phi_L G_L Phi_L^H)^-1``.

    Attributes
    ----------
    phi : Dictionary
        Phi.
    tau : ndarray of shape (N,)
        The diagonal of T.
    chosen : ndarray of int, shape (K,)
        L.
    factor : ndarray of shape (K, K)
        Lower Cholesky factor of ``G_L^-1 + Phi_L^H T^-1 Phi_L``.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import FFT, Mask, Wavelet
    >>> Phi = Mask(np.arange(16), 32) @ FFT(32) @ Wavelet(32, "haar", level=2).T
    >>> phi, g = Dictionary(Phi, like=np.zeros(1, dtype=complex)), np.full(32, 1e-3)
    >>> g[[3, 20]] = 100.0
    >>> P, r = large_atoms(phi, g, 0.1), np.ones((1, 16), dtype=complex)
    >>> P.chosen.tolist()
    [3, 20]
    >>> P.apply(r, r)
    >>> columns = phi.columns(np.array([3, 20])).T
    >>> matrix = np.diag(P.tau) + columns @ np.diag(g[[3, 20]]) @ columns.conj().T
    >>> np.allclose(matrix @ r[0], 1)
    True
    """

    phi: Dictionary
    tau: np.ndarray
    chosen: np.ndarray
    factor: np.ndarray

    #: As in `LargeColumns`.
    sharpness: ClassVar[float] = 0.4

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, N)."""
        out[...] = r / self.tau
        along = self.phi.adjoint(out)
        part = cho_solve((self.factor, True), along[:, self.chosen].T, check_finite=False)
        along[...] = 0
        along[:, self.chosen] = part.T
        out -= self.phi.forward(along) / self.tau


def large_atoms(phi: Dictionary, g: Array, noise_var: float) -> LargeAtoms | None:
    """Return the preconditioner for prior variances g, or None where none or too many columns stand out.

    Parameters
    ----------
    phi : Dictionary
        Phi, shape (N, D).
    g : array of shape (D,)
        Prior variances.
    noise_var : float
        Noise variance.
    """
    if not isinstance(g, np.ndarray) or (atoms := phi.spectral_atoms()) is None:
        return None
    g = g.astype(np.float64)
    chosen, tau = standing_out(atoms, g, noise_var)
    if not chosen.size or chosen.size > min(SHARE_OF_ROWS * phi.shape[0], MOST_COLUMNS):
        return None
    matrix = atoms.gram(chosen, 1 / tau)
    matrix[np.diag_indices(chosen.size)] += 1 / g[chosen]
    return LargeAtoms(phi, tau, chosen, safe_cholesky(matrix))


def standing_out(atoms: SpectralAtoms, g: np.ndarray, noise_var: float) -> tuple[np.ndarray, np.ndarray]:
    """Return L and the diagonal of T."""
    large = np.zeros(g.size, dtype=bool)
    tau = noise_var + atoms.energies(g)
    for _ in range(ROUNDS):
        large = g * atoms.column_energies(1 / tau) > STANDS_OUT
        tau = noise_var + atoms.energies(np.where(large, 0.0, g))
    return np.flatnonzero(large), tau
