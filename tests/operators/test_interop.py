"""as_operator: what is taken, what is refused; other array libraries."""

import numpy as np
import pylops
import pytest
import scipy.sparse
import scipy.sparse.linalg

from cofem.operators import (
    DCT,
    Dense,
    Diagonal,
    Identity,
    Sparse,
    Wavelet,
    as_operator,
    check_adjoint,
    vstack,
)

rng = np.random.default_rng(7)


def test_operators_are_returned_as_they_are() -> None:
    operator = DCT(4)
    assert as_operator(operator) is operator


def test_arrays_are_wrapped_without_a_copy() -> None:
    matrix = rng.standard_normal((3, 4))
    operator = as_operator(matrix)
    assert isinstance(operator, Dense)
    assert np.shares_memory(operator.to_dense(), matrix)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dia", "bsr", "dok"])
def test_sparse_matrices_of_every_format(form: str) -> None:
    matrix = scipy.sparse.random_array((6, 4), density=0.5, rng=1)
    for sparse in (matrix.asformat(form), scipy.sparse.coo_matrix(matrix).asformat(form)):
        operator = as_operator(sparse)
        assert isinstance(operator, Sparse)
        np.testing.assert_array_equal(operator.to_dense(), matrix.toarray())


def test_repeated_sparse_entries_are_summed_without_touching_the_callers_matrix() -> None:
    matrix = scipy.sparse.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    operator = Sparse(matrix)
    assert matrix.nnz == 2
    np.testing.assert_array_equal(operator.column_norms(), [0.0, 3.0, 0.0])


def test_a_batch_is_one_call_of_a_foreign_operator() -> None:
    calls = []
    matrix = rng.standard_normal((3, 5))

    class Counting(scipy.sparse.linalg.LinearOperator):
        def __init__(self) -> None:
            super().__init__(np.dtype(float), (3, 5))

        def _matmat(self, x: np.ndarray) -> np.ndarray:
            calls.append(x.shape)
            return matrix @ x

        def _rmatvec(self, y: np.ndarray) -> np.ndarray:
            return matrix.T @ y

    x = rng.standard_normal((2, 4, 5))
    np.testing.assert_allclose(as_operator(Counting()).forward(x), x @ matrix.T)
    assert calls == [(5, 8)]


def test_objects_that_only_look_like_operators_are_taken() -> None:
    matrix = rng.standard_normal((3, 5))

    class Duck:
        shape = (3, 5)

        def matvec(self, x: np.ndarray) -> np.ndarray:
            return matrix @ x

        def rmatvec(self, y: np.ndarray) -> np.ndarray:
            return matrix.T @ y

    check_adjoint(as_operator(Duck()))
    np.testing.assert_allclose(as_operator(Duck()).to_dense(), matrix)


def test_operators_without_an_adjoint_are_refused() -> None:
    one_way = scipy.sparse.linalg.LinearOperator((2, 3), matvec=lambda x: x[:2], dtype=float)
    with pytest.raises(TypeError, match=r"Phi must have an adjoint, got scipy.*without rmatvec"):
        as_operator(one_way)


def test_operators_linear_over_the_reals_only_are_refused() -> None:
    with pytest.raises(TypeError, match="linear over the complex numbers"):
        as_operator(pylops.Real(4, dtype=np.complex128))


def test_operators_that_are_complex_in_secret_are_refused() -> None:
    secret = scipy.sparse.linalg.LinearOperator(
        (2, 2), matvec=lambda x: 1j * x, rmatvec=lambda y: -1j * y, dtype=float
    )
    with pytest.raises(TypeError, match="returned complex numbers"):
        as_operator(secret).forward(np.ones(2))


@pytest.mark.parametrize("bad", [None, "Phi", 3.0, {"a": 1}, lambda x: x])
def test_everything_else_is_refused_by_name(bad: object) -> None:
    with pytest.raises(TypeError, match="Phi must be an array"):
        as_operator(bad)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.ones(3), ValueError, r"Phi must be a non-empty matrix of shape \(N, D\), got shape \(3,\)"),
        (np.ones((0, 3)), ValueError, "Phi must be a non-empty matrix"),
        (np.array([[1.0, np.nan]]), ValueError, "Phi must hold finite numbers"),
        (scipy.sparse.csr_array([[np.inf, 0.0]]), ValueError, "Phi must hold finite numbers"),
        ([["a", "b"]], TypeError, "Phi must hold numbers"),
    ],
)
def test_bad_matrices_are_refused_by_name(bad: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_operator(bad)


def test_scipy_svds_and_lsmr_take_operators() -> None:
    operator = vstack([DCT(16), Dense(rng.standard_normal((4, 16)))])
    largest = scipy.sparse.linalg.svds(operator, k=1, return_singular_vectors=False, rng=0)[0]
    assert operator.norm == pytest.approx(largest, rel=1e-3)
    x = rng.standard_normal(16)
    np.testing.assert_allclose(scipy.sparse.linalg.lsmr(operator, operator @ x)[0], x, atol=1e-4)


def test_other_array_libraries_pass_through_where_no_fft_is_needed() -> None:
    strict = pytest.importorskip("array_api_strict")
    matrix = rng.standard_normal((3, 4))
    operator = vstack(
        [2.0 * Dense(strict.asarray(matrix)) @ Identity(4), -Diagonal(strict.ones(4)) + Identity(4)]
    )
    x = rng.standard_normal((2, 4))
    result = operator.forward(strict.asarray(x))
    assert isinstance(result, type(strict.ones(1)))
    np.testing.assert_allclose(np.asarray(result)[:, :3], 2 * x @ matrix.T)
    back = operator.gram(strict.asarray(x))
    np.testing.assert_allclose(np.asarray(back), 4 * x @ matrix.T @ matrix)


def test_wavelets_say_that_they_need_numpy() -> None:
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match=r"Wavelet\(.*\) works on NumPy arrays only, got array_api_strict"):
        Wavelet(4, "haar").forward(strict.ones(4))


def test_pylops_takes_a_cofem_operator():
    Phi = DCT(8).T
    wrapped = pylops.LinearOperator(Phi)
    x = np.arange(8.0)
    np.testing.assert_allclose(wrapped @ x, Phi @ x)
    np.testing.assert_allclose(wrapped.H @ x, Phi.H @ x)
    np.testing.assert_allclose((pylops.Identity(8) @ wrapped) @ x, Phi @ x)
    solved = pylops.optimization.basic.lsqr(wrapped, Phi @ x, niter=20)[0]
    np.testing.assert_allclose(solved, x, atol=1e-6)
