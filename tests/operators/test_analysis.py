"""Differences and undecimated wavelets: exact values, and what they say of their rows."""

import numpy as np
import pytest
import pywt
import scipy.fft
import scipy.sparse

from cofem.operators import (
    DCT,
    Convolution,
    Dense,
    Diagonal,
    Gradient,
    Identity,
    Mask,
    Operator,
    Sparse,
    WaveletFrame,
    block_diag,
    vstack,
)

from .market import MARKET

KINDS = [(boundary, order) for boundary in ("free", "periodic") for order in (1, 2)]
SHAPES = [(6,), (4, 5), (3, 4, 5)]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def bands_of(operator: Operator, x: np.ndarray) -> list[np.ndarray]:
    """Coefficients, band by band."""
    labels = operator.row_groups
    return [(operator @ x.ravel())[labels == label] for label in range(labels.max() + 1)]


# --- differences --------------------------------------------------------------------------------------------


def test_first_differences_are_those_of_numpy() -> None:
    u = draw(4, 5)
    down, across = bands_of(Gradient(u.shape), u)
    np.testing.assert_allclose(down, np.diff(u, axis=0).ravel())
    np.testing.assert_allclose(across, np.diff(u, axis=1).ravel())
    down, across = bands_of(Gradient(u.shape, "periodic"), u)
    np.testing.assert_allclose(down, (np.roll(u, -1, 0) - u).ravel())
    np.testing.assert_allclose(across, (np.roll(u, -1, 1) - u).ravel())


def test_second_differences_are_those_of_numpy() -> None:
    u = draw(4, 5)
    found = bands_of(Gradient(u.shape, order=2), u)
    mixed = np.sqrt(2) * np.diff(np.diff(u, axis=0), axis=1)
    for band, wanted in zip(found, [np.diff(u, 2, axis=0), np.diff(u, 2, axis=1), mixed], strict=True):
        np.testing.assert_allclose(band, wanted.ravel(), atol=1e-14)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_second_differences_have_the_frobenius_norm_of_the_hessian(axes: int) -> None:
    """Of a quadratic function the differences are the derivatives, at every place inside."""
    hessian = draw(axes, axes)
    hessian = hessian + hessian.T
    shape = (6,) * axes
    points = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    u = 0.5 * np.einsum("...i,ij,...j->...", points, hessian, points)
    B = Gradient(shape, order=2)
    at = np.ravel_multi_index((2,) * axes, shape)
    here = (B @ u.ravel())[B.row_places == at]
    assert len(here) == axes * (axes + 1) // 2
    assert np.sum(here**2) == pytest.approx(np.sum(hessian**2))


@pytest.mark.parametrize(("boundary", "order"), KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_lie_where_they_say(shape: tuple[int, ...], boundary: str, order: int) -> None:
    """A row belongs to the place in the middle of its entries, the earlier one of two."""
    B = Gradient(shape, boundary, order)
    n_bands = len(shape) if order == 1 else len(shape) * (len(shape) + 1) // 2
    assert B.row_groups.shape == B.row_places.shape == (B.shape[0],)
    assert B.row_groups.max() == n_bands - 1
    matrix = B.to_dense()
    for row, place in zip(matrix, B.row_places, strict=True):
        assert row[place] != 0
    assert not any(np.any(np.bincount(B.row_places[B.row_groups == band]) > 1) for band in range(n_bands))
    if boundary == "periodic":
        np.testing.assert_array_equal(B.row_places, np.tile(np.arange(B.shape[1]), n_bands))


@pytest.mark.parametrize(("boundary", "order"), KINDS)
def test_constants_have_no_differences_and_ramps_no_second_ones(boundary: str, order: int) -> None:
    assert np.abs(Gradient((4, 5), boundary, order) @ np.ones(20)).max() == 0
    ramp = np.add.outer(np.arange(4.0), 2 * np.arange(5.0)).ravel()
    assert np.abs(Gradient((4, 5), order=2) @ ramp).max() == 0


def test_axes_that_are_too_short_have_no_rows() -> None:
    assert Gradient((1, 5)).shape == (4, 5)
    assert Gradient((1, 5), "periodic").shape == (5, 5)
    assert Gradient((2, 5), order=2).shape == (2 * 3 + 4, 10)
    for shape, boundary, order in ((1, "free", 1), ((1, 1), "periodic", 1), (2, "free", 2)):
        with pytest.raises(ValueError, match="shape must have an axis longer than"):
            Gradient(shape, boundary, order)


def test_bad_settings_of_differences_are_refused() -> None:
    with pytest.raises(ValueError, match="boundary must be one of free, periodic, got 'reflect'"):
        Gradient(4, "reflect")
    for order in (0, 3, True, 1.5):
        with pytest.raises(ValueError, match="order must be 1 or 2"):
            Gradient(4, order=order)
    with pytest.raises(ValueError, match="basis must be one of fourier, cosine, got 'sine'"):
        Gradient(4).band_symbols("sine")


def test_text_of_differences() -> None:
    assert str(Gradient(4)) == "Gradient(4)"
    assert str(Gradient((4, 5), "periodic", order=2)) == "Gradient((4, 5), 'periodic', order=2)"


# --- wavelets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wavelet", ["haar", "db2", "sym4", "coif1", "db8"])
@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5)])
def test_the_frame_is_tight(shape: tuple[int, ...], wavelet: str) -> None:
    B = WaveletFrame(shape, wavelet, level=2)
    matrix = np.stack([B.forward(unit) for unit in np.eye(B.shape[1])], axis=-1)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(B.shape[1]), atol=1e-10)


@pytest.mark.parametrize("wavelet", ["haar", "db3"])
def test_the_frame_is_that_of_pywavelets_up_to_shifts(wavelet: str) -> None:
    u = draw(16, 8)
    found = bands_of(WaveletFrame(u.shape, wavelet, level=3), u)
    # norm=True divides by the same numbers as a Parseval frame.
    coarse, *details = pywt.swt2(u, wavelet, level=3, trim_approx=True, norm=True)
    # PyWavelets counts axes the other way in the names of its bands: (horizontal, vertical, diagonal).
    wanted = [coarse, *(band for h, v, d in details for band in (v, h, d))]
    assert len(found) == len(wanted) == 10
    for band, other in zip(found, wanted, strict=True):
        band = band.reshape(u.shape)
        shifts = [(i, j) for i in range(u.shape[0]) for j in range(u.shape[1])]
        assert min(np.abs(np.roll(band, s, (0, 1)) - other).max() for s in shifts) < 1e-10


def test_a_shift_of_the_signal_shifts_the_coefficients() -> None:
    u, B = draw(5, 7), WaveletFrame((5, 7), "db2", level=2)
    for band, moved in zip(bands_of(B, u), bands_of(B, np.roll(u, 2, 1)), strict=True):
        np.testing.assert_allclose(np.roll(band.reshape(5, 7), 2, 1), moved.reshape(5, 7), atol=1e-12)


def test_rows_of_the_haar_frame_lie_in_the_middle_of_their_wavelets() -> None:
    B = WaveletFrame(32, "haar", level=3)
    rows = B.rows(np.flatnonzero(B.row_places == 16)) ** 2
    centres = rows @ np.arange(32) / rows.sum(axis=1)
    np.testing.assert_allclose(centres, 16.5)


def test_the_level_is_three_or_what_fits() -> None:
    assert [WaveletFrame(n).level for n in (2, 3, 4, 5, 64)] == [1, 2, 2, 3, 3]
    assert WaveletFrame((64, 64), "db4").level == 3
    assert WaveletFrame(16, "db4").level == 2
    assert WaveletFrame(4, "db4").level == 1
    assert WaveletFrame((64, 1), "haar", level=6).level == 6
    for level in (0, 7):
        with pytest.raises(ValueError, match="level must be from 1 to 6"):
            WaveletFrame((64, 1), level=level)


def test_no_band_of_the_frame_is_zero() -> None:
    for n in range(2, 12):
        for level in range(1, (n - 1).bit_length() + 1):
            found = bands_of(WaveletFrame(n, level=level), np.eye(n)[0])
            assert min(np.abs(band).max() for band in found) > 0


def test_wavelets_without_a_tight_frame_are_refused() -> None:
    for wavelet in ("bior2.4", "dmey"):
        with pytest.raises(ValueError, match="wavelet must be orthogonal"):
            WaveletFrame(8, wavelet)
    with pytest.raises(ValueError, match="discrete wavelet"):
        WaveletFrame(8, "nonsense")
    with pytest.raises(ValueError, match="shape must have an axis longer than 1"):
        WaveletFrame((1, 1))


# --- waves --------------------------------------------------------------------------------------------------


PERIODIC: dict[str, Operator] = {
    "identity": Identity((4, 5)),
    "stack": vstack([Gradient((4, 5), "periodic"), 3 * WaveletFrame((4, 5)), Identity((4, 5))]),
}
PERIODIC |= {
    f"{order} of {shape}": Gradient(shape, "periodic", order) for shape in SHAPES for order in (1, 2)
}
PERIODIC |= {f"frame {shape}": WaveletFrame(shape, "db2", level=2) for shape in (*SHAPES, (4, 1))}


@pytest.mark.parametrize("name", PERIODIC)
def test_symbols_are_the_eigenvalues_of_each_band_of_a_periodic_operator(name: str) -> None:
    B = PERIODIC[name]
    matrix, symbols, labels = B.to_dense(), B.band_symbols(), B.row_groups
    labels = np.zeros(B.shape[0], dtype=int) if labels is None else labels
    shape = symbols.shape[1:]
    assert symbols.shape[0] == labels.max() + 1
    waves = np.stack([scipy.fft.fftn(u.reshape(shape), norm="ortho").ravel() for u in np.eye(B.shape[1])])
    for band, symbol in enumerate(symbols):
        gram = matrix[labels == band].T @ matrix[labels == band]
        np.testing.assert_allclose(waves.conj().T @ gram @ waves, np.diag(symbol.ravel()), atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_cosine_symbols_are_the_eigenvalues_of_free_first_and_mixed_differences(
    shape: tuple[int, ...],
) -> None:
    for order, first_exact in ((1, 0), (2, len(shape))):
        B = Gradient(shape, order=order)
        matrix, transform = B.to_dense(), DCT(shape).to_dense()
        for band, symbol in enumerate(B.band_symbols("cosine")):
            part = matrix[B.row_groups == band]
            found = transform @ part.T @ part @ transform.T
            if band >= first_exact:
                np.testing.assert_allclose(found, np.diag(symbol.ravel()), atol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (16,), (5, 3), (4, 3, 6)])
def test_cosine_symbols_of_free_second_differences_are_the_energies_of_waves(shape: tuple[int, ...]) -> None:
    B, waves = Gradient(shape, order=2), DCT(shape).to_dense()
    for band, symbol in enumerate(B.band_symbols("cosine")):
        found = np.sum((B.to_dense()[B.row_groups == band] @ waves.T) ** 2, axis=0)
        np.testing.assert_allclose(symbol.ravel(), found, atol=1e-12)


@pytest.mark.parametrize(("boundary", "order"), KINDS)
def test_the_circulant_is_the_gram_operator_or_like_it(boundary: str, order: int) -> None:
    B = Gradient((9, 8), boundary, order)
    found = B.circulant_gram()
    assert found.is_exact == (boundary == "periodic")
    column = B.gram(np.eye(72)[9 * 4]).reshape(9, 8)
    table = np.roll(found.table(), (4, 4), (0, 1))
    inside = (slice(2, -2), slice(2, -2)) if boundary == "free" else (...,)
    np.testing.assert_allclose(table[inside], column[inside], atol=1e-12)


def test_symbols_are_not_known_of_everything() -> None:
    assert vstack([Gradient(6), DCT(6)]).band_symbols() is None
    assert vstack([Gradient((2, 3)), Gradient(6)]).band_symbols() is None
    assert (Gradient(6) @ DCT(6).T).band_symbols() is None


# --- sparse matrices, and labels of what is made of parts ---------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MARKET if MARKET[name].sparse_matrix() is not None])
def test_the_sparse_matrix_is_the_operator(name: str) -> None:
    operator = MARKET[name]
    matrix = operator.sparse_matrix()
    assert matrix.format == "csr"
    assert isinstance(matrix, scipy.sparse.csr_array)
    np.testing.assert_allclose(matrix.toarray(), operator.to_dense(), atol=1e-6)
    np.testing.assert_allclose(operator.H.sparse_matrix().toarray(), operator.H.to_dense(), atol=1e-6)
    np.testing.assert_allclose(operator.T.sparse_matrix().toarray(), operator.T.to_dense(), atol=1e-6)


def test_who_has_a_sparse_matrix() -> None:
    B = Gradient((3, 4))
    S = Sparse(scipy.sparse.random_array((5, 12), density=0.3, rng=np.random.default_rng(0)))
    some = [
        B,
        2j * B,
        S,
        (2j * S).conj(),
        Mask([3, 0, 3], 12),
        Identity(12),
        Diagonal(draw(12)),
        Mask([3, 0], 12) @ Diagonal(draw(12)),
        vstack([B, S, -1 * Identity(12)]),
        B.T @ B + Identity(12),
        block_diag([B, S]),
    ]
    for operator in some:
        np.testing.assert_allclose(operator.sparse_matrix().toarray(), operator.to_dense(), atol=1e-12)
    others = [DCT(12), Dense(draw(3, 12)), Convolution([1.0, 2.0], 12), B @ DCT(12), DCT(12) + Identity(12)]
    for operator in others:
        assert operator.sparse_matrix() is None


def test_labels_of_stacks_multiples_and_products() -> None:
    first, second = Gradient((3, 4)), Gradient((3, 4), order=2)
    both = vstack([first, -2 * second, Identity(12)])
    np.testing.assert_array_equal(
        both.row_groups, np.concatenate([first.row_groups, second.row_groups + 2, np.full(12, 5)])
    )
    np.testing.assert_array_equal(
        both.row_places, np.concatenate([first.row_places, second.row_places, np.arange(12)])
    )
    weights = Diagonal(draw(first.shape[0]))
    np.testing.assert_array_equal((weights @ first).row_places, first.row_places)
    np.testing.assert_array_equal((weights @ first).row_groups, first.row_groups)
    np.testing.assert_array_equal((first + 2 * first).row_places, first.row_places)
    np.testing.assert_array_equal((Identity(12) @ Diagonal(draw(12))).row_places, np.arange(12))
    np.testing.assert_array_equal(Mask([3, 0], 12).row_places, [3, 0])
    assert (first @ DCT((3, 4)).T).row_places is None
    assert vstack([first, DCT(12)]).row_places is None
    assert first.H.row_places is None


@pytest.mark.parametrize(("boundary", "order"), KINDS)
def test_squares_give_the_diagonal_of_a_weighted_gram_operator(boundary: str, order: int) -> None:
    B = Gradient((4, 5), boundary, order)
    alpha = np.abs(draw(B.shape[0]))
    wanted = np.diag(B.to_dense().T @ (alpha[:, None] * B.to_dense()))
    np.testing.assert_allclose(B.abs2().adjoint(alpha), wanted)
