"""Diagonal estimators against exact variances on many kinds of dictionary, and the gate between them."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.experiments import problems
from cofem.inference.acceleration import Leap, extrapolate, overshot
from cofem.linalg.diagonals import (
    DIAGONALS,
    ContinuedContext,
    Corrected,
    Exact,
    Gate,
    Paired,
    Pooled,
    PosteriorContext,
    Rademacher,
    SelfConsistent,
    gate,
)
from cofem.linalg.diagonals.exact import exact_shares
from cofem.linalg.diagonals.gate import Verdict, _judged, n_check_probes, squared_error
from cofem.linalg.lanczos import spectral_density
from cofem.linalg.preconditioners import DiagonalPreconditioner
from cofem.linalg.system import PosteriorSystem
from cofem.operators import DCT, FFT, Convolution, Dense, Mask, Sparse, Wavelet
from cofem.priors.base import evidence_gradient

from .problems import dct_case, dense_case, dictionary, exact_log_evidence, exact_posterior

D = 512


def gaussian(n, d=D, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) / np.sqrt(n)


def correlated(n):
    A = gaussian(n)
    for j in range(1, D):
        A[:, j] = 0.9 * A[:, j - 1] + np.sqrt(1 - 0.81) * A[:, j]
    return A


def blur(width):
    kernel = np.exp(-0.5 * (np.arange(-12, 13) / width) ** 2)
    return Convolution(kernel / np.linalg.norm(kernel), D)


def random_rows(n, size=D):
    return np.sort(np.random.default_rng(1).choice(size, n, replace=False))


SCALES = 10 ** np.random.default_rng(2).uniform(-1.5, 1.5, D)
KINDS = {
    "dct": Mask(random_rows(D // 4), D) @ DCT(D).T,
    "complex fourier": Mask(random_rows(D // 4), D) @ FFT(D).H,
    "gaussian": Dense(gaussian(D // 4)),
    "unequal norms": Dense(gaussian(D // 4) * SCALES),
    "duplicated": Dense(np.repeat(gaussian(D // 4, D // 2), 2, axis=1)),
    "correlated": Dense(correlated(D // 4)),
    "tall": Dense(gaussian(2 * D)),
    "square": Dense(gaussian(D)),
    "sparse": Sparse(
        scipy.sparse.random(D // 4, D, 0.1, random_state=3, data_rvs=np.random.default_rng(3).standard_normal)
    ),
    "mild blur": blur(1.0),
    "strong blur": blur(3.0),
    "wavelet": Mask(random_rows(D // 2, 1024)[: D // 2], 1024) @ Wavelet((32, 32), "db2").T,
}
INCOHERENT = ["dct", "complex fourier", "gaussian", "unequal norms", "tall", "square"]


def context_of(name, spread=2.0, noise_std=0.02, seed=0):
    operator = KINDS[name]
    rng = np.random.default_rng(seed)
    energy = operator.column_norms() ** 2
    typical = np.maximum(energy, 0.1 * energy.mean())  # a mask may hide a wavelet
    size = operator.shape[1]
    live = rng.random(size) < 0.05
    g = np.where(live, 1.0, 10 ** rng.uniform(-3 - spread, -3, size)) / typical
    return PosteriorContext(dictionary(operator), 1 / g, noise_std**2)


def exact(context):
    matrix = context.phi.to_dense()
    return np.diagonal(
        np.linalg.inv(matrix.conj().T @ matrix / context.noise_var + np.diag(1 / context.g))
    ).real


def run(estimator, context, carry=None, seed=0):
    # Not the seed of a dictionary: the same normal numbers would be no probes of it.
    rng = np.random.default_rng(1000 + seed)
    carry = estimator.init(context, rng) if carry is None else carry
    rhs = estimator.right_hand_sides(context, carry, rng)
    x = np.zeros((0, context.g.size))
    if rhs.v is not None or rhs.b is not None:
        phi, alpha, noise_var = context.phi, context.alpha, context.noise_var
        jacobi = DiagonalPreconditioner(alpha, noise_var, phi.column_energy)
        system = PosteriorSystem(phi, alpha, noise_var, "primal", jacobi)
        x = system.solve(rhs.v, rhs.b, tol=1e-8, max_iter=20_000).x
    return estimator.estimate(context, carry, rhs, x)


def scores(estimate, want):
    known = estimate.standard_error > 1e-9 * want  # a column of zeros has its prior variance, exactly
    return (estimate.value - want)[known] / estimate.standard_error[known]


@pytest.mark.parametrize("name", KINDS)
def test_exact_is_exact_on_every_kind(name):
    context = context_of(name)
    assert np.allclose(run(Exact(), context).value, exact(context), rtol=2e-3)
    phi = context.phi.to_dense()
    shares = exact_shares(phi.T, context.g, context.noise_var)
    assert np.allclose(context.g * shares, exact(context), rtol=1e-6)


def test_exact_uses_only_what_is_left_of_the_support(monkeypatch):
    context = context_of("gaussian", spread=9.0, noise_std=0.3)
    calls = []
    original = context.phi.columns

    def columns(indices):
        calls.append(len(indices))
        return original(indices)

    monkeypatch.setattr(context.phi, "columns", columns)
    value = run(Exact(), context).value
    assert calls[0] < 300
    assert np.allclose(value, exact(context), rtol=2e-3)


@pytest.mark.parametrize("name", KINDS)
def test_direct_probes_agree_with_the_exact_diagonal_within_their_standard_error(name):
    context = context_of(name)
    estimate = run(Rademacher(probes=64, clip=False), context)
    score = scores(estimate, exact(context))
    assert abs(np.mean(score)) < 0.5
    assert 0.7 < np.sqrt(np.mean(score**2)) < 1.4


@pytest.mark.parametrize("name", KINDS)
def test_paired_samples_are_positive_and_honest(name):
    context = context_of(name)
    estimate = run(Paired(samples=200), context)
    assert (estimate.value > 0).all()
    score = scores(estimate, exact(context))
    assert np.sqrt(np.mean(score**2)) < 1.4
    again = run(Paired(samples=200), context, estimate.carry, seed=1)
    assert np.mean(again.standard_error) < 0.9 * np.mean(estimate.standard_error)


@pytest.mark.parametrize("name", INCOHERENT)
@pytest.mark.parametrize(
    "estimator", [Pooled(), SelfConsistent(lanczos_vectors=4)], ids=["pooled", "self_consistent"]
)
def test_fast_estimates_are_close_on_incoherent_dictionaries(name, estimator):
    context = context_of(name)
    want = exact(context)
    error = np.sqrt(np.mean((run(estimator, context).value / want - 1) ** 2))
    direct = np.sqrt(np.mean((run(Rademacher(probes=20), context).value / want - 1) ** 2))
    assert error < 0.1
    assert error < direct


@pytest.mark.parametrize("name", ["strong blur", "duplicated", "correlated", "sparse", "wavelet"])
def test_corrected_estimates_approach_the_exact_diagonal_on_coherent_dictionaries(name):
    context = context_of(name)
    want = exact(context)
    # In a fit, the probes are scaled by the variances of the step before.
    last = want * np.random.default_rng(9).uniform(0.7, 1.4, want.size)
    context = ContinuedContext(
        context.phi, context.alpha, context.noise_var, mean=np.zeros(want.size), variance=last
    )
    estimator, carry = Corrected(probes=8, memory=0.98), None
    for step in range(40):
        estimate = run(estimator, context, carry, seed=step)
        carry = estimate.carry
        if step == 0:
            first = np.sqrt(np.mean((estimate.value / want - 1) ** 2))
    last = np.sqrt(np.mean((estimate.value / want - 1) ** 2))
    assert last < 0.1
    assert last < 0.5 * first


def test_groups_help_where_groups_differ():
    # Two dictionaries side by side that see very different noise: one c for both is wrong.
    rng = np.random.default_rng(0)
    A = np.zeros((300, 1024))
    A[:280, :512] = rng.standard_normal((280, 512))
    A[280:, 512:] = rng.standard_normal((20, 512))
    alpha = np.full(1024, 1e2)
    context = PosteriorContext(dictionary(A), alpha, 1e-2)
    want = exact(context)
    labels = np.repeat([0, 1], 512)
    one, two = (
        np.mean(np.abs(run(Pooled(groups=groups), context).value / want - 1)) for groups in (None, labels)
    )
    assert two < 0.6 * one


# --- the gate --------------------------------------------------------------------------------


def test_squared_error_is_unbiased():
    rng = np.random.default_rng(0)
    truth = 1 + 0.2 * rng.standard_normal(200_000)
    ratios = truth + 0.6 * rng.standard_normal((3, truth.size))
    error, standard_error = squared_error(ratios, np.ones(truth.size))
    assert abs(error - 0.04) < 4 * standard_error
    assert standard_error < 0.002
    nothing, standard_error = squared_error(1 + 0.6 * rng.standard_normal((2, 100_000)), np.ones(100_000))
    assert abs(nothing) < 4 * standard_error


def fit_with_gate(monkeypatch, Phi, y, noise_std, **options):
    monkeypatch.setattr("cofem.linalg.diagonals.gate.SMALL_ENTRIES", 0)
    return cofem.fit(Phi, y, noise_std=noise_std, method=cofem.CoFEM(), rng=0, **options)


@pytest.mark.parametrize("case", [dct_case(D=2048), dct_case(D=2048, f=2)], ids=["f=4", "f=2"])
def test_gate_keeps_the_fast_estimator_on_incoherent_dictionaries(monkeypatch, case):
    post = fit_with_gate(monkeypatch, case.Phi, case.y, case.noise_std)
    assert set(post.history["diagonal"]) == {"self_consistent"}
    assert "self_consistent" in str(post.status)
    checked = np.isfinite(post.history["diagonal_error"])
    assert checked.any()
    assert case.nrmse(post.mean) < 2.5


@pytest.mark.parametrize(
    ("coupled", "medium", "instead"),
    [(True, 2**23, "clusters"), (True, 0, "clusters"), (False, 2**23, "exact"), (False, 0, "corrected")],
)
def test_gate_leaves_the_fast_estimator_on_a_dictionary_that_breaks_it(monkeypatch, coupled, medium, instead):
    monkeypatch.setattr("cofem.linalg.diagonals.gate.MEDIUM_ENTRIES", medium)
    monkeypatch.setattr("cofem.linalg.diagonals.gate.has_couplings", lambda phi: coupled)
    monkeypatch.setattr("cofem.linalg.diagonals.gate.plainly_coupled", lambda phi: False)
    rng = np.random.default_rng(0)
    Phi = np.repeat(rng.standard_normal((256, 512)) / 16, 2, axis=1)
    z = np.zeros(1024)
    z[rng.choice(1024, 20, replace=False)] = 1
    y = Phi @ z + 0.01 * rng.standard_normal(256)
    post = fit_with_gate(monkeypatch, Phi, y, 0.01, max_iter=40)
    switch = int(np.argmax(post.history["diagonal"] == "check probes"))
    assert set(post.history["diagonal"][switch + 1 :]) == {instead}
    assert post.history["diagonal_error"][switch] > 0.05
    assert "because 'self_consistent' failed" in str(post.status)


def test_a_fit_that_was_misled_starts_over(monkeypatch):
    case = dct_case(D=2048)
    settings = {"noise_std": case.noise_std, "rng": 0, "max_iter": 12, "tol": 0.0}
    exact = cofem.fit(case.Phi, case.y, method=cofem.CoFEM(diagonal="exact"), **settings)
    # A gate that tolerates nothing fails at its first check, in step 2 where the mean is not found by sweeps.
    method = cofem.CoFEM(diagonal=Gate(tolerated=-100.0), sweeps=False)
    post = cofem.fit(case.Phi, case.y, method=method, **settings | {"max_iter": 14})
    assert post.history["diagonal"].tolist() == ["self_consistent", "check probes"] + 12 * ["exact"]
    np.testing.assert_array_equal(post.mean, exact.mean)
    np.testing.assert_array_equal(post.alpha, exact.alpha)


def test_gate_sees_errors_in_the_few_coefficients_that_are_not_zero():
    """Neighbours share a spike, and the fast estimate led to a worse optimum: NRMSE 12.6 % against 7.4 %."""
    case = problems.blur(2048, seed=0, width=2.5)
    post = cofem.fit(
        case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(), rng=0, max_iter=8, tol=0.0
    )
    assert post.history["diagonal"][-1] == "clusters"


def test_checks_that_leave_doubt_are_repeated_and_taken_together():
    verdict = _judged(Verdict(steps=2), error=0.1, standard_error=0.03, tolerated=0.05)
    assert (verdict.doubtful, verdict.next_check) == (1, 3)
    verdict = _judged(verdict._replace(steps=3), error=0.12, standard_error=0.04, tolerated=0.05)
    assert (verdict.error, verdict.standard_error) == pytest.approx((0.11, 0.025))
    assert (verdict.doubtful, verdict.next_check, verdict.checks) == (2, 4, 2)
    verdict = _judged(verdict._replace(steps=4), error=-0.1, standard_error=0.01, tolerated=0.05)
    assert (verdict.doubtful, verdict.next_check) == (0, 9)


def test_check_probes_grow_fewer_with_the_number_of_coefficients():
    def count(size):
        return n_check_probes(PosteriorContext(dictionary(Mask(np.arange(2), size)), np.ones(size), 1.0))

    assert [count(2**k) for k in (10, 14, 18)] == [8, 5, 2]


@pytest.mark.parametrize("name", DIAGONALS)
@pytest.mark.parametrize("n_tasks", [1, 3])
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_every_registered_estimator_gives_the_variances_of_a_fit(name, n_tasks, form):
    case = dct_case(D=256, noise_std=0.02)
    method = cofem.CoFEM(diagonal=name, form=form)
    noise = 0.02 * np.random.default_rng(0).standard_normal((case.y.size, n_tasks))
    y = case.y if n_tasks == 1 else (case.Phi @ case.z)[:, None] + noise
    prior = {} if n_tasks == 1 else {"prior": cofem.MultiTask()}
    post = cofem.fit(case.Phi, y, noise_std=0.02, method=method, rng=0, max_iter=40, **prior)
    assert case.nrmse(post.mean if n_tasks == 1 else post.mean.mean(axis=1)) < 15
    _, covariance = exact_posterior(case.Phi, case.y, post.alpha, 0.02)
    error = post.variance.reshape(256, n_tasks)[:, 0] / np.diagonal(covariance) - 1
    assert np.sqrt(np.mean(error**2)) < 0.5
    assert abs(np.mean(error)) < 0.15


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="diagonal"):
        cofem.CoFEM(diagonal="magic")


def test_gate_is_exact_for_small_dictionaries():
    case = dense_case(D=64, f=2)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(), max_iter=10, tol=0)
    assert set(post.history["diagonal"]) == {"exact"}
    _, covariance = exact_posterior(case.Phi, case.y, post.alpha, case.noise_std)
    assert np.allclose(post.variance, np.diagonal(covariance), rtol=5e-3)
    assert isinstance(Gate().fallback, Corrected)


# --- acceleration ----------------------------------------------------------------------------


def test_gradient_is_that_of_the_log_evidence():
    case = dense_case(D=24, f=2, noise_std=0.3)
    alpha = np.geomspace(0.1, 10, 24)
    mean, covariance = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    gradient = evidence_gradient(alpha, np.abs(mean) ** 2 + np.diagonal(covariance)) / 2
    for j in (0, 11, 23):
        up, down = alpha.copy(), alpha.copy()
        up[j] *= np.exp(1e-5)
        down[j] *= np.exp(-1e-5)
        difference = exact_log_evidence(case.Phi, case.y, up, 0.3) - exact_log_evidence(
            case.Phi, case.y, down, 0.3
        )
        assert gradient[j] == pytest.approx(difference / 2e-5, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", [dense_case(D=96, f=3, noise_std=0.05), dct_case(D=128, noise_std=0.02)])
def test_accelerated_evidence_never_falls_and_needs_fewer_steps(case):
    """With exact moments, every state of the accelerated path is at least as good as the one before."""
    exactly = dict(diagonal="exact", cg_tol=1e-6)
    values = {}
    for accelerate in (False, True):
        alphas = []
        cofem.fit(
            case.Phi,
            case.y,
            noise_std=case.noise_std,
            method=cofem.CoFEM(accelerate=accelerate, **exactly),
            max_iter=24,
            tol=0,
            callback=lambda s, alphas=alphas: alphas.append(s.alpha.copy()),
        )
        values[accelerate] = np.array(
            [exact_log_evidence(case.Phi, case.y, alpha, case.noise_std) for alpha in alphas]
        )
        assert (np.diff(values[accelerate]) > -1e-6 * np.abs(values[accelerate][1:])).all()
    assert values[True][-1] > values[False][-1]
    assert (values[True][4:] >= values[False][4:] - 1e-6).all()


def test_a_leap_that_lowers_the_evidence_is_found():
    # One coefficient, data z + noise: the evidence is largest at alpha = 1 / (y^2 - noise).
    y, noise = 2.0, 1.0

    def second_moment(alpha):
        variance = 1 / (alpha + 1 / noise)
        return (variance * y / noise) ** 2 + variance

    def log_evidence(alpha):
        return -0.5 * (np.log(1 / alpha + noise) + y**2 / (1 / alpha + noise))

    for start, end in ((3.0, 0.8), (3.0, 0.3), (0.4, 0.01), (0.3, 2.0)):
        alphas = np.array([start]), np.array([end])
        leap = Leap(*alphas)
        slopes = [leap.slope(evidence_gradient(alpha, second_moment(alpha))) for alpha in alphas]
        assert overshot(*slopes) == (log_evidence(end) < log_evidence(start))


def test_extrapolation_of_a_linear_iteration_is_the_textbook_one():
    steps = np.exp(np.array([[0.0, 0.0], [1.0, 2.0], [1.5, 3.0]]))  # the second step is half the first: a = 2
    assert np.allclose(np.log(extrapolate(*steps)), [2.0, 4.0])  # the fixed point of this linear iteration


def test_there_is_no_extrapolation_of_steps_that_turn_back_or_stand_still():
    assert extrapolate(*np.exp(np.array([[0.0], [1.0], [-0.5]]))) is None
    assert extrapolate(*np.ones((3, 1))) is None


def test_spectral_density_reproduces_moments():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((100, 400))
    gram = A.T @ A
    nodes, weights = spectral_density(lambda x: x @ gram, np.zeros(1), 400, steps=40, vectors=20, rng=rng)
    assert np.sum(weights) == pytest.approx(1.0)
    eigenvalues = np.linalg.eigvalsh(gram)
    for f in (lambda t: t, lambda t: t**2, lambda t: 1 / (1 + t)):
        assert np.sum(weights * f(nodes)) == pytest.approx(np.mean(f(eigenvalues)), rel=0.05)


@pytest.mark.parametrize("limit", [1e3, -1e3])
def test_the_last_resort_is_checked_at_the_end(monkeypatch, limit):
    # Nothing but products is known, and exact variances count as too dear: direct probes are left.
    for name in ("SMALL_ENTRIES", "MEDIUM_ENTRIES"):
        monkeypatch.setattr(gate, name, 0)
    monkeypatch.setattr(gate, "ROUGH", limit)
    case = problems.COHERENT["near duplicates"](400, 100)
    settings = {"method": cofem.CoFEM(diagonal=Gate(tolerated=1e-9)), "max_iter": 200, "tol": 0.05}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        post = cofem.fit(aslinearoperator(case.Phi), case.y, noise_std=case.noise_std, rng=0, **settings)
    assert "variances by 'corrected', because 'self_consistent' failed" in str(post.status)
    assert np.isfinite(post.history["diagonal_error"][-1])
    assert post.status.settled == (limit > 0)
    assert ("the last check found rough variances" in str(post.status)) == (limit < 0)
