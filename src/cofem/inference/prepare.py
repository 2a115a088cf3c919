"""From what the user gave to a problem: checks, one precision, units of order one."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from cofem._arrays import (
    Array,
    as_array,
    as_floating,
    check_same_place,
    in_precision,
    is_complex,
    is_foreign,
    largest_part,
    namespace,
    on_device_of,
    place,
    precision_of,
    size,
    to_numpy,
)
from cofem.inference.problem import Problem, Units
from cofem.operators import Diagonal, Operator, RealUnknown, as_operator
from cofem.operators.dictionary import Dictionary
from cofem.operators.fingerprint import known_by
from cofem.priors import Prior

#: Noise relative to the data, below which it cannot be told from rounding.
LEAST_NOISE = {"float64": 1e-15, "float32": 1e-8}
#: Largest numbers whose squares and products stay within the range of the type: in the data, in Phi.
LARGEST_DATUM = {"float64": 1e60, "float32": 1e30}
LARGEST_ENTRY = {"float64": 1e60, "float32": 1e15}
#: Size of the columns of Phi, relative to the smallest, up to which single precision holds what they are
#: squared and divided by, 1e-38 to 1e38, with as much room again for noise and precisions.
WIDEST = 1e10


class Data(NamedTuple):
    """What a fit is made from, as the user gave it."""

    Phi: Any
    y: Any
    noise_std: Any = "learn"
    sample_weight: Any = None

    @property
    def are_tasks(self) -> bool:
        """Whether Phi is a list of dictionaries, not a matrix written as lists, and y one of their data."""
        if not (isinstance(self.Phi, list | tuple) and isinstance(self.y, list | tuple)):
            return False
        each = [isinstance(part, Operator) or getattr(part, "ndim", 0) == 2 for part in self.Phi]
        return len(each) > 0 and all(each)

    def stacked(self, real: bool = False) -> Data:
        """Return what is fitted: both parts of complex data, where their unknown is real.

        Parameters
        ----------
        real : bool
            Whether that is so for any Phi, and not for a `RealUnknown` alone.
        """
        if self.are_tasks and len(self.Phi) == len(self.y):
            pairs = [
                self._replace(Phi=one, y=y).stacked(real) for one, y in zip(self.Phi, self.y, strict=True)
            ]
            return self._replace(Phi=[pair.Phi for pair in pairs], y=[pair.y for pair in pairs])
        if not (real or isinstance(self.Phi, RealUnknown)):
            return self
        phi, y = as_operator(self.Phi), as_array(self.y, "y")
        if not isinstance(phi, RealUnknown):
            if not (phi.is_complex or is_complex(y)):
                return self
            phi = RealUnknown(phi)
        if y.ndim == 0 or y.shape[0] != phi.operator.shape[0]:
            return self._replace(Phi=phi)  # they are stacked already, or refused later on
        noise_std, weights = (
            values if values is None or isinstance(values, str) or np.ndim(values) == 0 else 2 * [*values]
            for values in (self.noise_std, self.sample_weight)
        )
        return Data(phi, phi.stack(y), noise_std, weights)


class Noise(NamedTuple):
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


class PreparedProblem(NamedTuple):
    """A problem, and what it was made from, in one precision.

    Attributes
    ----------
    problem : Problem
        The problem, in scaled units, with data weighted so that all have the same noise.
    operator : Operator
        Phi in the user's units, without weights.
    noise : Noise
        What the user said about the noise.
    in_double : bool
        Whether the columns are too far apart for single precision, which the user gave.
    """

    problem: Problem
    operator: Operator
    noise: Noise
    in_double: bool = False


def prepare(data: Data, prior: Prior, nonnegative: bool) -> PreparedProblem:
    """Check what the user gave and set the problem up; raise by argument name otherwise."""
    operator = as_operator(data.Phi)
    if min(operator.shape) < 1:
        raise ValueError(f"Phi must have at least one row and one column, got shape {operator.shape}")
    y = _check_data(data.y, operator)
    noise = check_noise(data.noise_std, data.sample_weight, operator.shape[0])
    prior.check(operator.shape[1])

    complex_problem = operator.is_complex or is_complex(y)
    real = max(precision_of(y), operator.precision or "float32")
    if nonnegative and complex_problem:
        raise ValueError("nonnegative=True is for real coefficients, but y or Phi is complex")
    prior.check_arrays(y)
    if nonnegative and not isinstance(y, np.ndarray):
        raise TypeError(f"nonnegative=True works on NumPy arrays only, but y or Phi is {place(y)}")
    dtype = np.result_type(real, np.complex64) if complex_problem else np.dtype(real)
    y = namespace(y).astype(y, getattr(namespace(y), dtype.name), copy=True)
    operator = operator.astype(real)
    _check_size(y, "y", LARGEST_DATUM[real])
    largest = operator.largest_entry()
    if largest is not None:
        _check_largest(largest, "Phi", LARGEST_ENTRY[real])
    known_by(operator, y, again=True)  # which checks the adjoint

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
    least = LEAST_NOISE[real]
    if noise.std is not None and noise.std < least * extent:
        raise ValueError(
            f"noise_std must be at least {least:g} times the size of y, which is {extent:.3g}, to be told "
            f"from rounding in {real}; got {noise.std:g}"
        )
    norms = _checked_norms(white, LARGEST_ENTRY[real] * white.shape[0])
    found = norms[norms > white.norm_resolution(norms)]
    if real == "float32" and size(found) and _rms(found) > WIDEST * float(namespace(found).min(found)):
        double = data._replace(y=in_precision(as_array(data.y, "y"), "float64"))
        return prepare(double, prior, nonnegative)._replace(in_double=True)
    units = Units(_power_of_two(extent), _dictionary_unit(norms) if size(found) else 1.0)
    scaled = white if units.dictionary == 1 else white * (1 / units.dictionary)
    y /= units.data  # the copy made above
    noise_var = np.nan if noise.std is None else (noise.std / units.data) ** 2
    # What is known already need not be computed again, which takes 64 products where norms are estimated.
    phi = Dictionary(scaled, like=y, norms=norms / units.dictionary)
    return PreparedProblem(Problem(phi, y, noise_var, units, prior, nonnegative), operator, noise)


def _check_data(y: Any, operator: Operator) -> Array:
    data = as_array(y, "y")
    if isinstance(data, np.ndarray) and data.dtype.kind not in "buifc":
        raise TypeError(f"y must be an array of numbers, got {type(y).__name__} of dtype {data.dtype}")
    check_data_shape(data, operator)
    data = data.T if data.ndim == 2 else data  # a row for each task
    if isinstance(data, np.ndarray):
        data = data if data.dtype.kind in "fc" and data.dtype.itemsize >= 4 else data.astype(np.float64)
    else:
        data = as_floating(data, "y")
    xp = namespace(data)
    wrong = size(data) - int(xp.count_nonzero(xp.isfinite(data)))
    if wrong:
        raise ValueError(f"y must be finite, got {wrong} NaN or infinite values")
    stored = operator.device_array
    if stored is None:
        return data
    if isinstance(data, np.ndarray):
        return on_device_of(stored, np.ascontiguousarray(data))
    check_same_place(data, stored, "the numbers of Phi")
    return data


def check_data_shape(y: Array, operator: Operator) -> None:
    """Refuse data that do not match the dictionary."""
    n_rows = operator.shape[0]
    if tuple(y.shape) != (n_rows,) and not (y.ndim == 2 and y.shape[0] == n_rows and y.shape[1] > 0):
        raise ValueError(
            f"y must have shape ({n_rows},), or ({n_rows}, L) for L tasks, to match Phi of shape "
            f"{operator.shape}, got {tuple(y.shape)}"
        )


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
    vector = to_numpy(as_array(values, name))
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
    _check_largest(largest_part(values), name, most)


def _check_largest(largest: float, name: str, most: float) -> None:
    if largest > 0 and not 1 / most <= largest <= most:
        raise ValueError(
            f"{name} must be of a size between {1 / most:g} and {most:g} in this precision, got "
            f"{largest:.3g}; change its unit"
        )


def _rms(y: Array) -> float:
    """Root mean square, safe against overflow and underflow of the squares; 0 for zeros."""
    xp = namespace(y)
    largest = float(xp.max(xp.abs(y)))
    return largest * float(xp.mean(xp.abs(y / largest) ** 2)) ** 0.5 if largest > 0 else 0.0


def _power_of_two(x: float) -> float:
    return 2.0 ** round(math.log2(x))


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
