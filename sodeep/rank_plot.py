"""A figure of a rank function: its ranks against the scores of a few lists. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from sodeep._core.extras import needed
from sodeep._core.plotting import BLUE, GREY
from sodeep.ranks import exact_rank

with needed("matplotlib", "Drawing figures"):
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator


def plot_ranks(lists: Mapping[str, Tensor], ranks: Mapping[str, Tensor]) -> Figure:
    """Ranks against scores, one panel a list: the exact ranks as a grey line, those of the rank function as dots.

    Args:
        lists: name -> scores (n,).
        ranks: name -> ranks (n,) that a rank function gives them.

    Returns:
        A matplotlib `Figure`; save it with ``figure.savefig(path)``.
    """
    columns = min(4, len(lists))
    rows = math.ceil(len(lists) / columns)
    figure = Figure(figsize=(3 * columns, 2.6 * rows), layout="constrained")
    for place, (name, scores) in enumerate(lists.items(), start=1):
        n = len(scores)
        exact = exact_rank(scores)
        order = scores.argsort()
        error = float((ranks[name] - exact).abs().mean()) / n
        axes = figure.add_subplot(rows, columns, place)
        axes.plot(scores[order], exact[order], color=GREY, linewidth=3, label="exact")
        axes.plot(scores[order], ranks[name][order], ".", color=BLUE, markersize=3, label="sorter")
        axes.set_title(f"{name}   error {error:.4f}", fontsize=9)
        axes.set_ylim(n + 0.05 * n, 1 - 0.05 * n)  # rank 1, the highest score, on top
        axes.set_yticks(sorted({1, (n + 1) // 2, n}))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.ticklabel_format(axis="x", scilimits=(-2, 4))  # scores of any scale
        axes.xaxis.get_offset_text().set_fontsize(7)
        axes.tick_params(labelsize=7)
        if place == 1:
            axes.legend(fontsize=7, frameon=False)
    figure.supxlabel("score", fontsize=9)
    figure.supylabel("rank (1 = highest score)", fontsize=9)
    return figure
