#!/usr/bin/env python3
"""Kill train-sorter anywhere, resume it, and see that nothing is lost, double or left over.

    scripts/kill_training.py --kills 100 --seed 0       # some minutes on one core

A short run with a TensorBoard log is killed by SIGKILL at a random call of a function, in Python or in C, in any
thread; half of the times at one that works on a file, between writing and renaming it for example. It is resumed,
killed again, and so on until it ends. Weights and log must then equal those of a run that was never stopped (speeds
apart, which are of the clock), and nothing may lie beside them.
"""

import contextlib
import io
import logging
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import sodeep
from sodeep.training.train import state_path

CONFIG: dict[str, Any] = {"sorter": "mlp", "seq_len": 6, "sorter_config": {"hidden": 8}, "steps": 6, "batch_size": 2}
ON_FILES = {"open", "write", "flush", "fsync", "replace", "unlink"}
SPEED = "throughput/sequences_per_s"


def config() -> sodeep.TrainConfig:
    return sodeep.TrainConfig(**CONFIG, lr=2e-3, validate_every=2, distributions={"normal": 1.0, "ties": 1.0})


def train(folder: Path) -> None:
    """Start, or go on, as a user would."""
    out = folder / "s.safetensors"
    resume = state_path(out).exists()
    if not out.exists() or resume:
        with contextlib.redirect_stdout(io.StringIO()):
            sodeep.train_sorter(config(), out, log_dir=folder / "log", resume=resume, progress=True)


def calls_of(
    function: Callable[..., object], *arguments: object, on_files: bool = False, stop_at: int | None = None
) -> int:
    """How many calls `function` makes, or of those `on_files`; the process kills itself at the number `stop_at`."""
    count = 0

    def profile(frame: object, event: str, argument: Any) -> None:
        nonlocal count
        on_file = event == "c_call" and argument.__name__ in ON_FILES
        if on_file or (not on_files and event in ("call", "c_call")):
            count += 1
            if count == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


def killed(folder: Path, **where: Any) -> bool:
    """Whether a process that trains in `folder` was killed before its end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            calls_of(train, folder, **where)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise click.ClickException(f"A run in {folder} ended with {status}.")
    return status != 0


def log_of(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """Tag -> points, as TensorBoard shows them."""
    log = EventAccumulator(str(folder / "log"), size_guidance={"scalars": 0, "images": 0})
    log.Reload()
    points = {tag: [(e.step, tag == SPEED or e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    return points | {tag: [(e.step, e.encoded_image_string) for e in log.Images(tag)] for tag in log.Tags()["images"]}


def outcome(folder: Path) -> tuple[bytes, dict[str, list[tuple[int, Any]]], list[str]]:
    """Sorter file, log, and what lies beside them."""
    return (folder / "s.safetensors").read_bytes(), log_of(folder), sorted(os.listdir(folder))


@click.command()
@click.option("--kills", default=100, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
def main(kills: int, seed: int) -> None:
    """Kill training KILLS times, and compare what it ends up with."""
    torch.set_num_threads(1)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it reports every purge
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        train(whole)  # what is imported on the way, here once and not in every child
        expected = outcome(whole)
        counts = [calls_of(train, Path(tempfile.mkdtemp(dir=temporary)), on_files=choice) for choice in (False, True)]
        faults: list[str] = []
        done, runs, litter = 0, 0, 0
        while done < kills:
            folder = Path(temporary) / f"run {runs}"
            folder.mkdir()
            runs += 1
            while done < kills:
                on_files = rng.random() < 0.5
                if not killed(folder, on_files=on_files, stop_at=rng.randint(1, counts[on_files])):
                    break
                done += 1
                litter += any(name.endswith(".tmp") for name in os.listdir(folder))
            train(folder)
            names = ("weights", "log", "files")
            different = [n for n, got, right in zip(names, outcome(folder), expected, strict=True) if got != right]
            faults += [f"run {runs}: {name} differ" for name in different]
        click.echo(
            f"{done} kills of {runs} runs, {litter} of which left a temporary file: {len(faults)} differences from a "
            "run that was never stopped in weights, log and files"
        )
        for fault in faults:
            click.echo(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
