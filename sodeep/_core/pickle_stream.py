"""Reads the plain data in a pickle stream without unpickling it.

A pickle is a program, and `pickle.load` runs it. This is a reader of the part of that language that builds data: dicts,
lists, tuples, numbers, strings and bytes. It imports nothing and calls nothing that the file names: a global is kept as
its name, and a subclass lists the few names that it accepts and what replaces them. Anything else is refused.

A file of a few bytes can expand without limit: containers a million deep, or one list used a million times. So the
number of objects, their nesting, and the size of the whole with all sharing undone are bounded.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_BYTES = 64 * 2**20
"""Of a stream."""

MOST_STEPS = 1_500_000
"""Opcodes of a stream: about as many numbers and strings, at most 100 bytes each."""

MOST_CONTAINERS = 200_000
"""Dicts, lists, tuples and what names stand for."""

DEEPEST = 100
"""Containers in each other."""

LARGEST_INT = 2**512


class NotPlainError(ValueError):
    """The file is no pickle, or holds more than plain data."""


@dataclass(frozen=True)
class Name:
    """A global, by its name; never looked up."""

    name: str


class _Done(NamedTuple):
    """A container of which all is read."""

    container: Any  # holding it keeps its id from being given to another object
    value: Any
    depth: int
    size: int


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}

_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_EMPTY: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}

_INTS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"})

_VALUES = frozenset(  # opcodes whose argument is the value
    {"FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)


class PickleReader:
    """Reads one stream; a subclass accepts some names.

    Attributes:
        calls: name -> what a call of it gives, from its arguments.
        others: names that are not called but given to calls.
    """

    others: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.calls: Mapping[str, Callable[..., Any]] = {}
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0
        self.length = 0
        self.written = 0

    def read(self, data: bytes) -> Any:
        """The data of a whole pickle."""
        return self.finish(self.load(io.BytesIO(data), len(data)))

    def load(self, file: io.BytesIO, length: int) -> Any:
        """What the pickle at the file's position builds, up to its end; `finish` then converts its leaves.

        Raises:
            NotPlainError: it is no pickle, it is damaged, or it holds anything else. Nothing of it has run.
        """
        if length > MOST_BYTES:
            raise NotPlainError(f"it is a pickle of {length} bytes, and at most {MOST_BYTES} are read")
        self.length = length
        try:
            for steps, (opcode, argument, _) in enumerate(pickletools.genops(file)):
                if opcode.name == "STOP":
                    (value,) = self.stack
                    return value
                if steps == MOST_STEPS:
                    raise NotPlainError(f"it has more than {MOST_STEPS:,} entries")
                self._step(opcode.name, argument)
        except NotPlainError:
            raise
        except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
            raise NotPlainError(f"it is no pickle, or a damaged one ({error})") from None
        raise NotPlainError("it is no pickle, or a damaged one (it has no end)")

    # ---- for subclasses to override ----

    def persistent(self, pid: Any) -> Any:
        """The object for a reference to something outside the pickle."""
        raise NotPlainError("it uses BINPERSID, which plain data does not need")

    def set_state(self, target: Any, state: Any) -> None:
        """Give a state to what a call gave."""
        raise NotPlainError(f"it is damaged (a state for a {type(target).__name__})")

    def leaf(self, value: Any) -> tuple[Any, int]:
        """The final form of something that is no container, and its approximate size in bytes."""
        if isinstance(value, (str, bytes, bytearray)):
            return value, 8 + len(value)
        if value is None or isinstance(value, (int, float)):
            return value, 8
        raise NotPlainError(f"it holds {value.name if isinstance(value, Name) else value}, which is not plain data")

    def spend(self, size: int) -> None:
        """Count bytes that a call writes anew: a file may call often, but not make more than it holds."""
        self.written += size
        if self.written > 2**20 + 4 * self.length:
            raise NotPlainError("it is damaged (it makes more of its bytes than it holds)")

    # ---- the opcodes ----

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _INTS:
            if not -LARGEST_INT < argument < LARGEST_INT:
                raise NotPlainError(f"it holds a number of {argument.bit_length()} bits")
            stack.append(argument)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(self.memo) if name == "MEMOIZE" else argument
            if not 0 <= place <= self.length:
                raise NotPlainError("it is damaged (a memo of more entries than the file has bytes)")
            self.memo[place] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in _EMPTY:
            stack.append(self._new(_EMPTY[name]()))
        elif name == "DICT":
            made = self._new({})
            self._set_items(made, self._since_mark())
            stack.append(made)
        elif name == "LIST":
            stack.append(self._new(self._since_mark()))
        elif name == "TUPLE":
            stack.append(self._new(tuple(self._since_mark())))
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [self._new(tuple(stack[-count:]))]
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._since_mark()
            expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._since_mark()
            self._set_items(expect(stack[-1], dict), items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            names = argument.split(" ", 1) if name == "GLOBAL" else [stack.pop(-2), stack.pop()]
            full = ".".join(expect(part, str) for part in names)
            if full not in self.calls and full not in self.others:
                raise NotPlainError(f"it asks for {full[:200]}, which is not plain data")
            stack.append(Name(full))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments = expect(stack.pop(), tuple)
            called = expect(stack.pop(), Name).name
            if called not in self.calls:
                raise NotPlainError(f"it is damaged (a call of {called})")
            stack.append(self._new(self.calls[called](*arguments)))
        elif name == "BUILD":
            state = stack.pop()
            self.set_state(stack[-1], state)
        elif name == "BINPERSID":
            stack.append(self._new(self.persistent(stack.pop())))
        elif name not in ("PROTO", "FRAME"):
            raise NotPlainError(f"it uses {name}, which plain data does not need")

    def _new(self, value: Any) -> Any:
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise NotPlainError(f"it has more than {MOST_CONTAINERS:,} dicts, lists, tuples and arrays")
        return value

    @staticmethod
    def _set_items(target: dict[Any, Any], items: list[Any]) -> None:
        for key in items[::2]:
            # others could be made so that all have the same hash, or take for ever to hash
            if not isinstance(key, (str, bytes)) and not (isinstance(key, int) and abs(key) < 2**31):
                raise NotPlainError(f"it has a dict with a {type(key).__name__} as a key, not a text or a small number")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    # ---- the end ----

    def finish(self, root: Any) -> Any:
        """`root` with every leaf converted. Each container is converted once, as many may share it.

        Raises:
            NotPlainError: containers are too deep, hold themselves, or would be very large with all sharing undone.
        """
        if not isinstance(root, (list, dict, tuple)):
            return self.leaf(root)[0]
        done: dict[int, _Done] = {}
        begun: set[int] = set()
        todo = [root]
        while todo:
            value = todo[-1]
            if id(value) in done:
                todo.pop()
            elif id(value) in begun:
                done[id(value)] = self._finished(todo.pop(), done)
                begun.remove(id(value))
            else:
                begun.add(id(value))
                inner = value.values() if isinstance(value, dict) else value
                held = [item for item in inner if isinstance(item, (list, dict, tuple)) and id(item) not in done]
                if any(id(item) in begun for item in held):
                    raise NotPlainError("it has a list or dict that holds itself")
                todo += held
        return done[id(root)].value

    def _finished(self, container: Any, done: Mapping[int, _Done]) -> _Done:
        depth, size = 1, 8

        def part(item: Any) -> Any:
            nonlocal depth, size
            if isinstance(item, (list, dict, tuple)):
                inner = done[id(item)]
                depth, size = max(depth, 1 + inner.depth), size + inner.size
                return inner.value
            value, more = self.leaf(item)
            size += more
            return value

        value: Any
        if isinstance(container, dict):
            for key in container:
                part(key)
            value = container
            value.update([(key, part(item)) for key, item in container.items()])
        elif isinstance(container, list):
            value = container
            value[:] = [part(item) for item in container]
        else:
            value = tuple(part(item) for item in container)
        if depth > DEEPEST:
            raise NotPlainError(f"it has more than {DEEPEST} lists, dicts and tuples in each other")
        if size > 4 * 2**20 + 10 * self.length:
            raise NotPlainError("it would be much larger than the file, which uses the same parts over and over")
        return _Done(container, value, depth, size)


def expect(value: Any, expected: type) -> Any:
    """`value`, which a damaged file may have of another type."""
    if not isinstance(value, expected):
        raise NotPlainError(f"it is damaged (a {type(value).__name__} where a {expected.__name__.strip('_')} belongs)")
    return value
