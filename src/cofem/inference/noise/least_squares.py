r"""The noise from least squares: what no column can explain, and columns that have nothing to explain.

Where ``Phi^H Phi`` can be inverted, least squares needs no prior and leaves nothing to a fit. With N data and
D columns, ``N - D`` directions hold noise alone. Along the others each coefficient is a datum of its own, and
the better the less columns overlap: of an identity, an orthonormal wavelet or a random matrix of few columns,

.. math:: u_j = \hat z_j / \sqrt{[(\Phi^H \Phi)^{-1}]_{jj}} = s_j + \sigma n_j,

with s_j the signal, zero for most, and n_j normal numbers. Data that are held out of a fit say nothing of the
noise there: a row says nothing of another. The spread of the u_j does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cofem._arrays import (
    Array,
    as_rows,
    inner,
    is_complex,
    namespace,
    on_device_of,
    precision_of,
    real_dot,
    squared_modulus,
    to_numpy,
)
from cofem.inference.noise.held_out import HeldOutParts
from cofem.inference.noise.rules import least_noise
from cofem.inference.noise.strategy import Learned, Plan, with_few_data
from cofem.inference.problem import Problem
from cofem.inference.stages import Runner
from cofem.linalg.cg import StopRule, conjugate_gradients
from cofem.linalg.direct import DirectSystem, is_small
from cofem.linalg.preconditioners import DiagonalPreconditioner
from cofem.linalg.probes import draw_signs

#: Data for each column from which on what columns cannot explain is enough by itself.
ENOUGH_DATA = 2.0
#: Data from which on it may be; of fewer, a coefficient and an intercept explain most.
ENOUGH_FOR_RESIDUAL = 5
#: Mean square of the overlaps of a column with all others, relative to its own energy, up to which inverting
#: is worth a try, and below which there are none.
MOST_OVERLAP, NO_OVERLAP = 0.6, 1e-10
#: How many times larger than without the other columns the variance of a coefficient may be. (`eye + random`
#: and random matrices of N = D to 1.9 D, 10 and 20 % non-zero, 136 draws: up to 3 the noise was 0.82 to 1.12
#: of the truth, where held-out data said 0.9 to 123 times; at 7 0.78 to 1.27, held out 0.95 to 1.27.)
MOST_INFLATION = 3.0
#: Ridge relative to the energy of a column that keeps a factor from breaking down.
RIDGE = 1e-10
#: Vectors of noise that are solved with the data, to see how much variances are inflated.
PROBES = 4
#: Residual at which conjugate gradients end, by precision, and the steps that are worth it.
SOLVED, MOST_STEPS = {"float64": 1e-7, "float32": 1e-5}, 100
#: Coefficients that are worth as many as there may be: the shape of signals is not known that well.
ENOUGH_COEFFICIENTS = 1000
#: Variance of the weakest and ratio between those of signals that are told from noise, in units of it; and
#: coefficients without a signal that are taken to have been seen before: without any, the noise would shrink
#: to the smallest coefficients and leave the others to weak signals.
WEAKEST, APART, SEEN = 2.0, 4.0, 10.0
#: Steps of the weights at each noise, ratio of the noises that are tried and how finely in the end, and the
#: width of the classes that squares are put into, as a ratio.
TURNS, COARSE, FINE, CLASS = 60, 1.6, 17, 1.1


class Coefficients(NamedTuple):
    """What least squares makes of the data.

    Attributes
    ----------
    squares : ndarray
        Squared moduli of those coefficients that are known well, each in units in which its noise is that of
        a datum.
    left_over : float
        Sum of the squares that no column can explain.
    freedom : float
        How many numbers that is the sum of.
    of_complex : bool
        Whether the data are complex.
    """

    squares: np.ndarray
    left_over: float
    freedom: float
    of_complex: bool

    @property
    def enough(self) -> bool:
        """Whether what is left over tells the noise by itself."""
        return self.freedom >= max(self.squares.size, 1)


@dataclass(frozen=True)
class LeastSquares:
    """The noise from least squares, where columns hardly overlap or data are plenty.

    Parameters
    ----------
    otherwise : HeldOutParts
        What learns it elsewhere.
    """

    otherwise: HeldOutParts

    def learn(self, problem: Problem, plan: Plan, runner: Runner) -> Learned:
        """Solve for the coefficients, and fit nothing."""
        found = least_squares(problem)
        if found is None:
            return self.otherwise.learn(problem, plan, runner)
        if are_enough(problem):
            noise_var = found.left_over / found.freedom
            note = (
                "the noise was learned from the residual of least squares, which has "
                f"{found.freedom:.0f} degrees of freedom"
            )
            return Learned(max(noise_var, least_noise(problem)), note)
        noise_var = max(likely_noise(found), least_noise(problem))
        note = (
            f"the noise was learned from the spread of {found.squares.size} coefficients by least squares, "
            "since columns hardly overlap: most of them are taken to be zero"
        )
        return with_few_data(Learned(noise_var, note), problem)


def are_enough(problem: Problem) -> bool:
    """Tell whether what columns cannot explain is enough to learn the noise from."""
    return problem.n_rows >= max(ENOUGH_DATA * problem.n_columns, ENOUGH_FOR_RESIDUAL)


def least_squares(problem: Problem) -> Coefficients | None:
    """Solve for the coefficients without a prior; None where that says little or would take long."""
    phi = problem.phi
    kept = ~to_numpy(phi.is_zero)
    columns = int(np.count_nonzero(kept))
    plenty = are_enough(problem)
    if not plenty and (columns > problem.n_rows or columns == 0):
        return None
    overlap = _overlap(problem, kept)
    if not plenty and not overlap <= MOST_OVERLAP:
        return None
    if overlap <= NO_OVERLAP:
        mean = phi.adjoint(problem.y) / _divisor(problem, kept)
        variance, used = 1 / _divisor(problem, kept), float(columns)
    elif is_small(phi.operator) and isinstance(problem.y, np.ndarray):
        mean, variance, used = _by_factor(problem, kept)
    else:
        solved = _by_steps(problem, kept)
        if solved is None:
            return None
        mean, variance, used = solved
    inflation = to_numpy(variance * phi.column_energy).astype(np.float64)
    if not plenty and not np.median(inflation[kept]) <= MOST_INFLATION:
        return None
    known = kept & (inflation <= MOST_INFLATION)
    squares = to_numpy(squared_modulus(as_rows(mean)) / variance).astype(np.float64)[:, known]
    misfit = problem.y - phi.forward(mean)
    freedom = problem.n_tasks * max(problem.n_rows - used, 0.0)
    freedom = freedom if freedom > 0.5 else 0.0  # rounding
    left_over = inner(misfit, misfit) if freedom else 0.0
    return Coefficients(squares.ravel(), left_over, freedom, is_complex(problem.y))


def _divisor(problem: Problem, kept: np.ndarray) -> Array:
    """Return energies of the columns, with 1 in place of those that are zero."""
    energy = problem.phi.column_energy
    xp = namespace(energy)
    return xp.where(on_device_of(energy, kept), energy, xp.ones_like(energy))


def _overlap(problem: Problem, kept: np.ndarray) -> float:
    """Estimate the mean square of ``phi_i^H phi_j / (|phi_i| |phi_j|)`` over i, summed over the other j."""
    root = _divisor(problem, kept) ** 0.5
    signs = draw_signs(2, kept.size, np.random.default_rng(0)).probes(problem.y)
    signs = signs * on_device_of(root, kept)
    rest = problem.phi.gram(signs / root) / root - signs
    return inner(rest, rest) / (2 * max(int(np.count_nonzero(kept)), 1))


def _by_factor(problem: Problem, kept: np.ndarray) -> tuple[Array, Array, float]:
    """Return coefficients, their variances in units of the noise, and how many directions they use."""
    alpha = RIDGE * _divisor(problem, kept).astype(np.float64)
    system = DirectSystem(problem.phi.operator.astype("float64"), alpha, 1.0)
    mean = system.solve(v=as_rows(problem.y)).reshape(*problem.y.shape[:-1], -1)
    variance = system.variance(np.eye(kept.size))
    used = float(np.sum((1 - alpha * variance)[kept]))
    return mean.astype(problem.y.dtype), variance, used


def _by_steps(problem: Problem, kept: np.ndarray) -> tuple[Array, Array, float] | None:
    """Return the same by conjugate gradients, with one factor for all variances; None if they take long."""
    phi, y = problem.phi, as_rows(problem.y)
    energy = _divisor(problem, kept)
    ridge = RIDGE * energy
    noise = draw_signs(PROBES, problem.n_rows, np.random.default_rng(1)).probes(y)
    right = phi.adjoint(namespace(y).concat([y, noise], axis=0))
    stop = StopRule(SOLVED[precision_of(y)], MOST_STEPS)
    jacobi = DiagonalPreconditioner(ridge, 1.0, energy).prepared()
    solved = conjugate_gradients(lambda x: phi.gram(x) + ridge * x, right, stop, preconditioner=jacobi)
    if not solved.converged.all():
        return None
    count = int(np.count_nonzero(kept))
    inflation = float(np.mean(real_dot(solved.x[len(y) :, :], energy * solved.x[len(y) :, :]))) / count
    mean = solved.x[: len(y), :].reshape(problem.y.shape[:-1] + (-1,))
    return mean, inflation / energy, float(count)


def likely_noise(found: Coefficients) -> float:
    """Return the noise variance under which coefficients and what is left over are most likely.

    Coefficients are noise alone or noise and a signal, whose variances are powers of four times that of the
    noise with any weights. For each noise the best weights are a convex problem.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> u = 0.1 * rng.standard_normal(500)
    >>> u[:100] += 3 * rng.standard_normal(100)
    >>> bool(0.09 < likely_noise(Coefficients(u**2, 0.0, 0.0, False)) ** 0.5 < 0.11)
    True
    """
    if found.enough:
        return found.left_over / found.freedom
    positive = found.squares[found.squares > 0]
    if 2 * positive.size < found.squares.size:  # most are zero exactly
        return 0.0
    power = (found.left_over + positive.sum()) / (found.freedom + found.squares.size)
    low = min(float(np.quantile(positive, 0.05)), power)
    _, where = np.unique(np.floor(np.log(positive) / np.log(CLASS)), return_inverse=True)
    counts = np.bincount(where).astype(float)
    squares = np.bincount(where, weights=positive) / counts
    counts *= min(1.0, ENOUGH_COEFFICIENTS / counts.sum())
    noises = np.geomspace(low, power, max(2, round(np.log(power / low) / np.log(COARSE))))
    for _ in range(2):
        likely = [_log_likelihood(noise, squares, counts, found) for noise in noises]
        best = int(np.argmax(likely))
        noise_var = float(noises[best])
        around = noises[max(best - 1, 0)], noises[min(best + 1, noises.size - 1)]
        noises = np.geomspace(*around, FINE)
    return noise_var


def _log_likelihood(noise: float, squares: np.ndarray, counts: np.ndarray, found: Coefficients) -> float:
    """Return the largest log likelihood of a noise variance, whatever the signals' variances."""
    half = 1.0 if found.of_complex else 0.5
    steps = max(1, int(np.log(max(squares.max() / noise, 1.0)) / np.log(APART)) + 2)
    variances = noise * np.concatenate([[1.0], 1 + WEAKEST * APART ** np.arange(steps)])
    logs = -half * (np.log(variances) + squares[:, None] / variances)
    highest = logs.max(axis=1)
    densities = np.exp(logs - highest[:, None])
    weights = np.concatenate([[0.5], np.full(steps, 0.5 / steps)])
    for _ in range(TURNS):
        shares = densities * weights
        weights = (counts / shares.sum(axis=1)) @ shares
        weights[0] += SEEN
        weights /= weights.sum()
    likely = counts @ (np.log(densities @ weights) + highest) + SEEN * np.log(weights[0])
    return float(likely - half * (found.freedom * np.log(noise) + found.left_over / noise))
