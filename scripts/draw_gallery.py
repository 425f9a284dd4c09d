#!/usr/bin/env python3
"""Draw the figures of docs/gallery.md and of docs/api/: rank functions, pair weights, landscapes, growth.

    scripts/draw_gallery.py                       # docs/figures/, half a minute
    scripts/draw_gallery.py weights landscapes    # some of them

Figures are drawn on a transparent ground in colours that are seen on white and on black. Coordinates are rounded to a
tenth of a point, so that the files are small; on the same machine another run writes the same bytes. Times are not
measured here: they are read from the tables of docs/benchmarks.md.
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import sodeep
from sodeep.generators import draw
from sodeep.losses._base import Loss

ROOT = Path(__file__).resolve().parents[1]
GREY, BLUE, ORANGE, GREEN, PINK = "#858585", "#3c8dd0", "#e0752d", "#2ea37c", "#c46fa6"
COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY)
LOOK: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "sodeep",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}

LossOfScores = Callable[[Tensor, Tensor], Tensor]


LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")


def rounded(number: re.Match[str]) -> str:
    """To a tenth, without the sign of a zero."""
    return f"{round(float(number[0]), 1) + 0.0:.1f}"


def save(figure: Figure, path: Path) -> None:
    """As svg without a date, or as png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        figure.savefig(path, dpi=110, transparent=True, metadata={"Software": None})
        return
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*|<!DOCTYPE.*?>\s*", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r'"[^"<>]*"', lambda attribute: LONG_NUMBER.sub(rounded, attribute[0]), text)
    text = text.replace("'DejaVu Sans', sans-serif", "sans-serif")
    path.write_text(re.sub(r"[ \t]+$|^ +", "", text, flags=re.MULTILINE), encoding="utf-8")


# ---- pair weights ----------------------------------------------------------------------------------------------------


REQUIRED = {"rank_fn": sodeep.laplace_rank, "k": 10}
"""What losses have no default for."""


def all_losses() -> dict[str, Loss[object]]:
    """Every loss on scores, at its defaults, by the name of its function without "_loss"."""
    found = {}
    for form in vars(sodeep.losses).values():
        if isinstance(form, type) and issubclass(form, Loss):
            options = inspect.signature(form).parameters.items()
            required = {name: REQUIRED[name] for name, option in options if option.default is option.empty}
            found[form.function.__name__.removesuffix("_loss")] = form(**required)
    return found


def quantiles(mean: float, deviation: float, n: int) -> Tensor:
    """Evenly spaced quantiles of a normal distribution, not draws, so that curves are smooth."""
    places = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    normal: Tensor = torch.special.ndtri(places)
    return mean + deviation * normal


def draw_weights(loss: LossOfScores) -> Figure:
    """The push of a loss on every item of one list, up or down, over the largest."""
    scores = torch.cat([quantiles(0.6, 0.12, 50), quantiles(0.2, 0.15, 200)])
    relevant = torch.arange(250) < 50
    push = -sodeep.pair_weights(loss, scores, relevant)
    push = push / push.abs().max()
    figure = Figure(figsize=(5, 1.9), layout="constrained")
    axis = figure.subplots()
    axis.axhline(0, color=GREY, linewidth=0.6)
    for side, colour, label in ((relevant, BLUE, "relevant"), (~relevant, ORANGE, "others")):
        axis.plot(scores[side], push[side], color=colour, label=label)
    axis.set(xlim=(-0.25, 1), ylim=(-1.1, 1.1), yticks=(-1, 0, 1), xlabel="score", ylabel="push, over\nthe largest")
    axis.legend(loc="upper left", fontsize=8)
    return figure


def weights() -> Iterator[tuple[str, Figure]]:
    for name, loss in all_losses().items():
        yield f"weights/{name}.svg", draw_weights(loss)


# ---- rank functions --------------------------------------------------------------------------------------------------


def rank_functions() -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "laplace_rank": sodeep.laplace_rank,
        "sigmoid_rank": sodeep.sigmoid_rank,
        "blackbox_rank": sodeep.blackbox_rank,
        "straight_through": sodeep.straight_through(sodeep.laplace_rank),
        "set": sodeep.load_sorter("set"),
        "lstm": sodeep.load_sorter("lstm"),
        "cnn": sodeep.load_sorter("cnn"),
    }


def draw_rank_function(rank_fn: Callable[[Tensor], Tensor]) -> Figure:
    """The rank of one item of a list while its score moves, and the gradient of that rank."""
    others = torch.cat([quantiles(mean, 0.06, 33) for mean in (-1.5, 0.0, 0.8)]).float()  # three clusters, 99 items
    moving = torch.linspace(-2.2, 1.6, 153).requires_grad_()
    lists = torch.cat([moving.unsqueeze(1), others.expand(len(moving), -1)], dim=1)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))  # sorters are made for lists in any order
    ranks = rank_fn(lists[:, order])[:, order == 0].squeeze(1)
    (gradient,) = torch.autograd.grad(ranks.sum(), moving)
    exact = sodeep.exact_rank(lists.detach())[:, 0]
    figure = Figure(figsize=(5, 1.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = moving.detach()
    left.plot(x, exact, color=GREY, linewidth=3, alpha=0.5, label="exact")
    left.plot(x, ranks.detach(), color=BLUE)
    left.set(ylim=(103, -2), yticks=(1, 50, 100), xlabel="score of the item", title="its rank")
    left.legend(loc="lower right", fontsize=8)
    right.plot(x, gradient, color=ORANGE)
    right.set(xlabel="score of the item", title="gradient of its rank")
    return figure


def ranks() -> Iterator[tuple[str, Figure]]:
    for name, rank_fn in rank_functions().items():
        yield f"ranks/{name}.svg", draw_rank_function(rank_fn)


# ---- a sorter that learns --------------------------------------------------------------------------------------------

STEPS = (0, 20, 100, 1000)


def learning() -> Iterator[tuple[str, Figure]]:
    """A small network from random weights: the ranks that it gives to one list, and its error."""
    n, generator = 20, torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    sorter = sodeep.build_sorter("lstm", seq_len=n, hidden=24, init="random")
    optimizer = torch.optim.Adam(sorter.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS[-1])
    shown = draw({"normal": 1}, 1, n, torch.Generator().manual_seed(1))
    exact = sodeep.exact_rank(shown)[0]
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes: list[Axes] = list(figure.subplots(2, 2, sharex=True, sharey=True).flat)
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            axis = axes[STEPS.index(step)]
            with torch.no_grad():
                given = sorter(shown)[0]
            order = shown[0].argsort()
            axis.plot(shown[0, order], exact[order], color=GREY, linewidth=3, alpha=0.5)
            axis.plot(shown[0], given, ".", color=BLUE, markersize=5)
            error = float((given - exact).abs().mean()) / n
            axis.set(title=f"step {step:,}: error {error:.2f}", ylim=(n + 1, 0), yticks=(1, n // 2, n))
        scores = draw(sodeep.DEFAULT, 64, n, generator)
        loss = (sorter(scores) - sodeep.exact_rank(scores)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    figure.supxlabel("score", fontsize=9)
    figure.supylabel("rank", fontsize=9)
    yield "learning.svg", figure


# ---- landscapes ------------------------------------------------------------------------------------------------------


def relaxations() -> dict[str, LossOfScores]:
    """One minus AP, and the losses that stand for it."""
    return {
        "1 - AP": lambda scores, relevant: 1 - sodeep.average_precision(scores, relevant),
        "SmoothAPLoss, tau = 0.01": sodeep.SmoothAPLoss(reduction="none"),
        "SmoothAPLoss, tau = 0.1": sodeep.SmoothAPLoss(tau=0.1, reduction="none"),
        "SupAPLoss, rho = 2": sodeep.SupAPLoss(calibration=0, rho=2, reduction="none"),
        "QuantizedAPLoss": sodeep.QuantizedAPLoss(reduction="none"),
        "FastAPLoss": sodeep.FastAPLoss(reduction="none"),
        "MAPLoss(laplace_rank)": sodeep.MAPLoss(sodeep.laplace_rank, reduction="none"),
        "SVMAPLoss": sodeep.SVMAPLoss(reduction="none"),
    }


OTHERS = torch.tensor([-0.1, 0.05, 0.12, 0.3, 0.34, 0.42, 0.6, 0.85])
"""Scores of the irrelevant items."""


def line_of_landscape(loss: LossOfScores) -> tuple[Tensor, Tensor]:
    """The loss while one relevant item moves and another one stays at 0.5."""
    moving = torch.linspace(-0.4, 1, 281) + 1e-3  # no ties
    scores = torch.cat([moving.unsqueeze(1), torch.tensor([0.5, *OTHERS]).expand(len(moving), -1)], dim=1)
    return moving, loss(scores, (torch.arange(scores.shape[1]) < 2).expand_as(scores))


def plane_of_landscape(loss: LossOfScores, points: int = 90) -> Tensor:
    """The loss while two relevant items move."""
    moving = torch.linspace(-0.4, 1, points) + 1e-3
    pairs = torch.cartesian_prod(moving, moving)
    scores = torch.cat([pairs, OTHERS.expand(len(pairs), -1)], dim=1)
    return loss(scores, (torch.arange(scores.shape[1]) < 2).expand_as(scores)).reshape(points, points)


def landscapes() -> Iterator[tuple[str, Figure]]:
    figure = Figure(figsize=(5.4, 5), layout="constrained")
    everything = relaxations()
    _, exact = line_of_landscape(everything["1 - AP"])
    names = list(everything)[1:]
    axes: list[Axes] = list(figure.subplots(3, 3, sharex=True).flat)
    for name, axis in zip(names, axes, strict=False):
        x, values = line_of_landscape(everything[name])
        axis.plot(x, exact, color=GREY, linewidth=2.4, alpha=0.5, drawstyle="steps-mid")
        axis.plot(x, values, color=BLUE)
        axis.plot(OTHERS, torch.zeros(len(OTHERS)), "|", color=ORANGE, markersize=6)
        axis.set_title(name.replace(", ", ",\n"), fontsize=8)
        axis.set_ylim(bottom=0)
    axes[-2].set_axis_off()
    axes[-1].set_axis_off()
    axes[-2].plot([], [], color=GREY, linewidth=2.4, alpha=0.5, label="1 - AP")
    axes[-2].plot([], [], color=BLUE, label="the loss")
    axes[-2].plot([], [], "|", color=ORANGE, markersize=6, label="irrelevant items")
    axes[-2].legend(loc="center", fontsize=8)
    figure.supxlabel("score of a relevant item", fontsize=9)
    yield "landscapes.svg", figure

    figure = Figure(figsize=(5.4, 6), layout="constrained")
    axes = list(figure.subplots(3, 3, sharex=True, sharey=True).flat)
    axes[-1].set_axis_off()
    for axis, (name, loss) in zip(axes, everything.items(), strict=False):
        axis.imshow(plane_of_landscape(loss), origin="lower", extent=(-0.4, 1, -0.4, 1), cmap="viridis")
        axis.set_title(name.replace(", ", ",\n"), fontsize=8)
        axis.set(xticks=(0, 1), yticks=(0, 1))
    figure.supxlabel("score of one relevant item", fontsize=9)
    figure.supylabel("of another", fontsize=9)
    yield "landscapes.png", figure


# ---- growth ----------------------------------------------------------------------------------------------------------


def tables(text: str, section: str) -> list[list[list[str]]]:
    """The tables of a section of a page: rows of cells, the head first."""
    body = re.split(r"^##+ ", text.split(f"\n## {section}\n")[1], flags=re.MULTILINE)[0]
    found = []
    for lines in re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines())
        found.append([head, *rows])
    return found


def growth() -> Iterator[tuple[str, Figure]]:
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots(2, 2, sharex="col")
    for place, (head, *rows) in enumerate(tables(page, "Growth")):
        sizes = [int(cell.replace(",", "")) for cell in head[2:-1]]
        for axis, unit in zip(axes[:, place], ("ms", "MB"), strict=True):
            chosen = [row for row in rows if row[1] == unit]
            for colour, (name, _, *cells, _) in zip((*COLOURS, "#b8a52e"), chosen, strict=False):
                points = [(size, float(cell)) for size, cell in zip(sizes, cells, strict=True) if cell]
                axis.loglog(*zip(*points, strict=True), ".-", color=colour, label=name)
            axis.set_ylabel(unit)
            axis.set_xticks(sizes, labels=head[2:-1])
            axis.minorticks_off()
        axes[0, place].set_title(head[0])
        axes[0, place].legend(fontsize=7)
    yield "growth.svg", figure


DRAWINGS = {each.__name__: each for each in (weights, ranks, learning, landscapes, growth)}


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("names", nargs=-1, type=click.Choice(list(DRAWINGS)))
@click.option("--out", default=ROOT / "docs/figures", type=click.Path(path_type=Path), show_default="docs/figures")
def main(names: tuple[str, ...], out: Path) -> None:
    torch.set_num_threads(1)
    with matplotlib.rc_context(LOOK):
        for name in names or DRAWINGS:
            for path, figure in DRAWINGS[name]():
                save(figure, out / path)
                click.echo(out / path)


if __name__ == "__main__":
    main()
