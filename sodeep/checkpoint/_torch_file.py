"""Reads what `torch.save` wrote, a dict of tensors and plain values, without unpickling it.

Of the names that such a file may refer to, these few are accepted: `collections.OrderedDict`, the rebuilding of a
dense tensor from a storage of real numbers, and `argparse.Namespace`, which comes back as a dict. A tensor is made only
once the file has the bytes for it. Both formats are read: the zip archive of today, and the one before PyTorch 1.6.
"""

from __future__ import annotations

import io
import math
import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sodeep._core.pickle_stream import Name, NotPlainError, PickleReader, expect

_DTYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.HalfStorage": torch.float16,
    "torch.LongStorage": torch.int64,  # of the counters in batch norms
}

_MOST_MEMBERS = 10_000

_STREAM = 2**20  # bytes of pickle before the numbers, whose length the older format does not say; a few KiB are usual

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # with which the format before the zip begins


def read_torch_file(path: str | os.PathLike[str]) -> Any:
    """The dict (or list, number, ...) that ``torch.save`` wrote to `path`, its tensors on the CPU.

    Raises:
        NotPlainError: another kind of file, a damaged one, or one that holds anything but dense tensors of float16,
            float32, float64 or int64, containers, plain values and an `argparse.Namespace`. Nothing of it has run.
    """
    data = Path(path).read_bytes()
    return _read_zip(data) if data.startswith(b"PK\x03\x04") else _read_legacy(data)


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class _View:
    """A tensor, by where its numbers lie."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Namespace(dict[str, Any]):
    """An `argparse.Namespace`."""


class _Reader(PickleReader):
    others = frozenset({*_DTYPES, "argparse.Namespace"})

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most  # bytes that all tensors together may have
        self.storages: dict[str, _Storage] = {}
        self.read_storage: Callable[[_Storage], Tensor] | None = None
        self.loaded: dict[str, Tensor] = {}
        self.calls = {
            "collections.OrderedDict": lambda: {},  # from nothing: keys are checked as they are set
            "argparse.Namespace": lambda: _Namespace(),
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_parameter": self.parameter,
        }

    def persistent(self, pid: Any) -> _Storage:
        """A storage: ("storage", type, key, place, count), and None for "not a part of another"."""
        tag, dtype, key, _, count, *view = expect(pid, tuple)
        if tag != "storage" or view not in ([], [None]):
            raise NotPlainError("it is damaged (a reference to something other than numbers)")
        name = expect(dtype, Name).name
        if name not in _DTYPES:
            raise NotPlainError(f"it is damaged (numbers of the type {name})")
        if expect(count, int) < 0:
            raise NotPlainError("it is damaged (a negative count)")
        storage = _Storage(expect(key, str), _DTYPES[name], count)
        if self.storages.setdefault(key, storage) != storage:
            raise NotPlainError("it is damaged (the same numbers in two types)")
        return storage

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _View:
        count = expect(storage, _Storage).count
        sizes, strides = expect(size, tuple), expect(stride, tuple)
        numbers = (offset, *sizes, *strides)
        if len(sizes) != len(strides) or len(sizes) > 8 or any(not 0 <= expect(n, int) < 2**63 for n in numbers):
            raise NotPlainError("it is damaged (the shape of a tensor)")
        total = math.prod(sizes)
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        if total > count or (total and last >= count):
            raise NotPlainError(f"a tensor of shape {sizes} is larger than what the file holds of it, {count} numbers")
        self.left -= total * storage.dtype.itemsize
        if self.left < 0:
            raise NotPlainError("its tensors together are larger than the file")
        return _View(storage, offset, sizes, strides)

    def parameter(self, tensor: Any, *_: Any) -> _View:
        view: _View = expect(tensor, _View)
        return view

    def set_state(self, target: Any, state: Any) -> None:
        """The attributes of a Namespace; those of an OrderedDict are ignored, as they are not its entries."""
        if isinstance(target, _Namespace):
            self._set_items(target, [part for item in expect(state, dict).items() for part in item])
        else:
            expect(target, dict)

    def leaf(self, value: Any) -> tuple[Any, int]:
        """See `PickleReader.leaf`."""
        if not isinstance(value, _View):
            return super().leaf(value)
        if self.read_storage is None:
            raise NotPlainError("it is damaged (a tensor before its numbers)")
        if value.storage.key not in self.loaded:
            self.loaded[value.storage.key] = self.read_storage(value.storage)
        return self.loaded[value.storage.key].as_strided(value.size, value.stride, value.offset), 8


def _numbers(storage: _Storage, data: bytes | memoryview) -> Tensor:
    expected = storage.count * storage.dtype.itemsize
    if len(data) != expected:
        raise NotPlainError(f"it is truncated or damaged ({len(data)} bytes of numbers instead of {expected})")
    if not expected:
        return torch.empty(0, dtype=storage.dtype)
    return torch.frombuffer(bytearray(data), dtype=storage.dtype)


def _read_zip(data: bytes) -> Any:
    if data.count(b"PK\x01\x02") > _MOST_MEMBERS:
        raise NotPlainError(f"it is an archive of more than {_MOST_MEMBERS} parts")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_members(archive, len(data))
    except NotPlainError:
        raise
    except Exception as error:  # whatever damaged bytes lead the reader of archives to
        raise NotPlainError(f"it is an archive that is truncated or damaged ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return str(error).strip("'\"").rstrip(".") or type(error).__name__


def _read_members(archive: zipfile.ZipFile, most: int) -> Any:
    members = {member.filename: member for member in archive.infolist()}

    def read(name: str) -> bytes:
        if name not in members:
            raise NotPlainError(f"it is an archive without the part {name[-200:]}")
        if members[name].compress_type != zipfile.ZIP_STORED:
            raise NotPlainError("it is a compressed archive, which torch.save does not write")
        return archive.read(members[name])

    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise NotPlainError("it is an archive of another program than torch.save, or of torch.jit")
    folder = pickles[0].removesuffix("/data.pkl")
    if f"{folder}/byteorder" in members and read(f"{folder}/byteorder") != sys.byteorder.encode():
        raise NotPlainError("it was written on a machine of another byte order")
    stream = read(pickles[0])
    reader = _Reader(most)
    reader.read_storage = lambda storage: _numbers(storage, read(f"{folder}/data/{storage.key}"))
    return reader.finish(reader.load(io.BytesIO(stream), len(stream)))


def _read_legacy(data: bytes) -> Any:
    file = io.BytesIO(data)
    if _plain(file) != _MAGIC or _plain(file) != _PROTOCOL:
        raise NotPlainError("it was not written by torch.save")
    system = _plain(file)
    if not isinstance(system, dict) or system.get("little_endian") is not (sys.byteorder == "little"):
        raise NotPlainError("it was written on a machine of another byte order")
    reader = _Reader(len(data))
    value = reader.load(file, _STREAM)
    keys = _plain(file)
    if not isinstance(keys, list) or {*map(str, keys)} != reader.storages.keys():
        raise NotPlainError("it is truncated or damaged (the numbers are not those that its tensors name)")
    parts, view = {}, memoryview(data)
    for key in keys:
        storage = reader.storages[key]
        start = file.tell() + 8
        if int.from_bytes(file.read(8), "little") != storage.count:
            raise NotPlainError("it is truncated or damaged (the numbers of a tensor are missing)")
        end = start + storage.count * storage.dtype.itemsize
        parts[key] = view[start:end]
        file.seek(min(end, len(data)))
    reader.read_storage = lambda storage: _numbers(storage, parts[storage.key])
    return reader.finish(value)


def _plain(file: io.BytesIO) -> Any:
    """The next pickle, of plain values."""
    reader = PickleReader()
    return reader.finish(reader.load(file, _STREAM))
