"""The library extended from outside: an operator, a prior, an algorithm and a diagonal estimator.

Written as a user would write them, with documented names only. They live in a module of their own, so that a
process that goes on from a checkpoint can import them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import fft

import cofem
from cofem.inference.base import ExpectationMaximisation, Info, Method, Moments, State
from cofem.linalg.diagonals import DiagonalEstimate, DiagonalEstimator, RightHandSides
from cofem.operators import Operator
from cofem.priors import Prior


class Toeplitz(Operator):
    """A matrix with constant diagonals, from its first column and its first row, by the FFT."""

    def __init__(self, column, row) -> None:
        self.column, self.row = np.asarray(column), np.asarray(row)
        size, dtype = (self.column.size, self.row.size), self.column.dtype
        super().__init__(size, is_complex=dtype.kind == "c", precision=np.zeros(0, dtype).real.dtype.name)
        padding = np.zeros(fft.next_fast_len(sum(size)) - sum(size) + 1, dtype)
        self.spectrum = fft.fft(np.concatenate([self.column, padding, self.row[:0:-1]]))

    def _filter(self, x, spectrum, size):
        out = fft.ifft(fft.fft(x, spectrum.size) * spectrum)[..., :size]
        return out if self.is_complex or x.dtype.kind == "c" else out.real.copy()

    def _forward(self, x):
        return self._filter(x, self.spectrum, self.shape[0])

    def _adjoint(self, y):
        return self._filter(y, self.spectrum.conj(), self.shape[1])

    def _abs2(self):  # exact norms of the columns
        return Toeplitz(abs(self.column) ** 2, abs(self.row) ** 2)

    def _in_precision(self, precision):
        dtype = np.result_type(precision, np.complex64) if self.is_complex else precision
        return Toeplitz(self.column.astype(dtype), self.row.astype(dtype))


@dataclass(frozen=True, eq=False)
class Shrunk(Prior):
    """Precisions of their own, drawn from a Gamma distribution around the precision of their group.

    With the shape ``1 + strength / 2`` and a mode at the group's precision the update is ``alpha_j = (1 +
    strength) / (m_j + strength * mean of m over the group)``: `cofem.Independent` for a strength of 0,
    `cofem.Block` for an infinite one.
    """

    labels: Any
    strength: float = 1.0

    name: ClassVar[str] = "shrunk"
    extrapolates: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ("numpy",)

    def check(self, n_columns):
        if np.shape(self.labels) != (n_columns,):
            raise ValueError(f"labels must have shape ({n_columns},), got {np.shape(self.labels)}")

    def precisions(self, second_moment, cap):
        mean = np.bincount(self.labels, weights=second_moment) / np.bincount(self.labels)
        moment = (second_moment + self.strength * mean[self.labels]) / (1 + self.strength)
        return (1 / np.maximum(moment, 1 / cap)).astype(second_moment.dtype)


@cofem.packable("tests.momentum")
class Momentum(NamedTuple):
    """Where log alpha is going, and what the E-step hands on."""

    velocity: np.ndarray
    inner: Any


@dataclass(frozen=True)
class HeavyBall(Method):
    """EM's update of log alpha with momentum, on the E-step of any EM; dropped where EM turns back."""

    inner: ExpectationMaximisation = field(default_factory=cofem.IRLS)
    inertia: float = 0.5

    name: ClassVar[str] = "heavy-ball"

    def memory(self, problem):
        return self.inner.memory(problem)

    def init(self, problem, alpha, rng):
        return self._state(alpha, np.zeros_like(alpha), self.inner.first_expectation(problem, alpha, rng))

    def step(self, problem, state, rng):
        moment = problem.second_moment(state.mean, state.variance)
        push = np.log(problem.prior.precisions(moment, problem.alpha_cap) / state.alpha)
        velocity = state.carry.velocity
        velocity = push + self.inertia * np.where(push * velocity > 0, velocity, 0)
        alpha = np.minimum(state.alpha * np.exp(velocity), problem.alpha_cap)
        before = replace(state, carry=state.carry.inner)
        return self._state(alpha, velocity, self.inner.expectation(problem, alpha, before, rng))

    def finish(self, problem, state, ended, rng):
        before = replace(state, carry=state.carry.inner)
        final, info = self.inner.finish(problem, before, ended, rng)
        return replace(final, carry=state.carry), info

    def _state(self, alpha, velocity, moments: Moments) -> tuple[State, Info]:
        carry = Momentum(velocity, moments.carry)
        return State(alpha, moments.mean, moments.variance, carry), moments.info


@cofem.packable("tests.running")
class Running(NamedTuple):
    """What the data say about each coefficient, ``1 / s_j - alpha_j``, and after how many steps."""

    information: np.ndarray
    steps: int


@dataclass(frozen=True)
class RunningProbes(DiagonalEstimator):
    """Direct probes averaged over steps that fade, through ``1 / s_j - alpha_j``, which changes slowly."""

    probes: int = 4
    memory: float = 8.0

    name: ClassVar[str] = "running"

    def init(self, context, rng):
        return Running(np.zeros_like(context.alpha), 0)

    def quiet(self, carry):
        return False

    def right_hand_sides(self, context, carry, rng):
        signs = rng.choice([-1.0, 1.0], (self.probes, context.alpha.size)).astype(context.like.dtype)
        scale = context.probe_scale()
        return RightHandSides(b=signs * scale, extra=(signs, scale))

    def estimate(self, context, carry, rhs, x):
        signs, scale = rhs.extra
        products = (signs.conj() * x).real / scale
        weight = max(1 / (carry.steps + 1), 1 / self.memory)
        expected = 1 / (context.alpha + carry.information)
        value = context.clip(expected + weight * (products.mean(axis=0) - expected))
        error = products.std(axis=0) * np.sqrt(weight / (2 - weight) / self.probes)
        return DiagonalEstimate(value, error, Running(1 / value - context.alpha, carry.steps + 1), self.name)


# --- problems that they solve -------------------------------------------------------------------------

N, D = 48, 96
NOISE = 0.02
LABELS = np.arange(D) // 4
MAKERS = {
    "operator": (Toeplitz,),
    "prior": (Shrunk,),
    "algorithm": (HeavyBall, Momentum),
    "estimator": (RunningProbes, Running),
}


def toeplitz() -> Toeplitz:
    """Filter through a random response that is longer than the record."""
    response = np.random.default_rng(1).standard_normal(N + D - 1) / np.sqrt(N)
    return Toeplitz(response[D - 1 :], response[D - 1 :: -1])


def problem(name: str) -> tuple[Any, np.ndarray, dict[str, Any]]:
    """Return Phi, y and the settings of a fit with one of the extensions, or with all of them."""
    rng = np.random.default_rng(2)
    Phi = toeplitz() if name in ("operator", "all") else rng.standard_normal((N, D)) / np.sqrt(N)
    z = np.zeros(D)
    z[[8, 9, 10, 11, 40, 41, 42, 43]] = rng.standard_normal(8)
    y = Phi @ z + NOISE * rng.standard_normal(N)
    estimated = cofem.CoFEM(diagonal=RunningProbes())
    chosen = {
        "operator": {"method": "cofem"},
        "prior": {"method": "irls", "prior": Shrunk(LABELS)},
        "algorithm": {"method": HeavyBall()},
        "estimator": {"method": estimated},
        "all": {"method": HeavyBall(estimated), "prior": Shrunk(LABELS)},
    }
    return Phi, y, {"noise_std": NOISE, "rng": 3, "max_iter": 40} | chosen[name]
