"""The package as a whole: what importing it does, and the order of its modules."""

import ast
import re
import runpy
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest
import torch

import sodeep

PACKAGE = Path(sodeep.__file__).parent
ROOT = Path(__file__).parents[1]

ORDER = [
    "_version",
    "_names",
    "_options",
    "_progress",
    "_arrays",
    "_checks",
    "_extras",
    "_files",
    "_signals",
    "_precision",
    "_sort",
    "_ties",
    "_lists",
    "_labels",
    "ranks",
    "generators",
    "_comparing",
    "_counting",
    "_frozen",
    "sorters",
    "_pickle_stream",
    "_plain_pickle",
    "_sealed",
    "_torch_file",
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
    "_api",
    "tasks.tables",
    "tasks.base",
    "tasks.texts",
    "tasks.encoders",
    "tasks.images",
    "tasks.layouts",
    "tasks.generated",
    "tasks.revisited",
    "tasks.semantics",
    "tasks.specs",
    "tasks.retrieval",
    "tasks.cross_modal",
    "tasks.memorability",
    "tasks.multi_label",
    "tasks.toy",
    "tasks",
    "compare",
    "_report_figures",
    "report",
    "_compare_cli",
    "__init__",
    "cli",
    "__main__",
]
"""A module imports only what stands before it; "__init__" is the package as a whole."""


def imports(path, package):
    """Names of the modules below `package` that the file at `path` imports, at the top or inside a function.

    The package as a whole, and whatever it only passes on (`from sodeep import SpearmanLoss`), is "__init__".
    """
    top = package.name
    here = ".".join(path.relative_to(package.parent).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), here) if node.level else node.module
            parts = [f"{source}.{alias.name}" for alias in node.names]
            names = [part if is_module(part, package) else source for part in parts]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            # `import sodeep.ranks` gives the name `sodeep`, and with it all that the package passes on
            names += [top for alias in node.names if alias.name.startswith(f"{top}.") and not alias.asname]
        for name in names:
            if name.split(".")[0] == top:
                yield name.removeprefix(top).removeprefix(".") or "__init__"


def is_module(name, package):
    path = package.parent / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def module_name(path, package):
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")


def place(name, order):
    while name not in order:
        assert "." in name, f"{name} has no place in ORDER"
        name = name.rpartition(".")[0]
    return order.index(name)


def imports_upward(package, order):
    """What no module of `package` may import but does."""
    return [
        f"{name} imports {imported}"
        for path in sorted(package.rglob("*.py"))
        for name in [module_name(path, package)]
        for imported in imports(path, package)
        if place(imported, order) > place(name, order)
    ]


def test_imports_go_downward_only():
    assert imports_upward(PACKAGE, ORDER) == []


def test_every_place_in_the_order_is_a_module():
    assert {*ORDER} <= {module_name(path, PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert len({*ORDER}) == len(ORDER)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from sodeep._version import __version__", []),
        ("from sodeep import _version", []),
        ("from . import _version", []),
        ("import sodeep._version as version", []),
        ("import sodeep_other", []),
        ("import sodeep", ["ranks imports __init__"]),
        ("import sodeep as package", ["ranks imports __init__"]),
        ("import sodeep._version", ["ranks imports __init__"]),
        ("from sodeep import __version__", ["ranks imports __init__"]),
        ("from . import __version__", ["ranks imports __init__"]),
        ("from sodeep import losses", ["ranks imports losses"]),
        ("from sodeep import _version, __version__, losses", ["ranks imports __init__", "ranks imports losses"]),
        ("from sodeep.losses import rank_loss", ["ranks imports losses"]),
        ("from sodeep.losses import pair", ["ranks imports losses.pair"]),
        ("from .losses.pair import pair_loss", ["ranks imports losses.pair"]),
        ("import sodeep.losses.pair as pair", ["ranks imports losses.pair"]),
        ("def late():\n    import sodeep", ["ranks imports __init__"]),
    ],
)
def test_an_import_upward_is_seen(tmp_path, line, found):
    package = tmp_path / "sodeep"
    (package / "losses").mkdir(parents=True)
    for name in ("__init__", "_version", "losses/__init__", "losses/pair"):
        (package / f"{name}.py").touch()
    (package / "ranks.py").write_text(line)
    assert imports_upward(package, ["_version", "ranks", "losses.pair", "losses", "__init__"]) == found


def test_import_is_light_and_silent():
    heavy = ["matplotlib", "tensorboard", "sklearn", "torch.utils.tensorboard", "pandas", "click"]
    code = f"import sys, sodeep; sodeep.train_sorter; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["train-sorter", "--help"], ["compare", "--help"]])
def test_help_imports_no_torch(args):
    code = f"""
import sys
from sodeep.cli import main
try:
    main({args!r}, prog_name="sodeep")
finally:
    print(sorted({{"torch", "numpy", "scipy"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n"), done.stdout


def test_a_name_is_found_whatever_was_imported_first():
    for first in ("sodeep.ranks", "sodeep.tasks", "sodeep.cli", "sodeep._api"):
        code = f"import {first}, sodeep; from sodeep import *; print(sodeep.climb is climb, sodeep.checkpoint.__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "True sodeep.checkpoint\n"


def test_an_unknown_name_is_an_attribute_error():
    for name in ("SpearmanLos", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"^module 'sodeep' has no attribute '{name}'$"):
            getattr(sodeep, name)
    assert {*sodeep.__all__, "__version__"} <= {*dir(sodeep)}


def test_names_that_help_lists_are_those_of_the_code():
    from sodeep.cli import names

    assert tuple(sodeep.SORTERS) == names.SORTERS
    assert tuple(sodeep.training.objective.VALUE_LOSSES) == names.VALUE_LOSSES
    assert tuple(sodeep.DISTRIBUTIONS) == names.DISTRIBUTIONS
    script = runpy.run_path(str(ROOT / "scripts/list_layouts.py"))
    listed = {"losses": names.losses_by_task(), "ranks": names.ranks()}
    assert (names.layouts(), listed) == (script["layouts"](), script["losses"]()), "run scripts/list_layouts.py"


def test_a_hang_ends_the_run_and_shows_the_test(tmp_path):
    """Also one that holds the interpreter's lock, as the end of a process group can."""
    config = (ROOT / "setup.cfg").read_text()
    assert "\nfaulthandler_timeout = 600\nfaulthandler_exit_on_timeout = true\n" in config
    (tmp_path / "test_hang.py").write_text("import ctypes\n\ndef test_hang():\n    ctypes.PyDLL(None).sleep(60)\n")
    options = ["-o", "faulthandler_timeout=0.2", "-o", "faulthandler_exit_on_timeout=true", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 1
    assert "in test_hang" in done.stderr + done.stdout


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
