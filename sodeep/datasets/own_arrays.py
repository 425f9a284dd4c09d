"""Arrays by name, the data of a task of the user's own: checked, read from an npz file, and split."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sodeep._core.arrays import npz_names, read_npz
from sodeep._core.checks import describe
from sodeep.datasets.layouts import Layout, array_names
from sodeep.datasets.splits import given_split, one_split_each
from sodeep.datasets.types import Array

NO_ATTRIBUTES = ("name", "split")
"""Entries that do not become attributes of the task: what the data are called, and the split of each item."""


def own_arrays(data: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """The data of a task of the user's own: name -> a numpy array, or a list of texts, of N items each.

    Args:
        data: name -> array, tensor or list; "name", a text, may be among them.
        taken: what no array may be called.

    Raises:
        TypeError: something else than numbers and texts.
        ValueError: no array, arrays of unequal length, or one whose name is taken.
    """
    arrays: dict[str, Any] = {}
    for name, value in data.items():
        if name == "name":
            continue
        if not str(name).isidentifier() or (name in taken and name not in NO_ATTRIBUTES):
            raise ValueError(
                f"`data` must give arrays names that are free for attributes of the task, got {name!r}. Rename it."
            )
        value = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        is_texts = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
        array = list(value) if is_texts else np.asarray(value)
        if isinstance(array, np.ndarray) and (array.ndim == 0 or array.dtype.kind not in "biufUS"):
            raise TypeError(f"`data` must hold arrays of numbers, or texts, got {describe(value)} for {name!r}.")
        arrays[name] = array
    lengths = {name: len(array) for name, array in arrays.items()}
    if not lengths or len({*lengths.values()}) > 1:
        shown = ", ".join(f"{n} of {name}" for name, n in lengths.items()) or "none"
        raise ValueError(f"`data` must hold arrays with a row for each item, as many in all of them, got {shown}.")
    return {"name": str(data.get("name", f"{next(iter(lengths.values()))} items")), **arrays}


def as_attribute(array: Any) -> Tensor | Array:
    """An array as a task has it: numbers as a tensor, floating point ones as float32; texts as an array of objects."""
    if isinstance(array, list):
        return np.array(array, dtype=object)
    if array.dtype.kind in "US":
        return np.asarray(array)
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.float() if tensor.is_floating_point() else tensor


def split_of_arrays(data: Mapping[str, Any], seed: int) -> Array:
    """The array "split", with a "val" drawn where it has none; or a drawn split. A "group" is in one split."""
    count = next(len(value) for name, value in data.items() if name != "name")
    split, group = data.get("split"), data.get("group")
    split = None if split is None else np.asarray(split)
    if group is None:
        return given_split(split, count, seed)
    ids, row = np.unique(np.asarray(group), return_inverse=True)
    of_group = None if split is None else one_split_each(split, np.asarray(group))
    return given_split(of_group, len(ids), seed)[row.reshape(-1)]


def _read(path: Path) -> dict[str, Any]:
    try:
        return {"name": path.stem, **read_npz(path, npz_names(path))}
    except ValueError as error:
        raise ValueError(f"`data` must be an npz file of arrays, got '{path}': {error}.") from None


ARRAYS = Layout(
    "an .npz of arrays with a row for each item, by the names that the task gives them (and split, of train, val and "
    "test, and group, of items that belong in one split)",
    lambda path: path.is_file() and zipfile.is_zipfile(path) and bool(array_names(path)),
    _read,
)
