"""The site builds without a warning, holds every public name, and its pages link to what is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

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
    made = shutil.ignore_patterns("_build", "api", "gallery", "__pycache__", "*.csv")
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


def docs_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import one of the modules beside the pages."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return import_module(name)


def test_what_scripts_print_in_markdown_becomes_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    head = ".. rst-class:: sphx-glr-script-out\n\n .. code-block:: none\n\n"
    printed = [
        "",
        "Seed 0",
        "| a_b | c |",
        "| --- | - |",
        "| 1   |   |",
        "",
        "Figure: /somewhere/a.png (1 kB)",
    ]
    page = head + "".join(f"    {line}\n" if line else "\n" for line in printed) + "\n\nend\n"
    rows = ".. list-table::\n   :header-rows: 1\n\n   * - a\\_b\n     - c\n   * - 1\n     -\n\n"
    found = docs_module("site_gallery", monkeypatch).with_tables(page)
    assert found == f"{head}    Seed 0\n\n{rows}\nend\n"


def test_pages_of_the_gallery_come_as_in_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    order = docs_module("site_gallery", monkeypatch).AsInReadme("")
    scripts = [path.name for path in (ROOT / "examples").glob("[a-z]*.py")]
    assert sorted(scripts, key=order)[:2] == ["mri.py", "inpainting.py"]


def test_the_pictures_of_priors_are_those_of_their_script(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = docs_module("prior_pictures", monkeypatch)
    found = {path.stem: path.read_text() for path in pictures.FOLDER.glob("*.svg")}
    assert found == {name: pictures.draw(parts) for name, parts in pictures.signals().items()}


def contrast(colour: str, ground: str) -> float:
    """Return the contrast of two colours, ``#rrggbb``, as WCAG 2 defines it."""

    def luminance(text: str) -> float:
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, (colour, ground)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_of_figures_stand_out_from_white() -> None:
    """WCAG AA asks for 3:1 in graphics, and 4.5:1 in text: figures have text in black alone."""
    assert round(contrast("#000000", "#ffffff")) == 21
    files = ["src/cofem/plotting.py", "src/cofem/experiments/study/plot.py", "examples/_common.py"]
    lines = [
        line for file in (*files, "docs/prior_pictures.py") for line in (ROOT / file).read_text().splitlines()
    ]
    palettes = [line for line in lines if re.match(r"[A-Z, ]+ = .*#", line)]
    colours = {colour for line in palettes for colour in re.findall(r"#[0-9A-Fa-f]{6}", line)}
    assert len(palettes) == 4
    assert {
        colour: contrast(colour, "#ffffff") for colour in colours if contrast(colour, "#ffffff") < 3
    } == {}


def test_own_styles_name_no_colours_but_white() -> None:
    """Colours of text and grounds are those of the theme, in its light and its dark form."""
    style = (ROOT / "docs/_static/site.css").read_text()
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsl", style)) == {"#fff"}
