import numpy as np
import pytest

from cofem.linalg.build import build_system, choose_form
from cofem.linalg.preconditioners import DiagonalPreconditioner, LargeColumns, large_columns
from cofem.linalg.system import PosteriorSystem
from cofem.operators import Dense

from .problems import complex_case, dct_case, dense_case, dictionary, exact_posterior


def make(case, form, spread=3.0, seed=0):
    phi = dictionary(case.Phi)
    rng = np.random.default_rng(seed)
    g = 10 ** rng.uniform(-spread, 0, phi.shape[1])
    noise_var, preconditioner = case.noise_std**2, None
    if form == "primal":
        preconditioner = DiagonalPreconditioner(1 / g, noise_var, phi.column_energy)
    if form == "dual with large columns":
        preconditioner, form = large_columns(phi, g, noise_var), "dual"
        assert (preconditioner is None) == (phi.stored_entries == 0)
    return PosteriorSystem(phi, 1 / g, noise_var, form, preconditioner), 1 / g


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
        guess = cold.x if form == "primal" else cold.dual
        warm = system.solve(case.y[None], tol=1e-5, max_iter=5000, guess=guess)
        assert warm.cg.iterations[0] <= 4
        assert cold.cg.iterations[0] > 4


def guess(case, alpha, form, factor):
    """Return a multiple of the solution for the data, as an initial guess."""
    mean, _ = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    if form == "primal":
        return factor * mean[None]
    Phi = Dense(case.Phi).array if isinstance(case.Phi, np.ndarray) else case.Phi.to_dense()
    return factor * ((case.y - Phi @ mean) / case.noise_std**2)[None]


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("name", CASES)
def test_a_guess_for_the_first_systems_leaves_the_others_alone(name, form):
    case = CASES[name]
    system, alpha = make(case, form)
    draws = np.random.default_rng(2).standard_normal((2, case.y.size))
    v = np.vstack([case.y, draws.astype(case.y.dtype)])
    wanted = [exact_posterior(case.Phi, row, alpha, case.noise_std)[0] for row in v]
    solution = system.solve(v, tol=1e-9, max_iter=5000, guess=guess(case, alpha, form, 0.9))
    assert np.allclose(solution.x, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("factor", [-1.0, 1e3])
@pytest.mark.parametrize("name", CASES)
def test_a_guess_far_worse_than_zero_is_not_used(name, factor, form):
    case = CASES[name]
    system, alpha = make(case, form)
    settings = {"tol": 1e-9, "max_iter": 2}
    cold = system.solve(case.y[None], **settings)
    warm = system.solve(case.y[None], **settings, guess=guess(case, alpha, form, factor))
    np.testing.assert_array_equal(warm.x, cold.x)


def test_dual_form_survives_float32_at_high_signal_to_noise():
    case = dense_case(D=256, f=4)
    phi32 = dictionary(case.Phi.astype(np.float32))
    alpha = np.ones(256)
    mean, _ = exact_posterior(case.Phi, case.y, alpha, case.noise_std)
    g = np.ones(256, np.float32)
    y = case.y.astype(np.float32)[None]
    system = PosteriorSystem(phi32, g, case.noise_std**2, "dual")
    error = system.solve(y, tol=0.02, max_iter=400).x[0] - mean
    assert np.sqrt(np.mean(error**2)) < 0.02
    assert choose_form(phi32, g, case.noise_std**2) == "dual"


def test_form_follows_structure_and_precision():
    single, double = (dictionary(dct_case(D=128).Phi, dtype) for dtype in (np.float32, np.float64))
    g = np.ones(128)
    assert choose_form(single, g, 0.005**2) == "primal"
    assert choose_form(single, g, 1e-10) == "dual"
    assert choose_form(double, g, 1e-10) == "primal"
    assert choose_form(dictionary(np.ones((6, 3))), np.ones(3), 1e-4) == "primal"
    assert choose_form(dictionary(np.ones((3, 6))), np.ones(6), 1e-4) == "dual"


def test_the_builder_chooses_form_and_preconditioner_together():
    dense, dct = dictionary(dense_case(D=256, f=4).Phi), dictionary(dct_case(D=256).Phi)
    alpha = np.where(np.arange(256) % 32, 1e4, 1.0)  # a few columns stand out

    def built(phi, **options):
        system = build_system(phi, alpha, 0.005**2, **options)
        return system.form, type(system.preconditioner)

    assert built(dct) == ("primal", DiagonalPreconditioner)
    assert built(dense) == built(dense, steps={}) == ("dual", LargeColumns)
    assert built(dense, preconditioner="none", form="dual") == ("dual", type(None))
    assert built(dense, preconditioner="jacobi", form="dual") == ("dual", type(None))
    assert built(dense, form="primal") == ("primal", DiagonalPreconditioner)
    assert built(dense, form="primal", preconditioner="none") == ("primal", type(None))
    # What the forms took before decides, where it is known.
    assert built(dense, steps={"primal": 3.0, "dual": 90.0})[0] == "primal"
    spectral = build_system(dense, alpha, 0.1, form="primal", preconditioner="spectral").preconditioner
    assert np.allclose(spectral.prepared().inverse, 1 / (dense.norm**2 + 0.1 * alpha))
