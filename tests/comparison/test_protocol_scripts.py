"""Scripts that make runs and tasks by hand follow them."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from sodeep.comparison import read_runs

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script by name."""
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    return importlib.import_module


def test_runs_that_files_are_damaged_from_are_runs(script: Any, tmp_path: Path) -> None:
    script("fuzz_files").comparison_folder("runs.jsonl")(tmp_path)
    if len(read_runs(tmp_path)) != 8:
        pytest.fail("the reader refuses the runs before they are damaged")


def test_epochs_of_the_support_vector_machine_table(script: Any) -> None:
    module = script("compare_svm_ap")
    if f"for {module.EPOCHS} epochs" not in module.__doc__.replace("\n", " "):
        pytest.fail("the docstring names other epochs")
