"""Kendall's tau as a loss, on any rank function.

Example:
    >>> import torch
    >>> from sodeep.ranks import laplace_rank
    >>> scores = torch.tensor([0.1, 0.7, 0.4], requires_grad=True)
    >>> kendall_loss(scores, torch.tensor([1, 2, 3]), rank_fn=laplace_rank).backward()
    >>> scores.grad[2] < 0  # the third should rise
    tensor(True)
"""

from __future__ import annotations

from torch import Tensor

from sodeep._core.checks import check_positive
from sodeep._core.grades import check_grades, check_weight
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, reduce_defined
from sodeep.losses._pairwise import items_below, mean_over_pairs
from sodeep.ranks import RankFunction, apply_rank_fn, check_rank_fn


@loss_function(rank_fn=check_rank_fn, tau=check_positive)
def kendall_loss(
    scores: Tensor,
    target: Tensor,
    *,
    rank_fn: RankFunction,
    tau: float = 0.05,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """The fraction of pairs in the wrong order, for Kendall's tau and for `pairwise_accuracy`.

    With the targets y and the ranks r = rank_fn(scores) of a list of n items::

        mean over the pairs with y_i > y_j of sigmoid((r_i - r_j) / (tau n))

    With exact ranks it is 1 - pairwise accuracy as `tau` goes to 0, which without ties is (1 - Kendall's tau) / 2.
    Beside the ranks O(n^2) time, O(n) memory.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        tau: how far apart ranks are told from each other, as a fraction of the real items of the list.
        weight: (..., n), at least 0: what the pairs count in which an item is the better one.

    Returns:
        A scalar, in (0, 1). A list is defined when two real items have different targets.

    Example:
        >>> import torch
        >>> from sodeep.ranks import exact_rank
        >>> kendall_loss(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([1, 2, 3]), rank_fn=exact_rank, tau=0.01)
        tensor(0.3333)
    """
    x, grades, real = check_grades(scores, target, where, "target")
    weight = check_weight(weight, scores, where)
    ranks = apply_rank_fn(rank_fn, x, where=None if where is None else real).to(x.dtype)
    height = -ranks / (tau * real.sum(-1, keepdim=True).clamp(min=1).to(x.dtype))
    values, defined = mean_over_pairs(height, items_below(grades, real), real, weight, "sigmoid")
    needs = "two items with different targets"
    return reduce_defined(values, defined, scores, reduction, return_stats, needs, "target")


class KendallLoss(Loss[ListStats]):
    """Module form of `kendall_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> KendallLoss(laplace_rank)
        KendallLoss(rank_fn=laplace_rank, tau=0.05)
    """

    function = staticmethod(kendall_loss)

    def __init__(self, rank_fn: RankFunction, *, tau: float = 0.05, reduction: str = "mean") -> None:
        super().__init__(rank_fn=rank_fn, tau=tau, reduction=reduction)
