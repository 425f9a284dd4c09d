#!/usr/bin/env python3
"""Quantised AP (AP_Q) beside exact AP: correlation over queries and error, by bins, list length and relevant items.

    scripts/compare_quantized_ap.py                          # a minute on one core

Lists are drawn: cosine similarities of the irrelevant items from a normal distribution around 0, those of the relevant
items around a centre of their query, itself drawn evenly from 0 to 0.6, both with a standard deviation of 0.15; so some
queries are hard and some are solved. And of real images: scikit-learn's digits of three classes, by the cosine of their
pixels, and of the embeddings of an encoder trained for 200 steps on four other classes. Of the items of a query's class
as many are kept in its list as the table says.
"""

from __future__ import annotations

import datetime
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch
from _machine import cpu
from count_informative_pairs import trained
from torch import Tensor

import sodeep
from sodeep.tasks.encoders import encode
from sodeep.tasks.retrieval import Retrieval

BINS = (5, 10, 20, 40, 100)
LENGTHS = (100, 400, 1600, 4096)
FEW, MANY, ALL = 5, 50, 10**6


def drawn(queries: int, n: int, relevant: int) -> tuple[Tensor, Tensor]:
    """Scores and relevance of generated queries, each with its own difficulty."""
    generator = torch.Generator().manual_seed(0)
    centre = 0.6 * torch.rand(queries, 1, generator=generator)
    scores = 0.15 * torch.randn(queries, n, generator=generator)
    scores[:, :relevant] += centre
    return scores.clamp(-1, 1), (torch.arange(n) < relevant).expand(queries, n)


def retrieved(x: Tensor, labels: Tensor, queries: int, relevant: int) -> tuple[Tensor, Tensor]:
    """The same of real vectors, each a query for the others; `relevant` are kept of its class, at random."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, labels = x[order], labels[order]
    scores, same = sodeep.pairwise_scores(x, labels)
    scores, same = scores[:queries], same[:queries]
    kept = same & (same.cumsum(-1) <= relevant) | ~same
    n = int(kept.sum(-1).amin())  # as many items for every query: the first that are kept
    items = (~kept).int().argsort(dim=-1, stable=True)[:, :n]
    return scores.gather(1, items), same.gather(1, items)


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Vectors and labels of the digits of unseen classes: pixels, and embeddings."""
    task = Retrieval.load(seed=0)
    ((_, model),) = trained(task, [200])
    test = task.index["test"]
    pixels = 255 - task.items[test].flatten(1).float()  # ink
    return {
        "digits, pixels": (pixels, task.labels[test]),
        "digits, trained": (encode(model, task.items, test), task.labels[test]),
    }


def agreement(scores: Tensor, relevant: Tensor, num_bins: int) -> tuple[float, float]:
    """Correlation of AP and AP_Q over the queries, and the mean of AP_Q - AP."""
    exact = sodeep.average_precision(scores, relevant)
    quantized = 1 - sodeep.quantized_ap_loss(scores, relevant, num_bins=num_bins, reduction="none")
    correlation = torch.corrcoef(torch.stack([exact, quantized]).double())[0, 1]
    return correlation.item(), (quantized - exact).mean().item()


@click.command()
@click.option("--queries", default=500, show_default=True)
@click.option("--length", "lengths", type=int, multiple=True, default=LENGTHS, show_default=True)
def main(queries: int, lengths: tuple[int, ...]) -> None:
    """Print the table as Markdown: correlation, and error AP_Q - AP."""
    click.echo(f"{queries} queries; torch {torch.__version__}, {cpu()}, {datetime.date.today()}\n")
    click.echo(f"| lists | items | relevant | mean AP | {' | '.join(f'{bins} bins' for bins in BINS)} |")
    click.echo(f"|---|---:|---:|---:|{'---|' * len(BINS)}")
    lists = {("drawn", relevant, n): drawn(queries, n, relevant) for relevant in (FEW, MANY) for n in lengths}
    for name, (x, labels) in digits().items():
        lists |= {(name, relevant, 0): retrieved(x, labels, queries, relevant) for relevant in (FEW, MANY, ALL)}
    for (name, _, _), (scores, relevant) in lists.items():
        cells = ["{:.3f}, {:+.3f}".format(*agreement(scores, relevant, bins)) for bins in BINS]
        counts = relevant.sum(-1)
        many = f"{int(counts.min())}" if counts.min() == counts.max() else f"{int(counts.min())}-{int(counts.max())}"
        ap = sodeep.average_precision(scores, relevant).mean()
        click.echo(f"| {name} | {scores.shape[1]:,} | {many} | {ap:.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
