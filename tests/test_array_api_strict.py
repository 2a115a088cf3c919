"""Fits on a library that does nothing but the array API standard, on a device that is not its default."""

from dataclasses import replace

import numpy as np
import pytest

import cofem
from cofem._arrays import to_numpy
from cofem.experiments import problems
from cofem.operators import (
    DCT,
    FFT,
    Centred,
    Convolution,
    Dense,
    Diagonal,
    Gradient,
    Mask,
    Operator,
    WaveletFrame,
    check_adjoint,
    vstack,
)

from .problems import complex_case, dct_case, dense_case

strict = pytest.importorskip("array_api_strict", minversion="2.3")

#: Arrays here do not mix with those on the default device, as those on a graphics card would not.
ELSEWHERE = strict.Device("device1")
TIGHT = dict(cg_tol=1e-9, probe_tol=1e-9, cg_iterations=5000)


def there(x: np.ndarray):
    return strict.asarray(x, device=ELSEWHERE)


def close(actual, desired: np.ndarray, rtol: float = 1e-7) -> bool:
    assert actual.device == ELSEWHERE
    found = to_numpy(actual)
    assert found.shape == desired.shape
    return float(np.linalg.norm(found - desired)) <= rtol * float(np.linalg.norm(desired))


_rng = np.random.default_rng(0)
_matrix = _rng.standard_normal((6, 9))
OPERATORS: dict[str, Operator] = {
    "DCT": DCT(9),
    "DCT image": DCT((3, 4)),
    "FFT": FFT(8),
    "FFT image": FFT((3, 4)),
    "FFT real": FFT(9, real=True),
    "centred": Centred(Dense(np.arange(12.0).reshape(4, 3))),
    "centred transform": Centred(Mask([1, 4, 2], 6) @ DCT(6).T),
    "convolution": Convolution([1.0, 2.0, 0.5], 9),
    "linear convolution": Convolution([1.0, 2.0, 0.5], 9, mode="linear", output="full"),
    "complex kernel": Convolution(np.array([1.0, 2.0j, 0.5]), 9),
    "gradient": Gradient((3, 4)),
    "gradient second": Gradient((3, 4), order=2),
    "gradient periodic": Gradient((4, 5), "periodic", order=2),
    "wavelet frame": WaveletFrame((5, 4), "db2", level=2),
    "mask": Mask([6, 0, 3], 9),
    "mask of DCT": Mask([1, 4, 5], 9) @ DCT(9).T,
    "matrix in NumPy": Dense(_matrix),
    "stack": vstack([2.0 * Dense(_matrix), Diagonal(np.arange(9.0)) @ DCT(9)]),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_operators(name: str, kind: str) -> None:
    operator = OPERATORS[name]
    check_adjoint(operator, like=there(np.ones(1)))
    for method, axis in (("forward", 1), ("adjoint", 0), ("gram", 1)):
        x = np.random.default_rng(1).standard_normal((2, operator.shape[axis])).astype(kind)
        assert close(getattr(operator, method)(there(x)), getattr(operator, method)(x), 1e-12)


def test_operators_that_store_arrays() -> None:
    d = np.arange(1.0, 7.0)
    for ours, numpy in (
        (Dense(there(_matrix)), Dense(_matrix)),
        (Diagonal(there(d)) @ Dense(there(_matrix)), Diagonal(d) @ Dense(_matrix)),
        (Diagonal(there(d)) @ DCT(6), Diagonal(d) @ DCT(6)),
        (Diagonal(there(d)) @ FFT(6, real=True), Diagonal(d) @ FFT(6, real=True)),
    ):
        assert close(ours.column_norms(), numpy.column_norms(), 1e-12)
        assert ours.norm == pytest.approx(numpy.norm)
        check_adjoint(ours)


DIAGONALS = ["auto", "self_consistent", "pooled", "rademacher", "paired", "windows", "corrected", "exact"]


@pytest.mark.parametrize("diagonal", DIAGONALS)
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_every_diagonal_agrees_with_numpy(diagonal: str, form: str) -> None:
    case = dct_case(D=128, seed=2)
    method = cofem.CoFEM(diagonal=diagonal, form=form, **TIGHT)
    settings = dict(noise_std=case.noise_std, method=method, rng=3, max_iter=3)
    wanted, ours = cofem.fit(case.Phi, case.y, **settings), cofem.fit(case.Phi, there(case.y), **settings)
    for name in ("mean", "variance", "alpha"):
        assert close(getattr(ours, name), getattr(wanted, name)), name


def _with_operator(case):
    """Return a case whose matrix stays in NumPy, because it is an operator already."""
    return replace(case, Phi=cofem.as_operator(case.Phi))


CASES = {
    "dense": lambda: dense_case(D=128, seed=4),
    "dense of NumPy": lambda: _with_operator(dense_case(D=128, seed=4)),
    "complex": lambda: complex_case(D=64, seed=4),
    "complex of NumPy": lambda: _with_operator(complex_case(D=64, seed=4)),
    "DCT image": lambda: problems.dct2(12, density=0.05),
    "blur": lambda: problems.blur(64, 0, 1.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", [cofem.CoFEM(**TIGHT), cofem.VI()], ids=["cofem", "vi"])
def test_fits_and_their_posteriors(name: str, method: cofem.CoFEM | cofem.VI, tmp_path) -> None:
    case = CASES[name]()
    settings = dict(noise_std=case.noise_std, method=method, rng=0, max_iter=3)
    wanted = cofem.fit(case.Phi, case.y, **settings)
    Phi = there(case.Phi) if isinstance(case.Phi, np.ndarray) else case.Phi
    ours = cofem.fit(Phi, there(case.y), **settings)
    for attribute in ("mean", "variance", "alpha", "std", "y"):
        assert close(getattr(ours, attribute), getattr(wanted, attribute)), attribute
    assert to_numpy(ours.support()).tolist() == wanted.support().tolist()
    assert close(ours.credible_interval()[1], wanted.credible_interval()[1])
    assert close(ours.sample(2, rng=0), wanted.sample(2, rng=0), 1e-4)
    assert close(ours.covariance([0, 3]), wanted.covariance([0, 3]), 1e-4)
    for mine, theirs in zip(ours.predict(return_std=True), wanted.predict(return_std=True), strict=True):
        assert close(mine, theirs, 1e-4)
    assert ours.log_evidence().value == pytest.approx(wanted.log_evidence().value, rel=1e-6)
    ours.save(tmp_path / "fit.npz")
    assert np.array_equal(cofem.load(tmp_path / "fit.npz").mean, to_numpy(ours.mean))


def test_learned_noise_tasks_and_weights() -> None:
    case = problems.dct(512, f=2, density=0.04)
    ours = cofem.fit(case.Phi, there(case.y), rng=0)
    assert 0.7 < ours.noise_std / case.noise_std < 1.5
    assert ours.mean.device == ELSEWHERE
    small = dct_case(D=128)
    y = np.stack([small.y, 2 * small.y], axis=1)
    weight = np.linspace(0.5, 2, y.shape[0])
    for prior in (None, cofem.MultiTask(), cofem.PatternCoupled(0.5)):
        settings = dict(noise_std=0.005, method=cofem.CoFEM(**TIGHT), rng=0, max_iter=3, prior=prior)
        wanted = cofem.fit(small.Phi, y, sample_weight=weight, **settings)
        ours = cofem.fit(small.Phi, there(y), sample_weight=weight, **settings)
        assert close(ours.mean, wanted.mean)
        assert close(ours.variance, wanted.variance)


def test_data_and_dictionary_on_different_devices_are_refused() -> None:
    case = dense_case(D=64)
    with pytest.raises(TypeError, match=r"the numbers of Phi are .* but the data are .*; move one"):
        cofem.fit(strict.asarray(case.Phi), there(case.y), noise_std=0.01)


def test_what_stays_with_numpy_says_so() -> None:
    case = dct_case(D=64)
    with pytest.raises(TypeError, match="method='em' works on NumPy arrays only"):
        cofem.fit(case.Phi, there(case.y), noise_std=0.01, method="em")
    with pytest.raises(TypeError, match=r"Block prior works on arrays of numpy and torch only"):
        cofem.fit(case.Phi, there(case.y), noise_std=0.01, prior=cofem.Block(4))
    with pytest.raises(TypeError, match="repeated rows works on NumPy arrays only"):
        cofem.fit(Mask([0, 0, 1], 4), there(np.ones(3)), noise_std=0.01)
