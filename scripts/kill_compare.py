#!/usr/bin/env python3
"""Kill comparisons at random moments, and compare what they end with to one that was left alone.

    scripts/kill_compare.py --kills 100 --seed 0   # some minutes on one core

A small comparison with a TensorBoard log is started, killed (SIGKILL) and started again on the same folder until it
ends by itself; then another begins, until so many have been killed. The moment of a kill is drawn: every other one is a
time; the others, which are the same on every machine, the n-th time that a file of the comparison is opened, renamed or
removed. In the end every file must be as it is without kills, byte by byte, and no other file may be there. Of the
TensorBoard log only the time of each entry may differ. The clock is replaced, since runs say how long a step took.

Needs fork.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import click

OUT = Path("out")
COMMAND = [
    "compare",
    "memorability",
    "--loss",
    "mse",
    "--loss",
    "spearman:laplace",
    "--seeds",
    "1",
    "--max-steps",
    "12",
]
COMMAND += ["--jobs", "1", "--tensorboard", "--out", str(OUT)]
HEAVY = ["sodeep.comparison", "sodeep.report.figures", "sodeep.report", "torch.utils.tensorboard"]
HEAVY += ["torch._dynamo", "scipy.stats.qmc"]  # of every optimizer, of every search
"""Imported once, not in every process."""
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


def start(kill_at: int | None = None, kill_after: float | None = None) -> bool:
    """Run the command in a process of its own; whether it ended by itself.

    It is killed before the file event `kill_at`, counted from 1, or after `kill_after` seconds. The number of file
    events of one that ended is left in the file `events`.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = _command(kill_at)
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise click.ClickException(f"The comparison ended with an error: {Path('log').read_text()}")
    return os.WIFEXITED(status)


def _command(kill_at: int | None) -> int:
    """Run the command in the child; its exit status."""
    from sodeep.cli.group import main
    from sodeep.comparison import schedule, train

    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ticks = iter(range(10**9))
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 1024)
    schedule.time = train.time = clock  # type: ignore[assignment,attr-defined]
    events = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        if event in FILE_EVENTS and isinstance(arguments[0], (str, os.PathLike)) and OUT in _above(arguments[0]):
            events += 1
            if events == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    sys.argv = ["sodeep", *COMMAND]
    main(COMMAND, standalone_mode=False)
    Path("events").write_text(str(events))
    return 0


def _above(path: str | os.PathLike[str]) -> list[Path]:
    """The path and all folders above it, as seen from here."""
    here = Path(os.path.relpath(path))
    return [here, *here.parents]


def contents() -> dict[str, Any]:
    """File -> what is in it, of the folder of the comparison."""
    files: dict[str, Any] = {}
    for path in sorted(OUT.rglob("*")):
        if path.is_dir():
            files[str(path)] = None
        elif "tfevents" in path.name:
            name = str(path.parent / "events")  # with time and process in it
            files[name] = [*files.get(name, []), list(_logged(path))]
        else:
            files[str(path)] = path.read_bytes()
    return files


def _logged(path: Path) -> Iterator[bytes]:
    """The entries of a TensorBoard log, without their times."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for event in EventFileLoader(str(path)).Load():
        event.wall_time = 0
        yield event.SerializeToString(deterministic=True)


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The differences of a folder from the expected one, in words."""
    wrong = [f"{name} is left over" for name in actual.keys() - expected.keys()]
    wrong += [f"{name} is missing" for name in expected.keys() - actual.keys()]
    wrong += [f"{name} differs" for name in actual.keys() & expected.keys() if actual[name] != expected[name]]
    return sorted(wrong)


@click.command(help=__doc__)
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--files-only", is_flag=True, help="No kills after a time, which differ from machine to machine.")
def main(kills: int, seed: int, files_only: bool) -> None:
    for heavy in HEAVY:
        importlib.import_module(heavy)
    draw = random.Random(seed)
    begun = time.monotonic()
    killed = ended = 0
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        start()
        seconds, events, expected = time.monotonic() - begun, int(Path("events").read_text()), contents()
        shutil.rmtree(OUT)
        while killed < kills or OUT.exists():
            moment: dict[str, Any] = {}
            if killed < kills:
                by_time = killed % 2 == 1 and not files_only
                moment = {"kill_after": draw.uniform(0, seconds)} if by_time else {"kill_at": draw.randint(1, events)}
            if start(**moment):
                wrong += [f"comparison {ended}: {difference}" for difference in differences(contents(), expected)]
                ended += 1
                shutil.rmtree(OUT)
            else:
                killed += 1
    for difference in wrong:
        click.echo(difference)
    verdict = f"{len(wrong)} differences" if wrong else "all equal to one without kills, nothing left over"
    click.echo(f"{killed} kills, {ended} comparisons: {verdict}; {time.monotonic() - begun:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
