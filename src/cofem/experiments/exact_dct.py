r"""Exact EM on samples of a cosine transform, without products of large matrices.

With :math:`\Phi = M\,\mathrm{DCT}^T` the entries are :math:`\phi_{ij} = c_j \cos(\pi (2 r_i + 1) j / 2D)`,
and a product of two cosines is the mean of the cosines of the difference and of the sum of their arguments.
So both the N x N covariance of the data and the diagonal of :math:`\Phi^T C^{-1} \Phi` need one cosine sum of
length 2 D and a look-up by ``r_i - r_k`` and ``r_i + r_k + 1``. What remains is one factorisation and one
inverse of an N x N matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft
from scipy import linalg

from cofem._arrays import Array
from cofem.inference.base import Moments
from cofem.inference.irls import IRLS
from cofem.inference.problem import Problem


@dataclass(frozen=True)
class ExactOnDCT(IRLS):
    """EM with the exact E-step, for ``Mask(rows, D) @ DCT(D).T`` only.

    Examples
    --------
    >>> import cofem
    >>> from cofem.experiments import problems
    >>> case = problems.dct(64, f=2)
    >>> fast, plain = (
    ...     cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=method, max_iter=5, tol=0)
    ...     for method in (ExactOnDCT(), cofem.IRLS())
    ... )
    >>> float(abs(fast.mean - plain.mean).max()) < 1e-10
    True
    """

    def moments(self, problem: Problem, alpha: Array) -> Moments:
        """Build C from one cosine sum, invert it, and sum its inverse along its diagonals."""
        operator: Any = problem.phi.operator
        rows = operator.factors[0].indices
        size = problem.n_columns
        g = 1 / alpha.astype(np.float64)
        scale = np.full(size, 2.0 / size)  # c_j^2
        scale[0] = 1.0 / size
        difference = np.abs(rows[:, None] - rows)
        total = rows[:, None] + rows + 1
        sums = _cosine_sums(g * scale, 2 * size)
        covariance = 0.5 * (sums[difference] + sums[total])
        covariance[np.diag_indices_from(covariance)] += problem.noise_var
        factor = linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        weights = linalg.cho_solve((factor, True), problem.y.astype(np.float64), check_finite=False)
        mean = g * problem.phi.adjoint(weights)
        (potri,) = linalg.get_lapack_funcs(("potri",), (factor,))
        inverse = potri(factor, lower=True, overwrite_c=True)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        along = np.bincount(difference.ravel(), inverse.ravel(), 2 * size)
        along += np.bincount(total.ravel(), inverse.ravel(), 2 * size)
        explained = g * scale * 0.5 * _cosine_sums(along, 2 * size)[:size]
        floor = 1 / (alpha + problem.phi.column_energy.astype(np.float64) / problem.noise_var)
        return Moments(mean, np.maximum(g * (1 - explained), floor))


def _cosine_sums(weights: np.ndarray, length: int) -> np.ndarray:
    """``sum_j weights_j cos(pi j m / (length / 2))`` for m from 0 to length - 1, zero beyond the weights."""
    padded = np.zeros(length)
    padded[: weights.size] = weights
    half = scipy.fft.rfft(padded).real
    return np.concatenate([half, half[-2:0:-1]])
