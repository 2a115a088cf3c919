"""What operators answer about themselves, checked on every operator of the market and on its relatives."""

import copy
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse.linalg

from cofem._arrays import to_numpy
from cofem.operators import (
    DCT,
    NUFFT,
    BlockDCT,
    Centred,
    Chunked,
    Convolution,
    Dense,
    Diagonal,
    Distributed,
    Mask,
    Operator,
    Sparse,
    as_operator,
    chunked,
    entries,
    vstack,
)

from .market import MARKET
from .test_market import assert_close, draw

#: Operators that SciPy was given only a product with a vector for.
ONE_BY_ONE = {
    "SciPy operator",
    "SciPy operator float32",
    "SciPy operator complex",
    "matrix of SciPy's in a product",
}


def matrix_of(operator: Operator) -> np.ndarray:
    """The matrix, column by column, so that it does not depend on what the operator says of itself."""
    return np.stack([operator.forward(unit) for unit in np.eye(operator.shape[1])], axis=-1)


@pytest.fixture(params=MARKET.values(), ids=MARKET.keys())
def operator(request: pytest.FixtureRequest) -> Operator:
    return request.param


@pytest.fixture
def dense(operator: Operator) -> np.ndarray:
    return matrix_of(operator)


def relatives(operator: Operator, dense: np.ndarray) -> Iterator[tuple[Operator, np.ndarray]]:
    """Yield operators that are made of one, each with its matrix."""
    rows, columns = operator.shape
    scale = draw((columns,), np.complex128)
    yield operator, dense
    yield operator.H, dense.conj().T
    yield operator.T, dense.T
    yield operator.conj(), dense.conj()
    yield -2.0 * operator, -2.0 * dense
    yield (1 - 2j) * operator, (1 - 2j) * dense
    yield operator @ Diagonal(scale), dense * scale
    yield Mask([rows - 1, 0], rows) @ operator, dense[[rows - 1, 0]]
    yield DCT(rows) @ operator, DCT(rows).to_dense() @ dense
    yield vstack([operator, operator * 2]), np.concatenate([dense, 2 * dense])
    yield operator + operator, 2 * dense
    yield Centred(operator, np.ones(columns)), dense - 1


def some(length: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Places in any order; some occur more than once."""
    return np.random.default_rng(length).integers(length, size=shape)


def test_rows(operator: Operator, dense: np.ndarray) -> None:
    for relative, matrix in relatives(operator, dense):
        indices = some(relative.shape[0], 4)
        found = relative.rows(indices)
        assert found.dtype == relative.dtype
        assert_close(found, matrix[indices], operator)
        assert_close(
            relative.columns(some(relative.shape[1], 3)), matrix.T[some(relative.shape[1], 3)], operator
        )


def test_take_rows(operator: Operator, dense: np.ndarray) -> None:
    for relative, matrix in relatives(operator, dense):
        indices = some(relative.shape[0], 4)
        taken = relative.take_rows(indices)
        assert taken.precision == relative.precision
        assert_close(taken.to_dense(), matrix[indices], operator)


def test_rows_are_taken_from_matrices_and_masks_themselves(operator: Operator) -> None:
    taken = operator.take_rows([0])
    factors = getattr(operator, "factors", (operator,))
    if isinstance(operator, Dense | Sparse | NUFFT):
        assert type(taken) is type(operator)
    elif isinstance(factors[0], Mask):
        left = getattr(taken, "factors", (taken,))
        assert isinstance(left[0], Mask)
        assert left[1:] == factors[1:]
    else:
        assert str(taken) == str(Mask([0], operator.shape[0]) @ operator)


@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (3, 5)])
def test_local_gram(operator: Operator, dense: np.ndarray, shape: tuple[int, int]) -> None:
    for relative, matrix in relatives(operator, dense):
        indices = some(relative.shape[1], shape)
        gram = matrix.conj().T @ matrix
        found = relative.local_gram(indices)
        assert found.dtype == relative.dtype
        assert_close(found, gram[indices[:, :, None], indices[:, None, :]], operator)


def test_local_gram_of_mixed_precision_has_the_type_of_the_whole() -> None:
    single = Dense(draw((3, 4), np.float32))
    for operator in (vstack([single, DCT(4), Dense(draw((2, 4)))]), single @ Diagonal(draw((4,)))):
        gram = operator.gram(np.eye(4))
        found = operator.local_gram([[0, 3, 2]])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found[0], gram[np.ix_([0, 3, 2], [0, 3, 2])], rtol=1e-5, atol=1e-5)


def test_local_gram_in_many_blocks(
    operator: Operator, dense: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = some(operator.shape[1], (7, 2))
    wanted = operator.local_gram(indices)
    for module in (entries, chunked):
        monkeypatch.setattr(module, "vectors_at_once", lambda *sizes: 2)
    assert_close(operator.local_gram(indices), wanted, operator)
    assert_close(operator.rows(some(operator.shape[0], 5)), dense[some(operator.shape[0], 5)], operator)


def test_a_stored_matrix_is_the_operator(operator: Operator, dense: np.ndarray) -> None:
    for relative, matrix in relatives(operator, dense):
        stored = relative.stored_matrix()
        multiple = getattr(relative, "operator", relative) if hasattr(relative, "scalar") else relative
        assert (stored is not None) == isinstance(multiple, Dense)
        if stored is not None:
            assert_close(stored.factor * stored.array, matrix, operator)
            assert np.shares_memory(stored.array, multiple.array)


def test_largest_entry_of_what_is_stored(operator: Operator, dense: np.ndarray) -> None:
    largest = operator.largest_entry()
    assert (largest is not None) == isinstance(operator, Dense | Sparse | Distributed)
    if largest is not None:
        assert largest == pytest.approx(max(np.abs(dense.real).max(), np.abs(dense.imag).max()), rel=1e-6)


@pytest.mark.parametrize("name", MARKET)
def test_takes_batches(name: str) -> None:
    for relative, _ in relatives(MARKET[name], matrix_of(MARKET[name])):
        assert relative.takes_batches == (name not in ONE_BY_ONE)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_scale_columns(operator: Operator, dense: np.ndarray, dtype: type) -> None:
    scale = draw((operator.shape[1],), dtype)
    scaled = operator.scale_columns(scale)
    assert isinstance(scaled, Dense) == isinstance(operator, Dense)
    assert_close(scaled.to_dense(), dense * scale.astype(np.result_type(dtype, np.float64)), operator)
    if isinstance(operator, Dense):
        assert scaled.precision == operator.precision


def test_subtract_row(operator: Operator, dense: np.ndarray) -> None:
    offset = draw((operator.shape[1],))
    less = operator.subtract_row(offset)
    assert isinstance(less, Dense if isinstance(operator, Dense) else Centred)
    assert_close(less.to_dense(), dense - offset, operator)
    assert less.precision == (operator.precision or "float64")
    if not operator.is_complex:
        with pytest.raises(TypeError, match="offset must be real for the real"):
            operator.subtract_row(1j * offset)


def test_bad_indices_and_rows_are_refused_by_name(operator: Operator) -> None:
    rows, columns = operator.shape
    for ask in (operator.rows, operator.take_rows):
        with pytest.raises(ValueError, match=rf"indices must lie in 0\.\.{rows - 1}"):
            ask([rows])
    for wrong in ([0], [[[0]]]):
        with pytest.raises(ValueError, match=r"indices must have shape \(K, b\)"):
            operator.local_gram(wrong)
    with pytest.raises(ValueError, match="indices must lie in"):
        operator.local_gram([[0, columns]])
    with pytest.raises(ValueError, match="scale must have shape"):
        operator.scale_columns(np.ones(columns + 1))
    with pytest.raises(ValueError, match="offset must have shape"):
        operator.subtract_row(np.ones((1, columns)))


def test_chunks_are_read_once_for_all_clusters_and_only_where_rows_are_wanted() -> None:
    reads = []

    class Counted(Chunked):
        def _chunk(self, rows: slice) -> np.ndarray:
            reads.append(rows.start)
            return super()._chunk(rows)

    operator = Counted(draw((9, 6)), rows=2)
    operator.local_gram(some(6, (50, 3)))
    assert reads == [0, 2, 4, 6, 8]
    reads.clear()
    operator.rows([7, 3, 6])
    assert reads == [2, 6]


def test_a_large_blur_answers_from_its_autocorrelation(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 2**18
    blur = Convolution(np.exp(-0.5 * np.arange(-4.0, 5.0) ** 2), n)
    monkeypatch.setattr(entries, "columns_by_application", None)  # not called
    neighbours = (np.arange(n)[:, None] + np.arange(-1, 2)) % n
    gram = blur.local_gram(neighbours)
    assert gram.shape == (n, 3, 3)
    column = np.convolve(blur.kernel, blur.kernel)[8:11]
    np.testing.assert_allclose(gram, np.broadcast_to(column[[[0, 1, 2], [1, 0, 1], [2, 1, 0]]], gram.shape))


# --- batches ------------------------------------------------------------------------------------------------


class Alone(scipy.sparse.linalg.LinearOperator):
    """Someone's own operator, without a product with a matrix."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(np.float64, (3, 3))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return 2 * x

    def _rmatvec(self, y: np.ndarray) -> np.ndarray:
        return 2 * y


def test_an_own_class_is_asked_once_and_only_when_someone_wants_to_know() -> None:
    source = Alone()
    operator = as_operator(source)
    before = source.calls
    assert not operator.takes_batches
    assert not operator.takes_batches
    assert source.calls - before == 2
    assert "matvec" not in vars(source)


def test_a_product_with_a_matrix_counts_however_it_is_given() -> None:
    class Together(Alone):
        def _matmat(self, x: np.ndarray) -> np.ndarray:
            return 2 * x

    class Disguised(Alone):
        def _matmat(self, x: np.ndarray) -> np.ndarray:
            return np.stack([self.matvec(column) for column in x.T], axis=1)

    assert as_operator(Together()).takes_batches
    assert not as_operator(Disguised()).takes_batches


def test_what_cannot_be_asked_is_assumed_to_take_batches() -> None:
    class Single(Alone):
        def __copy__(self) -> "Single":
            raise TypeError("there is only one")

    class Moody(Alone):
        asked = False

        def _matvec(self, x: np.ndarray) -> np.ndarray:
            raise RuntimeError("not now")

    assert as_operator(Single()).takes_batches
    assert as_operator(Moody()).takes_batches
    with pytest.raises(TypeError, match="only one"):
        copy.copy(Single())


# --- groups and old names -----------------------------------------------------------------------------------


def test_coefficients_of_a_block_transform_have_groups_where_they_are_columns() -> None:
    transform = BlockDCT((4, 6), 2)
    labels = np.array([[0, 1, 0, 1, 0, 1], [2, 3, 2, 3, 2, 3]] * 2).ravel()
    assert transform.groups is None
    np.testing.assert_array_equal(transform.row_groups, labels)
    np.testing.assert_array_equal(transform.T.groups, labels)
    np.testing.assert_array_equal((Mask([3, 8], 24) @ transform.T).groups, labels)


def test_the_old_name_of_device_array_still_answers() -> None:
    with pytest.warns(DeprecationWarning, match="now called device_array"):
        assert DCT(4).home is None
    with warnings.catch_warnings(action="error"):
        assert DCT(4).device_array is None


# --- other libraries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "float64", "complex128"])
def test_answers_of_operators_that_store_tensors(kind: str) -> None:
    torch = pytest.importorskip("torch")
    array, d = draw((5, 6), np.dtype(kind).type), draw((6,), np.dtype(kind).type)
    tensor = Dense(torch.asarray(array))
    pairs = [
        (tensor, Dense(array)),
        (Diagonal(torch.asarray(d)), Diagonal(d)),
        (2 * tensor @ Diagonal(torch.asarray(d)), 2 * Dense(array) @ Diagonal(d)),
        (DCT(6) @ Diagonal(torch.asarray(d)), DCT(6) @ Diagonal(d)),
        (vstack([tensor, DCT(6)]), vstack([Dense(array), DCT(6)])),
        (Convolution([1.0, 2.0], 6) @ Diagonal(torch.asarray(d)), Convolution([1.0, 2.0], 6) @ Diagonal(d)),
        (DCT(5) @ tensor, DCT(5) @ Dense(array)),
        (Mask([3, 0], 5) @ tensor, Mask([3, 0], 5) @ Dense(array)),
        (tensor.H, Dense(array).H),
        (Centred(tensor), Centred(Dense(array))),
    ]
    for ours, numpy in pairs:
        rows, columns = some(ours.shape[0], 3), some(ours.shape[1], (4, 2))
        for found, wanted in (
            (ours.rows(rows), numpy.rows(rows)),
            (ours.columns(columns[0]), numpy.columns(columns[0])),
            (ours.take_rows(rows).to_dense(), numpy.take_rows(rows).to_dense()),
            (ours.local_gram(columns), numpy.local_gram(columns)),
            (
                ours.scale_columns(torch.ones(ours.shape[1])).to_dense(),
                numpy.scale_columns(np.ones(ours.shape[1], np.float32)).to_dense(),
            ),
        ):
            assert isinstance(found, torch.Tensor)
            assert_close(to_numpy(found), wanted, numpy)
        assert ours.stored_matrix() is None
        assert ours.takes_batches
    assert tensor.largest_entry() == Dense(array).largest_entry()
    less = tensor.subtract_row(d)
    assert isinstance(less, Dense)
    assert_close(to_numpy(less.to_dense()), array - d, Dense(array))
