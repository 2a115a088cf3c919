"""Extended from outside, in under 30 lines each; what is added does all that what is built in does.

`tests/extensions.py` holds an operator, a prior, an algorithm and a diagonal estimator of a user's own.
`skeletons/` holds the files to copy for one that is to become part of the library; they must run as they are.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.linalg

import cofem
from cofem.linalg.diagonals import DiagonalEstimator
from cofem.operators import Dense, Operator, check_adjoint
from cofem.priors import Prior

from . import extensions
from .extensions import D, HeavyBall, N, RunningProbes, Shrunk, Toeplitz, problem, toeplitz
from .problems import exact_posterior
from .test_checkpoint import assert_same, own_environment
from .test_house import code_lines

NAMES = ("operator", "prior", "algorithm", "estimator", "all")


@pytest.mark.parametrize("name", extensions.MAKERS)
def test_each_takes_less_than_30_lines(name: str) -> None:
    assert sum(code_lines(inspect.getsource(part)) for part in extensions.MAKERS[name]) < 30


def test_they_import_documented_names_only() -> None:
    allowed = {"cofem", "cofem.operators", "cofem.inference.base", "cofem.linalg.diagonals", "cofem.priors"}
    source = Path(extensions.__file__).read_text().splitlines()
    words = [line.split() for line in source if line.startswith(("import cofem", "from cofem"))]
    assert {line[1] for line in words} <= allowed
    assert not any(word.startswith("_") for line in words for word in line)


# --- against an exact answer, or what is built in -----------------------------------------------------


def test_the_operator_is_its_matrix() -> None:
    Phi = toeplitz()
    matrix = scipy.linalg.toeplitz(Phi.column, Phi.row)
    check_adjoint(Phi)
    np.testing.assert_allclose(Phi.to_dense(), matrix, atol=1e-13)
    np.testing.assert_allclose(Phi.column_norms(), np.linalg.norm(matrix, axis=0), rtol=1e-12)
    assert Phi.astype("float32").forward(np.ones(D, np.float32)).dtype == np.float32
    other = Toeplitz(Phi.column * 1j, np.append(Phi.column[0] * 1j, Phi.row[1:]))
    check_adjoint(other, dtype=np.complex128)
    Phi, y, settings = problem("operator")
    post, expected = (cofem.fit(phi, y, **settings) for phi in (Phi, Dense(matrix)))
    np.testing.assert_allclose(post.mean, expected.mean, atol=1e-2 * np.abs(expected.mean).max())
    assert list(post.support()) == list(expected.support())
    learned = cofem.fit(Phi, y, rng=0)  # takes rows apart, with a mask of its own
    assert learned.converged
    assert 0.3 < learned.noise_std / extensions.NOISE < 3


def test_the_prior_is_the_exact_update_and_has_the_built_in_ones_as_limits() -> None:
    Phi, y, settings = problem("prior")
    steps = []
    settings |= dict(max_iter=6, tol=0, callback=lambda state: steps.append(state.alpha.copy()))
    post = cofem.fit(Phi, y, **settings)
    alpha, strength = steps[0], settings["prior"].strength
    for found in steps:
        np.testing.assert_allclose(found, alpha, rtol=1e-9)
        mean, covariance = exact_posterior(Phi, y, alpha, extensions.NOISE)
        moment = mean**2 + np.diagonal(covariance)
        group = np.repeat(moment.reshape(-1, 4).mean(axis=1), 4)
        alpha = (1 + strength) / (moment + strength * group)
    np.testing.assert_allclose(post.mean, mean, atol=1e-9)
    for strength, limit in ((0.0, cofem.Independent()), (1e12, cofem.Block(4))):
        ours, theirs = (
            cofem.fit(Phi, y, **settings | dict(prior=prior))
            for prior in (Shrunk(extensions.LABELS, strength), limit)
        )
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="labels must have shape"):
        cofem.fit(Phi, y, prior=Shrunk(np.zeros(3, int)))


def test_the_algorithm_is_em_without_momentum_and_faster_with_it() -> None:
    Phi, y, settings = problem("algorithm")
    plain, em = (cofem.fit(Phi, y, **settings | dict(method=m)) for m in (HeavyBall(inertia=0.0), "irls"))
    np.testing.assert_allclose(plain.mean, em.mean, rtol=1e-9, atol=1e-12)
    assert plain.n_iter == em.n_iter
    post = cofem.fit(Phi, y, **settings)
    assert post.converged
    assert post.n_iter < em.n_iter
    assert post.history["log_evidence"][-1] > em.history["log_evidence"][-1] - 0.1
    mean, covariance = exact_posterior(Phi, y, post.alpha, extensions.NOISE)
    np.testing.assert_allclose(post.mean, mean, atol=1e-9)
    np.testing.assert_allclose(post.variance, np.diagonal(covariance), rtol=1e-6)
    assert "heavy-ball" in repr(post.method)


class Fixed(Prior):
    """Precisions that stay what they are, so that the steps of a fit all have one posterior."""

    name = "fixed"
    extrapolates = False

    def precisions(self, second_moment, cap):
        return np.geomspace(0.1, 1e4, second_moment.size)


def test_the_estimators_average_tends_to_the_exact_variances() -> None:
    Phi, y, settings = problem("estimator")
    errors = []
    for steps in (2, 100):
        method = cofem.CoFEM(diagonal=RunningProbes(memory=np.inf), probe_tol=1e-6)
        post = cofem.fit(
            Phi, y, **settings | dict(method=method, prior=Fixed(), alpha_init=1.0, tol=0, max_iter=steps)
        )
        _, covariance = exact_posterior(Phi, y, post.alpha, extensions.NOISE)
        errors.append(np.mean(np.abs(post.variance / np.diagonal(covariance) - 1)))
    assert errors[1] < 0.12
    assert errors[1] < 0.25 * errors[0]  # of 8 and of 400 probes


def test_the_estimator_leads_to_the_answer_of_exact_em() -> None:
    Phi, y, settings = problem("estimator")
    post, exact = (cofem.fit(Phi, y, **settings | dict(method=m)) for m in (settings["method"], "irls"))
    assert np.linalg.norm(post.mean - exact.mean) < 0.05 * np.linalg.norm(exact.mean)
    _, covariance = exact_posterior(Phi, y, post.alpha, extensions.NOISE)
    error = post.variance / np.diagonal(covariance) - 1
    assert np.sqrt(np.mean(error**2)) < 0.2
    assert set(post.history["diagonal"]) == {"running"}


def test_all_four_work_together() -> None:
    Phi, y, settings = problem("all")
    post = cofem.fit(Phi, y, **settings)
    exact = cofem.fit(Phi.to_dense(), y, **settings | dict(method="irls"))
    assert np.linalg.norm(post.mean - exact.mean) < 0.05 * np.linalg.norm(exact.mean)


# --- killed, interrupted, saved -----------------------------------------------------------------------

CHILD = """
    import sys, time
    import cofem
    from tests.extensions import problem

    name, path, out = sys.argv[1:]
    Phi, y, settings = problem(name)

    def slow(state):
        print(state.iteration, flush=True)
        time.sleep(0.02)

    settings |= dict(resume=path, callback=slow if out == "-" else None)
    post = cofem.fit(Phi, y, checkpoint=path, checkpoint_every="1 step", **settings)
    if out != "-":
        post.save(out)
        cofem.fit(Phi, y, **problem(name)[2]).save(out + ".whole.npz")
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "all" else pytest.mark.nightly) for name in NAMES]
)
def test_killed_and_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "run.npz", tmp_path / "out.npz"
    command = [sys.executable, "-c", textwrap.dedent(CHILD), name, str(path)]
    with subprocess.Popen([*command, "-"], env=own_environment(), stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) >= 5:
                break
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert path.exists()
    subprocess.run([*command, str(out)], env=own_environment(), check=True)
    post = cofem.load(out)
    assert post.n_iter > 6
    assert_same(cofem.load(f"{out}.whole.npz"), post)


@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_gives_what_is_there_and_the_checkpoint_goes_on(name: str, tmp_path: Path) -> None:
    Phi, y, settings = problem(name)
    path = tmp_path / "run.npz"

    def press(state) -> None:
        if state.iteration == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(Phi, y, **settings, checkpoint=path, callback=press)
    assert caught.value.posterior.n_iter == 3
    assert np.isfinite(caught.value.posterior.mean).all()
    resumed = cofem.fit(Phi, y, **settings | dict(rng=None), resume=path)
    assert_same(cofem.fit(Phi, y, **settings), resumed)


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    Phi, y, settings = problem(name)
    post = cofem.fit(Phi, y, **settings)
    post.save(tmp_path / "fit.npz")
    again = cofem.load(tmp_path / "fit.npz", operator=Phi)
    assert_same(post, again)
    np.testing.assert_array_equal(post.sample(3, rng=0), again.sample(3, rng=0))
    assert again.predict(Phi).shape == (N,)


@pytest.mark.parametrize("change", [dict(prior=Shrunk(extensions.LABELS, 3.0)), dict(method=HeavyBall())])
def test_a_checkpoint_knows_their_settings(change: dict, tmp_path: Path) -> None:
    Phi, y, settings = problem("all")
    path = tmp_path / "run.npz"
    cofem.fit(Phi, y, **settings | dict(max_iter=3), checkpoint=path)
    with pytest.raises(ValueError, match=f"another fit: its {next(iter(change))} was"):
        cofem.fit(Phi, y, **settings | change, resume=path)


# --- the skeletons ------------------------------------------------------------------------------------

FOLDER = Path(__file__).parents[1] / "skeletons"
KINDS = {
    "operator": Operator,
    "prior": Prior,
    "algorithm": cofem.inference.base.Method,
    "estimator": DiagonalEstimator,
}


def load_skeleton(name: str) -> ModuleType:
    """Import a skeleton under one name, as often as it is asked for."""
    title = f"skeleton_{name}"
    if title not in sys.modules:
        spec = importlib.util.spec_from_file_location(title, FOLDER / f"{name}.py")
        sys.modules[title] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[title]
            raise
    return sys.modules[title]


def the_class(name: str) -> type:
    """Return the one class of its kind that a skeleton defines."""
    module = load_skeleton(name)
    own = [value for value in vars(module).values() if inspect.isclass(value)]
    (found,) = [v for v in own if v.__module__ == module.__name__ and issubclass(v, KINDS[name])]
    return found


def test_there_is_a_skeleton_of_each_kind() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_the_examples_of_a_skeleton_run(name: str) -> None:
    failed, tried = doctest.testmod(load_skeleton(name))
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_skeleton_fits_and_goes_on_after_a_break(name: str, tmp_path: Path) -> None:
    kind = the_class(name)
    Phi, y, settings = problem("prior")
    settings = settings | dict(prior=None)
    expected = cofem.fit(Phi, y, **settings)
    if name == "operator":
        Phi = kind(D, 3)
        check_adjoint(Phi)
        np.testing.assert_allclose(Phi.column_norms(), np.linalg.norm(Phi.to_dense(), axis=0))
        y = Phi @ expected.mean
        settings["method"] = "cofem"
    elif name == "estimator":
        settings["method"] = cofem.CoFEM(diagonal=kind())
    else:
        settings["prior" if name == "prior" else "method"] = kind()
    whole = cofem.fit(Phi, y, **settings)
    cofem.fit(Phi, y, **settings | dict(max_iter=4), checkpoint=tmp_path / "run.npz")
    assert_same(whole, cofem.fit(Phi, y, **settings, resume=tmp_path / "run.npz"))
    if name != "operator":
        assert np.linalg.norm(whole.mean - expected.mean) < 0.1 * np.linalg.norm(expected.mean)
