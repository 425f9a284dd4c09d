"""Memory of past embeddings, as further references for any loss: cross-batch memory and momentum contrast.

A loss on pairs is better with more negatives than a batch holds. Rows that come with ids are recognised as copies of a
query and left out.

Sources: Wang et al., CVPR 2020 (cross-batch memory); He et al., CVPR 2020 (MoCo).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, describe
from sodeep._core.labels import as_labels, label_tensor
from sodeep._core.precision import full_precision
from sodeep._core.warn import warn
from sodeep.losses.similarity import check_finite_rows, check_rows

NO_ID = torch.iinfo(torch.int64).min
"""The id of a row that came without one: it equals the id of no other row."""


def as_ids(ids: Any, name: str, rows: int, rows_name: str, device: torch.device) -> Tensor:
    """Checked ids (rows,), int64."""
    values = label_tensor(ids, name).to(device)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.squeeze(1)
    if values.shape != (rows,) or values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(
            f"`{name}` must be whole numbers or strings of shape ({rows},), one for each row of `{rows_name}`, "
            f"got {describe(ids)}."
        )
    return values


@full_precision  # autocast on a CPU refuses to roll float16
def _rolled(x: Tensor, first: int) -> Tensor:
    """The rows from `first` on, then those before it."""
    return x.roll(-first, 0)


def _checksum(seen: Any) -> Any:
    """Checksum of the count of rows, which tells a real count from uninitialised memory."""
    return seen * 1_000_003 + 7_919


class EmbeddingMemory(nn.Module):
    """The last `size` embeddings and their labels: more references than a batch holds, for any loss.

    Rows are kept without graph, first in, first out, in buffers: ``.to()`` moves them, ``state_dict()`` saves them.
    Old rows come from older weights; they are good references once the embeddings move slowly, hence `warmup`.

    Give it to `EmbeddingLoss`, which adds the batch after its loss is taken, or use it by hand, in that order: once
    the batch is in the memory its rows would be their own positives.

    A memory longer than an epoch holds past copies of the batch's own items, and so does a shorter one when a sampler
    draws with replacement: easy positives without information. With `ids` (whole numbers or strings that name the
    items, such as their index in the data set) they are left out. A row without an id counts as another item.

    Under torch.compile a memory that fills up is another length at every step: compile the encoder, not this loss.

    Two ways to fill it: with the rows that are compared (cross-batch memory), or with keys alone, which a slowly moving
    copy of the encoder gives (MoCo): then the queries never enter. Both are `EmbeddingLoss`'s: see there.

    Args:
        size: rows to keep.
        dim: width of an embedding.
        num_classes: width of multi-hot labels; None for one label a row.
        warmup: rows to be seen before the memory returns any.

    Attributes:
        embeddings: (size, dim) float32, of which the first `seen` rows are filled.
        labels: (size,) int64, or (size, num_classes) bool.
        ids: (size,) int64. A state dict without them, as earlier versions made, is of rows without ids.
        seen: how many rows came.
        seal: checksum of `seen`. Where it does not match, the buffers came without values: the memory then starts
            empty, with a warning.

    References:
        Wang, Zhang, Huang, Scott. Cross-Batch Memory for Embedding Learning. CVPR 2020. There the loss on the memory is
        added to that on the batch; here both are one list.

    Example:
        >>> memory = EmbeddingMemory(size=3, dim=1)
        >>> memory.update(torch.tensor([[1.0], [2.0]]), [10, 20], ids=[0, 1])
        >>> memory.update(torch.tensor([[3.0], [4.0]]), [30, 40], ids=[2, 3])
        >>> embeddings, labels = memory.get()
        >>> labels
        tensor([20, 30, 40])
        >>> memory.get_ids()
        tensor([1, 2, 3])
    """

    embeddings: Tensor
    labels: Tensor
    ids: Tensor
    seen: Tensor
    seal: Tensor

    def __init__(self, size: int, dim: int, *, num_classes: int | None = None, warmup: int = 0) -> None:
        super().__init__()
        check_at_least(size, 1, "size")
        check_at_least(dim, 1, "dim")
        check_at_least(warmup, 0, "warmup")
        if num_classes is not None:
            check_at_least(num_classes, 2, "num_classes")
        self.size, self.dim, self.num_classes, self.warmup = size, dim, num_classes, warmup
        self.register_buffer("embeddings", torch.zeros(size, dim))
        empty = torch.zeros(size, dtype=torch.int64) if num_classes is None else torch.zeros(size, num_classes).bool()
        self.register_buffer("labels", empty)
        self.register_buffer("ids", torch.full((size,), NO_ID))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seal", _checksum(self.seen))

    def check_labels(self, values: Tensor, rows: int, labels: Any) -> Tensor:
        """What `label_tensor` made of the `labels` of `rows` rows, as stored; ValueError if they cannot be."""
        checked = as_labels(values, "labels", rows)
        if checked.is_floating_point() or checked.shape[1:] != self.labels.shape[1:]:
            multi_hot = f"multi-hot (n, {self.num_classes})"
            expected = "whole numbers or strings (n,)" if self.num_classes is None else multi_hot
            raise ValueError(f"`labels` must be {expected} for this memory, got {describe(labels)}.")
        return checked

    def check_rows(self, embeddings: Tensor) -> None:
        """Rows (n, dim) that this memory can hold; TypeError or ValueError if it cannot."""
        self._check_real()
        check_rows(embeddings, "embeddings")
        if embeddings.shape[1] != self.dim:
            raise ValueError(
                f"`embeddings` must have shape (n, {self.dim}), with the `dim` of the memory, "
                f"got shape {tuple(embeddings.shape)}."
            )

    def update(self, embeddings: Tensor, labels: Any, ids: Any = None) -> None:
        """Add `embeddings` (n, dim) with `labels`, in order, in place of the oldest rows; of more than `size` the last.

        Labels are whole numbers or strings (n,), or multi-hot (n, num_classes); `ids` whole numbers or strings (n,).
        """
        self.check_rows(embeddings)
        check_finite_rows(embeddings, "embeddings")
        labels = self.check_labels(label_tensor(labels), len(embeddings), labels)
        if ids is not None:
            ids = as_ids(ids, "ids", len(embeddings), "embeddings", self.ids.device)
        self.add_checked(embeddings, labels, ids)

    @torch.no_grad()
    def add_checked(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None) -> None:
        """`update` with arguments that are checked already."""
        if ids is None:
            ids = torch.full((len(embeddings),), NO_ID, device=self.ids.device)
        self.seen.masked_fill_(self.seal != _checksum(self.seen), 0)
        skip = max(len(embeddings) - self.size, 0)
        places = (self.seen + torch.arange(skip, len(embeddings), device=self.seen.device)) % self.size
        for buffer, new in ((self.embeddings, embeddings), (self.labels, labels), (self.ids, ids)):
            buffer[places] = new[skip:].to(buffer)
        self.seen += len(embeddings)
        self.seal.copy_(_checksum(self.seen))

    def get(self) -> tuple[Tensor, Tensor]:
        """The rows and their labels, oldest first, as copies; no rows before `warmup` rows have been seen."""
        embeddings, labels, _ = self.past()
        return embeddings, labels

    def get_ids(self) -> Tensor:
        """The ids of the rows of `get`; the least int64 where a row came without.

        By hand: ``criterion(embeddings, labels, *memory.get(), ids=ids, ref_ids=memory.get_ids())``.
        """
        return self.past()[2]

    def past(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `get` and `get_ids` return: the rows, their labels and their ids."""
        seen, buffers = self._count(), (self.embeddings, self.labels, self.ids)
        if seen < self.warmup:
            embeddings, labels, ids = (buffer[:0] for buffer in buffers)
        # copies: an update between forward and backward must not change what the graph holds
        elif seen < self.size:
            embeddings, labels, ids = (buffer[:seen].clone() for buffer in buffers)
        else:
            embeddings, labels, ids = (_rolled(buffer, seen % self.size) for buffer in buffers)
        return embeddings, labels, ids

    def _count(self) -> int:
        """Rows seen so far; 0, with a warning, where the buffers came without values."""
        self._check_real()
        seen, seal = torch.stack([self.seen, self.seal]).tolist()
        if seal == _checksum(seen):
            return int(seen)
        warn(
            "The EmbeddingMemory is empty: its buffers came without values, as to_empty leaves them, and "
            "from_pretrained where the checkpoint has none.",
        )
        return 0

    def _check_real(self) -> None:
        if self.seen.is_meta:
            raise ValueError(
                "`memory` must be on a device that holds values, got one on the meta device. Build it where it is to "
                "be, or load its state: load_state_dict(state, assign=True)."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # an older checkpoint has neither ids nor a seal
        if isinstance(labels := state_dict.get(f"{prefix}labels"), Tensor):
            state_dict.setdefault(f"{prefix}ids", torch.full(labels.shape[:1], NO_ID, device=labels.device))
        if isinstance(seen := state_dict.get(f"{prefix}seen"), Tensor):
            state_dict.setdefault(f"{prefix}seal", _checksum(seen))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The options, for repr()."""
        return f"size={self.size}, dim={self.dim}, num_classes={self.num_classes}, warmup={self.warmup}"
