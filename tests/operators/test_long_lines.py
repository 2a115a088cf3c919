"""Folded transforms of long signals against scipy.fft."""

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.fft

from cofem.operators import DCT, Mask, sampling
from cofem.operators.transforms import dispatch, host_lines, long_lines
from cofem.operators.transforms.long_lines import (
    dct_around_long,
    dct_long,
    fold,
    folded_long,
    idct_long,
    pays,
    pays_around,
)

BOTH = [(dct_long, scipy.fft.dct), (idct_long, scipy.fft.idct)]
SHORT = [2, 4, 8, 12, 16, 36, 60, 128, 480]
LONG = [2**15, 2**16, 2**17, 2**18, 3 * 2**14, 12 * 2**12, 5 * 3 * 2**12, 7 * 2**13, 2 * 3**10]
# The least lengths at which the operator takes the fast path.
LEAST = {"float32": 2**17, "float64": 2**21, "complex64": 2**17}

Transform = Callable[..., np.ndarray]


def random(shape: int | tuple[int, ...], dtype: str = "float64", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def relative_error(x: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(x - reference) / np.linalg.norm(reference))


@pytest.mark.parametrize("n", SHORT + LONG)
@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_double_precision_equals_scipy(n: int, ours: Transform, reference: Transform) -> None:
    x = random(n)
    np.testing.assert_allclose(ours(x), reference(x, norm="ortho"), rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_single_precision_is_as_accurate_as_scipy(n: int, ours: Transform, reference: Transform) -> None:
    x = random(n, "float32")
    exact = reference(x.astype(np.float64), norm="ortho")
    result = ours(x)
    assert result.dtype == np.float32
    assert relative_error(result, exact) < 1.5 * relative_error(reference(x, norm="ortho"), exact)
    assert np.abs(result - exact).max() < 2 * np.abs(reference(x, norm="ortho") - exact).max()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("batch", [(1,), (5,), (2, 3), (0,)])
@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_batches_keep_their_shape_and_type(
    ours: Transform, reference: Transform, batch: tuple[int, ...], dtype: str
) -> None:
    x = random((*batch, 2**12), dtype)
    result = ours(x)
    assert result.shape == x.shape
    assert result.dtype == x.dtype
    expected = reference(x, norm="ortho") if x.size else x
    np.testing.assert_allclose(result, expected, atol=1e-5 if dtype in ("float32", "complex64") else 1e-13)


@pytest.mark.parametrize(("ours", "reference"), BOTH)
@pytest.mark.parametrize(
    "view",
    [
        lambda n: random(2 * n)[::2],
        lambda n: random(n)[::-1],
        lambda n: random((n, 3)).T,
        lambda n: random((n, 3))[:, 1],
        lambda n: random((3, 2 * n))[::2, 1::2],
        lambda n: np.broadcast_to(random(n), (2, n)),
        lambda n: random(n, "complex128")[::-1],
    ],
)
def test_any_layout_is_read_and_left_alone(
    ours: Transform, reference: Transform, view: Callable[[int], np.ndarray]
) -> None:
    x = view(3 * 2**10)
    if x.flags.writeable:
        x.flags.writeable = False
    before = x.copy()
    # A read-only input is left alone even where the caller would let it go.
    for result in (ours(x), ours(x, overwrite_x=True)):
        np.testing.assert_allclose(result, reference(before, norm="ortho"), atol=1e-13)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_input_is_destroyed_only_on_request(ours: Transform, reference: Transform, dtype: str) -> None:
    x = random((2, 2**12), dtype)
    before = x.copy()
    result = ours(x)
    assert not np.shares_memory(result, x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(ours(x, overwrite_x=True), reference(before, norm="ortho"), atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_is_the_transpose_and_the_inverse_of_the_other(dtype: str) -> None:
    n = 3 * 2**15
    x, y = random(n, dtype, seed=1), random(n, dtype, seed=2)
    rounding = float(np.finfo(dtype).eps)
    assert np.vdot(dct_long(x), y) == pytest.approx(np.vdot(x, idct_long(y)), abs=10 * n * rounding)
    assert relative_error(idct_long(dct_long(x)), x) < 10 * rounding
    assert relative_error(dct_long(idct_long(x)), x) < 10 * rounding


@pytest.mark.parametrize("transform", [dct_long, idct_long])
def test_matrix_is_orthonormal(transform: Transform) -> None:
    matrix = transform(np.eye(240))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(240), atol=1e-13)


def test_threads_with_different_lengths_do_not_disturb_each_other() -> None:
    # More lengths than tables are kept, so the threads also push out each other's tables.
    lengths = [2**14, 2**15, 2**16, 3 * 2**13, 3 * 2**14, 5 * 2**13]
    signals = {(n, dtype): random(n, dtype) for n in lengths for dtype in ("float32", "float64")}
    expected = {key: (dct_long(x), idct_long(x)) for key, x in signals.items()}

    def differences(seed: int) -> int:
        keys = list(signals)
        order = np.random.default_rng(seed).integers(len(keys), size=60)
        results = [(keys[i], (dct_long(signals[keys[i]]), idct_long(signals[keys[i]]))) for i in order]
        return sum(not np.array_equal(pair, expected[key]) for key, pair in results)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(differences, range(4))) == [0, 0, 0, 0]


@pytest.mark.parametrize("n", [1, 3, 2**16 + 1, 2 * 10007, 2**8 * 1009])
def test_lengths_without_good_factors_are_refused(n: int) -> None:
    assert fold(n) is None
    assert not pays(np.ones(n, dtype=np.float32))
    with pytest.raises(ValueError, match=f"length {n} "):
        dct_long(np.ones(n))


def test_factors_are_balanced_and_the_first_is_even() -> None:
    for n in LONG:
        folded = fold(n)
        assert folded is not None
        n1, n2 = folded
        assert n1 * n2 == n
        assert n1 % 2 == 0
        assert max(n1, n2) <= 8 * min(n1, n2)


def test_tables_take_one_vector_and_cannot_be_changed() -> None:
    tables = long_lines._tables(2**18, "float32")
    arrays = (tables.twiddle, tables.forward_turn, tables.backward_turn)
    assert sum(a.nbytes for a in arrays) < 1.1 * 2**18 * 4
    assert not any(a.flags.writeable for a in arrays)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folded transforms that operators call."""
    names: list[str] = []

    def recorded(function: Transform) -> Transform:
        def record(*args: Any) -> np.ndarray:
            names.append(function.__name__)
            return function(*args)

        return record

    for function in (dct_long, idct_long):
        monkeypatch.setattr(long_lines, function.__name__, recorded(function))
    return names


@pytest.mark.parametrize("dtype", LEAST)
def test_operator_folds_long_signals(dtype: str, calls: list[str]) -> None:
    n = LEAST[dtype]
    x = random(n, dtype)
    coefficients = DCT(n) @ x
    signal = DCT(n).T @ coefficients
    assert calls == ["dct_long", "idct_long"]
    assert coefficients.dtype == signal.dtype == x.dtype
    np.testing.assert_allclose(coefficients, scipy.fft.dct(x, norm="ortho"), atol=1e-5)
    np.testing.assert_allclose(signal, x, atol=1e-5)


def test_operator_folds_what_it_may_overwrite(calls: list[str]) -> None:
    x = random(2**17, "float32")
    before = x.copy()
    np.testing.assert_allclose(DCT(2**17).gram(x), x, atol=1e-5)
    assert calls == ["dct_long", "idct_long"]
    np.testing.assert_array_equal(x, before)


def test_operator_leaves_the_rest_to_scipy(calls: list[str]) -> None:
    x = random(2**18, "float32")
    DCT(2**10) @ x[: 2**10]
    DCT((2**9, 2**9)) @ x
    DCT(2**16) @ x.reshape(4, 2**16).T
    DCT(2**18) @ np.stack([x] * 4, axis=-1)
    DCT(2**17) @ x[: 2**17].astype(np.float64)
    assert calls == []


def test_only_arrays_that_can_be_folded_pay() -> None:
    assert pays(np.ones(2**18, dtype=np.float32))
    assert pays(np.ones((3, 2**18), dtype=np.float32))
    assert not pays(np.ones((4, 2**18), dtype=np.float32))
    assert not pays(np.ones(2**18, dtype=np.float16))
    assert not pays(np.ones((0, 2**18), dtype=np.float32))
    assert not pays([1.0] * 2**18)


@pytest.mark.parametrize("library", ["ducc0", "scipy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [60, 480, 3 * 2**14, 2**17])
def test_transforms_around_weights_equal_one_after_the_other(
    n: int, dtype: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "scipy":
        monkeypatch.setattr(long_lines, "ducc_fft", lambda: None)
    else:
        assert host_lines.ducc_fft() is not None
    x, weights = random((1, n), dtype), random(n, dtype, seed=1)
    before = x.copy()
    result = dct_around_long(folded_long(weights), x)
    signal = weights.astype(np.float64) * scipy.fft.idct(x.astype(np.float64), norm="ortho")
    exact = scipy.fft.dct(signal, norm="ortho")
    assert result.dtype == dtype
    assert result.shape == x.shape
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(result, exact, rtol=0, atol=1e-13 if dtype == "float64" else 2e-5)


def test_masked_transforms_of_long_lines_have_a_fused_gram() -> None:
    n = 2**17
    x, rows = random(n, "float32"), np.flatnonzero(random(n, seed=1) > 1)
    Phi = Mask(rows, n) @ DCT(n).T
    assert pays_around(x)
    assert not pays_around(x.astype(np.complex64))
    np.testing.assert_allclose(Phi.gram(x), Phi.adjoint(Phi.forward(x)), atol=2e-5)


def test_memory_stays_within_a_few_vectors() -> None:
    x = random(2**20, "float32")
    for transform in (dct_long, idct_long):
        transform(x)
        tracemalloc.start()
        transform(x)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3.2 * x.nbytes


@pytest.mark.parametrize("n_vectors", [1, 2, 5])
@pytest.mark.parametrize("is_long", [False, True])
def test_steps_down_the_gradient_of_masked_cosines(monkeypatch, is_long, n_vectors):
    """Long vectors keep no weights for them; few vectors go one after the other."""
    n = 2**17
    rng = np.random.default_rng(0)
    Phi = 2.0 * (Mask(np.sort(rng.choice(n, n // 3, replace=False)), n) @ DCT(n).T)
    x, shift = rng.standard_normal((2, n_vectors, n)).astype(np.float32)
    wanted = x - 0.1 * Phi.adjoint(Phi.forward(x)) + shift
    if is_long:
        monkeypatch.setattr(dispatch, "LONG_VECTOR", n)
        monkeypatch.setattr(sampling, "LONG_VECTOR", n)
    for _ in range(2):
        np.testing.assert_allclose(Phi.gradient_step(x, 0.1, shift), wanted, atol=1e-5)
    np.testing.assert_allclose(Phi.gram(x), (x + shift - wanted) / 0.1, atol=1e-4)
    given = x.copy()
    found = Phi.gradient_step(given, 0.1, shift, overwrite_x=True)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.shares_memory(found, given) == (n_vectors == 1)
