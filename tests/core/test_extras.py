"""Packages that a plain install leaves out: whatever needs one says so at once, in one line, with the remedy."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

import sodeep
from sodeep._core.extras import MissingPackageError, check_installed, needed, remedy
from sodeep.cli.group import main
from sodeep.datasets.images import read_images

EXAMPLES = 'or in a clone of sodeep: pip install ".[examples]"'
SKLEARN = f"scikit-learn, which is not installed. Install it: pip install scikit-learn, {EXAMPLES}"


def compare(*arguments):
    return CliRunner().invoke(
        main, ["compare", *map(str, arguments), "--jobs", "1", "--seeds", "1", "--max-steps", "5"]
    )


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ("multi-label", "The multi-label task without data of your own (--data)"),
        ("toy", "The toy task, for its support vector machine,"),
    ],
)
def test_tasks_that_need_scikit_learn(uninstall, tmp_path, monkeypatch, task, what):
    monkeypatch.chdir(tmp_path)
    uninstall("sklearn")
    result = compare(task)
    assert (result.exit_code, result.stderr) == (1, f"Error: {what} needs {SKLEARN}\n")
    assert list(tmp_path.iterdir()) == []


def test_images_need_pillow(uninstall):
    uninstall("PIL")
    expected = f"Reading images needs pillow, which is not installed. Install it: pip install pillow, {EXAMPLES}"
    with pytest.raises(MissingPackageError, match="^" + re.escape(expected) + "$"):
        read_images(["x.png"], 8)


def test_tensorboard_is_asked_for_before_the_comparison(uninstall, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uninstall("tensorboard")
    result = compare("memorability", "--tensorboard")
    expected = "--tensorboard needs tensorboard, which is not installed. Install it: pip install tensorboard"
    assert (result.exit_code, result.stderr) == (1, f"Error: {expected}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_figure_of_ranks_needs_matplotlib(uninstall, tmp_path):
    sodeep.save_sorter(tmp_path / "x.safetensors", sodeep.build_sorter("set", frequencies=[4]))
    uninstall("matplotlib")
    arguments = ["evaluate-sorter", str(tmp_path / "x.safetensors"), "--figure", str(tmp_path / "x.png")]
    result = CliRunner().invoke(main, arguments)
    expected = (
        "--figure needs matplotlib, which is not installed. Install it: pip install matplotlib, or in a clone of "
        'sodeep: pip install ".[plot]"'
    )
    assert (result.exit_code, result.stderr) == (1, f"Error: {expected}\n")


def test_what_is_installed_is_left_alone():
    with needed("numpy", "This"):
        import numpy.linalg  # noqa: F401
    check_installed("numpy", "This")
    assert np.__name__ == "numpy"


def test_an_import_that_fails_inside_a_package_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_of_a_test.py").write_text("import gone_of_a_test\n")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'gone_of_a_test'$"),
        needed("broken_of_a_test", "x"),
    ):
        import broken_of_a_test  # noqa: F401


def test_remedies():
    assert remedy("PIL") == f"pip install pillow, {EXAMPLES}"
    assert remedy("torch_geometric") == "pip install torch-geometric"
    adapters = 'pip install pytorch-metric-learning, or in a clone of sodeep: pip install ".[adapters]"'
    assert remedy("pytorch_metric_learning") == adapters
