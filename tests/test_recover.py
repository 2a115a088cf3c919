"""`cofem recover` and `cofem demo`: files in, posterior and figure out; trouble is one line and a code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import cofem
from cofem.cli import app
from cofem.experiments import problems
from cofem.expressions import NAMES, parse_operator

CLI = CliRunner()
CASE = problems.dct(512, f=2, density=0.05, sigma=0.01, seed=3)
ROWS = CASE.Phi.factors[0].indices


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("y.npy", CASE.y)
    np.savez("y.npz", y=CASE.y, other=1.0)
    np.savetxt("y.csv", CASE.y, delimiter=",")
    np.save("rows.npy", ROWS)
    return tmp_path


def recover(*arguments: str, operator: str = "mask(rows.npy) @ idct(512)", noise: str = "0.01"):
    return CLI.invoke(app, ["recover", "--operator", operator, "--noise-std", noise, *arguments])


@pytest.mark.parametrize("data", ["y.npy", "y.npz:y", "y.csv"])
def test_recovers_from_files(data: str, folder: Path) -> None:
    done = recover("--data", data, "--out", "result.npz", "--plot", "result.png")
    assert done.exit_code == 0, done.output
    post = cofem.load("result.npz", operator=CASE.Phi)
    assert CASE.nrmse(post.mean) < 5
    assert post.sample(2, rng=0).shape == (2, 512)
    assert (folder / "result.png").read_bytes().startswith(b"\x89PNG")
    assert "256 x 512" in " ".join(done.output.split())


def test_a_column_of_a_table_with_a_header(folder: Path) -> None:
    lines = [f"{i},{value!r}" for i, value in enumerate(CASE.y.tolist())]
    (folder / "table.csv").write_text("\n".join(["place,flux", *lines]))
    done = recover("--data", "table.csv", "--column", "flux")
    assert done.exit_code == 0, done.output
    assert CASE.nrmse(cofem.load("result.npz").mean) < 5
    for data in ("y.npy", "table.csv:flux"):
        done = recover("--data", data, "--column", "flux", "--out", "other.npz")
        assert done.exit_code == 2
        assert "column is for the name of a .csv file" in done.output


def test_the_version_and_the_operators_are_told() -> None:
    done = CLI.invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"cofem {cofem.__version__}\n")
    done = CLI.invoke(app, ["recover", "--list-operators"])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line.partition("(")[0] for line in lines[:-1]] == list(NAMES)
    page = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
    page = page[page.index("## Operators") :]
    table = re.findall(r"^\| `(.*?)` \| (.*?) \|$", page, re.MULTILINE)
    assert table == [(name.typed, name.meaning) for name in NAMES.values()]


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_of_the_list_can_be_typed(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", [0, 3, 5])
    np.save("kernel.npy", [1.0, 2.0, 1.0])
    np.save("matrix.npy", np.eye(4))
    np.save("weights.npy", np.arange(4.0))
    np.save("points.npy", np.eye(3, 2))
    np.save("maps.npy", np.ones((3, 4, 5)))
    scipy.sparse.save_npz("matrix.npz", scipy.sparse.eye_array(4).tocsr())
    assert parse_operator(NAMES[name].typed).shape[1] > 0


def test_noise_is_learned_unless_given_and_the_constraint_holds(folder: Path) -> None:
    learned = ["recover", "--operator", "mask(rows.npy) @ idct(512)", "--data", "y.npy"]
    done = CLI.invoke(app, learned)
    assert done.exit_code == 0, done.output
    assert 0.006 < cofem.load("result.npz").noise_std < 0.016
    positive = np.abs(CASE.z)
    np.save("positive.npy", CASE.Phi @ positive + 0.01 * np.random.default_rng(0).standard_normal(256))
    done = recover("--data", "positive.npy", "--nonnegative", "--out", "positive.npz")
    assert done.exit_code == 0, done.output
    post = cofem.load("positive.npz")
    assert post.mean.min() >= 0
    assert np.linalg.norm(post.mean - positive) < 0.1 * np.linalg.norm(positive)


def test_method_and_seed_are_passed_on(folder: Path) -> None:
    done = recover("--data", "y.npy", "--method", "irls", "--max-iter", "3")
    assert done.exit_code == 0
    post = cofem.load("result.npz")
    assert post.method == "irls"
    assert post.n_iter == 3


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (["--data", "missing.npy"], {}, "missing.npy: no such file"),
        (["--data", "rows.txt"], {}, "unknown kind of file"),
        (["--data", "y.npz"], {}, "name one of y, other"),
        (
            ["--data", "y.npy"],
            {"operator": "mask(rows.npy) @ spline(512)"},
            "operator: unknown operator 'spline'",
        ),
        (["--data", "y.npy"], {"operator": "idct(512)"}, "y must have shape (512,)"),
        (["--data", "y.npy"], {"noise": "-1"}, "noise_std must be positive"),
        (["--data", "y.npy", "--method", "magic"], {}, "method must be one of"),
        (["--data", "y.npy", "--out", "result.txt"], {}, "out must end in .npz"),
        (["--data", "y.npy", "--out", "nowhere/result.npz"], {}, "there is no folder nowhere"),
        (["--data", "y.npy", "--max-iter", "0"], {}, "max_iter must be at least 1"),
    ],
)
def test_trouble_is_one_line_and_an_exit_code(arguments, settings, words, folder: Path) -> None:
    done = recover(*arguments, **settings)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.output
    assert not (folder / "result.npz").exists()


def test_demo_writes_a_figure_and_says_how_to_do_it_in_python(tmp_path: Path) -> None:
    done = CLI.invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "demo.png").stat().st_size > 50_000
    assert "cofem.fit(" in done.output
    assert "PSNR" in done.output


def test_a_doubtful_fit_says_so_before_anything_else(folder: Path) -> None:
    """Noise alone: nothing is found, and the mean is expected to be far off or the support is empty."""
    np.save("noise.npy", np.random.default_rng(0).standard_normal(256))
    done = recover("--data", "noise.npy", noise="0.01")
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert 0 < words.find("Warning: noise_std = 0.01 does not fit the data") < words.find("dictionary")
    assert "converged, but in doubt" in words or "max_iter" in words
    done = recover("--data", "y.npy", "--force")
    words = " ".join(done.output.split())
    assert "Warning" not in words
    assert "note" in words
    assert "variances" in words
