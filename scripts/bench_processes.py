#!/usr/bin/env python3
"""Memory and time of a loss whose lists several processes share out, beside one process with the whole batch.

    scripts/bench_processes.py                                    # some minutes
    scripts/bench_processes.py --size 512 --processes 2 --rounds 1

Embeddings in classes of four, forward and backward of a loss with gather=True, over gloo. Memory is the peak of the
tensors that are alive beyond the embeddings, time the processor time of a process with one thread, the median of
several steps; of several processes the largest. "of 1/p" is that over a p-th of one process, "difference" that of the
gradients in float64, over their size. "exchange" is the part of the time that gathers and adds up what processes send.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch
import torch.distributed as dist
from _machine import cpu
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import sodeep
from sodeep._core.live_tensors import LiveTensors

LOSSES: dict[str, Callable[[], Callable[..., Any]]] = {
    "smooth-ap": sodeep.SmoothAPLoss,
    "map:laplace": lambda: sodeep.MAPLoss(partial(sodeep.laplace_rank, tau=1.0)),
    "nt-xent": sodeep.NTXentLoss,
    "multi-similarity": sodeep.MultiSimilarityLoss,
    "triplet-hard": lambda: sodeep.TripletLoss(mining="hard"),
    "quantized-ap": sodeep.QuantizedAPLoss,
}
WIDTH = 128


def batch(size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """All rows, noisy around the centre of their class, and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) % (size // 4)
    centres = torch.randn(size // 4, WIDTH, generator=generator)
    return (centres[labels] + 2 * torch.randn(size, WIDTH, generator=generator)).to(dtype), labels


def step(criterion: Callable[..., Any], rows: Tensor, labels: Tensor) -> Tensor:
    """The gradient of one step in the rows."""
    leaf = rows.clone().requires_grad_()
    criterion(leaf, labels).backward()
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)


def exchange(rows: Tensor, labels: Tensor) -> None:
    """What a step sends: rows, labels and values, and the gradients of rows and values."""
    leaf, values = rows.clone().requires_grad_(), rows[:, 0].clone().requires_grad_()
    sodeep.gather(labels)
    torch.autograd.backward([sodeep.gather(leaf).sum(), sodeep.gather(values).sum()])


def seconds_of(function: Callable[[], object], rounds: int) -> float:
    """Processor time, the median of `rounds`."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return sorted(seconds)[rounds // 2]


def measured(name: str, size: int, rounds: int) -> dict[str, Any]:
    """What one process measures on its rows, or on all where it is alone."""
    torch.set_num_threads(1)
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    mine = slice(rank * size // world, (rank + 1) * size // world)
    rows, labels = (x[mine].clone() for x in batch(size))
    criterion = sodeep.EmbeddingLoss(LOSSES[name](), gather=True)
    step(criterion, rows, labels)
    with LiveTensors() as live:
        step(criterion, rows, labels)
    seconds = seconds_of(lambda: step(criterion, rows, labels), rounds)
    sent = seconds_of(lambda: exchange(rows, labels), rounds)
    gradient = step(criterion, rows.double(), labels) / world  # as DDP divides it
    return {"memory": live.peak, "seconds": seconds, "exchange": sent, "gradient": gradient}


def worker(rank: int, world: int, folder: str, name: str, size: int, rounds: int) -> None:
    """One of several processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(measured(name, size, rounds), f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # the threads of gloo sometimes abort a process that ends through the interpreter


@click.command(help=__doc__)
@click.option("--loss", "names", type=click.Choice(list(LOSSES)), multiple=True, default=list(LOSSES))
@click.option("--size", type=click.IntRange(4), default=4096, show_default=True)
@click.option("--processes", type=click.IntRange(2), multiple=True, default=(2, 4), show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Steps that are timed.")
def main(names: tuple[str, ...], size: int, processes: tuple[int, ...], rounds: int) -> None:
    """Print the table as Markdown."""
    click.echo(f"{size:,} rows of {WIDTH}; torch {torch.__version__}, {cpu()}, {datetime.date.today()}\n")
    click.echo("| loss | processes | MB | of 1/p | s | of 1/p | exchange | difference |")
    click.echo("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in names:
        alone = measured(name, size, rounds)
        click.echo(f"| {name} | 1 | {alone['memory'] / 2**20:,.0f} | | {alone['seconds']:.3f} | | | |")
        for world in processes:
            with tempfile.TemporaryDirectory() as folder:
                spawn(worker, (world, folder, name, size, rounds), nprocs=world)  # type: ignore[no-untyped-call]
                parts = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]
            memory, seconds, sent = (max(part[key] for part in parts) for key in ("memory", "seconds", "exchange"))
            gradient = torch.cat([part["gradient"] for part in parts])
            difference = float((gradient - alone["gradient"]).norm() / alone["gradient"].norm())
            click.echo(
                f"| | {world} | {memory / 2**20:,.0f} | {world * memory / alone['memory']:.2f} | {seconds:.3f} | "
                f"{world * seconds / alone['seconds']:.2f} | {sent:.3f} | {difference:.0e} |"
            )


if __name__ == "__main__":
    main()
