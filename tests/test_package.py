"""The package as a whole: what importing it does, and the order of its modules."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sodeep

PACKAGE = Path(sodeep.__file__).parent
ROOT = Path(__file__).parents[1]

ORDER = [
    "_bar",
    "_checks",
    "_files",
    "_precision",
    "_sort",
    "_lists",
    "_labels",
    "ranks",
    "generators",
    "_comparing",
    "_counting",
    "sorters",
    "checkpoint",
    "export",
    "metrics",
    "evaluation",
    "pictures",
    "training",
    "refresh",
    "scale",
    "losses._common",
    "losses.rank",
    "losses.retrieval",
    "losses.semantic",
    "losses.pair",
    "losses.embedding",
    "losses",
    "weights",
    "samplers",
    "_plain_pickle",
    "tasks.base",
    "tasks.encoders",
    "tasks.layouts",
    "tasks.revisited",
    "tasks.semantics",
    "tasks.contenders",
    "tasks.retrieval",
    "tasks.cross_modal",
    "tasks.memorability",
    "tasks.multi_label",
    "tasks.toy",
    "tasks",
    "compare",
    "report",
    "_compare_cli",
    "cli",
]
"""A module imports only what stands before it."""


def imports(path):
    """Names of the modules of this package that the file at `path` imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sodeep":
            yield from ([f"{node.module}.{a.name}" for a in node.names] if node.module == "sodeep" else [node.module])
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("sodeep."))


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def place(name):
    while name not in ORDER:
        assert "." in name, f"{name} has no place in ORDER"
        name = name.rpartition(".")[0]
    return ORDER.index(name)


def test_imports_go_downward_only():
    for path in PACKAGE.rglob("*.py"):
        name = module_name(path)
        if name in ("__init__", "__main__", "cli"):
            continue
        for imported in imports(path):
            inner = imported.removeprefix("sodeep.")
            if (PACKAGE / (inner.replace(".", "/") + ".py")).exists() or (PACKAGE / inner.replace(".", "/")).is_dir():
                assert place(inner) <= place(name), f"{name} imports {imported}"


def test_import_is_light_and_silent():
    heavy = ["matplotlib", "tensorboard", "sklearn", "torch.utils.tensorboard", "pandas"]
    code = f"import sys, sodeep; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_names_are_exported():
    for name in sodeep.__all__:
        assert getattr(sodeep, name) is not None


def test_what_torch_2_4_cannot_trace_is_not_asked_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> bool:
        raise AssertionError("torch.compile of torch 2.4 stops here")

    monkeypatch.setattr(torch.amp, "is_autocast_available", refuse)
    assert sodeep.exact_rank(torch.tensor([0.2, 0.9])).tolist() == [2, 1]
    with torch.autocast("cpu"):
        assert sodeep.exact_rank(torch.tensor([0.2, 0.9])).dtype == torch.float32


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("[dp]*/**/*.md")), ids=lambda path: path.name
)
def test_links_of_the_documents_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []
    assert re.findall(r"@[A-Z_]{3,}@", text) == []  # a place to be filled in
