#!/usr/bin/env python3
"""Time and peak memory on a GPU: Smooth-AP, quantised AP, laplace_rank and sigmoid_rank, beside what people use.

    scripts/bench_gpu.py                    # a few minutes; peers are left out where they are not installed
    scripts/bench_gpu.py --device cpu --tiny   # try the script without a GPU

Forward and backward, median of ten after three to warm up; memory is the peak above what the inputs take. Markdown.
"""

import datetime
import importlib.util
import time

import click
import torch

import sodeep

DIMENSIONS, PER_CLASS = 128, 4


def losses():
    """Name -> a function of (embeddings, labels)."""
    found = {
        "Smooth-AP": sodeep.EmbeddingLoss(sodeep.SmoothAPLoss()),
        "quantised AP": sodeep.EmbeddingLoss(sodeep.QuantizedAPLoss()),
    }
    if importlib.util.find_spec("pytorch_metric_learning"):
        from pytorch_metric_learning.losses import SmoothAPLoss

        found["pytorch-metric-learning Smooth-AP"] = SmoothAPLoss()
    return found


def rank_fns():
    """Name -> a rank function."""
    found = {"laplace_rank": sodeep.laplace_rank, "sigmoid_rank": sodeep.sigmoid_rank}
    if importlib.util.find_spec("torchsort"):
        import torchsort

        found["torchsort"] = lambda scores: torchsort.soft_rank(-scores)
    return found


def cost(step, device):
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


def table(functions, sizes, prepare, device):
    """One row a function, one column a size."""
    click.echo("| | " + " | ".join(map(str, sizes)) + " |\n|---|" + "---|" * len(sizes))
    for name, function in functions.items():
        cells = [cost(prepare(function, size), device) for size in sizes]
        click.echo(f"| {name} | " + " | ".join(cells) + " |")
    click.echo()


@click.command()
@click.option("--device", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="Small sizes, to try the script.")
def main(device, tiny):
    """Print the tables."""
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device
    click.echo(f"{name}, torch {torch.__version__}, {datetime.date.today()}\n")

    def embeddings(loss, rows):
        x = torch.randn(rows, DIMENSIONS, device=device, requires_grad=True)
        labels = torch.arange(rows, device=device) // PER_CLASS
        return lambda: torch.autograd.grad(loss(x, labels), x)

    def lists(rank_fn, shape):
        x = torch.randn(shape, device=device, requires_grad=True)
        weights = torch.randn(shape, device=device)
        return lambda: torch.autograd.grad((rank_fn(x) * weights).sum(), x)

    table(losses(), [16, 32] if tiny else [512, 4096], embeddings, device)
    sizes = [(4, 10), (1, 50)] if tiny else [(256, 100), (4096, 100), (8, 1000), (1, 10_000), (1, 100_000)]
    table(rank_fns(), sizes, lists, device)


if __name__ == "__main__":
    main()
