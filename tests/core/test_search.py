"""The settings that are tried for a loss."""

import math
import re

import numpy as np
import pytest

from sodeep._core.search import ZEROS, Choice, Range, default_settings, edge_of, trial_settings, with_limits

RANGES = {
    "lr": Range(1e-4, 1e-1, 1e-3),
    "weight": Range(0.01, 1.0, 0.1, zero=True),
    "bins": Range(5, 50, 20, whole=True),
    "base": Range(-1.0, 3.0, 0.5, log=False),
    "form": Choice(("ap", "rank_sum", None)),
}


def test_the_defaults_come_first_and_all_values_are_within_their_ranges():
    first, *others = trial_settings(RANGES, 200)
    assert first == default_settings(RANGES) == {"lr": 1e-3, "weight": 0.1, "bins": 20, "base": 0.5, "form": "ap"}
    assert len(others) == 199
    for settings in others:
        assert list(settings) == list(RANGES)
        assert 1e-4 <= settings["lr"] <= 1e-1
        assert settings["weight"] == 0 or 0.01 <= settings["weight"] <= 1
        assert isinstance(settings["bins"], int)
        assert 5 <= settings["bins"] <= 50
        assert -1 <= settings["base"] <= 3
        assert settings["form"] in ("ap", "rank_sum", None)


def test_every_part_of_a_range_is_tried_equally_often():
    trials = trial_settings(RANGES, 601)[1:]
    decades = np.histogram(np.log10([some["lr"] for some in trials]), bins=3, range=(-4, -1))[0]
    np.testing.assert_allclose(decades, 200, atol=4)  # even in the logarithm
    quarters = np.histogram([some["base"] for some in trials], bins=4, range=(-1, 3))[0]
    np.testing.assert_allclose(quarters, 150, atol=4)
    for form in RANGES["form"].values:
        assert sum(some["form"] == form for some in trials) == pytest.approx(200, abs=6)
    assert sum(some["weight"] == 0 for some in trials) == pytest.approx(ZEROS * 600, abs=6)
    above = np.log10([some["weight"] for some in trials if some["weight"]])
    np.testing.assert_allclose(np.histogram(above, bins=2, range=(-2, 0))[0], 240, atol=6)


def test_values_at_a_place():
    assert [Range(0.01, 1.0, 0.1).at(place) for place in (0, 0.25, 0.5)] == [0.01, 0.0316, 0.1]
    assert [Range(0.0, 8.0, 1.0, log=False).at(place) for place in (0, 0.25, 0.5)] == [0.0, 2.0, 4.0]
    assert [RANGES["weight"].at(place) for place in (0, 0.199, 0.2, 0.6)] == [0.0, 0.0, 0.01, 0.1]
    assert [RANGES["bins"].at(place) for place in (0, 0.5, 0.999)] == [5, 16, 50]
    assert [RANGES["form"].at(place) for place in (0, 0.34, 0.99)] == ["ap", "rank_sum", None]


@pytest.mark.parametrize("trials", [1, 2, 5, 12])
def test_a_longer_search_begins_with_a_shorter_one(trials):
    assert trial_settings(RANGES, trials) == trial_settings(RANGES, 30)[:trials]


def test_equal_settings_are_tried_once():
    assert trial_settings({}, 5) == [{}]
    assert trial_settings({"form": Choice(("a", "b"))}, 20) == [{"form": "a"}, {"form": "b"}]
    few = trial_settings({"n": Range(1, 3, 2, whole=True)}, 50)
    assert few[0] == {"n": 2}
    assert sorted(some["n"] for some in few) == [1, 2, 3]


def test_losses_with_the_same_names_are_tried_with_the_same_fractions():
    narrow, wide = {"lr": Range(1e-3, 1e-2, 2e-3)}, {"lr": Range(1e-4, 1e-2, 2e-3)}
    for a, b in zip(trial_settings(narrow, 20)[1:], trial_settings(wide, 20)[1:], strict=True):
        assert math.log10(b["lr"] / 1e-4) / 2 == pytest.approx(math.log10(a["lr"] / 1e-3), abs=0.005)


@pytest.mark.parametrize(
    ("name", "value", "edge"),
    [
        ("lr", 1e-4, "low"), ("lr", 1.99e-4, "low"), ("lr", 2.01e-4, None), ("lr", 4.9e-2, None),
        ("lr", 5.1e-2, "high"), ("lr", 1e-1, "high"),
        ("weight", 0.0, None), ("weight", 0.01, None), ("weight", 1.0, "high"),
        ("bins", 5, "low"), ("bins", 50, "high"), ("bins", 20, None),
        ("base", -1.0, "low"), ("base", -0.59, None), ("base", 2.59, None), ("base", 2.61, "high"),
        ("form", "ap", None), ("form", None, None),
    ],
)  # fmt: skip
def test_edges(name, value, edge):
    assert RANGES[name].edge(value) == edge
    assert edge_of(RANGES, {name: value}) == ({} if edge is None else {name: edge})


def test_settings_without_a_range_are_at_no_edge():
    assert edge_of(RANGES, {"lr": 1e-4, "other": 3}) == {"lr": "low"}
    assert edge_of({}, {"lr": 1e-4}) == {}


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((1, 1, 1), {}, "A range must go from a lower to a higher number, above 0, got 1 to 1."),
        ((2, 1, 1), {"log": False}, "A range must go from a lower to a higher number, got 2 to 1."),
        ((0, 1, 1), {}, "A range must go from a lower to a higher number, above 0, got 0 to 1."),
        ((1, math.inf, 1), {}, "A range must go from a lower to a higher number, above 0, got 1 to inf."),
        ((math.nan, 1, 1), {}, "A range must go from a lower to a higher number, above 0, got nan to 1."),
        ((1, 2, 3), {}, "The default of a range must be in it, got 3 for 1 to 2."),
        ((1, 2, 0), {}, "The default of a range must be in it, got 0 for 1 to 2."),
    ],
)
def test_ranges_that_are_none(arguments, options, expected):
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Range(*arguments, **options)


def test_zero_may_be_the_default_of_a_range_that_includes_it():
    assert Range(1, 2, 0, zero=True).default == 0


def test_a_choice_of_nothing():
    with pytest.raises(ValueError, match=r"^A choice must have a value, got none\.$"):
        Choice(())


def test_limits_take_the_place_of_those_declared():
    changed = with_limits(
        RANGES, {"lr": (1e-2, 1e-1), "bins": (5, 100), "weight": (0.1, 2.0), "form": (0, 1), "other": (0, 1)}
    )
    assert changed["lr"] == Range(1e-2, 1e-1, max(RANGES["lr"].default, 1e-2))
    assert (changed["bins"].high, changed["bins"].whole) == (100, True)
    assert (changed["weight"].low, changed["weight"].zero) == (0.1, True)
    assert (changed["form"], changed["base"], list(changed)) == (RANGES["form"], RANGES["base"], list(RANGES))
    with pytest.raises(ValueError, match=r"lower to a higher number, above 0, got 0 to 1\.$"):
        with_limits(RANGES, {"lr": (0, 1)})
