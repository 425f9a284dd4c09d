"""Figures of comparisons. Needs matplotlib.

Every function returns a matplotlib `Figure`; save it with ``figure.savefig(path)``. Colours are those of Okabe and Ito,
which colour-blind people can distinguish; where there are more losses than colours, line styles differ as well. A loss
has the same colour in all figures of a report, by its place in the list of losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sodeep._core.extras import needed
from sodeep._core.plotting import (
    GREY,
    Array,
    Curve,
    cloud,
    inner_range,
    panels,
    plain_axes,
    short,
    style,
    tensor_of,
    without_spikes,
)
from sodeep.ranks import exact_rank

with needed("matplotlib", "Drawing figures"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator


def plot_seeds(
    values: Mapping[str, Sequence[float]],
    intervals: Mapping[str, tuple[float, float, float]],
    metric: str,
    baseline: str,
    higher_is_better: bool = True,
) -> Figure:
    """Left, a metric of each loss: every seed as a dot, the mean as a bar. Right, paired differences to the baseline.

    Without differences the right panel is left out. A loss so far from the others that they would share a third of the
    axis stands at the edge, with its number.

    Args:
        values: loss -> value of each seed. The order is that of the colours; the figure sorts by the mean.
        intervals: loss -> mean difference to the baseline and the two ends of its 95% interval; losses may be missing.
        metric: name of the metric.
        baseline: name of the baseline.
        higher_is_better: of the metric; the best loss stands on top.
    """
    places = {loss: place for place, loss in enumerate(values)}
    rows = sorted((loss for loss in values if len(values[loss])), key=lambda loss: -float(np.mean(values[loss])))
    if not higher_is_better:
        rows.reverse()
    figure = Figure(figsize=(9 if intervals else 5.5, 0.8 + 0.36 * len(rows)), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True) if intervals else [figure.add_subplot()]
    left, right = panels[0], panels[-1]
    spans: dict[Axes, list[tuple[float, float, float, float]]] = {axis: [] for axis in panels}
    for y, loss in enumerate(rows):
        colour = style(places[loss])["color"]
        left.plot(values[loss], [y] * len(values[loss]), "o", color=colour, alpha=0.5, markersize=5, mew=0)
        left.plot([np.mean(values[loss])], [y], "|", color=colour, markersize=16, mew=2.5)
        if loss in intervals:
            middle, low, high = intervals[loss]
            right.plot([low, high], [y, y], color=colour, linewidth=2)
            right.plot([middle], [y], "|", color=colour, markersize=16, mew=2.5)
            spans[right].append((y, min(low, 0.0), max(high, 0.0), middle))
        spans[left].append((y, min(values[loss]), max(values[loss]), float(np.mean(values[loss]))))
    left.set_yticks(range(len(rows)), rows, fontsize=9)
    left.set_ylim(len(rows) - 0.5, -0.5)
    if intervals:
        right.axvline(0, color=GREY, linewidth=1)
        right.set_xlabel(f"difference to {baseline}, mean and 95% interval", fontsize=9)
        right.tick_params(axis="y", left=False)
    left.set_xlabel(f"{metric}   ({'higher' if higher_is_better else 'lower'} is better)", fontsize=9)
    for axis in panels:
        plain_axes(axis)
        axis.grid(axis="x", alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        _zoom(axis, spans[axis])
    return figure


def _zoom(axis: Axes, rows: Sequence[tuple[float, float, float, float]]) -> None:
    """Cut off rows (y, low, high, middle) that lie far from the others: the number stands at the edge instead."""
    low, high = inner_range([(low, high) for _, low, high, _ in rows])
    margin = 0.05 * (high - low) or 1e-3
    cut = [(y, middle) for y, _, _, middle in rows if not low <= middle <= high]
    if cut:
        axis.set_xlim(low - margin, high + margin)
    for y, middle in cut:
        below = middle < low
        text = f"← {middle:.3g}" if below else f"{middle:.3g} →"
        axis.text(
            0.01 if below else 0.99,
            y,
            text.replace("-", "\N{MINUS SIGN}"),
            transform=axis.get_yaxis_transform(),
            fontsize=8,
            va="center",
            ha="left" if below else "right",
        )


def plot_learning_curves(curves: Mapping[str, Sequence[Curve]], ylabel: str) -> Figure:
    """Curves of all losses in one panel: the mean over the seeds, and each seed as a faint line.

    Args:
        curves: loss -> the curve of each seed. Where seeds were read at different steps, values between two steps are
            interpolated linearly, and the mean is over the steps that all of them have.
        ylabel: what the values are.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.add_subplot()
    for place, (loss, seeds) in enumerate(curves.items()):
        drawn = [np.asarray(curve, dtype=float) for curve in seeds if len(curve)]
        if not drawn:
            continue
        marker = "o" if min(len(curve) for curve in drawn) == 1 else None
        for curve in drawn:
            axis.plot(*curve.T, linewidth=0.7, alpha=0.3, marker=marker, **style(place))
        start, end = max(curve[0, 0] for curve in drawn), min(curve[-1, 0] for curve in drawn)
        steps = np.unique(np.concatenate([curve[:, 0] for curve in drawn]))
        steps = steps[(steps >= start) & (steps <= end)]
        if len(steps):
            values = np.mean([np.interp(steps, *curve.T) for curve in drawn], axis=0)
            axis.plot(steps, values, label=loss, linewidth=2, marker=marker, **style(place))
    axis.set_xlabel("step", fontsize=9)
    axis.set_ylabel(ylabel, fontsize=9)
    axis.grid(alpha=0.3)
    plain_axes(axis)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def plot_training_losses(curves: Mapping[str, Sequence[Curve]]) -> Figure:
    """Training losses, one panel a loss: their scales have nothing in common. A line for each seed, smoothed.

    A few steps that lie far beyond the others leave the panel.

    Args:
        curves: loss -> the curve of each seed.
    """
    figure, axes = panels(list(curves), height=2)
    for place, (axis, seeds) in enumerate(zip(axes, curves.values(), strict=True)):
        for curve in seeds:
            points = np.asarray(curve, dtype=float).reshape(-1, 2)
            width = max(1, len(points) // 50)
            kept = len(points) // width * width
            steps, values = points[:kept].reshape(-1, width, 2).mean(1).T
            axis.plot(steps, values, color=style(place)["color"], linewidth=1, alpha=0.8)
        axis.grid(alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(3))
        drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axis.lines]
        limits = without_spikes(np.concatenate(drawn)) if drawn else None
        if limits is not None:
            axis.set_ylim(limits)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("training loss", fontsize=9)
    return figure


def plot_orders(pairs: Mapping[str, tuple[Array, Array]]) -> Figure:
    """Predicted against true ranks, one panel a loss, with Spearman's correlation.

    Args:
        pairs: loss -> predicted and true scores (n,). Of more than 2,000 items an even selection is drawn.
    """
    figure, axes = panels(list(pairs), height=2.7)
    for place, (axis, (loss, (predicted, true))) in enumerate(zip(axes, pairs.items(), strict=True)):
        x, y = (exact_rank(tensor_of(scores)).numpy() for scores in (true, predicted))
        n = len(x)
        some = slice(None, None, max(1, n // 2000))
        axis.plot([1, n], [1, n], color=GREY, linewidth=1)
        axis.plot(x[some], y[some], ".", color=style(place)["color"], **cloud(n))
        axis.set_title(f"{short(loss)}\nSpearman {_correlation(x, y):.3f}", fontsize=9)
        margin = 0.03 * n
        axis.set_xlim(n + margin, 1 - margin)  # rank 1, the highest score, to the right and on top
        axis.set_ylim(n + margin, 1 - margin)
        axis.set(aspect="equal", xticks=(1, n // 2, n), yticks=(1, n // 2, n))
    figure.supxlabel("true rank (1 = highest)", fontsize=9)
    figure.supylabel("predicted rank", fontsize=9)
    return figure


def plot_precision_recall(curves: Mapping[str, tuple[Array, Array]]) -> Figure:
    """Precision against recall, a line for each loss, with the area under it.

    Args:
        curves: loss -> recall and precision (m,), recall rising.
    """
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.add_subplot()
    for place, (loss, (recall, precision)) in enumerate(curves.items()):
        area = float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1]) / 2))
        axis.plot(recall, precision, label=f"{loss}   area {area:.3f}", **style(place))
    axis.set(xlim=(0, 1), ylim=(0, 1.02))
    axis.set_xlabel("recall", fontsize=9)
    axis.set_ylabel("precision, mean over labels and seeds", fontsize=9)
    axis.grid(alpha=0.3)
    plain_axes(axis)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def plot_quantized_ap(pairs: Mapping[str, tuple[Array, Array]]) -> Figure:
    """Quantised against exact average precision of each query, one panel a loss, with their correlation.

    The figure of the supplement of Revaud et al., ICCV 2019, who found a correlation of 0.98 on Revisited Paris.

    Args:
        pairs: loss -> exact and quantised average precision (Q,), in [0, 1].
    """
    figure, axes = panels(list(pairs), height=2.7)
    for place, (axis, (loss, (exact, quantized))) in enumerate(zip(axes, pairs.items(), strict=True)):
        some = slice(None, None, max(1, len(exact) // 2000))
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=1)
        axis.plot(exact[some], quantized[some], ".", color=style(place)["color"], **cloud(len(exact)))
        axis.set_title(f"{short(loss)}\ncorrelation {_correlation(exact, quantized):.3f}", fontsize=9)
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    figure.supxlabel("average precision of a query", fontsize=9)
    figure.supylabel("quantised, 20 bins", fontsize=9)
    return figure


def _correlation(x: Array, y: Array) -> float:
    """Pearson's correlation, NaN where one of both is constant."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    spread = float(np.std(x) * np.std(y))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0 else math.nan


def plot_first_items(queries: Array | Sequence[str], images: Array, right: Array, ap: Array | None = None) -> Figure:
    """The first results of some queries, a row for each: right ones have a blue frame and a tick, others an orange one.

    Args:
        queries: images, uint8 (S, H, W) or (S, H, W, 3); or S texts.
        images: uint8 (S, k, H, W) or (S, k, H, W, 3), the best first.
        right: bool (S, k).
        ap: (S,) average precision of each query, to be written beside it.
    """
    rows, columns = right.shape
    first = 1.35 if isinstance(queries, np.ndarray) else 4.2  # where the results begin
    figure = Figure(figsize=(0.62 * (first + columns) + 0.5, 0.62 * rows + 0.35), layout="constrained")
    axis = figure.add_subplot()
    for row, query in enumerate(queries):
        if isinstance(query, str):
            short = query if len(query) <= 42 else f"{query[:40]}…"
            axis.text(first - 0.6, row, short, fontsize=7, ha="right", va="center")
        else:
            _show(axis, query, 0, row)
        if ap is not None:
            axis.text(first + columns - 0.35, row, f"AP {ap[row]:.2f}", fontsize=7, va="center")
        for column in range(columns):
            x, good = first + column, bool(right[row, column])
            colour = RIGHT if good else WRONG
            _show(axis, images[row, column], x, row)
            axis.add_patch(Rectangle((x - 0.45, row - 0.45), 0.9, 0.9, fill=False, edgecolor=colour, linewidth=2))
            _badge(axis, x + 0.36, row + 0.36, colour, good)
    axis.set(xlim=(-0.6, first + columns + 0.4 * (ap is not None)), ylim=(rows - 0.45, -0.75), aspect="equal")
    if isinstance(queries, np.ndarray):
        axis.text(0, -0.55, "query", fontsize=8, ha="center", va="bottom")
    else:
        axis.text(first - 0.6, -0.55, "query", fontsize=8, ha="right", va="bottom")
    axis.text(first - 0.45, -0.55, f"first {columns} results", fontsize=8, va="bottom")
    axis.axis("off")
    return figure


RIGHT, WRONG = "#0072B2", "#D55E00"


def _show(axis: Axes, image: Array, x: float, y: float) -> None:
    axis.imshow(
        image,
        cmap="gray",
        vmin=0,
        vmax=255,
        extent=(x - 0.43, x + 0.43, y + 0.43, y - 0.43),
        interpolation="antialiased",
    )


def _badge(axis: Axes, x: float, y: float, colour: str, good: bool) -> None:
    """A tick or a cross, drawn, since not every font has them."""
    axis.plot([x], [y], "o", color=colour, markersize=7, mew=0, zorder=3)
    strokes = (
        [([-0.05, -0.01, 0.06], [0, 0.05, -0.05])]
        if good
        else [([-0.05, 0.05], [-0.05, 0.05]), ([-0.05, 0.05], [0.05, -0.05])]
    )
    for dx, dy in strokes:
        axis.plot(np.add(x, dx), np.add(y, dy), color="white", linewidth=1.2, zorder=4, solid_capstyle="round")


def plot_pair_weights(
    scores: Array, relevant: Array, weights: Mapping[str, Array], places: Mapping[str, int] | None = None
) -> Figure:
    """The gradient of each loss with respect to the score of a pair, against that score, relative to its largest value.

    Above 0 the score of a relevant item is raised and that of another lowered; below 0 the sign is wrong.

    Args:
        scores: (N,) similarities of the items to one query.
        relevant: (N,) bool.
        weights: loss -> d loss / d scores (N,), from `sodeep.losses.pair_weights.pair_weights`.
        places: loss -> its place in the list of losses, which gives its colour; None: those in `weights`.
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axis, side, title, sign in zip(
        panels,
        (relevant, ~relevant),
        ("Relevant items: score raised", "Other items: score lowered"),
        (-1, 1),
        strict=True,
    ):
        order = np.argsort(scores[side])
        axis.axhline(0, color=GREY, linewidth=1)
        for number, (loss, weight) in enumerate(weights.items()):
            gradient = sign * weight[side][order]
            largest = np.abs(gradient).max()
            looks = style(number if places is None else places[loss])
            axis.plot(scores[side][order], gradient / (largest if largest > 0 else 1), label=loss, **looks)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("similarity to the query", fontsize=9)
        axis.grid(alpha=0.3)
        plain_axes(axis)
    panels[0].set_ylabel("gradient / largest gradient", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    return figure


def plot_costs(seconds: Mapping[str, float], memory: Mapping[str, int | None]) -> Figure:
    """Time and peak memory of a training step, encoder included, a bar for each loss.

    Args:
        seconds: loss -> seconds per step.
        memory: loss -> bytes, None where it was not measured.
    """
    measured = any(memory.get(loss) for loss in seconds)
    figure = Figure(figsize=(9 if measured else 5.5, 0.8 + 0.34 * len(seconds)), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True) if measured else [figure.add_subplot()]
    colours = [style(place)["color"] for place in range(len(seconds))]
    quantities = [("ms per step", [1e3 * value for value in seconds.values()])]
    if measured:
        quantities.append(("peak memory of a step, MB", [(memory.get(loss) or math.nan) / 1e6 for loss in seconds]))
    for axis, (label, values) in zip(panels, quantities, strict=True):
        bars = axis.barh(range(len(values)), values, color=colours, height=0.6)
        axis.bar_label(bars, labels=["" if math.isnan(v) else f"{v:.3g}" for v in values], padding=3, fontsize=8)
        axis.set_xlabel(label, fontsize=9)
        axis.margins(x=0.15)
        plain_axes(axis)
    panels[0].set_yticks(range(len(seconds)), list(seconds), fontsize=9)
    panels[0].invert_yaxis()
    return figure
