"""A loss of many lists, some lists at a time.

A list's value and gradient depend on that list alone. So they are computed together, chunk by chunk, and what a chunk
needed is forgotten: memory is that of the scores, their gradient and one chunk, which stays in a processor's cache,
whatever a loss makes of its scores on the way.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sodeep._core.checks import compiling, readable
from sodeep._core.derivatives import first_derivative, graph_is_kept, scaled
from sodeep._core.precision import widened

SMALL = 2**21
"""Scores of a batch that is taken whole: up to here chunks are no faster, and little is to be saved."""

SMALL_RANKED = 2**18
"""The same on a rank function, which may take hundreds of times the memory of its scores."""


def chunk_elements(device: torch.device) -> int:
    """Comparisons held at once: what stays in a CPU's cache, or what fills a GPU."""
    return 2**17 if device.type == "cpu" else 2**23


def are_few(scores: object) -> bool:
    """Whether chunks need not be thought of: scores of a small batch, or a graph, which takes all lists at once."""
    return isinstance(scores, Tensor) and (compiling() or scores.numel() <= SMALL_RANKED)


def in_chunks(run: Callable[..., Any], given: Mapping[str, Any]) -> Tensor | None:
    """The values (Q,) of the loss ``run(**given)``, NaN where a list is undefined; None where chunks do not fit or pay.

    They fit where all tensors are (Q, N), one row a list, and nothing in `given` but the scores can have a gradient;
    and the loss itself has to say so where no list is defined, or a value is NaN that should not be.
    """
    scores = given.get("scores")
    if not isinstance(scores, Tensor) or scores.ndim != 2 or not readable(scores):
        return None
    elements = scores.numel()
    small = SMALL_RANKED if any(isinstance(name, str) and "rank_fn" in name for name in given) else SMALL
    size = max(1, chunk_elements(scores.device) // max(1, scores.shape[1]))
    if elements <= max(small, chunk_elements(scores.device)) or len(scores) <= size:
        return None
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in given.items() if name not in tensors}
    if any(x.shape != scores.shape for x in tensors.values()) or not all(map(_is_constant, rest.values())):
        return None
    if any(x.requires_grad for name, x in tensors.items() if name != "scores"):
        return None
    rest |= {"reduction": "none", "return_stats": True}
    counts: list[Tensor] = []
    names = list(tensors)

    def values_of(*rows: Tensor) -> Tensor:  # holds none of the tensors: a graph that was used lets go of them
        values: Tensor
        values, stats = run(**dict(zip(names, rows, strict=True)), **rest)
        counts.append(stats.defined)
        return values

    tensors["scores"] = widened(scores)  # a gradient of half precision would be rounded before it is scaled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a chunk: a warning is of all lists
        try:
            if scores.requires_grad and torch.is_grad_enabled():
                place = names.index("scores")
                values: Tensor = _InChunks.apply(values_of, size, place, *tensors.values())  # type: ignore[no-untyped-call]
            else:
                parts = zip(*(torch.split(x, size) for x in tensors.values()), strict=True)
                values = torch.cat([values_of(*part) for part in parts])
        except ValueError:  # it names a place in a chunk
            return None
    defined = int(torch.stack(counts).sum())
    return values if 0 < defined == int((~values.detach().isnan()).sum()) else None


def by_list(terms: Callable[..., tuple[Tensor, Tensor]], given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """``terms(**given)``, a value a list (Q,) and whether it is defined (Q,), in chunks where they fit and pay."""

    def run(reduction: str, return_stats: bool, **part: Any) -> tuple[Tensor, _Defined]:
        values, defined = terms(**part)
        return values.masked_fill(~defined, torch.nan), _Defined(defined.sum())

    values = None if are_few(given["scores"]) else in_chunks(run, given)
    return terms(**given) if values is None else (values, ~values.isnan())


class _Defined(NamedTuple):
    defined: Tensor


class _InChunks(torch.autograd.Function):
    """Values of lists; their gradient is computed with them, and once more with a graph where that is asked for."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], size: int, place: int, *tensors: Tensor) -> Tensor:
        slope = torch.empty_like(tensors[place], memory_format=torch.contiguous_format)
        values = []
        for start in range(0, len(slope), size):
            rows = [x[start : start + size] for x in tensors]
            with torch.enable_grad():
                leaf = rows[place] = rows[place].detach().requires_grad_()
                value = function(*rows)
                if value.requires_grad:
                    slope[start : start + size] = torch.autograd.grad(value.sum(), leaf)[0]
                else:
                    slope[start : start + size] = 0
            values.append(value.detach())
        ctx.function, ctx.place = function, place
        ctx.save_for_backward(slope, *tensors)
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        slope, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the slope itself has a gradient
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = ctx.function(*tensors)
            (grad,) = torch.autograd.grad(value, tensors[ctx.place], by_value, create_graph=True)
        else:
            grad = scaled(slope, by_value, last=first_derivative(by_value) and not graph_is_kept())
        return (None, None, None, *(grad if i == ctx.place else None for i in range(len(tensors))))


def _is_constant(value: object) -> bool:
    """Whether an option of a loss holds nothing that is trained; of code that is not ours nobody knows."""
    return all(map(_is_known, _parts(value)))


def _parts(value: object) -> Iterator[object]:
    """A rank function, and what it wraps."""
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _parts(part)
        return
    yield value
    for cell in getattr(value, "__closure__", None) or ():
        yield from _parts(cell.cell_contents)
    if (inner := getattr(value, "rank_fn", None)) is not None and not isinstance(value, nn.Module):
        yield from _parts(inner)


def _is_known(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.requires_grad
    if isinstance(value, nn.Module):
        return _is_ours(type(value)) and not any(p.requires_grad for p in value.parameters())
    if callable(value):
        return _is_ours(value if hasattr(value, "__qualname__") else type(value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, tuple))


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "sodeep"
