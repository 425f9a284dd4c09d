"""Whole files, locks, and what killed processes leave behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sodeep._core import files
from sodeep._core.files import sole_writer, sweep, write_atomic


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file_and_nothing_else(step, tmp_path, monkeypatch):
    path = write_atomic(tmp_path / "file", b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'$"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_sweeps_what_killed_writers_left(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    names = [".file.0123abcd.tmp", ".file.4567cdef.tmp", ".file.run.0123abcd.tmp", ".file2.0123abcd.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with (tmp_path / names[1]).open("rb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        write_atomic(tmp_path / "file", b"data")
    assert sorted(os.listdir(tmp_path)) == sorted(["file", *names[1:]])


def test_a_writer_is_safe_from_others_that_sweep(tmp_path, monkeypatch):
    """Swept while it writes, where it holds the lock; and in the moment before."""
    pytest.importorskip("fcntl")
    lock, fsync = files._lock, os.fsync
    taken = []

    def late(file, wait):
        if wait and not taken:
            taken.append(file.name)
            sweep(tmp_path / "file")
            assert not Path(file.name).exists()
        return lock(file, wait)

    def sweep_meanwhile(descriptor):
        fsync(descriptor)
        sweep(tmp_path / "file")

    monkeypatch.setattr(files, "_lock", late)
    monkeypatch.setattr(os, "fsync", sweep_meanwhile)
    write_atomic(tmp_path / "file", b"data")
    assert len(taken) == 1
    assert (tmp_path / "file").read_bytes() == b"data"
    assert os.listdir(tmp_path) == ["file"]


def test_write_goes_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomic(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"data"


def test_a_lock_is_held_by_one_and_dies_with_its_process(tmp_path):
    pytest.importorskip("fcntl")
    lock = tmp_path / ".lock"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sodeep._core.files import sole_writer\n"
        "with sole_writer(Path(sys.argv[1]), 'taken'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FileExistsError, match=r"^taken$"), sole_writer(lock, "taken"):
            pass
        holder.kill()
    assert lock.exists()
    with sole_writer(lock, "taken"):
        pass
    assert not lock.exists()


def test_a_lock_that_its_holder_removed_is_no_lock(tmp_path, monkeypatch):
    """Between opening the file and locking it, its holder may end: then the file locked is no longer there."""
    fcntl = pytest.importorskip("fcntl")
    lock, flock, calls = tmp_path / ".lock", fcntl.flock, []

    def ends_meanwhile(*arguments):
        if not calls:
            lock.unlink()
        calls.append(arguments)
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", ends_meanwhile)
    with sole_writer(lock, "taken"), pytest.raises(FileExistsError, match=r"^taken$"), sole_writer(lock, "taken"):
        pass
    assert len(calls) == 3


def test_sweep_leaves_what_is_not_temporary(tmp_path):
    kept = ["a.tmp", ".a.tmp", "a.0123abcd.tmp", ".a.0123abcd", ".a.0123ABCD.tmp", "a-0123abcd.npz"]
    for name in [*kept, ".a.safetensors.0123abcd.tmp", "a-0123abcd.17.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / ".board.0123abcd.tmp/run").mkdir(parents=True)
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    sweep(tmp_path / "nowhere")
