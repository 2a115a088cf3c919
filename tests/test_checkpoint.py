"""A fit that was killed goes on to the same result, bit for bit; files that are none are refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cofem
from cofem._packing import pack, unpack
from cofem.cli import app
from cofem.inference import checkpoint as module
from cofem.inference.base import State
from cofem.linalg.diagonals import Gate, SelfConsistent, gate
from cofem.linalg.diagonals.corrected import Ratios
from cofem.linalg.diagonals.gate import Verdict
from cofem.operators import Dense

from .problems import complex_case, dct_case, dense_case

SMALL = dense_case(64, f=2, density=0.05, noise_std=0.01)
FIELDS = ("mean", "variance", "alpha", "noise_std")


def assert_same(one: cofem.Posterior, other: cofem.Posterior) -> None:
    """Bit for bit the same but for the time that it took."""
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.status == other.status
    assert one.history.keys() == other.history.keys()
    for name in one.history.keys() - {"elapsed"}:
        np.testing.assert_array_equal(one.history[name], other.history[name], err_msg=name)


def own_environment() -> dict[str, str]:
    """For a process that imports the same cofem as this one, and `tests`."""
    folders = [str(Path(__file__).parents[1]), str(Path(cofem.__file__).parents[1])]
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}


class Stop:
    """A callback that interrupts at a given call, in whatever stage that is."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, state) -> None:
        if state.iteration == self.step:
            raise KeyboardInterrupt


def stopped_and_resumed(path: Path, step: int, Phi, y, **settings) -> cofem.Posterior:
    with pytest.raises(KeyboardInterrupt):
        cofem.fit(Phi, y, checkpoint=path, checkpoint_every="2 steps", callback=Stop(step), **settings)
    settings["rng"] = 99  # the file knows better
    return cofem.fit(Phi, y, resume=path, **settings)


@pytest.mark.parametrize(
    ("make", "start", "stages"),
    [(dct_case, None, ("noise", "fit")), (dense_case, 1.0, ("noise 1/5", "noise 3/5", "fit"))],
)
def test_a_fit_that_a_callback_stopped_while_it_learned_the_noise_goes_on(
    tmp_path, make, start, stages
) -> None:
    case = make(256, f=2, density=0.05, noise_std=0.01)
    whole = cofem.fit(case.Phi, case.y, rng=0, alpha_init=start)
    settings = dict(checkpoint=tmp_path / "run.npz", resume=tmp_path / "run.npz", rng=0, alpha_init=start)
    elapsed = [0.0]
    for stage in stages:

        def stop(state, stage=stage) -> bool:
            assert state.elapsed >= elapsed[-1]
            if state.stage == stage and state.iteration >= 3:
                time.sleep(0.1)
                elapsed.append(state.elapsed)
                return True
            return False

        post = cofem.fit(case.Phi, case.y, callback=stop, **settings)
        assert post.status.code is cofem.StatusCode.STOPPED
        assert case.nrmse(post.mean) < 50
    post = cofem.fit(case.Phi, case.y, **settings)
    assert_same(whole, post)
    assert post.history["elapsed"][0] > elapsed[-2]


def test_tasks_that_were_stopped_while_they_learned_the_noise_go_on(tmp_path) -> None:
    case = dense_case(256, f=2, density=0.05, noise_std=0.01)
    Y = np.stack([case.y, case.y[::-1]], axis=1)
    settings = dict(method=cofem.CoFEM(), rng=0)
    whole = cofem.fit(case.Phi, Y, **settings)
    settings |= dict(checkpoint=tmp_path / "run.npz", resume=tmp_path / "run.npz")
    post = cofem.fit(case.Phi, Y, callback=lambda state: state.iteration >= 3, **settings)
    assert post.mean.shape == (256, 2)
    again = cofem.fit(case.Phi, Y, **settings)
    np.testing.assert_array_equal(whole.mean, again.mean)
    np.testing.assert_array_equal(whole.noise_std, again.noise_std)


CASES = {
    "cofem": (lambda: dct_case(256), dict(method="cofem", max_iter=10)),
    "cofem, gate fails": (
        lambda: SMALL,
        dict(method=cofem.CoFEM(diagonal=Gate(tolerated=-1.0)), max_iter=9),
    ),
    "cofem, self-consistent, complex": (
        lambda: complex_case(64),
        dict(method=cofem.CoFEM(diagonal=SelfConsistent()), max_iter=10),
    ),
    "cofem, paired": (lambda: SMALL, dict(method=cofem.CoFEM(diagonal="paired"), max_iter=12)),
    "cofem, corrected": (lambda: SMALL, dict(method=cofem.CoFEM(diagonal="corrected"), max_iter=12)),
    "cofem, pooled": (lambda: SMALL, dict(method=cofem.CoFEM(diagonal="pooled"), max_iter=12)),
    "cofem, paper": (lambda: SMALL, dict(method=cofem.CoFEM.paper(), max_iter=9)),
    "em": (lambda: SMALL, dict(method=cofem.EM(accelerate=True))),
    "irls": (lambda: SMALL, dict(method="irls", nonnegative=True)),
    "amp": (lambda: SMALL, dict(method="amp")),
    "vi": (lambda: SMALL, dict(method="vi", max_iter=30)),
    "seq": (lambda: SMALL, dict(method="seq")),
    "block": (lambda: SMALL, dict(prior=cofem.Block(2))),
}


@pytest.mark.filterwarnings("ignore::cofem.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_method_goes_on_to_the_same_result(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gate, "SMALL_ENTRIES", 0)  # or the gate would take the exact variances
    make, settings = CASES[name]
    case = make()
    settings = dict(noise_std=case.noise_std, rng=3) | settings
    whole = cofem.fit(case.Phi, case.y, **settings)
    for step in (2, 5, 8):
        assert whole.n_iter > step
        assert_same(whole, stopped_and_resumed(tmp_path / "run.npz", step, case.Phi, case.y, **settings))
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


def test_learning_the_noise_goes_on_from_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = tmp_path / "run.npz", []
    settings = dict(method=cofem.CoFEM(diagonal="paired"), rng=np.random.Generator(np.random.MT19937(5)))
    settings |= dict(max_iter=6, alpha_init=1.0)  # or parts would be fitted together
    original = module.Keeper.keep
    limit = np.inf

    def keep(self, stage, method):
        inner = original(self, stage, method)

        def count(record):
            calls.append(stage)
            if len(calls) > limit:
                raise KeyboardInterrupt
            if inner is not None:
                inner(record)

        return count

    whole = cofem.fit(SMALL.Phi, SMALL.y, **settings | dict(rng=np.random.Generator(np.random.MT19937(5))))
    monkeypatch.setattr(module.Keeper, "keep", keep)
    arguments = dict(checkpoint=path)
    cofem.fit(SMALL.Phi, SMALL.y, **arguments, **settings)
    stages = list(dict.fromkeys(calls))
    assert stages[0] == "0/noise/1/0"
    assert stages[-1] == "0/fit"
    assert len(stages) >= 6
    first = {stage: calls.index(stage) for stage in stages}
    settings["rng"] = None
    for stage in (stages[1], stages[-1]):
        calls.clear()
        limit = first[stage] + 2
        rng = np.random.Generator(np.random.MT19937(5))
        with pytest.raises(cofem.FitInterrupted) as caught:
            cofem.fit(SMALL.Phi, SMALL.y, **arguments, **settings | dict(rng=rng))
        learning = "while the noise was still being learned" in caught.value.posterior.status.message
        assert learning == (stage != "0/fit")
        limit = np.inf
        assert_same(whole, cofem.fit(SMALL.Phi, SMALL.y, resume=path, **settings))


def test_tasks_that_are_done_are_not_fitted_again(tmp_path: Path) -> None:
    y = np.stack([SMALL.y, SMALL.y[::-1], 2 * SMALL.y], axis=1)
    settings = dict(noise_std=0.01, method="irls", rng=0)
    whole = cofem.fit(SMALL.Phi, y, **settings)
    steps = []

    def in_the_second_task(state):
        steps.append(state.iteration)
        if steps.count(3) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cofem.fit(SMALL.Phi, y, checkpoint=tmp_path / "run.npz", callback=in_the_second_task, **settings)
    steps.clear()
    settings |= dict(resume=tmp_path / "run.npz", callback=lambda state: steps.append(1))
    resumed = cofem.fit(SMALL.Phi, y, **settings)
    assert len(steps) == whole.task(1).n_iter + whole.task(2).n_iter - 2
    for i in range(3):
        assert_same(whole.task(i), resumed.task(i))


CHILD = """
    import sys, time
    import numpy as np, cofem
    from tests.problems import dct_case
    out, path = sys.argv[1:]
    case = dct_case(128)
    settings = dict(rng=7, checkpoint=path, resume=path, checkpoint_every=0)
    settings |= dict(method=cofem.CoFEM(diagonal="corrected"), max_iter=15)
    post = cofem.fit(case.Phi, case.y, callback=lambda state: time.sleep(0.01), **settings)
    post.save(out)
"""


@pytest.mark.nightly
def test_killed_at_random_moments(tmp_path: Path) -> None:
    rng = np.random.default_rng(os.getpid())
    environment = own_environment()

    def start(out: Path, path: Path) -> subprocess.Popen:
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(out), str(path)]
        return subprocess.Popen(command, env=environment)

    whole = start(tmp_path / "whole.npz", tmp_path / "whole-run.npz")
    assert whole.wait() == 0
    out, path = tmp_path / "out.npz", tmp_path / "run.npz"
    kills = 0
    while not out.exists():
        child = start(out, path)
        before = path.stat().st_mtime_ns if path.exists() else 0
        while child.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.001)
        if kills < 3:
            time.sleep(rng.uniform(0, 0.3))
            child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
    assert kills > 0
    assert_same(cofem.load(tmp_path / "whole.npz"), cofem.load(out))


# --- what may differ, and what may not ----------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "run.npz"
    cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, method="em", max_iter=4, rng=0, checkpoint=target)
    return target


def test_more_steps_may_be_taken(path: Path) -> None:
    settings = dict(noise_std=0.01, method="em", rng=0)
    assert cofem.fit(SMALL.Phi, SMALL.y, resume=path, max_iter=4, **settings).n_iter == 4
    assert_same(
        cofem.fit(SMALL.Phi, SMALL.y, max_iter=9, **settings),
        cofem.fit(SMALL.Phi, SMALL.y, resume=path, max_iter=9, **settings),
    )


def test_the_same_name_twice_starts_afresh_or_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    settings = dict(noise_std=0.01, method="em", rng=0, checkpoint=path, resume=path)
    first = cofem.fit(SMALL.Phi, SMALL.y, **settings)
    assert_same(first, cofem.fit(SMALL.Phi, SMALL.y, **settings))
    cofem.fit(SMALL.Phi, SMALL.y, **settings | dict(checkpoint=tmp_path / "copy.npz"))
    assert_same(first, cofem.fit(SMALL.Phi, SMALL.y, **settings | dict(resume=tmp_path / "copy.npz")))


OTHERS = {
    "shape of Phi": dict(Phi=SMALL.Phi[:, :-1]),
    "its y was": dict(y=SMALL.y + 1e-12),
    "its Phi was": dict(Phi=SMALL.Phi + np.eye(32, 64)),
    "its noise_std was": dict(noise_std=0.02),
    "its method was": dict(method="irls"),
    "its prior was": dict(prior=cofem.Block(2)),
    "its nonnegative was": dict(nonnegative=True),
    "its tol was": dict(tol=1e-3),
    "its alpha_init was": dict(alpha_init=np.ones(64)),
}


@pytest.mark.parametrize("words", OTHERS)
def test_a_file_of_another_fit_is_refused(words: str, path: Path) -> None:
    arguments = dict(Phi=SMALL.Phi, y=SMALL.y, noise_std=0.01, method="em", max_iter=4) | OTHERS[words]
    with pytest.raises(ValueError, match=f"^resume: .*another fit: .*{words}"):
        cofem.fit(**arguments, resume=path)


def damaged(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("not a checkpoint")
    elif how == "flipped bit":
        at = len(whole) // 2  # inside the largest array
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif how == "posterior":
        cofem.fit(np.eye(2), np.ones(2), noise_std=0.1).save(path)
    elif how == "array":
        np.savez(path, y=np.ones(3))
    else:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
        if how == "newer":
            header["version"] += 1
        elif how == "older":
            header["version"] -= 1
        elif how == "less":
            arrays.popitem()
        elif how == "strange":
            header["contents"] = {"kind": "os.system", "fields": {}}
        elif how == "deep":
            header["contents"] = 3
        np.savez(path, header=np.array(json.dumps(header)), **arrays)


HOW = [
    "truncated",
    "empty",
    "text",
    "flipped bit",
    "posterior",
    "array",
    "newer",
    "older",
    "less",
    "strange",
    "deep",
]


@pytest.mark.parametrize("how", [*HOW, "missing"])
def test_what_is_no_checkpoint_is_refused_by_name(how: str, path: Path) -> None:
    if how == "missing":
        path.unlink()
    else:
        damaged(path, how)
    with pytest.raises(ValueError, match=r"^resume"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, method="em", max_iter=4, resume=path)


@pytest.mark.parametrize(
    ("kind", "words", "settings"),
    [
        (TypeError, "checkpoint", dict(checkpoint=3)),
        (TypeError, "resume", dict(resume=3.5)),
        (ValueError, "checkpoint must", dict(checkpoint="nowhere/run.npz")),
        (ValueError, "checkpoint must", dict(checkpoint=".")),
        (ValueError, "checkpoint_every", dict(checkpoint="run.npz", checkpoint_every=-1)),
        (ValueError, "checkpoint_every", dict(checkpoint="run.npz", checkpoint_every=np.nan)),
        (ValueError, "checkpoint_every", dict(checkpoint="run.npz", checkpoint_every="0 steps")),
        (ValueError, "checkpoint_every", dict(checkpoint="run.npz", checkpoint_every="often")),
        (TypeError, "checkpoint_every", dict(checkpoint="run.npz", checkpoint_every=True)),
        (ValueError, "checkpoint_every", dict(checkpoint_every=3)),
    ],
)
def test_bad_settings_are_refused_by_name(kind, words, settings, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=words):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", y=SMALL.y)
    before = (tmp_path / "data.npz").read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint .* is not a checkpoint"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, checkpoint=tmp_path / "data.npz")
    assert (tmp_path / "data.npz").read_bytes() == before


# --- files of others are not lost ---------------------------------------------------------------------


@pytest.mark.parametrize("words", OTHERS)
def test_a_checkpoint_of_another_fit_is_not_replaced(words: str, path: Path) -> None:
    before = path.read_bytes()
    arguments = dict(Phi=SMALL.Phi, y=SMALL.y, noise_std=0.01, method="em", max_iter=4) | OTHERS[words]
    with pytest.raises(ValueError, match=f"^checkpoint '.*run.npz' exists and belongs .*{words}.*resume="):
        cofem.fit(**arguments, checkpoint=path, checkpoint_every="1 step")
    assert path.read_bytes() == before


def test_the_same_fit_may_start_afresh_over_its_checkpoint(path: Path) -> None:
    before = path.read_bytes()
    cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, method="em", max_iter=6, rng=1, checkpoint=path)
    assert path.read_bytes() != before


def test_a_fit_resumed_elsewhere_does_not_replace_a_third_one(path: Path, tmp_path: Path) -> None:
    """Nor when it ends by an exception before it has begun."""
    settings = dict(noise_std=0.01, method="em", max_iter=9)
    other = tmp_path / "other.npz"
    cofem.fit(SMALL.Phi, 2 * SMALL.y, checkpoint=other, **settings)
    before = other.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint '.*other.npz' exists and belongs to another fit"):
        cofem.fit(SMALL.Phi, SMALL.y, resume=path, checkpoint=other, **settings)
    with pytest.raises(ValueError, match="y must have shape"):
        cofem.fit(SMALL.Phi, SMALL.y[:-1], resume=path, checkpoint=other, **settings)
    assert other.read_bytes() == before
    fresh = tmp_path / "fresh.npz"
    with pytest.raises(ValueError, match=r"resume: .*another fit"):
        cofem.fit(SMALL.Phi, 3 * SMALL.y, resume=path, checkpoint=fresh, **settings)
    assert not fresh.exists()


def test_tasks_that_are_done_are_not_replaced(tmp_path: Path) -> None:
    path, y = tmp_path / "run.npz", np.stack([SMALL.y, SMALL.y[::-1]], axis=1)
    settings = dict(noise_std=0.01, method="em", max_iter=3)
    cofem.fit(SMALL.Phi, y, checkpoint=path, **settings)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="exists and holds 2 tasks"):
        cofem.fit(SMALL.Phi, SMALL.y, checkpoint=path, **settings)
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["newer", "older", "strange", "deep"])
def test_a_checkpoint_that_cannot_be_told_is_not_replaced(how: str, path: Path) -> None:
    damaged(path, how)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="cannot be told"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, method="em", checkpoint=path)
    assert path.read_bytes() == before


WRITER = """
    import sys, time
    import numpy as np, cofem
    from tests.problems import dense_case
    case = dense_case(64, f=2, density=0.05, noise_std=0.01)
    def wait(state):
        print("step", flush=True)
        time.sleep(60)
    cofem.fit(case.Phi, case.y, noise_std=0.01, method="em", checkpoint=sys.argv[1], callback=wait)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    settings = dict(noise_std=0.01, method="em", rng=0, max_iter=3)
    with subprocess.Popen(command, env=own_environment(), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "step\n"
        with pytest.raises(ValueError, match=f"checkpoint .* in use by another fit .process {child.pid} on"):
            cofem.fit(SMALL.Phi, SMALL.y, checkpoint=path, resume=path, **settings)
        link = tmp_path / "link.npz"
        link.symlink_to(path)
        with pytest.raises(ValueError, match="in use by another fit"):
            cofem.fit(SMALL.Phi, SMALL.y, checkpoint=link, **settings)
        child.kill()
    assert (tmp_path / ".run.npz.lock").exists()  # of a process that is gone: nobody waits for it
    cofem.fit(SMALL.Phi, SMALL.y, checkpoint=path, resume=path, **settings)
    assert {file.name for file in tmp_path.iterdir()} == {"run.npz", "link.npz"}


def test_the_lock_is_let_go_however_a_fit_ends(tmp_path: Path) -> None:
    settings = dict(noise_std=0.01, method="em", rng=0, max_iter=3, checkpoint=tmp_path / "run.npz")

    def fail(state) -> None:
        raise RuntimeError("in the callback")

    def nested(state) -> None:
        cofem.fit(SMALL.Phi, SMALL.y, **settings)

    kept = []  # the exceptions hold on to everything there was
    for kind, words, more in [
        (KeyboardInterrupt, None, dict(callback=Stop(2))),
        (RuntimeError, "in the callback", dict(callback=fail)),
        (ValueError, "in use by another fit", dict(callback=nested)),
        (TypeError, "callback must be callable", dict(callback=3)),
        (ValueError, "y must have shape", dict(y=SMALL.y[:-1])),
        (ValueError, "resume", dict(resume=tmp_path / "missing.npz")),
    ]:
        with pytest.raises(kind, match=words) as caught:
            cofem.fit(**dict(Phi=SMALL.Phi, y=SMALL.y) | settings | more)
        kept.append(caught.value)
        assert [file.name for file in tmp_path.iterdir() if file.suffix == ".lock"] == []
    assert cofem.fit(SMALL.Phi, SMALL.y, **settings).n_iter == 3
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


def test_a_users_file_in_place_of_the_lock_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".run.npz.lock").write_text("mine")
    with pytest.raises(ValueError, match="a file of another kind"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, checkpoint=tmp_path / "run.npz")
    assert (tmp_path / ".run.npz.lock").read_text() == "mine"


def test_a_checkpoint_goes_where_a_link_points_and_keeps_its_mode(path: Path, tmp_path: Path) -> None:
    path.chmod(0o640)
    link = tmp_path / "link.npz"
    link.symlink_to("run.npz")
    before = path.read_bytes()
    settings = dict(noise_std=0.01, method="em", max_iter=9, checkpoint=link, resume=link)
    cofem.fit(SMALL.Phi, SMALL.y, **settings)
    assert link.is_symlink()
    assert path.read_bytes() != before
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path) -> None:
    """A pipe of our own stands for devices: a test that fails must not cost the machine its /dev/null."""
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="plain file"):
        cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, checkpoint=pipe)
    assert pipe.is_fifo()


# --- trouble on the way -------------------------------------------------------------------------------


def test_a_disk_that_cannot_be_written_does_not_cost_the_fit(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    settings = dict(noise_std=0.01, method="em", rng=0)
    settings |= dict(checkpoint=folder / "run.npz", checkpoint_every="1 step")

    def remove(state) -> None:
        if state.iteration == 2:
            shutil.rmtree(folder)

    with pytest.warns(cofem.CheckpointWarning, match="checkpoint .*could not be written") as caught:
        post = cofem.fit(SMALL.Phi, SMALL.y, callback=remove, **settings)
    assert len(caught) == 1
    assert_same(post, cofem.fit(SMALL.Phi, SMALL.y, noise_std=0.01, method="em", rng=0))


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    code = """
        import resource, sys, warnings
        import numpy as np, cofem
        from tests.problems import dense_case
        case = dense_case(64, f=2, density=0.05, noise_std=0.01)
        def fill(state):
            if state.iteration == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            post = cofem.fit(case.Phi, case.y, noise_std=0.01, method="em", rng=0, callback=fill,
                             checkpoint=sys.argv[1], checkpoint_every="1 step")
        assert [w.category for w in caught] == [cofem.CheckpointWarning], caught
        assert post.converged
    """
    environment = own_environment()
    path = tmp_path / "run.npz"
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], env=environment, check=True)
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    settings = dict(noise_std=0.01, method="em")
    whole = cofem.fit(SMALL.Phi, SMALL.y, **settings)
    resumed = cofem.fit(SMALL.Phi, SMALL.y, resume=path, **settings)
    np.testing.assert_allclose(resumed.mean, whole.mean, rtol=1e-6, atol=1e-9)


def test_an_operator_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    class Shaky(Dense):
        steady = False

        def _forward(self, x):
            if not self.steady and self.calls > 40:
                raise OSError("the detector does not answer")
            self.calls += 1
            return super()._forward(x)

    Phi = Shaky(SMALL.Phi)
    Phi.calls = 0
    settings = dict(noise_std=0.01, method="cofem", rng=0)
    with pytest.warns(cofem.ConvergenceWarning, match="does not answer"):
        post = cofem.fit(Phi, SMALL.y, checkpoint=tmp_path / "run.npz", **settings)
    assert post.status.code is cofem.StatusCode.FAILED
    Phi.steady = True
    whole = cofem.fit(Phi, SMALL.y, **settings)
    assert 1 < post.n_iter < whole.n_iter
    assert_same(whole, cofem.fit(Phi, SMALL.y, resume=tmp_path / "run.npz", **settings))


def test_ctrl_c_hands_back_the_result_so_far() -> None:
    settings = dict(noise_std=0.01, method="em", rng=0, tol=0.0)
    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(SMALL.Phi, SMALL.y, callback=Stop(6), **settings)
    post = caught.value.posterior
    assert post.status.code is cofem.StatusCode.STOPPED
    assert "interrupted after step 5" in post.status.message
    np.testing.assert_array_equal(post.mean, cofem.fit(SMALL.Phi, SMALL.y, max_iter=5, **settings).mean)
    assert post.sample(2, rng=0).shape == (2, 64)
    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(SMALL.Phi, SMALL.y, callback=Stop(1), **settings)
    assert caught.value.posterior is None


@pytest.fixture
def listens_to_ctrl_c():
    """Python does not listen to it where the shell started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_inside_a_step(tmp_path: Path) -> None:
    class Slow(Dense):
        calls = 0

        def _forward(self, x):
            self.calls += 1
            if self.calls == 60:
                os.kill(os.getpid(), signal.SIGINT)
            return super()._forward(x)

    settings = dict(noise_std=0.01, method=cofem.CoFEM(diagonal="paired"), max_iter=12, rng=0)
    whole = cofem.fit(SMALL.Phi, SMALL.y, **settings)
    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(Slow(SMALL.Phi), SMALL.y, checkpoint=tmp_path / "run.npz", **settings)
    assert 0 < caught.value.posterior.n_iter < whole.n_iter
    assert_same(whole, cofem.fit(SMALL.Phi, SMALL.y, resume=tmp_path / "run.npz", **settings))


@dataclasses.dataclass
class Undeclared:
    """A state that no checkpoint was told of."""

    inner: object


def test_a_state_that_is_not_known_is_a_warning(tmp_path: Path) -> None:
    class Own(SelfConsistent):
        def init(self, context, rng):
            return Undeclared(super().init(context, rng))

        def right_hand_sides(self, context, carry, rng):
            return super().right_hand_sides(context, carry.inner, rng)

        def estimate(self, context, carry, rhs, x):
            found = super().estimate(context, carry.inner, rhs, x)
            return dataclasses.replace(found, carry=Undeclared(found.carry))

    with pytest.warns(
        cofem.CheckpointWarning, match="cannot hold a .*Undeclared; declare the type with cofem.packable"
    ):
        cofem.fit(
            SMALL.Phi,
            SMALL.y,
            noise_std=0.01,
            method=cofem.CoFEM(diagonal=Own()),
            rng=0,
            checkpoint=tmp_path / "run.npz",
        )


def test_values_come_back_as_they_were() -> None:
    values = {
        "numbers": (1, 2.5, True, None, "word", np.float32(0.1), np.int64(3), np.nan, np.inf, 2**127 + 1),
        "arrays": [np.arange(6.0).reshape(2, 3).T, np.zeros(0), np.array(2 + 1j, np.complex64)],
        "state": State(
            *np.ones((3, 2)), carry=Verdict(failed=("pooled",), inner=Ratios(None, np.ones(1), 3, 0.0))
        ),
        "status": cofem.Status(cofem.StatusCode.STOPPED, "words", ("a note",)),
    }
    arrays: dict[str, np.ndarray] = {}
    tree = json.loads(json.dumps(pack(values, arrays)))
    back = unpack(tree, arrays)
    for old, new in zip(values["numbers"], back["numbers"], strict=True):
        assert type(old) is type(new)
        assert old == new or old != old
    for old, new in zip(values["arrays"], back["arrays"], strict=True):
        np.testing.assert_array_equal(old, new)
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
    assert isinstance(back["state"].carry, Verdict)
    assert back["state"].carry.failed == ("pooled",)
    assert back["state"].carry.inner.steps == 3
    assert back["status"] == values["status"]


def test_a_name_can_be_declared_once() -> None:
    with pytest.raises(
        ValueError, match=r"the name 'gate' is taken by cofem\.linalg\.diagonals\.gate\.Verdict"
    ):
        cofem.packable("gate")(Undeclared)


# --- the command --------------------------------------------------------------------------------------


def test_recover_takes_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("y.npy", SMALL.y)
    np.save("phi.npy", SMALL.Phi)

    def recover(*arguments: str):
        always = ["recover", "--data", "y.npy", "--operator", "dense(phi.npy)", "--noise-std", "0.01"]
        return CliRunner().invoke(app, [*always, "--method", "em", *arguments])

    assert recover("--out", "whole.npz").exit_code == 0
    assert recover("--max-iter", "5", "--checkpoint", "run.npz").exit_code == 0
    assert recover("--resume", "run.npz", "--force").exit_code == 0
    assert_same(cofem.load("whole.npz"), cofem.load("result.npz"))
    done = recover("--resume", "y.npy", "--force")
    assert done.exit_code == 2
    assert "resume must be a checkpoint" in done.stderr
    original = cofem.EM.expectation

    def interrupt(self, problem, alpha, state, rng):
        if state.previous_alpha is None and state.mean is not None:
            raise KeyboardInterrupt
        return original(self, problem, alpha, state, rng)

    monkeypatch.setattr(cofem.EM, "expectation", interrupt)
    done = recover("--checkpoint", "other.npz", "--force")
    assert done.exit_code == 130
    assert "--resume other.npz" in done.stderr


# --- Ctrl-C while the noise is learned ----------------------------------------------------------------


class StopIn(Stop):
    """Interrupts at a step of a stage."""

    def __init__(self, stage: str, step: int) -> None:
        super().__init__(step)
        self.stage = stage

    def __call__(self, state) -> None:
        if state.stage == self.stage:
            super().__call__(state)


@pytest.mark.parametrize("stage", ["noise 1/5", "noise 3/5"])
@pytest.mark.parametrize("kind", ["plain", "weights", "nonnegative", "tasks", "torch"])
def test_ctrl_c_while_the_noise_is_learned_hands_back_the_result_so_far(kind: str, stage: str) -> None:
    case = dense_case(64, f=2, density=0.05, noise_std=0.01)
    Phi, y, settings = 1e3 * case.Phi, 1e4 * case.y, {}
    if kind in ("plain", "weights"):  # parts are fitted together, but from a start of one's own in turn
        stage, settings["alpha_init"] = ("noise", None) if stage == "noise 1/5" else (stage, 1.0)
    if kind == "weights":
        settings["sample_weight"] = np.linspace(0.5, 2.0, 32)
    elif kind == "nonnegative":
        settings["nonnegative"] = True
    elif kind == "tasks":
        y, settings["prior"] = np.stack([y, -y], axis=1), cofem.MultiTask()
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        Phi, y = torch.asarray(Phi), torch.asarray(y)
    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(Phi, y, callback=StopIn(stage, 4), rng=0, **settings)
    post = caught.value.posterior
    assert post.status.code is cofem.StatusCode.STOPPED
    words = "interrupted after step 3, while the noise was still being learned: noise_std = "
    assert post.status.message.startswith(words + f"{post.noise_std:.3g} is what")
    assert "a fit to 29 of the 32 data" in post.status.message
    assert post.n_iter == 3 if stage in ("noise", "noise 1/5") else post.n_iter > 3  # of a part before
    assert post.operator.shape == (32, 64)
    np.testing.assert_allclose(np.asarray(post.y), np.asarray(y), rtol=1e-12)
    assert tuple(post.predict().shape) == tuple(y.shape)
    if kind == "plain":
        assert post.sample(2, rng=0).shape == (2, 64)
        assert np.isfinite(post.log_evidence().value)


@pytest.mark.parametrize(("stage", "start"), [("noise", None), ("noise 1/5", 1.0)])
def test_ctrl_c_before_the_first_whole_step_of_learning_the_noise(stage: str, start: float | None) -> None:
    with pytest.raises(cofem.FitInterrupted) as caught:
        cofem.fit(SMALL.Phi, SMALL.y, callback=StopIn(stage, 1), alpha_init=start, rng=0)
    assert caught.value.posterior is None
