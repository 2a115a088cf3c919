"""The problem an algorithm works on: checked, in one precision, in units of order one."""

from __future__ import annotations

import math
import numbers
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cofem.operators import Operator, as_operator, check_adjoint

Array = Any


class Meter:
    """Phi with a count of the vectors it was applied to and of the time that took.

    One *application* is one product with Phi and one with its adjoint.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.shape = operator.shape
        self.products = 0
        self.seconds = 0.0

    @property
    def applications(self) -> float:
        """Number of vectors that ``Phi^H Phi`` was applied to, in halves."""
        return self.products / 2

    def forward(self, x: Array) -> Array:
        """Phi x for x of shape (..., D)."""
        return self._count(self.operator.forward, x)

    def adjoint(self, y: Array) -> Array:
        """Phi^H y for y of shape (..., N)."""
        return self._count(self.operator.adjoint, y)

    def gram(self, x: Array) -> Array:
        """Phi^H Phi x for x of shape (..., D)."""
        return self._count(self.operator.gram, x, 2)

    def _count(self, product: Any, x: Array, products: int = 1) -> Array:
        start = time.perf_counter()
        out = product(x)
        self.seconds += time.perf_counter() - start
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


@dataclass
class Problem:
    """``y ~ N(Phi z, noise_var I)``, ``z ~ N(0, diag(alpha)^-1)``, in scaled units.

    Attributes
    ----------
    phi : Meter
        The dictionary, shape (N, D).
    y : ndarray of shape (N,)
        The data.
    noise_var : float
        Noise variance ``1 / beta`` (for complex data, of ``|noise|^2``).
    units : Units
        How to get back to the user's units.
    """

    phi: Meter
    y: Array
    noise_var: float
    units: Units = field(default_factory=Units)

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
        return np.iscomplexobj(self.y)

    @cached_property
    def real_dtype(self) -> np.dtype:
        """Working precision."""
        return np.zeros(0, self.y.dtype).real.dtype

    @cached_property
    def column_energy(self) -> Array:
        """``theta_j = ||phi_j||^2``, shape (D,), working precision."""
        energy = self.phi.operator.column_norms().astype(self.real_dtype)
        energy *= energy
        return energy

    @cached_property
    def energy(self) -> float:
        """``||Phi||_F^2``, the sum of the column energies."""
        return float(np.sum(self.column_energy, dtype=float))

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
    def alpha_cap(self) -> float:
        """Precision beyond which a coefficient is zero for every purpose.

        Relative to the larger of the precision that would explain the data and the one that the
        data can resolve, and far below overflow in the working precision.
        """
        mean_energy = self.energy / self.n_columns or 1.0
        explain = self.energy / (float(np.vdot(self.y, self.y).real) or 1.0)
        headroom = 1e14 if self.real_dtype == np.float64 else 1e9
        return headroom * max(explain, mean_energy / self.noise_var, 1e-300)

    def start(self, alpha_init: float | np.ndarray | None) -> Array:
        """Where alpha starts, in scaled units.

        By default each column is expected to explain the same share of the data's energy, so that
        neither the units of y and Phi nor the scale of any column make a difference.
        """
        if alpha_init is not None:
            alpha = np.asarray(alpha_init, dtype=np.float64) * self.units.coefficient**2
            return np.broadcast_to(alpha, (self.n_columns,)).astype(self.real_dtype)
        power = float(np.vdot(self.y, self.y).real) / self.n_rows
        signal = max(power - self.noise_var, 0.01 * power) or self.noise_var
        theta = self.column_energy
        largest = float(theta.max()) or 1.0
        start = np.where(theta > 1e-12 * largest, theta, theta.dtype.type(largest))
        start *= self.n_columns / (self.n_rows * signal)
        return start


def make_problem(Phi: Any, y: Any, noise_std: Any) -> tuple[Operator, Problem]:
    """Check what the user gave and set the problem up; raise by argument name otherwise."""
    operator = as_operator(Phi)
    if min(operator.shape) < 1:
        raise ValueError(f"Phi must have at least one row and one column, got shape {operator.shape}")
    y = _check_data(y, operator)
    sigma = _check_noise(noise_std)

    precision = np.result_type(y.dtype, operator.precision or np.float32)
    is_complex = operator.is_complex or np.iscomplexobj(y)
    real = np.float32 if np.finfo(precision).dtype == np.float32 else np.float64
    y = y.astype(np.result_type(real, np.complex64) if is_complex else real)
    operator = operator.astype(real)
    check_adjoint(operator, n_vectors=1, dtype=y.dtype)

    units = Units(_power_of_two(_rms(y)), _dictionary_unit(operator))
    scaled = operator if units.dictionary == 1 else operator * (1 / units.dictionary)
    y /= units.data  # the copy made above
    return operator, Problem(Meter(scaled), y, (sigma / units.data) ** 2, units)


def _check_data(y: Any, operator: Operator) -> np.ndarray:
    data = np.asarray(y)
    if data.dtype.kind not in "buifc":
        raise TypeError(f"y must be an array of numbers, got {type(y).__name__} of dtype {data.dtype}")
    n_rows = operator.shape[0]
    if data.shape != (n_rows,):
        raise ValueError(
            f"y must have shape ({n_rows},) to match Phi of shape {operator.shape}, got {data.shape}"
        )
    if not np.isfinite(data).all():
        raise ValueError(
            f"y must be finite, got {np.count_nonzero(~np.isfinite(data))} NaN or infinite values"
        )
    return data if data.dtype.kind in "fc" and data.dtype.itemsize >= 4 else data.astype(np.float64)


def _check_noise(noise_std: Any) -> float:
    if isinstance(noise_std, bool) or not isinstance(noise_std, numbers.Real):
        raise TypeError(f"noise_std must be a positive number, got {noise_std!r}")
    sigma = float(noise_std)
    if not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"noise_std must be positive and finite, got {sigma}")
    return sigma


def _rms(y: np.ndarray) -> float:
    """Root mean square, safe against overflow and underflow of the squares."""
    largest = float(np.max(np.abs(y)))
    return largest * float(np.sqrt(np.mean(np.abs(y / largest) ** 2))) if largest > 0 else 1.0


def _power_of_two(x: float) -> float:
    return 2.0 ** round(math.log2(x))


def _dictionary_unit(operator: Operator) -> float:
    """Choose a unit for Phi; 1 unless its columns are so small or large that squares may overflow."""
    size = _rms(operator.column_norms())
    return 1.0 if 2.0**-10 <= size <= 2.0**10 else _power_of_two(size)
