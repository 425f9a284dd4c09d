"""Losses side by side: the same task, features, batches, steps and tuning budget for each, several seeds, the spread.

For every seed and loss the four settings of the loss's grid (`sodeep.tasks.contenders`) are trained; the one that is
best on the validation split is tested, once, on the test split. A seed fixes the split (where the data have none), the
first weights, the batches and the dropout, the same for all losses: the losses of a seed differ in nothing else, and
their differences to a baseline are paired.

A `Run` is one training, or the test of the best of them. Runs are kept in a folder:

* ``comparison.json``: what is compared, and checksums of data and sorters, so that nothing else is mixed in.
* ``runs.jsonl``: one run a line (`Run.to_json`), appended when it is done. A line that was cut off is not read.
* ``details/*.npz``: arrays for pictures of the tested runs; `Run.details` names the file, relative to the folder.

Started again on the same folder, a comparison goes on with what is missing: what was not begun, what failed for reasons
outside its loss, and what was in damaged lines of ``runs.jsonl`` (these go to ``damaged.jsonl``). If the grid of a loss
has changed, its new settings are trained, and the best is tested if it is one of them. One process at a time writes to
a folder.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     runs = compare("memorability", ["mse", "spearman:laplace"], out=folder, seeds=2, epochs=1)
...     summary = summarise(runs)
>>> summary.losses, summary.baseline, summary.cells["mse", "Spearman"].n
(['mse', 'spearman:laplace'], 'mse', 2)
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import multiprocessing
import os
import re
import signal
import statistics
import threading
import time
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sodeep._arrays import read_npz
from sodeep._checks import check_at_least, check_choice, check_computes, describe, user_path
from sodeep._files import sole_writer, sweep, write_atomic
from sodeep._signals import stop_signals
from sodeep._version import __version__
from sodeep.sorters import Sorter
from sodeep.tasks import TASKS, Task
from sodeep.tasks.base import BATCH_SIZE, Array
from sodeep.tasks.contenders import FORMS, Contender, contender, default_losses

NOTHING = "\N{EN DASH}"
"""What a table shows where there is no value."""

VALIDATIONS = 10
"""How often in a training the validation split is looked at, for the learning curves; only the last one selects."""


@dataclass(frozen=True)
class Run:
    """One training with one setting ("tuning"), or the test of the chosen one ("test").

    Attributes:
        task: name in `sodeep.tasks.TASKS`.
        data: what the data are called.
        loss: as the user wrote it.
        seed: of split, first weights and batches.
        settings: the learning rate "lr" and the loss's own hyper-parameter, name -> value.
        stage: "tuning": `metrics` are of the validation split; "test": of the test split, with the settings that were
            best on the validation split; everything else is that of the training chosen.
        status: "ok" or "failed".
        metrics: name -> value, as in the task's `metrics`; empty if failed.
        curves: name -> [(step, value), ...]: "loss/train", the mean since the point before, and "val/<metric>" for
            each metric.
        steps: how many were taken.
        seconds_per_step: median over the steps, loss and encoder, forward and backward.
        peak_memory: bytes that a step allocates at its peak, above what model and data hold; None if not measured.
        device: where it ran.
        details: file of arrays for pictures, relative to the folder of the comparison; None if there is none.
        failure: of a failed run, {"step": int, "reason": str, "values": {name: value}}: what was not finite ("loss" or
            "gradient norm"), or which error was raised. With "again": True, what failed was not the loss, but memory,
            a file or the test: the next start of the comparison repeats it.
    """

    task: str
    data: str
    loss: str
    seed: int
    settings: dict[str, Any]
    stage: str
    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    steps: int = 0
    seconds_per_step: float | None = None
    peak_memory: int | None = None
    device: str = "cpu"
    details: str | None = None
    failure: dict[str, Any] | None = None

    def to_json(self) -> str:
        """One line of JSON. Values that are not finite, which JSON lacks, are strings such as "nan"."""
        return json.dumps(_plain(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Run:
        """The run of a line that `to_json` wrote, in this version or another: unknown fields are left out.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: `line` is none.
        """
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ValueError(f"`line` must be a run, got {describe(line)}.")
        values = {known.name: given[known.name] for known in fields(cls) if known.name in given}
        values["metrics"] = {name: float(value) for name, value in given.get("metrics", {}).items()}
        values["curves"] = {
            name: [(step, float(value)) for step, value in curve] for name, curve in given.get("curves", {}).items()
        }
        if (failure := given.get("failure")) is not None:
            numbers = {name: float(value) for name, value in failure.get("values", {}).items()}
            values["failure"] = {**failure, "values": numbers}
        run = cls(**values)
        wrong = [name for name, kind in _FIELDS.items() if not isinstance(getattr(run, name), kind)]
        known = run.task in TASKS and run.stage in ("tuning", "test") and run.status in ("ok", "failed")
        if wrong or not known or any(map(math.isinf, run.metrics.values())):
            raise ValueError(f"`line` must be a run, got {describe(line)}.")
        return run


_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task", "data", "loss", "stage", "status", "device"), str),
    **dict.fromkeys(("seed", "steps"), int),
    "settings": dict,
    "seconds_per_step": (int, float, type(None)),
    "peak_memory": (int, type(None)),
    "details": (str, type(None)),
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_runs(folder: str | os.PathLike[str]) -> list[Run]:
    """The runs kept in the folder of a comparison, in the order they were done; a cut-off line is left out.

    Raises:
        FileNotFoundError: no comparison there.
    """
    path = user_path(folder) / "runs.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"`folder` must hold the runs.jsonl of a comparison, got {folder} without one.")
    runs: dict[Any, Run] = {}
    for line in path.read_bytes().split(b"\n"):
        run = _parsed(line)
        if run is not None:
            runs[_key_of(run)] = run  # one that was repeated counts once
    return list(runs.values())


def _parsed(line: bytes) -> Run | None:
    """The run of a line; None: it is damaged."""
    try:
        return Run.from_json(line.decode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


# ---- one training ----------------------------------------------------------------------------------------------------


class _TrainingError(Exception):
    """A training that cannot go on.

    Attributes:
        steps: how many were taken.
        failure: as of `Run`.
    """

    def __init__(self, steps: int, failure: dict[str, Any]) -> None:
        super().__init__(steps, failure)
        self.steps = steps
        self.failure = failure


@contextlib.contextmanager
def _in_step(step: int) -> Iterator[None]:
    """Whatever is raised inside becomes a `_TrainingError` that says so of a step."""
    try:
        yield
    except _TrainingError:
        raise
    except Exception as error:  # of a loss, whoever wrote it: it is marked, and the others go on
        failure = {"step": step, "reason": f"{type(error).__name__}: {error}", "values": {}}
        if _is_outside(error):
            failure["again"] = True
        raise _TrainingError(step - 1, failure) from error


@dataclass(frozen=True, eq=False)
class _Job:
    """What a worker process is told: strings and numbers only."""

    task: str
    data: str | None
    loss: str
    seed: int
    settings: dict[str, Any]
    folder: str
    epochs: int
    device: str
    options: dict[str, Any]
    """Of `Task.load`."""
    checksum: int | None
    """Of the data at the start of the comparison; None: a set of the task's own, another one for each seed."""

    @property
    def weights(self) -> Path:
        """Where the trained encoder is kept until the test."""
        return Path(self.folder) / "weights" / f"{_file_name(self.loss, self.seed, self.settings)}.safetensors"


def _file_name(loss: str, seed: int, settings: Mapping[str, Any] | None = None) -> str:
    """A name that any file system takes; the checksum keeps names apart that look alike."""
    text = json.dumps([loss, seed, settings], sort_keys=True)
    return f"{re.sub(r'[^a-z0-9]+', '-', loss.lower()).strip('-')[:60]}-{seed}-{zlib.crc32(text.encode()):08x}"


@functools.lru_cache(maxsize=1)  # jobs come seed by seed
def _task(name: str, data: str | None, seed: int, device: str, **options: Any) -> Task:
    task = TASKS[name].load(data, seed, **options)
    task.to(torch.device(device))
    return task


def _task_of(job: _Job) -> Task:
    """The task of a job, on the data that the comparison began with."""
    task = _task(job.task, job.data, job.seed, job.device, **job.options)
    if job.checksum not in (None, task.checksum):
        _task.cache_clear()
        raise ValueError(
            f"`data` {job.data} must stay the same while losses are compared, got other data than at the start. "
            "Put back what was there and start again, or take another folder for the new data."
        )
    return task


def _train(job: _Job) -> Run:
    """Train with one setting, keep the weights, and judge on the validation split."""
    task = _task_of(job)
    run = Run(
        job.task, task.data_name, job.loss, job.seed, job.settings, "tuning", "ok", device=_device_name(job.device)
    )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        try:
            with _in_step(1):
                training = _Training(task, contender(job.loss), job.settings, job.epochs, job.device)
            training.run()
        except _TrainingError as stop:
            return replace(run, status="failed", failure=stop.failure, steps=stop.steps)
    state = {name: value.contiguous().cpu() for name, value in training.model.state_dict().items()}
    write_atomic(job.weights, safetensors.torch.save(state))
    return replace(
        run,
        metrics=training.found,
        curves=training.curves,
        steps=training.steps,
        seconds_per_step=statistics.median(training.seconds) if training.seconds else None,
        peak_memory=training.peak_memory,
    )


def _is_outside(error: Exception) -> bool:
    """Whether an error says more of the machine than of the loss it was raised in: another start may go well."""
    words = ("not enough memory", "allocate memory", "out of memory", "CUDA error")  # PyTorch has a RuntimeError
    return isinstance(error, (OSError, MemoryError)) or any(word in str(error) for word in words)


class _Training:
    """One training, of a given number of steps; they are numbered from 1."""

    def __init__(self, task: Task, loss: Contender, settings: Mapping[str, Any], epochs: int, device: str) -> None:
        self.task = task
        self.model = task.model().to(device)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # dropout is the same for all losses
            self.terms = loss.terms(settings, task.accepts[0])
        modules = [term.to(device) for _, _, term in self.terms if isinstance(term, nn.Module)]
        learned = [p for module in modules for p in module.parameters() if p.requires_grad]  # proxies, say
        self.weights = weights = [*self.model.parameters(), *learned]
        self.optimizer = torch.optim.AdamW(weights, settings["lr"], weight_decay=1e-4, eps=task.epsilon, fused=True)
        self.steps = epochs * sum(1 for _ in task.batches(0))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.epochs = epochs
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.found: dict[str, float] = {}
        self.seconds: list[float] = []
        self.peak_memory: int | None = None

    def _rate(self, step: int) -> float:
        """Rise over the first twentieth of the steps, then fall along a cosine to zero."""
        rise = max(1, self.steps // 20)
        return min((step + 1) / rise, (1 + math.cos(math.pi * step / self.steps)) / 2)

    def run(self) -> None:
        """All steps, with the validations between them.

        Raises:
            _TrainingError: something is not finite, or an error was raised; it says in which step.
        """
        batches = (batch for epoch in range(self.epochs) for batch in self.task.batches(epoch))
        validated = {round(self.steps * i / VALIDATIONS) for i in range(1, VALIDATIONS + 1)}
        values: list[float] = []
        for step in range(1, self.steps + 1):
            with _in_step(step):
                values.append(self._measured_step(step, next(batches)))
                if step in validated:
                    self._validate(step, sum(values) / len(values))
                    values = []

    def _measured_step(self, step: int, batch: Any) -> float:
        """A step, with its time; of one of the first, the peak of its memory, which would cost time."""
        if step == min(3, self.steps):  # the first steps allocate what stays
            with _peak_memory(self.weights[0].device) as peak:
                value = self._step(step, batch)
            self.peak_memory = peak()
        else:
            start = time.perf_counter()
            value = self._step(step, batch)
            self.seconds.append(time.perf_counter() - start)
        return value

    def _validate(self, step: int, loss: float) -> None:
        """Look at the validation split; `loss` is the mean since the last time."""
        self.found = self.task.evaluate(self.model, "val").metrics
        self.curves.setdefault("loss/train", []).append((step, loss))
        for name, value in self.found.items():
            self.curves.setdefault(f"val/{name}", []).append((step, value))

    def _step(self, step: int, batch: Any) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        apply = self.task.forward(self.model, batch)
        loss = torch.stack([weight * _scalar(apply[form](term)) for weight, form, term in self.terms]).sum()
        value = float(loss.detach())  # waits for the device
        numbers = {"loss": value, "lr": float(self.schedule.get_last_lr()[0])}
        if not math.isfinite(value):
            raise _TrainingError(step, {"step": step, "reason": "the loss is not finite", "values": numbers})
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.weights if p.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])))
        if not math.isfinite(norm):  # before it reaches the weights
            numbers["gradient norm"] = norm
            raise _TrainingError(step, {"step": step, "reason": "the gradient is not finite", "values": numbers})
        for gradient in gradients:  # so that epsilon means the same for every loss
            gradient.div_(max(norm, 1e-30))
        self.optimizer.step()
        self.schedule.step()
        return value


def _scalar(value: object) -> torch.Tensor:
    """What a loss returned, if it is one number."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ValueError(f"`loss` must return a tensor of one number, got {describe(value)}. Take its mean.")
    return value.reshape(())


@contextlib.contextmanager
def _peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """How many bytes are allocated at the peak of what is done inside, above what was before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
    else:
        with _LiveTensors() as live:
            yield lambda: live.peak


class _LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operators make inside and that are still alive.

    Memory that a kernel takes and gives back within one call is not seen, nor what numpy takes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {ref for ref, _ in self._storages((args, kwargs))}
        self.sizes = {ref: size for ref, size in self.sizes.items() if not ref.expired()}  # type: ignore[no-untyped-call]
        self.sizes.update((ref, size) for ref, size in self._storages(result) if ref not in given)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result

    @staticmethod
    def _storages(tree: Any) -> Iterator[tuple[StorageWeakRef, int]]:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                storage = leaf.untyped_storage()
                yield StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]


def _test(job: _Job, chosen: Run) -> Run:
    """The weights of the setting chosen, on the test split."""
    task = _task_of(job)
    try:
        metrics, details = _tested(job, task)
    except Exception as error:  # as in training: marked, and the others go on; the loss has no part in it
        failure = {"step": chosen.steps, "reason": f"in the test, {type(error).__name__}: {error}", "values": {}}
        failure["again"] = True
        return replace(chosen, stage="test", status="failed", metrics={}, failure=failure)
    name = f"details/{_file_name(job.loss, job.seed)}.npz"
    write_atomic(Path(job.folder) / name, details)
    return replace(chosen, stage="test", metrics=metrics, details=name)


def _failed_test(training: Run) -> Run:
    """No setting could be trained: so says the test, with the failure of the first."""
    return replace(training, stage="test", settings={})


def _tested(job: _Job, task: Task) -> tuple[dict[str, float], bytes]:
    """Metrics on the test split, and the file of arrays for pictures."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        model = task.model()
    try:
        model.load_state_dict(safetensors.torch.load_file(job.weights))
    except (safetensors.SafetensorError, RuntimeError):  # damaged: to be trained again
        job.weights.unlink(missing_ok=True)
        raise
    found = task.evaluate(model.to(job.device), "test", details=True)
    file = io.BytesIO()
    np.savez_compressed(file, **found.details)  # type: ignore[arg-type]  # of numpy before 2.2
    return found.metrics, file.getvalue()


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device


# ---- many of them ----------------------------------------------------------------------------------------------------


class ComparisonStopped(RuntimeError):  # noqa: N818  # as KeyboardInterrupt, it is not an error of the caller
    """A comparison that ended before it was done; what was done is kept.

    Attributes:
        signum: the signal that ended it, SIGINT (Ctrl-C), SIGTERM or SIGHUP; 0: a worker process died, or a file
            could not be read or written.
    """

    def __init__(self, message: str, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum


def compare(
    task: str,
    losses: Sequence[str] | None = None,
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    seeds: int | Sequence[int] = 3,
    epochs: int | None = None,
    batch_size: int = BATCH_SIZE,
    train_share: float = 1.0,
    semantic: str | None = None,
    text_features: str | None = None,
    target: str | None = None,
    text: str | None = None,
    predictors: Sequence[str] | None = None,
    jobs: int = 1,
    device: str = "auto",
    on_run: Callable[[Run, int, int], None] | None = None,
    on_start: Callable[[Plan], None] | None = None,
) -> list[Run]:
    """Train and test losses on a task, or go on with it.

    Args:
        task: name in `sodeep.tasks.TASKS`.
        losses: names of losses, as `sodeep.tasks.contenders` reads them. None: those of the task that the data have all
            for.
        out: folder of the comparison, made if need be. Runs found in it are not repeated; further losses and seeds may
            be added.
        data: path of the data, in a layout that the task reads. None: its small embedded set.
        seeds: how many, from 0; or which.
        epochs: passes over the training split, for every loss. None: those of the task.
        batch_size: items a step, for every loss.
        train_share: how much of the training split is trained on, above 0, up to 1; drawn with the seed, a smaller
            share is part of a larger one. Fewer steps, as an epoch is shorter.
        semantic: of the cross-modal task, which semantic scores "asp" and the like are trained on: "overlap" of codes,
            or "cider", "bleu" or "rouge-l" of captions. None: the first of these that the data have.
        text_features: what texts are turned into: "tf-idf", or "wordllama", word vectors of the package of that name
            (`sodeep.tasks.texts`). None: "tf-idf". The name of the data says which.
        target: of the memorability task on a csv table, the column of scores. None: "score".
        text: likewise, the column of texts. None: "text", if there is one.
        predictors: likewise, the columns of numbers to predict from. None: all the others.
        jobs: processes, of one thread each. 1 stays in this process, with one thread meanwhile. As they are spawned, a
            script that asks for more needs the usual ``if __name__ == "__main__":``.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        on_run: called with each run when it is done, with how many are done by then, and with how many there will be.
        on_start: called before the first training with a `Plan`: what is to be done, and how long it may take. For it
            a few steps of each loss are timed, which leaves the results as they are.

    Returns:
        All runs of these losses and seeds, those found in the folder included: four of the stage "tuning" for each
        loss and seed, and one of the stage "test". A loss that turns NaN, or raises an error, is marked as failed with
        the step and the values; the others go on. If all settings of a loss fail, so does its test. What failed for
        want of memory or for a file, and every test that failed, is repeated when the comparison is started again.

    Warns:
        UserWarning: lines of runs.jsonl are damaged; they are set aside, and what they held is done again.

    Raises:
        ValueError: an unknown task, loss or device, a loss that does not fit the task, data in another layout, a folder
            with another comparison.
        FileNotFoundError: no data there, or no such sorter file.
        FileExistsError: another process is at work in the folder.
        OSError: the folder cannot be written to.
        ComparisonStopped: Ctrl-C, SIGTERM or SIGHUP came, a worker process died, or a file could not be read or
            written (a full disk, say). What was done is kept.
    """
    check_choice(task, TASKS, "task")
    kind = TASKS[task]
    by_default = losses is None
    losses = list(dict.fromkeys(default_losses(kind) if losses is None else losses))
    if not losses:
        raise ValueError(f"`losses` must name at least one loss, got none. None stands for {', '.join(kind.losses)}.")
    contenders = {loss: contender(loss) for loss in losses}
    for loss, entry in contenders.items():
        _check_fits(loss, entry, kind)
    if not isinstance(seeds, Sequence):
        seeds = range(check_at_least(seeds, 1, "seeds"))
    seeds = [check_at_least(seed, 0, "seeds") for seed in seeds]
    epochs = check_at_least(kind.epochs if epochs is None else epochs, 1, "epochs")
    batch_size = check_at_least(batch_size, 4, "batch_size")
    jobs = check_at_least(jobs, 1, "jobs")
    place = _device(device)
    options = {"batch_size": batch_size, "train_share": train_share}
    options |= _options_of(
        kind, semantic=semantic, text_features=text_features, target=target, text=text, predictors=predictors
    )
    path = None if data is None else str(user_path(data))
    _task.cache_clear()  # by now the path may hold other data than in a comparison before
    loaded = _task(task, path, seeds[0], place, **options)  # wrong data end here, not in a worker
    for loss, entry in contenders.items():
        lacking = next(filter(None, map(loaded.lacks, sorted(entry.forms))), None)
        if lacking is not None and not by_default:
            raise ValueError(f"`loss` must fit the data, got {loss}. It needs {lacking}.")
        if lacking is not None:  # as of a sorter that is not shipped
            losses.remove(loss)
    folder = user_path(out)
    what = {"task": task, "data": loaded.data_name, "epochs": epochs, "batch_size": batch_size}
    checksums = {loss: _sorter_checksum(entry, kind) for loss, entry in contenders.items()}
    sorters = {loss: checksum for loss, checksum in checksums.items() if checksum is not None}
    of_data = None if path is None else loaded.checksum
    work = {
        (loss, seed): [
            _Job(task, path, loss, seed, settings, str(folder), epochs, place, options, of_data)
            for settings in contenders[loss].grid(kind.rates)
        ]
        for seed in seeds
        for loss in losses
    }
    with sole_comparison(folder):
        _claim(folder, what, losses, sorters, of_data)
        return _Schedule(folder, kind.headline, work, on_run).run(jobs, on_start)


def _options_of(kind: type[Task], **given: Any) -> dict[str, Any]:
    """Of the options of some tasks those that are given; the task must have them."""
    if isinstance(given["predictors"], str):
        raise ValueError(f"`predictors` must be a list of names, got {given['predictors']!r}. Put it in brackets.")
    given["predictors"] = tuple(given["predictors"] or ()) or None
    for name, value in given.items():
        if value is not None and name not in kind.options:
            raise ValueError(
                f"`{name}` must not be given for the {kind.name} task, which has no {_OPTIONS[name]}, got {value!r}."
            )
    return {name: value for name, value in given.items() if value is not None}


_OPTIONS = {
    "semantic": "semantic scores",
    "text_features": "texts",
    "target": "table of columns",
    "text": "table of columns",
    "predictors": "table of columns",
}
"""Options of some tasks -> what the others lack."""


def _check_fits(loss: str, entry: Contender, kind: type[Task]) -> None:
    wrong = entry.forms - {"", *kind.accepts}
    if wrong:
        calls = " or ".join(FORMS[form] for form in kind.accepts)
        raise ValueError(
            f"`loss` must fit the {kind.name} task, got {loss!r}, a loss of another kind. "
            f"It is called as {FORMS[min(wrong)]}, this task calls {calls}. "
            f"Those compared by default are {', '.join(kind.losses)}."
        )


def _device(device: str) -> str:
    """The name of a device that is there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_computes(device)
    return device


def _sorter_checksum(entry: Contender, kind: type[Task]) -> int | None:
    """A checksum of the weights of the sorters in a loss: a file of the same name may hold another sorter by now."""
    try:
        terms = [term for _, _, term in entry.terms(entry.grid(kind.rates)[0], kind.accepts[0])]
    except Exception:  # of a loss, whoever wrote it: its runs will tell
        return None
    modules = [module for term in terms if isinstance(term, nn.Module) for module in term.modules()]
    sorters = [module for module in modules if isinstance(module, Sorter)]
    checksum = 0
    for weight in (weight for sorter in sorters for weight in sorter.state_dict().values()):
        checksum = zlib.crc32(weight.cpu().numpy().tobytes(), checksum)
    return checksum if sorters else None


@contextlib.contextmanager
def sole_comparison(folder: Path) -> Iterator[None]:
    """Make the folder, and keep it for one comparison; what a killed one left behind is swept."""
    parts = [folder, folder / "details", folder / "weights"]
    lock = folder / ".lock"
    try:
        for part in parts:
            part.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise type(error)(
            error.errno, f"`out` must be a folder that can be written to: {error.strerror}", str(folder)
        ) from None
    refusal = f"`out` {folder} is being written by another comparison. Wait for it to end, or choose another folder."
    with sole_writer(lock, refusal):
        for part in parts:
            sweep(part)
        yield


def _claim(
    folder: Path, what: dict[str, Any], losses: Sequence[str], sorters: dict[str, int], data: int | None
) -> None:
    """Say what the comparison in the folder is, or check that it is this one, with the same sorters and data.

    `sorters` and `data` are checksums; those that an older comparison lacks are added, as are further losses.
    """

    def refuse(got: str) -> ValueError:
        return ValueError(f"`out` {folder} holds {got}. Choose another folder, or delete it.")

    path = folder / "comparison.json"
    found: dict[str, Any] = {**what, "sodeep": __version__, "torch": torch.__version__}
    if path.exists():
        try:
            found = dict(json.loads(path.read_bytes()))
        except (TypeError, ValueError):
            raise refuse("a comparison.json that cannot be read, which says what the runs are of") from None
    elif (folder / "runs.jsonl").exists():
        raise refuse("runs without the comparison.json that says what they are of")
    for name, value in what.items():
        if found.get(name) != value:
            raise refuse(f"a comparison with {name} {found.get(name)!r}, not {value!r}")
    if data is not None and found.setdefault("checksum", data) != data:
        raise refuse(f"a comparison on other data under the name {what['data']!r}")
    known = found.setdefault("sorters", {})
    for loss, checksum in sorters.items():
        if known.setdefault(loss, checksum) != checksum:
            raise refuse(f"runs of {loss} with another sorter under that name")
    found["losses"] = list(dict.fromkeys([*found.get("losses", []), *losses]))  # the order of the report
    write_atomic(path, json.dumps(found, indent=2).encode())


def _key(loss: str, seed: int, settings: Mapping[str, Any] | None) -> tuple[str, int, str]:
    """What makes a run: settings of a training, None for the test."""
    return loss, seed, json.dumps(settings, sort_keys=True)


def _key_of(run: Run) -> tuple[str, int, str]:
    return _key(run.loss, run.seed, run.settings if run.stage == "tuning" else None)


@dataclass(frozen=True)
class Plan:
    """What a comparison is about to do, and how long that may take.

    Attributes:
        trainings: loss -> how many are to be done; losses with nothing to do are left out.
        tests: loss -> how many are to be done.
        seconds_per_step: loss -> median over a few steps; None: it raised an error, as its runs will tell.
        seconds_per_training: loss -> estimate, with the validations in it; None as above.
        seconds_per_test: estimate, the same for every loss.
        jobs: processes.
    """

    trainings: dict[str, int]
    tests: dict[str, int]
    seconds_per_step: dict[str, float | None]
    seconds_per_training: dict[str, float | None]
    seconds_per_test: float
    jobs: int

    def seconds_of(self, loss: str, stage: str) -> float:
        """Estimate for a run of a loss, a "tuning" or a "test"."""
        return self.seconds_per_test if stage == "test" else self.seconds_per_training.get(loss) or 0.0

    @property
    def seconds(self) -> float:
        """Estimate for all of it."""
        runs = [(loss, "tuning", n) for loss, n in self.trainings.items()]
        runs += [(loss, "test", n) for loss, n in self.tests.items()]
        return sum(n * self.seconds_of(loss, stage) for loss, stage, n in runs) / self.jobs


TIMED_STEPS = 5
"""Of each loss, for a `Plan`; the first one, which allocates what stays, is not counted."""


class _Schedule:
    """The runs of a folder, and those still to be done."""

    def __init__(
        self,
        folder: Path,
        headline: str,
        work: Mapping[tuple[str, int], Sequence[_Job]],
        on_run: Callable[[Run, int, int], None] | None,
    ) -> None:
        self.path = folder / "runs.jsonl"
        self.headline = headline
        self.work = work
        self.on_run = on_run
        self._set_damaged_aside()
        found = read_runs(folder) if self.path.exists() else []
        self.done = {_key_of(run): run for run in found if self._counts(run)}
        self.wanted = [
            _key(loss, seed, settings)
            for (loss, seed), trainings in work.items()
            for settings in (*(job.settings for job in trainings), None)
        ]
        for loss, seed in work:
            self._remove_spent_weights(loss, seed)  # of a process that was killed after the test

    def _set_damaged_aside(self) -> None:
        """Leave whole lines only, so that what is appended stands in a line of its own."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        *lines, cut = content.split(b"\n")  # cut: a line that was cut off as it was written; or empty
        damaged = [line for line in lines if _parsed(line) is None and line.strip()]
        whole = [line for line in [*lines, cut] if _parsed(line) is not None]
        if damaged:
            aside = self.path.with_name("damaged.jsonl")
            before = aside.read_bytes() if aside.exists() else b""
            write_atomic(aside, before + b"".join(line + b"\n" for line in damaged))
            counted = "1 line is" if len(damaged) == 1 else f"{len(damaged)} lines are"
            warnings.warn(
                f"{counted} damaged in {self.path}: set aside in {aside.name}, and what is missing is done again.",
                stacklevel=4,
            )
        tidy = b"".join(line + b"\n" for line in whole)
        if tidy != content:
            write_atomic(self.path, tidy)

    def _counts(self, run: Run) -> bool:
        """Whether a run that was found need not be done again."""
        if run.status == "ok":
            return self.headline in run.metrics
        in_test = run.stage == "test" and bool(run.settings)  # older versions do not say "again"
        return not (in_test or (run.failure or {}).get("again"))

    def run(self, jobs: int, on_start: Callable[[Plan], None] | None = None) -> list[Run]:
        """Do what is missing."""
        received: list[int] = []
        try:
            with stop_signals(interrupt=True) as received:
                if on_start is not None:
                    on_start(self._plan(jobs))
                with contextlib.closing(self._finished(jobs)) as finished:
                    for run in finished:
                        if self.on_run is not None:
                            self.on_run(run, sum(key in self.done for key in self.wanted), len(self.wanted))
                        if received:
                            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ComparisonStopped(self._kept("Stopped"), next(iter(received), signal.SIGINT)) from None
        except BrokenProcessPool:
            reason = "A worker process died, perhaps for want of memory (try fewer jobs)"
            if received:  # the signal was for all processes
                raise ComparisonStopped(self._kept("Stopped"), received[0]) from None
            raise ComparisonStopped(self._kept(reason)) from None
        return [self.done[key] for key in self.wanted]

    def _finished(self, jobs: int) -> Generator[Run, None, None]:
        """Runs as they are done, kept already."""
        queue = deque(call for loss, seed in self.work for call in self._calls(loss, seed))
        try:
            with contextlib.closing(_results(queue, jobs)) as results:
                for run in results:
                    self._keep(run)
                    trainings = self.work[run.loss, run.seed]
                    if all(_key(job.loss, job.seed, job.settings) in self.done for job in trainings):
                        queue.extendleft(self._calls(run.loss, run.seed))
                    yield run
        except OSError as error:  # of a file of ours, or of the data
            told = f"{error.strerror}: {error.filename or self.path.parent}" if error.strerror else str(error)
            raise ComparisonStopped(self._kept(f"Stopped: {told.removesuffix('.')}")) from error

    def _calls(self, loss: str, seed: int) -> list[_Call]:
        """What can be done for a loss and seed now: its trainings, then the test of the best, then nothing."""
        trainings = {job: self.done.get(_key(loss, seed, job.settings)) for job in self.work[loss, seed]}
        missing = [job for job, run in trainings.items() if run is None]
        if missing:
            return [(_train, job) for job in missing]
        test = self.done.get(_key(loss, seed, None))
        ok = {job: run for job, run in trainings.items() if run is not None and run.status == "ok"}
        if not ok:
            return [] if test is not None and not test.settings else [(_failed_test, next(iter(trainings.values())))]
        best = max(ok, key=lambda job: _or_lowest(ok[job].metrics[self.headline]))  # the first of equals
        if test is not None and test.settings == best.settings:
            return []
        return [(_test, best, ok[best])] if best.weights.exists() else [(_train, best)]

    def _keep(self, run: Run) -> None:
        """Append the run."""
        with self.path.open("ab") as file:
            file.write(run.to_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[_key_of(run)] = run
        self._remove_spent_weights(run.loss, run.seed)

    def _remove_spent_weights(self, loss: str, seed: int) -> None:
        """Those of a loss and seed with nothing left to do; a test that failed will need them again."""
        test = self.done.get(_key(loss, seed, None))
        if test is not None and self._counts(test) and not self._calls(loss, seed):
            for job in self.work[loss, seed]:
                job.weights.unlink(missing_ok=True)

    def _kept(self, reason: str) -> str:
        kept = sum(key in self.done for key in self.wanted)
        return f"{reason}. {kept} of {len(self.wanted)} runs are kept in {self.path.parent}: start again to go on."

    def _plan(self, jobs: int) -> Plan:
        """What is to be done, with a few steps of each loss timed."""
        trainings: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        first: dict[str, _Job] = {}
        for loss, seed in self.work:
            calls = self._calls(loss, seed)
            jobs_to_do = [job for function, job, *_ in calls if function is _train]
            if calls:
                tests[loss] += 1
                trainings[loss] += len(jobs_to_do)
                if jobs_to_do:
                    first.setdefault(loss, jobs_to_do[0])
        steps: dict[str, float | None] = {}
        whole: dict[str, float | None] = {}
        validation = test = 0.0
        if tests:
            with _one_thread():
                validation, test = _times_of_evaluations(next(iter(self.work.values()))[0])
                for loss, job in first.items():
                    timed, count = _time_of_steps(job)
                    steps[loss] = timed
                    whole[loss] = None if timed is None else count * timed + min(count, VALIDATIONS) * validation
        return Plan(dict(trainings), dict(tests), steps, whole, test, jobs)


def _or_lowest(value: float) -> float:
    """NaN, which is neither above nor below any number, is the worst."""
    return -math.inf if math.isnan(value) else value


def _time_of_steps(job: _Job) -> tuple[float | None, int]:
    """Seconds of a step, None for a loss that raises an error; and how many steps a training has."""
    task = _task(job.task, job.data, job.seed, job.device, **job.options)
    seconds = []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        try:
            training = _Training(task, contender(job.loss), job.settings, job.epochs, job.device)
            for step, batch in zip(range(1, TIMED_STEPS + 1), task.batches(0), strict=False):
                start = time.perf_counter()
                training._step(step, batch)
                seconds.append(time.perf_counter() - start)
        except Exception:  # of a loss, whoever wrote it: its runs will tell
            return None, 0
    return statistics.median(seconds[1:] or seconds), training.steps


def _times_of_evaluations(job: _Job) -> tuple[float, float]:
    """Seconds on the validation split, and about how many on the test split, which is left alone until it counts."""
    task = _task(job.task, job.data, job.seed, job.device, **job.options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        model = task.model().to(job.device)
        start = time.perf_counter()
        task.evaluate(model, "val")
        seconds = time.perf_counter() - start
    return seconds, seconds * len(task.index["test"]) / len(task.index["val"])


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker: the nets are so small that threads wait more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_Call = tuple[Any, ...]  # a function and its arguments


def _results(queue: deque[_Call], jobs: int) -> Generator[Run, None, None]:
    """Results of the calls in the queue as they come; more may be queued meanwhile."""
    if jobs == 1:
        with _one_thread():
            while queue:
                function, *arguments = queue.popleft()
                yield function(*arguments)
        return
    spawn = multiprocessing.get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, spawn, _start_worker, (theirs,))
    running: set[Future[Run]] = set()
    try:
        while queue or running:
            while queue and len(running) <= jobs:  # one waits, so that no process does
                running.add(pool.submit(*queue.popleft()))
            ready, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                yield future.result()
    except BaseException:  # of a comparison that stops: what the workers do now would be lost
        ours.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        ours.close()


def _start_worker(parent: Connection) -> None:
    """In a worker process: Ctrl-C ends it without a word, the parent has one; so does the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    parent.poll(None)  # nothing is ever sent: until the other end is closed, by the parent or by its death
    os._exit(1)


# ---- statistics ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One metric of one loss, over the seeds.

    Attributes:
        n: seeds with a value.
        mean: over them.
        sd: standard deviation over them (n - 1); NaN for a single one.
        difference: mean over the seeds that baseline and loss share of loss minus baseline; None for the baseline
            itself, and without a shared seed.
        low: end of the 95% interval of the difference (Student's t on the paired differences); NaN for one seed.
        high: its other end.
        best: whether no loss has a better mean.
    """

    n: int
    mean: float
    sd: float
    difference: float | None
    low: float
    high: float
    best: bool

    @property
    def has_interval(self) -> bool:
        """Whether the difference has an interval: two seeds or more are shared."""
        return not math.isnan(self.low)

    @property
    def differs(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        return self.difference is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Summary:
    """What the tables show.

    Attributes:
        task: name.
        data: what the data are called.
        baseline: the loss that differences are taken to.
        metrics: name -> whether higher is better, most important first.
        losses: in the order they were asked for.
        seeds: all that occur.
        cells: (loss, metric) -> figures; a loss without a finished test has none.
        settings: loss -> how often each setting was chosen, most often first.
        seconds_per_step: loss -> median over its tested runs.
        peak_memory: loss -> median bytes a step, None if not measured.
        failed: trainings that failed, those of settings not chosen included, and tests that failed though a training
            had not.
        device: where the runs ran.
    """

    task: str
    data: str
    baseline: str
    metrics: dict[str, bool]
    losses: list[str]
    seeds: list[int]
    cells: dict[tuple[str, str], Cell]
    settings: dict[str, list[tuple[dict[str, Any], int]]]
    seconds_per_step: dict[str, float]
    peak_memory: dict[str, int | None]
    failed: list[Run]
    device: str


def summarise(runs: Sequence[Run], baseline: str | None = None) -> Summary:
    """Mean, spread and paired difference to a baseline of every loss and metric, of the tested runs.

    Args:
        runs: of one task, as `compare` returns them or `read_runs` reads them.
        baseline: a loss among them. None: the task's, or the first there is.

    Raises:
        ValueError: no run, runs of several tasks or data sets, a baseline that is not among them.
    """
    if not runs:
        raise ValueError("`runs` must hold at least one run, got none.")
    if kinds := {(run.task, run.data) for run in runs} - {(runs[0].task, runs[0].data)}:
        raise ValueError(
            f"`runs` must be of one task on one data set, got {(runs[0].task, runs[0].data)} and {min(kinds)}."
        )
    losses = list(dict.fromkeys(run.loss for run in runs))
    task = TASKS[runs[0].task]
    if baseline is None:
        baseline = task.baseline if task.baseline in losses else losses[0]
    check_choice(baseline, losses, "baseline")
    tested = [run for run in runs if run.stage == "test" and run.status == "ok"]
    metrics = {name: up for name, up in task.metrics.items() if any(name in run.metrics for run in tested)}
    values = {
        (loss, metric): {run.seed: run.metrics[metric] for run in tested if run.loss == loss and metric in run.metrics}
        for loss in losses
        for metric in metrics
    }
    means = {key: statistics.fmean(found.values()) for key, found in values.items() if found}
    best = {
        metric: (max if up else min)((mean for (_, name), mean in means.items() if name == metric), default=math.nan)
        for metric, up in metrics.items()
    }
    of = {loss: [run for run in tested if run.loss == loss] for loss in losses}
    memory = {loss: [run.peak_memory for run in own if run.peak_memory is not None] for loss, own in of.items()}
    counts = {loss: Counter(json.dumps(run.settings) for run in own) for loss, own in of.items()}
    return Summary(
        task=runs[0].task,
        data=runs[0].data,
        baseline=baseline,
        metrics=metrics,
        losses=losses,
        seeds=sorted({run.seed for run in runs}),
        cells={
            (loss, metric): _cell(found, values[baseline, metric], loss == baseline, best[metric])
            for (loss, metric), found in values.items()
            if found
        },
        settings={loss: [(json.loads(text), n) for text, n in count.most_common()] for loss, count in counts.items()},
        seconds_per_step={loss: _median(run.seconds_per_step for run in own) for loss, own in of.items() if own},
        peak_memory={loss: int(statistics.median(own)) if own else None for loss, own in memory.items()},
        failed=[run for run in runs if run.status == "failed" and (run.stage == "tuning" or run.settings)],
        device=runs[0].device,
    )


def _median(values: Iterable[float | None]) -> float:
    return statistics.median([value for value in values if value is not None] or [math.nan])


def _cell(own: Mapping[int, float], base: Mapping[int, float], is_baseline: bool, best: float) -> Cell:
    mean = statistics.fmean(own.values())
    sd = statistics.stdev(own.values()) if len(own) > 1 else math.nan
    pairs = [] if is_baseline else [own[seed] - base[seed] for seed in own if seed in base]
    difference = statistics.fmean(pairs) if pairs else None
    low = high = math.nan
    if difference is not None and len(pairs) > 1:
        from scipy.stats import t

        half = float(t.ppf(0.975, len(pairs) - 1)) * statistics.stdev(pairs) / math.sqrt(len(pairs))
        low, high = difference - half, difference + half
    return Cell(len(own), mean, sd, difference, low, high, mean == best)


# ---- a comparison, read ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A comparison as its folder holds it: what reports are made of.

    Attributes:
        folder: where it is.
        origin: what comparison.json says of it: epochs, batch size, losses in order, versions; empty without that file.
        runs: loss by loss in that order, then by seed, whatever the order in which they were done.
        summary: their statistics.
    """

    folder: Path
    origin: dict[str, Any]
    runs: list[Run]
    summary: Summary

    @property
    def headline(self) -> str:
        """The most important metric; "" where no run was finished."""
        return next(iter(self.summary.metrics), "")

    @functools.cached_property
    def tested(self) -> dict[str, list[Run]]:
        """Loss -> its tested runs, by seed; losses without one are left out. Their order is that of the colours."""
        found: dict[str, list[Run]] = {loss: [] for loss in self.summary.losses}
        for run in self.runs:
            if (run.stage, run.status) == ("test", "ok"):
                found[run.loss].append(run)
        return {loss: sorted(runs, key=lambda run: run.seed) for loss, runs in found.items() if runs}

    @property
    def ranked(self) -> list[str]:
        """Losses, the best mean of the headline metric first, those without a result last."""
        sign = -1 if self.summary.metrics.get(self.headline, True) else 1

        def place(loss: str) -> float:
            cell = self.summary.cells.get((loss, self.headline))
            return math.inf if cell is None or math.isnan(cell.mean) else sign * cell.mean

        return sorted(self.summary.losses, key=place)

    def curves(self, name: str) -> dict[str, list[list[tuple[int, float]]]]:
        """Loss -> the curve of each tested run; empty where none has it."""
        found = {loss: [run.curves[name] for run in runs if run.curves.get(name)] for loss, runs in self.tested.items()}
        return found if any(found.values()) else {}

    def arrays(self, run: Run, *names: str) -> dict[str, Array]:
        """Those of the named arrays that a run has, in one reading of its file.

        Raises:
            ValueError: the file is damaged; the message names it.
        """
        path = self.folder / run.details if run.details else None
        if path is None or not path.is_file():
            return {}
        try:
            return read_npz(path, names)
        except ValueError as error:
            raise ValueError(f"{path} must hold the arrays of a test: {error}. Delete it.") from None

    def details(self, *names: str, first: bool = False) -> Iterator[tuple[Run, dict[str, Array]]]:
        """The tested runs that have all of the named arrays, with these; or the `first` one of each loss."""
        for runs in self.tested.values():
            for run in runs:
                arrays = self.arrays(run, *names)
                if len(arrays) == len(names):
                    yield run, arrays
                    if first:
                        break


def read_comparison(folder: str | os.PathLike[str], baseline: str | None = None) -> Comparison:
    """The comparison in a folder, with its statistics.

    Args:
        folder: of a comparison, with runs.jsonl and details/.
        baseline: the loss that others are compared with. None: the task's, or the first there is.

    Raises:
        FileNotFoundError: there are no runs in `folder`.
        ValueError: none of the runs is of the baseline; they are of several tasks or data sets; or comparison.json
            is damaged.
    """
    runs = read_runs(folder)
    if not runs:
        raise FileNotFoundError(f"`folder` must hold runs of a comparison (runs.jsonl), got '{folder}' without any.")
    place = user_path(folder)
    origin = _origin(place)
    # not as they came: processes side by side, or a start after a failure, would make another report of the same runs
    losses = list(dict.fromkeys([*origin.get("losses", []), *(run.loss for run in runs)]))
    places = {loss: number for number, loss in enumerate(losses)}
    runs.sort(key=lambda run: (places[run.loss], run.seed, run.stage == "test", settings_text(run.settings)))
    return Comparison(place, origin, runs, summarise(runs, baseline))


def _origin(folder: Path) -> dict[str, Any]:
    path = folder / "comparison.json"
    try:
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must say of a comparison what it is of, got no JSON object ({error}).") from None


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings or values by name in a line, as tables and messages show them.

    >>> settings_text({"lr": 0.001, "form": "ap"})
    'lr 0.001, form ap'
    """
    parts = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items())
    return ", ".join(parts) or NOTHING
