"""The adjoint test finds what is wrong; estimates are as good as they say."""

import numpy as np
import pytest
import scipy.sparse.linalg

from cofem.operators import DCT, Convolution, Dense, Mask, Operator, as_operator, check_adjoint

rng = np.random.default_rng(9)


class Custom(Operator):
    """An operator from two functions, right or wrong."""

    def __init__(self, shape: tuple[int, int], forward, adjoint) -> None:  # type: ignore[no-untyped-def]
        super().__init__(shape)
        self._functions = forward, adjoint

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self._functions[0](x)

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return self._functions[1](y)


@pytest.mark.parametrize(
    ("forward", "adjoint", "message"),
    [
        (lambda x: 2 * x, lambda y: 3 * y, r"adjoint of <Custom\(3, 3\).*> does not match.*<Phi x, y> = "),
        (lambda x: 2 * x, lambda y: np.nan * y, "does not match"),
        (lambda x: x * (1 + 1e-7), lambda y: y * 1.0, "does not match"),
        (
            lambda x: x[..., :2] * 1,
            lambda y: y * 1,
            r"forward of .* must return shape \(2, 3\).*got \(2, 2\)",
        ),
        (
            lambda x: x * 1.0,
            lambda y: y * (1 + 0j),
            "adjoint of .* must return dtype float64.*got dtype complex128",
        ),
        (lambda x: x, lambda y: y, "must return a new array"),
    ],
)
def test_wrong_operators_are_found(forward, adjoint, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        check_adjoint(Custom((3, 3), forward, adjoint))


def test_an_adjoint_without_conjugation_is_found() -> None:
    matrix = rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))
    wrong = scipy.sparse.linalg.LinearOperator(
        (3, 3), matvec=lambda x: matrix @ x, rmatvec=lambda y: matrix.T @ y, dtype=complex
    )
    with pytest.raises(ValueError, match="does not match"):
        check_adjoint(as_operator(wrong))


def test_tolerance_and_seed_are_the_callers() -> None:
    nearly = Custom((3, 3), lambda x: x * (1 + 1e-7), lambda y: y * 1.0)
    check_adjoint(nearly, rng=np.random.default_rng(5), n_vectors=7, rtol=1e-5)


def test_estimated_norm_is_within_a_thousandth() -> None:
    matrix = rng.standard_normal((300, 900))
    exact = np.linalg.norm(matrix, 2)
    for operator in (Dense(matrix), Dense(matrix).T, Dense(matrix.astype(np.float32)), 2 * Dense(matrix) / 2):
        assert operator.norm == pytest.approx(exact, rel=1e-3)
        assert operator.norm <= exact * (1 + 1e-5)
        assert operator.norm == operator.norm


def test_norms_of_tiny_operators_are_exact() -> None:
    """A random start in few dimensions may miss the largest singular vector: it was up to 11 % too small."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(2, 9))
        blur = Convolution(rng.standard_normal(rng.integers(1, 4)), n, mode="linear")
        matrix = rng.standard_normal((n, int(rng.integers(2, 9))))
        for operator in (blur, blur.T, Mask(np.arange(n - 1), n) @ blur.T, Dense(matrix + 1j * matrix**2)):
            assert operator.norm == pytest.approx(np.linalg.norm(operator.to_dense(), 2), rel=1e-12)


@pytest.mark.parametrize("n", [40, 200, 1000])
def test_one_singular_value_above_equal_ones_is_seen(n: int) -> None:
    """The first steps do not see it where the start is nearly orthogonal to its vector."""
    for place in range(0, n, n // 40):
        weights = np.ones(n)
        weights[place] = 1.1
        operator = Custom((n, n), lambda x, w=weights: x * w, lambda y, w=weights: y * w)
        assert operator.norm == pytest.approx(1.1, rel=1e-3)


def test_estimated_column_norms_of_a_large_operator() -> None:
    n = 4096
    weights = np.linspace(1.0, 3.0, n)
    # A sum has no cheap squares; this one has the columns of the DCT, scaled.
    unknown = Custom((n, n), lambda x: DCT(n).adjoint(x * weights), lambda y: DCT(n).forward(y) * weights)
    check_adjoint(unknown)
    assert not unknown.column_norms_exact
    ratio = unknown.column_norms() / weights
    assert np.std(ratio) < 0.12
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.01)
    np.testing.assert_array_equal(unknown.column_norms(), unknown.column_norms())


def test_column_norms_of_a_small_operator_without_squares_are_exact() -> None:
    operator = Mask([0, 3], 6) @ (DCT(6) + DCT(6).T)
    assert operator.abs2() is None
    assert operator.column_norms_exact
    np.testing.assert_allclose(operator.column_norms(), np.linalg.norm(operator.to_dense(), axis=0))


def test_squares_of_a_dense_array_in_many_blocks() -> None:
    matrix = rng.standard_normal((300, 1000)).astype(np.float32)
    squares = Dense(matrix).abs2()
    x, y = rng.standard_normal((2, 1000)), rng.standard_normal((2, 300))
    np.testing.assert_allclose(squares.forward(x), x @ (matrix**2).T.astype(float), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(squares.adjoint(y), y @ (matrix**2).astype(float), rtol=1e-5, atol=1e-4)


def test_columns_of_a_wide_operator_come_in_blocks() -> None:
    n = 2**20
    operator = Mask([0, 5, n - 1], n) @ DCT(n).T
    dense = operator.to_dense()
    assert dense.shape == (3, n)
    some = [0, 1, 77, n - 1, 5, 6]
    np.testing.assert_allclose(operator.columns(some), dense.T[some], atol=1e-12)


def test_astype_refuses_other_types() -> None:
    with pytest.raises(ValueError, match="dtype must be single or double precision"):
        DCT(4).astype(int)


def test_objects_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="x must hold numbers"):
        DCT(2) @ ["a", "b"]
