"""The command line, as a user meets it."""

import json
import re
import shutil
import signal
from functools import partial

import pytest
import torch
from click.testing import CliRunner

import sodeep
from sodeep import evaluation
from sodeep.cli.group import main

SHORT = ["--steps", "4", "--batch-size", "2", "--distribution", "normal=1", "--quiet"]
TINY = [*SHORT, "--lengths", "4", "160"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(main, [str(a) for a in args])

    return invoke


@pytest.fixture(autouse=True, scope="module")
def few_lists():
    """Training ends with figures that take longer than itself: here they are of four lists, not of 48."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "optimization_score", partial(evaluation.optimization_score, lists=4))
        yield


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    file = tmp_path_factory.mktemp("trained") / "set.safetensors"
    result = CliRunner().invoke(main, ["train-sorter", *TINY, "--out", str(file)])
    assert result.exit_code == 0, result.output
    return file


@pytest.fixture
def trained(run, tmp_path, trained_once):
    shutil.copy(trained_once, tmp_path)
    return trained_once.name


def fails(result, message):
    assert result.exit_code != 0
    assert "Traceback" not in result.output
    text = " ".join(result.output.split())
    assert message in text, text


def test_train_reports_its_results(run, tmp_path):
    result = run("train-sorter", *TINY, "--log-dir", "log")
    assert result.exit_code == 0, result.output
    assert re.search(r"Trained 4 steps in \d+ s: set.safetensors", result.output)
    assert re.search(r"validation +0\.\d{4}", result.output)
    assert "On the mixture of SoDeep 2019, n = 100: error 0." in result.output
    assert "Spearman reaches " in result.output
    assert sodeep.load_sorter(tmp_path / "set.safetensors").frozen
    assert list((tmp_path / "log").glob("events*"))


def test_options_reach_the_config(run, tmp_path):
    result = run(
        "train-sorter",
        *SHORT,
        "--sorter",
        "mlp",
        "--seq-len",
        6,
        "--sorter-config",
        "hidden=8",
        "--lr",
        "0.01",
        "--value-loss",
        "huber",
        "--gradient-weight",
        0,
        "--gradient-fraction",
        0.5,
        "--seed",
        7,
        "--out",
        "m.safetensors",
        "--max-time",
        "5m",
    )
    assert result.exit_code == 0, result.output
    config = sodeep.load_sorter(tmp_path / "m.safetensors").trained["config"]
    assert (config["sorter"], config["seq_len"], config["sorter_config"]) == ("mlp", 6, {"hidden": 8})
    assert (config["lr"], config["value_loss"], config["seed"], config["max_time"]) == (0.01, "huber", 7, 300.0)
    assert config["gradient_fraction"] == 0.5


def test_mixture_2019(run, tmp_path):
    args = [a for a in TINY if a not in ("--distribution", "normal=1")]
    assert run("train-sorter", *args, "--mixture", "2019").exit_code == 0
    assert sodeep.load_sorter(tmp_path / "set.safetensors").trained["config"]["distributions"] == sodeep.SODEEP2019


def test_recipe_2019(run, tmp_path):
    options = ["--sorter", "mlp", "--seq-len", 6, "--sorter-config", "hidden=8", "--steps", 4, "--top-weighted"]
    result = run("train-sorter", "--quiet", "--recipe", "2019", *options)
    assert result.exit_code == 0, result.output
    config = sodeep.load_sorter(tmp_path / "mlp.safetensors").trained["config"]
    small = {"seq_len": 6, "sorter_config": {"hidden": 8}, "steps": 4, "top_weighted": True}
    assert config == json.loads(json.dumps(sodeep.TrainConfig.sodeep2019("mlp", **small).to_dict()))


def test_progress_goes_to_stderr(run, trained, monkeypatch):
    from sodeep._core import progress

    monkeypatch.setattr(progress, "FIRST", 0.0)
    result = run("train-sorter", *[a for a in TINY if a != "--quiet"], "--overwrite")
    assert re.search(r"^training set: 25%, about \d+:\d\d left; step 1, loss ", result.stderr, re.MULTILINE)
    result = run("evaluate-sorter", trained, "--lengths", 5, "--lists", 4, "--no-baselines")
    assert re.search(r"^measuring: \d+%, about \d+:\d\d left$", result.stderr, re.MULTILINE)


def test_finished_sorter_is_kept(run, trained):
    fails(run("train-sorter", *TINY), "`out` set.safetensors exists. Choose another name, or replace it: --overwrite.")
    assert run("train-sorter", *TINY, "--overwrite").exit_code == 0


def test_interrupt_and_resume(run, tmp_path, monkeypatch):
    from sodeep import training

    advance = training.run.Run.advance

    def interrupted(self):
        if self.step == 2:
            signal.raise_signal(signal.SIGINT)
        advance(self)

    monkeypatch.setattr(training.run.Run, "advance", interrupted)
    result = run("train-sorter", *TINY)
    assert result.exit_code == 130
    assert "Stopped after step 3. Its state is in set.safetensors.run: go on with --resume." in result.output
    monkeypatch.setattr(training.run.Run, "advance", advance)
    fails(run("train-sorter", *TINY, "--lr", "0.5", "--resume"), "`config` must be that of the run to resume: lr was")
    fails(run("train-sorter", "--lr", "0.5", "--resume"), "and is 0.5. Leave it out to take the saved one.")
    assert run("train-sorter", "--resume", "--quiet", "--seed", 0).exit_code == 0
    resumed = (tmp_path / "set.safetensors").read_bytes()
    assert run("train-sorter", *TINY, "--overwrite").exit_code == 0
    assert (tmp_path / "set.safetensors").read_bytes() == resumed


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--distribution", "gaussian=1"], "`distribution` must be one of uniform, normal,"),
        (["--distribution", "normal=many"], "`distribution` must be NAME=WEIGHT with a weight of at least 0"),
        (["--sorter", "quick"], "'quick' is not one of 'cnn', 'lstm',"),
        (["--sorter-config", "hidden"], "'hidden' is not NAME=VALUE, for example hidden=64."),
        (["--sorter-config", "wings=2"], "`config of the set sorter` must be one of"),
        (["--max-time", "soon"], "'soon' is not a time. Write seconds, or 90s, 30m, 2h."),
        (["--mixture", "2019", "--distribution", "normal=1"], "Give either --mixture or --distribution, not both."),
        (["--steps", "0"], "`steps` must be a whole number of at least 1, got 0."),
        (
            ["--scores-file", "no.csv"],
            "`path` must be a file of scores (.npy or .csv), got 'no.csv': no such file.",
        ),
        (
            ["--sorter", "lstm", "--lengths", "5", "50"],
            "`lengths` must not be given for the lstm sorter, which has a fixed length of list, got (5, 50).",
        ),
        (
            ["--sorter", "lstm", "--lengths", *map(str, sodeep.training.config.LENGTHS)],
            "--lengths is not for one length of list, here 100.",
        ),
        (["--seq-len", "20", "--lengths", "5", "50"], "`lengths` must not be given beside `seq_len`,"),
        (["--sorter", "cnn", "--seq-len", "20"], "`seq_len` must be at least 37 for the cnn sorter,"),
        (["--sorter", "gru", "--compile"], "Set --gradient-weight 0, or leave --compile out."),
        (["--resume"], "`resume` needs the state of an unfinished run at set.safetensors.run: no such file."),
        (["--recipe", "2019", "--resume"], "--recipe is that of the unfinished run. Leave it out with --resume."),
        (["--recipe", "2019", "--sorter", "set"], "`sorter` must be one of cnn, lstm,"),
        (["--speed", "9"], "No such option"),
    ],
)
def test_mistakes_of_train(run, args, message):
    fails(run("train-sorter", "--quiet", *args), message)


def test_list_sorters(run):
    result = run("list-sorters")
    assert result.exit_code == 0
    names = [card.name for card in sodeep.list_sorters()]
    assert [line.split()[0] for line in result.output.splitlines()] == names or ["No"]
    cards = json.loads(run("list-sorters", "--json").output)
    assert [c["name"] for c in cards] == [c.name for c in sodeep.list_sorters()]


def test_evaluate_sorter(run, trained, tmp_path):
    result = run(
        "evaluate-sorter",
        trained,
        "--lengths",
        10,
        "--lengths",
        30,
        "--lists",
        4,
        "--json",
        "e.json",
        "--figure",
        "p.png",
        "--no-baselines",
    )
    assert result.exit_code == 0, result.output
    assert "n=10" in result.output
    figures = json.loads((tmp_path / "e.json").read_text())
    assert figures["results"][0]["errors"].keys() == {"10", "30"}
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_fixed_length(run):
    assert run("train-sorter", *SHORT, "--sorter", "mlp", "--seq-len", 6, "--sorter-config", "hidden=8").exit_code == 0
    result = run("evaluate-sorter", "mlp.safetensors", "--lengths", 7)
    fails(result, "7 is not the length 6 this mlp sorter was built for.")
    result = run("evaluate-sorter", "mlp.safetensors", "--lists", 4, "--no-baselines", "--json", "-")
    assert json.loads(result.stdout)["n"] == 6


def test_resume_with_another_time_limit(run, tmp_path, monkeypatch):
    from sodeep import training

    advance = training.run.Run.advance

    def interrupted(self):
        if self.step == 1:
            signal.raise_signal(signal.SIGINT)
        advance(self)

    monkeypatch.setattr(training.run.Run, "advance", interrupted)
    assert run("train-sorter", *TINY, "--steps", 10**6).exit_code == 130
    monkeypatch.setattr(training.run.Run, "advance", advance)
    monkeypatch.setattr(sodeep.evaluation, "seconds_for_key_figures", lambda *_: 5.0)
    result = run("train-sorter", "--resume", "--max-time", "0.001s", "--quiet")
    assert result.exit_code == 0, result.output
    assert "Trained 3 steps in " in result.output  # one after the resume
    assert "No time is left for more figures: sodeep evaluate-sorter set.safetensors" in result.output


def test_initial_weights_that_were_the_best_are_reported(run, monkeypatch):
    from sodeep import training

    monkeypatch.setattr(training.run.Run, "learning_rate", lambda run: 0.3)
    assert "No validation was better than that of the initial weights" in run("train-sorter", *TINY).output


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("command", [["train-sorter"], ["compare", "memorability"]])
def test_a_device_that_is_not_there_is_one_line(run, command):
    result = run(*command, "--device", "cuda")
    text = r"`device` must be one that PyTorch can compute on here, got 'cuda' \([^()]{,60}\)\. Use 'auto' or 'cpu'\."
    assert re.fullmatch(f"Error: {text}\n", result.stderr)


@pytest.mark.parametrize("given", ["width", "width=1", "width=a:b", "width=1:2:3"])
def test_a_range_that_is_none_is_one_line(run, given):
    fails(run("compare", "toy", "--range", given), f"must be SETTING=LOW:HIGH, such as width=0.05:8, got '{given}'.")
    fails(run("compare", "toy", "--range", "tau=1:2", "--loss", "bce"), "They have lr, weight_decay.")


def test_home_folder_in_every_path(run, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "own.csv").write_text("score\n0.1\n0.5\n0.2\n")
    own = ["--scores-file=~/own.csv", "--log-dir=~/log", "--out=~/s.safetensors"]
    assert run("train-sorter", *TINY, *own).exit_code == 0
    figures = ["--json=~/f.json", "--figure=~/p.png", "--lengths", 5, "--lists", 4, "--no-baselines"]
    assert run("evaluate-sorter", "~/s.safetensors", *figures).exit_code == 0
    assert run("export-sorter", "~/s.safetensors", "~/s.pt2").exit_code == 0
    fails(run("import-sorter", "~/s.safetensors", "~/s.safetensors"), f"`out` {home}/s.safetensors exists.")
    fails(run("compare", "memorability", "--data=~/none"), f"`data` {home}/none does not exist.")
    assert {path.name for path in home.iterdir()} == {"own.csv", "log", "s.safetensors", "f.json", "p.png", "s.pt2"}
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_evaluate_missing(run):
    fails(run("evaluate-sorter", "nothing.safetensors"), "nothing.safetensors")


def test_import_sorter_refuses_to_overwrite(run, trained):
    fails(run("import-sorter", "old.pth", trained), "`out` set.safetensors exists.")
    fails(run("import-sorter", "old.pth", "new.safetensors"), "old.pth")


def test_export_sorter(run, trained, tmp_path):
    result = run("export-sorter", trained, "s.pt2")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "s.pt2").stat().st_size > 0
    assert 'torch.export.load("s.pt2")' in result.output
    result = run("export-sorter", trained, "masked.pt2", "--mask")
    assert result.exit_code == 0, result.output
    assert 'torch.export.load("masked.pt2").module()(scores, mask), float32 (lists, n) and bool' in result.output
    ranks = torch.export.load("masked.pt2").module()(torch.zeros(1, 4), torch.tensor([[True, True, True, False]]))
    assert ranks.tolist() == [[2, 2, 2, 0]]
    fails(run("export-sorter", trained, "s.pb"), "`path` must end in .pt2, a torch.export program, or .onnx, got s.pb.")
    assert not (tmp_path / "s.pb").exists()
    fails(
        run("export-sorter", trained, "s.pt2"), "`out` s.pt2 exists. Choose another name, or replace it: --overwrite."
    )


def test_help_shows_the_default_lengths(run):
    text = " ".join(run("train-sorter", "--help").output.split())
    assert "[default: {} {}]".format(*sodeep.training.config.LENGTHS) in text


def test_version(run):
    assert run("--version").output.strip() == f"sodeep, version {sodeep.__version__}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--figure", "no/p.png"), "`--figure` must be in a folder that exists, got no/p.png. Make it first: no."),
        (("--figure", "p.foo"), "Invalid value for --figure: p.foo must end in one of ."),
        (("--json", "no/f.json"), "`--json` must be in a folder that exists, got no/f.json. Make it first: no."),
        (("--lengths", "0"), "Invalid value for '--lengths': 0 is not in the range x>=1."),
        (("--lists", "-4"), "Invalid value for '--lists': -4 is not in the range x>=1."),
        (("--seed", str(2**64)), "Invalid value for '--seed'"),
    ],
)
def test_mistakes_of_evaluate_are_found_before_measuring(run, tmp_path, monkeypatch, args, message):
    monkeypatch.setattr(evaluation, "evaluate", lambda *args, **kwargs: pytest.fail("measured"))
    sodeep.save_sorter(tmp_path / "s.safetensors", sodeep.build_sorter("gru-sum"))
    fails(run("evaluate-sorter", "s.safetensors", *args), message)


def test_evaluate_json_to_stdout_and_figure(run, tmp_path):
    sodeep.save_sorter(tmp_path / "m.safetensors", sodeep.build_sorter("mlp", 5, hidden=4))
    result = run("evaluate-sorter", "m.safetensors", "--no-baselines", "--lists", 4, "--json", "-", "--figure", "p.png")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n"] == 5
    assert (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    "args",
    [("--batch-size", 10**13), ("--sorter-config", f"condition={10**13}"), ("--sorter", "mlp", "--seq-len", 10**10)],
)
def test_more_than_there_is_memory_for_is_no_traceback(run, args):
    fails(run("train-sorter", *SHORT, *args), "There is not enough memory for this: ")


def test_scores_file_that_is_no_array(run, tmp_path):
    (tmp_path / "empty.npy").write_bytes(b"")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 1000), }".ljust(117) + b"\n"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    for name, text in (
        ("empty.npy", "it is no npy array, or a damaged one ("),
        ("huge.npy", "it is truncated or damaged (0 bytes for an array of shape (100000000000, 1000) and type float32"),
    ):
        fails(run("train-sorter", *TINY, "--scores-file", name), f"{name}: {text}")
