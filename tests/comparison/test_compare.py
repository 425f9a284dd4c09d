"""Comparisons: what is trained, chosen, tested and kept; statistics; the command."""

import contextlib
import dataclasses
import errno
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import ttest_rel

import sodeep
from sodeep import comparison
from sodeep._core import progress
from sodeep._core.search import Range, trial_settings
from sodeep.cli import compare as compare_cli
from sodeep.cli.group import main
from sodeep.comparison import _compare, compare, executors, schedule, train
from sodeep.comparison.losses_by_name import LOSSES, PEERS, RANK_LOSSES, RANKS, loss_by_name
from sodeep.comparison.read import settings_text
from sodeep.comparison.runs import Run, read_runs
from sodeep.comparison.statistics import summarise
from sodeep.datasets.splits import drawn_split
from sodeep.report.text import text_table
from sodeep.report.write import write_report
from sodeep.tasks import TASKS, Task, TaskMetrics

TINY = {"max_steps": 12, "seeds": 2, "search_seeds": None}


def settings_tried(loss, trials=4):
    """What is searched for a loss of the memorability task."""
    return trial_settings(loss_by_name(loss).all_ranges(TASKS["memorability"]), trials)


def plain(runs):
    """Runs without what depends on the clock."""
    return [{**json.loads(run.to_json()), "seconds": None, "seconds_per_step": None} for run in runs]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    seen = []
    losses = ["mse", "spearman:laplace"]
    runs = compare("memorability", losses, out=out, on_run=lambda *arguments: seen.append(arguments), **TINY)
    return out, runs, seen


# ---- one comparison --------------------------------------------------------------------------------------------------


def test_every_loss_and_seed_is_tuned_and_tested_once(finished):
    _, runs, seen = finished
    for loss in ("mse", "spearman:laplace"):
        for seed in (0, 1):
            own = [run for run in runs if (run.loss, run.seed) == (loss, seed)]
            assert [run.stage for run in own] == ["tuning"] * 4 + ["test"]
            assert [run.settings for run in own[:4]] == settings_tried(loss)
    assert all(run.status == "ok" for run in runs)
    assert [(done, total) for _, done, total in seen] == [(i, 20) for i in range(1, 21)]


def test_the_setting_best_on_the_validation_split_is_tested(finished):
    _, runs, _ = finished
    for test in (run for run in runs if run.stage == "test"):
        own = [run for run in runs if (run.loss, run.seed, run.stage) == (test.loss, test.seed, "tuning")]
        best = max(own, key=lambda run: run.metrics["Spearman"])
        assert test.settings == best.settings
        assert test.curves == best.curves
        assert test.metrics != best.metrics
        assert [step for step, _ in best.curves["val/Spearman"]] == [0, 12]
        highest = max(best.curves["val/Spearman"], key=lambda point: point[1])
        assert (best.best_step, best.metrics["Spearman"]) == highest
        for name in best.metrics:
            assert dict(best.curves[f"val/{name}"])[best.best_step] == best.metrics[name]


def test_a_run_says_what_it_took(finished):
    _, runs, _ = finished
    sizes = tuple(len(TASKS["memorability"].load().index[name]) for name in ("train", "val", "test"))
    for run in runs:
        assert run.steps == 12
        assert run.seconds > run.seconds_per_step > 0
        assert run.flat is False  # the cap came first
        assert (run.split["train"], run.split["val"], run.split["test"]) == sizes
        assert run.peak_memory > 100 * 65 * 4  # the hidden layer and more
        assert run.device == "cpu"
        assert set(run.curves) == {"loss/train", "val/Spearman", "val/MAE", "val/MAE fitted"}
        steps = [step for step, _ in run.curves["loss/train"]]
        assert steps == sorted(steps)
        assert steps[-1] == 12


def test_a_training_of_one_step(tmp_path):
    runs = compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=1, batch_size=10_000)
    assert [(run.status, run.steps, run.seconds_per_step) for run in runs] == [("ok", 1, None)] * 5
    assert re.search("^mse +.* baseline +\N{EN DASH}$", text_table(summarise(runs)), re.MULTILINE)


def test_details_are_those_of_the_tested_model(finished):
    out, runs, _ = finished
    for run in runs:
        assert (run.details is None) == (run.stage == "tuning")
        if run.details is not None:
            with np.load(out / run.details) as arrays:
                error = abs(arrays["predicted"] - arrays["true"]).mean()
            np.testing.assert_allclose(error, run.metrics["MAE"], rtol=1e-5)
    assert list((out / "weights").iterdir()) == []


def test_runs_survive_json(finished):
    out, runs, _ = finished
    assert sorted(plain(read_runs(out)), key=str) == sorted(plain(runs), key=str)
    failed = Run("memorability", "d", "mse", 0, {"lr": 0.1}, "tuning", "failed", failure=_failure(math.nan))
    line = failed.to_json()
    json.loads(line, parse_constant=pytest.fail)  # strict JSON has no NaN
    assert math.isnan(Run.from_json(line).failure["values"]["loss"])


def _failure(value):
    return {"step": 3, "reason": "the loss is not finite", "values": {"loss": value, "lr": 0.1}}


def test_the_same_again_gives_the_same(finished, tmp_path):
    _, runs, _ = finished
    again = compare("memorability", ["spearman:laplace", "mse"], out=tmp_path, seeds=[1], max_steps=12)
    wanted = [run for run in runs if run.seed == 1]
    details = {run.details for run in wanted} - {None}
    assert len(details) == 2
    assert sorted(plain(again), key=str) == sorted(plain(wanted), key=str)


def test_losses_of_a_seed_start_from_the_same_weights_and_see_the_same_batches(tmp_path, monkeypatch):
    started, seen = [], []
    step = train.Training.step

    def watched(self, number, batch):
        if number == 1:
            started.append(torch.cat([p.detach().flatten() for p in self.model.parameters()]))
        seen.append((number, batch.tolist()))
        return step(self, number, batch)

    monkeypatch.setattr(train.Training, "step", watched)
    compare("memorability", ["mse", "spearman:blackbox"], out=tmp_path, seeds=1, max_steps=12)
    assert len(started) == 8
    for weights in started[1:]:
        torch.testing.assert_close(weights, started[0], rtol=0, atol=0)
    trainings = [seen[i : i + 12] for i in range(0, len(seen), 12)]
    assert all(training == trainings[0] for training in trainings)


def test_validation_chooses_and_the_test_split_is_seen_once(tmp_path, monkeypatch):
    asked = []
    evaluate = TASKS["memorability"].evaluate

    def watched(self, model, split, details=False):
        asked.append(split)
        return evaluate(self, model, split, details)

    monkeypatch.setattr(TASKS["memorability"], "evaluate", watched)
    compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12)
    assert asked.count("test") == 1
    assert asked[-1] == "test"
    assert "train" not in asked


# ---- going on --------------------------------------------------------------------------------------------------------


def trained(monkeypatch):
    """Which trainings are done from now on."""
    done = []
    train = executors.run_training

    def watched(job):
        done.append((job.loss, job.seed, job.settings))
        return train(job)

    monkeypatch.setattr(executors, "run_training", watched)
    return done


def test_nothing_is_repeated(finished, monkeypatch):
    out, runs, _ = finished
    done = trained(monkeypatch)
    before = (out / "runs.jsonl").read_bytes()
    again = compare("memorability", ["mse", "spearman:laplace"], out=out, **TINY)
    assert done == []
    assert plain(again) == plain(runs)
    assert (out / "runs.jsonl").read_bytes() == before


def test_losses_and_seeds_are_added(tmp_path, monkeypatch):
    options = {"out": tmp_path, "search_seeds": None, "max_steps": 12}
    compare("memorability", ["mse"], seeds=1, **options)
    done = trained(monkeypatch)
    runs = compare("memorability", ["mse", "l1"], seeds=2, **options)
    assert {(loss, seed) for loss, seed, _ in done} == {("l1", 0), ("mse", 1), ("l1", 1)}
    assert len(runs) == 20


def test_an_interrupted_comparison_goes_on(tmp_path, monkeypatch):
    whole = compare("memorability", ["mse", "l1"], out=tmp_path / "whole", seeds=1, max_steps=12)

    def stop(run, done, total):
        if done == 3:
            raise KeyboardInterrupt

    out = tmp_path / "parts"
    expected = f"Stopped. 3 of 10 runs are kept in {out}: start again to go on."
    with pytest.raises(comparison.ComparisonStopped, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse", "l1"], out=out, seeds=1, max_steps=12, on_run=stop)
    with (out / "runs.jsonl").open("ab") as file:
        file.write(whole[-1].to_json().encode()[:50])  # the machine went down while it wrote
    assert len(read_runs(out)) == 3
    done = trained(monkeypatch)
    runs = compare("memorability", ["mse", "l1"], out=out, seeds=1, max_steps=12)
    assert len(done) == 5
    assert plain(runs) == plain(whole)
    assert plain(sorted(read_runs(out), key=str)) == plain(sorted(runs, key=str))


def test_damaged_lines_are_no_runs(tmp_path):
    run = Run("memorability", "d", "mse", 0, {"lr": 0.1}, "test", "ok", {"rho": 0.5})
    good = json.loads(run.to_json())
    lines = [
        b"\xff", b"[" * 100_000, b"null", b"[]", b"9" * 5000,
        *(
            json.dumps({**good, "seed": place, **change}).encode()
            for place, change in enumerate(
                [
                    {"task": "x"}, {"seed": "0"}, {"settings": None}, {"metrics": []}, {"metrics": {"rho": "1e999"}},
                    {"curves": {"loss": 3}}, {"failure": "x"}, {"details": 5}, {"steps": None},
                    {"seconds_per_step": "fast"},
                ]
            )
        ),
    ]  # fmt: skip
    (tmp_path / "runs.jsonl").write_bytes(b"\n".join([*lines, run.to_json().encode(), *lines]) + b"\n")
    assert read_runs(tmp_path) == [run]


def test_a_signal_that_was_swallowed_ends_a_comparison_too(tmp_path, monkeypatch):
    train = executors.run_training

    def swallows(job):
        with contextlib.suppress(KeyboardInterrupt):  # as a destructor does
            signal.raise_signal(signal.SIGTERM)
        return train(job)

    monkeypatch.setattr(executors, "run_training", swallows)
    with pytest.raises(comparison.ComparisonStopped, match=r"^Stopped\. 1 of 5 runs are kept") as stop:
        compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12)
    assert stop.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_weights_lost_before_the_test_are_trained_again(finished, tmp_path, monkeypatch):
    def stop(run, done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(comparison.ComparisonStopped):
        compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12, on_run=stop)
    lost = sorted((tmp_path / "weights").iterdir())
    assert len(lost) == 4
    for path in lost:
        path.unlink()
    done = trained(monkeypatch)
    runs = compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12)
    assert [settings for _, _, settings in done] == [runs[-1].settings]  # of the best, which is all that is tested
    assert plain(runs) == plain(run for run in finished[1] if (run.loss, run.seed) == ("mse", 0))
    assert len(read_runs(tmp_path)) == 5


BOTH = ["mse", "spearman:laplace"]


def copied(finished, tmp_path):
    """The folder of the finished comparison, to be tampered with."""
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


@pytest.mark.parametrize("error", [MemoryError("too much"), OSError(errno.EIO, "Input/output error"), KeyError("x")])
def test_a_test_that_failed_is_listed_and_repeated(finished, tmp_path, monkeypatch, error):
    evaluate, tests = TASKS["memorability"].evaluate, []

    def fails_once(self, model, split, details=False):
        tests.extend([split] * (split == "test"))
        if split == "test" and len(tests) == 2:  # of spearman:laplace, seed 0
            raise error
        return evaluate(self, model, split, details)

    monkeypatch.setattr(TASKS["memorability"], "evaluate", fails_once)
    runs = compare("memorability", BOTH, out=tmp_path, **TINY)
    (failed,) = summarise(runs).failed
    reason = f"in the test, {type(error).__name__}: {error}"
    assert (failed.loss, failed.seed, failed.stage) == ("spearman:laplace", 0, "test")
    assert failed.failure == {"step": 12, "reason": reason, "values": {}, "again": True}
    table = text_table(summarise(runs))
    assert ": mean ± sd over the seeds, * = best mean\n" in table
    assert re.search("^spearman:laplace  1 of 2  [\N{MINUS SIGN}0-9.]+\\*? ", table, re.MULTILINE)
    assert table.endswith(f"\nspearman:laplace ({settings_text(failed.settings)}, seed 0) failed at step 12: {reason}")
    assert len(list((tmp_path / "weights").iterdir())) == 4
    done = trained(monkeypatch)
    again = compare("memorability", BOTH, out=tmp_path, **TINY)
    assert done == []
    assert plain(again) == plain(finished[1])
    assert plain(sorted(read_runs(tmp_path), key=str)) == plain(sorted(again, key=str))
    assert list((tmp_path / "weights").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("too much"),
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_a_training_that_failed_for_want_of_something_is_repeated(finished, tmp_path, monkeypatch, error):
    with monkeypatch.context() as patch:
        step, calls = train.Training.step, []

        def fails_once(self, number, batch):
            calls.append(number)
            if len(calls) == 12 + 3:
                raise error
            return step(self, number, batch)

        patch.setattr(train.Training, "step", fails_once)
        runs = compare("memorability", BOTH, out=tmp_path, **TINY)
    assert [(run.settings, run.failure["again"]) for run in runs if run.status == "failed"] == [
        (runs[1].settings, True)
    ]
    done = trained(monkeypatch)
    again = compare("memorability", BOTH, out=tmp_path, **TINY)
    assert done == [("mse", 0, runs[1].settings)]
    assert plain(again) == plain(finished[1])
    assert list((tmp_path / "weights").iterdir()) == []


@pytest.mark.parametrize(("place", "count"), [("weights", 2), ("details", 1), ("runs", 3)])
def test_a_full_disk_stops_a_comparison_that_then_goes_on(finished, tmp_path, monkeypatch, place, count):
    if place == "runs":
        patched, name, found = (
            schedule.os,
            "fsync",
            lambda number: "runs.jsonl" in os.readlink(f"/proc/self/fd/{number}"),
        )
        full = OSError(errno.ENOSPC, "No space left on device")  # as fsync says it
    else:
        patched, name, found = schedule, "write_atomic", lambda path, *_: path.parent.name == place
        full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / place / "x"))
    if place == "runs" and not Path("/proc/self/fd").exists():
        pytest.skip("no /proc")
    function, calls = getattr(patched, name), []

    def fails(*arguments):
        calls.extend([0] * bool(found(*arguments)))
        if len(calls) == count:
            raise full
        return function(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(patched, name, fails)
        with pytest.raises(comparison.ComparisonStopped) as stop:
            compare("memorability", BOTH, out=tmp_path, **TINY)
    kept = {"weights": 1, "details": 4, "runs": 2}[place]
    where = tmp_path / {"runs": ""}.get(place, f"{place}/x")
    expected = (
        f"Stopped: No space left on device: {where}. {kept} of 20 runs are kept in {tmp_path}: start again to go on."
    )
    assert (str(stop.value), stop.value.signum) == (expected, 0)
    assert plain(compare("memorability", BOTH, out=tmp_path, **TINY)) == plain(finished[1])


@pytest.mark.parametrize("number", [0, 4, 7], ids=["training", "test", "training of another"])
@pytest.mark.parametrize("damage", [lambda line: line[: len(line) // 2], lambda _: b"\xff\xfe", lambda _: b"[3]"])
def test_a_damaged_line_is_set_aside_and_done_again(finished, tmp_path, monkeypatch, number, damage):
    out = copied(finished, tmp_path)
    lines = (out / "runs.jsonl").read_bytes().splitlines(keepends=True)
    lost, lines[number] = lines[number], damage(lines[number]) + b"\n"
    (out / "runs.jsonl").write_bytes(b"".join(lines))
    done = trained(monkeypatch)
    expected = (
        f"1 line is damaged in {out / 'runs.jsonl'}: set aside in damaged.jsonl, and what is missing is done again."
    )
    with pytest.warns(UserWarning, match="^" + re.escape(expected) + "$"):
        runs = compare("memorability", BOTH, out=out, **TINY)
    run = Run.from_json(lost)
    assert done == [(run.loss, run.seed, run.settings)]  # or the best again, for a test
    assert plain(runs) == plain(finished[1])
    assert (out / "damaged.jsonl").read_bytes() == damage(lost) + b"\n"
    assert sorted(plain(read_runs(out)), key=str) == sorted(plain(runs), key=str)
    assert plain(compare("memorability", BOTH, out=out, **TINY)) == plain(runs)
    assert len(done) == 1


@pytest.mark.parametrize("dropped", ["the best", "another"])
def test_other_settings_are_gone_on_with(tmp_path, monkeypatch, dropped):
    given = {"out": tmp_path / "runs", "seeds": 1, "max_steps": 12}
    *trainings, test = compare("memorability", ["mse"], **given)
    tried = [run.settings for run in trainings]
    other = {"lr": 1e-6, "weight_decay": 1.0}  # trains nothing
    if dropped == "the best":
        kept = [settings for settings in tried if settings != test.settings]
    else:
        worst = min(trainings, key=lambda run: run.metrics["Spearman"]).settings
        kept = [settings for settings in tried if settings != worst]
    monkeypatch.setattr(_compare, "trial_settings", lambda *_: [*kept, other])
    done = trained(monkeypatch)
    runs = compare("memorability", ["mse"], **given)
    trained_now = [settings for _, _, settings in done]
    assert trained_now == [other] + [runs[-1].settings] * (dropped == "the best")
    assert plain(runs) == plain(compare("memorability", ["mse"], **{**given, "out": tmp_path / "fresh"}))
    assert list((tmp_path / "runs/weights").iterdir()) == []


def test_nan_is_the_worst_of_settings(tmp_path, monkeypatch):
    train = executors.run_training

    def nan_first(job):
        done = train(job)
        if job.settings != settings_tried("mse")[0]:
            return done
        return done._replace(run=dataclasses.replace(done.run, metrics={**done.run.metrics, "Spearman": math.nan}))

    monkeypatch.setattr(executors, "run_training", nan_first)
    runs = compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12)
    assert math.isnan(runs[0].metrics["Spearman"])
    best = max(runs[1:4], key=lambda run: run.metrics["Spearman"])
    assert runs[-1].settings == best.settings


@pytest.mark.parametrize("signum", [0, signal.SIGTERM])
def test_a_worker_that_dies_stops_a_comparison_that_then_goes_on(tmp_path, monkeypatch, signum):
    results = schedule.results
    lost = "A worker process died, perhaps for want of memory (try fewer jobs)"

    def dies(queue, jobs, executor):
        yield next(results(queue, jobs, executor))
        if signum:  # it was for the parent too
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signum)
        raise schedule.WorkersLostError(lost)

    given = {"out": tmp_path, "seeds": 1, "max_steps": 12}
    with monkeypatch.context() as patch:
        patch.setattr(schedule, "results", dies)
        with pytest.raises(comparison.ComparisonStopped) as stop:
            compare("memorability", ["mse"], **given)
    reason = "Stopped" if signum else lost
    expected = f"{reason}. 1 of 5 runs are kept in {tmp_path}: start again to go on."
    assert (str(stop.value), stop.value.signum) == (expected, signum)
    assert {run.status for run in compare("memorability", ["mse"], **given)} == {"ok"}


def test_one_process_at_a_time_writes_to_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    messages = []

    def start_another(*_):
        with pytest.raises(FileExistsError) as error:
            compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12)
        messages.append(str(error.value))

    runs = compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12, on_run=start_another)
    expected = f"`out` {tmp_path} is being written by another comparison. Wait for it to end, or choose another folder."
    assert messages == [expected] * 5
    assert compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12) == runs


def test_what_killed_processes_left_is_swept(finished, tmp_path):
    out = copied(finished, tmp_path)
    before = {path.relative_to(out) for path in out.rglob("*")}
    first = finished[1][0]
    litter = [
        ".comparison.json.0123abcd.tmp",
        "weights/.mse-0-0123abcd.safetensors.0123abcd.tmp",
        "details/.mse-0-0123abcd.npz.0123abcd.tmp",
        "details/mse-0-0123abcd.4711.tmp",  # of older versions
        f"weights/{train.file_name(first.loss, first.seed, first.settings)}.safetensors",  # tested already
        ".lock",
    ]
    for name in litter:
        (out / name).touch()
    (out / ".tensorboard.0123abcd.tmp/memorability").mkdir(parents=True)
    (out / "my notes.tmp").touch()
    assert compare("memorability", BOTH, out=out, **TINY) == finished[1]
    assert {path.relative_to(out) for path in out.rglob("*")} == before | {Path("my notes.tmp")}


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as error:
        compare("memorability", ["mse"], out=tmp_path / "file/out")
    expected = f"[Errno {errno.ENOTDIR}] `out` must be a folder that can be written to: Not a directory: "
    assert str(error.value) == f"{expected}'{tmp_path / 'file/out'}'"


def test_runs_of_other_versions_are_read():
    line = json.loads(Run("memorability", "d", "mse", 0, {"lr": 0.1}, "test", "ok", {"Spearman": 0.5}).to_json())
    del line["curves"], line["peak_memory"], line["failure"]
    run = Run.from_json(json.dumps({**line, "of a newer version": 3}))
    assert run == Run("memorability", "d", "mse", 0, {"lr": 0.1}, "test", "ok", {"Spearman": 0.5})
    for wrong in ({**line, "stage": "tset"}, {**line, "seed": "0"}, {**line, "settings": None}, [line]):
        with pytest.raises(ValueError, match=r"^`line` must be a run, got '"):
            Run.from_json(json.dumps(wrong))


def test_what_it_costs_is_known_before_it_starts_and_changes_nothing(bad_losses, finished, tmp_path):
    plans = []
    raises = f"{bad_losses}:raises"
    runs = compare("memorability", [*BOTH, raises], out=tmp_path / "out", on_start=plans.append, **TINY)
    assert plain(run for run in runs if run.loss != raises) == plain(finished[1])
    again = compare("memorability", [*BOTH, raises], out=tmp_path / "out", on_start=plans.append, **TINY)
    assert again == runs
    plan, empty = plans
    assert plan.trainings == dict.fromkeys([*BOTH, raises], 8)
    assert plan.tests == dict.fromkeys([*BOTH, raises], 2)
    assert plan.seconds_per_step[raises] is None
    for loss in BOTH:
        assert 0 < 12 * plan.seconds_per_step[loss] < plan.seconds_per_training[loss]
    each = [8 * (plan.seconds_per_training[loss] or 0) + 2 * plan.seconds_per_test for loss in [*BOTH, raises]]
    assert plan.seconds == pytest.approx(sum(each))
    assert (empty.trainings, empty.tests, empty.seconds) == ({}, {}, 0)


def test_another_comparison_is_not_mixed_in(finished):
    out, _, _ = finished
    expected = (
        f"`out` {out} holds a comparison of 12 steps at most, not of 24 steps at most. Choose another folder, or "
        "delete it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], out=out, max_steps=24)
    expected = (
        f"`out` {out} holds a comparison of the task memorability, not of the task toy. Choose another folder, or "
        "delete it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("toy", ["bce"], out=out, max_steps=12)


def test_another_sorter_under_the_same_name_is_not_mixed_in(tmp_path):
    file = tmp_path / "my.safetensors"
    sodeep.save_sorter(file, sodeep.build_sorter("set", frequencies=[4]))
    given = {"out": tmp_path / "runs", "seeds": 1, "max_steps": 12}
    names = ["mse", f"spearman:{file}"]
    compare("memorability", ["mse"], **given)
    runs = compare("memorability", names, **given)
    assert compare("memorability", names, **given) == runs
    sodeep.save_sorter(file, sodeep.build_sorter("set", frequencies=[5]))
    expected = (
        f"`out` {tmp_path / 'runs'} holds runs of spearman:{file} with another sorter under that name. "
        "Choose another folder, or delete it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", names, **given)
    assert len(compare("memorability", ["mse"], **given)) == 5


def test_other_data_are_not_mixed_in(tmp_path):
    given = {"out": tmp_path, "seeds": 1, "max_steps": 2, "trials": 2}
    runs = compare("cross-modal", ["asp"], train_fraction=0.3, semantic="bleu", **given)
    assert {run.status for run in runs} == {"ok"}
    held = "synthetic shapes (generated, no real data), 0.3 of the training split, semantic scores by bleu"
    assert {run.data for run in runs} == {json.loads((tmp_path / "comparison.json").read_text())["data"]} == {held}
    for options, name in (
        ({"train_fraction": 0.3}, held.removesuffix(", semantic scores by bleu")),
        ({"semantic": "bleu"}, held.replace(", 0.3 of the training split", "")),
    ):
        another = f"`out` {tmp_path} holds a comparison on the data {held}, not on the data {name}."
        expected = f"{another} Choose another folder, or delete it."
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            compare("cross-modal", ["asp"], **options, **given)


def scores_file(path, last="0.5"):
    path.parent.mkdir(exist_ok=True)
    rows = [f"{i % 7},{i % 5},{(13 * i) % 40 / 40}" for i in range(40)]
    path.write_text("\n".join(["a,b,score", *rows, f"1,2,{last}"]))
    return path


def test_other_data_under_the_same_name_are_not_mixed_in(tmp_path):
    first, second = scores_file(tmp_path / "v1/scores.csv"), scores_file(tmp_path / "v2/scores.csv", last="0.6")
    given = {"out": tmp_path / "runs", "search_seeds": None, "max_steps": 12}
    runs = compare("memorability", ["mse"], data=first, seeds=1, **given)
    held = tmp_path / "runs/comparison.json"
    saved = held.read_bytes()
    expected = (
        f"`out` {tmp_path / 'runs'} holds a comparison on other data under the name 'scores'. "
        "Choose another folder, or delete it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], data=second, seeds=1, **given)
    moved = scores_file(tmp_path / "v3/scores.csv")  # the same data elsewhere, whichever seed comes first
    assert len(compare("memorability", ["mse"], data=moved, seeds=[1, 0], **given)) == 10
    assert held.read_bytes() == saved
    older = {name: value for name, value in json.loads(saved).items() if name != "checksum"}
    held.write_text(json.dumps(older))
    assert compare("memorability", ["mse"], data=first, seeds=1, **given) == runs
    assert json.loads(held.read_bytes()) == json.loads(saved)


def test_an_edited_file_is_read_again(tmp_path):
    path = scores_file(tmp_path / "data/scores.csv")
    first = compare("memorability", ["mse"], data=path, out=tmp_path / "first", seeds=1, max_steps=12)
    path.write_text(path.read_text().replace(",0.0\n", ",0.9\n", 1))
    second = compare("memorability", ["mse"], data=path, out=tmp_path / "second", seeds=1, max_steps=12)
    fresh = compare("memorability", ["mse"], data=scores_copy(path), out=tmp_path / "third", seeds=1, max_steps=12)
    assert [run.metrics for run in second] == [run.metrics for run in fresh]
    assert [run.metrics for run in second] != [run.metrics for run in first]


def scores_copy(path):
    copy = path.parent / "copy" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize("done", [2, 4, 5])  # in the trainings of a seed, before its test, between two seeds
def test_data_that_change_during_a_comparison_end_it(tmp_path, done):
    path = scores_file(tmp_path / "data/scores.csv")

    def edit(run, number, total):
        if number == done:
            path.write_text(path.read_text() + "\n3,3,0.3")
            train.load_task.cache_clear()  # as in another process, or with another seed

    expected = (
        f"`data` {path} must stay the same while losses are compared, got other data than at the start. "
        "Put back what was there and start again, or take another folder for the new data."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], data=path, out=tmp_path / "out", seeds=2, max_steps=12, on_run=edit)
    assert len(read_runs(tmp_path / "out")) == done


def test_columns_and_text_features_are_kept_apart(tmp_path):
    path = tmp_path / "said.csv"
    words = ["red", "green", "small", "dog", "runs"]
    rng = np.random.default_rng(0)
    rows = [f"{i};{' '.join(rng.choice(words, 4))};{i % 7};{i / 60}" for i in range(60)]
    path.write_text("\n".join(["id;words;age;rt", *rows]))
    given = {"data": path, "out": tmp_path / "out", "seeds": 1, "max_steps": 12, "target": "rt", "text": "words"}
    runs = compare("memorability", ["mse"], predictors=["age"], **given)
    assert {run.status for run in runs} == {"ok"}
    assert {run.data for run in runs} == {"said, rt, tf-idf of n-grams"}
    other = f"`out` {tmp_path / 'out'} holds a comparison "
    end = " Choose another folder, or delete it."
    expected = f"{other}on other data under the name 'said, rt, tf-idf of n-grams'.{end}"
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], predictors=["id"], **given)
    expected = f"{other}on the data said, rt, tf-idf of n-grams, not on the data said, rt, wordllama vectors.{end}"
    pytest.importorskip("tokenizers")
    pytest.importorskip("wordllama")
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], predictors=["age"], text_features="wordllama", **given)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"text_features": "tf-idf"},
            "`text_features` must not be given for the toy task, which has no texts, got 'tf-idf'.",
        ),
        ({"target": "rt"}, "`target` must not be given for the toy task, which has no table of columns, got 'rt'."),
        ({"text": "x"}, "`text` must not be given for the toy task, which has no table of columns, got 'x'."),
        (
            {"predictors": ["x"]},
            "`predictors` must not be given for the toy task, which has no table of columns, got ('x',).",
        ),
        ({"predictors": "age"}, "`predictors` must be a list of names, got 'age'. Put it in brackets."),
    ],
)
def test_options_that_a_task_has_not(tmp_path, options, expected):
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("toy", ["bce"], out=tmp_path, **options)


def test_asp_without_graded_relevance(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "val", "test"):
        arrays |= {f"{split}_images": rng.random((12, 3)), f"{split}_captions": rng.random((12, 4))}
        arrays[f"{split}_image_of_caption"] = np.arange(12)
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    given = {"data": path, "out": tmp_path / "out", "seeds": 1, "max_steps": 2, "trials": 2}
    for loss in ("asp", "triplet-hard+asp"):
        expected = (
            f"`loss` must fit the data, got {loss}. It needs graded relevance, which these data do not have. Add codes "
            "or classes of the images to the npz (<split>_codes, <split>_labels), or leave that loss out."
        )
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            compare("cross-modal", ["nt-xent", loss], **given)
    assert not (tmp_path / "out").exists()
    runs = compare("cross-modal", **given)
    assert {"asp", "triplet-hard+asp"}.isdisjoint({run.loss for run in runs})
    assert {run.status for run in runs} == {"ok"}
    np.savez(path, **arrays, **{f"{split}_labels": np.arange(12) // 3 for split in ("train", "val", "test")})
    runs = compare("cross-modal", ["asp"], **{**given, "out": tmp_path / "graded"})
    assert "i2t ASP" in runs[-1].metrics


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (None, "runs without the comparison.json that says what they are of"),
        ("", "a comparison.json that cannot be read, which says what the runs are of"),
        ("3", "a comparison.json that cannot be read, which says what the runs are of"),
    ],
)
def test_runs_that_nothing_is_known_about_are_left_alone(tmp_path, content, got):
    (tmp_path / "runs.jsonl").touch()
    if content is not None:
        (tmp_path / "comparison.json").write_text(content)
    expected = f"`out` {tmp_path} holds {got}. Choose another folder, or delete it."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], out=tmp_path)


def test_semantic_scores_are_those_of_the_cross_modal_task(tmp_path):
    expected = "`semantic` must not be given for the toy task, which has no semantic scores, got 'bleu'."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("toy", ["bce"], out=tmp_path, semantic="bleu")


def test_options_on_captions_are_those_of_the_cross_modal_task(tmp_path):
    for option, lacking in (("captions_per_item", "captions"), ("captions_kept", "captions"), ("fold_size", "folds")):
        expected = f"`{option}` must not be given for the toy task, which has no {lacking}, got 7."
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            compare("toy", ["bce"], out=tmp_path, **{option: 7})


def test_options_on_captions_from_python_and_the_command_line(tmp_path):
    options = {"semantic": "mean", "captions_per_item": 2, "captions_kept": 1, "fold_size": 50}
    runs = compare("cross-modal", ["asp"], out=tmp_path, seeds=1, max_steps=2, trials=2, **options)
    assert {run.status for run in runs} == {"ok"}
    assert {run.data for run in runs} == {
        "synthetic shapes (generated, no real data), up to 1 of each training image's captions, "
        "semantic scores by mean, up to 2 of each image's captions in a batch, test folds of 50"
    }
    assert {"i2t ASP mean", "i2t ASP mean in folds", "R@1 mean in folds"} <= set(runs[-1].metrics)
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    given += ["--seeds=1", "--max-steps=2", "--trials=2"]
    result = run("cross-modal", "--loss", "asp", "--out", tmp_path, *given)
    assert result.exit_code == 0
    assert "i2t R@1 in folds" in result.output
    assert read_runs(tmp_path) == runs


def test_two_processes_do_the_same_as_one(finished, tmp_path):
    _, runs, _ = finished
    again = compare("memorability", ["mse", "spearman:laplace"], out=tmp_path, jobs=2, **TINY)
    assert [(run.loss, run.seed, run.settings, run.stage) for run in again] == [
        (run.loss, run.seed, run.settings, run.stage) for run in runs
    ]
    for ours, theirs in zip(again, runs, strict=True):
        for name, value in theirs.metrics.items():
            np.testing.assert_allclose(ours.metrics[name], value, rtol=1e-4, atol=1e-5)


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bad_losses(tmp_path, monkeypatch):
    (tmp_path / "bad_losses_of_a_test.py").write_text(
        "import torch\n"
        "calls = 0\n"
        "class TurnsNaN(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.calls = 0\n"
        "    def forward(self, scores, target):\n"
        "        self.calls += 1\n"
        "        loss = (scores - target).abs().mean()\n"
        "        return loss * float('nan') if self.calls == 5 else loss\n"
        "def bad_gradient(scores, target):\n"
        "    return (scores - target).square().mean() + (scores.detach() - scores).pow(2).sum().sqrt()\n"
        "def raises(scores, target):\n"
        "    raise RuntimeError('no such luck')\n"
    )
    monkeypatch.chdir(tmp_path)
    return "bad_losses_of_a_test"


def test_failures_are_recorded_and_the_others_go_on(bad_losses, tmp_path):
    losses = [f"{bad_losses}:{name}" for name in ("TurnsNaN", "bad_gradient", "raises")]
    runs = compare("memorability", [*losses, "mse"], out=tmp_path / "out", seeds=1, max_steps=12)
    assert len(runs) == 20
    by_loss = {loss: [run for run in runs if run.loss == loss] for loss in losses}
    for own in by_loss.values():
        assert all(run.status == "failed" and run.metrics == {} for run in own)
    nan, gradient, raised = (own[0].failure for own in by_loss.values())
    assert (nan["step"], nan["reason"]) == (5, "the loss is not finite")
    assert math.isnan(nan["values"]["loss"])
    assert (gradient["step"], gradient["reason"]) == (1, "the gradient is not finite")
    assert math.isnan(gradient["values"]["gradient norm"])
    assert math.isfinite(gradient["values"]["loss"])
    assert (raised["step"], raised["reason"]) == (1, "RuntimeError: no such luck")
    assert [run.status for run in runs[-5:]] == ["ok"] * 5
    summary = summarise(runs)
    assert [run.loss for run in summary.failed] == [loss for loss in losses for _ in range(4)]
    table = text_table(summary)
    assert re.search(rf"^{losses[0]} +failed$", table, re.MULTILINE)
    tried = settings_text(settings_tried("mse")[0])
    assert f"{losses[0]} ({tried}, seed 0) failed at step 5: the loss is not finite (loss nan, lr " in table
    again = compare("memorability", [*losses, "mse"], out=tmp_path / "out", seeds=1, max_steps=12)
    assert plain(again) == plain(runs)


def test_what_a_loss_learns_is_trained(tmp_path, monkeypatch):
    (tmp_path / "learned_of_a_test.py").write_text(
        "import torch\n"
        "class Shifted(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.shift = torch.nn.Parameter(torch.zeros(()))\n"
        "        self.fixed = torch.nn.Parameter(torch.zeros(()), requires_grad=False)\n"
        "    def forward(self, scores, target):\n"
        "        return (scores - target).square().mean() + (self.shift - 100).abs() + self.fixed\n"
        "made = Shifted()\n"
        "class Plain(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        torch.rand(3)  # must not move the dropout\n"
        "    def forward(self, scores, target):\n"
        "        return (scores - target).square().mean()\n"
    )
    monkeypatch.chdir(tmp_path)
    task = TASKS["memorability"].load()
    settings = {"lr": 0.01, "weight_decay": 0.0}
    for name in ("Shifted", "made"):
        job = train.Job(
            "memorability", None, name, 0, settings, str(tmp_path), train.Length(12, 12, None), "cpu", {}, None
        )
        entry, shifts = loss_by_name(f"learned_of_a_test:{name}"), []
        for _ in range(2):
            torch.manual_seed(0)
            training = train.Training(task, entry, job)
            training.run()
            ((_, _, loss),) = training.terms
            shifts.append(loss.shift.item())
            assert (training.steps, loss.fixed.item()) == (12, 0)
        assert shifts[0] > 0.01
        assert shifts[1] == pytest.approx(shifts[0], rel=1e-3)  # begun anew, not gone on with
    assert sys.modules["learned_of_a_test"].made.shift.item() == 0
    compared = compare("memorability", ["learned_of_a_test:Plain", "mse"], out=tmp_path / "out", seeds=1, max_steps=12)
    assert [run.metrics for run in compared[:5]] == [run.metrics for run in compared[5:]]


@pytest.mark.parametrize(
    ("returned", "shown"),
    [("scores - target", "a tensor of shape (100,) and dtype float32"), ("0.5", "0.5")],
)
def test_a_loss_that_returns_no_single_number_fails(tmp_path, monkeypatch, returned, shown):
    name = f"no_number_{len(returned)}_of_a_test"
    (tmp_path / f"{name}.py").write_text(f"def loss(scores, target):\n    return {returned}\n")
    monkeypatch.chdir(tmp_path)
    runs = compare("memorability", [f"{name}:loss"], out=tmp_path / "out", seeds=1, max_steps=12)
    expected = f"ValueError: `loss` must return a tensor of one number, got {shown}. Take its mean."
    assert {(run.status, run.failure["reason"]) for run in runs} == {("failed", expected)}


def test_a_failed_setting_is_not_chosen(tmp_path, monkeypatch):
    train = executors.run_training

    def fails_with_the_best(job):
        done = train(job)
        if job.settings != settings_tried("mse")[3]:
            return done
        failed = dataclasses.replace(done.run, status="failed", metrics={}, failure=_failure(1.0))
        return done._replace(run=failed, weights=None)

    monkeypatch.setattr(executors, "run_training", fails_with_the_best)
    runs = compare("memorability", ["mse"], out=tmp_path, seeds=1, max_steps=12)
    assert [run.status for run in runs] == ["ok", "ok", "ok", "failed", "ok"]
    assert runs[-1].settings in settings_tried("mse")[:3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"task": "memory"},
            "`task` must be one of retrieval, cross-modal, memorability, multi-label, ranking, toy, got 'memory'.",
        ),
        ({"losses": []}, "`losses` must name at least one loss, got none. None stands for mse, "),
        (
            {"losses": ["smooth-ap"]},
            "`loss` must fit the memorability task, got 'smooth-ap', a loss with another call signature. ",
        ),
        ({"losses": ["mes"]}, "`loss` must be one of mse, mse-ranks, mse-normal-scores, l1, "),
        ({"seeds": 0}, "`seeds` must be a whole number of at least 1, got 0."),
        ({"max_steps": 0}, "`max_steps` must be a whole number of at least 1, got 0."),
        ({"jobs": 0}, "`jobs` must be a whole number of at least 1, got 0."),
        ({"batch_size": 1}, "`batch_size` must be a whole number of at least 4, got 1."),
        ({"losses": ["SpearmanLoss"]}, "`loss` must be a name that sodeep compare --help lists, got 'SpearmanLoss'. "),
        ({"losses": ["smooth_ap_loss"]}, "`loss` must be a name that sodeep compare --help lists, got "),
        ({"losses": ["spearman:laplace_rank"]}, "`loss` must have a rank function after the colon: "),
        ({"task": "my_module.MyTask"}, "`task` must be a name or my_module:MyTask, with a colon, got 'my_module.My"),
        ({"device": "abacus"}, "`device` must be one that PyTorch can compute on here, got 'abacus' ("),
    ],
)
def test_mistakes_end_before_anything_is_made(arguments, expected, tmp_path):
    with pytest.raises(ValueError, match="^" + re.escape(expected)):
        compare(**{"task": "memorability", "losses": ["mse"], "out": tmp_path / "out", "max_steps": 12, **arguments})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"losses": "mse"}, "`losses` must be a list of names, got 'mse'. Put it in brackets."),
        (
            {"losses": ["mse", torch.nn.MSELoss()]},
            "`losses` must be names of losses, got MSELoss(). One of your own is my_module:MyLoss, built anew for each "
            "training.",
        ),
        (
            {"losses": torch.nn.MSELoss()},
            "`losses` must be names of losses, got MSELoss(). One of your own is my_module:MyLoss, built anew for each "
            "training.",
        ),
        ({"out": None}, "`out` must be a path, got None."),
        (
            {"data": {"x": [1]}},
            "`data` must be a path, got {'x': [1]}. Arrays are given to a task of your own: compare(MyTask(arrays), "
            "...).",
        ),
        ({"init": 3}, "`init` must be a path, got 3. Save weights first: safetensors.torch.save_file."),
        ({"ranges": ["lr"]}, "`ranges` must be name: (low, high), in braces, got ['lr']."),
        ({"device": None}, "`device` must be 'auto' or the name of a device, such as 'cuda:0', got None."),
    ],
)
def test_arguments_of_another_kind(arguments, expected, tmp_path):
    with pytest.raises(TypeError, match="^" + re.escape(expected) + "$"):
        compare(**{"task": "memorability", "losses": ["mse"], "out": tmp_path / "out", "max_steps": 12, **arguments})
    assert not (tmp_path / "out").exists()


def test_a_device_may_be_torchs(tmp_path):
    runs = compare("toy", ["bce"], out=tmp_path, seeds=1, trials=1, max_steps=2, device=torch.device("cpu"))
    assert {run.status for run in runs} == {"ok"}


def test_settings_of_another_comparison_are_told_in_words(tmp_path):
    """Also those that were not asked for, which comparison.json has as null."""
    given = {"seeds": 1, "trials": 1, "max_steps": 4, "validate_every": 2, "batch_size": 50, "patience": 2}
    compare("memorability", ["mse"], out=tmp_path, **given)
    for changed, words in {
        "batch_size=40": "of batches of 50, not of batches of 40",
        "validate_every=4": "with a validation every 2 steps, not with a validation every 4 steps",
        "patience=3": "with a patience of 2 validations, not with a patience of 3 validations",
        "patience=None": "with a patience of 2 validations, not in which trainings take all their steps",
        "search_seeds=None": (
            "in which the first seed chooses the settings, not in which every seed chooses its settings"
        ),
        "ranges=lr": "that searches the ranges as declared, not that searches lr=0.001:0.1",
    }.items():
        name, _, value = changed.partition("=")
        options = {**given, name: {"lr": (1e-3, 0.1)} if name == "ranges" else None if value == "None" else int(value)}
        expected = f"`out` {tmp_path} holds a comparison {words}. Choose another folder, or delete it."
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            compare("memorability", ["mse"], out=tmp_path, **options)


def test_a_folder_without_a_comparison(tmp_path):
    expected = f"`folder` must hold the runs.jsonl of a comparison, got {tmp_path} without one."
    with pytest.raises(FileNotFoundError, match="^" + re.escape(expected) + "$"):
        read_runs(tmp_path)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_peak_memory_counts_what_is_alive_at_once():
    x = torch.zeros(1000, requires_grad=True)
    with train._peak_memory(torch.device("cpu")) as peak:
        for _ in range(5):
            y = x * 2
            del y
    assert 4000 <= peak() <= 8000
    with train._peak_memory(torch.device("cpu")) as peak:
        kept = [x.detach() + i for i in range(5)]
        for y in kept:
            y.add_(1)  # in place: nothing new
            y.view(10, 100)
    assert 20000 <= peak() <= 24000
    with train._peak_memory(torch.device("cpu")) as peak:
        x.exp().exp().sum().backward()
    assert peak() >= 3 * 4000  # two results and a gradient


# ---- statistics ------------------------------------------------------------------------------------------------------


def made_up(loss, values, task="memorability"):
    return [
        Run(
            task,
            "d",
            loss,
            seed,
            {"lr": 0.1},
            "test",
            "ok",
            {"Spearman": value, "MAE": 1 - value},
            seconds_per_step=0.01,
        )
        for seed, value in enumerate(values)
    ]


def test_summary_against_scipy():
    base, other = [0.5, 0.6, 0.55, 0.7], [0.58, 0.65, 0.6, 0.72]
    summary = summarise(made_up("mse", base) + made_up("l1", other))
    assert (summary.baseline, summary.losses, summary.seeds) == ("mse", ["mse", "l1"], [0, 1, 2, 3])
    cell = summary.cells["l1", "Spearman"]
    interval = ttest_rel(other, base).confidence_interval(0.95)
    np.testing.assert_allclose(
        [cell.n, cell.mean, cell.sd, cell.difference, cell.low, cell.high],
        [4, np.mean(other), np.std(other, ddof=1), np.mean(other) - np.mean(base), interval.low, interval.high],
    )
    assert cell.best
    assert cell.differs
    assert summary.cells["l1", "MAE"].best  # lower is better
    own = summary.cells["mse", "Spearman"]
    assert own.difference is None
    assert not own.best
    assert not own.differs
    assert summary.settings["l1"] == [({"lr": 0.1}, 4)]


def test_differences_are_paired_by_seed():
    runs = made_up("mse", [0.1, 0.9]) + made_up("l1", [0.2, 1.0, 0.5])
    cell = summarise(runs[::-1], "mse").cells["l1", "Spearman"]
    np.testing.assert_allclose([cell.n, cell.difference], [3, 0.1])
    single = summarise(runs[:1] + runs[2:3]).cells["l1", "Spearman"]
    assert math.isnan(single.sd)
    assert math.isnan(single.low)
    assert not single.differs


def test_summaries_of_wrong_runs():
    with pytest.raises(ValueError, match=r"^`runs` must hold at least one run, got none\.$"):
        summarise([])
    with pytest.raises(
        ValueError, match=r"^`runs` must be of one task on one data set, got \('memorability', 'd'\) and "
    ):
        summarise(made_up("mse", [0.1]) + made_up("bce", [0.1], task="toy"))
    with pytest.raises(ValueError, match=r"^`baseline` must be one of mse, got 'l2'\.$"):
        summarise(made_up("mse", [0.1]), "l2")


def test_text_table():
    table = text_table(summarise(made_up("mse", [0.5, 0.6]) + made_up("l1", [0.7, 0.7])))
    assert table.splitlines() == [
        "memorability on d: mean ± sd of 2 seeds, * = best mean",
        "",
        "loss  Spearman ↑      MAE ↓           Spearman - mse           ms/step",
        "----------------------------------------------------------------------",
        "mse   0.550 ± 0.071   0.450 ± 0.071   baseline                 10.0",
        "l1    0.700 ± 0.000*  0.300 ± 0.000*  +0.150 [\N{MINUS SIGN}0.485, +0.785]  10.0",
    ]


def test_the_tables_have_the_same_digits(tmp_path):
    """No negative zero, and one decimal for numbers far from 1."""
    runs = made_up("mse", [0.5, 0.6, 0.7]) + made_up("l1", [0.4999999, 0.5999999, 0.6999999])
    runs += [
        dataclasses.replace(run, loss="huber", metrics={"Spearman": 50 * run.metrics["Spearman"]}) for run in runs[:3]
    ]
    (tmp_path / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    read = comparison.read_comparison(tmp_path)
    plain = text_table(read.summary)
    page = write_report(read)["markdown"].read_text(encoding="utf-8")
    for cell in ("+0.00000 [+0.00000, +0.00000]", "30.0 ± 5.0", "+29.4 [+17.2, +41.6]"):
        assert f"  {cell}" in plain
        assert f"| {cell} |" in page.replace("*", "")


def test_many_metrics_make_several_tables(tmp_path):
    names = list(TASKS["cross-modal"].metrics)
    runs = [
        Run("cross-modal", "d", loss, 0, {}, "test", "ok", dict.fromkeys(names, 0.5), seconds_per_step=0.01)
        for loss in ("triplet-hard", "asp")
    ]
    table = text_table(summarise(runs))
    assert max(map(len, table.splitlines())) <= 120
    assert len(re.findall("^triplet-hard ", table, re.MULTILINE)) == 9
    for name in names:
        assert f"{name} " in table


def test_text_table_of_losses_with_fewer_seeds():
    runs = made_up("mse", [0.5, 0.6]) + made_up("l1", [0.7]) + made_up("huber", [])
    failed = Run("memorability", "d", "huber", 0, {}, "test", "failed")
    assert text_table(summarise([*runs, failed])).splitlines()[:6] == [
        "memorability on d: mean ± sd over the seeds, * = best mean",
        "",
        "loss   seeds   Spearman ↑     MAE ↓          Spearman - mse  ms/step",
        "--------------------------------------------------------------------",
        "mse    2 of 2  0.550 ± 0.071  0.450 ± 0.071  baseline        10.0",
        "l1     1 of 2  0.700*         0.300*         +0.200          10.0",
    ]


@dataclass(frozen=True)
class Points:
    """The data of a task of a test."""

    name: str
    x: np.ndarray
    y: np.ndarray


class Line(Task):
    """Points on a line: all that a further task must say."""

    name = "line"
    metrics = {"Spearman": True}  # noqa: RUF012
    primary_metric, baseline, losses, accepts = "Spearman", "mse", ("mse",), ("target",)
    max_steps, validate_every, tensors = 8, 4, ("x", "y")
    ranges = {"lr": Range(1e-3, 1e-2, 3e-3)}  # noqa: RUF012

    def __init__(self, data, seed=0, **options):
        super().__init__(data, seed, **options)
        self.x, self.y = torch.tensor(data.x), torch.tensor(data.y)

    @staticmethod
    def generated(seed):
        x = np.random.default_rng(seed).random(60, dtype=np.float32)
        return Points("points on a line", x, 2 * x)

    @classmethod
    def split_of(cls, data, seed):
        return drawn_split(len(data.x), seed)

    def model(self):
        return torch.nn.Linear(1, 1)

    def forward(self, model, batch):
        return {"target": lambda loss: loss(model(self.x[batch, None])[:, 0], self.y[batch])}

    def evaluate(self, model, split, details=False):
        where = self.index[split]
        found = sodeep.metrics.spearman_corr(model(self.x[where, None])[:, 0].detach(), self.y[where]).item()
        return TaskMetrics({"Spearman": found}, {"scores_of_line": self.x.numpy()} if details else {})


def test_a_further_task_is_a_class_and_a_line_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "line", Line)
    runs = compare("line", out=tmp_path, seeds=1, batch_size=12)
    assert [(run.task, run.data, run.stage, run.status) for run in runs] == [
        ("line", "points on a line", stage, "ok") for stage in ["tuning"] * 4 + ["test"]
    ]
    assert "line on points on a line: mean ± sd of 1 seed" in text_table(comparison.read_comparison(tmp_path).summary)
    with pytest.raises(FileNotFoundError, match=r"^`data` x does not exist\. What it may be: sodeep compare --help\.$"):
        Line.load("x")
    with pytest.raises(TypeError, match="semantic"):
        Line.load(semantic="cider")


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """No lines about how far it is, which come by the clock."""
    monkeypatch.setattr(progress, "FIRST", math.inf)


def run(*arguments, jobs=1):
    return CliRunner().invoke(main, ["compare", *map(str, arguments), *([] if jobs is None else ["--jobs", str(jobs)])])


def test_command(tmp_path):
    out = tmp_path / "out"
    options = ["--loss", "l1", "--baseline", "mse", "--seeds", 2, "--max-steps", 12, "--out", out]
    result = run("memorability", *options)
    assert result.exit_code == 0, result.output
    assert (
        len(
            re.findall(
                r"^(mse|l1), seed [01]: Spearman [-0-9.]+ \(lr [0-9.]+, weight_decay [0-9.]+\)$",
                result.stdout,
                re.MULTILINE,
            )
        )
        == 4
    )
    assert re.search("^mse +[\N{MINUS SIGN}0-9.]+ ± .* baseline ", result.stdout, re.MULTILINE)
    for name in ("report.md", "report.json", "report.html"):
        assert f"{out / name}" in result.stdout
        assert (out / name).stat().st_size > 0
    again = run("memorability", *options, "--quiet")
    assert again.exit_code == 0
    assert again.stdout in result.stdout


def test_help_names_the_layouts_that_each_task_reads():
    text = " ".join(CliRunner().invoke(main, ["compare", "--help"], terminal_width=100).output.split())
    for task, task_class in TASKS.items():
        assert (f"--data of {task}:" in text) == bool(task_class.layouts)
        for name, layout in task_class.layouts.items():
            assert f"{name} {' '.join(layout.expects.split())}" in text
    for name in (*LOSSES, *(f"{loss}:RANK" for loss in RANK_LOSSES), *(f"peer:{peer}" for peer in PEERS)):
        assert re.search(rf" {name}(,| )", text.partition("--loss for")[2])
    for rank in RANKS:
        assert f" {rank}," in text.partition("RANK in --loss:")[2]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (["--loss", "l1", "--baseline", "mse"], "mse is compared too, as the baseline.\n"),
        (["--loss", "l1,mse"], "l1 is compared too, which l1,mse starts from.\n"),
        (["--loss", "l1", "--loss", "mse", "--baseline", "mse"], ""),
    ],
)
def test_a_loss_that_is_compared_though_none_named_it_is_said(losses, said, tmp_path):
    options = [*losses, "--seeds", 1, "--trials", 1, "--max-steps", 4, "--out", tmp_path]
    for expected in (said, ""):  # the second time nothing is to be done
        result = run("memorability", *options)
        assert result.exit_code == 0, result.output
        assert result.stdout.partition("loss ")[0] == expected if expected else "compared too" not in result.stdout
    assert "compared too" not in run("memorability", *options, "--seeds", 2, "--quiet").stdout


def test_no_tested_run_is_a_failure(bad_losses, tmp_path):
    options = ["--loss", f"{bad_losses}:raises", "--seeds", 1, "--max-steps", 12, "--out", tmp_path / "out"]
    result = run("memorability", *options)
    assert result.exit_code == 1
    assert result.stderr == "Error: No loss could be trained and tested.\n"
    assert re.search(rf"^{bad_losses}:raises +failed$", result.stdout, re.MULTILINE)
    assert (tmp_path / "out/report.md").exists()
    assert run("memorability", *options, "--loss", "mse").exit_code == 0


def test_command_names_the_columns_of_a_table(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["id;age;weight;rt", *(f"x{i};{i % 7};{i % 5};{i / 40}" for i in range(40))]))
    options = ["--data", path, "--loss", "mse", "--seeds", 1, "--max-steps", 12, "--out", tmp_path / "out"]
    result = run("memorability", *options, "--target", "rt", "--predictor", "age", "--predictor", "weight")
    assert result.exit_code == 0, result.output
    assert "\nmemorability on my, rt: " in result.stdout
    result = run("memorability", *options, "--target", "RT")
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: `target` must be in '{path}', got 'RT' for the columns id, age, weight, rt (apart by semicolons). "
        "Is it 'rt'?\n",
    )


def test_a_loss_of_the_form_of_pytorch_metric_learning(tmp_path, monkeypatch):
    (tmp_path / "pml_of_a_test.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def forward(self, embeddings, labels):\n"
        "        assert embeddings.ndim == 2 and labels.ndim == 1\n"
        "        return embeddings.square().mean()\n"
    )
    monkeypatch.chdir(tmp_path)
    name = "pml_of_a_test:Mine"
    runs = compare("retrieval", [name], out=tmp_path / "out", seeds=1, max_steps=12)
    assert {run.status for run in runs} == {"ok"}
    expected = (
        f"`loss` must fit the memorability task, got '{name}', a loss with another call signature. It is called as "
        "loss(embeddings (n, d), labels (n,)), this task calls loss(scores (n,), target (n,)) or loss(scores (n,), "
        "ranks of the target among those of the training split (n,)) or loss(scores (n,), normal scores of the "
        "target (n,)). Those compared by default are "
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected)):
        compare("memorability", [name], out=tmp_path / "other")
    text = " ".join(CliRunner().invoke(main, ["compare", "--help"], terminal_width=100).output.split())
    assert "in retrieval as loss(embeddings, labels) if its first argument is named embeddings" in text


def test_command_writes_for_tensorboard(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "my runs"
    options = ["--loss", "mse", "--max-steps", 12, "--out", out, "--tensorboard"]
    result = run("memorability", "--seeds", 1, *options)
    assert result.exit_code == 0, result.output
    assert f"\nTensorBoard: tensorboard --logdir '{out / 'tensorboard'}'\n" in result.stdout
    again = run("memorability", "--seeds", 2, *options)  # replaces it: never old and new as one
    assert again.exit_code == 0, again.output
    board = out / "tensorboard/memorability"
    assert [len(list(folder.glob("events.*"))) for folder in (board, board / "mse")] == [1, 1]


def test_one_process_for_each_core_unless_said_otherwise(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(comparison, "compare", lambda *_, jobs, **__: asked.append(jobs) or [])  # stops there
    for cores, gpu, device, jobs in (
        (3, False, "auto", None),
        (64, False, "cpu", None),
        (3, True, "auto", None),
        (3, True, "cpu", None),
        (3, True, "cuda", None),
        (3, True, "auto", 2),
    ):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        run("memorability", "--device", device, "--out", tmp_path, jobs=jobs)
    assert asked == [3, 8, 1, 3, 1, 2]


def test_the_first_seed_searches_for_all_unless_said_otherwise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(
        comparison, "compare", lambda *_, seeds, search_seeds, **__: asked.append((seeds, search_seeds)) or []
    )
    for options in ([], ["--search-seeds", 0], ["--seeds", 3, "--search-seeds", 2]):
        run("memorability", *options)
    assert asked == [(5, 1), (5, None), (3, 2)]


def test_the_queries_of_in_shop_are_searched_in_its_gallery(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    lines = ["image_name item_id evaluation_status"]
    rng = np.random.default_rng(0)
    for item in range(20):
        for view, part in enumerate(("train",) * 4 if item < 12 else ("query", "gallery", "gallery")):
            name = f"img/{item}/{view}.jpg"
            lines.append(f"{name} id_{item:08} {part}")
            (tmp_path / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "shop" / name)
    (tmp_path / "shop/list_eval_partition.txt").write_text("\n".join([str(len(lines) - 1), *lines]))
    options = ["--loss", "smooth-ap", "--seeds", 1, "--max-steps", 2, "--trials", 2, "--batch-size", 16]
    result = run("retrieval", "--data", tmp_path / "shop", "--out", tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    assert "retrieval on In-shop Clothes Retrieval" in result.stdout
    (test,) = (found for found in read_runs(tmp_path / "out") if found.stage == "test")
    with np.load(tmp_path / "out" / test.details) as arrays:
        x, labels = arrays["embeddings"].astype(np.float64), arrays["embedding_labels"]
        assert arrays["ap"].shape == (8,)  # queries
        assert arrays["strip_images"].shape == (16, 10, 64, 64, 3)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    first = [labels[8:][(x[8:] @ query).argmax()] == label for query, label in zip(x[:8], labels[:8], strict=True)]
    assert test.metrics["R@1"] == pytest.approx(np.mean(first))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["memory"],
            "Error: `task` must be one of retrieval, cross-modal, memorability, multi-label, ranking, toy, got "
            "'memory'.\n",
        ),
        (
            ["toy", "--loss", "mse"],
            "Error: `loss` must fit the toy task, got 'mse', a loss with another call signature. ",
        ),
        (
            ["toy", "--loss", "mpa:laplace"],
            "Error: `loss` must be a name that sodeep compare --help lists, got 'mpa:laplace'. Is it 'map:laplace'?\n",
        ),
        (
            ["toy", "--loss", "no_module_of_mine:Loss"],
            "Error: `loss` must name a module that is installed or in ",
        ),
        (
            ["retrieval", "--data", "gone"],
            "Error: `data` gone does not exist. What it may be: sodeep compare --help.\n",
        ),
    ],
)
def test_mistakes_are_one_message(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(expected)
    assert "Traceback" not in result.output


def observed_progress(monkeypatch, terminal=False):
    """A `_Progress` whose clock is set by hand, and what it has said."""
    monkeypatch.setattr(progress, "FIRST", 5.0)
    clock, out, err = [0.0], [], io.StringIO()
    err.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(compare_cli.click, "echo", out.append)
    return compare_cli._Progress(clock=lambda: clock[0]), clock, out, err


PLAN = comparison.Plan(
    trainings={"mse": 8, "recall:set": 8},
    tests={"mse": 2, "recall:set": 2},
    seconds_per_step={"mse": 0.001, "recall:set": 0.04},
    seconds_per_training={"mse": 1.0, "recall:set": 49.0},
    seconds_per_test=10.0,
    jobs=2,
)
"""220 s, twice 220 s of work."""


def test_how_far_it_is_where_there_is_no_terminal(monkeypatch):
    progress, clock, out, err = observed_progress(monkeypatch)
    progress.begin(PLAN)
    assert out.pop().splitlines() == [
        "loss        ms/step  a training  trainings",
        "mse             1.0         1 s          8",
        "recall:set     40.0        49 s          8",
        "16 trainings, 4 tests: about 4 min in 2 processes",
    ]
    training = Run("memorability", "d", "recall:set", 0, {"lr": 0.1}, "tuning", "ok")
    clock[0] = 4
    progress(training, 1, 20)
    assert err.getvalue() == ""
    clock[0] = 49
    progress(training, 2, 20)
    said = "training: 22%, about 2:51 left; 2 of 20 runs\n"
    assert err.getvalue() == said  # 98 s of work in 49 s, 342 s to do
    clock[0] = 50
    progress(training, 3, 20)
    assert err.getvalue() == said
    assert out == []


def test_fine_tunings_are_counted(monkeypatch):
    progress, _, out, _ = observed_progress(monkeypatch)
    tuned = {"seconds_per_fine_tuning": {"mse": 95.0, "recall:set": None}, "least": 0.25}
    progress.begin(dataclasses.replace(PLAN, **tuned))
    assert out.pop().splitlines() == [
        "loss        ms/step  a training  trainings  a fine-tuning  fine-tunings",
        "mse             1.0         1 s          8          2 min             2",
        "recall:set     40.0        49 s          8              -             -",
        "16 trainings, 2 fine-tunings, 4 tests: about 2 min to 5 min in 2 processes",
    ]
    progress(Run("memorability", "d", "mse", 0, {"lr": 0.1}, "test", "ok", {"Spearman": 0.5}), 1, 20)
    assert progress.spent == 105


def test_the_line_on_a_terminal_is_cleared_and_the_cursor_left_alone(monkeypatch):
    progress, clock, out, err = observed_progress(monkeypatch, terminal=True)
    progress.begin(PLAN)
    clock[0] = 1
    progress(made_up("mse", [0.5])[0], 1, 20)
    progress.close()
    assert out[1:] == ["mse, seed 0: Spearman 0.500 (lr 0.1)"]
    clear = "\r\033[K"
    assert err.getvalue().split(clear) == [
        "",
        "training: 0%; about 4 min to go",
        "",
        "training: 2%; 1 of 20 runs",
        "",
    ]
    assert "\033[?25" not in err.getvalue()


def test_a_closed_output_stops_the_command_in_one_line(tmp_path, monkeypatch):
    echo = compare_cli.click.echo

    def closed(text, err=False, **options):
        if not err and "seed 0" in text:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        echo(text, err=err, **options)

    monkeypatch.setattr(compare_cli.click, "echo", closed)
    options = ["memorability", "--loss", "mse", "--seeds", 1, "--max-steps", 12, "--out", tmp_path]
    result = run(*options)
    expected = "Stopped: the output cannot be written (Broken pipe). What is done is kept in "
    assert (result.exit_code, result.stderr) == (1, f"{expected}{tmp_path}: start again to go on.\n")
    assert len(read_runs(tmp_path)) == 5
    monkeypatch.setattr(compare_cli.click, "echo", echo)
    assert run(*options).exit_code == 0


def test_warnings_are_one_line(finished, tmp_path):
    out = copied(finished, tmp_path)
    with (out / "runs.jsonl").open("ab") as file:
        file.write(b"{\n")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = run(
            "memorability", "--loss", "mse", "--seeds", 2, "--search-seeds", 0, "--max-steps", 12, "--out", out
        )
    expected = "set aside in damaged.jsonl, and what is missing is done again."
    assert result.stderr == f"Note: 1 line is damaged in {out / 'runs.jsonl'}: {expected}\n"
    assert result.exit_code == 0


def test_a_log_that_cannot_be_written_leaves_the_old_one(finished, tmp_path, monkeypatch):
    out = copied(finished, tmp_path)
    (out / "tensorboard/old").mkdir(parents=True)

    def full(comparison, figures, board):
        (board / "memorability").mkdir(parents=True)
        raise OSError(errno.ENOSPC, "No space left on device", str(board / "events"))

    monkeypatch.setattr("sodeep.report.tensorboard.write_tensorboard", full)
    monkeypatch.setattr("sodeep.report.write.draw_figures", lambda *_: ([], []))
    result = run(
        "memorability",
        "--loss",
        "mse",
        "--seeds",
        2,
        "--search-seeds",
        0,
        "--max-steps",
        12,
        "--out",
        out,
        "--tensorboard",
    )
    assert result.exit_code == 1
    assert re.fullmatch(r"Error: No space left on device: \S+/events\n", result.stderr)
    assert re.search("^mse .*baseline", result.stdout, re.MULTILINE)
    assert (out / "tensorboard/old").exists()
    assert list(out.glob(".*")) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_killed_comparisons_end_as_others_do(run_script):
    """Many more kills are made by the script itself; the moments of these are the same everywhere."""
    pytest.importorskip("matplotlib")
    script = Path(__file__).parents[2] / "scripts/kill_compare.py"
    options = ["--kills", "2", "--seed", "1", "--files-only"]
    status, output = run_script(script, *options)
    assert status == 0, output
    assert re.fullmatch(
        r"2 kills, \d+ comparisons?: all equal to one without kills, nothing left over; \d+ s\n", output
    )


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("signum", "jobs"),
    [(signal.SIGINT, 1), (signal.SIGTERM, 2)],  # SIGHUP: tests/test_signals.py
)
def test_a_signal_keeps_what_is_done(tmp_path, signum, jobs):
    with started(tmp_path, jobs) as process:
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)  # the workers too have let go of stderr
    assert process.returncode == 128 + signum
    assert re.fullmatch(
        rf"(training: .*\n)*\nStopped\. \d+ of 83 runs are kept in {re.escape(str(tmp_path))}: "
        r"start again to go on\.\n",
        errors,
    )
    assert len(read_runs(tmp_path)) >= 1


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_workers_end_with_their_parent(tmp_path):
    with started(tmp_path, jobs=2) as process:
        process.kill()
        process.communicate(timeout=60)  # until no worker holds stderr


@contextlib.contextmanager
def started(out, jobs):
    """A long comparison in a process of its own, with a first run done."""
    # a process started in the background ignores SIGINT, and so do its children until they say otherwise
    command = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command += "from sodeep.cli import main\nif __name__ == '__main__':\n    main()"
    options = ["--loss", "mse", "--seeds", "40", "--max-steps", "240", "--jobs", str(jobs), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", command, "compare", "memorability", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    runs = out / "runs.jsonl"
    try:
        for _ in range(600):
            if runs.exists() and runs.stat().st_size:
                break
            time.sleep(0.1)
        yield process
    finally:
        process.kill()


def test_the_settings_of_a_comparison_rise_for_all_of_its_losses(tmp_path):
    def run(losses, trials):
        return compare("toy", losses, out=tmp_path, seeds=1, trials=trials, max_steps=2)

    run(["bce", "hinge"], 1)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")}
    message = (
        f"`losses` must name hinge as well where `trials` rises from 1 to 2 in {tmp_path}: all its losses have as many "
        "settings. Or choose another folder."
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        run(["bce", "svm"], 2)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")} == kept
    assert [done.stage for done in run(["bce", "hinge"], 2)].count("tuning") == 4
