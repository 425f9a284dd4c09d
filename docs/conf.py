"""The site: built by scripts/docs from the Markdown pages as they stand in the repository, and from the docstrings."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils.nodes import Element, document, literal, reference, title
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

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


def toctree(entries: Iterable[str], caption: str = "") -> str:
    """Pages of the sidebar."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """The contents of the site are those of docs/README.md: its sections, and the pages that each lists."""
    if docname == "docs/results":
        reports = sorted(path.stem for path in (ROOT / "docs/results").glob("*.md"))
        source[0] += toctree(f"{name.replace('-', ' ')} <results/{name}>" for name in reports)
    if docname == "README":
        source[0] += toctree(["docs/README"])
        app.env.note_dependency(str(ROOT / "docs/README.md"), docname=docname)
        contents = (ROOT / "docs/README.md").read_text(encoding="utf-8")
        for caption, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", contents, re.MULTILINE | re.DOTALL):
            pages = re.findall(r"^\* \[.*?\]\(([^)#]*)\.md\)", text, re.MULTILINE)
            source[0] += toctree([f"/{(Path('docs') / page)}" for page in pages], caption)


def link_names(app: Sphinx, doctree: document) -> None:
    """`SmoothAPLoss(tau=0.1)` in a page leads to what is said of that name; the pages themselves need no such links."""
    for code in list(doctree.findall(literal)):
        name = re.fullmatch(r"(?:sodeep\.)?(\w+)(?:\(.*\))?", code.astext())
        if not name or name[1] not in sodeep.__all__ or isinstance(getattr(sodeep, name[1]), ModuleType):
            continue
        above, parent = [], code.parent
        while parent is not None:
            above.append(parent)
            parent = parent.parent
        if not any(isinstance(node, (pending_xref, reference, title)) for node in above):
            target = {"refdomain": "py", "reftype": "obj", "reftarget": f"sodeep.{name[1]}"}
            code.replace_self(pending_xref("", code.deepcopy(), refdoc=app.env.docname, refexplicit=False, **target))


def find_public(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """A public name is described as ``sodeep.NAME``, and written NAME or by its module in docstrings."""
    name = node.get("reftarget", "")
    if f"{node.get('py:module')}.{name}" in sys.modules:  # a module that is called like a metric
        return None
    for target in (name, name.rpartition(".")[2]):
        if node.get("refdomain") == "py" and target.split(".")[0] in sodeep.__all__:
            domain, page = env.domains["py"], node["refdoc"]
            found = domain.resolve_xref(env, page, app.builder, "obj", f"sodeep.{target}", node, text)
            if found is not None:
                return found
    return None


def shorten_signature(app: Sphinx, what: str, name: str, value: Any, options: Any, *signature: str) -> tuple[str, str]:
    """What is not Python, the default of a field that is made anew, would be cut at its commas."""
    arguments, result = signature
    return arguments and arguments.replace("<factory>", "..."), result


def mark_long_code(app: Sphinx, doctree: document, page: str) -> None:
    """For the style sheet: a column of a table is to have room for it."""
    for code in doctree.findall(literal):
        if len(code.astext()) > 30:
            code["classes"].append("long")


def add_front_page(app: Sphinx, error: Exception | None) -> None:
    """README.html is what a server shows for the folder."""
    if error is None:
        shutil.copy(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("doctree-resolved", mark_long_code)
    app.connect("doctree-read", link_names)
    app.connect("missing-reference", find_public)
    app.connect("build-finished", add_front_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
