"""Runs on executors: what is lost is done again, what is done is kept, and the runs are those of one process."""

import dataclasses
import errno
import logging
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from sodeep import comparison
from sodeep.cli import main
from sodeep.comparison import compare, executors, read_runs, schedule

GIVEN = {"seeds": 2, "trials": 2, "max_steps": 12, "save_encoders": True}
LOSSES = ["mse", "mse,spearman:laplace"]


def plain(runs):
    """Without what differs from machine to machine."""
    return [dataclasses.replace(run, seconds=None, seconds_per_step=None, peak_memory=None) for run in runs]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The folder and the runs of one process."""
    out = tmp_path_factory.mktemp("alone")
    return out, compare("memorability", LOSSES, out=out, **GIVEN)


def files(folder):
    """Encoders and arrays that a comparison has kept."""
    return {path.name: path.stat().st_size for part in ("encoders", "details") for path in (folder / part).iterdir()}


def same(runs, out, expected):
    assert plain(runs) == plain(expected[1])
    assert sorted(map(repr, plain(read_runs(out)))) == sorted(map(repr, plain(expected[1])))
    assert len((out / "runs.jsonl").read_text().splitlines()) == len(runs)
    assert files(out) == files(expected[0])
    assert list((out / "weights").iterdir()) == []


class Elsewhere(ThreadPoolExecutor):
    """Threads that get a copy of what they are given, and know no folder."""

    def submit(self, function, *arguments):
        work, job, *rest = pickle.loads(pickle.dumps(arguments))
        job = dataclasses.replace(job, folder="/nowhere")
        return super().submit(lambda: pickle.loads(pickle.dumps(function(work, job, *rest))))


class Loses(Elsewhere):
    """Every run is lost so many times, as by a worker that dies, or is cancelled."""

    def __init__(self, times, how):
        super().__init__(2)
        self.times, self.how = times, how
        self.lost = {}

    def submit(self, function, *arguments):
        name = repr([(argument.loss, argument.seed, argument.settings) for argument in arguments[1:2]])
        self.lost[name] = self.lost.get(name, 0) + 1
        if self.lost[name] > self.times:
            return super().submit(function, *arguments)
        future = Future()
        if self.how == "cancelled":
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(BrokenExecutor("a worker died"))
        return future


def test_runs_on_an_executor_are_those_of_one_process(tmp_path, expected):
    with Elsewhere(3) as executor:
        same(compare("memorability", LOSSES, out=tmp_path, executor=executor, **GIVEN), tmp_path, expected)
        assert not executor._shutdown


def test_what_is_lost_is_done_again(tmp_path, expected):
    with Loses(2, "broken") as executor:
        same(compare("memorability", LOSSES, out=tmp_path, executor=executor, **GIVEN), tmp_path, expected)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("broken", "BrokenExecutor: a worker died"), ("cancelled", "WorkersLostError: the executor cancelled it")],
)
def test_what_is_lost_again_and_again_stops_a_comparison_that_then_goes_on(tmp_path, expected, how, reason):
    with Loses(99, how) as executor, pytest.raises(comparison.ComparisonStopped) as stop:
        compare("memorability", LOSSES, out=tmp_path, executor=executor, **GIVEN)
    total = len(expected[1])
    kept = f"0 of {total} runs are kept in {tmp_path}: start again to go on."
    assert str(stop.value) == f"The executor lost a run ({reason}). {kept}"
    same(compare("memorability", LOSSES, out=tmp_path, **GIVEN), tmp_path, expected)


def test_an_executor_that_is_shut_down_stops_a_comparison(tmp_path, expected):
    executor = Elsewhere(2)

    def shut(run, done, total):
        executor.shutdown()

    with pytest.raises(comparison.ComparisonStopped, match=r"^The executor lost a run \(RuntimeError: cannot schedule"):
        compare("memorability", LOSSES, out=tmp_path, executor=executor, on_run=shut, **GIVEN)
    assert read_runs(tmp_path)
    same(compare("memorability", LOSSES, out=tmp_path, **GIVEN), tmp_path, expected)


def test_an_error_of_the_data_is_not_taken_for_a_lost_worker(tmp_path, monkeypatch):
    def raises(job):
        raise OSError(5, "Input/output error", "x.csv")

    monkeypatch.setattr(executors, "run_training", raises)
    kept = re.escape(f"0 of 5 runs are kept in {tmp_path}: start again to go on.")
    with (
        ThreadPoolExecutor(2) as executor,
        pytest.raises(comparison.ComparisonStopped, match=f"^Stopped: Input/output error: x.csv. {kept}$"),
    ):
        compare("memorability", ["mse"], out=tmp_path, executor=executor, seeds=2, trials=2, max_steps=12)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_process_is_replaced(tmp_path, expected):
    others = {process.pid for process in multiprocessing.active_children()}  # of other tests
    killed = []

    def kill(run, done, total):
        if not killed:
            killed.extend({process.pid for process in multiprocessing.active_children()} - others)
            os.kill(killed[0], signal.SIGKILL)

    same(compare("memorability", LOSSES, out=tmp_path, jobs=2, on_run=kill, **GIVEN), tmp_path, expected)
    assert killed


@pytest.mark.parametrize("place", ["weights", "encoders", "runs"])
def test_a_full_disk_loses_no_run_of_an_executor(tmp_path, expected, monkeypatch, place):
    """The line of the run that did not fit is cut off."""
    write, sync, calls = schedule.write_atomic, os.fsync, []

    def is_full(where):
        calls.extend([0] * (where == place))
        return where == place and len(calls) == 2

    def fails(path, content):
        if is_full(path.parent.name):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content)

    def cut(number):
        if is_full("runs" if os.readlink(f"/proc/self/fd/{number}").endswith("runs.jsonl") else ""):
            os.ftruncate(number, os.fstat(number).st_size - 40)
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)

    if place == "runs" and not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc")
    with monkeypatch.context() as patch, Elsewhere(2) as executor:
        patch.setattr(schedule, "write_atomic", fails)
        if place == "runs":
            patch.setattr(schedule.os, "fsync", cut)
        with pytest.raises(
            comparison.ComparisonStopped, match=r"^Stopped: No space left on device: .* runs are kept in"
        ):
            compare("memorability", LOSSES, out=tmp_path, executor=executor, **GIVEN)
    kept = read_runs(tmp_path)
    assert all(run in plain(expected[1]) for run in plain(kept))
    done = []
    with Elsewhere(2) as executor:
        runs = compare(
            "memorability", LOSSES, out=tmp_path, executor=executor, on_run=lambda *run: done.append(run[0]), **GIVEN
        )
    same(runs, tmp_path, expected)
    assert len(done) == len(runs) - len(kept)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_comparison_loses_no_run_of_its_processes(tmp_path, expected):
    """SIGKILL of the parent, while two processes work."""
    given = ", ".join(f"{name}={value!r}" for name, value in GIVEN.items())
    code = f"""
import os, signal
from sodeep.comparison import compare

def kill(run, done, total):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    compare("memorability", {LOSSES!r}, out={str(tmp_path / "out")!r}, jobs=2, on_run=kill, {given})
"""
    script = tmp_path / "killed.py"
    script.write_text(code)
    killed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = read_runs(tmp_path / "out")
    assert len(kept) == 2
    runs = compare("memorability", LOSSES, out=tmp_path / "out", **GIVEN)
    same(runs, tmp_path / "out", expected)
    assert all(run in plain(runs) for run in plain(kept))


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_pool_that_breaks_with_a_worker_stops_a_comparison(tmp_path, expected):
    """Python's own executor takes nothing more then."""
    killed = []

    def kill(run, done, total):
        if not killed:  # a run that was done before may come after it
            killed.extend(executor._processes)  # of this executor, whatever other processes there are
            os.kill(killed[0], signal.SIGKILL)

    reason = r"^A worker process died, perhaps for want of memory \(try fewer jobs\), or .*\d+ of 10 runs are kept in "
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor,
        pytest.raises(comparison.ComparisonStopped, match=reason),
    ):
        compare("memorability", LOSSES, out=tmp_path, executor=executor, on_run=kill, **GIVEN)
    kept = read_runs(tmp_path)
    assert kept
    same(compare("memorability", LOSSES, out=tmp_path, **GIVEN), tmp_path, expected)


def test_dask_with_a_killed_worker(tmp_path, expected):
    distributed = pytest.importorskip("distributed")
    killed = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def kill(run, done, total):
            if not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        runs = compare("memorability", LOSSES, out=tmp_path, executor=client.get_executor(), on_run=kill, **GIVEN)
    same(runs, tmp_path, expected)
    assert killed


def test_what_is_no_executor_is_refused(tmp_path):
    message = (
        "`executor` must be an executor of concurrent.futures or None, got 'tcp://host:8786'. Of a dask client it is"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        compare("memorability", ["mse"], out=tmp_path, executor="tcp://host:8786")


def test_scheduler_needs_its_package(uninstall):
    uninstall("distributed")
    result = CliRunner().invoke(main, ["compare", "toy", "--scheduler", "tcp://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: --scheduler needs distributed, which is not installed. Install it: pip install distributed, or in a "
        'clone of sodeep: pip install ".[dask]"\n'
    )
