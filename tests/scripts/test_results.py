"""scripts/make_results.py and scripts/count_contributing_pairs.py, at tiny sizes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from sodeep.cli import main
from sodeep.comparison.runs import read_runs

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_command(arguments):
    """In a process of its own: `sodeep` with these arguments."""
    sys.argv = ["sodeep", *arguments]
    main()


@pytest.fixture
def script(request, monkeypatch, processes):
    """The script as a module; processes that it starts need not import torch anew."""

    def start(command, cwd):
        assert command[:3] == [sys.executable, "-m", "sodeep"]
        process = processes.Process(target=run_command, args=(command[3:],))
        process.start()

        def wait(seconds):
            process.join(seconds)
            return process.exitcode

        return SimpleNamespace(wait=wait)

    if request.param == "make_results":
        pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SCRIPTS.parent), os.environ.get("PYTHONPATH")])))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader(request.param, str(SCRIPTS / f"{request.param}.py"))
    module = module_from_spec(spec_from_loader(request.param, loader))
    loader.exec_module(module)
    if request.param == "make_results":
        started = SimpleNamespace(Popen=start, run=subprocess.run, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(module, "subprocess", started)
    return module


make_results = pytest.mark.parametrize("script", ["make_results"], indirect=True)
count_contributing = pytest.mark.parametrize("script", ["count_contributing_pairs"], indirect=True)


@make_results
def test_results_are_made_copied_and_set_side_by_side(script, tmp_path, monkeypatch):
    command = "memorability --loss mse --loss spearman:no-such-sorter --loss l1 --jobs 1"
    sizes = {"50": f"{command} --batch-size 50", "100": f"{command} --batch-size 100"}
    monkeypatch.setitem(script.RESULTS, "batch-size", sizes)
    out = tmp_path / "docs"
    options = [
        "batch-size",
        "--trial",
        "--out",
        str(out),
        "--runs",
        str(tmp_path / "runs"),
        "--data-root",
        str(tmp_path),
    ]
    done = CliRunner().invoke(script.main, options, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Left out, since not shipped or not installed: spearman:no-such-sorter\n" in done.output
    copied = [f"batch-size-{size}{end}" for size in (100, 50) for end in ("-seeds.png", ".json", ".md")]
    assert sorted(file.name for file in out.iterdir()) == [*copied, "batch-size.md", "runs"]
    kept = sorted(str(file.relative_to(out / "runs")) for file in (out / "runs").rglob("*") if file.is_file())
    assert kept == [f"batch-size-{size}/{name}" for size in (100, 50) for name in ("comparison.json", "runs.jsonl.gz")]
    found = json.loads((out / "batch-size-50.json").read_text())
    shown = (
        "sodeep compare memorability --loss mse --loss l1 --jobs 1 --batch-size 50 --seeds 2 --search-seeds 1 "
        "--trials 2 --max-steps 10"
    )
    assert (found["command"], found["batch_size"], found["max_steps"]) == (shown, 50, 10)
    cell = found["losses"]["l1"]["metrics"]["Spearman"]
    assert cell["mean"] == pytest.approx(sum(cell["seeds"]) / 2, rel=1e-4)
    report = (out / "batch-size-50.md").read_text()
    assert f"\n    {shown}\n" in report
    assert "![Spearman of every seed](batch-size-50-seeds.png)" in report
    for file in (path for path in out.rglob("*") if path.is_file()):
        assert str(tmp_path).encode() not in file.read_bytes()
    lines = (out / "batch-size.md").read_text().splitlines()
    assert re.match(r"\| batch-size \| loss \| seeds \| Spearman ↑ \| MAE ↓ \|", lines[5])
    assert [tuple(line.split(" | ")[:3]) for line in lines[7:]] == [
        (f"| {size}", loss, "2") for size in (50, 100) for loss in _by_rank(out / f"batch-size-{size}.json")
    ]


@make_results
def test_a_peer_that_is_not_installed_is_left_out(script, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words, _ = script.arguments_of("memorability --loss mse --loss peer:torchsort", None)
    assert words == ["memorability", "--loss", "mse"]
    assert capsys.readouterr().err == "Left out, since not shipped or not installed: peer:torchsort\n"


@make_results
def test_a_comparison_goes_on_from_kept_runs(script, tmp_path, monkeypatch):
    monkeypatch.setitem(script.RESULTS, "toy", {"": "memorability --loss mse --jobs 1"})
    options = ["toy", "--trial", "--out", str(tmp_path / "docs"), "--runs"]
    CliRunner().invoke(script.main, [*options, str(tmp_path / "first")], catch_exceptions=False)
    done = CliRunner().invoke(script.main, [*options, str(tmp_path / "second")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    first, second = (read_runs(tmp_path / name / "toy") for name in ("first", "second"))
    assert [run.metrics for run in second] == [run.metrics for run in first]
    assert [run.seconds for run in second] == [run.seconds for run in first]  # they are the same runs


@make_results
def test_a_changed_loss_is_compared_alone(script):
    assert script.only("toy --loss hinge --seeds 5 --loss bce", ["map:set", "mse", "ridge", "raw"]) == (
        "toy --seeds 5 --loss hinge --loss map:set --loss ridge"
    )


def _by_rank(file):
    return list(json.loads(file.read_text())["losses"])


@make_results
def test_every_result_is_a_command(script, tmp_path):
    listed = CliRunner().invoke(script.main, [], catch_exceptions=False).output
    assert listed.count("    sodeep compare ") == sum(map(len, script.RESULTS.values())) - 1
    assert "../shared" not in (SCRIPTS / "make_results.py").read_text()
    asked = CliRunner().invoke(script.main, ["omniglot"], env={"SODEEP_DATA": ""})
    assert asked.exit_code == 2
    assert asked.stderr.endswith(
        "Error: omniglot needs --data-root DIR or SODEEP_DATA with a folder omniglot_small: "
        "images_background_small1.zip and _small2.zip, github.com/brendenlake/omniglot.\n"
    )
    asked = CliRunner().invoke(script.main, ["emoji", "--data-root", str(tmp_path)])
    assert f"emoji needs --data-root {tmp_path} with a folder emoji: " in asked.stderr


# ---- contributing pairs ----------------------------------------------------------------------------------------------


@count_contributing
def test_counts_by_hand(script):
    scores, relevant = torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, False])
    assert [script.triplet_hard(scores, relevant), script.triplet_hard(scores * 10, relevant)] == [1, 0]
    assert script.nt_xent(scores, relevant) == 1  # probabilities 0.731, 0.269 and 0.0002
    near = torch.tensor([0.9, 0.895, 0.1])
    # sigmoid(-0.5) = 0.378, so the slope is 0.235 / 1.378^2
    assert script.smooth_ap(near, relevant) == 1
    assert script.smooth_ap(scores, relevant) == 0


@count_contributing
def test_what_was_released_counts_nothing(script, tmp_path):
    """From caption to image: right columns have something to count, the released ones next to nothing."""
    images, captions = script.noisy_embeddings(4.0)
    scores = torch.nn.functional.normalize(captions) @ torch.nn.functional.normalize(images).T
    relevant = torch.arange(640)[:, None] // 5 == torch.arange(128)
    right = [script.smooth_ap(*row) for row in zip(scores, relevant, strict=True)]
    assert sum(count > 0 for count in right) > 150
    assert sum(count > 0 for count in script.released(scores)) <= 3
    done = CliRunner().invoke(script.main, ["--out", str(tmp_path / "table.md")], catch_exceptions=False)
    assert done.exit_code == 0
    assert (tmp_path / "table.md").read_text() in done.output
    rows = [line.strip("| ").split(" | ") for line in done.output.splitlines() if line.startswith("| noise ")]
    assert len(rows) == 4 * 3 * 2
    without = {(row[0], row[1], row[2]): [float(row[place]) for place in (6, 8, 10, 12)] for row in rows}
    assert without["noise 1", "smooth-ap", "t2i"][1] == 0  # by construction, where the threshold is of the query
    assert min(without["noise 1", "smooth-ap", "t2i"][place] for place in (0, 2, 3)) > 600
    assert len({*without["noise 2", "triplet-hard", "t2i"]}) == 1  # a hinge is active or not
