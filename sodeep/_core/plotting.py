"""Colours, panels and axes that all figures share. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sodeep._core.arrays import Array as Array
from sodeep._core.extras import needed

with needed("matplotlib", "Drawing figures"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Curve = Sequence[tuple[float, float]]
"""Points (step, value)."""

BLUE, GREY = "#2166ac", "#9a9a9a"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def style(place: int) -> dict[str, Any]:
    """Colour and line style of the loss at position `place` in the list of losses."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": ("-", "--", ":", "-.")[place // len(COLOURS) % 4],
    }


def panels(names: Sequence[str], width: float = 2.6, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """One small panel for each name, up to four in a row."""
    rows = math.ceil(len(names) / 4)
    columns = math.ceil(len(names) / rows)
    figure = Figure(figsize=(max(width * columns, 4), height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, place) for place in range(1, len(names) + 1)]
    for axis, name in zip(axes, names, strict=True):
        axis.set_title(short(name), fontsize=9)
        plain_axes(axis)
    return figure, axes


def short(name: str, most: int = 28) -> str:
    """A name shortened to fit above a panel, mostly to its end."""
    return name if len(name) <= most else f"{name[: most // 3]}…{name[-(most - most // 3 - 1) :]}"


def dot(count: int) -> float:
    """Size of a dot in a cloud of `count`."""
    return 3.0 if count > 500 else 5.0


def plain_axes(axis: Axes) -> None:
    """No box, small ticks."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def tensor_of(scores: Array) -> Tensor:
    """Scores as a tensor in double precision."""
    return Tensor(np.asarray(scores, dtype=np.float64)).double()
