import numpy as np
import pytest

from cofem.linalg.large_columns import large_columns
from cofem.linalg.system import PosteriorSystem, choose_form
from cofem.operators import Dense

from .problems import complex_case, dct_case, dense_case, exact_posterior


def make(case, form, spread=3.0, seed=0):
    phi = Dense(case.Phi) if isinstance(case.Phi, np.ndarray) else case.Phi
    rng = np.random.default_rng(seed)
    g = 10 ** rng.uniform(-spread, 0, phi.shape[1])
    curvature = phi.column_norms() ** 2
    large = None
    if form == "dual with large columns":
        large, form = large_columns(phi, g, curvature, case.noise_std**2), "dual"
        assert (large is None) == (phi.stored_entries == 0)
    return PosteriorSystem(phi, 1 / g, case.noise_std**2, form, curvature, large_columns=large), 1 / g


CASES = {
    "dense": dense_case(D=96, f=3, noise_std=0.5),
    "tall": dense_case(D=32, f=1, noise_std=0.1),
    "dct": dct_case(D=128),
    "complex": complex_case(D=64),
}


@pytest.mark.parametrize("form", ["primal", "dual", "dual with large columns"])
@pytest.mark.parametrize("name", CASES)
def test_all_forms_give_the_exact_mean_and_covariance_products(name, form):
    case = CASES[name]
    system, alpha = make(case, form)
    mean, covariance = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    b = np.random.default_rng(1).standard_normal((3, alpha.size)).astype(covariance.dtype)
    solution = system.solve(case.y[None], b.copy(), tol=1e-9, max_iter=5000)
    assert solution.cg.converged.all(), solution.cg.report()
    assert np.allclose(solution.x[0], mean, atol=1e-6 * np.abs(mean).max())
    assert np.allclose(solution.x[1:], b @ covariance.T, atol=1e-5 * np.abs(covariance).max())


@pytest.mark.parametrize("form", ["primal", "dual", "dual with large columns"])
@pytest.mark.parametrize("name", CASES)
def test_tolerance_bounds_the_error_in_the_posteriors_norm(name, form):
    case = CASES[name]
    system, alpha = make(case, form)
    mean, covariance = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    signs = np.sign(np.random.default_rng(0).standard_normal((8, alpha.size)))
    b = (signs / np.sqrt(np.diagonal(covariance).real)).astype(covariance.dtype)
    for tol in (0.1, 0.01):
        solution = system.solve(case.y[None], b.copy(), tol=tol, max_iter=5000)
        error = solution.x - np.vstack([mean, b @ covariance.T])
        energy = np.einsum("ij,ij->i", error.conj(), np.linalg.solve(covariance, error.T).T).real
        size = np.einsum("ij,jk,ik->i", b.conj(), covariance, b).real
        assert np.sqrt(energy[0] / case.y.size) <= tol
        assert np.sqrt(energy[1:] / size).max() <= 1.1 * tol


def test_warm_starts_cost_less_in_both_forms():
    case = CASES["dct"]
    for form in ("primal", "dual"):
        system, _ = make(case, form)
        cold = system.solve(case.y[None], tol=1e-6, max_iter=5000)
        dual0 = cold.dual
        warm = system.solve(case.y[None], tol=1e-5, max_iter=5000, x0=cold.x, dual0=dual0)
        assert warm.cg.iterations[0] <= 4
        assert cold.cg.iterations[0] > 4


def guess(case, alpha, form, factor):
    """Return a multiple of the solution for the data, as an initial guess."""
    mean, _ = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    if form == "primal":
        return {"x0": factor * mean[None]}
    Phi = Dense(case.Phi).array if isinstance(case.Phi, np.ndarray) else case.Phi.to_dense()
    return {"dual0": factor * ((case.y - Phi @ mean) / case.noise_std**2)[None]}


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("name", CASES)
def test_a_guess_for_the_first_columns_leaves_the_others_alone(name, form):
    case = CASES[name]
    system, alpha = make(case, form)
    draws = np.random.default_rng(2).standard_normal((2, case.y.size))
    v = np.vstack([case.y, draws.astype(case.y.dtype)])
    wanted = [exact_posterior(case.Phi, row, alpha, case.noise_std)[0] for row in v]
    solution = system.solve(v, tol=1e-9, max_iter=5000, **guess(case, alpha, form, 0.9))
    assert np.allclose(solution.x, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("factor", [-1.0, 1e3])
@pytest.mark.parametrize("name", CASES)
def test_a_guess_far_worse_than_zero_is_not_used(name, factor, form):
    case = CASES[name]
    system, alpha = make(case, form)
    settings = {"tol": 1e-9, "max_iter": 2}
    cold = system.solve(case.y[None], **settings)
    warm = system.solve(case.y[None], **settings, **guess(case, alpha, form, factor))
    np.testing.assert_array_equal(warm.x, cold.x)


def test_dual_form_survives_float32_at_high_signal_to_noise():
    case = dense_case(D=256, f=4)
    phi32 = Dense(case.Phi.astype(np.float32))
    alpha = np.ones(256)
    mean, _ = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    g = np.ones(256, np.float32)
    y = case.y.astype(np.float32)[None]
    system = PosteriorSystem(phi32, g, case.noise_std**2, "dual")
    error = system.solve(y, tol=0.02, max_iter=400).x[0] - mean
    assert np.sqrt(np.mean(error**2)) < 0.02
    assert choose_form(phi32, g, case.noise_std**2, np.float32) == "dual"


def test_form_follows_structure_and_precision():
    dct = dct_case(D=128).Phi
    g = np.ones(128)
    assert choose_form(dct, g, 0.005**2, np.float32) == "primal"
    assert choose_form(dct, g, 1e-10, np.float32) == "dual"
    assert choose_form(dct, g, 1e-10, np.float64) == "primal"
    assert choose_form(Dense(np.ones((6, 3))), np.ones(3), 1e-4, np.float64) == "primal"
    assert choose_form(Dense(np.ones((3, 6))), np.ones(6), 1e-4, np.float64) == "dual"
