"""One template for the docstrings of all public names: its sections in order, an example, every argument."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

SECTIONS = ["Args", "Attributes", "Returns", "Raises", "References", "Example"]
_OF_ALL = ["scores", "relevant", "relevance", "target", "semantic", "where", "group"]
SHARED = {
    "sodeep.losses": [*_OF_ALL, "weight", "reduction", "return_stats"],
    "sodeep.metrics": [*_OF_ALL, "chunk_size"],
}
"""What the functions of a package share is said once, in the docstring of the package."""

NEEDS_A_FILE = {"sodeep.checkpoint.sodeep2019.import_sodeep2019"}


def public(package: str) -> dict[str, Any]:
    """The public functions and classes of a package, by the names of where they are defined."""
    module = importlib.import_module(package)
    values = [getattr(module, name) for name in module.__all__]
    return {f"{x.__module__}.{x.__qualname__}": x for x in values if inspect.isroutine(x) or inspect.isclass(x)}


PUBLIC = {**public("sodeep"), **public("sodeep.losses")}
EVERYTHING = {**PUBLIC, **public("sodeep.tasks")}


def sections(value: Any) -> dict[str, str]:
    """The text of each section of a docstring, in order; "" is what stands before the first."""
    parts = re.split(r"^([A-Z]\w*):\n(?= {4}\S)", inspect.getdoc(value) or "", flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def is_record(value: Any) -> bool:
    """An exception, or a class that only holds values: there is nothing to call."""
    if not inspect.isclass(value):
        return False
    return issubclass(value, (BaseException, tuple)) or {"Args", "Attributes"} & {*sections(value)} == {"Attributes"}


def documented(text: str) -> list[str]:
    """The names that a section has entries of."""
    names = re.findall(r"^ {4}(\w+(?:, \w+)*):", text, flags=re.M)
    return [name for entry in names for name in entry.split(", ")]


def shared(name: str) -> list[str]:
    return next((names for package, names in SHARED.items() if name.startswith(f"{package}.")), [])


def test_what_is_shared_is_said_in_the_package() -> None:
    for package, names in SHARED.items():
        doc = importlib.import_module(package).__doc__ or ""
        assert [name for name in names if f"``{name}``" not in doc] == []


@pytest.mark.parametrize("name", EVERYTHING)
def test_sections_are_those_of_the_template(name: str) -> None:
    found = sections(EVERYTHING[name])
    summary, *rest = found.pop("").split("\n")
    assert summary.endswith((".", "?"))
    assert rest[:1] in ([], [""])
    assert list(found) == [section for section in SECTIONS if section in found]
    assert re.search(r"^(>>>|Source:|Definition)", inspect.getdoc(EVERYTHING[name]) or "", flags=re.M) is None


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in NEEDS_A_FILE])
def test_there_is_an_example(name: str) -> None:
    if not is_record(PUBLIC[name]):
        assert ">>> " in sections(PUBLIC[name])["Example"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained(name: str) -> None:
    """At the function, or where its package says what all share; those of a Module at its function."""
    value = PUBLIC[name]
    if is_record(value):
        return
    text = sections(value)
    if function := getattr(value, "function", None):
        assert text[""].strip() == f"Module form of `{function.__name__}`."
        assert "Args" not in text
        assert {*inspect.signature(value).parameters} <= {*inspect.signature(function).parameters}
        return
    parameters = list(inspect.signature(value).parameters)
    explained = documented(text.get("Args", ""))
    assert explained == [x for x in parameters if x in explained]
    implied = {*parameters} - {*explained}
    assert implied <= {*shared(name)}
    if implied:
        assert re.search(r"share, such as `where`: see `sodeep\.(losses|metrics)`\.$", text[""].strip())
