"""Revisited Oxford and Paris: ground truth, its three protocols, and the benchmarks as a layout of the retrieval task.

Radenović et al., "Revisiting Oxford and Paris: large-scale image retrieval benchmarking", CVPR 2018. 70 queries each;
an image may show the query easily, hardly, or in a way that counts neither as right nor as wrong (junk).

    truth = read_revisited("gnd_roxford5k.pkl")
    relevant, where = truth.relevance("medium")
    trapezoidal_ap(queries @ gallery.t(), relevant, where).nanmean()
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sodeep._core.arrays import read_npz
from sodeep._core.checks import check_choice, user_path
from sodeep._core.extras import needed
from sodeep._core.pickle_stream import NotPlainError
from sodeep.datasets._plain_pickle import read_plain_pickle
from sodeep.datasets.features import feature_array
from sodeep.datasets.images import IMAGE_SUFFIXES, small_images
from sodeep.datasets.layouts import Layout, array_names, need_files, npz_files, visible
from sodeep.datasets.types import Array, RetrievalData, Source

PROTOCOLS = ("easy", "medium", "hard")
"""What counts as right and what is left out: `RevisitedSet.relevance`."""

_REVISITED = "the 'Revisiting Oxford and Paris' page (Radenović et al. 2018), with the images of Oxford5k and Paris6k"


@dataclass(frozen=True)
class RevisitedSet:
    """Ground truth of Revisited Oxford or Paris: for each query, gallery images that show it, and how clearly."""

    queries: list[str]
    """Names of the query images, Q of them."""
    gallery: list[str]
    """Names of the gallery images, N of them."""
    boxes: list[tuple[float, float, float, float] | None]
    """Where the query is in its image, (left, top, right, bottom): only this part may be described."""
    easy: list[list[int]]
    hard: list[list[int]]
    junk: list[list[int]]
    """Indices in the gallery, a list for each query."""

    def relevance(self, protocol: str) -> tuple[Tensor, Tensor]:
        """The relevant images, and those that count at all, under a protocol.

        | protocol | right | left out |
        |---|---|---|
        | easy | easy | junk, hard |
        | medium | easy, hard | junk |
        | hard | hard | junk, easy |

        Args:
            protocol: "easy", "medium" or "hard".

        Returns:
            `relevant` and `where`, both (Q, N) and boolean, for `trapezoidal_ap` and every metric of `sodeep.metrics`.
            A query without a right image under the protocol has NaN there and belongs in no mean: `.nanmean()`.

        Raises:
            ValueError: an unknown protocol.

        Example:
            >>> truth = RevisitedSet(["q"], ["a", "b", "c", "d"], [None], easy=[[0]], hard=[[2]], junk=[[3]])
            >>> relevant, where = truth.relevance("hard")
            >>> relevant, where
            (tensor([[False, False,  True, False]]), tensor([[False,  True,  True, False]]))
        """
        check_choice(protocol, PROTOCOLS, "protocol")
        easy, hard, junk = (self._mask(indices) for indices in (self.easy, self.hard, self.junk))
        relevant = {"easy": easy, "medium": easy | hard, "hard": hard}[protocol]
        left_out = {"easy": junk | hard, "medium": junk, "hard": junk | easy}[protocol]
        return relevant, ~left_out

    def _mask(self, indices: list[list[int]]) -> Tensor:
        mask = torch.zeros(len(self.queries), len(self.gallery), dtype=torch.bool)
        for row, columns in zip(mask, indices, strict=True):
            row[columns] = True
        return mask


def read_revisited(path: str | os.PathLike[str]) -> RevisitedSet:
    """Ground truth of Revisited Oxford (gnd_roxford5k.pkl) or Paris (gnd_rparis6k.pkl), 70 queries each.

    The file is a pickle of dicts, lists, strings, numbers and arrays. It is not unpickled: a reader of such data reads
    it, and refuses a file that holds anything else. JSON of the same structure is read as well.

    Args:
        path: the .pkl or .json file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file holds something else; the message says what was expected.
    """
    path = user_path(path)
    expected = "a dict of imlist, qimlist and gnd, and in gnd for each query easy, hard, junk and bbx"
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a ground truth file, {expected}, got '{path}', which is not there. "
                                f"The data are {_REVISITED}.")  # fmt: skip

    def wrong(got: str) -> ValueError:
        return ValueError(f"`path` must be {expected}, got '{path}': {got}. The data are {_REVISITED}.")

    try:
        data = json.loads(path.read_bytes()) if path.suffix == ".json" else read_plain_pickle(path)
        gallery, queries, truth = ([*data[key]] for key in ("imlist", "qimlist", "gnd"))
        lists = {key: [[int(i) for i in entry[key]] for entry in truth] for key in ("easy", "hard", "junk")}
        boxes = [_box(entry.get("bbx")) for entry in truth]
    except NotPlainError as error:
        raise wrong(str(error)) from None
    except KeyError as error:
        raise wrong(f"there is no {error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise wrong(str(error)) from None
    if len(truth) != len(queries):
        raise wrong(f"{len(queries)} queries and {len(truth)} entries of gnd")
    last = max((i for rows in lists.values() for row in rows for i in row), default=0)
    first = min((i for rows in lists.values() for row in rows for i in row), default=0)
    if first < 0 or last >= len(gallery):
        raise wrong(f"indices from {first} to {last} in a gallery of {len(gallery)} images")
    return RevisitedSet([str(q) for q in queries], [str(g) for g in gallery], boxes, **lists)


def _box(values: Any) -> tuple[float, float, float, float] | None:
    if values is None:
        return None
    left, top, right, bottom = (float(v) for v in values)
    return left, top, right, bottom


def _truth(benchmark: RevisitedSet) -> Array:
    """As in `RetrievalData`."""
    protocols = [benchmark.relevance(protocol) for protocol in PROTOCOLS]
    return np.stack([np.where(where, relevant, -1) for relevant, where in protocols]).astype(np.int8)


_NAMES = {"gnd_roxford5k": "Revisited Oxford", "gnd_rparis6k": "Revisited Paris"}


def _revisited(path: Path) -> RetrievalData:
    """The benchmark for the test; what else is in its folder to train on."""
    (file, *others), folder = _ground_truth(path), path if path.is_dir() else path.parent
    if others:
        raise ValueError(f"`data` {path} must have one file of ground truth, got {file.name} and {others[0].name}. "
                         f"Name the file: --data {file}.")  # fmt: skip
    benchmark = read_revisited(file)
    npz = _features_file(folder)
    files: list[Source] | None = None
    if npz is not None:
        items, classes, split = _features(npz, benchmark)
    else:
        files, classes = _training_images(folder / "train")
        split = ["train"] * len(files)
        files += _images(folder, benchmark)
        items = small_images(files)
    names = [*(f"query {name}" for name in benchmark.queries), *(f"gallery {name}" for name in benchmark.gallery)]
    query = np.repeat([True, False], [len(classes) + len(benchmark.queries), len(benchmark.gallery)])
    return RetrievalData(
        _NAMES.get(file.stem, file.stem),
        items,
        np.array([*(f"class {label}" for label in classes), *names]),
        np.array([*split, *["test"] * len(names)]),
        query,
        truth=_truth(benchmark),
        files=files,
    )


def _ground_truth(path: Path) -> list[Path]:
    """The files of ground truth at a path."""
    files = [path] if path.is_file() else visible(path) if path.is_dir() else []
    return [file for file in files if fnmatch(file.name, "gnd_*.pkl") or fnmatch(file.name, "gnd_*.json")]


def _features_file(folder: Path) -> Path | None:
    return next((file for file in npz_files(folder) if "query_features" in array_names(file)), None)


def _features(file: Path, benchmark: RevisitedSet) -> tuple[Array, list[Any], list[str]]:
    """All features, those to train on first; the classes of these, and their splits."""
    expected = "query_features, gallery_features (and, to train on, train_features, train_labels; val_ likewise)"

    def wrong(got: str) -> ValueError:
        return ValueError(f"`data` {file} must hold the arrays {expected}, got {got}.")

    names = [f"{part}_features" for part in ("train", "val", "query", "gallery")] + ["train_labels", "val_labels"]
    try:
        arrays = {name: feature_array("retrieval", name, array, wrong) for name, array in read_npz(file, names).items()}
    except (OSError, ValueError) as error:
        raise error if f"{file}" in str(error) else wrong(str(error).rstrip(".")) from None
    for part, count in (("query", len(benchmark.queries)), ("gallery", len(benchmark.gallery))):
        features = arrays.get(f"{part}_features")
        if features is None or len(features) != count:
            rows = "no" if features is None else f"{len(features)} rows of"
            raise wrong(f"{rows} {part}_features for {count} images of the ground truth")
    classes: list[Any] = []
    split: list[str] = []
    for part in ("train", "val"):
        features, labels = arrays.get(f"{part}_features", np.empty(0)), arrays.get(f"{part}_labels", np.empty(0))
        if len(features) != len(labels):
            raise wrong(f"{len(features)} rows of {part}_features and {len(labels)} of {part}_labels")
        classes += labels.tolist()
        split += [part] * len(labels)
    parts = [arrays[name] for name in names[:4] if name in arrays]
    if len({part.shape[1] for part in parts}) > 1:
        raise wrong(f"features of {', '.join(str(part.shape[1]) for part in parts)} columns")
    return np.concatenate(parts), classes, split


def _training_images(folder: Path) -> tuple[list[Source], list[str]]:
    """The images in the folders of `folder`, one a class, and the classes."""
    classes = [entry for entry in visible(folder) if entry.is_dir()] if folder.is_dir() else []
    images = [(file, entry.name) for entry in classes for file in visible(entry)]
    images = [(file, name) for file, name in images if file.suffix.lower() in IMAGE_SUFFIXES]
    return [file for file, _ in images], [name for _, name in images]


def _images(folder: Path, benchmark: RevisitedSet) -> list[Source]:
    """The queries, of each the part that its box shows, and the gallery."""
    queries, gallery = ([folder / "jpg" / f"{name}.jpg" for name in names]
                        for names in (benchmark.queries, benchmark.gallery))  # fmt: skip
    need_files([*queries, *gallery], folder / "jpg", _REVISITED)
    return [*map(_cropped, queries, benchmark.boxes), *gallery]


def _cropped(path: Path, box: Sequence[float] | None) -> Source:
    """The part of an image that a box shows."""
    if box is None:
        return path
    with needed("PIL", "Reading images"):
        from PIL import Image
    file = io.BytesIO()
    with Image.open(path) as image:
        left, top, right, bottom = box
        image.convert("RGB").crop((round(left), round(top), round(right), round(bottom))).save(file, "PNG")
    return str(path), file.getvalue()


REVISITED = Layout(
    "a folder with gnd_roxford5k.pkl or gnd_rparis6k.pkl (or that file), and the images in jpg/ or an .npz of "
    "query_features and gallery_features; to train on other landmarks, a folder of images for each in train/, or "
    f"train_features and train_labels in the .npz: {_REVISITED}",
    lambda path: bool(_ground_truth(path)),
    _revisited,
)
