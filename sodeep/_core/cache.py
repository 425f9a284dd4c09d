"""Arrays that take long to compute, kept between runs in the user's cache folder.

A file is an npy array and a checksum behind it. One that is damaged is computed again, and all may be deleted at any
time.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from sodeep._core.arrays import Array
from sodeep._core.checks import user_path
from sodeep._core.files import open_atomic

_CHECKSUM = 4  # bytes behind the array: CRC-32 of all before them


def cache_folder() -> Path:
    """What SODEEP_CACHE names, or ``sodeep`` where the system keeps what programs can compute again."""
    if os.environ.get("SODEEP_CACHE"):
        return user_path(os.environ["SODEEP_CACHE"])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "sodeep/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/sodeep"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sodeep"


def cached_rows(name: str, count: int, compute: Callable[[], Iterable[Array]], remedy: str = "") -> Array:
    """The rows of the file `name` in the cache folder; where it is missing or damaged, computed and kept there.

    Args:
        name: of the file; all that the rows depend on must be in it, by a checksum say.
        count: how many rows.
        compute: gives them in order, in arrays of some each.
        remedy: what else helps where they do not fit the disk, a sentence.

    Returns:
        (count, ...), mapped into memory: rows are read from the disk as they are used. Writing to it changes no file.

    Raises:
        OSError: the folder cannot be written to, or lacks the space.
    """
    path = cache_folder() / name
    rows = _read(path, count)
    if rows is None:
        _check_folder(path.parent)
        _write(path, count, compute(), remedy)
        rows = _read(path, count)
        if rows is None:
            raise OSError(f"{path} was changed by another program while it was written. Start again.")
    return rows


def _check_folder(folder: Path) -> None:
    """Make it; the work whose result goes there is long."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
    except OSError as error:
        raise type(error)(
            f"`SODEEP_CACHE` must be a folder that can be written to, got {folder}: {error.strerror}."
        ) from None


def _write(path: Path, count: int, parts: Iterable[Array], remedy: str) -> None:
    checksum = 0
    with open_atomic(path) as file:
        for part in map(np.ascontiguousarray, parts):
            if not checksum:
                data = _header((count, *part.shape[1:]), part.dtype)
                _check_space(path.parent, count * part[0].nbytes, remedy)
                checksum = zlib.crc32(data)
                file.write(data)
            checksum = zlib.crc32(part.data.cast("B"), checksum)
            file.write(part.data)
        file.write(checksum.to_bytes(_CHECKSUM, "little"))


def _header(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> bytes:
    """That of an npy file."""
    file = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


def _check_space(folder: Path, needed: int, remedy: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"`SODEEP_CACHE` must be a folder with {needed / 1e9:.2g} GB free, got {folder} with {free / 1e9:.2g} GB. "
            f"Set it to a folder on another disk{', or ' * bool(remedy)}{remedy}."
        )


def _read(path: Path, count: int) -> Array | None:
    """The array of a file; None where it is missing, damaged, or of another number of rows."""
    try:
        left, checksum = path.stat().st_size - _CHECKSUM, 0
        with path.open("rb") as file:
            while left > 0:
                part = file.read(min(left, 2**24))
                if not part:  # it became shorter
                    return None
                left -= len(part)
                checksum = zlib.crc32(part, checksum)
            if file.read() != checksum.to_bytes(_CHECKSUM, "little"):
                return None
        rows: Array = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError):
        return None
    return rows if len(rows) == count else None
