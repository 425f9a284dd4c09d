"""Losses on ranks: Spearman, mean average precision and recall, on any rank function (SoDeep).

They optimise a metric that is a function of ranks through a differentiable rank function: Spearman for regression where
the order counts, mAP for multi-label classification, recall for retrieval.

Each takes ``rank_fn``, any callable from scores (..., n) to ranks (..., n), 1 = highest: a trained sorter,
`laplace_rank`, or your own. Where a loss says "rank of i", that is what it calls; the ranks of targets are exact.
Ranks are divided by the number of items, so that losses of lists of different lengths are comparable.

Source: Engilberge, Chevallier, Pérez, Cord. SoDeep: A Sorting Deep Net to Learn Ranking Loss Surrogates. CVPR 2019.

Example:
    >>> import torch
    >>> from sodeep.losses.rank import SpearmanLoss
    >>> from sodeep.ranks import laplace_rank
    >>> criterion = SpearmanLoss(laplace_rank)
    >>> scores = torch.tensor([0.1, 0.9, 0.4], requires_grad=True)
    >>> criterion(scores, torch.tensor([3.0, 2.0, 1.0])).backward()
    >>> scores.grad[0] < 0  # the first should rise
    tensor(True)
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.checks import check_at_least, check_choice, check_number, check_scores
from sodeep._core.lists import Lists, check_lists, check_target, masked_mean, warn_if_outputs_last
from sodeep._core.masks import any_of
from sodeep._core.precision import widened, working_dtype
from sodeep._core.sort import ordered_floats
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, reduce_defined, reduce_over_both
from sodeep.losses._chunks import by_list
from sodeep.ranks import RankFunction, apply_rank_fn, check_rank_fn, exact_rank


class SpearmanStats(NamedTuple):
    """Parts of a `spearman_loss`, detached."""

    total: int
    """Lists in the batch."""
    defined: Tensor
    """Lists that the rank term is the mean over."""
    rank: Tensor
    """The rank term."""
    value: Tensor
    """The value term, before its weight."""


def _check_regression(
    scores: Tensor, target: Tensor, where: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Checked scores, targets, floats in the order of the targets, and mask, each (Q, n); masked items are 0."""
    values, where = check_target(scores, target, where)
    x, y = scores.to(working_dtype(scores)), values.to(working_dtype(values))
    order = y if target.is_floating_point() else ordered_floats(target)
    if where is not None:
        x, y, order = (z.masked_fill(~where, 0) for z in (x, y, order))
    n = scores.shape[-1]
    return x.reshape(-1, n), y.reshape(-1, n), order.reshape(-1, n), None if where is None else where.reshape(-1, n)


def _rank_errors(scores: Tensor, target: Tensor, where: Tensor | None, rank_fn: RankFunction) -> tuple[Tensor, Tensor]:
    """The rank term of each list (Q,), and whether its targets have an order."""
    x, _, order, real = _check_regression(scores, target, where)
    ranks = apply_rank_fn(rank_fn, x, where=real)
    if real is None:
        n: Tensor | int = x.shape[-1]
        low = high = order
    else:
        n = real.sum(-1, keepdim=True).clamp(min=1)
        low, high = order.masked_fill(~real, torch.inf), order.masked_fill(~real, -torch.inf)
    error = ((ranks.to(x.dtype) - exact_rank(order, where=real).to(x.dtype)) / n).square()
    return masked_mean(error, real), low.amin(-1) < high.amax(-1)


def _value_errors(scores: Tensor, target: Tensor, where: Tensor | None, value_loss: str) -> tuple[Tensor, Tensor]:
    """The value term of each list (Q,), and whether it has a real item."""
    x, y, _, real = _check_regression(scores, target, where)
    gap = x - y.to(x.dtype)
    errors = masked_mean(gap.abs() if value_loss == "l1" else gap.square(), real)
    return errors, torch.ones_like(errors, dtype=torch.bool) if real is None else real.any(-1)


@loss_function(
    mean_over_lists=False,  # a list without a rank has a value term
    rank_fn=check_rank_fn,
    value_weight=partial(check_number, low=0),
    value_loss=partial(check_choice, choices=("l1", "mse")),
)
def spearman_loss(
    scores: Tensor,
    target: Tensor,
    *,
    rank_fn: RankFunction,
    where: Tensor | None = None,
    value_weight: float = 0.0,
    value_loss: str = "l1",
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, SpearmanStats]:
    """Mean squared difference between the ranks of the scores and those of the targets.

    For a list of n items::

        1/n sum_i ((rank_fn(scores)_i - exact_rank(target)_i) / n)^2   [+ value term]

    (the paper sums the squares). With exact ranks and no ties this is (1 - rho) (n^2 - 1) / (6 n^2), rho being
    Spearman's correlation. Equal targets have equal (average) ranks.

    Ranks do not depend on the scale of the scores. Where predictions should also be near the targets, or for the first
    epochs, add a value term: ``value_weight * mean |scores - target|`` ("l1") or the mean of the squares ("mse").

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., n) predictions. The last axis is the list: of a model with k outputs, (n, k), pass ``scores.T``
            and ``target.T``.
        target: same shape, floating point or whole numbers; only their order counts, except in the value term.
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest. Those of torchsort and fast-soft-sort count from the
            lowest: ``lambda scores: torchsort.soft_rank(-scores)``.
        value_weight: weight of the value term.
        value_loss: "l1" or "mse".
        reduction: "mean" or "none", as of all losses. With a value term a list without an order is defined by that term
            alone, and its rank term is 0.
        return_stats: also return `SpearmanStats`: the parts, and how many lists were defined.

    Returns:
        A scalar, at least 0. A list of fewer than two real items, or whose targets are all equal, has no order to learn
        and is left out of the rank term (not of the value term). Constant predictions give a finite loss and gradient,
        as far as `rank_fn` gives finite ones.

    References:
        Engilberge, Chevallier, Pérez, Cord. SoDeep: A Sorting Deep Net to Learn Ranking Loss Surrogates. CVPR 2019.

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> spearman_loss(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([1.0, 2.0, 3.0]), rank_fn=exact_rank)
        tensor(0.2222)
    """
    scores = widened(check_scores(scores))  # once: the gradients of both terms are rounded together
    lists = {"scores": scores, "target": target, "where": where}
    rank_errors, ordered = by_list(_rank_errors, {**lists, "rank_fn": rank_fn})
    warn_if_outputs_last(scores, where, "spearman_loss")
    if value_weight or return_stats:
        value_errors, valued = by_list(_value_errors, {**lists, "value_loss": value_loss})
        value_term = masked_mean(value_errors, valued)
    needs = "two items with different targets"
    # alpha, not a product: in torch.func.jacfwd the number would make float64 of float32
    if reduction == "mean":
        rank_term = reduce_defined(rank_errors, ordered, scores, needs=needs, other="target")
        loss = rank_term.add(value_term, alpha=value_weight) if value_weight else rank_term
    else:
        rank_term = masked_mean(rank_errors, ordered)
        values, defined = rank_errors, ordered
        if value_weight:  # a list without an order has a value term still
            values, defined = rank_errors.masked_fill(~ordered, 0).add(value_errors, alpha=value_weight), valued
        loss = reduce_defined(values, defined, scores, reduction, needs=needs, other="target")
    if not return_stats:
        return loss
    return loss, SpearmanStats(ordered.numel(), ordered.sum(), rank_term.detach(), value_term.detach())


class SpearmanLoss(Loss[SpearmanStats]):
    """Module form of `spearman_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> SpearmanLoss(laplace_rank, value_weight=0.1)
        SpearmanLoss(rank_fn=laplace_rank, value_weight=0.1, value_loss='l1')
    """

    function = staticmethod(spearman_loss)

    def __init__(
        self, rank_fn: RankFunction, *, value_weight: float = 0.0, value_loss: str = "l1", reduction: str = "mean"
    ) -> None:
        super().__init__(rank_fn=rank_fn, value_weight=value_weight, value_loss=value_loss, reduction=reduction)


def _ranks_and_length(rank_fn: RankFunction, lists: Lists) -> tuple[Tensor, Tensor | int]:
    """The ranks of the scores (Q, N), and how many real items each list has, at least 1."""
    if not lists.masked:
        return apply_rank_fn(rank_fn, lists.scores), lists.scores.shape[-1]
    real = lists.positive | lists.negative
    return apply_rank_fn(rank_fn, lists.scores, where=real), real.sum(-1, keepdim=True).clamp(min=1)


def _has_one_length(rank_fn: object) -> bool:
    """Whether `rank_fn`, or the one it wraps, takes lists of one length only."""
    while rank_fn is not None:
        if getattr(rank_fn, "seq_len", None) is not None:
            return True
        rank_fn = getattr(rank_fn, "rank_fn", None)
    return False


@loss_function(rank_fn=check_rank_fn, form=partial(check_choice, choices=("ap", "rank_sum")))
def map_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    rank_fn: RankFunction,
    where: Tensor | None = None,
    form: str = "ap",
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Mean average precision, from the ranks of the relevant items.

    For a list, with ``form="ap"`` or ``form="rank_sum"``::

        1 - mean over the relevant i of  (rank of i among the relevant) / (rank of i among all)
        mean over the relevant i of  (rank of i among all) / n

    In the first `rank_fn` gives both ranks; with exact ranks and no ties it is one minus exact average precision. The
    second is what SoDeep calls its mAP loss, the sum <f(y), y*> of the relevant items' ranks: the paper's value is the
    sum, over the lists, of this times the number of relevant items. It is a bound in spirit only: the last item matters
    as much as the first.

    For multi-label classification, as in the paper, a list is a class: pass ``scores.T`` and ``labels.T`` of scores and
    labels (images, classes).

    A rank function for lists of one length (one with a `seq_len`, such as the lstm sorter) cannot rank the relevant
    items alone. Their exact ranks then stand in the numerator, as constants: the gradient is that of the denominator.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        form: "ap" or "rank_sum".

    Returns:
        A scalar, in [0, 1) and (0, 1] with exact ranks; a soft or learned rank function can leave that range by its
        error.

    References:
        Engilberge, Chevallier, Pérez, Cord. SoDeep: A Sorting Deep Net to Learn Ranking Loss Surrogates. CVPR 2019.

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> scores, relevant = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([True, True, False])
        >>> map_loss(scores, relevant, rank_fn=exact_rank)  # 1 - (1/1 + 2/3) / 2
        tensor(0.1667)
        >>> map_loss(scores, relevant, rank_fn=exact_rank, form="rank_sum")  # (1/3 + 3/3) / 2
        tensor(0.6667)
    """
    lists = check_lists(scores, relevant, where)
    x, positive, *_ = lists
    ranks, length = _ranks_and_length(rank_fn, lists)
    if form == "rank_sum":
        terms = ranks / length
    else:
        one_length = _has_one_length(rank_fn)
        among_positives = exact_rank(x, positive) if one_length else apply_rank_fn(rank_fn, x, where=positive)
        # the ranks of masked items are 0, and 0 / 0 must not reach the gradient
        terms = 1 - among_positives / ranks.masked_fill(~positive, 1)
    return reduce_defined(masked_mean(terms, positive), any_of(positive), scores, reduction, return_stats)


class MAPLoss(Loss[ListStats]):
    """Module form of `map_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> images, labels = torch.tensor([[0.9, 0.1], [0.2, 0.3], [0.4, 0.7]]), torch.tensor([[1, 0], [0, 1], [0, 1]])
        >>> loss = MAPLoss(laplace_rank)(images.T, labels.T)  # one list per class
    """

    function = staticmethod(map_loss)

    def __init__(self, rank_fn: RankFunction, *, form: str = "ap", reduction: str = "mean") -> None:
        super().__init__(rank_fn=rank_fn, form=form, reduction=reduction)


def _weights_of_hinges(ranks: Tensor, lists: Lists, margin: float, hardest: int) -> tuple[Tensor, Tensor]:
    """What makes the mean over the hinges of `recall_loss` linear, once it is known which are active.

    The mean is the sum of weights times ranks, plus the margin times the fraction of the hinges that are active.

    Args:
        ranks: (Q, N), over the length of the list.
        lists: which items are relevant.
        margin: of the hinges.
        hardest: how many others, at most N.

    Returns:
        The weights (Q, N) and the fraction (Q,).
    """
    positive, negative = lists.positive, lists.negative
    # contiguous, or searchsorted warns
    others = torch.where(negative, ranks, torch.inf).contiguous()
    reach = torch.where(positive, margin + ranks, -torch.inf).contiguous()
    # the ranks of the hardest others, the best first; infinite where a list has fewer
    lowest = others.topk(hardest, largest=False).values.contiguous()
    found = lowest.isfinite().sum(-1, keepdim=True)
    pairs = (found * positive.sum(-1, keepdim=True)).clamp(min=1)
    # a relevant item has active hinges with so many of them, from the best on
    active = torch.searchsorted(lowest, reach)
    # each of the hardest is so in as many hinges as there are relevant items with more active ones than its place
    occurs = ranks.new_zeros(len(ranks), hardest + 1).scatter_add(-1, active, positive.to(ranks.dtype))
    hinges = occurs.flip(-1).cumsum(-1).flip(-1)[:, 1:]
    # others of one rank share the hinges, those that only just did not make it among the hardest too
    until = pad(hinges.cumsum(-1), (1, 0))
    first, last = torch.searchsorted(lowest, others), torch.searchsorted(lowest, others, right=True)
    worst = lowest.gather(-1, (found - 1).clamp(min=0))
    tied = (ranks == worst) & negative
    sharing = torch.where(tied, tied.sum(-1, keepdim=True), last - first).clamp(min=1)
    share = (until.gather(-1, last) - until.gather(-1, first)) / sharing
    weights = active.to(ranks.dtype) - share.masked_fill(~negative, 0)
    return weights / pairs, (active.sum(-1, keepdim=True, dtype=ranks.dtype) / pairs).squeeze(-1)


@loss_function(rank_fn=check_rank_fn, margin=partial(check_number, low=0), hardest=partial(check_at_least, low=1))
def recall_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    rank_fn: RankFunction,
    margin: float = 0.2,
    hardest: int = 1,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Hinge between the ranks of the relevant items and those of the hardest others (SoDeep's recall loss).

    For a list, with r = rank_fn(scores) / n::

        mean over relevant p of  max over other c of  max(0, margin + r_p - r_c)

    (in the paper, with one relevant item a list). The hardest others are those of the best rank; with `hardest` above 1
    the mean over so many of them is taken.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        margin: by how much of the list a relevant item should be ahead, as a fraction of its length, at least 0. The
            released code takes the same argument and never reads it: it computes margin = 1/n, which any correct order
            satisfies.
        hardest: how many others per list, at least 1. Memory is that of a few tensors of the scores for any number.

    Returns:
        A scalar in [0, 1 + margin): the mean over the lists with a relevant item and another.

    References:
        Engilberge, Chevallier, Pérez, Cord. SoDeep: A Sorting Deep Net to Learn Ranking Loss Surrogates. CVPR 2019.

    Example:
        >>> from sodeep.ranks import exact_rank
        >>> scores, relevant = torch.tensor([0.9, 0.8, 0.2, 0.1]), torch.tensor([False, True, False, False])
        >>> recall_loss(scores, relevant, rank_fn=exact_rank)  # 0.2 + 2/4 - 1/4
        tensor(0.4500)
    """
    lists = check_lists(scores, relevant, where)
    ranks, length = _ranks_and_length(rank_fn, lists)
    ranks = ranks / length
    if hardest == 1:
        first = ranks.masked_fill(~lists.negative, torch.inf).amin(-1, keepdim=True)  # ties share its gradient
        values = masked_mean((margin + ranks - first).relu(), lists.positive)
    else:
        weights, active = _weights_of_hinges(ranks.detach(), lists, margin, min(hardest, ranks.shape[-1]))
        values = (weights * ranks).sum(-1) + margin * active
    needs = "a relevant item and another"
    return reduce_over_both(values, lists, scores, reduction, return_stats, needs)


class RecallLoss(Loss[ListStats]):
    """Module form of `recall_loss`.

    Example:
        >>> from sodeep.ranks import laplace_rank
        >>> RecallLoss(laplace_rank)
        RecallLoss(rank_fn=laplace_rank, margin=0.2, hardest=1)
    """

    function = staticmethod(recall_loss)

    def __init__(
        self, rank_fn: RankFunction, *, margin: float = 0.2, hardest: int = 1, reduction: str = "mean"
    ) -> None:
        super().__init__(rank_fn=rank_fn, margin=margin, hardest=hardest, reduction=reduction)
