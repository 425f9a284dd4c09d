#!/usr/bin/env python3
"""Time and memory of the losses, forward and backward from embeddings, beside other implementations.

    scripts/bench_losses.py                                      # everything; a quarter of an hour
    scripts/bench_losses.py --loss smooth-ap --size 256 --size 512

For each loss and batch size, every method runs in a fresh process of its own, on one pinned core with one thread,
under an address-space limit. All of a cell's processes are alive together and take turns, round by round, so that what
else the machine does falls on all of them alike; time is that of the process on its core, not of the clock on the wall.
Memory is the growth of the resident peak over the first step.

Methods: sodeep; pytorch-metric-learning where it has the loss (`pip install pytorch-metric-learning==2.9.0`); and
the published dense form in plain torch, written here from the formula. Batches have 4 rows of each class, 128
dimensions. "x" is how many times sodeep is faster, or smaller. Linux only.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from _machine import cpu

if TYPE_CHECKING:  # torch is imported by the processes that are measured
    from torch import Tensor

    Criterion = Callable[[Tensor], Tensor]
    Make = Callable[[Tensor], Criterion]

PER_CLASS, DIMENSIONS = 4, 128
OURS, PML, DENSE = "sodeep", "pytorch-metric-learning", "dense form"

# ---------------------------------------------------------------------------------------------------------------------
# Methods: name -> a function of the labels (B,) that gives a loss of the embeddings (B, 128)


def ours(name: str, **options: Any) -> Make:
    def make(labels: Tensor) -> Criterion:
        from sodeep import losses

        criterion = losses.EmbeddingLoss(getattr(losses, name)(**options))
        return lambda x: criterion(x, labels)

    return make


def ours_n_pairs(labels: Tensor) -> Criterion:
    """Of one pair a class, as pytorch-metric-learning takes them."""
    from sodeep.losses import EmbeddingLoss, NPairsLoss

    loss = EmbeddingLoss(NPairsLoss(), similarity="dot")
    anchors, positives = labels[::PER_CLASS], labels[1::PER_CLASS]

    def of_pairs(x: Tensor) -> Tensor:
        value: Tensor = loss(x[::PER_CLASS], anchors, x[1::PER_CLASS], positives)
        return value

    return of_pairs


def pml(name: str, miner: tuple[str, dict[str, Any]] | None = None, **options: Any) -> Make:
    def make(labels: Tensor) -> Criterion:
        from pytorch_metric_learning import losses, miners

        loss = getattr(losses, name)(**options)
        if miner is None:
            return lambda x: loss(x, labels)
        mine = getattr(miners, miner[0])(**miner[1])
        return lambda x: loss(x, labels, mine(x, labels))

    return make


def dense(form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Make:
    """A loss of a similarity matrix (B, B) and a relevance matrix with the diagonal left out by a mask."""

    def make(labels: Tensor) -> Criterion:
        import torch

        same = labels == labels.unsqueeze(1)
        other = ~torch.eye(len(labels), dtype=torch.bool)

        def loss(x: Tensor) -> Tensor:
            x = torch.nn.functional.normalize(x, dim=1)
            return form(x @ x.t(), (same & other).float(), other.float())

        return loss

    return make


def dense_smooth_ap(s: Tensor, positive: Tensor, other: Tensor, tau: float = 0.01) -> Tensor:
    import torch

    above = torch.sigmoid((s.unsqueeze(1) - s.unsqueeze(2)) / tau)  # [q, i, j]: is j above i?
    above = above * other.unsqueeze(0) * other.unsqueeze(1)
    rank, rank_positive = 1 + above.sum(2), 1 + (above * positive.unsqueeze(1)).sum(2)
    return 1 - ((rank_positive / rank * positive).sum(1) / positive.sum(1)).mean()


def dense_sup_ap(
    s: Tensor, positive: Tensor, other: Tensor, tau: float = 0.01, rho: float = 100, delta: float = 0.05
) -> Tensor:
    import math

    import torch

    loss = s.new_zeros(())
    for q in range(len(s)):  # the released code goes over the queries as well
        P, N = s[q][positive[q] > 0], s[q][(other[q] - positive[q]) > 0]
        d = N - P.unsqueeze(1)
        sigmoid = torch.sigmoid(d / tau)
        far = rho * (d - delta) + 0.5 + 1 / (1 + math.exp(-delta / tau))
        bound = torch.where(d > delta, far, sigmoid + 0.5 * (d > 0))
        rank_positive = 1 + (P.unsqueeze(1) < P).sum(1)
        loss = loss + 1 - (rank_positive / (rank_positive + bound.sum(1))).mean()
        loss = loss + (0.9 - P).clamp(min=0).mean() + (N - 0.6).clamp(min=0).mean()
    return loss / len(s)


def dense_recall_at_k(
    s: Tensor,
    positive: Tensor,
    other: Tensor,
    k: tuple[int, ...] = (1, 2, 4, 8, 16),
    tau_rank: float = 0.01,
    tau_k: float = 1.0,
) -> Tensor:
    import torch

    above = torch.sigmoid((s.unsqueeze(1) - s.unsqueeze(2)) / tau_rank) * other.unsqueeze(0) * other.unsqueeze(1)
    rank, count = 1 + above.sum(2), positive.sum(1)
    recall = [(torch.sigmoid((c - rank) / tau_k) * positive).sum(1).clamp(max=c) / count.clamp(max=c) for c in k]
    return 1 - torch.stack(recall).mean()


def dense_quantized_ap(s: Tensor, positive: Tensor, other: Tensor, num_bins: int = 20) -> Tensor:
    import torch

    # as released: a rising and a falling ramp for each bin, and the smaller of the two
    steps = (s.unsqueeze(1) + 1) * (num_bins - 1) / 2  # (B, 1, B)
    centre = torch.arange(num_bins - 1, -1, -1.0).view(-1, 1)
    ramps = torch.cat([centre + 1 - steps, steps - centre + 1], 1)  # (B, 2 M, B)
    kernel = torch.minimum(ramps[:, :num_bins], ramps[:, num_bins:]).clamp(min=0)
    h, h_positive = (kernel * other.unsqueeze(1)).sum(2), (kernel * positive.unsqueeze(1)).sum(2)
    precision = h_positive.cumsum(1) / (h.cumsum(1) + 1e-16)
    return 1 - ((precision * h_positive).sum(1) / positive.sum(1)).mean()


def dense_fast_ap(s: Tensor, positive: Tensor, other: Tensor) -> Tensor:
    return dense_quantized_ap(s, positive, other, num_bins=11)


def dense_asp(s: Tensor, positive: Tensor, other: Tensor, tau: float = 0.01) -> Tensor:
    import torch

    meaning = torch.linspace(0, 1, s.numel()).view_as(s).t().cos()

    def rank(x: Tensor) -> Tensor:
        above = torch.sigmoid((x.unsqueeze(1) - x.unsqueeze(2)) / tau)
        return 1 + (above * other.unsqueeze(0) * other.unsqueeze(1)).sum(2)

    a, b = rank(s), rank(meaning)
    return 1 - ((torch.minimum(a, b) / torch.maximum(a, b) * other).sum(1) / other.sum(1)).mean()


def ours_asp(labels: Tensor) -> Criterion:
    import torch

    from sodeep.losses.asp import asp_loss

    B = len(labels)
    other = ~torch.eye(B, dtype=torch.bool, device=labels.device)
    meaning = torch.linspace(0, 1, B * B, device=labels.device).view(B, B).t().cos()[other].view(B, B - 1)

    def loss(x: Tensor) -> Tensor:
        x = torch.nn.functional.normalize(x, dim=1)
        value: Tensor = asp_loss((x @ x.t())[other].view(B, B - 1), meaning)
        return value

    return loss


def dense_binomial(
    s: Tensor, positive: Tensor, other: Tensor, alpha: float = 2, beta: float = 50, base: float = 0.5
) -> Tensor:
    import torch

    negative = other - positive
    pull = torch.nn.functional.softplus(alpha * (base - s)) * positive
    push = torch.nn.functional.softplus(beta * (s - base)) * negative
    return (pull.sum(1) / positive.sum(1) + push.sum(1) / negative.sum(1)).mean()


LOSSES: dict[str, dict[str, Make]] = {
    "smooth-ap": {OURS: ours("SmoothAPLoss"), PML: pml("SmoothAPLoss"), DENSE: dense(dense_smooth_ap)},
    "quantized-ap": {OURS: ours("QuantizedAPLoss"), DENSE: dense(dense_quantized_ap)},
    "fast-ap": {OURS: ours("FastAPLoss"), PML: pml("FastAPLoss"), DENSE: dense(dense_fast_ap)},
    "sup-ap": {OURS: ours("SupAPLoss"), DENSE: dense(dense_sup_ap)},
    "recall-at-k": {OURS: ours("RecallAtKLoss"), DENSE: dense(dense_recall_at_k)},
    "asp": {OURS: ours_asp, DENSE: dense(dense_asp)},
    "contrastive": {OURS: ours("ContrastiveLoss"), PML: pml("ContrastiveLoss")},
    "triplet-all": {OURS: ours("TripletLoss", mining="all"), PML: pml("TripletMarginLoss")},
    "triplet-semihard": {
        OURS: ours("TripletLoss", mining="semihard"),
        PML: pml("TripletMarginLoss", ("TripletMarginMiner", {"type_of_triplets": "semihard"})),
    },
    "triplet-hard": {
        OURS: ours("TripletLoss", mining="hard"),
        PML: pml("TripletMarginLoss", ("BatchHardMiner", {})),
    },
    "n-pairs": {OURS: ours_n_pairs, PML: pml("NPairsLoss")},
    "nca": {OURS: ours("NCALoss"), PML: pml("NCALoss")},
    "lifted": {OURS: ours("LiftedStructureLoss"), PML: pml("LiftedStructureLoss")},
    "binomial-deviance": {OURS: ours("BinomialDevianceLoss"), DENSE: dense(dense_binomial)},
    "histogram": {OURS: ours("HistogramLoss", num_bins=100), PML: pml("HistogramLoss", n_bins=100)},
    "multi-similarity": {
        OURS: ours("MultiSimilarityLoss"),
        PML: pml("MultiSimilarityLoss", ("MultiSimilarityMiner", {"epsilon": 0.1})),
    },
    "multi-similarity-unmined": {
        OURS: ours("MultiSimilarityLoss", epsilon=None),
        PML: pml("MultiSimilarityLoss"),
    },
    "nt-xent": {OURS: ours("NTXentLoss", temperature=0.07), PML: pml("NTXentLoss", temperature=0.07)},
}

# ---------------------------------------------------------------------------------------------------------------------
# A method's process: one step for the memory, then as many timed steps as each line on stdin asks for


def peak_mb() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def forget_peak() -> None:
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def serve(loss: str, size: int, method: str) -> None:
    import torch

    torch.set_num_threads(1)

    def problem(n: int) -> tuple[Tensor, Criterion]:
        x = torch.randn(n, DIMENSIONS, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(n // PER_CLASS).repeat_interleave(PER_CLASS)
        return torch.nn.functional.normalize(x, dim=1).requires_grad_(), LOSSES[loss][method](labels)

    def step(x: Tensor, criterion: Criterion) -> float:
        start = time.process_time()
        x.grad = None
        criterion(x).backward()  # type: ignore[no-untyped-call]
        return (time.process_time() - start) * 1e3

    step(*problem(16))  # libraries load now, not in the measurement
    x, criterion = problem(size)
    forget_peak()
    before = peak_mb()
    first = step(x, criterion)
    print(json.dumps({"first": first, "mb": peak_mb() - before}), flush=True)
    for line in sys.stdin:
        print(json.dumps([step(x, criterion) for _ in range(int(line))]), flush=True)


class MethodProcess:
    """A process that runs `serve`, and what it has measured."""

    def __init__(self, loss: str, size: int, name: str, memory_gib: float, time_limit: float) -> None:
        core, limit = max(os.sched_getaffinity(0)), int(memory_gib * 2**30)

        def prepare() -> None:
            os.sched_setaffinity(0, {core})
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        self.name, self.time_limit = name, time_limit
        self.times: list[float] = []
        self.mb, self.failure = float("nan"), ""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--work", loss, str(size), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
            preexec_fn=prepare,
            text=True,
        )
        first = self.answer()
        if first:
            self.mb, self.times = first["mb"], [first["first"]]
            self.steps = max(1, int(50 / first["first"]))
            self.slow = first["first"] > 10_000  # not repeated: the first step is the only sample

    def answer(self) -> Any:
        """The next line of the process, or None if it died or took too long."""
        stdout = self.process.stdout
        assert stdout is not None  # it is a pipe
        ready, _, _ = select.select([stdout], [], [], self.time_limit)
        line = stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.process.kill()
        error = self.process.communicate()[1].strip().splitlines()
        memory = any(word in " ".join(error).lower() for word in ("memory", "alloc"))
        self.failure = (
            f"> {self.time_limit:.0f} s" if not ready else "out of memory" if memory else (error or ["?"])[-1]
        )
        return None

    def round(self) -> None:
        """Take a turn."""
        if self.failure or self.slow:
            return
        print(self.steps, file=self.process.stdin, flush=True)
        times = self.answer()
        if times:
            self.times.append(statistics.median(times))

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.communicate("")

    @property
    def ms(self) -> float:
        """A step's time: the median over the rounds."""
        return statistics.median(self.times[1:] or self.times)


def available(name: str) -> bool:
    return not name.startswith(PML) or importlib.util.find_spec("pytorch_metric_learning") is not None


def compare(loss: str, size: int, rounds: int, memory_gib: float, time_limit: float) -> list[str]:
    """The rows of one cell."""
    names = [name for name in LOSSES[loss] if available(name)]
    processes = [MethodProcess(loss, size, name, memory_gib, time_limit) for name in names]
    for _ in range(rounds):
        for process in processes:
            process.round()
    reference, rows = processes[0], []
    for c in processes:
        c.close()
        cells = [loss, str(size), c.name]
        if c.failure:
            cells += [c.failure, "", "", ""]
        elif c is reference or reference.failure:
            cells += [f"{c.ms:.2f}", "", f"{c.mb:.1f}", ""]
        else:
            times_smaller = c.mb / max(reference.mb, 0.1)
            cells += [f"{c.ms:.2f}", f"{c.ms / reference.ms:.1f}", f"{c.mb:.1f}", f"{times_smaller:.1f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


@click.command(help=__doc__.split("\n\n")[0], epilog="Methods and measurement: see the head of this file.")
@click.option("--loss", "losses", multiple=True, type=click.Choice(list(LOSSES)), help="A loss; repeatable. [all]")
@click.option("--size", "sizes", multiple=True, type=int, default=(64, 256, 512, 1024), show_default=True, help="Rows.")
@click.option("--rounds", default=7, show_default=True, help="Turns of each method; the median counts.")
@click.option("--memory-limit", default=10.0, show_default=True, help="Address space of a method, in GiB.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds for one answer of a method.")
@click.option("--work", nargs=3, hidden=True, help="Be one method: loss, size, name.")
def main(
    losses: tuple[str, ...],
    sizes: tuple[int, ...],
    rounds: int,
    memory_limit: float,
    time_limit: float,
    work: tuple[str, str, str] | None,
) -> None:
    if work:
        return serve(work[0], int(work[1]), work[2])
    versions = {name: importlib.metadata.version(name) for name in ("torch", PML) if available(name)}
    click.echo(f"{datetime.date.today()} · {cpu()}, one thread · Python {platform.python_version()} · {versions}\n")
    click.echo("| loss | rows | by | ms | x | extra MB | x |\n|---|---|---|---|---|---|---|")
    for loss in losses or LOSSES:
        for size in sizes:
            for row in compare(loss, size, rounds, memory_limit, time_limit):
                click.echo(row)


if __name__ == "__main__":
    main()
