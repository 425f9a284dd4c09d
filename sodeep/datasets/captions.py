"""Cross-modal data: images and their captions."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from sodeep._core.checks import check_at_least, check_choice, user_path
from sodeep.datasets.features import features_layout
from sodeep.datasets.images import small_images
from sodeep.datasets.layouts import FolderLayout, Layout, StrPath, need_files, visible
from sodeep.datasets.splits import SPLITS
from sodeep.datasets.types import Array, CrossModalData


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
    layout = FolderLayout(path.parent, [path.name], _KARPATHY)
    keys = "{'images': [{'filename', 'split', 'sentences': [{'raw'}, …]}, …]}"
    wanted = {"train", "restval"} if split == "train" and restval else {split}
    result = CaptionedImages([], [])
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
            result.paths.append(images / image.get("filepath", "") / image["filename"])
            result.captions.append(captions)
    except (KeyError, TypeError, AttributeError) as error:
        raise layout.wrong(f"{path.name} must be {keys}", f"no {error}") from None
    if not result.paths:
        raise layout.wrong(f"{path.name} must have images of the split {split}", "none")
    if check_files:
        need_files(result.paths, images, _KARPATHY)
    return result


def _karpathy(path: Path) -> CrossModalData:
    file = _karpathy_file(path)
    parts = {split: read_karpathy(file, file.parent, split=split) for split in SPLITS}
    counts = [len(parts[split].paths) for split in SPLITS]
    captions = [texts for split in SPLITS for texts in parts[split].captions]
    owner = np.repeat(np.arange(sum(counts)), [len(texts) for texts in captions])
    files = [path for split in SPLITS for path in parts[split].paths]
    return CrossModalData(
        f"{file.stem.removeprefix('dataset_')} captions",
        small_images(files),
        [text for texts in captions for text in texts],
        owner,
        np.repeat(SPLITS, counts),
        files=files,
    )


def _karpathy_file(path: Path) -> Path:
    files = [entry for entry in visible(path) if fnmatch(entry.name, "dataset_*.json")] if path.is_dir() else [path]
    return next(iter(files), path / "dataset_coco.json")


KARPATHY = Layout(
    f"a folder with dataset_coco.json or dataset_flickr30k.json, and the images where the file says: {_KARPATHY}",
    lambda path: _karpathy_file(path).is_file() and _karpathy_file(path).suffix == ".json",
    _karpathy,
)

_LANGUAGES = ("en", "de", "fr", "es", "it")


def _emoji(path: Path) -> CrossModalData:
    """Images with a name in five languages each; keywords that two emoji or more have in common are their codes.

    Their classes are the subcategories, where the table has them.
    """
    with np.load(path / "emoji.npz") as arrays:
        images = arrays["google"]
    with (path / "emoji.tsv").open(newline="", encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    if len(rows) != len(images):
        raise ValueError(f"`data` {path} must have a row of emoji.tsv for each image ({len(images)}), got {len(rows)}.")
    captions = [(i, row[name], name) for i, row in enumerate(rows) for name in _LANGUAGES if row.get(name)]
    keywords = [set(filter(None, row["tags_en"].split(";"))) for row in rows]
    shared = sorted(word for word in set().union(*keywords) if sum(word in words for words in keywords) > 1)
    return CrossModalData(
        "emoji: images and names in five languages",
        images,
        [text for _, text, _ in captions],
        np.array([i for i, _, _ in captions]),
        np.array([row["split"] for row in rows]),
        np.array([[word in words for word in shared] for words in keywords]),
        languages=[language for _, _, language in captions],
        classes=np.array([row["subcategory"] for row in rows]) if all("subcategory" in row for row in rows) else None,
    )


EMOJI = Layout(
    "a folder with emoji.npz (google, uint8 (N, H, W, 3)) and emoji.tsv (split, "
    f"{', '.join(_LANGUAGES)}, tags_en, and subcategory if there are classes; row i describes image i)",
    lambda path: (path / "emoji.npz").is_file() and (path / "emoji.tsv").is_file(),
    _emoji,
)


def _codes(arrays: Mapping[str, Array]) -> Array | None:
    """Codes of images (n, c), boolean: those given, or a column for each class."""
    if "codes" in arrays:
        return arrays["codes"].astype(bool)
    return arrays["labels"][:, None] == np.unique(arrays["labels"]) if "labels" in arrays else None


CROSS_MODAL: dict[str, Layout] = {
    "emoji": EMOJI,
    "Karpathy": KARPATHY,
    "features": features_layout(
        "cross-modal",
        lambda name, arrays, split: CrossModalData(
            name,
            arrays["images"],
            arrays["captions"],
            arrays["image_of_caption"],
            split,
            _codes(arrays),
            classes=arrays.get("labels"),
        ),
    ),
}
"""What ``sodeep compare cross-modal --data`` may be."""


def keep_captions(data: CrossModalData, images: Array, count: int, seed: int) -> CrossModalData:
    """The data with at most so many captions of each of these images, drawn with the seed; all those of the others.

    Of one seed, the captions of a smaller `count` are part of those of a larger one.
    """
    owner = np.asarray(data.owner)
    order = np.lexsort([np.random.default_rng([seed, 8]).random(len(owner)), owner])  # by image, shuffled within
    place = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    kept = np.sort(order[(place < count) | ~np.isin(owner[order], images)])
    captions, languages = data.captions, data.languages
    return replace(
        data,
        captions=captions[kept] if isinstance(captions, np.ndarray) else [captions[i] for i in kept],
        owner=owner[kept],
        languages=None if languages is None else [languages[i] for i in kept],
    )
