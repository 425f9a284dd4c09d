"""Log-sum-exp and softplus for losses on pairs: sums of exponentials over the positives or negatives of every list.

They are stable at any scores, and the gradient is taken in one pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import compiling, in_forward_mode
from sodeep._core.masks import filled


@torch.no_grad()
def bound(x: Tensor) -> Tensor:
    """Clamp, in place, the exponents of finite scores that have overflowed: inf - inf is NaN.

    The gradient is that of the exponents before.
    """
    end = torch.finfo(x.dtype).max / 8
    return x.clamp_min_(-end).clamp_max_(end)


def logsumexp_with_softmax(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`logsumexp` and its gradient, without a graph that is stable."""
    # finite, since a row of -inf would have a NaN softmax, and far enough from the end of the range to be added to
    x = filled(x, ~mask, torch.finfo(x.dtype).min / 4)
    softmax = x.softmax(-1)
    return x.amax(-1) - softmax.amax(-1).log(), softmax


class _LogSumExp(torch.autograd.Function):
    """Log of the sum of e^x over the entries in `mask` (last axis); very low, with zero gradient, where it has none.

    By way of the softmax, which is its gradient: the exponential of torch on a CPU is ten times slower where it
    underflows, as at every masked entry, and the softmax is not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return logsumexp_with_softmax(x, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def jvp(ctx: Any, moved: Tensor, _: None) -> tuple[Tensor, None]:
        x, mask, softmax = ctx.saved_tensors
        if torch.is_grad_enabled():
            softmax = _LogSumExp.forward(x, mask)[1]
        return (softmax * moved).sum(-1), None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        x, mask, softmax = ctx.saved_tensors
        if torch.is_grad_enabled() or in_forward_mode():  # a second derivative is wanted
            softmax = _LogSumExp.forward(x, mask)[1]
        return grad.unsqueeze(-1) * softmax, None


def logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    """Log of the sum of e^x over the entries in `mask` (last axis), with derivatives of any order."""
    if compiling():  # which fuses it all
        return _LogSumExp.forward(x, mask)[0]
    result: Tensor = _LogSumExp.apply(x, mask)[0]  # type: ignore[no-untyped-call]
    return result


def logsumexp_of_sides(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Both at once, (2, Q): over `positive`, over `negative`."""
    return logsumexp(x.expand(2, *x.shape), torch.stack([positive, negative]))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x). Torch's own returns x above 20, where the difference is more than the rounding of float64."""
    return torch.nn.functional.softplus(x, threshold=40)
