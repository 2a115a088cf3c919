"""The command and its files: nothing is lost, and whatever is wrong is one line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cofem
from cofem import files, recover
from cofem.cli import app
from cofem.files import read_npz, write_npz

CLI = CliRunner()
PHI = np.random.default_rng(0).standard_normal((16, 32))
Y = PHI[:, 3] - 2 * PHI[:, 20]
BASE = {"--data": "y.npz", "--operator": "dense(phi.npy)", "--noise-std": "0.01", "--method": "em"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("y.npz", Y)
    np.save("phi.npy", PHI)
    np.savez("phi.npz", PHI)
    return tmp_path


def run(*flags: str, **options: str):
    """Run the command, with options that replace those of `BASE`."""
    given = BASE | {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    return CLI.invoke(app, ["recover", *(word for pair in given.items() for word in pair), *flags])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(done, words: str) -> None:
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.output


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*arguments, **settings):
        raise AssertionError("the fit must not begin")

    monkeypatch.setattr(cofem, "fit", fit)


# --- before the fit -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_fit")
@pytest.mark.parametrize(
    ("flags", "options", "words"),
    [
        ([], {"out": "y.npz"}, "out y.npz is the file of the data, which is never replaced"),
        (["--force"], {"out": "y.npz"}, "which is never replaced"),
        (["--force"], {"out": "./sub/../y.npz"}, "which is never replaced"),
        (["--force"], {"out": "link.npz"}, "which is never replaced"),
        (["--force"], {"out": "phi.npz", "operator": "dense(phi.npz)"}, "is the file of the operator"),
        (
            ["--force"],
            {"out": "phi.npz", "operator": "dense('phi.npz:arr_0')"},
            "is the file of the operator",
        ),
        (["--force"], {"checkpoint": "y.npz"}, "checkpoint y.npz is the file of the data"),
        (["--force"], {"out": "old.npz", "resume": "old.npz"}, "is the file of the resume"),
        ([], {"out": "old.npz"}, "out old.npz exists; give another name, or --force to replace it"),
        ([], {"plot": "old.png"}, "plot old.png exists; give another name, or --force"),
        (
            ["--force"],
            {"out": "run.npz", "checkpoint": "run.npz"},
            "out and checkpoint must be different files",
        ),
        ([], {"out": "run.npz", "checkpoint": "./run.npz"}, "out and checkpoint must be different files"),
        ([], {"out": "sub/../run.npz", "checkpoint": "run.npz"}, "must be different files"),
        (["--force"], {"out": "old.npz", "checkpoint": "link-old.npz"}, "must be different files"),
        ([], {"plot": "a.png", "checkpoint": "a.png"}, "plot and checkpoint must be different files"),
        (["--force"], {"out": "sub.npz"}, "out sub.npz is a folder"),
        ([], {"plot": "sub.png"}, "plot sub.png is a folder"),
        ([], {"plot": "nowhere/a.png"}, "there is no folder nowhere"),
        ([], {"plot": "a.xyz"}, "plot must end in one of .eps"),
        ([], {"plot": "figure"}, "plot must end in one of .eps"),
        ([], {"out": "dangling.npz"}, "there is no folder"),
        ([], {"out": "x" * 300 + ".npz"}, "cannot be written: File name too long"),
        ([], {"out": "y.npz/result.npz"}, "there is no folder y.npz"),
    ],
)
def test_what_would_be_lost_is_refused_before_the_fit(flags, options, words, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub.npz").mkdir()
    (folder / "sub.png").mkdir()
    (folder / "link.npz").symlink_to("y.npz")
    (folder / "old.npz").write_bytes(b"precious")
    (folder / "old.png").write_bytes(b"precious")
    (folder / "link-old.npz").symlink_to("old.npz")
    (folder / "dangling.npz").symlink_to("nowhere/result.npz")
    before = contents(folder)
    assert_refused(run(*flags, **options), words)
    assert contents(folder) == before


@pytest.mark.usefixtures("no_fit")
@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_noticed_before_the_fit(code, folder, monkeypatch) -> None:
    original = os.open

    def refuse(path, flags, *arguments, **more):
        if flags & os.O_CREAT and str(folder) in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return original(path, flags, *arguments, **more)

    monkeypatch.setattr(files.os, "open", refuse)
    assert_refused(run(), f"out result.npz cannot be written: {os.strerror(code)}; choose another place")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.usefixtures("no_fit")
def test_a_folder_without_permission_is_noticed_before_the_fit(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o500)
    assert_refused(run(out="closed/result.npz"), "cannot be written: Permission denied")


def test_force_replaces_what_was_there(folder: Path) -> None:
    (folder / "old.npz").write_bytes(b"old")
    (folder / "old.png").write_bytes(b"old")
    done = run("--force", out="old.npz", plot="old.png")
    assert done.exit_code == 0, done.output
    assert cofem.load("old.npz").support().tolist() == [3, 20]
    assert (folder / "old.png").read_bytes().startswith(b"\x89PNG")
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def test_a_checkpoint_of_another_fit_is_refused_in_one_line(folder: Path) -> None:
    assert run(checkpoint="run.npz", max_iter="3").exit_code == 0
    before = (folder / "run.npz").read_bytes()
    refused = run("--force", checkpoint="run.npz", noise_std="0.02")
    assert_refused(refused, "belongs to another fit: its noise_std was")
    assert (folder / "run.npz").read_bytes() == before


# --- after the fit ------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Have the disk full wherever a path holds one of the words, once the fit is done."""
    original, fit = files._new_file, cofem.fit
    done = []

    def new_file(folder: Path, suffix: str) -> Path:
        if done and any(word in str(folder) for word in words):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(folder, suffix)

    def counted(*arguments, **more):
        post = fit(*arguments, **more)
        done.append(True)
        return post

    monkeypatch.setattr(files, "_new_file", new_file)
    monkeypatch.setattr(cofem, "fit", counted)


def flat(text: str) -> str:
    """Undo the breaks of lines that a terminal brings."""
    return "".join(text.split())


def test_a_result_that_cannot_be_written_goes_to_the_temporary_folder(folder, tmp_path_factory, monkeypatch):
    spare = tmp_path_factory.mktemp("spare")
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(spare))
    failing(monkeypatch, str(folder))
    done = run(plot="figure.png")
    assert done.exit_code == 0, done.output
    assert flat(f"Posterior written to {spare / 'result-1.npz'}") in flat(done.output)
    assert flat(f"Figure written to {spare / 'figure-1.png'}") in flat(done.output)
    assert cofem.load(spare / "result-1.npz").support().tolist() == [3, 20]
    assert (spare / "figure-1.png").exists()


def test_a_folder_that_vanished_does_not_cost_the_result(folder, tmp_path_factory, monkeypatch) -> None:
    spare = tmp_path_factory.mktemp("spare")
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(spare))
    (folder / "gone").mkdir()
    fit = cofem.fit

    def and_remove(*arguments, **more):
        post = fit(*arguments, **more)
        (folder / "gone").rmdir()
        return post

    monkeypatch.setattr(cofem, "fit", and_remove)
    assert run(out="gone/result.npz").exit_code == 0
    assert cofem.load(spare / "result-1.npz").support().tolist() == [3, 20]


def test_a_file_that_came_up_during_the_fit_is_not_replaced(folder: Path, monkeypatch) -> None:
    fit = cofem.fit

    def and_write(*arguments, **more):
        (folder / "result.npz").write_bytes(b"of somebody else")
        (folder / "result-1.npz").write_bytes(b"and another")
        return fit(*arguments, **more)

    monkeypatch.setattr(cofem, "fit", and_write)
    done = run()
    assert done.exit_code == 0, done.output
    assert (folder / "result.npz").read_bytes() == b"of somebody else"
    assert (folder / "result-1.npz").read_bytes() == b"and another"
    assert cofem.load("result-2.npz").support().tolist() == [3, 20]
    assert flat("result-2.npz") in flat(done.output)


def test_only_if_nothing_could_be_saved_there_is_an_exit_code(folder, monkeypatch) -> None:
    failing(monkeypatch, "/")
    done = run(checkpoint="run.npz", max_iter="3")
    assert_refused(done, "the result could not be written anywhere (result.npz: No space left on device; ")
    assert "result-1.npz" in done.stderr
    assert "the fit is in run.npz" in done.stderr


def test_a_figure_that_fails_does_not_cost_the_posterior(folder: Path, monkeypatch) -> None:
    def fail(post, path) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("cofem.plotting.plot_fit", fail)
    done = run(plot="figure.png")
    assert done.exit_code == 0
    assert "the figure was not written: no font" in " ".join(done.output.split())
    assert cofem.load("result.npz").support().tolist() == [3, 20]
    assert sorted(os.listdir(folder)) == ["phi.npy", "phi.npz", "result.npz", "y.npz"]


def test_warnings_about_the_dictionary_are_shown(folder: Path) -> None:
    np.save("decay.npy", np.exp(-np.arange(16) / 3))
    done = run(operator="dense(phi.npy) @ convolution(decay.npy, 32)", max_iter="3")
    assert "Warning: kernel looks causal" in " ".join(done.output.split())
    done = run("--force", operator="dense(phi.npy) @ convolution(decay.npy, 32, causal=true)", max_iter="3")
    assert done.exit_code == 0
    assert "looks causal" not in done.output


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 9 TiB"), RecursionError("too deep")])
def test_a_fit_that_asks_too_much_is_one_line(error: Exception, folder: Path, monkeypatch) -> None:
    def fit(*arguments, **more):
        raise error

    monkeypatch.setattr(cofem, "fit", fit)
    assert_refused(run(), str(error))


# --- how files are written ----------------------------------------------------------------------------


def write(path: Path, value: float = 1.0) -> None:
    write_npz(path, {"format": "test"}, {"x": np.full(3, value)})


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "file.npz", tmp_path / "link.npz"
    link.symlink_to("store/file.npz")
    for value in (1.0, 2.0):  # the target is made, then replaced
        write(link, value)
        assert link.is_symlink()
        assert read_npz(target)["x"][0] == value
    assert os.listdir(tmp_path / "store") == ["file.npz"]
    post = cofem.fit(np.eye(3), np.ones(3), noise_std=0.1)
    post.save(link)
    assert link.is_symlink()
    assert cofem.load(target).mean.shape == (3,)


def test_modes_follow_the_umask_and_then_stay(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    before = os.umask(0o027)
    try:
        write(path)
        assert path.stat().st_mode & 0o777 == 0o640
        for mode in (0o600, 0o664, 0o444):
            path.chmod(mode)
            write(path)
            assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_files_that_look_like_ours_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".file.npz.part").write_text("mine")
    write(tmp_path / "file.npz")
    with pytest.raises(TypeError):
        write_npz(tmp_path / "file.npz", {"not": object()}, {})
    assert (tmp_path / ".file.npz.part").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == [".file.npz.part", "file.npz"]


def test_a_write_that_fails_leaves_the_file_of_before(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "file.npz"
    write(path)
    before = path.read_bytes()

    def full(*arguments, **more):
        arguments[0].write(b"half of it")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="full"):
        write(path, 2.0)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file.npz"]


def test_what_a_killed_process_left_is_no_trouble(tmp_path: Path) -> None:
    code = """
        import os, signal, sys, numpy as np
        from cofem.files import replacing
        with replacing(sys.argv[1]) as part:
            part.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "file.npz"
    write(path)
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    environment = os.environ | {"PYTHONPATH": str(Path(cofem.__file__).parents[1])}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert read_npz(path)["x"][0] == 1.0
    assert len(os.listdir(tmp_path)) == 2
    write(path, 2.0)
    assert read_npz(path)["x"][0] == 2.0


def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(OSError, match="not a plain file"):
        write(tmp_path / "pipe.npz")
    with pytest.raises(ValueError, match=r"out .*pipe.npz is not a plain file"):
        recover.Targets(tmp_path / "pipe.npz", force=True).check({})


# --- any input ----------------------------------------------------------------------------------------

NAMES = ["mask", "idct", "wavelet", "convolution", "dense", "sparse", "diagonal", "hstack", "blockdct", "fft"]
WORDS = ["y.npz", "phi.npy", "phi.npz:arr_0", "./y.npz", "db2", "0", "1", "16", "32", "-3", "1e9", "1e400"]
KEYS = ["block=", "level=", "mode=", "causal=", "wavelet=", "wavlet=", "n_columns=", "file="]
ATOMS = st.sampled_from(WORDS + [f"idct({n})" for n in (16, 32, 10**15)])
ARGUMENTS = st.builds(lambda key, value: key + value, st.sampled_from([""] * 8 + KEYS), ATOMS)
CALLS = st.builds(
    lambda name, arguments: f"{name}({', '.join(arguments)})",
    st.sampled_from(NAMES),
    st.lists(ARGUMENTS, max_size=3),
)
EXPRESSIONS = st.recursive(
    CALLS | ATOMS,
    lambda inner: st.builds(
        "".join, st.tuples(inner, st.sampled_from([" @ ", " * ", " + ", ".T", ".H @ ", "("]), inner)
    ),
    max_leaves=4,
)


def refusal(call) -> str | None:
    """Return why something is refused, in one line; None if it is not."""
    try:
        call()
    except ValueError as error:
        (line,) = str(error).splitlines()
        return line
    return None


@settings(max_examples=150)
@given(EXPRESSIONS)
def test_any_expression_is_fitted_or_refused_in_one_line(tmp_path_factory, operator: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        np.savez("y.npz", Y)
        np.save("phi.npy", PHI)
        np.savez("phi.npz", PHI)
        done = run(operator=operator, max_iter="2")
    assert done.exit_code in (0, 2), (operator, done.exception)
    if done.exit_code == 2:
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@settings(max_examples=150)
@given(
    st.sampled_from(["y.npy", "y.npz", "y.csv", "packed.npz"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0, 1) | st.just(1.0),
)
def test_damaged_files_give_numbers_or_one_line(tmp_path_factory, name, changes, share) -> None:
    path = tmp_path_factory.mktemp("fuzz") / name
    kinds = {"y.npy": np.save, "y.npz": np.savez, "packed.npz": np.savez_compressed, "y.csv": np.savetxt}
    kinds[name](path, Y)
    raw = bytearray(path.read_bytes())
    for place, value in changes:
        raw[int(place * (len(raw) - 1))] = value
    path.write_bytes(raw[: int(share * len(raw))])
    words = refusal(lambda: files.read_array(str(path)))
    assert words is None or str(path) in words


@settings(max_examples=150)
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_results_are_read_or_refused_by_name(tmp_path_factory, is_checkpoint, changes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path, problem = folder / "file.npz", dict(Phi=np.eye(3), y=np.ones(3), noise_std=0.1)
    if is_checkpoint:
        cofem.fit(**problem, checkpoint=path)
    else:
        cofem.fit(**problem).save(path)
    raw = bytearray(path.read_bytes())
    for place, value in changes:
        raw[int(place * (len(raw) - 1))] = value
    path.write_bytes(raw)
    words = refusal(lambda: cofem.fit(**problem, resume=path) if is_checkpoint else cofem.load(path))
    assert words is None or "file.npz" in words


@pytest.mark.parametrize("place", [6, 10])
def test_an_archive_of_a_kind_that_is_not_known_is_refused_by_name(place: int, tmp_path: Path) -> None:
    """Of a version or packed in a way of the future."""
    path = tmp_path / "fit.npz"
    cofem.fit(np.eye(3), np.ones(3), noise_std=0.1).save(path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x01\x02") + place] = 77
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"fit\.npz"):
        cofem.load(path)


def test_ctrl_c_writes_what_was_found_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = cofem.fit

    def interrupted(*arguments, **settings):
        def press_ctrl_c(state):
            if state.iteration == 3:
                raise KeyboardInterrupt

        return fit(*arguments, callback=press_ctrl_c, **settings)

    monkeypatch.setattr(cofem, "fit", interrupted)
    done = run(out="post.npz")
    assert done.exit_code == 130
    assert "What was found so far written to post.npz" in done.output
    post = cofem.load("post.npz")
    assert post.n_iter == 2
    assert post.status.code is cofem.StatusCode.STOPPED
