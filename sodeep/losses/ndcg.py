"""Losses on the top of a list, on any rank function: nDCG, reciprocal rank, precision at k.

Each is one minus the metric of that name in `sodeep.metrics`, with the ranks of `rank_fn` in place of exact ones: a
trained sorter, `laplace_rank`, or your own, as in `sodeep.losses.rank`.

Example:
    >>> import torch
    >>> from sodeep.ranks import laplace_rank
    >>> scores = torch.tensor([0.9, 0.2, 0.4], requires_grad=True)
    >>> ndcg_loss(scores, torch.tensor([1, 0, 2]), rank_fn=laplace_rank).backward()
    >>> scores.grad[2] < 0  # the third should rise
    tensor(True)
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_positive
from sodeep._core.grades import check_gain, check_grades, check_weight, scaled_gains
from sodeep._core.lists import check_lists
from sodeep._core.masks import any_of
from sodeep._core.sort import ascending
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, optional, reduce_defined
from sodeep.ranks import RankFunction, apply_rank_fn, check_rank_fn

check_k = partial(check_at_least, low=1)


@loss_function(rank_fn=check_rank_fn, k=optional(check_k), tau_k=check_positive, gain=check_gain)
def ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    rank_fn: RankFunction,
    k: int | None = None,
    tau_k: float = 1.0,
    gain: str = "exponential",
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus normalized discounted cumulative gain (nDCG), from the ranks of the items.

    With the gains g of the items, their ranks r = rank_fn(scores), and r* their ranks in the best order::

        1 - (sum over i of g_i D(r_i)) / (sum over i of g_i D(r*_i)),   D(r) = 1 / log2(1 + r)

    With `k` the discount has a smooth cut, in the best order too, whose loss is so 0::

        D(r) = sigmoid((k + 1/2 - r) / tau_k) / log2(1 + r)

    With exact ranks it is 1 - nDCG@k as `tau_k` goes to 0. Ranks below 1 count as 1.

    ApproxNDCG (Qin et al.) is this loss on `sigmoid_rank`; `laplace_rank` gives as good ranks in O(n log n).

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        relevance: (..., N), grades of at least 0, floating point or whole numbers, of any size.
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        k: the rank from which items count little; None = the whole list.
        tau_k: over how many ranks the cut extends.
        gain: "exponential": g = 2^relevance - 1. "linear": the relevance itself.
        weight: (..., N), at least 0, a factor of the gains.

    Returns:
        A scalar, in [0, 1) for ranks that are a permutation. A list is defined when a real item has positive relevance.

    References:
        Qin, Liu, Li. A General Approximation Framework for Direct Optimization of Information Retrieval Measures.
        Information Retrieval 13, 2010.

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
        >>> print(f"{ndcg_loss(scores, relevance, rank_fn=exact_rank):.4f}")  # 1 - (1 + 3 / 1.585) / (3 + 1 / 1.585)
        0.2033
    """
    x, grades, real = check_grades(scores, relevance, where, low=0)
    weight = check_weight(weight, scores, where)
    gains = scaled_gains(grades, gain)
    gains = (gains if weight is None else gains * weight).to(x.dtype)
    ranks = apply_rank_fn(rank_fn, x, where=None if where is None else real).to(x.dtype)

    def discounted(gains: Tensor, ranks: Tensor) -> Tensor:
        if k is not None:
            gains = gains * _cut(ranks, k, tau_k)
        return (gains / torch.log2(1 + ranks)).sum(-1)

    best = discounted(-ascending(-gains)[0], torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device))
    values = 1 - discounted(gains, ranks.clamp(min=1)) / best.masked_fill(best == 0, 1)
    needs = "an item of positive relevance"
    return reduce_defined(values, best > 0, scores, reduction, return_stats, needs, "relevance")


class NDCGLoss(Loss[ListStats]):
    """Module form of `ndcg_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> NDCGLoss(laplace_rank, k=10)
        NDCGLoss(rank_fn=laplace_rank, k=10, tau_k=1.0, gain='exponential')
    """

    function = staticmethod(ndcg_loss)

    def __init__(
        self,
        rank_fn: RankFunction,
        *,
        k: int | None = None,
        tau_k: float = 1.0,
        gain: str = "exponential",
        reduction: str = "mean",
    ) -> None:
        super().__init__(rank_fn=rank_fn, k=k, tau_k=tau_k, gain=gain, reduction=reduction)


@loss_function(rank_fn=check_rank_fn)
def reciprocal_rank_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    rank_fn: RankFunction,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus the reciprocal rank of the first relevant item, whose mean over the queries is the MRR.

    With the ranks r = rank_fn(scores)::

        1 - 1 / min over relevant i of r_i

    Of several relevant items only the first has a gradient; those tied with it share it. Ranks below 1 count as 1.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.

    Returns:
        A scalar, in [0, 1).

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> reciprocal_rank_loss(torch.tensor([0.9, 0.2, 0.4]), torch.tensor([0, 1, 1]), rank_fn=exact_rank)
        tensor(0.5000)
    """
    x, positive, negative, *_ = check_lists(scores, relevant, where)
    ranks = apply_rank_fn(rank_fn, x, where=None if where is None else positive | negative).to(x.dtype).clamp(min=1)
    first = ranks.masked_fill(~positive, torch.finfo(x.dtype).max).amin(-1)
    return reduce_defined(1 - 1 / first, any_of(positive), scores, reduction, return_stats)


class ReciprocalRankLoss(Loss[ListStats]):
    """Module form of `reciprocal_rank_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> ReciprocalRankLoss(laplace_rank)
        ReciprocalRankLoss(rank_fn=laplace_rank)
    """

    function = staticmethod(reciprocal_rank_loss)

    def __init__(self, rank_fn: RankFunction, *, reduction: str = "mean") -> None:
        super().__init__(rank_fn=rank_fn, reduction=reduction)


@loss_function(rank_fn=check_rank_fn, k=check_k, tau_k=check_positive)
def precision_at_k_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    rank_fn: RankFunction,
    k: int,
    tau_k: float = 1.0,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus the precision among the first k, with a smooth cut.

    With the ranks r = rank_fn(scores)::

        1 - 1/k * sum over relevant i of sigmoid((k + 1/2 - r_i) / tau_k)

    With exact ranks it is 1 - P@k as `tau_k` goes to 0: at least 1 - R/k for R < k relevant items.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        k: the cut.
        tau_k: over how many ranks it extends.
        weight: (..., N), at least 0, a factor of the terms.

    Returns:
        A scalar, at most 1 without weights.

    References:
        Qin, Liu, Li. A General Approximation Framework for Direct Optimization of Information Retrieval Measures.
        Information Retrieval 13, 2010.

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> scores, relevant = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([0, 1, 1])
        >>> precision_at_k_loss(scores, relevant, rank_fn=exact_rank, k=2, tau_k=0.01)
        tensor(0.5000)
    """
    x, positive, negative, *_ = check_lists(scores, relevant, where)
    ranks = apply_rank_fn(rank_fn, x, where=None if where is None else positive | negative).to(x.dtype)
    among_first = _cut(ranks, k, tau_k).masked_fill(~positive, 0)
    if (weights := check_weight(weight, scores, where)) is not None:
        among_first = among_first * weights.to(x.dtype)
    return reduce_defined(1 - among_first.sum(-1) / k, any_of(positive), scores, reduction, return_stats)


class PrecisionAtKLoss(Loss[ListStats]):
    """Module form of `precision_at_k_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> PrecisionAtKLoss(laplace_rank, k=10)
        PrecisionAtKLoss(rank_fn=laplace_rank, k=10, tau_k=1.0)
    """

    function = staticmethod(precision_at_k_loss)

    def __init__(self, rank_fn: RankFunction, *, k: int, tau_k: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(rank_fn=rank_fn, k=k, tau_k=tau_k, reduction=reduction)


def _cut(ranks: Tensor, k: int, tau: float) -> Tensor:
    """From 1 at the first ranks to 0 at the last, 1/2 between k and k + 1."""
    return torch.sigmoid((k + 0.5 - ranks) / tau)
