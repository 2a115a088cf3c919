import numpy as np
import pytest
import scipy.sparse.linalg

import cofem
from cofem.operators import Chunked, Dense, as_operator


class Counted:
    """A data set on disk that tells how much of it was read at once."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.largest = 0

    def __getitem__(self, rows):
        part = self.array[rows]
        self.largest = max(self.largest, len(part))
        return part


def test_a_memory_map_is_fitted_without_being_loaded_whole(tmp_path):
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((90, 200)).astype(np.float32)
    z = np.zeros(200)
    z[[3, 77]] = 1, -1
    y = Phi @ z + 0.01 * rng.standard_normal(90)
    np.save(tmp_path / "Phi.npy", Phi)
    mapped = np.load(tmp_path / "Phi.npy", mmap_mode="r")
    assert isinstance(as_operator(mapped), Chunked)
    post = cofem.fit(mapped, y, noise_std=0.01, method="cofem", rng=0)
    dense = cofem.fit(Phi.astype(float), y, noise_std=0.01, method="cofem", rng=0)
    np.testing.assert_allclose(post.mean, dense.mean, atol=1e-3)
    counted = Counted(Phi)
    cofem.fit(Chunked(counted, rows=16), y, noise_std=0.01, method="cofem", rng=0)
    assert counted.largest == 16


def test_integers_and_bad_entries():
    whole = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(Chunked(whole, rows=3).to_dense(), Dense(whole).to_dense())
    bad = np.ones((4, 3))
    bad[2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite values in rows 2"):
        Chunked(bad, rows=2) @ np.ones(3)
    for wrong in (np.ones(3), np.ones((0, 3))):
        with pytest.raises(ValueError, match="Phi must be a matrix"):
            Chunked(wrong)
    with pytest.raises(TypeError, match="Phi must hold numbers"):
        Chunked(np.array([["a"]]))
    with pytest.raises(ValueError, match="rows must be"):
        Chunked(bad, rows=0)


def test_the_user_is_told_when_batches_go_one_by_one():
    A = np.random.default_rng(0).standard_normal((30, 60))
    slow = scipy.sparse.linalg.LinearOperator(A.shape, matvec=lambda x: A @ x, rmatvec=lambda y: A.T @ y)
    fast = scipy.sparse.linalg.LinearOperator(
        A.shape,
        matvec=lambda x: A @ x,
        rmatvec=lambda y: A.T @ y,
        matmat=lambda X: A @ X,
        rmatmat=lambda Y: A.T @ Y,
    )
    y = A[:, 3] + 0.01
    part_of_a_product = 2 * as_operator(slow)
    for source, told in ((slow, True), (part_of_a_product, True), (fast, False), (A, False)):
        assert as_operator(source).takes_batches is not told
        post = cofem.fit(source, y, noise_std=0.01, method="cofem", rng=0, max_iter=2)
        assert any("called for one vector" in note for note in post.status.notes) == told
