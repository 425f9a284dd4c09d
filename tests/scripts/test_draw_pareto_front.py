"""scripts/draw_pareto_front.py: what it compares, how it interpolates, and what it writes."""

import csv
import io
import math
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

import sodeep

pytest.importorskip("matplotlib")

DISTRIBUTIONS = ("ordinary", "multi-scale", "heavy-tailed", "clusters", "bimodal")


@pytest.fixture(scope="module")
def script():
    loader = SourceFileLoader("draw_pareto_front", str(Path(__file__).parents[2] / "scripts" / "draw_pareto_front.py"))
    module = module_from_spec(spec_from_loader("draw_pareto_front", loader))
    sys.modules["draw_pareto_front"] = module  # dataclasses look their module up
    loader.exec_module(module)
    module.SPREADS, module.STRENGTHS, module.MOVES = module.SPREADS[:4], module.STRENGTHS[:4], module.MOVES[:2]
    yield module
    del sys.modules["draw_pareto_front"]


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A file with a sorter of lists of eight items."""
    torch.manual_seed(0)
    return sodeep.save_sorter(
        tmp_path_factory.mktemp("front") / "tied.safetensors", sodeep.build_sorter("mlp", seq_len=8, hidden=4)
    )


@pytest.fixture(scope="module")
def sizes(script):
    return (script.Size(8, errors=4, optimized=3, cosines=2), script.Size(12, errors=4, optimized=3, cosines=2))


@pytest.fixture(scope="module")
def measured(script, sizes, tied):
    points = [point for point in script.rank_functions([tied]) if point.takes(8)]
    script.measure(points, sizes)
    return points


def crafted(script, scores, errors, n=8):
    """Points with these measures for laplace_rank, smooth to sharp, and ten times the error for sigmoid_rank."""
    return [
        script.Point(
            family,
            f"std/{k:g}",
            sodeep.laplace_rank,
            {
                (distribution, n): script.Measures(worse * error, score, score / 2, 0.9)
                for distribution in DISTRIBUTIONS
            },
        )
        for family, worse in (("laplace", 1), ("sigmoid", 10))
        for k, score, error in zip(script.SPREADS, scores, errors, strict=False)
    ]


def test_every_shipped_sorter_and_file_is_there(script, tied):
    points = script.rank_functions([tied])
    names = [point.setting for point in points if point.family == "sorter"]
    assert names == [*(card.name for card in sodeep.list_sorters()), "tied"]
    assert {point.family for point in points} >= {"laplace", "sigmoid", "straight-through laplace", "blackbox"}


def test_no_sorter_is_dropped(script, sizes, tied, tmp_path):
    points = [point for point in script.rank_functions([tied]) if point.setting == "tied"]
    with pytest.raises(click.ClickException, match=r"^tied takes lists of 8 only\. The Pareto front is drawn at 12\.$"):
        script.measure(points, sizes[1:])
    shipped = {card.name: card.path for card in sodeep.list_sorters()}
    for name, hidden in (("tied", tied), *shipped.items()):
        path = sodeep.save_sorter(tmp_path / f"{name}.safetensors", sodeep.load_sorter(tied))
        with pytest.raises(click.ClickException) as refused:
            script.rank_functions([tied, path])
        assert refused.value.message == f"{path} would hide {hidden}, of the same name. Rename it."


def test_measures(measured):
    for point in measured:
        lengths = (8,) if point.setting == "tied" else (8, 12)
        assert point.measures.keys() == {(distribution, n) for distribution in DISTRIBUTIONS for n in lengths}
        for (distribution, n), measures in point.measures.items():
            assert all(map(math.isfinite, measures)), (point.setting, distribution, n)
        mean = sum(point.measures[distribution, 8].error for distribution in DISTRIBUTIONS[2:]) / 3
        assert point.measures["multi-scale", 8].error == pytest.approx(mean)
    exact = [p for p in measured if p.family in ("straight-through laplace", "blackbox")]
    assert all(measures.error < 1e-6 for point in exact for measures in point.measures.values())


def test_ordinary_measures_are_those_of_evaluate(script):
    """At the length of the cards they are those of the cards."""
    size = script.Size(20, errors=256, optimized=48, cosines=64)
    on = script.draw_lists("ordinary", size)
    got = script.measure_rank_fn(sodeep.laplace_rank, size, on)
    card = sodeep.evaluation.evaluate(sodeep.laplace_rank, lengths=(20,), n=20, distributions=("clusters",))
    assert got == (
        card.errors[20],
        card.optimization_score[30],
        card.optimization_score[100],
        pytest.approx(card.agreement),
    )
    on = script.draw_lists("clusters", size)
    assert sodeep.rank_error(sodeep.laplace_rank, on.errors) == card.by_distribution["clusters"]


@pytest.mark.parametrize("name", ["blackbox", "torchsort"])
def test_settings_are_relative_to_the_list(script, name, generator):
    rank_fns = [point.rank_fn for point in script.rank_functions([]) if point.family == name]
    if not rank_fns:
        pytest.skip(f"{name} is not installed")
    scores = torch.randn(3, 15, generator=generator, dtype=torch.float64)
    target = sodeep.exact_rank(torch.randn(3, 15, generator=generator, dtype=torch.float64))
    for rank_fn in rank_fns:
        once = sodeep.evaluation.rank_gradient(rank_fn, scores, target)
        larger = sodeep.evaluation.rank_gradient(rank_fn, 8 * scores, target)
        torch.testing.assert_close(8 * larger, once)
        assert sodeep.metrics.spearman_corr(-rank_fn(scores), scores).min() > 0.5  # 1 = the highest
        assert bool(rank_fn(torch.full((2, 5), 3.0)).isfinite().all())


def test_a_rank_of_equal_score_is_interpolated(script):
    points = crafted(script, scores=[0.9, 0.8, 0.6], errors=[0.1, 0.01, 0.001])  # std/1, std/2, std/3.4
    rank = script.at_equal_score(points, "clusters", 8, 0.7)
    assert rank.name == f"laplace std/{math.sqrt(2 * 3.4):.1f}"
    assert rank.measures == pytest.approx((math.sqrt(0.01 * 0.001), 0.7, 0.35, 0.9))
    assert script.at_equal_score(points, "clusters", 8, 0.95) is None
    assert (
        script.at_equal_score(points, "clusters", 8, 0.5).name == "laplace std/3.4"
    )  # the score of the sharpest is higher still
    assert script.at_equal_score(points, "clusters", 8, 0.9).measures.error == pytest.approx(0.1)


def test_a_rank_of_equal_error_is_interpolated(script):
    points = crafted(script, scores=[0.9, 0.8, 0.6], errors=[0.1, 0.01, 0.001])
    rank = script.at_equal_error(points, "ordinary", 8, math.sqrt(0.1 * 0.01))
    assert rank.name == f"laplace std/{math.sqrt(2):.1f}"
    assert rank.measures.score_30 == pytest.approx(0.85)
    assert script.at_equal_error(points, "ordinary", 8, 0.0005) is None
    assert script.at_equal_error(points, "ordinary", 8, 0.5).name == "laplace std/1.0"


def test_text(script, measured, sizes):
    text = script.text(measured, sizes, "Made here.")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(row.count("|") == 13 for row in rows)
    for point in measured:
        if point.family == "sorter":
            written = [row.strip("| ").split(" | ") for row in rows if row.startswith(f"| {point.setting} | ")]
            assert len(written) == 5 * len([size for size in sizes if point.takes(size.n)]), point
            assert written[0][2:4] == ["ordinary", f"{point.measures['ordinary', 8].error:.4f}"]
    assert "* **tied**, n = 8: the ratio of its error to that of the best handcrafted rank of equal score is " in text


def test_table(script, measured, sizes):
    """A row for every function, setting, length and distribution; none where a sorter takes no list of that length."""
    rows = list(csv.DictReader(io.StringIO(script.table(measured, sizes))))
    assert len(rows) == 2 * (2 * len(measured) - 1)  # tied takes no list of twelve
    for point in measured:
        ordinary = next(row for row in rows if (row["function"], row["setting"]) == (point.family, point.setting))
        assert (ordinary["n"], ordinary["lists"]) == ("8", "ordinary")
        assert float(ordinary["score_30"]) == pytest.approx(point.measures["ordinary", 8].score_30, abs=5.1e-4)


def test_a_sorter_that_none_can_follow_is_said_to_be(script, sizes):
    points = crafted(script, scores=[0.9] * 4, errors=[0.1] * 4)
    points += [script.Point("straight-through laplace", p.setting, p.rank_fn, p.measures) for p in points[:4]]
    measures = {(distribution, 8): script.Measures(0.001, 0.95, 0.99, 0.9) for distribution in DISTRIBUTIONS}
    text = script.text([*points, script.Point("sorter", "best", sodeep.laplace_rank, measures)], sizes[:1], "")
    assert "| best | 8 | ordinary | 0.0010 | 0.950 | 0.990 | none |  |  | none |  |  |" in text
    none = "undefined (none has that score)"
    assert f"is {none} on ordinary lists and {none} on multi-scale lists (heavy-tailed {none}, clusters" in text


def test_figure(script, measured, tmp_path):
    figure = script.draw_figure(measured, 8)
    for axes in figure.axes:
        words = [text.get_text() for text in axes.texts]
        assert {point.setting for point in measured if point.family == "sorter"} <= set(words)
        assert "laplace\nstd/1" in words
    figure.savefig(tmp_path / "pareto_front.png", dpi=60)
    assert script.draw_figure(measured, 12).axes[0].get_title() == "ordinary lists"


def test_the_command(script, monkeypatch, measured, sizes, tied, tmp_path):
    monkeypatch.setattr(script, "SIZES", sizes)
    monkeypatch.setattr(script, "rank_functions", lambda files: measured if files == (tied,) else [])
    monkeypatch.setattr(script, "measure", lambda points, sizes, echo: echo("measuring"))
    done = CliRunner().invoke(script.main, [str(tied), "--out", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "pareto_front.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "new" / "pareto_front.csv").read_text() == script.table(measured, sizes)
    made = (tmp_path / "new" / "pareto_front.md").read_text().splitlines()[4]
    assert made.startswith(f"Made by `scripts/draw_pareto_front.py {tied}` in ")
