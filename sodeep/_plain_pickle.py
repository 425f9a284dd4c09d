"""Reads pickles that hold plain data only, without unpickling them.

A pickle is a program, and `pickle.load` runs it. This is a reader of the part of that language that builds data: dicts,
lists, tuples, numbers, strings, bytes and numpy arrays of those. It imports nothing and calls nothing that the file
names: a global is kept as its name, and the few names that numpy writes for an array are understood here. Anything
else in the file is refused. Memory is bounded by the size of the file.
"""

from __future__ import annotations

import math
import os
import pickletools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class NotPlainError(ValueError):
    """The file is no pickle, or holds more than plain data."""


def read_plain_pickle(path: str | os.PathLike[str]) -> Any:
    """The data of the pickle at `path`: containers, numbers, strings and numpy arrays of numbers or strings.

    Raises:
        NotPlainError: it is no pickle, it is damaged, or it holds anything else. Nothing of it has run.
    """
    try:
        return _Reader().read(Path(path).read_bytes())
    except NotPlainError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise NotPlainError(f"it is no pickle, or a damaged one ({error})") from None


@dataclass(frozen=True)
class _Name:
    """A global, by its name; never looked up."""

    name: str


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
        if not re.fullmatch(r"[biufSU][0-9]{1,6}", self.code):  # no objects, no records, no dates
            raise NotPlainError(f"it holds a numpy array of type {self.code!r}")
        return np.dtype(self.order.replace("|", "=") + self.code)


_NUMPY = re.compile(r"numpy\.(core|_core)\.(multiarray|numeric)\.(_reconstruct|scalar|_frombuffer)")
_NAMES = {"numpy.ndarray", "numpy.dtype", "_codecs.encode", "__builtin__.bytes", "builtins.bytes"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_VALUES = re.compile(  # opcodes whose argument is the value
    r"INT|BININT[12]?|LONG[14]?|FLOAT|BINFLOAT|(SHORT_)?(BIN)?(STRING|UNICODE|BYTES)8?|BYTEARRAY8"
)


@dataclass
class _Reader:
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def read(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                (value,) = self.stack
                return _finish(value, {})
            self.step(opcode.name, argument)
        raise NotPlainError("it is no pickle, or a damaged one (it has no end)")

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            pass
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif _VALUES.fullmatch(name):
            stack.append(argument)
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name == "DICT":
            items = self.since_mark()
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        elif name == "LIST":
            stack.append(self.since_mark())
        elif name == "TUPLE":
            stack.append(tuple(self.since_mark()))
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self.since_mark()
            _expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.since_mark()
            _expect(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module = argument.replace(" ", ".") if name == "GLOBAL" else f"{stack.pop(-2)}.{stack.pop()}"
            if module not in _NAMES and not _NUMPY.fullmatch(module):
                raise NotPlainError(f"it asks for {module}, which is not plain data")
            stack.append(_Name(module))
        elif name == "REDUCE":
            arguments = _expect(stack.pop(), tuple)
            stack.append(_build(_expect(stack.pop(), _Name).name.rpartition(".")[2], arguments))
        elif name == "BUILD":
            state = _expect(stack.pop(), tuple)
            _set_state(stack[-1], state)
        else:
            raise NotPlainError(f"it uses {name}, which plain data does not need")

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise NotPlainError(f"it is damaged (a {type(value).__name__} where a {kind.__name__.strip('_')} belongs)")
    return value


def _build(name: str, arguments: tuple[Any, ...]) -> Any:
    """What numpy's pickles build by a call: an empty array, a dtype, a scalar, bytes of an older protocol."""
    if name == "_reconstruct":
        return _Array()
    if name == "dtype":
        return _Dtype(_expect(arguments[0], str))
    if name == "encode":
        text, encoding = arguments
        if encoding != "latin1":
            raise NotPlainError(f"it is damaged (bytes encoded as {encoding!r})")
        return _expect(text, str).encode("latin1")
    if name == "bytes" and arguments == ():  # how protocols 0 to 2 write no bytes
        return b""
    if name == "scalar":
        dtype, data = arguments
        return _array(data, dtype, (), "C")[()].item()
    if name == "_frombuffer":
        data, dtype, shape, order = arguments
        return _array(data, dtype, shape, order)
    raise NotPlainError(f"it is damaged (a call of {name})")


def _set_state(target: Any, state: tuple[Any, ...]) -> None:
    if isinstance(target, _Dtype):
        target.order = _expect(state[1], str)
        if target.order not in ("<", ">", "|", "="):
            raise NotPlainError(f"it is damaged (byte order {target.order!r})")
    else:
        _, shape, dtype, fortran, data = state
        if isinstance(data, list):
            raise NotPlainError("it holds a numpy array of objects")
        _expect(target, _Array).value = _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> npt.NDArray[Any]:
    if isinstance(data, str):  # Python 2 wrote bytes as str
        data = data.encode("latin1")
    if not isinstance(data, (bytes, bytearray)):
        raise NotPlainError(f"it is damaged (a {type(data).__name__} where the bytes of an array belong)")
    kind = _expect(dtype, _Dtype).numpy()
    if len(data) != math.prod(_expect(shape, tuple)) * kind.itemsize:
        raise NotPlainError(f"it is damaged ({len(data)} bytes for an array of shape {shape} and type {kind})")
    if kind.itemsize == 0:
        return np.zeros(shape, dtype=kind)
    return np.frombuffer(bytes(data), dtype=kind).reshape(shape, order="F" if order == "F" else "C")


def _finish(value: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    """`value` with the arrays in place. Each container once: many may share it, and a list or dict may hold itself."""
    if isinstance(value, _Array):
        if value.value is None:
            raise NotPlainError("it is damaged (an array without data)")
        return value.value
    if isinstance(value, (_Name, _Dtype)):
        raise NotPlainError(f"it holds {value}, which is not plain data")
    if id(value) in done:
        return done[id(value)][1]
    if isinstance(value, (list, dict)):
        done[id(value)] = (value, value)
    if isinstance(value, list):
        value[:] = [_finish(item, done) for item in value]
    elif isinstance(value, dict):
        items = [(_finish(key, done), _finish(item, done)) for key, item in value.items()]
        value.clear()
        value.update(items)
    elif isinstance(value, tuple):
        finished = tuple(_finish(item, done) for item in value)
        done[id(value)] = (value, finished)  # the first of the pair keeps the id from being given to another object
        return finished
    return value
