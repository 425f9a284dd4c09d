"""The tables of a report, and the text of their cells."""

from __future__ import annotations

import math
from typing import NamedTuple

from sodeep.comparison.read import NOTHING, Comparison, settings_text
from sodeep.comparison.runs import Run
from sodeep.comparison.statistics import Cell, Summary


def number_text(value: float, signed: bool = False, like: float | None = None) -> str:
    """Three decimals for what lies around 1 (or where `like` does), fewer for more; a true minus sign."""
    if math.isnan(value):
        return NOTHING
    digits = 3 if abs(value if like is None else like) < 10 else 1
    value = round(value, digits) or 0.0  # no negative zero
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def mean_text(cell: Cell) -> str:
    """Mean and standard deviation."""
    return (
        number_text(cell.mean)
        if math.isnan(cell.sd)
        else f"{number_text(cell.mean)} ± {number_text(cell.sd, like=cell.mean)}"
    )


def difference_text(cell: Cell) -> str:
    """To the baseline, with its interval if there is one."""
    if cell.difference is None:
        return NOTHING
    interval = f" [{number_text(cell.low, signed=True)}, {number_text(cell.high, signed=True)}]" * cell.has_interval
    return number_text(cell.difference, signed=True) + interval


def arrows_text(summary: Summary) -> list[str]:
    """The metrics, each with the direction that is better."""
    return [f"{metric} {'↑' if higher else '↓'}" for metric, higher in summary.metrics.items()]


def milliseconds_text(seconds: float | None) -> str:
    """Of a step. NaN for trainings of one."""
    return NOTHING if seconds is None or math.isnan(seconds) else f"{1e3 * seconds:.1f}"


def seeds_text(count: int) -> str:
    """How many seeds, in words."""
    return f"{count} seed{'s' * (count != 1)}"


def failure_text(run: Run) -> tuple[str, str, str]:
    """Step, reason and values of a run that failed."""
    failure = run.failure or {}
    step, reason = (str(failure.get(key, NOTHING)) for key in ("step", "reason"))
    return step, reason, settings_text(failure.get("values") or {})


def repeated_note(summary: Summary, command: str) -> str:
    """How many runs failed for reasons outside the loss, and that `command` repeats them; "" for none."""
    count = sum(bool((run.failure or {}).get("again")) for run in summary.failed)
    runs = f"{count} run{'s' * (count != 1)}"
    return f"{runs} failed for reasons outside the loss: start {command} again to repeat what failed." * bool(count)


class Table(NamedTuple):
    """A table of text, and a note under it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    words: int = 1
    """How many columns, from the left, are words and not numbers."""


def find_differences(comparison: Comparison) -> list[str]:
    """The findings by the primary metric, in sentences, with what the runs do not show."""
    summary, metric = comparison.summary, comparison.primary_metric
    cells = {loss: summary.cells[loss, metric] for loss in comparison.tested if (loss, metric) in summary.cells}
    if not cells:
        return ["No run was finished."]
    best, base = next(loss for loss in comparison.ranked if loss in cells), summary.baseline
    equal = [loss for loss, cell in cells.items() if cell.mean == cells[best].mean]
    if len(equal) > 1:
        first = f"{', '.join(equal)} share the best mean {metric}: {mean_text(cells[best])}."
    else:
        first = f"{best} has the best mean {metric}: {mean_text(cells[best])} over {seeds_text(cells[best].n)}."
        if best == base:
            first = f"The baseline {first}"
    findings = [first]
    compared = {loss: cell for loss, cell in cells.items() if cell.has_interval}
    groups: dict[str, list[str]] = {"better": [], "worse": [], "unclear": []}
    for loss, cell in compared.items():
        up = (cell.difference or 0.0) > 0
        groups["unclear" if not cell.differs else "better" if up == summary.metrics[metric] else "worse"].append(loss)
    for group, words in (
        ("better", f"Better than {base}"),
        ("worse", f"Worse than {base}"),
        ("unclear", f"Not significantly different from {base}"),
    ):
        if groups[group]:
            findings.append(f"{words}: {', '.join(groups[group])}.")
    if not compared and len(cells) > 1:
        findings.append("With one seed in common there are no confidence intervals: any difference may be chance.")
    if summary.failed:
        findings.append(f"{len(summary.failed)} of {len(comparison.runs)} runs failed; see below.")
    missing = {loss: len(runs) for loss, runs in comparison.tested.items() if len(runs) < len(summary.seeds)}
    if missing:
        counts = ", ".join(f"{loss} has {count}" for loss, count in missing.items())
        findings.append(f"Not every loss was tested with all {seeds_text(len(summary.seeds))}: {counts}.")
    return [*findings, *filter(None, [repeated_note(summary, "the comparison")])]


def make_tables(comparison: Comparison) -> list[Table]:
    """All tables of the report that have rows."""
    return [
        table
        for table in (_results(comparison), _differences(comparison), _cost(comparison), _failures(comparison))
        if table.rows
    ]


def _results(comparison: Comparison) -> Table:
    rows = []
    for loss in comparison.ranked:
        rows.append([loss, str(len(comparison.tested.get(loss, [])))])
        for metric in comparison.summary.metrics:
            cell = comparison.summary.cells.get((loss, metric))
            text = NOTHING if cell is None else mean_text(cell)
            rows[-1].append(f"**{text}**" if cell is not None and cell.best else text)
    note = (
        "Mean ± standard deviation over the seeds, on the test split. "
        "↑ higher is better, ↓ lower; the best mean of a column is bold."
    )
    if any("R@" in metric for metric in comparison.summary.metrics):  # recall_at_k is another
        note += " R@k is the hit rate: the fraction of queries with a relevant item among the first k."
    return Table("Results", ["loss", "seeds", *arrows_text(comparison.summary)], rows, note)


def _differences(comparison: Comparison) -> Table:
    rows = []
    for loss in comparison.ranked:
        cells = [comparison.summary.cells.get((loss, metric)) for metric in comparison.summary.metrics]
        row = [difference_text(cell) if cell is not None and cell.has_interval else NOTHING for cell in cells]
        if set(row) != {NOTHING}:
            rows.append([loss, *row])
    note = (
        "Mean and 95% interval (Student's t over the seeds) of the difference, seed by seed: the same split, "
        "initialisation and batches. An interval that contains 0 is no significant difference. Each is of one "
        "comparison, not corrected for how many there are."
    )
    return Table(
        f"Differences to {comparison.summary.baseline}", ["loss", *arrows_text(comparison.summary)], rows, note
    )


def _cost(comparison: Comparison) -> Table:
    rows = []
    for loss in comparison.tested:
        memory = comparison.summary.peak_memory.get(loss)
        chosen = [
            f"{settings_text(settings)} ({seeds_text(n)})" for settings, n in comparison.summary.settings.get(loss, [])
        ]
        rows.append(
            [
                loss,
                "; ".join(chosen) or NOTHING,
                milliseconds_text(comparison.summary.seconds_per_step.get(loss)),
                NOTHING if memory is None else f"{memory / 1e6:.1f}",
            ]
        )
    note = "Settings are those best on the validation split. A step is encoder and loss, forward and backward."
    return Table("Settings and cost", ["loss", "chosen", "ms per step", "peak MB of a step"], rows, note, words=2)


def _failures(comparison: Comparison) -> Table:
    rows = [
        [run.loss, str(run.seed), settings_text(run.settings), *failure_text(run)] for run in comparison.summary.failed
    ]
    header = ["loss", "seed", "settings", "step", "reason", "values"]
    return Table("Failed runs", header, rows, words=len(header))
