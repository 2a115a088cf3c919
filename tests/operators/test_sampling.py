"""Mask and Diagonal: what they pick, what they refuse."""

import numpy as np
import pytest

from cofem.operators import Diagonal, Identity, Mask

rng = np.random.default_rng(6)


def test_mask_by_booleans_and_by_indices_agree() -> None:
    picked = rng.random((5, 7)) < 0.4
    x = rng.standard_normal((2, 35))
    expected = x[:, picked.ravel()]
    np.testing.assert_array_equal(Mask(picked).forward(x), expected)
    np.testing.assert_array_equal(Mask(picked, (5, 7)).forward(x), expected)
    np.testing.assert_array_equal(Mask(np.flatnonzero(picked), (5, 7)).forward(x), expected)


@pytest.mark.parametrize("repeat", [False, True])
def test_large_random_masks_equal_plain_indexing(repeat: bool) -> None:
    n = 10_000
    rows = rng.choice(n, size=4000, replace=repeat)
    x, y = rng.standard_normal((3, n)), rng.standard_normal((2, 3, 4000))
    mask = Mask(rows, n)
    expected = np.zeros((2, 3, n))
    np.add.at(expected, (..., rows), y)
    np.testing.assert_array_equal(mask.forward(x), x[:, rows])
    np.testing.assert_allclose(mask.adjoint(y), expected)
    np.testing.assert_allclose(mask.gram(x), mask.adjoint(mask.forward(x)))


def test_only_masks_without_repetition_have_orthonormal_rows() -> None:
    assert Mask([1, 3], 5).facts.row_gram == 1.0
    repeated = Mask([1, 3, 1], 5)
    assert repeated.facts.row_gram is None
    assert repeated.norm == pytest.approx(np.sqrt(2))


def test_mask_of_everything_in_order_is_diagonal() -> None:
    assert Mask([0, 1, 2], 3).facts.diagonal
    assert not Mask([0, 2, 1], 3).facts.diagonal


@pytest.mark.parametrize(
    ("rows", "n", "message"),
    [
        ([0, 5], 5, r"rows must lie in 0\.\.4, got values from 0 to 5"),
        ([-1, 2], 5, r"rows must lie in 0\.\.4, got values from -1 to 2"),
        ([], 5, "rows must be a non-empty one-dimensional sequence of integers"),
        ([0.5], 5, "rows must be a non-empty one-dimensional sequence of integers"),
        ([[0, 1]], 5, "rows must be a non-empty one-dimensional sequence of integers"),
        ([0, 1], None, "n, the length of the vector, must be given"),
        ([0, 1], 0, "n must be a positive integer"),
        ([True, False], 3, "rows as booleans must have shape"),
        ([False, False], None, "pick at least one entry"),
    ],
)
def test_mask_refuses_bad_rows(rows: list, n: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mask(rows, n)


def test_diagonal_refuses_bad_numbers() -> None:
    with pytest.raises(ValueError, match="d must hold finite numbers"):
        Diagonal([1.0, np.inf])
    with pytest.raises(ValueError, match="d must be a non-empty vector"):
        Diagonal([[1.0]])


def test_identity_returns_a_copy() -> None:
    x = np.ones(3)
    result = Identity(3).forward(x)
    result[0] = 5.0
    assert x[0] == 1.0
