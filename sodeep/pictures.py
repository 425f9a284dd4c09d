"""Pictures of rank functions. Needs matplotlib: pip install sodeep[plot]."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.figure import Figure
from torch import Tensor

from sodeep.ranks import exact_rank

BLUE, GREY = "#2166ac", "#9a9a9a"


def rank_picture(lists: Mapping[str, Tensor], ranks: Mapping[str, Tensor]) -> Figure:
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
        axes.tick_params(labelsize=7)
        if place == 1:
            axes.legend(fontsize=7, frameon=False)
    figure.supxlabel("score", fontsize=9)
    figure.supylabel("rank (1 = highest score)", fontsize=9)
    return figure
