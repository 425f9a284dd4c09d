"""Lists of unequal length in flat tensors: the items of a query, a user or a date, told by an id for each item.

A table of (query, document) pairs is such a tensor: ``scores (n,)``, ``relevance (n,)`` and ``group (n,)``, the query
of each row. Every loss on scores and every metric takes it as it is::

    loss = sodeep.ndcg_loss(scores, relevance, rank_fn=sodeep.laplace_rank, group=query_id)

The result is that of one call for each group: the items of one id become one list, wherever they stand, in one pass
over a padded tensor (groups, longest). (`HistogramLoss`, which pools the pairs of all lists, is as with all lists at
once.) Lists come in the order in which their ids first occur. An id that stands for two lists, as when two files are
put one after the other, makes one list of both: renumber one of them.

Padding costs memory where one group is much longer than the others: `GroupBatchSampler` puts groups of like length
together.

Example:
    >>> import torch
    >>> from sodeep.metrics import spearman_corr
    >>> scores, target = torch.tensor([0.1, 0.3, 0.2, 0.9, 0.5]), torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0])
    >>> spearman_corr(scores, target, group=["a", "a", "a", "b", "b"])
    tensor([ 0.5000, -1.0000])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sodeep._core.checks import check_at_least, check_bool, compiling, describe
from sodeep._core.epochs import EpochSampler, fingerprint
from sodeep._core.labels import as_labels, label_tensor


class Groups:
    """Which items of flat tensors (n, ...) make which list, worked out once for tensors in the same order.

    `group=` takes one in place of the ids: for ids that stay the same from call to call, and under torch.compile and
    in the transforms of torch.func, where ids cannot be read.

    Args:
        group: an id for each item, (n,): numbers or strings; tensor, array or list.

    Raises:
        TypeError: ids that are neither numbers nor strings.
        ValueError: ids of another shape, or NaN.

    Example:
        >>> groups = Groups(["a", "b", "a"])
        >>> groups.pad(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[1., 3.],
                [2., 0.]])
    """

    where: Tensor
    """(groups, longest), bool: True = an item, False = padding."""
    first: Tensor
    """(groups,): the first item of each group; ``ids[groups.first]`` are the ids of the lists."""
    lengths: Tensor
    """(groups,): items of each group."""

    def __init__(self, group: GroupIds) -> None:
        ids = _read(group)
        row, column, first, lengths = _lay_out(ids.cpu().numpy())
        longest = max(1, int(lengths.max(initial=0)))
        self.first, self.lengths, self.slot = (
            torch.from_numpy(x).to(ids.device) for x in (first, lengths, row * longest + column)
        )
        self.where = torch.arange(longest, device=ids.device) < self.lengths.unsqueeze(1)
        # lists of two items keep their mask: without one they look like the two outputs of a model
        self.needs_mask = longest == 2 or bool((lengths < longest).any())

    def __len__(self) -> int:
        return len(self.first)

    def pad(self, values: Tensor, name: str = "values") -> Tensor:
        """`values` (n, ...) as (groups, longest, ...), zero where there is no item."""
        if values.ndim == 0 or len(values) != len(self.slot):
            raise ValueError(
                f"`{name}` must have {len(self.slot)} items, one for each id of `group`, "
                f"got shape {tuple(values.shape)}."
            )
        rest = values.shape[1:]
        padded = values.new_zeros(self.where.numel(), *rest).index_copy(0, self.slot.to(values.device), values)
        return padded.view(*self.where.shape, *rest)

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`: (groups, longest, ...) as (n, ...), each item where it stood."""
        if padded.shape[:2] != self.where.shape:
            raise ValueError(
                f"`padded` must start with the shape of the padded groups {tuple(self.where.shape)}, "
                f"got shape {tuple(padded.shape)}."
            )
        return padded.flatten(0, 1).index_select(0, self.slot.to(padded.device))


GroupIds: TypeAlias = Tensor | NDArray[Any] | Sequence[Any] | Groups
"""An id for each item of flat tensors (n,), or the `Groups` made of them."""


def pad_groups(values: Tensor, group: GroupIds) -> tuple[Tensor, Tensor]:
    """Flat values as lists, one a group.

    Args:
        values: (n, ...), scores, targets or features of n items.
        group: an id for each item, (n,): numbers or strings, in any order; or `Groups`.

    Returns:
        The padded values (groups, longest, ...), zero where there is no item, and the mask (groups, longest), True = an
        item. Groups come in the order in which they first occur, items of a group in the order in which they stand.

    Raises:
        TypeError: ids that are neither numbers nor strings.
        ValueError: ids of another shape, or NaN; another number of values than of ids.

    Example:
        >>> pad_groups(torch.tensor([1.0, 2.0, 3.0]), [7, 5, 7])
        (tensor([[1., 3.],
                [2., 0.]]), tensor([[ True,  True],
                [ True, False]]))
    """
    groups = _groups_of(group)
    return groups.pad(values), groups.where.to(values.device)


def unpad_groups(padded: Tensor, group: GroupIds) -> Tensor:
    """The inverse of `pad_groups`: ``unpad_groups(pad_groups(values, group)[0], group)`` is `values`.

    Args:
        padded: (groups, longest, ...).
        group: the ids that were given to `pad_groups`, (n,).

    Returns:
        (n, ...).

    Raises:
        ValueError: `padded` is not of the shape that these ids give.

    Example:
        >>> unpad_groups(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), [7, 5, 7])
        tensor([1., 2., 3.])
    """
    return _groups_of(group).unpad(padded)


def positional_names(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters of `function` that can be given by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def pad_arguments(
    names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function of lists, made of flat ones and of the `group` among the `kwargs`.

    Every tensor among them has a value for each item, but for a number in `kwargs`, such as a temperature that learns;
    `where` tells padding from items.

    Args:
        names: `positional_names` of the function.
        args: its arguments by position.
        kwargs: its arguments by name.
    """
    kwargs = dict(kwargs)
    group = kwargs.pop("group", None)
    if group is None:
        return args, kwargs
    groups = _groups_of(group)
    kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    where = groups.where
    for name, value in kwargs.items():
        if isinstance(value, Tensor) and (value.ndim or name in names):
            if value.ndim != 1:
                raise ValueError(f"`{name}` must have shape (n,) where `group` is given, got {tuple(value.shape)}.")
            kwargs[name] = groups.pad(value, name)
            where = where.to(value.device)
    if kwargs.get("where") is None and groups.needs_mask:
        kwargs["where"] = where
    return args[len(names) :], kwargs


class GroupBatchSampler(EpochSampler):
    """Batches of whole groups of like length, for ``batch_sampler=``: little of a padded batch is padding.

    Every epoch, groups of one length are dealt to batches anew and the batches are shuffled, as a function of `seed`
    and of the number of the epoch alone. Epochs count up by themselves, and `set_epoch` says which one is next.

    Several processes share the batches of an epoch out. Where these do not divide evenly, some are dealt twice, so that
    all processes take as many steps. As for `BalancedBatchSampler`, call `set_epoch` before every pass (Lightning
    does), and `state_dict` and `load_state_dict` resume in the middle of an epoch.

    Args:
        group: an id for each item of the data set, (n,), or `Groups`.
        max_items: the most items of a batch, padding included: its groups times the longest of them. A group longer
            than that is a batch by itself.
        shuffle: False gives the shortest groups first, in every epoch the same.
        seed: of the shuffling.
        num_replicas: number of processes.
        rank: of this process. All processes need the same ids and seed.

    Raises:
        TypeError: ids that are neither numbers nor strings.
        ValueError: ids of another shape; numbers out of range.

    Example:
        >>> sampler = GroupBatchSampler(["a", "b", "b", "b", "c", "d", "d"], max_items=4, shuffle=False)
        >>> list(sampler)
        [[0, 4], [5, 6], [1, 2, 3]]
    """

    def __init__(
        self,
        group: GroupIds,
        max_items: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.max_items = check_at_least(max_items, 1, "max_items")
        self.shuffle = check_bool(shuffle, "shuffle")
        self.seed = check_at_least(seed, 0, "seed")
        groups = _groups_of(group)
        items = torch.argsort(groups.slot).cpu().numpy()
        self._lengths = groups.lengths.cpu().numpy()
        self._members = np.split(items, np.cumsum(self._lengths)[:-1])
        settings = {
            "group": f"{len(items)} items in {len(groups)} groups, {fingerprint(self._lengths, items)}",
            "max_items": self.max_items,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }
        super().__init__(settings, num_replicas, rank)
        self._steps = -(-len(self._cuts(np.sort(self._lengths))) // self.num_replicas)

    def __len__(self) -> int:
        return self._steps

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self._lengths)) if self.shuffle else np.arange(len(self._lengths))
        order = order[np.argsort(self._lengths[order], kind="stable")]
        cuts = self._cuts(self._lengths[order])
        batches = rng.permutation(len(cuts)) if self.shuffle else np.arange(len(cuts))
        # np.resize begins again from the first one
        for batch in np.resize(batches, self._steps * self.num_replicas)[self.rank :: self.num_replicas]:
            yield np.concatenate([self._members[g] for g in order[cuts[batch]]]).tolist()

    def _cuts(self, lengths: NDArray[np.int64]) -> list[slice]:
        """Ascending lengths cut into batches, as full as they may be."""
        cuts, start = [], 0
        for end in range(1, len(lengths) + 1):
            if end == len(lengths) or (end + 1 - start) * lengths[end] > self.max_items:
                cuts.append(slice(start, end))
                start = end
        return cuts


def _groups_of(group: GroupIds) -> Groups:
    return group if isinstance(group, Groups) else Groups(group)


def _read(group: GroupIds) -> Tensor:
    """Checked ids (n,)."""
    if compiling() or torch._C._are_functorch_transforms_active():
        raise ValueError(
            "`group` must be ids that can be read, got some under torch.compile or torch.func. "
            "Read them outside: group=sodeep.Groups(ids)."
        )
    ids = label_tensor(group, "group")
    if ids.ndim != 1:
        raise ValueError(f"`group` must have shape (n,), an id for each item, got {describe(ids)}.")
    return as_labels(ids, "group")


def _lay_out(ids: NDArray[Any]) -> tuple[NDArray[np.int64], ...]:
    """For each item its row and its place in it, for each row its first item and its length.

    A table from ids to rows, in place of a sort, where they are whole numbers of a small range.
    """
    n = len(ids)
    low, high = (int(ids.min()), int(ids.max())) if n and ids.dtype.kind == "i" else (0, -1)
    if high - low >= 4 * n or ids.dtype.kind != "i":
        ids = np.unique(ids, return_inverse=True)[1].reshape(-1)
        low, high = 0, int(ids.max(initial=-1))
    codes = ids - low
    first = np.full(high - low + 1, n)
    first[codes[::-1]] = np.arange(n - 1, -1, -1)  # of equal ones the last assignment stays: the first item
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < n)]
    number = np.empty_like(first)
    number[used] = np.arange(len(used))
    row = number[codes]
    lengths = np.bincount(row, minlength=len(used))
    # numpy sorts 16-bit numbers in linear time
    order = np.argsort(row.astype(np.uint16) if len(used) <= 2**16 else row, kind="stable")
    column = np.empty_like(row)
    column[order] = np.arange(n) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, column, first[used], lengths
