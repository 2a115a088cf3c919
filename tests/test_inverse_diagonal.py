"""`cofem.inverse_diagonal` against matrices that are inverted, and against what is known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pylops
import pytest
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import cofem
from cofem.linalg import inverse_diagonal as module
from cofem.operators import Dense

RNG = np.random.default_rng(0)


def positive(n: int, dtype: type = float) -> np.ndarray:
    A = RNG.standard_normal((n, 2 * n)).astype(dtype)
    if dtype is complex:
        A = A + 1j * RNG.standard_normal((n, 2 * n))
    return A @ A.conj().T / n + np.eye(n)


KINDS = {
    "array": np.asarray,
    "cofem": Dense,
    "SciPy operator": aslinearoperator,
    "sparse": scipy.sparse.csr_array,
    "PyLops": pylops.MatrixMult,
}


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("kind", KINDS)
def test_small_ones_are_exact(kind: str, dtype: type) -> None:
    A = positive(40, dtype)
    arguments = {"dtype": A.dtype} if kind == "PyLops" else {}
    found = cofem.inverse_diagonal(KINDS[kind](A, **arguments))
    np.testing.assert_allclose(found.values, np.diag(np.linalg.inv(A)).real, rtol=1e-10)
    assert found.probes == 0
    assert not found.standard_error.any()


@pytest.mark.parametrize("ring", [False, True])
def test_few_diagonals_are_exact_at_any_size(ring: bool) -> None:
    n = 300
    A = 3 * np.eye(n) - np.eye(n, k=2) - np.eye(n, k=-2) + np.diag(RNG.random(n))
    if ring:
        A[0, -1] = A[-1, 0] = -0.5
    wanted = np.diag(np.linalg.inv(A))
    found = cofem.inverse_diagonal(scipy.sparse.csr_array(A))
    np.testing.assert_allclose(found.values, wanted, rtol=1e-10)
    long = scipy.sparse.diags_array(
        [np.full(49_999, -1.0), np.full(50_000, 2.5), np.full(49_999, -1.0)], offsets=[-1, 0, 1]
    )
    middle = cofem.inverse_diagonal(long).values[25_000]
    assert middle == pytest.approx(1 / np.sqrt(2.5**2 - 4), rel=1e-10)  # the inverse on an endless line


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("known", [False, True])
def test_probes_have_the_error_they_say(dtype: type, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_SIDE", 0)
    A = positive(120, dtype)
    if known:  # units that differ
        scale = 10 ** RNG.uniform(-2, 2, 120)
        A = A * scale * scale[:, None]
    wanted = np.diag(np.linalg.inv(A)).real
    operator = LinearOperator(A.shape, matvec=lambda x: A @ x, rmatvec=lambda x: A @ x, dtype=A.dtype)
    found = cofem.inverse_diagonal(
        operator, rtol=0.02, diagonal=np.diag(A).real if known else None, solve_tol=1e-10, rng=0
    )
    assert found.probes % module.BATCH == 0
    relative = found.values / wanted - 1
    assert np.sqrt(np.mean(relative**2)) < 0.03
    pulls = (found.values - wanted) / found.standard_error
    assert 0.8 < np.sqrt(np.mean(pulls**2)) < 1.25
    if known:
        assert (found.values >= 1 / np.diag(A).real * (1 - 1e-12)).all()


def test_too_few_probes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_SIDE", 0)
    with pytest.warns(cofem.ConvergenceWarning, match="max_probes=4 left a relative error"):
        found = cofem.inverse_diagonal(positive(300), max_probes=4, rtol=1e-4, rng=0)
    assert found.probes == 4


@pytest.mark.parametrize(
    ("A", "settings", "match"),
    [
        (np.ones((3, 4)), {}, "A must be square"),
        (np.triu(np.ones((3, 3))), {}, "A must be Hermitian"),
        (-np.eye(3), {}, "A must be positive definite"),
        (np.eye(3), {"rtol": 0}, "rtol must be positive"),
        (np.eye(3), {"max_probes": 1}, "max_probes must be at least 2"),
        (-scipy.sparse.eye_array(300).tocsr(), {}, "A must be positive definite"),
    ],
)
def test_what_has_no_answer_is_refused(A: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        cofem.inverse_diagonal(A, **settings)


def test_large_ones_that_are_not_positive_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_SIDE", 0)
    A = positive(50) - 3 * np.eye(50)
    with pytest.raises(ValueError, match="A must be positive definite and finite"):
        cofem.inverse_diagonal(aslinearoperator(A))
    for wrong, match in (
        (np.ones(3), "diagonal must have shape"),
        (-np.ones(50), "diagonal must be positive"),
    ):
        with pytest.raises(ValueError, match=match):
            cofem.inverse_diagonal(aslinearoperator(positive(50)), diagonal=wrong)
