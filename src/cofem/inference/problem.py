"""The problem an algorithm works on: in one precision, in units of order one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from cofem._arrays import (
    Array,
    in_precision,
    inner,
    is_complex,
    namespace,
    number_like,
    on_device_of,
    precision_of,
    size,
    squared_modulus,
    take,
    to_numpy,
    total,
)
from cofem.linalg.diagonals.self_consistent import as_gaussian_as
from cofem.linalg.evidence import log_normal_density
from cofem.operators import Operator
from cofem.operators.dictionary import Dictionary
from cofem.priors import Independent, Prior
from cofem.priors.rectified import rectified_moments, rectified_second_moment

#: Ratio of the columns' norms from which on they are brought to a common one; and where columns are shifts of
#: each other, as in a blur of which some data are missing: that structure is worth more than equal norms.
NORMS_APART, SHIFTS_APART = 16.0, 1e4
#: Share of the mean's energy in coefficients that are negative by so many standard deviations, although they
#: are known not to be: 0.25 to 33 % wherever the moments of cut-off Gaussians improved the answer by a third,
#: 0 wherever they made that of a recovered signal worse. What is below zero by chance, up to 12 % where the
#: noise is large, says nothing.
NEGATIVE_PART, PLAINLY_NEGATIVE = 0.001, 3.0


@dataclass(frozen=True, eq=False)
class Units:
    """Powers of two that data, dictionary and columns were divided by, so that rounding stays the same.

    ``y = y_scaled * data`` and ``Phi_j = Phi_scaled_j * dictionary / columns_j``, hence
    ``z_j = z_scaled_j * columns_j * data / dictionary``. `columns` is None where all are 1.
    """

    data: float = 1.0
    dictionary: float = 1.0
    columns: Array | None = None

    @property
    def coefficient(self) -> float:
        """What all scaled coefficients are multiplied by."""
        return self.data / self.dictionary

    def apply(self, x: Array, power: int = 1) -> Array:
        """Return scaled coefficients, or a power of them, in the user's units.

        In the precision of x, or in double precision where that could not hold them.

        Parameters
        ----------
        x : array of shape (D,) or (D, L)
            Scaled coefficients to a power.
        power : int
            The power.
        """
        factor: Any = self.coefficient**power
        if self.columns is not None:
            columns = self.columns
            if isinstance(columns, np.ndarray):  # in double precision, which holds their powers
                columns = on_device_of(x, columns.astype(np.float64))
            factor = factor * (columns if x.ndim == 1 else columns[:, None]) ** power
        elif not isinstance(x, np.ndarray) or 1e-10 < factor < 1e10:
            return x * factor
        precision = precision_of(x)
        if precision == "float64" or not isinstance(x, np.ndarray):
            return in_precision(x * factor, precision)
        wide = in_precision(x, "float64") * factor
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = wide.astype(x.dtype)
        kept = np.isfinite(narrow).all() and ((narrow == 0) == (wide == 0)).all()
        return narrow if kept else wide


@dataclass(frozen=True, eq=False)
class Problem:
    """``y ~ N(Phi z, noise_var I)``, ``z ~ N(0, diag(alpha)^-1)``, in scaled units.

    Several data vectors of one dictionary (tasks) are rows of y; means then have shape (L, D).

    Attributes
    ----------
    phi : Dictionary
        Phi, shape (N, D), which counts its products and knows its norms.
    y : array of shape (N,) or (L, N)
        The data; every vector of the fit is of its library and on its device.
    noise_var : float
        Noise variance ``1 / beta`` (for complex data, of ``|noise|^2``).
    units : Units
        How to get back to the user's units.
    prior : Prior
        How precisions follow from second moments.
    nonnegative : bool
        Whether the coefficients are known not to be negative.
    cut_moments : bool
        Whether second moments are then those of Gaussians cut off at zero; see `with_constraint`.
    level : array of shape (D,) or (L, D), or None
        What was taken out of the unknown, and y, before the fit; see `cofem.inference.analysis.level`.
    """

    phi: Dictionary
    y: Array
    noise_var: float
    units: Units = field(default_factory=Units)
    prior: Prior = field(default_factory=Independent)
    nonnegative: bool = False
    cut_moments: bool = False
    level: Array | None = None

    @property
    def first(self) -> Problem | None:
        """The problem from whose fit this one's starts; None for the usual start."""
        prior = self.prior.starts_from
        return None if prior is None else replace(self, prior=prior)

    def with_constraint(self, mean: Array, variance: Array) -> Problem | None:
        """Return the problem to fit in place of this one, if its posterior contradicts the constraint.

        Where data are plenty, the Gaussian posterior is as it would be without the constraint, and what is
        negative is cut off. Updates by the moments of Gaussians that are cut off at zero one by one would
        cost accuracy there: a coefficient of which the data say ``0 +- s`` has a second moment above ``s``
        whenever its mean is above zero. Near the limit of what data allow they find what the Gaussians' own
        moments do not. Coefficients that are negative by more than chance tell which it is.
        """
        if self.cut_moments:
            return None
        energy = self.phi.column_energy * squared_modulus(mean)
        plainly = mean < -PLAINLY_NEGATIVE * np.sqrt(variance)
        if total(np.where(plainly, energy, 0)) <= NEGATIVE_PART * total(energy):
            return None
        return replace(self, cut_moments=True)

    def with_noise(self, noise_var: float) -> Problem:
        """Return the problem with another noise variance."""
        return replace(self, noise_var=noise_var)

    @property
    def form(self) -> Callable[[Problem], Problem]:
        """What makes of a problem with all data the one that this is a part of, at the noise of this one."""
        return partial(Problem.with_noise, noise_var=self.noise_var)

    def shown(self, state: Any) -> tuple[Problem, Any]:
        """Return the problem and the state that users see."""
        if self.level is None:
            return self, state
        return replace(self, level=None), replace(state, mean=state.mean + self.level)

    def normalised(self) -> Problem:
        """Return the problem with columns of a common norm, if theirs are apart.

        The model does not depend on the units of a column, and the result must not either: preconditioners,
        bounds and starts compare columns with each other. Left alone are priors that compare coefficients
        themselves, and orthonormal rows, whose structure is worth more.
        """
        phi = self.phi
        if not self.prior.free_of_units or phi.facts.row_gram is not None:
            return self
        norms = phi.norms
        xp = namespace(norms)
        found = norms > phi.operator.norm_resolution(norms)
        largest = float(xp.max(norms))
        least = float(xp.min(xp.where(found, norms, number_like(norms, largest))))
        apart = largest / least if least > 0 else np.inf
        if apart <= NORMS_APART or (apart <= SHIFTS_APART and phi.circulant_gram() is not None):
            return self
        exponents = -xp.round(xp.log2(xp.where(found, norms, number_like(norms, 1.0))))
        scale = xp.pow(number_like(norms, 2.0), exponents)
        units = replace(self.units, columns=scale)
        return replace(self, phi=phi.with_scaled_columns(scale), units=units)

    def second_moment(self, mean: Array, variance: Array) -> Array:
        """``E |z_j|^2`` under the posterior, or ``|mean_j|^2``, averaged over the tasks, shape (D,)."""
        if self.prior.of_mode:
            moment = squared_modulus(rectified_moments(mean, variance)[0] if self.cut_moments else mean)
        elif self.cut_moments:
            moment = rectified_second_moment(mean, variance)
        else:
            moment = squared_modulus(mean)
            moment += variance
        return namespace(moment).mean(moment, axis=0) if moment.ndim > 1 else moment

    @cached_property
    def rule(self) -> Prior:
        """The prior, which knows the columns and the noise: how precisions follow from second moments."""
        return self.prior.for_columns(self.phi.column_energy, self.noise_var)

    def point(self, mean: Array, variance: Array) -> Array:
        """Return the coefficients, given the mean of the Gaussian before the constraint, if any.

        With the constraint they are the modes of the Gaussians cut off at zero. Their means are above zero
        for all coefficients, by ``0.8 s`` where the data say ``0 +- s``, and fit the data no more.
        """
        return np.maximum(mean, 0) if self.nonnegative else mean

    @property
    def in_analysis(self) -> bool:
        """Whether precisions are not those of the coefficients, but of what an operator makes of them."""
        return False

    @property
    def n_precisions(self) -> int:
        """Number of precisions: one for each coefficient."""
        return self.n_columns

    @property
    def weights(self) -> Array:
        """What changes of the coefficients are weighted by, shape (D,): independent of units."""
        return self.phi.column_energy

    @property
    def n_fits(self) -> int:
        """Number of fits that are made side by side, with as many coefficients each."""
        return 1

    @property
    def prior_weights(self) -> list[tuple[slice, Array | float]]:
        """Parts of alpha, and what changes of the prior variances are weighted by in each."""
        return [(slice(None), self.phi.column_energy)]

    def split(
        self, held_out: np.ndarray, noise_var: float, on_average: bool = False
    ) -> tuple[Problem, Operator, Array]:
        """Return the problem without some rows, those rows of Phi, and their data.

        With `on_average`, couplings of the columns are taken as they are on the average over a grid, see
        `Dictionary`.
        """
        rest = np.setdiff1d(np.arange(self.n_rows), held_out)
        phi = as_gaussian_as(self.phi.take_rows(rest, on_average), self.phi)
        seen = replace(self, phi=phi, y=take(self.y, rest, axis=-1), noise_var=noise_var)
        return seen, self.phi.operator.take_rows(held_out), take(self.y, held_out, axis=-1)

    @property
    def n_tasks(self) -> int:
        """Number L of data vectors."""
        return 1 if self.y.ndim == 1 else self.y.shape[0]

    @property
    def n_rows(self) -> int:
        """Number of data N."""
        return self.phi.shape[0]

    @property
    def n_columns(self) -> int:
        """Number of coefficients D."""
        return self.phi.shape[1]

    @property
    def is_complex(self) -> bool:
        """Whether the coefficients are complex."""
        return is_complex(self.y)

    @property
    def real_dtype(self) -> np.dtype:
        """Working precision."""
        return np.dtype(precision_of(self.y))

    def log_evidence(self, log_det: float, quadratic: float) -> float:
        """Log density of y, in the user's units, given ``log det C`` and ``y^H C^-1 y``.

        ``C = noise_var I + Phi diag(1/alpha) Phi^H`` is the covariance of y, and of each task's; the
        quadratic is the sum over tasks. Complex data are circular.
        """
        n = size(self.y)
        value = log_normal_density(n, self.n_tasks * log_det, quadratic, self.is_complex)
        return value - (2 if self.is_complex else 1) * n * math.log(self.units.data)

    @cached_property
    def alpha_cap(self) -> float:
        """Precision beyond which a coefficient is zero for every purpose.

        Relative to the larger of the precision that would explain the data and the one that the
        data can resolve, and far below overflow in the working precision.
        """
        mean_energy = self.phi.energy / self.n_columns or 1.0
        explain = self.phi.energy / (inner(self.y, self.y) / self.n_tasks or 1.0)
        headroom = 1e14 if self.real_dtype == np.float64 else 1e9
        return headroom * max(explain, mean_energy / self.noise_var, 1e-300)

    def with_more_precision(self, alpha: Array, added: Array) -> Array:
        """Return precisions with others added to them, up to the cap."""
        return np.minimum(alpha + added, self.alpha_cap).astype(alpha.dtype)

    def start(self, alpha_init: float | np.ndarray | None) -> Array:
        """Where alpha starts, in scaled units; by default `usual_start`."""
        if alpha_init is not None:
            with np.errstate(over="ignore"):  # what overflows is cut off below
                alpha = to_numpy(alpha_init).astype(np.float64) * self.units.coefficient**2
                if self.units.columns is not None:
                    alpha = alpha * to_numpy(self.units.columns) ** 2
            # A start that is far off would only be lost in rounding.
            usual, far = to_numpy(self.usual_start()), 1e12 if self.real_dtype == np.float64 else 1e6
            usual = usual.astype(np.float64)
            alpha = np.clip(np.broadcast_to(alpha, (self.n_precisions,)), usual / far, usual * far)
            return on_device_of(self.y, np.minimum(alpha, self.alpha_cap).astype(self.real_dtype))
        return self.usual_start()

    @property
    def signal_power(self) -> float:
        """Mean square of the data less that of the noise, or a little where that is nothing."""
        power = inner(self.y, self.y) / size(self.y)
        return max(power - self.noise_var, 0.01 * power) or self.noise_var

    def usual_start(self) -> Array:
        """Where alpha starts if nothing is said about it.

        Each column is expected to explain the same share of the data's energy, so that neither the units of
        y and Phi nor the scale of any column make a difference.
        """
        energy = self.phi.column_energy
        xp = namespace(energy)
        seen = xp.where(self.phi.is_zero, number_like(energy, 0.0), energy)
        largest = float(xp.max(seen)) or 1.0
        start = xp.where(self.phi.is_zero, number_like(energy, largest), energy)
        start *= self.n_columns / (self.n_rows * self.signal_power)
        return start
