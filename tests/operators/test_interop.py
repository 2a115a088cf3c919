"""as_operator: what is taken, what is refused; other array libraries."""

import numpy as np
import pylops
import pytest
import scipy.sparse
import scipy.sparse.linalg

import cofem
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
    Phi = as_operator(Counting())
    for _ in range(2):
        np.testing.assert_allclose(Phi.forward(x), x @ matrix.T)
    # The first time, one product is compared with that of its vector alone.
    assert calls == [(5, 8), (5, 1), (5, 8)]


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


class OneBuffer(scipy.sparse.linalg.LinearOperator):
    """As many operators in C: every product is written into one and the same array."""

    def __init__(self, matrix: np.ndarray) -> None:
        super().__init__(matrix.dtype, matrix.shape)
        self.matrix = matrix
        self.out, self.back = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[1])

    def _matvec(self, x):
        np.matmul(self.matrix, x.reshape(-1), out=self.out)
        return self.out

    def _rmatvec(self, y):
        np.matmul(self.matrix.T, y.reshape(-1), out=self.back)
        return self.back


def test_operators_that_return_one_buffer_in_every_call():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((30, 60))
    Phi = cofem.as_operator(OneBuffer(matrix))
    x, y = rng.standard_normal((4, 60)), rng.standard_normal((4, 30))
    np.testing.assert_allclose(Phi.forward(x), x @ matrix.T)
    np.testing.assert_allclose(Phi.adjoint(y), y @ matrix)
    np.testing.assert_allclose(Phi.to_dense(), matrix)
    first = Phi.forward(x[0])
    kept = first.copy()
    Phi.forward(x[1])
    np.testing.assert_array_equal(first, kept)
    z = np.zeros(60)
    z[[3, 17]] = 1, -2
    data = matrix @ z + 0.01 * rng.standard_normal(30)
    for method in ("em", "irls", "cofem", "seq"):
        post = cofem.fit(OneBuffer(matrix), data, noise_std=0.01, method=method, rng=0)
        assert np.linalg.norm(post.mean - z) < 0.05 * np.linalg.norm(z), method


def test_an_own_operator_that_returns_one_buffer_is_refused():
    class Careless(cofem.operators.Operator):
        def __init__(self):
            super().__init__((3, 3))
            self.out = np.zeros(3)

        def _forward(self, x):
            if x.ndim > 1 and x.shape[0] > 1:
                return 2 * x
            self.out[...] = 2 * x.reshape(-1)
            return self.out.reshape(x.shape)

        def _adjoint(self, y):
            return 2 * y

    with pytest.raises(ValueError, match="must return a new array in every call"):
        cofem.fit(Careless(), np.ones(3), noise_std=0.1)


@pytest.mark.parametrize("where", ["y", "Phi", "noise_std", "sample_weight"])
def test_masked_entries_are_refused(where):
    arrays = {"y": np.ones(4), "Phi": np.eye(4), "noise_std": np.full(4, 0.1), "sample_weight": np.ones(4)}
    settings = {"y": arrays["y"], "Phi": arrays["Phi"]}
    masked = np.ma.masked_array(arrays[where], mask=arrays[where] * 0)
    masked[1, ...] = np.ma.masked
    with pytest.raises(ValueError, match=f"{where} must not have masked entries"):
        cofem.fit(**settings | {where: masked})
    plain = np.ma.masked_array(np.array([5.0, 0, 0, 0]), mask=False)  # nothing is masked
    assert cofem.fit(np.eye(4), plain, noise_std=0.1).support().tolist() == [0]
