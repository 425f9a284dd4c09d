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

import torch
from torch import Tensor

from sodeep._core.checks import check_positive
from sodeep._core.lists import check_target, masked_mean
from sodeep._core.precision import working_dtype
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, optional, reduce_defined
from sodeep.ranks import RankFunction, apply_rank_fn, check_rank_fn, sigmoid_rank


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
    real = torch.ones_like(scores, dtype=torch.bool) if where is None else where
    # masked_fill, not a product: a masked NaN must reach neither the value nor the gradient
    scores = scores.to(working_dtype(scores)).masked_fill(~real, 0)
    semantic = semantic.detach().to(working_dtype(semantic)).masked_fill(~real, 0)

    def rank(x: Tensor, function: RankFunction | None) -> Tensor:
        return sigmoid_rank(x, tau, where) if function is None else apply_rank_fn(function, x, where)

    ranks = rank(scores, rank_fn)
    with torch.no_grad():
        target = rank(semantic, semantic_rank_fn or rank_fn).to(ranks.dtype)

    ratio = torch.minimum(ranks, target) / torch.maximum(ranks, target).masked_fill(~real, 1)
    loss, defined = 1 - masked_mean(ratio, real).flatten(), real.any(-1).flatten()
    return reduce_defined(loss, defined, scores, reduction, return_stats, needs="a real item")


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
