"""Safetensors files with a JSON object in their metadata, and checksums over everything in the file.

The object is the one entry of the safetensors metadata. Beside the fields that the caller puts there, it has

* ``sha256``: of the tensors' bytes, all that follows the file's header;
* ``checksum``: SHA-256 of the file's header (names, shapes and dtypes of the tensors, and the object), itself read as
  64 zeros. Files written before it existed lack it.

Nothing is unpickled, and what a file makes us allocate is bounded by its size.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from torch import Tensor

from sodeep._core.checks import plain

MOST_HEADER = 64 * 2**20
"""Bytes of a header."""

_SMALL_HEADER = 4 * 2**20  # a longer one is parsed once its checksum is known to be right: lists take more memory

_ZEROS = "0" * 64


class DamagedError(ValueError):
    """A file that is not what it should be; the message says what was found.

    Attributes:
        pickled: it looks like a pickled checkpoint of PyTorch.
    """

    def __init__(self, reason: str, pickled: bool = False) -> None:
        super().__init__(reason)
        self.pickled = pickled


def seal(tensors: Mapping[str, Tensor], key: str, header: Mapping[str, Any]) -> bytes:
    """The bytes of a file of `tensors`, with `header` as JSON under `key` in its metadata."""
    sums = {"sha256": tensors_checksum(safetensors.torch.save(dict(tensors))), "checksum": _ZEROS}
    text = json.dumps({**header, **sums}, sort_keys=True, default=plain)
    data = safetensors.torch.save(dict(tensors), metadata={key: text})
    head = data[: header_end(data)]
    if len(head) > MOST_HEADER:
        raise ValueError(f"A file's header must have at most {MOST_HEADER} bytes, got {len(head)}. Keep less in it.")
    return head.replace(_ZEROS.encode(), hashlib.sha256(head).hexdigest().encode(), 1) + data[len(head) :]


def header_end(start: bytes) -> int:
    """Where the tensors begin, from the first eight bytes of a file."""
    return 8 + int.from_bytes(start[:8], "little")


def parse_header(data: bytes, size: int, key: str) -> dict[str, Any]:
    """The JSON object from the first bytes of a file of `size` bytes; `check_header` and `check_tensors` are next.

    Raises:
        DamagedError: another kind of file, a truncated or a damaged one.
    """
    known = recognise(data)
    if known:
        raise DamagedError(known)
    if data.startswith((b"PK\x03\x04", b"\x80")) and data[8:9] != b"{":
        raise DamagedError("it is a pickled PyTorch checkpoint, which is never unpickled here", pickled=True)
    if data[8:9] != b"{":
        raise DamagedError("it is no safetensors file")
    end = header_end(data)
    if end > MOST_HEADER or end > size:
        raise DamagedError(f"it is truncated or damaged ({size} bytes)")
    if end > _SMALL_HEADER and not _sound(data[:end]):
        raise DamagedError("its header is damaged (it is long, and the checksum differs)")
    try:
        layout = json.loads(data[8:end])
        header: Any = json.loads(layout["__metadata__"][key])
        ends = [int(entry["data_offsets"][1]) for name, entry in layout.items() if name != "__metadata__"]
        length = max(ends, default=0)
    except KeyError:
        raise DamagedError("it is a safetensors file without a sodeep header, so of another program") from None
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise DamagedError("its header is damaged") from None
    if end + length != size:
        raise DamagedError(f"it is truncated or damaged ({size} bytes, its header asks for {end + length})")
    return header if isinstance(header, dict) else {}


def check_header(data: bytes, header: Mapping[str, Any], fields: Mapping[str, type | tuple[type, ...]]) -> None:
    """DamagedError unless the header agrees with its checksum, if it has one, and has these fields."""
    if "checksum" in header and not _sound(data[: header_end(data)]):
        raise DamagedError("its header is damaged (the checksum differs)")
    for field, expected in fields.items():
        value = header.get(field)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise DamagedError(f"its header has no valid '{field}'")


def check_tensors(data: bytes, sha256: str) -> dict[str, Tensor]:
    """The tensors of a file, which must have the checksum `sha256`."""
    if tensors_checksum(data) != sha256:
        raise DamagedError("its tensors are damaged (the checksum differs)")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise DamagedError(f"its tensors are damaged ({error})") from None


def tensors_checksum(data: bytes) -> str:
    """SHA-256 of the tensors' bytes in a safetensors file."""
    return hashlib.sha256(memoryview(data)[header_end(data) :]).hexdigest()


def recognise(start: bytes) -> str | None:
    """What a file that is not the expected one looks like from its first bytes."""
    text = start[:512].lstrip().lower()
    if not start:
        return "it is empty"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "it is a web page, saved by a download that failed"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself (git lfs pull fetches it)"
    return None


def _sound(head: bytes) -> bool:
    """Whether the checksum in a file's header is that of the header."""
    match = re.search(rb'\\"checksum\\": \\"([0-9a-f]{64})\\"', head)  # of JSON within JSON
    if match is None:
        return False
    blank = head[: match.start(1)] + _ZEROS.encode() + head[match.end(1) :]
    return hashlib.sha256(blank).hexdigest().encode() == match[1]
