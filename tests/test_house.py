"""Rules of the house that no linter knows: short modules, operators that answer, one of each thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import cofem
from cofem.inference import registry
from cofem.linalg import direct

SOURCE = Path(cofem.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
#: Most lines of code in a module, without docstrings, comments and blank lines.
MOST_LINES = 400


def code_lines(text: str) -> int:
    """Count the lines of code: no docstrings, no comments, no blank lines."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_docstring and isinstance(first.value.value, str):
                docstrings |= set(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") for i, line in lines if i not in docstrings
    )


def named(module: Path) -> str:
    return str(module.relative_to(SOURCE))


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_modules_are_readable_in_one_sitting(module: Path) -> None:
    assert code_lines(module.read_text()) <= MOST_LINES


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_operators_answer_and_nobody_sniffs(module: Path) -> None:
    text = module.read_text()
    if "operators" not in module.relative_to(SOURCE).parts[:1]:
        assert not re.search(
            r"isinstance\([^)]*\b(Dense|Sparse|Mask|Product|Scaled|Chunked|Distributed)\b", text
        )
        assert not re.search(r"getattr\([^)]*[\"'](array|matrix|factors|operator)[\"']", text)
    assert "_CustomLinearOperator" not in text
    assert "__dict__[" not in text or module.name in ("fingerprint.py",)


def test_there_is_one_of_each_thing() -> None:
    defined: dict[str, list[str]] = {}
    for module in MODULES:
        text = module.read_text()
        for thing in ("\nArray = Any", "os.replace(", "def lanczos(", "rng.standard_normal((2, *shape"):
            if thing in text:
                defined.setdefault(thing.strip(), []).append(named(module))
    assert defined == {
        "Array = Any": ["_arrays.py"],
        "os.replace(": ["files.py"],
        "def lanczos(": ["operators/lanczos.py"],
        "rng.standard_normal((2, *shape": ["_arrays.py"],
    }


def test_code_lines_leaves_out_what_is_not_code() -> None:
    text = '"""Doc\n\nmore."""\n\n# comment\nx = 1\n\n\ndef f():\n    """One."""\n    return x\n'
    assert code_lines(text) == 3


class Fails(cofem.operators.Operator):
    """A dictionary that fails once."""

    def __init__(self, matrix: np.ndarray) -> None:
        super().__init__(matrix.shape)
        self.matrix, self.calls = matrix, 0

    def _forward(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.calls == 200:
            raise ConnectionError("the detector is gone")
        return x @ self.matrix.T

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return y @ self.matrix


@pytest.mark.parametrize("stage", ["fit", "noise"])
def test_warnings_point_at_the_users_line(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are raised while the noise is learned, deep inside of the package."""
    monkeypatch.setattr(registry, "MEDIUM_WORK", 0)  # or the matrix would be read once and for all
    monkeypatch.setattr(direct, "EXACT_SIDE", 0)
    rng = np.random.default_rng(0)
    matrix, y = rng.standard_normal((60, 200)), rng.standard_normal(60)
    settings = {
        "fit": dict(Phi=matrix, noise_std=0.1, method=cofem.CoFEM(cg_iterations=1)),
        "noise": dict(Phi=Fails(matrix)),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cofem.fit(y=y, rng=0, **settings[stage])
    assert caught
    assert {warning.filename for warning in caught} == {__file__}


def test_python_m_cofem_is_the_command() -> None:
    command = [sys.executable, "-m", "cofem", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Usage: cofem" in found.stdout
    assert "recover" in found.stdout
