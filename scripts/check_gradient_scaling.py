#!/usr/bin/env python3
"""Does the order of losses depend on how `sodeep compare` scales gradients before AdamW? A table to see by.

    scripts/check_gradient_scaling.py                     # a quarter of an hour on one core
    scripts/check_gradient_scaling.py --seeds 1 --max-steps 20 --losses triplet-hard   # tries the script

AdamW divides by the size of past gradients, so that a constant factor changes nothing but the meaning of its epsilon.
Scaling every step to norm 1 is another matter: where few pairs are active, steps with a small gradient then count as
much as others. `compare` scales by one constant, the norm of the first gradient; this script trains with both.
"""

import statistics

import click
import torch

from sodeep._core.search import default_settings
from sodeep.comparison import train
from sodeep.comparison.losses_by_name import loss_by_name
from sodeep.tasks import TASKS

LOSSES = ("triplet-hard", "triplet", "contrastive", "multi-similarity", "nt-xent", "map:laplace")


def trained(name: str, loss: str, seed: int, max_steps: int, every_step: bool) -> tuple[float, int]:
    """The primary metric of the embedded set on its test split, with the default settings; and the steps taken."""
    task = train.load_task(name, None, seed, "cpu")
    spec = loss_by_name(loss)
    length = train.Length(max_steps, task.validate_every, 8)
    job = train.Job(name, None, loss, seed, default_settings(spec.all_ranges(TASKS[name])), "", length, "cpu", {}, None)
    torch.manual_seed(seed)
    training = train.Training(task, spec, job, scale_every_step=every_step)
    training.run()
    return task.measure(training.model, "test").metrics[task.primary_metric], training.steps


@click.command()
@click.option("--task", "name", type=click.Choice(list(TASKS)), default="retrieval", show_default=True)
@click.option("--losses", default=",".join(LOSSES), show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--max-steps", type=click.IntRange(1), default=1500, show_default=True)
def main(name: str, losses: str, seeds: int, max_steps: int) -> None:
    """Train with both, and print a table."""
    torch.set_num_threads(1)
    metric = TASKS[name].primary_metric
    click.echo(f"| loss | {metric}, one constant | {metric}, every step to norm 1 | steps |")
    click.echo("|---|---:|---:|---:|")
    for loss in losses.split(","):
        results = [[trained(name, loss, seed, max_steps, every) for seed in range(seeds)] for every in (False, True)]
        means = [f"{statistics.fmean(value for value, _ in some):.3f}" for some in results]
        steps = [f"{statistics.fmean(count for _, count in some):,.0f}" for some in results]
        click.echo(f"| {loss} | {' | '.join(means)} | {' and '.join(steps)} |")


if __name__ == "__main__":
    main()
