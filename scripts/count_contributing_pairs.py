#!/usr/bin/env python3
"""How many pairs of a query contribute to a loss, image to caption (i2t) and back (t2i), counted as in COCOS.

    scripts/count_contributing_pairs.py                          # embeddings with more and more noise
    scripts/count_contributing_pairs.py --data DIR/emoji         # and encoders trained on emoji with each loss

Batches are those of Bleeker & de Rijke 2022: 128 images with five captions each. Triplet and NT-Xent take the first
caption of each image, Smooth-AP all five. Counts of a query: by the rule of the paper (COCOS), one a loss; and by
`sodeep.contributing_pairs`, one definition for all: negatives whose weight is above a hundredth of the largest of the
query, a hundredth of the largest of the batch, or above 0.01 (of the loss of the query, by its cosine). "zero" are
queries without any, which are left out of the mean; by the first of the three there is none that has a gradient, by
construction. "As released" is the rule for Smooth-AP from caption to image as its code has it: the positives of caption
i are looked for in the columns 5 i to 5 i + 4, which do not exist beyond i = 25.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import torch
from torch import Tensor

import sodeep
from sodeep.tasks.cross_modal import CrossModal

IMAGES, CAPTIONS = 128, 5
MARGIN, TEMPERATURE, TAU, LEAST = 0.2, 0.1, 0.01, 0.01
LOSSES: dict[str, torch.nn.Module] = {
    "triplet-hard": sodeep.TripletLoss(MARGIN, mining="hard"),
    "nt-xent": sodeep.NTXentLoss(TEMPERATURE),
    "smooth-ap": sodeep.SmoothAPLoss(TAU),
}

SCALES: tuple[str | None, ...] = ("query", "batch", None)
"""What the threshold is relative to; None: absolute."""


def triplet_hard(scores: Tensor, relevant: Tensor) -> int:
    """Of a query: the hardest negative, if its hinge is above 0."""
    return int(MARGIN + scores[~relevant].max() - scores[relevant].min() > 0)


def nt_xent(scores: Tensor, relevant: Tensor) -> int:
    """Negatives with a probability above LEAST."""
    return int(((scores / TEMPERATURE).softmax(-1)[~relevant] > LEAST).sum())


def smooth_ap(scores: Tensor, relevant: Tensor) -> int:
    """Pairs of a positive i and another item j with G(1 - G) / R(i)^2 above LEAST, the slope of G without its 1/tau."""
    places = relevant.nonzero().squeeze(1)
    above = ((scores - scores[places, None]) / TAU).sigmoid()  # (P, N): how far j stands above i
    above[torch.arange(len(places)), places] = 0  # j is not i
    slope = above * (1 - above) / (1 + above.sum(-1, keepdim=True)) ** 2
    return int((slope > LEAST).sum())


def released(scores: Tensor) -> list[int]:
    """The rule for Smooth-AP from caption to image, with the columns of the released code."""
    columns = torch.zeros_like(scores, dtype=torch.bool)
    for caption, row in enumerate(columns):
        row[CAPTIONS * caption : CAPTIONS * (caption + 1)] = True
    return [smooth_ap(row, places) for row, places in zip(scores, columns, strict=True)]


def smooth_ap_per_positive(scores: Tensor, relevant: Tensor) -> float:
    """As they report it: from image to caption a fifth of the pairs."""
    return smooth_ap(scores, relevant) / int(relevant.sum())


RULES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "triplet-hard": triplet_hard,
    "nt-xent": nt_xent,
    "smooth-ap": smooth_ap_per_positive,
}


def noisy_embeddings(noise: float, dimensions: int = 64) -> tuple[Tensor, Tensor]:
    """Images (128, d), and captions (640, d) that are their images with noise of `noise` times their length."""
    generator = torch.Generator().manual_seed(0)
    images, offsets = (torch.randn(n, dimensions, generator=generator) for n in (IMAGES, IMAGES * CAPTIONS))
    return images, images.repeat_interleave(CAPTIONS, 0) + noise * offsets


def trained(data: Path, loss: torch.nn.Module, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches (images, captions) of an epoch of the training split, after training with a loss."""
    task = CrossModal.load(data, seed=0, batch_size=IMAGES)
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in task.batches(epoch):
            optimizer.zero_grad()
            task.forward(model, batch)["relevant"](loss).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.eval()
    for batch in task.batches(epochs):
        captions = [caption for image in batch[:, 0] for caption in task.captions_of[image][:CAPTIONS]]
        with torch.no_grad():
            yield model.images(task.items[batch[:, 0]]), model.captions(task.captions[captions])


def summary(counts: Sequence[float], batches: int) -> tuple[str, str]:
    """Mean of what is not zero, and how many of a batch are."""
    values = torch.as_tensor(counts, dtype=torch.float64)
    some = values[values > 0]
    return f"{some.mean():.2f}" if len(some) else "-", f"{(len(counts) - len(some)) / batches:.1f}"


def lines(embeddings: str, name: str, batches: Sequence[tuple[Tensor, Tensor]]) -> Iterator[str]:
    """A line of the table for each way."""
    for way in ("i2t", "t2i"):
        by_rule, by_release, hits = [], [], []
        by_weight: dict[str | None, list[float]] = {scale: [] for scale in SCALES}
        for images, captions in batches:
            every = captions if name == "smooth-ap" else captions[::CAPTIONS]
            scores = torch.nn.functional.normalize(images) @ torch.nn.functional.normalize(every).T
            relevant = torch.arange(IMAGES)[:, None] == torch.arange(len(every)) * IMAGES // len(every)
            scores, relevant = (scores, relevant) if way == "i2t" else (scores.T, relevant.T)
            by_rule += [RULES[name](*row) for row in zip(scores, relevant, strict=True)]
            for scale, counts in by_weight.items():
                least = LEAST / len(scores) if scale is None else LEAST  # the loss is a mean over the queries
                found = sodeep.contributing_pairs(LOSSES[name], scores, relevant, threshold=least, relative_to=scale)
                counts += found.negatives.tolist()
            hits += sodeep.hit_rate_at_k(scores, relevant, k=1).tolist()
            by_release += released(scores) if (name, way) == ("smooth-ap", "t2i") else []
        queries = len(by_rule) // len(batches)
        cells = [embeddings, name, way, f"{sum(hits) / len(hits):.2f}", str(queries)]
        for counts in (by_rule, *by_weight.values()):
            cells += summary(counts, len(batches))
        cells += summary(by_release, len(batches)) if by_release else ["", ""]
        yield "| " + " | ".join(cells) + " |"


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="Of the cross-modal task, such as emoji.")
@click.option("--epochs", default=20, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Markdown file to write to as well.")
def main(data: Path | None, epochs: int, out: Path | None) -> None:
    """Print the table."""
    embeddings = {f"noise {noise:g}": functools.partial(noisy_embeddings, noise) for noise in (0.5, 1.0, 2.0, 4.0)}
    options = f" --data $SODEEP_DATA/{data.name} --epochs {epochs}" if data else ""
    table = [
        "# Contributing pairs per query",
        "",
        f"    scripts/count_contributing_pairs.py{options}",
        "",
        *(line for line in __doc__.split("\n\n")[2].splitlines()),
        "",
        "| embeddings | loss | way | R@1 | queries | COCOS | zero | of the query | zero | of the batch | zero "
        "| absolute | zero | as released | zero |",
        f"|---|---|---{'|---:' * 12}|",
    ]
    for title, make in embeddings.items():
        for name in LOSSES:
            table += lines(title, name, [make()])
    if data is not None:
        for name, loss in LOSSES.items():
            table += lines(f"{data.name}, trained with it", name, list(trained(data, loss, epochs)))
    text = "\n".join(table) + "\n"
    click.echo(text)
    if out is not None:
        out.write_text(text)


if __name__ == "__main__":
    main()
