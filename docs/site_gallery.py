"""How the scripts of examples/ become pages: which are run, with which arguments, where figures come from."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

ROOT = Path(__file__).parents[1]
README = ROOT / "examples/README.md"
#: Further arguments of single scripts: radial data would take many minutes.
FURTHER = {"coils": ["--kinds", "Cartesian"]}


class Arguments:
    """The command line of each script: figures go to a folder of their own, and one seed will do."""

    def __repr__(self) -> str:  # the same in every build, or Sphinx would read all pages again
        return type(self).__name__

    def __call__(self, gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
        """Return the arguments of a script.

        Parameters
        ----------
        gallery_conf, script_vars : dict
            What sphinx-gallery passes; ``script_vars["src_file"]`` is the script.
        """
        script = Path(script_vars["src_file"])
        SavedFigures.folder = tempfile.TemporaryDirectory()  # the one before it is removed
        seeds = ["--seeds", "1"] if "start_with_seeds(" in script.read_text() else []
        return ["--out", SavedFigures.folder.name, *seeds, *FURTHER.get(script.stem, [])]


class AsInReadme:
    """The order of the pages: that of examples/README.md.

    Parameters
    ----------
    src_dir : str
        What sphinx-gallery passes.
    """

    def __init__(self, src_dir: str) -> None:
        self.names = re.findall(r"^## .*`(\w+\.py)`$", README.read_text(), re.MULTILINE)

    def __repr__(self) -> str:
        return type(self).__name__

    def __call__(self, filename: str) -> int:
        """Return the place of a script.

        Parameters
        ----------
        filename : str
            Its name.
        """
        return self.names.index(Path(filename).name)


class SavedFigures:
    """Shows the figures that a script has written, with the words that examples/README.md has for them."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def __repr__(self) -> str:
        return type(self).__name__

    def __call__(self, block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
        """Move new figures to where the page wants them.

        Parameters
        ----------
        block, block_vars, gallery_conf
            What sphinx-gallery passes to a scraper.

        Returns
        -------
        str
            The figures in reStructuredText.
        """
        if self.folder is None:
            return ""
        moved = []
        words = ""
        for figure in sorted(Path(self.folder.name).glob("*.png")):
            moved.append(block_vars["image_path_iterator"].next())
            words = words or alt_text(figure.name)
            shutil.move(figure, moved[-1])
        return figure_rst(moved, gallery_conf["src_dir"], words)


def alt_text(figure: str) -> str:
    """Return what examples/README.md says a figure shows."""
    found = re.search(rf"!\[([^\]]*)\]\(figures/{figure}\)", README.read_text())
    return found.group(1) if found else figure


def read(app: object, docname: str, source: list[str]) -> None:
    """Make tables of what the scripts print in Markdown, on the pages of the gallery."""
    if docname.startswith("gallery/"):
        source[0] = with_tables(source[0])


def with_tables(text: str) -> str:
    """Return a page of sphinx-gallery whose printed Markdown tables are tables, without paths of figures."""
    head = ".. rst-class:: sphx-glr-script-out\n\n .. code-block:: none\n\n"

    def change(match: re.Match[str]) -> str:
        printed = re.sub(r"^    Figure: .*\n", "", match.group(1), flags=re.MULTILINE)
        parts = re.split(r"((?:^    \| .*\n)+)", printed, flags=re.MULTILINE)
        made = [
            _list_table(part) if part.startswith("    | ") else head + part.strip("\n") + "\n\n"
            for part in parts
            if part.strip()
        ]
        return "".join(made) + "\n"

    return re.sub(re.escape(head) + r"((?: {4}.*\n|\s*\n)+)", change, text)


def _list_table(printed: str) -> str:
    """Return a Markdown table in reStructuredText."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in printed.splitlines()]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (rows[0], *rows[2:]):
        cells = [re.sub(r"([*`_|\\])", r"\\\1", cell) for cell in row]
        lines += [f"   {'* -' if k == 0 else '  -'} {cell}".rstrip() for k, cell in enumerate(cells)]
    return "\n".join(lines) + "\n\n"
