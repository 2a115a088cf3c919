"""Variances from posterior samples: always positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cofem._arrays import is_complex, namespace, on_device_of, squared_modulus
from cofem.linalg.diagonals.base import Columns, DiagonalEstimate, DiagonalEstimator, Setting

Array = Any


@dataclass(frozen=True)
class Paired(DiagonalEstimator):
    r"""Draw from the prior and the data it would give, and see how much of the draw they explain.

    For a prior draw :math:`a` and data :math:`v = \Phi a + \varepsilon`, the posterior mean
    :math:`x = \Sigma\beta\Phi^H v` and the rest :math:`a - x` are independent with variances
    :math:`g_j\gamma_j` and :math:`g_j(1-\gamma_j)`, so that the share of :math:`|a - x|^2` estimates
    :math:`1 - \gamma_j = s_j / g_j`, always between 0 and 1. Shares are averaged over steps, since they
    change slowly.

    Parameters
    ----------
    samples : int
        Draws in each step.
    memory : float in [0, 1)
        Weight of the steps before.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> Phi = Dense(np.random.default_rng(0).standard_normal((20, 40)))
    >>> setting = Setting(Phi, Phi, np.ones(40), 0.5, Phi.column_norms() ** 2, np.zeros(1))
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(40)) / 0.5 + np.eye(40))
    >>> estimator = Paired(samples=200)
    >>> columns = estimator.columns(setting, None, np.random.default_rng(1))
    >>> x = columns.v @ Phi.to_dense() @ Sigma / 0.5  # the posterior means for the data v
    >>> found = estimator.estimate(setting, None, columns, x)
    >>> error = np.abs(found.value - np.diag(Sigma))
    >>> bool((error < 4 * found.standard_error).all()), bool((error / np.diag(Sigma)).mean() < 0.1)
    (True, True)
    """

    samples: int = 4
    memory: float = 0.7

    name: ClassVar[str] = "paired"

    def quiet(self, carry: Any) -> bool:
        """Never: a few draws leave tens of percent of noise."""
        return False

    def columns(self, setting: Setting, carry: Any, rng: np.random.Generator) -> Columns:
        """Draw coefficients from the prior and noisy data from them."""
        n, d = setting.phi.shape
        draws = _standard_normal((self.samples, d), setting.like, rng)
        draws /= namespace(draws).sqrt(setting.alpha)
        noise = _standard_normal((self.samples, n), setting.like, rng)
        noise *= setting.noise_var**0.5
        noise += setting.phi.forward(draws)
        return Columns(v=noise, extra=draws)

    def estimate(self, setting: Setting, carry: Any, columns: Columns, x: Array) -> DiagonalEstimate:
        """Compare what was explained with what was left."""
        xp = namespace(x)
        explained = xp.mean(squared_modulus(x), axis=0) * setting.alpha
        left = xp.mean(squared_modulus(columns.extra - x), axis=0) * setting.alpha
        weight = 1.0
        if carry is not None:
            old_explained, old_left, old_weight = carry
            explained = self.memory * old_explained + (1 - self.memory) * explained
            left = self.memory * old_left + (1 - self.memory) * left
            weight = self.memory**2 * old_weight + (1 - self.memory) ** 2
        share = left / (explained + left)
        # Each mean square has relative variance 2 / samples (1 / samples for complex draws).
        kind = 1 if is_complex(x) else 2
        error = share * (1 - share) * float(np.sqrt(2 * kind * weight / self.samples))
        g = setting.g
        return DiagonalEstimate(setting.clip(g * share), g * error, (explained, left, weight), used=self.name)


def _standard_normal(shape: tuple[int, int], like: Array, rng: np.random.Generator) -> Array:
    if not is_complex(like):
        numbers = rng.standard_normal(shape)
    else:
        real, imaginary = rng.standard_normal((2, *shape)) * np.sqrt(0.5)
        numbers = real + 1j * imaginary
    return namespace(like).astype(on_device_of(like, numbers), like.dtype)
