"""The problem an algorithm works on: checked, in one precision, in units of order one."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cofem._arrays import (
    as_array,
    as_floating,
    check_same_place,
    in_precision,
    inner,
    is_complex,
    is_foreign,
    is_torch,
    namespace,
    number_like,
    on_device_of,
    place,
    precision_of,
    require_numpy,
    size,
    squared_modulus,
    to_numpy,
    total,
)
from cofem.operators import Dense, Diagonal, Operator, as_operator, check_adjoint
from cofem.priors import Block, Independent, Prior
from cofem.priors.rectified import rectified_moments, rectified_second_moment

Array = Any

#: Noise relative to the data, below which it cannot be told from rounding.
LEAST_NOISE = {"float64": 1e-15, "float32": 1e-8}


class Meter:
    """Phi with a count of the vectors it was applied to.

    One *application* is one product with Phi and one with its adjoint.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.shape = operator.shape
        self.products = 0

    @property
    def applications(self) -> float:
        """Number of vectors that ``Phi^H Phi`` was applied to, in halves."""
        return self.products / 2

    def forward(self, x: Array) -> Array:
        """Phi x for x of shape (..., D)."""
        return self._count(self.operator.forward, x, self.shape[0])

    def adjoint(self, y: Array) -> Array:
        """Phi^H y for y of shape (..., N)."""
        return self._count(self.operator.adjoint, y, self.shape[1])

    def gram(self, x: Array) -> Array:
        """Phi^H Phi x for x of shape (..., D)."""
        return self._count(self.operator.gram, x, self.shape[1], 2)

    def _count(self, product: Any, x: Array, length: int, products: int = 1) -> Array:
        out = product(x)
        # The operator was right when it was looked at first; it may be a user's own and change its mind.
        wanted = (*x.shape[:-1], length)
        is_real = not is_complex(x) and not self.operator.is_complex
        if tuple(out.shape) != wanted or (is_real and is_complex(out)):
            raise ValueError(
                f"Phi must return {'real' if is_real else 'complex'} numbers of shape {wanted} for an input "
                f"of shape {x.shape}, got dtype {out.dtype} and shape {out.shape}"
            )
        self.products += products * math.prod(x.shape[:-1])
        return out


@dataclass(frozen=True)
class Units:
    """Powers of two that data and dictionary were divided by, so that rounding stays the same.

    ``y = y_scaled * data`` and ``Phi = Phi_scaled * dictionary``, hence
    ``z = z_scaled * data / dictionary``.
    """

    data: float = 1.0
    dictionary: float = 1.0

    @property
    def coefficient(self) -> float:
        """What scaled coefficients are multiplied by."""
        return self.data / self.dictionary

    def apply(self, x: Array, power: int = 1) -> Array:
        """Return scaled coefficients, or a power of them, in the user's units.

        In the precision of x, or in double precision where that could not hold them.
        """
        factor = self.coefficient**power
        if (
            not isinstance(x, np.ndarray)
            or 1e-10 < factor < 1e10
            or x.dtype.itemsize == np.dtype(np.result_type(x, np.float64)).itemsize
        ):
            return x * factor
        wide = x.astype(np.result_type(x, np.float64)) * factor
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = wide.astype(x.dtype)
        kept = np.isfinite(narrow).all() and ((narrow == 0) == (wide == 0)).all()
        return narrow if kept else wide


@dataclass
class Problem:
    """``y ~ N(Phi z, noise_var I)``, ``z ~ N(0, diag(alpha)^-1)``, in scaled units.

    Several data vectors of one dictionary (tasks) are rows of y; means then have shape (L, D).

    Attributes
    ----------
    phi : Meter
        The dictionary, shape (N, D).
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
    """

    phi: Meter
    y: Array
    noise_var: float
    units: Units = field(default_factory=Units)
    prior: Prior = field(default_factory=Independent)
    nonnegative: bool = False

    def with_noise(self, noise_var: float) -> Problem:
        """Return the problem with another noise variance; what is known about Phi is kept."""
        other = replace(self, noise_var=noise_var)
        kept = ("real_dtype", "column_energy", "energy", "gain", "dense", "squares")
        other.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        return other

    def second_moment(self, mean: Array, variance: Array) -> Array:
        """``E |z_j|^2`` under the posterior, averaged over the tasks, shape (D,)."""
        if self.nonnegative:
            moment = rectified_second_moment(mean, variance)
        else:
            moment = squared_modulus(mean)
            moment += variance
        return namespace(moment).mean(moment, axis=0) if moment.ndim > 1 else moment

    def point(self, mean: Array, variance: Array) -> Array:
        """Posterior mean of the coefficients, given that of the Gaussian before the constraint, if any."""
        return rectified_moments(mean, variance)[0] if self.nonnegative else mean

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

    @cached_property
    def real_dtype(self) -> np.dtype:
        """Working precision."""
        return np.dtype(precision_of(self.y))

    @cached_property
    def column_energy(self) -> Array:
        """``theta_j = ||phi_j||^2``, shape (D,), working precision."""
        return _column_energy(self.phi.operator.column_norms(), self.y)

    @cached_property
    def energy(self) -> float:
        """``||Phi||_F^2``, the sum of the column energies."""
        return total(self.column_energy)

    @cached_property
    def gain(self) -> float:
        """``||Phi||_2^2``."""
        return float(self.phi.operator.norm) ** 2

    @cached_property
    def dense(self) -> np.ndarray:
        """Phi as a float64 or complex128 matrix, for the methods that need it whole."""
        matrix = self.phi.operator.to_dense()
        return np.asarray(matrix, dtype=np.complex128 if np.iscomplexobj(matrix) else np.float64)

    @cached_property
    def squares(self) -> Operator:
        """The operator with entries ``|Phi_ij|^2``."""
        squares = self.phi.operator.abs2()
        return Dense(np.abs(self.dense).astype(self.real_dtype) ** 2) if squares is None else squares

    @cached_property
    def alpha_cap(self) -> float:
        """Precision beyond which a coefficient is zero for every purpose.

        Relative to the larger of the precision that would explain the data and the one that the
        data can resolve, and far below overflow in the working precision.
        """
        mean_energy = self.energy / self.n_columns or 1.0
        explain = self.energy / (inner(self.y, self.y) / self.n_tasks or 1.0)
        headroom = 1e14 if self.real_dtype == np.float64 else 1e9
        return headroom * max(explain, mean_energy / self.noise_var, 1e-300)

    def start(self, alpha_init: float | np.ndarray | None) -> Array:
        """Where alpha starts, in scaled units.

        By default each column is expected to explain the same share of the data's energy, so that
        neither the units of y and Phi nor the scale of any column make a difference.
        """
        if alpha_init is not None:
            with np.errstate(over="ignore"):  # what overflows is cut off below
                alpha = np.asarray(alpha_init, dtype=np.float64) * self.units.coefficient**2
            # A start that is far off would only be lost in rounding.
            usual, far = to_numpy(self.start(None)), 1e12 if self.real_dtype == np.float64 else 1e6
            usual = usual.astype(np.float64)
            alpha = np.clip(np.broadcast_to(alpha, (self.n_columns,)), usual / far, usual * far)
            return on_device_of(self.y, np.minimum(alpha, self.alpha_cap).astype(self.real_dtype))
        power = inner(self.y, self.y) / size(self.y)
        signal = max(power - self.noise_var, 0.01 * power) or self.noise_var
        theta = self.column_energy
        xp = namespace(theta)
        largest = float(xp.max(theta)) or 1.0
        start = xp.where(theta > 1e-12 * largest, theta, number_like(theta, largest))
        start *= self.n_columns / (self.n_rows * signal)
        return start


@dataclass(frozen=True, eq=False)
class Noise:
    """What the user said about the noise.

    Attributes
    ----------
    std : float or None
        Its standard deviation where the weight is 1; None if it is to be learned.
    weights : ndarray of shape (N,) or None
        What each datum is multiplied by, so that all have the same noise.
    """

    std: float | None
    weights: np.ndarray | None


class Ready(NamedTuple):
    """A problem, and what it was made from, in one precision."""

    problem: Problem
    operator: Operator
    noise: Noise


def make_problem(
    Phi: Any,
    y: Any,
    noise_std: Any,
    *,
    sample_weight: Any = None,
    prior: Prior | None = None,
    nonnegative: bool = False,
) -> Ready:
    """Check what the user gave and set the problem up; raise by argument name otherwise."""
    operator = as_operator(Phi)
    if min(operator.shape) < 1:
        raise ValueError(f"Phi must have at least one row and one column, got shape {operator.shape}")
    y = _check_data(y, operator)
    noise = check_noise(noise_std, sample_weight, operator.shape[0])
    prior = Independent() if prior is None else prior
    prior.check(operator.shape[1])

    complex_problem = operator.is_complex or is_complex(y)
    real = np.dtype(max(precision_of(y), operator.precision or "float32"))
    if nonnegative and complex_problem:
        raise ValueError("nonnegative=True is for real coefficients, but y or Phi is complex")
    if isinstance(prior, Block) and not isinstance(y, np.ndarray) and not is_torch(y):
        require_numpy(y, "the Block prior, but for PyTorch tensors,")
    if nonnegative and not isinstance(y, np.ndarray):
        raise TypeError(f"nonnegative=True works on NumPy arrays only, but y or Phi is {place(y)}")
    dtype = np.result_type(real, np.complex64) if complex_problem else real
    y = namespace(y).astype(y, getattr(namespace(y), dtype.name), copy=True)
    operator = operator.astype(real)
    _check_size(y, "y", 1e60 if real == "float64" else 1e30)
    most = 1e60 if real == "float64" else 1e15
    _check_entries(operator, most)
    check_adjoint(operator, n_vectors=1, dtype=dtype, like=y)

    white = operator
    if noise.weights is not None:
        weights = noise.weights.astype(real)
        white = Diagonal(weights) @ operator
        y *= on_device_of(y, weights)
    extent = _rms(y)
    if noise.std is None and extent == 0:  # there is nothing to learn from
        noise = Noise(float(np.finfo(real).eps), noise.weights)
    # Noise that drowns the data sets the unit itself.
    extent = max(extent, 1e-9 * (noise.std or 0.0)) or noise.std or 1.0
    least = LEAST_NOISE[np.dtype(real).name]
    if noise.std is not None and noise.std < least * extent:
        raise ValueError(
            f"noise_std must be at least {least:g} times the size of y, which is {extent:.3g}, to be told "
            f"from rounding in {np.dtype(real).name}; got {noise.std:g}"
        )
    norms = _checked_norms(white, most * white.shape[0])
    units = Units(_power_of_two(extent), _dictionary_unit(norms))
    scaled = white if units.dictionary == 1 else white * (1 / units.dictionary)
    y /= units.data  # the copy made above
    noise_var = np.nan if noise.std is None else (noise.std / units.data) ** 2
    problem = Problem(Meter(scaled), y, noise_var, units, prior, nonnegative)
    # What is known already need not be computed again, which takes 64 products where norms are estimated.
    problem.__dict__["column_energy"] = _column_energy(norms / units.dictionary, y)
    return Ready(problem, operator, noise)


def _check_data(y: Any, operator: Operator) -> Array:
    data = as_array(y)
    if isinstance(data, np.ndarray) and data.dtype.kind not in "buifc":
        raise TypeError(f"y must be an array of numbers, got {type(y).__name__} of dtype {data.dtype}")
    n_rows = operator.shape[0]
    if tuple(data.shape) != (n_rows,) and not (
        data.ndim == 2 and data.shape[0] == n_rows and data.shape[1] > 0
    ):
        raise ValueError(
            f"y must have shape ({n_rows},), or ({n_rows}, L) for L tasks, to match Phi of shape "
            f"{operator.shape}, got {tuple(data.shape)}"
        )
    data = data.T if data.ndim == 2 else data  # a row for each task
    if isinstance(data, np.ndarray):
        data = data if data.dtype.kind in "fc" and data.dtype.itemsize >= 4 else data.astype(np.float64)
    else:
        data = as_floating(data, "y")
    xp = namespace(data)
    wrong = size(data) - int(xp.count_nonzero(xp.isfinite(data)))
    if wrong:
        raise ValueError(f"y must be finite, got {wrong} NaN or infinite values")
    home = operator.device_array
    if home is None:
        return data
    if isinstance(data, np.ndarray):
        return on_device_of(home, np.ascontiguousarray(data))
    check_same_place(data, home, "the numbers of Phi")
    return data


def check_noise(noise_std: Any, sample_weight: Any, n_rows: int) -> Noise:
    """Check what the user said about the noise."""
    weights = None
    if sample_weight is not None:
        weights = np.sqrt(_positive_vector(sample_weight, n_rows, "sample_weight"))
    if is_foreign(noise_std):
        noise_std = to_numpy(noise_std)
        noise_std = float(noise_std) if noise_std.ndim == 0 else noise_std
    if isinstance(noise_std, str):
        if noise_std != "learn":
            raise ValueError(f"noise_std must be 'learn', a positive number or an array, got {noise_std!r}")
        return Noise(None, weights)
    if isinstance(noise_std, numbers.Real) and not isinstance(noise_std, bool):
        sigma = float(noise_std)
        if not (math.isfinite(sigma) and sigma > 0):
            raise ValueError(f"noise_std must be positive and finite, got {sigma}")
        _check_size(np.array([sigma]), "noise_std", 1e60)
        return Noise(sigma, weights)
    if isinstance(noise_std, np.ndarray | list | tuple):
        if weights is not None:
            raise ValueError("noise_std as an array already weighs the samples; leave sample_weight out")
        each = _positive_vector(noise_std, n_rows, "noise_std")
        typical = float(np.exp(np.mean(np.log(each))))
        return Noise(typical, typical / each)
    raise TypeError(
        f"noise_std must be 'learn', a positive number or an array of shape ({n_rows},), got {noise_std!r}"
    )


def _positive_vector(values: Any, n_rows: int, name: str) -> np.ndarray:
    vector = to_numpy(values)
    if vector.dtype.kind not in "uif" or vector.shape != (n_rows,):
        raise ValueError(
            f"{name} must be numbers of shape ({n_rows},), one for each sample, got dtype {vector.dtype} "
            f"and shape {vector.shape}"
        )
    vector = vector.astype(np.float64)
    if not (np.isfinite(vector).all() and (vector > 0).all()):
        raise ValueError(f"{name} must be positive and finite")
    _check_size(vector, name, 1e60)
    if vector.max() > 1e20 * vector.min():
        raise ValueError(
            f"{name} must not range over more than 20 orders of magnitude, got values from "
            f"{vector.min():.3g} to {vector.max():.3g}"
        )
    return vector


def _check_size(values: Array, name: str, most: float) -> None:
    """Refuse numbers so large or so small that their squares and products leave the range of the type."""
    xp = namespace(values)
    parts = (xp.real(values), xp.imag(values)) if is_complex(values) else (values,)
    largest = max(max(float(xp.max(part)), -float(xp.min(part))) for part in parts)  # without a copy
    if largest > 0 and not 1 / most <= largest <= most:
        raise ValueError(
            f"{name} must be of a size between {1 / most:g} and {most:g} in this precision, got "
            f"{largest:.3g}; change its unit"
        )


def _check_entries(operator: Operator, most: float) -> None:
    """Refuse a stored dictionary whose entries are so large or so small that squares overflow or vanish."""
    entries = getattr(operator, "array", None)
    entries = getattr(getattr(operator, "matrix", None), "data", entries)
    if entries is not None and size(entries):
        _check_size(entries, "Phi", most)


def _rms(y: Array) -> float:
    """Root mean square, safe against overflow and underflow of the squares; 0 for zeros."""
    xp = namespace(y)
    largest = float(xp.max(xp.abs(y)))
    return largest * float(xp.mean(xp.abs(y / largest) ** 2)) ** 0.5 if largest > 0 else 0.0


def _power_of_two(x: float) -> float:
    return 2.0 ** round(math.log2(x))


def _column_energy(norms: Array, y: Array) -> Array:
    """Square the norms of columns, in the precision of the data and where they are."""
    precision = precision_of(y)
    if isinstance(norms, np.ndarray):
        norms = on_device_of(y, norms.astype(precision))
    norms = in_precision(norms, precision)
    return norms * norms


def _checked_norms(operator: Operator, most: float) -> Array:
    """Return the norms of the columns of Phi, or refuse what the precision cannot hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = operator.column_norms()
    xp = namespace(norms)
    if bool(xp.any(xp.isnan(norms))):
        raise FloatingPointError("Phi gave values that are not finite before the first step; check it")
    if bool(xp.any(xp.isinf(norms))):
        raise ValueError("Phi must have columns of finite norm, got one that overflows; change its unit")
    _check_size(norms, "Phi", most)
    return norms


def _dictionary_unit(norms: Array) -> float:
    """Choose a unit for Phi; 1 unless its columns are so small or large that squares may overflow."""
    size = _rms(norms) or 1.0
    return 1.0 if 2.0**-10 <= size <= 2.0**10 else _power_of_two(size)
