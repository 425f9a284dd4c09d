#!/usr/bin/env python3
"""Time every rank function, forward and backward, beside those of other packages that are installed; as Markdown.

One pinned thread; the functions take turns round by round, so that what slows the machine slows them all; medians of
the thread's CPU time, which on an idle machine is the time on the clock.
"""

from __future__ import annotations

import datetime
import gc
import importlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import torch
from _machine import cpu
from torch import Tensor

from sodeep.ranks import blackbox_rank, exact_rank, laplace_rank, sigmoid_rank, straight_through

SIZES = [(256, 100), (8, 1000), (1, 10_000), (1, 100_000)]
PAIRS = 10_000
"""Functions that visit every pair of a list are left out of longer lists."""

OURS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "exact_rank (forward)": (exact_rank, sys.maxsize),
    "laplace_rank": (laplace_rank, sys.maxsize),
    "blackbox_rank": (blackbox_rank, sys.maxsize),
    "straight_through(laplace_rank)": (straight_through(laplace_rank), sys.maxsize),
    "sigmoid_rank": (sigmoid_rank, PAIRS),
}
PEERS: dict[str, tuple[str, Callable[[Any], Callable[[Tensor], Tensor]], int]] = {
    "torchsort": ("torchsort", lambda m: lambda s: m.soft_rank(-s, regularization_strength=0.1), sys.maxsize),
    "torchpsort": ("torchpsort", lambda m: lambda s: m.soft_rank(-s, tau=0.1), sys.maxsize),
    "softtorch, fast_soft_sort": (
        "softtorch",
        lambda m: lambda s: m.rank(s, dim=-1, method="fast_soft_sort", mode="c0"),
        1000,
    ),
    "softtorch, neuralsort": ("softtorch", lambda m: lambda s: m.rank(s, dim=-1), 1000),
    "fast-soft-sort": (
        "fast_soft_sort.pytorch_ops",
        lambda m: lambda s: m.soft_rank(-s, regularization_strength=0.1),
        sys.maxsize,
    ),
}


def candidates() -> tuple[dict[str, tuple[Callable[[Tensor], Tensor], int]], list[str]]:
    """Our functions and those that can be imported, each with its longest list; then the names of the others."""
    functions, missing = dict(OURS), []
    for name, (module, adapt, longest) in PEERS.items():
        try:
            functions[name] = (adapt(importlib.import_module(module)), longest)
        except ImportError:
            missing.append(name)
    return functions, missing


def once(function: Callable[[Tensor], Tensor], scores: Tensor, weights: Tensor) -> float:
    """Milliseconds of one forward and, where there is a graph, one backward."""
    leaf = scores.detach().requires_grad_()
    start = time.thread_time()
    ranks = function(leaf)
    if ranks.requires_grad:
        ranks.backward(weights)  # type: ignore[no-untyped-call]
    return (time.thread_time() - start) * 1e3


def measure(size: tuple[int, int], rounds: int) -> tuple[dict[str, float], list[str]]:
    """Median milliseconds of each candidate at `size`, of at most `rounds` rounds in about fifteen seconds."""
    every, missing = candidates()
    functions = {name: f for name, (f, longest) in every.items() if size[1] <= longest}
    functions["torch.sort alone"] = lambda s: torch.sort(s.detach()).values
    generator = torch.Generator().manual_seed(0)
    scores, weights = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for f in functions.values():  # warm up
        once(f, scores, weights)
    stop = time.monotonic() + 15
    gc.disable()  # as timeit does: a collection would be charged to whoever happens to trigger it
    for done in range(rounds):
        gc.collect()
        if done >= 3 and time.monotonic() > stop:
            break
        for name, f in functions.items():
            once(f, scores, weights)  # after a function that used a lot of memory the caches and the heap are cold
            times[name].append(once(f, scores, weights))
    return {name: median(t) for name, t in times.items()}, missing


def sigmoid_memory(n: int) -> float:
    """MiB of resident memory that one forward and backward of sigmoid_rank adds at its peak, in a fresh process."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
from sodeep.ranks import sigmoid_rank

def kib(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))

torch.set_num_threads(1)
sigmoid_rank(torch.randn(1, 10, requires_grad=True)).sum().backward()
scores = torch.randn(1, {n}, requires_grad=True)
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of the imports
before = kib("VmRSS")
sigmoid_rank(scores).sum().backward()
print(kib("VmHWM") - before)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return int(out) / 2**10


@click.command(help=__doc__)
@click.option("--rounds", default=50, show_default=True, help="Rounds per size (fewer where they are long).")
def main(rounds: int) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    columns = {}
    for size in SIZES:
        click.echo(f"measuring {size}", err=True)
        columns[size], missing = measure(size, rounds)
    names = list(dict.fromkeys(name for column in columns.values() for name in column))

    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {datetime.date.today()}"
    click.echo(f"Forward + backward, float32, one thread. {cpu()}, {versions}.")
    for title, base in (("ms", None), ("times torchsort", "torchsort"), ("times torch.sort", "torch.sort alone")):
        if base is not None and base not in names:
            continue
        click.echo(f"\n| {title} | " + " | ".join(str(size) for size in SIZES) + " |")
        click.echo("|---|" + "---|" * len(SIZES))
        for name in names:
            cells = []
            for size in SIZES:
                value, unit = columns[size].get(name), 1.0 if base is None else columns[size][base]
                cells.append("" if value is None else f"{value / unit:.{3 if base is None else 2}f}")
            click.echo(f"| {name} | " + " | ".join(cells) + " |")
    if sys.platform == "linux":
        click.echo(f"\nExtra memory of sigmoid_rank at n = 10,000: {sigmoid_memory(10_000):.1f} MiB.")
    if missing:
        click.echo(f"\nNot installed: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
