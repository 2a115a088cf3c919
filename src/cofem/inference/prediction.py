"""How likely data that were held out of a fit are under its predictions, each with its own variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtri

#: Draws that variances count for where they are exact or come from many: precisions are fitted, too.
MOST_DRAWS = 8.0
#: Noise levels that are tried, relative to the data: from afar, and how finely in the end.
LEVELS = np.geomspace(1e-4, 1.0, 25)
FINER = 4
#: Scales of variances that are tried, and how far from 1 they are expected to be, in logarithms.
SCALES = np.geomspace(0.5, 2.0, 13)
#: Turns in which both are found from each other, and factors of the noise variance that are tried in one.
ROUNDS, NEAR = 4, np.geomspace(0.7, 1.4, 5)
EXPECTED = 0.4
#: Part of the data that intervals are to hold, and the smallest part of the variance of a prediction that is
#: the posterior's own, at which data say how large it should be.
LEVEL, OWN = 0.95, 0.1
#: How much less likely than the best noise a larger one may be, in nats.
NEARLY = 0.5
#: Data from which on that holds; of fewer, less: one standard error of a few is half of the noise.
ENOUGH = 100


@dataclass(frozen=True)
class Errors:
    """Squared errors of predictions, and how large they are expected to be.

    Attributes
    ----------
    squares : ndarray of shape (H,) or (L, H)
        Squared errors.
    spread : ndarray of shape (H,)
        Variances of the predictions.
    draws : float
        How many draws these come from.
    of_complex : bool
        Whether the data are complex.

    Examples
    --------
    >>> import numpy as np
    >>> errors = Errors(np.array([1.0]), np.array([0.5]), 1e9, of_complex=False)
    >>> errors.log_densities(0.5).round(4).tolist()  # that of a normal number at one standard deviation
    [-1.4189]
    """

    squares: np.ndarray
    spread: np.ndarray
    draws: float
    of_complex: bool

    def log_densities(self, noise_var: float, scale: float = 1.0) -> np.ndarray:
        """Return the log density of each datum at a noise variance."""
        n = self.draws
        # Scaled so that the variance is the sum of both.
        variance = (scale * self.spread + noise_var) * ((n - 1) / n if self.of_complex else (n - 2) / n)
        ratio = self.squares / variance
        if self.of_complex:
            return -np.log(np.pi * variance) - (n + 1) * np.log1p(ratio / n)
        constant = gammaln((n + 1) / 2) - gammaln(n / 2) - 0.5 * np.log(np.pi * n)
        return constant - 0.5 * np.log(variance) - (n + 1) / 2 * np.log1p(ratio / n)

    def likely_noise(self, power: float, scale: float = 1.0) -> float:
        """Return the largest noise variance that is nearly as likely as the best one.

        Parameters
        ----------
        power : float
            Mean square of the data.
        scale : float
            What variances of predictions are multiplied by.
        """
        nearly = NEARLY * min(1.0, self.squares.size / ENOUGH)

        def last_likely(levels: np.ndarray) -> int:
            found = [float(np.sum(self.log_densities(level**2 * power, scale))) for level in levels]
            return int(np.flatnonzero(np.array(found) >= max(found) - nearly)[-1])

        at = last_likely(LEVELS)
        low, high = LEVELS[max(at - 1, 0)], LEVELS[min(at + 1, LEVELS.size - 1)]
        fine = np.geomspace(low, high, 2 * FINER + 1)
        return float(fine[last_likely(fine)] ** 2 * power)

    def likely_both(self, noise_var: float) -> float:
        """Return the scale where both it and the noise are most likely, from a first guess of the noise."""
        scale = 1.0
        for _ in range(ROUNDS):
            scale = self.likely_scale(noise_var)
            levels = noise_var * NEAR
            found = [float(np.sum(self.log_densities(level, scale))) for level in levels]
            noise_var = float(levels[np.argmax(found)])
        return scale

    def likely_scale(self, noise_var: float) -> float:
        """Return what variances of predictions are to be multiplied by; 1 if data say nothing about it."""
        found = [float(np.sum(self.log_densities(noise_var, scale))) for scale in SCALES]
        return float(SCALES[np.argmax(np.array(found) - 0.5 * (np.log(SCALES) / EXPECTED) ** 2)])

    def holding_scale(self, noise_var: float) -> float:
        """Return the number next to 1 by which variances are multiplied so that 95 % intervals hold 95 %.

        Examples
        --------
        >>> import numpy as np
        >>> squares = 2.0 * np.random.default_rng(0).standard_normal(4000) ** 2
        >>> found = Errors(squares, np.ones(4000), 8.0, of_complex=False).holding_scale(0.0)
        >>> bool(1.7 < found <= 2.0)
        True
        """
        own = self.spread / (self.spread + noise_var)
        if np.median(own) < OWN:
            return 1.0
        reach = np.log(1 / (1 - LEVEL)) if self.of_complex else ndtri(0.5 + LEVEL / 2) ** 2
        error = np.sqrt(LEVEL * (1 - LEVEL) / self.squares.size)
        nearest = SCALES[np.argsort(np.abs(np.log(SCALES)))]
        held = np.array([np.mean(self.squares <= reach * (c * self.spread + noise_var)) for c in nearest])
        within = np.abs(held - LEVEL) <= error
        # Without any that is within a standard error, the one that comes closest.
        return float(nearest[np.argmax(within) if within.any() else np.argmin(np.abs(held - LEVEL))])

    def outside(self, noise_var: float, level: float) -> int:
        """Return how many data lie outside of the intervals that are to hold `level` of them.

        Examples
        --------
        >>> import numpy as np
        >>> Errors(np.array([0.1, 9.0]), np.array([0.5, 0.5]), 1e9, of_complex=False).outside(0.5, 0.95)
        1
        """
        variance = self.spread + noise_var
        if self.of_complex:
            return int(np.count_nonzero(self.squares > -np.log1p(-level) * variance))
        quantile = float(ndtri(0.5 + level / 2))
        return int(np.count_nonzero(self.squares > quantile**2 * variance))
