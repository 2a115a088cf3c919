"""What every operator must do, checked on every operator of the market."""

import numpy as np
import pytest
import scipy.sparse.linalg

from cofem.operators import Operator, as_operator, check_adjoint
from cofem.operators.adjoints import Adjoint, Conjugate

from .market import MARKET

SINGLE_PRECISION_TOLERANCE = 2e-5


@pytest.fixture(params=MARKET.values(), ids=MARKET.keys())
def operator(request: pytest.FixtureRequest) -> Operator:
    return request.param


@pytest.fixture
def dense(operator: Operator) -> np.ndarray:
    """The matrix, column by column, so that it does not depend on what the operator says of itself."""
    return np.stack([operator.forward(unit) for unit in np.eye(operator.shape[1])], axis=-1)


def draw(shape: tuple[int, ...], dtype: type = np.float64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def assert_close(actual: np.ndarray, desired: np.ndarray, operator: Operator) -> None:
    single = operator.precision == "float32" or actual.dtype in (np.float32, np.complex64)
    tolerance = SINGLE_PRECISION_TOLERANCE if single else 1e-11
    assert actual.shape == desired.shape
    np.testing.assert_allclose(
        actual, desired, rtol=tolerance, atol=tolerance * max(1, np.abs(desired).max())
    )


def test_adjoint_matches(operator: Operator) -> None:
    check_adjoint(operator)


def test_to_dense_is_the_matrix(operator: Operator, dense: np.ndarray) -> None:
    assert operator.to_dense().dtype == operator.dtype
    assert_close(operator.to_dense(), dense, operator)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_batches_are_multiplied_by_the_matrix(
    operator: Operator, dense: np.ndarray, batch: tuple[int, ...], dtype: type
) -> None:
    x = draw((*batch, operator.shape[1]), dtype)
    y = draw((*batch, operator.shape[0]), dtype)
    assert_close(operator.forward(x), x @ dense.T, operator)
    assert_close(operator.adjoint(y), y @ dense.conj(), operator)
    assert_close(operator.gram(x), x @ dense.T @ dense.conj(), operator)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_dual_gram_has_weights_between(operator: Operator, dense: np.ndarray, dtype: type) -> None:
    v, g = draw((2, 3, operator.shape[0]), dtype), np.abs(draw((operator.shape[1],)))
    assert_close(operator.dual_gram(v, g), v @ dense.conj() @ np.diag(g) @ dense.T, operator)
    assert_close(operator.dual_gram(v), v @ dense.conj() @ dense.T, operator)
    each = np.abs(draw((3, operator.shape[1])))
    assert_close(operator.dual_gram(v, each), ((v @ dense.conj()) * each) @ dense.T, operator)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_precision_is_kept(operator: Operator, dtype: type) -> None:
    wanted = np.result_type(dtype, operator.dtype if operator.precision else dtype)
    if operator.is_complex:
        wanted = np.result_type(wanted, np.complex64)
    x, y = draw((2, operator.shape[1]), dtype), draw((2, operator.shape[0]), dtype)
    assert operator.forward(x).dtype == wanted
    assert operator.adjoint(y).dtype == wanted
    assert operator.gram(x).dtype == wanted


def test_integers_and_booleans_are_taken_as_numbers(operator: Operator, dense: np.ndarray) -> None:
    assert_close(
        operator.forward(np.arange(operator.shape[1])), dense @ np.arange(operator.shape[1]), operator
    )
    assert_close(operator.adjoint(np.ones(operator.shape[0], dtype=bool)), dense.conj().sum(axis=0), operator)


def test_inputs_are_left_alone_and_may_be_read_only_or_strided(operator: Operator) -> None:
    for apply, length in (
        (operator.forward, operator.shape[1]),
        (operator.adjoint, operator.shape[0]),
        (operator.gram, operator.shape[1]),
    ):
        for dtype in (np.float64, np.complex128):
            strided = draw((2 * length, 6), dtype)[::2, ::3].T
            original = strided.copy()
            strided.setflags(write=False)
            result = apply(strided)
            np.testing.assert_array_equal(strided, original)
            np.testing.assert_array_equal(apply(original), apply(original.copy()))
            assert_close(result, apply(original), operator)
            assert not np.shares_memory(apply(original), original)


def test_transpose_adjoint_and_conjugate(operator: Operator, dense: np.ndarray) -> None:
    if not isinstance(operator, (Adjoint, Conjugate)):
        assert operator.H.H is operator
        assert operator.T.T is operator
        assert operator.conj().conj() is operator
    assert str(operator.H.H) == str(operator.T.T) == str(operator)
    for derived, matrix in (
        (operator.T, dense.T),
        (operator.H, dense.conj().T),
        (operator.conj(), dense.conj()),
        (operator.H.conj().H, dense.conj()),
    ):
        assert_close(derived.to_dense(), matrix, operator)
        check_adjoint(derived)


def test_a_step_down_the_gradient_is_what_it_says(operator: Operator, dense: np.ndarray) -> None:
    gram = dense.conj().T @ dense
    for dtype in (np.float64, np.complex128):
        x, shift = draw((2, operator.shape[1]), dtype), draw((2, operator.shape[1]), dtype)
        kept = x.copy()
        for gain in (0.5, 0.25):
            wanted = x - gain * x @ gram.T
            assert_close(operator.gradient_step(x, gain), wanted, operator)
            if np.iscomplexobj(x) or not operator.is_complex:
                assert_close(operator.gradient_step(x, gain, shift), wanted + shift, operator)
        assert np.array_equal(x, kept)
        assert_close(operator.gradient_step(x.copy(), gain, overwrite_x=True), wanted, operator)


def test_facts_are_true(operator: Operator, dense: np.ndarray) -> None:
    facts = operator.facts
    rows, columns = operator.shape
    if facts.row_gram is not None:
        assert_close(dense @ dense.conj().T, facts.row_gram * np.eye(rows), operator)
    if facts.column_gram is not None:
        assert_close(dense.conj().T @ dense, facts.column_gram * np.eye(columns), operator)
    if facts.diagonal:
        assert rows == columns
        assert_close(dense, np.diag(np.diag(dense)), operator)
    is_entry = np.abs(dense) > 1e-12
    assert not facts.one_per_row or is_entry.sum(axis=1).max() <= 1
    assert not facts.one_per_column or is_entry.sum(axis=0).max() <= 1
    assert operator.H.facts.column_gram == facts.row_gram


def test_norm_is_the_largest_singular_value(operator: Operator, dense: np.ndarray) -> None:
    assert operator.norm == pytest.approx(np.linalg.norm(dense, 2), rel=1e-3, abs=1e-12)


def test_column_norms(operator: Operator, dense: np.ndarray) -> None:
    norms = operator.column_norms()
    assert norms.dtype == np.float64
    assert operator.column_norms_exact
    assert_close(norms, np.linalg.norm(dense, axis=0), operator)


def test_abs2_has_the_squared_entries(operator: Operator, dense: np.ndarray) -> None:
    squares = operator.abs2()
    if squares is None:
        pytest.skip("no cheap squares")
    assert not squares.is_complex
    assert_close(squares.to_dense(), np.abs(dense) ** 2, operator)
    check_adjoint(squares)
    single = draw((2, operator.shape[1]), np.float32)
    assert squares.forward(single).dtype == np.dtype(operator.precision or np.float32)
    # Squares are operators in their own right.
    assert_close(squares.column_norms(), np.linalg.norm(np.abs(dense) ** 2, axis=0), operator)


def test_columns(operator: Operator, dense: np.ndarray) -> None:
    indices = [operator.shape[1] - 1, 0, 0]
    assert operator.columns(indices).dtype == operator.dtype
    assert_close(operator.columns(indices), dense.T[indices], operator)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_astype_casts_what_is_stored(operator: Operator, dense: np.ndarray, precision: str) -> None:
    cast = operator.astype(precision)
    assert cast.precision in (None, precision)
    assert (cast.precision is None) == (operator.precision is None)
    assert cast.forward(draw((operator.shape[1],), np.dtype(precision).type)).real.dtype == precision
    assert cast.shape == operator.shape
    assert cast.is_complex == operator.is_complex
    np.testing.assert_allclose(cast.to_dense(), dense, rtol=1e-5, atol=1e-5 * max(1, np.abs(dense).max()))


def test_matmul_follows_linear_algebra(operator: Operator, dense: np.ndarray) -> None:
    rows, columns = operator.shape
    for dtype in (np.float64, np.complex128):
        for tail in ((), (1,), (3,)):
            x, y = draw((columns, *tail), dtype), draw((rows, *tail), dtype)
            assert_close(operator @ x, dense @ x, operator)
            assert_close(y.T @ operator, y.T @ dense, operator)


def test_scipy_takes_the_operator(operator: Operator, dense: np.ndarray) -> None:
    rows, columns = operator.shape
    wrapped = scipy.sparse.linalg.aslinearoperator(operator)
    x, y = draw((columns,)), draw((rows,))
    assert_close(wrapped.matvec(x), dense @ x, operator)
    assert_close(wrapped.matvec(x[:, None]), (dense @ x)[:, None], operator)
    assert_close(wrapped.rmatvec(y), dense.conj().T @ y, operator)
    assert_close(wrapped.matmat(draw((columns, 2))), dense @ draw((columns, 2)), operator)
    assert_close(wrapped.rmatmat(draw((rows, 2))), dense.conj().T @ draw((rows, 2)), operator)
    assert_close(as_operator(wrapped).to_dense(), dense, operator)


def test_lsqr_runs_on_the_operator(operator: Operator, dense: np.ndarray) -> None:
    if operator.is_complex:
        pytest.skip("scipy's lsqr is for real problems")
    data = dense @ draw((operator.shape[1],))
    solution = scipy.sparse.linalg.lsqr(operator, data, atol=1e-12, btol=1e-12)[0]
    np.testing.assert_allclose(dense @ solution, data, atol=1e-4 * max(1, np.abs(data).max()))


def test_empty_batches_stay_empty(operator: Operator) -> None:
    assert operator.forward(np.zeros((0, operator.shape[1]))).shape == (0, operator.shape[0])


def test_repr_names_the_shape(operator: Operator) -> None:
    assert str(operator.shape) in repr(operator)


def test_wrong_lengths_are_refused_by_name(operator: Operator) -> None:
    rows, columns = operator.shape
    with pytest.raises(ValueError, match=f"x must have a last axis of length {columns}"):
        operator.forward(np.zeros(columns + 1))
    with pytest.raises(ValueError, match=f"y must have a last axis of length {rows}"):
        operator.adjoint(np.zeros((2, rows + 1)))
    with pytest.raises(ValueError, match="indices must lie in"):
        operator.columns([columns])
