"""A user's task in a comparison: by name, as a class, or made with its data; and as it is sent to other processes."""

from __future__ import annotations

import inspect
import pickle
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from sodeep._core.by_name import attribute, code_of, name_of, source_of
from sodeep._core.checks import check_choice, describe
from sodeep.datasets.tables import alike
from sodeep.datasets.types import checksum
from sodeep.tasks import TASKS
from sodeep.tasks.base import Task, check_declared

AnyTask = str | type[Task] | Task
"""As `sodeep.comparison.compare` takes it: a name of `TASKS`, ``module:class``, a class, or a task with its data."""


_Parts = tuple[type[Task], "tuple[tuple[Any, ...], dict[str, Any]] | None"]
"""A class, and the arguments that a task was made with; None for the class alone."""


class OwnTask:
    """A user's class, or a task that was made with its data. Another process unpickles it when it is asked for.

    Attributes:
        name: of the class.
    """

    def __init__(self, given: type[Task] | Task) -> None:
        self.name = given.name
        self._parts: _Parts | None = (type(given), given._made_with) if isinstance(given, Task) else (given, None)
        self._pickled: bytes | None = None
        if isinstance(given, Task) and len(given._made_with[0]) > 2:
            raise TypeError(
                f"`task` must be made with data and seed, and all else by name, as {self.name}(data, margin=2), got "
                f"{len(given._made_with[0])} arguments without a name. It is made anew for each seed."
            )

    def load(self, data: str | None, seed: int, **options: Any) -> Task:
        """The task with another seed, on its own data or those at a path."""
        found, made_with = self._read()
        if made_with is None:
            return found.load(data, seed, **options)
        if data is not None:
            raise ValueError(f"`data` must not be given with a task that has its data, got {data!r}. Give the class.")
        arguments, given = made_with
        return found(*arguments[:1], **{**given, "seed": seed, **options})

    @property
    def options(self) -> dict[str, Any]:
        """What the task was made with, but its data and the seed."""
        _, made_with = self._read()
        return {} if made_with is None else {k: v for k, v in made_with[1].items() if k not in ("data", "seed")}

    def check_sent(self) -> None:
        """Raise if no other process can have it."""
        module = self._read()[0].__module__
        try:
            if not hasattr(sys.modules.get(module), "__file__"):  # of a shell, or a notebook
                raise ImportError(f"{module} is no file")
            self._pickle()
        except Exception as error:  # of whatever is in it
            raise ValueError(
                f"`task` must be one that other processes can import, got {self.name} ({error}). Define the class "
                "at the top level of a file, make it with arrays, or stay in this process: jobs=1."
            ) from None

    def _read(self) -> _Parts:
        if self._parts is None:
            try:
                self._parts = pickle.loads(self._pickle())
            except (ImportError, AttributeError) as error:
                raise ValueError(
                    f"`task` must be one that every process can import, got {self.name} ({error}). Put its module "
                    "where Python finds it on all machines."
                ) from None
        return self._parts

    def _pickle(self) -> bytes:
        """Once for all runs: data may be large."""
        if self._pickled is None:
            self._pickled = pickle.dumps(self._parts)
        return self._pickled

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "_parts": None, "_pickled": self._pickle()}

    def __eq__(self, other: object) -> bool:
        """In a worker, where each run brings one, those of the same content."""
        if not isinstance(other, OwnTask) or self._pickled is None:
            return self is other
        return self._pickled == other._pickled

    def __hash__(self) -> int:
        return hash(self.name)


def task_class(task: AnyTask) -> type[Task]:
    """The class of a task.

    Raises:
        TypeError: no task.
        ValueError: an unknown name, a module that cannot be imported, a class that lacks what a task must say, or that
            has the name of another.
    """
    found: Any = task if isinstance(task, type) else type(task)
    if isinstance(task, str):
        module, colon, rest = task.partition(":")
        if not (module and colon and rest):
            near = None if task in TASKS else alike(task, TASKS)
            if near is not None:
                known = ", ".join(TASKS)
                raise ValueError(f"`task` must be one of {known}, or my_module:MyTask, got {task!r}. Is it {near!r}?")
            if "." in task and not colon:
                raise ValueError(f"`task` must be a name or my_module:MyTask, with a colon, got {task!r}.")
            check_choice(task, TASKS, "task")
            return TASKS[task]
        found = attribute(module, rest, "task")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TypeError(
            "`task` must be a name, or a subclass of sodeep.tasks.Task or a task made of one, got "
            f"{task if isinstance(task, str) else describe(task)}."
        )
    if TASKS.get(found.name) is found:
        return found
    check_declared(found)
    if "name" in vars(found) and ":" not in found.name:
        known = "is that of a task of this package" if found.name in TASKS else "no report can read"
        raise ValueError(
            f"`name` of a task of your own must be left out, got {found.name!r}, which {known}. It is module:class."
        )
    return found


def as_sent(task: AnyTask) -> str | OwnTask:
    """A task as a `Job` carries it: its name where that suffices."""
    if isinstance(task, str):
        return task
    if isinstance(task, type):
        return task.name if TASKS.get(task.name) is task else OwnTask(task)
    return OwnTask(task)


def fingerprint(task: AnyTask) -> int | None:
    """A checksum of the code of a user's task, and of what it was made with besides its data; None for one of ours."""
    found, own = task_class(task), as_sent(task)
    given = own.options if isinstance(own, OwnTask) else {}
    if TASKS.get(found.name) is found and not given:
        return None
    return zlib.crc32(code_of(found).encode(), zlib.crc32(_told_apart(given).encode()))


def _told_apart(value: Any) -> str:
    """A text that is another for another value, and the same in another process."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {checksum({'': value})}"
    if isinstance(value, Mapping):
        return str([(str(name), _told_apart(some)) for name, some in value.items()])
    if isinstance(value, (list, tuple)):
        return str([_told_apart(some) for some in value])
    if isinstance(value, (set, frozenset)):
        return str(sorted(map(_told_apart, value)))
    if inspect.isroutine(value) or isinstance(value, type):
        return f"{name_of(value)} {source_of(value)}"
    if f" at {id(value):#x}" in repr(value):  # an address, another in each process
        return f"{name_of(type(value))} {source_of(type(value))} {_told_apart(vars(value))}"
    return repr(value)
