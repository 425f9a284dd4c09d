"""Retrieval data: images with a class each, and no class in both training and test.

For every data set: its reader, the function that makes `RetrievalData` of it, and its `Layout`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from sodeep._core.checks import check_choice, user_path
from sodeep.datasets.features import features_layout
from sodeep.datasets.images import IMAGE_SUFFIXES, read_images, small_images
from sodeep.datasets.layouts import (
    FolderLayout,
    Layout,
    StrPath,
    array_names,
    has_files,
    left_behind,
    need_files,
    npz_files,
    visible,
)
from sodeep.datasets.revisited import REVISITED
from sodeep.datasets.types import RetrievalData


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
    """The items that the queries search; None: the other queries."""
    names: dict[int, str]
    """Label -> name of the class."""


def checked_set(benchmark: RetrievalSet, layout: FolderLayout, check_files: bool) -> RetrievalSet:
    """The set that was read, after checks that no part is empty and all files exist."""
    parts = {"train": benchmark.train, "test": benchmark.queries}
    if benchmark.gallery is not None:
        parts = {"train": benchmark.train, "query": benchmark.queries, "gallery": benchmark.gallery}
    for name, part in parts.items():
        if not part.paths:
            raise layout.wrong(
                f"there must be images to {name}" if name != "train" else "there must be training images"
            )
    if check_files:
        need_files([path for part in parts.values() for path in part.paths], layout.folder, layout.origin)
    return benchmark


def as_data(name: str, benchmark: RetrievalSet) -> RetrievalData:
    """The set as data of the task, its images made small."""
    gallery = benchmark.gallery or Items([], [])
    paths = benchmark.train.paths + benchmark.queries.paths + gallery.paths
    labels = np.array(benchmark.train.labels + benchmark.queries.labels + gallery.labels)
    split = np.repeat(["train", "test"], [len(benchmark.train), len(benchmark.queries) + len(gallery)])
    query = np.repeat([True, False], [len(benchmark.train) + len(benchmark.queries), len(gallery)])
    query_of = None if benchmark.gallery is None else query
    return RetrievalData(name, small_images(paths), labels, split, query_of, files=paths)


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
    layout = FolderLayout(folder, ["images.txt", "image_class_labels.txt", "classes.txt", "images/"], _CUB)
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

    benchmark = RetrievalSet(part(True), part(False), None, names)
    return checked_set(benchmark, layout, check_files)


def _cub(path: Path) -> RetrievalData:
    return as_data("CUB-200-2011, the second half of the classes unseen", read_cub(path))


CUB = Layout(
    f"a folder with images.txt, image_class_labels.txt, classes.txt and images/: {_CUB}",
    has_files("images.txt", "image_class_labels.txt"),
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
    layout = FolderLayout(folder, ["Ebay_train.txt", "Ebay_test.txt"], _SOP)
    names: dict[int, str] = {}

    def part(file: str) -> Items:
        items = Items([], [])
        for _, label, _, path in layout.rows(file, 4, header="image_id class_id super_class_id path"):
            items.paths.append(layout.folder / path)
            items.labels.append(layout.number(label))
            names.setdefault(items.labels[-1], f"{path.split('/')[0].removesuffix('_final')} {label}")
        return items

    benchmark = RetrievalSet(part("Ebay_train.txt"), part("Ebay_test.txt"), None, names)
    return checked_set(benchmark, layout, check_files)


def _online_products(path: Path) -> RetrievalData:
    return as_data("Stanford Online Products", read_online_products(path))


ONLINE_PRODUCTS = Layout(
    f"a folder with Ebay_train.txt, Ebay_test.txt and the folders of images: {_SOP}",
    has_files("Ebay_train.txt"),
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
    layout = FolderLayout(folder, ["Eval/list_eval_partition.txt|Anno/list_eval_partition.txt|list_eval_partition.txt",
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
    benchmark = RetrievalSet(parts["train"], parts["query"], parts["gallery"], names)
    return checked_set(benchmark, layout, check_files)


def _in_shop(path: Path) -> RetrievalData:
    return as_data("In-shop Clothes Retrieval", read_in_shop(path))


IN_SHOP = Layout(
    f"a folder with Eval/list_eval_partition.txt and img/: {_IN_SHOP}",
    lambda path: any((path / part / "list_eval_partition.txt").is_file() for part in ("", "Eval", "Anno")),
    _in_shop,
)


def read_class_folders(folder: StrPath) -> RetrievalSet:
    """Your own images: a folder for each class.

    Either the classes lie in folders ``train`` and ``test``, and no class in both; or they lie in `folder` itself, and
    every second one, by name, is for the test.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: fewer than four classes, a class of fewer than two images, or one that is in both parts.
    """
    folder = user_path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"`folder` must have a folder of images for each class, got '{folder}', not there.")
    parts = [folder / "train", folder / "test"]
    if all(part.is_dir() for part in parts):
        train, test = (_subfolders(part) for part in parts)
    else:
        classes = _subfolders(folder)
        train, test = classes[::2], classes[1::2]
    images = {entry: _images_in(entry) for entry in train + test}
    if len(train) < 2 or len(test) < 2:
        raise ValueError(
            f"`folder` must have two classes or more to train on and two for the test, a folder of images each, got "
            f"{len(train)} and {len(test)} in '{folder}'."
        )
    for entry, files in images.items():
        if len(files) < 2:
            raise ValueError(
                f"`folder` must have two images or more of each class, got {len(files)} in '{entry}'. "
                "Add some, or move that folder away."
            )
    both = {entry.name for entry in train} & {entry.name for entry in test}
    if both:
        raise ValueError(f"`folder` must not have a class in train and in test, got {min(both)!r} in '{folder}'.")

    def items(entries: Sequence[Path], first: int) -> Items:
        labels = [label for label, entry in enumerate(entries, first) for _ in images[entry]]
        return Items([file for entry in entries for file in images[entry]], labels)

    names = {label: entry.name for label, entry in enumerate(train + test)}
    return RetrievalSet(items(train, 0), items(test, len(train)), None, names)


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in visible(folder) if entry.is_dir()]


def _images_in(folder: Path) -> list[Path]:
    return [entry for entry in visible(folder) if entry.suffix.lower() in IMAGE_SUFFIXES]


def _class_folders(path: Path) -> RetrievalData:
    return as_data(f"{path.name}, classes of the test unseen", read_class_folders(path))


def _is_class_folders(path: Path) -> bool:
    if not path.is_dir() or (path / "Ebay_train.txt").exists():  # Stanford Online Products is laid out like that too
        return False
    parts = [path / "train", path / "test"]
    places = parts if all(part.is_dir() for part in parts) else [path]
    classes = [entry for place in places for entry in _subfolders(place)]
    return sum(bool(_images_in(entry)) for entry in classes) > 1  # one without is named when they are read


CLASS_FOLDERS = Layout(
    "your own folder with a folder of images for each class, or with train/ and test/ of such folders",
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
        raise ValueError(f"`data` {path} must hold images in both {' and '.join(_OMNIGLOT)}, got {set(parts)}.")
    train = np.array(parts) == _OMNIGLOT[0]
    seen = np.isin(alphabets, np.array(alphabets)[train])
    keep = train | ~seen
    split = np.where(train, "train", "test")
    return RetrievalData(
        "Omniglot: small1, tested on the unseen alphabets of small2",
        # the mean over an area, from 105 pixels to 28, leaves thin strokes pale, but whole
        read_images(files, 28, grey=True)[keep],
        np.array(labels)[keep],
        split[keep],
        files=[file for file, kept in zip(files, keep, strict=True) if kept],
    )


def _omniglot_files(path: Path, part: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and bytes of the images of `part`, in a zip or a folder."""
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
    files = [(f"{file}, image {i}", content[start:end]) for i, (start, end) in enumerate(ends)]
    images = read_images(files, 32)
    classes = np.unique(labels)
    order = np.random.default_rng(0).permutation(len(classes))
    held_out = max(2, round(0.3 * len(classes)))
    split = np.where(np.isin(labels, classes[order[:held_out]]), "test", "train")
    name = f"{file.stem}, {held_out} of {len(classes)} classes unseen"
    return RetrievalData(name, images, labels, split, files=files)


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
    "Revisited": REVISITED,
    "class folders": CLASS_FOLDERS,
    "features": features_layout(
        "retrieval", lambda name, arrays, split: RetrievalData(name, arrays["features"], arrays["labels"], split)
    ),
}
"""What ``sodeep compare retrieval --data`` may be; the first that fits is read."""
