#!/usr/bin/env python3
"""The comparisons that docs/results.md quotes: run them, or go on, and put their reports into docs/results/.

    scripts/make_results.py                                            # what there is, with its commands
    scripts/make_results.py sentences omniglot --data-root DIR --jobs 2
    SODEEP_DATA=DIR scripts/make_results.py batch-size                 # five comparisons, then one table of them
    scripts/make_results.py toy --trial                                # tries the script: two seeds, one epoch

A comparison is one `sodeep compare` command and keeps its runs in runs/results/NAME, with its full report: the same
command again goes on where it was stopped. NAME.md, NAME.json and two small figures are copied. No real data are.
"""

import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from _machine import cpu

from sodeep.comparison.losses_by_name import loss_by_name
from sodeep.comparison.read import read_comparison
from sodeep.report.write import draw_figures

ROOT = Path(__file__).resolve().parents[1]
DATA = {
    "sentence_memorability": "sentence_memorability_data.csv, github.com/thomashikaru/sentence_memorability_share",
    "omniglot_small": "images_background_small1.zip and _small2.zip, github.com/brendenlake/omniglot",
    "clothing_small_64px": "an .npz of jpeg, offset and label: photos of ten kinds of clothing",
    "emoji": "emoji.npz and emoji.tsv, from npm emoji-datasource (images) and emojibase-data (names, keywords)",
    "goemotions": "labels.txt and three .tsv, github.com/google-research/google-research/tree/master/goemotions",
}
"""Folders under the data root, and what is in them."""

REGRESSION = (
    "--loss mse --loss l1 --loss spearman:laplace --loss spearman:sigmoid --loss spearman:blackbox "
    "--loss spearman:straight-through --loss spearman:set --loss spearman:lstm --loss spearman:cnn "
    "--loss peer:torchsort --loss peer:torchsort-0.1"
)
RETRIEVAL = (
    "--loss multi-similarity --loss nt-xent --loss triplet --loss contrastive --loss smooth-ap --loss quantized-ap "
    "--loss map:laplace --loss map:set"
)

LABELS = "--loss bce --loss bce+map:laplace --loss bce+map:set --loss bce+smooth-ap"

RESULTS = {
    "sentences": {"": f"memorability --data $SODEEP_DATA/sentence_memorability --seeds 10 {REGRESSION}"},
    "diabetes": {"": f"memorability --data runs/results/diabetes.csv --epochs 150 --seeds 10 {REGRESSION}"},
    "omniglot": {
        "": f"retrieval --data $SODEEP_DATA/omniglot_small --epochs 25 --seeds 5 {RETRIEVAL} "
        "--loss peer:multi-similarity"
    },
    "clothing": {"": f"retrieval --data $SODEEP_DATA/clothing_small_64px --epochs 6 --seeds 3 {RETRIEVAL}"},
    "emoji": {"": "cross-modal --data $SODEEP_DATA/emoji --epochs 15 --seeds 5"},
    "goemotions": {"": f"multi-label --data $SODEEP_DATA/goemotions --epochs 3 --seeds 5 {LABELS}"},
    "toy": {"": "toy --seeds 10"},
    # as many epochs, so fewer steps the larger the batch (Wang et al. 2019, supplement, tables 1 and 2)
    "batch-size": {
        f"{size}": "retrieval --data $SODEEP_DATA/omniglot_small --epochs 12 --seeds 3 --loss multi-similarity "
        f"--batch-size {size}"
        for size in (20, 80, 320)
    },
    # what semantic scores are made of (Li et al. 2022, appendix); without asp they make no difference
    "semantic": {
        score: f"cross-modal --data $SODEEP_DATA/emoji --epochs 15 --seeds 3{plain} --loss triplet-hard+asp "
        f"--semantic {score}"
        for score, plain in (("overlap", " --loss triplet-hard"), ("cider", ""), ("bleu", ""), ("rouge-l", ""))
    },
    # how much of the training split there is (the same)
    "train-fraction": {
        f"{percent}": "cross-modal --data $SODEEP_DATA/emoji --epochs 15 --seeds 3 --loss triplet-hard "
        f"--loss triplet-hard+asp --train-fraction {percent / 100:g}"
        for percent in (40, 70, 100)
    },
    "contributing": {"": "scripts/count_contributing_pairs.py --data $SODEEP_DATA/emoji"},
}
"""Name -> its comparisons: options of `sodeep compare`, one comparison or several that are set side by side."""


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
            except ValueError:
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
        **{k: made[k] for k in ("epochs", "batch_size", "sodeep", "torch")},
    }
    result: dict[str, Any] = rounded({"command": shown, **origin, **comparison})
    return result


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


def compared(name: str, command: str, root: Path | None, jobs: int | None, out: Path, runs: Path) -> dict[str, Any]:
    """Run a comparison or go on with it, and copy its report. Returns its measurements."""
    folder = runs / name
    words, arguments = arguments_of(command, root)
    shown = f"sodeep compare {' '.join(words)}"
    ran = ["compare", *arguments, "--out", str(folder), *(["--jobs", str(jobs)] if jobs else [])]
    click.echo(f"== {name}: {shown}")
    done = subprocess.run([sys.executable, "-m", "sodeep", *ran], cwd=ROOT)
    if done.returncode:
        raise click.exceptions.Exit(done.returncode)
    measured = measurements(folder, shown)
    (out / f"{name}.json").write_text(json.dumps(measured, separators=(",", ":")) + "\n")
    text = (folder / "report.md").read_text().replace(f"sodeep {shlex.join(ran)}", shown)
    text = text.replace("Figures: report.html.\n", f"Run on {measured['machine']}, {measured['date']}.\n")
    for drawn in draw_figures(read_comparison(folder))[0]:
        end = next((end for title, end in FIGURES.items() if title in drawn.title), None)
        if end is not None:
            file = out / f"{name}-{end}.png"
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
@click.argument("names", nargs=-1, type=click.Choice(list(RESULTS)))
@click.option(
    "--data-root", type=click.Path(path_type=Path), envvar="SODEEP_DATA", help="Of the data sets.  [env: SODEEP_DATA]"
)
@click.option("--jobs", type=click.IntRange(1), help="As of sodeep compare.")
@click.option("--out", type=click.Path(path_type=Path), help="[default: docs/results]")
@click.option("--runs", type=click.Path(path_type=Path), help="Folder of the comparisons.  [default: runs/results]")
@click.option("--trial", is_flag=True, help="Two seeds and one epoch, into runs/trial: tries the script.")
def main(
    names: tuple[str, ...],
    data_root: Path | None,
    jobs: int | None,
    out: Path | None,
    runs: Path | None,
    trial: bool,
) -> None:
    """Make the results NAMES; without any, list them."""
    if not names:
        for name, commands in RESULTS.items():
            click.echo(name)
            for command in commands.values():
                click.echo(f"    {command if command.startswith('scripts/') else f'sodeep compare {command}'}")
        return
    for name in names:
        check_data(name, data_root)
    root = data_root and data_root.resolve()
    out = out or ROOT / ("runs/trial/docs" if trial else "docs/results")
    runs = runs or ROOT / ("runs/trial" if trial else "runs/results")
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name == "contributing":
            counted(RESULTS[name][""], root, out)
            continue
        if name == "diabetes":
            prepare_diabetes()
        measured = {}
        for key, command in RESULTS[name].items():
            command += " --seeds 2 --epochs 1" * trial
            measured[key] = compared(f"{name}-{key}" if key else name, command, root, jobs, out, runs)
        if len(measured) > 1:
            (out / f"{name}.md").write_text(side_by_side(name, measured))
    click.echo(f"In {out}: {sum(file.stat().st_size for file in out.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
