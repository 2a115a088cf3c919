"""Fits to operators of other libraries, which say nothing about how their columns are coupled."""

import numpy as np
import pytest

import cofem
from cofem.experiments.problems import COHERENT
from cofem.linalg.preconditioners import Deflated, DiagonalPreconditioner, deflated
from cofem.linalg.preconditioners.banded import gram_bands
from cofem.linalg.preconditioners.deflation import gram_entries, sparse_gram
from cofem.operators import Convolution, Mask, as_operator

from .operators.test_combs import LOCAL, Silent, widening
from .problems import dictionary


def test_a_blur_of_another_library_is_fitted_as_ours():
    case = COHERENT["blur, width 2.5"](1024, 100)
    settings = {"noise_std": case.noise_std, "method": cofem.CoFEM(), "rng": 0}
    ours = cofem.fit(case.Phi, case.y, **settings)
    theirs = cofem.fit(Silent(case.Phi), case.y, **settings)
    assert "'clusters'" in str(theirs.status)
    assert theirs.history["applications"][-1] <= 1.1 * ours.history["applications"][-1]
    assert case.nrmse(theirs.mean) <= 1.05 * case.nrmse(ours.mean)


@pytest.mark.parametrize("stored", [True, False])
def test_a_blur_that_widens_is_solved_by_its_diagonals(stored):
    Phi = as_operator(widening(600))
    rng = np.random.default_rng(0)
    z = np.where(rng.random(600) < 0.02, rng.standard_normal(600), 0)
    y = Phi @ z + 0.01 * rng.standard_normal(600)
    post = cofem.fit(Phi if stored else Silent(Phi), y, noise_std=0.01, method=cofem.CoFEM(), rng=0)
    exact = cofem.fit(Phi, y, noise_std=0.01, method="em")
    assert "ran out of steps" not in str(post.status)
    assert post.history["applications"][-1] < 1000
    assert np.linalg.norm(post.mean - z) < 1.1 * np.linalg.norm(exact.mean - z)


def test_columns_that_reach_farther_than_those_looked_at_are_noticed():
    # Two of 900 columns see data far away: the diagonals near the main one are not all of the matrix.
    matrix = widening(900).tolil()
    matrix[700, 100] = matrix[650, 90] = 1.0
    phi = dictionary(Silent(as_operator(matrix.tocsr())))
    assert phi.circulant_gram() is not None
    assert gram_bands(phi) is None
    assert gram_bands(dictionary(Silent(as_operator(widening(900))))) is not None


def test_missing_data_do_not_hide_that_columns_are_shifts():
    rng = np.random.default_rng(100)
    Phi = Mask(np.flatnonzero(rng.random(1024) < 0.35), 1024) @ COHERENT["blur, width 2.5"](1024, 0).Phi
    norms = Phi.column_norms()
    assert norms.max() > 16 * norms.min()
    z = np.where(rng.random(1024) < 0.02, rng.standard_normal(1024), 0)
    y = Phi @ z + 0.01 * rng.standard_normal(Phi.shape[0])
    post = cofem.fit(Phi, y, noise_std=0.01, method=cofem.CoFEM(), rng=0)
    assert post.status.notes[0] == "variances are exact"
    assert post.history["applications"][-1] < 1000


@pytest.mark.parametrize("name", ["samples", "borders", "widening", "two axes, borders"])
def test_gram_matrices_of_some_columns_where_they_differ(name):
    Phi, dims, _ = LOCAL[name]
    for operator in (Phi, as_operator(Silent(Phi, dims))):
        chosen = np.sort(np.random.default_rng(0).choice(Phi.shape[1], 60, replace=False))
        chosen = np.union1d(chosen, chosen[:-1] + 1)
        found = sparse_gram(gram_entries(dictionary(operator)), chosen).toarray()
        columns = Phi.to_dense()[:, chosen]
        np.testing.assert_allclose(found, columns.conj().T @ columns, atol=1e-10)


def test_what_is_known_well_is_not_taken_out_where_couplings_are_missing():
    # A column sees data far away, next to which others were found: not all of their Gram matrix was measured.
    matrix = widening(900).tolil()
    matrix[700, 100] = 1.0
    alpha, found = np.full(900, 1e6), [100, 101, 699, 700]
    alpha[found] = 1e-3
    for columns, taken_out in ((widening(900), True), (matrix.tocsr(), False)):
        phi = dictionary(Silent(as_operator(columns)))
        inner = DiagonalPreconditioner(alpha, 1e-4, phi.column_energy)
        assert isinstance(deflated(inner, phi, alpha, 1e-4), Deflated) is taken_out


def test_an_echo_is_not_taken_for_a_nearer_one():
    # Its two spikes are 141 apart, which looks like 115 on a grid of 256 that repeats.
    kernel = np.zeros(142)
    kernel[[0, 141]] = 1.0, 0.9
    alpha = np.full(256, 1e6)
    alpha[[0, 141]] = 1e-3
    for mode, taken_out in (("linear", False), ("circular", True)):
        phi = dictionary(Convolution(kernel, 256, mode=mode, causal=True))
        inner = DiagonalPreconditioner(alpha, 1e-4, phi.column_energy)
        assert isinstance(deflated(inner, phi, alpha, 1e-4), Deflated) is taken_out
