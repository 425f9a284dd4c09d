#!/usr/bin/env python3
"""Memory and time of `multistage_backward` beside plain backward, by the batch size.

    scripts/bench_multistage.py                              # a minute on one core
    scripts/bench_multistage.py --width 64 --size 4096 --rounds 1

A small convolutional encoder, Smooth-AP of embeddings with 4 items of each class, forward and backward. Memory is the
peak of the tensors that are alive, without the images and the weights; time is that of the process, the median of
several steps. "difference" is that of the gradients, over the size of that of plain backward.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch
from _machine import cpu
from torch import Tensor, nn

import sodeep
from sodeep._core.live_tensors import LiveTensors

PLAIN = None


def encoder(width: int) -> nn.Sequential:
    """Three convolutions and a linear layer, without batch norm, which would normalise by the chunk."""
    torch.manual_seed(0)
    channels = ((1, width), (width, 2 * width), (2 * width, 4 * width))
    layers = [part for a, b in channels for part in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width * 4 * 4, 64))


def step(net: nn.Module, images: Tensor, loss: Callable[[Tensor], Tensor], chunk_size: int | None) -> Tensor:
    """The gradient of the weights, as one vector."""
    net.zero_grad()
    if chunk_size is PLAIN:
        loss(net(images)).backward()  # type: ignore[no-untyped-call]
    else:
        sodeep.multistage_backward(net, images, loss, chunk_size=chunk_size)
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def measure(size: int, chunk_size: int | None, width: int, rounds: int) -> tuple[float, float, Tensor]:
    """Megabytes at the peak, seconds and the gradient of a step with a batch of `size`."""
    net = encoder(width)
    images = torch.rand(size, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(size) // 4
    criterion = sodeep.EmbeddingLoss(sodeep.SmoothAPLoss())

    def loss(embeddings: Tensor) -> Tensor:
        return criterion(embeddings, labels)

    with LiveTensors() as live:
        gradient = step(net, images, loss, chunk_size)
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        step(net, images, loss, chunk_size)
        seconds.append(time.process_time() - start)
    return live.peak / 2**20, sorted(seconds)[len(seconds) // 2], gradient


@click.command()
@click.option("--size", "sizes", type=int, multiple=True, default=(256, 512, 1024, 2048, 4096), show_default=True)
@click.option("--chunk-size", "chunks", type=int, multiple=True, default=(64, 256), show_default=True)
@click.option("--width", default=16, show_default=True, help="Channels of the first convolution.")
@click.option("--rounds", default=3, show_default=True, help="Steps that are timed.")
def main(sizes: tuple[int, ...], chunks: tuple[int, ...], width: int, rounds: int) -> None:
    """Print the table as Markdown."""
    torch.set_num_threads(1)
    click.echo(f"One thread, torch {torch.__version__}, {cpu()}, {datetime.date.today()}\n")
    click.echo("| batch | backward | chunk | MB | part of plain | s | times plain | difference |")
    click.echo("|---:|---|---:|---:|---:|---:|---:|---:|")
    for size in sizes:
        plain_memory, plain_time, plain = measure(size, PLAIN, width, rounds)
        click.echo(f"| {size:,} | plain | | {plain_memory:,.1f} | 1 | {plain_time:.2f} | 1 | |")
        for chunk in chunks:
            memory, seconds, gradient = measure(size, chunk, width, rounds)
            difference = float((gradient - plain).norm() / plain.norm())
            ratios = f"{memory / plain_memory:.2f} | {seconds:.2f} | {seconds / plain_time:.2f}"
            click.echo(f"| {size:,} | multistage | {chunk} | {memory:,.1f} | {ratios} | {difference:.0e} |")


if __name__ == "__main__":
    main()
