"""Which trainings a comparison does: searched seeds, schedules of losses, methods without steps, sums and ranges."""

import json
import linecache
import re
import sys
import types

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import Ridge

from sodeep.comparison import compare
from sodeep.comparison.losses_by_name import loss_by_name
from sodeep.comparison.runs import read_runs
from sodeep.tasks import TASKS
from sodeep.tasks.encoders import encode

TINY = {"seeds": 3, "trials": 3, "max_steps": 12}


def of(runs, loss, stage="tuning"):
    return [run for run in runs if (run.loss, run.stage) == (loss, stage)]


# ---- search seeds ----------------------------------------------------------------------------------------------------


def test_the_first_seeds_choose_for_all(tmp_path):
    runs = compare("memorability", ["mse"], out=tmp_path, search_seeds=2, **TINY)
    tunings = of(runs, "mse")
    assert [run.seed for run in tunings] == [0, 0, 0, 1, 1, 1, 2]
    means = {
        json.dumps(run.settings): run.metrics["Spearman"] + other.metrics["Spearman"]
        for run, other in zip(tunings[:3], tunings[3:6], strict=True)
    }
    best = json.loads(max(means, key=means.get))
    assert [run.settings for run in of(runs, "mse", "test")] == [best] * 3
    assert tunings[6].settings == best


def test_more_trials_are_gone_on_with(tmp_path):
    few = compare("memorability", ["mse"], out=tmp_path, search_seeds=1, **TINY)
    seen = []
    more = {**TINY, "trials": 5}
    runs = compare(
        "memorability", ["mse"], out=tmp_path, search_seeds=1, on_run=lambda run, *_: seen.append(run), **more
    )
    searched = [run for run in seen if run.stage == "tuning" and run.seed == 0]
    assert len(searched) == 2  # those of before are kept
    assert of(runs, "mse")[:3] == of(few, "mse")[:3]
    chosen = max(of(runs, "mse")[:5], key=lambda run: run.metrics["Spearman"]).settings
    assert {json.dumps(run.settings) for run in of(runs, "mse", "test")} == {json.dumps(chosen)}


def test_more_search_seeds_than_seeds(tmp_path):
    with pytest.raises(ValueError, match=r"^`search_seeds` must be at most the number of seeds, 3, got 4\.$"):
        compare("memorability", ["mse"], out=tmp_path, search_seeds=4, **TINY)


def test_a_range_of_ones_own_is_searched(tmp_path):
    options = {**TINY, "seeds": 1, "ranges": {"lr": (0.1, 0.2)}}
    runs = compare("memorability", ["mse", "spearman:laplace"], out=tmp_path, **options)
    rates = [run.settings["lr"] for run in of(runs, "mse")]
    assert rates == [run.settings["lr"] for run in of(runs, "spearman:laplace")]
    assert all(0.1 <= rate <= 0.2 for rate in rates)
    assert of(runs, "mse")[0].edges["lr"] == "low"  # the declared default, moved to the nearer end
    expected = r"holds a comparison that searches lr=0\.1:0\.2, not that searches the ranges as declared\."
    with pytest.raises(ValueError, match=expected):
        compare("memorability", ["mse"], out=tmp_path, **TINY)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ({"width": (0.1, 1)}, r"must name settings of these losses, got 'width'\. They have lr, weight_decay\."),
        (
            {"lr": (0.1, 0.01)},
            r"must be name: \(low, high\), got \(0\.1, 0\.01\) for lr\. A range must go from a lower",
        ),
        ({"lr": 0.1}, r"must be name: \(low, high\), got 0\.1 for lr\."),
    ],
)
def test_ranges_that_cannot_be_searched(tmp_path, ranges, expected):
    with pytest.raises(ValueError, match="^`ranges` " + expected):
        compare("memorability", ["mse"], out=tmp_path, ranges=ranges, **TINY)
    assert not (tmp_path / "runs.jsonl").exists()


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_a_schedule_starts_from_the_chosen_encoder(tmp_path):
    runs = compare("memorability", ["mse,pearson"], out=tmp_path, **TINY)
    assert {run.loss for run in runs} == {"mse", "mse,pearson"}  # the first stage is compared too
    for seed in range(3):
        first = next(run for run in of(runs, "mse", "test") if run.seed == seed)
        at_best = dict(first.curves["val/Spearman"])[first.best_step]
        for run in of(runs, "mse,pearson"):
            if run.seed == seed:
                assert run.start == first.settings
                assert run.curves["val/Spearman"][0] == (0, at_best)
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_schedule_added_later_trains_its_first_encoder_again(tmp_path):
    before = compare("memorability", ["mse"], out=tmp_path, **TINY)
    seen = []
    runs = compare("memorability", ["mse,mse"], out=tmp_path, on_run=lambda run, *_: seen.append(run), **TINY)
    assert sum(run.loss == "mse" for run in seen) == 3  # one training a seed
    assert [run.metrics for run in of(runs, "mse", "test")] == [run.metrics for run in of(before, "mse", "test")]
    assert len(of(runs, "mse,mse", "test")) == 3


def test_another_choice_of_the_first_stage_repeats_the_second(tmp_path):
    some = {"seeds": 1, "trials": 2, "max_steps": 12}
    compare("memorability", ["mse,pearson"], out=tmp_path, **some)
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    for line in lines:
        if line["loss"] == "mse" and line["stage"] == "tuning":  # the other of the two settings is the best by now
            line["metrics"]["Spearman"] = 1 - line["metrics"]["Spearman"]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = compare("memorability", ["mse,pearson"], out=tmp_path, **some)
    (chosen,) = of(runs, "mse", "test")
    assert {json.dumps(run.start) for run in of(runs, "mse,pearson")} == {json.dumps(chosen.settings)}
    (tested,) = of(runs, "mse,pearson", "test")
    assert tested.start == chosen.settings


def test_a_schedule_fails_with_its_first_stage(tmp_path, monkeypatch):
    module = types.ModuleType("losses_of_schedules")

    def broken(scores, target):
        raise ArithmeticError("no")

    module.broken = broken
    monkeypatch.setitem(sys.modules, "losses_of_schedules", module)
    names = ["mse", "losses_of_schedules:broken,mse"]
    runs = compare("memorability", names, out=tmp_path, seeds=1, trials=1, max_steps=12)
    failed = [run for run in runs if run.stage == "test" and run.status == "failed"]
    assert [run.loss for run in failed] == ["losses_of_schedules:broken", "losses_of_schedules:broken,mse"]
    assert [run.failure["reason"] for run in failed] == ["ArithmeticError: no"] * 2
    assert len(read_runs(tmp_path)) == len(runs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mse,ridge", "`loss` must be a schedule of losses, got 'mse,ridge'. ridge takes no steps."),
        ("mse+ridge", "`loss` must be a sum of losses, got 'mse+ridge'. ridge takes no steps."),
    ],
)
def test_methods_are_no_parts(name, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared whole
        loss_by_name(name)
    assert str(caught.value) == message


# ---- methods without steps, and baselines ----------------------------------------------------------------------------


def test_ridge_is_that_of_scikit_learn():
    task = TASKS["memorability"].load(seed=0)
    net = task.fit("ridge", penalty=30.0)
    train, test = task.index["train"], task.index["test"]
    x = task.features.double()
    x = ((x - x[train].mean(0)) / x[train].std(0, correction=0)).numpy()
    scale, middle = task.unit
    y = ((task.target - middle) / scale).double().numpy()
    expected = Ridge(alpha=30.0).fit(x[train], y[train]).predict(x[test])
    np.testing.assert_allclose(encode(net, task.features, test).squeeze(1), expected, rtol=1e-3, atol=1e-4)


def test_ranks_and_normal_scores_are_those_of_scipy():
    task = TASKS["memorability"].load(seed=0)
    train = task.index["train"]
    ranks = scipy.stats.rankdata(task.target[train].numpy())
    scores = scipy.stats.norm.ppf(ranks / (len(train) + 1))
    for values, expected in ((task.ranks, ranks), (task.normal_scores, scores)):
        np.testing.assert_allclose(values[train], scipy.stats.zscore(expected, ddof=1), rtol=1e-4, atol=1e-5)
        others = torch.ones(len(values), dtype=torch.bool).index_fill(0, train, False)
        assert bool(values[others].isnan().all())  # no loss may see them


def test_raw_inputs_are_compared_by_cosine():
    task = TASKS["retrieval"].load(seed=0)
    images = task.items[:3]
    expected = (255 - images.double()) / 255
    torch.testing.assert_close(task.fit("raw")(images).double(), expected.flatten(1), rtol=1e-5, atol=1e-6)


def test_pearson_is_that_of_scipy():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 20, generator=generator, dtype=torch.float64)
    ((_, _, loss),) = loss_by_name("pearson").terms({"lr": 0.1}, "target")
    expected = 1 - scipy.stats.pearsonr(x, y).statistic
    torch.testing.assert_close(loss(x, y), torch.tensor(expected, dtype=torch.float64))
    assert loss(torch.ones(20), y).item() == 1


# ---- settings --------------------------------------------------------------------------------------------------------


def test_parts_of_a_sum_have_settings_of_their_own():
    spec = loss_by_name("triplet+recall:laplace")
    assert list(spec.ranges) == ["weight", "margin 1", "margin 2", "width"]  # both have a margin
    settings = {"lr": 0.1, "weight": 0.5, "margin 1": 0.3, "margin 2": 0.4, "width": 1.0}
    (first, _, triplet), (second, _, recall) = spec.terms(settings, "relevant")
    assert (first, triplet.margin, second, recall.margin) == (1.0, 0.3, 0.5, 0.4)
    assert "with_width(laplace_rank, 1)" in repr(recall)


def test_a_loss_of_ones_own_declares_ranges(tmp_path, monkeypatch):
    module = types.ModuleType("ranges_of_a_test")

    class Mine(torch.nn.Module):
        ranges = {"power": (1.0, 3.0), "form": ["mean", "sum"]}  # noqa: RUF012

        def __init__(self, power, form):
            super().__init__()
            self.power, self.form = power, form

        def forward(self, scores, target):
            return getattr((scores - target).abs() ** self.power, self.form)()

    module.Mine = Mine
    module.Empty = type("Empty", (Mine,), {"ranges": {"power": (2.0, 2.0)}})
    for name, value in (("Odd", 3), ("Text", "0.1"), ("Three", (1.0, 2.0, 3.0))):
        setattr(module, name, type(name, (Mine,), {"ranges": {"power": value}}))
    monkeypatch.setitem(sys.modules, "ranges_of_a_test", module)
    runs = compare("memorability", ["ranges_of_a_test:Mine"], out=tmp_path, seeds=1, trials=4, max_steps=12)
    tried = [run.settings for run in of(runs, "ranges_of_a_test:Mine")]
    assert {settings["form"] for settings in tried} == {"mean", "sum"}
    assert all(1 <= settings["power"] <= 3 for settings in tried)
    assert len({settings["power"] for settings in tried}) == 4
    for name, reason in (
        (
            "Empty",
            "(2.0, 2.0) for power. A range must go from a lower to a higher number, above 0, got 2.0 to 2.0.",
        ),
        *(
            (
                name,
                f"{got} for power. A pair of numbers in round brackets is a range; choices are a list in square ones.",
            )
            for name, got in (("Odd", "3"), ("Text", "'0.1'"), ("Three", "(1.0, 2.0, 3.0)"))
        ),
    ):
        start = f"`loss` ranges_of_a_test:{name} must declare ranges as name: (low, high) or name: [choices], got "
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared whole
            loss_by_name(f"ranges_of_a_test:{name}")
        assert str(caught.value) == start + reason


def test_a_loss_with_other_code_is_not_mixed_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing_loss.py").write_text(
        "def loss(scores, target):\n    return (scores - target).square().mean()\n"
    )
    given = {"out": "runs", "seeds": 1, "trials": 1, "max_steps": 5}
    compare("memorability", ["changing_loss:loss"], **given)
    compare("memorability", ["changing_loss:loss"], **given)
    monkeypatch.delitem(sys.modules, "changing_loss")
    (tmp_path / "changing_loss.py").write_text(
        "def loss(scores, target):\n    return (scores - target).abs().mean()  #\n"
    )
    linecache.checkcache()
    expected = "`out` runs holds runs of changing_loss:loss with other code under that name. "
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "Choose another folder, or delete it.$"):
        compare("memorability", ["changing_loss:loss"], **given)
