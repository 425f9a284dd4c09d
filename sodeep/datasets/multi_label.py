"""Multi-label data: examples and the labels of each."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sodeep._core.checks import check_choice
from sodeep.datasets.features import features_layout
from sodeep.datasets.images import small_images
from sodeep.datasets.layouts import FolderLayout, Layout, StrPath, has_files, need_files, visible
from sodeep.datasets.tables import read_text
from sodeep.datasets.types import MultiLabelData


@dataclass(frozen=True)
class LabelledImages:
    """Images with several labels each."""

    paths: list[Path]
    labels: Tensor
    """(n, c), boolean."""
    where: Tensor
    """(n, c), boolean. False: all objects of the class in the image are marked difficult; it is left out there."""
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
    layout = FolderLayout(folder, [f"ImageSets/Main/{split}.txt", "JPEGImages/"]
                     + (["Annotations/"] if source == "xml" else []), _VOC)  # fmt: skip
    images = [image for (image,) in layout.rows(f"ImageSets/Main/{split}.txt", 1)]
    flags = _voc_lists(layout, split, images) if source == "lists" else _voc_xml(layout, images)
    names = sorted(flags)
    values = torch.tensor([[flags[name].get(image, -1) for name in names] for image in images])
    paths = [layout.folder / "JPEGImages" / f"{image}.jpg" for image in images]
    if check_files:
        need_files(paths, layout.folder, _VOC)
    return LabelledImages(paths, values == 1, values != 0, names)


def _voc_lists(layout: FolderLayout, split: str, images: Sequence[str]) -> dict[str, dict[str, int]]:
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


def _voc_xml(layout: FolderLayout, images: Sequence[str]) -> dict[str, dict[str, int]]:
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
    files = [file for part in parts for file in part.paths]
    return MultiLabelData(
        "VOC 2007",
        torch.cat([part.labels for part in parts]).numpy(),
        parts[0].names,
        items=small_images(files),
        split=np.repeat(["train", "test"], [len(part.paths) for part in parts]),
        known=torch.cat([part.where for part in parts]).numpy(),
        files=files,
    )


VOC = Layout(
    f"the folder VOCdevkit/VOC2007 with ImageSets/Main and JPEGImages: {_VOC}",
    has_files("ImageSets/Main", "JPEGImages"),
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
                numbers = [int(label) for label in fields[1].split(",")]
                labels.append(np.bincount(numbers, minlength=len(names)).astype(bool))
            except (IndexError, ValueError):
                raise ValueError(
                    f"`data` {path / table} must hold a text, label numbers and an id in each line, "
                    f"got {line[:60]!r} in line {number}."
                ) from None
            if len(labels[-1]) != len(names):
                raise ValueError(
                    f"`data` {path / table} must hold label numbers below {len(names)}, the lines of labels.txt, "
                    f"got {max(numbers)} in line {number}."
                )
            texts.append(fields[0])
            split.append(part)
    return MultiLabelData("GoEmotions", np.stack(labels), names, texts=texts, split=np.array(split))


GOEMOTIONS = Layout(
    "a folder with labels.txt, train.tsv, dev.tsv and test.tsv (text, label numbers, id), "
    "github.com/google-research/google-research/tree/master/goemotions",
    has_files(*_GOEMOTIONS.values(), "labels.txt"),
    _goemotions,
)

MULTI_LABEL: dict[str, Layout] = {
    "goemotions": GOEMOTIONS,
    "VOC 2007": VOC,
    "features": features_layout(
        "multi-label",
        lambda name, arrays, split: MultiLabelData(
            name,
            arrays["labels"].astype(bool),
            [f"label {i}" for i in range(arrays["labels"].shape[1])],
            features=arrays["features"],
            split=split,
        ),
    ),
}
"""What ``sodeep compare multi-label --data`` may be."""
