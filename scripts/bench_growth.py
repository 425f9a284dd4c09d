#!/usr/bin/env python3
"""How time and memory of losses and rank functions grow with the batch, with the exponents.

    scripts/bench_growth.py                                  # everything; about ten minutes
    scripts/bench_growth.py --loss smooth-ap --size 256 --size 1024

As scripts/bench_losses.py measures: a fresh process for each cell, one thread, processor time, memory beyond the rows.
Then the same of the rank functions by items of one list. The exponent is the slope of the last three sizes in the
logarithm: 1 where twice the rows take twice the time, 2 where they take four times. Linux only.
"""

from __future__ import annotations

import datetime
import math
import platform
import time
import warnings
from collections.abc import Sequence

import click
import torch
from _machine import cpu
from bench_losses import LOSSES, OURS, MethodProcess

import sodeep
from sodeep._core.live_tensors import LiveTensors

GROWING = ("smooth-ap", "quantized-ap", "nt-xent", "multi-similarity", "triplet-hard", "contrastive")
SIZES = (256, 512, 1024, 2048, 4096)
ITEMS = (1_000, 10_000, 100_000, 1_000_000)


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Slope of the last three points in the logarithm, by least squares.

    >>> round(exponent([1, 10, 100, 1000], [5, 1, 100, 10000]), 3)
    2.0
    """
    x, y = ([math.log(value) for value in some[-3:]] for some in (sizes, values))
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def of_loss(loss: str, sizes: Sequence[int], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds and MB of a step, by size."""
    times, memory = [], []
    for size in sizes:
        process = MethodProcess(loss, size, OURS, memory_gib=16, time_limit=120)
        for _ in range(rounds):
            process.round()
        process.close()
        if process.failure:
            raise click.ClickException(f"{loss} at {size} rows: {process.failure}")
        times.append(process.ms)
        memory.append(process.mb)
    return times, memory


def of_rank(name: str, sizes: Sequence[int], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds and MB of forward and backward, by items of one list."""
    rank_fn = sodeep.load_sorter("set") if name == "set" else getattr(sodeep, name)
    times, memory = [], []
    for size in sizes:
        scores = torch.randn(1, size, generator=torch.Generator().manual_seed(0)).requires_grad_()
        taken = []
        for place in range(rounds + 1):
            start = time.process_time()
            if place:
                rank_fn(scores).sum().backward()
                taken.append(1e3 * (time.process_time() - start))
            else:  # the first one is not timed
                with LiveTensors() as live:
                    rank_fn(scores).sum().backward()
                memory.append(live.peak / 1e6)
        times.append(sorted(taken)[len(taken) // 2])
    return times, memory


def row(name: str, unit: str, sizes: Sequence[int], values: Sequence[float]) -> str:
    """A line of the table."""
    return f"| {name} | {unit} | {' | '.join(f'{value:.3g}' for value in values)} | {exponent(sizes, values):.2f} |"


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--loss", "losses", multiple=True, type=click.Choice(list(LOSSES)), default=GROWING, help="Repeatable.")
@click.option("--size", "sizes", multiple=True, type=click.IntRange(16), default=SIZES, help="Rows; repeatable.")
@click.option("--items", multiple=True, type=click.IntRange(16), default=ITEMS, help="Items of a list; repeatable.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each cell; the median counts.")
def main(losses: tuple[str, ...], sizes: tuple[int, ...], items: tuple[int, ...], rounds: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the set sorter on lists longer than it is known to work on
    versions = f"Python {platform.python_version()} · torch {torch.__version__}"
    click.echo(f"{datetime.date.today()} · {cpu()}, one thread · {versions}")
    for head, columns in (("loss, by rows", sizes), ("rank function, by items", items)):
        click.echo(f"\n| {head} | | {' | '.join(f'{size:,}' for size in columns)} | exponent |")
        click.echo("|---|---|" + "---:|" * (len(columns) + 1))
        for name in losses if columns is sizes else ("laplace_rank", "set", "sigmoid_rank"):
            measured = of_loss(name, columns, rounds) if columns is sizes else of_rank(name, columns, rounds)
            for unit, values in zip(("ms", "MB"), measured, strict=True):
                click.echo(row(name, unit, columns, values))


if __name__ == "__main__":
    main()
