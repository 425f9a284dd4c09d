"""README.md and docs/: the Python runs and prints what is shown, commands exist, figures are those measured."""

import contextlib
import csv
import io
import json
import re
import shlex
from pathlib import Path

import click
import pytest

import sodeep
from sodeep._core.search import Choice
from sodeep.cli.group import main
from sodeep.comparison.losses_by_name import LOSSES, METHODS, PEERS, RANK_LOSSES, WIDTH, WIDTHS
from sodeep.tasks import TASKS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/api").glob("*.md"))]
COMMANDS = [
    pytest.param(line.strip(), id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, line in enumerate(page.read_text().splitlines(), 1)
    if line.startswith("    sodeep ")
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


NEEDS = {"adapters.md": ("pytorch_metric_learning", "torchmetrics", "sklearn")}
"""What the Python of a page imports beside what a plain install brings."""


@every_page
def test_python_prints_what_is_shown(page, tmp_path, monkeypatch):
    """The blocks of a page share their names. What a block prints is shown in the text block after it."""
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    names = {"__name__": "__main__"}
    for (language, code), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=False):
        if language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page.name, "exec"), names)
            assert printed.getvalue() == (shown if following == "text" else "")


@pytest.mark.parametrize("line", COMMANDS)
def test_command_exists(monkeypatch, line):
    """With every option, and values that the options take; arguments that name files need not be there."""
    name, *words = shlex.split(line, comments=True)[1:]
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    for parameter in command.params:
        if isinstance(parameter.type, click.Path | click.File):
            monkeypatch.setattr(parameter, "type", click.STRING)
    command.make_context(name, words)


@every_page
def test_options_in_the_text_exist(page):
    options = {name for command in main.commands.values() for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", page.read_text())) <= options


def headings(page):
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@every_page
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?(.*?)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target
        assert not anchor or anchor in headings(page.parent / target if target else page), anchor


def test_every_page_is_in_the_index():
    """Once: the contents of the site are made of it."""
    index = (ROOT / "docs" / "README.md").read_text()
    listed = [ROOT / "docs" / name for name in re.findall(r"^\* \[.*?\]\((?!\.\.)(.*?\.md)\)", index, re.M)]
    assert sorted(listed) == sorted({*PAGES} - {ROOT / "README.md", ROOT / "docs/README.md"})


def test_every_public_name_is_on_one_api_page():
    described = []
    for page in (ROOT / "docs/api").glob("*.md"):
        described += re.findall(r"^\.\. (?:auto\w+|py:data):: (?:sodeep\.)?(\S+)$", page.read_text(), re.MULTILINE)
    modules = {"comparison", "groups", "sorters", "tasks"}  # described, but not names of the package
    assert sorted(name for name in described if "." not in name) == sorted({*sodeep.__all__, *modules})


def test_tags_of_a_training_are_those_of_the_page(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = sodeep.TrainConfig(sorter="set", lengths=(5, 10), steps=2, batch_size=4, device="cpu")
    sodeep.train_sorter(config, out=tmp_path / "set.safetensors", log_dir=tmp_path / "log")
    page = (ROOT / "docs/tensorboard.md").read_text().split("## A comparison")[0]
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    shown = {tag.replace("NAME", "normal") for row in rows for tag in re.findall(r"`(.*?)`", row)}
    log = EventAccumulator(str(tmp_path / "log")).Reload()
    written = {*log.Tags()["scalars"], *log.Tags()["images"], "sorter"}  # the figure needs matplotlib
    assert shown <= written
    assert {tag for tag in written if not tag.startswith("error by distribution/")} <= shown


def test_rank_functions_of_the_readme_are_as_measured():
    measured = {
        (row["function"], row["setting"]): (float(row["error"]), float(row["score_30"]))
        for row in csv.DictReader((ROOT / "docs" / "pareto_front.csv").read_text().splitlines())
        if (row["n"], row["lists"]) == ("100", "ordinary")
    }
    settings = {
        "laplace_rank": ("laplace", "std/6.8"),
        "sigmoid_rank": ("sigmoid", "std/6.8"),
        'load_sorter("set")': ("sorter", "set"),
        "blackbox_rank": ("blackbox", "default"),
        "straight_through(laplace_rank)": ("straight-through laplace", "std/6.8"),
    }
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"^\| `(.*?)` \| [\w, ]+ \| ([\d.]+) \| ([\d.]+) \|", readme, re.MULTILINE)
    assert {name: (float(error), float(score)) for name, error, score in shown} == {
        name: measured[setting] for name, setting in settings.items()
    }


def test_accuracies_of_the_guide_are_those_of_the_cards():
    guide = (ROOT / "docs" / "rank_functions.md").read_text()
    for name in ("set", "lstm", "cnn"):
        card = json.loads((ROOT / "pretrained" / f"{name}.json").read_text())["results"][0]
        by_kind = [card["by_distribution"][kind] for kind in ("heavy-tailed", "clusters", "bimodal")]
        errors = [card["errors"].get(n) for n in ("30", "100", "1000")] + by_kind
        cells = ["" if error is None else f"{error:.4f}" for error in errors]
        cells += [f"{card['optimization_score'][steps]:.3f}" for steps in ("30", "100")]
        row = re.search(rf"^\| \*\*{name}\*\* \|(.*)\|$", guide, re.MULTILINE)
        assert [cell.strip() for cell in row[1].split("|")] == cells


def test_every_loss_is_in_the_guide():
    guide = (ROOT / "docs" / "losses.md").read_text()
    shown = re.findall(r"^\| `(\w+Loss)", guide, re.MULTILINE)
    assert sorted(shown) == sorted(
        name for name in sodeep.__all__ if name.endswith("Loss") and name not in ("EmbeddingLoss", "CrossModalLoss")
    )


def test_every_metric_is_in_the_readme():
    row = re.search(r"^\| exact metrics \|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", row[1])) == sorted({*sodeep.metrics.__all__} - {"UndefinedMetricWarning"})


def rows_of(text):
    """Loss -> the cells of its rows in all tables of a Markdown text."""
    rows = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *cells = (cell.strip().strip("*`") for cell in line.strip("|").split(" | "))
            if first != "loss":
                rows.setdefault(first, []).extend(cells)
    return rows


def test_results_quote_their_reports():
    text = (ROOT / "docs/results.md").read_text()
    sections = re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]
    quoted = 0
    for section in sections:
        ours = re.split(r"^\*\*Published", section, flags=re.MULTILINE)[0]
        reports = [
            rows_of((ROOT / "docs/results" / name).read_text())
            for name in re.findall(r"\(results/([\w-]+\.md)\)", ours)
        ]
        for loss, cells in rows_of(ours).items() if reports else ():
            if any(loss in rows for rows in reports):
                found = {cell for rows in reports for cell in rows.get(loss, ())}
                numbers = [cell for cell in cells if re.search(r"\d", cell)]
            else:  # a table of one loss on several data: its rows are named otherwise
                found = {cell for rows in reports for some in rows.values() for cell in some}
                numbers = [cell for cell in (cell.strip("*") for cell in cells) if re.search(r"\d ±|\d \[", cell)]
                found = {cell.strip("*") for cell in found}
            assert found or not numbers, f"{loss} is in no report of {section.splitlines()[0]}"
            assert [cell for cell in numbers if cell not in found] == []
            quoted += len(numbers)
    assert quoted > 20


def test_results_name_the_losses_that_they_use():
    """One row for each loss, part of a sum and rank function in a table of docs/results, and none for others."""
    section = (ROOT / "docs/results.md").read_text().partition("## Names of the losses")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    names = {name for first, _ in rows for name in re.findall("`([^`]+)`", first)} - {"A+B", "A,B"}
    (text,) = (second for first, second in rows if "spearman:RANK" in first)
    ranks = set(re.findall("`([^`]+)`", text.partition("rank function")[2]))
    used = {
        part
        for file in (ROOT / "docs/results").glob("*.json")
        for loss in json.loads(file.read_text())["losses"]
        for part in re.split("[+,]", loss)
    }
    assert names == {part if part.startswith("peer:") else re.sub(":.*", ":RANK", part) for part in used}
    assert ranks == {part.partition(":")[2] for part in used if ":" in part and not part.startswith("peer:")}


def searched_text(ranges):
    return "; ".join(
        f"{name} {' or '.join(map(str, values.values))}"
        if isinstance(values, Choice)
        else f"{name} {values.low:g} to {values.high:g}" + ", or 0" * values.zero
        for name, values in ranges.items()
    )


def test_ranges_are_those_of_the_docs():
    specs = {
        **LOSSES,
        **{f"{name}:RANK": spec for name, spec in RANK_LOSSES.items()},
        **{f"peer:{name}": spec for name, (_, spec) in PEERS.items()},
        **METHODS,
    }
    by_ranges = {}
    for name, spec in specs.items():
        tasks = [task for task in TASKS.values() if spec.method in task.methods] if spec.method else [TASKS["toy"]]
        ranges = spec.all_ranges(tasks[0]) if spec.method else spec.ranges
        if ranges:
            by_ranges.setdefault(searched_text(ranges), []).append(f"`{name}`")
    expected = [f"| {', '.join(names)} | {text} |" for text, names in by_ranges.items()]
    expected.append(f"| RANK, where it has one | {searched_text({'width': WIDTH})} |")
    expected += [f"| RANK of `{loss}:RANK` | {searched_text({'width': width})} |" for loss, width in WIDTHS.items()]
    lines = (ROOT / "docs/comparison.md").read_text().splitlines()
    assert [line for line in expected if line not in lines] == []


def test_tasks_are_trained_as_the_docs_say():
    text = (ROOT / "docs/comparison.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| (\d,\d+)(?: steps)? \| (\d+) \| (.*) \|$", text, re.MULTILINE)
    assert [name for name, *_ in rows] == list(TASKS)
    for name, steps, every, searched in rows:
        task = TASKS[name]
        assert (int(steps.replace(",", "")), int(every)) == (task.max_steps, task.validate_every)
        if name != "toy":
            texts = [f"{setting.replace('_', ' ')} {x.low:g} to {x.high:g}" for setting, x in task.ranges.items()]
            assert searched == ", ".join(texts)
    assert TASKS["toy"].ranges == TASKS["multi-label"].ranges
