"""The package as a whole: what importing it does, and the order of its modules."""

import ast
import re
import runpy
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

import pytest
import torch

import sodeep

PACKAGE = Path(sodeep.__file__).parent
ROOT = Path(__file__).parents[1]

ORDER = [
    "_version",
    "_core",
    "groups",
    "ranks",
    "generators",
    "sorters",
    "checkpoint",
    "metrics",
    "evaluation",
    "rank_plot",
    "distributed",
    "training",
    "dataset_metric",
    "multistage",
    "losses",
    "gallery",
    "samplers",
    "_api",
    "adapters",
    "datasets",
    "tasks",
    "comparison",
    "report",
    "__init__",
    "cli",
    "__main__",
]
"""A module imports only from what stands before it, or from its own package, without a circle.

"__init__" is the package as a whole.
"""


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
    top = name.split(".")[0]
    assert top in order, f"{top} has no place in ORDER"
    return order.index(top)


def graph(package):
    """Module -> the modules that it imports, all of the package."""
    return {module_name(path, package): [*imports(path, package)] for path in sorted(package.rglob("*.py"))}


def imports_upward(package, order):
    """What no module of `package` may import but does."""
    return [
        f"{name} imports {imported}"
        for name, found in graph(package).items()
        for imported in found
        if place(imported, order) > place(name, order)
    ]


def circle(package):
    """Modules that import one another in a circle, or []."""
    try:
        TopologicalSorter({name: {*found} - {name} for name, found in graph(package).items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_go_downward_only():
    assert imports_upward(PACKAGE, ORDER) == []


def test_no_modules_import_one_another():
    assert circle(PACKAGE) == []


def test_every_place_in_the_order_is_a_module():
    assert {*ORDER} == {module_name(path, PACKAGE).split(".")[0] for path in PACKAGE.rglob("*.py")}
    assert len({*ORDER}) == len(ORDER)


def test_no_public_name_is_that_of_a_module_of_its_own():
    """The module would stand in its place once it is imported."""
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert [
        name for name in sodeep.__all__ if name in modules and not isinstance(getattr(sodeep, name), ModuleType)
    ] == []


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
    assert imports_upward(package, ["_version", "ranks", "losses", "__init__"]) == found


def test_a_circle_is_seen(tmp_path):
    package = tmp_path / "sodeep"
    (package / "losses").mkdir(parents=True)
    (package / "losses" / "__init__.py").write_text("from sodeep.losses.pair import pair_loss")
    (package / "losses" / "pair.py").write_text("from sodeep.losses._base import Loss")
    (package / "losses" / "_base.py").touch()
    assert circle(package) == []
    (package / "losses" / "_base.py").write_text("def late():\n    from sodeep.losses import pair_loss")
    assert {*circle(package)} == {"losses", "losses.pair", "losses._base"}


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
    for first in ("sodeep.losses.embedding", "sodeep._api"):
        code = (
            f"import {first}, sodeep; from sodeep import *; print(sodeep.gather is gather, sodeep.checkpoint.__name__)"
        )
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
    script = runpy.run_path(str(ROOT / "scripts/list_for_help.py"))
    listed = {"losses": names.losses_by_task(), "ranks": names.ranks()}
    assert (names.layouts(), listed) == (script["layouts"](), script["losses"]()), "run scripts/list_for_help.py"


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
