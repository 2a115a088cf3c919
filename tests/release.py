"""What a release must do, in empty environments: ``make release-check``.

Builds the wheel and the sdist, looks for files that they may not lack or hold, installs each into an
environment of its own, and runs the example of README.md there. With ``--wheel``, as in ``make test-all``,
both are built and looked at, and only the wheel is installed. Extras: see `tests/extras.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command, show what it says if it fails, and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def example() -> str:
    """Return the Python of README.md."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return code


def pip(folder: Path) -> list[object]:
    """Return the beginning of a command of pip for an environment."""
    return [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]


def check_files(wheel: Path, sdist: Path) -> None:
    """Look at the names in both archives."""
    inside = zipfile.ZipFile(wheel).namelist()
    assert "cofem/__init__.py" in inside
    assert "cofem/__init__.pyi" in inside  # the public names are read from it
    assert not [name for name in inside if not name.startswith(("cofem/", "cofem-"))], inside
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CITATION.cff", "docs/conf.py", "tests/test_docs.py"} <= names
    assert not [name for name in names if name.startswith(("docs/_build", "docs/gallery", "docs/api/"))]


def check_install(archive: Path, folder: Path, version: str) -> None:
    """Install an archive into an empty environment and run the example there."""
    venv.create(folder)  # empty indeed: pip works from outside
    python = folder / "bin" / "python"
    run(*pip(folder), "install", "--quiet", "--no-compile", archive)
    assert run(folder / "bin" / "cofem", "--version").strip() == f"cofem {version}"
    printed = run(python, "-c", example(), cwd=folder)
    assert printed.startswith("converged"), printed


def main(wheel_only: bool) -> None:
    """Check all, or less; say so at the end."""
    begin = time.perf_counter()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        assert f"-{version}-" in wheel.name
        check_files(wheel, sdist)
        check_install(wheel, folder / "wheel", version)
        if not wheel_only:
            check_install(sdist, folder / "sdist", version)
    what = "wheel and sdist are built, the wheel installs" if wheel_only else "wheel and sdist install"
    print(f"cofem {version}: {what}, and the example of README.md runs; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main("--wheel" in sys.argv[1:])
