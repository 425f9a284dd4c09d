"""A user's own objects by name, as ``module:attribute``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
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


def source_of(given: Any) -> str:
    """The code of a function, or of the class of anything else; empty where it is not to be had."""
    try:
        return inspect.getsource(given if inspect.isroutine(given) or isinstance(given, type) else type(given))
    except (OSError, TypeError):  # made in a shell, or in C
        return ""
