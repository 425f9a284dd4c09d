"""An adapter whose library is missing says which, and how to install it."""

import importlib
import re
import sys

import pytest

from sodeep._core.extras import MissingPackageError


@pytest.mark.parametrize("library", ["pytorch_metric_learning", "torchmetrics"])
def test_a_missing_library(uninstall, monkeypatch, library):
    uninstall(library)
    monkeypatch.delitem(sys.modules, f"sodeep.adapters.{library}", raising=False)
    package = library.replace("_", "-")
    message = (
        f"sodeep.adapters.{library} needs {package}, which is not installed. Install it: pip install {package}, or in "
        'a clone of sodeep: pip install ".[adapters]"'
    )
    with pytest.raises(MissingPackageError, match="^" + re.escape(message) + "$"):
        importlib.import_module(f"sodeep.adapters.{library}")
