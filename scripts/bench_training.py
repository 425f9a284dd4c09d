#!/usr/bin/env python3
"""Sequences per second when training each sorter: here, and the way of the 2019 recipe.

Here: lists drawn and ranked on the device in whole batches, dense heads as one matrix product, fused Adam.
2019: lists drawn one by one in numpy behind a DataLoader, the head as a convolution, plain Adam.
Same networks, same loss (L1 on the values), same machine, interleaved. Prints Markdown.

    scripts/bench_training.py                       # every sorter, n = 100, batches of 256
    scripts/bench_training.py --sorter lstm --seconds 20
"""

import contextlib
import datetime
import itertools
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import click
import numpy as np
import torch
from _machine import cpu
from torch import nn
from torch.utils.data import DataLoader, Dataset

import sodeep
from sodeep.sorters import published


class Lists2019(Dataset[tuple[Any, Any]]):
    """One list at a time, as the 2019 loader draws them: its ten equally likely types, ranked by two argsorts."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.random = np.random.default_rng(0)

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        scores = self.draw(int(self.random.integers(10))).astype(np.float32)
        ranks = self.n - np.argsort(np.argsort(scores))
        return scores, ranks.astype(np.float32) / self.n

    def draw(self, type_: int) -> Any:
        """A list of one of the ten types."""
        n = self.n
        if type_ in (0, 1, 7):
            return self.random.uniform(-1, 1, n)
        if type_ == 2:
            return self.random.normal(size=n)
        if type_ in (3, 4):
            low, high = sorted(self.random.uniform(0, 1, 2))
            even = np.linspace(low, high, n)
            return even if type_ == 3 else self.random.permutation(even)
        if type_ in (5, 6):
            cut = self.random.integers(n)
            return np.concatenate([self.random.uniform(-1, 1, cut), self.random.normal(size=n - cut)])
        if type_ == 8:
            cut = self.random.integers(n)
            return np.concatenate(
                [self.random.permutation(np.linspace(0, 1, cut)), self.random.uniform(-1, 1, n - cut)]
            )
        return np.arange(-1, 1, 2 / n)[:n]


def convolution_heads() -> contextlib.AbstractContextManager[object]:
    """The dense heads as the convolutions they were published as."""
    return mock.patch.object(published._DenseHead, "forward", lambda self, x: nn.Conv1d.forward(self, x).squeeze(-1))


def rate(step: Callable[[], None], batch: int, seconds: float) -> float:
    """Sequences per second of `step()`, after one call to warm up; at least two calls are timed."""
    step()
    start, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - start < seconds:
        step()
        calls += 1
    return batch * calls / (time.perf_counter() - start)


def ours(name: str, n: int, batch: int, device: str) -> Callable[[], None]:
    sorter = sodeep.build_sorter(name, n).to(device)
    optimizer = torch.optim.Adam(sorter.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator(device).manual_seed(0)

    def step() -> None:
        scores = sodeep.generators.draw(sodeep.SODEEP2019, batch, n, generator)
        loss = nn.functional.l1_loss(sorter(scores) / n, sodeep.exact_rank(scores) / n)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def as_in_2019(name: str, n: int, batch: int, device: str, workers: int) -> Callable[[], None]:
    sorter = sodeep.build_sorter(name, n, normalize=False).to(device)
    optimizer = torch.optim.Adam(sorter.parameters(), lr=1e-3)
    batches = itertools.chain.from_iterable(
        DataLoader(Lists2019(n), batch_size=batch, num_workers=workers) for _ in itertools.count()
    )

    def step() -> None:
        scores, target = (x.to(device) for x in next(batches))
        with convolution_heads():
            loss = nn.functional.l1_loss(sorter(scores) / n, target)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


@click.command()
@click.option("--sorter", "names", multiple=True, type=click.Choice(list(sodeep.SORTERS)), help="[default: all]")
@click.option("--n", default=100, show_default=True)
@click.option("--batch-size", default=256, show_default=True)
@click.option("--seconds", default=6.0, show_default=True, help="Of each measurement.")
@click.option("--rounds", default=3, show_default=True, help="Interleaved; the median is shown.")
@click.option("--threads", default=2, show_default=True)
@click.option("--workers", default=2, show_default=True, help="Of the 2019 DataLoader.")
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
def main(
    names: tuple[str, ...],
    n: int,
    batch_size: int,
    seconds: float,
    rounds: int,
    threads: int,
    workers: int,
    device: str,
) -> None:
    """Training throughput of each sorter, here and as in 2019, as Markdown."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    click.echo(
        f"Training, n = {n}, batch {batch_size}, {device}, {threads} threads, {workers} loader workers, "
        f"torch {torch.__version__}, {cpu()}, {datetime.date.today()}; "
        "sequences/s, median of interleaved rounds\n"
    )
    click.echo("| sorter | here | 2019 way | ratio |\n|---|---|---|---|")
    for name in names or sodeep.SORTERS:
        mine = ours(name, n, batch_size, device)
        theirs = None if name == "set" else as_in_2019(name, n, batch_size, device, workers)
        pairs = [
            (rate(mine, batch_size, seconds), rate(theirs, batch_size, seconds) if theirs else float("nan"))
            for _ in range(rounds)
        ]
        here, then = (sorted(column)[rounds // 2] for column in zip(*pairs, strict=True))
        old = f"{then:,.0f} | {here / then:.2f}" if theirs else "- | -"
        click.echo(f"| {name} | {here:,.0f} | {old} |")


if __name__ == "__main__":
    main()
