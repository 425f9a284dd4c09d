"""Large batches: the gradient of the full batch in the memory of a chunk, and the rows of all processes.

A listwise loss is worth more the longer its lists are, and it does not split over a batch: the mean of the losses of
two halves is another number than the loss of the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sodeep._checks import check_at_least, describe


def multistage_backward(
    encoder: Callable[..., Any], inputs: Any, loss: Callable[..., Tensor], *, chunk_size: int
) -> Tensor:
    """``loss(encoder(inputs)).backward()`` with the activations of one chunk of `inputs` in memory at a time.

    Three stages: embed every chunk without a graph; take the loss of all embeddings and its gradient with respect to
    them; embed every chunk again, now with a graph, and send its rows of that gradient through it. The gradient is the
    one of the full batch. The price is a second forward pass.

    Parameters of `encoder`, parameters that `loss` holds, and `inputs` that require a gradient accumulate into their
    ``.grad``, as ``backward()`` does. The second pass repeats the first: the random state of torch (CPU and CUDA) is
    put back for every chunk, so dropout draws the same masks, and the buffers of an ``nn.Module`` are put back too, so
    BatchNorm updates its running statistics once. BatchNorm in training mode normalises by the chunk, not by the batch:
    the result is then the gradient of the chunked forward pass. Random numbers from numpy or `random` inside the
    encoder are not repeated.

    * Autocast: call this function inside the autocast context.
    * GradScaler: let `loss` return ``scaler.scale(value)``; the returned value is then scaled as well.
    * DistributedDataParallel: pass the wrapped module; gradients are averaged over the processes once, at the last
      chunk. With `gather` in the loss this is the gradient of the batch of all processes. Every process needs the same
      number of chunks when the module has buffers, which DDP broadcasts at each forward pass.

    Args:
        encoder: maps a chunk to embeddings (rows, d), each row on its own, or to a tuple of such tensors. A tensor
            chunk goes in as ``encoder(x)``, a tuple or list as ``encoder(*chunk)``, a mapping as ``encoder(**chunk)``.
        inputs: a tensor, or a tuple, list or mapping of tensors (nested too), all with n rows.
        loss: maps all embeddings (n, d) to a scalar; for a tuple of embeddings it is called with one argument each.
        chunk_size: rows of `inputs` in one chunk. With n or more this is plain backward.

    Returns:
        The value of the loss, detached.

    Raises:
        TypeError: something in `inputs` that is not a tensor.
        ValueError: `inputs` with unequal numbers of rows, no rows, or a loss that is not a scalar.

    References:
        Revaud, Almazán, Rezende, de Souza. Learning with Average Precision: Training Image Retrieval with a Listwise
        Loss. ICCV 2019, algorithm 1.
        Gao, Zhang, Han, Callan. Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup. 2021: the same
        for contrastive losses.

    Example:
        >>> encoder, images = torch.nn.Linear(8, 4), torch.ones(6, 8)
        >>> value = multistage_backward(encoder, images, lambda z: z.square().mean(), chunk_size=2)
        >>> encoder.weight.grad.shape
        torch.Size([4, 8])
    """
    check_at_least(chunk_size, 1, "chunk_size")
    rows = _rows(inputs)
    if rows <= chunk_size:
        value = _scalar(loss(*_encode(encoder, inputs)))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()
    chunks = [slice(start, start + chunk_size) for start in range(0, rows, chunk_size)]

    buffers = _copy_buffers(encoder)
    states, pieces = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(_random_state())
            pieces.append(_encode(encoder, _take(inputs, chunk)))
    # Up to torch 2.4 at least, autocast has now cached half-precision copies of the weights, made without a graph.
    # The second pass would take them, and no gradient would reach the weights.
    torch.clear_autocast_cache()

    columns = list(zip(*pieces, strict=True))  # for each tensor that the encoder returns, one piece a chunk
    embeddings = [torch.cat(column).requires_grad_() for column in columns]
    value = _scalar(loss(*embeddings))
    value.backward()  # type: ignore[no-untyped-call]
    grads = [
        torch.split_with_sizes(torch.zeros_like(e) if e.grad is None else e.grad, [len(piece) for piece in column])
        for e, column in zip(embeddings, columns, strict=True)
    ]
    del embeddings, columns, pieces

    _restore_buffers(encoder, buffers)
    after = _random_state()
    try:
        for chunk, state, *grad in zip(chunks, states, *grads, strict=True):
            _set_random_state(state)
            with contextlib.nullcontext() if chunk is chunks[-1] else _no_sync(encoder):
                torch.autograd.backward(_encode(encoder, _take(inputs, chunk)), grad)
    finally:
        _set_random_state(after)
    return value.detach()


def _tensors(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, (tuple, list, Mapping)):
        for part in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _tensors(part)
    else:
        raise TypeError(
            "`inputs` must be a tensor, or a tuple, list or mapping of tensors, "
            f"got {describe(inputs)} in it. Put what is not cut into chunks into the encoder: functools.partial."
        )


def _rows(inputs: Any) -> int:
    tensors = list(_tensors(inputs))
    shapes = [tuple(t.shape) for t in tensors]
    if not shapes or () in shapes or len({shape[0] for shape in shapes}) != 1 or shapes[0][0] == 0:
        raise ValueError(f"`inputs` must be tensors with one and the same number of rows, got shapes {shapes}.")
    return shapes[0][0]


def _take(inputs: Any, chunk: slice) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[chunk]
    if isinstance(inputs, Mapping):
        return {key: _take(part, chunk) for key, part in inputs.items()}
    return [_take(part, chunk) for part in inputs]


def _encode(encoder: Callable[..., Any], chunk: Any) -> tuple[Tensor, ...]:
    if isinstance(chunk, Mapping):
        out = encoder(**chunk)
    else:
        out = encoder(chunk) if isinstance(chunk, Tensor) else encoder(*chunk)
    out = (out,) if isinstance(out, Tensor) else tuple(out)
    if not all(isinstance(embeddings, Tensor) for embeddings in out):
        raise TypeError(f"`encoder` must return a tensor or a tuple of tensors, got {describe(out)}.")
    return out


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"`loss` must return a scalar tensor, got {describe(value)}. Reduce it: value.mean().")
    return value


def _copy_buffers(encoder: Any) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in encoder.named_buffers()} if isinstance(encoder, nn.Module) else {}


def _restore_buffers(encoder: Any, buffers: dict[str, Tensor]) -> None:
    if buffers:
        with torch.no_grad():
            for name, buffer in encoder.named_buffers():
                buffer.copy_(buffers[name])


def _random_state() -> tuple[Tensor, list[Tensor]]:
    # is_initialized, not is_available: on a CPU run this must not take memory on a GPU
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if started else []


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def _no_sync(encoder: Any) -> contextlib.AbstractContextManager[None]:
    """DDP and FSDP average gradients at every backward pass unless told not to."""
    context: contextlib.AbstractContextManager[None] = getattr(encoder, "no_sync", contextlib.nullcontext)()
    return context


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
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return embeddings
    rows: Tensor = _Gather.apply(embeddings, _rows_per_process(embeddings))  # type: ignore[no-untyped-call]
    return rows


def drop_repeats(indices: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """`rows` with every item of the data set once, in its order there; `indices` say which item a row is.

    ``DistributedSampler`` repeats items until all processes have equally many. In a metric such a row finds its copy,
    and counts twice. Let the data set give the index beside the item, gather both, and drop the repeats before the
    metric is taken::

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
    if not isinstance(indices, Tensor) or indices.is_floating_point() or indices.is_complex():
        raise TypeError(f"`indices` must be a tensor of whole numbers, got {describe(indices)}.")
    if indices.ndim != 1:
        raise ValueError(f"`indices` must have shape (n,), one index a row, got shape {tuple(indices.shape)}.")
    if not rows:
        raise ValueError("`rows` must be one tensor or more, got none. Give what belongs to the indices.")
    n = len(indices)
    for x in rows:
        if not isinstance(x, Tensor):
            raise TypeError(f"`rows` must be tensors, got {type(x).__name__}.")
        if x.ndim == 0 or len(x) != n:
            raise ValueError(f"`rows` must have {n} rows, one for each index, got shape {tuple(x.shape)}.")
    kind = torch.unique(indices.long(), return_inverse=True)[1]
    places = torch.arange(n, device=indices.device)
    size = int(kind.max()) + 1 if n else 0
    first = places.new_full((size,), n).scatter_reduce(0, kind, places, "amin")
    return tuple(x[first.to(x.device)] for x in rows)


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
    """Forward: pad to the largest process, all_gather, cut the padding. Backward: all_reduce, keep one's own rows."""

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
