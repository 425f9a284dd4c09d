#!/usr/bin/env python3
"""Make the sorters that ship with the package: train, measure, and write pretrained/ with its README.

    scripts/make_pretrained.py set lstm                        # what was shipped: one core, 1 and 10 minutes
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
import platform
from pathlib import Path

import click
import torch

import sodeep
from sodeep import evaluation
from sodeep.training import state_path

RECIPES = {
    "set": sodeep.TrainConfig(sorter="set"),
    "lstm": sodeep.TrainConfig(
        sorter="lstm", seq_len=100, sorter_config={"head": "item"}, distributions=sodeep.SODEEP2019
    ),
    "cnn": sodeep.TrainConfig(sorter="cnn", seq_len=100, gradient_share=0.125, distributions=sodeep.SODEEP2019),
    "gru": sodeep.TrainConfig(sorter="gru", sorter_config={"head": "item"}, steps=40_000, batch_size=256, max_time=120),
}
"""Everything that is not said here is the default of `TrainConfig`."""

HALF = ("lstm", "cnn")
"""Stored in half precision (see `save_sorter`): files of half the size, with figures as good."""


def machine(device):
    """In words, for the card."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name()
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.processor()


def made(name, seconds, device):
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


def measure(name, path):
    """The figures of a file, for its card, beside those of the handcrafted ranks."""
    sorter = sodeep.load_sorter(path)
    n = sorter.seq_len or 100
    lengths = evaluation.LENGTHS if sorter.seq_len is None else (n,)
    contenders = {name: sorter, **evaluation.handcrafted()}
    results = [
        evaluation.evaluate(
            fn, label, lengths=[k for k in lengths if k <= 1000 or not label.startswith("sigmoid")], n=n
        )
        for label, fn in contenders.items()
    ]
    return {
        "weights": sum(p.numel() for p in sorter.parameters()),
        "bytes": path.stat().st_size,
        "n": n,
        "measured": f"one thread of {machine('cpu')}, torch {torch.__version__}, {datetime.date.today()}",
        "training": {k: v for k, v in sorter.trained.items() if k != "errors"},
        "results": [r.to_dict() for r in results],
    }


def readme(cards):
    """pretrained/README.md from the cards."""
    lines = [
        "# Sorters that ship with sodeep",
        "",
        '`sodeep.load_sorter("set")` loads them by name. Written by `scripts/make_pretrained.py`; every figure is one',
        "of `sodeep evaluate-sorter NAME`, on lists drawn from seed 1234.",
        "",
        "The commands make these files bit for bit only on the machines named, with as many threads and the same",
        "torch; elsewhere rounding differs, and so do the weights, while the figures come out alike. Times are of",
        "those machines.",
        "",
        "| file | sorter | length | weights | KiB | steps | seed | made by | in | on |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, card in cards.items():
        training = card["training"]
        low, high = training["lengths"]
        far = training.get("known_lengths", [low, high])[1]
        measured = f", as good to {far}" if far > high else ""
        length = f"{low}" if low == high else f"any (trained on {low} to {high}{measured})"
        threads = f"{card['threads']} thread{'s' * (card['threads'] > 1)}"
        lines.append(
            f"| {name} | {training['config']['sorter']} | {length} | {card['weights']:,} "
            f"| {card['bytes'] / 1024:.0f} | {training['steps']:,} | {training['seed']} | `{card['command']}` "
            f"| {card['seconds'] / 60:.0f} min | {card['machine']}, {threads}, torch {card['torch']}, {card['date']} |"
        )
    for name, card in cards.items():
        results = [evaluation.Evaluation.from_dict(r) for r in card["results"]]
        lines += [
            "",
            f"## {name}",
            "",
            f"Measured on {card['measured']}.",
            "",
            "```",
            evaluation.report(results, card["n"]),
            "```",
        ]
    return "\n".join(lines) + "\n"


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
def main(names, device, out, scale, max_time, threads, cards):
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
                steps=max(1, int(recipe.steps * scale)),
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
