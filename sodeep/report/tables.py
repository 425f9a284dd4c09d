"""The tables of a report, and the text of their cells."""

from __future__ import annotations

import math
from typing import NamedTuple

from sodeep.comparison.read import NOTHING, Comparison, settings_text
from sodeep.comparison.runs import Run
from sodeep.comparison.statistics import Cell, Summary
from sodeep.report.definitions import definitions


def number_text(value: float, signed: bool = False, like: float | None = None, more: int = 0) -> str:
    """Three decimals for what lies around 1 (or where `like` does), fewer for more, `more` of them; a true minus."""
    if math.isnan(value):
        return NOTHING
    if abs(value) >= 1e6:
        return f"{value:+.3g}" if signed else f"{value:.3g}"
    digits = (3 if abs(value if like is None else like) < 10 else 1) + more
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
    if not cell.has_interval:
        return number_text(cell.difference, signed=True)
    # as many decimals as tell each end from 0
    ends = [end for end in (cell.low, cell.high) if end]
    more = next((n for n in range(3) if all(float(_plain(end, n)) for end in ends)), 2)
    difference, low, high = (number_text(x, signed=True, more=more) for x in (cell.difference, cell.low, cell.high))
    return f"{difference} [{low}, {high}]"


def _plain(value: float, more: int) -> str:
    return number_text(value, more=more).replace("\N{MINUS SIGN}", "-")


def settings_of(summary: Summary, loss: str) -> str:
    """The settings chosen, each with the number of seeds; of numbers that differ, the lowest and the highest.

    Four different settings or more are put together, in as many words as two.
    """
    chosen = summary.settings.get(loss, [])
    if len(chosen) <= 2:
        return "; ".join(f"{settings_text(settings)} ({seeds_text(n)})" for settings, n in chosen) or NOTHING
    parts = []
    for name in chosen[0][0]:
        values = sorted({settings[name] for settings, _ in chosen if name in settings}, key=lambda x: (str(type(x)), x))
        texts = [settings_text({name: value}).removeprefix(f"{name} ") for value in values]
        numbers = all(isinstance(value, (int, float)) for value in values)
        spread = f"{texts[0]} to {texts[-1]}" if numbers and len(texts) > 1 else " or ".join(texts)
        parts.append(f"{name} {spread}")
    return ", ".join(parts)


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


_SPLITS = {
    "given": "The split is that of the data: seeds differ in initialisation, batches and validation items alone, and "
    "intervals say nothing of other test items.",
    "drawn": "Every seed draws its split of the same data: intervals and tests allow for their overlap (Nadeau and "
    "Bengio's correction).",
    "new": "Every seed draws new data.",
}

_COUNTED = {
    True: "{} losses are compared with {}; significance takes account of their number (Holm's method).",
    False: "{} loss is compared with {}.",
}


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
    if compared:
        findings.append(f"{_COUNTED[len(compared) > 1].format(len(compared), base)} {_SPLITS[summary.split]}")
    if summary.rising:
        counts = ", ".join(f"{loss} ({seeds_text(n)})" for loss, n in summary.rising.items())
        findings.append(f"Not yet flat on the validation split when the cap on steps ended the training: {counts}.")
    if summary.edges:
        ends = {"low": "lower", "high": "upper"}
        chosen = "; ".join(
            f"{loss} ({', '.join(f'{ends[side]} end of {name}' for name, side in edges.items())})"
            for loss, edges in summary.edges.items()
        )
        findings.append(
            f"Chosen at an end of the range that was searched, beyond which a better may lie: {chosen}. "
            "--range searches another range."
        )
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
        for table in (
            _results(comparison),
            _differences(comparison),
            _cost(comparison),
            _failures(comparison),
            _metrics(comparison),
        )
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
    return Table("Results", ["loss", "seeds", *arrows_text(comparison.summary)], rows, note)


def _differences(comparison: Comparison) -> Table:
    rows = []
    for loss in comparison.ranked:
        cells = [comparison.summary.cells.get((loss, metric)) for metric in comparison.summary.metrics]
        row = [
            f"**{difference_text(cell)}**" * cell.differs or difference_text(cell)
            if cell is not None and cell.has_interval
            else NOTHING
            for cell in cells
        ]
        if set(row) != {NOTHING}:
            rows.append([loss, *row])
    student = "corrected resampled t" if comparison.summary.split == "drawn" else "Student's t"
    note = (
        f"Mean and 95% interval ({student} over the seeds) of the difference, seed by seed: the same split, "
        "initialisation and batches. Bold: significant at 5% among all losses compared in the column (Holm's method); "
        "an interval may exclude 0 without being bold."
    )
    return Table(
        f"Differences to {comparison.summary.baseline}", ["loss", *arrows_text(comparison.summary)], rows, note
    )


def _cost(comparison: Comparison) -> Table:
    rows = []
    summary = comparison.summary
    for loss in comparison.tested:
        memory = summary.peak_memory.get(loss)
        best, steps = summary.steps[loss]
        rows.append(
            [
                loss,
                settings_of(summary, loss),
                NOTHING if math.isnan(best) else f"{best:,.0f} of {steps:,.0f}",
                number_text(summary.seconds[loss], like=10),
                milliseconds_text(summary.seconds_per_step.get(loss)),
                NOTHING if memory is None else f"{memory / 1e6:.1f}",
            ]
        )
    note = (
        "Settings are those best on the validation split; steps, those to the best validation of all that were taken "
        "(median over the seeds). A step is encoder and loss, forward and backward."
    )
    header = ["loss", "chosen", "steps to the best", "seconds of a training", "ms per step", "peak MB of a step"]
    return Table("Settings and cost", header, rows, note, words=2)


def _metrics(comparison: Comparison) -> Table:
    rows = [[name, text] for name, text in definitions(comparison.summary.metrics).items()]
    return Table("Metrics", ["metric", "what it is"], rows, words=2)


def _failures(comparison: Comparison) -> Table:
    rows = [
        [run.loss, str(run.seed), settings_text(run.settings), *failure_text(run)] for run in comparison.summary.failed
    ]
    header = ["loss", "seed", "settings", "step", "reason", "values"]
    return Table("Failed runs", header, rows, words=len(header))
