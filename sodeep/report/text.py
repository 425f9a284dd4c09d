"""A comparison as plain text for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from sodeep._version import __version__
from sodeep.comparison.read import NOTHING, Comparison, settings_text
from sodeep.comparison.runs import Run
from sodeep.comparison.statistics import Summary
from sodeep.report.tables import (
    arrows_text,
    difference_text,
    failure_text,
    find_differences,
    make_tables,
    mean_text,
    milliseconds_text,
    seeds_text,
)
from sodeep.tasks import TASKS

if TYPE_CHECKING:
    from sodeep.report.figures import ReportFigure


WIDTH = 120
"""Characters of a line, where one metric does not need more."""


def text_table(summary: Summary) -> str:
    """The summary as plain text.

    A line a loss, a column a metric: mean and standard deviation over the seeds; ``*`` the best mean. Then the paired
    difference to the baseline with its 95% interval, of the primary metric. Many metrics make several tables.
    Where a loss lacks the test of a seed, a column says how many seeds each has.
    """
    counts = _tested_seeds(summary)
    whole = set(counts.values()) <= {0, len(summary.seeds)}  # those without any are said to have failed
    seeds = f"of {seeds_text(len(summary.seeds))}" if whole else "over the seeds"
    blocks = [f"{summary.task} on {summary.data}: mean ± sd {seeds}, * = best mean"]
    blocks += _blocks(summary, {} if whole else counts)
    blocks.append("\n".join(_failure_line(run) for run in summary.failed))
    return "\n\n".join(filter(None, blocks))


def _tested_seeds(summary: Summary) -> dict[str, int]:
    """Loss -> the number of seeds with a test."""
    return {
        loss: max((cell.n for (name, _), cell in summary.cells.items() if name == loss), default=0)
        for loss in summary.losses
    }


def _blocks(summary: Summary, counts: Mapping[str, int]) -> list[str]:
    """Tables of at most six metrics, and of fewer where their lines would be too long."""
    names = list(summary.metrics)
    size = math.ceil(len(names) / (math.ceil(len(names) / 6) or 1))
    blocks: list[str] = []
    while names or not blocks:
        for count in range(size, -1, -1):
            block = _block(summary, names[:count], not blocks, counts)
            if count <= 1 or max(map(len, block.splitlines())) <= WIDTH:
                break
        blocks.append(block)
        names = names[max(1, count) :]
    return blocks


def _block(summary: Summary, metrics: Sequence[str], with_difference: bool, counts: Mapping[str, int]) -> str:
    heads = dict(zip(summary.metrics, arrows_text(summary), strict=True))
    rows = [["loss", *["seeds"] * bool(counts), *(heads[metric] for metric in metrics)]]
    if with_difference and metrics:
        rows[0] += [f"{metrics[0]} - {summary.baseline}", "ms/step"]
    for loss in summary.losses:
        cells = [summary.cells.get((loss, metric)) for metric in metrics]
        seeds = [f"{counts[loss]} of {len(summary.seeds)}"] if counts else []
        row = [loss, *seeds, *("" if cell is None else mean_text(cell) + "*" * cell.best for cell in cells)]
        if not any(cells):
            row = [loss, *seeds, "failed"]
        elif with_difference:
            difference = NOTHING if cells[0] is None else difference_text(cells[0])
            row.append("baseline" if loss == summary.baseline else difference)
            row.append(milliseconds_text(summary.seconds_per_step[loss]))
        rows.append(row)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _failure_line(run: Run) -> str:
    step, reason, values = failure_text(run)
    where = f"{run.loss} ({settings_text(run.settings)}, seed {run.seed}) failed at step {step}"
    return f"{where}: {reason}" + f" ({values})" * (values != NOTHING)


def header_lines(comparison: Comparison) -> str:
    """Data, seeds, steps, device and versions in one line."""
    summary, made = comparison.summary, comparison.origin
    length = f"{made['max_steps']:,} steps" if "max_steps" in made else ""
    length = length and (f", up to {length}" if made.get("patience", True) else f", {length} each")
    trials = made.get("trials", 0)
    tried = f", {trials} setting{'s' * (trials > 1)} of each" * bool(trials)
    if tried and made.get("search_seeds"):
        count = made["search_seeds"]
        tried += f", chosen by the first {'seed' if count == 1 else seeds_text(count)} for all"
    sizes = ", ".join(f"{n:,} {name}" for name, n in summary.sizes.items())
    counted = TASKS[summary.task].counted if summary.task in TASKS else ""
    sizes += f" {counted}".rstrip() if sizes else ""
    losses = f"{len(summary.losses)} loss{'es' * (len(summary.losses) != 1)}"
    batch = f", {made['batch_size']} items a step" if "batch_size" in made else ""
    versions = ", ".join(f"{name} {made[name]}" for name in ("sodeep", "torch") if name in made)
    return (
        f"Data: {summary.data}{sizes and f' ({sizes})'}. Baseline: {summary.baseline}. {losses}, "
        f"{seeds_text(len(summary.seeds))}{tried}{length}{batch}, on {summary.device}{versions and f'; {versions}'}."
    )


def to_markdown(
    comparison: Comparison, figures: Sequence[ReportFigure], notes: Sequence[str], command: str | None
) -> str:
    """The report as Markdown."""
    lines = [f"# Losses compared: {comparison.summary.task}", "", header_lines(comparison), ""]
    if command:
        lines += [f"    {command}", ""]
    lines += [f"* {finding}" for finding in find_differences(comparison)] + [""]
    for table in make_tables(comparison):
        lines += [f"## {table.title}", ""]
        cells = [[entry.replace("|", "\\|") for entry in row] for row in [table.header, *table.rows]]
        lines += ["| " + " | ".join(cells[0]) + " |"]
        lines += ["|---" * table.words + "|---:" * (len(table.header) - table.words) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in cells[1:]]
        lines += ["", table.note, ""] if table.note else [""]
    lines += [*notes, ""] if notes else ["Figures: report.html.", ""] if figures else []
    return "\n".join(lines)


def to_json(comparison: Comparison, notes: Sequence[str], command: str | None) -> dict[str, Any]:
    """The report as plain values, for JSON."""
    summary = comparison.summary
    return {
        "format_version": 1,
        "sodeep": __version__,
        "torch": torch.__version__,
        "command": command,
        "notes": list(notes),
        "comparisons": [
            {
                "task": summary.task,
                "data": summary.data,
                "baseline": summary.baseline,
                "split": {"seeds": summary.split, **summary.sizes},
                "higher_is_better": summary.metrics,
                "findings": find_differences(comparison),
                "losses": {
                    loss: {
                        "metrics": {
                            metric: asdict(summary.cells[loss, metric])
                            for metric in summary.metrics
                            if (loss, metric) in summary.cells
                        },
                        "edges": summary.edges.get(loss, {}),
                        "seeds_still_rising": summary.rising.get(loss, 0),
                        "steps_to_best": summary.steps.get(loss, (None, None))[0],
                        "steps": summary.steps.get(loss, (None, None))[1],
                        "seconds": summary.seconds.get(loss),
                        "settings": [
                            {"chosen": settings, "seeds": n} for settings, n in summary.settings.get(loss, [])
                        ],
                        "seconds_per_step": summary.seconds_per_step.get(loss),
                        "peak_memory": summary.peak_memory.get(loss),
                    }
                    for loss in comparison.ranked
                },
                "runs": [json.loads(run.to_json()) for run in comparison.runs],
            }
        ],
    }


def without_nan(value: Any) -> Any:
    """`value` with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
