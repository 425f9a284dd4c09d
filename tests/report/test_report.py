"""Reports of comparisons whose numbers are made up, so that every figure of a table is known."""

import base64
import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import sodeep
from sodeep import report
from sodeep.comparison import read as comparison_read
from sodeep.comparison.read import read_comparison
from sodeep.comparison.runs import Run
from sodeep.comparison.statistics import Cell
from sodeep.metrics import average_precision
from sodeep.ranks import with_width
from sodeep.report import html, tables
from sodeep.report.definitions import definitions
from sodeep.report.write import NO_MATPLOTLIB, draw_figures
from sodeep.tasks import TASKS

LOSSES = {"multi-similarity": 0.5, "map:laplace": 0.6, "mine:Loss": 0.45}
"""Name -> mAP of seed 0; a hundredth more with every seed, and a thousandth of jitter."""
JITTER = [0.0, 0.001, -0.001]


def retrieval_details(rng, kind="strip_queries"):
    ap = rng.random(30)
    images = rng.integers(0, 256, (4, 3, 6, 8), dtype=np.uint8)
    asked = images[:, 0] if kind == "strip_queries" else np.array(["a text", "une étoile", "x" * 80, "four"])
    return {
        "ap": ap,
        "ap_quantized": ap + 0.01 * rng.random(30),
        kind: asked,
        "strip_images": images,
        "strip_right": rng.random((4, 3)) < 0.5,
        "strip_kind": np.array(["random", "random", "worst", "worst"]),
        "strip_ap": ap[:4],
        "embeddings": rng.random((9, 5)).astype(np.float16),
        "embedding_labels": np.array(["a\tb"] * 9),
        "thumbnails": images.reshape(12, 6, 8)[:9],
    }


def write_runs(folder, task="retrieval", losses=LOSSES, seeds=3, metrics=("mAP", "R@1"), details=retrieval_details):
    """A comparison: one tuning run and one test of each loss and seed."""
    (folder / "details").mkdir(parents=True, exist_ok=True)
    lines = []
    for place, (loss, value) in enumerate(losses.items()):
        for seed in range(seeds):
            rng = np.random.default_rng([place, seed])
            mine = value + 0.01 * seed + (JITTER[seed] if place else 0)
            curve = [(10, value / 2), (20 + seed, mine)]
            name = f"details/{place}-{seed}.npz"
            if details is not None:
                np.savez(folder / name, **details(rng))
            run = Run(
                task, "made-up numbers", loss, seed, {"lr": 0.001}, "tuning", "ok", dict.fromkeys(metrics, mine),
                {"loss/train": [(i, 1 / (i + 1)) for i in range(60)], f"val/{metrics[0]}": curve},
                steps=20, best_step=10, flat=True, seconds=0.5, seconds_per_step=0.002 * (place + 1),
                peak_memory=3_000_000 if place else None,
                split={"train": 60, "val": 20, "test": 20, "data": 1, "items": 2},
            )  # fmt: skip
            test = Run(**{**vars(run), "stage": "test", "details": name if details is not None else None})
            lines += [run.to_json(), test.to_json()]
    (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def add(folder, **values):
    """One more run."""
    run = Run("retrieval", "made-up numbers", **{"settings": {"lr": 0.1}, "stage": "tuning", **values})
    with (folder / "runs.jsonl").open("a") as file:
        file.write(run.to_json() + "\n")


class Page(HTMLParser):
    """What a test asks of a page: its text, its tags, the sources of its images."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.images, self.text, self.attributes = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "img":
            self.images.append(dict(attrs)["src"])

    def handle_data(self, data):
        self.text += data


def write_text(folder, baseline=None, **options):
    """The reports without figures, which would slow down tests of text alone."""
    return report.write_report(read_comparison(folder, baseline), **options)


def write_report(folder, **options):
    """The reports, and the notes on what they lack."""
    comparison = read_comparison(folder)
    figures, notes = draw_figures(comparison)
    return report.write_report(comparison, figures, notes, **options), notes


def write_tensorboard(folder, log_dir):
    """The log, and the notes on what it lacks."""
    comparison = read_comparison(folder)
    figures, notes = draw_figures(comparison)
    report.write_tensorboard(comparison, figures, log_dir)
    return notes


def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


# ---- text ------------------------------------------------------------------------------------------------------------


def test_a_failed_test_is_listed_and_seeds_are_counted_for_each_loss(tmp_path):
    write_runs(tmp_path, losses={"multi-similarity": 0.5, "map:laplace": 0.6})
    lines = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[:-1]))  # without the test of the last seed
    failure = {"step": 20, "reason": "in the test, MemoryError: too much", "values": {}, "again": True}
    add(tmp_path, loss="map:laplace", seed=2, stage="test", status="failed", failure=failure)
    text = write_text(tmp_path)["markdown"].read_text(encoding="utf-8")
    assert (
        "* 1 of 12 runs failed; see below.\n"
        "* Not every loss was tested with all 3 seeds: map:laplace has 2.\n"
        "* 1 run failed for reasons outside the loss: start the comparison again to repeat what failed.\n"
    ) in text
    assert "\n| map:laplace | 2 | " in text
    assert "\n| multi-similarity | 3 | " in text
    assert (
        f"\n| map:laplace | 2 | lr 0.1 | 20 | in the test, MemoryError: too much | {comparison_read.NOTHING} |\n"
        in text
    )


def test_the_order_in_which_runs_were_done_is_not_seen(tmp_path):
    write_runs(tmp_path)
    (tmp_path / "comparison.json").write_text(json.dumps({"losses": ["mine:Loss", "map:laplace", "multi-similarity"]}))
    for seed, rate in ((1, 0.1), (0, 0.1), (0, 0.01)):
        add(tmp_path, loss="map:laplace", seed=seed, status="failed", settings={"lr": rate})
    first = write_text(tmp_path)
    texts = {kind: path.read_text(encoding="utf-8") for kind, path in first.items()}
    assert list(json.loads(texts["json"])["comparisons"][0]["losses"]) == [
        "map:laplace",
        "multi-similarity",
        "mine:Loss",
    ]
    lines = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[::-1]))
    assert {kind: path.read_text(encoding="utf-8") for kind, path in write_text(tmp_path).items()} == texts


def test_markdown(tmp_path):
    """All of it: 0.6, 0.611, 0.619 against 0.5, 0.51, 0.52 differ by 0.1, 0.101, 0.099; t(0.975, 2) is 4.3027."""
    write_runs(tmp_path, losses={"multi-similarity": 0.5, "map:laplace": 0.6})
    values = {"loss": math.nan, "gradient norm": 12.5}
    failure = {"step": 7, "reason": "loss not finite", "values": values}
    add(tmp_path, loss="map:laplace", seed=2, status="failed", failure=failure)
    pytest.importorskip("matplotlib")
    files, notes = write_report(tmp_path, command="sodeep compare retrieval")
    assert notes == []
    assert files["markdown"] == tmp_path / "report.md"
    assert files["markdown"].read_text(encoding="utf-8") == (
        "# Losses compared: retrieval\n"
        "\n"
        "Data: made-up numbers (60 train, 20 val, 20 test). Baseline: multi-similarity. 2 losses, 3 seeds, on cpu.\n"
        "\n"
        "    sodeep compare retrieval\n"
        "\n"
        "* map:laplace has the best mean mAP: 0.610 ± 0.010 over 3 seeds.\n"
        "* Better than multi-similarity: map:laplace.\n"
        f"* {COMPARED}\n"
        "* 1 of 13 runs failed; see below.\n"
        "\n"
        "## Results\n"
        "\n"
        "| loss | seeds | mAP ↑ | R@1 ↑ |\n"
        "|---|---:|---:|---:|\n"
        "| map:laplace | 3 | **0.610 ± 0.010** | **0.610 ± 0.010** |\n"
        "| multi-similarity | 3 | 0.510 ± 0.010 | 0.510 ± 0.010 |\n"
        "\n"
        "Mean ± standard deviation over the seeds, on the test split. ↑ higher is better, ↓ lower; the best mean of a "
        "column is bold.\n"
        "\n"
        "## Differences to multi-similarity\n"
        "\n"
        "| loss | mAP ↑ | R@1 ↑ |\n"
        "|---|---:|---:|\n"
        "| map:laplace | **+0.100 [+0.098, +0.102]** | **+0.100 [+0.098, +0.102]** |\n"
        "\n"
        "Mean and 95% interval (Student's t over the seeds) of the difference, seed by seed: the same split, "
        "initialisation and batches. Bold: significant at 5% among all losses compared in the column (Holm's method); "
        "an interval may exclude 0 without being bold.\n"
        "\n"
        "## Settings and cost\n"
        "\n"
        "| loss | chosen | steps to the best | seconds of a training | ms per step | peak MB of a step |\n"
        "|---|---|---:|---:|---:|---:|\n"
        "| multi-similarity | lr 0.001 (3 seeds) | 10 of 20 | 0.5 | 2.0 | \N{EN DASH} |\n"
        "| map:laplace | lr 0.001 (3 seeds) | 10 of 20 | 0.5 | 4.0 | 3.0 |\n"
        "\n"
        "Settings are those best on the validation split; steps, those to the best validation of all that were taken "
        "(median over the seeds). A step is encoder and loss, forward and backward.\n"
        "\n"
        "## Failed runs\n"
        "\n"
        "| loss | seed | settings | step | reason | values |\n"
        "|---|---|---|---|---|---|\n"
        "| map:laplace | 2 | lr 0.1 | 7 | loss not finite | loss nan, gradient norm 12.5 |\n"
        "\n"
        "## Metrics\n"
        "\n"
        "| metric | what it is |\n"
        "|---|---|\n"
        "| mAP | mean average precision: over the queries or labels, the precision at each relevant item, averaged |\n"
        "| R@1 | hit rate: the fraction of queries with a relevant item among the first 1 (recall at k is another) |\n"
        "\n"
        "Figures: report.html.\n"
    )


COMPARED = (
    "1 loss is compared with multi-similarity. The split is that of the data: seeds differ in initialisation, batches "
    "and validation items alone, and intervals say nothing of other test items."
)


def several(count, baseline):
    """The same sentence for several losses."""
    start = f"{count} losses are compared with {baseline}; significance takes account of their number (Holm's method)."
    return start + COMPARED.removeprefix("1 loss is compared with multi-similarity.")


def findings(tmp_path, **options):
    write_runs(tmp_path, details=None, **options)
    return tables.find_differences(read_comparison(tmp_path))


def test_the_baseline_may_win(tmp_path):
    assert findings(tmp_path, losses={"multi-similarity": 0.5, "triplet": 0.4, "nt-xent": 0.4999}) == [
        "The baseline multi-similarity has the best mean mAP: 0.510 ± 0.010 over 3 seeds.",
        "Worse than multi-similarity: triplet.",
        "Not significantly different from multi-similarity: nt-xent.",
        several(2, "multi-similarity"),
    ]


def test_equal_means_share_the_first_place(tmp_path):
    write_runs(tmp_path, losses={"multi-similarity": 0.5, "triplet": 0.5, "nt-xent": 0.4}, seeds=1, details=None)
    assert tables.find_differences(read_comparison(tmp_path)) == [
        "multi-similarity, triplet share the best mean mAP: 0.500.",
        "With one seed in common there are no confidence intervals: any difference may be chance.",
    ]


def test_lower_may_be_better(tmp_path):
    """MAE is not the primary metric of any task, so it is made the only metric there is."""
    losses = {"mse": 0.5, "l1": 0.4, "spearman:laplace": 0.6}
    assert findings(tmp_path, task="memorability", losses=losses, metrics=("MAE",)) == [
        "l1 has the best mean MAE: 0.410 ± 0.010 over 3 seeds.",
        "Better than mse: l1.",
        "Worse than mse: spearman:laplace.",
        several(2, "mse"),
    ]
    comparison = read_comparison(tmp_path)
    assert comparison.ranked == ["l1", "mse", "spearman:laplace"]
    assert tables._results(comparison).header == ["loss", "seeds", "MAE ↓"]
    assert "hit rate" not in tables._results(comparison).note


def test_one_seed_tells_no_difference(tmp_path):
    assert findings(tmp_path, seeds=1) == [
        "map:laplace has the best mean mAP: 0.600 over 1 seed.",
        "With one seed in common there are no confidence intervals: any difference may be chance.",
    ]
    comparison = read_comparison(tmp_path)
    assert [table.title for table in tables.make_tables(comparison)] == [
        "Results", "Settings and cost", "Metrics",
    ]  # fmt: skip


def test_nothing_finished(tmp_path):
    add(
        tmp_path,
        loss="triplet",
        seed=0,
        status="failed",
        failure={"step": 1, "reason": "RuntimeError: no", "values": {}},
    )
    files, _ = write_report(tmp_path)
    text = files["markdown"].read_text(encoding="utf-8")
    assert "* No run was finished.\n" in text
    assert "| triplet | 0 | lr 0.1 | 1 | RuntimeError: no | \N{EN DASH} |\n" in text
    assert page(tmp_path).images == []


def test_a_loss_without_a_result_stands_last(tmp_path):
    write_runs(tmp_path, details=None, losses={"multi-similarity": 0.5})
    add(tmp_path, loss="triplet", seed=0, status="failed", failure={"step": 1, "reason": "no", "values": {}})
    text = write_text(tmp_path)["markdown"].read_text(encoding="utf-8")
    assert "| triplet | 0 | \N{EN DASH} | \N{EN DASH} |\n" in text


@pytest.mark.parametrize(
    ("value", "plain", "signed"),
    [
        (0.12345, "0.123", "+0.123"),
        (-0.5, "−0.500", "−0.500"),  # noqa: RUF001
        (-0.0001, "0.000", "+0.000"),
        (246.04, "246.0", "+246.0"),
        (math.nan, "\N{EN DASH}", "\N{EN DASH}"),
    ],
)
def test_numbers(value, plain, signed):
    assert tables.number_text(value) == plain
    assert tables.number_text(value, signed=True) == signed


def cell(mean, sd, difference=None, low=math.nan, high=math.nan):
    return Cell(3, mean, sd, difference, low, high, best=False)


def test_a_spread_has_the_decimals_of_its_mean():
    assert [tables.mean_text(cell(60.123, 6.8491)), tables.mean_text(cell(0.61, 0.0123))] == [
        "60.1 ± 6.8",
        "0.610 ± 0.012",
    ]


def test_drawn_one_by_one(tmp_path):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path)
    drawn, notes = draw_figures(read_comparison(tmp_path))
    assert [figure.title for figure in drawn] == RETRIEVAL_FIGURES
    assert all(figure.caption and "{" not in figure.caption for figure in drawn)
    assert notes == []


def test_one_seed_has_no_panel_of_differences(tmp_path):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path, seeds=1)
    first = draw_figures(read_comparison(tmp_path))[0][0]
    assert len(first.figure.axes) == 1
    assert first.caption == "A dot is a seed, the bar their mean."


def test_json_has_the_same_numbers_and_is_strict(tmp_path):
    write_runs(tmp_path, details=None)
    add(
        tmp_path,
        loss="mine:Loss",
        seed=2,
        status="failed",
        failure={"step": 7, "reason": "x", "values": {"loss": math.inf}},
    )

    def refuse(token):
        raise ValueError(token)

    text = write_text(tmp_path)["json"].read_text(encoding="utf-8")
    data = json.loads(text, parse_constant=refuse)
    (comparison,) = data["comparisons"]
    assert comparison["higher_is_better"] == {"mAP": True, "R@1": True}
    cell = comparison["losses"]["map:laplace"]["metrics"]["mAP"]
    assert cell["n"] == 3
    np.testing.assert_allclose([cell["mean"], cell["difference"]], [0.61, 0.1])
    assert comparison["losses"]["multi-similarity"]["metrics"]["mAP"]["low"] is None
    assert comparison["losses"]["map:laplace"]["settings"] == [{"chosen": {"lr": 0.001}, "seeds": 3}]
    assert len(comparison["runs"]) == 19
    assert comparison["findings"][0] == "map:laplace has the best mean mAP: 0.610 ± 0.010 over 3 seeds."


def test_versions_are_those_of_the_comparison(tmp_path):
    write_runs(tmp_path, details=None)
    made = {"max_steps": 2000, "batch_size": 64, "sodeep": "0.0.7", "torch": "2.4.0"}
    (tmp_path / "comparison.json").write_text(json.dumps(made))
    text = write_text(tmp_path)["markdown"].read_text(encoding="utf-8")
    assert "3 seeds, up to 2,000 steps, 64 items a step, on cpu; sodeep 0.0.7, torch 2.4.0.\n" in text


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_report(tmp_path)
    assert str(error.value) == f"`folder` must hold the runs.jsonl of a comparison, got {tmp_path} without one."
    (tmp_path / "runs.jsonl").write_text("")
    with pytest.raises(FileNotFoundError) as error:
        write_report(tmp_path)
    assert str(error.value) == (f"`folder` must hold runs of a comparison (runs.jsonl), got '{tmp_path}' without any.")
    write_runs(tmp_path, details=None)
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the whole message is below
        write_text(tmp_path, baseline="triplet")
    assert str(error.value) == ("`baseline` must be one of multi-similarity, map:laplace, mine:Loss, got 'triplet'.")


def test_another_folder_and_another_baseline(tmp_path):
    write_runs(tmp_path / "runs", details=None)
    found = write_text(tmp_path / "runs", "map:laplace", out=tmp_path / "new" / "report")
    assert sorted(path.name for path in (tmp_path / "new" / "report").iterdir()) == [
        "report.html", "report.json", "report.md",
    ]  # fmt: skip
    assert "Worse than map:laplace: multi-similarity, mine:Loss." in found["markdown"].read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["details", "runs.jsonl"]


# ---- the page --------------------------------------------------------------------------------------------------------

RETRIEVAL_FIGURES = [
    "mAP of every seed",
    "Learning curves",
    "Training losses",
    "Average precision against its quantised form",
    "Random queries: map:laplace",
    "Queries of lowest average precision: map:laplace",
    "Random queries: multi-similarity",
    "Queries of lowest average precision: multi-similarity",
    "Pair weights",
    "Cost of a step",
]


def titles(folder, losses=None):
    figures, _ = draw_figures(read_comparison(folder), losses)
    return [figure.title for figure in figures]


def decoded(source):
    head, data = source.split(",")
    assert head == "data:image/svg+xml;base64"
    return ElementTree.fromstring(base64.b64decode(data))


def test_the_page_holds_its_figures(tmp_path):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path)
    write_report(tmp_path)
    assert titles(tmp_path) == RETRIEVAL_FIGURES
    found = page(tmp_path)
    assert len(found.images) == len(RETRIEVAL_FIGURES)
    for source in found.images:
        image = decoded(source)
        assert min(map(float, image.get("viewBox").split()[2:])) > 100
        assert len(list(image.iter("{http://www.w3.org/2000/svg}path"))) > 10  # something is drawn
    assert [value for tag, name, value in found.attributes if name == "alt"] == RETRIEVAL_FIGURES
    for title in [*RETRIEVAL_FIGURES, "Results", "Differences to multi-similarity", "Settings and cost"]:
        assert title in found.text
    assert "0.610 ± 0.010" in found.text


def test_the_page_loads_nothing(tmp_path):
    write_runs(tmp_path, details=None)
    write_report(tmp_path)
    found = page(tmp_path)
    assert not {"script", "iframe", "object", "embed", "audio", "video"} & set(found.tags)
    for tag, name, value in found.attributes:
        if name in ("src", "href"):
            assert value.startswith("data:"), (tag, value[:80])
        assert not name.startswith("on")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import", text)


def test_names_are_text_and_no_markup(tmp_path):
    hostile = '<img src="http://x.test/a.png" onerror="alert(1)">|`'
    write_runs(tmp_path, details=None, losses={"multi-similarity": 0.5, hostile: 0.4})
    files, _ = write_report(tmp_path, command="<script>alert(2)</script>")
    assert "script" not in page(tmp_path).tags
    assert hostile in page(tmp_path).text
    for _, name, value in page(tmp_path).attributes:
        assert name != "onerror"
        assert "x.test" not in (value or "") or name == "alt"
    rows = [
        line
        for line in files["markdown"].read_text(encoding="utf-8").splitlines()
        if "x.test" in line and line[0] == "|"
    ]
    assert all(line.count(" | ") == rows[0].count(" | ") for line in rows[:1])
    assert "\\|`" in rows[0]


@pytest.mark.parametrize(
    ("task", "metric", "details", "titles_wanted"),
    [
        (
            "memorability",
            "Spearman",
            lambda rng: {"predicted": rng.random(50).astype(np.float32), "true": rng.random(50).astype(np.float32)},
            {"Spearman of every seed", "Predicted against true ranks"},
        ),
        (
            "multi-label",
            "mAP",
            lambda rng: {
                "scores": rng.normal(size=(40, 3)).astype(np.float16),
                "relevant": np.stack([rng.random(40) < 0.3, rng.random(40) < 0.5, np.zeros(40, dtype=bool)], axis=1),
                "known": rng.random((40, 3)) < 0.9,
                "label_names": np.array(["a", "b", "none has this"]),
                "ap": rng.random(3),
            },
            {"mAP of every seed", "Precision and recall"},
        ),
        ("cross-modal", "R@1 mean", lambda rng: retrieval_details(rng, "strip_texts"), {"Random queries: b"}),
    ],
    ids=["memorability", "multi-label", "cross-modal"],
)
def test_figures_of_every_task(tmp_path, task, metric, details, titles_wanted):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path, task=task, losses={"a": 0.3, "b": 0.4}, metrics=(metric,), details=details)
    write_report(tmp_path)
    assert titles_wanted <= set(titles(tmp_path))
    assert len(page(tmp_path).images) == len(titles(tmp_path))
    for source in page(tmp_path).images:
        decoded(source)


def test_a_further_figure_is_a_function_and_an_entry(tmp_path, monkeypatch):
    figures = pytest.importorskip("sodeep.report.figures")
    seen = []

    def draw(source):
        seen.extend((run.loss, run.seed, *sorted(arrays)) for run, arrays in source.details)
        yield figures.Figure(), {"count": len(source.details)}

    def spec(*needs, **options):
        return figures.FigureSpec("{metric} of {count}", "{count}", draw, needs, **options)

    write_runs(tmp_path, seeds=2)
    comparison = read_comparison(tmp_path)
    monkeypatch.setattr(figures, "FIGURES", (spec("ap", "strip_ap"), spec("ap", "not there")))
    assert [(figure.title, figure.caption) for figure in draw_figures(comparison)[0]] == [("mAP of 6", "6")]
    assert seen == [(loss, seed, "ap", "strip_ap") for loss in LOSSES for seed in (0, 1)]
    seen.clear()
    monkeypatch.setattr(figures, "FIGURES", (spec("ap", first_seed=True),))
    assert len(draw_figures(comparison)[0]) == 1
    assert seen == [(loss, 0, "ap") for loss in LOSSES]


def test_a_loss_of_ones_own_gets_pair_weights_when_it_is_given(tmp_path):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path, details=None, losses={"mine:Loss": 0.4})
    assert "Pair weights" not in titles(tmp_path)  # a folder of runs may name anything: its code is not run
    assert "Pair weights" in titles(tmp_path, {"mine:Loss": sodeep.NCALoss()})


def test_pair_weights_of_a_list_that_is_refused():
    figures = pytest.importorskip("sodeep.report.figures")

    def short(scores, relevant):
        if scores.shape[-1] > 100:
            raise ValueError("too long")
        return sodeep.nca_loss(scores, relevant)

    def refuses(scores, relevant):
        raise ValueError("never")

    weights, scores, relevant = figures._weights({"nca": sodeep.nca_loss})
    assert (len(scores), int(relevant.sum()), weights["nca"].shape) == (1000, 200, (1000,))
    weights, scores, _ = figures._weights({"nca": sodeep.nca_loss, "short": short, "refuses": refuses})
    assert (len(scores), list(weights)) == (100, ["nca", "short"])


def test_sums_are_drawn_with_their_weight(tmp_path):
    figures = pytest.importorskip("sodeep.report.figures")
    write_runs(tmp_path, details=None, losses={"bce+map:laplace": 0.4}, metrics=("mAP",), task="multi-label")
    text = (tmp_path / "runs.jsonl").read_text().replace('"lr": 0.001', '"lr": 0.001, "weight": 3.0')
    (tmp_path / "runs.jsonl").write_text(text)
    comparison = read_comparison(tmp_path)
    loss = figures._callables(comparison, {})["bce+map:laplace"]
    scores, relevant = torch.randn(20), torch.rand(20) < 0.5
    rank_fn = with_width(sodeep.laplace_rank, 0.3)  # the default of the range
    bce = torch.nn.functional.binary_cross_entropy_with_logits(scores, relevant.float())
    expected = bce + 3 * sodeep.map_loss(scores, relevant, rank_fn=rank_fn)
    torch.testing.assert_close(loss(scores, relevant), expected)


def test_precision_at_recall():
    """Right at places 1, 3, 6 of 7: precision 1, 2/3, 1/2 where a third, two thirds and all are found."""
    figures = pytest.importorskip("sodeep.report.figures")
    scores, relevant = np.arange(7, 0, -1.0), np.array([1, 0, 1, 0, 0, 1, 0], dtype=bool)
    found = figures._precision_at(np.array([0, 1 / 3, 0.34, 2 / 3, 1]), scores, relevant)
    np.testing.assert_allclose(found, [1, 1, 2 / 3, 2 / 3, 1 / 2])
    # all tied: the precision of the whole list, whatever the order
    np.testing.assert_allclose(figures._precision_at(np.array([0.0, 1.0]), np.zeros(7), relevant), [3 / 7, 3 / 7])
    # a fine grid sums to average precision
    rng = np.random.default_rng(0)
    scores, relevant = rng.random(60), rng.random(60) < 0.3
    grid = (np.arange(relevant.sum()) + 1) / relevant.sum()
    expected = float(average_precision(torch.tensor(scores), torch.tensor(relevant)))
    np.testing.assert_allclose(figures._precision_at(grid, scores, relevant).mean(), expected)


def test_without_matplotlib_the_text_is_complete(tmp_path, monkeypatch):
    write_runs(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [
        name
        for name in sys.modules
        if name.startswith(("matplotlib.", "sodeep._core.plotting", "sodeep.report.plots", "sodeep.report.figures"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("plots", "figures"):
        monkeypatch.delattr(report, name, raising=False)
    files, notes = write_report(tmp_path)
    assert notes == [NO_MATPLOTLIB]
    text = files["markdown"].read_text(encoding="utf-8")
    assert text.endswith(f"\n{NO_MATPLOTLIB}\n")
    assert "| map:laplace | 3 | **0.610 ± 0.010** |" in text
    assert json.loads(files["json"].read_text(encoding="utf-8"))["notes"] == [NO_MATPLOTLIB]
    assert page(tmp_path).images == []
    assert NO_MATPLOTLIB in page(tmp_path).text
    assert "0.610 ± 0.010" in page(tmp_path).text
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_embedding", lambda *_, **__: None)
    assert write_tensorboard(tmp_path, tmp_path / "board") == [NO_MATPLOTLIB]


# ---- in a browser ----------------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(path, tmp_path):
    """The document as the browser built it, and what it wrote to the console."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--proxy-server=127.0.0.1:9", "--enable-logging=stderr",
        "--virtual-time-budget=5000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_page_in_a_browser(tmp_path):
    """No message on the console: neither an error nor a request, which the policy of the page or the proxy refuses."""
    pytest.importorskip("matplotlib")
    write_runs(tmp_path)
    write_report(tmp_path)
    document, console = browse(tmp_path / "report.html", tmp_path)
    assert console == []
    assert document.count("<img") == len(RETRIEVAL_FIGURES)
    # the same page with a script that tells how large its images came out; the page itself allows none
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    script = "document.title = [...document.images].map(i => i.complete && i.naturalWidth).join()"
    text = re.sub(r"<meta http-equiv[^>]*>", "", text).replace(
        "</body>", f"<script>onload = () => {{ {script} }}</script></body>"
    )
    (tmp_path / "asked.html").write_text(text, encoding="utf-8")
    document, _ = browse(tmp_path / "asked.html", tmp_path)
    widths = [int(width) for width in re.search(r"<title>([^<]*)</title>", document)[1].split(",")]
    assert len(widths) == len(RETRIEVAL_FIGURES)
    assert min(widths) > 300


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_browser_would_tell(tmp_path):
    """The check above sees a request that is made."""
    policy = html._POLICY
    (tmp_path / "bad.html").write_text(
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><img src="http://x.test/a.png">'
    )
    _, console = browse(tmp_path / "bad.html", tmp_path)
    assert len(console) > 0


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


def test_tensorboard(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_runs(tmp_path / "runs")
    assert write_tensorboard(tmp_path / "runs", tmp_path / "board") == []
    folder = tmp_path / "board/retrieval/map_laplace"
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    curves = [f"{group}/seed {seed}" for group in ("1 mAP, validation", "2 training loss") for seed in range(3)]
    test = [f"3 test, mean over the seeds/{metric}" for metric in ("R@1", "mAP")]
    assert sorted(tags["scalars"]) == [*curves, *test]
    assert [(event.step, round(event.value, 6)) for event in events.Scalars(curves[1])] == [(10, 0.3), (21, 0.611)]
    assert round(events.Scalars(test[1])[0].value, 6) == 0.61
    plugins = {events.SummaryMetadata(tag).plugin_data.plugin_name for tag in tags["tensors"]}
    hparams = [tag for tag in events.summary_metadata if "hparams" in tag]
    assert sorted(hparams) == [
        "_hparams_/experiment", "_hparams_/session_end_info", "_hparams_/session_start_info",
    ]  # fmt: skip
    assert plugins <= {"text"}
    config = (folder / "projector_config.pbtxt").read_text()
    assert "sprite" in config
    (rows,) = folder.rglob("tensors.tsv")
    assert len(rows.read_text().splitlines()) == 9
    (labels,) = folder.rglob("metadata.tsv")
    assert labels.read_text().splitlines() == ["a b"] * 9
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the whole message is below
        write_tensorboard(tmp_path / "runs", tmp_path / "board")
    assert str(error.value) == (
        f"`log_dir` must not hold retrieval yet, got '{tmp_path / 'board'}'. Choose another, or delete it."
    )
    board = EventAccumulator(str(tmp_path / "board/retrieval"), size_guidance={"images": 0})
    board.Reload()
    assert board.Tags()["images"] == RETRIEVAL_FIGURES


def test_arrays_of_a_run_are_read_once(tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    write_runs(tmp_path / "runs")
    comparison = read_comparison(tmp_path / "runs")
    read, read_npz = [], comparison_read.read_npz
    monkeypatch.setattr(
        comparison_read, "read_npz", lambda path, names: read.append(path.name) or read_npz(path, names)
    )
    report.write_tensorboard(comparison, [], tmp_path / "board")
    assert sorted(read) == [f"{loss}-0.npz" for loss in range(3)]  # of the first seed


def test_tensorboard_precision_and_recall(tmp_path):
    pytest.importorskip("matplotlib")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    def details(rng):
        relevant = np.array([[1, 0], [0, 0], [1, 0], [0, 0]], dtype=bool)
        return {
            "scores": np.array([[4.0, 1], [3, 1], [2, 1], [1, 1]], dtype=np.float16),
            "relevant": relevant,
            "known": np.ones((4, 2), dtype=bool),
            "label_names": np.array(["joy", "none"]),
        }

    write_runs(tmp_path / "runs", task="multi-label", losses={"bce": 0.4}, seeds=1, metrics=("mAP",), details=details)
    write_tensorboard(tmp_path / "runs", tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board/multi-label/bce"))
    events.Reload()
    tags = [tag for tag in events.Tags()["tensors"] if "precision" in tag]
    assert tags == ["precision and recall/joy"]
    values = make_ndarray(events.Tensors(tags[0])[0].tensor_proto)
    precision, recall = values[-2:]
    assert {(round(float(p), 2), round(float(r), 2)) for p, r in zip(precision, recall, strict=True)} >= {
        (0.5, 1.0), (0.67, 1.0), (0.5, 0.5), (1.0, 0.5),
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"[]]", b"\xff", b"3", b"[" * 100_000])
def test_a_damaged_comparison_names_its_file(tmp_path, content):
    write_runs(tmp_path)
    (tmp_path / "comparison.json").write_bytes(content)
    path = re.escape(str(tmp_path / "comparison.json"))
    with pytest.raises(
        ValueError, match=f"^{path} must be the JSON object that describes a comparison, got another file"
    ):
        write_report(tmp_path)


def test_damaged_details_name_their_file(tmp_path):
    write_runs(tmp_path)
    path = tmp_path / "details/0-1.npz"
    path.write_bytes(path.read_bytes()[:1000])
    message = (
        f"{path} must hold the arrays of a test: it is no npz file, or a damaged one (File is not a zip file). "
        "Delete it."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        write_report(tmp_path)


# ---- definitions and limits of axes ----------------------------------------------------------------------------------


def test_every_metric_of_every_task_is_defined():
    for task in TASKS.values():
        for metric in task.metrics:
            assert definitions([metric]), (task.name, metric)


def test_wide_tables_are_shown_in_parts(tmp_path):
    metrics = list(TASKS["retrieval"].metrics)
    write_runs(tmp_path, details=None, metrics=metrics)
    write_text(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    tables_ = re.findall(r"<table>.*?</table>", text, re.DOTALL)
    assert len(tables_) > 5  # more than there are titles
    for metric in metrics:
        assert sum(f">{metric} ↑<" in table for table in tables_) == 2  # results and differences
    for table in tables_:
        rows = [re.sub(r"<[^>]*>", "", row) for row in table.split("<tr>")]
        assert max(map(len, rows)) < html.WIDTH


def test_a_loss_far_from_the_others_is_written_at_the_edge():
    pytest.importorskip("matplotlib")
    from sodeep.report.plots import plot_seeds

    values = {"a": [0.70, 0.72], "b": [0.71, 0.73], "c": [0.69, 0.74], "untrained": [0.0, 0.02]}
    intervals = {"b": (0.01, -0.02, 0.03), "c": (0.0, -0.03, 0.03), "untrained": (-0.7, -0.75, -0.65)}
    left, right = plot_seeds(values, intervals, "mAP", "a").axes
    assert 0.6 < left.get_xlim()[0] < 0.69
    assert [text.get_text() for text in left.texts] == ["← 0.01"]
    assert -0.1 < right.get_xlim()[0] < -0.03
    assert [text.get_text() for text in right.texts] == ["← \N{MINUS SIGN}0.7"]
    assert not list(plot_seeds({"a": [0.1], "b": [0.2], "c": [0.35]}, {}, "mAP", "a").axes[0].texts)


def test_a_spike_leaves_the_panel():
    pytest.importorskip("matplotlib")
    from sodeep.report.plots import plot_training_losses

    curve = [(step, 1e6 if step == 3 else 1.0 / (1 + step)) for step in range(200)]
    (axis,) = plot_training_losses({"a": [curve]}).axes
    assert axis.get_ylim()[1] < 2


def test_names_are_drawn_as_they_are(tmp_path):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path, details=None, losses={"multi-similarity": 0.5, "a $\\euro$ \x07": 0.4})
    write_report(tmp_path)
    text = "".join(decoded(page(tmp_path).images[0]).itertext())
    assert "a $\\euro$ ?" in text


def test_a_number_without_a_scale_stays_short():
    assert tables.number_text(1e300) == "1e+300"
    assert tables.number_text(-2.5e7, signed=True) == "-2.5e+07"
