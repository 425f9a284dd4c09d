"""Trainings and tests on processes of this machine, or on any executor of `concurrent.futures`.

A call carries what it needs as values, weights included, and gives back values: no folder is shared with the machine
that does it. What is lost with a worker is done again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sodeep.comparison.runs import Run
from sodeep.comparison.train import Done, Job, failed_test, run_test, run_training

TIMES = 3
"""How often a call is handed out before it counts as what kills its workers."""


class WorkersLostError(RuntimeError):
    """A call came back from no worker."""


class Call(NamedTuple):
    """A run to do: a training, or the test after the run of the setting chosen; failed at once where that failed."""

    job: Job
    chosen: Run | None = None

    def function(self) -> Callable[..., Done]:
        """What does it, by its name in this module."""
        if self.chosen is None:
            return run_training
        return run_test if self.chosen.status == "ok" else failed_test

    def arguments(self) -> list[Any]:
        """As they are sent, with the weights in place of their files."""
        job = self.job
        if isinstance(job.init, str):
            job = replace(job, init=Path(job.init).read_bytes())
        if self.chosen is None:
            return [job]
        return [job, self.chosen, *([job.weights.read_bytes()] if self.chosen.status == "ok" else [])]


def results(
    queue: deque[Call], jobs: int | None, executor: Executor | None = None
) -> Generator[tuple[Call, Done], None, None]:
    """What the calls in the queue give, as it comes; more may be queued meanwhile.

    `jobs`: calls at a time; None: with an executor, all that there are.

    Raises:
        WorkersLostError: an executor that takes no more calls, or a call that was lost `TIMES` times.
        OSError, ValueError: what a call raised, of its files or data.
    """
    if executor is None and jobs in (1, None):
        with one_thread():
            while queue:
                call = queue.popleft()
                yield call, call.function()(*call.arguments())
        return
    with contextlib.ExitStack() as stack:
        workers: Executor | Workers = stack.enter_context(Workers(jobs or 1)) if executor is None else executor
        running: dict[Future[Done | Exception], Call] = {}
        stack.callback(lambda: [future.cancel() for future in running])
        lost: Counter[str] = Counter()
        while queue or running:
            while queue and (jobs is None or len(running) <= jobs):  # one waits, so that no worker does
                call = queue.popleft()
                running[_submit(workers, call)] = call
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                call = running.pop(future)
                outcome = _outcome(future)
                if isinstance(outcome, BaseException):
                    name = f"{call.function().__name__} {call.job.loss} {call.job.seed} {call.job.settings}"
                    lost[name] += 1
                    if lost[name] == TIMES:
                        raise WorkersLostError(_reason(outcome)) from outcome
                    queue.appendleft(call)
                else:
                    yield call, outcome


def _submit(workers: Executor | Workers, call: Call) -> Future[Done | Exception]:
    arguments = call.arguments()
    try:
        return workers.submit(in_worker, call.function(), *arguments)
    except Exception as error:  # of any executor: one that is shut down, or cannot send what it is given
        raise WorkersLostError(_reason(error)) from error


def _outcome(future: Future[Done | Exception]) -> Done | BaseException:
    """What a call gave, or the error of the executor that lost it; an error of the call itself is raised."""
    if future.cancelled():
        return WorkersLostError("the executor cancelled it")
    error = future.exception()
    if error is not None:
        return error
    value = future.result()
    if isinstance(value, Exception):
        raise value
    return value


def _reason(error: BaseException) -> str:
    """Why calls are lost, for the user."""
    if isinstance(error, BrokenProcessPool):
        return (
            "A worker process died, perhaps for want of memory (try fewer jobs), or since the script that calls "
            'compare lacks if __name__ == "__main__":'
        )
    return f"The executor lost a run ({type(error).__name__}: {str(error).rstrip('.') or 'no message'})"


_ONE = threading.Lock()


def in_worker(function: Callable[..., Done], *arguments: Any) -> Done | Exception:
    """A call in a worker; its error is a value, which tells it from those of the executor.

    Threads of one process take turns: a run sets the random numbers of its process.
    """
    with _ONE, one_thread():
        try:
            return function(*arguments)
        except Exception as error:  # sent back
            return error


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch: for networks this small more threads are slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def process_context() -> BaseContext:
    """How processes are started.

    On Linux by a server that has imported what all of them need, which takes each seconds where it does so itself. The
    server is a new process too: unlike a fork of this one, its forks can use CUDA, and hold no lock of a thread.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # the latter is imported by every optimizer
    return context


class Workers:
    """Processes of this machine, of which those that die are started anew; all end with this one."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._context = process_context()
        self._theirs, self._ours = self._context.Pipe(duplex=False)
        self._pool = self._new_pool()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:  # of a comparison that stops: what the workers do now would be lost
            self._ours.close()
        self._pool.shutdown(cancel_futures=True)
        self._ours.close()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.jobs, self._context, _start_worker, (self._theirs,))

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """As of an executor."""
        try:
            return self._pool.submit(function, *arguments)
        except BrokenProcessPool:
            self._pool.shutdown()
            self._pool = self._new_pool()
            return self._pool.submit(function, *arguments)


def _start_worker(parent: Connection) -> None:
    """In a worker process: Ctrl-C ends it without a message, which the parent has; so does the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def end_with(parent: Connection) -> None:
    """End this process when `parent` does."""
    parent.poll(None)  # nothing is ever sent: until the other end is closed, by the parent or by its death
    os._exit(1)
