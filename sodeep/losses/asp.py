"""Average semantic precision (ASP): retrieval loss for graded similarities, beyond relevant or not.

The items of a query are to be ranked as semantic scores order them (the overlap of captions, say), where a binary
relevance calls every near match wrong.

Source: Li et al., NeurIPS 2022 (DAA).

Example:
    >>> similarity = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.3, 0.9]])
    >>> meaning = torch.tensor([[0.7, 0.2, 0.6], [0.9, 0.3, 0.1]])
    >>> print(f"{asp_loss(similarity, meaning):.4f}")  # the first list is in order, the second in reverse
    0.2222
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sodeep._core.checks import check_positive
from sodeep._core.derivatives import closed_form
from sodeep._core.lists import check_target, masked_mean
from sodeep._core.precision import working_dtype
from sodeep._core.soft_ranks import clear, exponentials, measure, sink
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, optional, reduce_defined
from sodeep.losses._chunks import chunk_elements
from sodeep.ranks import RankFunction, apply_rank_fn, check_rank_fn, sigmoid_rank

_LONGEST = 512
"""Items of a list whose pairs are all held at once."""


def _asp_and_slope(
    x: Tensor, meaning: Tensor | None, target: Callable[[], Tensor], real: Tensor | None, tau: float
) -> tuple[Tensor, Tensor] | None:
    """ASP of each list (Q,) and its gradient by the scores x (Q, N), from one look at its pairs; None of wide lists.

    With ranks r by score and c by meaning, d ASP / dr_i is 1 / c_i below c_i and -c_i / r_i² above, over n. With
    f = σ (1 - σ), dr_i / dx_k is f_ik / tau, and minus the sum of those on the diagonal.

    Args:
        x: (Q, N).
        meaning: the semantic scores (Q, N), to be ranked like x; None, or too wide for that: `target` gives c.
        target: gives the ranks by meaning (Q, N).
        real: (Q, N), or None.
        tau: the width.
    """
    lists, n = x.shape
    if n > _LONGEST:
        return None
    place = None if meaning is None else _exponentials([x, meaning], real, tau)
    by_meaning = None
    if place is None:
        place = _exponentials([x], real, tau)
        if place is None:
            return None
        by_meaning = target()
    weight = x.new_full((lists, 1), 1 / n) if real is None else 1 / real.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
    together = max(1, 4 * chunk_elements(x.device) // (len(place) * n * n))
    memory = x.new_empty(len(place), min(together, lists), n, n)
    values, slope = x.new_empty(lists), torch.empty_like(x)
    for first in range(0, lists, together):
        some = slice(first, first + together)
        above, here = place[:, some, None, :], place[:, some, :, None]
        pairs = memory[:, : above.shape[1]]
        torch.div(above, torch.add(above, here, out=pairs), out=pairs)
        r, *rest = pairs.sum(-1).add_(0.5)
        c = rest[0] if by_meaning is None else by_meaning[some]
        ratio = torch.minimum(r, c).div_(torch.maximum(r, c)).mul_(weight[some])
        by_rank = (ratio / r).mul_((c - r).sign_()).div_(tau)
        if real is not None:
            ratio, by_rank = clear(ratio, real[some]), clear(by_rank, real[some])
        torch.sum(ratio, -1, out=values[some])
        f = pairs[0].addcmul_(pairs[0], pairs[0], value=-1)
        torch.bmm(by_rank.unsqueeze(1), f, out=slope[some].unsqueeze(1)).squeeze(1).sub_(by_rank * f.sum(-1))
    return values, clear(slope, real)


def _exponentials(sides: list[Tensor], real: Tensor | None, tau: float) -> Tensor | None:
    """Those of several scores, in the dtype of the first; None of wide lists."""
    scores = sink(torch.stack(sides), real)
    width = measure(scores, tau, real)
    return exponentials(scores, width).to(sides[0].dtype) if width.narrow(sides[0].dtype) else None


@loss_function(tau=check_positive, rank_fn=optional(check_rank_fn), semantic_rank_fn=optional(check_rank_fn))
def asp_loss(
    scores: Tensor,
    semantic: Tensor,
    *,
    tau: float = 0.01,
    rank_fn: RankFunction | None = None,
    semantic_rank_fn: RankFunction | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus average semantic precision (ASP), between ranks by score and ranks by meaning.

    For the items i of a query, R(i, S) its rank by similarity and R(i, C) its rank by semantic score::

        ASP = mean over i of  min(R(i, C), R(i, S)) / max(R(i, C), R(i, S))

    with, unless rank functions are given, soft ranks on both sides::

        R(i, x) = 1 + sum_{j != i} sigmoid((x_j - x_i) / tau)

    A ratio of ranks weighs errors at the top of the list most. Equal scores share a rank. An item whose two ranks are
    equal is at its maximum, a ratio of 1: its gradient is 0 there.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        semantic: (..., N) semantic scores of the items, floating point or whole numbers, higher = closer in meaning. A
            target: it gets no gradient.
        tau: temperature of the soft ranks, in the units of the scores (and of the semantic scores); unused with a
            `rank_fn`. The released code has 0.001, which leaves only items within 0.01 of each other a gradient.
        rank_fn: (..., n) scores -> (..., n) ranks, in place of the sigmoid: any rank function.
        semantic_rank_fn: the same for the semantic scores, `exact_rank` say; None: as for `scores`.

    Returns:
        A scalar, in [0, 1) for ranks from 1 up. A list is defined as soon as it has a real item.

    References:
        Li, Song, Gao, Zeng, Zhang, Li. A Differentiable Semantic Metric Approximation in Probabilistic Embedding for
        Cross-Modal Retrieval (DAA). NeurIPS 2022. Its released code takes differences between a column and a row of the
        score matrix, right for symmetric matrices only; here every list is compared with itself.

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> scores, semantic = torch.tensor([0.1, 0.4, 0.3, 0.2]), torch.tensor([9.0, 7.0, 8.0, 6.0])
        >>> print(f"{asp_loss(scores, semantic, rank_fn=exact_rank):.4f}")  # ratios 1/4, 1/3, 1, 3/4
        0.4167
    """
    semantic, where = check_target(scores, semantic, where, "semantic")
    n = scores.shape[-1]
    real = None if where is None else where.reshape(-1, n)
    x, meaning = (clear(z.to(working_dtype(z)).reshape(-1, n), real) for z in (scores, semantic.detach()))

    def rank(x: Tensor, function: RankFunction | None) -> Tensor:
        return sigmoid_rank(x, tau, real) if function is None else apply_rank_fn(function, x, real)

    @torch.no_grad()
    def target() -> Tensor:
        return rank(meaning, semantic_rank_fn or rank_fn).to(working_dtype(x))

    def by_graph(x: Tensor) -> Tensor:
        ranks, by_meaning = rank(x, rank_fn), target()
        largest = torch.maximum(ranks, by_meaning)
        largest = largest if real is None else largest.masked_fill(~real, 1)
        return masked_mean(torch.minimum(ranks, by_meaning) / largest, real)

    def with_slope(x: Tensor) -> tuple[Tensor, Tensor] | None:
        return _asp_and_slope(x, meaning if semantic_rank_fn is None else None, target, real, tau)

    asp = closed_form(x, with_slope, by_graph) if rank_fn is None else by_graph(x)
    defined = torch.ones_like(asp, dtype=torch.bool) if real is None else real.any(-1)
    return reduce_defined(1 - asp, defined, scores, reduction, return_stats, needs="a real item")


class ASPLoss(Loss[ListStats]):
    """Module form of `asp_loss`.

    Example:
        >>> ASPLoss()
        ASPLoss(tau=0.01, rank_fn=None, semantic_rank_fn=None)
    """

    function = staticmethod(asp_loss)

    def __init__(
        self,
        tau: float = 0.01,
        rank_fn: RankFunction | None = None,
        semantic_rank_fn: RankFunction | None = None,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(tau=tau, rank_fn=rank_fn, semantic_rank_fn=semantic_rank_fn, reduction=reduction)
