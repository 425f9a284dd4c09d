"""Arrays read from npy and npz files that are not trusted.

`numpy.load` allocates the memory that a header declares before it looks at what follows. Here a shape must fit the
bytes that are there, objects and records are refused, and whatever is wrong with a file is a ValueError.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_MOST_INFLATED = 128 * 2**20  # bytes that a compressed npz may become, and _MOST_RATIO times its size more
_MOST_RATIO = 20


def read_npy(path: Path) -> Array:
    """The array of numbers or strings in the npy file `path`.

    Raises:
        ValueError: another kind of file, a damaged one, or one of objects; the message says what was found.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _read_array(file, path.stat().st_size)


def npz_names(path: Path) -> list[str]:
    """The names of the arrays in the npz file `path`. Raises as `read_npz`."""
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise ValueError("a single array")
        try:
            with zipfile.ZipFile(file) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        except Exception as error:  # whatever damaged bytes lead the reader of archives to
            raise _damaged(error) from None


def read_npz(path: Path, names: Collection[str]) -> dict[str, Array]:
    """The named arrays in the npz file `path`, those that are there.

    Raises:
        ValueError: no npz, a damaged one, or objects in it; the message says what was found.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                wanted = {name: members[name] for name in names if name in members}
                total = sum(member.file_size for member in wanted.values())
                if total > _MOST_INFLATED + _MOST_RATIO * size:
                    raise ValueError(f"it would become {total / 2**20:.0f} MiB, {total / size:.0f} times its size")
                arrays = {}
                for name, member in wanted.items():
                    with archive.open(member) as stream:
                        arrays[name] = _read_array(stream, member.file_size)
                return arrays
        except ValueError as error:
            raise error from None
        except Exception as error:
            raise _damaged(error) from None


def _damaged(error: Exception) -> ValueError:
    text = str(error).strip("'\"").rstrip(".") or type(error).__name__
    return ValueError(f"it is no npz file, or a damaged one ({text})")


def _read_array(stream: IO[bytes], size: int) -> Array:
    """The array of an npy stream of `size` bytes."""
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read_header[version](stream)
    except Exception as error:  # a header is Python text, and damaged in as many ways
        raise ValueError(f"it is no npy array, or a damaged one ({_first_line(error)})") from None
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        content = "Python objects, which are not unpickled" if dtype.hasobject else f"the type {dtype}"
        raise ValueError(f"it holds {content}: save numbers or strings")
    remaining = size - stream.tell()
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != remaining:
        raise ValueError(
            f"it is truncated or damaged ({remaining} bytes for an array of shape {shape} and type {dtype})"
        )
    data = np.empty(math.prod(shape), dtype)
    if len(data):
        view = memoryview(data.view(np.uint8))  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            count = stream.readinto(view[done : done + 2**24])  # type: ignore[attr-defined]
            if not count:
                raise ValueError(f"it is truncated or damaged ({done} bytes of {len(view)})")
            done += count
    return data.reshape(shape, order="F" if fortran else "C")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip("'\"").rstrip(".")[:200] or type(error).__name__
