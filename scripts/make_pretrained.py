#!/usr/bin/env python3
"""Make the sorters that ship with the package: train, measure, and write pretrained/ with its README.

    scripts/make_pretrained.py set lstm                        # what was shipped: one core, 1 and 16 minutes
    scripts/make_pretrained.py cnn --threads 2                 # what was shipped: two cores, most of an hour
    scripts/make_pretrained.py --device cuda --max-time 120    # every recipe below, two minutes each on one GPU
    scripts/make_pretrained.py --cards                         # only store and measure again, rewrite the README

Each is resumable: run the same command again after an interruption. The recipes of what ships stop by steps, so that
the same machine makes the same file; that of gru, which does not ship, stops by the clock. --scale 0.01 tries the
whole script with a hundredth of the steps (into --out, not pretrained/).
"""

import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from _machine import cpu

import sodeep
from sodeep import evaluation
from sodeep.training.train import state_path

RECIPES = {
    "set": sodeep.TrainConfig(sorter="set"),
    "lstm": sodeep.TrainConfig(
        sorter="lstm", seq_len=100, sorter_config={"head": "item"}, lr=1e-5, distributions=sodeep.SODEEP2019
    ),
    "cnn": sodeep.TrainConfig(sorter="cnn", seq_len=100, gradient_fraction=0.125, distributions=sodeep.SODEEP2019),
    "gru": sodeep.TrainConfig(sorter="gru", sorter_config={"head": "item"}, steps=40_000, batch_size=256, max_time=120),
}
"""Everything that is not said here is the default of `TrainConfig`."""

HALF = ("lstm", "cnn")
"""Stored in half precision (see `save_sorter`): files of half the size, with figures as good."""


def machine(device: str) -> str:
    """In words, for the card."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else cpu()


def made(name: str, seconds: float, device: str) -> dict[str, Any]:
    """What made a file, for its card."""
    threads = torch.get_num_threads()
    return {
        "command": f"scripts/make_pretrained.py {name}" + (f" --threads {threads}" if threads > 1 else ""),
        "seconds": round(seconds),
        "machine": machine(device),
        "threads": threads,
        "torch": torch.__version__,
        "date": str(datetime.date.today()),
    }


def measure(name: str, path: Path) -> dict[str, Any]:
    """The figures of a file, for its card, beside those of the handcrafted ranks."""
    sorter = sodeep.load_sorter(path)
    n = sorter.seq_len or 100
    lengths = evaluation.LENGTHS if sorter.seq_len is None else (n,)
    results = evaluation.evaluate_all({name: sorter, **evaluation.handcrafted()}, lengths=lengths, n=n)
    return {
        "weights": sum(p.numel() for p in sorter.parameters()),
        "bytes": path.stat().st_size,
        "n": n,
        "measured": f"one thread of {cpu()}, torch {torch.__version__}, {datetime.date.today()}",
        "training": {k: v for k, v in sorter.trained.items() if k != "errors"},
        "results": [r.to_dict() for r in results],
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> str:
    """A Markdown table; `align` is of all columns but the first."""
    lines = (head, ["---", *[align] * (len(head) - 1)], *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def by_length(
    results: Iterable[evaluation.RankFunctionReport], lengths: Sequence[int], bold: str = ""
) -> Iterator[list[str]]:
    """Rows of the figures of rank functions: errors at these lengths, then what was measured at n = 100."""
    for r in results:
        errors = [f"{r.errors[n]:.4f}" if n in r.errors else "" for n in lengths]
        scores = [f"{score:.3f}" for score in r.optimization_score.values()]
        gradient = [f"{r.agreement:.3f}", f"{r.inversions:.2%}", f"{r.zero_gradient:.1%}", f"{r.bad_gradient:.1%}"]
        yield [f"{bold}{r.name}{bold}", *errors, *scores, *gradient, f"{r.latency_ms:.1f}"]


def by_distribution(results: Sequence[evaluation.RankFunctionReport]) -> Iterator[list[str]]:
    """Rows of the errors of rank functions on each distribution."""
    for distribution in results[0].by_distribution:
        star = " *" if distribution in evaluation.MULTI_SCALE else ""
        yield [distribution + star, *(f"{r.by_distribution[distribution]:.4f}" for r in results)]


def origin_row(name: str, card: Mapping[str, Any]) -> list[str]:
    """What made a file."""
    training = card["training"]
    low, high = training["lengths"]
    far = training.get("known_lengths", [low, high])[1]
    measured = f", as accurate to {far:,}" if far > high else ""
    length = f"{low}" if low == high else f"any (trained on {low} to {high:,}{measured})"
    threads = f"{card['threads']} thread{'s' * (card['threads'] > 1)}"
    size = f"{card['bytes'] / 1024:,.0f}"
    where = f"{card['machine']}, {threads}, torch {card['torch']}, {card['date']}"
    steps, minutes = f"{training['steps']:,}", f"{card['seconds'] / 60:.0f} min"
    return [
        name,
        length,
        f"{card['weights']:,}",
        size,
        steps,
        str(training["seed"]),
        f"`{card['command']}`",
        minutes,
        where,
    ]


def readme(cards: Mapping[str, dict[str, Any]]) -> str:
    """pretrained/README.md from the cards."""
    results = [[evaluation.RankFunctionReport.from_dict(r) for r in card["results"]] for card in cards.values()]
    sorters = [sorter for sorter, *_ in results]
    # every card has the same handcrafted rank functions; those measured at the most lengths are shown
    baselines = max((others for _, *others in results), key=lambda others: len(others[-1].errors))
    lengths = sorted({n for r in (*sorters, *baselines) for n in r.errors})
    comparable = [evaluation.comparable_rank(sorter, others) for sorter, *others in results]
    shown = {f"laplace std/{6.8:g}", *(r.name for r in comparable if r)}
    handcrafted = [r for r in baselines if r.name in shown]
    scores = [f"score {steps}" for steps in sorters[0].optimization_score]
    head = [*(f"n = {n:,}" for n in lengths), *scores, "cosine", "inverted", "zero", "not finite", "ms"]
    origin = ["file", "length", "weights", "KiB", "steps", "seed", "made by", "in", "on"]
    measured = "; ".join(dict.fromkeys(card["measured"] for card in cards.values()))
    return f"""# Sorters that ship with sodeep

`sodeep.load_sorter("set")` loads one by name. `scripts/make_pretrained.py` writes this page from the measurements in
`NAME.json`, which are those of `sodeep evaluate-sorter NAME`, on lists drawn with seed 1234. Which rank function to
take: [docs/rank_functions.md](../docs/rank_functions.md). Terms: [docs/glossary.md](../docs/glossary.md).

The commands make these files bit for bit only on the machines named, with as many threads and the same torch.
Elsewhere rounding differs, and so do the weights, while the measurements agree. Times are of those machines.

{table(origin, (origin_row(name, card) for name, card in cards.items()), "---")}

## Sorters

Measured on {measured}.

* **n = ...**: error, mean |rank error| / n, on the 2019 mixture at that length. The other columns are at n = 100.
* **score**: optimisation score, the Spearman correlation of free scores after that many steps of Adam.
* **cosine**: cosine similarity of the gradient with that of the smoothed exact loss.
* **inverted**: neighbours in the wrong order.
* **zero**, **not finite**: entries of the gradient.
* **ms**: forward and backward of 256 lists.

{table(["sorter", *head], by_length(sorters, lengths, "**"))}

## Handcrafted rank functions

`sigmoid_rank` and `laplace_rank` with tau in standard deviations of the list, from smooth to sharp; std/6.8 is the
default.

{table(["rank function", *head], by_length(baselines, lengths))}

## Errors by distribution

Mean |rank error| / n at n = 100; lists marked * are multi-scale. The handcrafted rank functions are the default, and
for each sorter the one of smallest error among those whose optimisation score is at least as high, if there is one.

{table(["distribution", *(r.name for r in (*sorters, *handcrafted))], by_distribution([*sorters, *handcrafted]))}
"""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(RECIPES)))
@click.option("--device", default="auto", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default="pretrained", show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of the steps: a small one tries the script.")
@click.option(
    "--max-time", type=float, help="Seconds for each, instead of the recipe's; the learning rate falls with the clock."
)
@click.option("--threads", default=1, show_default=True, help="On a CPU; other numbers make other sums.")
@click.option("--cards", is_flag=True, help="Train nothing; store and measure again.")
def main(
    names: tuple[str, ...],
    device: str,
    out: Path,
    scale: float,
    max_time: float | None,
    threads: int,
    cards: bool,
) -> None:
    """Train NAMES (default: all recipes), measure them, and rewrite the README of the folder."""
    torch.set_num_threads(threads)
    out.mkdir(exist_ok=True)
    for name in names or RECIPES:
        path, card = out / f"{name}.safetensors", out / f"{name}.json"
        if cards and not path.exists():
            continue
        if cards:
            known = json.loads(card.read_text())
            origin = {key: known[key] for key in made(name, 0, "cpu")}
        else:
            recipe = RECIPES[name]
            config = dataclasses.replace(
                recipe,
                steps=max(1, int(recipe.resolve().steps * scale)),
                device=device,
                max_time=max_time or recipe.max_time,
                validate_every=None,
            )
            unfinished = state_path(path).exists()
            result = sodeep.train_sorter(config, path, resume=unfinished, overwrite=not unfinished, progress=True)
            where = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
            origin = made(name, result.seconds, where)
        if name in HALF:
            sodeep.save_sorter(path, sodeep.load_sorter(path), dtype=torch.float16)
        torch.set_num_threads(1)  # latencies are of one thread
        card.write_text(json.dumps({**origin, **measure(name, path)}, indent=1) + "\n")
        torch.set_num_threads(threads)
    shown = {p.stem: json.loads(p.read_text()) for p in sorted(out.glob("*.json"))}
    (out / "README.md").write_text(readme(shown))
    click.echo((out / "README.md").read_text())


if __name__ == "__main__":
    main()
