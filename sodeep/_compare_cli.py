"""The command ``sodeep compare``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sodeep._names import layouts
from sodeep._options import UserPath

if TYPE_CHECKING:
    from sodeep.compare import Run

MOST_JOBS = 8
"""Processes by default: each reads the data and holds a copy of its own."""

# sodeep.compare and the tasks are imported when the command runs, so that the other commands start fast


class _Compare(click.Command):
    """Its help ends with the layouts of data that each task reads."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for task, known in layouts().items():
            with formatter.section(f"--data of {task}"):
                formatter.write_dl(list(known.items()))


@click.command("compare", cls=_Compare)
@click.argument("task", metavar="TASK")
@click.option("--loss", "losses", multiple=True, metavar="NAME", help="Repeatable.  [default: those of the task]")
@click.option("--baseline", metavar="NAME", help="The loss that differences are taken to.  [default: that of the task]")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="How many seeds, from 0.  [default: 5; 10 on the embedded sets, which are small]",
)
@click.option(
    "--data",
    type=UserPath(path_type=Path),
    help="Folder or file of the data, in a layout named below.  [default: a small embedded set]",
)
@click.option(
    "--out", type=UserPath(path_type=Path, file_okay=False), help="Folder of the comparison.  [default: runs/TASK]"
)
@click.option("--epochs", type=click.IntRange(1), help="Passes over the training split.  [default: those of the task]")
@click.option("--batch-size", type=click.IntRange(4), default=100, show_default=True, help="Items a step.")
@click.option(
    "--train-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="How much of the training split is trained on.",
)
@click.option(
    "--semantic",
    metavar="SCORE",
    help="Semantic scores that asp is trained on (cross-modal): overlap of keywords, or cider, bleu or rouge-l of "
    "captions.  [default: the first that the data have]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help=f"Processes, of one thread each.  [default: on a CPU the cores, at most {MOST_JOBS}; on a GPU 1]",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, ...")
@click.option(
    "--tensorboard", is_flag=True, help="Write the report for TensorBoard too, to the folder tensorboard in --out."
)
@click.option("--quiet", is_flag=True, help="No progress, the table only.")
def compare(
    task: str,
    losses: tuple[str, ...],
    baseline: str | None,
    seeds: int | None,
    data: Path | None,
    out: Path | None,
    epochs: int | None,
    batch_size: int,
    train_share: float,
    semantic: str | None,
    jobs: int | None,
    device: str,
    tensorboard: bool,
    quiet: bool,
) -> None:
    """Compare losses on TASK: retrieval, cross-modal, memorability, multi-label or toy.

    Every loss gets the same features, batches and steps, and four settings, of which the best on the validation split
    is tested: a learning rate and one hyper-parameter of its own. Finished runs are kept in the folder --out: started
    again, the command goes on with what is missing, and more losses and seeds may be added.

    \b
    NAME is one of
      mse, l1, huber, spearman:RANK           for memorability; spearman: + 0.1 x L1 of the values
      bce, hinge                              for multi-label and toy
      map:RANK, recall:RANK, smooth-ap, quantized-ap, fast-ap, sup-ap, recall-at-k,
      multi-similarity, nt-xent, triplet...   for all but memorability
      asp                                     for cross-modal
      peer:torchsort, peer:smooth-ap...       of other packages, if installed
      my_module:MyLoss                        your own
      A+B                                     a sum, its weight tuned
    RANK is laplace, sigmoid, blackbox, straight-through, a shipped sorter,
    FILE.safetensors or my_module:my_rank.

    Example: sodeep compare memorability --loss mse --loss spearman:laplace --seeds 5
    """  # noqa: D301  # \b is click's mark for lines it must not wrap
    from sodeep import compare as comparing
    from sodeep.report import write_report, write_tensorboard
    from sodeep.tasks import TASKS
    from sodeep.tasks.contenders import default_losses

    out = out or Path("runs") / task
    names = list(losses)
    if baseline is not None and baseline not in names:
        # a baseline is compared too; without --loss, with the losses of the task
        names = [baseline, *(names or (default_losses(TASKS[task]) if task in TASKS else ()))]
    progress = None if quiet else _Progress()
    try:
        runs = comparing.compare(
            task,
            names or None,
            out=out,
            data=data,
            seeds=seeds or (5 if data else 10),
            epochs=epochs,
            batch_size=batch_size,
            train_share=train_share,
            semantic=semantic,
            jobs=jobs or _cores(device),
            device=device,
            on_run=progress,
        )
    except comparing.ComparisonStopped as stop:
        click.echo(f"\n{stop}", err=True)
        sys.exit(128 + stop.signum if stop.signum else 1)
    if progress is not None:
        progress.end()
    click.echo(comparing.text_table(comparing.summarise(runs, baseline)))
    written = write_report(out, baseline=baseline, command="sodeep " + shlex.join(sys.argv[1:]))
    click.echo(f"\nReport: {', '.join(str(file) for file in written.files.values())}")
    if tensorboard:
        board = out / "tensorboard"
        shutil.rmtree(board, ignore_errors=True)  # of fewer runs; TensorBoard would show old and new as one
        write_tensorboard(out, board, baseline=baseline)
        click.echo(f"TensorBoard: tensorboard --logdir {shlex.quote(str(board))}")
    for note in written.notes:
        click.echo(note)
    if not any(run.stage == "test" and run.status == "ok" for run in runs):
        raise click.ClickException("No loss could be trained and tested.")


def _cores(device: str) -> int:
    """Processes where the user does not say: the cores this process may use, one for a GPU, which is shared badly."""
    import torch

    if device != "cpu" and (device != "auto" or torch.cuda.is_available()):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS)


class _Progress:
    """A bar on stderr, and a line on stdout for each tested loss."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.bar = click.progressbar(length=1, file=sys.stderr, label="training")
        self.shown = 0

    def __call__(self, run: Run, done: int, total: int) -> None:
        if run.stage == "test" or run.status == "failed":
            self.end()
            click.echo(self._line(run))
        if self.terminal:
            self.bar.length = total
            self.bar.update(done - self.shown)
        self.shown = done

    def end(self) -> None:
        """Clear the bar's line."""
        if self.terminal:
            click.echo("\r\033[K", nl=False, err=True)

    def _line(self, run: Run) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in run.settings.items())
        if run.status == "failed":
            failure = run.failure or {}
            return f"{run.loss}, seed {run.seed} ({settings}): failed at step {failure['step']}: {failure['reason']}"
        name, value = next(iter(run.metrics.items()))
        return f"{run.loss}, seed {run.seed}: {name} {value:.3f} ({settings})"
