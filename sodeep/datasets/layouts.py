"""Recognising the data set in a folder or a file, and checking that its files are there."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sodeep._core.arrays import npz_names
from sodeep._core.checks import user_path
from sodeep.datasets.tables import column_names, describe_columns, read_text

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Layout:
    """How a data set lies on disk, and how to read it.

    Attributes:
        expects: one line: the files a folder (or file) of this layout has, and where they come from.
        matches: whether a path that exists has this layout; reads the names of files and columns only.
        read: the data. Errors name the file.
    """

    expects: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Any]


def describe_content(path: Path) -> str:
    """The content of a path, for a message."""
    if path.is_dir():
        names = [entry.name + "/" * entry.is_dir() for entry in visible(path)]
        return f"a folder with {', '.join(names[:8] + ['...'] * (len(names) > 8))}" if names else "an empty folder"
    if path.suffix in (".csv", ".tsv"):
        names, separator = column_names(path)
        return f"a file with {describe_columns(names, separator)}" if names else "an empty file"
    if zipfile.is_zipfile(path):
        names = sorted(array_names(path))
        return (
            f"a file with the arrays {', '.join(names[:8] + ['...'] * (len(names) > 8))}" if names else "an empty zip"
        )
    return f"a file of {path.stat().st_size} bytes"


def visible(folder: Path) -> list[Path]:
    """The entries of a folder by name, without hidden ones and those that operating systems leave, as __MACOSX."""
    return sorted(entry for entry in folder.iterdir() if not left_behind(entry.name))


def left_behind(name: str) -> bool:
    """Whether an operating system left a file or folder: ``._p0.jpg``, ``.DS_Store``, ``Thumbs.db``, ``__MACOSX``.

    >>> [name for name in ("._p0.jpg", "p0.jpg", "Thumbs.db", "__MACOSX") if not left_behind(name)]
    ['p0.jpg']
    """
    return name.startswith(".") or name.casefold() in ("__macosx", "thumbs.db", "desktop.ini")


def npz_files(path: Path) -> list[Path]:
    """The .npz at `path`, or those in the folder `path`."""
    files = [path] if path.is_file() else visible(path) if path.is_dir() else []
    return [file for file in files if file.suffix == ".npz" and zipfile.is_zipfile(file)]


def array_names(file: Path) -> set[str]:
    """The names of the arrays in an .npz; none where it is damaged."""
    try:
        return set(npz_names(file))
    except ValueError:
        return set()


def read_data(path: str | Path, layouts: Mapping[str, Layout], task: str) -> Any:
    """Read the data at `path` with the first of the `layouts` that matches.

    Raises:
        FileNotFoundError: `path` does not exist.
        ValueError: `path` is empty; or no layout matches: the message lists them, and what `path` has.
    """
    path = user_path(path)
    if not path.exists():
        raise FileNotFoundError(f"`data` {path} does not exist. What it may be: sodeep compare --help.")
    if _is_empty(path):
        what = "folder" if path.is_dir() else "file"
        raise ValueError(f"`data` {path} is an empty {what}. What it may be: sodeep compare --help.")
    for layout in layouts.values():
        if layout.matches(path):
            return layout.read(path)
    known = "\n".join(f"  {name}: {layout.expects}" for name, layout in layouts.items())
    raise ValueError(
        f"`data` {path} must be in a layout that the {task} task reads, got {describe_content(path)}. "
        f"It reads:\n{known}"
    )


def _is_empty(path: Path) -> bool:
    """Whether a folder holds nothing that can be data, or a file nothing at all."""
    return not visible(path) if path.is_dir() else path.is_file() and path.stat().st_size == 0


class FolderLayout:
    """A folder, what must be in it, and the messages where it is not.

    An expected file is a relative path, a folder ends in a slash, and ``a|b`` is either.
    """

    def __init__(self, folder: StrPath, expected: list[str], origin: str) -> None:
        self.folder = user_path(folder)
        self.expected = expected
        self.origin = origin
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"`folder` must hold {self._listed(expected)}, got '{self.folder}', which is no folder. "
                f"The data are {origin}."
            )
        absent = [entry for entry in expected if self._first(entry) is None]
        if absent:
            raise self.missing(absent)

    @staticmethod
    def _listed(entries: Iterable[str]) -> str:
        return ", ".join(entry.replace("|", " or ") for entry in entries)

    def _first(self, entry: str) -> Path | None:
        for choice in entry.split("|"):
            path = self.folder / choice
            if path.is_dir() if choice.endswith("/") else path.is_file():
                return path
        return None

    def find(self, entry: str) -> Path:
        """Where an expected entry is."""
        path = self._first(entry)
        if path is None:
            raise self.missing([entry])
        return path

    def missing(self, entries: list[str]) -> FileNotFoundError:
        """The error for missing entries; it lists those that are there."""
        inside = sorted(path.name + "/" * path.is_dir() for path in visible(self.folder))
        shown = ", ".join(inside[:8]) + (f" and {len(inside) - 8} more" if len(inside) > 8 else "")
        return FileNotFoundError(
            f"`folder` must hold {self._listed(dict.fromkeys([*self.expected, *entries]))}, "
            f"got '{self.folder}' without {self._listed(entries)}. "
            f"It holds {shown or 'nothing'}. The data are {self.origin}."
        )

    def wrong(self, expected: str, got: str = "") -> ValueError:
        """The error for a file with other content."""
        return ValueError(f"{expected}{got and f', got {got}'}, in '{self.folder}'. The data are {self.origin}.")

    def number(self, text: str) -> int:
        """A label of a file as a whole number of 64 bits."""
        try:
            number = int(text)
            if abs(number) >= 2**63:
                raise ValueError
            return number
        except ValueError:
            raise self.wrong("a label must be a whole number", repr(text)) from None

    def rows(self, file: str, columns: int, header: str | None = None) -> list[list[str]]:
        """The lines of a text file, split at spaces into columns; the last may have spaces. A header is skipped."""
        lines = read_text(self.find(file)).splitlines()
        if header is not None:
            starts = [i for i, line in enumerate(lines[:2]) if line.split() == header.split()]
            if not starts:
                raise self.wrong(f"{file} must begin with the line '{header}'", repr(lines[0]) if lines else "no line")
            lines = lines[starts[0] + 1 :]
        rows = [line.split(maxsplit=columns - 1) for line in lines if line.strip()]
        for row, line in zip(rows, (line for line in lines if line.strip()), strict=True):
            if len(row) != columns:
                raise self.wrong(f"{file} must have {columns} columns in each line", repr(line))
        if not rows:
            raise self.wrong(f"{file} must have at least one line", "none")
        return [[*row[:-1], row[-1].rstrip()] for row in rows]


def need_files(paths: Sequence[Path], folder: Path, origin: str) -> None:
    """Raise an error that names the first of the files that are missing."""
    absent = [path for path in paths if not path.is_file()]
    if absent:
        raise FileNotFoundError(
            f"The {len(paths)} listed images must be under '{folder}', but {len(absent)} are not, the first: "
            f"'{absent[0]}'. Unpack the images there. The data are {origin}. "
            "With check_files=False the lists are read without them."
        )


def has_files(*names: str) -> Callable[[Path], bool]:
    """Whether a folder has all of these, as `Layout.matches`."""
    return lambda path: all((path / name).exists() for name in names)
