"""Training, validation and test examples: given, or drawn with a seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sodeep._core.checks import describe
from sodeep.datasets.types import Array

SPLITS = ("train", "val", "test")
"""Losses are trained on the first, settings chosen on the second, results measured on the third."""


def indices_of(split: Array, may_lack_training: bool = False) -> dict[str, Tensor]:
    """Indices of the items of each split, in order; with `may_lack_training` all may be of "test"."""
    indices = {name: torch.from_numpy(np.flatnonzero(split == name)) for name in SPLITS}
    for name, members in indices.items():
        if len(members) < 2 and not (may_lack_training and (split == "test").all()):
            raise ValueError(f"`split` must have two items or more in {name!r}, got {len(members)} of {len(split)}.")
    return indices


def drawn_split(n: int, seed: int) -> Array:
    """60 : 20 : 20, drawn with the seed."""
    place = np.random.default_rng([seed, 2]).permutation(n) / n
    return np.select([place < 0.6, place < 0.8], ["train", "val"], "test")


def given_split(split: Array | None, n: int, seed: int) -> Array:
    """The split given for n items, with a "val" drawn where it has none; or a drawn split."""
    return drawn_split(n, seed) if split is None else with_validation(np.asarray(split), seed)


def with_validation(split: Array, seed: int, fraction: float = 0.15) -> Array:
    """The split itself if it has a "val", else with a fraction of "train" drawn for it."""
    unknown = set(np.unique(split)) - set(SPLITS)
    if unknown:
        raise ValueError(f"`split` must hold train, val and test only, got {describe(str(min(unknown)))}.")
    if (split == "val").any():
        return split
    train = np.flatnonzero(split == "train")
    chosen = np.random.default_rng([seed, 3]).permutation(train)[: max(1, round(fraction * len(train)))]
    return np.where(np.isin(np.arange(len(split)), chosen), "val", split)


def differing_groups(group: Array, target: Array) -> Array:
    """Which groups have items of different targets, bool, one for each of ``np.unique(group)``."""
    ids, first, row = np.unique(group, return_index=True, return_inverse=True)
    row = row.reshape(-1)
    differ = np.zeros(len(ids), dtype=bool)
    np.logical_or.at(differ, row, target != target[first][row])
    return differ


def split_of_groups(split: Array | None, group: Array, target: Array, seed: int, folds: int | None = None) -> Array:
    """The split given for items (N,), with groups of "train" drawn for "val" where it has none; or groups drawn.

    Groups whose targets differ, which alone say anything of an order, and the others are drawn apart: each part has
    some of the former with every seed. With `folds`, the groups are dealt to so many: see `RankingData`.

    Raises:
        ValueError: a group is in two splits, or there are too few groups whose targets differ.
    """
    ids, row = np.unique(group, return_inverse=True)
    row = row.reshape(-1)
    differ = differing_groups(group, target)
    least = (2 if split is not None else 5) if folds is None else folds
    parts = [np.flatnonzero(differ), np.flatnonzero(~differ)]
    if split is not None:
        of_group = one_split_each(np.asarray(split), group)
        if (of_group == "val").any():
            return with_validation(of_group, seed)[row]
        parts = [part[of_group[part] == "train"] for part in parts]
    if len(parts[0]) < least:
        where = " in train" if split is not None else f" for {folds} folds" if folds is not None else ""
        raise ValueError(
            f"`data` must have at least {least} groups whose items differ in relevance{where}, got {len(parts[0])} of "
            f"{len(ids)} groups. Nothing can be ranked by the others."
        )
    result = np.full(len(ids), "train", dtype="<U5") if split is None else of_group.astype("<U5")
    for part in parts:
        if split is not None:
            result[part] = with_validation(of_group[part], seed) if len(part) > 1 else "train"
        elif folds is None:
            result[part] = drawn_split(len(part), seed)
        else:
            fold = np.random.default_rng([seed // folds, 10]).permutation(len(part)) % folds
            places = [fold == seed % folds, fold == (seed + 1) % folds]
            result[part] = np.select(places, ["test", "val"], "train")
    return result[row]


def one_split_each(split: Array, group: Array) -> Array:
    """The split of each group, one for each of ``np.unique(group)``, of the splits and groups of items (N,).

    Raises:
        ValueError: a group is in two splits.
    """
    ids, first, row = np.unique(group, return_index=True, return_inverse=True)
    row, of_group = row.reshape(-1), split[first]
    apart = np.flatnonzero(of_group[row] != split)
    if len(apart):
        i = apart[0]
        raise ValueError(
            f"`group` must be in one split, got {ids[row[i]]} in {str(of_group[row[i]])!r} and {str(split[i])!r}. "
            "Give the groups of each split ids of their own."
        )
    return of_group


def with_train_fraction(split: Array, seed: int, fraction: float, group: Array | None = None) -> Array:
    """The split with a fraction of "train" left, drawn with the seed; the rest are in no split, "".

    Of one seed, a smaller fraction is part of a larger one. With `group`, ids (N,), it is a fraction of the groups.
    """
    if group is not None:
        _, first, row = np.unique(group, return_index=True, return_inverse=True)
        return with_train_fraction(split[first], seed, fraction)[row.reshape(-1)]
    train = np.flatnonzero(split == "train")
    spare = np.random.default_rng([seed, 7]).permutation(train)[round(fraction * len(train)) :]
    return np.where(np.isin(np.arange(len(split)), spare), "", split)


def split_classes(split: Array, labels: Array, seed: int, fraction: float = 0.2) -> Array:
    """The split itself if it has a "val", else with whole classes of "train" drawn for it, two at least."""
    if (split == "val").any():
        return split
    train = np.unique(labels[split == "train"])
    chosen = np.random.default_rng([seed, 3]).permutation(train)[: max(2, round(fraction * len(train)))]
    return np.where((split == "train") & np.isin(labels, chosen), "val", split)
