"""One training of a task with a loss: steps, validations, test."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import re
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sodeep._core.checks import describe
from sodeep._core.files import write_atomic
from sodeep.comparison.losses_by_name import LossSpec, loss_by_name
from sodeep.comparison.runs import Run
from sodeep.tasks import TASKS, Task

VALIDATIONS = 10
"""How often in a training the validation split is looked at, for the learning curves; only the last one selects."""


class TrainingError(Exception):
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
    """Whatever is raised inside becomes a `TrainingError` that says so of a step."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:  # of a loss, whoever wrote it: it is marked, and the others go on
        failure = {"step": step, "reason": f"{type(error).__name__}: {error}", "values": {}}
        if is_outside(error):
            failure["again"] = True
        raise TrainingError(step - 1, failure) from error


@dataclass(frozen=True, eq=False)
class Job:
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
        return Path(self.folder) / "weights" / f"{file_name(self.loss, self.seed, self.settings)}.safetensors"


def file_name(loss: str, seed: int, settings: Mapping[str, Any] | None = None) -> str:
    """A name that any file system takes; the checksum keeps names apart that look alike."""
    text = json.dumps([loss, seed, settings], sort_keys=True)
    return f"{re.sub(r'[^a-z0-9]+', '-', loss.lower()).strip('-')[:60]}-{seed}-{zlib.crc32(text.encode()):08x}"


@functools.lru_cache(maxsize=1)  # jobs come seed by seed
def load_task(name: str, data: str | None, seed: int, device: str, **options: Any) -> Task:
    """The task with its data, on `device`."""
    task = TASKS[name].load(data, seed, **options)
    task.to(torch.device(device))
    return task


def task_of(job: Job) -> Task:
    """The task of a job, on the data that the comparison began with."""
    task = load_task(job.task, job.data, job.seed, job.device, **job.options)
    if job.checksum not in (None, task.checksum):
        load_task.cache_clear()
        raise ValueError(
            f"`data` {job.data} must stay the same while losses are compared, got other data than at the start. "
            "Put back what was there and start again, or take another folder for the new data."
        )
    return task


def run_training(job: Job) -> Run:
    """Train with one setting, keep the weights, and judge on the validation split."""
    task = task_of(job)
    run = Run(
        job.task, task.data_name, job.loss, job.seed, job.settings, "tuning", "ok", device=device_name(job.device)
    )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        try:
            with _in_step(1):
                training = Training(task, loss_by_name(job.loss), job.settings, job.epochs, job.device)
            training.run()
        except TrainingError as stop:
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


def is_outside(error: Exception) -> bool:
    """Whether an error says more of the machine than of the loss it was raised in: another start may go well."""
    words = ("not enough memory", "allocate memory", "out of memory", "CUDA error")  # PyTorch has a RuntimeError
    return isinstance(error, (OSError, MemoryError)) or any(word in str(error) for word in words)


class Training:
    """One training, of a given number of steps; they are numbered from 1."""

    def __init__(self, task: Task, loss: LossSpec, settings: Mapping[str, Any], epochs: int, device: str) -> None:
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
            raise TrainingError(step, {"step": step, "reason": "the loss is not finite", "values": numbers})
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.weights if p.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])))
        if not math.isfinite(norm):  # before it reaches the weights
            numbers["gradient norm"] = norm
            raise TrainingError(step, {"step": step, "reason": "the gradient is not finite", "values": numbers})
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


def run_test(job: Job, chosen: Run) -> Run:
    """The weights of the setting chosen, on the test split."""
    task = task_of(job)
    try:
        metrics, details = _tested(job, task)
    except Exception as error:  # as in training: marked, and the others go on; the loss has no part in it
        failure = {"step": chosen.steps, "reason": f"in the test, {type(error).__name__}: {error}", "values": {}}
        failure["again"] = True
        return replace(chosen, stage="test", status="failed", metrics={}, failure=failure)
    name = f"details/{file_name(job.loss, job.seed)}.npz"
    write_atomic(Path(job.folder) / name, details)
    return replace(chosen, stage="test", metrics=metrics, details=name)


def failed_test(training: Run) -> Run:
    """No setting could be trained: so says the test, with the failure of the first."""
    return replace(training, stage="test", settings={})


def _tested(job: Job, task: Task) -> tuple[dict[str, float], bytes]:
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


def device_name(device: str) -> str:
    """The name of a GPU, or what else `device` is."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
