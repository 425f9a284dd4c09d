#!/usr/bin/env python3
"""Time the losses of learning to rank, forward and backward, on padded lists and on flat items with group=.

256 lists of 100 items, grades 0 to 4; flat, the same 25,600 items in a shuffled order. One pinned thread; the losses
take turns round by round, so that what slows the machine slows them all; medians of the thread's CPU time, in ms.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import torch
from _machine import cpu
from torch import Tensor

import sodeep

LOSSES: dict[str, Callable[..., Any]] = {
    "ndcg_loss, laplace_rank": partial(sodeep.ndcg_loss, rank_fn=sodeep.laplace_rank),
    "ndcg_loss, k = 10": partial(sodeep.ndcg_loss, rank_fn=sodeep.laplace_rank, k=10),
    "ndcg_loss, sigmoid_rank": partial(sodeep.ndcg_loss, rank_fn=sodeep.sigmoid_rank),
    "kendall_loss, laplace_rank": partial(sodeep.kendall_loss, rank_fn=sodeep.laplace_rank),
    "softmax_loss": sodeep.softmax_loss,
    "list_net_loss": sodeep.list_net_loss,
    "list_mle_loss": sodeep.list_mle_loss,
    "rank_net_loss": sodeep.rank_net_loss,
    "lambda_rank_loss": sodeep.lambda_rank_loss,
}


def milliseconds(loss: Callable[..., Any], scores: Tensor, relevance: Tensor, group: Tensor | None) -> float:
    """Of one forward and one backward pass."""
    leaf = scores.detach().requires_grad_()
    start = time.thread_time()
    loss(leaf, relevance, group=group).backward()
    return (time.thread_time() - start) * 1e3


@click.command(help=__doc__)
@click.option("--rounds", default=50, show_default=True, help="Turns of each loss.")
def main(rounds: int) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    generator = torch.Generator().manual_seed(0)
    scores, relevance = torch.randn(256, 100, generator=generator), torch.randint(5, (256, 100), generator=generator)
    order = torch.randperm(scores.numel(), generator=generator)
    ids = torch.arange(256).repeat_interleave(100)[order]
    inputs: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
        "(256, 100)": (scores, relevance, None),
        "(25600,) with group=": (scores.flatten()[order], relevance.flatten()[order], ids),
    }
    times: dict[tuple[str, str], list[float]] = {(name, form): [] for name in LOSSES for form in inputs}
    gc.disable()  # as timeit does: a collection would be charged to whichever loss triggers it
    for _ in range(rounds):
        gc.collect()
        for name, loss in LOSSES.items():
            for form, tensors in inputs.items():
                milliseconds(loss, *tensors)  # the caches are cold after another loss
                times[name, form].append(milliseconds(loss, *tensors))

    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {datetime.date.today()}"
    click.echo(f"Forward + backward, float32, one thread. {cpu()}, {versions}.\n")
    click.echo("| loss | " + " | ".join(inputs) + " | ratio |\n|---|---:|---:|---:|")
    for name in LOSSES:
        padded, flat = (median(times[name, form]) for form in inputs)
        click.echo(f"| {name} | {padded:.2f} | {flat:.2f} | {flat / padded:.2f} |")


if __name__ == "__main__":
    main()
