"""Wavelets that Fourier coefficients are seen of: exact entries, a preconditioner, and fits."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cofem
from cofem.experiments import problems
from cofem.linalg.build import build_system
from cofem.linalg.diagonals import PosteriorContext
from cofem.linalg.diagonals.gate import Gate, groups_differ
from cofem.linalg.preconditioners import LargeAtoms, large_atoms
from cofem.linalg.system import PosteriorSystem
from cofem.operators import DCT, FFT, Diagonal, Mask, Operator, Wavelet, WaveletFrame
from cofem.operators.dictionary import Dictionary

SEEN = np.array([0, 1, 2, 5, 9, 17, 30])

KNOWN: dict[str, Operator] = {
    "one axis": Mask(SEEN, 32) @ FFT(32) @ Wavelet(32, "haar").T,
    "long atoms": Mask(SEEN, 32) @ FFT(32) @ Wavelet(32, "db4", level=2).T,
    "all seen": FFT(16) @ Wavelet(16, "bior2.2", level=1).T,
    "two axes": Mask(SEEN, (8, 16)) @ FFT((8, 16)) @ Wavelet((8, 16), "db2").T,
    "multiple": 2j * (Mask(SEEN, 32) @ FFT(32) @ Wavelet(32, "db2").T),
    "rows repeat": Mask([3, 3, 0, 7], 32) @ FFT(32) @ Wavelet(32, "db2").T,
    "weights": Diagonal(np.arange(1.0, 8)) @ Mask(SEEN, 32) @ FFT(32) @ Wavelet(32, "db2").T,
    "scaled columns": Mask(SEEN, 32) @ FFT(32) @ Wavelet(32, "db2").T @ Diagonal(np.linspace(-1, 2, 32)),
}


def dictionary(Phi: Operator) -> Dictionary:
    return Dictionary(Phi, like=np.zeros(1, dtype=complex))


@pytest.mark.parametrize("name", KNOWN)
def test_entries_are_those_of_the_matrix(name: str) -> None:
    Phi = KNOWN[name]
    atoms, matrix = Phi.spectral_atoms(), Phi.to_dense()
    assert atoms is not None
    rng = np.random.default_rng(0)
    n_rows, n_columns = Phi.shape
    g, weights = rng.random(n_columns), rng.random(n_rows)
    squares = np.abs(matrix) ** 2
    assert_allclose(atoms.energies(g), squares @ g, atol=1e-12)
    assert_allclose(atoms.column_energies(weights), weights @ squares, atol=1e-12)
    chosen = np.sort(rng.choice(n_columns, 9, replace=False))
    some = matrix[:, chosen]
    assert_allclose(atoms.gram(chosen, weights), some.conj().T @ (weights[:, None] * some), atol=1e-12)


@pytest.mark.parametrize("name", KNOWN)
def test_norms_and_clusters_are_exact(name: str) -> None:
    Phi = KNOWN[name]
    matrix = Phi.to_dense()
    assert Phi.column_norms_exact
    assert_allclose(Phi.column_norms(), np.linalg.norm(matrix, axis=0), atol=1e-7)
    indices = np.random.default_rng(1).integers(0, Phi.shape[1], (5, 4))
    expected = np.einsum("nki,nkj->kij", matrix[:, indices].conj(), matrix[:, indices])
    assert_allclose(Phi.local_gram(indices), expected, atol=1e-12)


@pytest.mark.parametrize(
    "Phi",
    [
        DCT(8) @ Wavelet(8, "haar").T,
        FFT(8, real=True) @ Wavelet(8, "haar").T,
        FFT((2, 4)) @ Wavelet(8, "haar").T,  # another grid
        FFT(8) @ Wavelet(8, "haar"),
        FFT(8) @ WaveletFrame(8, "haar", level=1).T,
        Wavelet(8, "haar").T,
    ],
)
def test_others_have_none(Phi: Operator) -> None:
    assert Phi.spectral_atoms() is None


def variable_density(D: int = 1024, seed: int = 0) -> tuple[Dictionary, np.ndarray, np.ndarray, float]:
    """Return wavelets, data, and precisions of a fit that has found some coefficients."""
    case = problems.variable_density(D, seed)
    rng = np.random.default_rng(seed)
    alpha = 10 ** rng.uniform(5, 6, case.z.size)
    alpha[case.z != 0] = 1.0
    return dictionary(case.Phi), case.y, alpha, case.noise_std**2


def test_the_preconditioner_inverts_what_it_stands_for() -> None:
    phi, _, alpha, noise_var = variable_density(256)
    found = large_atoms(phi, 1 / alpha, noise_var)
    assert found is not None
    matrix, chosen = phi.to_dense(), found.chosen
    some = matrix[:, chosen]
    P = np.diag(found.tau) + some @ np.diag(1 / alpha[chosen]) @ some.conj().T
    others = np.setdiff1d(np.arange(alpha.size), chosen)
    assert_allclose(found.tau, noise_var + np.abs(matrix[:, others]) ** 2 @ (1 / alpha[others]))
    r = np.random.default_rng(1).standard_normal((2, phi.shape[0])) + 0j
    out = np.empty_like(r)
    found.apply(r, out)
    assert_allclose(out @ P.T, r, atol=1e-9)


def test_it_takes_few_steps_and_solves_the_system() -> None:
    phi, y, alpha, noise_var = variable_density()
    system = build_system(phi, alpha, noise_var)
    assert isinstance(system.preconditioner, LargeAtoms)
    assert system.form == "dual"
    found = system.solve(y[None], tol=1e-5, max_iter=400)
    matrix = phi.to_dense()
    A = matrix.conj().T @ matrix / noise_var + np.diag(alpha)
    assert_allclose(found.x[0], np.linalg.solve(A, matrix.conj().T @ y / noise_var), atol=1e-5)
    before = PosteriorSystem(phi, alpha, noise_var, "dual").solve(y[None], tol=1e-5, max_iter=4000)
    assert found.cg.iterations.max() < 0.2 * before.cg.iterations.max()


def test_where_nothing_or_too_much_stands_out_it_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    phi, _, alpha, noise_var = variable_density()
    assert large_atoms(phi, np.full(alpha.size, 1e-9), noise_var) is None
    monkeypatch.setattr(sys.modules[LargeAtoms.__module__], "MOST_COLUMNS", 3)
    assert large_atoms(phi, 1 / alpha, noise_var) is None
    assert build_system(phi, alpha, noise_var, steps={}).form == "primal"


@pytest.mark.parametrize(("rows", "differ"), [(np.arange(20), True), (np.arange(64), False)])
def test_bands_that_the_data_see_unequally_are_not_left_to_one_number(rows: np.ndarray, differ: bool) -> None:
    assert groups_differ(dictionary(Mask(rows, 64) @ FFT(64) @ Wavelet(64, "haar").T)) is differ


def test_the_gate_begins_with_a_number_for_each_band() -> None:
    phi, _, alpha, noise_var = variable_density()
    context = PosteriorContext(phi, alpha, noise_var)
    verdict = Gate().init(context, np.random.default_rng(0))
    assert verdict.left_out == ("self_consistent",)


def test_a_fit_ends_where_exact_em_does() -> None:
    case = problems.variable_density(1024, 3)
    settings = {"noise_std": case.noise_std, "rng": 0}
    post = cofem.fit(case.Phi, case.y, method=cofem.CoFEM(), **settings)
    exact = cofem.fit(case.Phi, case.y, method=cofem.CoFEM(diagonal="exact"), **settings)
    assert post.converged
    assert "the data see some groups of columns better than others" in str(post.status)
    assert case.nrmse(post.mean) < 1.1 * case.nrmse(exact.mean)
    # What the gate sees is its own noise: one probe more or less, and no longer that of estimated norms.
    errors = post.history["diagonal_error"]
    assert np.nanmean(errors) < 0.05


def test_in_single_precision_too() -> None:
    case = problems.variable_density(1024, 3)
    settings = {"noise_std": case.noise_std, "rng": 0, "method": cofem.CoFEM()}
    single = cofem.fit(case.Phi, case.y.astype(np.complex64), **settings)
    double = cofem.fit(case.Phi, case.y, **settings)
    assert single.mean.dtype == np.complex64
    assert case.nrmse(single.mean) < 1.05 * case.nrmse(double.mean)
