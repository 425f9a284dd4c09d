"""Reads pickles that hold plain data only, without unpickling them: containers, numbers, strings and numpy arrays.

The few names that numpy writes for an array are understood here; see `sodeep._core.pickle_stream` for the rest.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sodeep._core.pickle_stream import MOST_BYTES, NotPlainError, PickleReader, expect

__all__ = ["NotPlainError", "read_plain_pickle"]


def read_plain_pickle(path: str | os.PathLike[str]) -> Any:
    """The data of the pickle at `path`: containers, numbers, strings and numpy arrays of numbers or strings.

    Raises:
        NotPlainError: it is no pickle, it is damaged, or it holds anything else. Nothing of it has run.
    """
    with Path(path).open("rb") as file:
        return _Reader().read(file.read(MOST_BYTES + 1))


@dataclass
class _Array:
    """A numpy array to be filled by its state."""

    value: npt.NDArray[Any] | None = None


@dataclass
class _Dtype:
    """A numpy dtype: its code, and the byte order that its state brings."""

    code: str
    order: str = "<"

    def numpy(self) -> np.dtype[Any]:
        if not re.fullmatch(r"[biufSU][1-9][0-9]{0,5}", self.code):  # no objects, no records, no dates
            raise NotPlainError(f"it holds a numpy array of type {self.code[:20]!r}")
        return np.dtype(self.order.replace("|", "=") + self.code)


class _Reader(PickleReader):
    others = frozenset({"numpy.ndarray"})

    def __init__(self) -> None:
        super().__init__()
        numpys: dict[str, Callable[..., Any]] = {
            "_reconstruct": self.reconstruct,
            "scalar": self.scalar,
            "_frombuffer": self.from_buffer,
        }
        self.calls = {
            **{
                f"numpy.{core}.{module}.{name}": call
                for core in ("core", "_core")
                for module in ("multiarray", "numeric")
                for name, call in numpys.items()
            },
            "numpy.dtype": self.dtype,
            "_codecs.encode": self.encode,
            "__builtin__.bytes": self.no_bytes,
            "builtins.bytes": self.no_bytes,
        }

    def reconstruct(self, *arguments: Any) -> _Array:
        return _Array()

    def dtype(self, code: Any, *arguments: Any) -> _Dtype:
        return _Dtype(expect(code, str))

    def encode(self, text: Any, encoding: Any) -> bytes:
        """How protocols 0 to 2 write bytes."""
        if expect(encoding, str) != "latin1":
            raise NotPlainError(f"it is damaged (bytes encoded as {encoding[:20]!r})")
        self.spend(len(expect(text, str)))
        return text.encode("latin1")  # type: ignore[no-any-return]

    def no_bytes(self) -> bytes:
        """How they write none."""
        return b""

    def scalar(self, dtype: Any, data: Any) -> Any:
        return self.array(data, dtype, (), "C")[()].item()

    def from_buffer(self, data: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
        return self.array(data, dtype, shape, "F" if order == "F" else "C")

    def set_state(self, target: Any, state: Any) -> None:
        """Fill an array, or say the byte order of a dtype."""
        if isinstance(target, _Dtype):
            target.order = expect(expect(state, tuple)[1], str)
            if target.order not in ("<", ">", "|", "="):
                raise NotPlainError(f"it is damaged (byte order {target.order[:20]!r})")
            return
        _, shape, dtype, fortran, data = expect(state, tuple)
        if isinstance(data, list):
            raise NotPlainError("it holds a numpy array of objects")
        expect(target, _Array).value = self.array(data, dtype, shape, "F" if fortran else "C")

    def array(self, data: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
        if isinstance(data, str):  # Python 2 wrote bytes as str
            self.spend(len(data))
            data = data.encode("latin1")
        if not isinstance(data, (bytes, bytearray)):
            raise NotPlainError(f"it is damaged (a {type(data).__name__} where the bytes of an array belong)")
        self.spend(len(data))
        kind = expect(dtype, _Dtype).numpy()
        if len(expect(shape, tuple)) > 32 or any(not 0 <= expect(n, int) < 2**31 for n in shape):
            raise NotPlainError("it is damaged (the shape of an array)")
        if len(data) != math.prod(shape) * kind.itemsize:
            raise NotPlainError(f"it is damaged ({len(data)} bytes for an array of shape {shape} and type {kind})")
        return np.frombuffer(bytes(data), dtype=kind).reshape(shape, order=order)

    def leaf(self, value: Any) -> tuple[Any, int]:
        """See `PickleReader.leaf`."""
        if isinstance(value, _Array):
            value = value.value
            if value is None:
                raise NotPlainError("it is damaged (an array without data)")
        if isinstance(value, np.ndarray):
            # each number may become a Python object; along an axis there may be many rows of nothing
            return value, value.nbytes + 8 * math.prod(max(1, n) for n in value.shape)
        return super().leaf(value)
