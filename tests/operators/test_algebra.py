"""Expressions of operators against the same expressions of matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofem.operators import (
    DCT,
    FFT,
    Convolution,
    Dense,
    Diagonal,
    Facts,
    Identity,
    Mask,
    Operator,
    check_adjoint,
    hstack,
    vstack,
)

N = 4
_rng = np.random.default_rng(8)
LEAVES: list[Operator] = [
    Identity(N),
    DCT(N),
    FFT(N),
    FFT(N, real=True),
    Mask([2, 0, 3, 1], N),
    Mask([1, 1, 0, 3], N),
    Diagonal([1.0, 2.0, -1.0, 0.5]),
    Diagonal([1j, 1.0, -1.0, -1j]),
    Dense(_rng.standard_normal((N, N))),
    Dense(_rng.standard_normal((N, N)) + 1j * _rng.standard_normal((N, N))),
    Convolution([0.5, 1.0, 0.25], N),
]
Pair = tuple[Operator, np.ndarray]


def _grow(smaller: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    scalars = st.sampled_from([2.0, -1, 0.5j, 1 - 1j, np.float64(3), np.float32(0.5)])
    two = st.tuples(smaller, smaller)
    return st.one_of(
        two.map(lambda p: (p[0][0] @ p[1][0], p[0][1] @ p[1][1])),
        two.map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1])),
        two.map(lambda p: (p[0][0] - p[1][0], p[0][1] - p[1][1])),
        two.map(
            lambda p: (
                vstack([p[0][0], p[1][0]]) @ hstack([p[1][0], p[0][0]]) @ Mask([0, 3, 5, 6], 2 * N).T,
                (np.vstack([p[0][1], p[1][1]]) @ np.hstack([p[1][1], p[0][1]]))[:, [0, 3, 5, 6]],
            )
        ).map(lambda p: (Mask([1, 2, 4, 7], 2 * N) @ p[0], p[1][[1, 2, 4, 7]])),
        st.tuples(scalars, smaller).map(lambda p: (p[0] * p[1][0], p[0] * p[1][1])),
        st.tuples(scalars, smaller).map(lambda p: (p[1][0] / p[0], p[1][1] / p[0])),
        smaller.map(lambda p: (p[0].T, p[1].T)),
        smaller.map(lambda p: (p[0].H, p[1].conj().T)),
        smaller.map(lambda p: (p[0].conj(), p[1].conj())),
        smaller.map(lambda p: (-p[0], -p[1])),
    )


expressions = st.recursive(
    st.sampled_from(LEAVES).map(lambda op: (op, np.stack([op @ unit for unit in np.eye(N)], axis=-1))),
    _grow,
    max_leaves=6,
)


@settings(max_examples=300)
@given(expressions)
def test_expressions_of_operators_are_expressions_of_matrices(pair: Pair) -> None:
    operator, matrix = pair
    scale = max(1.0, np.linalg.norm(matrix))

    def close(actual: np.ndarray, desired: np.ndarray) -> None:
        np.testing.assert_allclose(actual, desired, atol=1e-11 * scale**2)

    close(operator.to_dense(), matrix)
    check_adjoint(operator)
    close(operator.gram(np.eye(N)), (matrix.conj().T @ matrix).T)
    assert operator.norm == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-3, abs=1e-11)
    close(operator.column_norms(), np.linalg.norm(matrix, axis=0))
    squares = operator.abs2()
    if squares is not None:
        close(squares.to_dense(), np.abs(matrix) ** 2)
    if operator.facts.row_gram is not None:
        close(matrix @ matrix.conj().T, operator.facts.row_gram * np.eye(N))
    if operator.facts.column_gram is not None:
        close(matrix.conj().T @ matrix, operator.facts.column_gram * np.eye(N))
    if operator.facts.diagonal:
        close(matrix, np.diag(np.diag(matrix)))
    assert operator.is_complex or not np.iscomplexobj(operator.to_dense())


def test_expressions_are_simplified() -> None:
    transform, mask = DCT(8), Mask([0, 2], 8)
    assert (mask @ transform).T.T.factors == (mask, transform)  # type: ignore[attr-defined]
    assert len((mask @ (transform @ transform)).factors) == 3  # type: ignore[attr-defined]
    assert (2 * (3 * transform)).scalar == 6  # type: ignore[attr-defined]
    assert 2 * (transform / 2) is transform
    assert hstack([transform]) is transform
    assert vstack([mask]) is mask


def test_expressions_read_as_they_are_typed() -> None:
    mask, transform = Mask([0, 1, 2, 3], 16), DCT(16)
    assert repr(mask @ transform.T) == "<Mask(4 of 16) @ DCT(16).T, shape (4, 16)>"
    assert str((mask @ transform.T).H) == "(Mask(4 of 16) @ DCT(16).T).T"
    assert str(mask @ (Identity(16) - 2 * transform)) == "Mask(4 of 16) @ (Identity(16) - 2 * DCT(16))"
    assert str((1 + 2j) * FFT(4).H) == "(1+2j) * FFT(4).H"
    assert str(FFT((4, 4), real=True).T) == "FFT((4, 4), real=True).T"
    assert str(vstack([mask, transform]).T) == "hstack([Mask(4 of 16).T, DCT(16).T])"


def test_facts_follow_the_structure() -> None:
    mask, transform = Mask([0, 2], 8), DCT(8)
    assert (mask @ transform.T).facts.row_gram == 1.0
    assert (mask @ transform.T).facts.column_gram is None
    assert (2j * mask @ transform).facts.row_gram == 4.0
    assert hstack([Identity(8), 2 * transform]).facts.row_gram == 5.0
    assert vstack([Identity(8), transform]).facts.column_gram == 2.0
    assert (Mask([0, 0], 8) @ transform).facts == Facts(one_per_row=False)


def test_norms_are_exact_through_orthonormal_factors() -> None:
    kernel = Convolution([1.0, 2.0, 1.0], 1024)
    assert (DCT(1024) @ kernel @ FFT(1024)).norm == pytest.approx(kernel.norm, rel=1e-12)


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes do not match in DCT\(4\) @ DCT\(5\)"):
        DCT(4) @ DCT(5)
    with pytest.raises(ValueError, match=r"shapes do not match in DCT\(4\) \+ DCT\(5\)"):
        DCT(4) + DCT(5)
    with pytest.raises(ValueError, match="operators must agree in the number of rows"):
        hstack([DCT(4), DCT(5)])
    with pytest.raises(ValueError, match="operators must agree in the number of columns"):
        vstack([DCT(4), DCT(5)])
    with pytest.raises(TypeError, match="non-empty sequence of operators"):
        vstack([])
    with pytest.raises(TypeError, match="non-empty sequence of operators"):
        hstack([DCT(4), np.eye(4)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="Phi @ x wants x of shape"):
        DCT(4) @ np.ones((2, 4, 4))
    with pytest.raises(ValueError, match="x @ Phi wants x of shape"):
        np.ones((2, 4, 4)) @ DCT(4)


def test_only_finite_scalars_multiply() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        np.nan * DCT(4)
    with pytest.raises(TypeError):
        np.ones(4) * DCT(4)
    with pytest.raises(TypeError):
        DCT(4) * DCT(4)
    with pytest.raises(TypeError):
        DCT(4) + 1.0
    with pytest.raises(TypeError):
        DCT(4) - 1.0
    with pytest.raises(ZeroDivisionError):
        DCT(4) / 0
