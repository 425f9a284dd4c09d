"""The figures of a report and the arrays that each needs: `FIGURES`. Needs matplotlib; `sodeep.report.plots` draws.

A further figure is a function that draws it from a `Source`, and an entry in `FIGURES`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from sodeep.checkpoint.format import list_sorters
from sodeep.comparison.losses_by_name import LOSSES, RANK_LOSSES, RANKS, loss_by_name, stages_of, terms_of
from sodeep.comparison.read import Comparison
from sodeep.comparison.runs import Run
from sodeep.datasets.types import Array
from sodeep.losses.pair_weights import pair_weights
from sodeep.report import plots
from sodeep.tasks.base import Loss


@dataclass(frozen=True)
class Source:
    """The input of a figure.

    Attributes:
        comparison: its runs and statistics.
        details: the tested runs that have all the arrays that the figure needs, with these, loss by loss.
        losses: losses of the user's own, by name.
    """

    comparison: Comparison
    details: list[tuple[Run, dict[str, Array]]]
    losses: Mapping[str, Loss]


Drawn = Iterator[tuple[Figure, dict[str, object]]]
"""Figures, each with the values to fill into its title and caption."""


@dataclass(frozen=True)
class FigureSpec:
    """A figure of the report.

    Attributes:
        title: of the figure; "{metric}" is the primary metric, other names are filled in by `draw`.
        caption: likewise.
        draw: draws it; nothing, or several, as the comparison has it.
        needs: arrays of the tested runs; where none has all of them, the figure is left out.
        first_seed: whether it shows the first run of each loss that has them, not all.
    """

    title: str
    caption: str
    draw: Callable[[Source], Drawn]
    needs: tuple[str, ...] = ()
    first_seed: bool = False


@dataclass(frozen=True)
class ReportFigure:
    """A figure as it is drawn."""

    title: str
    caption: str
    figure: Figure

    @functools.cached_property
    def png(self) -> bytes:
        """The figure as a file, without a date or the like in it."""
        return self._saved(format="png", metadata={"Software": None})

    def _saved(self, **options: Any) -> bytes:
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # texts in scripts that the font lacks
            self.figure.savefig(file, dpi=130, **options)
        return file.getvalue()

    @functools.cached_property
    def svg(self) -> bytes:
        """The figure as vector graphics, light on dark where the reader prefers that; the same each time."""
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.title}):
            saved = self._saved(format="svg", transparent=True, metadata={"Date": None})
        text = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b"?", saved)  # which no XML may hold
        head, end, rest = text.partition(b"<defs>")
        return head + _SVG_STYLE + end + rest.replace(b"#000000", b"currentColor")


_SVG_STYLE = (
    b"<style>svg { color: #1a1a1a } text { fill: currentColor }"
    b" @media (prefers-color-scheme: dark) { svg { color: #e6e6e6 } }</style>"
)


def draw_all(comparison: Comparison, losses: Mapping[str, Loss]) -> list[ReportFigure]:
    """Every figure that the runs have the arrays for, in the order of `FIGURES`."""
    if not comparison.tested:
        return []
    with matplotlib.rc_context({"text.parse_math": False}):  # names are text, whatever is in them
        return _drawn(comparison, losses)


def _drawn(comparison: Comparison, losses: Mapping[str, Loss]) -> list[ReportFigure]:
    drawn = []
    for spec in FIGURES:
        details = list(comparison.details(*spec.needs, first=spec.first_seed)) if spec.needs else []
        if spec.needs and not details:
            continue
        for figure, values in spec.draw(Source(comparison, details, losses)):
            words = {"metric": comparison.primary_metric, **values}
            drawn.append(ReportFigure(spec.title.format(**words), spec.caption.format(**words), figure))
    return drawn


def _seeds(source: Source) -> Drawn:
    """The primary metric of every seed, and the paired differences."""
    comparison, metric = source.comparison, source.comparison.primary_metric
    summary = comparison.summary
    found = {loss: [run.metrics.get(metric, math.nan) for run in runs] for loss, runs in comparison.tested.items()}
    values = {loss: [value for value in some if math.isfinite(value)] for loss, some in found.items()}
    cells = {loss: summary.cells[loss, metric] for loss in values if (loss, metric) in summary.cells}
    intervals = {
        loss: (cell.difference, cell.low, cell.high)
        for loss, cell in cells.items()
        if cell.difference is not None and cell.has_interval
    }
    more = " Right: paired differences to the baseline; those that contain 0 are not significant." * bool(intervals)
    figure = plots.plot_seeds(values, intervals, metric, summary.baseline, summary.metrics[metric])
    yield figure, {"differences": more}


def _learning_curves(source: Source) -> Drawn:
    metric = source.comparison.primary_metric
    curves = source.comparison.curves(f"val/{metric}")
    if curves:
        yield plots.plot_learning_curves(curves, f"{metric} on the validation split"), {}


def _training_losses(source: Source) -> Drawn:
    curves = source.comparison.curves("loss/train")
    if curves:
        yield plots.plot_training_losses(curves), {}


def _orders(source: Source) -> Drawn:
    """Predicted against true ranks, of the first seed."""
    pairs = {run.loss: (arrays["predicted"], arrays["true"]) for run, arrays in source.details}
    yield plots.plot_orders(pairs), {}


def _precision_recall(source: Source, points: int = 101) -> Drawn:
    """Curves averaged over labels and seeds."""
    recall = np.linspace(0, 1, points)
    by_loss: dict[str, list[Array]] = {}
    for run, arrays in source.details:
        for scores, relevant, known in zip(*(arrays[name].T for name in ("scores", "relevant", "known")), strict=True):
            if relevant[known].any():
                by_loss.setdefault(run.loss, []).append(_precision_at(recall, scores[known], relevant[known]))
    if by_loss:
        curves = {loss: (recall, np.mean(curves, axis=0)) for loss, curves in by_loss.items()}
        yield plots.plot_precision_recall(curves), {}


def _precision_at(recall: Array, scores: Array, relevant: Array) -> Array:
    """Precision at the first depth that reaches each recall; tied items are taken together."""
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    hits = np.cumsum(relevant[order])
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    reached = np.searchsorted(hits[ends], np.maximum(np.ceil(recall * hits[-1] - 1e-9), 1))
    depth = ends[reached]
    result: Array = hits[depth] / (depth + 1)
    return result


def _quantized(source: Source) -> Drawn:
    """Average precision of every query beside its quantised form, all seeds together."""
    exact: dict[str, list[Array]] = {}
    quantized: dict[str, list[Array]] = {}
    for run, arrays in source.details:
        known = np.isfinite(arrays["ap"]) & np.isfinite(arrays["ap_quantized"])
        exact.setdefault(run.loss, []).append(arrays["ap"][known])
        quantized.setdefault(run.loss, []).append(arrays["ap_quantized"][known])
    pairs = {loss: (np.concatenate(exact[loss]), np.concatenate(quantized[loss])) for loss in exact}
    yield plots.plot_quantized_ap(pairs), {}


def _strips(source: Source, queries_name: str) -> Drawn:
    """First results for random and worst queries, of the best loss and of the baseline."""
    runs = {run.loss: (run, arrays) for run, arrays in source.details}
    best = next(loss for loss in source.comparison.ranked if loss in runs)
    shown = dict.fromkeys([best, source.comparison.summary.baseline])
    for run, arrays in (runs[loss] for loss in shown if loss in runs):
        for choice, words in (("random", "Random queries"), ("worst", "Queries of lowest average precision")):
            chosen = arrays["strip_kind"] == choice
            if chosen.any():
                queries = arrays[queries_name][chosen]
                figure = plots.plot_first_items(
                    [str(text) for text in queries] if queries_name == "strip_texts" else queries,
                    *(arrays[name][chosen] for name in ("strip_images", "strip_right", "strip_ap")),
                )
                yield figure, {"queries": words, "loss": run.loss, "seed": run.seed}


def _pair_weights(source: Source) -> Drawn:
    """The gradient of the losses of scores and relevance with respect to each score."""
    weights, scores, relevant = _weights(_callables(source.comparison, source.losses))
    if weights:
        places = {loss: place for place, loss in enumerate(source.comparison.tested)}
        counts: dict[str, object] = {"relevant": int(relevant.sum()), "others": int((~relevant).sum())}
        yield plots.plot_pair_weights(scores, relevant, weights, places), counts


def _weights(losses: Mapping[str, Loss]) -> tuple[dict[str, Array], Array, Array]:
    """Loss -> pair weights (N,), with scores and relevance (N,): quantiles of two normal distributions.

    N is 1,000, for smooth curves; or 100, the list that sorters of one length take, if one of the losses refuses more.
    """
    for n in (1000, 100):
        near, far = (torch.special.ndtri((torch.arange(m) + 0.5).double() / m) for m in (n // 5, n - n // 5))
        scores, relevant = torch.cat([0.6 + 0.12 * near, 0.2 + 0.15 * far]), torch.arange(n) < n // 5
        weights = {}
        for name, loss in losses.items():
            with contextlib.suppress(ValueError):
                weights[name] = pair_weights(loss, scores, relevant).numpy()
        if weights.keys() == losses.keys():
            break
    return weights, scores.numpy(), relevant.numpy()


def _callables(comparison: Comparison, given: Mapping[str, Loss]) -> dict[str, Loss]:
    """Losses of (scores, relevant): those given, and ours by name. Names in a folder of runs import no other code."""
    ranks = {*RANKS, *(card.name for card in list_sorters())}

    def ours(term: str) -> bool:
        loss, _, rank = term.partition(":")
        return term in LOSSES or (loss in RANK_LOSSES and rank in ranks)

    losses: dict[str, Loss] = {}
    for name in comparison.tested:
        if name in given:
            losses[name] = given[name]
        elif all(ours(term) for term in terms_of(stages_of(name)[1])):
            terms = loss_by_name(name).terms(comparison.summary.settings[name][0][0], "relevant")
            if all(signature == "relevant" for _, signature, _ in terms):
                losses[name] = functools.partial(_weighted_sum, terms)
    return losses


def _weighted_sum(terms: Sequence[tuple[float, str, Loss]], scores: Any, relevant: Any) -> Any:
    return sum(weight * loss(scores, relevant) for weight, _, loss in terms)


def _costs(source: Source) -> Drawn:
    summary = source.comparison.summary
    seconds = {loss: summary.seconds_per_step[loss] for loss in source.comparison.tested}
    yield plots.plot_costs(seconds, summary.peak_memory), {}


FIGURES = (
    FigureSpec("{metric} of every seed", "A dot is a seed, the bar their mean.{differences}", _seeds),
    FigureSpec(
        "Learning curves",
        "{metric} on the validation split: the mean over the seeds, and each seed as a faint line.",
        _learning_curves,
    ),
    FigureSpec(
        "Training losses",
        "A line is a seed; a point, the mean since the one before. Losses differ in scale: compare shapes only.",
        _training_losses,
    ),
    FigureSpec(
        "Predicted against true ranks",
        "Test split, first seed. On the line, an item has the rank it should have; rank 1 is the highest score.",
        _orders,
        needs=("predicted", "true"),
        first_seed=True,
    ),
    FigureSpec(
        "Precision and recall",
        "At each recall the precision where it is first reached, averaged over the labels and the seeds.",
        _precision_recall,
        needs=("scores", "relevant", "known"),
    ),
    FigureSpec(
        "Average precision against its quantised form",
        "A dot is a test query, of all seeds. The quantised form is what QuantizedAPLoss trains on.",
        _quantized,
        needs=("ap", "ap_quantized"),
    ),
    *(
        FigureSpec(
            "{queries}: {loss}",
            "Test split, seed {seed}. Right results have a blue frame and a tick, wrong ones an orange frame and a "
            "cross.",
            functools.partial(_strips, queries_name=queries_name),
            needs=(queries_name, "strip_images", "strip_right", "strip_kind", "strip_ap"),
            first_seed=True,
        )
        for queries_name in ("strip_queries", "strip_texts")
    ),
    FigureSpec(
        "Pair weights",
        "The gradient of a loss with respect to each score, for one query with {relevant} relevant items around a "
        "similarity of 0.6 and {others} others around 0.2, with the settings chosen most often. Below 0 it has the "
        "wrong sign.",
        _pair_weights,
    ),
    FigureSpec(
        "Cost of a step",
        "Encoder and loss, forward and backward; median time, and what is allocated at the peak.",
        _costs,
    ),
)
"""The figures of the report, in their order."""
