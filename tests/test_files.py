"""Locks, and what killed processes leave behind."""

import subprocess
import sys

import pytest

from sodeep._files import sole_writer, sweep


def test_a_lock_is_held_by_one_and_dies_with_its_process(tmp_path):
    pytest.importorskip("fcntl")
    lock = tmp_path / ".lock"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sodeep._files import sole_writer\n"
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
