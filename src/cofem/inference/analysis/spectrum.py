r"""A spectral density that is learned from a series with missing samples.

The series is taken for a stationary Gaussian process beside a level and a slope. Its spectral density is a
sum of few bumps over the frequencies ``f``,

.. math::
    g(f) = \sum_j a_j \sum_{h \ge 1} e^{-d_j (h - 1)}
    \Bigl(1 + \frac{(f - h c_j)^2}{p_j w_j^2}\Bigr)^{-p_j},

at zero frequency for what is smooth (p = 1 is a random walk that forgets, a large p a smooth curve),
elsewhere with harmonics for a season. The parameters maximise the evidence. Bumps are added one after the
other, each where the spectrum of the residual says that it gains most, as long as it gains plainly.

Data enter through a factor of their covariance, N x N. The derivative of the evidence by the density at a
frequency is half of ``|f^H C^-1 y|^2 - f^H C^-1 f``, which two transforms give for all frequencies at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import linalg

#: Nats that a further bump must gain.
PLAIN_GAIN = 8.0
#: Most bumps.
MOST_BUMPS = 10
#: Places that are tried for a further bump before it is given up.
TRIES = 2
#: Steps of the quasi-Newton method after a bump is added, and at the end.
STEPS, LAST_STEPS = 12, 40
#: Samples of the circle that frequencies are those of, for each sample of the series.
FINER = 4
#: Most harmonics.
HARMONICS = 12
#: How fast harmonics of a new bump fall off.
FIRST_DECAYS = (2.0, 4.0)
#: Variance of the level, in units of the data's mean square, which is that about their mean in a fit.
LEVEL = 16.0
#: Parameters of a bump.
PER_BUMP = 5
#: Limits of the exponent p, of the decay d of harmonics, and of the width (the first in frequencies of the
#: circle).
EXPONENTS, DECAYS, NARROWEST, WIDEST = (0.75, 20.0), (0.2, 10.0), 0.5, 0.25
#: Least noise variance, relative to the data's.
LEAST_NOISE = 1e-7


class Bump(NamedTuple):
    """One term of the density.

    Attributes
    ----------
    power : float
        Its variance.
    frequency : float
        Where it is, in cycles a sample; 0 for what is smooth.
    width : float
        How wide it is.
    exponent : float
        How fast it falls off.
    decay : float
        How fast harmonics fall off.
    """

    power: float
    frequency: float
    width: float
    exponent: float
    decay: float


class Window(NamedTuple):
    """Data that are modelled jointly.

    Attributes
    ----------
    y : ndarray of shape (N,)
        Data.
    places : ndarray of shape (N,)
        The sample that each datum sees, counted from the first of the window.
    weights : ndarray of shape (N,)
        What it multiplies it by.
    """

    y: np.ndarray
    places: np.ndarray
    weights: np.ndarray


class Spectrum(NamedTuple):
    """What was learned.

    Attributes
    ----------
    bumps : list of Bump
        The terms of the density.
    noise_var : float
        Noise variance.
    floor : float
        Variance of the white part of the bumps, which counts as noise.
    level, slope : float
        Prior variances of level and slope.
    log_evidence : float
        Of the data.
    """

    bumps: list[Bump]
    noise_var: float
    floor: float
    level: float
    slope: float
    log_evidence: float

    def covariance(self, n: int) -> np.ndarray:
        """Return the covariance of samples 0 to n - 1 apart, without level, slope and white part."""
        circle = _Circle(n)
        density = sum(bump.power * _shape(circle.frequencies, bump)[0] for bump in self.bumps)
        found = circle.covariance(np.asarray(density))[:n]
        found[0] -= min(self.floor, circle.white_part(np.asarray(density)))
        return found

    @property
    def n_parameters(self) -> int:
        """Number of parameters that were learned."""
        return 1 + sum(3 if bump.frequency == 0 else PER_BUMP for bump in self.bumps)


def learn_spectrum(
    windows: list[Window], length: int, *, noise_var: float | None = None, with_slope: bool = True
) -> Spectrum:
    """Learn a spectral density by maximising the evidence.

    Parameters
    ----------
    windows : list of Window
        Data. Those of different windows count as independent.
    length : int
        Samples of the longest window.
    noise_var : float, optional
        Noise variance, if it is known.
    with_slope : bool
        Whether the series may rise or fall throughout.

    Examples
    --------
    A season of 12 samples, a third of which is missing:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> t = np.flatnonzero(rng.random(200) < 0.67)
    >>> y = np.sin(2 * np.pi * t / 12) + 0.1 * rng.standard_normal(t.size)
    >>> found = learn_spectrum([Window(y, t, np.ones(t.size))], 200)
    >>> strongest = max(found.bumps, key=lambda bump: bump.power)
    >>> round(1 / strongest.frequency, 1), 0.07 < found.noise_var**0.5 < 0.13
    (12.0, True)
    """
    model = _Model(windows, length, noise_var, with_slope)
    # Bumps lead to one of several optima; two ways to begin with harmonics find better ones than one.
    ways = [_one_after_the_other(model, decay) for decay in FIRST_DECAYS]
    found, value = max(ways, key=lambda way: way[1] - PLAIN_GAIN * way[0].size / PER_BUMP)
    noise = float(np.exp(found[0]))
    floor = 0.0
    if noise_var is None:
        # A white part of the series cannot be told from noise where each sample is seen once.
        density, _ = model.density(found)
        floor = model.circle.white_part(density)
    return Spectrum(_bumps(found), noise + floor, floor, model.level, model.slope, value)


def _one_after_the_other(model: _Model, decay: float) -> tuple[np.ndarray, float]:
    """Add bumps as long as they gain plainly; return the parameters and their log evidence."""
    v = model.variance
    start = np.array([np.log(0.1 * v), np.log(0.8 * v), 0.0, np.log(0.02), np.log(2.0), 0.0])
    found, value = model.optimised(start, STEPS)
    while found.size < 1 + PER_BUMP * MOST_BUMPS:
        for bump in model.promising(found)[:TRIES]:
            longer = np.concatenate([found, _parameters(bump._replace(decay=decay))])
            candidate, gained = model.optimised(longer, STEPS)
            if gained - value > PLAIN_GAIN:
                found, value = candidate, gained
                break
        else:
            break
    return model.optimised(found, LAST_STEPS)


@dataclass(frozen=True)
class _Circle:
    """Frequencies of a circle of samples that is so long that a window does not meet itself."""

    length: int

    @cached_property
    def samples(self) -> int:
        return int(2 ** np.ceil(np.log2(FINER * self.length)))

    @cached_property
    def frequencies(self) -> np.ndarray:
        return np.arange(self.samples // 2 + 1) / self.samples

    def covariance(self, density: np.ndarray) -> np.ndarray:
        """Return ``sum_f g(f) cos(2 pi f k)`` for k from 0 to `samples` - 1."""
        halves = density.copy()
        halves[1:-1] *= 0.5
        return np.asarray(np.fft.irfft(halves, self.samples)) * self.samples

    def white_part(self, density: np.ndarray) -> float:
        """Return the variance of the largest white noise that the density holds, or a little less."""
        return 0.99 * float(density.min()) * self.samples / 2


class _Moments(NamedTuple):
    """What the data of a window say at some parameters."""

    log_evidence: float
    #: ``|f^H C^-1 y|^2`` and ``f^H C^-1 f`` at each frequency.
    found: np.ndarray
    expected: np.ndarray
    #: Derivative by the noise variance.
    by_noise: float


class _Model:
    """The evidence of data, as a function of the logarithms of the parameters (frequencies as they are)."""

    def __init__(self, windows: list[Window], length: int, noise_var: float | None, with_slope: bool) -> None:
        y = np.concatenate([window.y / window.weights for window in windows])
        self.windows, self.length, self.noise_var = windows, length, noise_var
        self.circle = _Circle(length)
        self.square = float(np.mean(y**2)) or 1.0
        self.variance = float(np.var(y)) or self.square
        self.level, self.slope = LEVEL * self.square, self.variance if with_slope else 0.0
        self._lags = [np.abs(window.places[:, None] - window.places) for window in windows]
        self._bases = [self._base(window) for window in windows]

    def _base(self, window: Window) -> np.ndarray:
        ramp = slope_of(self.length)[window.places]
        base = self.level + self.slope * np.outer(ramp, ramp)
        return np.asarray(base * np.outer(window.weights, window.weights))

    def density(self, parameters: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the density and its derivatives by the parameters of each bump."""
        f = self.circle.frequencies
        total, derivatives = np.zeros(f.size), []
        for bump in _bumps(parameters):
            shape = _shape(f, bump)
            total += bump.power * shape[0]
            derivatives.append(bump.power * shape)
        return total, derivatives

    def moments(self, density: np.ndarray, noise_var: float) -> list[_Moments]:
        """Return what each window says."""
        covariance, circle = self.circle.covariance(density), self.circle
        out = []
        for window, lags, base in zip(self.windows, self._lags, self._bases, strict=True):
            y, places, weights = window
            matrix = covariance[lags]
            matrix *= weights[:, None] * weights
            matrix += base
            matrix[np.diag_indices(y.size)] += noise_var
            factor = linalg.cholesky(matrix, lower=True, check_finite=False)
            inverse, _ = linalg.lapack.dpotri(factor, lower=1)
            inverse = np.tril(inverse)
            inverse += np.tril(inverse, -1).T
            solved = inverse @ y
            log_det = 2 * float(np.log(np.diagonal(factor)).sum())
            value = -0.5 * (float(y @ solved) + log_det + y.size * np.log(2 * np.pi))
            spread = np.bincount(places, weights=weights * solved, minlength=circle.samples)
            pairs = np.bincount(
                lags.ravel(),
                weights=((weights[:, None] * weights) * inverse).ravel(),
                minlength=circle.samples,
            )
            out.append(
                _Moments(
                    value,
                    np.abs(np.fft.rfft(spread)) ** 2,
                    np.fft.rfft(pairs).real,
                    0.5 * (float(solved @ solved) - float(np.trace(inverse))),
                )
            )
        return out

    def loss(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the log evidence and its derivatives."""
        density, derivatives = self.density(parameters)
        noise_var = float(np.exp(parameters[0]))
        try:
            moments = self.moments(density, noise_var)
        except linalg.LinAlgError:  # no step may lead here
            return 1e300, np.zeros_like(parameters)
        by_density = 0.5 * sum(m.found - m.expected for m in moments)
        gradient = [np.array([noise_var * sum(m.by_noise for m in moments)])]
        gradient += [shapes @ by_density for shapes in derivatives]
        return -sum(m.log_evidence for m in moments), -np.concatenate(gradient)

    def optimised(self, start: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
        """Return better parameters and their log evidence."""
        from scipy import optimize  # as in `_smoothed`: other fits need not wait for it

        bounds = self._bounds(start)
        low, high = np.array(bounds).T
        options = {"maxiter": steps, "maxcor": 20, "ftol": 1e-7}
        begin = np.clip(start, low, high)
        found = optimize.minimize(
            self.loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        return found.x, -float(found.fun)

    def _bounds(self, parameters: np.ndarray) -> list[tuple[float, float]]:
        v = self.variance
        noise = (LEAST_NOISE * v, 2 * v) if self.noise_var is None else (self.noise_var,) * 2
        bounds = [(float(np.log(noise[0])), float(np.log(noise[1])))]
        width = np.log([NARROWEST / self.circle.samples, WIDEST])
        for bump in _bumps(parameters):
            bounds += [
                (float(np.log(1e-6 * v)), float(np.log(1e3 * self.square))),
                (0.5 / self.length, 0.5) if bump.frequency else (0.0, 0.0),
                (float(width[0]), float(width[1])),
                (float(np.log(EXPONENTS[0])), float(np.log(EXPONENTS[1]))),
                (float(np.log(DECAYS[0])), float(np.log(DECAYS[1]))),
            ]
        return bounds

    def promising(self, parameters: np.ndarray) -> list[Bump]:
        """Return where a further bump would gain most, best first.

        A bump over m independent frequencies whose power is rho times what is expected gains about ``m (rho -
        1 - log rho)`` nats (Tipping and Faul 2003, for each of the two waves of a frequency).
        """
        density, _ = self.density(parameters)
        moments = self.moments(density, float(np.exp(parameters[0])))
        found = np.sum([m.found for m in moments], axis=0)
        expected = np.sum([m.expected for m in moments], axis=0)
        n, count, f = self.length, len(moments), self.circle.frequencies
        ranked: list[tuple[float, Bump]] = []
        width = 1 / n
        while width < 0.2:
            smooth_found, smooth_expected = (
                np.maximum(_smoothed(x, width * self.circle.samples), 1e-300) for x in (found, expected)
            )
            independent = count * max(1.0, 3.5 * width * n)
            ratio = smooth_found / smooth_expected
            gains = np.where(ratio > 1, independent * (ratio - 1 - np.log(np.maximum(ratio, 1))), 0.0)
            best = int(np.argmax(gains))
            power = (smooth_found[best] - smooth_expected[best]) / smooth_expected[best] ** 2
            power *= independent * count
            centre = 0.0 if f[best] < max(1.5 * width, 1 / n) else float(f[best])
            power = float(np.clip(power, 1e-4 * self.variance, 2 * self.variance))
            ranked.append((float(gains[best]), Bump(power, centre, width, 2.0, 2.0)))
            width *= 2
        ranked.sort(key=lambda pair: -pair[0])
        chosen: list[Bump] = []
        for gain, bump in ranked:
            if gain > 0.3 * PLAIN_GAIN and all(_apart(bump, other) for other in chosen):
                chosen.append(bump)
        return chosen


def slope_of(n: int) -> np.ndarray:
    """Return a straight line with mean 0 and mean square 1, shape (n,)."""
    line: np.ndarray = (np.arange(n) - (n - 1) / 2) / max(n / 12**0.5, 1e-300)
    return line


def _bumps(parameters: np.ndarray) -> list[Bump]:
    rows = parameters[1:].reshape(-1, PER_BUMP)
    values = np.where(np.arange(PER_BUMP) == 1, rows, np.exp(rows))
    return [Bump(*row) for row in values.tolist()]


def _parameters(bump: Bump) -> np.ndarray:
    power, frequency, *rest = bump
    return np.array([np.log(power), frequency, *np.log(rest)])


def _apart(one: Bump, other: Bump) -> bool:
    wide, narrow = max(one.width, other.width), min(one.width, other.width)
    return abs(one.frequency - other.frequency) > 0.7 * wide or wide > 3.9 * narrow


def _smoothed(x: np.ndarray, width: float) -> np.ndarray:
    """Return means over neighbouring frequencies, weighted by a Gaussian; the spectrum goes on mirrored."""
    from scipy.signal import fftconvolve  # it brings scipy.stats: a third of the import for a first fit

    reach = int(3 * width) + 1
    window = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    mirrored = np.pad(x, reach, mode="reflect" if reach < x.size else "symmetric")
    return np.asarray(fftconvolve(mirrored, window / window.sum(), mode="valid"))


def _shape(f: np.ndarray, bump: Bump) -> np.ndarray:
    """Return a bump that sums to one, and its derivatives by frequency and logarithms, shape (5, size of f).

    The derivative by the logarithm of its power is the bump itself.
    """
    _, c, w, p, d = bump
    terms: list[tuple[np.ndarray, float, int]] = [(f, 0.0, 1), (1 - f, 0.0, 1)]
    if c > 0:
        count = int(max(1.0, min(0.5 / c, HARMONICS, 1 + 8 / d)))
        terms = []
        for h in range(1, count + 1):
            terms += [(f - h * c, -h, h), (f + h * c, h, h), (1 - f - h * c, -h, h)]
    out = np.zeros((PER_BUMP, f.size))
    for distance, sign, h in terms:
        x = distance / w
        tail = 1 + x * x / p
        log_tail = np.log(tail)
        value = np.exp(-p * log_tail - d * (h - 1))
        slope = -2 * x * value / tail
        out[0] += value
        out[1] += slope * sign / w
        out[2] -= slope * x
        out[3] += p * value * (x * x / (p * tail) - log_tail)
        out[4] -= d * (h - 1) * value
    total = float(out[0].sum())
    out /= total
    out[1:] -= out[0] * out[1:].sum(axis=1, keepdims=True)
    return out
