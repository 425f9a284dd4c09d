#!/usr/bin/env python3
"""The comparisons that docs/results.md quotes: run them, or go on, and put their reports into docs/results/.

    scripts/make_results.py                                        # what there is, with its commands
    scripts/make_results.py all --data-root DIR --jobs 2           # everything; several nights on two cores
    scripts/make_results.py all --data-root DIR --hours 8          # as far as one night gets; again goes on
    SODEEP_DATA=DIR scripts/make_results.py batch-size             # several comparisons, then one table of them
    scripts/make_results.py all --data-root DIR --quick --loss my:Loss  # a loss that changed, in ten minutes
    scripts/make_results.py toy --trial                            # tries the script: two seeds, a few steps

A comparison is one `sodeep compare` command and keeps its runs in runs/results/NAME, with its full report: the same
command again goes on where it was stopped. NAME.md, NAME.json and two small figures are copied, and the runs without
their arrays to docs/results/runs/NAME, finished or not: from there a comparison goes on where runs/ is gone. No real
data are copied.
"""

import datetime
import gzip
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from _machine import cpu

from sodeep._core.files import write_atomic
from sodeep.comparison.losses_by_name import RANKS, loss_by_name
from sodeep.comparison.read import Comparison, read_comparison
from sodeep.comparison.runs import read_runs
from sodeep.comparison.statistics import summarise
from sodeep.report.tables import difference_text
from sodeep.report.write import draw_figures
from sodeep.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
DATA = {
    "sentence_memorability": "sentence_memorability_data.csv, github.com/thomashikaru/sentence_memorability_share",
    "omniglot_small": "images_background_small1.zip and _small2.zip, github.com/brendenlake/omniglot",
    "clothing_small_64px": "an .npz of jpeg, offset and label: photos of ten kinds of clothing",
    "emoji": "emoji.npz and emoji.tsv, from npm emoji-datasource (images) and emojibase-data (names, keywords)",
    "ltr_small": "rank.train, rank.test and their .query, github.com/microsoft/LightGBM, examples/lambdarank",
    "goemotions": "labels.txt and three .tsv, github.com/google-research/google-research/tree/master/goemotions",
}
"""Folders under the data root, and what is in them."""

REGRESSION = (
    "--loss mse --loss mse-ranks --loss mse-normal-scores --loss pearson --loss ridge --loss untrained "
    "--loss spearman:laplace --loss spearman:straight-through --loss spearman:set --loss spearman:sigmoid-fixed "
    "--loss mse-normal-scores+spearman:laplace --loss mse-normal-scores+spearman:set --loss peer:torchsort"
)
RETRIEVAL = (
    "--loss multi-similarity --loss nt-xent --loss triplet --loss smooth-ap --loss quantized-ap "
    "--loss map:laplace --loss map:set --loss raw --loss untrained"
)
CAPTIONS = (
    "--loss triplet-hard --loss triplet --loss nt-xent --loss smooth-ap --loss recall:laplace --loss recall:set "
    "--loss triplet,recall:laplace --loss triplet,recall:set --loss triplet-hard+asp --loss untrained"
)
LABELS = "--baseline bce,bce --loss bce --loss bce,bce --loss bce,bce+map:laplace"

RANKING = (
    "--loss mse --loss ranknet --loss listmle --loss lambdarank --loss softmax --loss ndcg:laplace --loss ndcg:set "
    "--loss spearman:laplace --loss spearman:set --loss mse+ndcg:laplace --loss ridge --loss untrained "
    "--loss peer:lightgbm"
)

OMNIGLOT = "retrieval --data $SODEEP_DATA/omniglot_small --seeds 5"

EMOJI = "cross-modal --data $SODEEP_DATA/emoji --image-features efficientnet-lite0"

RESULTS = {
    "sentences": {
        "": "memorability --data $SODEEP_DATA/sentence_memorability --text-features wordllama --seeds 8 "
        f"--search-seeds 0 --trials 8 {REGRESSION}"
    },
    "diabetes": {
        "": f"memorability --data runs/results/diabetes.csv --seeds 8 --search-seeds 4 --trials 8 {REGRESSION}"
    },
    "emoji": {"": f"{EMOJI} --seeds 5 --trials 6 {CAPTIONS}"},
    # how much the width of the recall loss's ranks matters
    "emoji-narrow": {
        "": f"{EMOJI} --seeds 5 --trials 6 --range width=0.05:2 --loss triplet-hard --loss triplet "
        "--loss recall:laplace --loss recall:set --loss triplet,recall:laplace --loss triplet,recall:set"
    },
    "clothing": {
        "": "retrieval --data $SODEEP_DATA/clothing_small_64px --image-features efficientnet-lite0 --seeds 8 "
        f"--trials 8 --range lr=0.00002:0.02 --range alpha=0.1:10 {RETRIEVAL}"
    },
    "omniglot": {
        "": f"{OMNIGLOT} --patience 4 --trials 4 --loss nt-xent --loss smooth-ap --loss map:laplace "
        "--loss map:set --loss raw --loss untrained"
    },
    # an AP of a batch needs a batch with some items of a rare label
    "goemotions": {
        "": "multi-label --data $SODEEP_DATA/goemotions --batch-size 500 --max-steps 15000 --patience 4 --seeds 5 "
        f"--trials 4 {LABELS}"
    },
    # five times five folds
    "ranking": {
        "": f"ranking --data $SODEEP_DATA/ltr_small --folds 5 --seeds 25 --search-seeds 2 --trials 8 {RANKING}"
    },
    # whether a search twice as long, or wider, changes what the first one says
    "toy": {
        "8": "toy --seeds 8 --trials 8",
        "16": "toy --seeds 8 --trials 16",
        "16-wide": "toy --seeds 8 --trials 16 --range lr=0.001:1 --range weight_decay=1e-5:3 --range width=0.01:4",
    },
    # Wang et al. 2019, supplement, tables 1 and 2: at equal steps, and trained until flat
    "batch-size": {
        f"{size}{name}": f"{OMNIGLOT} --trials 3 --loss multi-similarity --batch-size {size}{length}"
        for size in (20, 80, 240)
        for name, length in (("-steps", " --max-steps 500 --patience 0"), ("-flat", " --patience 4"))
    },
    # what semantic scores are made of (Li et al. 2022, appendix); without asp they make no difference
    "semantic": {
        score: f"{EMOJI} --seeds 5 --trials 4{plain} --loss triplet-hard+asp --semantic {score}"
        for score, plain in (("class", " --loss triplet-hard"), ("mean", ""))
    },
    # how many captions there are to train on (the same, Table 2)
    "captions-kept": {
        f"{count}": f"{EMOJI} --seeds 5 --trials 3 --loss triplet-hard --loss triplet-hard+asp --captions-kept {count}"
        for count in (1, 5)
    },
    "contributing": {"": "scripts/count_contributing_pairs.py --data $SODEEP_DATA/emoji"},
}
"""Name -> its comparisons: options of `sodeep compare`, one comparison or several that are set side by side."""

QUICK = "--seeds 2 --search-seeds 1 --trials 2 --max-steps 300"
"""Of every comparison with --quick: enough to see a loss that fails, not to rank losses that work."""

FIGURES = {"of every seed": "seeds", "Average precision against its quantised form": "ap"}
"""Those copied: part of the title -> end of the file name."""


def prepare_diabetes() -> None:
    """scikit-learn's diabetes records: ten measurements, and the disease's progress after a year as the score."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    file = ROOT / "runs/results/diabetes.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    table = np.column_stack([data.target, data.data])
    np.savetxt(file, table, "%.10g", ",", header=",".join(["score", *data.feature_names]), comments="")


def arguments_of(command: str, root: Path | None) -> tuple[list[str], list[str]]:
    """The words of a command, for this machine; losses that are not shipped or installed are left out, and said."""
    words = shlex.split(command)
    kept: list[str] = []
    left_out: list[str] = []
    for place, word in enumerate(words):
        if word == "--loss" or (place and words[place - 1] == "--loss"):
            loss = words[place + (word == "--loss")]
            try:
                loss_by_name(loss)
            except (ValueError, ModuleNotFoundError):
                left_out += [loss] * (word != "--loss")
                continue
        kept.append(word)
    if left_out:
        click.echo(f"Left out, since not shipped or not installed: {', '.join(left_out)}", err=True)
    return kept, [word.replace("$SODEEP_DATA", str(root)) for word in kept]


def check_data(name: str, root: Path | None) -> None:
    """The folders that the commands of a result name are there."""
    needed = [folder for folder in DATA if any(f"$SODEEP_DATA/{folder}" in text for text in RESULTS[name].values())]
    for folder in needed:
        if root is None or not (root / folder).is_dir():
            place = "--data-root DIR or SODEEP_DATA" if root is None else f"--data-root {root}"
            raise click.UsageError(f"{name} needs {place} with a folder {folder}: {DATA[folder]}.")


def only(command: str, losses: Sequence[str]) -> str:
    """A command with these losses alone, and its first one as the baseline; the losses that it does not take are left.

    >>> only("toy --loss a --seeds 2 --loss b", ["c"])
    'toy --seeds 2 --loss a --loss c'
    """
    words = command.split()
    named = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--loss"]
    rest = [word for i, word in enumerate(words) if word != "--loss" and (i == 0 or words[i - 1] != "--loss")]
    task = TASKS[words[0]]
    first = named[0] if named else task.baseline
    specs = {loss: loss_by_name(loss) for loss in losses}
    fitting = [
        loss
        for loss, spec in specs.items()
        if spec.signatures <= {"", *task.accepts} and (not spec.method or spec.method in task.methods)
    ]
    return " ".join([*rest, *(f"--loss {loss}" for loss in dict.fromkeys([first, *fitting]))])


def keep_runs(folder: Path, kept: Path) -> bool:
    """Copy the runs of a comparison without their arrays and training curves, so that it can go on elsewhere.

    Whether there are others than before.
    """
    if not (folder / "runs.jsonl").exists():
        return False
    lines = []
    for run in read_runs(folder):
        curve = f"val/{TASKS[run.task].primary_metric}"
        curves = {curve: run.curves[curve]} if run.stage == "test" and curve in run.curves else {}
        lines.append(replace(run, curves=curves, details=None).to_json())
    kept.mkdir(parents=True, exist_ok=True)
    content = "\n".join([*lines, ""]).encode()
    file = kept / "runs.jsonl.gz"
    changed = not file.exists() or gzip.decompress(file.read_bytes()) != content
    write_atomic(file, gzip.compress(content, mtime=0))
    write_atomic(kept / "comparison.json", (folder / "comparison.json").read_bytes().rstrip() + b"\n")
    return changed


def restore_runs(kept: Path, folder: Path) -> None:
    """The opposite, where the comparison has no runs of its own."""
    if (folder / "runs.jsonl").exists() or not (kept / "runs.jsonl.gz").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "runs.jsonl", gzip.decompress((kept / "runs.jsonl.gz").read_bytes()))
    shutil.copy(kept / "comparison.json", folder / "comparison.json")


def measurements(folder: Path, shown: str) -> dict[str, Any]:
    """The measurements of a comparison without its curves: means, differences, and the value of every seed."""
    report = json.loads((folder / "report.json").read_text())
    made = json.loads((folder / "comparison.json").read_text())
    (comparison,) = report["comparisons"]
    tested = read_comparison(folder).tested
    for loss, entry in comparison["losses"].items():
        runs = tested.get(loss, [])
        for metric, cell in entry["metrics"].items():
            cell["seeds"] = [run.metrics[metric] for run in runs if metric in run.metrics]
        aps = [correlation_of_ap(folder / run.details) for run in runs if run.details]
        if any(value is not None for value in aps):
            entry["correlation of AP and quantised AP"] = [value for value in aps if value is not None]
    del comparison["runs"]
    when = datetime.date.fromtimestamp((folder / "runs.jsonl").stat().st_mtime)
    origin = {
        "machine": cpu(),
        "date": str(when),
        **{k: made[k] for k in ("max_steps", "patience", "batch_size", "sodeep", "torch")},
    }
    result: dict[str, Any] = rounded({"command": shown, **origin, **comparison})
    return result


def learned_against_handcrafted(comparison: Comparison) -> str:
    """A table of paired differences between a loss on the set sorter and the same loss on each handcrafted rank."""
    metric = comparison.primary_metric
    lines = []
    for learned in (loss for loss in comparison.tested if ":set" in loss):
        for rank in RANKS:
            other = learned.replace(":set", f":{rank}")
            if other in comparison.tested:
                cell = summarise(comparison.runs, other, metric).cells[learned, metric]
                lines.append(f"| {learned} | {other} | {difference_text(cell)} |")
    if not lines:
        return ""
    note = "Mean and 95% interval, as in the table of differences; alone, with no correction for the number of losses."
    head = f"| loss | less that | {metric} |\n|---|---|---:|"
    return "\n".join(["", "## On a learned rank, and on a handcrafted one", "", head, *lines, "", note, ""])


def correlation_of_ap(file: Path) -> float | None:
    """Of one tested run, over its queries; None where there are none."""
    with np.load(file, allow_pickle=False) as arrays, np.errstate(invalid="ignore"):  # NaN where all are the same
        return float(np.corrcoef(arrays["ap"], arrays["ap_quantized"])[0, 1]) if "ap_quantized" in arrays else None


def rounded(value: Any) -> Any:
    """Five significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def compared(
    name: str, command: str, root: Path | None, jobs: int | None, out: Path, runs: Path, end: float | None
) -> dict[str, Any]:
    """Run a comparison or go on with it, and copy its report. Returns its measurements; ends the script at `end`."""
    folder = runs / name
    words, arguments = arguments_of(command, root)
    shown = f"sodeep compare {' '.join(words)}"
    ran = ["compare", *arguments, "--out", str(folder), *(["--jobs", str(jobs)] if jobs else [])]
    click.echo(f"== {name}: {shown}")
    kept = out / "runs" / name
    restore_runs(kept, folder)
    process = subprocess.Popen([sys.executable, "-m", "sodeep", *ran], cwd=ROOT)
    try:
        code = process.wait(None if end is None else max(1.0, end - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)  # it keeps what is done
        code = process.wait()
    changed = keep_runs(folder, kept)
    if code:
        raise click.exceptions.Exit(code)
    made = out / f"{name}.json"
    if not changed and made.exists():
        before: dict[str, Any] = json.loads(made.read_text())
        if before["command"] == shown:
            return before  # with the figures of arrays that may be gone by now
    measured = measurements(folder, shown)
    made.write_text(json.dumps(measured, separators=(",", ":")) + "\n")
    text = (folder / "report.md").read_text().replace(f"sodeep {shlex.join(ran)}", shown)
    text = text.replace("Figures: report.html.\n", f"Run on {measured['machine']}, {measured['date']}.\n")
    comparison = read_comparison(folder)
    text += learned_against_handcrafted(comparison)
    for drawn in draw_figures(comparison)[0]:
        ending = next((ending for title, ending in FIGURES.items() if title in drawn.title), None)
        if ending is not None:
            file = out / f"{name}-{ending}.png"
            drawn.figure.savefig(file, dpi=80, metadata={"Software": None})
            text += f"\n![{drawn.title}]({file.name})\n\n{drawn.caption}\n"
    (out / f"{name}.md").write_text(text)
    return measured


def side_by_side(name: str, measured: Mapping[str, dict[str, Any]]) -> str:
    """One table of several comparisons, a line for each loss of each."""
    metrics = next(iter(measured.values()))["higher_is_better"]
    lines = [
        f"# {name}: side by side",
        "",
        "Mean ± standard deviation over the seeds, on the test split. One comparison each, with its own table:",
        ", ".join(f"[{key}]({name}-{key}.md)" for key in measured) + ".",
        "",
        f"| {name} | loss | seeds | " + " | ".join(f"{m} {'↑' if up else '↓'}" for m, up in metrics.items()) + " |",
        "|---|---|---:|" + "---:|" * len(metrics),
    ]
    for key, comparison in measured.items():
        for loss, entry in comparison["losses"].items():
            cells = [entry["metrics"].get(metric) for metric in metrics]
            seeds = max((cell["n"] for cell in cells if cell), default=0)
            lines.append(f"| {key} | {loss} | {seeds} | " + " | ".join(map(mean, cells)) + " |")
    return "\n".join(lines) + "\n"


def mean(cell: dict[str, Any] | None) -> str:
    """Mean ± standard deviation, as in a cell of the table."""
    if cell is None:
        return "-"
    return f"{cell['mean']:.3f}" + (f" ± {cell['sd']:.3f}" if cell["sd"] is not None else "")


def counted(command: str, root: Path | None, out: Path) -> None:
    """Run the count of contributing pairs, which is no comparison."""
    script, *options = shlex.split(command.replace("$SODEEP_DATA", str(root)))
    click.echo(f"== {command}")
    subprocess.run([sys.executable, ROOT / script, *options, "--out", out / "contributing.md"], cwd=ROOT, check=True)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(["all", *RESULTS]))
@click.option(
    "--data-root", type=click.Path(path_type=Path), envvar="SODEEP_DATA", help="Of the data sets.  [env: SODEEP_DATA]"
)
@click.option("--jobs", type=click.IntRange(1), help="As of sodeep compare.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="Stop after so long; again goes on.")
@click.option("--out", type=click.Path(path_type=Path), help="[default: docs/results]")
@click.option("--runs", type=click.Path(path_type=Path), help="Folder of the comparisons.  [default: runs/results]")
@click.option("--loss", "losses", multiple=True, help="Only this loss and the baseline, where it fits; repeatable.")
@click.option("--quick", is_flag=True, help=f"With {QUICK}, into runs/quick: for a changed loss.")
@click.option("--trial", is_flag=True, help="Two seeds and ten steps, into runs/trial: tries the script.")
def main(
    names: tuple[str, ...],
    data_root: Path | None,
    jobs: int | None,
    hours: float | None,
    out: Path | None,
    runs: Path | None,
    losses: tuple[str, ...],
    quick: bool,
    trial: bool,
) -> None:
    """Make the results NAMES, or all; without any, list them."""
    if not names:
        for name, commands in RESULTS.items():
            click.echo(name)
            for command in commands.values():
                click.echo(f"    {command if command.startswith('scripts/') else f'sodeep compare {command}'}")
        return
    chosen = list(RESULTS) if "all" in names else list(dict.fromkeys(names))
    for name in chosen:
        check_data(name, data_root)
    root = data_root and data_root.resolve()
    place = "trial" if trial else "quick" if quick else ""
    out = out or ROOT / (f"runs/{place}/docs" if place else "docs/results")
    runs = runs or ROOT / f"runs/{place or 'results'}"
    out.mkdir(parents=True, exist_ok=True)
    end = None if hours is None else time.monotonic() + 3600 * hours
    shortened = " --seeds 2 --search-seeds 1 --trials 2 --max-steps 10" * trial + f" {QUICK}" * quick
    for name in chosen:
        if name == "contributing":
            if not losses:
                counted(RESULTS[name][""], root, out)
            continue
        if name == "diabetes":
            prepare_diabetes()
        measured: dict[str, dict[str, Any]] = {}
        for key, command in RESULTS[name].items():
            command = (only(command, losses) if losses else command) + shortened
            label = f"{name}-{key}" if key else name
            if label == "toy-16":  # the longer search goes on from the shorter one
                restore_runs(out / "runs/toy-8", runs / label)
            measured[key] = compared(label, command, root, jobs, out, runs, end)
        if len(measured) > 1:
            (out / f"{name}.md").write_text(side_by_side(name, measured))
    click.echo(f"In {out}: {sum(file.stat().st_size for file in out.rglob('*') if file.is_file()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
