"""Bad input is refused at the door, by name (the table in the design)."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse.linalg as sla

import cofem
from cofem.operators import FFT

from .problems import dense_case

PHI = np.random.default_rng(0).standard_normal((6, 10))
Y = np.ones(6)


def lying_operator():
    return sla.LinearOperator(
        (6, 10), matvec=lambda x: PHI @ x, rmatvec=lambda y: 2 * (PHI.T @ y), dtype=float
    )


def with_value(array, value):
    out = array.copy()
    out.flat[1] = value
    return out


CASES = {
    "Phi of the wrong type": (TypeError, "Phi", dict(Phi=object())),
    "Phi None": (TypeError, "Phi", dict(Phi=None)),
    "Phi of one dimension": (ValueError, "Phi", dict(Phi=np.ones(6))),
    "Phi with NaN": (ValueError, "Phi", dict(Phi=with_value(PHI, np.nan))),
    "Phi with infinity": (ValueError, "Phi", dict(Phi=with_value(PHI, np.inf))),
    "Phi empty": (ValueError, "Phi", dict(Phi=np.ones((0, 4)), y=np.ones(0))),
    "Phi of strings": (TypeError, "Phi", dict(Phi=np.array([["a", "b"]]))),
    "adjoint that does not match": (ValueError, "adjoint", dict(Phi=lying_operator())),
    "y of the wrong length": (ValueError, "y", dict(y=np.ones(7))),
    "y of the wrong shape": (ValueError, "y", dict(y=np.ones((6, 1, 1)))),
    "y a scalar": (ValueError, "y", dict(y=3.0)),
    "y with NaN": (ValueError, "y", dict(y=with_value(Y, np.nan))),
    "y with infinity": (ValueError, "y", dict(y=with_value(Y, -np.inf))),
    "y of strings": (TypeError, "y", dict(y=["a"] * 6)),
    "y None": (TypeError, "y", dict(y=None)),
    "noise zero": (ValueError, "noise_std", dict(noise_std=0)),
    "noise negative": (ValueError, "noise_std", dict(noise_std=-1.0)),
    "noise NaN": (ValueError, "noise_std", dict(noise_std=np.nan)),
    "noise infinite": (ValueError, "noise_std", dict(noise_std=np.inf)),
    "noise unknown word": (ValueError, "noise_std", dict(noise_std="small")),
    "noise of the wrong type": (TypeError, "noise_std", dict(noise_std=None)),
    "noise of the wrong shape": (ValueError, "noise_std", dict(noise_std=np.ones(5))),
    "noise of a sample zero": (ValueError, "noise_std", dict(noise_std=np.array([1, 1, 0, 1, 1, 1.0]))),
    "weights of the wrong shape": (ValueError, "sample_weight", dict(sample_weight=np.ones(5))),
    "weights and noise of each": (
        ValueError,
        "sample_weight",
        dict(sample_weight=np.ones(6), noise_std=np.ones(6)),
    ),
    "prior of the wrong type": (TypeError, "prior", dict(prior="block")),
    "blocks of no size": (ValueError, "groups", dict(prior=cofem.Block(0))),
    "labels of the wrong shape": (ValueError, "groups", dict(prior=cofem.Block(np.zeros(3, int)))),
    "blocks that overlap": (ValueError, "groups", dict(prior=cofem.Block([[0, 1], [1, 2]]))),
    "blocks beyond the dictionary": (ValueError, "groups", dict(prior=cofem.Block([[0, 99]]))),
    "pattern of the wrong shape": (ValueError, "shape", dict(prior=cofem.PatternCoupled(1.0, (3, 3)))),
    "complex and non-negative": (ValueError, "nonnegative", dict(y=Y + 1j, nonnegative=True)),
    "several tasks for amp": (
        ValueError,
        "method=.amp",
        dict(y=np.stack([Y, Y], 1), prior=cofem.MultiTask(), method="amp"),
    ),
    "a column of one task for seq": (
        ValueError,
        "method='seq' works on one data vector, got y",
        dict(y=Y[:, None], prior=cofem.MultiTask(), method="seq"),
    ),
    "a prior for seq": (ValueError, "method=.seq", dict(prior=cofem.Block(2), method="seq")),
    "lists of different lengths": (ValueError, "y must be lists", dict(Phi=[PHI, PHI], y=[Y])),
    "unknown method": (ValueError, "method", dict(method="magic")),
    "method of the wrong type": (TypeError, "method", dict(method=3)),
    "max_iter zero": (ValueError, "max_iter", dict(max_iter=0)),
    "max_iter fractional": (TypeError, "max_iter", dict(max_iter=2.5)),
    "tol negative": (ValueError, "tol", dict(tol=-1e-3)),
    "tol of the wrong type": (TypeError, "tol", dict(tol="tight")),
    "alpha_init negative": (ValueError, "alpha_init", dict(alpha_init=-1.0)),
    "alpha_init of the wrong shape": (ValueError, "alpha_init", dict(alpha_init=np.ones(3))),
    "rng of the wrong type": (TypeError, "rng", dict(rng="seed")),
    "callback not callable": (TypeError, "callback", dict(callback=3)),
    "complex data for a real method": (ValueError, "method='seq'", dict(y=Y + 1j, method="seq")),
    "complex dictionary for a real method": (ValueError, "method='seq'", dict(Phi=FFT(6), method="seq")),
}


@pytest.mark.parametrize("row", CASES)
def test_bad_input_is_refused_by_name(row):
    kind, name, change = CASES[row]
    arguments = dict(Phi=PHI, y=Y, noise_std=0.1) | change
    with pytest.raises(kind, match=name):
        cofem.fit(arguments.pop("Phi"), arguments.pop("y"), **arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("probes", 0),
        ("probes", 2.5),
        ("cg_iterations", 0),
        ("cg_tol", 0.0),
        ("probe_tol", -1.0),
        ("preconditioner", "magic"),
        ("form", "third"),
        ("probe_distribution", "uniform"),
        ("stop", "never"),
    ],
)
def test_bad_settings_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        cofem.CoFEM(**{name: value})


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, "high"])
def test_bad_level(level):
    post = cofem.fit(PHI, Y, noise_std=0.1)
    with pytest.raises(ValueError, match="level"):
        post.credible_interval(level)


def test_bad_posterior_arguments():
    post = cofem.fit(PHI, Y, noise_std=0.1)
    with pytest.raises(ValueError, match="n must"):
        post.sample(0)
    with pytest.raises(ValueError, match="indices"):
        post.covariance([10])
    with pytest.raises(TypeError, match="indices"):
        post.covariance([0.5])
    with pytest.raises(ValueError, match="Phi_new"):
        post.predict(np.ones((2, 3)))


def turning_nan(after):
    calls = []

    def forward(x):
        calls.append(1)
        return PHI @ x if len(calls) <= after else np.full(6, np.nan)

    return sla.LinearOperator((6, 10), matvec=forward, rmatvec=lambda y: PHI.T @ y, dtype=float)


def test_an_operator_that_turns_nan_midway_returns_the_last_good_state():
    with pytest.warns(cofem.ConvergenceWarning, match="not finite"):
        post = cofem.fit(turning_nan(60), Y, noise_std=0.1, method="cofem", rng=0, tol=0)
    assert post.status.code is cofem.StatusCode.FAILED
    good = cofem.fit(PHI, Y, noise_std=0.1, method="cofem", rng=0, tol=0, max_iter=post.n_iter)
    assert 1 < post.n_iter < 30
    assert np.allclose(post.mean, good.mean, atol=0.01 * np.abs(good.mean).max())


def test_an_operator_that_is_nan_from_the_start_has_nothing_to_return():
    with pytest.raises(FloatingPointError, match="Phi"):
        cofem.fit(turning_nan(5), Y, noise_std=0.1, method="cofem", rng=0)


def test_a_callback_sees_the_state_in_user_units_and_can_stop():
    seen = []

    def callback(state):
        seen.append((state.iteration, state.noise_std, state.elapsed, state.applications))
        assert state.mean.shape == state.variance.shape == state.alpha.shape == (10,)
        return state.iteration == 3

    post = cofem.fit(PHI, 1e5 * Y, noise_std=2e4, method="em", callback=callback, tol=0)
    assert [row[0] for row in seen] == [1, 2, 3]
    assert seen[0][1] == pytest.approx(2e4)
    assert post.status.code is cofem.StatusCode.STOPPED
    assert post.n_iter == 3


#: Parts that are held out are fitted together, or one by one where the user says where to start.
TOGETHER, IN_TURN = {}, {"alpha_init": 1.0}


@pytest.mark.parametrize(
    ("settings", "parts"), [(TOGETHER, ["noise"]), (IN_TURN, [f"noise {number}/5" for number in range(1, 6)])]
)
def test_a_callback_sees_the_noise_being_learned(settings, parts):
    case = dense_case(256, f=2, density=0.05, noise_std=0.01)
    seen = []
    post = cofem.fit(case.Phi, case.y, rng=0, callback=seen.append, **settings)
    stages = list(dict.fromkeys(state.stage for state in seen))
    assert stages == [*parts, "fit"]
    for name in ("elapsed", "applications"):
        figures = [getattr(state, name) for state in seen]
        assert figures == sorted(figures)
    assert seen[0].mean.shape == seen[-1].mean.shape
    last = [state for state in seen if state.stage == "fit"]
    assert [state.iteration for state in last] == list(range(1, post.n_iter + 1))
    assert post.history["elapsed"][0] == last[0].elapsed > seen[0].elapsed
    assert post.noise_std == last[-1].noise_std


@pytest.mark.parametrize(("settings", "part"), [(TOGETHER, "noise"), (IN_TURN, "noise 1/5")])
def test_a_callback_stops_the_learning_of_the_noise_as_well(settings, part):
    case = dense_case(256, f=2, density=0.05, noise_std=0.01)
    seen, seen_noise = [], []

    def stop(state):
        seen.append(state.stage)
        seen_noise.append(state.noise_std)
        return len(seen) >= 8

    post = cofem.fit(case.Phi, case.y, rng=0, callback=stop, **settings)
    assert seen == [part] * 8
    assert post.status.code is cofem.StatusCode.STOPPED
    assert "while the noise was still being learned" in str(post.status)
    assert post.n_iter == 8
    assert case.nrmse(post.mean) < 2
    assert post.noise_std < seen_noise[-1] < seen_noise[0]


def stopped_after(calls, Phi, y, **settings):
    """Fit until a callback was called so often; by the callback itself, and by Ctrl-C in the next step."""
    ends = []
    for interrupts in (False, True):
        seen = []

        def look(state, seen=seen, interrupts=interrupts):
            seen.append(state)
            if interrupts and len(seen) > calls:
                raise KeyboardInterrupt
            return not interrupts and len(seen) >= calls

        try:
            ends.append(cofem.fit(Phi, y, callback=look, rng=0, **settings))
        except cofem.FitInterrupted as interrupt:
            ends.append(interrupt.posterior)
    return ends


@pytest.mark.parametrize("settings", [TOGETHER, IN_TURN, {"prior": "auto"}])
def test_a_budget_returns_the_best_so_far_whenever_it_ends(settings):
    case = dense_case(64, f=2, density=0.05, noise_std=0.01, seed=3)
    stages = []
    whole = cofem.fit(case.Phi, case.y, rng=0, callback=lambda s: stages.append(s.stage) and None, **settings)
    first_of_fit = stages.index("fit") + 1
    for calls in (8, first_of_fit - 1, first_of_fit, first_of_fit + 2):
        by_callback, by_interrupt = stopped_after(calls, case.Phi, case.y, **settings)
        assert by_callback.status.code is by_interrupt.status.code is cofem.StatusCode.STOPPED
        assert max(case.nrmse(by_callback.mean), case.nrmse(by_interrupt.mean)) < 3 * case.nrmse(whole.mean)
    assert "a fit to 29 of the 32 data, which had come further" in str(by_callback.status)


def test_a_budget_that_ends_between_tasks_or_forms_returns_what_fits_the_data():
    rng = np.random.default_rng(0)
    Phi, z = rng.standard_normal((40, 60)), np.zeros((60, 2))
    z[[3, 30]] = 1.0
    Y = Phi @ z + 0.01 * rng.standard_normal((40, 2))
    for calls in (30, 200, 700):
        for post in stopped_after(calls, Phi, Y, prior="auto"):
            assert post.mean.shape in ((60, 2), (60,))  # Ctrl-C ends with the task that it came in
            assert np.isfinite(post.std).all()


def test_import_is_quick_and_light():
    code = (
        "import sys, time; start = time.perf_counter(); import cofem; spent = time.perf_counter() - start;"
        "[getattr(cofem, name) for name in cofem.__all__ if not name.endswith(('Regressor', 'Classifier'))];"
        "heavy = {'matplotlib', 'torch', 'sklearn', 'pylops', 'rich', 'typer', 'scipy.signal', 'scipy.stats'}"
        " & set(sys.modules);"
        "print(spent, sorted(heavy)); sys.exit(bool(heavy))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert all(run.returncode == 0 for run in runs), runs[0].stdout
    assert min(float(run.stdout.split()[0]) for run in runs) < 1.0


def test_progress_draws_a_bar(capsys):
    cofem.fit(PHI, Y, noise_std=0.1, method="em", progress=True)
    assert "step" in capsys.readouterr().out
    cofem.fit(PHI, Y, noise_std=0.1, method="em")
    assert capsys.readouterr().out == ""
