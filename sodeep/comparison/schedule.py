"""The trainings and tests of a comparison: their order, processes, estimated duration, and resuming them."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import statistics
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from sodeep._core.files import write_atomic
from sodeep._core.signals import stop_signals
from sodeep.comparison.losses_by_name import loss_by_name
from sodeep.comparison.runs import Run, key, key_of, parse_run, read_runs
from sodeep.comparison.train import VALIDATIONS, Job, Training, failed_test, load_task, run_test, run_training


@dataclass(frozen=True)
class Plan:
    """The runs that a comparison will do, and how long they may take.

    Attributes:
        trainings: loss -> how many are to be done; losses with nothing to do are left out.
        tests: loss -> how many are to be done.
        seconds_per_step: loss -> median over a few steps; None: it raised an error, which its runs will record.
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


class Schedule:
    """The finished runs in a folder, and those still to do."""

    def __init__(
        self,
        folder: Path,
        primary_metric: str,
        work: Mapping[tuple[str, int], Sequence[Job]],
        on_run: Callable[[Run, int, int], None] | None,
    ) -> None:
        self.path = folder / "runs.jsonl"
        self.primary_metric = primary_metric
        self.work = work
        self.on_run = on_run
        self._set_damaged_aside()
        saved = read_runs(folder) if self.path.exists() else []
        self.done = {key_of(run): run for run in saved if self._counts(run)}
        self.wanted = [
            key(loss, seed, settings)
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
        damaged = [line for line in lines if parse_run(line) is None and line.strip()]
        whole = [line for line in [*lines, cut] if parse_run(line) is not None]
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
        """Whether a saved run need not be repeated."""
        if run.status == "ok":
            return self.primary_metric in run.metrics
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
                    if all(key(job.loss, job.seed, job.settings) in self.done for job in trainings):
                        queue.extendleft(self._calls(run.loss, run.seed))
                    yield run
        except OSError as error:  # of a file of ours, or of the data
            cause = f"{error.strerror}: {error.filename or self.path.parent}" if error.strerror else str(error)
            raise ComparisonStopped(self._kept(f"Stopped: {cause.removesuffix('.')}")) from error

    def _calls(self, loss: str, seed: int) -> list[_Call]:
        """What can be done for a loss and seed now: its trainings, then the test of the best, then nothing."""
        trainings = {job: self.done.get(key(loss, seed, job.settings)) for job in self.work[loss, seed]}
        missing = [job for job, run in trainings.items() if run is None]
        if missing:
            return [(run_training, job) for job in missing]
        test = self.done.get(key(loss, seed, None))
        ok = {job: run for job, run in trainings.items() if run is not None and run.status == "ok"}
        if not ok:
            return [] if test is not None and not test.settings else [(failed_test, next(iter(trainings.values())))]
        best = max(ok, key=lambda job: _or_lowest(ok[job].metrics[self.primary_metric]))  # the first of equals
        if test is not None and test.settings == best.settings:
            return []
        return [(run_test, best, ok[best])] if best.weights.exists() else [(run_training, best)]

    def _keep(self, run: Run) -> None:
        """Append the run."""
        with self.path.open("ab") as file:
            file.write(run.to_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[key_of(run)] = run
        self._remove_spent_weights(run.loss, run.seed)

    def _remove_spent_weights(self, loss: str, seed: int) -> None:
        """Those of a loss and seed with nothing left to do; a test that failed will need them again."""
        test = self.done.get(key(loss, seed, None))
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
        first: dict[str, Job] = {}
        for loss, seed in self.work:
            calls = self._calls(loss, seed)
            jobs_to_do = [job for function, job, *_ in calls if function is run_training]
            if calls:
                tests[loss] += 1
                trainings[loss] += len(jobs_to_do)
                if jobs_to_do:
                    first.setdefault(loss, jobs_to_do[0])
        steps: dict[str, float | None] = {}
        whole: dict[str, float | None] = {}
        validation = test = 0.0
        if tests:
            with one_thread():
                validation, test = _times_of_evaluations(next(iter(self.work.values()))[0])
                for loss, job in first.items():
                    timed, count = _time_of_steps(job)
                    steps[loss] = timed
                    whole[loss] = None if timed is None else count * timed + min(count, VALIDATIONS) * validation
        return Plan(dict(trainings), dict(tests), steps, whole, test, jobs)


def _or_lowest(value: float) -> float:
    """NaN, which is neither above nor below any number, is the worst."""
    return -math.inf if math.isnan(value) else value


def _time_of_steps(job: Job) -> tuple[float | None, int]:
    """Seconds of a step, None for a loss that raises an error; and how many steps a training has."""
    task = load_task(job.task, job.data, job.seed, job.device, **job.options)
    seconds = []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        try:
            training = Training(task, loss_by_name(job.loss), job.settings, job.epochs, job.device)
            for step, batch in zip(range(1, TIMED_STEPS + 1), task.batches(0), strict=False):
                start = time.perf_counter()
                training.step(step, batch)
                seconds.append(time.perf_counter() - start)
        except Exception:  # of any loss: its runs will record the error
            return None, 0
    return statistics.median(seconds[1:] or seconds), training.steps


def _times_of_evaluations(job: Job) -> tuple[float, float]:
    """Seconds on the validation split, and about how many on the test split, which is not evaluated for this."""
    task = load_task(job.task, job.data, job.seed, job.device, **job.options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(job.seed)
        model = task.model().to(job.device)
        start = time.perf_counter()
        task.evaluate(model, "val")
        seconds = time.perf_counter() - start
    return seconds, seconds * len(task.index["test"]) / len(task.index["val"])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread, as in a worker: for networks this small more threads are slower."""
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
        with one_thread():
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
    """In a worker process: Ctrl-C ends it without a message, which the parent has; so does the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def end_with(parent: Connection) -> None:
    """End this process when `parent` does."""
    parent.poll(None)  # nothing is ever sent: until the other end is closed, by the parent or by its death
    os._exit(1)


class ComparisonStopped(RuntimeError):  # noqa: N818  # as KeyboardInterrupt, it is not an error of the caller
    """A comparison that ended before it was done; what was done is kept.

    Attributes:
        signum: the signal that ended it, SIGINT (Ctrl-C), SIGTERM or SIGHUP; 0: a worker process died, or a file
            could not be read or written.
    """

    def __init__(self, message: str, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum
