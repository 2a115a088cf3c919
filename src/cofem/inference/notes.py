"""What a status says at the end of a fit: about the data, the noise and the dictionary."""

from __future__ import annotations

import numpy as np

from cofem._arrays import (
    Array,
    as_array,
    as_rows,
    average,
    inner,
    namespace,
    on_device_of,
    precision_of,
    size,
    squared_modulus,
    to_numpy,
    total,
)
from cofem.inference.base import State
from cofem.inference.prepare import Data, PreparedProblem
from cofem.inference.problem import Problem
from cofem.inference.record import Outcome
from cofem.operators import Operator, check_adjoint
from cofem.status import Caution

#: Energy of the fit, relative to that of its columns one by one, that is pointed out, if it is also so many
#: standard deviations above what it would be with random signs, of which so many are drawn.
TOGETHER, ABOVE_CHANCE, SIGNS = 1.7, 4.0, 16
#: Error of the mean, relative to its norm, from which on it is noted and from which on it is warned about, if
#: the posterior expects it.
EXPECTED_ERROR, DOUBTFUL_ERROR = 0.3, 0.5
#: Norm of a column, relative to the largest, below which what is found on it is pointed out.
WEAK_COLUMN = 1e-3
#: Mean square of the residual in units of the noise and of the squared share of data that is left over, above
#: and below which the noise that was given does not fit: with the right noise it was 0.35 to 0.97 (six kinds
#: of dictionary), with noise that is 2 to 100 times too large 0.27 to 0.0001.
FITTING_RESIDUAL = (0.06, 2.0)
#: The same for a noise that was learned: it is to be right to a factor of about two.
RESIDUAL_OF_LEARNED = (0.2, 4.0)
#: Share of the data's degrees of freedom that a fit may use before the noise is in doubt: 0.08 to 0.5 with
#: the right noise, 0.87 to 1 with one that is 100 times too small.
MOST_FREEDOM = 0.85
#: Fewest data for a judgement.
ENOUGH_TO_JUDGE = 20
#: Different weights from which on they may tell that they were made of y, and which count as the same.
ENOUGH_WEIGHTS, SAME = 5, 1e-9


def about_the_data(data: Data, prepared: PreparedProblem) -> list[str]:
    """Say what the user should know about dictionary and data."""
    notes = []
    if not prepared.operator.takes_batches:
        notes.append(
            "Phi has no product with several vectors (matmat, rmatmat), so that it is called for one vector "
            "at a time; probes and samples would gain from one"
        )
    if prepared.in_double:
        notes.append("columns of Phi are too far apart in size for float32, so that the fit is in float64")
    if isinstance(data.noise_std, str) and prepared.noise.std is not None:
        notes.append("y is zero everywhere, so that there was no noise to learn from it")
    if prepared.noise.weights is not None and follow(prepared.noise.weights, to_numpy(as_array(data.y, "y"))):
        given, better = "sample_weight", "1 / post.predict(), kept above zero"
        if data.sample_weight is None:
            given, better = "noise_std", "the root of post.predict()"
        notes.append(
            Caution(
                f"{given} was made of y itself: data that are small by chance count most, and the answer is "
                f"too small. Make it of what is expected: fit once without, and take {better}"
            )
        )
    return notes


def follow(weights: np.ndarray, y: np.ndarray) -> bool:
    """Tell whether weights fall with the size of the data throughout, as ``1 / y`` of counts does.

    Weights from elsewhere do not know the noise in y, so that they never follow it throughout, unless y is a
    smooth curve with next to no noise: then there is no harm.

    Parameters
    ----------
    weights : ndarray of shape (N,)
        Weights of the data.
    y : ndarray of shape (N,) or (N, L)
        The data.

    Examples
    --------
    >>> y = np.random.default_rng(0).poisson(20, size=50)
    >>> follow(1 / np.maximum(y, 1), y), follow(1 / np.full(50, 20.0), y)
    (True, False)
    """
    if y.ndim != 1 or y.shape[0] < ENOUGH_TO_JUDGE or np.unique(weights).size < ENOUGH_WEIGHTS:
        return False
    moduli = np.abs(y)
    along = np.diff(moduli)
    if (along >= 0).all() or (along <= 0).all():
        return False
    order = np.lexsort((-weights, moduli))
    steps = np.diff(weights[order]) / weights[order][:-1]
    equal = np.diff(moduli[order]) == 0  # where data are equal, so must be their weights
    return bool((steps <= SAME).all() and (steps[equal] >= -SAME).all())


def about_copies(problem: Problem) -> list[str]:
    """Say so where columns that are stored are the same up to a factor: no data can tell them apart.

    Equal columns have equal products with any vector; two random ones are enough to tell others.
    """
    phi = problem.phi.operator
    if not phi.stored_entries or not isinstance(problem.y, np.ndarray) or phi.shape[1] < 2:
        return []
    kept = np.flatnonzero(~problem.phi.is_zero)
    norms = problem.phi.norms[kept].astype(np.float64)
    probes = np.random.default_rng(0).standard_normal((2, phi.shape[0])).astype(phi.dtype)
    first, second = phi.adjoint(probes)[:, kept] / norms
    # The factor between copies may have any sign or phase.
    turn = np.conj(first) / np.maximum(np.abs(first), np.finfo(np.float64).tiny)
    key, other = np.abs(first), second * turn
    order = np.argsort(key)
    near = 1e4 * float(np.finfo(phi.dtype).eps) * phi.shape[0] ** 0.5
    same = (np.diff(key[order]) <= near) & (np.abs(np.diff(other[order])) <= near)
    copies = np.union1d(order[1:][same], order[:-1][same])
    if not copies.size:
        return []
    words = ", ".join(map(str, np.sort(kept[copies])[:8].tolist())) + (", ..." if copies.size > 8 else "")
    return [
        f"{copies.size} columns of Phi are the same as another one up to a factor ({words}), so that no data "
        "can tell their coefficients apart, only their sum"
    ]


def about_the_fit(outcome: Outcome, learned: bool) -> list[str]:
    """Say so where the fit to the data speaks against the noise, or against single columns."""
    problem, state = outcome.problem, outcome.state
    if problem.in_analysis:
        return []  # precisions are not those of the unknown
    point = problem.point(state.mean, state.variance)
    fitted = problem.phi.operator.forward(point)
    return [*_about_the_noise(outcome, fitted, learned), *_about_sums(problem, point, fitted)]


def _about_sums(problem: Problem, point: Array, fitted: Array) -> list[str]:
    """Say so where columns that were found act together: what they add up to is not sparse in them.

    The energy of the fit over that of its columns one by one was 0.6 to 1.4 for spikes on eight kinds of
    coherent dictionary (D = 1024 and 3072), and 2.1 to 18 for 45 drawn skies in single pixels behind blurs,
    24 x 24 to 96 x 96: their light was right, and the pixels were off by 70 to 360 %. Two spikes that happen
    to be neighbours may have 2 as well; with their signs drawn at random the ratio is 1 on the average, and
    tells how much is chance. Where none is negative, columns add up wherever they are, and places are drawn.
    """
    apart = total(problem.phi.column_energy * squared_modulus(point))
    if not apart > 0:
        return []
    ratio = inner(fitted, fitted) / apart
    if not ratio > TOGETHER:
        return []
    rng = np.random.default_rng(0)
    by_chance = [_ratio_by_chance(problem, point, rng) for _ in range(SIGNS)]
    expected = float(np.mean(by_chance)) if problem.nonnegative else 1.0
    chance = float(np.sqrt(np.mean((np.array(by_chance) - expected) ** 2)))
    if not ratio > max(TOGETHER * expected, expected + ABOVE_CHANCE * chance):
        return []
    if problem.phi.operator.stored_entries:  # a table, whose columns have no widths
        advice = (
            'Sums over similar columns and predictions may still be good. Merge them, or try prior="auto"'
        )
    else:
        advice = (
            "Sums of neighbours and predictions may still be good. If the unknown is smooth, use wider "
            "columns, or analysis= (sparse differences or wavelets)"
        )
    return [
        Caution(
            "individual coefficients are unreliable: the selected columns overlap strongly (energy ratio "
            f"{ratio:.2g}). {advice}"
        )
    ]


def _ratio_by_chance(problem: Problem, point: Array, rng: np.random.Generator) -> float:
    """Return the energy of a fit over that of its columns one by one, with random signs or places."""
    phi = problem.phi
    if problem.nonnegative:
        used = np.flatnonzero(~phi.is_zero)
        moved = np.zeros_like(point)
        moved[..., used] = rng.permutation((phi.norms * point)[..., used], axis=-1) / phi.norms[used]
    else:
        signs = on_device_of(point, rng.choice([-1.0, 1.0], size=point.shape).astype(precision_of(point)))
        moved = signs * point
    fitted = phi.operator.forward(moved)
    return inner(fitted, fitted) / total(phi.column_energy * squared_modulus(moved))


def _about_the_noise(outcome: Outcome, fitted: Array, learned: bool) -> list[str]:
    """Say so where the noise, given or learned, cannot be that of the data."""
    problem, state = outcome.problem, outcome.state
    count = size(problem.y)
    if count < ENOUGH_TO_JUDGE:
        return []
    noise_std = problem.noise_var**0.5 * problem.units.data
    misfit = problem.y - fitted
    residual = (average(squared_modulus(misfit)) / problem.noise_var) ** 0.5
    least, most = RESIDUAL_OF_LEARNED if learned else FITTING_RESIDUAL
    power = (average(squared_modulus(problem.y)) / problem.noise_var) ** 0.5
    freedom = 1 - state.alpha * state.variance
    freedom = namespace(freedom).where(_not_zero(state), freedom, 0 * freedom)
    used = min(max(total(freedom) / problem.n_rows, 0.0), 1.0)
    seems = ""
    if power**2 < 1 - 5 * (2 / count) ** 0.5:
        seems = f"the root mean square of y is only {power:.2g} of it; it seems too large"
    elif used > MOST_FREEDOM:
        seems = (
            f"the fit uses {used:.0%} of the data's degrees of freedom; it seems too small, or the signal is "
            "not sparse in Phi"
        )
    elif residual**2 < least * (1 - used) ** 2:
        seems = f"the residual is only {residual:.2g} times as large as it; it seems too large"
    elif residual**2 > most * (1 - used) ** 2:
        seems = f"the residual is {residual:.2g} times as large as it; it seems too small"
    if not seems:
        return []
    if learned:
        return [
            Caution(
                f"the estimated noise, {noise_std:.3g}, does not agree with the fit: {seems}. Give noise_std "
                "if you know it"
            )
        ]
    advice = "Leave it out to have it estimated"
    return [Caution(f"noise_std = {noise_std:.3g} does not fit the data: {seems}. {advice}")]


def about_weak_columns(outcome: Outcome) -> list[str]:
    """Say so where noise may have become large coefficients: the evidence does not know a column's scale."""
    problem, state = outcome.problem, outcome.state
    if problem.in_analysis:
        return []
    scale = problem.units.columns
    norms = problem.phi.norms if scale is None else problem.phi.norms / scale
    norms = on_device_of(state.alpha, norms) if isinstance(norms, np.ndarray) else norms
    xp = namespace(norms)
    found = (state.alpha * state.variance < 0.5) & _not_zero(state)
    weak = norms < WEAK_COLUMN * float(xp.max(norms))
    count = int(xp.count_nonzero(found & weak))
    if not count:
        return []
    text = (
        f"{count} of the {int(xp.count_nonzero(found))} selected columns of Phi have norms below "
        f"{WEAK_COLUMN:g} of the largest. Noise in such a column looks like a large coefficient; remove them "
        "if that is not what you expect"
    )
    return [Caution(text)]


def _not_zero(state: State) -> Array:
    """Tell which coefficients are used: those that a constraint holds at zero are not, and know it well."""
    return namespace(state.mean).any(as_rows(state.mean) != 0, axis=0)


def about_expected_error(outcome: Outcome) -> list[str]:
    """Say so where the posterior itself expects the mean to be far from the coefficients.

    ``sqrt(sum of variances) / ||mean||`` was 0.5 to 6 % on eight kinds of coherent dictionary, where the
    error was 0.6 to 7 %; 42 % for single pixels behind a blur of two, which the data cannot tell apart.
    """
    state = outcome.state
    power = inner(state.mean, state.mean)
    if not power > 0:
        return []
    tasks = 1 if state.mean.ndim == 1 or state.variance.ndim > 1 else state.mean.shape[0]
    expected = (tasks * total(state.variance) / power) ** 0.5
    if not expected > EXPECTED_ERROR:
        return []
    text = f"expected relative error of post.mean is {100 * expected:.0f} %"
    if expected <= DOUBTFUL_ERROR:
        return [text]
    return [
        Caution(
            f"{text}: the data determine individual coefficients poorly. Predictions may still be good. "
            'Fewer or less similar columns, more data, or prior="auto" may help'
        )
    ]


def fault_of(operator: Operator, problem: Problem) -> str:
    """Look at the operator once more after a fit, and say what is wrong with it by now; "" if nothing is."""
    real = problem.real_dtype
    dtype = np.result_type(real, np.complex64) if problem.is_complex else real
    try:
        check_adjoint(operator, n_vectors=1, dtype=dtype, like=problem.y)
    except TimeoutError:
        raise
    except Exception as error:
        return f"Phi changed during the fit, so that the result is in doubt: {type(error).__name__}: {error}"
    return ""
