"""Variances without probes, from the spectrum of ``Phi^H Phi`` and a self-consistent equation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from cofem._arrays import Array, average, inner, namespace, number_like, reciprocal
from cofem._packing import packable
from cofem.linalg.diagonals.base import (
    DiagonalEstimate,
    DiagonalEstimator,
    PosteriorContext,
    RightHandSides,
)
from cofem.linalg.lanczos import GaussianLaw, looks_gaussian, spectral_density
from cofem.linalg.message_passing import Exchange
from cofem.linalg.roots import newton_root
from cofem.operators.dictionary import Dictionary

#: Precisions from which on one in so many says first where the root is.
SAMPLED, EVERY = 2**16, 8


@packable("spectrum")
class Spectrum(NamedTuple):
    """Eigenvalues of ``Phi^H Phi`` (columns of equal norm) as nodes with weights that sum to 1."""

    nodes: np.ndarray
    weights: np.ndarray


@packable("self_consistent")
class Carry(NamedTuple):
    """What does not change from step to step, and where the last root was."""

    spectrum: Spectrum
    #: ``||phi_j||^2`` relative to their mean, or None when the columns count as equal.
    relative_energy: Array | None
    tau: float | None
    #: Whether the mean may be found by message passing: rows are orthonormal, or columns like Gaussian ones.
    sweeps: bool = False


@dataclass(frozen=True)
class SelfConsistent(DiagonalEstimator):
    r"""``s_j = 1 / (alpha_j + tau)`` with tau from a self-consistent equation.

    If the eigenvectors of :math:`\Phi^H\Phi` are in no special relation to alpha (an incoherent
    dictionary), tau solves

    .. math:: \eta = \tfrac1D\sum_j \frac1{\alpha_j + \tau}
              = \tfrac1D\sum_k \frac1{\omega + \beta\lambda_k}, \qquad \omega = 1/\eta - \tau,

    with the eigenvalues :math:`\lambda_k` of :math:`\Phi^H\Phi`. They are known when the rows are
    orthonormal up to scale, and estimated once by Lanczos (on columns scaled to equal norm) otherwise.

    Parameters
    ----------
    lanczos_steps, lanczos_vectors : int
        Effort of the spectrum's estimate: their product is its cost in applications, unless a few of them
        have shown columns like Gaussian ones, whose spectrum is known.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> from cofem.operators import DCT, Mask
    >>> Phi = Mask(np.random.default_rng(0).choice(256, 64, replace=False), 256) @ DCT(256).T
    >>> alpha = np.geomspace(1, 1000, 256)
    >>> context = PosteriorContext(Dictionary(Phi, like=np.zeros(1)), alpha, 0.01)
    >>> Sigma = np.linalg.inv(Phi.gram(np.eye(256)) / 0.01 + np.diag(alpha))
    >>> carry = SelfConsistent().init(context, np.random.default_rng(1))
    >>> rhs = SelfConsistent().right_hand_sides(context, carry, np.random.default_rng(2))
    >>> found = SelfConsistent().estimate(context, carry, rhs, None)  # without a probe
    >>> bool(np.abs(found.value / np.diag(Sigma) - 1).mean() < 0.1)
    True
    """

    lanczos_steps: int = 40
    lanczos_vectors: int = 2

    name: ClassVar[str] = "self_consistent"

    def init(self, context: PosteriorContext, rng: np.random.Generator) -> Carry:
        """Find the spectrum."""
        n, d = context.phi.shape
        row_gram = context.phi.facts.row_gram
        if row_gram is not None:
            share = n / d
            spectrum = Spectrum(np.array([row_gram, 0.0]), np.array([share, 1 - share]))
            return Carry(spectrum, None, None, sweeps=True)
        columns = _equal_columns(context.phi)
        sweeps = has_gaussian_columns(context.phi)
        if sweeps:
            density = GaussianLaw(n, d).quadrature(self.lanczos_steps)
        else:
            effort: dict[str, Any] = {"steps": self.lanczos_steps, "vectors": self.lanczos_vectors}
            density = spectral_density(columns.gram, context.like, d, **effort, rng=rng)
        # At most N eigenvalues differ from zero; Lanczos spreads the others over tiny nodes.
        spectrum = Spectrum(columns.energy * np.maximum(density.nodes, 0.0), density.weights)
        return Carry(spectrum, columns.relative_energy, None, sweeps=sweeps)

    def right_hand_sides(
        self, context: PosteriorContext, carry: Any, rng: np.random.Generator
    ) -> RightHandSides:
        """Solve for tau, which message passing can use as well."""
        found: Carry = carry
        alpha = _at_equal_norms(context, found)
        tau = solve_tau(alpha, found.spectrum, 1 / context.noise_var, found.tau)
        variance = reciprocal(alpha + tau)
        exchange = None
        if found.sweeps and tau > 0:
            exchange = Exchange(tau, omega_of(alpha, variance), variance)
        return RightHandSides(extra=(tau, variance), exchange=exchange)

    def estimate(
        self, context: PosteriorContext, carry: Any, rhs: RightHandSides, x: Array
    ) -> DiagonalEstimate:
        """Return what follows from tau."""
        found: Carry = carry
        relative, (tau, value) = found.relative_energy, rhs.extra
        if relative is not None:
            value = value / relative
        # Below the prior variance it is by its form; above the floor, unless the data say more than they can.
        if relative is not None or tau > context.phi.least_energy / context.noise_var:
            value = context.clip(value)

        def uncertainty() -> Array:
            # Fluctuations of S_j around tau are of relative size 1 / sqrt(N) or more; the gate measures them.
            return value * (1 - value * context.alpha) * context.phi.shape[0] ** -0.5

        return DiagonalEstimate(value, uncertainty, found._replace(tau=tau), used=self.name)


class _EqualColumns(NamedTuple):
    """A dictionary in units where its columns have norm one."""

    phi: Dictionary
    #: Mean of ``||phi_j||^2``, and each of them relative to it; one for columns of zeros.
    energy: float
    relative_energy: Array

    def gram(self, x: Array) -> Array:
        """Return the product with the Gram matrix of the scaled columns, for x of shape (..., D)."""
        inverse = 1 / namespace(x).sqrt(self.relative_energy)
        return inverse * self.phi.gram(inverse * x) / self.energy


def _equal_columns(phi: Dictionary) -> _EqualColumns:
    energy = phi.column_energy
    mean, xp = average(energy) or 1.0, namespace(energy)
    relative = energy / mean
    return _EqualColumns(phi, mean, xp.where(relative > 0, relative, number_like(relative, 1.0)))


#: Dictionaries that were looked at, and those that others are made of, which are looked at in their place.
_GAUSSIAN: WeakKeyDictionary[Dictionary, bool] = WeakKeyDictionary()
_MADE_OF: WeakKeyDictionary[Dictionary, Dictionary] = WeakKeyDictionary()


def has_gaussian_columns(phi: Dictionary) -> bool:
    """Tell whether columns are like Gaussian ones, by a few products; asked once of a dictionary.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> gaussian = np.random.default_rng(0).standard_normal((300, 900))
    >>> for M in (gaussian, np.cumsum(gaussian, axis=1)):
    ...     has_gaussian_columns(Dictionary(Dense(M), like=np.zeros(1)))
    True
    False
    """
    phi = _MADE_OF.get(phi, phi)
    if phi not in _GAUSSIAN:
        rng = np.random.default_rng(0)  # so that all who ask have the same answer
        _GAUSSIAN[phi] = looks_gaussian(_equal_columns(phi).gram, phi.like, phi.shape, rng)
    return _GAUSSIAN[phi]


def as_gaussian_as(phi: Dictionary, whole: Dictionary) -> Dictionary:
    """Return `phi`, which is made of rows of `whole`, and so has columns like Gaussian ones where that has.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> whole = Dictionary(Dense(np.random.default_rng(0).standard_normal((300, 900))), like=np.zeros(1))
    >>> has_gaussian_columns(as_gaussian_as(whole.take_rows([0, 1]), whole))
    True
    """
    _MADE_OF[phi] = whole
    return phi


def _at_equal_norms(context: PosteriorContext, carry: Carry) -> Array:
    """Return alpha in units where the columns have equal norms."""
    return context.alpha if carry.relative_energy is None else context.alpha / carry.relative_energy


def omega_of(alpha: Array, variance: Array) -> float:
    """Return the omega of `SelfConsistent` where variances are ``1 / (alpha + tau)``.

    It is ``1 / eta - tau``, without cancellation.

    Examples
    --------
    >>> import numpy as np
    >>> omega_of(np.full(3, 2.0), np.full(3, 1 / 7))
    2.0
    """
    return inner(alpha, variance) / float(namespace(variance).sum(variance))


def solve_tau(alpha: Array, spectrum: Spectrum, beta: float, guess: float | None) -> float:
    """Find the tau of `SelfConsistent`; `guess` is where it was last.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators.dictionary import Dictionary
    >>> half = Spectrum(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    >>> tau = solve_tau(np.ones(4), half, beta=3.0, guess=None)
    >>> round(1 / (1 + tau), 3), 0.5 / (1 + 3) + 0.5 / 1  # for equal alpha, the mean of the inverse
    (0.625, 0.625)
    """
    if alpha.shape[0] >= SAMPLED:  # so that one look at all of them is enough
        some = namespace(alpha).asarray(alpha[::EVERY], copy=True)  # side by side, for speed
        guess = solve_tau(some, spectrum, beta, guess) or guess
    eigenvalues, weights = beta * spectrum.nodes, spectrum.weights

    def excess(log_tau: float) -> tuple[float, float]:
        tau = math.exp(log_tau)
        inverse = reciprocal(alpha + tau)
        # In the array's own precision, which is three times faster: the root is wanted to 1e-4.
        eta = float(namespace(inverse).sum(inverse)) / alpha.shape[0]
        omega = inner(alpha, inverse) / alpha.shape[0] / eta  # 1 / eta - tau, without cancellation
        eta_slope = -inner(inverse, inverse) / alpha.shape[0]
        # Negative only by rounding, which tau / omega makes large: the slope would be far too steep.
        omega_slope = max(-eta_slope / eta**2 - 1, 0.0)
        terms = 1 / (omega + eigenvalues)
        weighted = weights * terms
        resolvent = float(weighted.sum())
        slope = -float(weighted.dot(terms)) * omega_slope / resolvent - eta_slope / eta
        # In logarithms the function is nearly straight.
        return math.log(resolvent / eta), tau * slope

    # The excess is negative below the root, and the root is at most beta times the largest eigenvalue.
    largest = math.log(beta * max(float(spectrum.nodes.max()), 1e-300))
    least = largest - 100.0
    found = newton_root(excess, math.log(guess) if guess else largest - 2.5, least, largest)
    return math.exp(found) if found > least else 0.0  # at the lower end, data say nothing
