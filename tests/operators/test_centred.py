import numpy as np
import pytest
import scipy.sparse

import cofem
from cofem.operators import DCT, Centred, Dense, Mask, Sparse, check_adjoint


@pytest.mark.parametrize("n", [60, 12])
@pytest.mark.parametrize("make", [Dense, lambda X: Sparse(scipy.sparse.csr_array(X))])
def test_entries_and_squares_are_those_of_the_centred_matrix(n, make):
    X = 5 + np.random.default_rng(1).standard_normal((n, 8))
    offset = np.random.default_rng(0).standard_normal(8)
    operator = Centred(make(X), offset)
    np.testing.assert_allclose(operator.to_dense(), X - offset, atol=1e-12)
    np.testing.assert_allclose(operator.abs2().to_dense(), (X - offset) ** 2, atol=1e-12)
    np.testing.assert_allclose(operator.column_norms(), np.linalg.norm(X - offset, axis=0), rtol=1e-12)
    np.testing.assert_allclose(Centred(make(X)).to_dense().sum(axis=0), 0, atol=1e-11)


def test_the_mean_of_complex_rows_is_subtracted():
    X = np.random.default_rng(0).standard_normal((2, 5, 3))
    X = X[0] + 1j * X[1]
    np.testing.assert_allclose(Centred(Dense(X)).to_dense(), X - X.mean(axis=0), atol=1e-12)


def test_a_fit_of_centred_data_is_one_with_an_intercept():
    rng = np.random.default_rng(0)
    X = 3 + rng.standard_normal((80, 20))
    y = 2 * X[:, 4] + 7 + 0.01 * rng.standard_normal(80)
    operator = Centred(Dense(X))
    post = cofem.fit(operator, y - y.mean(), noise_std=0.01)
    written_out = cofem.fit(X - X.mean(axis=0), y - y.mean(), noise_std=0.01)
    np.testing.assert_allclose(post.mean, written_out.mean, atol=1e-6)
    assert y.mean() - operator.offset @ post.mean == pytest.approx(7, abs=0.05)


def test_offsets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"offset must have shape \(4,\), got \(3,\)"):
        Centred(DCT(4), np.ones(3))
    with pytest.raises(TypeError, match="offset must be real"):
        Centred(DCT(4), 1j * np.ones(4))


def test_one_row_that_is_centred_is_zero() -> None:
    Phi = Centred(Mask([3], 8) @ DCT(8).T)
    check_adjoint(Phi)
    post = cofem.fit(Phi, [1.0], noise_std=0.1)
    assert np.abs(Phi @ post.mean).max() < 1e-12
    assert post.std.max() < 1e3
