"""Arrays kept between runs: computed once, and again where the file is damaged."""

import os
import re
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from sodeep._core.cache import cache_folder, cached_rows

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Computed:
    """Gives the rows, and counts how often."""

    def __init__(self, rows=ROWS):
        self.rows, self.times = rows, 0

    def __call__(self):
        self.times += 1
        yield from (self.rows[:4], self.rows[4:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_rows_are_computed_once(cache, dtype):
    compute = Computed(np.asfortranarray(ROWS.astype(dtype)))
    for _ in range(3):
        found = cached_rows("x.npy", 6, compute)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, ROWS.astype(dtype))
        found[0] = 7  # in this process alone
    assert compute.times == 1
    assert os.listdir(cache) == ["x.npy"]
    np.testing.assert_array_equal(np.load(cache / "x.npy"), ROWS.astype(dtype))


def test_other_names_and_numbers_of_rows_are_other_arrays(cache):
    compute = Computed()
    cached_rows("x.npy", 6, compute)
    cached_rows("y.npy", 6, compute)
    assert compute.times == 2
    more = Computed(np.concatenate([ROWS, ROWS]))
    np.testing.assert_array_equal(cached_rows("x.npy", 12, more), more.rows)
    assert more.times == 1


def test_a_damaged_file_is_computed_again(cache):
    compute = Computed()
    cached_rows("x.npy", 6, compute)
    whole = (cache / "x.npy").read_bytes()
    damaged = [whole[:n] for n in (0, 3, 60, 130, len(whole) - 1)] + [whole + b"x", b"<html>"]
    for place in range(0, len(whole), 7):
        damaged.append(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
    for times, content in enumerate(damaged, 2):
        (cache / "x.npy").write_bytes(content)
        np.testing.assert_array_equal(cached_rows("x.npy", 6, compute), ROWS)
        assert compute.times == times
        assert (cache / "x.npy").read_bytes() == whole


@pytest.mark.parametrize("error", [ValueError("no image"), FileNotFoundError(2, "No such file", "a.png")])
def test_an_error_of_the_computation_is_passed_on_and_leaves_no_file(cache, error):
    def compute():
        yield ROWS[:4]
        raise error

    with pytest.raises(type(error)) as caught:
        cached_rows("x.npy", 6, compute)
    assert caught.value is error
    assert os.listdir(cache) == []


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path / "file/cache"))
    compute = Computed()
    expected = (
        f"`SODEEP_CACHE` must be a folder that can be written to, got {tmp_path / 'file/cache'}: Not a directory."
    )
    with pytest.raises(NotADirectoryError, match="^" + re.escape(expected) + "$"):
        cached_rows("x.npy", 6, compute)
    assert compute.times == 0


def test_a_folder_that_is_not_ours(cache, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    expected = f"`SODEEP_CACHE` must be a folder that can be written to, got {cache}: Permission denied."
    with pytest.raises(PermissionError, match="^" + re.escape(expected) + "$"):
        cached_rows("x.npy", 6, Computed())


@pytest.mark.parametrize(("remedy", "end"), [("", "."), ("take fewer", ", or take fewer.")])
def test_a_disk_without_the_space(cache, monkeypatch, remedy, end):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(47))
    expected = (
        f"`SODEEP_CACHE` must be a folder with 4.8e-08 GB free, got {cache} with 4.7e-08 GB. "
        f"Set it to a folder on another disk{end}"
    )
    with pytest.raises(OSError, match="^" + re.escape(expected) + "$"):
        cached_rows("x.npy", 6, Computed(), remedy)
    assert os.listdir(cache) == []


@pytest.mark.parametrize(
    ("system", "variables", "folder"),
    [
        ("linux", {}, "{home}/.cache/sodeep"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/sodeep"),
        ("darwin", {"XDG_CACHE_HOME": "/fast"}, "{home}/Library/Caches/sodeep"),
        ("win32", {}, "{home}/AppData/Local/sodeep/Cache"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/sodeep/Cache"),
        ("linux", {"SODEEP_CACHE": "~/mine"}, "{home}/mine"),
        ("win32", {"SODEEP_CACHE": "/mine"}, "/mine"),
    ],
)
def test_the_folder_is_that_of_the_system(monkeypatch, tmp_path, system, variables, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SODEEP_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert cache_folder() == Path(folder.format(home=tmp_path))
