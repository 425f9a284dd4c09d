"""Features computed elsewhere, in an npz file, as data of any task."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sodeep._core.arrays import npz_names, read_npz
from sodeep._core.checks import check_choice, user_path
from sodeep.datasets.layouts import Layout, StrPath
from sodeep.datasets.types import Array

FEATURES: Mapping[str, tuple[str, ...]] = {
    "retrieval": ("features", "labels"),
    "cross-modal": ("images", "captions", "image_of_caption"),
    "memorability": ("features", "scores"),
    "multi-label": ("features", "labels"),
    "ranking": ("features", "relevance", "group"),
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
    | ranking | features (n, d), relevance (n,) 0 or more, group (n,) numbers or strings |

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

    def wrong(got: str) -> ValueError:
        return ValueError(f"`path` must be {expected}, got '{path}': {got}.")

    try:
        present = npz_names(path)
        missing = [name for name in wanted if name not in present]
        if missing:
            raise ValueError(f"no {', '.join(missing)}, but {', '.join(sorted(present)) or 'nothing'}")
        splits = ["train", "val", "test"] if f"val_{FEATURES[task][0]}" in present else ["train", "test"]
        names = [*FEATURES[task]]
        for name in OPTIONAL_FEATURES.get(task, ()):
            absent = [f"{split}_{name}" for split in splits if f"{split}_{name}" not in present]
            if len(absent) < len(splits):
                names.append(name)
                if absent:
                    raise ValueError(f"{name} of some splits, but no {', '.join(absent)}")
        read = read_npz(path, [f"{split}_{name}" for split in splits for name in names])
        arrays = {split: {name: read[f"{split}_{name}"] for name in names} for split in splits}
    except (OSError, KeyError, ValueError) as error:
        raise wrong(str(error).strip("'\"").rstrip(".")) from None
    for split, in_split in arrays.items():
        for name, array in in_split.items():
            in_split[name] = feature_array(task, f"{split}_{name}", array, wrong)
        first, *others = FEATURES[task]
        rows = {name: len(in_split[name]) for name in FEATURES[task]}
        if task == "cross-modal":
            index = in_split["image_of_caption"]
            for name in OPTIONAL_FEATURES[task]:
                if name in in_split and len(in_split[name]) != rows["images"]:
                    raise wrong(f"{rows['images']} rows of {split}_images and {len(in_split[name])} of {split}_{name}")
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
        columns = {f"{split}_{name}": in_split[name].shape[1:] for split, in_split in arrays.items()}
        if len(set(columns.values())) > 1:
            raise wrong(", ".join(f"{shape[0]} columns of {which}" for which, shape in columns.items()))
    return arrays


def feature_array(task: str, name: str, array: Array, wrong: Callable[[str], ValueError]) -> Array:
    """Check an array against the shape and type that its name stands for."""
    content = name.split("_", 1)[1]
    if content in ("features", "images", "captions"):
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not numbers (n, d)")
    elif content in ("scores", "relevance") and (array.ndim != 1 or array.dtype.kind not in "fiub"):
        raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not numbers (n,)")
    elif content == "image_of_caption" and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not whole numbers (m,)")
    elif content == "codes" and array.ndim != 2:
        raise wrong(f"{name} of shape {array.shape}, not (n, c)")
    elif content == "group" and (array.ndim != 1 or array.dtype.kind not in "fiuUS"):
        raise wrong(f"{name} of shape {array.shape} and type {array.dtype}, not numbers or strings (n,)")
    elif content == "labels" and (task == "multi-label") != (array.ndim == 2):
        raise wrong(f"{name} of shape {array.shape}, not {'(n, c)' if task == 'multi-label' else '(n,)'}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise wrong(f"{int((~np.isfinite(array)).sum())} values of {name} are NaN or infinite")
    if (content == "codes" or (task == "multi-label" and content == "labels")) and not np.isin(array, (0, 1)).all():
        raise wrong(f"{name} holds more than 0 and 1")
    if content in ("features", "images", "captions", "scores", "relevance") and array.dtype != np.float64:
        return array.astype(np.float32)
    return array


def features_layout(task: str, make: Callable[[str, dict[str, Array], Array], Any]) -> Layout:
    """The npz of `read_features` as a layout. `make` takes its name, the joined arrays and the splits."""
    first = FEATURES[task][0]

    def matches(path: Path) -> bool:
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
    return Layout(f"an .npz of {names} for the splits train, val (optional) and test", matches, read)
