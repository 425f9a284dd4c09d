"""Progress line and TensorBoard log of a training run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from sodeep._core.extras import is_missing, needed, remedy
from sodeep._core.progress import Progress
from sodeep.training.config import TrainConfig
from sodeep.training.run import Run, TrainResult


class Log:
    """The line of progress and the TensorBoard log of a run; either may be absent."""

    def __init__(self, run: Run, progress: bool) -> None:
        self.run = run
        self.writer: Any = None
        self.progress = Progress(f"training {run.config.sorter}", initial=run.progress()) if progress else None
        if run.log_dir is not None:
            with needed("tensorboard", "`log_dir`"):
                from torch.utils.tensorboard import SummaryWriter

            _await_next_second(Path(run.log_dir))
            # a killed run may have logged more than its saved state holds, or less
            again = bool(run.history) and run.history[-1]["step"] == run.step
            self.writer = SummaryWriter(run.log_dir, purge_step=run.step if again or not run.step else run.step + 1)
            if again:
                self._write()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.progress is not None:
            self.progress.close()
        if self.writer is not None:
            self.writer.close()

    def _status(self) -> str:
        run = self.run
        error = f", error {run.history[-1]['errors']['validation']:.4f}" if run.history else ""
        at_validation = bool(run.history) and run.history[-1]["step"] == run.step
        rate = run.history[-1]["lists_per_second"] if at_validation else run.rate()
        return f"step {run.step:,}, loss {float(run.train_loss):.4f}{error}, {rate:,.0f} lists/s"

    def step(self) -> None:
        """After every step."""
        if self.progress is not None:
            self.progress.update(self.run.progress(), self._status)

    def validation(self) -> None:
        """After every validation: one point of each curve, and a figure of the sorter's ranks."""
        if self.writer is not None:
            self._write()

    def _write(self) -> None:
        """The last validation, for TensorBoard."""
        row = self.run.history[-1]
        step = row["step"]
        self.writer.add_scalar("loss/train", row["loss"], step)
        self.writer.add_scalar("loss/validation", row["objective"], step)
        self.writer.add_scalar("lr", row["lr"], step)
        self.writer.add_scalar("gradient_norm", row["gradient_norm"], step)
        self.writer.add_scalar("throughput/sequences_per_s", row["lists_per_second"], step)
        for name, error in row["errors"].items():
            self.writer.add_scalar(_tag(name), error, step)
        self._add_figure(step)
        self.writer.flush()

    def _add_figure(self, step: int) -> None:
        try:
            from sodeep.rank_plot import plot_ranks
        except ModuleNotFoundError as error:
            if not is_missing(error, "matplotlib"):
                raise
            if len(self.run.history) == 1:
                self.writer.add_text("note", f"For the figure of the ranks: {remedy('matplotlib')}", step)
            return
        errors = self.run.history[-1]["errors"]
        worst = sorted((name for name in errors if name != "validation"), key=lambda name: -errors[name])[:3]
        lists = {name: self.run.validation[name][0][0].cpu() for name in worst}  # few, for the size of a thumbnail
        with torch.no_grad():
            ranks = {name: self.run.sorter(x.to(self.run.device)).cpu() for name, x in lists.items()}
        self.writer.add_figure("sorter", plot_ranks(lists, ranks), step)

    def finish(self, result: TrainResult) -> None:
        """What was configured, and the final errors, so that runs compare in TensorBoard's HPARAMS view.

        The final errors, those of the sorter that is saved, are the last points of the curves.
        """
        if self.writer is not None:
            default = TrainConfig(sorter=result.config.sorter, steps=result.config.steps).to_dict()
            config = {
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in result.config.to_dict().items()
                if name in ("sorter", "steps") or value != default[name]
            }
            metrics = {_tag(name): error for name, error in result.errors.items()}
            from torch.utils.tensorboard.summary import hparams

            # what add_hparams does in a file of its own, which a resumed run could not replace
            for summary in hparams(config, {_tag("validation"): 0.0}):  # type: ignore[no-untyped-call]
                self.writer.file_writer.add_summary(summary, result.steps)
            for name, error in metrics.items():
                self.writer.add_scalar(name, error, result.steps)
            self.writer.flush()


def _tag(error: str) -> str:
    """Of an error: the page opens on that of the validation lists, before those of each distribution."""
    return "error/validation" if error == "validation" else f"error by distribution/{error}"


def _await_next_second(log_dir: Path) -> None:
    """TensorBoard reads a folder's files in the order of the seconds in their names: not two of one second."""
    seconds = [file.name.split(".")[3] for file in log_dir.glob("events.out.tfevents.*")]
    if f"{int(time.time()):010d}" in seconds:
        time.sleep(1 - time.time() % 1)
