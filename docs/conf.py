"""How Sphinx builds the site: ``make docs`` runs the gallery, ``-D plot_gallery=0`` leaves that out."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

import site_gallery  # noqa: E402
import site_pages  # noqa: E402

import cofem  # noqa: E402

project = "cofem"
author = "The cofem developers"
copyright = author
version = release = cofem.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # equations without the network too
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
# `name` in a docstring is a link where there is such an object, and code where there is none.
default_role = "py:obj"
smartquotes = False  # `analysis="auto"` in the tables that scripts print is code

myst_heading_anchors = 4

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say the types, with shapes
autodoc_class_signature = "mixed"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py",  # all are run
    "ignore_pattern": r"_common\.py",
    "reset_argv": site_gallery.Arguments(),
    "image_scrapers": (site_gallery.SavedFigures(),),
    "within_subsection_order": "site_gallery.AsInReadme",
    "show_signature": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "download_all_examples": False,
    "plot_gallery": "True",
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "cofem"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"index": [], "changelog": [], "contributing": []}
html_show_sourcelink = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app: object) -> None:
    """Have pages that live elsewhere in the repository stand in the site, and links lead to them."""
    app.connect("source-read", site_pages.read)
    app.connect("source-read", site_gallery.read)
    app.connect("autodoc-skip-member", site_pages.skip_member)
    app.connect("autodoc-process-bases", site_pages.show_bases)
    app.connect("autodoc-process-docstring", site_pages.link_pages)
