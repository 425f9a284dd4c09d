"""Data sets as they lie on disk: for each a reader of its files, and its entry in what ``--data`` may be.

| reader | data set | gives |
|---|---|---|
| `read_cub` | Caltech-UCSD Birds-200-2011 | `RetrievalSet` |
| `read_online_products` | Stanford Online Products | `RetrievalSet` |
| `read_in_shop` | DeepFashion, In-shop Clothes Retrieval | `RetrievalSet` |
| `read_class_folders` | your own pictures, a folder for each class | `RetrievalSet` |
| `read_karpathy` | COCO or Flickr30k captions, Karpathy's splits | `CaptionedImages` |
| `read_mediaeval` | MediaEval Predicting Media Memorability | `ScoredItems` |
| `read_voc` | PASCAL VOC 2007 | `LabelledImages` |
| `read_features` | your own features of any task, one npz file | arrays by name |
| `read_table` | your own texts or measurements with a score each, one csv file | `ScoredTable` |

Readers give lists of files and labels, as the archives unpack; nothing is fetched. A folder that is missing or laid out
in another way is one message: what is expected, what was found, where the data set comes from. Files are text, JSON,
XML, or npz without objects. Revisited Oxford and Paris are in `sodeep.tasks.revisited`.

What ``sodeep compare TASK --data`` may be is in `RETRIEVAL`, `CROSS_MODAL`, `MEMORABILITY` and `MULTI_LABEL`: pictures
decoded and made small, splits as the benchmark has them. A further data set is a reader, a `Layout` under it and a line
in the table of its task.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sodeep._arrays import npz_names, read_npz
from sodeep._checks import check_at_least, check_choice, user_path
from sodeep.tasks.base import (
    SPLITS,
    Array,
    CrossModalData,
    Layout,
    MemorabilityData,
    MultiLabelData,
    RetrievalData,
    array_names,
    left_behind,
    npz_files,
    visible,
)
from sodeep.tasks.images import read_pictures
from sodeep.tasks.tables import Table, alike, column_names, read_csv, read_text

StrPath = str | os.PathLike[str]


# ---- a folder, what is expected in it, and what was found ------------------------------------------------------------


class _Layout:
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
        """The error for entries that are not there: with what is."""
        inside = sorted(path.name + "/" * path.is_dir() for path in visible(self.folder))
        shown = ", ".join(inside[:8]) + (f" and {len(inside) - 8} more" if len(inside) > 8 else "")
        return FileNotFoundError(
            f"`folder` must hold {self._listed(dict.fromkeys([*self.expected, *entries]))}, "
            f"got '{self.folder}' without {self._listed(entries)}. "
            f"It holds {shown or 'nothing'}. The data are {self.origin}."
        )

    def wrong(self, expected: str, found: str = "") -> ValueError:
        """The error for a file that holds something else."""
        got = f", got {found}" if found else ""
        return ValueError(f"{expected}{got}, in '{self.folder}'. The data are {self.origin}.")

    def number(self, text: str) -> int:
        try:
            number = int(text)
            if abs(number) >= 2**63:
                raise ValueError
            return number
        except ValueError:
            raise self.wrong("a label must be a whole number", repr(text)) from None

    def rows(self, file: str, columns: int, header: str | None = None) -> list[list[str]]:
        """The lines of a text file of columns apart by spaces; the last may hold spaces. Lines up to a header go."""
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


def _check_files(paths: Sequence[Path], folder: Path, origin: str) -> None:
    absent = [path for path in paths if not path.is_file()]
    if absent:
        raise FileNotFoundError(
            f"The {len(paths)} listed images must be under '{folder}', but {len(absent)} are not, the first: "
            f"'{absent[0]}'. Unpack the images there. The data are {origin}. "
            "With check_files=False the lists are read without them."
        )


def _holds(*names: str) -> Callable[[Path], bool]:
    return lambda path: all((path / name).exists() for name in names)


PIXELS = 64
"""Height and width that pictures are made small to."""


def _pictures(paths: Sequence[Path]) -> Array:
    return read_pictures(paths, PIXELS)


# ---- features of any task, and a table of your own -------------------------------------------------------------------

FEATURES: Mapping[str, tuple[str, ...]] = {
    "retrieval": ("features", "labels"),
    "cross-modal": ("images", "captions", "image_of_caption"),
    "memorability": ("features", "scores"),
    "multi-label": ("features", "labels"),
}
"""Task -> the arrays that each split of its npz has."""

OPTIONAL_FEATURES: Mapping[str, tuple[str, ...]] = {"cross-modal": ("codes", "labels")}
"""Task -> arrays that its npz may have, then for every split."""


def read_features(path: StrPath, task: str) -> dict[str, dict[str, Array]]:
    """Features computed elsewhere, for any task, from one npz file.

    Arrays are named ``<split>_<name>``, with the splits train, val (may be missing) and test, written for example by
    ``numpy.savez(path, train_features=…, train_labels=…, test_features=…, test_labels=…)``:

    | task | names |
    |---|---|
    | retrieval | features (n, d), labels (n,) numbers or strings |
    | cross-modal | images (n, d), captions (m, e), image_of_caption (m,) row of each caption's image |
    | memorability | features (n, d), scores (n,) |
    | multi-label | features (n, d), labels (n, c) of 0 and 1 |

    Cross-modal images may have graded relevance too: codes (n, c) of 0 and 1, such as keywords, or labels (n,), the
    class of each.

    Args:
        path: the file.
        task: one of `FEATURES`.

    Returns:
        Split -> name -> array. Features and scores are float32, or float64 where the file has that.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no npz, objects in it, an array missing or of another shape, NaN.

    Example:
        >>> import tempfile
        >>> x, y = np.eye(3), np.array([0.1, 0.5, 0.3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/my.npz", train_features=x, train_scores=y, test_features=x, test_scores=y)
        ...     read_features(f"{folder}/my.npz", "memorability")["test"]["scores"]
        array([0.1, 0.5, 0.3])
    """
    check_choice(task, FEATURES, "task")
    path = user_path(path)
    wanted = [f"{split}_{name}" for split in ("train", "test") for name in FEATURES[task]]
    expected = f"an npz file with the arrays {', '.join(wanted)} (and the same for val, if there is a validation split)"
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be {expected}, got '{path}', which is not there.")

    def wrong(found: str) -> ValueError:
        return ValueError(f"`path` must be {expected}, got '{path}': {found}.")

    try:
        held = npz_names(path)
        missing = [name for name in wanted if name not in held]
        if missing:
            raise ValueError(f"no {', '.join(missing)}, but {', '.join(sorted(held)) or 'nothing'}")
        splits = ["train", "val", "test"] if f"val_{FEATURES[task][0]}" in held else ["train", "test"]
        names = [*FEATURES[task]]
        for name in OPTIONAL_FEATURES.get(task, ()):
            absent = [f"{split}_{name}" for split in splits if f"{split}_{name}" not in held]
            if len(absent) < len(splits):
                names.append(name)
                if absent:
                    raise ValueError(f"{name} of some splits, but no {', '.join(absent)}")
        read = read_npz(path, [f"{split}_{name}" for split in splits for name in names])
        arrays = {split: {name: read[f"{split}_{name}"] for name in names} for split in splits}
    except (OSError, KeyError, ValueError) as error:
        raise wrong(str(error).strip("'\"").rstrip(".")) from None
    for split, of_split in arrays.items():
        for name, array in of_split.items():
            of_split[name] = _feature_array(task, f"{split}_{name}", array, wrong)
        first, *others = FEATURES[task]
        rows = {name: len(of_split[name]) for name in FEATURES[task]}
        if task == "cross-modal":
            index = of_split["image_of_caption"]
            for name in OPTIONAL_FEATURES[task]:
                if name in of_split and len(of_split[name]) != rows["images"]:
                    raise wrong(f"{rows['images']} rows of {split}_images and {len(of_split[name])} of {split}_{name}")
            if rows["captions"] != rows["image_of_caption"]:
                raise wrong(f"{rows['captions']} rows of {split}_captions and {len(index)} of {split}_image_of_caption")
            if len(index) and not (index.min() >= 0 and index.max() < rows["images"]):
                raise wrong(
                    f"{split}_image_of_caption goes from {index.min()} to {index.max()}, "
                    f"with {rows['images']} rows of {split}_images"
                )
        elif any(rows[name] != rows[first] for name in others):
            raise wrong(", ".join(f"{count} rows of {split}_{name}" for name, count in rows.items()))
    for name in FEATURES[task]:
        columns = {f"{split}_{name}": of_split[name].shape[1:] for split, of_split in arrays.items()}
        if len(set(columns.values())) > 1:
            raise wrong(", ".join(f"{shape[0]} columns of {which}" for which, shape in columns.items()))
    return arrays


def _feature_array(task: str, name: str, array: Array, wrong: Callable[[str], ValueError]) -> Array:
    """`array` checked by what its name says it is."""
    kind = name.split("_", 1)[1]
    if kind in ("features", "images", "captions"):
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not numbers (n, d)")
    elif kind == "scores" and (array.ndim != 1 or array.dtype.kind not in "fiu"):
        raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not numbers (n,)")
    elif kind == "image_of_caption" and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not whole numbers (m,)")
    elif kind == "codes" and array.ndim != 2:
        raise wrong(f"{name} of shape {array.shape}, not (n, c)")
    elif kind == "labels" and (task == "multi-label") != (array.ndim == 2):
        raise wrong(f"{name} of shape {array.shape}, not {'(n, c)' if task == 'multi-label' else '(n,)'}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise wrong(f"{int((~np.isfinite(array)).sum())} values of {name} are NaN or infinite")
    if (kind == "codes" or (task == "multi-label" and kind == "labels")) and not np.isin(array, (0, 1)).all():
        raise wrong(f"{name} holds more than 0 and 1")
    if kind in ("features", "images", "captions", "scores") and array.dtype != np.float64:
        return array.astype(np.float32)
    return array


def _features_layout(task: str, make: Callable[[str, dict[str, Array], Array], Any]) -> Layout:
    """The npz of `read_features` as a layout. `make` gets its name, the arrays of all splits end to end, the splits."""
    first = FEATURES[task][0]

    def found(path: Path) -> bool:
        if not path.is_file() or not zipfile.is_zipfile(path):
            return False
        try:
            return f"train_{first}" in npz_names(path)
        except ValueError:  # a damaged one: reading it says so
            return path.suffix == ".npz"

    def read(path: Path) -> Any:
        splits = read_features(path, task)
        rows = [len(arrays[first]) for arrays in splits.values()]
        joined = {name: np.concatenate([arrays[name] for arrays in splits.values()]) for name in splits["train"]}
        if "image_of_caption" in joined:  # rows of the split become rows of all
            captions = [len(arrays["captions"]) for arrays in splits.values()]
            joined["image_of_caption"] = joined["image_of_caption"] + np.repeat(np.cumsum([0, *rows[:-1]]), captions)
        return make(path.stem, joined, np.repeat(list(splits), rows))

    names = ", ".join(f"<split>_{name}" for name in FEATURES[task])
    if task in OPTIONAL_FEATURES:
        names += f" (and, if there are any, {' or '.join(f'<split>_{name}' for name in OPTIONAL_FEATURES[task])})"
    return Layout(f"an .npz of {names} for the splits train, val (optional) and test", found, read)


@dataclass(frozen=True)
class ScoredTable:
    """Rows with a score each, and texts, numbers or both to predict it from."""

    scores: Array
    """float64 (n,)."""
    features: Array | None
    """float32 (n, d), one column for each of `names`."""
    names: list[str]
    texts: list[str] | None
    split: Array | None = None
    """(n,) of "train", "val" and "test", where the table has a column of that name."""


def read_table(
    path: StrPath, *, target: str | None = None, text: str | None = None, predictors: Sequence[str] | None = None
) -> ScoredTable:
    r"""A csv table with a column of scores, and one of texts, columns of numbers or both to predict them from.

    Cells may be apart by commas, semicolons, tabs or bars. A column "split" of train, val (or dev) and test says which
    rows are for what.

    Args:
        path: the file; its first line names the columns.
        target: the column of scores. None: "score".
        text: the column of texts. None: "text", if there is one.
        predictors: the columns of numbers. None: all the others.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such columns, no rows, or a cell that is not a finite number; the message says which.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(f"{folder}/my.csv").write_text("score;age;text\n0.7;41;a red door\n0.2;38;rain\n")
        ...     table = read_table(f"{folder}/my.csv")
        >>> table.scores, table.features, table.texts
        (array([0.7, 0.2]), array([[41.], [38.]], dtype=float32), ['a red door', 'rain'])
    """
    path = user_path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a csv table with a column {target or 'score'}, got '{path}', which is not there."
        )
    given = {"target": [target], "text": [text], "predictors": predictors or []}
    named = {name: argument for argument, names in given.items() for name in names if name is not None}
    for argument, names in given.items():
        for name in names:
            if name is not None and named[name] != argument:
                raise ValueError(f"`{named[name]}` must be another column than `{argument}`, got {name!r} for both.")
    table = read_csv(path, {"score", "text", *named})
    for name, argument in named.items():
        if table.names and name not in table.names:
            near = alike(name, table.names)
            hint = "" if near is None else f" Is it {near!r}?"
            raise ValueError(f"`{argument}` must be in '{path}', got {name!r} for {table.found}.{hint}")
    score = target or "score"
    text = "text" if text is None and "text" in table.names and score != "text" else text
    split = _table_split(table) if "split" not in named else None
    taken = {score, text, "split" if split is not None else None}
    features = [name for name in table.names if name not in taken] if predictors is None else list(predictors)
    if score in features:
        raise ValueError(f"`predictors` must be other columns than that of the scores, got {score!r}.")
    if not table.rows or score not in table.names or not (features or text):
        near = alike("score", table.names) if score not in table.names else None
        hint = "" if near is None else f" Is it {near!r}? Say so: target={near!r} (--target {near})."
        if near is None and table.rows and score not in table.names:
            hint = " Which column holds the scores? Say so: target=NAME (--target NAME)."
        raise ValueError(
            f"`path` must be a csv table with a column {score} and a column text, columns of numbers or both, "
            f"got {table.found if table.rows else 'no rows'} in '{path}'.{hint}"
        )
    scores = np.array(table.numbers(score))
    remedy = ""
    if predictors is None:
        remedy = (
            " Name the columns of numbers: predictors=[NAME] (--predictor NAME), or that of texts: text=NAME "
            "(--text NAME)."
        )
    numbers = np.array([table.numbers(name, remedy) for name in features], dtype=np.float32).T if features else None
    return ScoredTable(scores, numbers, features, None if text is None else table.texts(text), split)


_SPLIT_NAMES = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
                "test": "test"}  # fmt: skip


def _table_split(table: Table) -> Array | None:
    """The column "split", if it is one: of other things it is a column like others."""
    cells = [cell.strip().casefold() for cell in table.texts("split")] if "split" in table.names else []
    if not any(cell in _SPLIT_NAMES for cell in cells):
        return None
    for place, cell in zip(table.places, cells, strict=True):
        if cell not in _SPLIT_NAMES:
            raise ValueError(
                f"`path` must have train, val or test in each row of split, got {cell!r} in row {place} of "
                f"'{table.path}'."
            )
    return np.array([_SPLIT_NAMES[cell] for cell in cells])


def table_data(
    path: Path, *, target: str | None = None, text: str | None = None, predictors: Sequence[str] | None = None
) -> MemorabilityData:
    """The table of `read_table` as data of the memorability task."""
    found = read_table(path, target=target, text=text, predictors=predictors)
    name = path.stem if target is None else f"{path.stem}, {target}"
    return MemorabilityData(name, found.scores, found.texts, found.features, found.split)


TABLE = Layout(
    "your own .csv (or .tsv) with a column score, and a column text, columns of numbers or both to predict it from "
    "(and split, of train, val and test)",
    lambda path: path.suffix in (".csv", ".tsv") and path.is_file(),
    table_data,
)


# ---- retrieval -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Items:
    """Files and the class of each."""

    paths: list[Path]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval benchmark whose test classes are not among the training classes."""

    train: Items
    queries: Items
    gallery: Items | None
    """What the queries are searched in; None: in each other, the query itself left out."""
    names: dict[int, str]
    """Label -> name of the class."""


def _checked(found: RetrievalSet, layout: _Layout, check_files: bool) -> RetrievalSet:
    parts = {"train": found.train, "test": found.queries}
    if found.gallery is not None:
        parts = {"train": found.train, "query": found.queries, "gallery": found.gallery}
    for name, part in parts.items():
        if not part.paths:
            raise layout.wrong(
                f"there must be images to {name}" if name != "train" else "there must be training images"
            )
    if check_files:
        _check_files([path for part in parts.values() for path in part.paths], layout.folder, layout.origin)
    return found


def _as_data(name: str, found: RetrievalSet) -> RetrievalData:
    gallery = found.gallery or Items([], [])
    paths = found.train.paths + found.queries.paths + gallery.paths
    labels = np.array(found.train.labels + found.queries.labels + gallery.labels)
    split = np.repeat(["train", "test"], [len(found.train), len(found.queries) + len(gallery)])
    asks = np.repeat([True, False], [len(found.train) + len(found.queries), len(gallery)])
    return RetrievalData(name, _pictures(paths), labels, split, None if found.gallery is None else asks)


_CUB = "Caltech-UCSD Birds-200-2011 (CUB-200-2011), from the Caltech Vision Lab's page of that name"


def read_cub(folder: StrPath, *, split: str = "classes", check_files: bool = True) -> RetrievalSet:
    """Caltech-UCSD Birds-200-2011: 11,788 images of 200 species.

    Args:
        folder: the unpacked ``CUB_200_2011``, with images.txt, image_class_labels.txt, classes.txt and images/
            (and train_test_split.txt).
        split: "classes", that of metric learning: the first half of the classes to train on, the others to test on;
            or "official": the file train_test_split.txt, with all classes on both sides.
        check_files: see that every image is there.

    Raises:
        FileNotFoundError, ValueError: the folder is missing or is laid out in another way; the message says how.
    """
    check_choice(split, ("classes", "official"), "split")
    layout = _Layout(folder, ["images.txt", "image_class_labels.txt", "classes.txt", "images/"], _CUB)
    paths = dict(layout.rows("images.txt", 2))
    labels = {image: layout.number(label) for image, label in layout.rows("image_class_labels.txt", 2)}
    names = {layout.number(label): name for label, name in layout.rows("classes.txt", 2)}
    if paths.keys() != labels.keys():
        raise layout.wrong("images.txt and image_class_labels.txt must number the same images")
    if split == "official":
        to_train = {image: flag == "1" for image, flag in layout.rows("train_test_split.txt", 2)}
    else:
        first_half = set(sorted(names)[: len(names) // 2])
        to_train = {image: labels[image] in first_half for image in paths}

    def part(train: bool) -> Items:
        images = [image for image in paths if to_train.get(image) is train]
        return Items([layout.folder / "images" / paths[i] for i in images], [labels[i] for i in images])

    found = RetrievalSet(part(True), part(False), None, names)
    return _checked(found, layout, check_files)


def _cub(path: Path) -> RetrievalData:
    return _as_data("CUB-200-2011, the second half of the classes unseen", read_cub(path))


CUB = Layout(
    f"a folder with images.txt, image_class_labels.txt, classes.txt and images/: {_CUB}",
    _holds("images.txt", "image_class_labels.txt"),
    _cub,
)

_SOP = "Stanford Online Products, from the page 'Deep Metric Learning via Lifted Structured Feature Embedding'"


def read_online_products(folder: StrPath, *, check_files: bool = True) -> RetrievalSet:
    """Stanford Online Products: 120,053 images of 22,634 products, half of which are for testing.

    Args:
        folder: the unpacked ``Stanford_Online_Products``, with Ebay_train.txt, Ebay_test.txt and the image folders.
        check_files: see that every image is there.

    Raises:
        FileNotFoundError, ValueError: the folder is missing or is laid out in another way; the message says how.
    """
    layout = _Layout(folder, ["Ebay_train.txt", "Ebay_test.txt"], _SOP)
    names: dict[int, str] = {}

    def part(file: str) -> Items:
        items = Items([], [])
        for _, label, _, path in layout.rows(file, 4, header="image_id class_id super_class_id path"):
            items.paths.append(layout.folder / path)
            items.labels.append(layout.number(label))
            names.setdefault(items.labels[-1], f"{path.split('/')[0].removesuffix('_final')} {label}")
        return items

    found = RetrievalSet(part("Ebay_train.txt"), part("Ebay_test.txt"), None, names)
    return _checked(found, layout, check_files)


def _online_products(path: Path) -> RetrievalData:
    return _as_data("Stanford Online Products", read_online_products(path))


ONLINE_PRODUCTS = Layout(
    f"a folder with Ebay_train.txt, Ebay_test.txt and the folders of pictures: {_SOP}",
    _holds("Ebay_train.txt"),
    _online_products,
)

_IN_SHOP = "the In-shop Clothes Retrieval Benchmark, from the page of the DeepFashion database (MMLAB, CUHK)"


def read_in_shop(folder: StrPath, *, check_files: bool = True) -> RetrievalSet:
    """In-shop Clothes Retrieval: 52,712 images of 7,982 items, with queries apart from the gallery.

    Args:
        folder: the unpacked benchmark, with list_eval_partition.txt (also in Eval/ or Anno/) and img/ (also in Img/).
        check_files: see that every image is there.

    Raises:
        FileNotFoundError, ValueError: the folder is missing or is laid out in another way; the message says how.
    """
    layout = _Layout(folder, ["Eval/list_eval_partition.txt|Anno/list_eval_partition.txt|list_eval_partition.txt",
                              "img/|Img/img/"], _IN_SHOP)  # fmt: skip
    root = layout.find("img/|Img/img/").parent
    parts = {"train": Items([], []), "query": Items([], []), "gallery": Items([], [])}
    names: dict[int, str] = {}
    file = layout.find(layout.expected[0]).relative_to(layout.folder).as_posix()
    for path, item, part in layout.rows(file, 3, header="image_name item_id evaluation_status"):
        if part not in parts:
            raise layout.wrong(f"{file}: a status is train, query or gallery", repr(part))
        label = layout.number(item.removeprefix("id_"))
        names[label] = item
        parts[part].paths.append(root / path)
        parts[part].labels.append(label)
    found = RetrievalSet(parts["train"], parts["query"], parts["gallery"], names)
    return _checked(found, layout, check_files)


def _in_shop(path: Path) -> RetrievalData:
    return _as_data("In-shop Clothes Retrieval", read_in_shop(path))


IN_SHOP = Layout(
    f"a folder with Eval/list_eval_partition.txt and img/: {_IN_SHOP}",
    lambda path: any((path / part / "list_eval_partition.txt").is_file() for part in ("", "Eval", "Anno")),
    _in_shop,
)

PICTURE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def read_class_folders(folder: StrPath) -> RetrievalSet:
    """Your own pictures: a folder for each class.

    Either the classes lie in folders ``train`` and ``test``, and no class in both; or they lie in `folder` itself, and
    every second one, by name, is for the test.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: fewer than four classes, a class of fewer than two pictures, or one that is in both parts.
    """
    folder = user_path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"`folder` must have a folder of pictures for each class, got '{folder}', not there.")
    parts = [folder / "train", folder / "test"]
    if all(part.is_dir() for part in parts):
        train, test = (_subfolders(part) for part in parts)
    else:
        classes = _subfolders(folder)
        train, test = classes[::2], classes[1::2]
    pictures = {entry: _pictures_in(entry) for entry in train + test}
    if len(train) < 2 or len(test) < 2:
        raise ValueError(
            f"`folder` must have two classes or more to train on and two for the test, a folder of pictures each, got "
            f"{len(train)} and {len(test)} in '{folder}'."
        )
    for entry, files in pictures.items():
        if len(files) < 2:
            raise ValueError(
                f"`folder` must have two pictures or more of each class, got {len(files)} in '{entry}'. "
                "Add some, or move that folder away."
            )
    both = {entry.name for entry in train} & {entry.name for entry in test}
    if both:
        raise ValueError(f"`folder` must not have a class in train and in test, got {min(both)!r} in '{folder}'.")

    def items(entries: Sequence[Path], first: int) -> Items:
        labels = [label for label, entry in enumerate(entries, first) for _ in pictures[entry]]
        return Items([file for entry in entries for file in pictures[entry]], labels)

    names = {label: entry.name for label, entry in enumerate(train + test)}
    return RetrievalSet(items(train, 0), items(test, len(train)), None, names)


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in visible(folder) if entry.is_dir()]


def _pictures_in(folder: Path) -> list[Path]:
    return [entry for entry in visible(folder) if entry.suffix.lower() in PICTURE_SUFFIXES]


def _class_folders(path: Path) -> RetrievalData:
    return _as_data(f"{path.name}, classes of the test unseen", read_class_folders(path))


def _is_class_folders(path: Path) -> bool:
    if not path.is_dir() or (path / "Ebay_train.txt").exists():  # Stanford Online Products is laid out like that too
        return False
    parts = [path / "train", path / "test"]
    places = parts if all(part.is_dir() for part in parts) else [path]
    classes = [entry for place in places for entry in _subfolders(place)]
    return sum(bool(_pictures_in(entry)) for entry in classes) > 1  # one without is named when they are read


CLASS_FOLDERS = Layout(
    "your own folder with a folder of pictures for each class, or with train/ and test/ of such folders",
    _is_class_folders,
    _class_folders,
)

_OMNIGLOT = ("images_background_small1", "images_background_small2")


def _omniglot(path: Path) -> RetrievalData:
    """Small1 for training; of small2, the alphabets that small1 does not have, for the test."""
    files, labels, alphabets, parts = [], [], [], []
    for part in _OMNIGLOT:
        for name, content in _omniglot_files(path, part):
            alphabet, character = name.parts[-3], name.parts[-2]
            files.append((str(path / name), content))
            labels.append(f"{alphabet}/{character}")
            alphabets.append(alphabet)
            parts.append(part)
    if len(set(parts)) < 2:
        raise ValueError(f"`data` {path} must hold pictures in both {' and '.join(_OMNIGLOT)}, got {set(parts)}.")
    train = np.array(parts) == _OMNIGLOT[0]
    seen = np.isin(alphabets, np.array(alphabets)[train])
    keep = train | ~seen
    split = np.where(train, "train", "test")
    return RetrievalData(
        "Omniglot: small1, tested on the unseen alphabets of small2",
        # ink wins: 105 pixels to 28 by the mean leaves thin strokes pale, but whole
        read_pictures(files, 28, grey=True)[keep],
        np.array(labels)[keep],
        split[keep],
    )


def _omniglot_files(path: Path, part: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and bytes of the pictures of `part`, in a zip or a folder."""
    if (path / part).is_dir():
        for file in sorted((path / part).rglob("*.png")):
            place = PurePosixPath(file.relative_to(path).as_posix())
            if not any(map(left_behind, place.parts)):
                yield place, file.read_bytes()
        return
    with zipfile.ZipFile(path / f"{part}.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".png") and not any(map(left_behind, PurePosixPath(name).parts)):
                yield PurePosixPath(name), archive.read(name)


def _is_omniglot(path: Path) -> bool:
    return all((path / part).is_dir() or (path / f"{part}.zip").is_file() for part in _OMNIGLOT)


OMNIGLOT = Layout(
    f"a folder with {_OMNIGLOT[0]} and {_OMNIGLOT[1]} (folders or .zip), github.com/brendenlake/omniglot",
    _is_omniglot,
    _omniglot,
)


def _jpegs(path: Path) -> RetrievalData:
    """JPEG bytes end to end with offsets; whole classes are held out, drawn once and for all."""
    file = _jpeg_files(path)[0]
    with np.load(file) as arrays:
        content, offsets, labels = arrays["jpeg"].tobytes(), arrays["offset"], arrays["label"]
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    files = ((f"{file}, picture {i}", content[start:end]) for i, (start, end) in enumerate(ends))
    pictures = read_pictures(files, 32)
    classes = np.unique(labels)
    order = np.random.default_rng(0).permutation(len(classes))
    held = max(2, round(0.3 * len(classes)))
    split = np.where(np.isin(labels, classes[order[:held]]), "test", "train")
    return RetrievalData(f"{file.stem}, {held} of {len(classes)} classes unseen", pictures, labels, split)


def _jpeg_files(path: Path) -> list[Path]:
    return [file for file in npz_files(path) if {"jpeg", "offset", "label"} <= array_names(file)]


JPEG_NPZ = Layout(
    "an .npz of jpeg (bytes end to end, uint8), offset (n + 1) and label (n)",
    lambda path: bool(_jpeg_files(path)),
    _jpegs,
)

RETRIEVAL: dict[str, Layout] = {
    "omniglot": OMNIGLOT,
    "jpeg npz": JPEG_NPZ,
    "CUB-200-2011": CUB,
    "Stanford Online Products": ONLINE_PRODUCTS,
    "In-shop": IN_SHOP,
    "class folders": CLASS_FOLDERS,
    "features": _features_layout(
        "retrieval", lambda name, of, split: RetrievalData(name, of["features"], of["labels"], split)
    ),
}
"""What ``sodeep compare retrieval --data`` may be; the first that fits is read."""


# ---- captions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaptionedImages:
    """Images with several captions each."""

    paths: list[Path]
    captions: list[list[str]]


_KARPATHY = (
    "Karpathy's splits ('Deep Visual-Semantic Alignments' page, caption_datasets.zip); images from COCO, Flickr30k"
)


def read_karpathy(
    path: StrPath,
    images: StrPath,
    *,
    split: str = "train",
    restval: bool = True,
    captions_per_image: int = 5,
    check_files: bool = True,
) -> CaptionedImages:
    """Images and their captions by one of Karpathy's files, such as dataset_coco.json and dataset_flickr30k.json.

    Args:
        path: the JSON file.
        images: the folder of the images; COCO's are in its sub-folders train2014 and val2014.
        split: "train", "val" or "test". Published figures on COCO use the 5,000 test images, or the mean of their
            five thousands.
        restval: whether "train" has the images marked restval as well (COCO: 30,504 more), as most papers do.
        captions_per_image: the first so many captions of each image. Some COCO images have six or seven.
        check_files: see that every image is there.

    Raises:
        FileNotFoundError: the file, the folder or an image is missing.
        ValueError: the file is of another layout, or an image has too few captions.
    """
    check_choice(split, ("train", "val", "test"), "split")
    check_at_least(captions_per_image, 1, "captions_per_image")
    path, images = user_path(path), user_path(images)
    layout = _Layout(path.parent, [path.name], _KARPATHY)
    keys = "{'images': [{'filename', 'split', 'sentences': [{'raw'}, …]}, …]}"
    wanted = {"train", "restval"} if split == "train" and restval else {split}
    found = CaptionedImages([], [])
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise layout.wrong(f"{path.name} must be JSON: {keys}", "text that is not JSON") from None
    try:
        for image in data["images"]:
            if image["split"] not in wanted:
                continue
            captions = [str(sentence["raw"]) for sentence in image["sentences"]][:captions_per_image]
            if len(captions) < captions_per_image:
                raise ValueError(
                    f"`captions_per_image` must be at most the captions of each image, got {captions_per_image} for "
                    f"{image['filename']}, which has {len(captions)} in '{path}'."
                )
            found.paths.append(images / image.get("filepath", "") / image["filename"])
            found.captions.append(captions)
    except (KeyError, TypeError, AttributeError) as error:
        raise layout.wrong(f"{path.name} must be {keys}", f"no {error}") from None
    if not found.paths:
        raise layout.wrong(f"{path.name} must have images of the split {split}", "none")
    if check_files:
        _check_files(found.paths, images, _KARPATHY)
    return found


def _karpathy(path: Path) -> CrossModalData:
    file = _karpathy_file(path)
    parts = {split: read_karpathy(file, file.parent, split=split) for split in SPLITS}
    counts = [len(parts[split].paths) for split in SPLITS]
    captions = [texts for split in SPLITS for texts in parts[split].captions]
    owner = np.repeat(np.arange(sum(counts)), [len(texts) for texts in captions])
    pictures = _pictures([path for split in SPLITS for path in parts[split].paths])
    name = f"{file.stem.removeprefix('dataset_')} captions"
    return CrossModalData(name, pictures, [t for texts in captions for t in texts], owner, np.repeat(SPLITS, counts))


def _karpathy_file(path: Path) -> Path:
    found = [entry for entry in visible(path) if fnmatch(entry.name, "dataset_*.json")] if path.is_dir() else [path]
    return next(iter(found), path / "dataset_coco.json")


KARPATHY = Layout(
    f"a folder with dataset_coco.json or dataset_flickr30k.json, and the pictures where the file says: {_KARPATHY}",
    lambda path: _karpathy_file(path).is_file() and _karpathy_file(path).suffix == ".json",
    _karpathy,
)

_LANGUAGES = ("en", "de", "fr", "es", "it")


def _emoji(path: Path) -> CrossModalData:
    """Pictures with a name in five languages each; keywords that two emoji share or more have are their codes."""
    with np.load(path / "emoji.npz") as arrays:
        pictures = arrays["google"]
    with (path / "emoji.tsv").open(newline="", encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    if len(rows) != len(pictures):
        raise ValueError(f"`data` {path} must have a row of emoji.tsv a picture ({len(pictures)}), got {len(rows)}.")
    captions = [(i, row[name], name) for i, row in enumerate(rows) for name in _LANGUAGES if row.get(name)]
    keywords = [set(filter(None, row["tags_en"].split(";"))) for row in rows]
    known = sorted(word for word in set().union(*keywords) if sum(word in own for own in keywords) > 1)
    return CrossModalData(
        "emoji: pictures and names in five languages",
        pictures,
        [text for _, text, _ in captions],
        np.array([i for i, _, _ in captions]),
        np.array([row["split"] for row in rows]),
        np.array([[word in own for word in known] for own in keywords]),
        languages=[language for _, _, language in captions],
    )


EMOJI = Layout(
    "a folder with emoji.npz (google, uint8 (N, H, W, 3)) and emoji.tsv (split, "
    f"{', '.join(_LANGUAGES)}, tags_en; row i describes picture i)",
    lambda path: (path / "emoji.npz").is_file() and (path / "emoji.tsv").is_file(),
    _emoji,
)


def _codes(of: Mapping[str, Array]) -> Array | None:
    """Codes of images (n, c), boolean: those given, or a place for each class."""
    if "codes" in of:
        return of["codes"].astype(bool)
    return of["labels"][:, None] == np.unique(of["labels"]) if "labels" in of else None


CROSS_MODAL: dict[str, Layout] = {
    "emoji": EMOJI,
    "Karpathy": KARPATHY,
    "features": _features_layout(
        "cross-modal",
        lambda name, of, split: CrossModalData(
            name, of["images"], of["captions"], of["image_of_caption"], split, _codes(of)
        ),
    ),
}
"""What ``sodeep compare cross-modal --data`` may be."""


# ---- memorability ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoredItems:
    """Files with a human score each."""

    names: list[str]
    scores: list[float]
    annotations: list[int] | None
    """How many people a score is the mean of, where the file says."""
    captions: list[str] | None
    """What each shows in words, where the file says or one of captions was given; several captions end to end."""
    split: Array | None = None
    """(n,) of "train", "val" and "test", where the file has a column of that name."""


_MEDIAEVAL = "the MediaEval benchmark, task 'Predicting Media Memorability', on request from its organisers"


def read_mediaeval(
    path: StrPath, captions: StrPath | None = None, *, term: str = "short", normalized: bool = False
) -> ScoredItems:
    """Memorability scores of videos, from a csv of MediaEval: ground-truth_dev-set.csv (2018), train_scores.csv (2021).

    Args:
        path: the csv. Columns of 2018 and 2019: video, short-term_memorability, nb_short-term_annotations, and the same
            for long-term. Of 2021: video_id, scores_raw_short_term, scores_normalized_short_term, scores_raw_long_term.
        captions: dev-set_video-captions.txt (2018: a video and its caption in each line, apart by a tab, hyphens for
            spaces) or train_text_descriptions.csv (2021: video_id, description; several for a video; of Memento10k,
            video_id and description_0 to description_4). None: the columns description_0 and so on of `path`, if any.
        term: "short" or "long".
        normalized: the scores of 2021 corrected for the time between the two showings.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the columns are missing, a score is no number, or a video has no caption.
    """
    check_choice(term, ("short", "long"), "term")
    path = user_path(path)
    layout = _Layout(path.parent, [path.name], _MEDIAEVAL)
    kind = "normalized" if normalized else "raw"
    columns = {} if normalized else {f"{term}-term_memorability": "video"}
    columns[f"scores_{kind}_{term}_term"] = "video_id"
    table = read_csv(path, columns.values())
    column = next((c for c, name in columns.items() if c in table.names and name in table.names), None)
    if column is None:
        wanted = " or ".join(f"{name} and {c}" for c, name in columns.items())
        found = table.found if table.names else "an empty file"
        raise layout.wrong(f"{path.name} must have the columns {wanted}", found)
    names = table.texts(columns[column])

    def numbers(column: str) -> list[float]:
        values = []
        for name, cell in zip(names, table.texts(column), strict=True):
            try:
                values.append(float(cell))
            except ValueError:
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                raise layout.wrong(f"{path.name}: {column} must be a number", f"{cell!r} for {name}")
        return values

    scores = numbers(column)
    counts = f"nb_{term}-term_annotations"
    annotations = [int(count) for count in numbers(counts)] if counts in table.names else None
    split = _table_split(table)
    if captions is None:
        own = _descriptions(table) if _described(table.names) else None
        return ScoredItems(names, scores, annotations, own, split)
    texts = _video_captions(user_path(captions))
    silent = [name for name in names if name not in texts]
    if silent:
        raise layout.wrong(f"{Path(captions).name} must have a caption for every video", f"none for {silent[0]}")
    return ScoredItems(names, scores, annotations, [texts[name] for name in names], split)


def _video_captions(path: Path) -> dict[str, str]:
    """Video -> its captions end to end."""
    layout = _Layout(path.parent, [path.name], _MEDIAEVAL)
    expected = (
        f"{path.name} must have lines of a video, a tab and its caption, or the columns video_id and description, or "
        "description_0, description_1 and so on"
    )
    texts: dict[str, str] = {}
    if path.suffix == ".csv":
        table = read_csv(path, ("video_id",))
        if "video_id" not in table.names or not _described(table.names):
            raise layout.wrong(expected, table.found if table.names else "an empty file")
        pairs = list(zip(table.texts("video_id"), _descriptions(table), strict=True))
    else:
        pairs = []
        for line in filter(str.strip, read_text(path).splitlines()):
            video, tab, caption = line.partition("\t")
            if not tab:
                raise layout.wrong(expected, repr(line[:60]))
            pairs.append((video, caption.replace("-", " ")))
    for video, caption in pairs:
        texts[video] = f"{texts[video]} {caption}" if video in texts else caption
    return texts


def _descriptions(table: Table) -> list[str]:
    """The captions in each row, end to end."""
    captions = zip(*(table.texts(name) for name in _described(table.names)), strict=True)
    return [" ".join(filter(None, own)) for own in captions]


def _described(names: Iterable[str]) -> list[str]:
    """Of the columns, those with captions."""
    return [name for name in names if re.fullmatch(r"description(_\d+)?", name)]


_MEDIAEVAL_2018 = ("ground-truth_dev-set.csv", "dev-set_video-captions.txt")

_MEDIAEVAL_PARTS = {"train": ("train", "training_set"), "val": ("dev", "dev_set"), "test": ("test", "test_set")}
"""Split -> how the names of its files begin, from 2021 on, and the folder they may lie in."""


def _mediaeval_files(path: Path) -> dict[str, tuple[Path, Path | None]]:
    """Split -> its files of scores and of captions; none: `path` is of another layout."""
    if path.is_file():  # all of Memento10k in one
        names = column_names(path, ("video_id",))[0] if path.suffix == ".csv" else []
        return {"train": (path, None)} if {"video_id", "description_0"} <= {*names} else {}
    if all((path / name).is_file() for name in _MEDIAEVAL_2018):
        return {"train": (path / _MEDIAEVAL_2018[0], path / _MEDIAEVAL_2018[1])}
    found: dict[str, tuple[Path, Path | None]] = {}
    for split, (part, folder) in _MEDIAEVAL_PARTS.items():
        for place in (path, path / folder):
            scores, captions = (place / f"{part}_{name}.csv" for name in ("scores", "text_descriptions"))
            if scores.is_file() and captions.is_file():  # the scores of a test are kept back at first
                found[split] = (scores, captions)
    return found if "train" in found else {}


def _mediaeval(path: Path) -> MemorabilityData:
    files = _mediaeval_files(path)
    if "val" in files and "test" not in files:
        files["test"] = files.pop("val")
    scores, captions = files["train"]
    memento = (captions or scores).suffix == ".csv" and "description_0" in column_names(captions or scores)[0]
    parts = [read_mediaeval(*pair, normalized=memento) for pair in files.values()]
    split = parts[0].split if len(parts) == 1 else np.repeat([*files], [len(part.names) for part in parts])
    return MemorabilityData(
        "Memento10k, normalized scores, from captions" if memento else "MediaEval, short term, from captions",
        np.array([score for part in parts for score in part.scores]),
        texts=[text for part in parts for text in part.captions or ()],
        split=split,
    )


MEDIAEVAL = Layout(
    f"a folder with {' and '.join(_MEDIAEVAL_2018)}; or with train_scores.csv and train_text_descriptions.csv, and "
    "the same of dev and test if there are any, also in training_set/, dev_set/ and test_set/; or a .csv of "
    f"Memento10k with its scores, description_0 and so on, and split: {_MEDIAEVAL}",
    lambda path: bool(_mediaeval_files(path)),
    _mediaeval,
)

_SENTENCES = "sentence_memorability_data.csv"

_NOT_PREDICTORS = ("", "sentence", "target_hr", "fpr", "dprime", "acc", "condition")
"""Of the table's columns: the texts, the human scores and how the sentences were chosen; the other eleven predict."""


def _sentences(path: Path) -> MemorabilityData:
    """Sentences, the accuracy at which people recognised them, and eleven measures of the words."""
    file = path if path.is_file() else path / _SENTENCES
    table = read_csv(file, ("sentence", "acc"))
    predictors = [name for name in table.names if name not in _NOT_PREDICTORS]
    return MemorabilityData(
        "sentence memorability",
        np.array(table.numbers("acc")),
        texts=table.texts("sentence"),
        features=np.array([table.numbers(name) for name in predictors], dtype=np.float32).T,
    )


def _is_sentences(path: Path) -> bool:
    file = path if path.is_file() else path / _SENTENCES
    if file.suffix != ".csv" or not file.is_file():
        return False
    wanted = {"sentence", "acc", "mean_mem"}
    return wanted <= set(column_names(file, wanted)[0])


SENTENCES = Layout(
    f"{_SENTENCES} with columns sentence, acc and predictors, github.com/thomashikaru/sentence_memorability_share",
    _is_sentences,
    _sentences,
)

MEMORABILITY: dict[str, Layout] = {
    "sentence memorability": SENTENCES,
    "MediaEval": MEDIAEVAL,
    "table": TABLE,
    "features": _features_layout(
        "memorability",
        lambda name, of, split: MemorabilityData(name, of["scores"], features=of["features"], split=split),
    ),
}
"""What ``sodeep compare memorability --data`` may be."""


# ---- several labels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledImages:
    """Images with several labels each."""

    paths: list[Path]
    labels: Tensor
    """(n, c), boolean."""
    where: Tensor
    """(n, c), boolean. False: all objects of the class in the image are marked difficult; it counts neither way."""
    names: list[str]
    """Of the c classes."""


_VOC = "the PASCAL Visual Object Classes Challenge 2007 page (VOCtrainval and VOCtest, unpacked into one folder)"


def read_voc(
    folder: StrPath, *, split: str = "trainval", source: str = "lists", check_files: bool = True
) -> LabelledImages:
    """PASCAL VOC 2007: 9,963 images, 20 classes, several in an image.

    Where every object of a class in an image is marked difficult, the image counts neither as right nor as wrong for
    that class, as in the challenge: `where` is False there.

    Args:
        folder: the unpacked ``VOCdevkit/VOC2007``: ImageSets/Main, JPEGImages and, for `source` "xml", Annotations.
        split: "train", "val", "trainval" or "test".
        source: "lists": the files ImageSets/Main/<class>_<split>.txt, with 1 right, -1 wrong, 0 difficult;
            "xml": the objects of Annotations/<image>.xml and their difficult flags. They agree.
        check_files: see that every image is there.

    Raises:
        FileNotFoundError, ValueError: the folder is missing or is laid out in another way; the message says how.
    """
    check_choice(split, ("train", "val", "trainval", "test"), "split")
    check_choice(source, ("lists", "xml"), "source")
    layout = _Layout(folder, [f"ImageSets/Main/{split}.txt", "JPEGImages/"]
                     + (["Annotations/"] if source == "xml" else []), _VOC)  # fmt: skip
    images = [image for (image,) in layout.rows(f"ImageSets/Main/{split}.txt", 1)]
    flags = _voc_lists(layout, split, images) if source == "lists" else _voc_xml(layout, images)
    names = sorted(flags)
    values = torch.tensor([[flags[name].get(image, -1) for name in names] for image in images])
    paths = [layout.folder / "JPEGImages" / f"{image}.jpg" for image in images]
    if check_files:
        _check_files(paths, layout.folder, _VOC)
    return LabelledImages(paths, values == 1, values != 0, names)


def _voc_lists(layout: _Layout, split: str, images: Sequence[str]) -> dict[str, dict[str, int]]:
    """Class -> image -> 1 right, -1 wrong, 0 difficult."""
    files = [path for path in visible(layout.folder / "ImageSets/Main") if path.name.endswith(f"_{split}.txt")]
    if not files:
        raise layout.missing([f"ImageSets/Main/<class>_{split}.txt"])
    flags = {}
    for path in files:
        file = path.relative_to(layout.folder).as_posix()
        flags[path.stem.removesuffix(f"_{split}")] = {
            image: layout.number(flag) for image, flag in layout.rows(file, 2)
        }
        if flags[path.stem.removesuffix(f"_{split}")].keys() != set(images):
            raise layout.wrong(f"{file} must list the images of {split}.txt")
    return flags


def _voc_xml(layout: _Layout, images: Sequence[str]) -> dict[str, dict[str, int]]:
    """Class -> image -> 1 right, 0 difficult."""
    flags: dict[str, dict[str, int]] = {}
    for image in images:
        file = f"Annotations/{image}.xml"
        if not (layout.folder / file).is_file():
            raise layout.missing([file])
        try:
            objects = ET.parse(layout.folder / file).getroot().findall("object")
        except ET.ParseError as error:
            raise layout.wrong(f"{file} must be XML", str(error)) from None
        for entry in objects:
            flag = 0 if entry.findtext("difficult") == "1" else 1
            of_class = flags.setdefault(str(entry.findtext("name")), {})
            of_class[image] = max(flag, of_class.get(image, 0))
    return flags


def _voc(path: Path) -> MultiLabelData:
    parts = [read_voc(path, split=split) for split in ("trainval", "test")]
    return MultiLabelData(
        "VOC 2007",
        torch.cat([part.labels for part in parts]).numpy(),
        parts[0].names,
        items=_pictures([file for part in parts for file in part.paths]),
        split=np.repeat(["train", "test"], [len(part.paths) for part in parts]),
        known=torch.cat([part.where for part in parts]).numpy(),
    )


VOC = Layout(
    f"the folder VOCdevkit/VOC2007 with ImageSets/Main and JPEGImages: {_VOC}",
    _holds("ImageSets/Main", "JPEGImages"),
    _voc,
)

_GOEMOTIONS = {"train": "train.tsv", "val": "dev.tsv", "test": "test.tsv"}


def _goemotions(path: Path) -> MultiLabelData:
    """Comments with 28 emotions; rows of text, numbers of labels, id."""
    names = read_text(path / "labels.txt").split()
    texts, labels, split = [], [], []
    for part, table in _GOEMOTIONS.items():
        for number, line in enumerate(read_text(path / table).splitlines(), 1):
            fields = line.split("\t")
            try:
                own = [int(label) for label in fields[1].split(",")]
                labels.append(np.bincount(own, minlength=len(names)).astype(bool))
            except (IndexError, ValueError):
                raise ValueError(
                    f"`data` {path / table} must hold a text, label numbers and an id in each line, "
                    f"got {line[:60]!r} in line {number}."
                ) from None
            if len(labels[-1]) != len(names):
                raise ValueError(
                    f"`data` {path / table} must hold label numbers below {len(names)}, the lines of labels.txt, "
                    f"got {max(own)} in line {number}."
                )
            texts.append(fields[0])
            split.append(part)
    return MultiLabelData("GoEmotions", np.stack(labels), names, texts=texts, split=np.array(split))


GOEMOTIONS = Layout(
    "a folder with labels.txt, train.tsv, dev.tsv and test.tsv (text, label numbers, id), "
    "github.com/google-research/google-research/tree/master/goemotions",
    _holds(*_GOEMOTIONS.values(), "labels.txt"),
    _goemotions,
)

MULTI_LABEL: dict[str, Layout] = {
    "goemotions": GOEMOTIONS,
    "VOC 2007": VOC,
    "features": _features_layout(
        "multi-label",
        lambda name, of, split: MultiLabelData(
            name,
            of["labels"].astype(bool),
            [f"label {i}" for i in range(of["labels"].shape[1])],
            features=of["features"],
            split=split,
        ),
    ),
}
"""What ``sodeep compare multi-label --data`` may be."""
