"""EM in analysis form: ``alpha_i = nu_i / E |(B u)_i|^2``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cofem._arrays import (
    Array,
    as_rows,
    inner,
    namespace,
    number_like,
    reciprocal,
    squared_modulus,
    to_numpy,
)
from cofem.inference.analysis.problem import AnalysisProblem
from cofem.inference.analysis.row_moments import (
    MANY,
    Averages,
    Carry,
    VarianceOf,
    averaged_ratio,
    mixed,
    on_rows,
    row_power,
    row_variances,
    second_moments,
    squared,
)
from cofem.inference.base import Info, Method, State
from cofem.inference.em import as_mean, data_columns
from cofem.inference.problem import Problem
from cofem.linalg.analysis import AnalysisSystem, RowPart
from cofem.linalg.analysis.exact import exact_moments
from cofem.linalg.analysis.far import comes_from_afar, variance_from_afar
from cofem.linalg.analysis.null_space import spread_of
from cofem.linalg.build import right_hand_sides_at_once
from cofem.linalg.cg import CGResult
from cofem.status import StatusCode

#: Degrees of freedom of a row, and precisions relative to the largest, below which nothing is left of it.
LEAST_FREEDOM, LEAST_PRECISION = 1e-12, 1e-20
#: Change of the mean in a step, relative to the posterior's spread, that is small enough if nothing is drawn.
SMALL_CHANGE_IF_EXACT = 0.01
#: Steps over which the spread may still fall by this share at the end. At the start it is as large as the
#: unknown, and so was the change that passed for small: of eight fits to projections (1 % of noise) six ended
#: at step 2 to 4 with 1.1 to 2.8 times the error they have now. Its draws alone leave 5 % uncertain.
FALLEN_OVER, FALLEN = 4, 0.1
#: Steps at the start in which precisions of a band change by one factor, and the least part of a band that
#: data are taken to determine in these.
WHOLE_BANDS, DETERMINED = 4, 0.02
#: Largest factor by which an update is lengthened.
LONGEST = 30.0
#: Places up to which a picture is coarse, and data from which on noise levels are worth comparing.
COARSE, ENOUGH_TO_COMPARE = 2**12, 100
#: Draws that variances pooled over neighbours are worth, where they are weighed against those of a place.
POOLED_FROM = 16
#: Draws that the variances of the result come from, where they are pooled over neighbours and where not.
FINAL_DRAWS, FINAL_DRAWS_ALONE = 8, 32
#: How far the mean and the draws of the result may be off in any direction, in its own standard deviations:
#: a few smooth ones hold nearly all of the variance inside of a hole, and no share of the energy. What a draw
#: is off by is at right angles to it, so that its variance is at most the square of that too small.
EACH_MEAN, EACH_DRAW = 0.1, 0.4


class Pace(NamedTuple):
    """How a fit goes on, which depends on what the data are."""

    #: Draws in each step, where precisions are means over several rows, and where they are not.
    draws: tuple[int, int]
    #: Share of a new estimate in variances, which are averaged over steps.
    share: float
    #: Change of the mean in a step that is small enough, relative to the posterior's spread; of a blur
    #: relative to the noise, since the spread falls slowly from far too much to too little.
    small_change: float
    #: Whether precisions of a band change by one factor in the first steps.
    by_bands: bool
    #: Where the noise starts, if it is learned, in variance relative to the data.
    noise: float
    #: Steps after which candidates are judged, and draws that predictions are then judged by.
    judged_after: int
    judged_by: int
    #: Steps of full length; later ones are shorter, so that the noise of the draws averages out.
    full_steps: int


#: Where data see single places; where they are as many as unknowns, but sums over places (a blur); where they
#: are fewer (Fourier coefficients). In the last case averages over steps and a start with whole bands keep
#: fits from finding edges: a phantom of 32 x 32 pixels ended with an error of 24 % in place of 16 %.
OF_PLACES = Pace((1, 2), 0.25, 0.045, True, 0.06, 8, 0, 14)
OF_SUMS = Pace((4, 4), 0.75, 0.16, True, 0.03, 10, 8, 24)
OF_FEW_SUMS = Pace((3, 6), 1.0, 0.07, False, 1e-3, 10, 16, 14)


class _Moments(NamedTuple):
    mean: Array
    variance: Array
    #: Gives the variances of the rows of a part of B.
    row_variance: VarianceOf
    predicted: Array | None
    info: Info
    draws: float = 0.0
    #: Inverse of the diagonal of A, where that says something about variances.
    inverse: Array | None = None


@dataclass(frozen=True)
class AnalysisEM(Method):
    r"""EM for ``cofem.fit(Phi, y, analysis=B)``: u is the unknown, and ``B u`` is sparse.

    The posterior's precision is :math:`A = \beta\Phi^H\Phi + B^H\mathrm{diag}(\alpha)B`. The mean, and a few
    draws for the variances of the rows of B, are solved for by conjugate gradients; up to 512 unknowns all
    is exact. A redundant B has fewer degrees of freedom than rows, so that the update is
    :math:`\alpha_i = \nu_i / E|(Bu)_i|^2`; see `cofem.linalg.analysis.Rows.freedom`.

    Parameters
    ----------
    draws : int, optional
        Draws from the posterior in each step: by default one to six; see `Pace`.
    final_draws : int, optional
        Draws that the variances of the result come from: by default 8 where they are pooled over neighbours,
        else 32.
    relaxation : float
        How far steps go along an update of ``log alpha``; 1 is plain EM.
    cg_tol, draw_tol : float
        Errors of the mean, relative to what the noise causes, and of a draw.
    cg_iterations : int
        Most CG steps in one solve.
    exact : bool or None
        Whether the E-step is exact; by default if the problem is small.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> from cofem.operators import Gradient, Mask
    >>> rng = np.random.default_rng(0)
    >>> u = np.repeat([0.0, 2.0, 1.0], 40)
    >>> seen = rng.random(120) < 0.5
    >>> y = u[seen] + 0.1 * rng.standard_normal(seen.sum())
    >>> post = cofem.fit(Mask(seen), y, noise_std=0.1, analysis=Gradient(120))
    >>> bool(np.abs(post.mean - u).mean() < 0.1), post.method
    (True, 'analysis')
    """

    draws: int | None = None
    final_draws: int | None = None
    relaxation: float = 1.7
    cg_tol: float = 0.02
    draw_tol: float = 0.03
    cg_iterations: int = 1000
    exact: bool | None = None

    name: ClassVar[str] = "analysis"
    any_array: ClassVar[bool] = True
    default_max_iter: ClassVar[int] = 100
    #: The variance of predictions is no part of the stop rule: it stays above the noise where nothing is
    #: seen.
    noise_tol: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        for field in ("draws", "final_draws", "cg_iterations"):
            value = getattr(self, field)
            if value is not None and (int(value) != value or value < 1):
                raise ValueError(f"{field} must be a positive integer, got {value!r}")
        if not 0 < self.relaxation < 2:
            raise ValueError(f"relaxation must be between 0 and 2, got {self.relaxation!r}")

    def tolerance(self, problem: Problem, state: State, size: float) -> float:
        """Return the change of the mean to stop at: a small part of the posterior's own spread.

        The noise of the draws keeps the mean moving, by 0.04 of it to 0.17; see `Pace`.
        """
        assert isinstance(problem, AnalysisProblem)
        if self._goes_by_bands(problem, state.carry.steps - 1):
            return 0.0
        if not self.is_exact(problem) and pace_of(problem) is OF_SUMS:
            # Of the unknown, as far as Phi lets it pass.
            noise = (
                problem.n_tasks * problem.noise_var * problem.phi.energy
            ) ** 0.5 / problem.phi.operator.norm
            return OF_SUMS.small_change * noise / size if size > 0 else 0.0
        share = SMALL_CHANGE_IF_EXACT if self.is_exact(problem) else pace_of(problem).small_change
        return share * state.carry.spreads[-1] / size if size > 0 else 0.0

    def unsettled(self, state: State) -> str:
        """Say so where the posterior's spread still falls, and with it the change that passes for small."""
        spreads = state.carry.spreads
        if len(spreads) > FALLEN_OVER and spreads[-1] >= (1 - FALLEN) * spreads[-1 - FALLEN_OVER]:
            return ""
        return f"the posterior's spread fell by more than {FALLEN:.0%} in the last {FALLEN_OVER} steps"

    @property
    def free_of_units(self) -> bool:
        """Columns are left as they are: rows of B tie them to each other."""
        return False

    def refusal(self, problem: Problem) -> Exception | None:
        """Return why this method cannot work on a problem."""
        if not isinstance(problem, AnalysisProblem):
            return ValueError("method='analysis' is for fits with analysis=B")
        return super().refusal(problem)

    def init(self, problem: Problem, alpha: Array, rng: np.random.Generator) -> tuple[State, Info]:
        """Take the moments at the first precisions."""
        assert isinstance(problem, AnalysisProblem)
        warm = None if problem.warm is None else problem.warm.take()
        found = self._moments(problem, alpha, None if warm is None else warm.mean, rng)
        if found.info.end is StatusCode.FAILED:
            return State(alpha, found.mean, found.variance), found.info
        # What was predicted there are data that are now seen.
        before = Carry() if warm is None else warm.carry._replace(predicted=None)
        return self._state(problem, alpha, found, before), found.info

    def step(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """Update the precisions, then take the moments at them."""
        assert isinstance(problem, AnalysisProblem)
        alpha = self._update(problem, state)
        found = self._moments(problem, alpha, state.mean, rng)
        if found.info.end is StatusCode.FAILED:
            return state, found.info
        return self._state(problem, alpha, found, state.carry), found.info

    def _state(self, problem: AnalysisProblem, alpha: Array, found: _Moments, before: Carry) -> State:
        """Average the noise of the draws over steps.

        Variances are averaged relative to what they would be if A were its diagonal. This follows alpha; what
        is left changes little from step to step, and from place to place.
        """
        share = max(pace_of(problem).share, 1 / (1 + before.steps))
        variance, place_ratio = found.variance, None
        predicted, draws, inverse = found.predicted, found.draws, found.inverse
        if inverse is not None and problem.rows.has_squares:
            how = Averages(before.row_ratio, share, not problem.prior.averages and _is_local(problem))
            row_ratio = averaged_ratio(problem, found.row_variance, inverse, how)
        else:
            row_ratio = on_rows(problem, alpha, found.row_variance)
        if inverse is not None and _are_alike(problem):
            place_ratio = mixed(variance / inverse, before.place_ratio, share)
            variance = place_ratio * inverse
        if _predicts_places(problem):
            squares = None if problem.held_out is None else problem.held_out.abs2()
            assert squares is not None
            predicted, draws = squares.forward(variance), MANY
        elif before.predicted is not None and draws:
            predicted = mixed(predicted, before.predicted, share)
            # What an average with such weights is worth: the inverse of the sum of their squares.
            draws = 1 / (share**2 / draws + (1 - share) ** 2 / before.draws)
        noise_var = problem.noise_var if inverse is not None and problem.rows.has_squares else None
        spread = (problem.n_tasks * inner(problem.weights, variance)) ** 0.5
        spreads = (*before.spreads[-FALLEN_OVER:], spread)
        carry = Carry(before.steps + 1, predicted, draws, row_ratio, place_ratio, noise_var, spreads)
        return State(alpha, found.mean, variance, carry)

    def settled(self, state: State) -> State:
        """Return what is kept of a state when its stage is done: candidates are judged by predictions."""
        return replace(super().settled(state), carry=state.carry)

    def finish(
        self, problem: Problem, state: State, ended: StatusCode, rng: np.random.Generator
    ) -> tuple[State, Info]:
        """Solve for the mean once more, and draw often enough for the variances."""
        assert isinstance(problem, AnalysisProblem)
        if self.is_exact(problem):
            return state, Info()
        judged = problem.held_out is not None
        carry: Carry = state.carry
        if judged:
            if _predicts_places(problem):  # variances are known well enough
                return state, Info()
            fine = replace(self, draws=pace_of(problem).judged_by)
        else:
            draws = self.final_draws or (FINAL_DRAWS if _are_alike(problem) else FINAL_DRAWS_ALONE)
            mean, draw = EACH_MEAN / problem.n_rows**0.5, EACH_DRAW / problem.n_columns**0.5
            fine = replace(
                self, draws=draws, cg_tol=min(self.cg_tol, mean), draw_tol=min(self.draw_tol, draw)
            )
        found = fine._moments(problem, state.alpha, state.mean, rng, of_result=not judged, with_rows=False)
        if found.info.end is StatusCode.FAILED:
            return state, Info(trouble=found.info.message)
        trouble = found.info.trouble
        info = Info(trouble=trouble)
        if trouble and ended is StatusCode.CONVERGED:
            info = Info(trouble=trouble, end=StatusCode.MAX_ITER, message=f"the last mean: {trouble}")
        if judged:
            assert found.predicted is not None
            assert carry.predicted is not None
            total = found.draws + carry.draws
            predicted = mixed(found.predicted, carry.predicted, found.draws / total)
            carry = carry._replace(predicted=predicted, draws=total)
        return replace(state, mean=found.mean, variance=found.variance, carry=carry), info

    def first_noise(self, problem: AnalysisProblem) -> float:
        """Return where the noise starts, if it is learned, in variance relative to the data."""
        return OF_FEW_SUMS.noise if self.is_exact(problem) else pace_of(problem).noise

    def is_exact(self, problem: AnalysisProblem) -> bool:
        """Tell whether the E-step is exact."""
        return problem.is_small if self.exact is None else self.exact

    def _goes_by_bands(self, problem: AnalysisProblem, steps: int) -> bool:
        """Tell whether precisions of a band change by one factor after so many steps."""
        return steps <= WHOLE_BANDS and pace_of(problem).by_bands and not self.is_exact(problem)

    def _update(self, problem: AnalysisProblem, state: State) -> Array:
        """M-step, lengthened: the precisions that follow from a state, shape (M,)."""
        prior, cap, alpha, carry = problem.prior, problem.alpha_cap, state.alpha, state.carry
        xp = namespace(alpha)
        low, high = number_like(alpha, LEAST_PRECISION * cap), number_like(alpha, cap)
        if self._goes_by_bands(problem, carry.steps):
            factors = _factors_of_bands(problem, state)
            if factors is not None:
                factors *= alpha
                for some in problem.rows.parts:
                    factors[some.rows] = xp.clip(factors[some.rows], low, high)
                return factors
        image = prior.precisions_in_place(second_moments(problem, state), cap)
        bands = problem.rows.freedom_by_bands(alpha) if prior.keeps_bands else None
        if bands is None:
            freedom = xp.maximum(problem.rows.freedom(alpha), number_like(alpha, LEAST_FREEDOM))
            image = image / prior.precisions(freedom, np.inf)
            del freedom
        longest = float(np.log(LONGEST))
        length = self.relaxation
        shorter = min(1.0, pace_of(problem).full_steps / carry.steps)
        if not self.is_exact(problem):
            length *= shorter
        elif prior.averages:  # means over neighbours overshoot; plain steps settle
            length = max(min(1.0, length), length * shorter)
        whole = [(slice(None), 1.0)]
        for part, share in whole if bands is None else bands:
            new = image[part] * max(share, LEAST_FREEDOM)
            change = xp.clip(xp.log(new / alpha[part]), -longest, longest)
            new *= xp.exp((length - 1) * change)
            image[part] = xp.clip(new, low, high)
        return image

    def _moments(
        self,
        problem: AnalysisProblem,
        alpha: Array,
        guess: Array | None,
        rng: np.random.Generator,
        *,
        with_rows: bool = True,
        of_result: bool = False,
    ) -> _Moments:
        if self.is_exact(problem):
            return _exact(problem, alpha)
        phi, rows = problem.phi, problem.rows
        at_once = max(1, right_hand_sides_at_once(phi) * problem.n_columns // rows.n_rows)
        system = AnalysisSystem(phi, rows, alpha, problem.noise_var, problem.null, at_once)
        limit: dict[str, Any] = {"max_iter": self.cg_iterations, "sure": of_result}
        accounts: list[CGResult] = []
        direct = problem.held_out is not None and not _predicts_places(problem)
        inverse = reciprocal(system.diagonal()) if _are_alike(problem) or rows.has_squares else None
        alike = _are_alike(problem)
        variance = row_variance = predicted = None
        kept: list[Array] = []
        draws = self.draws or pace_of(problem).draws[0 if problem.prior.averages else 1]
        exact = system.exact_variances() if of_result else None
        if exact is not None:
            draws = 0
        for start in range(0, draws, at_once):
            count = min(at_once, draws - start)
            right = system.of_draws(count, rng, signs=True)
            centre = right * (inverse / problem.noise_var) if inverse is not None and alike else None
            drawn = system.solve(right, tol=self.draw_tol, reference=problem.n_columns, **limit)
            accounts.append(_without_solution(drawn))
            # One after the other, to save memory.
            for i in range(count):
                x = drawn.x[i, :]
                if with_rows and draws * problem.n_columns > rows.n_rows:
                    row_variance = _added(row_variance, squared(rows.operator.forward(x)))
                elif with_rows:  # few vectors, smaller than one of M numbers
                    kept.append(x)
                if direct:
                    assert problem.held_out is not None
                    predicted = _added(predicted, squared_modulus(problem.held_out.forward(x)))
                variance = _added(variance, squared_modulus(x if centre is None else x - centre[i, :]))
            del right, centre, drawn
        if draws:
            assert variance is not None
            variance /= draws
        # The draws have shown how slow the system is, which a solve that starts near its end does not.
        if guess is not None:
            guess = namespace(guess).asarray(as_rows(guess), copy=True)
        right = system.of_data(as_rows(problem.y))
        solved = system.solve(right, tol=self.cg_tol, reference=problem.n_rows, guess=guess, **limit)
        accounts.append(_without_solution(solved))
        mean = solved.x

        def variance_of(part: RowPart) -> Array:
            if row_variance is not None:
                return row_variance[part.rows] / draws
            total = squared(part.operator.forward(kept[0]))
            for x in kept[1:]:
                total += squared(part.operator.forward(x))
            total /= draws
            return total

        if exact is not None:
            variance = exact
        elif inverse is not None and alike:
            assert variance is not None
            # The variance of a place given its neighbours is known; its mean given them is drawn (Siden et
            # al. 2018). Of the latter, the size relative to the former is alike from place to place.
            apart, weight = variance / inverse, draws / (draws + POOLED_FROM)
            pooled = rows.pooled_places(apart, _kind(problem))
            variance = inverse * (1 + weight * apart + (1 - weight) * pooled)
            if of_result and comes_from_afar(system, pooled):
                variance, solved = variance_from_afar(system, inverse, rng, self.draw_tol, self.cg_iterations)
                accounts.append(_without_solution(solved))
        assert variance is not None
        if problem.undetermined is not None:
            variance = variance + problem.widest * spread_of(problem.undetermined)
        if predicted is not None:
            predicted = predicted / draws
        mean = namespace(mean).reshape(mean, (*problem.y.shape[:-1], -1))
        return _Moments(mean, variance, variance_of, predicted, _account(accounts), draws, inverse)


def pace_of(problem: AnalysisProblem) -> Pace:
    """Return how a fit of a problem goes on."""
    if not _are_alike(problem):
        return OF_FEW_SUMS
    return OF_PLACES if problem.phi.operator.facts.one_per_row else OF_SUMS


def sees_places(problem: AnalysisProblem) -> bool:
    """Tell whether data are places of a picture or volume, enough of them to compare noise levels by."""
    rows = problem.rows
    of_picture = rows.grid is not None and len(rows.axes) > 1
    places = problem.phi.operator.facts.one_per_row and problem.phi.operator.sparse_matrix() is not None
    return of_picture and places and problem.n_rows >= ENOUGH_TO_COMPARE


def is_coarse(problem: AnalysisProblem) -> bool:
    """Tell whether a picture is small, so that its details may be one place wide."""
    return problem.n_columns <= COARSE


def _are_alike(problem: AnalysisProblem) -> bool:
    """Tell whether variances of neighbours are alike, relative to those if A were its diagonal."""
    rows, phi = problem.rows, problem.phi
    if rows.grid is None or not rows.diagonal_is_exact or not phi.column_norms_exact:
        return False
    return phi.operator.facts.one_per_row or problem.n_rows + problem.n_held_out >= problem.n_columns


def _kind(problem: AnalysisProblem) -> Array | None:
    """Return 1 for places that data see, 0 for others, which are not alike; None if all are one kind."""
    if not problem.phi.operator.facts.one_per_row:
        return None
    seen = problem.phi.column_energy
    return namespace(seen).astype(seen > 0, seen.dtype)


def _is_local(problem: AnalysisProblem) -> bool:
    """Tell whether data see single places."""
    return pace_of(problem) is OF_PLACES


def _predicts_places(problem: AnalysisProblem) -> bool:
    """Tell whether data that are held out see one place each, so that variances of places are theirs."""
    held_out = problem.held_out
    return held_out is not None and _is_local(problem) and held_out.abs2() is not None


def _factors_of_bands(problem: AnalysisProblem, state: State) -> Array | None:
    """Return what alpha is to be multiplied by, one number for each band, by MacKay's rule; shape (M,).

    Of whole bands it is as good as free of noise, and in three steps where plain ones take ten.
    """
    rows, alpha = problem.rows, state.alpha
    if rows.grid is None:
        return None
    bands = rows.freedom_by_bands(alpha)
    if bands is None:
        total = rows.band_sums(rows.freedom(alpha))
    else:
        total = np.array([number for _, number in bands]) * rows.sizes
    spread = rows.band_sums(alpha, row_variances(problem, state))
    power = rows.band_sums(alpha, row_power(problem, state))
    determined = np.maximum(total - spread, DETERMINED * total)
    return rows.for_each(np.clip(determined / np.maximum(power, 1e-300), 1 / LONGEST, LONGEST))


def _added(total: Array | None, addend: Array) -> Array:
    if total is None:
        return addend
    total += addend
    return total


def _exact(problem: AnalysisProblem, alpha: Array) -> _Moments:
    stored, precisions, null = problem.rows.sparse, alpha.astype(np.float64), problem.undetermined
    rows: Any = problem.rows.matrix if stored is None or null is not None else stored
    if null is not None:  # as large as the unknown may be
        rows = np.vstack([rows, null.conj().T])
        precisions = np.append(precisions, np.full(null.shape[1], 1 / problem.widest))
    found = exact_moments(problem.phi.matrix, rows, precisions, problem.noise_var, data_columns(problem))
    predicted = None
    if problem.held_out is not None:
        predicted = found.variance_of(to_numpy(problem.held_out.to_dense()))
    real = problem.real_dtype
    return _Moments(
        as_mean(found.mean, problem),
        found.variance.astype(real),
        lambda part: found.row_variance[part.rows].astype(real),
        predicted,
        Info(),
    )


def _without_solution(result: CGResult) -> CGResult:
    """Return the account of a solve alone, so that the solution need not stay in memory."""
    return replace(result, x=np.empty(0))


def _account(accounts: list[CGResult]) -> Info:
    """Sum up how the solves went."""
    iterations = max(int(account.iterations.max()) for account in accounts)
    if any(account.broken.any() for account in accounts):
        why = (
            "conjugate gradients broke down, because an operator gave values that are not finite or is not "
            "the adjoint it claims, or the data do not determine the unknown where analysis gives no rows"
        )
        return Info(end=StatusCode.FAILED, message=why)
    trouble = ""
    if not all(account.converged.all() for account in accounts):
        trouble = "conjugate gradients ran out of steps; raise AnalysisEM(cg_iterations=...)"
    return Info(cg_iterations=iterations, trouble=trouble)
