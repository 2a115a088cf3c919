"""Cosine transforms through complex ones of half the length, against scipy.fft."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.fft

from cofem.operators import DCT, Mask
from cofem.operators.transforms import half_lines, host_lines
from cofem.operators.transforms.half_lines import (
    dct_around_by_half,
    dct_by_half,
    idct_by_half,
    pays,
    pays_around,
    reordered,
)

pytestmark = pytest.mark.skipif(host_lines.ducc_fft() is None, reason="needs ducc0")

BOTH = [(dct_by_half, scipy.fft.dct), (idct_by_half, scipy.fft.idct)]
LENGTHS = [2, 4, 6, 10, 62, 2048, 2058, 3000, 2**14, 2**16]

Transform = Callable[..., np.ndarray]


def random(n: int, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_double_precision_equals_scipy(n: int, ours: Transform, reference: Transform) -> None:
    x = random(n)
    before = x.copy()
    np.testing.assert_allclose(ours(x), reference(x, norm="ortho"), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("n", LENGTHS[3:])
@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_single_precision_is_nearly_as_accurate_as_scipy(
    n: int, ours: Transform, reference: Transform
) -> None:
    x = random(n, "float32")
    exact = reference(x.astype(np.float64), norm="ortho")
    result = ours(x)
    assert result.dtype == np.float32
    theirs = np.linalg.norm(reference(x, norm="ortho") - exact)
    assert np.linalg.norm(result - exact) < 2.5 * theirs + 1e-7 * np.linalg.norm(exact)


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_around_weights_equal_one_after_the_other(n: int) -> None:
    x, weights = random(n)[None], random(n, seed=1)
    exact = scipy.fft.dct(weights * scipy.fft.idct(x, norm="ortho"), norm="ortho")
    result = dct_around_by_half(reordered(weights), x)
    assert result.shape == (1, n)
    np.testing.assert_allclose(result, exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("fill", [0.0, np.inf, np.nan])
def test_what_is_not_finite_stays_so_without_a_warning(fill: float) -> None:
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(dct_by_half(np.full(2048, fill))).all() or fill == 0


@pytest.mark.parametrize(("ours", "reference"), BOTH)
def test_strided_lines(ours: Transform, reference: Transform) -> None:
    x = random(8192)[1::2]
    np.testing.assert_allclose(ours(x), reference(x, norm="ortho"), rtol=0, atol=1e-13)


def test_operators_take_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    for function in (dct_by_half, idct_by_half, dct_around_by_half):

        def recorded(*args: np.ndarray, function: Transform = function) -> np.ndarray:
            names.append(function.__name__)
            return function(*args)

        monkeypatch.setattr(half_lines, function.__name__, recorded)
    n = 2**14
    x = random(n)
    Phi = Mask(np.arange(0, n, 3), n) @ DCT(n).T
    gram = Phi.gram(x)
    assert names == ["dct_around_by_half"]
    np.testing.assert_allclose(gram, Phi.adjoint(Phi.forward(x)), atol=1e-13)
    assert names[1:] == ["idct_by_half", "dct_by_half"]
    DCT(n) @ np.stack([x, x], axis=-1)
    assert len(names) == 3


@pytest.mark.parametrize(("pays", "n"), [(pays, 2**14), (pays_around, 2**12)])
def test_only_one_real_line_of_even_and_moderate_length_pays(pays: Callable[..., bool], n: int) -> None:
    assert pays(np.ones(n))
    assert pays(np.ones((1, n), dtype=np.float32))
    assert not pays(np.ones(n // 2))
    assert not pays(np.ones((2, n)))
    assert not pays(np.ones(n + 1))
    assert not pays(np.ones(n, dtype=complex))
    assert not pays(np.ones(2**18))
    assert not pays(np.ones(0))
