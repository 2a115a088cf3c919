"""The EM update computed through the N x N covariance of the data (Woodbury)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, squared_modulus
from cofem.inference.base import ExpectationMaximisation, Info, Moments, State
from cofem.inference.em import as_mean, data_columns
from cofem.inference.problem import Problem
from cofem.linalg.direct import covariance_of_data
from cofem.linalg.factor import ONE_THREAD, energy_of_columns, product, safe_cholesky, solve_lower

#: Share of a coefficient that data determine below which it counts as this much.
LEAST_FREEDOM = 1e-12
#: That share, relative to what each of D coefficients can have of N data, below which a coefficient is given
#: up at once by MacKay's update, if its precision is to grow by more than one over the second number. On
#: lead fields of 60 x 15 000 this takes half of the time, to the same places, at an evidence that is 0.1 to
#: 1.9 nats less, of 5900 to 8300; with 0.01 it takes 0.7 of the time, at up to 0.2 less.
NEGLIGIBLE, LOST = 0.1, 0.9
#: Extrapolated steps of EM before MacKay's update takes over. From the start that ends in optima with 2 to 30
#: times the error on 12 of 42 problems near the limit of what data tell (Gaussian, DCT, correlated columns,
#: 40 x 400 to 64 x 256, 2 to 4 tasks), after 4 steps on 4, after 6 on 2, after 10 and 16 on none; on lead
#: fields it makes no difference.
FIRST_STEPS = 10
#: Part of the cap from which on a precision is at it, and share of those at it from which on their columns
#: are left out: the others are copied.
AT_CAP, MANY_GONE = 0.99, 0.5


@dataclass(frozen=True)
class IRLS(ExpectationMaximisation):
    """EM's exact moments through ``C = I / beta + Phi diag(1/alpha) Phi^H``.

    Time O(D N^2 + N^3) a step, memory O(D N): the better one of the two exact methods when N < D.
    Always computes in double precision.

    Parameters
    ----------
    accelerate : bool
        Extrapolate the outer steps (SQUAREM), where plain EM would take a step at a time.
    update : {"em", "mackay"}
        EM's update of the precisions, or MacKay's, with ``|mean|^2`` over ``1 - alpha variance`` in place of
        the second moment, after ten extrapolated steps of EM's. Its fixed points are the same, and it sends
        what the data do not need to zero in far fewer steps.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> Phi = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
    >>> post = cofem.fit(Phi, np.array([1.0, 0.0]), noise_std=0.01, method="irls")
    >>> post.support().tolist()
    [0]
    """

    accelerate: bool = False
    update: str = "em"

    name: ClassVar[str] = "irls"

    def __post_init__(self) -> None:
        if self.update not in ("em", "mackay"):
            raise ValueError(f"update must be 'em' or 'mackay', got {self.update!r}")

    def _follows_em(self, state: State) -> bool:
        return self.update == "em" or state.carry < FIRST_STEPS

    def too_early(self, state: State) -> str:
        """Where columns look alike, EM's steps are so short that a fit seems settled from the start."""
        # One step of MacKay's at least: its change of the prior says whether it settles there.
        first = self.update == "mackay" and state.carry <= FIRST_STEPS
        return "the first steps, which are those of EM, are not done" if first else ""

    def maximisation(self, problem: Problem, state: State) -> Array:
        """Return the precisions that follow from a state's moments, by the update that was chosen."""
        if self._follows_em(state):
            return super().maximisation(problem, state)
        cap, alpha = problem.alpha_cap, state.alpha
        explained = np.maximum(1 - alpha * state.variance, LEAST_FREEDOM)
        energy = np.mean(squared_modulus(np.atleast_2d(state.mean)), axis=0)
        # Precisions from second moments are one over means of them, whoever shares; so both are means.
        freedom = 1 / problem.rule.precisions(explained, np.inf)
        image = freedom * problem.rule.precisions(energy, cap)
        # With all others as they are, these would go on to infinity, by the same factor in every step.
        negligible = NEGLIGIBLE * min(1.0, problem.n_rows / problem.n_columns)
        image[(freedom < negligible) & (image > alpha / LOST)] = cap
        image[alpha >= AT_CAP * cap] = cap
        return np.minimum(image, cap).astype(alpha.dtype)

    @property
    def default_max_iter(self) -> int:  # type: ignore[override]
        """Outer steps when the user names none."""
        return 500 if self.update == "mackay" else 100

    def accelerates(self, state: State) -> bool:
        """Extrapolate if asked to, and in steps of EM that lead to MacKay's: the moments are exact."""
        return self.accelerate or (self.update == "mackay" and self._follows_em(state))

    def wants_one_thread(self, problem: Problem) -> bool:
        """Tell whether the matrix that is factored is small."""
        return problem.n_rows <= ONE_THREAD

    def memory(self, problem: Problem) -> tuple[float, str]:
        """Phi, its whitened copy, and the N x N covariance with its factor."""
        n, d = problem.phi.shape
        size = 16 if problem.is_complex else 8
        return size * (2.0 * n * d + 2.0 * n * n), "two N x D and two N x N matrices"

    def variances_with(self, problem: Problem, state: State, added: Array) -> Array:
        """Return exact variances with precisions added."""
        alpha = problem.with_more_precision(state.alpha, added)
        return self.moments(problem, alpha).variance

    def first_expectation(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> Moments:
        """Take the moments."""
        return replace(self.moments(problem, alpha), carry=0)

    def expectation(self, problem: Problem, alpha: Array, state: State, rng: np.random.Generator) -> Moments:
        """Take the moments; the carry counts the steps."""
        return replace(self.moments(problem, alpha), carry=state.carry + 1)

    def moments(self, problem: Problem, alpha: Array) -> Moments:
        """Factor C and whiten Phi with it."""
        phi, g = problem.phi.matrix, 1 / alpha.astype(np.float64)
        live = np.flatnonzero(alpha < AT_CAP * problem.alpha_cap)
        fewer = live.size <= (1 - MANY_GONE) * alpha.size
        if fewer:
            phi, g = phi[:, live], g[live]
        mean, explained, log_det, quadratic = exact_moments(phi, data_columns(problem), g, problem.noise_var)
        # gamma = explained is at most 1; what rounding leaves of 1 - gamma is bounded from below by
        # the variance a coefficient would have if all others were known.
        variance = 1 / (alpha + problem.phi.column_energy.astype(np.float64) / problem.noise_var)
        if fewer:
            variance[live] = np.maximum(g * (1 - explained), variance[live])
            found, mean = mean, np.zeros((alpha.size, mean.shape[1]), dtype=mean.dtype)
            mean[live] = found
        else:
            np.maximum(g * (1 - explained), variance, out=variance)
        info = Info(figures={"log_evidence": problem.log_evidence(log_det, quadratic)})
        real = problem.real_dtype
        return Moments(as_mean(mean, problem), variance.astype(real), None, info)


class ExactMoments(NamedTuple):
    """The posterior of a Gaussian model.

    Attributes
    ----------
    mean : ndarray of shape (D, L)
        Posterior means.
    explained : ndarray of shape (D,)
        One less the posterior variances over the prior ones.
    log_det : float
        Logarithm of the determinant of the covariance C of the data.
    quadratic : float
        Sum over the columns of y of ``y^H C^-1 y``.
    """

    mean: np.ndarray
    explained: np.ndarray
    log_det: float
    quadratic: float


def exact_moments(phi: np.ndarray, y: np.ndarray, g: np.ndarray, noise_var: float) -> ExactMoments:
    """Factor ``C = noise_var I + Phi diag(g) Phi^H`` and whiten Phi with it.

    Parameters
    ----------
    phi : ndarray of shape (N, D)
        Phi, in double precision.
    y : ndarray of shape (N, L)
        The data, a column for each task.
    g : ndarray of shape (D,)
        Prior variances.
    noise_var : float
        Noise variance.

    Examples
    --------
    >>> import numpy as np
    >>> found = exact_moments(np.eye(2), np.ones((2, 1)), np.array([1.0, 3.0]), 1.0)
    >>> found.mean.ravel().round(6).tolist(), found.explained.round(6).tolist(), round(found.quadratic, 6)
    ([0.5, 0.75], [0.5, 0.75], 0.75)
    """
    factor = safe_cholesky(covariance_of_data(phi, 1.0, g, noise_var))
    white_y, white_phi = solve_lower(factor, y), solve_lower(factor, phi)
    mean = g[:, None] * product(white_phi, white_y, adjoint=True)
    log_det = 2 * float(np.log(factor.diagonal().real).sum())
    quadratic = float(np.vdot(white_y, white_y).real)
    return ExactMoments(mean, g * energy_of_columns(white_phi), log_det, quadratic)
