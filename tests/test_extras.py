"""Extras name what is imported; `tests/extras.py` installs them, which takes minutes."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable

import pytest

from tests.extras import PROMISES, imported
from tests.release import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: Packages that are imported by another name than they are installed by.
INSTALLED_AS = {"skimage": "scikit-image", "sklearn": "scikit-learn", "PIL": "pillow", "pywt": "pywavelets"}


def named(requirements: Iterable[str]) -> set[str]:
    """Return the packages that requirements name, those of extras of this package among them."""
    found: set[str] = {"cofem"}
    for requirement in requirements:
        own = re.fullmatch(r"cofem\[([\w,-]+)\]", requirement)
        if own is not None:
            found |= {name for extra in own[1].split(",") for name in named(EXTRAS[extra])}
        else:
            found.add(re.split(r"[^\w.-]", requirement)[0].lower())
    return found


@pytest.mark.parametrize("folder", ["examples", "docs"])
def test_the_site_needs_what_its_extras_name(folder: str) -> None:
    """`make docs` runs the examples in an environment that has nothing else."""
    there = named([*PROJECT["dependencies"], *EXTRAS["docs"], *EXTRAS["examples"]])
    wanted = {name.partition(".")[0] for name in imported(ROOT / folder)} - sys.stdlib_module_names
    wanted = {INSTALLED_AS.get(name, name).replace("_", "-") for name in wanted}
    assert wanted - there == set()


def test_every_extra_is_tried() -> None:
    assert PROMISES.keys() == EXTRAS.keys()
