"""Wavelet against PyWavelets."""

import numpy as np
import pytest
import pywt

from cofem.operators import DCT, Diagonal, Mask, Wavelet, check_adjoint, hstack

rng = np.random.default_rng(5)


@pytest.mark.parametrize("wavelet", ["haar", "db4", "sym5", "coif1", "bior2.2", "rbio1.3", "dmey"])
def test_coefficients_are_those_of_pywavelets(wavelet: str) -> None:
    x = rng.standard_normal(256)
    expected = pywt.wavedec(x, wavelet, mode="periodization", level=2)
    np.testing.assert_allclose(Wavelet(256, wavelet, level=2) @ x, np.concatenate(expected))


@pytest.mark.parametrize("wavelet", ["haar", "db2", "bior1.3"])
@pytest.mark.parametrize("shape", [(32, 48), (16, 24, 16)])
def test_coefficients_of_arrays_are_those_of_pywavelets(shape: tuple[int, ...], wavelet: str) -> None:
    x = rng.standard_normal(shape)
    coefficients = pywt.wavedecn(x, wavelet, mode="periodization", level=1)
    expected = pywt.ravel_coeffs(coefficients)[0]
    np.testing.assert_allclose(Wavelet(shape, wavelet, level=1) @ x.ravel(), expected, atol=1e-13)


def test_image_coefficients_over_several_levels_are_those_of_pywavelets() -> None:
    x = rng.standard_normal((32, 48))
    expected = pywt.ravel_coeffs(pywt.wavedec2(x, "db2", mode="periodization", level=3))[0]
    np.testing.assert_allclose(Wavelet((32, 48), "db2", level=3) @ x.ravel(), expected, atol=1e-13)


@pytest.mark.parametrize("wavelet", pywt.wavelist(kind="discrete"))
def test_every_discrete_wavelet_has_an_exact_adjoint_and_honest_facts(wavelet: str) -> None:
    transform = Wavelet(32, wavelet, level=3)
    check_adjoint(transform)
    matrix = transform.to_dense()
    is_orthonormal = np.abs(matrix @ matrix.T - np.eye(32)).max() < 1e-9
    assert (transform.facts.row_gram == 1.0) == is_orthonormal


def test_transpose_of_an_orthogonal_wavelet_reconstructs() -> None:
    x = rng.standard_normal((3, 64 * 48))
    transform = Wavelet((64, 48), "db3")
    np.testing.assert_allclose(transform.adjoint(transform.forward(x)), x)
    assert transform.facts.column_gram == 1.0


def test_default_level_suits_lengths_and_filter() -> None:
    assert Wavelet(1024, "db4").level == pywt.dwt_max_level(1024, "db4")
    assert Wavelet(1000, "haar").level == 3
    assert Wavelet(4, "db4").level == 1


def test_refuses_lengths_that_do_not_halve_evenly() -> None:
    with pytest.raises(
        ValueError, match=r"level must be from 1 to 2 for shape \(12, 8\) and wavelet 'db2', got 3"
    ):
        Wavelet((12, 8), "db2", level=3)
    with pytest.raises(ValueError, match="no level that works"):
        Wavelet(15, "haar")
    with pytest.raises(ValueError, match="got 0"):
        Wavelet(16, "haar", level=0)
    with pytest.raises(ValueError, match=r"wavelet must be a discrete wavelet .* got 'mexh'"):
        Wavelet(16, "mexh")


def test_subbands_are_groups_of_the_dictionary_of_wavelets() -> None:
    transform = Wavelet((8, 8), "haar", level=2)
    labels = transform.row_groups
    assert labels is not None
    assert transform.groups is None
    np.testing.assert_array_equal(np.bincount(labels), [4, 4, 4, 4, 16, 16, 16])
    for dictionary in (
        transform.T,
        2.0 * transform.T,
        Mask([0, 5], 64) @ transform.T,
        Mask([0, 5], 64) @ (transform.T @ Diagonal(np.arange(1.0, 65.0))),
        transform.T + 2 * transform.T,
        1j * transform.H,
        (1j * transform.H).conj(),
    ):
        np.testing.assert_array_equal(dictionary.groups, labels)


def test_groups_of_dictionaries_side_by_side_do_not_mix() -> None:
    first, second = Wavelet(4, "haar", level=1), Wavelet(4, "haar", level=2)
    together = hstack([first.T, DCT(4).T, second.T])
    np.testing.assert_array_equal(together.groups, [0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 5, 5])
    assert hstack([DCT(4), DCT(4)]).groups is None


def test_columns_of_a_large_masked_image_have_exact_norms() -> None:
    shape = (128, 256)
    dictionary = Mask(rng.random(shape) < 0.4) @ Wavelet(shape, "bior4.4").T
    some = [0, 1, 500, 20_000, 128 * 256 - 1]
    assert dictionary.column_norms_exact
    np.testing.assert_allclose(
        dictionary.column_norms()[some], np.linalg.norm(dictionary.columns(some), axis=-1), rtol=1e-9
    )
