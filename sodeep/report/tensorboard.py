"""A comparison as logs for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sodeep._core.checks import user_path
from sodeep._core.extras import needed
from sodeep.comparison.read import Comparison
from sodeep.comparison.runs import Run
from sodeep.datasets.types import Array
from sodeep.report.text import to_markdown

if TYPE_CHECKING:
    from sodeep.report.figures import ReportFigure


def write_tensorboard(comparison: Comparison, figures: Sequence[ReportFigure], log_dir: str | os.PathLike[str]) -> None:
    """Write curves, metrics, figures and tables for TensorBoard: ``tensorboard --logdir LOG_DIR``.

    A run of TensorBoard is a loss, ``<task>/<loss>``, so that it has one colour in every card: a card for each seed
    with the validation curve of the primary metric, first of all, and then the training losses (scalars); the settings
    chosen against the mean test metrics (hparams); of the first seed, precision and recall where there are several
    labels, and the embeddings with thumbnails (projector). The figures are in the run ``<task>``.

    Args:
        comparison: from `sodeep.comparison.read.read_comparison`.
        figures: from `draw_figures`.
        log_dir: folder to write to, made if it is not there; without a folder of the task's name in it, since
            TensorBoard would show old and new as one.

    Raises:
        ValueError: `log_dir` has a folder of the task's name.
        MissingPackageError: tensorboard is not installed.
    """
    with needed("tensorboard", "Writing for TensorBoard"):
        from torch.utils.tensorboard import SummaryWriter

    base = user_path(log_dir) / _folder_name(comparison.summary.task)
    if base.exists():
        raise ValueError(f"`log_dir` must not hold {base.name} yet, got '{log_dir}'. Choose another, or delete it.")
    for loss, runs in comparison.tested.items():
        if runs:
            with SummaryWriter(str(base / _folder_name(loss))) as writer:
                _log_loss(writer, comparison, loss, runs)
    with SummaryWriter(str(base)) as writer:
        for figure in figures:
            _log_figure(writer, figure)
        writer.add_text("report", to_markdown(comparison, [], [], None))


def _log_figure(writer: Any, figure: ReportFigure) -> None:
    """As add_figure, which would draw it once more."""
    from tensorboard.compat.proto.summary_pb2 import Summary as Event  # type: ignore[import-untyped]

    width, height = (int.from_bytes(figure.png[start : start + 4], "big") for start in (16, 20))  # of its header
    image = Event.Image(height=height, width=width, colorspace=4, encoded_image_string=figure.png)
    writer.file_writer.add_summary(Event(value=[Event.Value(tag=figure.title, image=image)]))


def _folder_name(name: str) -> str:
    """`name` as a folder: what file systems refuse is replaced."""
    return "".join(letter if letter.isalnum() or letter in "+-_. " else "_" for letter in name)


def _log_loss(writer: Any, comparison: Comparison, loss: str, runs: Sequence[Run]) -> None:
    from torch.utils.tensorboard.summary import hparams

    metric = comparison.primary_metric
    groups = {f"val/{metric}": f"1 {metric}, validation", "loss/train": "2 training loss"}  # in the order of the page
    for run in runs:
        for name, curve in run.curves.items():
            for step, value in curve if name in groups else ():
                writer.add_scalar(f"{groups[name]}/seed {run.seed}", value, step)
    cells = {metric: comparison.summary.cells.get((loss, metric)) for metric in comparison.summary.metrics}
    tested = {f"3 test, mean over the seeds/{metric}": cell.mean for metric, cell in cells.items() if cell is not None}
    for tag, value in tested.items():
        writer.add_scalar(tag, value, 0)
    # as add_hparams, which would start a run of its own beside this one
    settings = {"loss": loss, **runs[0].settings}
    plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in settings.items()}
    for summary in hparams(plain, tested):  # type: ignore[no-untyped-call]
        writer.file_writer.add_summary(summary)
    _log_arrays(writer, comparison, runs[0])


def _log_arrays(writer: Any, comparison: Comparison, run: Run) -> None:
    """Precision and recall, and embeddings, of a tested run that has them."""
    labelled = ("scores", "relevant", "known", "label_names")
    embedded = ("embeddings", "embedding_labels", "thumbnails")
    arrays = comparison.arrays(run, *labelled, *embedded)
    if all(name in arrays for name in labelled):
        *columns, labels = (arrays[name].T for name in labelled)
        for scores, relevant, known, label in zip(*columns, labels, strict=True):
            if relevant[known].any():
                # thresholds of the plugin lie in [0, 1]: ranks scaled to that give the same curve
                places = torch.as_tensor(scores[known].astype(np.float32)).argsort().argsort().float()
                writer.add_pr_curve(f"precision and recall/{label}", relevant[known], places / max(1, len(places) - 1))
    if all(name in arrays for name in embedded[:2]):
        writer.add_embedding(
            torch.as_tensor(arrays["embeddings"].astype(np.float32)),
            metadata=[" ".join(str(label).split()) for label in arrays["embedding_labels"]],
            label_img=_channels_first(arrays["thumbnails"]) if "thumbnails" in arrays else None,
            tag="embeddings",
        )


def _channels_first(images: Array) -> torch.Tensor:
    """uint8 (n, H, W[, 3]) as float (n, 3, S, S) in [0, 1]; padded with white to squares, which the projector needs."""
    x = torch.as_tensor(images)
    x = (x.unsqueeze(-1).expand(*x.shape, 3) if x.ndim == 3 else x).permute(0, 3, 1, 2).float() / 255
    side = max(x.shape[-2:])
    return torch.nn.functional.pad(x, (0, side - x.shape[-1], 0, side - x.shape[-2]), value=1.0)
