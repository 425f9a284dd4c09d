"""The site: built by scripts/docs from the Markdown pages as they stand in the repository, and from the docstrings."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import sodeep

ROOT = Path(__file__).resolve().parents[1]

project = "sodeep"
author = copyright = "The sodeep authors"
version = release = sodeep.__version__

# The root of the repository is the source, so that the pages' relative links are right there and here.
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pretrained/README.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist", "runs", "sodeep", "scripts", "tests"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # as GitHub makes them
suppress_warnings = ["myst.header"]  # a heading of the second level first: the page is read in parts

default_role = "py:obj"  # `name` in a docstring is a link where it names something public
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"sodeep {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"


def toctree(entries: list[str], caption: str = "") -> str:
    """Pages of the sidebar."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [":glob:"])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """The contents of the site are those of docs/README.md: its sections, and the pages that each lists."""
    if docname == "docs/results":
        source[0] += toctree(["results/*"])
    if docname == "README":
        source[0] += toctree(["docs/README"])
        contents = (ROOT / "docs/README.md").read_text(encoding="utf-8")
        for caption, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", contents, re.MULTILINE | re.DOTALL):
            pages = re.findall(r"^\* \[.*?\]\(([^)#]*)\.md\)", text, re.MULTILINE)
            source[0] += toctree([f"/{(Path('docs') / page)}" for page in pages], caption)


def add_front_page(app: Sphinx, error: Exception | None) -> None:
    """README.html is what a server shows for the folder."""
    if error is None:
        shutil.copy(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_front_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
