"""Statistics of a comparison against plain loops: the corrected resampled t, Holm's method, how seeds differ."""

import dataclasses
import math
import re
import statistics

import numpy as np
import pytest
from scipy.stats import t

from sodeep.comparison.runs import Run
from sodeep.comparison.statistics import Cell, half_width, split_of, summarise
from sodeep.comparison.train import _split
from sodeep.report.tables import difference_text, settings_of
from sodeep.tasks import TASKS

SIZES = {"train": 60, "val": 20, "test": 20}


def made_up(loss, values, split="drawn", **fields):
    """The tested runs of a loss, of seeds that differ as `split` says."""
    runs = []
    for seed, value in enumerate(values):
        which = {"data": seed if split == "new" else 7, "items": 0 if split == "given" else seed}
        metrics = {"Spearman": value, "MAE": -value, "MAE fitted": 0.5}
        options = {"seconds_per_step": 0.01, "split": {**SIZES, **which}, **fields}
        runs.append(Run("memorability", "d", loss, seed, {"lr": 0.1}, "test", "ok", metrics, **options))
    return runs


def corrected_interval(differences, train, test):
    """Nadeau and Bengio 2003: the variance of the mean is s² (1 / n + n_test / n_train), with a plain loop for s²."""
    n = len(differences)
    mean = sum(differences) / n
    variance = 0.0
    for difference in differences:
        variance += (difference - mean) ** 2
    variance /= n - 1
    error = math.sqrt(variance * (1 / n + test / train))
    reach = t.ppf(0.975, n - 1) * error
    return mean - reach, mean + reach, 2 * t.cdf(-abs(mean / error), n - 1)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_corrected_resampled_t(n):
    rng = np.random.default_rng(n)
    base, other = rng.random(n).tolist(), (rng.random(n) + 0.3).tolist()
    differences = [b - a for a, b in zip(base, other, strict=True)]
    for split, test in (("drawn", 20), ("given", 0), ("new", 0)):
        summary = summarise(made_up("mse", base, split) + made_up("l1", other, split))
        cell = summary.cells["l1", "Spearman"]
        np.testing.assert_allclose([cell.low, cell.high, cell.p], corrected_interval(differences, 60, test), rtol=1e-9)
        assert (summary.split, summary.sizes) == (split, SIZES)
        assert half_width(differences, test / 60) == pytest.approx((cell.high - cell.low) / 2)


def test_equal_differences_leave_nothing_to_chance():
    summary = summarise(made_up("mse", [0.5, 0.75]) + made_up("l1", [0.5, 0.75]) + made_up("huber", [0.75, 1.0]))
    same, higher = summary.cells["l1", "Spearman"], summary.cells["huber", "Spearman"]
    assert (same.p, same.differs, higher.p, higher.differs) == (1.0, False, 0.0, True)


def holm(values):
    """Adjusted p by definition: the largest, of those that are no higher, of p times how many are no lower."""
    adjusted = []
    for p in values:
        products = [(sum(x > y for x in values) + sum(x == y for x in values)) * y for y in values if y <= p]
        adjusted.append(min(1.0, max(products)))
    return adjusted


def test_p_is_adjusted_by_the_method_of_holm():
    rng = np.random.default_rng(0)
    base = rng.random(6).tolist()
    names = ["l1", "huber", "pearson", "mse-ranks", "spearman:laplace"]
    shifts = [0.01, 0.6, 0.3, 0.25, -0.3]
    runs = {name: made_up(name, (rng.random(6) + shift).tolist()) for name, shift in zip(names, shifts, strict=True)}
    alone = [summarise([*made_up("mse", base), *own]).cells[name, "Spearman"].p for name, own in runs.items()]
    together = summarise([*made_up("mse", base), *(run for own in runs.values() for run in own)])
    cells = [together.cells[name, "Spearman"] for name in names]
    np.testing.assert_allclose([cell.p for cell in cells], holm(alone), rtol=1e-12)
    assert any(p < 0.05 <= cell.p for p, cell in zip(alone, cells, strict=True))  # or nothing were adjusted
    assert [cell.differs for cell in cells] == [cell.p < 0.05 for cell in cells]
    assert math.isnan(together.cells["mse", "Spearman"].p)
    np.testing.assert_allclose([together.cells[name, "MAE"].p for name in names], holm(alone), rtol=1e-12)


def test_a_loss_without_an_interval_is_not_counted():
    runs = made_up("mse", [0.1, 0.2, 0.3]) + made_up("l1", [0.3, 0.5, 0.6])
    cell = summarise(runs).cells["l1", "Spearman"]
    summary = summarise([*runs, *made_up("huber", [0.3])])
    assert summary.cells["l1", "Spearman"].p == cell.p
    assert math.isnan(summary.cells["huber", "Spearman"].p)


@pytest.mark.parametrize(("task", "split"), [("memorability", "new"), ("toy", "new")])
def test_how_the_seeds_of_generated_data_differ(task, split):
    runs = [dataclasses.replace(made_up("mse", [0.5])[0], split=_split(TASKS[task].load(seed=seed))) for seed in (0, 1)]
    assert split_of(runs) == split
    assert split_of(runs[:1]) == "given"


@pytest.mark.parametrize(("column", "split"), [(False, "drawn"), (True, "given")])
def test_how_the_seeds_of_a_table_differ(tmp_path, column, split):
    parts = ["train"] * 30 + ["val"] * 10 + ["test"] * 10
    rows = [f"{i % 7},{i % 5},{i / 50}" + f",{parts[i]}" * column for i in range(50)]
    (tmp_path / "x.csv").write_text("\n".join(["a,b,score" + ",split" * column, *rows]))
    tasks = [TASKS["memorability"].load(tmp_path / "x.csv", seed) for seed in (0, 1)]
    runs = [dataclasses.replace(made_up("mse", [0.5])[0], split=_split(task)) for task in tasks]
    assert split_of(runs) == split
    assert {name: runs[0].split[name] for name in SIZES} == {name: len(tasks[0].index[name]) for name in SIZES}


def cell(difference, low, high):
    return Cell(3, 0.5, 0.1, difference, low, high, best=False)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.05, 0.01, 0.09), "+0.050 [+0.010, +0.090]"),
        ((0.05, 0.0004, 0.0996), "+0.0500 [+0.0004, +0.0996]"),
        ((-0.00005, -0.00013, 0.00003), "\N{MINUS SIGN}0.00005 [\N{MINUS SIGN}0.00013, +0.00003]"),
        ((0.05, 0.0000001, 0.0999999), "+0.05000 [+0.00000, +0.10000]"),  # no more than two further decimals
        ((0.05, 0.0, 0.1), "+0.050 [+0.000, +0.100]"),  # 0 is 0 at any
        ((29.4, 17.2, 41.6), "+29.4 [+17.2, +41.6]"),
        ((0.2, math.nan, math.nan), "+0.200"),
        ((None, math.nan, math.nan), "\N{EN DASH}"),
    ],
)
def test_as_many_decimals_as_tell_an_end_from_zero(numbers, expected):
    assert difference_text(cell(*numbers)) == expected


def chosen(*settings):
    runs = [
        dataclasses.replace(run, settings=some)
        for run, some in zip(made_up("mse", [0.5] * len(settings)), settings, strict=True)
    ]
    return settings_of(summarise(runs), "mse")


def test_settings_of():
    assert chosen({"lr": 0.1}) == "lr 0.1 (1 seed)"
    assert chosen({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.2}) == "lr 0.2 (2 seeds); lr 0.1 (1 seed)"
    three = [{"lr": 0.1, "form": "ap"}, {"lr": 0.3, "form": "rank_sum"}, {"lr": 0.02, "form": "ap"}]
    assert chosen(*three) == "lr 0.02 to 0.3, form ap or rank_sum"
    assert chosen(*({**some, "form": "ap"} for some in three)) == "lr 0.02 to 0.3, form ap"
    with_none = [{"lr": 0.1, "top": None}, {"lr": 0.2, "top": 5}, {"lr": 0.3, "top": 5}]
    assert re.fullmatch("lr 0.1 to 0.3, top .* or .*", chosen(*with_none))
    assert settings_of(summarise(made_up("mse", [0.5])), "l1") == "\N{EN DASH}"


def test_what_the_trainings_of_a_loss_took():
    runs = [
        dataclasses.replace(run, steps=10 * (seed + 1), best_step=5 * seed, seconds=seed + 1.0, flat=seed == 0)
        for seed, run in enumerate(made_up("mse", [0.5, 0.6, 0.7]))
    ]
    summary = summarise(runs)
    assert summary.steps["mse"] == (5, 20)
    assert summary.seconds["mse"] == statistics.median([1.0, 2.0, 3.0])
    assert summary.rising == {"mse": 2}
    assert summarise([dataclasses.replace(run, flat=None) for run in runs]).rising == {}


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([{"lr": "low"}, {"lr": "low"}, {}, {}], {"lr": "low"}),
        ([{"lr": "low"}, {"lr": "low"}, {}, {}, {}], {}),
        ([{"lr": "low"}, {"lr": "high"}], {}),
        ([{"lr": "low"}], {}),
        ([{"lr": "low", "tau": "high"}, {"lr": "low", "tau": "high"}], {"lr": "low", "tau": "high"}),
    ],
)
def test_edges_are_named_where_half_of_the_seeds_are_at_them(edges, expected):
    runs = made_up("mse", [0.5] * len(edges))
    runs = [dataclasses.replace(run, edges=own) for run, own in zip(runs, edges, strict=True)]
    assert summarise(runs).edges == ({"mse": expected} if expected else {})
