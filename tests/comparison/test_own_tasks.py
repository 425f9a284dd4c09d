"""Tasks of the user's own: by name, as a class, and made with data; resumed, reported, sent, and refused."""

import json
import math
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import sodeep
from sodeep._core.by_name import code_of
from sodeep._core.search import Range
from sodeep.cli import main
from sodeep.comparison import compare, read_comparison, read_runs, summarise
from sodeep.report.text import text_table
from sodeep.report.write import draw_figures, write_report
from sodeep.tasks import TASKS, Memorability, Task, TaskMetrics, Toy, own_task
from sodeep.tasks.own_task import OwnTask, as_sent, fingerprint, task_class

X = np.random.default_rng(0).normal(size=(80, 3))
DATA = {"name": "sums", "x": X, "y": X.sum(1)}
TINY = {"seeds": 2, "trials": 2, "max_steps": 8, "validate_every": 4, "batch_size": 12}


class Sums(Task):
    """All that a task must say. Of its metrics the second one, which may rise, is what settings are chosen by."""

    metrics = {"MAE": False, "Spearman": True}  # noqa: RUF012

    def model(self):
        return nn.Linear(3, 1)

    def forward(self, model, batch):
        assert model.training
        scores = model(self.x[batch]).squeeze(1)
        return {"target": lambda loss: loss(scores, self.y[batch])}

    def evaluate(self, model, split):
        assert not model.training
        assert not torch.is_grad_enabled()
        where = self.index[split]
        scores = model(self.x[where]).squeeze(1)
        return {"MAE": (scores - self.y[where]).abs().mean(), "Spearman": sodeep.spearman_corr(scores, self.y[where])}


class Slow(Sums):
    """With an argument of its own, arrays for figures, and other ranges."""

    ranges = {"lr": (1e-4, 1e-2), "weight_decay": Range(1e-4, 1, 1e-2)}  # noqa: RUF012

    def __init__(self, data, seed=0, *, slope=1, **options):
        super().__init__(data, seed, **options)
        self.y *= slope

    def evaluate(self, model, split, details=False):
        return TaskMetrics(super().evaluate(model, split), {"slopes": np.ones(3)} if details else {})


def plain(runs):
    return [{**json.loads(run.to_json()), "seconds": None, "seconds_per_step": None} for run in runs]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("own")
    return out, compare(Sums(DATA), ["mse", "l1"], out=out, **TINY)


def test_a_task_with_its_data(finished):
    out, runs = finished
    assert [(run.loss, run.seed, run.stage, run.status) for run in runs] == [
        (loss, seed, stage, "ok")
        for seed, stages in ((0, ["tuning", "tuning", "test"]), (1, ["tuning", "test"]))
        for loss in ("mse", "l1")
        for stage in stages
    ]
    assert {(run.task, run.data, *run.lower) for run in runs} == {(f"{__name__}:Sums", "sums", "MAE")}
    assert all(list(run.metrics) == ["Spearman", "MAE"] for run in runs)
    assert {tuple(run.split[name] for name in ("train", "val", "test")) for run in runs} == {(48, 16, 16)}
    assert len({run.split["items"] for run in runs}) == 2  # each seed draws its split
    assert read_runs(out) != []
    summary = summarise(runs)
    assert (summary.metrics, summary.baseline) == ({"Spearman": True, "MAE": False}, "mse")


def test_it_is_reported_without_its_code(finished, tmp_path):
    pytest.importorskip("matplotlib")
    out = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    for file in (out / "runs.jsonl", out / "comparison.json"):
        file.write_text(file.read_text().replace(__name__, "gone_module"))
    comparison = read_comparison(out)
    assert text_table(comparison.summary).startswith("gone_module:Sums on sums: mean ± sd of 2 seeds, * = best mean")
    files = write_report(comparison, *draw_figures(comparison))
    assert "Spearman ↑ | MAE ↓" in files["markdown"].read_text()


def test_it_goes_on(finished, tmp_path, monkeypatch):
    out = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    before = (out / "runs.jsonl").read_bytes()
    assert plain(compare(Sums(DATA), ["mse", "l1"], out=out, **TINY)) == plain(finished[1])
    assert (out / "runs.jsonl").read_bytes() == before
    assert len(compare(Sums(DATA), ["mse", "l1"], out=out, **{**TINY, "seeds": 3})) == 14
    with pytest.raises(ValueError, match=r"holds a comparison on other data under the name 'sums'\. Choose"):
        compare(Sums({**DATA, "y": -DATA["y"]}), ["mse"], out=out, **TINY)
    monkeypatch.setattr("sodeep.tasks.own_task.code_of", lambda _: "changed")
    with pytest.raises(ValueError, match=f"holds runs of {__name__}:Sums with other code under that name. Choose"):
        compare(Sums(DATA), ["mse"], out=out, **TINY)


def test_other_processes_do_the_same(finished, tmp_path):
    again = compare(Sums(DATA), ["mse"], out=tmp_path, jobs=2, **TINY)
    alone = [run for run in finished[1] if run.loss == "mse"]
    assert [(run.seed, run.settings) for run in again] == [(run.seed, run.settings) for run in alone]
    for ours, theirs in zip(again, alone, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)


def test_what_it_was_made_with_is_kept_for_every_seed(tmp_path):
    made = Slow(DATA, slope=3, batch_size=8, metric="Spearman")
    runs = compare(made, ["mse"], out=tmp_path, seeds=2, trials=2, max_steps=4, search_seeds=None)
    assert [list(run.settings) for run in runs] == [["lr", "weight_decay"]] * 6
    assert runs[0].settings == {"lr": 0.001, "weight_decay": 0.01}
    assert json.loads((tmp_path / "comparison.json").read_text())["batch_size"] == 8
    with np.load(tmp_path / runs[-1].details) as arrays:
        assert arrays["slopes"].tolist() == [1, 1, 1]
    other = as_sent(made).load(None, 4, batch_size=5)
    torch.testing.assert_close(other.y, made.y)
    assert (other.seed, other.batch_size, made.batch_size) == (4, 5, 8)
    assert not torch.equal(other.index["test"], made.index["test"])
    assert fingerprint(made) != fingerprint(Slow(DATA, slope=2)) != fingerprint(Slow(DATA))


def test_it_is_sent_once_and_read_when_it_is_needed():
    sent = as_sent(Sums(DATA, batch_size=9))
    here, again = pickle.loads(pickle.dumps(sent)), pickle.loads(pickle.dumps(sent))
    assert here == again
    assert hash(here) == hash(again)
    assert here != pickle.loads(pickle.dumps(as_sent(Sums({**DATA, "y": X[:, 0]}))))
    torch.testing.assert_close(here.load(None, 1).index, sent.load(None, 1).index, rtol=0, atol=0)
    assert as_sent(Toy) == "toy"
    gone = pickle.loads(pickle.dumps(sent).replace(__name__.encode(), b"x" * len(__name__)))
    message = f"`task` must be one that every process can import, got {'x' * len(__name__)}:Sums (No module named '"
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        gone.load(None, 0)


def test_one_of_this_package_with_its_data(tmp_path):
    data = Memorability.generated(0)
    runs = compare(Memorability(data), ["mse"], out=tmp_path, seeds=2, trials=1, max_steps=4)
    assert {(run.task, run.split["data"]) for run in runs} == {("memorability", runs[0].split["data"])}
    assert "lower" not in (tmp_path / "runs.jsonl").read_text()


def test_arrays_become_attributes():
    rows = {"texts": [*"abcdef"], "count": np.arange(6), "half": np.arange(6) / 2, "flag": torch.ones(6).bool()}
    task = Sums({**rows, "codes": np.array([*"uvwxyz"]), "split": ["train", "train", "val", "val", "test", "test"]})
    assert (task.data_name, task.texts.tolist(), task.codes.tolist()) == ("6 items", [*"abcdef"], [*"uvwxyz"])
    assert [getattr(task, name).dtype for name in ("count", "half", "flag")] == [
        torch.int64,
        torch.float32,
        torch.bool,
    ]
    assert not hasattr(task, "split")
    assert {name: items.tolist() for name, items in task.index.items()} == {
        "train": [0, 1],
        "val": [2, 3],
        "test": [4, 5],
    }
    task.to(torch.device("meta"))
    assert {getattr(task, name).device.type for name in ("count", "half", "flag")} == {"meta"}


def test_groups_are_in_one_split():
    group = np.repeat(np.arange(20), 4)
    task = Sums({**DATA, "group": group})
    parts = [{*group[items].tolist()} for items in task.index.values()]
    assert sorted(map(len, parts)) == [4, 4, 12]
    assert not parts[0] & parts[1] | parts[1] & parts[2] | parts[0] & parts[2]
    half = Sums({**DATA, "group": group}, train_fraction=0.5)
    assert len({*group[half.index["train"]].tolist()}) == 6
    split = np.where(group < 15, "train", "test")
    assert len({*group[Sums({**DATA, "group": group, "split": split}).index["val"]].tolist()}) == 2
    split[0] = "test"
    with pytest.raises(ValueError, match=r"^`group` must be in one split, got 0 in 'test' and 'train'\."):
        Sums({**DATA, "group": group, "split": split})


MODULE = """
import numpy as np, torch, sodeep
from sodeep.tasks import Task

WIDTH = 3

def net():
    return torch.nn.Linear(WIDTH, 1)

class Mine(Task):
    metrics = {"Spearman": True}
    losses = ("l1", "mse")

    @staticmethod
    def generated(seed):
        x = np.random.default_rng(seed).normal(size=(60, WIDTH))
        return {"x": x, "y": x[:, :3].sum(1)}

    def model(self):
        return net()

    def forward(self, model, batch):
        scores = model(self.x[batch]).squeeze(1)
        return {"target": lambda loss: loss(scores, self.y[batch])}

    def evaluate(self, model, split):
        where = self.index[split]
        return {"Spearman": sodeep.spearman_corr(model(self.x[where]).squeeze(1), self.y[where])}

class Lacking(Task):
    metrics = {"Spearman": True}
    model = forward = None

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_module.py").write_text(MODULE)
    yield "own_module"
    sys.modules.pop("own_module", None)


def run(*arguments):
    given = ["--seeds", 1, "--trials", 1, "--max-steps", 4, "--batch-size", 12, "--jobs", 1, "--quiet"]
    return CliRunner().invoke(main, ["compare", *map(str, [*arguments, *given])])


def test_the_command_takes_it_by_name(module, tmp_path):
    result = run(f"{module}:Mine")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("own_module:Mine on 60 items: mean ± sd of 1 seed")
    assert [run.loss for run in read_runs("runs/own_module-Mine")] == ["l1", "l1", "mse", "mse"]
    assert "Baseline: l1." in (tmp_path / "runs/own_module-Mine/report.md").read_text()
    np.savez("my.npz", x=X, y=X[:, 0], split=np.repeat(["train", "test"], 40))
    result = run(f"{module}:Mine", "--data", "my.npz", "--loss", "mse", "--out", "out")
    assert result.exit_code == 0, result.output
    (test,) = (run for run in read_runs("out") if run.stage == "test")
    assert (test.data, test.split["test"]) == ("my", 40)
    again = run(f"{module}:Mine", "--data", "my.npz", "--loss", "mse", "--out", "out")
    assert again.stdout == result.stdout


@pytest.mark.parametrize("change", ["WIDTH = 3 -> WIDTH = 4", "(WIDTH, 1) -> (WIDTH, 1, bias=False)", "l1 -> huber"])
def test_changed_code_is_refused(module, change):
    """Of the class, and of what it uses in its module."""
    assert run(f"{module}:Mine", "--loss", "mse").exit_code == 0
    before, after = change.split(" -> ")
    Path("own_module.py").write_text(MODULE.replace(before, after))
    sys.modules.pop(module)
    result = run(f"{module}:Mine", "--loss", "mse")
    assert result.exit_code == 1
    assert "holds runs of own_module:Mine with other code under that name." in result.stderr


def test_code_that_it_does_not_use_may_change(module):
    import own_module

    before = code_of(own_module.Mine)
    assert "WIDTH" in before
    assert "bias" not in before
    Path("own_module.py").write_text(MODULE.replace("number = 3", "number = 4"))
    del sys.modules[module]
    import own_module as changed

    assert code_of(changed.Mine) == before


def test_data_that_it_draws_are_refused_if_they_change(module, monkeypatch):
    assert run(f"{module}:Mine", "--loss", "mse").exit_code == 0
    import own_module

    monkeypatch.setattr(own_module.Mine, "generated", staticmethod(lambda seed: {"x": X[:60], "y": X[:60, 0]}))
    result = run(f"{module}:Mine", "--loss", "mse")
    assert result.exit_code == 1
    assert "holds a comparison on other data than the task gives now, seed 0." in result.stderr


class NoMetric(Sums):
    metrics = {}  # noqa: RUF012


class NothingRises(Sums):
    metrics = {"MAE": False}  # noqa: RUF012


class Typo(Sums):
    primary_metric = "Spearmann"


class Clash(Sums):
    name = "retrieval"


class Named(Sums):
    name = "sums"


class Incomplete(Task):
    metrics = {"Spearman": True}  # noqa: RUF012


class OtherCall(Sums):
    accepts = ("relevant",)


class Positional(Sums):
    def __init__(self, data, seed, slope):
        super().__init__(data, seed)


def local():
    class Local(Sums):
        pass

    return Local(DATA)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (
            ValueError,
            lambda: NoMetric(DATA),
            f"`metrics` of {__name__}:NoMetric must name at least one metric of which",
        ),
        (
            ValueError,
            lambda: NothingRises,
            f"`metrics` of {__name__}:NothingRises must name at least one metric of which",
        ),
        (
            ValueError,
            lambda: Typo,
            f"`primary_metric` of {__name__}:Typo must be one of metrics of which higher is better",
        ),
        (
            ValueError,
            lambda: Clash,
            "`name` of a task of your own must be left out, got 'retrieval', which is that of a task of this package.",
        ),
        (
            ValueError,
            lambda: Named,
            "`name` of a task of your own must be left out, got 'sums', which no report can read.",
        ),
        (TypeError, lambda: Incomplete, f"{__name__}:Incomplete must define evaluate, forward, model to be a task."),
        (
            TypeError,
            lambda: 3,
            "`task` must be a name, or a subclass of sodeep.tasks.Task or a task made of one, got 3.",
        ),
        (
            TypeError,
            lambda: dict,
            "`task` must be a name, or a subclass of sodeep.tasks.Task or a task made of one, got",
        ),
        (
            TypeError,
            lambda: "math:sqrt",
            "`task` must be a name, or a subclass of sodeep.tasks.Task or a task made of one",
        ),
        (ValueError, lambda: "no_such_module_here:Mine", "`task` must name a module that is installed or in "),
        (ValueError, lambda: "math:Mine", "`task` must name something in math, got math:Mine, not there."),
        (ValueError, lambda: ":Mine", "`task` must be one of retrieval, cross-modal, "),
        (ValueError, lambda: Sums, f"`data` must be given for the {__name__}:Sums task, which has none of its own."),
        (TypeError, lambda: Sums(3), "`data` must be arrays by name, or a dataclass with a name, got 3."),
        (
            ValueError,
            lambda: Sums({"x": X, "y": X[:3, 0]}),
            "`data` must hold arrays with a row for each item, as many in all of them, got 80 of x, 3 of y.",
        ),
        (
            ValueError,
            lambda: Sums({"name": "none"}),
            "`data` must hold arrays with a row for each item, as many in all",
        ),
        (
            ValueError,
            lambda: Sums({**DATA, "index": X}),
            "`data` must give arrays names that are free for attributes of the task, got 'index'. Rename it.",
        ),
        (
            TypeError,
            lambda: Sums({**DATA, "z": [{}] * 80}),
            "`data` must hold arrays of numbers, or texts, got [{}, {}, ",
        ),
        (
            ValueError,
            lambda: Sums({**DATA, "x": np.where(np.arange(240).reshape(80, 3) == 7, np.nan, X)}),
            "`data` must hold finite numbers, got nan in 'x', row 2, column 1: 1 of 240 values are NaN, infinite or "
            "beyond float32. Fill them in, or leave those rows out; or name the array in may_be_nan of the class, if "
            "it allows for them.",
        ),
        (
            ValueError,
            lambda: Sums({**DATA, "y": torch.arange(80).double().exp().mul(1e10).tolist()}),
            "`data` must hold finite numbers, got ",
        ),
        (
            ValueError,
            lambda: Sums({**DATA, "y": [math.inf, *range(79)]}),
            "`data` must hold finite numbers, got inf in 'y', row 0: 1 of 80 values",
        ),
        (
            ValueError,
            lambda: Sums({**DATA, "split": ["test"] * 70 + ["val"] * 10}),
            "`split` must have two items or more in 'train', got 0 of 80.",
        ),
        (
            ValueError,
            lambda: OtherCall(DATA),
            f"`loss` must fit the {__name__}:OtherCall task, got 'mse', a loss with another call signature.",
        ),
        (
            TypeError,
            lambda: Positional(DATA, 0, 3),
            "`task` must be made with data and seed, and all else by name, as ",
        ),
    ],
)
def test_mistakes_end_before_anything_is_made(error, make, message, tmp_path):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        compare(make(), ["mse"], out=tmp_path / "out", **TINY)
    assert not (tmp_path / "out").exists()


class SomeUnknown(Sums):
    may_be_nan = ("y",)

    def batches(self, epoch):
        return iter([batch[self.y[batch].isfinite().numpy()] for batch in super().batches(epoch)])

    def evaluate(self, model, split):
        known = self.index[split][self.y[self.index[split]].isfinite()]
        return {"Spearman": sodeep.spearman_corr(model(self.x[known]).squeeze(1), self.y[known])}


def test_arrays_that_may_hold_nan(tmp_path):
    y = DATA["y"].copy()
    y[::5] = np.nan
    runs = compare(SomeUnknown({**DATA, "y": y}), ["mse"], out=tmp_path, **TINY)
    assert {run.status for run in runs} == {"ok"}
    with pytest.raises(ValueError, match=r"^`data` must hold finite numbers, got nan in 'x', row 0, column 0: "):
        SomeUnknown({"x": np.full((80, 3), np.nan), "y": y})


def test_what_no_other_process_can_import_stays_in_this_one(tmp_path):
    name = f"{__name__}:local.<locals>.Local"
    message = f"`task` must be one that other processes can import, got {name} ("
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        compare(local(), ["mse"], out=tmp_path / "out", jobs=2, **TINY)
    runs = compare(local(), ["mse"], out=tmp_path / "out", jobs=1, **{**TINY, "seeds": 1})
    assert {(run.task, run.status) for run in runs} == {(name, "ok")}


def test_ranges_are_those_of_the_optimiser():
    message = (
        f"`ranges` of {__name__}:test_ranges_are_those_of_the_optimiser.<locals>.Wrong must be lr and weight_decay as "
        "name: (low, high), got (0, 1) for margin. Settings of the optimiser are lr and weight_decay; losses declare "
    )
    with pytest.raises(ValueError, match="^" + re.escape(message)):

        class Wrong(Sums):
            ranges = {"margin": (0, 1)}  # noqa: RUF012


class Wrong(Sums):
    """Gives what it is told to."""

    gives = None

    def evaluate(self, model, split):
        return self.gives


@pytest.mark.parametrize(
    ("gives", "reason"),
    [
        (
            {"Spearman": math.inf},
            f"ValueError: `evaluate` of {__name__}:Wrong must give finite numbers, or NaN where a metric is undefined",
        ),
        ({"Spearman": math.nan}, "Spearman is not a number (NaN) in any validation"),
        (0.5, f"TypeError: `evaluate` of {__name__}:Wrong must give a dict of metrics, got 0.5."),
        (
            {"MAE": 1.0},
            f"ValueError: `evaluate` of {__name__}:Wrong must give Spearman and no metric but MAE, Spearman, got ",
        ),
        (
            {"Spearman": 1.0, "R2": 1.0},
            f"ValueError: `evaluate` of {__name__}:Wrong must give Spearman and no metric but ",
        ),
        (
            {"Spearman": "high"},
            f"TypeError: `evaluate` of {__name__}:Wrong must give numbers, got 'high' for Spearman.",
        ),
    ],
)
def test_what_evaluate_gives_is_checked(gives, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(Wrong, "gives", gives)
    runs = compare(Wrong(DATA), ["mse"], out=tmp_path, **{**TINY, "seeds": 1, "trials": 1})
    assert [(run.stage, run.status) for run in runs] == [("tuning", "failed"), ("test", "failed")]
    assert runs[0].failure["reason"].startswith(reason)


class Sometimes(Sums):
    """Undefined on the test split of a seed, as one metric always is. "$" is no mathematics."""

    metrics = {"R": True, "extra ($\\euro$)": True}  # noqa: RUF012

    def evaluate(self, model, split):
        value = 0.5 if split != "test" else NOW[self.seed]
        return {"R": value, "extra ($\\euro$)": math.nan}


NOW = [0.7, math.nan, 0.8]


def test_a_metric_that_is_nan_for_a_seed_leaves_the_others(tmp_path):
    pytest.importorskip("matplotlib")
    compare(Sometimes(DATA), ["mse", "l1"], out=tmp_path, **{**TINY, "seeds": 3, "trials": 1})
    found = read_comparison(tmp_path)
    assert found.summary.cells["mse", "R"].n == 2
    assert ("mse", "extra ($\\euro$)") not in found.summary.cells
    figures, _ = draw_figures(found)
    text = write_report(found, figures)["markdown"].read_text(encoding="utf-8")
    assert "0.750 ± 0.071" in text


def helper():
    return 1


class Plain:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        (helper, helper, len),
        (Plain(1), Plain(1), Plain(2)),
        ({"a", "b"}, {"b", "a"}, {"a", "c"}),
        ([np.zeros(3000)], [np.zeros(3000)], [np.eye(1, 3000)[0]]),
        ({"x": torch.zeros(3000)}, {"x": torch.zeros(3000)}, {"x": torch.eye(1, 3000)[0]}),
        (1, 1, 1.0),
    ],
)
def test_options_are_told_apart_by_what_they_are(first, same, other):
    assert own_task._told_apart(first) == own_task._told_apart(same) != own_task._told_apart(other)


def test_a_signature_that_forward_lacks_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(Sums, "forward", lambda *_: {"relevant": None})
    runs = compare(Sums(DATA), ["mse"], out=tmp_path, **{**TINY, "seeds": 1, "trials": 1})
    reason = f"ValueError: `forward` of {__name__}:Sums must give 'target', got relevant."
    assert runs[0].failure == {"step": 1, "reason": reason, "values": {}}


def test_tasks_of_this_package_are_what_they_were():
    assert all(task_class(name) is TASKS[name] and TASKS[name].name == name for name in TASKS)
    assert all(fingerprint(name) is fingerprint(TASKS[name]) is None for name in TASKS)
    assert not any(isinstance(as_sent(TASKS[name]), OwnTask) for name in TASKS)


def test_a_task_that_is_misspelt_is_recognised(tmp_path):
    with pytest.raises(
        ValueError, match=r"^`task` must be one of .*, or my_module:MyTask, got 'rankin'\. Is it 'ranking'\?$"
    ):
        compare("rankin", out=tmp_path)


class Column(Sums):
    """A step forgets to take the second axis away."""

    def forward(self, model, batch):
        scores = model(self.x[batch])
        return {"target": lambda loss: loss(scores, self.y[batch])}


class Bare(Sums):
    """A step gives a tensor."""

    def forward(self, model, batch):
        return model(self.x[batch])


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Column, "ValueError: `scores` must have the shape of the target, (12,), got (12, 1)."),
        (
            Bare,
            f"TypeError: `forward` of {__name__}:Bare must give a dict, call signature -> function of a loss, got a",
        ),
    ],
)
def test_a_step_of_another_form_fails_with_its_reason(task, reason, tmp_path):
    runs = compare(task(DATA), ["mse"], out=tmp_path, **{**TINY, "seeds": 1, "trials": 1})
    assert runs[0].failure["reason"].startswith(reason)


def test_a_choice_has_no_range(tmp_path):
    with pytest.raises(ValueError, match=r"^`ranges` must name settings that have a range, got 'form', a choice of ap"):
        compare("toy", ["map:laplace"], out=tmp_path, ranges={"form": (0, 1)}, seeds=1)
