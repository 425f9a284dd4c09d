"""Sums of exponentials over the positives and negatives of every list, and their gradients, in one pass each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import compiling, in_forward_mode, readable
from sodeep._core.lists import Lists
from sodeep.losses._base import ListStats, reduce_defined


def has_both(lists: Lists) -> Tensor:
    """Which lists (Q,) have an item in P and one in N."""
    return (lists.positive.sum(-1) > 0) & (lists.negative.sum(-1) > 0)


def reduce_over_both(
    values: Tensor, lists: Lists, scores: Tensor, reduction: str, return_stats: bool
) -> Tensor | tuple[Tensor, ListStats]:
    needs = "both a relevant item and one that is not"
    return reduce_defined(values, has_both(lists), scores, reduction, return_stats, needs=needs)


@torch.no_grad()
def bound(x: Tensor) -> Tensor:
    """Exponents of finite scores, which may be infinite, brought back in place: inf - inf is NaN.

    Their gradient is as if they had stayed where they were.
    """
    end = torch.finfo(x.dtype).max / 8
    return x.clamp_min_(-end).clamp_max_(end)


class _LogSumExp(torch.autograd.Function):
    """Log of the sum of e^x over the entries in `mask` (last axis); very low, with zero gradient, where it has none.

    By way of the softmax, which is its gradient: the exponential of torch on a CPU is ten times slower where it
    underflows, as at every masked entry, and the softmax is not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # finite, since a row of -inf would have a NaN softmax, and far enough from the end of the range to be added to
        x = torch.where(mask, x, torch.finfo(x.dtype).min / 4)
        shares = x.softmax(-1)
        return x.amax(-1) - shares.amax(-1).log(), shares

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def jvp(ctx: Any, moved: Tensor, _: None) -> tuple[Tensor, None]:
        x, mask, shares = ctx.saved_tensors
        if torch.is_grad_enabled():
            shares = _LogSumExp.forward(x, mask)[1]
        return (shares * moved).sum(-1), None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        x, mask, shares = ctx.saved_tensors
        if torch.is_grad_enabled() or in_forward_mode():  # a second derivative is wanted
            shares = _LogSumExp.forward(x, mask)[1]
        return grad.unsqueeze(-1) * shares, None


def logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    if compiling():  # which fuses it all
        return _LogSumExp.forward(x, mask)[0]
    result: Tensor = _LogSumExp.apply(x, mask)[0]  # type: ignore[no-untyped-call]
    return result


def logsumexp_of_sides(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Both at once, (2, Q): over `positive`, over `negative`."""
    return logsumexp(x.expand(2, *x.shape), torch.stack([positive, negative]))


LEAST_SHARE = 1e-20
"""Where the positives have less of the whole e^x of their list, what each of them adds may have underflowed."""


class _LogRatio(torch.autograd.Function):
    """log(1 + N/P) for the sums P and N of e^x over two sides of a list, from the softmax of the whole list.

    One exponential in place of the two of `logsumexp_of_sides`, which remains for lists whose P underflows, and for
    torch.func.
    """

    @staticmethod
    def parts(x: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The shares of the positives and of the others in their whole (Q, N), and the sums of both (Q,)."""
        shares = x.softmax(-1)
        of_p = shares * positive
        of_n = shares - of_p
        return of_p, of_n, of_p.sum(-1), of_n.sum(-1)

    @staticmethod
    def forward(ctx: Any, x: Tensor, positive: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(x, positive, *parts)
        return (parts[3] / parts[2]).log1p()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, positive, *parts = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            parts = _LogRatio.parts(x, positive)
        of_p, of_n, sum_p, sum_n = parts
        by_n = torch.where(sum_p > 0, grad, 0)
        by_p = -by_n * sum_n / sum_p.clamp(min=torch.finfo(x.dtype).tiny)
        return torch.addcmul(of_n * by_n.unsqueeze(-1), of_p, by_p.unsqueeze(-1)), *[None] * 5


def log_ratio(x: Tensor, lists: Lists) -> Tensor:
    """log(1 + N/P) for the sums P and N of e^x over the positives and the negatives, (Q,)."""
    if x.device.type == "cpu" and readable(x):  # on a GPU the look at P would wait for it
        if lists.masked:
            x = x.masked_fill(~(lists.positive | lists.negative), torch.finfo(x.dtype).min / 4)
        positive = lists.positive.to(x.dtype)
        with torch.no_grad():
            parts = _LogRatio.parts(x, positive)
            lost = (parts[2] < LEAST_SHARE) & (positive.sum(-1) > 0)
        if not bool(lost.any()):
            result: Tensor = _LogRatio.apply(x, positive, *parts)  # type: ignore[no-untyped-call]
            return result
    of_p, of_n = logsumexp_of_sides(x, lists.positive, lists.negative)
    return softplus(of_n - of_p)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x). Torch's own goes over to x at 20, which float64 can tell from the truth."""
    return torch.nn.functional.softplus(x, threshold=40)
