import json

import numpy as np
import pytest
import scipy.stats

import cofem
from cofem.linalg import direct
from cofem.linalg.build import build_system
from cofem.operators import Convolution, Mask

from .problems import complex_case, dct_case, dense_case, exact_posterior

CASES = {
    "dense": dense_case(D=48, f=2, noise_std=0.3, seed=1),
    "dct": dct_case(D=64, noise_std=0.1),
    "tall": dense_case(D=24, f=1, noise_std=0.3),
    "complex": complex_case(D=32, noise_std=0.1),
}


def fitted(name, **options):
    case = CASES[name]
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, max_iter=8, **options)
    mean, covariance = exact_posterior(case.Phi, case.y, post.alpha, case.noise_std)
    return case, post, mean, covariance


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_exact_mean_and_covariance(name):
    case, post, mean, covariance = fitted(name)
    n = 6000
    draws = post.sample(n, rng=0)
    assert draws.shape == (n, case.z.size)
    assert draws.dtype == post.mean.dtype
    std = np.sqrt(np.diagonal(covariance).real)
    centred = (draws - mean) / std
    assert np.abs(centred.mean(axis=0)).max() < 5 / np.sqrt(n)
    correlation = covariance / np.outer(std, std)
    sampled = centred.T @ centred.conj() / n
    assert np.abs(sampled - correlation).max() < 6 / np.sqrt(n)


def test_samples_are_reproducible():
    _, post, _, _ = fitted("dct")
    assert np.array_equal(post.sample(40, rng=3), post.sample(40, rng=3))
    assert not np.array_equal(post.sample(2, rng=3), post.sample(2, rng=4))


@pytest.mark.parametrize("name", CASES)
def test_covariance_on_demand_is_exact(name):
    _, post, _, covariance = fitted(name)
    indices = [3, 17, 4, -1]
    got = post.covariance(indices)
    want = covariance[np.ix_(indices, indices)]
    assert np.allclose(got, want, atol=1e-5 * np.abs(want).max())
    assert post.covariance(5).shape == (1, 1)


@pytest.mark.parametrize("name", CASES)
def test_prediction_and_its_standard_deviation(name):
    case, post, _, covariance = fitted(name)
    rng = np.random.default_rng(0)
    new = rng.standard_normal((5, case.z.size)).astype(covariance.dtype)
    mean, std = post.predict(new, return_std=True)
    exact = np.einsum("ij,jk,ik->i", new, covariance, new.conj()).real
    assert np.allclose(mean, new @ post.mean)
    assert np.allclose(std**2, exact + case.noise_std**2, rtol=1e-4)
    _, inner = post.predict(new, return_std=True, include_noise=False)
    assert np.allclose(inner**2, exact, rtol=1e-4)
    assert np.allclose(post.predict(), cofem.as_operator(case.Phi) @ post.mean)


@pytest.mark.parametrize("name", CASES)
def test_prediction_at_many_rows_is_exact_where_one_side_is_small(name):
    case, post, _, covariance = fitted(name)
    new = np.random.default_rng(0).standard_normal((300, case.z.size)).astype(covariance.dtype)
    new = new + 1j * new[:, ::-1] if np.iscomplexobj(new) else new
    _, std = post.predict(new, return_std=True, include_noise=False)
    exact = np.einsum("ij,jk,ik->i", new, covariance, new.conj()).real
    np.testing.assert_allclose(std**2, exact, rtol=1e-8)


def test_prediction_at_many_rows_uses_samples(monkeypatch):
    monkeypatch.setattr(direct, "EXACT_SIDE", 0)
    case, post, _, covariance = fitted("dense")
    new = np.random.default_rng(0).standard_normal((300, case.z.size))
    _, std = post.predict(new, return_std=True, include_noise=False, rng=0)
    exact = np.sqrt(np.einsum("ij,jk,ik->i", new, covariance, new))
    assert np.abs(std / exact - 1).max() < 0.3
    assert abs(np.mean(std / exact) - 1) < 0.1


@pytest.mark.parametrize("name", CASES)
def test_a_factor_and_conjugate_gradients_give_the_same(name, monkeypatch):
    _, post, _, covariance = fitted(name)
    draws, some = post.sample(4, rng=0), post.covariance([2, 5])
    monkeypatch.setattr(direct, "EXACT_SIDE", 0)
    np.testing.assert_allclose(
        some, covariance[np.ix_([2, 5], [2, 5])], rtol=1e-8, atol=1e-9 * np.abs(some).max()
    )
    std = np.sqrt(np.diagonal(covariance).real)
    assert np.abs((post.sample(4, rng=0) - draws) / std).max() < 1e-3


def blurred_spikes(size, max_iter=100):
    """Spikes seen through a blur, at half of the places."""
    rng, n_spikes = np.random.default_rng(0), round(0.03 * size)
    kernel = np.exp(-0.5 * (np.arange(-12, 13) / 2.5) ** 2)
    Phi = Mask(np.sort(rng.choice(size, size // 2, replace=False)), size)
    Phi = Phi @ Convolution(kernel / kernel.sum(), size)
    z = np.zeros(size)
    z[rng.choice(size, n_spikes, replace=False)] = 3 * rng.standard_normal(n_spikes)
    y = Phi @ z + 0.01 * rng.standard_normal(size // 2)
    return Phi, y, cofem.fit(Phi, y, noise_std=0.01, method="cofem", rng=0, max_iter=max_iter)


@pytest.mark.parametrize(
    ("max_iter", "like_a_convolution", "better"),
    [(2, True, "primal"), (2, False, "dual"), (100, True, "primal"), (100, False, "primal")],
)
def test_systems_are_solved_in_the_form_of_fewer_steps(max_iter, like_a_convolution, better, monkeypatch):
    if not like_a_convolution:  # as for operators that only their users know
        monkeypatch.setattr(Convolution, "_circulant_gram", lambda self: None)
    Phi, _, post = blurred_spikes(1024, max_iter)
    rng = np.random.default_rng(1)
    v = Phi @ (rng.standard_normal(1024) / np.sqrt(post.alpha)) + 0.01 * rng.standard_normal(512)
    solver = post._solver("test")
    system = build_system(solver.phi, solver.alpha, solver.noise_var)
    assert system.form == better
    steps = {
        form: build_system(solver.phi, solver.alpha, solver.noise_var, form=form)
        .solve(v[None], tol=1e-5, max_iter=10000)
        .cg.iterations.max()
        for form in ("primal", "dual")
    }
    assert steps[better] == min(steps.values())


@pytest.mark.parametrize("side", [0, 2048])
def test_samples_of_an_ill_conditioned_dictionary_have_the_exact_covariance(side, monkeypatch):
    monkeypatch.setattr(direct, "EXACT_SIDE", side)
    Phi, y, post = blurred_spikes(256)
    mean, covariance = exact_posterior(Phi, y, post.alpha, 0.01)
    # In the directions of the posterior all draws are standard normal.
    values, vectors = np.linalg.eigh(covariance)
    n = 1000
    white = (post.sample(n, rng=0) - mean) @ vectors / np.sqrt(values)
    assert np.abs(white.mean(axis=0)).max() < 5 / np.sqrt(n)
    assert np.abs(white.T @ white / n - np.eye(values.size)).max() < 7 / np.sqrt(n)


def test_intervals_and_support():
    _, post, _, _ = fitted("dense")
    lower, upper = post.credible_interval(0.95)
    assert np.allclose((upper - lower) / 2, 1.959964 * post.std)
    assert np.allclose((upper + lower) / 2, post.mean)
    narrow = post.credible_interval(0.5)
    assert (narrow[1] - narrow[0] < upper - lower).all()
    lower, upper = post.credible_interval(1 - 0.05 / post.mean.size)
    outside = np.flatnonzero((lower > 0) | (upper < 0))
    assert outside.size > 0
    assert np.array_equal(post.support(0.95), outside)
    assert post.support(0.999).size <= post.support(0.5).size


def test_complex_intervals_hold_each_part_with_the_stated_probability():
    _, post, _, _ = fitted("complex", method="em")
    lower, upper = post.credible_interval(0.8)
    draws = post.sample(4000, rng=0)
    for part in (np.real, np.imag):
        inside = (part(draws) > part(lower)) & (part(draws) < part(upper))
        assert np.mean(inside) == pytest.approx(0.8, abs=0.01)
    far = np.abs(draws - post.mean) ** 2 > -np.log(0.2) * post.variance
    assert np.mean(far) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("name", CASES)
def test_save_and_load_bring_everything_back(name, tmp_path):
    case, post, _, _ = fitted(name)
    path = tmp_path / "fit.npz"
    post.save(path)
    back = cofem.load(path, operator=case.Phi)
    for field in ("mean", "variance", "alpha", "y"):
        assert np.array_equal(getattr(back, field), getattr(post, field))
        assert getattr(back, field).dtype == getattr(post, field).dtype
    assert back.status == post.status
    assert (back.noise_std, back.method, back.n_iter) == (post.noise_std, post.method, post.n_iter)
    assert back.history.keys() == post.history.keys()
    assert np.array_equal(back.sample(3, rng=0), post.sample(3, rng=0))
    assert [p.name for p in tmp_path.iterdir()] == ["fit.npz"]


def test_without_operator_what_needs_it_says_so(tmp_path):
    _, post, _, _ = fitted("dct")
    post.save(tmp_path / "fit.npz")
    back = cofem.load(tmp_path / "fit.npz")
    assert back.support().size == post.support().size
    for call in (lambda: back.sample(1), lambda: back.covariance([0]), lambda: back.predict()):
        with pytest.raises(ValueError, match="operator"):
            call()
    with pytest.raises(ValueError, match="operator must have shape"):
        cofem.load(tmp_path / "fit.npz", operator=np.eye(3))


def test_foreign_truncated_and_newer_files_are_refused(tmp_path):
    _, post, _, _ = fitted("dct")
    good = tmp_path / "fit.npz"
    post.save(good)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:500])
    np.savez(tmp_path / "foreign.npz", a=np.ones(3))
    np.savez(tmp_path / "pickled.npz", header=np.array([{"format": "x"}], dtype=object))
    for name in ("text", "cut", "foreign", "pickled"):
        with pytest.raises(ValueError, match=r"path must be a file written by Posterior\.save"):
            cofem.load(tmp_path / f"{name}.npz")
    with np.load(good) as file:
        contents = dict(file)
    header = json.loads(str(contents["header"]))
    np.savez(tmp_path / "new.npz", **(contents | {"header": np.array(json.dumps(header | {"version": 99}))}))
    with pytest.raises(ValueError, match="newer cofem"):
        cofem.load(tmp_path / "new.npz")
    del contents["mean"]
    np.savez(tmp_path / "damaged.npz", **contents)
    with pytest.raises(ValueError, match="damaged"):
        cofem.load(tmp_path / "damaged.npz")
    with pytest.raises(FileNotFoundError):
        cofem.load(tmp_path / "missing.npz")


def test_a_failed_save_leaves_no_file_and_keeps_the_old_one(tmp_path, monkeypatch):
    _, post, _, _ = fitted("dct")
    path = tmp_path / "fit.npz"
    post.save(path)
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("numpy.savez", full)
    with pytest.raises(OSError, match="no space"):
        post.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["fit.npz"]


def test_repr_tells_the_essentials():
    _, post, _, _ = fitted("dct")
    assert "64 coefficients" in repr(post)
    assert post.method in repr(post)


# --- the support of several tasks -----------------------------------------------------------------------

N_ANGLES = 180


def arrivals(seed: int, snapshots: int = 50, sensors: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three sources at 0 dB, within 50 degrees of the broadside of a line of sensors.

    Returns the dictionary of directions, the data and the indices of the sources.
    """
    rng = np.random.default_rng(seed)
    directions = np.sin(np.deg2rad(np.linspace(-90, 90, N_ANGLES, endpoint=False)))
    Phi = np.exp(1j * np.pi * np.arange(sensors)[:, None] * directions)
    sources = np.sort(rng.choice(np.arange(45, 65), 3, replace=False)) + np.array([0, 25, 60])

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2)

    return Phi, Phi[:, sources] @ normal(3, snapshots) + normal(sensors, snapshots), sources


@pytest.mark.parametrize("noise_std", [1.0, "learn"])
@pytest.mark.parametrize("seed", range(8))
def test_tasks_that_share_precisions_pool_their_evidence(seed, noise_std):
    Phi, Y, sources = arrivals(seed)
    post = cofem.fit(Phi, Y, noise_std=noise_std, prior=cofem.MultiTask(), rng=0)
    found = post.support()
    distance = np.abs(found[:, None] - sources)
    assert (distance.min(axis=0) <= 1).all()
    assert (distance.min(axis=1) <= 2).all()
    assert found.size <= 6
    assert np.mean([post.task(i).support().size for i in range(10)]) < 2  # snapshots by themselves tell less


def test_tasks_with_dictionaries_of_their_own_pool_as_well():
    rng = np.random.default_rng(0)
    Z = np.zeros((60, 12))
    Z[[5, 33]] = rng.choice([-0.35, 0.35], (2, 12))
    Phis = [rng.standard_normal((40 + i, 60)) for i in range(12)]
    ys = [Phi @ z + rng.standard_normal(Phi.shape[0]) for Phi, z in zip(Phis, Z.T, strict=True)]
    post = cofem.fit(Phis, ys, noise_std=1.0, prior=cofem.MultiTask(), rng=0)
    assert post.support().tolist() == [5, 33]
    assert not {5, 33} <= {int(j) for i in range(3) for j in post.task(i).support()}


@pytest.mark.parametrize("kind", ["one dictionary", "dictionaries", "nonnegative", "nothing shared"])
def test_nothing_is_found_in_noise_alone(kind):
    wrong = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        Phi = rng.standard_normal((30, 60))
        Y = rng.standard_normal((30, 10))
        settings = dict(noise_std=1.0, prior=None if kind == "nothing shared" else cofem.MultiTask(), rng=0)
        if kind == "dictionaries":
            post = cofem.fit([Phi, Phi[::-1]], [Y[:, 0], Y[:, 1]], **settings)
        else:
            post = cofem.fit(Phi, Y, nonnegative=kind == "nonnegative", **settings)
        wrong += post.support().size
    assert wrong <= 1


def test_nonnegative_tasks_pool_as_well():
    rng = np.random.default_rng(1)
    Phi = rng.standard_normal((60, 90))
    Z = np.zeros((90, 12))
    Z[[5, 33]] = 0.3
    Y = Phi @ Z + rng.standard_normal((60, 12))
    settings = dict(noise_std=1.0, prior=cofem.MultiTask(), nonnegative=True, method="irls")
    post = cofem.fit(Phi, Y, **settings)
    assert post.support().tolist() == [5, 33]
    assert sum(post.task(i).support().size for i in range(12)) < 12
    listed = cofem.fit([Phi, Phi], [Y[:, 0], Y[:, 1]], **settings)
    mean, variance = zip(*(task.gaussian for task in listed.tasks), strict=True)
    score = sum(m / np.sqrt(v) for m, v in zip(mean, variance, strict=True)) / np.sqrt(2)
    np.testing.assert_array_equal(listed.support(0.6), np.flatnonzero(score > scipy.stats.norm.isf(0.4 / 90)))


@pytest.mark.parametrize("nonnegative", [False, True])
def test_tasks_that_share_nothing_share_the_bound(nonnegative):
    rng = np.random.default_rng(0)
    Phi, Y = rng.standard_normal((40, 60)), rng.standard_normal((40, 3))
    Y += Phi[:, [4]] * np.array([0.4, 0.6, 0.9])
    post = cofem.fit(Phi, Y, noise_std=1.0, nonnegative=nonnegative, method="irls")
    level = 0.9
    apart = [post.task(i).support(1 - (1 - level) / 3) for i in range(3)]
    np.testing.assert_array_equal(post.support(level), np.unique(np.concatenate(apart)))


def test_pooled_support_is_chi_squared():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((30, 40))
    post = cofem.fit(Phi, rng.standard_normal((30, 5)), noise_std=0.7, prior=cofem.MultiTask(), method="irls")
    pooled = np.sum(post.mean**2 / post.variance, axis=1)
    for level in (0.01, 0.5, 0.95):
        wanted = np.flatnonzero(pooled > scipy.stats.chi2.isf((1 - level) / 40, 5))
        np.testing.assert_array_equal(post.support(level), wanted)
