#!/usr/bin/env python3
"""Time retrieval_metrics over a large gallery, with its memory beyond that of the embeddings.

Embeddings of N items in classes of ten search each other. Beside it, on fewer queries, whole lists as other tools take
them: all scores by one product, the order of each list by torch's argsort, average precision from it; and, if faiss-cpu
is installed, its exact search for all N neighbours, with the same average precision.
"""

from __future__ import annotations

import datetime
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import torch
from _machine import cpu
from torch import Tensor

import sodeep

METRICS = ("mAP", "mAP@R", "R-precision", "R@1", "R@10")


def embeddings_of(n: int, d: int) -> tuple[Tensor, Tensor]:
    """Rows (n, d) around the centre of their class, and labels (n,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // 10
    centres = torch.randn(int(labels[-1]) + 1, d, generator=generator)
    return centres[labels] + 2 * torch.randn(n, d, generator=generator), labels


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    kilo = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo


def average_precisions(found: Tensor, own: Tensor, labels: Tensor) -> Tensor:
    """Of each query, from the items in the order they were found, itself (`own`) among them."""
    relevant = (labels[found] == labels[own].unsqueeze(-1)) & (found != own.unsqueeze(-1))
    place = (found != own.unsqueeze(-1)).cumsum(-1)
    return (relevant * relevant.cumsum(-1) / place.clamp(min=1)).sum(-1) / relevant.sum(-1)


def by_argsort(rows: Tensor, own: Tensor, labels: Tensor) -> Tensor:
    """Average precision of some queries, from the order of whole lists."""
    return average_precisions((rows[own] @ rows.T).argsort(-1, descending=True), own, labels)


def by_faiss(rows: Tensor, own: Tensor, labels: Tensor) -> Tensor:
    """The same by faiss."""
    import faiss

    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows.numpy())
    return average_precisions(torch.from_numpy(index.search(rows[own].numpy(), len(rows))[1]), own, labels)


def timed(function: Callable[[Tensor, Tensor, Tensor], Tensor], rows: Tensor, labels: Tensor, few: int) -> float:
    """Milliseconds a query, and a check of the values."""
    own = torch.arange(0, len(rows), max(1, len(rows) // few))[:few]
    start = time.perf_counter()
    found = function(rows, own, labels)
    seconds = time.perf_counter() - start
    searched = sodeep.retrieval_metrics(
        rows[own], labels[own], rows, labels, own=own, metrics=["mAP"], reduction="none"
    )
    ours = searched["mAP"]
    torch.testing.assert_close(found.to(ours.dtype), ours, rtol=1e-3, atol=1e-3)
    return 1000 * seconds / len(own)


@click.command(help=__doc__)
@click.option("--items", default=50_000, show_default=True)
@click.option("--width", default=128, show_default=True)
@click.option("--few", default=200, show_default=True, help="Queries of the others.")
def main(items: int, width: int, few: int) -> None:
    """Print a table."""
    rows, labels = embeddings_of(items, width)
    sodeep.retrieval_metrics(rows[:100], labels[:100])
    before, start = peak(), time.perf_counter()
    found = sodeep.retrieval_metrics(rows, labels, metrics=METRICS)
    seconds, memory = time.perf_counter() - start, peak() - before
    threads = torch.get_num_threads()
    click.echo(f"{items:,} x {items:,}, width {width}; {threads} threads, torch {torch.__version__}, {cpu()}, ")
    click.echo(f"Python {platform.python_version()}, {datetime.date.today()}\n")
    click.echo(f"retrieval_metrics: {seconds:.0f} s, {memory / 2**20:.0f} MiB beyond the embeddings; {found}\n")
    click.echo("| ms a query | |\n|---|---:|")
    click.echo(f"| retrieval_metrics, {len(METRICS)} metrics | {1000 * seconds / items:.2f} |")
    unit = torch.nn.functional.normalize(rows)
    click.echo(f"| product, argsort, average precision | {timed(by_argsort, unit, labels, few):.2f} |")
    try:
        click.echo(f"| faiss-cpu, all neighbours, average precision | {timed(by_faiss, unit, labels, few):.2f} |")
    except ModuleNotFoundError:
        click.echo("faiss-cpu is not installed.", err=True)


if __name__ == "__main__":
    main()
