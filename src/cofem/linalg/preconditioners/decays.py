r"""A preconditioner for impulses that decay by one factor from sample to sample.

With ``c = G^-1 z``, where ``(G c)_i = c_i - ratio c_{i-1}``, the system has three diagonals:

.. math:: \Phi^H\Phi + \sigma^2\mathrm{diag}(\alpha) = G^{-T} Q G^{-1},\quad
    Q = W + \sigma^2 G^T\mathrm{diag}(\alpha) G.

A factor and a solve take a few passes over D numbers, where the kernel itself couples each sample with as
many others as it has entries. What is left out is where the kernel breaks off (`Decay.error`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from scipy.linalg import lapack

from cofem._arrays import Array
from cofem.linalg.preconditioners.base import PosteriorPreconditioner
from cofem.operators.decay import Decay
from cofem.operators.dictionary import Dictionary

#: Error that may be left to conjugate gradients.
LARGEST_ERROR = 1.0
#: Rounding errors of a pivot, relative to its entry on the diagonal.
ROUNDING = 1e-13

#: The decays of dictionaries in use.
_KNOWN: WeakKeyDictionary[Dictionary, Decay | None] = WeakKeyDictionary()


def known_decay(phi: Dictionary) -> Decay | None:
    """Return how columns of a dictionary decay, if they do and are in memory; looked at once."""
    if phi not in _KNOWN:
        _KNOWN[phi] = phi.operator.decay() if isinstance(phi.like, np.ndarray) else None
    return _KNOWN[phi]


def three_diagonals(decay: Decay, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the diagonal of Q, shape (D,), and the one beside it, shape (D - 1,).

    Parameters
    ----------
    decay : Decay
        The decay.
    precision : ndarray of shape (D,)
        ``noise_var alpha`` of the impulses.

    Examples
    --------
    >>> import numpy as np
    >>> main, beside = three_diagonals(Decay(0.5, np.ones(3)), np.array([1.0, 2.0, 4.0]))
    >>> main.tolist(), beside.tolist()
    ([2.5, 4.0, 5.0], [-1.0, -2.0])
    """
    ahead = decay.ratio * precision[1:]
    main = decay.seen + precision
    main[:-1] += decay.ratio * ahead
    return main, -ahead


def factored(main: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``L D L^T`` of a positive definite matrix with three diagonals: D, and what is beside 1 in L.

    Where rounding has left nothing of a pivot, the diagonal is made larger by as little.

    Examples
    --------
    >>> import numpy as np
    >>> pivots, below = factored(np.array([2.0, 2.0]), np.array([-1.0]))
    >>> pivots.tolist(), below.tolist()
    ([2.0, 1.5], [-0.5])
    """
    for growth in (0.0, ROUNDING, 100 * ROUNDING):
        pivots, below, failed = lapack.dpttrf((1 + growth) * main, beside)
        if not failed:
            return np.asarray(pivots), np.asarray(below)
    raise np.linalg.LinAlgError("a system with three diagonals is not positive definite")


@dataclass(frozen=True)
class DecayPreconditioner(PosteriorPreconditioner):
    """Solve exactly, but for what is left out where a kernel breaks off.

    Attributes
    ----------
    decay : Decay
        The decay.
    alpha : ndarray of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    factor : pair of ndarray, optional
        Factor of Q, once prepared; on a ring of Q with its corners taken off its diagonal.
    closing : pair of ndarray of shape (D,), optional
        What brings the corners of a ring back (Sherman and Morrison), once prepared.

    Examples
    --------
    >>> import numpy as np
    >>> C = 0.5 ** np.subtract.outer(np.arange(3), np.arange(3)) * np.tri(3)
    >>> P = DecayPreconditioner(Decay(0.5, np.ones(3)), np.array([1.0, 2.0, 3.0]), 0.1).prepared()
    >>> x = np.empty((1, 3))
    >>> P.apply(np.array([[1.0, 0.0, 2.0]]), x)
    >>> np.allclose((C.T @ C + 0.1 * np.diag(P.alpha)) @ x[0], [1.0, 0.0, 2.0])
    True
    """

    decay: Decay
    alpha: np.ndarray
    noise_var: float
    factor: tuple[np.ndarray, np.ndarray] | None = None
    closing: tuple[np.ndarray, np.ndarray] | None = None

    #: As in `FourierPreconditioner`.
    sharpness_for_probes: ClassVar[float] = 0.3

    def prepared(self) -> DecayPreconditioner:
        """Return the preconditioner with its factor."""
        precision = self.noise_var * self.alpha.astype(np.float64)
        if self.decay.scale is not None:
            precision /= self.decay.scale**2
        main, beside = three_diagonals(self.decay, precision)
        if not self.decay.ring:
            return replace(self, factor=factored(main, beside))
        corner, first = -self.decay.ratio * precision[0], float(main[0])
        main[-1] += self.decay.ratio**2 * precision[0]
        main[0] += first
        main[-1] += corner**2 / first
        factor = factored(main, beside)
        column, row = np.zeros_like(main), np.zeros_like(main)
        column[0], column[-1], row[0], row[-1] = -first, corner, 1.0, -corner / first
        solved = lapack.dpttrs(*factor, column[:, None])[0][:, 0]
        return replace(self, factor=factor, closing=(solved / (1 + row @ solved), row))

    def apply(self, r: Array, out: Array) -> None:
        """Write ``P^-1 r`` into `out`, both of shape (B, D)."""
        if np.iscomplexobj(r):
            out[...] = self._solved(r.real) + 1j * self._solved(r.imag)
        else:
            out[...] = self._solved(r)

    def _solved(self, r: np.ndarray) -> np.ndarray:
        assert self.factor is not None
        ratio, scale = self.decay.ratio, self.decay.scale
        x = r.astype(np.float64) if scale is None else r / scale
        x = x - ratio * _moved(x, -1, self.decay.ring)
        x = lapack.dpttrs(*self.factor, x.T)[0].T
        if self.closing is not None:
            column, row = self.closing
            x = x - np.outer(x @ row, column)
        x = x - ratio * _moved(x, 1, self.decay.ring)
        return x if scale is None else x / scale


def _moved(x: np.ndarray, by: int, ring: bool) -> np.ndarray:
    """Return rows moved by a place; what comes in is zero, unless they are rings."""
    moved = np.roll(x, by, axis=1)
    if not ring:
        moved[:, 0 if by > 0 else -1] = 0
    return moved


def from_decay(phi: Dictionary, alpha: Array, noise_var: float) -> DecayPreconditioner | None:
    """Return the preconditioner, or None where columns do not decay in that way, or too much is left out."""
    decay = known_decay(phi) if isinstance(alpha, np.ndarray) else None
    if decay is None or decay.error(1 / alpha, noise_var) > LARGEST_ERROR:
        return None
    return DecayPreconditioner(decay, alpha, noise_var)
