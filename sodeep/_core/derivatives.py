"""Gradients in closed form, and torch's own where more than a first derivative is asked for.

A node with a gradient in closed form costs a fraction of the graph that it stands for. What it cannot give, a second
derivative or a batch of gradients, is taken through that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import untransformed


def first_derivative(grad: Tensor) -> bool:
    """Whether a backward pass is an ordinary one: no second derivative is wanted, and no batch of gradients."""
    batch = torch._C._functorch.is_legacy_batchedtensor(grad)  # of `is_grads_batched=True`, which is no transform
    return not torch.is_grad_enabled() and untransformed(grad) and not batch


def by_graph(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of ``function(*inputs)``, with a graph of their own."""
    with torch.enable_grad():
        # one tensor may be given twice: each place has a gradient of its own
        inputs = [x if x is None else x.view_as(x) for x in inputs]
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        grads = iter(torch.autograd.grad(function(*inputs), wanted, grad, create_graph=True))
    return tuple(next(grads) if x is not None and x.requires_grad else None for x in inputs)


def graph_is_kept() -> bool:
    """Whether the graph of the backward pass that runs may be used again; True where torch cannot say (before 2.6)."""
    keeps: Callable[[], bool] | None = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps is None or keeps()


def scaled(slope: Tensor, grad: Tensor, last: bool) -> Tensor:
    """The gradients of lists (Q, N) times that of each one's value (Q,); in place where none asks for them again."""
    factor = grad.unsqueeze(-1).to(slope.dtype)
    return slope.mul_(factor) if last else slope * factor


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, found: tuple[Tensor, Tensor], plain: Callable[[Tensor], Tensor]) -> Tensor:
        value, slope = found
        ctx.plain = plain
        ctx.save_for_backward(scores, slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        scores, slope = ctx.saved_tensors
        if first_derivative(grad):
            last = not graph_is_kept()
            if last:
                ctx.plain = None  # and the masks in it, as torch lets go of what it saved
            return scaled(slope, grad, last), None, None
        return by_graph(ctx.plain, [scores], grad)[0], None, None


def closed_form(
    scores: Tensor,
    with_slope: Callable[[Tensor], tuple[Tensor, Tensor] | None],
    plain: Callable[[Tensor], Tensor],
) -> Tensor:
    """A value a list, (Q,), of scores (Q, N).

    Args:
        scores: (Q, N).
        with_slope: gives the values and their gradients (Q, N), in place of the graph of `plain`; None where it cannot.
            It is called on scores without a graph; it may read their values on a CPU, elsewhere a CUDA graph may be
            captured.
        plain: the values by operations that torch differentiates.
    """
    if untransformed(scores) and scores.requires_grad and torch.is_grad_enabled():
        found = with_slope(scores.detach())
        if found is not None:
            value: Tensor = _ClosedForm.apply(scores, found, plain)  # type: ignore[no-untyped-call]
            return value
    return plain(scores)
