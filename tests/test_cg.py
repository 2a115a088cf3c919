import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofem.linalg.cg import (
    StopRule,
    conjugate_gradients,
    frobenius_residual,
    relative_residual,
)
from cofem.linalg.preconditioners import DiagonalPreconditioner


def spd(n: int, condition: float = 100.0, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((n, n))
    if np.issubdtype(dtype, np.complexfloating):
        raw = raw + 1j * rng.standard_normal((n, n))
    Q, _ = np.linalg.qr(raw)
    return ((Q * np.geomspace(1, condition, n)) @ Q.conj().T).astype(dtype)


def apply(A):
    return lambda x: x @ A.T


def solve(apply, b, x0=None, measure=None, preconditioner=None, **settings):
    """Conjugate gradients on copies, from a right-hand side instead of a residual."""
    residual, start = (b.copy(), None) if x0 is None else (b - apply(x0), x0.copy())
    measure = relative_residual(b) if measure is None else measure
    stop = StopRule(measure=measure, **settings)
    return conjugate_gradients(apply, residual, stop, preconditioner=preconditioner, x0=start)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_solves_a_batch_and_keeps_dtype(dtype):
    A = spd(30, dtype=dtype)
    rng = np.random.default_rng(1)
    b = rng.standard_normal((5, 30)).astype(dtype)
    tol = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-11
    result = solve(apply(A), b, tol=tol, max_iter=200)
    assert result.converged.all()
    assert result.x.dtype == dtype
    assert np.linalg.norm(result.x @ A.T - b) <= 20 * tol * np.linalg.norm(b)


def test_systems_leave_the_batch_when_they_have_converged():
    A = spd(40)
    values, vectors = np.linalg.eigh(A)
    hard = np.random.default_rng(0).standard_normal(40)
    b = np.stack([vectors[:, 0], hard, vectors[:, 7]])
    sizes = []

    def counted(x):
        sizes.append(len(x))
        return x @ A.T

    result = solve(counted, b, tol=1e-8, max_iter=200)
    assert result.iterations[[0, 2]].tolist() == [1, 1]
    assert result.iterations[1] > 10
    assert sizes == [3] + [1] * (result.iterations[1] - 1)
    assert result.applications == sum(sizes)
    assert np.allclose(result.x @ A.T, b, atol=1e-6)
    assert np.allclose(result.x[0], vectors[:, 0] / values[0])


def test_each_system_has_its_own_tolerance():
    A = spd(60, 1e4)
    b = np.tile(np.random.default_rng(0).standard_normal(60), (2, 1))
    result = solve(apply(A), b, tol=np.array([1e-1, 1e-9]), max_iter=500)
    assert result.iterations[0] < result.iterations[1]
    assert result.error[0] <= 1e-1
    assert result.error[1] <= 1e-9


def test_zero_right_hand_side_and_exact_start_need_no_step():
    A = spd(10)
    b = np.random.default_rng(0).standard_normal((1, 10))
    zero = solve(apply(A), np.zeros((2, 10)), tol=1e-9, max_iter=5)
    assert zero.converged.all()
    assert zero.iterations.tolist() == [0, 0]
    assert not zero.x.any()
    exact = solve(apply(np.eye(10)), b, tol=1e-9, max_iter=5, x0=b)
    assert exact.iterations.tolist() == [0]
    assert np.array_equal(exact.x, b)
    mixed = solve(apply(A), np.vstack([b, 0 * b]), tol=1e-9, max_iter=50)
    assert mixed.converged.all()
    assert not mixed.x[1].any()


def test_warm_start_saves_steps():
    A = spd(50, 1e3)
    b = np.random.default_rng(0).standard_normal((1, 50))
    cold = solve(apply(A), b, tol=1e-8, max_iter=500)
    start = np.linalg.solve(A, b[0])[None] * (1 + 1e-6)
    warm = solve(apply(A), b, tol=1e-8, max_iter=500, x0=start)
    assert warm.iterations[0] < cold.iterations[0] / 2


def test_least_number_of_steps_moves_a_start_that_is_good_enough():
    A = spd(20)
    b = np.random.default_rng(0).standard_normal((1, 20))
    start = np.linalg.solve(A, b[0])[None] * (1 + 1e-3)
    assert np.array_equal(solve(apply(A), b, tol=0.1, max_iter=9, x0=start).x, start)
    moved = solve(apply(A), b, tol=0.1, max_iter=9, min_iter=1, x0=start)
    assert moved.iterations.tolist() == [1]
    assert not np.array_equal(moved.x, start)


def test_running_out_of_steps_is_reported():
    A = spd(50, 1e6)
    b = np.random.default_rng(0).standard_normal((2, 50))
    result = solve(apply(A), b, tol=1e-10, max_iter=5)
    assert not result.converged.any()
    assert result.iterations.tolist() == [5, 5]
    assert "ran out of steps after 5" in result.report()


def test_an_operator_that_turns_nan_leaves_the_last_finite_iterate():
    A = spd(20)
    calls = []

    def failing(x):
        calls.append(1)
        return x @ A.T if len(calls) < 4 else np.full_like(x, np.nan)

    b = np.random.default_rng(0).standard_normal((1, 20))
    result = solve(failing, b, tol=1e-12, max_iter=50)
    assert result.broken.all()
    assert not result.converged.any()
    assert np.isfinite(result.x).all()
    assert np.array_equal(result.x, solve(apply(A), b, tol=1e-12, max_iter=3).x)
    assert "broke down" in result.report()


def test_indefinite_matrix_breaks_down_instead_of_diverging():
    result = solve(apply(-np.eye(4)), np.ones((1, 4)), tol=1e-8, max_iter=10)
    assert result.broken.all()
    assert np.isfinite(result.x).all()


def test_preconditioner_reduces_steps():
    scale = np.geomspace(1, 1e5, 80)
    A = spd(80, 10) * np.sqrt(scale)[:, None] * np.sqrt(scale)
    b = np.random.default_rng(0).standard_normal((1, 80))
    plain = solve(apply(A), b, tol=1e-8, max_iter=2000)
    jacobi = DiagonalPreconditioner(scale, 1.0, 0.0).prepared()
    better = solve(apply(A), b, tol=1e-8, max_iter=2000, preconditioner=jacobi)
    assert better.iterations[0] < plain.iterations[0] / 3
    assert np.allclose(better.x @ A.T, b, atol=1e-5)


def test_frobenius_measure_is_joint():
    A = spd(40, 1e3)
    rng = np.random.default_rng(0)
    b = np.vstack([1e4 * rng.standard_normal(40), rng.standard_normal(40)])
    result = solve(apply(A), b, tol=1e-3, max_iter=500, measure=frobenius_residual(b))
    assert result.iterations[0] == result.iterations[1]
    residual = result.x @ A.T - b
    assert np.linalg.norm(residual) <= 1.001e-3 * np.linalg.norm(b)


def test_energy_is_that_of_the_iterate():
    A = spd(60, 1e3)
    b = np.random.default_rng(3).standard_normal((1, 60))
    seen = []

    def spy(progress):
        seen.append(float(progress.energy[0]))
        return np.array([1.0])

    solve(apply(A), b, tol=0.9, max_iter=20, measure=spy)
    for k in (1, 5, 10, 20):
        x = solve(apply(A), b, tol=0.0, max_iter=k).x[0]
        assert np.isclose(seen[k], x @ A @ x, rtol=1e-6)


@pytest.mark.parametrize("tol", [0.3, 1e-2, 1e-4])
def test_steps_at_which_the_measure_is_not_evaluated_cost_little(tol):
    # A measure relative to the solution is infinite at first and shrinks faster than the residual.
    A = spd(100, 1e3)
    b = np.random.default_rng(4).standard_normal((1, 100))
    exact = np.linalg.solve(A, b[0])
    evaluations = []

    def relative_to_solution(progress):
        evaluations.append(1)
        r = progress.residual
        left = np.einsum("ij,ij->i", r, np.linalg.solve(A, r.T).T)
        return np.where(progress.energy > 0, np.sqrt(left / np.maximum(progress.energy, 1e-300)), np.inf)

    result = solve(apply(A), b, tol=tol, max_iter=4000, measure=relative_to_solution)
    assert result.converged.all()
    errors = []
    for k in range(1, int(result.iterations[0])):
        x = solve(apply(A), b, tol=0.0, max_iter=k).x[0]
        errors.append(float(np.sqrt((x - exact) @ A @ (x - exact) / (x @ A @ x))))
    first = 1 + next((k for k, error in enumerate(errors) if error <= tol), len(errors))
    assert result.iterations[0] - first <= 4
    if tol < 0.1:  # with a loose tolerance, every step may be the last
        assert len(evaluations) < 0.7 * result.iterations[0]


@settings(max_examples=40)
@given(
    n=st.integers(1, 25),
    columns=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    log_condition=st.floats(0, 3),
)
def test_solves_any_well_conditioned_system(n, columns, seed, log_condition):
    A = spd(n, 10**log_condition, seed)
    b = np.random.default_rng(seed).standard_normal((columns, n))
    result = solve(apply(A), b, tol=1e-9, max_iter=50 * n + 100)
    assert result.converged.all()
    assert np.allclose(result.x @ A.T, b, atol=1e-6)
