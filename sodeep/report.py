"""What came out of a comparison, from its runs: plain text, Markdown, JSON, one HTML page with pictures, TensorBoard.

A comparison is read and drawn once, and every form is made of that:

    comparison = read_comparison("runs/retrieval")         # of `sodeep.compare`
    figures, notes = draw_figures(comparison)
    write_report(comparison, figures, notes)               # report.md, report.json, report.html in its folder
    write_tensorboard(comparison, figures, "runs/board")   # then: tensorboard --logdir runs/board

The page needs nothing but itself: pictures are in it, and it loads nothing, from this computer or another. Pictures are
drawn with matplotlib. Without it the tables are complete, and the report says what is missing.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from sodeep._checks import user_path
from sodeep._extras import is_missing, needed, remedy
from sodeep._files import write_atomic
from sodeep._version import __version__
from sodeep.compare import NOTHING, Cell, Comparison, Run, Summary, settings_text
from sodeep.tasks.base import Array, Loss

if TYPE_CHECKING:
    from sodeep._report_figures import ReportFigure

NO_MATPLOTLIB = f"Pictures are left out: matplotlib is not installed. Install it: {remedy('matplotlib')}"


def draw_figures(
    comparison: Comparison, losses: Mapping[str, Loss] | None = None
) -> tuple[list[ReportFigure], list[str]]:
    """The figures of the report, and notes on what is missing and why (matplotlib is not installed).

    They may be saved in a format of your own: ``figures[0].figure.savefig("seeds.pdf")``.

    Args:
        comparison: from `sodeep.compare.read_comparison`.
        losses: name -> ``loss(scores, relevant)``, to draw the pair weights of losses of your own; ours are found by
            their names.
    """
    try:
        from sodeep._report_figures import draw_all
    except ModuleNotFoundError as error:
        if not is_missing(error, "matplotlib"):
            raise
        return [], [NO_MATPLOTLIB]
    return draw_all(comparison, losses or {}), []


def write_report(
    comparison: Comparison,
    figures: Sequence[ReportFigure] = (),
    notes: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    command: str | None = None,
) -> dict[str, Path]:
    """Write report.md, report.json and report.html.

    Args:
        comparison: from `sodeep.compare.read_comparison`.
        figures: from `draw_figures`, for the page.
        notes: what is missing and why; every report says it.
        out: folder to write to, made if it is not there. None: that of the comparison.
        command: what was run, to be shown.

    Returns:
        "markdown", "json" and "html" -> file.
    """
    target = comparison.folder if out is None else user_path(out)
    target.mkdir(parents=True, exist_ok=True)
    texts = {
        "markdown": ("report.md", _markdown(comparison, figures, notes, command)),
        "json": ("report.json", json.dumps(_strict(_data(comparison, notes, command)), indent=1, allow_nan=False)),
        "html": ("report.html", _html(comparison, figures, notes, command)),
    }
    files = {}
    for kind, (name, text) in texts.items():
        files[kind] = target / name
        write_atomic(files[kind], text.encode())
    return files


# ---- words -----------------------------------------------------------------------------------------------------------


def _number(value: float, signed: bool = False, like: float | None = None) -> str:
    """Three decimals for what lies around 1 (or where `like` does), fewer for more; a true minus sign."""
    if math.isnan(value):
        return NOTHING
    digits = 3 if abs(value if like is None else like) < 10 else 1
    value = round(value, digits) or 0.0  # no negative zero
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _mean(cell: Cell) -> str:
    return _number(cell.mean) if math.isnan(cell.sd) else f"{_number(cell.mean)} ± {_number(cell.sd, like=cell.mean)}"


def _difference(cell: Cell) -> str:
    """To the baseline, with its interval if there is one."""
    if cell.difference is None:
        return NOTHING
    interval = f" [{_number(cell.low, signed=True)}, {_number(cell.high, signed=True)}]" * cell.has_interval
    return _number(cell.difference, signed=True) + interval


def _arrows(summary: Summary) -> list[str]:
    return [f"{metric} {'↑' if higher else '↓'}" for metric, higher in summary.metrics.items()]


def _milliseconds(seconds: float | None) -> str:
    """Of a step. NaN for trainings of one."""
    return NOTHING if seconds is None or math.isnan(seconds) else f"{1e3 * seconds:.1f}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _failure(run: Run) -> tuple[str, str, str]:
    """Step, reason and values of a run that failed."""
    failure = run.failure or {}
    step, reason = (str(failure.get(key, NOTHING)) for key in ("step", "reason"))
    return step, reason, settings_text(failure.get("values") or {})


def repeated_note(summary: Summary, command: str) -> str:
    """How many runs failed for reasons outside the loss, and that `command` repeats them; "" for none."""
    count = sum(bool((run.failure or {}).get("again")) for run in summary.failed)
    runs = f"{count} run{'s' * (count != 1)}"
    return f"{runs} failed for reasons outside the loss: start {command} again to repeat what failed." * bool(count)


# ---- plain text ------------------------------------------------------------------------------------------------------


def text_table(summary: Summary) -> str:
    """The summary as plain text.

    A line a loss, a column a metric: mean and standard deviation over the seeds; ``*`` the best mean. Then the paired
    difference to the baseline with its 95% interval, of the most important metric. Many metrics make several tables.
    Where a loss lacks the test of a seed, a column says how many seeds each has.
    """
    counts = _tested_seeds(summary)
    whole = set(counts.values()) <= {0, len(summary.seeds)}  # those without any are said to have failed
    seeds = f"of {_seeds(len(summary.seeds))}" if whole else "over the seeds"
    blocks = [f"{summary.task} on {summary.data}: mean ± sd {seeds}, * = best mean"]
    names = list(summary.metrics)
    size = math.ceil(len(names) / math.ceil(len(names) / 6)) if names else 1
    for start in range(0, max(1, len(names)), size):
        blocks.append(_block(summary, names[start : start + size], start == 0, {} if whole else counts))
    blocks.append("\n".join(_failure_line(run) for run in summary.failed))
    return "\n\n".join(filter(None, blocks))


def _tested_seeds(summary: Summary) -> dict[str, int]:
    """Loss -> of how many seeds its figures are."""
    return {
        loss: max((cell.n for (name, _), cell in summary.cells.items() if name == loss), default=0)
        for loss in summary.losses
    }


def _block(summary: Summary, metrics: Sequence[str], with_difference: bool, counts: Mapping[str, int]) -> str:
    heads = dict(zip(summary.metrics, _arrows(summary), strict=True))
    rows = [["loss", *["seeds"] * bool(counts), *(heads[metric] for metric in metrics)]]
    if with_difference and metrics:
        rows[0] += [f"{metrics[0]} - {summary.baseline}", "ms/step"]
    for loss in summary.losses:
        cells = [summary.cells.get((loss, metric)) for metric in metrics]
        seeds = [f"{counts[loss]} of {len(summary.seeds)}"] if counts else []
        row = [loss, *seeds, *("" if cell is None else _mean(cell) + "*" * cell.best for cell in cells)]
        if not any(cells):
            row = [loss, *seeds, "failed"]
        elif with_difference:
            difference = NOTHING if cells[0] is None else _difference(cells[0])
            row.append("baseline" if loss == summary.baseline else difference)
            row.append(_milliseconds(summary.seconds_per_step[loss]))
        rows.append(row)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _failure_line(run: Run) -> str:
    step, reason, values = _failure(run)
    where = f"{run.loss} ({settings_text(run.settings)}, seed {run.seed}) failed at step {step}"
    return f"{where}: {reason}" + f" ({values})" * (values != NOTHING)


# ---- tables ----------------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    words: int = 1
    """How many columns, from the left, are words and not numbers."""


def _findings(comparison: Comparison) -> list[str]:
    """What the headline metric says, in sentences; most of all, what it does not say."""
    summary, metric = comparison.summary, comparison.headline
    cells = {loss: summary.cells[loss, metric] for loss in comparison.tested if (loss, metric) in summary.cells}
    if not cells:
        return ["No run was finished."]
    best, base = next(loss for loss in comparison.ranked if loss in cells), summary.baseline
    first = f"{best} has the best mean {metric}: {_mean(cells[best])} over {_seeds(cells[best].n)}."
    if best == base:
        first = f"The baseline {first}"
    found = [first]
    compared = {loss: cell for loss, cell in cells.items() if cell.has_interval}
    groups: dict[str, list[str]] = {"better": [], "worse": [], "unclear": []}
    for loss, cell in compared.items():
        up = (cell.difference or 0.0) > 0
        groups["unclear" if not cell.differs else "better" if up == summary.metrics[metric] else "worse"].append(loss)
    for kind, words in (
        ("better", f"Better than {base}"),
        ("worse", f"Worse than {base}"),
        ("unclear", f"Not told apart from {base} by these seeds"),
    ):
        if groups[kind]:
            found.append(f"{words}: {', '.join(groups[kind])}.")
    if not compared and len(cells) > 1:
        found.append("With one seed in common there is no spread: take no difference for more than chance.")
    if summary.failed:
        found.append(f"{len(summary.failed)} of {len(comparison.runs)} runs failed; see below.")
    missing = {loss: len(runs) for loss, runs in comparison.tested.items() if len(runs) < len(summary.seeds)}
    if missing:
        counts = ", ".join(f"{loss} has {count}" for loss, count in missing.items())
        found.append(f"Not every loss was tested with all {_seeds(len(summary.seeds))}: {counts}.")
    return [*found, *filter(None, [repeated_note(summary, "the comparison")])]


def _tables(comparison: Comparison) -> list[_Table]:
    return [
        table
        for table in (_results(comparison), _differences(comparison), _cost(comparison), _failures(comparison))
        if table.rows
    ]


def _results(comparison: Comparison) -> _Table:
    rows = []
    for loss in comparison.ranked:
        rows.append([loss, str(len(comparison.tested.get(loss, [])))])
        for metric in comparison.summary.metrics:
            cell = comparison.summary.cells.get((loss, metric))
            text = NOTHING if cell is None else _mean(cell)
            rows[-1].append(f"**{text}**" if cell is not None and cell.best else text)
    note = (
        "Mean ± standard deviation over the seeds, on the test split. "
        "↑ higher is better, ↓ lower; the best mean of a column is bold."
    )
    if any("R@" in metric for metric in comparison.summary.metrics):  # recall_at_k is another
        note += " R@k is the hit rate: the share of queries with a relevant item among the first k."
    return _Table("Results", ["loss", "seeds", *_arrows(comparison.summary)], rows, note)


def _differences(comparison: Comparison) -> _Table:
    rows = []
    for loss in comparison.ranked:
        cells = [comparison.summary.cells.get((loss, metric)) for metric in comparison.summary.metrics]
        row = [_difference(cell) if cell is not None and cell.has_interval else NOTHING for cell in cells]
        if set(row) != {NOTHING}:
            rows.append([loss, *row])
    note = (
        "Mean and 95% interval (Student's t over the seeds) of the difference, seed by seed: the same split, first "
        "weights and batches. An interval that holds 0 tells nothing apart. Each is of one comparison, not corrected "
        "for how many there are."
    )
    return _Table(f"Differences to {comparison.summary.baseline}", ["loss", *_arrows(comparison.summary)], rows, note)


def _cost(comparison: Comparison) -> _Table:
    rows = []
    for loss in comparison.tested:
        memory = comparison.summary.peak_memory.get(loss)
        chosen = [
            f"{settings_text(settings)} ({_seeds(n)})" for settings, n in comparison.summary.settings.get(loss, [])
        ]
        rows.append(
            [
                loss,
                "; ".join(chosen) or NOTHING,
                _milliseconds(comparison.summary.seconds_per_step.get(loss)),
                NOTHING if memory is None else f"{memory / 1e6:.1f}",
            ]
        )
    note = "Settings are those best on the validation split. A step is encoder and loss, forward and backward."
    return _Table("Settings and cost", ["loss", "chosen", "ms per step", "peak MB of a step"], rows, note, words=2)


def _failures(comparison: Comparison) -> _Table:
    rows = [[run.loss, str(run.seed), settings_text(run.settings), *_failure(run)] for run in comparison.summary.failed]
    header = ["loss", "seed", "settings", "step", "reason", "values"]
    return _Table("Failed runs", header, rows, words=len(header))


def _header(comparison: Comparison) -> str:
    """Data, seeds, steps, device and versions in one line."""
    summary, made = comparison.summary, comparison.origin
    steps = sorted({run.steps for runs in comparison.tested.values() for run in runs})
    length = f"{steps[0]} to {steps[-1]} steps" if len(steps) > 1 else f"{steps[0]} steps" if steps else "no result"
    batch = f", {made['batch_size']} items a step" if "batch_size" in made else ""
    versions = ", ".join(f"{name} {made[name]}" for name in ("sodeep", "torch") if name in made)
    return (
        f"Data: {summary.data}. Baseline: {summary.baseline}. {len(summary.losses)} losses, "
        f"{_seeds(len(summary.seeds))}, {length}{batch}, on {summary.device}{versions and f'; {versions}'}."
    )


def _markdown(
    comparison: Comparison, figures: Sequence[ReportFigure], notes: Sequence[str], command: str | None
) -> str:
    lines = [f"# Losses compared: {comparison.summary.task}", "", _header(comparison), ""]
    if command:
        lines += [f"    {command}", ""]
    lines += [f"* {finding}" for finding in _findings(comparison)] + [""]
    for table in _tables(comparison):
        lines += [f"## {table.title}", ""]
        cells = [[entry.replace("|", "\\|") for entry in row] for row in [table.header, *table.rows]]
        lines += ["| " + " | ".join(cells[0]) + " |"]
        lines += ["|---" * table.words + "|---:" * (len(table.header) - table.words) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in cells[1:]]
        lines += ["", table.note, ""] if table.note else [""]
    lines += [*notes, ""] if notes else ["Pictures: report.html.", ""] if figures else []
    return "\n".join(lines)


def _data(comparison: Comparison, notes: Sequence[str], command: str | None) -> dict[str, Any]:
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
                "higher_is_better": summary.metrics,
                "findings": _findings(comparison),
                "losses": {
                    loss: {
                        "metrics": {
                            metric: asdict(summary.cells[loss, metric])
                            for metric in summary.metrics
                            if (loss, metric) in summary.cells
                        },
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


def _strict(value: Any) -> Any:
    """`value` with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- the page --------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; font-weight: 600; }
.words { text-align: left; } th:first-child, td:first-child { padding-left: 0; }
.note, figcaption { color: #555; font-size: 13px; max-width: 48rem; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; }
pre { background: #f4f4f4; padding: .6rem .8rem; overflow-x: auto; }
"""
# nothing may be loaded, whatever a name of a loss or a data set holds
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def _html(comparison: Comparison, figures: Sequence[ReportFigure], notes: Sequence[str], command: str | None) -> str:
    title = f"Losses compared: {comparison.summary.task}"
    body = [f"<h1>{escape(title)}</h1>", f"<p class=note>{escape(_header(comparison))}</p>"]
    if command:
        body.append(f"<pre>{escape(command)}</pre>")
    body += ["<ul>", *(f"<li>{escape(finding)}</li>" for finding in _findings(comparison)), "</ul>"]
    tables = _tables(comparison)
    body.append(_html_table(tables[0]))
    body += [_html_figure(figure) for figure in figures[:1]]
    body += [_html_table(table) for table in tables[1:]]
    body += [_html_figure(figure) for figure in figures[1:]]
    body += [f"<p class=note>{escape(note)}</p>" for note in notes]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head>',
            "<body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def _html_table(table: _Table) -> str:
    def line(row: list[str], tag: str) -> str:
        entries = ""
        for place, text in enumerate(row):
            bold = text.startswith("**") and text.endswith("**")
            inner = f"<strong>{escape(text[2:-2])}</strong>" if bold else escape(text)
            entries += f"<{tag}{' class=words' * (place < table.words)}>{inner}</{tag}>"
        return f"<tr>{entries}</tr>"

    head = line(table.header, "th")
    rows = "\n".join(line(row, "td") for row in table.rows)
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2>\n<div class=scroll><table>\n{head}\n{rows}\n</table></div>\n{note}"


def _html_figure(figure: ReportFigure) -> str:
    data = base64.b64encode(figure.png).decode("ascii")
    width = round(figure.figure.get_figwidth() * 96)
    return (
        f"<h2>{escape(figure.title)}</h2>\n<figure>"
        f'<img width={width} alt="{escape(figure.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


def write_tensorboard(comparison: Comparison, figures: Sequence[ReportFigure], log_dir: str | os.PathLike[str]) -> None:
    """Write the same to TensorBoard: ``tensorboard --logdir LOG_DIR``.

    A run of TensorBoard is a tested run, ``<task>/<loss>/seed <n>``: curves and test metrics (scalars), settings
    against test metrics (hparams), precision and recall where there are several labels, and the embeddings with
    thumbnails (projector). The pictures are in the run ``<task>``.

    Args:
        comparison: from `sodeep.compare.read_comparison`.
        figures: from `draw_figures`.
        log_dir: folder to write to, made if it is not there; without a folder of the task's name in it, since
            TensorBoard would show old and new as one.

    Raises:
        ValueError: `log_dir` has a folder of the task's name.
        MissingPackageError: tensorboard is not installed.
    """
    with needed("tensorboard", "Writing for TensorBoard"):
        from torch.utils.tensorboard import SummaryWriter

    base = user_path(log_dir) / _folder_name(comparison.summary.task)
    if base.exists():
        raise ValueError(f"`log_dir` must not hold {base.name} yet, got '{log_dir}'. Choose another, or delete it.")
    for loss, runs in comparison.tested.items():
        for run in runs:
            with SummaryWriter(str(base / _folder_name(loss) / f"seed {run.seed}")) as writer:
                _log_run(writer, comparison, run)
    with SummaryWriter(str(base)) as writer:
        for figure in figures:
            _log_figure(writer, figure)
        writer.add_text("report", _markdown(comparison, [], [], None))


def _log_figure(writer: Any, figure: ReportFigure) -> None:
    """As add_figure, which would draw it once more."""
    from tensorboard.compat.proto.summary_pb2 import Summary as Event  # type: ignore[import-untyped]

    width, height = (int.from_bytes(figure.png[start : start + 4], "big") for start in (16, 20))  # of its header
    image = Event.Image(height=height, width=width, colorspace=4, encoded_image_string=figure.png)
    writer.file_writer.add_summary(Event(value=[Event.Value(tag=figure.title, image=image)]))


def _folder_name(name: str) -> str:
    """`name` as a folder: what file systems refuse is replaced."""
    return "".join(letter if letter.isalnum() or letter in "+-_. " else "_" for letter in name)


def _log_run(writer: Any, comparison: Comparison, run: Run) -> None:
    from torch.utils.tensorboard.summary import hparams

    for name, curve in run.curves.items():
        for step, value in curve:
            writer.add_scalar(name, value, step)
    for metric, value in run.metrics.items():
        writer.add_scalar(f"test/{metric}", value, run.steps)
    # as add_hparams, which would start a run of its own beside this one
    settings = {"loss": run.loss, "seed": run.seed, **run.settings}
    plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in settings.items()}
    tested = {f"test/{metric}": value for metric, value in run.metrics.items()}
    for summary in hparams(plain, tested):  # type: ignore[no-untyped-call]
        writer.file_writer.add_summary(summary)
    labelled = ("scores", "relevant", "known", "label_names")
    embedded = ("embeddings", "embedding_labels", "thumbnails")
    arrays = comparison.arrays(run, *labelled, *embedded)
    if all(name in arrays for name in labelled):
        *columns, labels = (arrays[name].T for name in labelled)
        for scores, relevant, known, label in zip(*columns, labels, strict=True):
            if relevant[known].any():
                # thresholds of the plugin lie in [0, 1]: places in the order, which leave the curve as it is
                places = torch.as_tensor(scores[known].astype(np.float32)).argsort().argsort().float()
                writer.add_pr_curve(f"precision and recall/{label}", relevant[known], places / max(1, len(places) - 1))
    if all(name in arrays for name in embedded[:2]):
        writer.add_embedding(
            torch.as_tensor(arrays["embeddings"].astype(np.float32)),
            metadata=[" ".join(str(label).split()) for label in arrays["embedding_labels"]],
            label_img=_channels_first(arrays["thumbnails"]) if "thumbnails" in arrays else None,
            tag="embeddings",
        )


def _channels_first(pictures: Array) -> torch.Tensor:
    """uint8 (n, H, W[, 3]) as float (n, 3, S, S) in [0, 1]; padded with white to squares, which the projector needs."""
    x = torch.as_tensor(pictures)
    x = (x.unsqueeze(-1).expand(*x.shape, 3) if x.ndim == 3 else x).permute(0, 3, 1, 2).float() / 255
    side = max(x.shape[-2:])
    return torch.nn.functional.pad(x, (0, side - x.shape[-1], 0, side - x.shape[-2]), value=1.0)
