#!/usr/bin/env python3
"""Draw the Pareto front of rank functions, rank error against optimisation score, one point per function and setting.

    scripts/draw_pareto_front.py                             # the sorters that ship; three minutes on one core
    scripts/draw_pareto_front.py my.safetensors --out /tmp   # and one of your own

Writes pareto_front.md, pareto_front.csv and pareto_front.png. torchsort is left out where it is not installed.
"""

from __future__ import annotations

import csv
import datetime
import importlib.util
import io
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import numpy as np
import torch
from _machine import cpu
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import sodeep
from sodeep._core.plotting import COLOURS, GREY
from sodeep.evaluation import (
    MULTI_SCALE,
    crossings,
    rank_error,
    rank_gradient,
    scale_by_quartiles,
    smoothed_gradient,
)
from sodeep.generators import draw
from sodeep.ranks import (
    RankFunction,
    blackbox_rank,
    exact_rank,
    laplace_rank,
    sigmoid_rank,
    straight_through,
    with_width,
)

ORDINARY, MIXED = "ordinary", "multi-scale"
SPREADS = (1, 2, 3.4, 6.8, 10, 20, 50, 100)
"""tau of the handcrafted ranks is the list's standard deviation over these; 6.8 is the default."""
STRENGTHS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
MOVES = (3.0, 1.0, 0.3, 0.1)
SINGLE_TAU = ("laplace", "sigmoid")
FAMILIES = (*SINGLE_TAU, "straight-through laplace", "blackbox", "torchsort", "sorter")
MARKERS = dict(zip(FAMILIES, "osv^D*", strict=True))


class Size(NamedTuple):
    """How many lists of length n each measure is a mean over."""

    n: int
    errors: int = 256
    optimized: int = 48
    cosines: int = 64


SIZES = (Size(100), Size(1000, optimized=18, cosines=9))


# ---- what is compared ------------------------------------------------------------------------------------------------


@dataclass
class Point:
    """A rank function at one setting, and its measures by distribution and length."""

    family: str
    setting: str
    rank_fn: RankFunction
    measures: dict[tuple[str, int], Measures] = field(default_factory=dict)

    @property
    def seq_len(self) -> int | None:
        """The only length that it ranks, if there is one."""
        return getattr(self.rank_fn, "seq_len", None)

    def takes(self, n: int) -> bool:
        """Whether it ranks lists of that length."""
        return self.seq_len in (None, n)


class Measures(NamedTuple):
    """A rank function on one distribution at one length."""

    error: float
    score_30: float
    score_100: float
    cosine: float


def per_spread(rank_fn: Callable[[Tensor], Tensor]) -> RankFunction:
    """`rank_fn` on each list over its standard deviation, for functions whose setting is on an absolute scale."""

    def ranks(scores: Tensor) -> Tensor:
        spread = scores.detach().std(-1, correction=0, keepdim=True)
        return rank_fn(scores / spread.where(spread > 0, 1.0))

    return ranks


def blackbox(move: float) -> RankFunction:
    """`blackbox_rank` whose lam shifts an item by about `move` standard deviations when its rank is off by n / 2.

    The loss is the mean of (rank off / n)^2, so its gradient is 2 (rank off) / n^3.
    """
    return per_spread(lambda scores: blackbox_rank(scores, lam=move * scores.shape[-1] ** 2))


def rank_functions(files: Sequence[Path]) -> list[Point]:
    """Every function at every setting, smooth to sharp within a family; the sorters last."""
    smooth: dict[str, Callable[[float], RankFunction]] = {
        "laplace": lambda k: with_width(laplace_rank, 1 / k),
        "sigmoid": lambda k: with_width(sigmoid_rank, 1 / k),
        "straight-through laplace": lambda k: straight_through(with_width(laplace_rank, 1 / k)),
    }
    points = [Point(family, f"std/{k:g}", make(k)) for family, make in smooth.items() for k in SPREADS]
    points += [Point("blackbox", f"lam {move:g} n²", blackbox(move)) for move in MOVES]
    points.append(Point("blackbox", "default", blackbox_rank))
    if importlib.util.find_spec("torchsort"):
        import torchsort

        def soft(strength: float) -> RankFunction:  # its rank 1 is the lowest
            return per_spread(lambda scores: torchsort.soft_rank(-scores, regularization_strength=strength))

        points += [Point("torchsort", f"l2 {strength:g}", soft(strength)) for strength in STRENGTHS]
    paths = {card.name: card.path for card in sodeep.list_sorters()}
    for path in files:
        if path.stem in paths:
            raise click.ClickException(f"{path} would hide {paths[path.stem]}, of the same name. Rename it.")
        paths[path.stem] = path
    return points + [Point("sorter", name, sodeep.load_sorter(path)) for name, path in paths.items()]


# ---- measuring -------------------------------------------------------------------------------------------------------


class Lists(NamedTuple):
    """The lists of one distribution and length that the measures are taken on."""

    errors: Tensor
    init: Tensor | None
    scores: Tensor
    target: Tensor
    smoothed: Tensor
    """The gradient that the cosine is taken with."""


def draw_lists(distribution: str, size: Size) -> Lists:
    """Ordinary lists are those of `sodeep evaluate-sorter`, so that measures agree with the cards."""

    def lists(weights: Mapping[str, float], count: int, seed: int = 1234) -> Tensor:
        return draw(weights, count, size.n, torch.Generator().manual_seed(seed))

    generator = torch.Generator().manual_seed(1234)
    normal, goal = (torch.randn(size.cosines, size.n, generator=generator) for _ in range(2))
    target = exact_rank(goal)
    if distribution == ORDINARY:
        errors, init, scores = lists(sodeep.SODEEP2019, size.errors), None, normal
    else:
        errors = lists({distribution: 1}, size.errors)
        init = scale_by_quartiles(lists({distribution: 1}, max(1, size.optimized // len(MULTI_SCALE)), seed=1))
        scores = lists({distribution: 1}, size.cosines, seed=1)
    return Lists(errors, init, scores, target, smoothed_gradient(scores, target))


def measure(points: Sequence[Point], sizes: Sequence[Size], echo: Callable[[str], object] = lambda _: None) -> None:
    """Fill in the measures of all points."""
    for point in points:
        if not any(point.takes(size.n) for size in sizes):
            lengths = " and ".join(f"{size.n:,}" for size in sizes)
            raise click.ClickException(
                f"{point.setting} takes lists of {point.seq_len} only. The Pareto front is drawn at {lengths}."
            )
    for size in sizes:
        for distribution in (ORDINARY, *MULTI_SCALE):
            echo(f"n = {size.n}, {distribution}")
            on = draw_lists(distribution, size)
            for point in points:
                if point.takes(size.n):
                    point.measures[distribution, size.n] = measure_rank_fn(point.rank_fn, size, on)
        for point in points:
            if point.takes(size.n):
                each = [point.measures[distribution, size.n] for distribution in MULTI_SCALE]
                point.measures[MIXED, size.n] = Measures(*np.mean(each, axis=0).tolist())


def measure_rank_fn(rank_fn: RankFunction, size: Size, on: Lists) -> Measures:
    scores = sodeep.optimization_score(rank_fn, n=size.n, lists=size.optimized, init=on.init)
    gradient = rank_gradient(rank_fn, on.scores, on.target)
    cosine = float(torch.cosine_similarity(gradient, on.smoothed, dim=-1).mean())
    return Measures(rank_error(rank_fn, on.errors), scores[30], scores[100], cosine)


# ---- comparing -------------------------------------------------------------------------------------------------------


class Interpolated(NamedTuple):
    """A single-tau rank at a sharpness between two measured ones."""

    name: str
    measures: Measures


def curves(points: Sequence[Point], distribution: str, n: int) -> dict[str, list[Measures]]:
    """The measures of `laplace_rank` and `sigmoid_rank`, smooth to sharp."""
    return {family: [p.measures[distribution, n] for p in points if p.family == family] for family in SINGLE_TAU}


def between(family: str, curve: Sequence[Measures], place: float) -> Interpolated:
    """The rank at a fractional index of its settings; errors and tau are interpolated on a logarithmic scale."""

    def at(column: Sequence[float]) -> float:
        return float(np.interp(place, range(len(column)), column))

    error, *others = zip(*curve, strict=True)
    spread = math.exp(at(np.log(SPREADS[: len(curve)]).tolist()))
    return Interpolated(f"{family} std/{spread:.1f}", Measures(math.exp(at(np.log(error).tolist())), *map(at, others)))


def at_equal_score(points: Sequence[Point], distribution: str, n: int, score: float) -> Interpolated | None:
    """The single-tau rank of the smallest error among those whose score after 30 steps is as high, if any is."""
    able = []
    for family, curve in curves(points, distribution, n).items():
        scores = [measures.score_30 for measures in curve]
        enough = [place for place, value in enumerate(scores) if value >= score]
        able += [between(family, curve, place) for place in [*enough, *crossings(scores, score)]]
    return min(able, key=lambda rank: rank.measures.error, default=None)


def at_equal_error(points: Sequence[Point], distribution: str, n: int, error: float) -> Interpolated | None:
    """The single-tau rank of the highest score after 30 steps among those of at most this error, if any has it."""
    able = []
    for family, curve in curves(points, distribution, n).items():
        errors = [math.log(measures.error) for measures in curve]
        enough = [place for place, value in enumerate(errors) if value <= math.log(error)]
        able += [between(family, curve, place) for place in [*enough, *crossings(errors, math.log(error))]]
    return max(able, key=lambda rank: rank.measures.score_30, default=None)


# ---- the figure ------------------------------------------------------------------------------------------------------

EXACT = 1e-6
"""Errors below this are rounding."""

# where a text stands from the point it belongs to, in points of print; the first of a family carries its name
PLACES: dict[str, dict[int, tuple[float, float, str]]] = {
    "laplace": {0: (0, 9, "center"), 3: (-5, 6, "right"), -1: (-6, -5, "right")},
    "sigmoid": {0: (7, -5, "left"), -1: (7, -6, "left")},
    "straight-through laplace": {0: (0, 9, "center"), 3: (-6, -3, "right"), -1: (-6, -3, "right")},
    "blackbox": {1: (7, 0, "left"), -2: (7, -3, "left"), -1: (7, -5, "left")},
    "torchsort": {0: (2, -27, "center"), 3: (7, -4, "left")},
}


def draw_figure(points: Sequence[Point], n: int) -> Figure:
    """Error against optimisation score, in two panels; functions whose values are exact stand in their own strip."""
    figure = Figure(figsize=(11.5, 5.4), layout="constrained")
    points = [point for point in points if (MIXED, n) in point.measures]
    panels = {ORDINARY: "ordinary lists", MIXED: "multi-scale lists: heavy-tailed, clustered, bimodal"}
    # torchsort at its sharpest hardly optimises anything: its line may leave the panel
    scores = [
        p.measures[distribution, n].score_30 for p in points for distribution in panels if p.family != "torchsort"
    ]
    for axes, (distribution, title) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        axes.set_ylim(min(scores) - 0.06, 0.95)
        _panel(axes, points, distribution, n)
        axes.set_title(title, fontsize=10)
    figure.supxlabel(f"mean |rank error| / n at n = {n}  (smaller is better)", fontsize=9)
    figure.supylabel("optimisation score: Spearman after 30 steps  (larger is better)", fontsize=9)
    return figure


def _panel(axes: Axes, points: Sequence[Point], distribution: str, n: int) -> None:
    shown = {id(point): point.measures[distribution, n] for point in points}
    smallest = min((f.error for f in shown.values() if f.error > EXACT), default=EXACT)
    # error 0 has no place on a logarithmic axis
    columns = {"straight-through laplace": smallest / 9, "blackbox": smallest / 4.5}
    for place, family in enumerate(FAMILIES):
        members = [point for point in points if point.family == family]
        if not members:
            continue
        xs = [columns.get(family, smallest) if f.error <= EXACT else f.error for f in (shown[id(p)] for p in members)]
        ys = [shown[id(p)].score_30 for p in members]
        is_sorter = family == "sorter"
        axes.plot(
            xs,
            ys,
            MARKERS[family],
            linestyle="-" if family in (*SINGLE_TAU, "torchsort") else "none",
            linewidth=1,
            color="black" if is_sorter else COLOURS[place],
            markersize=13 if is_sorter else 5,
            markerfacecolor="white" if place % 2 and not is_sorter else None,
            zorder=4 if is_sorter else 3,
        )
        texts = PLACES.get(family) or dict.fromkeys(range(len(members)), (8, -13, "left"))
        for where, (right, up, side) in texts.items():
            words = members[where].setting
            if where == next(iter(texts)) and not is_sorter:
                words = f"{family}\n{words}".replace("through ", "through\n")
            if ys[where] > axes.get_ylim()[0]:
                axes.annotate(
                    words,
                    (xs[where], ys[where]),
                    xytext=(right, up),
                    textcoords="offset points",
                    ha=side,
                    fontsize=8,
                    fontweight="bold" if is_sorter else "normal",
                    zorder=5,
                )
    strip = math.sqrt(columns["straight-through laplace"] * columns["blackbox"])
    axes.axvline(smallest / 1.6, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(smallest / 30, 0.5)
    ticks = [tick for tick in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1) if tick > smallest / 1.5]
    axes.set_xticks([strip, *ticks], ["0 (exact values)", *(f"{tick:g}" for tick in ticks)])
    axes.minorticks_off()
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


# ---- the text --------------------------------------------------------------------------------------------------------


def text(points: Sequence[Point], sizes: Sequence[Size], made: str) -> str:
    """pareto_front.md."""
    counts = " and ".join(f"{size.optimized} lists at n = {size.n:,}" for size in sizes)
    return f"""# The Pareto front of rank functions

![Rank error against optimisation score of every rank function and setting](pareto_front.png)

{made}
Every point is a row of [`pareto_front.csv`](pareto_front.csv).

A rank function that is used in a loss should be accurate (small *error*) and easy to optimise through (high
*optimisation score*). The handcrafted functions trade one for the other by their sharpness tau. This page asks how much
smaller the error of a learned sorter is than that of a handcrafted function with the same optimisation score.

* **error**: mean |rank error| / n, on {sizes[0].errors} lists of each distribution.
* **optimisation score** 30, 100: mean exact Spearman correlation of free scores after that many steps of Adam at
  lr 0.05 on a Spearman loss (`sodeep.optimization_score`), over {counts}.
  Ordinary lists are initialised from N(0, 1), the others from their own distribution, shifted and scaled to the median
  and the interquartile range of N(0, 1) (`sodeep.evaluation.scale_by_quartiles`).
* **cosine**: cosine similarity of the loss' gradient with that of the exact loss smoothed by noise of 0.1 standard
  deviations. That noise has one scale for the whole list, so on multi-scale lists it favours functions with one tau.
* **ordinary** lists are the 2019 mixture for the error, N(0, 1) for the other measures. **multi-scale** is the mean
  over {", ".join(MULTI_SCALE[:-1])} and {MULTI_SCALE[-1]} lists, whose gaps are of very different sizes.
* tau is in standard deviations of each list. blackbox and torchsort get each list divided by its standard deviation;
  the lam of blackbox is in units of n²; its default is that of `blackbox_rank`.

## Summary

{_sentences(points, sizes[0].n)}

## Each sorter beside handcrafted ranks

The best of `laplace_rank` and `sigmoid_rank` at any one tau (interpolated between the measured ones), with the same
optimisation score after 30 steps, and with the same error. *ratio* is the error of the sorter over that of the
handcrafted rank at equal score: below 1 the sorter is better.

{_comparison(points, sizes)}
"""


def _sentences(points: Sequence[Point], n: int) -> str:
    sorters = [point for point in points if point.family == "sorter" and (MIXED, n) in point.measures]
    bullets = [_sentence(points, sorter, n) for sorter in sorters]
    default = next(p for p in points if p.family == "laplace" and p.setting == "std/6.8")
    growth = [
        f"{p.measures[MIXED, n].error / p.measures[ORDINARY, n].error:.1f} for {name}"
        for name, p in [("`laplace_rank`", default), *((f"**{p.setting}**", p) for p in sorters)]
    ]
    bullets.append(f"From ordinary to multi-scale lists the error grows by a factor of {', '.join(growth)}.")
    laplace, through = ([p for p in points if p.family == f] for f in ("laplace", "straight-through laplace"))
    apart = max(
        abs(a.measures[distribution, n].score_30 - b.measures[distribution, n].score_30)
        for a, b in zip(laplace, through, strict=True)
        for distribution in (ORDINARY, MIXED)
    )
    bullets.append(
        "`straight_through(laplace_rank)` has exact values, the gradient of `laplace_rank`, and an optimisation score "
        f"within {apart:.3f} of it at every tau: where values and gradient may differ, error is no reason to choose a "
        "sorter."
    )
    return "\n".join(f"* {bullet}" for bullet in bullets)


def _sentence(points: Sequence[Point], sorter: Point, n: int) -> str:
    def ratio(distribution: str) -> str:
        measured = sorter.measures[distribution, n]
        rank = at_equal_score(points, distribution, n, measured.score_30)
        return "undefined (none has that score)" if rank is None else f"{measured.error / rank.measures.error:.2f}"

    each = ", ".join(f"{distribution} {ratio(distribution)}" for distribution in MULTI_SCALE)
    return (
        f"**{sorter.setting}**, n = {n}: the ratio of its error to that of the best handcrafted rank of equal score is "
        f"{ratio(ORDINARY)} on ordinary lists and {ratio(MIXED)} on multi-scale lists ({each})."
    )


def _comparison(points: Sequence[Point], sizes: Sequence[Size]) -> str:
    scores = ["score 30", "score 100"]
    head = ["sorter", "n", "lists", "error", *scores, "at equal score", "error", "ratio", "at equal error", *scores]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for point in points:
        for size in sizes if point.family == "sorter" else ():
            for distribution in (ORDINARY, MIXED, *MULTI_SCALE):
                measured = point.measures.get((distribution, size.n))
                if measured is None:
                    continue
                as_good = at_equal_score(points, distribution, size.n, measured.score_30)
                as_near = at_equal_error(points, distribution, size.n, measured.error)
                cells = [point.setting, f"{size.n:,}", distribution, *_decimals(measured)[:3]]
                if as_good is None:
                    cells += ["none", "", ""]
                else:
                    error = as_good.measures.error
                    cells += [as_good.name, f"{error:.4f}", f"{measured.error / error:.2f}"]
                cells += ["none", "", ""] if as_near is None else [as_near.name, *_decimals(as_near.measures)[1:3]]
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def table(points: Sequence[Point], sizes: Sequence[Size]) -> str:
    """pareto_front.csv: a row for each function, setting, length and distribution."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["n", "lists", "function", "setting", *Measures._fields])
    for size in sizes:
        for distribution in (ORDINARY, MIXED):
            for point in points:
                if (distribution, size.n) in point.measures:
                    row = _decimals(point.measures[distribution, size.n])
                    writer.writerow([size.n, distribution, point.family, point.setting, *row])
    return file.getvalue()


def _decimals(measures: Measures) -> list[str]:
    return [f"{measures.error:.4f}", *(f"{value:.3f}" for value in measures[1:])]


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default="docs", show_default=True, help="A folder.")
def main(files: Sequence[Path], out: Path) -> None:
    torch.set_num_threads(1)
    points = rank_functions(files)
    measure(points, SIZES, lambda message: click.echo(message, err=True))
    command = shlex.join(["scripts/draw_pareto_front.py", *map(str, files)])
    minutes = time.process_time() / 60
    made = (
        f"Made by `{command}` in {minutes:.1f} min of processor time on {cpu()}, 1 thread, "
        f"torch {torch.__version__}, {datetime.date.today()}."
    )
    out.mkdir(exist_ok=True)
    (out / "pareto_front.md").write_text(text(points, SIZES, made))
    (out / "pareto_front.csv").write_text(table(points, SIZES))
    draw_figure(points, SIZES[0].n).savefig(out / "pareto_front.png", dpi=110)


if __name__ == "__main__":
    main()
