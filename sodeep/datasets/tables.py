"""Text and csv files with commas, semicolons, tabs or bars between cells, with or without a byte order mark.

The first line names the columns, from which the separator is inferred. Numbers have decimal points; a
decimal comma is refused, since 1,234 may as well be a thousand. Errors name the file, the row as a spreadsheet counts
it, and the cell.
"""

from __future__ import annotations

import csv
import difflib
import functools
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sodeep._core.arrays import Array

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_text(path: Path) -> str:
    """The text of a file, with the line ends it has. An error names the file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"'{path}' must be text in UTF-8, got the byte {error.object[error.start]:#x} at {error.start}. "
            "Save it as UTF-8."
        ) from None


@dataclass(frozen=True)
class Table:
    """A csv file.

    Attributes:
        path: where it lies.
        names: of the columns.
        rows: of cells, as many in each as there are columns.
        places: of each row in a spreadsheet, the first after the names being 2.
        separator: what stands between cells.
    """

    path: Path
    names: list[str]
    rows: list[list[str]]
    places: list[int]
    separator: str

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def texts(self, name: str) -> list[str]:
        """The cells of a column."""
        column = self._places[name]
        return [row[column] for row in self.rows]

    def numbers(self, name: str, remedy: str = "") -> list[float]:
        """The cells of a column, which must be finite numbers. `remedy` ends the message where one is not."""
        values = []
        for place, cell in zip(self.places, self.texts(name), strict=True):
            try:
                values.append(float(cell))
            except ValueError:
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                comma = re.fullmatch(r"\s*[+-]?\d*,\d+\s*", cell)
                hint = f" A decimal comma? Write a point: {cell.strip().replace(',', '.')}." if comma else remedy
                raise ValueError(
                    f"`path` must have a number in every cell, got {cell!r} for {name} in row {place} of "
                    f"'{self.path}'.{hint}"
                )
        return values

    @property
    def description(self) -> str:
        """Its columns, for a message."""
        return describe_columns(self.names, self.separator)


def read_csv(path: Path, wanted: Collection[str] = ()) -> Table:
    """A csv file. `wanted` are names of columns that help to infer the separator.

    Raises:
        ValueError: no UTF-8, no csv, a name twice, or a row that has not as many cells as there are names.
    """
    text = read_text(path)
    separator, head = _separator(text, wanted)
    try:
        lines = csv.reader(io.StringIO(text[head:], newline=""), delimiter=separator)
        places, rows = [], []
        first = 1 + (head > 0)
        for place, row in enumerate(lines, first):
            if row:  # not a blank line
                places.append(place)
                rows.append(row)
    except csv.Error as error:
        raise ValueError(f"'{path}' must be a csv file: {error}.") from None
    names = [name.strip() for name in rows[0]] if rows else []
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"'{path}' must name each column once, got {twice!r} {names.count(twice)} times.")
    for place, row in zip(places, rows, strict=True):
        if len(row) != len(names):
            hint = f" Put a cell in quotes that holds {_SEPARATORS[separator]}." if len(row) > len(names) else ""
            raise ValueError(
                f"'{path}' must have a cell in each row for each of its {len(names)} columns, got {len(row)} in row "
                f"{place}.{hint}"
            )
    return Table(path, names, rows[1:], places[1:], separator)


SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "vali", "valid", "validation", "dev"), "val"),
    "test": "test",
}
"""How the splits are called in columns and in names of files."""


def split_column(table: Table) -> Array | None:
    """The column "split", if it is one: with other content it is a column like others."""
    cells = [cell.strip().casefold() for cell in table.texts("split")] if "split" in table.names else []
    if not any(cell in SPLIT_NAMES for cell in cells):
        return None
    for place, cell in zip(table.places, cells, strict=True):
        if cell not in SPLIT_NAMES:
            raise ValueError(
                f"`path` must have train, val or test in each row of split, got {cell!r} in row {place} of "
                f"'{table.path}'."
            )
    return np.array([SPLIT_NAMES[cell] for cell in cells])


def column_names(path: Path, wanted: Collection[str] = ()) -> tuple[list[str], str]:
    """The names of the columns of a csv file and what stands between cells, from its first line alone."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        text = file.readline() + file.readline()
    separator, head = _separator(text, wanted)
    return _cells(text[head:].partition("\n")[0], separator), separator


def describe_columns(names: list[str], separator: str, most: int = 12) -> str:
    """The columns of a table, for a message."""
    shown = ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
    return f"the columns {shown}" + ("" if separator == "," else f" (apart by {_SEPARATORS[separator]})")


def alike(name: str, names: Iterable[str]) -> str | None:
    """The most similar of the names, up to case and typing errors; None if there is none."""
    by_case = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), list(by_case)[:1000], n=1, cutoff=0.75)
    return by_case[near[0]] if near else None


def _separator(text: str, wanted: Collection[str]) -> tuple[str, int]:
    """What stands between cells, and where the names begin: behind a line "sep=;", which spreadsheets write."""
    declared = re.match(r"sep=([,;\t|])\r?\n", text)
    if declared:
        return declared[1], declared.end()
    line = text.partition("\n")[0]

    def like(separator: str) -> tuple[int, int]:
        names = _cells(line, separator)
        return len(set(wanted) & set(names)), len(names)

    return max(_SEPARATORS, key=like), 0


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([line.rstrip("\r\n")], delimiter=separator), [])]
    except csv.Error:
        return []
