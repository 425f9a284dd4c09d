#!/usr/bin/env python3
"""How many queries, and how many whole batches, have no pair that a mining loss learns from, by the batch size.

    scripts/count_informative_pairs.py                                 # the digits inside scikit-learn; a minute
    scripts/count_informative_pairs.py --data DIR/omniglot_small       # characters; two minutes

An encoder is trained with Multi-Similarity for some steps. Then batches of each size are drawn from its training
classes, five items a class (more where there are too few classes), and embedded. A pair is informative when its weight
in the loss is not 0 (`sodeep.contributing_pairs` with threshold 0): when mining keeps it, and its hinge is active.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch
from _machine import cpu
from torch import Tensor, nn

import sodeep
from sodeep.tasks.encoders import encode
from sodeep.tasks.retrieval import Retrieval

PER_CLASS = 5
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "multi-similarity": sodeep.MultiSimilarityLoss(),
    "triplet-semihard": sodeep.TripletLoss(mining="semihard"),
    "triplet-hard": sodeep.TripletLoss(mining="hard"),
}


def trained(task: Retrieval, steps: list[int]) -> Iterator[tuple[int, nn.Module]]:
    """The encoder after each number of steps."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = (batch for epoch in range(10**6) for batch in task.batches(epoch))
    done = 0
    for until in sorted(steps):
        for _ in range(until - done):
            optimizer.zero_grad()
            task.forward(model, next(batches))["relevant"](LOSSES["multi-similarity"]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        done = until
        yield done, model


def draw(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """The items of a batch: equally many of each of its classes, as far as they have so many."""
    classes = torch.unique(labels)
    chosen = classes[torch.randperm(len(classes), generator=generator)[: size // PER_CLASS]]
    each = -(-size // len(chosen))
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([order[labels[order] == label][:each] for label in chosen])[:size]


def without(embeddings: Tensor, labels: Tensor, size: int, batches: int) -> dict[str, tuple[float, float]]:
    """Of each loss, the fraction of queries and of batches without an informative pair."""
    generator = torch.Generator().manual_seed(0)
    moved: dict[str, list[Tensor]] = {name: [] for name in LOSSES}
    for _ in range(batches):
        items = draw(labels, size, generator)
        scores, relevant = sodeep.pairwise_scores(embeddings[items], labels[items])
        for name, loss in LOSSES.items():
            moved[name].append(sodeep.contributing_pairs(loss, scores, relevant, threshold=0).moved)
    return {
        name: (1 - torch.cat(found).double().mean().item(), sum(not some.any() for some in found) / len(found))
        for name, found in moved.items()
    }


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="Of the retrieval task.")
@click.option("--steps", type=int, multiple=True, default=(0, 200, 1000), show_default=True, help="Of training.")
@click.option("--size", "sizes", type=int, multiple=True, default=(20, 40, 80, 160, 320, 640), show_default=True)
@click.option("--batches", default=200, show_default=True, help="Drawn of each size.")
def main(data: Path | None, steps: tuple[int, ...], sizes: tuple[int, ...], batches: int) -> None:
    """Print the table as Markdown."""
    task = Retrieval.load(data, seed=0)
    train = task.index["train"]
    labels = task.labels[train]
    click.echo(
        f"{task.data_name}: {len(train)} items of {len(torch.unique(labels))} classes to train on; "
        f"torch {torch.__version__}, {cpu()}, {datetime.date.today()}\n"
    )
    click.echo(f"| steps | mAP | batch | {' | '.join(f'{name}: queries | batches' for name in LOSSES)} |")
    click.echo(f"|---:|---:|---:|{'---:|' * 2 * len(LOSSES)}")
    for done, model in trained(task, [*steps]):
        quality = task.evaluate(model, "train").metrics["mAP"]
        embeddings = encode(model, task.items, train)
        for size in sizes:
            found = without(embeddings, labels, size, batches)
            cells = [f"{value:.3f}" for pair in found.values() for value in pair]
            click.echo(f"| {done:,} | {quality:.2f} | {size} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
