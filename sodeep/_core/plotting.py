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


def cloud(count: int) -> dict[str, Any]:
    """How the dots of a cloud of `count` look. They are pixels in vector graphics too, which get large otherwise."""
    return {"markersize": 3.0 if count > 500 else 5.0, "alpha": 0.5, "mew": 0, "rasterized": True}


def plain_axes(axis: Axes) -> None:
    """No box, small ticks."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def inner_range(spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Lowest and highest value of some spans, without those far from the rest: up to a quarter of them, one at least.

    A span is far where the others alone take less than a third of the range.

    >>> inner_range([(0.21, 0.23), (0.0, 0.01), (0.2, 0.25), (0.22, 0.24)])
    (0.2, 0.25)
    >>> inner_range([(0.1, 0.2), (0.0, 0.01), (0.2, 0.25)])
    (0.0, 0.25)
    """

    def ends(some: Sequence[tuple[float, float]]) -> tuple[float, float]:
        return min(low for low, _ in some), max(high for _, high in some)

    kept = sorted(spans)
    for _ in range(max(1, len(spans) // 4)):
        if len(kept) < 3:
            break
        highest = max(kept, key=lambda span: span[1])
        fewer = min((kept[1:], [span for span in kept if span is not highest]), key=lambda some: np.ptp(ends(some)))
        if 3 * np.ptp(ends(fewer)) > np.ptp(ends(kept)):
            break
        kept = fewer
    return ends(kept)


def without_spikes(values: Array) -> tuple[float, float] | None:
    """Limits of an axis that leave out three in a hundred values at each end, if these take two thirds of the range.

    >>> low, high = without_spikes(np.append(np.linspace(0, 1, 500), 1e6))
    >>> bool(low < 0), bool(1 < high < 1.1)
    (True, True)
    >>> without_spikes(np.linspace(0, 1, 500))
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = (float(q) for q in np.quantile(finite, (0.03, 0.97)))
    margin = 0.05 * (high - low)
    return None if 3 * (high - low) > np.ptp(finite) or not margin else (low - margin, high + margin)


def tensor_of(scores: Array) -> Tensor:
    """Scores as a tensor in double precision."""
    return Tensor(np.asarray(scores, dtype=np.float64)).double()
