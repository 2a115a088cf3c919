"""Whatever comes in: a result that is finite and of the right shape, or an error that names the argument."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cofem
from cofem.inference import registry
from cofem.linalg import direct
from cofem.operators import DCT, Mask, Operator, row_parts

from .problems import dct_case, dense_case

#: How many cases are generated: 500 in the suite, 10 000 in `make nightly`.
PROFILES = {"default": 500, "nightly": 10_000}
EXAMPLES = PROFILES[os.environ.get("COFEM_PROFILE", "default")]

#: Names that an error may blame.
ARGUMENTS = "Phi|y|noise_std|method|prior|groups|nonnegative|sample_weight|max_iter|tol|alpha_init|rng"

SCALES = st.sampled_from(
    [1.0] * 6 + [1e-3, 1e8, 1e-12, 1e12, 1e-30, 1e30, 1e-50, 1e50, 1e-160, 1e160, 1e-300, 5e-324, 1.7e308]
)
KINDS = st.sampled_from(
    ["float64", "float64", "float32", "complex128", "complex64", "int64", "uint8", "bool", "float16"]
)
LAYOUTS = st.sampled_from(["C", "F", "strided", "reversed", "readonly", "list"])
ODD_VALUES = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e308, -1e308, 5e-324])


def laid_out(values: np.ndarray, layout: str) -> Any:
    """The same values in memory in another way."""
    if layout == "list":
        return values.tolist()
    if layout == "F":
        return np.asfortranarray(values)
    if layout == "strided":
        wide = np.zeros(tuple(2 * length for length in values.shape), values.dtype)
        wide[tuple(slice(None, None, 2) for _ in values.shape)] = values
        return wide[tuple(slice(None, None, 2) for _ in values.shape)]
    if layout == "reversed":
        return np.ascontiguousarray(values[::-1])[::-1]
    values = np.ascontiguousarray(values)
    if layout == "readonly":
        values.flags.writeable = False
    return values


def converted(values: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        if np.dtype(kind).kind in "iub":
            return (np.round(3 * np.clip(np.nan_to_num(values.real), -1e6, 1e6))).astype(kind)
        if np.dtype(kind).kind != "c":
            values = values.real
        return values.astype(kind)


#: What may be odd about a case; at most two of these at once, so that most cases are fitted, not refused.
ODDITIES = [
    "scale of Phi",
    "scale of y",
    "scale of noise",
    "zero column",
    "twin columns",
    "zero Phi",
    "rank one",
    "unequal columns",
    "odd value in Phi",
    "odd value in y",
    "constant y",
    "zero y",
    "noise only",
    "empty",
    "short y",
    "noise of each",
    "learned noise",
    "alpha_init",
    "sample_weight",
    "prior",
    "nonnegative",
    "tasks",
    "kind of Phi",
    "kind of y",
]
PRIORS = [cofem.MultiTask(), cofem.Block(2), cofem.Block([[0]]), cofem.Block(99), cofem.PatternCoupled(0.5)]
SHAPES = [(4, 8), (6, 6), (12, 5), (1, 1), (1, 4), (5, 1), (8, 12), (30, 6), (3, 20)]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Arguments of `cofem.fit`, with at most two oddities."""
    odd = draw(st.sets(st.sampled_from(ODDITIES), max_size=2))
    if "learned noise" in odd and EXAMPLES < 1000 and draw(st.integers(0, 7)):
        odd.remove("learned noise")  # ten fits in one
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.sampled_from(SHAPES))
    n_tasks = draw(st.sampled_from([1, 2])) if "tasks" in odd else 0
    matrix = rng.standard_normal((n, d)) + 1j * rng.standard_normal((n, d))
    if "zero column" in odd:
        matrix[:, 0] = 0
    if "twin columns" in odd:
        matrix[:, -1] = matrix[:, 0]
    if "rank one" in odd:
        matrix = np.outer(matrix[:, 0], matrix[0])
    if "unequal columns" in odd:
        matrix = matrix * 10.0 ** rng.integers(-8, 8, d)
    if "zero Phi" in odd:
        matrix[:] = 0
    if "odd value in Phi" in odd:
        matrix[rng.integers(n), rng.integers(d)] = draw(ODD_VALUES)
    z = np.zeros((d, max(n_tasks, 1)))
    z[rng.integers(d)] = rng.standard_normal(max(n_tasks, 1))
    with np.errstate(all="ignore"):
        matrix = matrix * (draw(SCALES) if "scale of Phi" in odd else 1.0)
        matrix = converted(matrix, draw(KINDS) if "kind of Phi" in odd else "float64")
        size = float(np.max(np.abs(matrix), initial=0)) or 1.0
        y = matrix @ z + 0.01 * size * rng.standard_normal((n, max(n_tasks, 1)))
        if "noise only" in odd:
            y = rng.standard_normal(y.shape)
        if "constant y" in odd:
            y = np.full_like(y, 3.0)
        if "zero y" in odd:
            y = np.zeros_like(y)
        if "odd value in y" in odd:
            y.flat[rng.integers(y.size)] = draw(ODD_VALUES)
        y = y * (draw(SCALES) if "scale of y" in odd else 1.0)
        y = converted(y, draw(KINDS) if "kind of y" in odd else y.dtype.name)
    y = y if n_tasks else y[:, 0]
    Phi: Any = laid_out(matrix, draw(LAYOUTS))
    match draw(st.sampled_from(["array", "array", "array", "array", "sparse", "mask"])):
        case "sparse":
            Phi = scipy.sparse.csr_array(matrix if matrix.dtype.itemsize > 2 else matrix.astype(float))
        case "mask":  # with repeats
            Phi = Mask(rng.integers(0, d, n), d) @ DCT(d).T
    if "empty" in odd:
        Phi = matrix[: draw(st.sampled_from([0, n])), : draw(st.sampled_from([0, d]))]
    if "short y" in odd:
        y = y[:-1]
    largest = float(np.max(np.abs(np.nan_to_num(y.astype(complex))), initial=0.0)) or 1.0
    noise: Any = draw(st.sampled_from([1.0, 0.1, 0.01, 1e-6])) * largest
    if "scale of noise" in odd:
        values = [1e-300, 1e-12, 1e-9, 1e12, 1e300, 0, -1.0, np.nan, True, np.float32(0.5), "small"]
        noise = draw(st.sampled_from(values))
    if "noise of each" in odd:
        noise = np.abs(rng.standard_normal(n)) * min(largest, 1e300)
    if "learned noise" in odd:
        noise = "learn"
    alpha: Any = None
    if "alpha_init" in odd:
        alpha = draw(st.sampled_from([1.0, 1e-300, 1e300, "each", 0.0]))
        alpha = np.abs(rng.standard_normal(d)) + 0.1 if alpha == "each" else alpha
    return dict(
        Phi=Phi,
        y=laid_out(y, draw(LAYOUTS)),
        noise_std=noise,
        method=draw(st.sampled_from(["auto", "em", "irls", "amp", "vi", "seq", "cofem"])),
        prior=draw(st.sampled_from(PRIORS)) if "prior" in odd else None,
        nonnegative="nonnegative" in odd,
        sample_weight=rng.random(n) if "sample_weight" in odd else None,
        alpha_init=alpha,
        max_iter=draw(st.sampled_from([1, 3, 20])),
        tol=draw(st.sampled_from([None, None, 0.0, 1e-3])),
        rng=0,
    )


def copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) or scipy.sparse.issparse(value) else value


def check(case: dict[str, Any]) -> str:
    """Fit; return how it ended."""
    before = {name: copied(value) for name, value in case.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        warnings.simplefilter("ignore", cofem.ReliabilityWarning)
        try:
            post = cofem.fit(**case)
        except (ValueError, TypeError) as error:
            if isinstance(error, np.linalg.LinAlgError) or not re.search(rf"\b({ARGUMENTS})\b", str(error)):
                raise AssertionError(f"no argument is named: {error}") from error
            return "refused"
    for name, value in before.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(case[name], value, err_msg=f"{name} was changed")
        elif scipy.sparse.issparse(value):
            assert (abs(case[name] - value)).max() == 0
    n_columns = case["Phi"].shape[1] if hasattr(case["Phi"], "shape") else len(case["Phi"][0])
    shape = (n_columns, *np.shape(case["y"])[1:])
    assert post.mean.shape == post.variance.shape == shape
    for name in ("mean", "variance", "alpha", "noise_std"):
        assert np.isfinite(getattr(post, name)).all(), f"{name} is not finite"
    assert (post.variance >= 0).all()
    assert (post.alpha > 0).all()
    assert np.all(np.asarray(post.noise_std) > 0)
    if case["nonnegative"]:
        assert (post.mean >= 0).all()
    lower, upper = post.credible_interval(0.9)
    assert np.isfinite(lower).all()
    assert np.isfinite(upper).all()
    assert post.support().size <= n_columns
    return post.status.code.value


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(cases())
def test_any_input_gives_a_finite_result_or_names_the_argument(case: dict[str, Any]) -> None:
    check(case)


def test_zero_data_have_a_zero_answer() -> None:
    post = cofem.fit(np.eye(4, 6), np.zeros(4), rng=0)
    assert not post.mean.any()
    assert 0 < post.noise_std < 1e-12
    assert any("zero everywhere" in note for note in post.status.notes)


@pytest.mark.parametrize("scale", [1e-17, 1e25])
def test_single_precision_in_any_unit(scale: float) -> None:
    """Precisions are the inverse square of the unit, which single precision may not hold."""
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((20, 40)).astype(np.float32)
    y = (Phi[:, 3] + 0.01 * rng.standard_normal(20)).astype(np.float32)
    usual = cofem.fit(Phi, y, noise_std=0.01, method="irls", max_iter=20)
    seen: list[Any] = []
    arguments = dict(method="irls", max_iter=20, callback=seen.append)
    post = cofem.fit(Phi, y * np.float32(scale), noise_std=0.01 * scale, **arguments)
    for values in (post.mean, post.alpha, post.variance, seen[-1].alpha, seen[-1].variance):
        assert np.isfinite(values).all()
    assert post.mean.dtype == np.float32
    np.testing.assert_allclose(post.mean / scale, usual.mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(post.alpha * scale**2, usual.alpha, rtol=0.1)


SIZES = {
    "y": dict(y=1e-200 * np.ones(3)),
    "Phi": dict(Phi=1e200 * np.eye(3)),
    "Phi ": dict(Phi=np.eye(3, dtype=np.float32) * np.float32(1e20), y=np.ones(3, np.float32)),
    "Phi  ": dict(Phi=1e200 * DCT(3)),
    "noise_std": dict(noise_std=1e-20),
    "noise_std ": dict(noise_std=1e300),
    "noise_std  ": dict(noise_std=np.array([1e-30, 1.0, 1.0])),
    "sample_weight": dict(sample_weight=np.array([1e-30, 1.0, 1.0])),
    "noise_std   ": dict(Phi=np.ones((1, 3)), y=np.ones(1), noise_std="learn"),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_sizes_that_the_precision_cannot_hold_are_refused_by_name(name: str) -> None:
    arguments = dict(Phi=np.eye(3), y=np.ones(3), noise_std=0.1) | SIZES[name]
    with pytest.raises(ValueError, match=name.strip()):
        cofem.fit(**arguments)


# --- operators that change their mind -----------------------------------------------------------------

MATRIX = np.random.default_rng(0).standard_normal((24, 48))
DATA = MATRIX[:, 3] - 2 * MATRIX[:, 30] + 0.01 * np.random.default_rng(1).standard_normal(24)
SETTINGS: dict[str, Any] = dict(noise_std=0.01, method="cofem", rng=0, tol=0.0, max_iter=30)


class Moody(Operator):
    """A matrix that goes wrong after some products."""

    def __init__(self, forward: Any = None, adjoint: Any = None, after: int = 150) -> None:
        super().__init__(MATRIX.shape, precision="float64")
        self.wrong = {"forward": forward, "adjoint": adjoint}
        self.after, self.calls = after, 0

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self._result(x @ MATRIX.T, "forward")

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return self._result(y @ MATRIX, "adjoint")

    def _result(self, good: np.ndarray, name: str) -> np.ndarray:
        self.calls += 1
        wrong = self.wrong[name]
        return good if wrong is None or self.calls <= self.after else wrong(good)


def give_up(good: np.ndarray) -> np.ndarray:
    raise ConnectionError("the detector is gone")


def with_nan(good: np.ndarray) -> np.ndarray:
    good[..., 0] = np.nan
    return good


MOODS = {
    "NaN": (dict(forward=with_nan), "not finite"),
    "NaN from the adjoint": (dict(adjoint=with_nan), "not finite"),
    "infinite": (dict(forward=lambda good: good / 0.0), "not finite"),
    "an exception": (dict(forward=give_up), "ConnectionError: the detector is gone"),
    "too short": (dict(forward=lambda good: good[..., :-1]), "Phi must return|could not be broadcast"),
    "an axis too many": (dict(adjoint=lambda good: good[None]), "Phi must return"),
    "complex": (dict(forward=lambda good: good + 1j), "Phi must return|complex"),
    "another sign": (dict(adjoint=lambda good: -good), "not the adjoint it claims"),
    "another adjoint": (dict(adjoint=lambda good: 2 * good), "Phi changed during the fit"),
    "another adjoint, reversed": (dict(adjoint=lambda good: good[..., ::-1].copy()), "Phi changed|adjoint"),
}


@pytest.mark.parametrize("mood", MOODS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_operator_that_goes_wrong_midway_leaves_the_last_good_state(mood: str) -> None:
    wrong, words = MOODS[mood]
    with pytest.warns(cofem.ConvergenceWarning, match=words):
        post = cofem.fit(Moody(**wrong), DATA, **SETTINGS)
    assert post.status.code is cofem.StatusCode.FAILED
    assert re.search(words, post.status.message)
    assert np.isfinite(post.mean).all()
    assert np.isfinite(post.variance).all()
    if "was undone" in post.status.message and "another" not in mood:
        good = cofem.fit(MATRIX, DATA, **SETTINGS | dict(max_iter=post.n_iter))
        assert 1 < post.n_iter < 30
        np.testing.assert_allclose(post.mean, good.mean, atol=0.01 * np.abs(good.mean).max())


@pytest.mark.parametrize("method", ["em", "irls", "amp", "vi", "seq", "cofem"])
def test_an_exception_midway_is_kept_by_every_method(method: str) -> None:
    calls = []

    def late(good: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) > (12 if method == "seq" else 30):
            raise ConnectionError("the detector is gone")
        return good

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cofem.ConvergenceWarning)
        post = cofem.fit(Moody(adjoint=late, after=0), DATA, **SETTINGS | dict(method=method))
    assert np.isfinite(post.mean).all()
    if method in ("amp", "vi", "seq", "cofem"):  # the others read the matrix once
        assert post.status.code is cofem.StatusCode.FAILED
        assert "the detector is gone" in str(post.status)


def test_an_exception_in_the_first_step_is_the_users_own() -> None:
    with pytest.raises(ConnectionError, match="the detector is gone"):
        cofem.fit(Moody(forward=give_up, after=6), DATA, **SETTINGS)


def test_an_exception_while_the_noise_is_learned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MEDIUM_WORK", 0)  # or the matrix would be read once and for all
    monkeypatch.setattr(row_parts, "_SMALL", 0)
    gone = []

    def once(good: np.ndarray) -> np.ndarray:
        gone.append(1)
        return give_up(good) if len(gone) == 1 else good

    with pytest.warns(cofem.ConvergenceWarning, match="the noise could not be learned"):
        post = cofem.fit(Moody(forward=once, after=40), DATA, method="cofem", rng=0)
    assert post.status.code is cofem.StatusCode.FAILED
    assert "ConnectionError: the detector is gone" in post.status.message
    assert not any("the noise was learned" in note for note in post.status.notes)
    with pytest.raises(ConnectionError):  # for good, so that there is no fit either
        cofem.fit(Moody(forward=give_up, after=40), DATA, method="cofem", rng=0)


@pytest.mark.parametrize("noise_std", [0.1, "learn"])
def test_a_timeout_of_the_caller_gets_through_at_once(
    noise_std: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MEDIUM_WORK", 0)

    def late(good: np.ndarray) -> np.ndarray:
        raise TimeoutError("the caller's patience")

    with pytest.raises(TimeoutError, match="patience"):
        cofem.fit(Moody(forward=late, after=100), DATA, noise_std=noise_std, method="cofem", rng=0)


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("make", [dense_case, dct_case], ids=["dense", "dct"])
def test_noise_far_off_is_told(make: Any, factor: float) -> None:
    case = make(512, f=4, noise_std=0.005)
    post = cofem.fit(case.Phi, case.y, noise_std=factor * case.noise_std, rng=0)
    told = [text for text in post.status.warnings if "does not fit the data" in text]
    assert len(told) == (factor != 1.0)
    if told:
        assert ("seems too small" if factor < 1 else "seems too large") in told[0]
        assert f"noise_std = {factor * case.noise_std:.3g}" in told[0]


def test_max_iter_warns_and_says_what_was_not_met() -> None:
    case = dense_case(64, f=2, density=0.05, noise_std=0.01)
    with pytest.warns(
        cofem.ConvergenceWarning, match="stopped after max_iter=3 steps: the mean still changed"
    ):
        post = cofem.fit(case.Phi, case.y, noise_std=0.01, max_iter=3)
    assert post.status.code is cofem.StatusCode.MAX_ITER
    with pytest.warns(cofem.ConvergenceWarning, match="stopped after max_iter=3 steps"):
        cofem.SBLRegressor(max_iter=3, noise_std=0.01).fit(case.Phi, case.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cofem.ReliabilityWarning)  # of what three steps have come to
        cofem.fit(case.Phi, case.y, noise_std=0.01, max_iter=3, tol=0)  # as many steps as asked for
    # The mean may have settled when something else has not: the message never contradicts itself.
    for max_iter in range(1, 30):
        status = cofem.fit(case.Phi, case.y, noise_std=0.01, max_iter=max_iter).status
        found = re.search(r"still changed by (\S+) in a step \(tol=(\S+)\)", status.message)
        assert found is None or float(found[1]) > float(found[2])
        assert status.code is cofem.StatusCode.CONVERGED or ": " in status.message


def test_an_exception_in_a_callback_is_the_users_own() -> None:
    def callback(state: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cofem.fit(MATRIX, DATA, callback=callback, **SETTINGS)


def test_conjugate_gradients_out_of_steps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "EXACT_SIDE", 0)  # or a factor would take over
    method = cofem.CoFEM(cg_iterations=2, preconditioner="none")
    with pytest.warns(cofem.ConvergenceWarning, match="ran out of steps; raise cg_iterations"):
        post = cofem.fit(MATRIX, DATA, **SETTINGS | dict(method=method))
    assert any("ran out of steps" in note for note in post.status.notes)
    assert np.isfinite(post.mean).all()


@pytest.mark.parametrize("cg_iterations", [1, 3, 10])
@pytest.mark.parametrize("form", ["auto", "primal"])
@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
def test_systems_that_are_cut_short_do_not_feed_on_themselves(cg_iterations: int, form: Any) -> None:
    """A mean that was too large used to be the start of the next, up to 1e11 times what it should be."""
    rng = np.random.default_rng(0)
    Phi, y = rng.standard_normal((50, 100)), rng.standard_normal(50)
    method = cofem.CoFEM(cg_iterations=cg_iterations, form=form)
    post = cofem.fit(Phi, y, noise_std=0.01, method=method, rng=0)
    assert post.status.code is not cofem.StatusCode.FAILED
    assert np.linalg.norm(Phi @ post.mean) < 100 * np.linalg.norm(y)


@pytest.mark.parametrize("method", ["cofem", "em", "irls", "vi", "seq", "amp"])
def test_ill_conditioned_single_precision(method: str) -> None:
    rng = np.random.default_rng(0)
    Phi = (rng.standard_normal((30, 1)) + 1e-3 * rng.standard_normal((30, 60))).astype(np.float32)
    y = Phi[:, 7] + np.float32(1e-4) * rng.standard_normal(30).astype(np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post = cofem.fit(Phi, y, noise_std=1e-4, method=method, rng=0, max_iter=40)
    assert {warning.category for warning in caught} <= {cofem.ConvergenceWarning, cofem.ReliabilityWarning}
    assert np.isfinite(post.mean).all()
    assert (post.variance >= 0).all()
    if post.status.code in (cofem.StatusCode.FAILED, cofem.StatusCode.DIVERGED):
        assert caught


# --- threads and seeds --------------------------------------------------------------------------------

FITS: list[dict[str, Any]] = [
    dict(method="cofem", noise_std=0.01),
    dict(method=cofem.CoFEM(diagonal="corrected"), noise_std=0.01, max_iter=10),
    dict(method="irls", noise_std=0.02, prior=cofem.Block(2)),
    dict(method="seq", noise_std=0.01),
    dict(method="amp", noise_std=0.01),
    dict(max_iter=5),
]


def test_fits_at_once_give_what_they_give_one_after_the_other() -> None:
    rows = np.random.default_rng(0).integers(0, 64, 40)
    Phi = Mask(rows, 64) @ DCT(64).T  # with repeats, and shared by all
    z = np.zeros(64)
    z[[3, 30]] = 1, -2
    y = Phi @ z + 0.01 * np.random.default_rng(1).standard_normal(40)
    Phi = Mask(rows, 64) @ DCT(64).T  # afresh: nothing is known about it yet

    def run(settings: dict[str, Any]) -> cofem.Posterior:
        return cofem.fit(Phi, y, rng=0, **settings)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(run, FITS))
        for one, other in zip(map(run, FITS), together, strict=True):
            assert one.n_iter == other.n_iter
            np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(one.alpha, other.alpha, rtol=1e-6)


def test_the_same_seed_gives_the_same_result_for_any_number_of_threads() -> None:
    code = """
        import sys, warnings
        import numpy as np, cofem
        warnings.simplefilter("ignore")
        rng = np.random.default_rng(0)
        Phi = rng.standard_normal((100, 200))
        y = Phi[:, :5] @ np.ones(5) + 0.01 * rng.standard_normal(100)
        methods = cofem.CoFEM(diagonal="corrected"), "irls"
        fits = [cofem.fit(Phi, y, noise_std=0.01, method=m, rng=3, max_iter=6, tol=0) for m in methods]
        np.save(sys.argv[1], np.stack([post.mean for post in fits]))
    """

    def means(threads: int) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mean.npy")
            environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
            command = [sys.executable, "-c", textwrap.dedent(code), path]
            subprocess.run(command, env=environment, check=True)
            return np.load(path)

    one = means(1)
    np.testing.assert_array_equal(one, means(1))
    np.testing.assert_allclose(one, means(2), rtol=1e-6, atol=1e-8)


def test_coefficients_on_very_weak_columns_are_pointed_out() -> None:
    rng = np.random.default_rng(0)
    norms = np.where(np.arange(64) < 32, 1.0, 1e-5)
    y = norms * np.where(np.arange(64) == 3, 1.0, 0.0) + 0.01 * rng.standard_normal(64)
    post = cofem.fit(np.diag(norms), y, noise_std=0.01, rng=0)
    assert np.abs(post.mean[32:]).max() > 100  # noise of 0.01 through columns of norm 1e-5
    assert "Noise in such a column looks like a large coefficient" in str(post.status)
    well = cofem.fit(np.eye(64), y, noise_std=0.01, rng=0)
    assert "through such a column" not in str(well.status)


@pytest.mark.parametrize("alpha_init", [1e300, 1e-300])
def test_a_start_beyond_all_units_is_cut_off(alpha_init: float) -> None:
    y = np.array([5e3, 6e4, 9e4, -6e4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cofem.ReliabilityWarning)
        post = cofem.fit(
            Mask([0, 2, 5, 6], 8) @ DCT(8).T, y, noise_std=1e4, alpha_init=alpha_init, max_iter=1, tol=0
        )
    assert np.isfinite(post.alpha).all()
    assert (post.alpha > 0).all()
