"""The trainings and tests of a comparison: their order, estimated duration, and resuming them."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sodeep._core.files import write_atomic
from sodeep._core.signals import stop_signals
from sodeep._core.warn import warn
from sodeep.comparison.executors import Call, WorkersLostError, one_thread, results
from sodeep.comparison.losses_by_name import loss_by_name, stages_of
from sodeep.comparison.runs import Run, key, key_of, parse_run, read_runs
from sodeep.comparison.train import Done, Job, Length, Training, load_task, or_lowest
from sodeep.tasks import Task


@dataclass(frozen=True)
class Plan:
    """The runs that a comparison will do, and how long they may take.

    Attributes:
        trainings: loss -> how many are to be done; losses with nothing to do are left out.
        tests: loss -> how many are to be done.
        seconds_per_step: loss -> median over a few steps; None: it raised an error, which its runs will record.
        seconds_per_training: loss -> estimate, with the validations in it, for as many steps as it may take; None as
            above.
        seconds_per_test: estimate, the same for every loss.
        jobs: processes.
        seconds_per_fine_tuning: loss -> likewise, of the training before its test (`Task.fine_tuning`); losses without
            one are left out.
        least: the fraction of its steps that a training takes at least; 1: it takes all.
    """

    trainings: dict[str, int]
    tests: dict[str, int]
    seconds_per_step: dict[str, float | None]
    seconds_per_training: dict[str, float | None]
    seconds_per_test: float
    jobs: int
    seconds_per_fine_tuning: dict[str, float | None] = field(default_factory=dict)
    least: float = 1.0

    def seconds_of(self, loss: str, stage: str) -> float:
        """Estimate for a run of a loss, a "tuning" or a "test" with its fine-tuning."""
        if stage == "test":
            return self.seconds_per_test + (self.seconds_per_fine_tuning.get(loss) or 0.0)
        return self.seconds_per_training.get(loss) or 0.0

    @property
    def seconds(self) -> float:
        """Estimate for all of it, if every training takes all its steps."""
        runs = [(loss, "tuning", n) for loss, n in self.trainings.items()]
        runs += [(loss, "test", n) for loss, n in self.tests.items()]
        return sum(n * self.seconds_of(loss, stage) for loss, stage, n in runs) / self.jobs

    @property
    def least_seconds(self) -> float:
        """Estimate for all of it, if every training is flat as soon as it can be."""
        tests = sum(self.tests.values()) * self.seconds_per_test / self.jobs
        return tests + self.least * (self.seconds - tests)


TIMED_STEPS = 5
"""Of each loss, for a `Plan`; the first one, which allocates what stays, is not counted."""

TIMED_FINE_TUNING = 2
"""Likewise, of a fine-tuning, whose steps are long."""


class Schedule:
    """The finished runs in a folder, and those still to do."""

    def __init__(
        self,
        folder: Path,
        primary_metric: str,
        work: Mapping[tuple[str, int], Sequence[Job]],
        search_seeds: Sequence[int] | None,
        on_run: Callable[[Run, int, int], None] | None,
    ) -> None:
        """`work`: loss and seed -> a training for each setting; `search_seeds`: as of `compare`, None for each seed."""
        self.path = folder / "runs.jsonl"
        self.primary_metric = primary_metric
        self.work = work
        self.search_seeds = search_seeds
        self.on_run = on_run
        self._queued: set[tuple[str, int, str]] = set()
        self._set_damaged_aside()
        saved = read_runs(folder) if self.path.exists() else []
        self.done = {key_of(run): run for run in saved if self._counts(run)}
        for loss, seed in work:
            self._remove_spent_weights(loss, seed)  # of a process that was killed after the test

    def _set_damaged_aside(self) -> None:
        """Leave whole lines only, so that what is appended stands in a line of its own."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        *lines, cut = content.split(b"\n")  # cut: a line that was cut off as it was written; or empty
        damaged = [line for line in lines if parse_run(line) is None and line.strip()]
        whole = [line for line in [*lines, cut] if parse_run(line) is not None]
        if damaged:
            aside = self.path.with_name("damaged.jsonl")
            before = aside.read_bytes() if aside.exists() else b""
            write_atomic(aside, before + b"".join(line + b"\n" for line in damaged))
            counted = "1 line is" if len(damaged) == 1 else f"{len(damaged)} lines are"
            warn(
                f"{counted} damaged in {self.path}: set aside in {aside.name}, and what is missing is done again.",
            )
        tidy = b"".join(line + b"\n" for line in whole)
        if tidy != content:
            write_atomic(self.path, tidy)

    def _counts(self, run: Run) -> bool:
        """Whether a saved run need not be repeated."""
        if run.status == "ok":
            return self.primary_metric in run.metrics
        in_test = run.stage == "test" and bool(run.settings)  # older versions do not say "again"
        return not (in_test or (run.failure or {}).get("again"))

    @property
    def total(self) -> int:
        """How many runs there will be: trainings, of seeds that are not searched one, and a test each."""
        return sum(1 + (len(jobs) if seed in self._searched(seed) else 1) for (_, seed), jobs in self.work.items())

    @property
    def finished(self) -> int:
        """How many of them are done."""
        return sum(len(self._done_of(loss, seed)) for loss, seed in self.work)

    def _done_of(self, loss: str, seed: int) -> list[Run]:
        """Those of a loss and seed, the trainings in the order of the settings, then the test."""
        searched = [job.settings for job in self.work[loss, seed]]
        settings = searched if seed in self._searched(seed) else [self._chosen(loss, seed)]
        keys = [key(loss, seed, some) for some in settings if some is not None]
        return [self.done[name] for name in [*keys, key(loss, seed, None)] if name in self.done]

    def _searched(self, seed: int) -> Sequence[int]:
        """The seeds whose validation chooses the settings for a seed."""
        return [seed] if self.search_seeds is None else self.search_seeds

    def run(
        self, jobs: int | None, on_start: Callable[[Plan], None] | None = None, executor: Executor | None = None
    ) -> list[Run]:
        """Do what is missing."""
        received: list[int] = []
        try:
            with stop_signals(interrupt=True) as received:
                if on_start is not None:
                    on_start(self._plan(jobs or 1))
                with contextlib.closing(self._finished(jobs, executor)) as finished:
                    for run in finished:
                        if self.on_run is not None:
                            self.on_run(run, self.finished, self.total)
                        if received:
                            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ComparisonStopped(self._kept("Stopped"), next(iter(received), signal.SIGINT)) from None
        except WorkersLostError as lost:
            if received:  # the signal was for all processes
                raise ComparisonStopped(self._kept("Stopped"), received[0]) from None
            raise ComparisonStopped(self._kept(str(lost))) from lost
        return [run for loss, seed in self.work for run in self._done_of(loss, seed)]

    def _finished(self, jobs: int | None, executor: Executor | None) -> Generator[Run, None, None]:
        """Runs as they are done, kept already."""
        queue = deque(call for loss, seed in self.work for call in self._new_calls(loss, seed))
        try:
            with contextlib.closing(results(queue, jobs, executor)) as finished:
                for call, done in finished:
                    run = done.run
                    self._keep(call.job, done)
                    for loss, seed in [(run.loss, run.seed), *self._waiting_for(run.loss, run.seed)]:
                        queue.extendleft(self._new_calls(loss, seed))
                    yield run
        except OSError as error:  # of a file of ours, or of the data
            cause = f"{error.strerror}: {error.filename or self.path.parent}" if error.strerror else str(error)
            raise ComparisonStopped(self._kept(f"Stopped: {cause.removesuffix('.')}")) from error

    def _new_calls(self, loss: str, seed: int) -> list[Call]:
        """Those of `_calls` that were not in the queue before."""
        calls = []
        for call in self._calls(loss, seed):
            job, stage = call.job, call.function().__name__
            name = (stage, seed, f"{job.loss} {job.settings} {job.start}")
            if name not in self._queued:
                self._queued.add(name)
                calls.append(call)
        return calls

    def _waiting_for(self, loss: str, seed: int) -> list[tuple[str, int]]:
        """What a run of a loss and seed may set free: its schedules, and the seeds that it searches for."""
        schedules = [(later, same) for later, same in self.work if same == seed and stages_of(later)[0] == loss]
        seeds = [(same, other) for same, other in self.work if same == loss and other != seed]
        return [*schedules, *(seeds if self.search_seeds is not None and seed in self.search_seeds else ())]

    def _calls(self, loss: str, seed: int) -> list[Call]:
        """What can be done for a loss and seed now: its trainings, then the test of the best, then nothing."""
        test = self.done.get(key(loss, seed, None))
        failed = test is not None and not test.settings
        start, _ = stages_of(loss)
        before = self.done.get(key(start, seed, None)) if start else None
        if before is not None and before.status == "failed":
            return [] if failed else [Call(self.work[loss, seed][0], before)]
        jobs = self._jobs(loss, seed)
        if not jobs:  # the encoder to start from is not there yet
            return []
        if seed in self._searched(seed):
            missing = [job for job in jobs if self._run_of(job) is None]
            if missing:
                return self._trainings(missing)
        if not self._is_searched(loss, seed):
            return []
        chosen = self._chosen(loss, seed)
        if chosen is None:
            first = self.done[key(loss, self._searched(seed)[0], jobs[0].settings)]
            return [] if failed else [Call(jobs[0], first)]
        job = next(job for job in jobs if job.settings == chosen)
        run = self._run_of(job)
        if run is None:
            return self._trainings([job])
        if run.status != "ok":  # with settings that were chosen by other seeds
            return [] if failed else [Call(job, run)]
        if test is not None and (test.settings, test.start) == (job.settings, job.start):
            is_kept = test.status != "ok" or not job.save_encoders or job.encoder.exists()
            if is_kept:  # else encoders are asked for after the test: it is done again
                return []
        return [Call(job, run)] if job.weights.exists() else self._trainings([job])

    def _trainings(self, jobs: Sequence[Job]) -> list[Call]:
        """The trainings; before those of a schedule, that of the encoder to start from, if its weights are gone."""
        start, _ = stages_of(jobs[0].loss)
        for before in self._jobs(start, jobs[0].seed) if start else ():
            if before.settings == jobs[0].start and not before.weights.exists():
                return self._trainings([before])
        return [Call(job) for job in jobs]

    def _jobs(self, loss: str, seed: int) -> list[Job]:
        """The trainings of a loss and seed; of a schedule, with the encoder to start from, none while it is missing."""
        jobs = list(self.work[loss, seed])
        start, _ = stages_of(loss)
        if not start:
            return jobs
        if not self._is_tested(start, seed):
            return []
        chosen = self._chosen(start, seed)
        before = [job for job in self._jobs(start, seed) if job.settings == chosen]
        return [replace(job, init=str(origin.weights), start=origin.settings) for origin in before for job in jobs]

    def _run_of(self, job: Job) -> Run | None:
        """The finished training; one that started from another encoder does not count."""
        run = self.done.get(key(job.loss, job.seed, job.settings))
        return run if run is not None and run.start == job.start else None

    def _is_searched(self, loss: str, seed: int) -> bool:
        """Whether the trainings that choose the settings are done."""
        jobs = [self._jobs(loss, other) for other in self._searched(seed)]
        return all(jobs) and all(self._run_of(job) is not None for some in jobs for job in some)

    def _chosen(self, loss: str, seed: int) -> dict[str, Any] | None:
        """The settings of the best mean validation over the seeds that are searched; None: none could be trained."""
        values = []
        for job in self.work[loss, seed]:
            runs = [self.done.get(key(loss, other, job.settings)) for other in self._searched(seed)]
            ok = [run.metrics[self.primary_metric] for run in runs if run is not None and run.status == "ok"]
            if len(ok) == len(runs):
                values.append((sum(map(or_lowest, ok)), job.settings))
        return max(values, key=lambda pair: pair[0])[1] if values else None  # the first of equals

    def _keep(self, job: Job, done: Done) -> None:
        """Write the files of a run, then append it."""
        run = done.run
        if done.weights is not None:
            write_atomic(job.weights if run.stage == "tuning" else job.encoder, done.weights)
        if done.details is not None and run.details is not None:
            write_atomic(self.path.parent / run.details, done.details)
        if done.damaged:
            job.weights.unlink(missing_ok=True)
        with self.path.open("ab") as file:
            file.write(run.to_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[key_of(run)] = run
        self._remove_spent_weights(run.loss, run.seed)

    def _remove_spent_weights(self, loss: str, seed: int) -> None:
        """Those of a loss and seed with nothing left to do; a test that failed will need them again."""
        if not self._is_tested(loss, seed):
            return
        later = [name for name, same in self.work if same == seed and stages_of(name)[0] == loss]
        needed = self._chosen(loss, seed) if any(not self._is_tested(name, seed) for name in later) else None
        for job in self.work[loss, seed]:
            if job.settings != needed:
                job.weights.unlink(missing_ok=True)
        start, _ = stages_of(loss)
        if (start, seed) in self.work:
            self._remove_spent_weights(start, seed)

    def _is_tested(self, loss: str, seed: int) -> bool:
        test = self.done.get(key(loss, seed, None))
        return test is not None and self._counts(test) and not self._calls(loss, seed)

    def _kept(self, reason: str) -> str:
        return f"{reason}. {self.finished} of {self.total} runs are kept in {self.path.parent}: start again to go on."

    def _plan(self, jobs: int) -> Plan:
        """What is to be done, with a few steps of each loss timed."""
        trainings: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        first: dict[str, Job] = {}
        for loss, seed in self.work:
            if self._is_tested(loss, seed):
                continue
            jobs_to_do = [job for job in self.work[loss, seed] if key(loss, seed, job.settings) not in self.done]
            jobs_to_do = jobs_to_do if seed in self._searched(seed) else jobs_to_do[:1]
            tests[loss] += 1
            trainings[loss] += len(jobs_to_do)
            if jobs_to_do:
                first.setdefault(loss, jobs_to_do[0])
        steps: dict[str, float | None] = {}
        whole: dict[str, float | None] = {}
        tuned: dict[str, float | None] = {}
        any_job = next(iter(self.work.values()))[0]
        length = any_job.length
        test = 0.0
        if tests:
            with one_thread():
                validation, test = _times_of_evaluations(any_job)
                fine_tuning = _fine_tuning_of(any_job)
                if fine_tuning is not None:
                    deep_validation, test = _times_of_evaluations(any_job, fine_tuning)
                for loss in tests:
                    if loss in first:
                        steps[loss] = _time_of_steps(first[loss])
                        whole[loss] = _time_of_training(length, steps[loss], validation)
                    job = self.work[loss, next(seed for name, seed in self.work if name == loss)][0]
                    if fine_tuning is not None and not loss_by_name(loss).method:
                        tuned[loss] = _time_of_training(length, _time_of_steps(job, fine_tuning), deep_validation)
        return Plan(dict(trainings), dict(tests), steps, whole, test, jobs, tuned, _least_of(length))


def _least_of(length: Length) -> float:
    """The fraction of its steps that a training takes at least, where it ends when it is flat."""
    if length.patience is None:
        return 1.0
    return min(1.0, 2 * length.patience * length.validate_every / length.max_steps)


def _time_of_training(length: Length, step: float | None, validation: float) -> float | None:
    """Seconds of a training of all steps; None where that of a step is not known."""
    looks = 1 + length.max_steps // length.validate_every
    return None if step is None else length.max_steps * step + looks * validation


_Tuned = tuple[Task, nn.Module]
"""As of `Task.fine_tuning`."""


def _fine_tuning_of(job: Job) -> _Tuned | None:
    """The fine-tuning before a test, of a model that is not trained."""
    task = load_task(job.task, job.data, job.seed, job.device, **job.options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        return task.fine_tuning(task.model().to(job.device))


def _time_of_steps(job: Job, fine_tuning: _Tuned | None = None) -> float | None:
    """Seconds of a step, of the fine-tuning if that is given; None for a loss that raises an error or takes none."""
    if loss_by_name(job.loss).method:
        return None
    task = load_task(job.task, job.data, job.seed, job.device, **job.options)
    model, count = None, TIMED_STEPS
    if fine_tuning is not None:
        task, model, count = fine_tuning[0], copy.deepcopy(fine_tuning[1]), TIMED_FINE_TUNING
    seconds = []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        try:
            training = Training(task, loss_by_name(job.loss), job, model)
            for step, batch in zip(range(1, count + 1), task.batches(0), strict=False):
                start = time.perf_counter()
                training.step(step, batch)
                seconds.append(time.perf_counter() - start)
        except Exception:  # of any loss: its runs will record the error
            return None
    return statistics.median(seconds[1:] or seconds)


def _times_of_evaluations(job: Job, fine_tuning: _Tuned | None = None) -> tuple[float, float]:
    """Seconds on the validation split, and about how many on the test split, which is not evaluated for this."""
    task = load_task(job.task, job.data, job.seed, job.device, **job.options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        model = task.model().to(job.device)
        task, model = (task, model) if fine_tuning is None else fine_tuning
        start = time.perf_counter()
        task.measure(model, "val")
        seconds = time.perf_counter() - start
    return seconds, seconds * len(task.index["test"]) / len(task.index["val"])


class ComparisonStopped(RuntimeError):  # noqa: N818  # as KeyboardInterrupt, it is not an error of the caller
    """A comparison that ended before it was done; what was done is kept.

    Attributes:
        signum: the signal that ended it, SIGINT (Ctrl-C), SIGTERM or SIGHUP; 0: a worker process died, or a file
            could not be read or written.
    """

    def __init__(self, message: str, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum
