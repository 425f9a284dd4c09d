"""Losses whose value and gradient are computed together, in closed form, a chunk of queries at a time.

No graph is stored, so memory is that of the scores. `smooth_ap` and `quantized_ap` give the operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import capturing, compiling, in_forward_mode, traces_no_gradient, untransformed
from sodeep._core.lists import Lists
from sodeep.losses._chunks import chunk_elements as chunk_elements

Operator = Callable[..., tuple[Tensor, Tensor]]
"""(scores (Q, N), positive (Q, N), options) -> a value a query (Q,) and d value / d scores (Q, N)."""


class _PerQuery(torch.autograd.Function):
    """A value a query whose gradient the `operator` gives with it."""

    @staticmethod
    def forward(operator: Operator, scores: Tensor, positive: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        return operator(scores, positive, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.unused = [None] * (len(inputs) - 2)

    @staticmethod
    def backward(ctx: Any, by_value: Tensor | None, by_slope: Tensor | None) -> tuple[Tensor | None, ...]:
        if (by_slope is not None and not compiling()) or in_forward_mode():
            raise NotImplementedError(
                "second derivatives of the retrieval losses are not implemented. Drop create_graph=True, or take the "
                "gradient outside forward mode."
            )
        if by_value is None:
            return None, None, *ctx.unused
        (slope,) = ctx.saved_tensors
        return None, by_value.unsqueeze(1) * slope, *ctx.unused

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], operator: Operator, scores: Tensor, positive: Tensor, *options: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        # queries are independent of one another: a batch of batches is a longer batch
        scores, positive = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((scores, positive), in_dims[1:3], strict=True)
        )
        value, slope = apply_operator(operator, scores.flatten(0, 1), positive.flatten(0, 1), *options)
        return (value.view(scores.shape[:2]), slope.view(scores.shape)), (0, 0)


class _PerQueryForward(_PerQuery):
    """The same with a forward-mode derivative, which torch.compile does not support."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _PerQuery.setup_context(ctx, inputs, output)
        ctx.save_for_forward(output[1])

    @staticmethod
    def jvp(ctx: Any, _: Any, moved: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        (slope,) = ctx.saved_tensors
        return (slope * moved).sum(1), torch.full_like(slope, torch.nan)  # the slope has no derivative of its own


class _PerQueryAlone(torch.autograd.Function):
    """The same for an ordinary call: what torch.func needs takes as long as several kernels of a short list."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, scores: Tensor, positive: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        output = operator(scores, positive, *options)
        _PerQuery.setup_context(ctx, (operator, scores, positive, *options), output)
        return output

    backward = _PerQuery.backward


def apply_operator(operator: Operator, scores: Tensor, positive: Tensor, *options: Any) -> Any:
    function: type[torch.autograd.Function] = _PerQuery
    if untransformed(scores):
        # the node is for graphs, and to be called it takes as long as a loss of a small batch
        function, operator = _PerQueryAlone, getattr(operator, "_init_fn", operator)
    elif in_forward_mode():
        function = _PerQueryForward
    return function.apply(operator, scores, positive, *options)  # type: ignore[no-untyped-call]


def check_not_captured(x: Tensor) -> None:
    """Called by an operator before it reads how many items are relevant."""
    if capturing(x):
        raise RuntimeError(
            "This loss cannot be captured in a CUDA graph: how much it computes depends on how many items are "
            "relevant. Capture the model alone, or take another loss of average precision: quantized_ap_loss."
        )


def one_node(options: str, counts: bool = False) -> Callable[[Operator], Operator]:
    """An operator as one node of a compiled graph.

    Args:
        options: the schema of its options.
        counts: whether it reads how many items are relevant, so that no CUDA graph may hold it.
    """

    def register(operator: Operator) -> Operator:
        name = f"sodeep::{operator.__name__.lstrip('_')}"
        schema = f"(Tensor scores, Tensor positive, {options}) -> (Tensor, Tensor)"
        tags: dict[str, Any] = {"tags": (torch.Tag.cudagraph_unsafe,)} if counts and _HAS_TAGS else {}
        node = torch.library.custom_op(name, operator, mutates_args=(), schema=schema, **tags)
        node.register_fake(lambda scores, *_: (scores.new_empty(scores.shape[0]), torch.empty_like(scores)))
        return node

    return register


_HAS_TAGS = "tags" in inspect.signature(torch.library.custom_op).parameters
"""Without them, as in older versions of torch, ``mode="reduce-overhead"`` of torch.compile captures all operators."""


def per_query(operator: Operator, lists: Lists, *options: Any) -> Tensor:
    """The operator's value of every query (Q,), differentiable in the scores."""
    scores = lists.scores
    if lists.masked:
        scores = scores.masked_fill(~(lists.positive | lists.negative), -torch.inf)
    if traces_no_gradient(scores):
        return operator(scores, lists.positive, *options)[0]
    value: Tensor = apply_operator(operator, scores, lists.positive, *options)[0]
    return value


def with_self(lists: Lists) -> Lists:
    """The lists with one column more: the query itself, as a relevant item of similarity 1."""
    query = lists.positive.new_ones(len(lists.positive), 1)
    return Lists(  # not _replace, which torch.compile of torch 2.4 cannot trace
        torch.cat([lists.scores, query.to(lists.scores.dtype)], 1),
        torch.cat([lists.positive, query], 1),
        torch.cat([lists.negative, ~query], 1),
        lists.masked,
    )
