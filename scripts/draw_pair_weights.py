#!/usr/bin/env python3
"""Draw which similarities the weight of a pair depends on, loss by loss: its own, that of its side, of the other side.

    scripts/draw_pair_weights.py                             # docs/weightings.png, and two tables; half a minute

Wang et al. 2019 (general pair weighting) distinguish three similarities of a pair: S, its own; N, beside the others of
its side; P, beside those of the other side. In each panel one of them moves and the two others stay, for one item of a
list. A flat curve is a similarity that the loss does not see.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import click
import torch
from matplotlib.figure import Figure
from torch import Tensor

import sodeep
from sodeep._core.plotting import plain_axes, style

ROOT = Path(__file__).resolve().parents[1]


def lifted(scores: Tensor, relevant: Tensor) -> Tensor:
    """Lifted structure was made for distances: on cosines its softmax is nearly flat, on tenfold ones it is not."""
    return sodeep.lifted_structure_loss(10 * scores, relevant)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Multi-Similarity": sodeep.MultiSimilarityLoss(),
    "BinLifted": sodeep.BinLiftedLoss(),
    "binomial deviance": sodeep.BinomialDevianceLoss(),
    "lifted structure": lifted,
    "histogram": sodeep.HistogramLoss(num_bins=80),
}
SIMILARITIES = {
    "S": "all pairs move together",
    "N": "the others of its side move",
    "P": "the other side moves",
}
"""Which moves, and by what: in each the two others stay as they are."""
SHIFTS = 0.025 * torch.arange(-16, 17, dtype=torch.float64)
"""Whole bins of the histogram loss, which sees S by the place of a pair in its bin, and that is no news of the pair."""
WATCHED = 0.51


def spread(mean: float, deviation: float, n: int) -> Tensor:
    """Evenly spaced quantiles of a normal distribution, not draws, so that curves are smooth."""
    quantiles: Tensor = torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    return mean + deviation * quantiles


def one_list(watched: float, own: Tensor, other: Tensor, relevant: bool) -> tuple[Tensor, Tensor]:
    """A list whose first item is watched: its scores, and which items are relevant, those of one side or the other."""
    scores = torch.cat([torch.tensor([watched], dtype=torch.float64), own, other])
    return scores, (torch.arange(len(scores)) <= len(own)) == relevant


def lists(similarity: str, relevant: bool) -> list[tuple[Tensor, Tensor]]:
    """One list for each shift."""
    own, other = spread(0.6, 0.08, 8), spread(0.3, 0.1, 160)
    if not relevant:
        own, other = spread(0.2, 0.1, 160), spread(0.6, 0.08, 40)
    moves = {"S": (True, True, True), "N": (False, True, False), "P": (False, False, True)}[similarity]
    return [
        one_list(WATCHED + x * moves[0], own + x * moves[1], other + x * moves[2], relevant) for x in SHIFTS.tolist()
    ]


def weight(loss: Callable[[Tensor, Tensor], Tensor], scores: Tensor, relevant: Tensor) -> float:
    """|d loss / d s| of the first item of a list."""
    return float(sodeep.pair_weights(loss, scores, relevant)[0].abs())


@functools.cache
def curves(relevant: bool) -> dict[str, dict[str, list[float]]]:
    """Weights of the watched item by loss and similarity, over the largest of the loss."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, loss in LOSSES.items():
        rows = {s: [weight(loss, *each) for each in lists(s, relevant)] for s in SIMILARITIES}
        largest = max(max(row) for row in rows.values())
        found[name] = {similarity: [w / largest for w in row] for similarity, row in rows.items()}
    return found


def draw_figure() -> Figure:
    """A row for a pair of each side, a column for each similarity."""
    figure = Figure(figsize=(9.5, 5.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for row, (side, relevant) in enumerate({"an irrelevant": False, "a relevant": True}.items()):
        for place, (name, by_similarity) in enumerate(curves(relevant).items()):
            for axis, values in zip(axes[row], by_similarity.values(), strict=True):
                axis.plot(SHIFTS, values, label=name, linewidth=1.4, **style(place))
        axes[row, 0].set_ylabel(f"weight of {side} item\n(over the largest)", fontsize=8)
    for axis, (similarity, moves) in zip(axes[0], SIMILARITIES.items(), strict=True):
        axis.set_title(f"{similarity}: {moves}", fontsize=9)
    for axis in axes.flat:
        plain_axes(axis)
        axis.grid(alpha=0.25)
    axes[1, 1].set_xlabel("by how much", fontsize=8)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8
    )
    return figure


def seen() -> list[str]:
    """How much the weight depends on each similarity: by how much a curve of the figure rises or falls."""
    table = [
        "| loss | irrelevant item: S | N | P | relevant item: S | N | P |",
        f"|---|{'---:|' * 6}",
    ]
    by_side = [curves(False), curves(True)]
    for name in LOSSES:
        cells = [f"{max(row) - min(row):.2f}" for side in by_side for row in side[name].values()]
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table


CASES = {
    "1: at 0.31, not 0.71, as all are 0.4 lower": ((0.31, -0.2, 0.25), (0.71, 0.2, 0.65)),
    "2: others of its side at 0.75, not 0.2": ((0.71, 0.75, 0.65), (0.71, 0.2, 0.65)),
    "3: relevant items at 0.95, not 0.65": ((0.71, 0.2, 0.95), (0.71, 0.2, 0.65)),
}
"""Two lists each, by the irrelevant item that is watched, the mean of the others and that of the relevant items: in the
first the item is less urgent, and should weigh less."""


def ratios() -> list[str]:
    """For each case, the weight of the item in the first list over that in the second."""
    table = [f"| the irrelevant item at 0.71 | {' | '.join(LOSSES)} |", f"|---|{'---:|' * len(LOSSES)}"]
    for name, pair in CASES.items():
        cells = []
        for loss in LOSSES.values():
            less, more = (
                weight(loss, *one_list(watched, spread(others, 0.04, 160), spread(positives, 0.04, 40), False))
                for watched, others, positives in pair
            )
            cells.append(f"{less / more:.2f}")
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table


@click.command()
@click.option("--out", default=ROOT / "docs", type=click.Path(path_type=Path, file_okay=False), show_default="docs")
def main(out: Path) -> None:
    """Write OUT/weightings.png and print the tables."""
    out.mkdir(parents=True, exist_ok=True)
    draw_figure().savefig(out / "weightings.png", dpi=80)
    click.echo("\n".join([*seen(), "", *ratios()]))


if __name__ == "__main__":
    main()
