"""What came out of a comparison, from its runs: Markdown, JSON, one HTML page with pictures, TensorBoard.

The page needs nothing but itself: pictures are in it, and it loads nothing, from this computer or another. Pictures are
drawn with matplotlib. Without it the tables are complete, and the report says what is missing.

    write_report("runs/retrieval")                      # report.md, report.json, report.html in that folder
    write_tensorboard("runs/retrieval", "runs/board")   # then: tensorboard --logdir runs/board
    draw_report("runs/retrieval")[0].figure.savefig("seeds.pdf")
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sodeep._arrays import read_npz
from sodeep._checks import user_path
from sodeep._extras import is_missing, needed, remedy
from sodeep._version import __version__
from sodeep.checkpoint import list_sorters, write_atomic
from sodeep.compare import Cell, Run, Summary, read_runs, summarise
from sodeep.tasks.contenders import LOSSES, RANK_LOSSES, RANKS, contender, terms_of
from sodeep.weights import pair_weights

Array = NDArray[Any]
NOTHING = "\N{EN DASH}"
NO_MATPLOTLIB = f"Pictures are left out: matplotlib is not installed. Install it: {remedy('matplotlib')}"


@dataclass(frozen=True)
class Report:
    """Where a report is, and what it lacks."""

    files: dict[str, Path]
    """ "markdown", "json" and "html" -> file."""
    notes: list[str] = field(default_factory=list)
    """What is missing and why; the report says the same."""


def write_report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    baseline: str | None = None,
    losses: Mapping[str, Callable[..., Any]] | None = None,
    command: str | None = None,
) -> Report:
    """Write report.md, report.json and report.html on the runs in a folder.

    Args:
        folder: of a comparison, with runs.jsonl and details/.
        out: folder to write to, made if it is not there; None: `folder` itself.
        baseline: the loss that others are compared with; None: the task's own.
        losses: name -> ``loss(scores, relevant)``, to draw the pair weights of losses of your own; ours are found by
            their names.
        command: what was run, to be shown.

    Returns:
        The files, and what they lack.

    Raises:
        FileNotFoundError: there are no runs in `folder`.
        ValueError: none of the runs is of the baseline.
    """
    parts = _parts(folder, baseline)
    target = user_path(folder if out is None else out)
    target.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    page = _html(parts, losses or {}, command, notes)  # fills the notes
    texts = {
        "markdown": ("report.md", _markdown(parts, command, notes)),
        "json": ("report.json", json.dumps(_strict(_data(parts, command, notes)), indent=1, allow_nan=False)),
        "html": ("report.html", page),
    }
    files = {}
    for kind, (name, text) in texts.items():
        files[kind] = target / name
        write_atomic(files[kind], text.encode())
    return Report(files, notes)


# ---- the runs of one task on one data set ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The runs of one task on one data set, and their statistics."""

    summary: Summary
    runs: list[Run]
    folder: Path

    @property
    def headline(self) -> str:
        return next(iter(self.summary.metrics), "")

    @property
    def ranked(self) -> list[str]:
        """Losses, the best mean of the headline metric first, those without a result last."""
        sign = -1 if self.summary.metrics.get(self.headline, True) else 1

        def place(loss: str) -> float:
            cell = self.summary.cells.get((loss, self.headline))
            return math.inf if cell is None or math.isnan(cell.mean) else sign * cell.mean

        return sorted(self.summary.losses, key=place)

    def tests(self, loss: str) -> list[Run]:
        """The tested runs of a loss, by seed."""
        found = [run for run in self.runs if (run.loss, run.stage, run.status) == (loss, "test", "ok")]
        return sorted(found, key=lambda run: run.seed)

    def curves(self, name: str) -> dict[str, list[list[tuple[int, float]]]]:
        """Loss -> the curve of each seed."""
        found = {loss: [run.curves[name] for run in self.tests(loss) if run.curves.get(name)] for loss in self.losses}
        return found if any(found.values()) else {}

    @property
    def losses(self) -> list[str]:
        """Losses with a tested run, in the order of their colours."""
        return [loss for loss in self.summary.losses if self.tests(loss)]

    def details(self, *names: str) -> Iterator[tuple[Run, dict[str, Array]]]:
        """The tested runs that have all the named arrays, with these."""
        for loss in self.losses:
            for run in self.tests(loss):
                path = self.folder / run.details if run.details else None
                if path is None or not path.is_file():
                    continue
                try:
                    arrays = read_npz(path, names)
                except ValueError as error:
                    raise ValueError(f"{path} must hold the arrays of a test: {error}. Delete it.") from None
                if len(arrays) == len(names):
                    yield run, arrays


def _parts(folder: str | os.PathLike[str], baseline: str | None) -> list[_Part]:
    groups: dict[tuple[str, str], list[Run]] = {}
    runs = read_runs(folder)
    if not runs:
        raise FileNotFoundError(f"`folder` must hold runs of a comparison (runs.jsonl), got '{folder}' without any.")
    # not as they came: processes side by side, or a start after a failure, would make another report of the same runs
    losses = list(dict.fromkeys([*_origin(user_path(folder)).get("losses", []), *(run.loss for run in runs)]))
    places = {loss: place for place, loss in enumerate(losses)}
    for run in sorted(runs, key=lambda run: (places[run.loss], run.seed, run.stage == "test", _settings(run.settings))):
        groups.setdefault((run.task, run.data), []).append(run)
    return [_Part(summarise(runs, baseline), runs, user_path(folder)) for runs in groups.values()]


def _origin(folder: Path) -> dict[str, Any]:
    """What the comparison says of itself: epochs, batch size, losses in order, versions."""
    path = folder / "comparison.json"
    try:
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must say of a comparison what it is of, got no JSON object ({error}).") from None


# ---- words and tables ------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    words: int = 1
    """How many columns, from the left, are words and not numbers."""


def _number(value: float, signed: bool = False, like: float | None = None) -> str:
    """Three decimals for what lies around 1 (or where `like` does), fewer for more; a true minus sign."""
    if math.isnan(value):
        return NOTHING
    digits = 3 if abs(value if like is None else like) < 10 else 1
    value = round(value, digits) or 0.0  # no negative zero
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _mean(mean: float, sd: float) -> str:
    return _number(mean) if math.isnan(sd) else f"{_number(mean)} ± {_number(sd, like=mean)}"


def _interval(cell: Cell) -> str:
    if cell.difference is None or math.isnan(cell.low):
        return NOTHING
    middle, low, high = (_number(value, signed=True) for value in (cell.difference, cell.low, cell.high))
    return f"{middle} [{low}, {high}]"


def _findings(part: _Part) -> list[str]:
    """What the headline metric says, in sentences; most of all, what it does not say."""
    summary, metric = part.summary, part.headline
    cells = {loss: summary.cells[loss, metric] for loss in part.losses if (loss, metric) in summary.cells}
    if not cells:
        return ["No run was finished."]
    best, base = next(loss for loss in part.ranked if loss in cells), summary.baseline
    first = (
        f"{best} has the best mean {metric}: {_mean(cells[best].mean, cells[best].sd)} over {_seeds(cells[best].n)}."
    )
    if best == base:
        first = f"The baseline {first}"
    found = [first]
    compared = {loss: cell for loss, cell in cells.items() if _interval(cell) != NOTHING}
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
        found.append(f"{len(summary.failed)} of {len(part.runs)} runs failed; see below.")
    missing = {loss: len(part.tests(loss)) for loss in part.losses if len(part.tests(loss)) < len(summary.seeds)}
    if missing:
        counts = ", ".join(f"{loss} has {count}" for loss, count in missing.items())
        found.append(f"Not every loss was tested with all {_seeds(len(summary.seeds))}: {counts}.")
    again = sum(bool((run.failure or {}).get("again")) for run in summary.failed)
    if again:
        failed = f"{again} run{'s' * (again != 1)} failed for reasons outside the loss"
        found.append(f"{failed}: start the comparison again to repeat what failed.")
    return found


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _tables(part: _Part) -> list[_Table]:
    return [table for table in (_results(part), _differences(part), _cost(part), _failures(part)) if table.rows]


def _arrows(part: _Part) -> list[str]:
    return [f"{metric} {'↑' if higher else '↓'}" for metric, higher in part.summary.metrics.items()]


def _results(part: _Part) -> _Table:
    rows = []
    for loss in part.ranked:
        rows.append([loss, str(len(part.tests(loss)))])
        for metric in part.summary.metrics:
            cell = part.summary.cells.get((loss, metric))
            text = NOTHING if cell is None else _mean(cell.mean, cell.sd)
            rows[-1].append(f"**{text}**" if cell is not None and cell.best else text)
    note = (
        "Mean ± standard deviation over the seeds, on the test split. "
        "↑ higher is better, ↓ lower; the best mean of a column is bold."
    )
    if any("R@" in metric for metric in part.summary.metrics):  # recall_at_k is another
        note += " R@k is the hit rate: the share of queries with a relevant item among the first k."
    return _Table("Results", ["loss", "seeds", *_arrows(part)], rows, note)


def _differences(part: _Part) -> _Table:
    rows = []
    for loss in part.ranked:
        cells = [part.summary.cells.get((loss, metric)) for metric in part.summary.metrics]
        row = [NOTHING if cell is None else _interval(cell) for cell in cells]
        if set(row) != {NOTHING}:
            rows.append([loss, *row])
    note = (
        "Mean and 95% interval (Student's t over the seeds) of the difference, seed by seed: the same split, first "
        "weights and batches. An interval that holds 0 tells nothing apart. Each is of one comparison, not corrected "
        "for how many there are."
    )
    return _Table(f"Differences to {part.summary.baseline}", ["loss", *_arrows(part)], rows, note)


def _cost(part: _Part) -> _Table:
    rows = []
    for loss in part.losses:
        seconds, memory = part.summary.seconds_per_step.get(loss), part.summary.peak_memory.get(loss)
        chosen = [f"{_settings(settings)} ({_seeds(n)})" for settings, n in part.summary.settings.get(loss, [])]
        rows.append(
            [
                loss,
                "; ".join(chosen) or NOTHING,
                NOTHING if seconds is None or math.isnan(seconds) else f"{1e3 * seconds:.1f}",
                NOTHING if memory is None else f"{memory / 1e6:.1f}",
            ]
        )
    note = "Settings are those best on the validation split. A step is encoder and loss, forward and backward."
    return _Table("Settings and cost", ["loss", "chosen", "ms per step", "peak MB of a step"], rows, note, words=2)


def _failures(part: _Part) -> _Table:
    rows = []
    for run in part.summary.failed:
        failure = run.failure or {}
        step, reason = (str(failure.get(key, NOTHING)) for key in ("step", "reason"))
        values = _settings(failure.get("values") or {})
        rows.append([run.loss, str(run.seed), _settings(run.settings), step, reason, values])
    header = ["loss", "seed", "settings", "step", "reason", "values"]
    return _Table("Failed runs", header, rows, words=len(header))


def _settings(settings: Mapping[str, Any]) -> str:
    parts = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items())
    return ", ".join(parts) or NOTHING


def _header(part: _Part) -> str:
    """Data, seeds, steps, device and versions in one line."""
    steps = sorted({run.steps for loss in part.losses for run in part.tests(loss)})
    length = f"{steps[0]} to {steps[-1]} steps" if len(steps) > 1 else f"{steps[0]} steps" if steps else "no result"
    made = _origin(part.folder)
    batch = f", {made['batch_size']} items a step" if "batch_size" in made else ""
    versions = ", ".join(f"{name} {made[name]}" for name in ("sodeep", "torch") if name in made)
    return (
        f"Data: {part.summary.data}. Baseline: {part.summary.baseline}. {len(part.summary.losses)} losses, "
        f"{_seeds(len(part.summary.seeds))}, {length}{batch}, on {part.summary.device}{versions and f'; {versions}'}."
    )


def _markdown(parts: Sequence[_Part], command: str | None, notes: Sequence[str]) -> str:
    lines = []
    for part in parts:
        lines += [f"# Losses compared: {part.summary.task}", "", _header(part), ""]
        if command:
            lines += [f"    {command}", ""]
        lines += [f"* {finding}" for finding in _findings(part)] + [""]
        for table in _tables(part):
            lines += [f"## {table.title}", ""]
            cells = [[entry.replace("|", "\\|") for entry in row] for row in [table.header, *table.rows]]
            lines += ["| " + " | ".join(cells[0]) + " |"]
            lines += ["|---" * table.words + "|---:" * (len(table.header) - table.words) + "|"]
            lines += ["| " + " | ".join(row) + " |" for row in cells[1:]]
            lines += ["", table.note, ""] if table.note else [""]
    lines += [*notes, ""] if notes else ["Pictures: report.html.", ""]
    return "\n".join(lines)


def _data(parts: Sequence[_Part], command: str | None, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "format_version": 1,
        "sodeep": __version__,
        "torch": torch.__version__,
        "command": command,
        "notes": list(notes),
        "comparisons": [
            {
                "task": part.summary.task,
                "data": part.summary.data,
                "baseline": part.summary.baseline,
                "higher_is_better": part.summary.metrics,
                "findings": _findings(part),
                "losses": {
                    loss: {
                        "metrics": {
                            metric: asdict(part.summary.cells[loss, metric])
                            for metric in part.summary.metrics
                            if (loss, metric) in part.summary.cells
                        },
                        "settings": [
                            {"chosen": settings, "seeds": n} for settings, n in part.summary.settings.get(loss, [])
                        ],
                        "seconds_per_step": part.summary.seconds_per_step.get(loss),
                        "peak_memory": part.summary.peak_memory.get(loss),
                    }
                    for loss in part.ranked
                },
                "runs": [json.loads(run.to_json()) for run in part.runs],
            }
            for part in parts
        ],
    }


def _strict(value: Any) -> Any:
    """`value` with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- pictures --------------------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    """A picture of the report."""

    title: str
    caption: str
    figure: Any
    """matplotlib.figure.Figure"""


def draw_report(
    folder: str | os.PathLike[str],
    *,
    baseline: str | None = None,
    losses: Mapping[str, Callable[..., Any]] | None = None,
) -> list[Picture]:
    """The pictures of the report one by one, to be saved in a format of your own: ``picture.figure.savefig(path)``.

    Args:
        folder: of a comparison, with runs.jsonl and details/.
        baseline: the loss that others are compared with; None: the task's own.
        losses: as of `write_report`.

    Raises:
        FileNotFoundError: there are no runs in `folder`.
        ModuleNotFoundError: matplotlib is not installed.
    """
    return [picture for part in _parts(folder, baseline) for picture in _pictures(part, losses or {})]


def _pictures(part: _Part, losses: Mapping[str, Callable[..., Any]]) -> Iterator[Picture]:
    """Every picture that the runs have the arrays for."""
    from sodeep import pictures

    summary, metric, names = part.summary, part.headline, part.losses
    if not names:
        return
    values = {loss: [run.metrics[metric] for run in part.tests(loss)] for loss in names}
    cells = {loss: summary.cells[loss, metric] for loss in names if (loss, metric) in summary.cells}
    intervals = {
        loss: (cell.difference, cell.low, cell.high)
        for loss, cell in cells.items()
        if cell.difference is not None and not math.isnan(cell.low)
    }
    yield Picture(
        f"{metric} of every seed",
        "A dot is a seed, the bar their mean."
        + " Right: paired differences to the baseline; those across 0 tell nothing." * bool(intervals),
        pictures.seeds_picture(values, intervals, metric, summary.baseline, summary.metrics[metric]),
    )
    curves = part.curves(f"val/{metric}")
    if curves:
        yield Picture(
            "Learning curves",
            f"{metric} on the validation split: the mean over the seeds, and each seed as a faint line.",
            pictures.curve_picture(curves, f"{metric} on the validation split"),
        )
    curves = part.curves("loss/train")
    if curves:
        yield Picture(
            "Training losses",
            "A line is a seed; a point, the mean since the one before. Losses differ in scale: compare shapes only.",
            pictures.loss_picture(curves),
        )
    orders = {run.loss: (arrays["predicted"], arrays["true"]) for run, arrays in _first(part, "predicted", "true")}
    if orders:
        yield Picture(
            "Predicted against true ranks",
            "Test split, first seed. On the line, an item has the rank it should have; rank 1 is the highest score.",
            pictures.order_picture(orders),
        )
    recalls = _precision_recall(part)
    if recalls:
        yield Picture(
            "Precision and recall",
            "At each recall the precision where it is first reached, averaged over the labels and the seeds.",
            pictures.precision_recall_picture(recalls),
        )
    aps: dict[str, list[tuple[Array, Array]]] = {}
    for run, arrays in part.details("ap", "ap_quantized"):
        known = np.isfinite(arrays["ap"]) & np.isfinite(arrays["ap_quantized"])
        aps.setdefault(run.loss, []).append((arrays["ap"][known], arrays["ap_quantized"][known]))
    if aps:
        pooled = {loss: tuple(np.concatenate(side) for side in zip(*pairs, strict=True)) for loss, pairs in aps.items()}
        yield Picture(
            "Average precision against its quantised form",
            "A dot is a test query, of all seeds. The quantised form is what QuantizedAPLoss trains on.",
            pictures.quantized_picture(pooled),  # type: ignore[arg-type]
        )
    yield from _strips(part)
    weights, scores, relevant = _weights(_callables(part, losses))
    if weights:
        yield Picture(
            "Pair weights",
            f"How hard a loss pulls on a pair, by its gradient, for one query with {int(relevant.sum())} relevant "
            f"items around a similarity of 0.6 and {int((~relevant).sum())} others around 0.2, with the settings "
            "chosen most often. Below 0 it pulls the wrong way.",
            pictures.weight_picture(scores, relevant, weights, {loss: names.index(loss) for loss in weights}),
        )
    yield Picture(
        "Cost of a step",
        "Encoder and loss, forward and backward; median time, and what is allocated at the peak.",
        pictures.cost_picture({loss: summary.seconds_per_step[loss] for loss in names}, summary.peak_memory),
    )


def _first(part: _Part, *names: str) -> Iterator[tuple[Run, dict[str, Array]]]:
    """The first seed of each loss that has the arrays."""
    seen: set[str] = set()
    for run, arrays in part.details(*names):
        if run.loss not in seen:
            seen.add(run.loss)
            yield run, arrays


def _strips(part: _Part) -> Iterator[Picture]:
    """First results for random and worst queries, of the best loss and of the baseline."""
    from sodeep import pictures

    names = ("strip_pictures", "strip_right", "strip_kind", "strip_ap")
    for asked in ("strip_queries", "strip_texts"):
        found = {run.loss: (run, arrays) for run, arrays in _first(part, asked, *names)}
        wanted = dict.fromkeys([next((loss for loss in part.ranked if loss in found), ""), part.summary.baseline])
        for run, arrays in (found[loss] for loss in wanted if loss in found):
            for kind, words in (("random", "Random queries"), ("worst", "Queries of lowest average precision")):
                of_kind = arrays["strip_kind"] == kind
                queries = arrays[asked][of_kind]
                if len(queries):
                    yield Picture(
                        f"{words}: {run.loss}",
                        f"Test split, seed {run.seed}. Right results have a blue frame and a tick, wrong ones an "
                        "orange frame and a cross.",
                        pictures.strip_picture(
                            [str(text) for text in queries] if asked == "strip_texts" else queries,
                            *(arrays[name][of_kind] for name in ("strip_pictures", "strip_right", "strip_ap")),
                        ),
                    )


def _precision_recall(part: _Part, points: int = 101) -> dict[str, tuple[Array, Array]]:
    """Loss -> recall and precision (points,), averaged over labels and seeds."""
    recall = np.linspace(0, 1, points)
    found: dict[str, list[Array]] = {}
    for run, arrays in part.details("scores", "relevant", "known"):
        for scores, relevant, known in zip(*(arrays[name].T for name in ("scores", "relevant", "known")), strict=True):
            if relevant[known].any():
                found.setdefault(run.loss, []).append(_precision_at(recall, scores[known], relevant[known]))
    return {loss: (recall, np.mean(curves, axis=0)) for loss, curves in found.items()}


def _precision_at(recall: Array, scores: Array, relevant: Array) -> Array:
    """Precision at the first depth that reaches each recall; tied items are taken together."""
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    hits = np.cumsum(relevant[order])
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    reached = np.searchsorted(hits[ends], np.maximum(np.ceil(recall * hits[-1] - 1e-9), 1))
    depth = ends[reached]
    result: Array = hits[depth] / (depth + 1)
    return result


def _weights(losses: Mapping[str, Callable[..., Any]]) -> tuple[dict[str, Array], Array, Array]:
    """Loss -> pair weights (N,), with scores and relevance (N,): quantiles of two normal distributions.

    N is 1,000, for smooth curves; or 100, the list that sorters of one length take, if one of the losses refuses more.
    """
    for n in (1000, 100):
        near, far = (torch.special.ndtri((torch.arange(m) + 0.5).double() / m) for m in (n // 5, n - n // 5))
        scores, relevant = torch.cat([0.6 + 0.12 * near, 0.2 + 0.15 * far]), torch.arange(n) < n // 5
        found = {}
        for name, loss in losses.items():
            with contextlib.suppress(ValueError):
                found[name] = pair_weights(loss, scores, relevant).numpy()
        if found.keys() == losses.keys():
            break
    return found, scores.numpy(), relevant.numpy()


def _callables(part: _Part, given: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Losses of (scores, relevant): those given, and ours by name. No code is run that a folder of runs only names."""
    ranks = {*RANKS, *(card.name for card in list_sorters())}

    def ours(term: str) -> bool:
        loss, _, rank = term.partition(":")
        return term in LOSSES or (loss in RANK_LOSSES and rank in ranks)

    found: dict[str, Callable[..., Any]] = {}
    for name in part.losses:
        if name in given:
            found[name] = given[name]
        elif all(ours(term) for term in terms_of(name)):
            terms = contender(name).terms(part.summary.settings[name][0][0], "relevant")
            if all(form == "relevant" for _, form, _ in terms):
                found[name] = functools.partial(_weighted_sum, terms)
    return found


def _weighted_sum(terms: Sequence[tuple[float, str, Callable[..., Any]]], scores: Any, relevant: Any) -> Any:
    return sum(weight * loss(scores, relevant) for weight, _, loss in terms)


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


def _html(
    parts: Sequence[_Part], losses: Mapping[str, Callable[..., Any]], command: str | None, notes: list[str]
) -> str:
    body = []
    for part in parts:
        body += [f"<h1>Losses compared: {escape(part.summary.task)}</h1>", f"<p class=note>{escape(_header(part))}</p>"]
        if command:
            body.append(f"<pre>{escape(command)}</pre>")
        body += ["<ul>", *(f"<li>{escape(finding)}</li>" for finding in _findings(part)), "</ul>"]
        tables = _tables(part)
        body.append(_html_table(tables[0]))
        try:
            pictures = list(_pictures(part, losses))
        except ModuleNotFoundError as error:
            if not is_missing(error, "matplotlib"):
                raise
            pictures = []
            notes[:] = [NO_MATPLOTLIB]
        body += [_html_picture(picture) for picture in pictures[:1]]
        body += [_html_table(table) for table in tables[1:]]
        body += [_html_picture(picture) for picture in pictures[1:]]
    body += [f"<p class=note>{escape(note)}</p>" for note in notes]
    title = f"Losses compared: {', '.join(dict.fromkeys(part.summary.task for part in parts))}"
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


def _html_picture(picture: Picture) -> str:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # texts in scripts that the font lacks
        picture.figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    width = round(picture.figure.get_figwidth() * 96)
    return (
        f"<h2>{escape(picture.title)}</h2>\n<figure>"
        f'<img width={width} alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


def write_tensorboard(
    folder: str | os.PathLike[str],
    log_dir: str | os.PathLike[str],
    *,
    baseline: str | None = None,
    losses: Mapping[str, Callable[..., Any]] | None = None,
) -> list[str]:
    """Write the same to TensorBoard: ``tensorboard --logdir LOG_DIR``.

    A run of TensorBoard is a tested run, ``<task>/<loss>/seed <n>``: curves and test metrics (scalars), settings
    against test metrics (hparams), precision and recall where there are several labels, and the embeddings with
    thumbnails (projector). The pictures are in the run ``<task>``.

    Args:
        folder: of a comparison, with runs.jsonl and details/.
        log_dir: folder to write to, made if it is not there; without a folder of the task's name in it, since
            TensorBoard would show old and new as one.
        baseline: the loss that others are compared with; None: the task's own.
        losses: as of `write_report`.

    Returns:
        What is missing and why.

    Raises:
        FileNotFoundError: there are no runs in `folder`.
        ValueError: `log_dir` has a folder of the task's name.
    """
    with needed("tensorboard", "Writing for TensorBoard"):
        from torch.utils.tensorboard import SummaryWriter

    notes: list[str] = []
    parts = {user_path(log_dir) / _slug(part.summary.task): part for part in _parts(folder, baseline)}
    for base in parts:
        if base.exists():
            raise ValueError(f"`log_dir` must not hold {base.name} yet, got '{log_dir}'. Choose another, or delete it.")
    for base, part in parts.items():
        for loss in part.losses:
            for run in part.tests(loss):
                with SummaryWriter(str(base / _slug(loss) / f"seed {run.seed}")) as writer:
                    _log_run(writer, part, run)
        try:
            with SummaryWriter(str(base)) as writer:
                for picture in _pictures(part, losses or {}):
                    writer.add_figure(picture.title, picture.figure, close=False)
                writer.add_text("report", _markdown([part], None, []))
        except ModuleNotFoundError as error:
            if not is_missing(error, "matplotlib"):
                raise
            notes = [NO_MATPLOTLIB]
    return notes


def _slug(name: str) -> str:
    """`name` as a folder: what file systems refuse is replaced."""
    return "".join(letter if letter.isalnum() or letter in "+-_. " else "_" for letter in name)


def _log_run(writer: Any, part: _Part, run: Run) -> None:
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
    for of_run, arrays in part.details("scores", "relevant", "known", "label_names"):
        if of_run is not run:
            continue
        for scores, relevant, known, label in zip(
            *(arrays[name].T for name in ("scores", "relevant", "known")), arrays["label_names"], strict=True
        ):
            if relevant[known].any():
                # thresholds of the plugin lie in [0, 1]: places in the order, which leave the curve as it is
                places = torch.as_tensor(scores[known].astype(np.float32)).argsort().argsort().float()
                writer.add_pr_curve(f"precision and recall/{label}", relevant[known], places / max(1, len(places) - 1))
    for of_run, arrays in part.details("embeddings", "embedding_labels"):
        if of_run is run:
            thumbnails = next((a["thumbnails"] for r, a in part.details("thumbnails") if r is run), None)
            writer.add_embedding(
                torch.as_tensor(arrays["embeddings"].astype(np.float32)),
                metadata=[" ".join(str(label).split()) for label in arrays["embedding_labels"]],
                label_img=None if thumbnails is None else _channels_first(thumbnails),
                tag="embeddings",
            )


def _channels_first(pictures: Array) -> torch.Tensor:
    """uint8 (n, H, W[, 3]) as float (n, 3, S, S) in [0, 1]; padded with white to squares, which the projector needs."""
    x = torch.as_tensor(pictures)
    x = (x.unsqueeze(-1).expand(*x.shape, 3) if x.ndim == 3 else x).permute(0, 3, 1, 2).float() / 255
    side = max(x.shape[-2:])
    return torch.nn.functional.pad(x, (0, side - x.shape[-1], 0, side - x.shape[-2]), value=1.0)
