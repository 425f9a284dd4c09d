"""The examples, run as a reader runs them but with tiny sizes; what they print must get better."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import sodeep
from sodeep.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"
RUN_HERE = {"retrieval", "memorability", "multi_label", "lightning_retrieval", "custom_rank_fn", "spearman_regression",
            "pair_weights", "ranking", "own_task", "hf_trainer"}  # fmt: skip


def run(name, *options, **arguments):
    """What an example prints: a command with `options`, or a function of `arguments`."""
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    if not isinstance(main, click.Command):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(**arguments)
        return printed.getvalue()
    result = CliRunner().invoke(main, list(options), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def numbers(pattern, text):
    """The numbers that follow `pattern` in a text, in order."""
    return [float(number) for number in re.findall(rf"{re.escape(pattern)} (-?\d+\.\d+)", text)]


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == RUN_HERE


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_retrieval():
    pytest.importorskip("sklearn")
    text = run("retrieval", epochs=1)
    before, after = numbers("mAP@R", text)
    assert after > before + 0.1
    before, after = numbers("hit rate at 1", text)
    assert after > 0.9
    assert run("retrieval", epochs=1) == text  # seeded


def test_ranking(tmp_path):
    before, after = numbers("nDCG@10", run("ranking", epochs=5))
    assert after > before + 0.1
    rows = [f"{i // 4},{i % 3},{(i % 3) + 0.1 * (i % 5)},{i % 7}\n" for i in range(400)]
    (tmp_path / "my.csv").write_text("".join(["group,relevance,a,b\n", *rows]))
    before, after = numbers("nDCG@10", run("ranking", path=tmp_path / "my.csv", epochs=10))
    assert after > max(before, 0.9)


def test_memorability():
    text = run("memorability", steps=100)
    before, after = numbers("Spearman", text)
    assert after > before + 0.2
    before, after = numbers("mean absolute error", text)
    assert after < before - 0.2


def test_multi_label():
    pytest.importorskip("sklearn")
    before, after = numbers("mAP", run("multi_label", epochs=5))
    assert after > before + 0.2


@pytest.mark.filterwarnings("ignore")  # those of Lightning are not ours to mend
def test_lightning_retrieval():
    pytest.importorskip("sklearn")
    pytest.importorskip("lightning")
    before, after = numbers("mAP@R", run("lightning_retrieval", "--epochs", "1"))
    assert after > before + 0.05


def test_lightning_retrieval_on_two_devices():
    pytest.importorskip("sklearn")
    pytest.importorskip("lightning")
    # Lightning starts the second process by running the script again
    command = [sys.executable, str(EXAMPLES / "lightning_retrieval.py"), "--epochs", "1", "--devices", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    before, after = numbers("mAP@R", done.stdout)  # of one process
    assert after > before + 0.05


@pytest.mark.filterwarnings("ignore")  # those of transformers are not ours to mend
def test_hf_trainer(tmp_path):
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("accelerate")
    before, after = numbers("Spearman", run("hf_trainer", steps=30, folder=tmp_path))
    assert after > before + 0.3


def test_custom_rank_fn():
    untrained = numbers("error", run("custom_rank_fn", steps=0))
    trained = numbers("error", run("custom_rank_fn", steps=30))
    assert trained[1] < untrained[1]  # TinySorter
    assert trained[2] == 0  # exact forward


def test_spearman_regression(tmp_path):
    pytest.importorskip("sklearn")
    path = tmp_path / "tiny.safetensors"
    config = sodeep.TrainConfig(sorter="set", lengths=(10, 100), steps=2, batch_size=8, device="cpu")
    sodeep.train_sorter(config, out=path)
    text = run("spearman_regression", "--sorter", str(path), "--seeds", "1", "--epochs", "20")
    values = [float(value) for value in re.findall(r"(\d\.\d+) ±", text)]
    assert len(values) == 3
    assert min(values[:2]) > 0.4  # the third is that of a sorter that has learned nothing


def test_own_task(tmp_path, monkeypatch):
    text = run("own_task", out=tmp_path / "runs", seeds=2, trials=1, max_steps=200)
    trained = numbers("mse", re.sub(" +", " ", text))
    assert trained[0] > 0.5
    assert "mean ± sd of 2 seeds" in text
    monkeypatch.syspath_prepend(str(EXAMPLES))
    options = ["--seeds", "1", "--trials", "1", "--max-steps", "4", "--jobs", "1", "--out", str(tmp_path / "named")]
    result = CliRunner().invoke(main, ["compare", "own_task:Stars", "--loss", "mse", *options])
    assert result.exit_code == 0, result.output
    assert "own_task:Stars on made-up reviews" in result.stdout


def test_pair_weights(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "weights.png"
    result = CliRunner().invoke(runpy.run_path(str(EXAMPLES / "pair_weights.py"))["main"], [str(path)])
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")
