"""scripts/fuzz_files.py and scripts/kill_training.py: a small version of each, and that they see what they look for."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scripts read /proc")
pytest.importorskip("PIL")


def test_damaged_files_are_one_message(run_script):
    status, output = run_script(SCRIPTS / "fuzz_files.py", "--files", "37", "--seed", "1")
    assert status == 0, output
    assert output.endswith("37 files, 0 faults\n")


def test_killed_training_ends_up_as_if_it_had_not_been(run_script):
    status, output = run_script(SCRIPTS / "kill_training.py", "--kills", "2", "--seed", "1")
    assert status == 0, output
    assert output.startswith("2 kills of ")
    assert output.endswith(": 0 differences from a run that was never stopped in weights, log and files\n")


@pytest.fixture(scope="module")
def fuzz():
    spec = spec_from_file_location("fuzz_files", SCRIPTS / "fuzz_files.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runs(path, folder):
    (folder / "ran").touch()


def unnamed(path, folder):
    raise ValueError("It is damaged.")


def named(path, folder):
    raise ValueError(f"{path} is damaged.")


def traceback(path, folder):
    raise KeyError(path)


def memory(path, folder):
    return len(bytearray(os.urandom(2**20) * 250))


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (named, ""),
        (unnamed, "a message that does not name the file: ValueError: It is damaged."),
        (traceback, "traceback: KeyError at traceback: "),
        (memory, "memory: "),
        (runs, "it ran"),
    ],
)
def test_faults_are_seen(fuzz, tmp_path, read, fault):
    path = tmp_path / "x"
    path.write_bytes(b"data")
    found = fuzz.try_file(read, path, tmp_path)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def hangs(path, folder):
    while True:
        pass


def crashes(path, folder):
    os.abort()


@pytest.mark.parametrize(("read", "fault"), [(hangs, "hang: more than 0.2 s"), (crashes, "crash: ended with -6")])
def test_a_child_that_dies_is_a_fault_and_the_next_goes_on(fuzz, tmp_path, monkeypatch, read, fault):
    def read_second(path, folder):
        return read(path, folder) if path.read_bytes() == b"2" else None

    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setitem(fuzz.FORMATS, "text", (None, read_second, None))

    def make(name, number, seed, temporary, goods):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "x").write_text(str(number))
        return folder / "x", folder

    monkeypatch.setattr(fuzz, "make", make)
    assert sorted(fuzz.results("text", [1, 2, 3], 0, tmp_path, {})) == [(1, ""), (2, fault), (3, "")]
