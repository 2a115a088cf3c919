"""Pages of the site that live elsewhere in the repository, and links that hold in both places."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
#: Page of the site: the file that it shows in place of its own text.
MIRRORED = {
    "benchmarks": "benchmarks/results/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "examples": "examples/README.md",
    "how-to-benchmark": "benchmarks/README.md",
    "reproduction": "reproduction/README.md",
}
#: Files that a page of the site stands for.
PAGES = {ROOT / file: DOCS / f"{page}.md" for page, file in MIRRORED.items()} | {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "examples": DOCS / "examples.md",
    ROOT / "benchmarks": DOCS / "how-to-benchmark.md",
    ROOT / "reproduction": DOCS / "reproduction.md",
}


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give Sphinx the text of a page: that of the file it mirrors, with links as the site has them.

    Parameters
    ----------
    app : Sphinx
        Told which file the page depends on.
    docname : str
        Name of the page, without its suffix.
    source : list of str
        Its text, which is replaced in place.
    """
    if not (DOCS / f"{docname}.md").exists():
        return
    place = DOCS
    if docname in MIRRORED:
        file = ROOT / MIRRORED[docname]
        place, source[0] = file.parent, file.read_text()
        app.env.note_dependency(str(file))  # read again when that file changes
    source[0] = relink(source[0], place).replace("```tree\n", "```text\n")


def skip_member(app: object, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leave out what scikit-learn gives to every estimator, which its own pages describe, and bare fields."""
    module = getattr(value, "__module__", None) or ""
    is_field = (getattr(value, "__doc__", None) or "").startswith("Alias for field number")
    return True if module.startswith("sklearn") or name.endswith("_request") or is_field else None


def show_bases(app: object, name: str, value: object, options: object, bases: list) -> None:
    """Name the public class that one derives from, in place of what is in between."""
    for i, base in enumerate(bases):
        if isinstance(base, type) and base.__name__.startswith("_"):
            public = (kind for kind in base.__mro__ if not kind.__name__.startswith("_"))
            bases[i] = next(public)


def link_pages(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Make links of the pages that a docstring names as a reader of the code finds them, `docs/noise.md`."""
    lines[:] = [re.sub(r"`docs/([\w-]+)\.md`", r":doc:`/\1`", line) for line in lines]


def relink(text: str, place: Path) -> str:
    """Return a page with its links changed from where it is, `place`, to where the site has their targets."""

    def change(match: re.Match[str]) -> str:
        bang, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in target:
            return match.group()
        found = Path(os.path.normpath(place / path))
        found = PAGES.get(found, found)
        if found.parent == ROOT / "benchmarks/results" and found.suffix == ".md":
            found, hash_, anchor = PAGES[ROOT / "benchmarks/results/README.md"], "", ""
        if found.is_dir():  # a site has no page for a folder
            return label
        return f"{bang}[{label}]({os.path.relpath(found, DOCS)}{hash_}{anchor})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", change, text)
