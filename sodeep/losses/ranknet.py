"""Losses on the pairs of a list of which one item should be above the other: RankNet and LambdaRank.

Example:
    >>> import torch
    >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
    >>> print(f"{rank_net_loss(scores, relevance):.4f} {lambda_rank_loss(scores, relevance):.4f}")
    0.6585 0.4591
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_choice, check_positive
from sodeep._core.grades import check_gain, check_grades, check_weight, scaled_gains
from sodeep._core.sort import ascending
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, optional, reduce_defined
from sodeep.losses._pairwise import LAMBDAS, items_below, mean_over_pairs, ndcg_bound

NEEDS = "two items of different relevance"


@loss_function(temperature=check_positive)
def rank_net_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    temperature: float = 1.0,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """RankNet: the logistic loss of every pair of different relevance.

    For a list with relevance y and scores s::

        mean over the pairs with y_i > y_j of log(1 + exp(-(s_i - s_j) / temperature))

    Each list counts the same, however many pairs it has. O(n^2) time, O(n) memory.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        relevance: (..., N), floating point or whole numbers; only their order counts.
        temperature: in units of the scores.
        weight: (..., N), at least 0: what the pairs count in which an item is the better one.

    Returns:
        A scalar, at least 0. A list is defined when two real items have different relevance.

    References:
        Burges, Shaked, Renshaw, Lazier, Deeds, Hamilton, Hullender. Learning to Rank using Gradient Descent. ICML 2005.

    Example:
        >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
        >>> print(f"{rank_net_loss(scores, relevance):.4f}")  # softplus(0.5), softplus(-0.2) and softplus(-0.7)
        0.6585
    """
    x, grades, real = check_grades(scores, relevance, where)
    weight = check_weight(weight, scores, where)
    values, defined = mean_over_pairs(x / temperature, items_below(grades, real), real, weight, "logistic")
    return reduce_defined(values, defined, scores, reduction, return_stats, NEEDS, "relevance")


class RankNetLoss(Loss[ListStats]):
    """Module form of `rank_net_loss`.

    Example:
        >>> RankNetLoss()
        RankNetLoss(temperature=1.0)
    """

    function = staticmethod(rank_net_loss)

    def __init__(self, *, temperature: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)


@loss_function(
    form=partial(check_choice, choices=LAMBDAS),
    gain=check_gain,
    temperature=check_positive,
    k=optional(partial(check_at_least, low=1)),
)
def lambda_rank_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    form: str = "lambdarank",
    k: int | None = None,
    gain: str = "exponential",
    temperature: float = 1.0,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """LambdaRank: the logistic loss of every pair, weighted by what its order is worth to nDCG.

    For a list with relevance y, scores s and gains g, of which IDCG is the best DCG::

        sum over the pairs with y_i > y_j of w_ij (g_i - g_j) / IDCG * log2(1 + exp(-(s_i - s_j) / temperature))

    With the current ranks r and the discount D(r) = 1 / log2(1 + r), which get no gradient,

    * ``form="lambdarank"``: ``w = |D(r_i) - D(r_j)|``, the change of nDCG when the two change places (Burges et al.);
    * ``form="ndcg2"``: ``w = D(|r_i - r_j|) - D(|r_i - r_j| + 1)``: with these weights held, the loss bounds a constant
      minus nDCG (NDCG-Loss2 of LambdaLoss, Wang et al.);
    * ``form="ndcg2++"``: the first plus 10 times the second.

    Tied scores have the mean weight over their orders, so that a model that starts from equal scores learns.
    O(n^2) time, O(n) memory.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        relevance: (..., N), grades of at least 0, floating point or whole numbers.
        form: "lambdarank", "ndcg2" or "ndcg2++".
        k: pairs of which neither is among the first k count nothing, and the IDCG is that at k; None = the whole list.
        gain: "exponential": g = 2^relevance - 1. "linear": the relevance itself.
        temperature: in units of the scores.
        weight: (..., N), at least 0: what the pairs count in which an item is the better one.

    Returns:
        A scalar, at least 0. A list is defined when two real items have different relevance.

    References:
        Burges, Ragno, Le. Learning to Rank with Nonsmooth Cost Functions. NIPS 2006.
        Wang, Li, Golbandi, Bendersky, Najork. The LambdaLoss Framework for Ranking Metric Optimization. CIKM 2018.

    Example:
        >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
        >>> print(f"{lambda_rank_loss(scores, relevance):.4f}")
        0.4591
    """
    x, grades, real = check_grades(scores, relevance, where, low=0)
    weight = check_weight(weight, scores, where)
    gains = scaled_gains(grades, gain)
    best = -ascending(-gains)[0]
    rank = torch.arange(1, x.shape[-1] + 1, dtype=gains.dtype, device=gains.device)
    ideal = (best / torch.log2(1 + rank)).masked_fill(rank > (k or torch.inf), 0).sum(-1, keepdim=True)
    gains = gains / ideal.masked_fill(ideal == 0, 1)
    below = items_below(grades, real)
    cut = x.shape[-1] if k is None else k
    values = ndcg_bound(x / temperature, below, real, real if weight is None else weight, gains, form, cut)
    defined = ((below > 0) & real).any(-1)
    return reduce_defined(values, defined, scores, reduction, return_stats, NEEDS, "relevance")


class LambdaRankLoss(Loss[ListStats]):
    """Module form of `lambda_rank_loss`.

    Example:
        >>> LambdaRankLoss(k=10)
        LambdaRankLoss(form='lambdarank', k=10, gain='exponential', temperature=1.0)
    """

    function = staticmethod(lambda_rank_loss)

    def __init__(
        self,
        *,
        form: str = "lambdarank",
        k: int | None = None,
        gain: str = "exponential",
        temperature: float = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(form=form, k=k, gain=gain, temperature=temperature, reduction=reduction)
