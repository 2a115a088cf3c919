"""Coherent dictionaries: circulants, couplings, clusters, preconditioners, and what the gate makes of it."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import cofem
from cofem.experiments import problems
from cofem.inference.base import State
from cofem.inference.noise.rules import FromHeldOut, error_of_most
from cofem.inference.problem import Problem
from cofem.linalg.build import build_system
from cofem.linalg.couplings import SIZES, GridCouplings, LocalCouplings, StoredCouplings
from cofem.linalg.diagonals import Clusters, ContinuedContext, Gate, Pooled, PosteriorContext
from cofem.linalg.diagonals.shares import Shares, in_clusters, in_tiles, inverses_of_lower
from cofem.linalg.find_couplings import (
    MOST_ALIKE,
    PAIRS_AT_ONCE,
    find_couplings,
    has_couplings,
    plainly_coupled,
)
from cofem.linalg.preconditioners import Deflated, FourierPreconditioner
from cofem.linalg.preconditioners.banded import known_bands
from cofem.linalg.preconditioners.deflation import gram_entries, sparse_gram
from cofem.linalg.system import PosteriorSystem
from cofem.linalg.tiles import tiles_of
from cofem.operators import DCT, Convolution, Dense, Diagonal, Identity, Mask, Sparse, vstack
from cofem.operators.dictionary import Dictionary

from .problems import dictionary


def gaussian(width, reach=None):
    reach = int(np.ceil(4 * width)) if reach is None else reach
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    return kernel / np.linalg.norm(kernel)


def blur(width=2.5, size=256, **options):
    return Convolution(gaussian(width), size, **options)


def twins(n=64, d=256, apart=0.03, seed=0):
    rng = np.random.default_rng(seed)
    Phi = np.repeat(rng.standard_normal((n, d // 2)), 2, axis=1)
    Phi[:, 1::2] += apart * rng.standard_normal((n, d // 2))
    return Phi / np.sqrt(n)


def walks(n, d, seed=0):
    """Columns that are random walks in n places at once: nearly all are alike."""
    return np.cumsum(np.random.default_rng(seed).standard_normal((n, d)), axis=1)


# --- circulants ---------------------------------------------------------------------------------------


def as_matrix(circulant):
    """Write a circulant out, from its eigenvalues."""
    shape = circulant.shape
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    axes = tuple(range(1, 1 + len(shape)))
    if circulant.is_real:
        spectra = np.fft.rfftn(units, axes=axes) * circulant.eigenvalues
        return np.fft.irfftn(spectra, s=shape, axes=axes).reshape(len(units), -1).T
    return (
        np.fft.ifftn(np.fft.fftn(units, axes=axes) * circulant.eigenvalues, axes=axes)
        .reshape(len(units), -1)
        .T
    )


COMPLEX = np.array([1.0, 2.0 - 1.0j, 0.5j])
EXACT = {
    "one axis": blur(2.0, 40),
    "odd length": blur(2.0, 41),
    "causal": Convolution(0.8 ** np.arange(12), 40, causal=True),
    "two axes": Convolution(np.outer(gaussian(1.0), gaussian(0.7)), (12, 9)),
    "complex kernel": Convolution(COMPLEX, 16),
    "multiple": -2.0 * blur(2.0, 40),
    "of the identity": blur(2.0, 40) @ Identity(40),
    "of a multiple of it": blur(2.0, 40) @ (3.0 * Identity(40)),
    "twice": blur(2.0, 40) @ blur(1.0, 40),
    "transformed": DCT(40) @ blur(2.0, 40),
    "stack": vstack([blur(2.0, 40), 0.5 * blur(1.0, 40)]),
}


@pytest.mark.parametrize("name", EXACT)
def test_circulants_that_are_exact(name):
    Phi = EXACT[name]
    matrix = Phi.to_dense()
    np.testing.assert_allclose(as_matrix(Phi.circulant_gram()), matrix.conj().T @ matrix, atol=1e-12)


def test_circulants_that_are_close():
    rows = np.sort(np.random.default_rng(0).choice(200, 100, replace=False))
    weights = np.random.default_rng(1).uniform(0.5, 1.5, 200)
    for Phi in (
        blur(2.0, 200, mode="linear"),
        Mask(rows, 200) @ blur(2.0, 200),
        Diagonal(weights) @ blur(2.0, 200),
    ):
        matrix = Phi.to_dense()
        found = as_matrix(Phi.circulant_gram())
        assert np.trace(found) == pytest.approx(np.trace(matrix.T @ matrix), rel=0.05)


@pytest.mark.parametrize(
    "Phi",
    [
        Dense(np.ones((3, 4))),
        DCT(8),
        blur(2.0, 40) @ Diagonal(np.arange(1.0, 41.0)),
        vstack([blur(2.0, 40), Identity(40)]),
        Convolution(gaussian(2.0), 8, mode="linear"),
    ],
)
def test_others_have_none(Phi):
    assert Phi.circulant_gram() is None


# --- the preconditioner -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_the_preconditioner_inverts_equal_precisions(name):
    Phi = EXACT[name]
    phi = dictionary(Phi)
    size = phi.shape[1]
    P = FourierPreconditioner(np.full(size, 3.0), 0.1, phi.column_energy, phi.circulant_gram()).prepared()
    matrix = Phi.to_dense()
    rng = np.random.default_rng(0)
    r = rng.standard_normal((3, size)).astype(matrix.dtype)
    r = r + 1j * rng.standard_normal((3, size)) if Phi.is_complex else r
    out = np.empty_like(r)
    P.apply(r, out)
    np.testing.assert_allclose((matrix.conj().T @ matrix + 0.3 * np.eye(size)) @ out.T, r.T, atol=1e-9)


def test_the_preconditioner_is_positive_definite_whatever_alpha_is():
    phi = dictionary(blur(2.5, 64))
    alpha = 10 ** np.random.default_rng(0).uniform(-6, 12, 64)
    P = FourierPreconditioner(alpha, 1e-4, phi.column_energy, phi.circulant_gram()).prepared()
    out = np.empty((64, 64))
    P.apply(np.eye(64), out)
    np.testing.assert_allclose(out, out.T, rtol=1e-6, atol=1e-12 * np.abs(out).max())
    scale = np.sqrt(np.diagonal(out))
    assert np.linalg.eigvalsh(out / np.outer(scale, scale)).min() > 0


@pytest.mark.parametrize("complex_data", [False, True])
def test_a_blur_takes_few_steps(complex_data):
    rng = np.random.default_rng(0)
    phi = dictionary(blur(2.5, 512))
    alpha = 10 ** rng.uniform(0, 2, 512)
    v = rng.standard_normal((1, 512)) + (1j * rng.standard_normal((1, 512)) if complex_data else 0)
    system = build_system(phi, alpha, 1e-4)
    assert isinstance(system.preconditioner, FourierPreconditioner)
    quick = system.solve(v, tol=1e-6, max_iter=2000)
    plain = PosteriorSystem(phi, alpha, 1e-4, "primal").solve(v, tol=1e-6, max_iter=20_000)
    assert quick.cg.converged.all()
    assert quick.cg.iterations.max() < plain.cg.iterations.max() / 5
    matrix = phi.to_dense()
    wanted = np.linalg.solve(matrix.T @ matrix + 1e-4 * np.diag(alpha), matrix.T @ v[0])
    np.testing.assert_allclose(quick.x[0], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_torch_blurs_use_it_too():
    torch = pytest.importorskip("torch")
    case = problems.convolved(gaussian(2.5), 512, 0)
    there = torch.as_tensor(case.y)
    post = cofem.fit(case.Phi, there, noise_std=case.noise_std, method=cofem.CoFEM(), rng=0)
    here = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(), rng=0)
    assert post.history["applications"][-1] < 2500
    np.testing.assert_allclose(post.mean.numpy(), here.mean, atol=0.05 * np.abs(case.z).max())


# --- couplings ----------------------------------------------------------------------------------------


def correlations(phi):
    matrix = phi.to_dense()
    matrix = matrix / np.linalg.norm(matrix, axis=0)
    return matrix.conj().T @ matrix


@pytest.mark.parametrize(
    "Phi",
    [
        blur(2.5),
        Convolution(np.outer(gaussian(1.4), gaussian(1.0)), (16, 12)),
        Convolution(COMPLEX, 16),
        Dense(twins()),
        Sparse(scipy.sparse.csr_array(twins())),
        Dense(twins() * np.geomspace(1e-3, 1e3, 256)),
        Dense(twins() * np.exp(1j * np.arange(256))),
        Dense(walks(64, 512)),
        Dense(walks(64, 512) * np.exp(1j * np.arange(512))),
    ],
)
def test_clusters_hold_the_most_coupled_columns(Phi):
    phi = dictionary(Phi)
    assert has_couplings(phi)
    couplings = find_couplings(phi)
    assert find_couplings(phi) is couplings  # found once
    chosen = np.array([5, 17, 30]) % phi.shape[1]
    places, found = couplings.clusters(chosen, np.ones(phi.shape[1]), couplings.size)
    np.testing.assert_array_equal(places[:, -1], chosen)
    whole = correlations(phi)
    for around, cluster, matrix in zip(chosen, places, found, strict=True):
        distinct = np.unique(cluster, return_index=True)[1]
        real = np.append([k for k in distinct if cluster[k] != around], len(cluster) - 1)
        np.testing.assert_allclose(
            matrix[np.ix_(real, real)], whole[np.ix_(cluster[real], cluster[real])], atol=1e-10
        )
        closest = np.argsort(-np.abs(whole[around]))[1]
        assert closest in cluster or np.abs(whole[around, closest]) < 0.45
        assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_where_all_columns_are_alike_not_all_pairs_are_computed(monkeypatch):
    asked = []
    original = Dictionary._local_gram
    monkeypatch.setattr(
        Dictionary, "_local_gram", lambda phi, some: asked.append(some.size) or original(phi, some)
    )
    phi = dictionary(walks(64, 1024))
    assert plainly_coupled(phi)  # the first pairs tell
    assert sum(asked) <= 2 * PAIRS_AT_ONCE
    couplings = find_couplings(phi)
    assert sum(asked) <= 1024 * (2 * MOST_ALIKE + couplings.size) + 2 * PAIRS_AT_ONCE
    closest = np.argsort(-np.abs(correlations(phi)) + 2 * np.eye(1024), axis=1)[:, 0]
    assert np.mean((couplings.places == closest[:, None]).any(axis=1)) > 0.99


def test_weights_decide_between_candidates():
    couplings = find_couplings(dictionary(Convolution(0.98 ** np.arange(200), 1024, causal=True)))
    assert isinstance(couplings, GridCouplings)
    assert couplings.size == SIZES[-1]
    weight = np.full(1024, 1e-6)
    weight[[100, 140, 155]] = 1.0
    places, _ = couplings.clusters(np.array([130]), weight, couplings.size)
    assert {100, 140, 155} <= set(places[0].tolist())


def test_incoherent_columns_have_no_couplings():
    assert find_couplings(dictionary(np.random.default_rng(0).standard_normal((256, 300)))) is None


def test_couplings_in_one_corner_only():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((200, 1000))
    Phi[:, 10] = Phi[:, 900] + 0.1 * rng.standard_normal(200)
    couplings = find_couplings(dictionary(Phi))
    assert isinstance(couplings, StoredCouplings)
    assert 900 in couplings.places[10]
    assert 10 in couplings.places[900]
    others = np.setdiff1d(np.arange(1000), [10, 900])
    far = couplings.places[others] != others[:, None]
    assert far.mean() < 0.01


# --- clusters -----------------------------------------------------------------------------------------


def posterior(phi, alpha, noise_var, continued=True):
    matrix = phi.to_dense()
    Sigma = np.linalg.inv(matrix.conj().T @ matrix / noise_var + np.diag(alpha))
    if not continued:
        return PosteriorContext(phi, alpha, noise_var), Sigma
    variance = np.diagonal(Sigma).real
    # As after the step before.
    return ContinuedContext(phi, alpha, noise_var, mean=np.zeros(alpha.size), variance=1.3 * variance), Sigma


def estimated(estimator, context, Sigma, seed=0):
    rng = np.random.default_rng(1000 + seed)
    carry = estimator.init(context, rng)
    rhs = estimator.right_hand_sides(context, carry, rng)
    return estimator.estimate(context, carry, rhs, rhs.b @ Sigma.T)


def error_in_what_the_data_say(value, context, Sigma):
    variance = np.diagonal(Sigma).real
    gamma = 1 - context.alpha * variance
    return float(np.mean((value / variance - 1) ** 2) / np.mean(gamma**2))


#: At small size, every kind of the benchmark that clusters are for, and how wrong clusters of one are.
KINDS = {
    "blur, width 2.5": (blur(2.5), 0.05),
    "blur, width 1": (blur(1.0), 0.02),
    "two axes": (Convolution(np.outer(gaussian(1.4), gaussian(1.4)), (16, 16)), 0.02),
    "decay": (Convolution(0.98 ** np.arange(100), 256, causal=True), 0.02),
    "linear": (blur(2.5, mode="linear"), 0.05),
    "near duplicates": (Dense(twins()), 0.02),
    "blocks": (Dense(problems.in_blocks(256, 0).Phi), 0.01),
}


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_clusters_against_exact_variances(name, continued):
    Phi, of_one = KINDS[name]
    rng = np.random.default_rng(0)
    energy = Phi.column_norms() ** 2
    live = rng.random(energy.size) < 0.05
    alpha = energy * np.where(live, 1.0, 10 ** rng.uniform(2, 5, energy.size))
    context, Sigma = posterior(dictionary(Phi), alpha, 1e-4 * energy.mean(), continued)
    found, alone = (
        np.median(
            [
                error_in_what_the_data_say(estimated(kind, context, Sigma, seed).value, context, Sigma)
                for seed in range(6)
            ]
        )
        for kind in (Clusters(), Pooled())
    )
    assert found < 0.06
    assert found < alone / 2 or alone < of_one


def test_couplings_that_no_columns_have_take_nothing_from_others():
    # Correlations of -3 are not those of any columns; the third has no part in it.
    whole = np.array([[1.0, -3.0, 0.0], [-3.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    places = np.array([[1, 2, 0], [0, 2, 1], [0, 1, 2]])
    couplings = StoredCouplings(places, whole[places[:, :, None], places[:, None, :]])
    strength = np.array([1.0, 1.0, 0.01])
    shared = in_clusters(couplings, strength, 10.0)
    assert np.all((shared >= 0) & (shared <= strength))


def test_clusters_of_all_columns_are_exact():
    """With c = beta and all columns in each cluster nothing is approximate."""
    phi = dictionary(twins(40, 8))
    alpha = np.geomspace(1, 100, 8)
    matrix = phi.to_dense()
    whole = correlations(phi)
    places = np.array([[*np.delete(np.arange(8), j), j] for j in range(8)])
    couplings = StoredCouplings(places, whole[places[:, :, None], places[:, None, :]])
    strength = phi.column_energy / alpha
    shared = in_clusters(couplings, strength, 100.0)
    exact = np.diagonal(np.linalg.inv(100.0 * matrix.T @ matrix + np.diag(alpha)))
    np.testing.assert_allclose(1 / alpha / (1 + 100.0 * shared), exact, rtol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    width=st.floats(0.3, 4.0),
    decades=st.floats(0.0, 8.0),
    noise=st.floats(1e-6, 1.0),
)
def test_cluster_variances_are_within_their_bounds(seed, width, decades, noise):
    rng = np.random.default_rng(seed)
    phi = dictionary(blur(width, 64))
    context, Sigma = posterior(phi, 10 ** rng.uniform(0, decades, 64), noise)
    value = estimated(Clusters(), context, Sigma, seed).value
    assert np.isfinite(value).all()
    assert (value >= context.floor * (1 - 1e-9)).all()
    assert (value <= context.g * (1 + 1e-9)).all()


# --- fits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blur, width 2.5", "2-D blur, width 1.4", "decay 0.98", "near duplicates"])
def test_fits_end_where_exact_em_does(kind):
    ratios = []
    for seed in range(3):
        case = problems.COHERENT[kind](600, seed)
        method = cofem.CoFEM(diagonal="clusters")
        post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=method, rng=0)
        exact = cofem.fit(
            case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(diagonal="exact"), rng=0
        )
        assert "ran out" not in str(post.status)
        ratios.append(case.nrmse(post.mean) / case.nrmse(exact.mean))
    assert np.median(ratios) < 1.15


@pytest.mark.parametrize("name", ["blur, width 2.5", "2-D blur, width 1.4", "decay 0.98"])
def test_tiles_are_as_good_as_clusters_around_each_place(name):
    case = problems.COHERENT[name](900, 0)
    phi = dictionary(case.Phi)
    rng = np.random.default_rng(1)
    strength = np.where(rng.random(phi.shape[1]) < 0.05, 1e4, 10 ** rng.uniform(-1, 2, phi.shape[1]))
    couplings = find_couplings(phi)
    root = np.sqrt(strength / phi.column_energy)
    matrix = np.eye(strength.size) + root[:, None] * phi.gram(np.eye(strength.size)) * root
    exact = np.diag(np.linalg.inv(matrix))  # in units of the prior
    errors = [
        np.mean((1 / (1 + shared) / exact - 1) ** 2) / np.mean((1 - exact) ** 2)
        for shared in (
            in_tiles(tiles_of(phi, couplings), strength, 1.0),
            in_clusters(couplings, strength, 1.0),
        )
    ]
    assert errors[0] < max(2 * errors[1], 0.005)


def test_equal_strengths_are_the_same_everywhere():
    phi = dictionary(blur(2.5, 100))  # not a multiple of the tile
    tiles = tiles_of(phi, find_couplings(phi))
    nearly = np.full(100, 3.0)
    nearly[0] *= 1 + 1e-12  # for which every tile is computed
    np.testing.assert_allclose(
        in_tiles(tiles, np.full(100, 3.0), 1.0), in_tiles(tiles, nearly, 1.0), rtol=0.05
    )


def test_a_factor_in_place_of_many_steps_gives_the_same_fit(monkeypatch):
    case = problems.in_blocks(1200, 0)
    fits = []
    for cost in (0.1, np.inf):
        monkeypatch.setattr("cofem.inference.solver.FACTOR_COST", cost)
        fits.append(cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(), rng=0))
    assert 0 in fits[0].history["cg_iterations"]  # it was used
    assert 0 not in fits[1].history["cg_iterations"]
    assert case.nrmse(fits[0].mean) < 1.1 * case.nrmse(fits[1].mean)


def test_large_blurs_are_left_to_clusters():
    case = problems.convolved(gaussian(2.5), 4096, 0)  # beyond what the exact diagonal takes over
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=cofem.CoFEM(), rng=0)
    assert post.converged
    assert post.history["diagonal"][-1] == "clusters"
    assert "variances by 'clusters', because columns are much alike" in str(post.status)
    assert "ran out" not in str(post.status)
    assert post.history["applications"][-1] < 10_000


@pytest.mark.parametrize(
    ("Phi", "names"),
    [
        (blur(2.5, 512), ["exact"]),
        (blur(2.5, 513), ["self_consistent", "clusters", "windows", "exact"]),
        (blur(2.5, 2048), ["self_consistent", "clusters", "windows", "exact"]),
        (blur(2.5, 2049), ["self_consistent", "clusters", "windows", "corrected"]),
        (DCT(4096), ["self_consistent", "corrected"]),
        (Convolution(np.ones((3, 3)), (64, 64)), ["self_consistent", "clusters", "windows", "corrected"]),
        (Sparse(scipy.sparse.eye_array(4096)), ["self_consistent", "clusters", "corrected"]),
    ],
)
def test_candidates_around_every_threshold(Phi, names):
    context = PosteriorContext(dictionary(Phi), np.ones(Phi.shape[1]), 1.0)
    assert [estimator.name for estimator in Gate().candidates(context)] == names


def test_stored_columns_are_compared_up_to_a_size(monkeypatch):
    phi = dictionary(Sparse(scipy.sparse.eye_array(300)))
    assert has_couplings(phi)
    monkeypatch.setattr("cofem.linalg.find_couplings.MOST_COMPARED", 299)
    assert not has_couplings(phi)


@pytest.mark.parametrize("diagonal", ["clusters", "windows"])
def test_a_killed_fit_with_clusters_goes_on_as_it_would_have(tmp_path, diagonal):
    case = problems.convolved(gaussian(2.5), 600, 0)
    settings = {"noise_std": case.noise_std, "method": cofem.CoFEM(diagonal=diagonal), "rng": 0}
    whole = cofem.fit(case.Phi, case.y, **settings)
    path = tmp_path / "fit.npz"

    def stop(state):
        return state.iteration == 9

    cofem.fit(case.Phi, case.y, checkpoint=path, callback=stop, **settings)
    resumed = cofem.fit(case.Phi, case.y, resume=path, **settings)
    np.testing.assert_array_equal(resumed.mean, whole.mean)
    np.testing.assert_array_equal(resumed.variance, whole.variance)


# --- the noise, and what a status says ----------------------------------------------------------------


@pytest.mark.parametrize(("seed", "stored"), [(0, False), (1, False), (2, False), (3, False), (0, True)])
def test_noise_of_decays(seed, stored):
    rng = np.random.default_rng(seed)
    spikes = rng.poisson(0.03, 400).astype(float)
    Phi = Convolution(0.95 ** np.arange(100), 400, mode="linear", causal=True)
    y = Phi @ spikes + 0.1 * rng.standard_normal(400)
    Phi = Phi.to_dense() if stored else Phi
    post = cofem.fit(Phi, y, nonnegative=True, rng=0)
    assert 1 / 1.5 < post.noise_std / 0.1 < 1.5


def test_error_of_most():
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(1000)
    assert error_of_most(normal) == np.mean(normal**2)
    waves = (normal + 1j * rng.standard_normal(1000)) / 2**0.5
    assert error_of_most(waves) == np.mean(np.abs(waves) ** 2)
    far = np.where(np.arange(1000) < 100, 30.0, 1.0)
    assert error_of_most(far * normal) == pytest.approx(1.0, rel=0.25)
    assert error_of_most(far * waves) == pytest.approx(1.0, rel=0.25)
    few = np.array([1.0, 1.0, 50.0])
    assert error_of_most(few) == np.mean(few**2)


def test_coefficients_that_the_data_cannot_tell_apart_are_pointed_out():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((60, 40))
    y = 2 * Phi[:, 0] + 0.01 * rng.standard_normal(60)
    post = cofem.fit(Phi, y, noise_std=0.01, rng=0)
    assert "expects the mean" not in str(post.status)
    Phi[:, 1] = Phi[:, 0]
    post = cofem.fit(Phi, y, noise_std=0.01, rng=0)
    expected = np.sqrt(post.variance.sum()) / np.linalg.norm(post.mean)
    assert expected > 0.5
    assert f"expected relative error of post.mean is {100 * expected:.0f} %" in str(post.status)


def test_sharp_columns_that_make_a_smooth_signal_are_pointed_out():
    rng = np.random.default_rng(0)
    Phi = Convolution(np.outer(gaussian(2.0), gaussian(2.0)), (24, 24))
    x, y = np.mgrid[:24, :24]
    clean = Phi @ np.exp(-((x - 9) ** 2 + (y - 14) ** 2) / 18.0).ravel()
    noise = 0.02 * np.std(clean)
    settings = {"noise_std": noise, "rng": 0, "tol": 1e-2}
    post = cofem.fit(Phi, clean + noise * rng.standard_normal(576), **settings)
    assert "the selected columns overlap strongly" in str(post.status)
    apart = Phi @ np.isin(np.arange(576), [100, 300, 450]).astype(float)
    post = cofem.fit(Phi, apart + 0.01 * rng.standard_normal(576), **settings | {"noise_std": 0.01})
    assert "act together" not in str(post.status)


# --- parts that nothing but the noise is wanted of ----------------------------------------------------


def test_rows_may_be_missing_on_the_average():
    phi = dictionary(Convolution(0.9 ** np.arange(40), 512, causal=True))
    rows = np.setdiff1d(np.arange(512), np.arange(7, 500, 40))
    roughly, exactly = phi.take_rows(rows, on_average=True), phi.take_rows(rows)
    assert roughly is phi.take_rows(rows, on_average=True)
    assert isinstance(find_couplings(roughly), GridCouplings)
    assert known_bands(roughly) is None
    assert isinstance(find_couplings(exactly), LocalCouplings)
    assert known_bands(exactly) is not None


@pytest.mark.parametrize("taps", [120, 64], ids=["decay", "random"])
def test_the_noise_of_a_convolution_needs_no_exact_variances(taps, monkeypatch):
    # Bands of 120 took 0.1 s in each step of a part; what it says of data that were held out is the same.
    rng = np.random.default_rng(3)
    kernel = 0.98 ** np.arange(taps) if taps > 64 else rng.standard_normal(taps)
    Phi, z = Convolution(kernel / np.linalg.norm(kernel), 4096, causal=True), np.zeros(4096)
    z[rng.choice(4096, 80, replace=False)] = rng.standard_normal(80)
    y = Phi @ z + 0.02 * rng.standard_normal(4096)

    def refuse(*arguments):
        raise AssertionError("exact variances were asked for")

    for name in ("banded_shares", "exact_shares", "decaying_shares"):
        monkeypatch.setattr(f"cofem.linalg.diagonals.exact.{name}", refuse)
    post = cofem.fit(Phi, y, rng=0)
    assert post.converged
    assert 0.85 < post.noise_std / 0.02 < 1.15
    known = cofem.fit(Phi, y, noise_std=0.02, rng=0)
    assert np.linalg.norm(post.mean - z) < 1.2 * np.linalg.norm(known.mean - z)


# --- what is known well, taken out of the system --------------------------------------------------------


@pytest.mark.parametrize("name", ["one axis", "two axes", "complex kernel", "stack", "transformed"])
def test_gram_matrices_of_some_columns(name):
    Phi = EXACT[name]
    matrix = Phi.to_dense()
    chosen = np.array([0, 1, 3, 7, Phi.shape[1] - 1])
    found = sparse_gram(gram_entries(dictionary(Phi)), chosen).toarray()
    np.testing.assert_allclose(found, (matrix.conj().T @ matrix)[np.ix_(chosen, chosen)], atol=1e-12)


@pytest.mark.parametrize("shape", [(16,), (17,), (6, 8), (5, 8)], ids=str)
@pytest.mark.parametrize("seen", [1.0, 0.8])
@pytest.mark.parametrize("of_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("mode", ["circular", "linear"])
def test_gram_matrices_of_kernels_as_large_as_the_grid(shape, seen, of_complex, mode):
    # Half of an even length is its own opposite, and was counted twice; with borders, what is coupled across
    # more than half of the grid was left out.
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if of_complex else 0)
    size = kernel.size
    rows = np.sort(rng.choice(size, round(seen * size), replace=False))
    Phi = Convolution(kernel, shape, causal=True, mode=mode)
    Phi = Phi if seen == 1 else Mask(rows, size) @ Phi
    matrix, chosen = Phi.to_dense(), np.flatnonzero(rng.random(size) < 0.7)
    found = sparse_gram(gram_entries(dictionary(Phi)), chosen).toarray()
    np.testing.assert_allclose(found, (matrix.conj().T @ matrix)[np.ix_(chosen, chosen)], atol=1e-10)


def test_kernels_longer_than_half_of_the_grid_are_fitted():
    # The matrix of what was found had wrong entries, and was not positive definite.
    rng = np.random.default_rng(739)
    Phi, z = Convolution(0.98 ** np.arange(200), 256, causal=True), np.zeros(256)
    z[rng.choice(256, 10, replace=False)] = rng.standard_normal(10)
    y = Phi @ z + 0.01 * rng.standard_normal(256)
    post = cofem.fit(Phi, y, rng=0)
    assert np.linalg.norm(post.mean - z) < 0.1 * np.linalg.norm(z)


def neighbours(size=512, noise_var=1e-4):
    """Return a blur, and precisions of a fit that has found pairs next to each other."""
    alpha = 10 ** np.random.default_rng(0).uniform(4, 6, size)
    alpha[20::40] = alpha[21::40] = 1.0
    return dictionary(blur(2.5, size)), alpha, noise_var


def test_neighbours_that_were_found_take_few_steps():
    phi, alpha, noise_var = neighbours()
    rng = np.random.default_rng(1)
    v, b = rng.standard_normal((2, 512)), rng.standard_normal((2, 512)) * np.sqrt(alpha)
    system = build_system(phi, alpha, noise_var)
    assert isinstance(system.preconditioner, Deflated)
    plain = PosteriorSystem(phi, alpha, noise_var, "primal", system.preconditioner.inner)
    found = system.solve(v, b.copy(), tol=1e-5, max_iter=400)
    slow = plain.solve(v, b.copy(), tol=1e-5, max_iter=4000)
    assert found.cg.converged.all()
    assert found.cg.iterations.max() < slow.cg.iterations.max() / 3
    matrix = phi.to_dense()
    A = matrix.T @ matrix / noise_var + np.diag(alpha)
    wanted = np.linalg.solve(A, np.concatenate([v @ matrix / noise_var, b]).T).T
    error = found.x - wanted
    size = np.sqrt(np.einsum("ij,jk,ik->i", error, A, error))
    assert (size[:2] < 1e-4 * np.sqrt(512)).all()
    assert (size[2:] < 1e-4 * np.sqrt(np.einsum("ij,jk,ik->i", wanted, A, wanted)[2:])).all()


@pytest.mark.parametrize("complex_data", [False, True])
def test_a_guess_is_no_hindrance(complex_data):
    phi, alpha, noise_var = neighbours()
    rng = np.random.default_rng(1)
    v = rng.standard_normal((1, 512)) + (1j * rng.standard_normal((1, 512)) if complex_data else 0)
    system = build_system(phi, alpha, noise_var)
    first = system.solve(v, tol=1e-6, max_iter=400).x
    again = system.solve(v, tol=1e-6, max_iter=400, guess=first + 0.01 * np.abs(first).max())
    assert again.cg.converged.all()
    np.testing.assert_allclose(again.x, first, atol=1e-4 * np.abs(first).max())


def test_nothing_is_taken_out_while_all_precisions_are_alike():
    phi, _, noise_var = neighbours()
    for alpha in (np.ones(512), np.full(512, 1e8)):
        assert isinstance(build_system(phi, alpha, noise_var).preconditioner, FourierPreconditioner)
    rows = np.arange(0, 512, 2)
    masked = dictionary(Mask(rows, 512) @ blur(2.5, 512))  # like a circulant, but not one
    system = build_system(masked, neighbours()[1], noise_var, form="primal")
    assert not isinstance(system.preconditioner, Deflated)


# --- shares that are kept from step to step -------------------------------------------------------------


def test_only_what_moved_is_computed_again():
    phi = dictionary(blur(2.5, 320))
    tiles = tiles_of(phi, find_couplings(phi))
    rng = np.random.default_rng(0)
    strength = 10 ** rng.uniform(-1, 3, 320)
    whole = in_tiles(tiles, strength, 1.0)
    before = Shares(strength, whole / strength)
    assert np.isnan(in_tiles(tiles, 1.01 * strength, 1.0, before)).all()
    moved = strength.copy()
    moved[100] *= 20
    found = in_tiles(tiles, moved, 1.0, before)
    computed = np.isfinite(found)
    assert computed[100]
    assert 16 <= computed.sum() <= 64  # its tile, and those that it is coupled with
    np.testing.assert_allclose(found[computed], in_tiles(tiles, moved, 1.0)[computed])
    after = before.updated(moved, found, moved)
    np.testing.assert_array_equal(after.known, np.where(computed, moved, strength))
    np.testing.assert_allclose(after.share[~computed], before.share[~computed])


def test_only_stored_columns_that_moved_are_computed_again():
    phi = dictionary(twins(60, 40))
    couplings = find_couplings(phi)
    strength = np.geomspace(1, 1e3, 40)
    whole = in_clusters(couplings, strength, 1.0)
    before = Shares(strength, whole / strength)
    moved = strength.copy()
    moved[20] *= 20
    found = in_clusters(couplings, moved, 1.0, before)
    assert set(np.flatnonzero(np.isfinite(found))) == {20, 21}  # it and its twin
    np.testing.assert_allclose(found[20:22], in_clusters(couplings, moved, 1.0)[20:22])


def test_inverses_of_triangles():
    lower = np.tril(np.random.default_rng(0).standard_normal((3, 5, 5))) + 3 * np.eye(5)
    np.testing.assert_allclose(
        inverses_of_lower(lower) @ lower, np.broadcast_to(np.eye(5), (3, 5, 5)), atol=1e-12
    )


# --- the noise on grids, and single pixels ----------------------------------------------------------------


def test_the_spread_of_rows_that_were_held_out():
    """Errors of neighbours cancel in a datum, which the diagonal alone does not know."""
    case = problems.convolved(np.outer(gaussian(1.4), gaussian(1.4)), 576, 0)
    settings = {"noise_std": case.noise_std, "rng": 0, "method": "em"}
    post = cofem.fit(case.Phi, case.y, **settings)
    rows = np.arange(0, 576, 8)
    kept = np.setdiff1d(np.arange(576), rows)
    Phi = Mask(kept, 576) @ case.Phi
    problem = Problem(dictionary(Phi), case.y[kept], noise_var=case.noise_std**2)
    unseen = Mask(rows, 576) @ case.Phi
    matrix, held = Phi.to_dense(), unseen.to_dense()
    Sigma = np.linalg.inv(matrix.T @ matrix / case.noise_std**2 + np.diag(post.alpha))
    state = State(post.alpha, post.mean, np.diag(Sigma).copy())
    rule = FromHeldOut(unseen, case.y[rows], unseen.column_norms() ** 2, local=True)
    exact = np.mean(np.sum((held @ Sigma) * held, axis=1))
    by_diagonal = FromHeldOut(unseen, case.y[rows], unseen.column_norms() ** 2)._spread(problem, state, True)
    assert rule._spread(problem, state, True) == pytest.approx(exact, rel=0.35)
    assert by_diagonal > 2 * exact


@pytest.mark.parametrize("size", [24, 32])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sky_in_single_pixels_is_said_to_be_none(size, seed):
    rng = np.random.default_rng(seed)
    sky, (i, j) = np.zeros((size, size)), np.indices((size, size))
    for _ in range(size**2 // 100):
        place, width = rng.uniform(0, size, 2), rng.uniform(0.8, 2.5)
        apart = np.hypot(*((x - p + size / 2) % size - size / 2 for x, p in zip((i, j), place, strict=True)))
        sky += rng.lognormal() * np.exp(-apart / width)
    Phi = Convolution(np.outer(gaussian(2.0), gaussian(2.0)), (size, size))
    clean = Phi @ sky.ravel()
    noise = 0.01 * clean.max()
    y = clean + noise * rng.standard_normal(clean.size)
    post = cofem.fit(Phi, y, noise_std=noise, rng=0)
    error = np.linalg.norm(post.mean - sky.ravel()) / np.linalg.norm(sky)
    assert error > 0.5
    assert "individual coefficients are unreliable" in str(post.status)


def test_two_neighbours_are_no_sky():
    Phi = Convolution(gaussian(2.5), 200)
    z = np.isin(np.arange(200), [50, 52]).astype(float)
    y = Phi @ z
    ratio = y @ y / (2 * np.sum(Phi.column_norms()[:1] ** 2))
    assert ratio > 1.7  # as in a smooth signal, but two may be next to each other by chance
    post = cofem.fit(Phi, y + 1e-3 * np.random.default_rng(0).standard_normal(200), noise_std=1e-3, rng=0)
    assert "act together" not in str(post.status)
