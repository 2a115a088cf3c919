"""Every extra does what it is for, in an environment of its own; ``make docs`` does on a fresh clone.

The wheel is built, and for each extra an environment is made that holds what cofem needs and what the extra
names, and nothing else: a package that is there by chance in `.venv` is not there. Words choose extras:
``python -m tests.extras docs dask``. With ``--gallery``, ``make docs`` runs the examples, too (minutes).
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

from tests.release import ROOT, pip, run

HEAD = "import numpy as np, cofem; from cofem.operators import *; Phi = np.eye(3); y = np.ones(3)\n"

#: What each extra is for, as Python that runs with it. Those with None have a function below.
PROMISES: dict[str, str | None] = {
    "pylops": "import pylops; cofem.fit(pylops.MatrixMult(Phi), y, noise_std=0.1)",
    "nufft": "NUFFT(np.array([0.1, 0.2]), 8) @ np.ones(8)",
    "torch": "import torch; cofem.fit(torch.eye(3), torch.ones(3), noise_std=0.1).mean.numpy()",
    "fast": "import ducc0; DCT(8) @ np.ones(8)",
    "dask": """
from distributed import Client
with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
    (found,) = cofem.fit_many([{"y": y}], Phi=Phi, noise_std=0.1, client=client)
    assert found.error is None
    import dask.array
    cofem.fit(Distributed.from_array(dask.array.from_array(Phi, chunks=2), client), y, noise_std=0.1)
""",
    "bench": "import spgl1; import cofem.experiments.bench.spgl1",
    "test-all": "import mne, pandas, pysindy, torch",
    "test": None,
    "examples": None,
    "docs": None,
}


def imported(folder: Path) -> list[str]:
    """Return what the scripts of a folder import, without what is beside them."""
    found: set[str] = set()
    for script in folder.glob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module)
    return sorted(name for name in found if not (folder / f"{name}.py").exists() and name != "__future__")


def fresh_clone(folder: Path) -> Path:
    """Copy what git knows of the tree, as it is now; where there is no git, all but what is made."""
    if (ROOT / ".git").exists():
        for name in run("git", "ls-files", cwd=ROOT).splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
    else:
        made = shutil.ignore_patterns(".venv", "_build", "gallery", "__pycache__", "out", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=made, dirs_exist_ok=True)
    return folder


def make_docs(folder: Path, gallery: bool) -> None:
    """Run the README's third command on a fresh clone; import what the examples do with what it installed."""
    clone = fresh_clone(folder / "clone")
    options = [] if gallery else ["SPHINXOPTS=-D plot_gallery=0"]
    run("make", "docs", f"PYTHON={sys.executable}", *options, cwd=clone)
    assert (clone / "docs" / "_build" / "html" / "index.html").exists()
    names = imported(clone / "examples")
    run(clone / ".venv" / "bin" / "python", "-c", f"import {', '.join(names)}")


def environment(folder: Path, base: Path | None = None) -> Path:
    """Make an environment that holds nothing, or what another one holds, and return its Python."""
    venv.create(folder)
    if base is not None:
        (held,) = base.glob("lib/python3*/site-packages")
        (own,) = folder.glob("lib/python3*/site-packages")
        (own / "base.pth").write_text(f"{held}\n")
    return folder / "bin" / "python"


def collect_tests(python: Path) -> None:
    """Have pytest import every test, where the tests that need more are skipped."""
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [str(python), "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def main(wanted: list[str], gallery: bool) -> None:
    """Check the extras that were named, or all; say how long each took."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(PROMISES) == set(extras), "each extra has a line in PROMISES"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = folder / "base"
        environment(base)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        run(*pip(base), "install", "--quiet", "--no-compile", wheel)
        for extra in wanted or PROMISES:
            begin = time.perf_counter()
            if extra == "docs":
                make_docs(folder, gallery)
            else:
                python = environment(folder / extra, base)
                pinned = [pin for pin in extras["test-all"] if pin.startswith(f"{extra}==")]
                run(*pip(folder / extra), "install", "--quiet", "--no-compile", f"{wheel}[{extra}]", *pinned)
                if extra == "test":
                    collect_tests(python)
                elif extra == "examples":
                    run(python, "-c", f"import {', '.join(imported(ROOT / 'examples'))}")
                else:
                    run(python, "-c", HEAD + str(PROMISES[extra]), cwd=folder)
            print(f"extra {extra}: as promised; {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if not word.startswith("-")], "--gallery" in sys.argv[1:])
