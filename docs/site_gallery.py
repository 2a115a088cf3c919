"""How the scripts of examples/ become pages: which are run, with which arguments, where figures come from."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

ROOT = Path(__file__).parents[1]
#: Shown without being run: `coils` takes many minutes, `dask_cluster` wants terminals.
SHOWN_ONLY = ("coils", "dask_cluster")
EXECUTED = r"[\\/](?!_|" + "|".join(rf"{name}\.py" for name in SHOWN_ONLY) + r")\w+\.py"


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
        return ["--out", SavedFigures.folder.name, *seeds]


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
    found = re.search(rf"!\[([^\]]*)\]\(figures/{figure}\)", (ROOT / "examples/README.md").read_text())
    return found.group(1) if found else figure
