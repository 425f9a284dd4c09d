#!/usr/bin/env python3
"""Time and peak memory on a GPU: Smooth-AP, quantised AP, laplace_rank and sigmoid_rank, beside published code.

    scripts/bench_gpu.py                    # a few minutes; other packages are left out where not installed
    scripts/bench_gpu.py --device cpu --tiny   # try the script without a GPU

Forward and backward, median of ten after three to warm up; memory is the peak above what the inputs take. Markdown.
"""

import datetime
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import torch
from torch import Tensor

import sodeep

DIMENSIONS, PER_CLASS = 128, 4


def losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Name -> a function of (embeddings, labels)."""
    criteria: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "Smooth-AP": sodeep.EmbeddingLoss(sodeep.SmoothAPLoss()),
        "quantised AP": sodeep.EmbeddingLoss(sodeep.QuantizedAPLoss()),
    }
    if importlib.util.find_spec("pytorch_metric_learning"):
        from pytorch_metric_learning.losses import SmoothAPLoss

        criteria["pytorch-metric-learning Smooth-AP"] = SmoothAPLoss()
    return criteria


def rank_fns() -> dict[str, Callable[[Tensor], Tensor]]:
    """Name -> a rank function."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "laplace_rank": sodeep.laplace_rank,
        "sigmoid_rank": sodeep.sigmoid_rank,
    }
    if importlib.util.find_spec("torchsort"):
        import torchsort

        functions["torchsort"] = lambda scores: torchsort.soft_rank(-scores)
    return functions


def cost(step: Callable[[], object], device: str) -> str:
    """Median ms and peak MiB of `step`, or the reason there is none."""
    gpu = torch.device(device).type == "cuda"
    try:
        for _ in range(3):
            step()
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        times = []
        for _ in range(10):
            start = time.perf_counter()
            step()
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        peak = f", {(torch.cuda.max_memory_allocated() - before) / 2**20:,.1f} MiB" if gpu else ""
        return f"{1e3 * sorted(times)[5]:.2f} ms{peak}"
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return "out of memory"


def table(
    functions: Mapping[str, Any],
    sizes: Sequence[Any],
    make_step: Callable[[Any, Any], Callable[[], object]],
    device: str,
) -> None:
    """One row a function, one column a size."""
    click.echo("| | " + " | ".join(map(str, sizes)) + " |\n|---|" + "---|" * len(sizes))
    for name, function in functions.items():
        cells = [cost(make_step(function, size), device) for size in sizes]
        click.echo(f"| {name} | " + " | ".join(cells) + " |")
    click.echo()


@click.command()
@click.option("--device", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="Small sizes, to try the script.")
def main(device: str, tiny: bool) -> None:
    """Print the tables."""
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device
    click.echo(f"{name}, torch {torch.__version__}, {datetime.date.today()}\n")

    def embeddings(loss: Callable[[Tensor, Tensor], Tensor], rows: int) -> Callable[[], object]:
        x = torch.randn(rows, DIMENSIONS, device=device, requires_grad=True)
        labels = torch.arange(rows, device=device) // PER_CLASS
        return lambda: torch.autograd.grad(loss(x, labels), x)

    def lists(rank_fn: Callable[[Tensor], Tensor], shape: tuple[int, int]) -> Callable[[], object]:
        x = torch.randn(shape, device=device, requires_grad=True)
        weights = torch.randn(shape, device=device)
        return lambda: torch.autograd.grad((rank_fn(x) * weights).sum(), x)

    table(losses(), [16, 32] if tiny else [512, 4096], embeddings, device)
    sizes = [(4, 10), (1, 50)] if tiny else [(256, 100), (4096, 100), (8, 1000), (1, 10_000), (1, 100_000)]
    table(rank_fns(), sizes, lists, device)


if __name__ == "__main__":
    main()
