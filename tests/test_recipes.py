"""The recipes of docs/recipes.md do what the page says; each needs its package, or is skipped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()


def run(title: str) -> dict[str, Any]:
    """Run the code below a title; return its names."""
    (section,) = (part for part in PAGE.split("\n## ") if part.startswith(title))
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, title, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore")
def test_pysindy_finds_the_equations_of_lorenz() -> None:
    pytest.importorskip("pysindy")
    coefficients = run("Equations from data")["model"].coefficients()
    # 1, x, y, z, x^2, xy, xz, y^2, yz, z^2, ...
    wanted = np.zeros_like(coefficients)
    wanted[0, 1], wanted[0, 2] = -10, 10
    wanted[1, 1], wanted[1, 2], wanted[1, 6] = 28, -1, -1
    wanted[2, 3], wanted[2, 5] = -8 / 3, 1
    large = np.abs(wanted) > 0
    assert (coefficients[large] != 0).all()
    np.testing.assert_allclose(coefficients[large], wanted[large], rtol=0.1)
    assert np.count_nonzero(coefficients[~large]) <= 4


@pytest.mark.filterwarnings("ignore")
def test_mne_finds_the_same_places_as_gamma_map() -> None:
    pytest.importorskip("mne")
    names = run("Sources of brain activity")
    assert set(names["found"].tolist()) == set(names["places"].tolist())
    theirs = names["theirs"]
    power = np.linalg.norm(theirs.data, axis=tuple(range(1, theirs.data.ndim)))
    vertices = names["forward"]["src"][0]["vertno"]
    loud = theirs.vertices[0][np.argsort(-power)[:2]]
    assert set(np.searchsorted(vertices, loud).tolist()) == set(names["places"].tolist())
    post, courses = names["post"], names["courses"]
    assert np.linalg.norm(post.mean - courses) < 0.3 * np.linalg.norm(courses)


def test_directions_of_arrival() -> None:
    names = run("Directions of arrival")
    np.testing.assert_allclose(np.sort(names["grid"][names["peaks"]]), names["true"])
    assert names["post"].noise_std == pytest.approx(0.05, rel=0.15)
