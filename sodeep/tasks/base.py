"""What a task is, and the plain data it is made of."""

from __future__ import annotations

import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sodeep._arrays import npz_names
from sodeep._checks import check_at_least, describe, user_path
from sodeep.tasks.tables import column_names, describe_columns

SPLITS = ("train", "val", "test")
"""Losses are trained on the first, settings chosen on the second, figures taken on the third."""

BATCH_SIZE = 100
"""Items a step: the length of list that the shipped sorters of one length take."""

Array = NDArray[Any]
Loss = Callable[..., Any]


@dataclass(frozen=True)
class RetrievalData:
    """Items of classes. Classes of "test" occur in no other split.

    Attributes:
        name: what the report calls it.
        items: pictures, uint8 (N, H, W) or (N, H, W, 3); or features, floating point (N, d).
        labels: (N,) of any kind, the class of each item.
        split: (N,), "train", "val" or "test". Without a "val", some classes of "train" are taken for it.
        query: (N,) bool, who asks. Where a split has items that do not ask, it is only those that are found; else, and
            for None, everyone is, by the others.
        pictures: uint8 (N, H, W[, 3]) to show where `items` are features; None: `items`, if pictures.
    """

    name: str
    items: Array
    labels: Array
    split: Array
    query: Array | None = None
    pictures: Array | None = None


@dataclass(frozen=True)
class CrossModalData:
    """Pictures with one or more captions each.

    Attributes:
        name: what the report calls it.
        items: pictures, uint8 (N, H, W[, 3]); or their features, floating point (N, d).
        captions: M texts; or their features, floating point (M, e).
        owner: (M,) index of the picture of each caption.
        split: (N,), "train", "val" or "test", of the pictures.
        codes: bool (N, C), graded relevance: two pictures mean the same in so far as their codes overlap (keywords,
            object classes); None if there are none.
        pictures: as of `RetrievalData`.
        languages: (M,) of str, the language of each caption, where their words are compared; None: all the same.
    """

    name: str
    items: Array
    captions: Sequence[str] | Array
    owner: Array
    split: Array
    codes: Array | None = None
    pictures: Array | None = None
    languages: Sequence[str] | None = None


@dataclass(frozen=True)
class MemorabilityData:
    """Things with a score each.

    Attributes:
        name: what the report calls it.
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
        name: what the report calls it.
        labels: bool (N, C).
        label_names: C names.
        texts: N texts or None.
        features: floating point (N, d) or None.
        items: pictures, uint8 (N, H, W[, 3]), or None; exactly one of the three is given.
        split: (N,), "train", "val" or "test"; None: drawn with the seed, 60 : 20 : 20.
        known: bool (N, C), which labels count (the "difficult" ones of VOC do not); None: all.
    """

    name: str
    labels: Array
    label_names: Sequence[str]
    texts: Sequence[str] | None = None
    features: Array | None = None
    items: Array | None = None
    split: Array | None = None
    known: Array | None = None


class Data(Protocol):
    """Data of any task: a dataclass that has a name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """What the report calls them."""


def checksum(data: Data) -> int:
    """Of all that the data hold, their name apart: another file may have the same name."""
    crc = 0
    for part in fields(data):
        value = getattr(data, part.name)
        if isinstance(value, np.ndarray):
            crc = zlib.crc32(f"{part.name} {value.dtype} {value.shape}".encode(), crc)
            crc = zlib.crc32(value.tobytes(), crc)
        elif part.name != "name" and value is not None:
            crc = zlib.crc32(f"{part.name} {json.dumps(list(value))}".encode(), crc)
    return crc


@dataclass(frozen=True)
class Layout:
    """How a data set lies on disk, and how to read it.

    Attributes:
        expects: one line: the files a folder (or file) of this layout has, and where they come from.
        found: whether a path that exists is of this layout; only looks, reads little.
        read: the data. Errors name the file.
    """

    expects: str
    found: Callable[[Path], bool]
    read: Callable[[Path], Any]


def read_data(path: str | Path, layouts: Mapping[str, Layout], task: str) -> Any:
    """The data at `path`, in whichever of the `layouts` it is.

    Raises:
        FileNotFoundError: nothing there. The message says what may be there.
        ValueError: a layout that none of them is. The message says what was expected and what was found.
    """
    path = user_path(path)
    known = "\n".join(f"  {name}: {layout.expects}" for name, layout in layouts.items())
    if not path.exists():
        raise FileNotFoundError(f"`data` {path} does not exist. The {task} task reads:\n{known}")
    for layout in layouts.values():
        if layout.found(path):
            return layout.read(path)
    raise ValueError(
        f"`data` {path} must be in a layout that the {task} task reads, got {_held(path)}. It reads:\n{known}"
    )


def _held(path: Path) -> str:
    """What is at a path, for a message."""
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
    """What is in a folder, by name, without what systems leave there: hidden files and folders, and __MACOSX."""
    return sorted(entry for entry in folder.iterdir() if not left_behind(entry.name))


def left_behind(name: str) -> bool:
    """Whether a file or folder is none of the user's: ``._p0.jpg``, ``.DS_Store``, ``Thumbs.db``, ``__MACOSX``.

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


def indices_of(split: Array) -> dict[str, Tensor]:
    """Indices of the items of each split, in order."""
    indices = {name: torch.from_numpy(np.flatnonzero(split == name)) for name in SPLITS}
    for name, members in indices.items():
        if len(members) < 2:
            raise ValueError(f"`split` must have two items or more in {name!r}, got {len(members)} of {len(split)}.")
    return indices


def drawn_split(n: int, seed: int) -> Array:
    """60 : 20 : 20, drawn with the seed."""
    place = np.random.default_rng([seed, 2]).permutation(n) / n
    return np.select([place < 0.6, place < 0.8], ["train", "val"], "test")


def given_split(split: Array | None, n: int, seed: int) -> Array:
    """The split that n items come with, a "val" drawn where it has none; or a drawn one."""
    return drawn_split(n, seed) if split is None else with_validation(np.asarray(split), seed)


def with_validation(split: Array, seed: int, share: float = 0.15) -> Array:
    """The split itself if it has a "val", else with a share of "train" drawn for it."""
    unknown = set(np.unique(split)) - set(SPLITS)
    if unknown:
        raise ValueError(f"`split` must hold train, val and test only, got {describe(str(min(unknown)))}.")
    if (split == "val").any():
        return split
    train = np.flatnonzero(split == "train")
    chosen = np.random.default_rng([seed, 3]).permutation(train)[: round(share * len(train))]
    return np.where(np.isin(np.arange(len(split)), chosen), "val", split)


def with_train_share(split: Array, seed: int, share: float) -> Array:
    """The split with a share of "train" left, drawn with the seed; the rest are in no split, "".

    Of one seed, a smaller share is part of a larger one.
    """
    train = np.flatnonzero(split == "train")
    spare = np.random.default_rng([seed, 7]).permutation(train)[round(share * len(train)) :]
    return np.where(np.isin(np.arange(len(split)), spare), "", split)


def split_classes(split: Array, labels: Array, seed: int, share: float = 0.2) -> Array:
    """The split itself if it has a "val", else with whole classes of "train" drawn for it, two at least."""
    if (split == "val").any():
        return split
    train = np.unique(labels[split == "train"])
    chosen = np.random.default_rng([seed, 3]).permutation(train)[: max(2, round(share * len(train)))]
    return np.where((split == "train") & np.isin(labels, chosen), "val", split)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        metrics: name -> value.
        details: small arrays for pictures, saved as the ``.npz`` of a run; each task's docstring lists its own.
    """

    metrics: dict[str, float]
    details: dict[str, Array] = field(default_factory=dict)


AnyTask = TypeVar("AnyTask", bound="Task")


class Task(ABC):
    """Data, an encoder and its evaluation; the same for every loss.

    A seed fixes the split (where the data have none), the first weights and the batches, so that the losses of a seed
    differ in nothing but the loss: their differences are paired.
    """

    name: ClassVar[str]
    metrics: ClassVar[dict[str, bool]]
    """Every metric `evaluate` may give, most important first -> whether higher is better."""
    headline: ClassVar[str]
    """The metric that settings are chosen by, on the validation split; higher is better."""
    baseline: ClassVar[str]
    """The loss that others are compared with, unless the user says another."""
    losses: ClassVar[tuple[str, ...]]
    """The losses compared by default, the baseline among them; those on a sorter only where it is shipped."""
    accepts: ClassVar[tuple[str, ...]]
    """Forms of losses that fit, see `sodeep.tasks.contenders`; the first is that of a user's own loss."""
    options: ClassVar[tuple[str, ...]] = ()
    """Arguments that `load` takes beyond those of every task; None is the default of each."""
    reading: ClassVar[tuple[str, ...]] = ()
    """Those of `options` that say how data are read, and are for `read`; the others are for the task itself."""
    layouts: ClassVar[Mapping[str, Layout]] = {}
    """What `--data` may be, the first that fits: name -> layout. Empty: the task draws its own data."""
    tensors: ClassVar[tuple[str, ...]]
    """Attributes that steps and evaluations read, which move to the device; they may be None."""
    epochs: ClassVar[int]
    """Passes over the training split, by default."""
    rates: ClassVar[tuple[float, float]]
    """Learning rates that every loss is tuned over; a loss without a hyper-parameter gets one more on either side."""

    epsilon: ClassVar[float] = 1e-8
    """Of AdamW, on gradients scaled to norm 1; entries far below it are not blown up."""

    data_name: str
    """What the report calls the data; another share of them, say, is another name, so that nothing is mixed."""
    checksum: int
    """Of the data before they are split."""

    def __init__(self, data: Data, seed: int = 0, *, batch_size: int = BATCH_SIZE, train_share: float = 1.0) -> None:
        check_at_least(batch_size, 4, "batch_size")
        if not isinstance(train_share, (int, float)) or not 0 < train_share <= 1:
            raise ValueError(f"`train_share` must be a number above 0, up to 1, got {describe(train_share)}.")
        self.data_name = data.name if train_share == 1 else f"{data.name}, {train_share:.4g} of the training split"
        self.checksum = checksum(data)
        self.index = indices_of(with_train_share(self.split_of(data, seed), seed, train_share))
        self.seed = seed
        self.batch_size = min(batch_size, len(self.index["train"]))

    @classmethod
    def load(cls: type[AnyTask], data: str | Path | None = None, seed: int = 0, **options: Any) -> AnyTask:
        """The task on the data at a path, or on a small set for None.

        Args:
            data: a file or folder in one of the `layouts`; None: those of `generated`.
            seed: of what is drawn: the split, where the data have none, and the batches.
            **options: `batch_size`, `train_share` (the share of the training split that is trained on), and what
                `options` names.

        Raises:
            FileNotFoundError: nothing there.
            ValueError: data that are in no layout of the task, or that it cannot be made of.
        """
        reading = {name: options.pop(name) for name in cls.reading if name in options}
        return cls(cls.read(data, seed, **reading), seed, **options)

    @classmethod
    def read(cls, data: str | Path | None, seed: int) -> Any:
        """The data at a path; for None, those of `generated`. Takes the options that `reading` names."""
        if data is None:
            return cls.generated(seed)
        if not cls.layouts:
            raise ValueError(
                f"`data` must not be given for the {cls.name} task, which draws its own, got {str(data)!r}."
            )
        return read_data(data, cls.layouts, cls.name)

    @staticmethod
    @abstractmethod
    def generated(seed: int) -> Data:
        """A small set that is drawn with the seed, or comes with a package."""

    @classmethod
    @abstractmethod
    def split_of(cls, data: Any, seed: int) -> Array:
        """The split of every item, "train", "val" or "test": that of the data, or what it lacks drawn with the seed."""

    def to(self, device: torch.device) -> None:
        """Move there what steps and evaluations read."""
        for name in self.tensors:
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.to(device))

    def lacks(self, form: str) -> str | None:
        """What losses of a form need that these data do not have, and what to do; None: nothing."""
        return None

    def batches(self, epoch: int) -> Iterator[Array]:
        """Training items of each batch of an epoch, a function of the seed and the epoch alone.

        Full batches of a shuffle; what is left over waits for the next one.
        """
        order = np.random.default_rng([self.seed, epoch]).permutation(self.index["train"].numpy())
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            yield order[start : start + self.batch_size]

    @abstractmethod
    def model(self) -> nn.Module:
        """A new encoder. Draws its weights from torch's global generator."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """Encode a batch; for every form in `accepts`, what applies a loss of that form to it."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> Evaluation:
        """Exact metrics on a split, with the arrays for pictures if asked."""
