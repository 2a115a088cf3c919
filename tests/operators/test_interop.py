"""as_operator: what is taken, what is refused; other array libraries."""

from typing import Any

import numpy as np
import pylops
import pytest
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse.linalg import aslinearoperator

import cofem
from cofem.operators import (
    DCT,
    Dense,
    Diagonal,
    Identity,
    Mask,
    Operator,
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


class Compiled:
    """Like what numba compiles for contiguous vectors: a batch goes vector by vector, as in PyLops."""

    shape, dtype = (6, 9), np.dtype(float)

    def __init__(self, takes_batches: bool = True) -> None:
        self.matrix, self.takes_batches = np.random.default_rng(0).standard_normal((6, 9)), takes_batches
        self.batches: list[int] = []

    def product(self, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        if not x.flags.c_contiguous:
            raise TypeError("No matching definition for argument type(s) array(float64, 1d, A)")
        return matrix @ x

    def matvec(self, x: np.ndarray) -> np.ndarray:
        return self.product(self.matrix, x)

    def rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self.product(self.matrix.T, y)

    def matmat(self, x: np.ndarray) -> np.ndarray:
        if not self.takes_batches:
            raise ValueError("one vector at a time, please")
        self.batches.append(x.shape[1])
        return np.stack([self.matvec(column) for column in x.T], axis=1)

    def rmatmat(self, y: np.ndarray) -> np.ndarray:
        return np.stack([self.rmatvec(column) for column in y.T], axis=1)


@pytest.mark.parametrize("takes_batches", [True, False])
def test_compiled_operators_get_vectors_that_are_contiguous(takes_batches: bool) -> None:
    source = Compiled(takes_batches)
    Phi = as_operator(source)
    x, y = np.random.default_rng(1).standard_normal((4, 9)), np.random.default_rng(2).standard_normal((4, 6))
    for _ in range(2):
        np.testing.assert_allclose(Phi.forward(x), x @ source.matrix.T)
        np.testing.assert_allclose(Phi.adjoint(y), y @ source.matrix)
    assert source.batches == (2 * [4] if takes_batches else [])
    check_adjoint(Phi)


class Returns(scipy.sparse.linalg.LinearOperator):
    """SciPy's class with products that return whatever is wanted."""

    def __init__(self, forward: Any, adjoint: Any) -> None:
        self.forward, self.backward = forward, adjoint
        super().__init__(float, (2, 3))

    def _matvec(self, x: Any) -> Any:
        return self.forward(x)

    def _rmatvec(self, y: Any) -> Any:
        return self.backward(y)


MATRIX = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("forward", "adjoint", "words"),
    [
        (lambda x: None, lambda y: MATRIX.T @ y, r"^matvec of \S+Returns must return an array .* NoneType"),
        (lambda x: MATRIX @ x, lambda y: None, r"^rmatvec of \S+Returns must return an array .* NoneType"),
        (lambda x: "ab", lambda y: MATRIX.T @ y, r"^matvec of \S+Returns must return an array .* got str"),
    ],
)
def test_products_of_others_that_are_no_arrays_are_refused_by_name(forward, adjoint, words) -> None:
    with pytest.raises(TypeError, match=words):
        check_adjoint(Returns(forward, adjoint))


def test_products_of_others_may_be_lists_but_not_of_another_shape() -> None:
    check_adjoint(Returns(lambda x: (MATRIX @ x).tolist(), lambda y: (MATRIX.T @ y).tolist()))
    source = Compiled()
    source.matmat = source.matvec = lambda x: (source.matrix @ x)[:-1]
    with pytest.raises(ValueError, match=r"matvec of \S+Compiled must return shape \(6,\) .* got \(5,\)"):
        check_adjoint(source)


class Own(Operator):
    """An operator of one's own, with the products that it is given."""

    def __init__(self, forward: Any, adjoint: Any) -> None:
        super().__init__((2, 3), is_complex=True)
        self.products = forward, adjoint

    def _forward(self, x: Any) -> Any:
        return self.products[0](x)

    def _adjoint(self, y: Any) -> Any:
        return self.products[1](y)


@pytest.mark.parametrize("wrap", [lambda own: own, lambda own: Mask([1], 2) @ (2 * own)])
@pytest.mark.parametrize("result", [None, [1.0, 2.0]])
def test_own_products_that_are_no_arrays_are_refused_by_name(wrap, result) -> None:
    own = Own(lambda x: result, lambda y: y @ MATRIX)
    with pytest.raises(TypeError, match=rf"forward of <Own\(2, 3\), .* got .*{type(result).__name__}"):
        check_adjoint(wrap(own))
    with pytest.raises(TypeError, match=r"<Own\(2, 3\), shape"):
        cofem.fit(wrap(own), np.ones(wrap(own).shape[0]))


COMPLEX = MATRIX + 1j * MATRIX[::-1]


@pytest.mark.parametrize(
    ("adjoint", "advice"),
    [
        (lambda y: 2 * (y @ COMPLEX.conj()), "The adjoint is 2 times what it must be: divide it by that"),
        (lambda y: y @ COMPLEX, "The adjoint is the transpose: conjugate what it multiplies by"),
        (lambda y: (y @ COMPLEX.conj())[..., ::-1], "Compare .* in a small size"),
    ],
)
def test_a_false_adjoint_is_told_what_to_do(adjoint, advice) -> None:
    with pytest.raises(ValueError, match=advice):
        check_adjoint(Own(lambda x: x @ COMPLEX.T, adjoint), dtype=complex)


def test_adjoints_of_whatever_is_a_dictionary_are_checked() -> None:
    for Phi in (MATRIX, MATRIX.tolist(), scipy.sparse.csr_array(MATRIX), aslinearoperator(MATRIX)):
        check_adjoint(Phi)
    with pytest.raises(TypeError, match="Phi must be an array"):
        check_adjoint("matrix")
    with pytest.raises(ValueError, match="does not match it"):
        check_adjoint(Returns(lambda x: MATRIX @ x, lambda y: 2 * MATRIX.T @ y))
