"""Products of a stored matrix with a few vectors, whichever way they go."""

from __future__ import annotations

import numpy as np
import pytest

from cofem.operators import Dense, dense
from cofem.operators.same_bits import blas_kernel


@pytest.mark.parametrize("kernel", ["SkylakeX", "Haswell", ""])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_are_the_same_for_any_number_of_vectors(monkeypatch, kernel, dtype, order) -> None:
    monkeypatch.setattr(dense, "blas_kernel", lambda: kernel)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((130, 520)).astype(dtype)
    matrix = np.asarray(
        matrix + (1j * rng.standard_normal(matrix.shape) if dtype is np.complex128 else 0), order=order
    )
    Phi = Dense(matrix)
    for count in (1, 2, 3, 4, 5, 6, 8, 9):
        x, y = (
            rng.standard_normal((count, 520)).astype(dtype),
            rng.standard_normal((count, 130)).astype(dtype),
        )
        tolerance = 1e-4 if dtype is np.float32 else 1e-11
        np.testing.assert_allclose(Phi.forward(x), np.einsum("ij,kj->ki", matrix, x), atol=tolerance)
        np.testing.assert_allclose(Phi.adjoint(y), np.einsum("ij,ki->kj", matrix.conj(), y), atol=tolerance)


def test_four_vectors_go_one_by_one_where_blas_would_copy_the_matrix(monkeypatch) -> None:
    cached, large = np.empty((256, 1024)), np.empty((1024, 4096))
    for kernel, wanted in (("Haswell", [True, True, True, False]), ("SkylakeX", [True, True, False, False])):
        monkeypatch.setattr(dense, "blas_kernel", lambda kernel=kernel: kernel)
        assert [dense._pays_one_by_one(count, cached) for count in (2, 3, 5, 6)] == wanted
        assert [dense._pays_one_by_one(count, large) for count in (3, 4)] == [True, False]
        assert not dense._pays_one_by_one(4, np.empty((10, 10)))
    assert blas_kernel() == blas_kernel()
