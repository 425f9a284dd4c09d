"""Sums over the pairs of a list in which one item should be above the other, with their gradient in closed form.

The pairs of n items are visited in tiles: O(n^2) time, O(n) memory, no graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from sodeep._core.checks import capturing, traces_no_gradient
from sodeep._core.sort import ascending, runs
from sodeep.losses._per_query import apply_operator, one_node

LAMBDAS = ("lambdarank", "ndcg2", "ndcg2++")
MU = 10.0
"""Weight of the bound beside LambdaRank's weights in "ndcg2++": that of Wang et al. 2018."""


def items_below(relevance: Tensor, real: Tensor) -> Tensor:
    """How many real items of the list have a lower grade (Q, N): equal for equal grades, in their order."""
    grades, order = ascending(relevance.masked_fill(~real, torch.inf))
    return torch.zeros_like(order).scatter(-1, order, runs(grades)[0])


def mean_over_pairs(
    scores: Tensor, below: Tensor, real: Tensor, weight: Tensor | None, loss: str
) -> tuple[Tensor, Tensor]:
    """Mean of a loss of s_i - s_j over the pairs with i above j in grade, and whether a list (Q,) has any.

    Args:
        scores: (Q, N).
        below: `items_below`.
        real: (Q, N), bool.
        weight: (Q, N), what the pairs of an item i count; None: all the same.
        loss: "logistic": log(1 + exp(-d)). "sigmoid": 1 / (1 + exp(d)).
    """
    weight = real.to(scores.dtype) if weight is None else weight.to(scores.dtype)
    total = (weight * below.masked_fill(~real, 0)).sum(-1, keepdim=True)
    weight = weight / total.masked_fill(total == 0, 1)
    grade = below.to(scores.dtype).masked_fill(~real, torch.nan)
    value = _pair_sum(scores, torch.stack([grade, weight, grade], -1), loss, 0)
    return value, total.squeeze(-1) > 0


def ndcg_bound(scores: Tensor, below: Tensor, real: Tensor, weight: Tensor, gains: Tensor, kind: str, k: int) -> Tensor:
    """Sum of the logistic losses of the pairs in bits, each weighted by what its order is worth to nDCG: (Q,).

    Args:
        scores: (Q, N).
        below: `items_below`.
        real: (Q, N), bool.
        weight: (Q, N), a factor for the pairs in which an item is the better one.
        gains: (Q, N), over the ideal DCG.
        kind: one of `LAMBDAS`.
        k: the cut of nDCG.
    """
    grade = below.to(scores.dtype).masked_fill(~real, torch.nan)
    items = torch.stack([grade, weight.to(scores.dtype), gains.to(scores.dtype)], -1)
    return _pair_sum(scores, items, kind, k) / math.log(2)


def _pair_sum(scores: Tensor, items: Tensor, kind: str, k: int) -> Tensor:
    if traces_no_gradient(scores):
        return _sum_over_pairs(scores, items, kind, k)[0]
    value: Tensor = apply_operator(_sum_over_pairs, scores, items, kind, k)[0]
    return value


@one_node("str kind, SymInt k")
def _sum_over_pairs(scores: Tensor, items: Tensor, kind: str, k: int) -> tuple[Tensor, Tensor]:
    """`items` (Q, N, 3) holds the grade of each, NaN at masked ones, its weight and its gain."""
    masked = items[..., 0].isnan()
    # the best first: then pairs lie above the diagonal
    order = ascending((-items[..., 0]).masked_fill(masked, torch.inf))[1]
    grade, weight, gain = (items[..., i].gather(1, order) for i in range(3))
    s, masked = scores.gather(1, order), masked.gather(1, order)
    span = torch.finfo(s.dtype).max / 4  # so that a difference is no NaN
    s = s.clamp(-span, span)
    upper, lower = s.masked_fill(masked, torch.inf), s.masked_fill(masked, -torch.inf)
    ranked = _Ranked(s, masked, kind, k) if kind in LAMBDAS else None
    n = s.shape[1]
    value, slope = s.new_zeros(len(s)), torch.zeros_like(s)
    rows = max(1, min(_SIDE, n, _tile(s.device) // n))
    together = max(1, min(len(s), _tile(s.device) // (rows * n)))
    # fresh memory for every tile would cost most of the time, in page faults
    memory = s.new_empty(4, together * rows * n)
    for first in range(0, len(s), together):
        lists = slice(first, first + together)
        for top in range(0, n, rows):
            i, j = (lists, slice(top, top + rows), None), (lists, None, slice(top, n))
            w = weight[i[:2]]
            d, wrong, pair, spare = (x[: w.numel() * (n - top)].view(*w.shape, n - top) for x in memory)
            torch.sub(lower[j], upper[i], out=d)
            torch.sigmoid(d, out=wrong)
            if ranked is None:
                torch.gt(grade[i], grade[j], out=pair)
            else:
                ranked.importance(i, j, pair, spare)
                pair.mul_(torch.sub(gain[i], gain[j], out=spare).clamp_(min=0))
            if kind == "sigmoid":
                loss = torch.mul(wrong, pair, out=spare)
                wrong.addcmul_(wrong, wrong, value=-1)
            else:
                loss = softplus(d, out=spare).mul_(pair)  # type: ignore[call-arg]
            value[lists] += (loss.sum(-1) * w).sum(-1)
            by_d = wrong.mul_(pair)
            slope[i[:2]] -= by_d.sum(-1) * w
            slope[lists, top:] += torch.bmm(w.unsqueeze(1), by_d).squeeze(1)
    return value, torch.zeros_like(scores).scatter_(1, order, slope)


def _tile(device: torch.device) -> int:
    """Pairs held at once: what stays in a CPU's cache, or what fills a GPU."""
    return 2**18 if device.type == "cpu" else 2**23


_SIDE = 32
"""Rows of a tile: with few, little of what is computed lies below the diagonal."""


_Part = tuple[slice | None, ...]


class _Ranked:
    """The current ranks of the items and what they are worth; of tied items, the mean over their orders."""

    def __init__(self, scores: Tensor, masked: Tensor, kind: str, k: int) -> None:
        n = scores.shape[1]
        ordered, order = ascending((-scores).masked_fill(masked, torch.inf))
        begin, end = runs(ordered)
        rank = torch.arange(1, n + 1, dtype=torch.float64, device=scores.device)
        worth = (1 / torch.log2(1 + rank)).masked_fill(rank > k, 0)
        size = end - begin
        self.kind = kind
        self.cut = k < n
        self.ties = capturing(scores) or bool(((size > 1) & ~masked.gather(1, order)).any())

        def mean(of_place: Tensor) -> Tensor:
            until = pad(of_place.cumsum(-1), (1, 0))
            return (until[end] - until[begin]) / size

        def of_items(of_places: Tensor) -> Tensor:
            return torch.empty_like(scores).scatter(1, order, of_places.to(scores.dtype))

        self.rank = of_items((begin + 1 + end) / 2)
        self.worth = of_items(mean(worth))
        self.seen = of_items(mean((rank <= k).double()))
        # between two places of a run: the mean distance, and the mean difference of what they are worth, which is
        # -4 cov(worth, place) / (size - 1)
        self.distance = of_items((size + 1) / 3)
        covariance = mean(worth * rank) - mean(worth) * mean(rank)
        self.difference = of_items(-4 * covariance / (size - 1).clamp(min=1))

    def importance(self, i: _Part, j: _Part, into: Tensor, spare: Tensor) -> None:
        """By how much nDCG can change with the order of items `i` and `j`, over the difference of their gains."""
        tied = self.rank[i] == self.rank[j] if self.ties else None
        torch.sub(self.worth[i], self.worth[j], out=into).abs_()
        if tied is not None:
            into += tied * self.difference[i]
        if self.kind == "lambdarank":
            return
        apart = torch.sub(self.rank[i], self.rank[j], out=spare).abs_()
        if tied is not None:
            apart += tied * self.distance[i]
        apart.clamp_(min=1)
        bound = (apart + 1).log2_().reciprocal_().sub_(apart.add_(2).log2_().reciprocal_())
        if self.cut:
            bound *= torch.maximum(self.seen[i], self.seen[j])
        if self.kind == "ndcg2":
            into.copy_(bound)
        else:
            into.add_(bound, alpha=MU)
