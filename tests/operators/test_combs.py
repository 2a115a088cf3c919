"""Operators that say nothing about themselves: how their columns are coupled is found by asking them."""

import numpy as np
import pytest
import scipy.sparse
from scipy.ndimage import gaussian_filter1d
from scipy.sparse.linalg import LinearOperator

from cofem.operators import DCT, Convolution, Dense, Diagonal, Mask, as_operator, block_diag, vstack


class Silent(LinearOperator):
    """An operator of this library as another one's, which has products and a shape only."""

    def __init__(self, operator, dims=None):
        self.operator = operator
        if dims is not None:
            self.dims = dims  # as PyLops calls it
        super().__init__(operator.dtype, operator.shape)

    def _matmat(self, x):
        return self.operator.forward(np.ascontiguousarray(x.T)).T

    def _rmatmat(self, y):
        return self.operator.adjoint(np.ascontiguousarray(y.T)).T

    def _matvec(self, x):
        return self.operator.forward(x.reshape(-1))

    def _rmatvec(self, y):
        return self.operator.adjoint(y.reshape(-1))


def widening(size=700, reach=12):
    """Return a blur whose width grows along the line, as a sparse matrix."""
    width = np.linspace(0.8, 3, size)
    offsets = np.arange(-reach, reach + 1)
    diagonals = np.exp(-0.5 * (offsets[:, None] / width) ** 2)
    return scipy.sparse.dia_array((diagonals, offsets), shape=(size, size)).tocsr()


LINE = np.exp(-0.5 * (np.arange(-8, 9) / 2) ** 2)
SPOT = np.exp(-0.5 * np.add.outer(np.arange(-4, 5) ** 2, np.arange(-4, 5) ** 2) / 1.2**2)
WEIGHTS = np.random.default_rng(0).uniform(0.5, 2, 700)
SEEN = np.flatnonzero(np.random.default_rng(1).random(700) < 0.5)
#: Operator, grid or None, whether it is a circular convolution.
LOCAL = {
    "circular": (Convolution(LINE, 601), None, True),
    "borders": (Convolution(LINE, 600, mode="linear"), None, False),
    "complex": (Convolution(LINE * np.exp(0.4j * np.arange(17)), 600, mode="linear"), None, False),
    "samples": (Mask(SEEN, 700) @ Convolution(LINE, 700), None, False),
    "weights": (Diagonal(WEIGHTS) @ Convolution(LINE, 700), None, False),
    "widening": (as_operator(widening()), None, False),
    "two axes": (Convolution(SPOT, (26, 31)), (26, 31), True),
    "two axes, borders": (Convolution(SPOT, (26, 31), mode="linear"), (26, 31), False),
    "two axes, not named": (Convolution(SPOT, (26, 31)), None, True),
}


def gram_of(Phi):
    matrix = Phi.to_dense()
    return matrix.conj().T @ matrix


@pytest.mark.parametrize("name", LOCAL)
def test_what_is_found_is_the_gram_matrix(name):
    Phi, dims, is_exact = LOCAL[name]
    found = as_operator(Silent(Phi, dims))
    circulant = found.circulant_gram()
    assert circulant.is_exact == is_exact
    gram = gram_of(Phi)
    np.testing.assert_allclose(found.column_norms() ** 2, np.diag(gram).real, rtol=1e-12)
    places = np.stack(np.unravel_index(np.arange(Phi.shape[1]), circulant.shape), axis=1)
    some = [(0,), (1,), (-3,), (5,)] if len(circulant.shape) == 1 else [(0, 0), (1, -1), (0, 3)]
    for offset, values in zip(some, found.offset_gram(np.array(some)), strict=True):
        there = np.ravel_multi_index((places + offset).T, circulant.shape, mode="wrap")
        wanted = gram[np.arange(Phi.shape[1]), there]
        np.testing.assert_allclose(values, wanted, atol=1e-12 * np.abs(gram).max())


@pytest.mark.parametrize("name", ["circular", "two axes"])
def test_a_circular_convolution_is_known_as_one(name):
    Phi, dims, _ = LOCAL[name]
    found, known = as_operator(Silent(Phi, dims)).circulant_gram(), Phi.circulant_gram()
    np.testing.assert_allclose(found.eigenvalues, known.eigenvalues, atol=1e-12 * known.eigenvalues.max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_single_precision_is_as_exact_as_it_can_be(dtype):
    def blur(x):
        return gaussian_filter1d(x, 2.0, mode="wrap", radius=8).astype(dtype)

    found = as_operator(LinearOperator((600, 600), blur, blur, dtype=dtype)).circulant_gram()
    assert found.is_exact
    assert found.reach == ((16,) if dtype is np.float64 else (13,))  # beyond that correlations are below 1e-5


SPREAD = {
    "cosines": Mask(SEEN, 700) @ DCT(700).T,
    "Gaussian": Dense(np.random.default_rng(0).standard_normal((200, 600))),
    "few columns": Convolution(LINE, 300),
    "diagonal": Diagonal(WEIGHTS),
    "mostly spread": block_diag([Mask(SEEN, 700) @ DCT(700).T, Convolution(LINE, 200)]),
}


@pytest.mark.parametrize("name", SPREAD)
def test_columns_that_are_not_like_their_neighbours_are_left_alone(name):
    Phi = as_operator(Silent(SPREAD[name]))
    assert Phi.circulant_gram() is None
    assert Phi.offset_gram(np.array([[0]])) is None


def test_products_and_stacks_ask_their_parts():
    Phi = as_operator(Silent(Convolution(LINE, 700)))
    seen = Mask(SEEN, 700) @ Phi
    matrix = seen.to_dense()
    np.testing.assert_allclose(
        seen.offset_gram(np.array([[2]]))[0, :-2], np.diag(matrix.T @ matrix, 2), atol=1e-12
    )
    stack = vstack([Phi, 2 * Phi])
    assert stack.circulant_gram().is_exact
    np.testing.assert_allclose(stack.column_norms(), 5**0.5 * Phi.column_norms())


def test_a_grid_of_pylops_is_taken_over():
    Phi = Convolution(SPOT, (26, 31))
    assert as_operator(Silent(Phi, [26, 31])).column_shape == (26, 31)
    assert as_operator(Silent(Phi, (26, 30))).column_shape is None
    assert as_operator(Silent(Phi)).column_shape is None
