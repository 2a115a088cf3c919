"""Couplings, preconditioners and variances of what is made of convolutions: stacks, masks, borders."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.fft
import scipy.ndimage

import cofem
from cofem.experiments import problems
from cofem.linalg.build import build_system
from cofem.linalg.couplings import BlockGridCouplings, LocalCouplings
from cofem.linalg.diagonals import Clusters, Gate, PosteriorContext, Windows
from cofem.linalg.find_couplings import find_couplings
from cofem.linalg.preconditioners import (
    BandedPreconditioner,
    BlockFourierPreconditioner,
    Deflated,
    FourierPreconditioner,
)
from cofem.linalg.preconditioners.banded import from_bands, known_bands
from cofem.linalg.preconditioners.block_fourier import sparse_block_gram
from cofem.operators import DCT, BlockDCT, Convolution, Dense, Diagonal, Identity, Mask, hstack, vstack
from cofem.operators.circulant import cosine_eigenvalues

from .problems import dictionary
from .test_coherent import (
    COMPLEX,
    blur,
    correlations,
    error_in_what_the_data_say,
    estimated,
    gaussian,
    posterior,
)

RNG = np.random.default_rng(0)
ROWS = np.sort(RNG.choice(256, 128, replace=False))
SPOT = {width: np.outer(gaussian(width), gaussian(width)) for width in (0.7, 1.0)}
GRID = (16, 12)
DECAY = Convolution(0.9 ** np.arange(60), 256, causal=True)

SIDE_BY_SIDE = {
    "two blurs": hstack([blur(1.0, 60), blur(2.0, 60)]),
    "spikes and decays": hstack([Identity(60), Convolution(0.8 ** np.arange(20), 60, causal=True)]),
    "seen through a third": blur(1.0, 60) @ hstack([Identity(60), -2.0 * blur(2.0, 60)]),
    "two axes, three arrays": hstack([*(Convolution(SPOT[w], GRID) for w in SPOT), Identity(192)]),
    "complex": hstack([Convolution(COMPLEX, 16), Convolution(COMPLEX[::-1].copy(), 16)]),
    "transformed": DCT(60) @ hstack([blur(1.0, 60), blur(2.0, 60)]),
    "two sets of data": vstack([hstack([blur(1.0, 60), blur(2.0, 60)]), hstack([blur(2.0, 60)] * 2)]),
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_blocks_are_the_gram_matrix(name):
    Phi = SIDE_BY_SIDE[name]
    matrix = Phi.to_dense()
    chosen = np.arange(Phi.shape[1])
    found = Phi.block_circulant_gram()
    assert found.is_exact
    np.testing.assert_allclose(
        sparse_block_gram(found, chosen).toarray(), matrix.conj().T @ matrix, atol=1e-12
    )


@pytest.mark.parametrize(
    "Phi",
    [
        blur(2.0, 40),
        hstack([blur(2.0, 40), Dense(np.eye(40))]),
        hstack([blur(2.0, 40), Convolution(COMPLEX, 40)]),
        hstack([Identity(8), Identity(8)]),
        hstack([Convolution(SPOT[1.0], GRID), blur(2.0, 192)]),
    ],
)
def test_others_have_no_blocks(Phi):
    assert Phi.block_circulant_gram() is None


def test_blocks_of_samples_have_the_right_trace():
    Phi = Mask(ROWS, 256) @ hstack([blur(1.0), blur(2.5)])
    found = Phi.block_circulant_gram()
    assert not found.is_exact
    own = [found.tables()[k, k].flat[0] for k in range(2)]
    np.testing.assert_allclose(256 * np.sum(own), np.sum(Phi.column_norms() ** 2), rtol=0.05)


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_the_block_preconditioner_inverts_equal_precisions(name):
    phi = dictionary(SIDE_BY_SIDE[name])
    circulant = phi.block_circulant_gram()
    alpha = np.repeat(np.arange(1.0, 1 + circulant.n_blocks), phi.shape[1] // circulant.n_blocks)
    P = BlockFourierPreconditioner(alpha, 0.1, phi.column_energy, circulant).prepared()
    r = np.random.default_rng(1).standard_normal((2, phi.shape[1])).astype(phi.dtype)
    out = np.empty_like(r)
    P.apply(r, out)
    matrix = phi.to_dense()
    np.testing.assert_allclose((matrix.conj().T @ matrix + 0.1 * np.diag(alpha)) @ out.T, r.T, atol=1e-9)


@pytest.mark.parametrize("found_some", [False, True])
def test_blurs_side_by_side_take_few_steps(found_some):
    phi = dictionary(hstack([blur(1.0), blur(3.0)]))
    alpha = 10 ** np.random.default_rng(0).uniform(2, 3, 512)
    if found_some:
        alpha[::30] = alpha[1::30] = 1e-2
    v = np.random.default_rng(1).standard_normal((1, 256))
    system = build_system(phi, alpha, 1e-4)
    assert isinstance(system.preconditioner, Deflated if found_some else BlockFourierPreconditioner)
    quick = system.solve(v, tol=1e-5, max_iter=4000)
    plain = build_system(phi, alpha, 1e-4, form="primal", preconditioner="jacobi")
    slow = plain.solve(v, tol=1e-5, max_iter=20_000)
    assert quick.cg.iterations.max() < slow.cg.iterations.max() / 5
    matrix = phi.to_dense()
    wanted = np.linalg.solve(matrix.T @ matrix + 1e-4 * np.diag(alpha), matrix.T @ v[0])
    np.testing.assert_allclose(quick.x[0], wanted, atol=1e-3 * np.abs(wanted).max())


# --- entries of Gram matrices where data are missing ----------------------------------------------------

PARTLY_SEEN = {
    "samples of a blur": Mask(ROWS, 256) @ blur(2.5),
    "samples of a decay": Mask(ROWS, 256) @ DECAY,
    "samples that repeat": Mask(np.append(ROWS, ROWS[:9]), 256) @ blur(2.5),
    "samples of two blurs": Mask(ROWS, 256) @ blur(1.0) @ blur(2.0),
    "weights": 2.0 * (Diagonal(RNG.uniform(0.5, 2, 256)) @ blur(2.5)),
    "borders": blur(2.5, mode="linear"),
    "samples with borders": Mask(ROWS, 256) @ blur(2.5, mode="linear"),
    "two axes": Mask(ROWS[ROWS < 192], GRID) @ Convolution(SPOT[1.0], GRID),
    "two axes, borders": Mask(ROWS[ROWS < 192], GRID) @ Convolution(SPOT[1.0], GRID, mode="linear"),
    "samples of a complex one": Mask(ROWS, 256) @ Convolution(COMPLEX, 256),
}


@pytest.mark.parametrize("name", PARTLY_SEEN)
def test_gram_entries_at_offsets(name):
    Phi = PARTLY_SEEN[name]
    shape = Phi.circulant_gram().shape
    offsets = np.array([[0] * len(shape), [1] * len(shape), [-2] * len(shape)])
    found = Phi.offset_gram(offsets)
    matrix = Phi.to_dense()
    gram = matrix.conj().T @ matrix
    places = np.stack(np.unravel_index(np.arange(Phi.shape[1]), shape), axis=1)
    for row, offset in zip(found, offsets, strict=True):
        there = places + offset
        inside = ((there >= 0) & (there < shape)).all(axis=1) | Phi.circulant_gram().repeats
        other = np.ravel_multi_index(tuple(there.T), shape, mode="wrap")
        np.testing.assert_allclose(row[inside], gram[np.arange(len(places)), other][inside], atol=1e-12)


def test_others_have_no_entries_at_offsets():
    assert DCT(8).offset_gram(np.array([[0]])) is None
    assert hstack([blur(1.0), blur(2.0)]).offset_gram(np.array([[0]])) is None


@pytest.mark.parametrize("name", [*PARTLY_SEEN, *SIDE_BY_SIDE])
def test_clusters_hold_the_right_correlations(name):
    phi = dictionary((PARTLY_SEEN | SIDE_BY_SIDE)[name])
    couplings = find_couplings(phi)
    assert isinstance(couplings, LocalCouplings if name in PARTLY_SEEN else BlockGridCouplings)
    whole = correlations(phi)
    chosen = np.array([0, 3, phi.shape[1] // 2 + 1, phi.shape[1] - 2])
    for size in {8, couplings.size}:
        places, found = couplings.clusters(chosen, np.random.default_rng(1).random(phi.shape[1]), size)
        np.testing.assert_array_equal(places[:, -1], chosen)
        for around, cluster, matrix in zip(chosen, places, found, strict=True):
            real = np.append(np.flatnonzero(cluster != around), len(cluster) - 1)
            assert real.size > 1
            np.testing.assert_allclose(
                matrix[np.ix_(real, real)], whole[np.ix_(cluster[real], cluster[real])], atol=1e-9
            )
            assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_couplings_that_would_not_fit_are_those_of_the_average(monkeypatch):
    monkeypatch.setattr("cofem.linalg.find_couplings.MOST_STORED", 1000)
    assert not isinstance(find_couplings(dictionary(Mask(ROWS, 256) @ blur(2.5))), LocalCouplings)


# --- the banded preconditioner --------------------------------------------------------------------------


def test_bands_around_a_ring_are_those_of_a_line_or_none():
    # Each spike is coupled with those a third of the ring away, and these with each other: without the
    # couplings of the two ends that is no Gram matrix, and had no factor.
    far, near = np.zeros(391), np.zeros(391)
    far[[0, 130, 260]], near[[0, 60, 120]] = 1, 1
    rows = np.setdiff1d(np.arange(391), [5, 200])
    assert known_bands(dictionary(Mask(rows, 391) @ Convolution(far, 391, causal=True))) is None
    phi = dictionary(Mask(rows, 391) @ Convolution(near, 391, causal=True))
    assert from_bands(phi, np.full(391, 1e-6), 1e-6).prepared().factor is not None


def test_columns_that_are_hardly_seen_have_bands():
    # What is left of their norms is less than the rounding errors of the bands.
    rng = np.random.default_rng(1)
    rows = np.sort(rng.choice(891, 332, replace=False))
    phi = dictionary(Mask(rows, 891) @ Convolution(0.75 ** np.arange(356), 891, causal=True))
    bands = known_bands(phi)
    assert bands is not None
    weak = replace(
        from_bands(phi, np.full(891, 1e-12), 1e-12),
        bands=bands - 1e-11 * (np.arange(len(bands)) == 0)[:, None],
    )
    assert np.isfinite(weak.prepared().factor).all()
    with pytest.raises(np.linalg.LinAlgError, match="no Gram matrix"):
        replace(weak, bands=-bands).prepared()


def test_long_kernels_with_missing_samples_learn_their_noise():
    rng = np.random.default_rng(300455)
    Phi = Mask(np.sort(rng.choice(61, 36, replace=False)), 61)
    Phi = Phi @ Convolution(rng.standard_normal(45), 61, causal=True)
    z = np.zeros(61)
    z[[7, 30]] = 1.0, -2.0
    y = Phi @ z
    post = cofem.fit(Phi, y + 1e-3 * rng.standard_normal(36), rng=0)
    assert post.status.code is not cofem.StatusCode.FAILED
    assert np.linalg.norm(post.mean - z) < 0.05 * np.linalg.norm(z)


@pytest.mark.parametrize(
    "name", ["samples of a blur", "samples of a decay", "weights", "borders", "samples of a complex one"]
)
def test_bands_solve_at_once(name):
    phi = dictionary(PARTLY_SEEN[name])
    rng = np.random.default_rng(0)
    alpha = 10 ** rng.uniform(-4, 4, 256)
    system = build_system(phi, alpha, 1e-4, form="primal")
    # What breaks off counts with precisions so far apart: bands take the place of the decay.
    assert isinstance(system.preconditioner, BandedPreconditioner)
    v = rng.standard_normal((2, phi.shape[0])).astype(phi.dtype)
    found = system.solve(v, tol=1e-6, max_iter=60)
    assert found.cg.converged.all()
    assert found.cg.iterations.max() <= (3 if name == "borders" else 30)  # a grid that repeats has two ends
    matrix = phi.to_dense()
    A = matrix.conj().T @ matrix + 1e-4 * np.diag(alpha)
    wanted = np.linalg.solve(A, matrix.conj().T @ v.T).T
    np.testing.assert_allclose(found.x, wanted, atol=1e-4 * np.abs(wanted).max())


def test_circulants_two_axes_and_long_kernels_have_no_bands(monkeypatch):
    for Phi in (blur(2.5), PARTLY_SEEN["two axes"]):
        system = build_system(dictionary(Phi), np.ones(Phi.shape[1]), 1e-4, form="primal")
        assert not isinstance(system.preconditioner, BandedPreconditioner)
    monkeypatch.setattr("cofem.linalg.preconditioners.banded.MOST_DIAGONALS", 19)
    system = build_system(dictionary(PARTLY_SEEN["samples of a blur"]), np.ones(256), 1e-4, form="primal")
    assert not isinstance(system.preconditioner, BandedPreconditioner)


# --- variances ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [Clusters(), Windows()], ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("samples of a blur", {"clusters": 0.06, "windows": 0.003}),
        ("samples of a decay", {"clusters": 0.3, "windows": 1e-3}),
        ("borders", {"clusters": 0.06, "windows": 0.003}),
        ("two axes", {"clusters": 0.1, "windows": 0.02}),
    ],
)
def test_variances_where_data_are_missing(estimator, name, limit):
    phi = dictionary(PARTLY_SEEN[name])
    rng = np.random.default_rng(0)
    energy = phi.column_energy
    live = rng.random(energy.size) < 0.05
    alpha = energy.mean() * np.where(live, 1.0, 10 ** rng.uniform(2, 5, energy.size))
    context, Sigma = posterior(phi, alpha, 1e-4 * energy.mean())
    errors = [
        error_in_what_the_data_say(estimated(estimator, context, Sigma, seed).value, context, Sigma)
        for seed in range(6)
    ]
    assert np.median(errors) < limit[estimator.name]


def test_arrays_side_by_side_have_a_number_each():
    phi = dictionary(hstack([blur(1.0), blur(3.0)]))
    rng = np.random.default_rng(0)
    alpha = np.where(rng.random(512) < 0.05, 1.0, 10 ** rng.uniform(2, 5, 512))
    context, Sigma = posterior(phi, alpha, 1e-4)
    for estimator in (Clusters(), Windows()):
        found = [estimated(estimator, context, Sigma, seed) for seed in range(6)]
        scales = found[0].carry.known.values if estimator.name == "clusters" else found[0].carry.scales
        assert scales.size == 2
        assert np.median([error_in_what_the_data_say(x.value, context, Sigma) for x in found]) < 0.05


def test_a_decay_of_which_half_is_seen_is_exact_or_left_to_windows():
    case = problems.autoregressive(1000, 100)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(), rng=0)
    exact = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(diagonal="exact"), rng=0)
    windows = cofem.fit(
        case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(diagonal="windows"), rng=0
    )
    assert post.history["diagonal"][-1] == "exact"
    assert post.history["applications"][-1] < 1000
    assert windows.history["applications"][-1] < 1000
    for found in (post, windows):
        assert case.nrmse(found.mean) < 1.1 * case.nrmse(exact.mean)


# --- every kind, every threshold ------------------------------------------------------------------------


@pytest.mark.parametrize("name", problems.COHERENT)
def test_exact_variances_of_every_kind(name):
    """The exact estimator and the gate at small size against a dense inverse."""
    case = problems.COHERENT[name](200, 100)
    phi = dictionary(cofem.as_operator(case.Phi))
    alpha = phi.column_energy * 10 ** np.random.default_rng(0).uniform(0, 4, phi.shape[1])
    context, Sigma = posterior(phi, alpha, case.noise_std**2, continued=False)
    gate = Gate()
    rng = np.random.default_rng(0)
    carry = gate.init(context, rng)
    rhs = gate.right_hand_sides(context, carry, rng)
    found = gate.estimate(context, carry, rhs, np.zeros((0, phi.shape[1]), dtype=phi.dtype))
    assert found.used == "exact"
    np.testing.assert_allclose(found.value, np.diagonal(Sigma).real, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "last"),
    [((512, 512), "exact"), ((513, 512), "exact"), ((2**10, 2**13), "exact"),
     ((2**10, 2**13 + 1), "corrected"),
     ((1448, 2**12), "exact"), ((1449, 2**12), "corrected"),
     ((2**6, 2**17), "exact"), ((2**6, 2**17 + 1), "corrected"), ((2896, 2896), "corrected")],
)  # fmt: skip
def test_the_last_resort_around_the_thresholds(shape, last):
    """Entries up to 2^18 are factored outright; up to 2^23, and work of 2^33, in the end."""
    n, d = shape
    Phi = Mask(np.arange(n), max(n, d)) @ DCT(max(n, d)).T @ Mask(np.arange(d), max(n, d)).T
    context = PosteriorContext(dictionary(Phi), np.ones(d), 1.0)
    names = [estimator.name for estimator in Gate().candidates(context)]
    assert names[-1] == last
    assert (len(names) == 1) == (n * d <= 2**18)


@pytest.mark.parametrize("diagonal", ["clusters", "auto"])
def test_one_corner_is_coherent(diagonal):
    """A tenth of the columns come in near copies, the others are incoherent: errors of 0.27, not of 2.5."""
    rng = np.random.default_rng(100)
    Phi = rng.standard_normal((300, 1200))
    Phi[:, 60:120] = Phi[:, :60] + 0.03 * rng.standard_normal((300, 60))
    z = np.zeros(1200)
    z[rng.choice(120, 12, replace=False)] = rng.standard_normal(12)
    z[rng.choice(np.arange(120, 1200), 24, replace=False)] = rng.standard_normal(24)
    y = Phi @ z + 0.05 * rng.standard_normal(300)
    post = cofem.fit(Phi, y, noise_std=0.05, method=cofem.CoFEM(diagonal=diagonal), rng=0)
    exact = cofem.fit(Phi, y, noise_std=0.05, method=cofem.CoFEM(diagonal="exact"), rng=0)
    error, best = (np.linalg.norm(found.mean - z) for found in (post, exact))
    assert error < 1.1 * best


# --- a photograph ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_photograph_from_a_quarter_of_its_pixels():
    """A crop of the demo's picture, the noise learned: 22.26 dB at 0.076; 21.66 dB at half that noise."""
    pywt = pytest.importorskip("pywt")
    image = (pywt.data.camera() / 255).astype(np.float32)[64:192, 192:320]
    seen = np.random.default_rng(2).random(image.shape) < 0.25
    synthesis = BlockDCT(image.shape, 32).T
    post = cofem.fit(Mask(seen) @ synthesis, image[seen], rng=2)
    error = (synthesis @ post.mean).reshape(image.shape) - image
    assert -10 * np.log10(np.mean(error[~seen] ** 2)) > 22.0
    assert 0.05 < post.noise_std < 0.12


# --- borders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "shape"), [(gaussian(1.5), (40,)), (SPOT[1.0], (23, 26))])
def test_cosine_waves_are_those_of_a_mirrored_grid(kernel, shape):
    """The eigenvalues are those of the convolution with its own reflection, on an array that is mirrored."""
    circulant = Convolution(kernel, shape, mode="linear").circulant_gram()
    eigenvalues = cosine_eigenvalues(circulant)
    x = np.random.default_rng(0).standard_normal(shape)
    image = x
    for _ in range(2):  # the kernels are symmetric
        image = scipy.ndimage.convolve(image, kernel.reshape([kernel.shape[0]] * len(shape)), mode="reflect")
    found = scipy.fft.idctn(eigenvalues * scipy.fft.dctn(x, norm="ortho"), norm="ortho")
    np.testing.assert_allclose(found, image, atol=1e-10 * np.abs(image).max())


def test_slanted_kernels_keep_fourier_waves():
    slanted = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    assert cosine_eigenvalues(Convolution(slanted, (12, 12), mode="linear").circulant_gram()) is None


def test_blurs_with_borders_take_few_steps():
    phi = dictionary(Convolution(np.outer(gaussian(1.4), gaussian(1.4)), (30, 30), mode="linear"))
    alpha, noise_var = np.full(900, 1.0), 1e-4
    system = build_system(phi, alpha, noise_var)
    assert type(system.preconditioner).__name__ == "CosinePreconditioner"
    y = phi.forward(np.random.default_rng(0).standard_normal(900))
    fourier = FourierPreconditioner(alpha, noise_var, phi.column_energy, phi.circulant_gram())
    steps = []
    for preconditioner in (system.preconditioner, fourier):
        solution = replace(system, preconditioner=preconditioner).solve(y[None], tol=1e-3, max_iter=5000)
        exact = posterior(phi, alpha, noise_var)[1] @ phi.adjoint(y) / noise_var
        np.testing.assert_allclose(solution.x[0], exact, atol=0.05 * np.abs(exact).max())
        steps.append(int(solution.cg.iterations.max()))
    assert 3 * steps[0] < steps[1]
