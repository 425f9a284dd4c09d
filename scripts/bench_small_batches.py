#!/usr/bin/env python3
"""Time the losses on batches of 32 to 128 rows, where calls cost more than arithmetic, beside other implementations.

Forward and backward from embeddings of 128 dimensions in float32, 4 rows a class, on one pinned thread. The losses are
those of `scripts/bench_losses.py`; all methods of a loss and size take turns in one process, so that what slows the
machine slows them all, and "x" is the median over the turns of how many times sodeep is faster. A second table has the
losses on a rank function beside the same arithmetic, written out in plain torch without checks, masks and options.
"""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import torch
from _machine import cpu
from bench_losses import DENSE, DIMENSIONS, LOSSES, OURS, PER_CLASS, PML, available
from torch import Tensor

from sodeep import losses
from sodeep.ranks import exact_rank, laplace_rank

Step = Callable[[], Tensor]


def milliseconds(step: Step, leaf: Tensor, repeats: int) -> float:
    """CPU time of one forward and one backward pass."""
    start = time.thread_time()
    for _ in range(repeats):
        leaf.grad = None
        step().backward()  # type: ignore[no-untyped-call]
    return (time.thread_time() - start) * 1e3 / repeats


def interleaved(steps: dict[str, Step], leaf: Tensor, rounds: int) -> dict[str, list[float]]:
    """The times of every method, in turns."""
    first = {}
    for name, step in steps.items():
        milliseconds(step, leaf, 3)  # warm up
        first[name] = milliseconds(step, leaf, 1)
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()  # as timeit does: a collection would be charged to whichever loss triggers it
    for _ in range(rounds):
        gc.collect()
        for name, step in steps.items():
            milliseconds(step, leaf, 1)  # the caches are cold after another loss
            times[name].append(milliseconds(step, leaf, max(1, min(10, int(10 / first[name])))))
    gc.enable()
    return times


def ratio(times: dict[str, list[float]], name: str, reference: str) -> float:
    return median(a / b for a, b in zip(times[name], times[reference], strict=True))


def embeddings(rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, DIMENSIONS, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(rows // PER_CLASS).repeat_interleave(PER_CLASS)
    return torch.nn.functional.normalize(x, dim=1).requires_grad_(), labels


def lists(queries: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(queries, n, generator=generator).requires_grad_()
    return scores, torch.rand(queries, n, generator=generator) < 0.2


def bare_map(scores: Tensor, relevant: Tensor) -> Tensor:
    among = laplace_rank(scores, where=relevant)
    terms = 1 - among / laplace_rank(scores).masked_fill(~relevant, 1)
    return (torch.where(relevant, terms, 0).sum(-1) / relevant.sum(-1)).mean()


def bare_recall(scores: Tensor, relevant: Tensor) -> Tensor:
    ranks = laplace_rank(scores) / scores.shape[-1]
    hardest = ranks.masked_fill(relevant, torch.inf).amin(-1, keepdim=True)
    return (torch.where(relevant, (0.2 + ranks - hardest).relu(), 0).sum(-1) / relevant.sum(-1)).mean()


def bare_spearman(scores: Tensor, target: Tensor) -> Tensor:
    return ((laplace_rank(scores) - exact_rank(target)) / scores.shape[-1]).square().mean()


RANK_LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "map:laplace": (losses.MAPLoss(laplace_rank), bare_map),
    "recall:laplace": (losses.RecallLoss(laplace_rank), bare_recall),
    "spearman:laplace": (losses.SpearmanLoss(laplace_rank), bare_spearman),
}


@click.command(help=__doc__)
@click.option("--loss", "chosen", multiple=True, type=click.Choice([*LOSSES, *RANK_LOSSES]), help="Repeatable. [all]")
@click.option("--size", "sizes", multiple=True, type=int, default=(32, 64, 128), show_default=True, help="Rows.")
@click.option("--rounds", default=25, show_default=True, help="Turns of each method.")
def main(chosen: tuple[str, ...], sizes: tuple[int, ...], rounds: int) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    warnings.simplefilter("ignore")
    versions = {name: importlib.metadata.version(name) for name in ("torch", PML) if available(name)}
    click.echo(f"{datetime.date.today()} · {cpu()}, one thread · Python {platform.python_version()} · {versions}\n")

    columns = " | ".join(f"{size} rows, ms | {PML} | dense form" for size in sizes)
    click.echo(f"| loss | {columns} |\n|---|" + "---:|---:|---:|" * len(sizes))
    for loss in chosen or LOSSES:
        if loss not in LOSSES:
            continue
        cells = []
        for size in sizes:
            x, labels = embeddings(size)
            steps: dict[str, Step] = {
                name.partition(",")[0]: partial(make(labels), x)
                for name, make in LOSSES[loss].items()
                if available(name)
            }
            times = interleaved(steps, x, rounds)
            cells.append(f"{median(times[OURS]):.2f}")
            cells += [f"{ratio(times, name, OURS):.1f} x" if name in times else "" for name in (PML, DENSE)]
        click.echo(f"| {loss} | " + " | ".join(cells) + " |")

    columns = " | ".join(f"{size} lists of {size}, ms | bare | of it" for size in sizes)
    click.echo(f"\n| loss | {columns} |\n|---|" + "---:|---:|---:|" * len(sizes))
    for loss in chosen or RANK_LOSSES:
        if loss not in RANK_LOSSES:
            continue
        cells = []
        for size in sizes:
            scores, target = lists(size, size)
            target = torch.randn(size, size) if loss.startswith("spearman") else target
            steps = {
                name: partial(f, scores, target) for name, f in zip((OURS, "bare"), RANK_LOSSES[loss], strict=True)
            }
            times = interleaved(steps, scores, rounds)
            cells += [f"{median(times[name]):.2f}" for name in (OURS, "bare")] + [f"{ratio(times, OURS, 'bare'):.2f}"]
        click.echo(f"| {loss} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
