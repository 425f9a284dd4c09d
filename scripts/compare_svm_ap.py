#!/usr/bin/env python3
"""The toy experiment of the SoDeep poster: a support vector machine for average precision beside losses, with times.

    scripts/compare_svm_ap.py                                # ten seeds; eight minutes on one core
    scripts/compare_svm_ap.py --seeds 2 --quick              # a trial
    scripts/compare_svm_ap.py --baseline svm-ap-planes --loss map:laplace

The support vector machine of Yue et al. 2007 is solved by cutting planes to a gap of 0.001: all training points are one
list, and a plane is the ranking that `sodeep.svm_ap_loss` finds. The same loss, and the others, are trained by Adam on
batches of 100 points for 20 epochs. All scorers are linear; one of five penalties, or of three learning rates, is
chosen on the validation split. Time is that of the process for one training with the setting chosen, the mean over
seeds. Each seed draws other points, so differences are paired and independent: the interval is that of Student's t.
"""

from __future__ import annotations

import datetime
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
import torch
from _machine import cpu
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import ttest_rel
from torch import Tensor, nn

import sodeep
from sodeep.comparison.losses_by_name import loss_by_name
from sodeep.tasks.toy import Toy

LOSSES = ("svm-ap", "map:laplace", "map:set", "bce", "hinge")
SVM = "svm-ap-planes"
PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0)
RATES = (3e-3, 1e-2, 3e-2)
EPOCHS = 20
Vector = NDArray[np.float64]


def cutting_planes(x: Tensor, relevant: Tensor, penalty: float, gap: float = 1e-3, most: int = 500) -> Vector:
    """Weights w of least ``|w|^2 / 2 + penalty * svm_ap_loss(x @ w, relevant)``, the loss within `gap`.

    The loss is convex and above each of its tangents, the planes: these bound it from below, and a new one is added
    where the best weights for those so far still violate it (Joachims, Finley, Yu 2009: one slack variable).
    """
    w = np.zeros(x.shape[1])
    slopes, offsets = np.empty((0, len(w))), np.empty(0)
    for planes in range(most):
        leaf = torch.from_numpy(w).requires_grad_()
        loss = sodeep.svm_ap_loss(x @ leaf, relevant)
        (slope,) = torch.autograd.grad(loss, leaf)
        bound = max(0.0, (slopes @ w + offsets).max(initial=0.0))
        if planes and loss.item() - bound <= gap:
            return w
        slopes = np.vstack([slopes, slope.numpy()])
        offsets = np.append(offsets, loss.item() - slope.numpy() @ w)
        w = -best_mixture(slopes, offsets, penalty) @ slopes
    raise click.ClickException(f"The support vector machine has a gap of more than {gap} after {most} planes.")


def best_mixture(slopes: Vector, offsets: Vector, penalty: float) -> Vector:
    """The multipliers a >= 0 of the planes, of sum at most `penalty`, of least ``|a @ slopes|^2 / 2 - a @ offsets``."""
    products = penalty * slopes @ slopes.T

    def value(a: Vector) -> tuple[float, Vector]:  # of the multipliers over the penalty
        by_a = products @ a
        return float(a @ by_a / 2 - a @ offsets), by_a - offsets

    start = np.zeros(len(offsets))
    start[-1] = 0.5
    found = minimize(
        value,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * len(offsets),
        constraints={"type": "ineq", "fun": lambda a: 1 - a.sum(), "jac": lambda a: -np.ones_like(a)},
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    multipliers: Vector = penalty * found.x
    return multipliers


def by_svm(task: Toy, penalty: float) -> nn.Module:
    """The linear scorer of the support vector machine."""
    model = task.model()
    train = task.index["train"]
    x = (task.inputs[train] - model.mean) * model.scale
    w = cutting_planes(x.double(), task.labels[train, 0], penalty)
    with torch.no_grad():
        model.linear.weight.copy_(torch.from_numpy(w))
    return model


def by_adam(task: Toy, loss: str, rate: float, epochs: int) -> nn.Module:
    """A linear scorer trained with a loss."""
    torch.manual_seed(task.seed)
    model, criterion = task.model(), loss_by_name(loss).build()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for epoch in range(epochs):
        for batch in task.batches(epoch):
            optimizer.zero_grad()
            task.forward(model, batch)["relevant"](criterion).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


class Result(NamedTuple):
    """Average precision of the setting that is best on the validation split, there and in the test, and its seconds."""

    val: float
    test: float
    seconds: float


def best_of(task: Toy, trainings: Iterable[Callable[[], nn.Module]]) -> Result:
    """The best training by the validation split."""
    results = []
    for training in trainings:
        start = time.process_time()
        model = training()
        seconds = time.process_time() - start
        results.append(
            Result(task.evaluate(model, "val").metrics["mAP"], task.evaluate(model, "test").metrics["mAP"], seconds)
        )
    return max(results)


def compared(seed: int, losses: Sequence[str], penalties: Sequence[float], epochs: int) -> dict[str, Result]:
    """All methods on the points of one seed."""
    task = Toy.load(seed=seed)
    found = {SVM: best_of(task, (functools.partial(by_svm, task, penalty) for penalty in penalties))}
    for loss in losses:
        found[loss] = best_of(task, (functools.partial(by_adam, task, loss, rate, epochs) for rate in RATES))
    linear = best_of(task, (functools.partial(task.fit, "svm", C=10.0**power) for power in range(-4, 1)))
    return found | {"linear SVM of scikit-learn": linear}


@click.command()
@click.option("--loss", "losses", multiple=True, default=LOSSES, show_default=True)
@click.option("--penalty", "penalties", type=float, multiple=True, default=PENALTIES, show_default=True)
@click.option("--baseline", default="hinge", show_default=True, help=f"A loss, or {SVM}.")
@click.option("--seeds", default=10, show_default=True)
@click.option("--quick", is_flag=True, help="One epoch.")
def main(losses: tuple[str, ...], penalties: tuple[float, ...], baseline: str, seeds: int, quick: bool) -> None:
    """Print the table as Markdown."""
    if baseline not in (SVM, *losses):
        raise click.BadParameter(f"{baseline} is not among {', '.join((SVM, *losses))}.", param_hint="--baseline")
    torch.set_num_threads(1)
    runs = [compared(seed, losses, penalties, epochs=1 if quick else EPOCHS) for seed in range(seeds)]
    click.echo(f"{seeds} seeds; one thread, torch {torch.__version__}, {cpu()}, {datetime.date.today()}\n")
    click.echo(f"| method | AP | AP - {baseline} | s |\n|---|---:|---:|---:|")
    for name in runs[0]:
        ap = np.array([run[name].test for run in runs])
        seconds = np.mean([run[name].seconds for run in runs])
        difference = "baseline"
        if name != baseline:
            base = np.array([run[baseline].test for run in runs])
            low, high = ttest_rel(ap, base).confidence_interval()
            difference = f"{(ap - base).mean():+.4f} [{low:+.4f}, {high:+.4f}]"
        click.echo(f"| {name} | {ap.mean():.4f} ± {ap.std(ddof=1):.4f} | {difference} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
