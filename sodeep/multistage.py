"""Multistage backpropagation: the gradient of a large batch in the memory of a small one.

A listwise loss benefits from long lists, and so from large batches, and it does not split over a batch: the mean of the
losses of two halves is not the loss of the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, describe


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
    """DDP and FSDP average gradients at every backward pass outside `no_sync`."""
    context: contextlib.AbstractContextManager[None] = getattr(encoder, "no_sync", contextlib.nullcontext)()
    return context
