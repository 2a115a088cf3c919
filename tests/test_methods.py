"""Every algorithm against the exact posterior, the evidence and each other."""

import warnings

import numpy as np
import pytest

import cofem
from cofem.inference.mackay import MacKay
from cofem.inference.registry import METHODS
from cofem.linalg import direct
from cofem.operators import Convolution, Identity, Mask, Wavelet

from .problems import complex_case, dct_case, dense_case, dictionary, exact_log_evidence, exact_posterior

SMALL = dense_case(D=60, f=2, density=0.06, noise_std=0.05, seed=3)


def path(case, method, steps=8, **options):
    """Snapshots (alpha, mean, variance) of the first steps."""
    seen = []

    def keep(state):
        seen.append((state.alpha.copy(), state.mean.copy(), state.variance.copy()))

    cofem.fit(
        case.Phi,
        case.y,
        noise_std=case.noise_std,
        method=method,
        max_iter=steps,
        tol=0,
        callback=keep,
        **options,
    )
    return seen


# --- the protocol, over the registry ---------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_recovers_an_easy_signal_and_fills_the_posterior(name):
    case = dense_case(D=80, f=1, density=0.05, noise_std=0.01)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=name, rng=0)
    assert post.method == name
    assert set(np.flatnonzero(case.z)) <= set(post.support())
    assert case.nrmse(post.mean) < 2
    assert post.mean.shape == post.variance.shape == post.alpha.shape == (80,)
    assert (post.variance > 0).all()
    assert (post.alpha > 0).all()
    lengths = {values.shape for values in post.history.values()}
    assert lengths == {(post.n_iter,)}
    assert {"iteration", "elapsed", "applications", "cg_iterations", "change", "noise_std"} <= set(
        post.history
    )
    assert (np.diff(post.history["applications"]) >= 0).all()
    assert post.history["noise_std"] == pytest.approx(0.01)
    assert post.converged, str(post.status)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_result_and_inputs_untouched(name):
    case = dense_case(D=40, f=2, density=0.05, noise_std=0.02)
    Phi, y = case.Phi.copy(), case.y.copy()
    first, second = (cofem.fit(Phi, y, noise_std=0.02, method=name, rng=7, max_iter=20) for _ in range(2))
    assert np.array_equal(first.mean, second.mean)
    assert np.array_equal(first.variance, second.variance)
    assert np.array_equal(Phi, case.Phi)
    assert np.array_equal(y, case.y)


@pytest.mark.parametrize("name", METHODS)
def test_degenerate_shapes_and_data(name):
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((6, 9))
    Phi[:, 4] = 0
    Phi[:, 5] = Phi[:, 6]
    for matrix, y in [
        (Phi, np.zeros(6)),
        (Phi, np.ones(6)),
        (np.array([[2.0]]), np.array([1.0])),
        (np.ones((5, 1)), np.arange(5.0)),
        (np.ones((1, 5)), np.array([3.0])),
        (np.zeros((3, 2)), np.ones(3)),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cofem.ConvergenceWarning)
            post = cofem.fit(matrix, y, noise_std=0.1, method=name, rng=0, max_iter=30)
        assert np.isfinite(post.mean).all()
        assert np.isfinite(post.variance).all()
        assert np.isfinite(post.alpha).all()
        if not y.any():
            assert not post.mean.any()


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.complex_data])
def test_complex_problems_recover(name):
    case = complex_case(D=64, f=1 if name == "vi" else 2)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=name, rng=0)
    assert np.iscomplexobj(post.mean)
    assert not np.iscomplexobj(post.variance)
    assert case.nrmse(post.mean) < 3
    assert set(np.flatnonzero(case.z)) <= set(post.support())


# --- EM and IRLS -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", [SMALL, complex_case(D=40)], ids=["real", "complex"])
def test_em_is_the_closed_form_at_every_step(case):
    alpha = np.full(case.z.size, 2.0)
    for got_alpha, got_mean, got_variance in path(case, "em", alpha_init=2.0):
        mean, covariance = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
        variance = np.diagonal(covariance).real
        assert np.allclose(got_alpha, alpha, rtol=1e-8)
        assert np.allclose(got_mean, mean, rtol=0, atol=1e-8)
        assert np.allclose(got_variance, variance, rtol=1e-8)
        alpha = 1 / (np.abs(mean) ** 2 + variance)


@pytest.mark.parametrize(
    "case", [SMALL, complex_case(D=40), dense_case(D=64, f=4)], ids=["low", "complex", "high"]
)
def test_irls_equals_em_step_by_step(case):
    for em, irls in zip(path(case, "em", 20), path(case, "irls", 20), strict=True):
        for a, b in zip(em, irls, strict=True):
            assert np.allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["em", "irls"])
@pytest.mark.parametrize("case", [SMALL, complex_case(D=40)], ids=["real", "complex"])
def test_evidence_is_exact_and_never_decreases(name, case):
    alphas = [alpha for alpha, _, _ in path(case, name, 25)]
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=name, max_iter=25, tol=0)
    evidence = post.history["log_evidence"]
    brute = [exact_log_evidence(case.Phi, case.y, alpha, case.noise_std) for alpha in alphas]
    assert np.allclose(evidence, brute, rtol=1e-9)
    assert (np.diff(evidence) >= -1e-8 * np.abs(evidence[1:])).all()


def test_em_and_irls_marginals_are_those_of_the_returned_alpha():
    for name in ("em", "irls"):
        post = cofem.fit(SMALL.Phi, SMALL.y, noise_std=SMALL.noise_std, method=name)
        mean, covariance = exact_posterior(SMALL.Phi, SMALL.y, post.alpha, SMALL.noise_std)
        assert np.allclose(post.mean, mean, atol=1e-8)
        assert np.allclose(post.variance, np.diagonal(covariance), rtol=1e-6)


# --- CoFEM -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_cofem_with_many_probes_and_tight_cg_follows_em(form):
    exact = path(SMALL, "em", 6)
    few, many = (
        path(
            SMALL,
            cofem.CoFEM(diagonal="rademacher", probes=K, cg_tol=1e-8, probe_tol=1e-8, form=form),
            6,
            rng=0,
        )
        for K in (50, 5000)
    )
    error = [
        [
            np.linalg.norm(got[1] - want[1]) / np.linalg.norm(want[1])
            for got, want in zip(run, exact, strict=True)
        ]
        for run in (few, many)
    ]
    assert error[0][0] < 1e-6  # the first mean has no probes in it
    assert max(error[1]) < 0.01
    assert max(error[1]) < 0.3 * max(error[0])


def test_cofem_variance_is_unbiased_within_its_standard_error():
    from cofem.linalg.diagonals.rademacher import estimate_diagonal
    from cofem.linalg.probes import draw_probes
    from cofem.linalg.system import PosteriorSystem

    alpha = np.geomspace(0.1, 100, 60)
    _, covariance = exact_posterior(SMALL.Phi, SMALL.y, alpha, SMALL.noise_std)
    exact = np.diagonal(covariance)
    system = PosteriorSystem(dictionary(SMALL.Phi), alpha, SMALL.noise_std**2, "dual")
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(100):
        p = draw_probes(20, 60, like=exact, rng=rng, distribution="rademacher")
        value, error = estimate_diagonal(p, system.solve(b=p, tol=1e-10, max_iter=500).x)
        scores.append((value - exact) / error)
    scores = np.array(scores)
    assert np.abs(np.mean(scores, axis=0)).max() < 5 / np.sqrt(100)
    assert 0.9 < np.std(scores) < 1.25


def literal_algorithm_1(Phi, y, beta, steps, K, rng, eps, U):
    """Algorithm 1 as printed, with a textbook CG on the matrix equation."""
    D = Phi.shape[1]
    alpha = np.ones(D)
    for _ in range(steps):
        A = beta * Phi.T @ Phi + np.diag(alpha)
        signs = np.unpackbits(rng.integers(0, 256, size=(K, D // 8), dtype=np.uint8), axis=1)
        P = (2.0 * signs - 1).T
        B = np.column_stack([P, beta * Phi.T @ y])
        X = np.zeros_like(B)
        R, Q = B.copy(), B.copy()
        for _ in range(U):
            if np.linalg.norm(R) <= eps * np.linalg.norm(B):
                break
            AQ = A @ Q
            rr = np.sum(R * R, axis=0)
            a = rr / np.sum(Q * AQ, axis=0)
            X, R = X + a * Q, R - a * AQ
            Q = R + np.sum(R * R, axis=0) / rr * Q
        mu, s = X[:, -1], np.mean(P * X[:, :-1], axis=1)
        s = np.maximum(s, 0)
        alpha_next = 1 / (mu**2 + s)
        used, alpha = alpha, alpha_next
    return used, mu, s


def test_paper_is_algorithm_1_to_the_letter():
    case = dct_case(D=128, noise_std=0.05)
    Phi = case.Phi.to_dense()
    settings = cofem.CoFEM.paper(probes=5, cg_iterations=60, cg_tol=1e-6)
    post = cofem.fit(case.Phi, case.y, noise_std=0.05, method=settings, max_iter=6, tol=0, rng=11)
    # y is handed over in the power-of-two units of the fit; alpha = 1 is in the user's units.
    alpha, mu, s = literal_algorithm_1(Phi, case.y, 0.05**-2, 6, 5, np.random.default_rng(11), 1e-6, 60)
    assert np.allclose(post.mean, mu, atol=1e-6)
    assert np.allclose(post.variance, s, atol=1e-6)
    assert np.allclose(post.alpha, alpha, rtol=1e-4)


def test_cg_out_of_steps_is_reported_with_advice(monkeypatch):
    monkeypatch.setattr(direct, "EXACT_SIDE", 0)  # or a factor would take over
    case = dense_case(D=128, f=4)
    with pytest.warns(cofem.ConvergenceWarning, match="raise cg_iterations"):
        post = cofem.fit(
            case.Phi, case.y, noise_std=0.005, method=cofem.CoFEM(cg_iterations=3), max_iter=4, rng=0
        )
    assert "ran out of steps" in str(post.status)
    assert np.isfinite(post.mean).all()


def few_steps(**settings):
    """Fit with so few CG steps that no mean is solved for."""
    case = dense_case(D=128, f=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        return case, cofem.fit(
            case.Phi, case.y, noise_std=0.005, method=cofem.CoFEM(cg_iterations=3), rng=0, **settings
        )


def test_a_mean_that_was_not_solved_for_has_not_converged(monkeypatch):
    monkeypatch.setattr(direct, "EXACT_SIDE", 0)
    # The tolerance is so loose that the fit stops at once.
    _, post = few_steps(tol=0.5)
    assert post.n_iter < 100
    assert not post.converged
    assert "the last mean: conjugate gradients ran out of steps" in post.status.message


@pytest.mark.parametrize("prior", [None, cofem.MultiTask()])
def test_small_systems_that_cg_does_not_solve_are_factored(prior):
    case, post = few_steps(prior=prior)
    assert post.converged
    assert "the systems were factored" in str(post.status)
    mean, covariance = exact_posterior(case.Phi, case.y, post.alpha, 0.005)
    np.testing.assert_allclose(post.mean, mean, atol=1e-6 * np.abs(mean).max())
    np.testing.assert_allclose(post.variance, np.diagonal(covariance), rtol=0.01)


# --- the paper's settings --------------------------------------------------------------------


@pytest.mark.parametrize("f", [pytest.param(2, marks=pytest.mark.nightly), 4])
@pytest.mark.parametrize("make", [dense_case, dct_case])
def test_em_irls_and_cofem_agree_on_the_papers_problems(make, f):
    case = make(D=1024, f=f)
    errors = {}
    for label, method, dtype in [
        ("em", "em", np.float64),
        ("irls", "irls", np.float64),
        ("cofem", cofem.CoFEM(accelerate=False), np.float64),
        ("cofem32", cofem.CoFEM(accelerate=False), np.float32),
        ("probes", cofem.CoFEM(diagonal="rademacher"), np.float64),
    ]:
        Phi = case.Phi.astype(dtype)
        y = case.y.astype(dtype)
        post = cofem.fit(Phi, y, noise_std=case.noise_std, method=method, max_iter=40, tol=0, rng=0)
        assert post.mean.dtype == dtype
        errors[label] = case.nrmse(post.mean)
    assert errors["em"] < 3
    assert errors["irls"] == pytest.approx(errors["em"], rel=1e-4)
    assert errors["cofem"] == pytest.approx(errors["em"], rel=0.15)
    assert errors["cofem32"] == pytest.approx(errors["em"], rel=0.15)
    assert errors["probes"] == pytest.approx(errors["em"], rel=0.35)


# --- AMP and VI ------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [2, 4])
def test_amp_ends_close_to_em_on_gaussian_dictionaries(f):
    for seed in range(3):
        case = dense_case(D=512, f=f, seed=seed)
        em, amp = (
            case.nrmse(cofem.fit(case.Phi, case.y, noise_std=0.005, method=m, max_iter=50).mean)
            for m in ("em", "amp")
        )
        assert amp <= 1.1 * em


@pytest.mark.parametrize(
    ("mean", "method"),
    [
        (0.5, cofem.AMP(min_damping=1.0)),
        (1.0, cofem.AMP(min_damping=1.0)),
        (5.0, "amp"),
        (10.0, "amp"),
        (50.0, "amp"),
    ],
)
def test_amp_reports_divergence_on_a_dictionary_with_non_zero_mean(mean, method):
    case = dense_case(D=512, f=4, mean=mean)
    with pytest.warns(cofem.ConvergenceWarning, match="AMP diverged"):
        post = cofem.fit(case.Phi, case.y, noise_std=0.005, method=method, max_iter=50)
    assert post.status.code is cofem.StatusCode.DIVERGED
    assert not post.converged
    assert "cofem" in post.status.message
    assert np.isfinite(post.mean).all()
    assert np.linalg.norm(post.mean) <= 3 * np.linalg.norm(case.z)


AMP_IS_WRONG = {
    "identity": lambda rng: Identity(128),
    "wavelets": lambda rng: Mask(np.sort(rng.choice(128, 64, replace=False)), 128) @ Wavelet(128).T,
    "blur": lambda rng: Convolution([0.2, 1.0, 0.2], 128),
}


@pytest.mark.parametrize("name", AMP_IS_WRONG)
@pytest.mark.parametrize("all_exact", [2048, 0])
def test_amp_says_where_its_messages_do_not_have_the_posteriors_variances(name, all_exact, monkeypatch):
    monkeypatch.setattr(
        "cofem.inference.amp.ALL_EXACT", all_exact
    )  # some of them are looked at in large ones
    rng = np.random.default_rng(1)
    Phi, z = AMP_IS_WRONG[name](rng), np.zeros(128)
    z[rng.choice(128, 10, replace=False)] = rng.standard_normal(10)
    y = Phi @ z + 0.3 * rng.standard_normal(Phi.shape[0])
    post = cofem.fit(Phi, y, noise_std=0.3, method="amp", rng=0)
    assert not post.converged
    assert any("off by a factor of" in text for text in post.status.warnings)
    if all_exact:
        A = Phi.to_dense()
        exact = np.linalg.inv(A.T @ A / 0.3**2 + np.diag(post.alpha))
        np.testing.assert_allclose(post.variance, np.diag(exact), rtol=1e-6)


def test_damping_saves_amp_from_a_small_mean():
    case = dense_case(D=512, f=4, mean=0.5)
    post = cofem.fit(case.Phi, case.y, noise_std=0.005, method="amp")
    assert post.converged
    assert case.nrmse(post.mean) < 0.2


@pytest.mark.parametrize("seed", [12, 13])
def test_vi_does_not_stop_on_a_plateau(seed):
    rng = np.random.default_rng(seed)
    Phi, z = Mask(np.sort(rng.choice(128, 64, replace=False)), 128) @ Wavelet(128, "db4").T, np.zeros(128)
    z[rng.choice(128, 10, replace=False)] = rng.standard_normal(10)
    y = Phi @ z + 0.01 * rng.standard_normal(64)
    post = cofem.fit(Phi, y, noise_std=0.01, method="vi")
    whole = cofem.fit(Phi, y, noise_std=0.01, method="vi", max_iter=4000, tol=0)
    assert post.status.settled
    assert np.linalg.norm(post.mean - whole.mean) < 0.01 * np.linalg.norm(whole.mean)


@pytest.mark.parametrize("f", [4, 6])
def test_vi_is_worse_than_em_when_undersampled(f):
    case = dense_case(D=512, f=f)
    em, vi = (case.nrmse(cofem.fit(case.Phi, case.y, noise_std=0.005, method=m).mean) for m in ("em", "vi"))
    assert vi > 5 * em


def test_vi_ends_at_the_diagonal_posterior_of_its_bound():
    case = dense_case(D=60, f=1, noise_std=0.1)
    post = cofem.fit(case.Phi, case.y, noise_std=0.1, method="vi", max_iter=20_000, tol=1e-10)
    T = 1.01 * np.linalg.norm(case.Phi, 2) ** 2 / 0.1**2
    variance = 1 / (T + post.alpha)
    pull = case.Phi.T @ (case.y - case.Phi @ post.mean) / 0.1**2 + T * post.mean
    assert np.allclose(post.variance, variance, rtol=5e-3)  # the norm is an estimate
    assert np.allclose(post.mean, variance * pull, atol=1e-5)


# --- Seq -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [SMALL, dct_case(D=96, noise_std=0.02), dense_case(D=128, f=2)])
def test_seq_evidence_is_exact_and_never_decreases(case):
    alphas = []
    post = cofem.fit(
        case.Phi,
        case.y,
        noise_std=case.noise_std,
        method="seq",
        callback=lambda s: alphas.append(s.alpha.copy()),
    )
    evidence = post.history["log_evidence"]
    assert post.converged
    assert (np.diff(evidence) >= -1e-7 * np.abs(evidence[1:])).all()
    for k in (0, len(alphas) // 2, -2, -1):
        brute = exact_log_evidence(case.Phi, case.y, alphas[k], case.noise_std)
        assert evidence[k] == pytest.approx(brute, rel=1e-6)
    mean, covariance = exact_posterior(case.Phi, case.y, post.alpha, case.noise_std)
    assert np.allclose(post.mean, mean, atol=1e-8)
    assert np.allclose(post.variance, np.diagonal(covariance), rtol=1e-6)


def test_seq_ends_where_no_single_change_raises_the_evidence():
    case = SMALL
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.Seq(min_gain=1e-8))
    best = exact_log_evidence(case.Phi, case.y, post.alpha, case.noise_std)
    for j in range(60):
        for factor in (0.5, 0.9, 1.1, 2.0, 1e-12):
            alpha = post.alpha.copy()
            alpha[j] *= factor
            assert exact_log_evidence(case.Phi, case.y, alpha, case.noise_std) <= best + 1e-6


# --- invariance ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "dtype"),
    [(m, t) for m in ("em", "irls", "amp", "vi", "seq", "cofem") for t in (np.float64, np.float32)]
    # Plain CG on the unnormalised system needs float64.
    + [
        (cofem.CoFEM(diagonal="rademacher", cg_tol=1e-5, probe_tol=1e-5), np.float64),
        (cofem.CoFEM.paper(), np.float64),
    ],
)
def test_units_of_data_and_dictionary_do_not_matter(method, dtype):
    case = dense_case(D=128, f=2, noise_std=0.05)
    # Loose CG tolerances let rounding decide when a solve ends.
    rel = 0.06 if method == "cofem" else 0.02

    def solve(y_scale, phi_scale):
        Phi, y = (phi_scale * case.Phi).astype(dtype), (y_scale * case.y).astype(dtype)
        post = cofem.fit(
            Phi,
            y,
            noise_std=y_scale * 0.05,
            method=method,
            alpha_init=(phi_scale / y_scale) ** 2,
            rng=0,
            max_iter=30,
            tol=0,
        )
        return post.mean * (phi_scale / y_scale)

    reference = solve(1.0, 1.0)
    for y_scale, phi_scale in [(1e-6, 1), (1e6, 1), (1, 1e-3), (1, 1e3), (1e6, 1e-3)]:
        assert case.nrmse(solve(y_scale, phi_scale)) == pytest.approx(case.nrmse(reference), rel=rel)


def test_default_start_makes_column_scale_irrelevant():
    case = dense_case(D=128, f=2, noise_std=0.02)
    scale = 10 ** np.random.default_rng(0).uniform(-2, 2, 128)
    plain = cofem.fit(case.Phi, case.y, noise_std=0.02, method="em")
    scaled = cofem.fit(case.Phi * scale, case.y, noise_std=0.02, method="em")
    assert np.allclose(scaled.mean * scale, plain.mean, atol=1e-5)
    assert np.array_equal(scaled.support(), plain.support())


# --- the choice ------------------------------------------------------------------------------


def test_auto_says_what_it_picked_and_why():
    small = dense_case(D=64, f=2)
    post = cofem.fit(small.Phi, small.y, noise_std=0.005)
    assert post.method == "irls"
    assert "chose 'irls'" in str(post.status)
    tall = dense_case(D=32, f=1)
    assert cofem.fit(tall.Phi, tall.y, noise_std=0.005).method == "em"
    large = dct_case(D=4096)
    post = cofem.fit(large.Phi, large.y, noise_std=0.005, max_iter=2, rng=0)
    assert post.method == "cofem"
    assert "chose 'cofem'" in str(post.status)


def little_memory(monkeypatch):
    for module in ("cofem._memory", "cofem.inference.base"):
        monkeypatch.setattr(f"{module}.available_bytes", lambda: 100_000)
    monkeypatch.setattr("cofem._memory.LITTLE", 0)


@pytest.mark.parametrize("name", ["em", "irls", "amp"])
def test_methods_that_would_not_fit_in_memory_are_refused_at_the_door(name, monkeypatch):
    case = dense_case(D=256, f=2)
    little_memory(monkeypatch)
    with pytest.raises(ValueError, match=rf"method='{name}' needs .* only 100 kB .*; use .*'cofem'"):
        cofem.fit(case.Phi, case.y, noise_std=0.005, method=name)


def test_auto_stays_within_memory(monkeypatch):
    case = dense_case(D=256, f=2)
    little_memory(monkeypatch)
    assert cofem.fit(case.Phi, case.y, noise_std=0.005, max_iter=2, rng=0).method == "cofem"


# --- MacKay's update --------------------------------------------------------------------------


def test_the_update_of_mackay_ends_where_em_ends():
    case = dense_case(D=20, f=1, density=0.2, noise_std=0.05, seed=3)
    many = np.concatenate([case.Phi, case.Phi[::-1] + 0.5])
    y = many @ case.z + 0.05 * np.random.default_rng(0).standard_normal(40)
    options = dict(noise_std=0.05, max_iter=5000, tol=1e-10)
    quick, slow = (cofem.fit(many, y, method=method, **options) for method in (MacKay(), cofem.EM()))
    assert quick.n_iter < slow.n_iter
    np.testing.assert_allclose(quick.mean, slow.mean, atol=1e-3)


def test_the_update_of_mackay_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="independent prior built in"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.1, method=MacKay(), prior=cofem.Block(2))
    with pytest.raises(ValueError, match="independent prior built in"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.1, method=MacKay(), nonnegative=True)
    with pytest.raises(ValueError, match="real data only"):
        cofem.fit(SMALL.Phi + 0j, SMALL.y, noise_std=0.1, method=MacKay())
