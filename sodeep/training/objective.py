"""The training objective of a sorter: exact ranks as the target of its values, a smooth rank as that of its gradient.

The values follow SoDeep (Engilberge et al., CVPR 2019): L1 on the normalised exact ranks. A gradient term is added: a
network fitted to values alone has small errors and a noisy gradient, and its gradient is what a loss uses; so
its vector-Jacobian products are fitted too, to those of a smooth rank. A sorter whose gradient is known in closed form
needs the values alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from sodeep.ranks import exact_rank
from sodeep.sorters.base import Sorter, double_backward

VALUE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": partial(nn.functional.l1_loss, reduction="none"),
    "l2": partial(nn.functional.mse_loss, reduction="none"),
    "huber": partial(nn.functional.smooth_l1_loss, reduction="none", beta=0.02),
}
"""Losses on normalised ranks, item by item; "huber" is L1 with a parabola below an error of 0.02."""

GRADIENT_TAU = 0.25
"""Width of the smooth rank whose gradient is the target, in the spread of the list."""


def sorter_loss(
    sorter: Sorter,
    scores: Tensor,
    generator: torch.Generator,
    *,
    gradient_weight: float,
    gradient_tau: float = GRADIENT_TAU,
    gradient_fraction: float = 1.0,
    gradient_step: float = 0.0,
    value_loss: str = "l1",
    top_weighted: bool = False,
    values: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What a sorter is fitted by: value loss + gradient_weight x gradient mismatch, on normalised ranks.

    `scores` (B, n) have no gradient, `generator` draws the vectors of the gradient term, `values` are the
    sorter's, compiled, and the options are those of `TrainConfig`.
    """
    n = scores.shape[-1]
    target = exact_rank(scores)
    value = VALUE_LOSSES[value_loss]((sorter.values if values is None else values)(scores) / n, target / n)
    weight = None
    if top_weighted:
        weight = 1 / target
        weight = weight / weight.mean(-1, keepdim=True)
        value = weight * value
    value = value.mean()
    # Standardised, lists of a few items are much alike (of two, all the same): their gradients add up over a batch
    # where those of longer lists average out, and would dominate the values of every length.
    value = min(1.0, n / 10) ** 2 * value
    if gradient_weight == 0 or sorter.separate_gradient:
        return value
    # on a part of the lists only: a second derivative is expensive
    count = math.ceil(gradient_fraction * len(scores))
    subset = scores[:count].detach()
    # the vectors are residuals, what a Spearman loss sends back: these ranks minus those of another order
    shuffled = torch.rand(subset.shape, generator=generator, device=generator.device).argsort(-1).to(scores.device)
    residual = (target[:count] - target[:count].gather(-1, shuffled)) / n
    # this is also the gradient of the values: the width that suits 100 items would keep those of a short list away from
    # its ranks, so it is sharper there, and has less weight
    factor = min(1.0, n / 100)
    weight = None if weight is None else weight[:count]
    if gradient_step:
        gradient = directional_derivative(sorter, subset, residual, gradient_step)
        mismatch = mismatch_with_smooth_rank(gradient, subset, residual, factor * gradient_tau, weight)
    else:
        subset.requires_grad_()
        with double_backward():
            ranks = sorter(subset)
        mismatch = gradient_mismatch(ranks, subset, residual, factor * gradient_tau, weight)
    return value + gradient_weight * factor**2 * mismatch


def directional_derivative(sorter: Callable[[Tensor], Tensor], scores: Tensor, vectors: Tensor, step: float) -> Tensor:
    """J v, (B, n), with J the Jacobian of the ranks of `scores`, by central differences.

    The smooth rank that a sorter is fitted to has a symmetric Jacobian: J v and J^T v are the same target. This one
    takes two forward passes and no second derivative, for which recurrent networks have no fast kernels.

    Args:
        sorter: the ranks of scores (B, n), as a function.
        scores: (B, n).
        vectors: v, (B, n).
        step: to either side, the root mean square over a list, in its spread (`mean_deviation`).
    """
    size = vectors.square().mean(-1, keepdim=True).sqrt()
    spread = mean_deviation(scores)
    # a list of equal scores has no spread, and its mismatch does not count
    factor = step * spread.where(spread > 0, 1.0) / size.where(size > 0, 1.0)
    above, below = sorter(torch.cat([scores + factor * vectors, scores - factor * vectors])).chunk(2)
    return (above - below) / (2 * factor)


def gradient_mismatch(
    ranks: Tensor, scores: Tensor, vectors: Tensor, tau: float, weight: Tensor | None = None
) -> Tensor:
    """`mismatch_with_smooth_rank` of the gradient J^T v of `ranks` (B, n) in `scores`, both with graph."""
    (gradient,) = torch.autograd.grad(ranks, scores, vectors, create_graph=True)
    return mismatch_with_smooth_rank(gradient, scores.detach(), vectors, tau, weight)


def mismatch_with_smooth_rank(
    gradient: Tensor, scores: Tensor, vectors: Tensor, tau: float, weight: Tensor | None = None
) -> Tensor:
    """Relative squared difference between a gradient and that of a smooth rank, for given vectors.

    For each list, with J the Jacobian of `ranks` in `scores`, J' that of the smooth rank and v the vector:
    |J'v - Jv|^2 / (|J'v|^2 + floor), with J and J' transposed. The floor, (0.03 n / spread)^2 |v|^2, is a hundredth of
    the usual |J'v|^2; it keeps lists in which the smooth rank has no slope (isolated items) from dominating the mean.

    Args:
        gradient: (B, n), J^T v or J v.
        scores: (B, n).
        vectors: (B, n).
        tau: width of the smooth rank, in the spread of each list (`mean_deviation`).
        weight: (B, n), of each entry in both squares; None for equal ones.

    Returns:
        A scalar with the graph of `gradient`, the mean over the lists that are not constant; 0 is
        agreement, about 1 is what a zero gradient gets.
    """
    spread = mean_deviation(scores)
    defined = spread.squeeze(-1) > 0
    # in units of the list's spread, where the entries are of the size of n whatever the scale of the scores
    spread = spread.where(spread > 0, 1.0)
    gradient, target = gradient * spread, smooth_rank_vjp(scores / spread, vectors, tau)
    if weight is not None:
        gradient, target = gradient * weight.sqrt(), target * weight.sqrt()
    floor = (0.03 * scores.shape[-1]) ** 2 * vectors.square().sum(-1)
    size = target.square().sum(-1) + floor
    mismatch = (gradient - target).square().sum(-1) / size.where(size > 0, 1.0)
    return mismatch.masked_fill(~defined, 0).sum() / defined.sum().clamp(min=1)


def smooth_rank_vjp(scores: Tensor, vectors: Tensor, tau: float) -> Tensor:
    """J^T v, (B, n), of the smooth rank r_i = 1/2 + sum over j of Phi((s_j - s_i) / tau), Phi the normal distribution.

    Without cusps, which a network made of smooth functions could not follow.
    """
    result = torch.empty_like(scores)
    size = max(1, 2**24 // max(1, scores.numel()))  # items at a time
    for part in (slice(start, start + size) for start in range(0, scores.shape[-1], size)):
        gaps = (scores.unsqueeze(-2) - scores[..., part].unsqueeze(-1)) / tau
        density = torch.exp(-gaps.square() / 2) / (math.sqrt(2 * math.pi) * tau)  # symmetric: of i and j
        result[..., part] = (density @ vectors.unsqueeze(-1)).squeeze(-1) - density.sum(-1) * vectors[..., part]
    return result


def mean_deviation(x: Tensor) -> Tensor:
    """Mean distance from the median, (..., 1), in units in which it is the standard deviation of a normal list.

    A few outliers, which dominate a standard deviation, hardly move it.
    """
    return math.sqrt(math.pi / 2) * (x - x.median(-1, keepdim=True).values).abs().mean(-1, keepdim=True)
