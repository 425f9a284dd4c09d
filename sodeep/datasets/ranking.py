"""Items in groups with a grade each: tables, svmlight files with query ids (LETOR), LightGBM's with group sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sodeep._core.checks import user_path
from sodeep._core.extras import needed
from sodeep.datasets.features import features_layout
from sodeep.datasets.layouts import Layout, StrPath, visible
from sodeep.datasets.splits import SPLITS
from sodeep.datasets.tables import SPLIT_NAMES, Table, alike, read_csv, split_column
from sodeep.datasets.types import Array, RankingData


def read_group_table(
    path: StrPath, *, target: str | None = None, group: str | None = None, predictors: Sequence[str] | None = None
) -> RankingData:
    r"""A csv table with a row for each item: its group, its relevance, and numbers to predict that from.

    Cells may be separated by commas, semicolons, tabs or bars. A column "split" of train, val (or dev) and test assigns
    the groups.

    Args:
        path: the file; its first line names the columns.
        target: the column of relevance, 0 or more. None: "relevance".
        group: the column of groups, numbers or strings; the rows of one need not stand together. None: "group".
        predictors: the columns of numbers. None: all the others.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such columns, no rows, a cell that is not a finite number, or a relevance below 0.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(f"{folder}/my.csv").write_text("group,relevance,price\nq1,2,0.5\nq1,0,0.7\nq2,1,0.1\n")
        ...     data = read_group_table(f"{folder}/my.csv")
        >>> data.group, data.relevance
        (array(['q1', 'q1', 'q2'], dtype='<U2'), array([2., 0., 1.]))
    """
    path = user_path(path)
    given = {"target": target or "relevance", "group": group or "group"}
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a csv table with the columns {given['group']} and {given['target']}, got '{path}', which "
            "is not there."
        )
    if given["target"] == given["group"]:
        raise ValueError(f"`group` must be another column than `target`, got {target!r} for both.")
    table = read_csv(path, given.values())
    for argument, name in given.items():
        if name not in table.names:
            near = alike(name, table.names)
            hint = f" Is it {near!r}?" if near else ""
            raise ValueError(
                f"`{argument}` must be a column of '{path}', got {name!r} for {table.description}.{hint} Say which it "
                f"is: {argument}=NAME (--{argument} NAME)."
            )
    if not table.rows:
        raise ValueError(f"`path` must be a csv table with rows, got none in '{path}'.")
    split = split_column(table)
    taken = {*given.values(), "split" if split is not None else None}
    names = [name for name in table.names if name not in taken] if predictors is None else [*dict.fromkeys(predictors)]
    for name in names:
        if name not in table.names or name in given.values():
            raise ValueError(
                f"`predictors` must be other columns of '{path}' than those of group and relevance, got {name!r} for "
                f"{table.description}."
            )
    if not names:
        raise ValueError(f"`path` must have columns of numbers to predict from, got {table.description} in '{path}'.")
    remedy = " Name the columns of numbers: predictors=[NAME] (--predictor NAME)." if predictors is None else ""
    return _checked(
        RankingData(
            path.stem,
            np.array([table.numbers(name, remedy) for name in names]).T,
            np.array(table.numbers(given["target"])),
            np.array(_group_ids(table, given["group"])),
            split,
        ),
        path,
    )


def _group_ids(table: Table, name: str) -> list[str]:
    """The cells of the column of groups, without spaces around them."""
    ids = [cell.strip() for cell in table.texts(name)]
    for place, cell in zip(table.places, ids, strict=True):
        if not cell or cell.casefold() == "nan":
            raise ValueError(
                f"`data` must have the group of each item, got {cell!r} for {name} in row {place} of '{table.path}'. "
                "Drop the row, or name its group."
            )
    return ids


LARGEST = 1e18
"""Features and grades may be so large: their squares are floats of 32 bits."""


def _checked(data: RankingData, path: Path) -> RankingData:
    for name, values in (("features", data.features), ("relevance", data.relevance)):
        if values.size and not float(np.abs(values).max()) <= LARGEST:  # NaN neither
            raise ValueError(f"`data` must have finite numbers up to {LARGEST:g}, got others as {name} in '{path}'.")
    if len(data.relevance) and data.relevance.min() < 0:
        raise ValueError(
            f"`data` must have a relevance of 0 or more for each item, got {data.relevance.min():g} in '{path}'. "
            "Move or shift the grades: 0 stands for what is not relevant."
        )
    return data


_SVMLIGHT = (".txt", ".svm", ".svmlight", ".libsvm", ".dat", ".train", ".vali", ".valid", ".test")
"""Suffixes of files in svmlight format."""


def _svmlight_files(path: Path) -> dict[str, Path]:
    """Split -> its file in svmlight format; a file alone is "". None: `path` is of another layout.

    The splits are told by the names of the files: train.txt, vali.txt and test.txt in LETOR's folders, or rank.train
    and rank.test.
    """
    if path.is_file():
        return {"": path} if path.suffix in _SVMLIGHT and _is_svmlight(path) else {}
    files: dict[str, Path] = {}
    for file in visible(path):
        names = [part for part in re.split(r"[._-]", file.name.casefold()) if part in SPLIT_NAMES]
        if file.is_file() and file.suffix in _SVMLIGHT and names and _is_svmlight(file):
            files.setdefault(SPLIT_NAMES[names[-1]], file)
    return {split: files[split] for split in SPLITS if split in files} if {"train", "test"} <= files.keys() else {}


def _first_line(path: Path) -> str:
    """The first line that is no comment."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.strip() and not line.startswith("#")), "")


def _is_svmlight(path: Path) -> bool:
    """Whether the first line has a number, and a query id, numbered values or both."""
    return bool(re.match(r"[+-]?[\d.eE+-]+(\s+qid:\d+(\s|$)|(\s+qid:\d+)?(\s+\d+:\S+)+)", _first_line(path)))


def _sizes_of(file: Path) -> Path:
    """LightGBM's file of group sizes beside a file of items."""
    return file.with_name(f"{file.name}.query")


def _ranking_files(path: Path, sizes: bool) -> dict[str, Path]:
    """As of `_svmlight_files`, where all have group sizes beside them, or all have query ids inside."""
    files = _svmlight_files(path)
    fits = all(_sizes_of(file).is_file() if sizes else " qid:" in _first_line(file) for file in files.values())
    return files if fits else {}


def _read_svmlight(path: Path, files: Mapping[str, Path], groups: Mapping[str, Array] | None) -> RankingData:
    """The items of all splits. `groups`: split -> the group of each item; None: their query ids."""
    with needed("sklearn", "A file in svmlight format"):
        from sklearn.datasets import load_svmlight_files

    try:
        read = load_svmlight_files([str(file) for file in files.values()], query_id=True, dtype=np.float32)
    except (ValueError, OverflowError) as error:
        names = ", ".join(file.name for file in files.values())
        raise ValueError(f"'{path}' must hold files in svmlight format, got {names}: {error}.") from None
    parts = list(zip(read[::3], read[1::3], read[2::3], strict=True))
    for file, (_, y, ids) in zip(files.values(), parts, strict=True):
        if groups is None and len(ids) != len(y):
            raise ValueError(
                f"'{file}' must have a query id (qid:) in each line, got {len(ids)} of them in {len(y)} lines."
            )
    features = np.concatenate([x.toarray() for x, _, _ in parts])
    relevance = np.concatenate([y for _, y, _ in parts])
    counts = [len(y) for _, y, _ in parts]
    group = np.concatenate([ids for _, _, ids in parts] if groups is None else [*groups.values()])
    split = None if "" in files else np.repeat([*files], counts)
    return _checked(RankingData(path.stem, features, relevance, group, split), path)


def _with_query_ids(path: Path) -> RankingData:
    return _read_svmlight(path, _ranking_files(path, sizes=False), None)


def _with_sizes(path: Path) -> RankingData:
    """LightGBM's: a line of NAME.query says how many of the next lines of NAME are one group."""
    files = _ranking_files(path, sizes=True)
    groups, first = {}, 0
    for split, file in files.items():
        words = _sizes_of(file).read_text(encoding="utf-8").split()
        if not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(f"'{_sizes_of(file)}' must hold a whole number in each line, the items of a group.")
        sizes = np.array(words, dtype=np.int64)
        with file.open("rb") as items:
            lines = sum(bool(line.strip()) and not line.startswith(b"#") for line in items)
        if sizes.sum() != lines:
            raise ValueError(
                f"'{_sizes_of(file)}' must count the {lines} items of {file.name}, got {sizes.sum()} in all groups."
            )
        groups[split] = np.repeat(np.arange(first, first + len(sizes)), sizes)
        first += len(sizes)
    return _read_svmlight(path, files, groups)


RANKING: dict[str, Layout] = {
    "group table": Layout(
        "your own .csv (or .tsv) with the columns group, relevance, and columns of numbers to predict it from (and "
        "split, of train, val and test)",
        lambda path: path.suffix in (".csv", ".tsv") and path.is_file(),
        read_group_table,
    ),
    "LETOR": Layout(
        "a file in svmlight format with query ids (qid:), or a folder with one for train, vali (optional) and test, as "
        "train.txt, vali.txt and test.txt of LETOR, MSLR-WEB and Istella",
        lambda path: bool(_ranking_files(path, sizes=False)),
        _with_query_ids,
    ),
    "LightGBM": Layout(
        "a file in svmlight format with its group sizes beside it in NAME.query, or a folder with rank.train, "
        "rank.test and theirs, github.com/microsoft/LightGBM/tree/master/examples/lambdarank",
        lambda path: bool(_ranking_files(path, sizes=True)),
        _with_sizes,
    ),
    "features": features_layout(
        "ranking",
        lambda name, arrays, split: _checked(
            RankingData(name, arrays["features"], arrays["relevance"], arrays["group"], split), Path(name)
        ),
    ),
}
"""What ``sodeep compare ranking --data`` may be."""
