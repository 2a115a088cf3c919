"""Fits on PyTorch tensors: as on NumPy, on the device of the data, with no copy back to NumPy."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import cofem
from cofem import _packing
from cofem.experiments import problems
from cofem.linalg.diagonals import Pooled
from cofem.operators import (
    DCT,
    FFT,
    Convolution,
    Dense,
    Diagonal,
    Mask,
    Operator,
    check_adjoint,
    hstack,
    vstack,
)
from cofem.operators.squares import SquaredDCT, SquaredHartley

from .operators.market import MARKET
from .problems import complex_case, dct_case, dense_case

torch = pytest.importorskip("torch")

#: Systems solved to the end. Cut short, conjugate gradients make a millionth of a rounding in a few steps, on
#: one library as well as between two, and libraries cannot be told apart by what they give.
TIGHT = dict(cg_tol=1e-9, probe_tol=1e-9, cg_iterations=5000)

#: Vectors of length D or N are longer than this in every test that forbids copies.
LARGE = 64


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing larger than a few numbers leave PyTorch."""
    for name in ("__array__", "numpy", "tolist", "__iter__"):
        allowed = getattr(torch.Tensor, name)

        def refuse(tensor, *arguments, allowed=allowed, name=name, **named):
            assert tensor.numel() <= LARGE, f"{tuple(tensor.shape)} went to NumPy through {name}"
            return allowed(tensor, *arguments, **named)

        monkeypatch.setattr(torch.Tensor, name, refuse)


def as_torch(x: np.ndarray):
    return torch.asarray(np.ascontiguousarray(x))


def close(actual, desired: np.ndarray, rtol: float) -> bool:
    """Whether the relative error of the whole vector is small."""
    assert isinstance(actual, torch.Tensor)
    assert tuple(actual.shape) == desired.shape
    actual = actual.numpy()
    return float(np.linalg.norm(actual - desired)) <= rtol * float(np.linalg.norm(desired))


# --- operators ------------------------------------------------------------------------------------------

#: Kinds of operators that stay with NumPy, by words in their names.
NUMPY_ONLY = ("sparse", "wavelet(", "scipy", "pylops", "chunked", "distributed", "kernelrows", "nufft")


@pytest.mark.parametrize("name", MARKET)
def test_operators_give_what_they_give_on_numpy(name: str) -> None:
    operator = MARKET[name]
    if any(word in f"{name} {operator}".lower() for word in NUMPY_ONLY):
        with pytest.raises(TypeError, match=r"works on NumPy arrays only, got torch\.Tensor"):
            operator.forward(torch.ones(operator.shape[1], dtype=torch.float64))
        return
    rng = np.random.default_rng(0)
    check_adjoint(operator, like=torch.ones(1))
    for batch in ((), (3,), (2, 3)):
        for kind in ("float32", "float64", "complex64", "complex128"):
            for method, axis in (("forward", 1), ("adjoint", 0), ("gram", 1)):
                x = rng.standard_normal((*batch, operator.shape[axis])).astype(kind)
                wanted = getattr(operator, method)(x)
                found = getattr(operator, method)(as_torch(x) if batch else torch.asarray(x))
                assert str(found.dtype).removeprefix("torch.") == str(wanted.dtype)
                single = "float32" in (kind, operator.precision) or kind == "complex64"
                tolerance = 2e-5 if single else 1e-11
                np.testing.assert_allclose(
                    found.numpy(), wanted, rtol=tolerance, atol=tolerance * max(1, np.abs(wanted).max())
                )


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 100, 2**13, 6 * 2**11, 10007])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_cosine_transform_matches_scipy_at_every_kind_of_length(n: int, dtype: type, batch: tuple) -> None:
    x = np.random.default_rng(n).standard_normal((*batch, n)).astype(dtype)
    eps = 20 * np.finfo(dtype).eps * np.abs(x).max()
    np.testing.assert_allclose(
        DCT(n).forward(as_torch(x).reshape(x.shape)).numpy(), DCT(n).forward(x), atol=eps
    )
    np.testing.assert_allclose(
        DCT(n).adjoint(as_torch(x).reshape(x.shape)).numpy(), DCT(n).adjoint(x), atol=eps
    )


@pytest.mark.parametrize("n", [64, 2**13])
@pytest.mark.parametrize("batch", [(), (1,), (4,)])
def test_a_mask_between_cosine_transforms(n: int, batch: tuple) -> None:
    rng = np.random.default_rng(1)
    Phi = Mask(rng.choice(n, n // 4), n) @ DCT(n).T  # rows repeat
    x = rng.standard_normal((*batch, n))
    kept = torch.asarray(x.copy())
    assert np.allclose(Phi.gram(kept).numpy(), Phi.gram(x), atol=1e-12)
    assert np.array_equal(kept.numpy(), x)
    z = x + 1j * rng.standard_normal((*batch, n))
    assert np.allclose(Phi.gram(torch.asarray(z)).numpy(), Phi.gram(z), atol=1e-12)


@pytest.mark.parametrize("squares", [SquaredDCT((7,)), SquaredDCT((4, 6)), SquaredHartley((5, 4))])
def test_squared_transforms(squares: Operator) -> None:
    x = np.random.default_rng(2).standard_normal((2, squares.shape[1]))
    assert np.allclose(squares.forward(torch.asarray(x)).numpy(), squares.forward(x))
    assert np.allclose(squares.adjoint(torch.asarray(x)).numpy(), squares.adjoint(x))


def test_facts_of_operators_that_store_tensors() -> None:
    rng = np.random.default_rng(3)
    matrix, d = rng.standard_normal((20, 30)), rng.standard_normal(30)
    operators = [
        (Dense(torch.asarray(matrix)), Dense(matrix)),
        (Dense(torch.asarray(matrix)) @ Diagonal(torch.asarray(d)), Dense(matrix) @ Diagonal(d)),
        (Diagonal(torch.asarray(d)) @ DCT(30).T, Diagonal(d) @ DCT(30).T),
        (vstack([Dense(torch.asarray(matrix)), DCT(30)]), vstack([Dense(matrix), DCT(30)])),
        (hstack([Dense(torch.asarray(matrix)), DCT(20)]), hstack([Dense(matrix), DCT(20)])),
    ]
    for ours, numpy in operators:
        assert isinstance(ours.device_array, torch.Tensor)
        assert numpy.device_array is None
        assert np.allclose(ours.column_norms().numpy(), numpy.column_norms())
        assert ours.norm == pytest.approx(numpy.norm, rel=1e-6)
        assert np.allclose(ours.to_dense().numpy(), numpy.to_dense())
        check_adjoint(ours)


def test_an_operator_that_stores_tensors_refuses_numpy() -> None:
    with pytest.raises(TypeError, match=r"numbers are torch.Tensor on cpu, but the data are numpy.ndarray"):
        Dense(torch.eye(3)) @ np.ones(3)


# --- fits -----------------------------------------------------------------------------------------------


def test_the_default_is_cofem_and_agrees_with_numpy(no_copies: None) -> None:
    case = dct_case(D=1024, seed=1)
    ours = cofem.fit(case.Phi, torch.asarray(case.y), noise_std=case.noise_std, rng=0)
    assert ours.method == "cofem"
    assert "NumPy arrays only" in str(ours.status)
    assert ours.converged
    assert all(x.dtype == torch.float64 for x in (ours.mean, ours.variance, ours.alpha, ours.std, ours.y))


@pytest.mark.parametrize(
    "diagonal", ["auto", "self_consistent", "pooled", "rademacher", "paired", "corrected", "exact"]
)
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_every_diagonal_agrees_with_numpy(diagonal: str, form: str, request: pytest.FixtureRequest) -> None:
    case = dct_case(D=512, seed=2)
    method = cofem.CoFEM(diagonal=diagonal, form=form, **TIGHT)
    wanted = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=method, rng=3, max_iter=4)
    request.getfixturevalue("no_copies")
    ours = cofem.fit(
        case.Phi, torch.asarray(case.y), noise_std=case.noise_std, method=method, rng=3, max_iter=4
    )
    request.getfixturevalue("monkeypatch").undo()
    for name in ("mean", "variance", "alpha"):
        assert close(getattr(ours, name), getattr(wanted, name), 1e-7), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_long_fit_agrees_with_numpy(dtype: type) -> None:
    case = problems.dct(2**13, f=4, density=0.08, dtype=dtype)
    wanted = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method="cofem", rng=0)
    ours = cofem.fit(case.Phi, torch.asarray(case.y), noise_std=case.noise_std, rng=0)
    assert ours.mean.dtype == getattr(torch, dtype.__name__)
    assert abs(ours.n_iter - wanted.n_iter) <= 2
    assert close(ours.mean, wanted.mean, 1e-3)
    assert case.nrmse(ours.mean.numpy()) == pytest.approx(case.nrmse(wanted.mean), rel=1e-2)


DICTIONARIES = {
    "dense": lambda: dense_case(D=256, seed=4),
    "dense complex": lambda: complex_case(D=128, seed=4),
    "DCT": lambda: dct_case(D=512, seed=4),
    "DCT image": lambda: problems.dct2(24, density=0.05),
    "blur": lambda: problems.blur(256, 0, 1.0),
    "autoregressive": lambda: problems.autoregressive(256, 0),
}


@pytest.mark.parametrize("name", DICTIONARIES)
@pytest.mark.parametrize("method", [cofem.CoFEM(**TIGHT), cofem.VI()], ids=["cofem", "vi"])
def test_dictionaries(name: str, method: cofem.CoFEM | cofem.VI, request: pytest.FixtureRequest) -> None:
    case = DICTIONARIES[name]()
    settings = dict(noise_std=case.noise_std, method=method, rng=0, max_iter=4)
    wanted = cofem.fit(case.Phi, case.y, **settings)
    y = torch.asarray(case.y)
    Phis = [case.Phi, torch.asarray(case.Phi)] if isinstance(case.Phi, np.ndarray) else [case.Phi]
    request.getfixturevalue("no_copies")
    posteriors = [cofem.fit(Phi, y, **settings) for Phi in Phis]
    request.getfixturevalue("monkeypatch").undo()
    for ours in posteriors:
        assert close(ours.mean, wanted.mean, 1e-6)
        assert close(ours.variance, wanted.variance, 1e-6)


def test_fourier_samples() -> None:
    rng = np.random.default_rng(5)
    n = 128
    Phi = Mask(np.sort(rng.choice(n, n // 2, replace=False)), n) @ FFT(n).H
    z = np.zeros(n, complex)
    z[[3, 50, 90]] = 1, 1j, -1
    y = Phi @ z + 0.01 * (rng.standard_normal(n // 2) + 1j * rng.standard_normal(n // 2))
    ours = cofem.fit(Phi, torch.asarray(y), noise_std=0.014, rng=0)
    assert ours.mean.dtype == torch.complex128
    assert ours.variance.dtype == torch.float64
    assert {3, 50, 90} <= set(ours.support().tolist())


def test_a_tensor_for_phi_moves_numpy_data_to_it() -> None:
    case = dense_case(D=256, seed=6)
    ours = cofem.fit(torch.asarray(case.Phi), case.y, noise_std=case.noise_std, rng=0, max_iter=3)
    assert isinstance(ours.mean, torch.Tensor)
    assert isinstance(ours.y, torch.Tensor)


def test_the_users_tensors_are_left_alone() -> None:
    case = dense_case(D=256, seed=6)
    y, Phi = torch.asarray(1e6 * case.y), torch.asarray(case.Phi)
    kept = y.clone(), Phi.clone()
    cofem.fit(Phi, y, noise_std=1e6 * case.noise_std, rng=0, max_iter=3)
    assert torch.equal(y, kept[0])
    assert torch.equal(Phi, kept[1])


def test_the_noise_of_a_convolution_is_learned_without_exact_variances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("exact variances were asked for")

    monkeypatch.setattr("cofem.linalg.diagonals.exact.banded_shares", refuse)
    rng = np.random.default_rng(0)
    Phi, z = Convolution(rng.standard_normal(40), 2048, causal=True), np.zeros(2048)
    z[rng.choice(2048, 40, replace=False)] = rng.standard_normal(40)
    y = Phi @ z + 0.1 * rng.standard_normal(2048)
    ours = cofem.fit(Phi, torch.asarray(y), rng=0)
    assert 0.8 < ours.noise_std / 0.1 < 1.25


def test_noise_is_learned(no_copies: None) -> None:
    case = problems.dct(1024, f=2, density=0.04)
    ours = cofem.fit(case.Phi, torch.asarray(case.y), rng=0)
    assert 0.7 < ours.noise_std / case.noise_std < 1.5
    tall = np.random.default_rng(0).standard_normal((300, 80))
    z = np.zeros(80)
    z[[1, 7]] = 1, -2
    y = tall @ z + 0.1 * np.random.default_rng(1).standard_normal(300)
    ours = cofem.fit(torch.asarray(tall), torch.asarray(y), rng=0)
    assert 0.8 < ours.noise_std / 0.1 < 1.2


@pytest.mark.parametrize("prior", [cofem.Block(4), cofem.PatternCoupled(0.5), cofem.MultiTask()])
def test_priors(prior: cofem.MultiTask) -> None:
    case = dct_case(D=512, seed=7)
    y = case.y if prior.name != "multi-task" else np.stack([case.y, 2 * case.y], axis=1)
    settings = dict(noise_std=case.noise_std, method=cofem.CoFEM(**TIGHT), rng=0, max_iter=4, prior=prior)
    wanted = cofem.fit(case.Phi, y, **settings)
    ours = cofem.fit(case.Phi, torch.asarray(y), **settings)
    assert close(ours.mean, wanted.mean, 1e-6)
    assert close(ours.variance, wanted.variance, 1e-6)


def test_tasks_that_share_nothing_and_lists_of_dictionaries() -> None:
    case = dct_case(D=256, seed=8)
    y = np.stack([case.y, 2 * case.y], axis=1)
    settings = dict(noise_std=case.noise_std, method=cofem.CoFEM(**TIGHT), rng=0, max_iter=3)
    wanted, ours = cofem.fit(case.Phi, y, **settings), cofem.fit(case.Phi, torch.asarray(y), **settings)
    assert close(ours.mean, wanted.mean, 1e-6)
    first, second = dense_case(D=128, seed=1), dense_case(D=128, seed=2)
    settings["prior"] = cofem.MultiTask()
    wanted = cofem.fit([first.Phi, second.Phi], [first.y, second.y], **settings)
    ours = cofem.fit(
        [torch.asarray(first.Phi), torch.asarray(second.Phi)],
        [torch.asarray(first.y), torch.asarray(second.y)],
        **settings,
    )
    assert close(ours.mean, wanted.mean, 1e-6)


def test_weights_start_and_callback() -> None:
    case = dct_case(D=512, seed=9)
    weight = np.random.default_rng(0).uniform(0.5, 2, case.y.size)
    seen = []
    for convert in (np.asarray, torch.asarray):
        post = cofem.fit(
            case.Phi,
            convert(case.y),
            noise_std=case.noise_std,
            sample_weight=convert(weight),
            alpha_init=convert(np.full(512, 2.0)),
            method=cofem.CoFEM(**TIGHT),
            rng=0,
            max_iter=2,
            callback=lambda state: seen.append((state.mean, state.variance, state.alpha)),
        )
    assert all(isinstance(x, torch.Tensor) for x in seen[-1])
    assert close(seen[-1][0], seen[1][0], 1e-6)
    assert np.allclose(post.y.numpy(), case.y)
    assert post.log_evidence().value < np.inf


def test_gradients_are_off() -> None:
    case = dense_case(D=256, seed=10)
    Phi = torch.asarray(case.Phi).requires_grad_()
    y = torch.asarray(case.y).requires_grad_()
    post = cofem.fit(Phi, y, noise_std=case.noise_std, rng=0, max_iter=3)
    results = [post.mean, post.variance, post.alpha, post.y, post.std, *post.credible_interval()]
    results += [post.sample(2, rng=0), post.covariance([0, 1]), *post.predict(return_std=True)]
    assert not any(result.requires_grad for result in results)
    assert post.log_evidence().value > -np.inf
    assert torch.is_grad_enabled()
    assert Phi.requires_grad
    assert y.requires_grad


# --- the posterior --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_the_posterior_answers_in_tensors(kind: str, dtype: type, tmp_path) -> None:
    case = dense_case(D=256, seed=11) if kind == "real" else complex_case(D=128, seed=11)
    kinds = dtype if kind == "real" else np.result_type(dtype, np.complex64)
    Phi, y = case.Phi.astype(kinds), case.y.astype(kinds)
    settings = dict(noise_std=case.noise_std, method=cofem.CoFEM(**TIGHT), rng=0, max_iter=3)
    wanted = cofem.fit(Phi, y, **settings)
    ours = cofem.fit(torch.asarray(Phi), torch.asarray(y), **settings)
    rtol = 1e-6 if dtype == np.float64 else 2e-2
    assert ours.support().tolist() == wanted.support().tolist()
    assert close(ours.std, wanted.std, rtol)
    for mine, theirs in zip(ours.credible_interval(0.9), wanted.credible_interval(0.9), strict=True):
        assert mine.dtype == ours.mean.dtype
        assert close(mine, theirs, rtol)
    assert close(ours.sample(3, rng=1), wanted.sample(3, rng=1), rtol)
    assert ours.sample(3, rng=1).dtype == ours.mean.dtype
    assert close(ours.covariance([0, 5, 9]), wanted.covariance([0, 5, 9]), rtol)
    new = Phi[:7]
    assert close(ours.predict(torch.asarray(new)), wanted.predict(new), rtol)
    for mine, theirs in zip(
        ours.predict(torch.asarray(new), return_std=True), wanted.predict(new, return_std=True), strict=True
    ):
        assert close(mine, theirs, rtol)
    assert ours.log_evidence().value == pytest.approx(wanted.log_evidence().value, rel=rtol)
    assert "Posterior(" in repr(ours)

    ours.save(tmp_path / "fit.npz")
    loaded = cofem.load(tmp_path / "fit.npz")
    assert isinstance(loaded.mean, np.ndarray)
    assert np.array_equal(loaded.mean, ours.mean.numpy())
    with_operator = cofem.load(tmp_path / "fit.npz", operator=Phi)
    assert np.allclose(with_operator.sample(2, rng=0), ours.sample(2, rng=0).numpy(), rtol=1e-4, atol=1e-4)
    with_tensor = cofem.load(tmp_path / "fit.npz", operator=torch.asarray(Phi))
    with pytest.raises(ValueError, match="operator must be that of the fit"):
        cofem.load(tmp_path / "fit.npz", operator=-torch.asarray(Phi))
    assert torch.allclose(with_tensor.sample(2, rng=0), ours.sample(2, rng=0))


def test_stochastic_parts_of_the_posterior() -> None:
    case = problems.dct(16384, f=4, density=0.04)  # too large to factor, on NumPy as well
    settings = dict(noise_std=case.noise_std, method=cofem.CoFEM(**TIGHT), rng=0, max_iter=3)
    wanted = cofem.fit(case.Phi, case.y, **settings)
    ours = cofem.fit(case.Phi, torch.asarray(case.y), **settings)
    evidence = ours.log_evidence(vectors=2, steps=30), wanted.log_evidence(vectors=2, steps=30)
    assert evidence[0].standard_error > 0
    assert evidence[0].value == pytest.approx(evidence[1].value, rel=1e-6)
    assert close(ours.predict(return_std=True, rng=0)[1], wanted.predict(return_std=True, rng=0)[1], 1e-4)


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["em", "irls", "seq", "amp"])
def test_methods_that_need_numpy_say_so(method: str) -> None:
    case = dct_case(D=256)
    with pytest.raises(TypeError, match=f"method='{method}' works on NumPy arrays only.*use 'vi' or 'cofem'"):
        cofem.fit(case.Phi, torch.asarray(case.y), noise_std=0.005, method=method)


def test_what_cannot_be_done_on_tensors_is_refused_at_the_door() -> None:
    case = dct_case(D=256)
    y = torch.asarray(case.y)
    with pytest.raises(TypeError, match="nonnegative=True works on NumPy arrays only"):
        cofem.fit(case.Phi, y, noise_std=0.005, nonnegative=True)
    wavelets = cofem.operators.Wavelet(64, "haar").T
    with pytest.raises(TypeError, match=r"Wavelet\(.*works on NumPy arrays only, got torch.Tensor"):
        cofem.fit(wavelets, torch.ones(64), noise_std=0.1)
    with pytest.raises(ValueError, match="y must be finite, got 1 NaN"):
        cofem.fit(case.Phi, torch.where(torch.arange(64) == 3, torch.nan, y), noise_std=0.1)
    with pytest.raises(ValueError, match=r"y must have shape \(64,\)"):
        cofem.fit(case.Phi, y[:-1], noise_std=0.1)


def test_integers_and_half_precision_become_double() -> None:
    for y in (torch.tensor([2, 0, 0]), torch.tensor([2.0, 0, 0], dtype=torch.float16)):
        assert cofem.fit(torch.eye(3), y, noise_std=0.1).mean.dtype == torch.float64


def test_groups_of_coefficients() -> None:
    case = dct_case(D=1024, seed=3)
    groups = np.arange(1024) // 512
    method = cofem.CoFEM(diagonal=Pooled(probes=2, groups=groups), **TIGHT)
    settings = dict(noise_std=case.noise_std, method=method, rng=0, max_iter=3)
    wanted, ours = (
        cofem.fit(case.Phi, case.y, **settings),
        cofem.fit(case.Phi, torch.asarray(case.y), **settings),
    )
    assert close(ours.variance, wanted.variance, 1e-6)


def test_convolution_kernels_may_be_tensors() -> None:
    kernel = torch.tensor([0.25, 0.5, 0.25])
    assert np.allclose(Convolution(kernel, 6).kernel, [0.25, 0.5, 0.25])


def test_parameters_are_tensors_too() -> None:
    case = dense_case(D=256, seed=10)
    Phi = torch.nn.Parameter(torch.asarray(case.Phi))
    post = cofem.fit(Phi, torch.asarray(case.y), noise_std=case.noise_std, rng=0, max_iter=2)
    assert type(post.mean) is torch.Tensor
    assert not post.mean.requires_grad


# --- checkpoints --------------------------------------------------------------------------------------

RESUMED = {
    "default": (lambda: dct_case(256), {}),
    "learned noise": (lambda: dct_case(256), dict(noise_std="learn")),
    "vi": (lambda: dct_case(256), dict(method="vi", max_iter=30)),
    "paired": (lambda: dct_case(256), dict(method=cofem.CoFEM(diagonal="paired"), max_iter=12)),
    "dense": (lambda: dense_case(128, f=2, noise_std=0.05), {}),
    "complex": (lambda: complex_case(64), dict(method=cofem.CoFEM(), max_iter=12)),
}


def interrupted(step: int):
    def callback(state) -> None:
        if state.iteration == step:
            raise KeyboardInterrupt

    return callback


def assert_same(one, other) -> None:
    for name in ("mean", "variance", "alpha"):
        assert isinstance(getattr(other, name), torch.Tensor)
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.noise_std == other.noise_std
    assert one.status == other.status


@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
@pytest.mark.parametrize("name", RESUMED)
def test_a_fit_that_was_interrupted_goes_on_to_the_same_result(name, tmp_path):
    make, settings = RESUMED[name]
    case = make()
    Phi = as_torch(case.Phi) if isinstance(case.Phi, np.ndarray) else case.Phi
    y = as_torch(case.y)
    settings = dict(noise_std=case.noise_std) | settings
    whole = cofem.fit(Phi, y, rng=3, **settings)
    for step in (2, 5, 8):
        path = tmp_path / f"{step}.npz"
        with pytest.raises(KeyboardInterrupt):
            cofem.fit(
                Phi,
                y,
                rng=3,
                checkpoint=path,
                checkpoint_every="2 steps",
                callback=interrupted(step),
                **settings,
            )
        assert_same(whole, cofem.fit(Phi, y, rng=99, resume=path, **settings))
    done = tmp_path / "done.npz"
    cofem.fit(Phi, y, rng=3, checkpoint=done, **settings)
    assert_same(whole, cofem.fit(Phi, y, resume=done, checkpoint=tmp_path / "copy.npz", **settings))


KILLED = """
    import sys, time
    import cofem, torch
    from tests.problems import dct_case
    path, out = sys.argv[1:]
    case = dct_case(128)
    settings = dict(rng=7, noise_std=case.noise_std, max_iter=15)
    settings |= dict(checkpoint=path, resume=path, checkpoint_every=0)
    y = torch.asarray(case.y)
    cofem.fit(case.Phi, y, callback=lambda state: time.sleep(0.02), **settings).save(out)
"""


def test_a_killed_fit_goes_on_to_the_same_result(tmp_path):
    case = dct_case(128)
    path, out = tmp_path / "run.npz", tmp_path / "out.npz"
    folders = [str(Path(__file__).parents[1]), str(Path(cofem.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), str(out)]
    child = subprocess.Popen(command, env=environment)
    while not path.exists() and child.poll() is None:
        time.sleep(0.001)
    time.sleep(0.1)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    settings = dict(noise_std=case.noise_std, max_iter=15)
    whole = cofem.fit(case.Phi, as_torch(case.y), rng=7, **settings)
    resumed = cofem.fit(case.Phi, as_torch(case.y), resume=path, **settings)
    assert_same(whole, resumed)


def test_where_a_checkpoint_was_written_does_not_matter(tmp_path, monkeypatch):
    """As if on a graphics processor; the arrays go to where the data are now."""
    case = dct_case(128)
    settings = dict(noise_std=case.noise_std, rng=0)
    whole = cofem.fit(case.Phi, as_torch(case.y), **settings)
    monkeypatch.setattr(_packing, "place", lambda x: "torch.Tensor on cuda:0")
    path = tmp_path / "run.npz"
    with pytest.raises(KeyboardInterrupt):
        cofem.fit(case.Phi, as_torch(case.y), checkpoint=path, callback=interrupted(5), **settings)
    assert "cuda:0" in str(np.load(path)["header"])
    assert_same(whole, cofem.fit(case.Phi, as_torch(case.y), resume=path, **settings))


@pytest.mark.parametrize("written", ["NumPy", "PyTorch"])
def test_a_checkpoint_of_another_library_is_refused(written, tmp_path):
    case = dct_case(128)
    data = [case.y, as_torch(case.y)]
    first, second = data if written == "NumPy" else data[::-1]
    path = tmp_path / "run.npz"
    settings = dict(noise_std=case.noise_std, method="cofem", rng=0, max_iter=4)
    cofem.fit(case.Phi, first, checkpoint=path, **settings)
    with pytest.raises(ValueError, match=r"^resume: .*another fit: its y was .*torch"):
        cofem.fit(case.Phi, second, resume=path, **settings)
