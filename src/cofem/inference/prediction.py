"""How likely data that were held out of a fit are under its predictions, each with its own variance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import gammaln, ndtri

from cofem._blocks import blocks

#: Draws that variances count for where they are exact or come from many: precisions are fitted, too.
MOST_DRAWS = 8.0
#: Noise levels that are tried, relative to the data: from afar, and how finely in the end.
LEVELS = np.geomspace(1e-4, 1.0, 25)
FINER = 4
#: Scales of variances that are tried, and how far from 1 they are expected to be, in logarithms.
SCALES = np.geomspace(0.125**0.5, 2.0, 16)
#: Turns in which both are found from each other, and factors of the noise variance that are tried in one.
ROUNDS, NEAR = 4, np.geomspace(0.7, 1.4, 5)
EXPECTED = 0.4
#: Exponents by which errors may grow faster than the variances say, how large they are expected to be, and
#: of how many data they are found.
BENDS, EXPECTED_BEND, ENOUGH_TO_BEND = (0.0, 0.25, 0.5, 0.75, 1.0), 0.5, 4096
#: Part of the data that intervals are to hold, and the smallest part of the variance of a prediction that is
#: the posterior's own, at which data say how large it should be.
LEVEL, OWN = 0.95, 0.1
#: Variance of the logarithm of a noise variance that was learned, times the number of data: 2 where these are
#: noise alone, four times that where the scale of variances is found with it.
NOISE_UNCERTAIN = 8.0
#: How much less likely than the best noise a larger one may be, in nats.
NEARLY = 0.5
#: Numbers that are worked on at once.
AT_ONCE = 2**14
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

    def log_density(self, noise_vars: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Return the log density of all data at each of some noise variances: sums of `log_densities`.

        Parameters
        ----------
        noise_vars : ndarray of shape (K,)
            Noise variances.
        scale : float
            What variances of predictions are multiplied by.

        Examples
        --------
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> errors = Errors(rng.random((2, 30)), rng.random(30), 8.0, of_complex=False)
        >>> found = errors.log_density(np.array([0.1, 0.2]), 0.7)
        >>> np.allclose(found, [errors.log_densities(v, 0.7).sum() for v in (0.1, 0.2)], rtol=1e-12)
        True
        """
        n, free, count = self.draws, 1 if self.of_complex else 2, self.squares.size
        spread, addend = scale * self.spread, (self.squares / n).reshape(-1, self.spread.size)
        found = np.empty(noise_vars.size)
        for some in blocks(noise_vars.size, max(1, AT_ONCE // max(count, 1))):
            variance = (spread + noise_vars[some, None]) * ((n - free) / n)
            with_error = variance[:, None, :] + addend
            found[some] = n * len(addend) * _sums_of_logs(variance)
            found[some] -= (n + 1) * _sums_of_logs(with_error.reshape(len(variance), -1))
        if self.of_complex:
            return found - count * float(np.log(np.pi))
        constant = gammaln((n + 1) / 2) - gammaln(n / 2) - 0.5 * np.log(np.pi * n)
        return 0.5 * found + count * float(constant)

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
            found = self.log_density(levels**2 * power, scale)
            return int(np.flatnonzero(found >= found.max() - nearly)[-1])

        at = last_likely(LEVELS)
        low, high = LEVELS[max(at - 1, 0)], LEVELS[min(at + 1, LEVELS.size - 1)]
        fine = np.geomspace(low, high, 2 * FINER + 1)
        return float(fine[last_likely(fine)] ** 2 * power)

    def likely_both(
        self, noise_var: float, rounds: int = ROUNDS, scales: np.ndarray = SCALES
    ) -> tuple[float, float]:
        """Return the scale where both it and the noise are most likely, from a first guess of the noise.

        The second number is the log density there, with what is expected of the scale.
        """
        scale, best = 1.0, -np.inf
        for _ in range(rounds):
            scale = self.likely_scale(noise_var, scales, scale)
            levels = noise_var * NEAR
            found = self.log_density(levels, scale)
            noise_var, best = float(levels[np.argmax(found)]), float(found.max())
        return scale, best - 0.5 * (np.log(scale) / EXPECTED) ** 2

    def bent(self, exponent: float) -> Errors:
        """Return the same errors, expected to grow faster than the variances: by ``v^(1 + exponent)``.

        Examples
        --------
        >>> import numpy as np
        >>> Errors(np.ones(3), np.array([1.0, 2.0, 4.0]), 8.0, of_complex=False).bent(1.0).spread.tolist()
        [0.5, 2.0, 8.0]
        """
        typical = float(np.median(self.spread))
        if not exponent or typical == 0:
            return self
        return replace(self, spread=self.spread * (self.spread / typical) ** exponent)

    def likely_bend(self, noise_var: float) -> Errors:
        """Return the errors, bent so that they are most likely, from a first guess of the noise.

        In smooth parts of a picture the posterior is wider than its errors, at edges narrower. A noise that
        is to make up for the former is too small.
        """
        every = -(-self.spread.size // ENOUGH_TO_BEND)
        some = replace(self, squares=self.squares[..., ::every], spread=self.spread[::every])
        found = [
            some.bent(exponent).likely_both(noise_var, 2, SCALES[::2])[1]
            - 0.5 * (exponent / EXPECTED_BEND) ** 2
            for exponent in BENDS
        ]
        return self.bent(BENDS[int(np.argmax(found))])

    def likely_scale(self, noise_var: float, scales: np.ndarray = SCALES, near: float = 1.0) -> float:
        """Return what variances of predictions are to be multiplied by; 1 if data say nothing about it.

        One of `scales` (they rise) that is more likely than those next to it, sought from `near`.
        """
        at_noise, logs = np.array([noise_var]), np.log(scales)

        @cache
        def found(at: int) -> float:
            if not 0 <= at < scales.size:
                return -np.inf
            return float(self.log_density(at_noise, scales[at])[0]) - 0.5 * (logs[at] / EXPECTED) ** 2

        at = int(np.argmin(np.abs(logs - np.log(near))))
        while (best := max((at, at - 1, at + 1), key=found)) != at:
            at = best
        return float(scales[at])

    def holding_scale(self, noise_var: float, learned: bool = False) -> float:
        """Return the number next to 1 by which variances are multiplied so that 95 % intervals hold 95 %.

        Parameters
        ----------
        noise_var : float
            Noise variance.
        learned : bool
            Whether that was learned from the same errors, so that it is uncertain itself.

        Examples
        --------
        >>> import numpy as np
        >>> squares = 2.0 * np.random.default_rng(0).standard_normal(4000) ** 2
        >>> found = Errors(squares, np.ones(4000), 8.0, of_complex=False).holding_scale(0.0)
        >>> bool(1.7 < found <= 2.0)
        True
        """
        own = float(np.median(self.spread / (self.spread + noise_var)))
        if own < OWN:
            return 1.0
        reach = np.log(1 / (1 - LEVEL)) if self.of_complex else ndtri(0.5 + LEVEL / 2) ** 2
        count = self.squares.size
        error = LEVEL * (1 - LEVEL) / count
        if learned:  # how many are held changes by so much with the logarithm of the variance
            slope = 1.96 * np.exp(-0.5 * 1.96**2) / np.sqrt(2 * np.pi)
            error += (slope * (1 - own)) ** 2 * NOISE_UNCERTAIN / count
        nearest = SCALES[np.argsort(np.abs(np.log(SCALES)))]
        held = np.array([np.mean(self.squares <= reach * (c * self.spread + noise_var)) for c in nearest])
        within = np.abs(held - LEVEL) <= error**0.5
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


def _sums_of_logs(x: np.ndarray) -> np.ndarray:
    """Return ``log(x).sum(axis=1)``, by few logarithms: those of products of eight."""
    whole = x.shape[1] - x.shape[1] % 8
    if not whole:
        return np.log(x).sum(axis=1)
    # In units of one of them, eight factors stay far from the largest number.
    typical = x[:, :1]
    with np.errstate(all="ignore"):
        products = np.multiply.reduce((x[:, :whole] / typical).reshape(len(x), 8, -1), axis=1)
        total = np.log(products).sum(axis=1) + whole * np.log(typical[:, 0])
    if not np.isfinite(total).all():
        return np.log(x).sum(axis=1)
    return np.asarray(total + np.log(x[:, whole:]).sum(axis=1))
