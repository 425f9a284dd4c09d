"""A user's own objects by name, as ``module:attribute``."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any


def find_in_current_folder() -> None:
    """Import from the current folder too."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def is_module(name: str) -> bool:
    """Whether there is a package or module of this name."""
    find_in_current_folder()
    top = name.partition(".")[0] or "_"
    return top in sys.modules or importlib.util.find_spec(top) is not None


def attribute(module: str, name: str, argument: str) -> Any:
    """An attribute of a module, which may lie in the current folder; `argument` is what named it, for the errors.

    Raises:
        ValueError: no such module, no such attribute, or one that cannot be called.
    """
    find_in_current_folder()
    try:
        result = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise
        raise ValueError(
            f"`{argument}` must name a module that is installed or in {Path.cwd()}, got {module}:{name}."
        ) from None
    except AttributeError:
        raise ValueError(f"`{argument}` must name something in {module}, got {module}:{name}, not there.") from None
    if not callable(result):
        raise ValueError(f"`{argument}` must be callable, got {module}:{name} of type {type(result).__name__}.")
    return result


def name_of(given: Any) -> str:
    """A class or function as ``module:attribute``; the module of a script is named as if it were imported."""
    module = given.__module__
    if module in ("__main__", "__mp_main__"):  # the second in processes that the script starts
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}:{getattr(given, '__qualname__', type(given).__qualname__)}"


def code_of(given: type) -> str:
    """The code of a class, of its bases that are not ours, and of what they name in their modules, one after another.

    Functions, classes, and plain constants of the same module count; what is imported does not.

    >>> code_of(dict)
    ''
    """
    found: dict[tuple[str, str], str] = {}

    def add(module: str, name: str, value: Any) -> None:
        if (module, name) in found:
            return
        is_code = inspect.isroutine(value) or isinstance(value, type)
        source = found[module, name] = source_of(value) if is_code else repr(value)
        if not is_code or not source:
            return
        names = {node.id for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Name)}
        there = vars(sys.modules[module])
        for other in sorted(names & there.keys()):
            if _is_plain(there[other]) or _is_defined_in(there[other], module):
                add(module, other, there[other])

    for part in given.__mro__:
        if part.__module__.partition(".")[0] not in ("sodeep", "builtins", "abc", "typing"):
            add(part.__module__, part.__qualname__, part)
    return "\n".join(found.values())


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _is_defined_in(value: Any, module: str) -> bool:
    return (inspect.isroutine(value) or isinstance(value, type)) and getattr(value, "__module__", None) == module


def source_of(given: Any) -> str:
    """The code of a function, or of the class of anything else; empty where it is not to be had."""
    try:
        return inspect.getsource(given if inspect.isroutine(given) or isinstance(given, type) else type(given))
    except (OSError, TypeError):  # made in a shell, or in C
        return ""
