"""The preconditioner of the dual system, against dense matrices."""

import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import cofem
from cofem.linalg.preconditioners.large_columns import large_columns, standing_out
from cofem.linalg.system import PosteriorSystem
from cofem.operators import DCT, Centred, Chunked, Dense, Diagonal, Mask, Sparse

from .problems import dictionary

#: The module itself: the package has a function of this name.
module = sys.modules[large_columns.__module__]


def inverse(preconditioner, size, dtype=np.float64):
    """Write out what the preconditioner does, as a matrix on column vectors."""
    units = np.eye(size, dtype=dtype)
    out = np.empty_like(units)
    preconditioner.apply(units, out)
    return out.T


def matrix_of(kind, rng, n, d):
    real = rng.standard_normal((n, d))
    return real + 1j * rng.standard_normal((n, d)) if kind == "complex" else real


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_it_inverts_what_it_says(kind):
    rng = np.random.default_rng(0)
    Phi = matrix_of(kind, rng, 20, 60)
    g = np.full(60, 1e-3)
    large = [3, 17, 41]
    g[large] = [5.0, 2.0, 9.0]
    energy = (np.abs(Phi) ** 2).sum(axis=0)
    found = large_columns(dictionary(Phi), g, 0.01)
    rest = np.setdiff1d(np.arange(60), large)
    tau = 0.01 + (g * energy)[rest].sum() / 20
    assert found.tau == pytest.approx(tau)
    wanted = tau * np.eye(20) + (Phi[:, large] * g[large]) @ Phi[:, large].conj().T
    assert np.allclose(inverse(found, 20, Phi.dtype), np.linalg.inv(wanted), rtol=1e-8, atol=1e-8)


def test_a_real_dictionary_may_have_complex_data():
    rng = np.random.default_rng(0)
    g = np.full(60, 1e-3)
    g[[3, 17]] = 5.0
    found = large_columns(dictionary(rng.standard_normal((20, 60))), g, 0.01)
    r = rng.standard_normal((2, 20)) + 1j * rng.standard_normal((2, 20))
    out = np.empty_like(r)
    found.apply(r, out)
    assert np.allclose(out, r @ inverse(found, 20).T)


@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 14),
    noise=st.floats(-14, 2),
    copies=st.booleans(),
)
def test_it_is_positive_definite_at_any_scale(seed, spread, noise, copies):
    """Conjugate gradients would break down otherwise."""
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((24, 40))
    if copies:
        Phi[:, 20:] = Phi[:, :20]
    # A few are live and the others gone, or nearly.
    g = 10.0 ** rng.uniform(0, 2, 40)
    g[rng.integers(1, 12) :] *= 10.0**-spread
    found = large_columns(dictionary(Phi), g, 10.0**noise)
    if found is None:
        return
    eigenvalues = np.linalg.eigvalsh(inverse(found, 24))
    assert eigenvalues.min() > 0
    assert eigenvalues.max() <= 1.001 / found.tau


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 60),
    rows=st.integers(1, 30),
    most=st.integers(0, 40),
    spread=st.floats(0, 8),
)
def test_columns_that_stand_out_are_above_what_the_others_add(seed, size, rows, most, spread):
    h = 10.0 ** np.random.default_rng(seed).uniform(-spread, 0, size)
    chosen, tau = standing_out(h, 1e-4, rows, most)
    rest = np.setdiff1d(np.arange(size), chosen)
    assert tau == pytest.approx(1e-4 + h[rest].sum() / rows)
    assert chosen.size <= most
    if chosen.size:
        assert h[chosen].min() > module.STANDS_OUT * tau
        assert rest.size == 0 or h[chosen].min() >= h[rest].max()
    if chosen.size < min(most, size - 1):
        assert h[rest].max() <= module.STANDS_OUT * tau


def spikes(D=1024, seed=0):
    """Precisions as late in a fit: 0.04 D coefficients live, the others nearly gone."""
    rng = np.random.default_rng(seed)
    Phi, g = rng.standard_normal((D // 4, D)), rng.uniform(0.5, 2, D) * 1e-6
    g[rng.choice(D, D // 25, replace=False)] = 1.0
    y = Phi @ (np.sqrt(g) * rng.standard_normal(D)) + 0.005 * rng.standard_normal(D // 4)
    return Dense(Phi), g, y


def test_it_saves_most_steps_and_leaves_the_solution():
    Phi, g, y = spikes()
    phi = dictionary(Phi)
    plain = PosteriorSystem(phi, 1 / g, 0.005**2)
    quick = PosteriorSystem(phi, 1 / g, 0.005**2, preconditioner=large_columns(phi, g, 0.005**2))
    slow, fast = (system.solve(y[None], tol=1e-6, max_iter=2000) for system in (plain, quick))
    assert fast.cg.converged.all()
    assert slow.cg.converged.all()
    assert fast.cg.iterations[0] * 4 < slow.cg.iterations[0]
    assert np.allclose(fast.x, slow.x, atol=1e-6)


def test_it_is_not_made_where_columns_cost_products_or_none_stand_out():
    Phi, g, _ = spikes(256)
    phi = dictionary(Phi)
    assert large_columns(phi, g, 0.005**2) is not None
    assert large_columns(phi, np.ones(256), 0.005**2) is None
    single = dictionary(Phi.astype(np.float32))
    assert large_columns(single, g.astype(np.float32), 0.005**2) is None
    transform = dictionary(Mask(np.arange(0, 256, 4), 256) @ DCT(256).T)
    assert large_columns(transform, g, 0.005**2) is None


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_fit_uses_it(kind, monkeypatch):
    Phi, _, y = spikes(512)
    wrapped = Phi if kind == "dense" else Sparse(scipy.sparse.csr_array(Phi.array))
    method = cofem.CoFEM(diagonal="self_consistent", sweeps=False)
    steps = {}
    for stands_out in (module.STANDS_OUT, np.inf):
        monkeypatch.setattr(module, "STANDS_OUT", stands_out)
        post = cofem.fit(wrapped, y, noise_std=0.005, method=method, rng=0, tol=0.0, max_iter=12)
        steps[stands_out] = post.history["cg_iterations"].sum()
    assert steps[1.0] * 2 < steps[np.inf]


MATRIX = np.random.default_rng(5).standard_normal((24, 96))
SPARSE = scipy.sparse.csr_array(MATRIX * (np.abs(MATRIX) > 1))


@pytest.mark.parametrize(
    ("operator", "entries"),
    [
        (Dense(MATRIX), MATRIX.size),
        (3 * Dense(MATRIX), MATRIX.size),
        (Dense(MATRIX + 1j).conj(), MATRIX.size),
        (Centred(Dense(MATRIX)), MATRIX.size),
        (Mask([2, 7, 11], 24) @ Dense(MATRIX), MATRIX.size),
        (Diagonal(np.arange(1.0, 25)) @ Dense(MATRIX) @ Diagonal(np.arange(96.0)), MATRIX.size),
        (Sparse(SPARSE), SPARSE.nnz),
        (Chunked(MATRIX, rows=5), MATRIX.size),
        (Dense(MATRIX) @ DCT(96), 0),
        (DCT(24) @ Dense(MATRIX), 0),
        (Centred(DCT(24)), 0),
    ],
    ids=str,
)
def test_what_is_stored_is_read(operator, entries, monkeypatch):
    assert operator.stored_entries == entries
    wanted = operator.to_dense().T[[1, 0]]
    if entries:
        monkeypatch.setattr("cofem.operators.entries.columns_by_application", None)  # not called
    assert np.allclose(operator.columns([1, 0]), wanted)


SETTINGS = {
    "weights": dict(sample_weight=np.linspace(0.5, 2, 128)),
    "several tasks": dict(prior=cofem.MultiTask()),
    "non-negative": dict(nonnegative=True),
}


@pytest.mark.parametrize("name", [*SETTINGS, "complex data", "complex"])
def test_fits_with_it_end_where_those_without_do(name):
    Phi, _, y = spikes(512)
    Phi = Phi.array
    if name == "several tasks":
        y = np.column_stack([y, 2 * y])
    elif name in ("complex data", "complex"):
        y = y * np.exp(0.5j)
        Phi = Phi * np.exp(1j * np.arange(512)) if name == "complex" else Phi
    posts = [
        cofem.fit(
            Phi,
            y,
            noise_std=0.005,
            method=cofem.CoFEM(
                diagonal="self_consistent", form="dual", cg_tol=1e-3, preconditioner=preconditioner
            ),
            rng=0,
            tol=0.0,
            max_iter=8,
            **SETTINGS.get(name, {}),
        )
        for preconditioner in ("auto", "none")
    ]
    fast, slow = (post.history["cg_iterations"].sum() for post in posts)
    assert fast * 1.5 < slow
    means = [np.asarray(post.mean) for post in posts]
    assert np.linalg.norm(means[0] - means[1]) < 1e-3 * np.linalg.norm(means[1])


def test_samples_and_predictions_use_it(monkeypatch):
    Phi, _, y = spikes(512)
    post = cofem.fit(Phi, y, noise_std=0.005, method="cofem", rng=0)
    exact = post.covariance([3, 4])
    monkeypatch.setattr("cofem.posterior.solver.is_cheaper", lambda operator, count: False)
    steps = []
    solve = PosteriorSystem.solve

    def counted(self, *args, **named):
        solution = solve(self, *args, **named)
        steps.append(solution.cg.iterations.max())
        return solution

    monkeypatch.setattr(PosteriorSystem, "solve", counted)
    assert np.allclose(post.covariance([3, 4]), exact, rtol=1e-3, atol=1e-6 * np.abs(exact).max())
    with_it = max(steps)
    monkeypatch.setattr(module, "STANDS_OUT", np.inf)
    steps.clear()
    post.covariance([3, 4])
    assert with_it * 2 < max(steps)
