"""Data of each task as plain arrays and strings, whatever files they were read from."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, ClassVar, Protocol

import numpy as np

from sodeep._core.arrays import Array as Array
from sodeep._core.checks import LARGEST

Source = str | PathLike[str] | tuple[str, bytes]
"""An image file, or the name and the bytes of one."""


@dataclass(frozen=True)
class RetrievalData:
    """Items of classes. Classes of "test" occur in no other split.

    Attributes:
        name: in reports.
        items: images, uint8 (N, H, W) or (N, H, W, 3); or features, floating point (N, d).
        labels: (N,) of any kind, the class of each item.
        split: (N,), "train", "val" or "test". Without a "val", some classes of "train" are taken for it. All "test":
            there is nothing to train on, and an encoder can be evaluated only.
        query: (N,) bool, which items are queries. Where a split has others, these are its gallery, the only items that
            are searched; else, and for None, each item is searched by all the others.
        truth: int8 (3, Q, N), for the Q queries and the gallery of N of "test", under the protocols easy, medium and
            hard of Revisited Oxford and Paris: 1 right, 0 wrong, -1 left out. None: those of the same class are right.
        images: uint8 (N, H, W[, 3]) to show where `items` are features; None: `items`, if images.
        files: N, those that the images of `items` were made of, for networks that take larger ones; None: none.
    """

    name: str
    items: Array
    labels: Array
    split: Array
    query: Array | None = None
    images: Array | None = None
    truth: Array | None = None
    files: Sequence[Source] | None = None


@dataclass(frozen=True)
class CrossModalData:
    """Images with one or more captions each.

    Attributes:
        name: in reports.
        items: images, uint8 (N, H, W[, 3]); or their features, floating point (N, d).
        captions: M texts; or their features, floating point (M, e).
        owner: (M,) index of the image of each caption.
        split: (N,), "train", "val" or "test", of the images.
        codes: bool (N, C), graded relevance: two images mean the same in so far as their codes overlap (keywords,
            object classes); None if there are none.
        images: as in `RetrievalData`.
        languages: (M,) of str, the language of each caption, where their words are compared; None: all the same.
        classes: (N,) of any kind, the class of each image; None: images with the same codes are of one class.
        files: as in `RetrievalData`.
    """

    name: str
    items: Array
    captions: Sequence[str] | Array
    owner: Array
    split: Array
    codes: Array | None = None
    images: Array | None = None
    languages: Sequence[str] | None = None
    classes: Array | None = None
    files: Sequence[Source] | None = None


@dataclass(frozen=True)
class MemorabilityData:
    """Items with a score each.

    Attributes:
        name: in reports.
        target: (N,) floating point.
        texts: N texts or None.
        features: floating point (N, d) or None; one of both is given, or both.
        split: (N,), "train", "val" or "test"; None: drawn with the seed, 60 : 20 : 20.
    """

    name: str
    target: Array
    texts: Sequence[str] | None = None
    features: Array | None = None
    split: Array | None = None


@dataclass(frozen=True)
class MultiLabelData:
    """Examples with any number of labels each.

    Attributes:
        name: in reports.
        labels: bool (N, C).
        label_names: C names.
        texts: N texts or None.
        features: floating point (N, d) or None.
        items: images, uint8 (N, H, W[, 3]), or None; exactly one of the three is given.
        split: (N,), "train", "val" or "test"; None: drawn with the seed, 60 : 20 : 20.
        known: bool (N, C), which labels count (the "difficult" ones of VOC do not); None: all.
        files: as in `RetrievalData`.
    """

    name: str
    labels: Array
    label_names: Sequence[str]
    texts: Sequence[str] | None = None
    features: Array | None = None
    items: Array | None = None
    split: Array | None = None
    known: Array | None = None
    files: Sequence[Source] | None = None


@dataclass(frozen=True)
class RankingData:
    """Items in groups: the documents of a query, the items shown to a user. Only the order within a group counts.

    Attributes:
        name: in reports.
        features: floating point (N, d).
        relevance: (N,) floating point, 0 or more, 0 = not relevant.
        group: (N,) of any kind, the group of each item; its items need not stand together.
        split: (N,), "train", "val" or "test", one for all items of a group; None: groups are drawn with the seed,
            60 : 20 : 20, or dealt to `folds`.
        folds: how many: with seed s, fold s % folds is the test and the next one the validation split, of groups dealt
            with s // folds, so that `folds` seeds in a row are one cross-validation.
    """

    name: str
    features: Array
    relevance: Array
    group: Array
    split: Array | None = None
    folds: int | None = None


class Data(Protocol):
    """Data of any task: a dataclass that has a name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """In reports."""


def check_numbers(data: Data | Mapping[str, Any], may_be_nan: Collection[str] | None = None) -> None:
    """Raise unless the floating point numbers of all fields, or arrays, are finite in float32.

    `may_be_nan` names arrays that need not be, where a class can name some.

    Raises:
        ValueError: it names the array, and the first row.
    """
    parts = data if isinstance(data, Mapping) else {part.name: getattr(data, part.name) for part in fields(data)}
    for name, value in parts.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or name in (may_be_nan or ()):
            continue
        if float(np.abs(value).max(initial=0)) <= LARGEST:  # not with NaN
            continue
        wrong = ~(np.abs(value.astype(np.float64)) <= LARGEST)
        row, *columns = np.argwhere(wrong)[0].tolist()
        place = f"row {row}" + (f", column {', '.join(map(str, columns))}" if columns else "")
        remedy = "Fill them in, or leave those rows out"
        if may_be_nan is not None:
            remedy += "; or name the array in may_be_nan of the class, if it allows for them"
        raise ValueError(
            f"`data` must hold finite numbers, got {value[(row, *columns)]} in {name!r}, {place}: {int(wrong.sum())} "
            f"of {value.size} values are NaN, infinite or beyond float32. {remedy}."
        )


def checksum(data: Data | Mapping[str, Any]) -> int:
    """Checksum of all fields, or arrays, but names: another file may have the same one."""
    crc = 0
    parts = data if isinstance(data, Mapping) else {part.name: getattr(data, part.name) for part in fields(data)}
    for name, value in parts.items():
        if name in ("name", "files"):
            continue
        if isinstance(value, np.ndarray):
            crc = zlib.crc32(f"{name} {value.dtype} {value.shape}".encode(), crc)
            crc = zlib.crc32(value.tobytes(), crc)
        elif value is not None:
            text = json.dumps(value if isinstance(value, (int, float, str)) else list(value))
            crc = zlib.crc32(f"{name} {text}".encode(), crc)
    return crc
