#!/usr/bin/env python3
"""Time and peak memory on a GPU: losses, rank functions, CUDA graphs, torch.compile, and the training of sorters.

    scripts/bench_gpu.py                             # four minutes, into bench_gpu.md, or into the folder $OUT
    scripts/bench_gpu.py --part ranks --part graphs  # some parts only
    scripts/bench_gpu.py --device cpu --tiny         # try the script without a GPU

Forward and backward: median milliseconds of up to twenty steps, after three to warm up (one, where it takes seconds),
and the peak of memory above what the inputs take. The parts, most wanted first, share the time:

* losses: those of `scripts/bench_losses.py` from embeddings of 128 dimensions, beside pytorch-metric-learning.
* ranks: rank functions, beside torchsort and the plain pairwise sigmoid, as it is and compiled: what a kernel of our
  own would have to beat.
* graphs: each loss as a CUDA graph, or why it is none. The memory is that of the graph.
* sorters: a training step with the gradient term, by double backward and by differences, without it, and without it on
  PyTorch's own kernels, which double backward needs; the last over the one before is what cuDNN is worth.
* compiled: losses under torch.compile, with ``mode="reduce-overhead"`` too.

A row is written when it is measured. One that fails has the error in place of the time, and the others go on.
"""

from __future__ import annotations

import datetime
import functools
import gc
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from bench_losses import DIMENSIONS, LOSSES, OURS, PER_CLASS, PML, available
from torch import Tensor

import sodeep
from sodeep.sorters.base import double_backward
from sodeep.training.objective import sorter_loss

Step = Callable[[], object]


class Case(NamedTuple):
    """One row of the table."""

    what: str
    size: str
    method: str
    make: Callable[[], Step]
    """Gives the step to be timed; what it makes on the way is not."""


class Sizes(NamedTuple):
    """What is measured at which sizes."""

    rows: tuple[int, ...] = (32, 128, 512, 2048, 8192)
    lists: tuple[tuple[int, int], ...] = ((256, 100), (4096, 100), (8, 1000), (64, 1000), (1, 10_000), (1, 100_000))
    captured: tuple[int, ...] = (64, 512)
    sorter: tuple[int, int] = (256, 100)
    compiled: tuple[int, ...] = (128, 2048)


TINY = Sizes((16, 32), ((4, 10), (1, 50)), (16,), (4, 40), (16,))


def backward(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A step: the gradient of a scalar."""
    return torch.autograd.grad(function(x), x)[0]


def problem(rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Embeddings and labels."""
    x = torch.nn.functional.normalize(torch.randn(rows, DIMENSIONS, device=device), dim=1)
    return x.requires_grad_(), torch.arange(rows, device=device) // PER_CLASS


def loss_step(name: str, method: str, rows: int, device: str, compiled: dict[str, Any] | None = None) -> Step:
    """A step of a loss on embeddings."""
    x, labels = problem(rows, device)
    criterion: Callable[[Tensor], Tensor] = LOSSES[name][method](labels)
    return partial(backward, criterion if compiled is None else torch.compile(criterion, **compiled), x)


def losses(sizes: Sizes, device: str) -> Iterator[Case]:
    for rows in sizes.rows:
        for name, methods in LOSSES.items():
            for method in (OURS, PML):
                key = next((key for key in methods if key.partition(",")[0] == method), "")
                if key and available(key):
                    yield Case(name, f"{rows:,}", method, partial(loss_step, name, key, rows, device))


def pairwise_rank(scores: Tensor) -> Tensor:
    """`sigmoid_rank` with tau = 1, by all differences at once."""
    return (scores.unsqueeze(-2) - scores.unsqueeze(-1)).sigmoid().sum(-1) + 0.5


@functools.cache
def compiled_pairwise() -> Callable[[Tensor], Tensor]:
    return torch.compile(pairwise_rank)


def rank_fns() -> dict[str, Callable[[Tensor], Tensor]]:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "laplace_rank": sodeep.laplace_rank,
        "sigmoid_rank": sodeep.sigmoid_rank,
        "pairwise": pairwise_rank,
        "pairwise, compiled": lambda x: compiled_pairwise()(x),
        "torch.sort": lambda x: torch.sort(x).values,
        "blackbox_rank": sodeep.blackbox_rank,
        "set sorter": sodeep.load_sorter("set"),
    }
    if importlib.util.find_spec("torchsort"):
        import torchsort

        functions["torchsort"] = lambda scores: torchsort.soft_rank(-scores)
    return functions


def rank_step(rank_fn: Any, shape: tuple[int, int], device: str) -> Step:
    x, weights = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape, device=device)
    rank_fn = rank_fn.to(device) if isinstance(rank_fn, torch.nn.Module) else rank_fn
    return partial(backward, lambda x: (rank_fn(x) * weights).sum(), x)


def ranks(sizes: Sizes, device: str) -> Iterator[Case]:
    functions = rank_fns()
    for shape in sizes.lists:
        for name, rank_fn in functions.items():
            yield Case("ranks", f"{shape}", name, partial(rank_step, rank_fn, shape, device))


def on_ranks() -> dict[str, Callable[..., Tensor]]:
    """Losses on a rank function, of scores and a target."""
    sorter = sodeep.load_sorter("set")
    return {
        "spearman:laplace": sodeep.SpearmanLoss(sodeep.laplace_rank),
        "spearman:sigmoid": sodeep.SpearmanLoss(sodeep.sigmoid_rank),
        "spearman:set": sodeep.SpearmanLoss(sorter),
        "map:laplace": sodeep.MAPLoss(sodeep.laplace_rank),
        "recall:laplace": sodeep.RecallLoss(sodeep.laplace_rank),
        "ndcg:laplace": sodeep.NDCGLoss(sodeep.laplace_rank),
        "asp": sodeep.ASPLoss(),
        "svm-ap": sodeep.SVMAPLoss(),
        "rank-net": sodeep.RankNetLoss(),
        "lambda-rank": sodeep.LambdaRankLoss(),
    }


def on_ranks_step(loss: Any, n: int, device: str) -> Step:
    scores = torch.randn(n, n, device=device, requires_grad=True)
    graded = isinstance(loss, (sodeep.SpearmanLoss, sodeep.ASPLoss))
    target = torch.rand(n, n, device=device) if graded else torch.rand(n, n, device=device) < 0.1
    loss = loss.to(device)
    return partial(backward, lambda x: loss(x, target), scores)


def as_graph(make: Callable[[], Step]) -> Step:
    """A step as a CUDA graph, which must give what the step gives."""
    step = make()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    return graph.replay


def graphs(sizes: Sizes, device: str) -> Iterator[Case]:
    for n in sizes.captured:
        steps = {name: partial(loss_step, name, OURS, n, device) for name in LOSSES if name != "asp"}
        steps |= {name: partial(on_ranks_step, loss, n, device) for name, loss in on_ranks().items()}
        for name, make in steps.items():
            yield Case(name, f"{n:,}", "step by step", make)
            yield Case(name, f"{n:,}", "CUDA graph", partial(as_graph, make))


def sorter_step(
    name: str, shape: tuple[int, int], device: str, weight: float, difference: float = 0.0, plain: bool = False
) -> Step:
    """A step of training: the loss and its gradient."""
    sorter = sodeep.build_sorter(name, shape[1]).to(device).train()
    generator = torch.Generator(device).manual_seed(0)
    scores = torch.randn(shape, device=device)

    def step() -> None:
        sorter.zero_grad()
        loss = sorter_loss(sorter, scores, generator, gradient_weight=weight, gradient_step=difference)
        loss.backward()  # type: ignore[no-untyped-call]

    def on_plain_kernels() -> None:
        with double_backward():
            step()

    return on_plain_kernels if plain else step


def sorters(sizes: Sizes, device: str) -> Iterator[Case]:
    for name in ("lstm", "gru-sum", "cnn"):
        step = partial(sorter_step, name, sizes.sorter, device)
        for method, make in (
            ("gradient term by double backward", partial(step, 0.01)),
            ("gradient term by differences", partial(step, 0.01, difference=0.05)),
            ("values alone", partial(step, 0.0)),
            ("values alone, without cuDNN", partial(step, 0.0, plain=True)),
        ):
            yield Case(name, f"{sizes.sorter}", method, make)


def compiled(sizes: Sizes, device: str) -> Iterator[Case]:
    for name in ("nt-xent", "smooth-ap", "quantized-ap", "triplet-hard", "multi-similarity"):
        for rows in sizes.compiled:
            for method, options in (("compiled", {}), ("compiled, graphs", {"mode": "reduce-overhead"})):
                yield Case(name, f"{rows:,}", method, partial(loss_step, name, OURS, rows, device, options))


PARTS = {part.__name__: part for part in (losses, ranks, graphs, sorters, compiled)}


def cost(case: Case, device: str, seconds: float) -> str:
    """Median ms and peak MiB of a case, as cells, or why there are none."""
    gpu = torch.device(device).type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if gpu else lambda: None
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        step = case.make()
        start = time.perf_counter()
        step()
        wait()
        for _ in range(2 if time.perf_counter() - start < 2 else 0):
            step()
        wait()
        before = torch.cuda.memory_allocated() if gpu else 0
        if gpu and case.method != "CUDA graph":  # whose memory was taken when it was captured
            torch.cuda.reset_peak_memory_stats()
        times: list[float] = []
        while len(times) < 20 and sum(times) < seconds:
            start = time.perf_counter()
            step()
            wait()
            times.append(time.perf_counter() - start)
        peak = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.1f}" if gpu else ""
        return f"{1e3 * sorted(times)[len(times) // 2]:.3f} | {peak}"
    except Exception as error:  # whatever it is, the others are still worth their time
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:100]} |"
    finally:
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()


@click.command(help=__doc__.split("\n\n")[0], epilog="Parts and measurement: see the head of this file.")
@click.option("--device", default="cuda", show_default=True)
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Repeatable. [all]")
@click.option("--max-time", default=240.0, show_default=True, help="Seconds for all; what is left by then is left out.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file. [bench_gpu.md in $OUT, or here]")
@click.option("--tiny", is_flag=True, help="Small sizes, to try the script.")
def main(device: str, parts: tuple[str, ...], max_time: float, out: Path | None, tiny: bool) -> None:
    end = time.monotonic() + max_time
    warnings.simplefilter("ignore")
    sizes = TINY if tiny else Sizes()
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device
    with (out or Path(os.environ.get("OUT", ".")) / "bench_gpu.md").open("w", encoding="utf-8") as file:

        def write(line: str) -> None:
            click.echo(line)
            print(line, file=file, flush=True)

        write(f"{name}, torch {torch.__version__}, {datetime.date.today()}\n")
        write("| part | what | size | by | ms | MiB |\n|---|---|---|---|---:|---:|")
        chosen = [part for part in PARTS if part in (parts or PARTS)]
        for number, part in enumerate(chosen):
            left = end - time.monotonic()
            until = time.monotonic() + left / (len(chosen) - number)
            late = 0
            for case in PARTS[part](sizes, device):
                if time.monotonic() < until:
                    write(f"| {part} | {case.what} | {case.size} | {case.method} | {cost(case, device, 0.3)} |")
                else:
                    late += 1
            if late:
                write(f"| {part} | {late} more | | | no time |  |")


if __name__ == "__main__":
    main()
