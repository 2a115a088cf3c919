"""The site builds without a warning, holds every public name, and its pages link to what is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import cofem
from cofem import operators, plotting

ROOT = Path(__file__).parents[1]
#: What the pages are made of; copied, so that a test writes nothing into the tree.
PARTS = ("docs", "examples", "benchmarks", "reproduction", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
#: Modules that users reach by name, which have no page of their own.
MODULES = {"experiments", "operators", "plotting"}


class Page(HTMLParser):
    """What a page holds: places that links can lead to, links, and pictures without words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.silent: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places |= {found[key] or "" for key in ("id", "name") if key in found}
        for key in ("href", "src"):
            if found.get(key):
                self.links.append(found[key] or "")
        # An empty text is for what decorates a link (thumbnails); Sphinx writes the file's name for none.
        if tag == "img" and ("alt" not in found or (found["alt"] or "").endswith((".png", ".svg"))):
            self.silent.append(found.get("src") or "")


def build(folder: Path) -> Path:
    """Build the site without running its examples; a warning is an error."""
    made = shutil.ignore_patterns("_build", "api", "gallery", "__pycache__", "*.csv", "*.svg")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=made)
        else:
            shutil.copy(ROOT / part, folder / part)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-D",
        "plot_gallery=0",
    ]
    done = subprocess.run(
        [*command, "docs", "html"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(cofem.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


def broken_links(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Return links within the site that lead to no file, or to no place in it."""
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            file, _, place = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def test_the_site_is_whole(tmp_path: Path) -> None:
    """One test, since it builds once: links, words for pictures, public names, examples, search."""
    site = build(tmp_path)
    own = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path: Page(path.read_text()) for path in own}
    assert broken_links(site, pages) == []
    assert {str(path.relative_to(site)): page.silent for path, page in pages.items() if page.silent} == {}
    names = {f"cofem.{name}" for name in set(cofem.__all__) - MODULES - {"as_operator"}}
    names |= {f"cofem.operators.{name}" for name in operators.__all__}
    names |= {f"cofem.plotting.{name}" for name in plotting.__all__}
    names |= {"cofem.priors.Prior", "cofem.priors.RowLayout"}
    assert {path.stem for path in (site / "api").glob("*.html")} == names
    # Its methods are inherited from classes that have no page of their own.
    shown = pages[site / "api/cofem.operators.Operator.html"].places
    methods = {name for name in dir(operators.Operator) if not name.startswith("_") and name != "ndim"}
    assert {f"cofem.operators.Operator.{name}" for name in methods} <= shown
    scripts = {path.stem for path in (ROOT / "examples").glob("[a-z]*.py")}
    assert {path.stem for path in (site / "gallery").glob("*.html")} - {"index"} == scripts
    assert "credible_interval" in (site / "searchindex.js").read_text()


def test_a_broken_link_and_a_silent_picture_are_found(tmp_path: Path) -> None:
    text = '<p id="here"><a href="#here"><a href="#there"><a href="no.html"><a href="http://x"><img src="a">'
    path = tmp_path / "page.html"
    path.write_text(text)
    page = Page(text)
    assert broken_links(tmp_path, {path: page}) == ["page.html: #there", "page.html: no.html", "page.html: a"]
    assert page.silent == ["a"]


def test_words_are_spelled_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", "src", "tests", "examples", "docs", "skeletons"]
        + [str(path) for path in sorted(ROOT.glob("*.md"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert done.returncode == 0


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert {project["version"], cited} == {cofem.__version__}
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cofem.__version__ in headings
