"""How Sphinx builds the site: make site."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "formulations")]

import generated  # noqa: E402  # it stands beside this file

project = "optsched"
author = "The optsched authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_mathml"]
html_theme = "furo"
html_title = "optsched"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
default_role = "code"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"


def setup(app: Sphinx) -> None:
    """Write the pages that are made from the registries, and read GitHub's Markdown as MyST."""
    generated.write(HERE / "generated")
    app.connect("source-read", generated.read_markdown)
    app.connect("autodoc-process-docstring", generated.drop_field_numbers)
