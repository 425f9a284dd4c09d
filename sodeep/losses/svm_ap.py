"""The loss of the support vector machine for average precision: a convex bound of 1 - AP, with an exact maximum.

The oldest loss made for average precision, and the one that the SoDeep poster compares with. It does not soften a rank:
it looks for the ranking that the scores favour most for its fault, and lowers their preference for it.

Source: Yue, Finley, Radlinski, Joachims, SIGIR 2007.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sodeep._core.checks import check_positive
from sodeep._core.lists import check_lists
from sodeep._core.sort import ascending, runs
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, reduce_defined
from sodeep.losses._per_query import check_not_captured, chunk_elements, one_node, per_query
from sodeep.losses._sums import bound


@one_node("float scale", counts=True)
def _svm_ap(scores: Tensor, positive: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The loss and its slope, in tiles of some negatives of some lists by all positives."""
    value, slope = scores.new_zeros(scores.shape[0]), torch.zeros_like(scores)
    if not len(scores):
        return value, slope
    negative = ~positive & (scores != -torch.inf)  # which masked items have
    s = bound(scale * scores)
    P, order_p, s_p = _highest_first(s, positive)
    N, order_n, s_n = _highest_first(s, negative)
    each = 2 / (P * N).clamp(min=1).to(s.dtype)
    k, j = (torch.arange(1, x.shape[1] + 1, device=s.device) for x in (s_p, s_n))
    real_p, real_n = k <= P, j <= N
    above_p, above_n = torch.zeros_like(s_p), torch.zeros_like(s_n)  # in how many wrong pairs each item is
    columns = max(1, min(len(j), chunk_elements(s.device) // len(k)))
    rows = max(1, chunk_elements(s.device) // (columns * len(k)))
    for top in range(0, len(s), rows):
        for left in range(0, len(j), columns):
            q, of = slice(top, top + rows), slice(left, left + columns)
            place = j[of, None]
            # what it adds to 1 - AP - (score of the ranking) to have the j-th negative above the k-th positive, too
            added = k / ((place + k) * (place + k - 1)) / P[q, :, None].clamp(min=1).to(s.dtype)
            added = added - each[q, :, None] * (s_p[q, None, :] - s_n[q, of, None])
            real = real_p[q, None, :] & real_n[q, of, None]
            best, first = added.masked_fill_(~real, 0).flip(-1).cumsum(-1).flip(-1).max(-1, keepdim=True)
            value[q] += best.clamp(min=0).sum((1, 2))
            wrong = real & (best > 0) & (k > first)
            above_p[q] += wrong.sum(1)
            above_n[q, of] = wrong.sum(2).to(s.dtype)
    slope.scatter_add_(1, order_p, -scale * each * _shared(above_p, s_p))
    slope.scatter_add_(1, order_n, scale * each * _shared(above_n, s_n))
    return value.masked_fill(scores.isnan().any(1), torch.nan), slope


def _highest_first(s: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the items on one side: how many (Q, 1), where they are and their scores (Q, most of any list)."""
    check_not_captured(s)
    count = side.sum(1, keepdim=True)
    most = max(1, int(count.max()))
    falling, order = ascending((-s).masked_fill(~side, torch.inf))
    return count, order[:, :most], -falling[:, :most]


def _shared(count: Tensor, ordered: Tensor) -> Tensor:
    """Equal scores share what they have: of their orders each is as good."""
    begin, end = runs(ordered)
    until = torch.nn.functional.pad(count.cumsum(-1), (1, 0))
    return (until.gather(1, end) - until.gather(1, begin)) / (end - begin)


@loss_function(in_closed_form=True, scale=check_positive)
def svm_ap_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    scale: float = 1.0,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """The structural hinge loss of average precision, a bound of 1 - AP from above that is convex in the scores.

    For a list with relevant items P and others N, the maximum over all rankings r of its items of::

        1 - AP(r)  -  2 scale / (|P| |N|)  sum of (s_p - s_n) over the pairs p, n that r has in the wrong order

    Within P and within N the ranking is best by score, and then each other item has a best place of its own, whatever
    the places of the rest: the maximum is exact, in ``O(n log n + |P| |N|)`` time and a fixed amount of memory beside
    the scores. The weight of a pair is ``2 scale / (|P| |N|)`` where that ranking has it in the wrong order, and 0
    elsewhere. The loss is 0 only when every relevant item is above every other by a margin, which grows with ``|N|``.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N), of any range, as of a linear scorer.
        scale: what the scores are multiplied by, above 0. A scorer of any range learns it; on cosine similarities the
            loss of a longer list needs a larger one, 10 or more.

    Returns:
        A scalar, at least 1 - AP. A query whose items are all relevant has loss 0.

    Raises:
        NotImplementedError: when a second derivative is taken.

    References:
        Yue, Finley, Radlinski, Joachims. A Support Vector Method for Optimizing Average Precision. SIGIR 2007;
        the maximum is their algorithm 2.

    Example:
        >>> scores, relevant = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([False, True, False])
        >>> svm_ap_loss(scores, relevant)  # 2.0 above 3.0 has 1 - AP = 1/2, at a price of 1
        tensor(0.)
        >>> svm_ap_loss(scores, relevant, scale=0.01)  # both above it: 1 - 1/3 - (0.01 + 0.02)
        tensor(0.6367)
    """
    lists = check_lists(scores, relevant, where)
    return reduce_defined(per_query(_svm_ap, lists, scale), lists.positive.sum(1) > 0, scores, reduction, return_stats)


class SVMAPLoss(Loss[ListStats]):
    """Module form of `svm_ap_loss`.

    Example:
        >>> SVMAPLoss(scale=10)
        SVMAPLoss(scale=10)
    """

    function = staticmethod(svm_ap_loss)

    def __init__(self, scale: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(scale=scale, reduction=reduction)
