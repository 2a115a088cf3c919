"""How likely data that were held out of a fit are under its predictions, each with its own variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtri

#: Draws that variances count for where they are exact or come from many: precisions are fitted, too.
MOST_DRAWS = 8.0


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

    def log_densities(self, noise_var: float) -> np.ndarray:
        """Return the log density of each datum at a noise variance."""
        n = self.draws
        # Scaled so that the variance is the sum of both.
        variance = (self.spread + noise_var) * ((n - 1) / n if self.of_complex else (n - 2) / n)
        ratio = self.squares / variance
        if self.of_complex:
            return -np.log(np.pi * variance) - (n + 1) * np.log1p(ratio / n)
        constant = gammaln((n + 1) / 2) - gammaln(n / 2) - 0.5 * np.log(np.pi * n)
        return constant - 0.5 * np.log(variance) - (n + 1) / 2 * np.log1p(ratio / n)

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
