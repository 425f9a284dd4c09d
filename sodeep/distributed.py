"""Losses and metrics over several processes: gather their rows with gradient, and drop repeated items."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sodeep._core.checks import describe


def gather(embeddings: Tensor) -> Tensor:
    """The rows of all processes, in the order of the processes, with gradient; the processes may have unequal counts.

    A loss of the gathered rows is the loss of the global batch, the same on every process, where the mean of
    per-process losses is another number. Labels gather the same way. With one process, or when torch.distributed is
    not initialised, `embeddings` comes back as it is.

    The factor: backward adds up what all processes send back to a row. DDP then divides by the number of processes, so
    parameters get the gradient of the mean over processes of their losses. When every process computes the same loss
    of the gathered rows this is the gradient that one process would get from the whole batch: nothing is to be
    multiplied. Without DDP (a leaf tensor, or gradients summed by hand) divide by ``dist.get_world_size()``.

    Leave the loss itself outside DDP: DDP refuses a module without trainable parameters, such as a loss with a frozen
    sorter. Every process must call `gather`, and must call backward through it, or the others wait for it.

    Args:
        embeddings: (n, ...), n >= 0 may differ between processes, the other axes and the dtype may not.

    Returns:
        (sum of the n, ...), process 0 first.

    Raises:
        TypeError: not a tensor.
        ValueError: no axis of rows, or other axes that differ between processes (on every process, so none waits).

    Example:
        >>> gather(torch.tensor([[1.0], [2.0]]))
        tensor([[1.],
                [2.]])
    """
    if not isinstance(embeddings, Tensor):
        raise TypeError(f"`embeddings` must be a torch.Tensor, got {type(embeddings).__name__}.")
    if embeddings.ndim == 0:
        raise ValueError("`embeddings` must have an axis of rows, got shape (). Give it one: embeddings.unsqueeze(0).")
    return gather_with_place(embeddings)[0]


def several_processes() -> bool:
    """Whether there is anything to gather."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_with_place(rows: Tensor) -> tuple[Tensor, int]:
    """`gather` of checked rows, and the place in it of the first row of this process."""
    if not several_processes():
        return rows, 0
    counts = _rows_per_process(rows)
    gathered: Tensor = _Gather.apply(rows, counts)  # type: ignore[no-untyped-call]
    return gathered, sum(counts[: dist.get_rank()])


def drop_repeats(indices: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """`rows` with every item of the data set once, in its order there; `indices` say which item a row is.

    ``DistributedSampler`` repeats items until all processes have equally many. In a metric such a row retrieves its
    copy, and counts twice. Let the data set give the index beside the item, gather both, and drop the repeats before
    the metric is taken::

        embeddings, labels = drop_repeats(gather(indices), gather(embeddings), gather(labels))
        scores, relevant = pairwise_scores(embeddings, labels)

    Args:
        indices: (n,) whole numbers, of all processes.
        rows: (n, ...) each, in the same order.

    Returns:
        One tensor for each of `rows`, (m, ...) with m the number of different indices. Of equal indices the first row
        is kept, with its gradient.

    Raises:
        TypeError: not tensors, or indices that are not whole numbers.
        ValueError: wrong shapes, or none of `rows`.

    Example:
        >>> indices = torch.tensor([0, 2, 4, 1, 3, 0])  # of two processes, of a data set of five items
        >>> labels = torch.tensor([5, 7, 9, 6, 8, 5])
        >>> drop_repeats(indices, labels)
        (tensor([5, 6, 7, 8, 9]),)
    """
    check_index(indices, None, "indices")
    if not rows:
        raise ValueError("`rows` must be one tensor or more, got none. Give what belongs to the indices.")
    n = len(indices)
    for x in rows:
        if not isinstance(x, Tensor):
            raise TypeError(f"`rows` must be tensors, got {type(x).__name__}.")
        if x.ndim == 0 or len(x) != n:
            raise ValueError(f"`rows` must have {n} rows, one for each index, got shape {tuple(x.shape)}.")
    item = torch.unique(indices.long(), return_inverse=True)[1]
    places = torch.arange(n, device=indices.device)
    size = int(item.max()) + 1 if n else 0
    first = places.new_full((size,), n).scatter_reduce(0, item, places, "amin")
    return tuple(x[first.to(x.device)] for x in rows)


def check_index(index: object, rows: int | None, name: str = "index") -> Tensor:
    """Which item of a data set each of the rows is: whole numbers (rows,); None: of any number of rows."""
    if not isinstance(index, Tensor) or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"`{name}` must be a tensor of whole numbers, got {describe(index)}.")
    if index.ndim != 1 or rows not in (None, len(index)):
        shape = f"({'n' if rows is None else rows},)"
        raise ValueError(f"`{name}` must have shape {shape}, one number a row, got shape {tuple(index.shape)}.")
    return index


def _all_gather(x: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def _rows_per_process(x: Tensor) -> list[int]:
    """The number of rows on every process, after a check that all else agrees."""
    header = torch.full((12,), -1, device=x.device)  # a fixed length, so that this one exchange cannot fail
    header[: x.ndim + 2] = torch.tensor([x.is_floating_point(), x.itemsize, *x.shape])
    headers = [h.tolist() for h in _all_gather(header)]
    if any(h[:2] != headers[0][:2] or h[3:] != headers[0][3:] for h in headers):
        shapes = [tuple(size for size in h[2:] if size >= 0) for h in headers]
        raise ValueError(
            "`embeddings` must have one dtype and the same axes after the rows on every process, "
            f"got shapes {shapes} and {[8 * h[1] for h in headers]} bits, process 0 first."
        )
    return [h[2] for h in headers]


class _Gather(torch.autograd.Function):
    """Forward: pad to the largest process, all_gather, cut the padding. Backward: all_reduce, take this rank's rows."""

    @staticmethod
    def forward(x: Tensor, counts: list[int]) -> Tensor:
        padded = torch.cat([x, x.new_zeros(max(counts) - len(x), *x.shape[1:])])
        return torch.cat([part[:count] for part, count in zip(_all_gather(padded), counts, strict=True)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, list[int]], output: Tensor) -> None:
        ctx.counts = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return torch.split_with_sizes(grad, ctx.counts)[dist.get_rank()], None
