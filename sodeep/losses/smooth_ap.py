"""Average precision and recall from soft pairwise comparisons: Smooth-AP, SupAP (ROADMAP) and recall@k.

To make a rank differentiable, it is written as a sum of comparisons "is item j above item i?", each softened to a
sigmoid or bounded from above. The losses optimise the retrieval metric itself, without margin or mining, and are at
their best with several relevant items a query.

Only the ranks of the relevant items matter, so (query, relevant item) pairs are visited a chunk at a time, and the
gradient is taken in closed form on the way: no Q x N x N tensor is built, no graph is stored, and memory is O(Q N).

Sources: Brown et al., ECCV 2020 (Smooth-AP); Ramzi et al., NeurIPS 2021 (SupAP); Patel et al., CVPR 2022 (recall@k).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_bool, check_number, check_positive, describe, is_whole
from sodeep._core.lists import check_lists, masked_mean
from sodeep._core.masks import any_of
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, optional, reduce_defined
from sodeep.losses._per_query import check_not_captured, chunk_elements, one_node, per_query, with_self


class _Pairs(NamedTuple):
    """A chunk of C (query, relevant item) pairs, whose `gap` and `positive` may be overwritten."""

    query: Tensor
    """(C,) the row of each pair."""
    item: Tensor
    """(C,) its relevant item i."""
    weight: Tensor
    """(C,) its weight in a mean over the relevant items of its query."""
    gap: Tensor
    """(C, N) s_j - s_i for every item j of the query; minus infinity where j does not compete: i itself, masked."""
    positive: Tensor
    """(C, N) 1 where j is relevant as well."""


def _relevant_pairs(positive: Tensor) -> Tensor:
    """The (query, relevant item) pairs of (Q, N) lists, (P, 2)."""
    check_not_captured(positive)
    return positive.nonzero()


def _pairs_in_chunks(scores: Tensor, positive: Tensor, pairs: Tensor) -> Iterator[_Pairs]:
    """What is needed of `_relevant_pairs`, in chunks."""
    ones = positive.to(scores.dtype)
    weight = 1 / ones.sum(1)
    rows = max(1, min(len(pairs), chunk_elements(scores.device) // scores.shape[1]))
    # fresh memory for every chunk would cost a quarter of the time, in page faults
    gaps, positives = scores.new_empty(2, rows, scores.shape[1])
    for chunk in torch.split(pairs, rows):
        query, item = chunk.unbind(1)
        gap = torch.index_select(scores, 0, query, out=gaps[: len(chunk)])
        gap.sub_(scores[query, item].unsqueeze(1)).scatter_(1, item.unsqueeze(1), -torch.inf)
        yield _Pairs(query, item, weight[query], gap, torch.index_select(ones, 0, query, out=positives[: len(chunk)]))


def _add_slope(slope: Tensor, pairs: _Pairs, by_gap: Tensor) -> None:
    """Add d value / d gap (C, N) to d value / d scores (Q, N): each gap pulls j up and i down."""
    slope.index_add_(0, pairs.query, by_gap)
    slope[pairs.query, pairs.item] -= by_gap.sum(1)  # a pair occurs once, so no two meet here


@one_node("float tau", counts=True)
def _smooth_ap(scores: Tensor, positive: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    value, slope = scores.new_zeros(scores.shape[0]), torch.zeros_like(scores)
    for pairs in _pairs_in_chunks(scores, positive, _relevant_pairs(positive)):
        above = pairs.gap.div_(tau).sigmoid_()
        rank_among_positives = 1 + (above * pairs.positive).sum(1)
        rank = 1 + above.sum(1)
        precision = rank_among_positives / rank
        value.index_add_(0, pairs.query, precision * pairs.weight)
        # d precision / d above_j = (1[j relevant] - precision) / rank, and d above / d gap = above (1 - above) / tau
        by_gap = pairs.positive.sub_(precision.unsqueeze(1)).mul_((pairs.weight / (tau * rank)).unsqueeze(1))
        _add_slope(slope, pairs, by_gap.mul_(above.addcmul_(above, above, value=-1)))
    return value, slope


@loss_function(in_closed_form=True, tau=check_positive, include_self=check_bool)
def smooth_ap_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    tau: float = 0.01,
    include_self: bool = False,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus Smooth-AP: average precision with every "j above i" softened to a sigmoid.

    For a query with relevant items P and other items N, D_ij = s_j - s_i and G(x) = sigmoid(x / tau)::

        rank+(i) = 1 + sum_{j in P, j != i} G(D_ij)
        AP       = mean over i in P of  rank+(i) / (rank+(i) + sum_{j in N} G(D_ij))

    Tied items count one half for each other. As tau falls to 0 the loss becomes 1 - AP, and the gradient vanishes.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        tau: temperature, in the units of the scores; the paper's value is for cosine similarities.
        include_self: count every query as one more relevant item of similarity 1 to itself, as the released code does.
            A loss so computed cannot exceed about 1 - 1 / (1 + number of relevant items), whatever the scores.

    Returns:
        A scalar in [0, 1), up to rounding. A query whose items are all relevant has loss 0.

    Raises:
        NotImplementedError: when a second derivative is taken.

    References:
        Brown, Xie, Kalogeiton, Zisserman. Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval. ECCV 2020.
        The gradient: Bleeker, appendix on the derivative of Smooth-AP.

    Example:
        >>> scores = torch.tensor([0.9, 0.2, 0.4], requires_grad=True)
        >>> loss = smooth_ap_loss(scores, torch.tensor([False, True, True]), tau=0.1)
        >>> print(f"{loss:.4f}")
        0.4086
        >>> loss.backward()
        >>> bool(scores.grad[0] > 0)  # the irrelevant item should go down
        True
    """
    lists = check_lists(scores, relevant, where)
    items = with_self(lists) if include_self else lists
    ap = per_query(_smooth_ap, items, tau)
    return reduce_defined(1 - ap, any_of(lists.positive), scores, reduction, return_stats)


class SmoothAPLoss(Loss[ListStats]):
    """Module form of `smooth_ap_loss`.

    Example:
        >>> SmoothAPLoss(tau=0.1)
        SmoothAPLoss(tau=0.1, include_self=False)
    """

    function = staticmethod(smooth_ap_loss)

    def __init__(self, tau: float = 0.01, include_self: bool = False, *, reduction: str = "mean") -> None:
        super().__init__(tau=tau, include_self=include_self, reduction=reduction)


def _sup_ap_offset(tau: float, delta: float) -> float:
    """Where the curved part of the bound ends."""
    return 0.5 + 1 / (1 + math.exp(-delta / tau))


@one_node("float tau, float rho, float delta, float offset", counts=True)
def _sup_ap(
    scores: Tensor, positive: Tensor, tau: float, rho: float, delta: float, offset: float
) -> tuple[Tensor, Tensor]:
    value, slope = scores.new_zeros(scores.shape[0]), torch.zeros_like(scores)
    for pairs in _pairs_in_chunks(scores, positive, _relevant_pairs(positive)):
        rank_among_positives = 1 + ((1 + pairs.gap.sign()) / 2 * pairs.positive).sum(1)
        gap = torch.where(pairs.positive.bool(), -torch.inf, pairs.gap)  # from here on, to the irrelevant items
        curve = torch.sigmoid(gap.clamp(max=delta) / tau)
        ahead = gap.sign().clamp_(min=0)
        over = gap.sub_(delta).clamp_(min=0)
        far = over.sign()
        bound = curve + 0.5 * ahead + rho * over + (offset - _sup_ap_offset(tau, delta)) * far
        rank = rank_among_positives + bound.sum(1)
        precision = rank_among_positives / rank
        value.index_add_(0, pairs.query, precision * pairs.weight)
        # only the bound moves: d precision / d bound = -precision / rank
        by_gap = curve.addcmul_(curve, curve, value=-1).div_(tau)
        by_gap += far * (rho - by_gap)
        _add_slope(slope, pairs, by_gap.mul_((-precision / rank * pairs.weight).unsqueeze(1)))
    return value, slope


@loss_function(
    in_closed_form=True,
    tau=check_positive,
    rho=check_positive,
    delta=check_positive,
    offset=optional(check_number),
    calibration=partial(check_number, low=0),
    positive_margin=check_number,
    negative_margin=check_number,
    include_self=check_bool,
)
def sup_ap_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    offset: float | None = None,
    calibration: float = 1.0,
    positive_margin: float = 0.9,
    negative_margin: float = 0.6,
    include_self: bool = False,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """ROADMAP: one minus SupAP, an upper bound of 1 - AP, plus a calibration of the scores.

    For a query with relevant items P and other items N, and D_ij = s_j - s_i::

        rank+(i) = 1 + sum_{j in P, j != i} [D_ij > 0]             the true count: no gradient among relevant items
        rank-(i) = sum_{j in N} B(D_ij)                            B bounds the step function from above:
        B(d)     = sigmoid(d / tau)                if d <= 0
                   1/2 + sigmoid(d / tau)          if 0 < d <= delta
                   rho (d - delta) + offset        if d > delta
        SupAP    = mean over i in P of rank+(i) / (rank+(i) + rank-(i))
        loss     = 1 - SupAP + calibration * (mean_P [positive_margin - s]_+ + mean_N [s - negative_margin]_+)

    An irrelevant item far above a relevant one keeps a gradient (slope rho), where that of Smooth-AP vanishes. B jumps
    from 1/2 to 1 at d = 0, as it must to lie above the step. Tied items count one half for each other.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the defaults.
        tau: temperature of the sigmoid.
        rho: slope of the straight part.
        delta: where the straight part begins.
        offset: height at which it begins. None: 1/2 + sigmoid(delta / tau), where the curved part ends, so that B is
            increasing. The released configurations have 1.44, which lets B drop by 0.05 at delta.
        calibration: weight of the calibration; 0 is SupAP alone. The released configurations have 1. The released code
            averages over those pairs of the whole batch that violate a margin; here, as in the paper, over the relevant
            and over the irrelevant items of the query.
        positive_margin: relevant items should score at least this.
        negative_margin: irrelevant items should score at most this.
        include_self: count every query as one more relevant item of similarity 1 to itself, as the released code does.

    Returns:
        A scalar, at least 0.

    Raises:
        NotImplementedError: when a second derivative is taken.

    References:
        Ramzi, Thome, Rambour, Audebert, Bitot. Robust and Decomposable Average Precision for Image Retrieval.
        NeurIPS 2021.

    Example:
        >>> scores, relevant = torch.tensor([0.7, 0.95, 0.2]), torch.tensor([False, True, False])
        >>> print(f"{sup_ap_loss(scores, relevant, calibration=0):.4f} {sup_ap_loss(scores, relevant):.4f}")
        0.0000 0.0500
    """
    if offset is None:
        offset = _sup_ap_offset(tau, delta)
    lists = check_lists(scores, relevant, where)
    items = with_self(lists) if include_self else lists
    loss = 1 - per_query(_sup_ap, items, tau, rho, delta, offset)
    if calibration:
        loss = loss + calibration * (
            masked_mean((positive_margin - lists.scores).clamp(min=0), lists.positive)
            + masked_mean((lists.scores - negative_margin).clamp(min=0), lists.negative)
        )
    return reduce_defined(loss, any_of(lists.positive), scores, reduction, return_stats)


class SupAPLoss(Loss[ListStats]):
    """Module form of `sup_ap_loss`.

    Example:
        >>> SupAPLoss(calibration=0.5)
        SupAPLoss(tau=0.01, rho=100.0, delta=0.05, offset=None, calibration=0.5, ...
    """

    function = staticmethod(sup_ap_loss)

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        offset: float | None = None,
        calibration: float = 1.0,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        include_self: bool = False,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(
            tau=tau,
            rho=rho,
            delta=delta,
            offset=offset,
            calibration=calibration,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            include_self=include_self,
            reduction=reduction,
        )


@one_node("int[] ks, float tau_rank, float tau_k", counts=True)
def _recall_at_k(
    scores: Tensor, positive: Tensor, ks: list[int], tau_rank: float, tau_k: float
) -> tuple[Tensor, Tensor]:
    every = _relevant_pairs(positive)
    query = every[:, 0]
    above = [torch.sigmoid(pairs.gap / tau_rank).sum(1) for pairs in _pairs_in_chunks(scores, positive, every)]
    rank = 1 + torch.cat([scores.new_zeros(0), *above])
    count = positive.sum(1)
    value, by_rank = scores.new_zeros(scores.shape[0]), torch.zeros_like(rank)
    for k in ks:
        hits = torch.sigmoid((k - rank) / tau_k)
        total = torch.zeros_like(value).index_add_(0, query, hits)
        most = count.clamp(min=1, max=k) * len(ks)
        value += total.clamp(max=k) / most
        by_rank -= hits * (1 - hits) / tau_k * ((total < k) / most)[query]
    slope, start = torch.zeros_like(scores), 0
    for pairs in _pairs_in_chunks(scores, positive, every):
        sigmoid = torch.sigmoid(pairs.gap / tau_rank)
        weight = by_rank[start : start + len(sigmoid)].unsqueeze(1) / tau_rank
        _add_slope(slope, pairs, sigmoid.addcmul_(sigmoid, sigmoid, value=-1).mul_(weight))
        start += len(sigmoid)
    return value, slope


def _check_cuts(k: int | Iterable[int], name: str) -> int | tuple[int, ...]:
    """One cut-off, or several."""
    if is_whole(k):
        return check_at_least(k, 1, name)  # type: ignore[arg-type]
    cuts = tuple(k) if isinstance(k, Iterable) and getattr(k, "ndim", None) != 0 else ()  # 0-d arrays only look it
    if not cuts:
        raise ValueError(f"`{name}` must be a whole number of at least 1, or several, got {describe(k)}.")
    return tuple(check_at_least(cut, 1, name) for cut in cuts)


@loss_function(in_closed_form=True, k=_check_cuts, tau_rank=check_positive, tau_k=check_positive)
def recall_at_k_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    k: int | Iterable[int] = (1, 2, 4, 8, 16),
    tau_rank: float = 0.01,
    tau_k: float = 1.0,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus a smooth recall@k, averaged over several k.

    For a query with relevant items P among its items::

        r_i      = 1 + sum_{j != i} sigmoid((s_j - s_i) / tau_rank)
        recall@k = min(k, sum_{i in P} sigmoid((k - r_i) / tau_k)) / min(k, |P|)

    An item at rank k counts one half: with perfect scores the loss is not 0 but a constant that depends on k and
    ``|P|``.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N), the query itself left out. (The released code leaves it among the competitors, where it is
            always first: all its ranks are one too large.)
        k: one or several cut-offs, each at least 1; the mean over them is taken.
        tau_rank: temperature of the ranks, in the units of the scores.
        tau_k: temperature of the cut, in ranks.

    Returns:
        A scalar in [0, 1].

    Raises:
        NotImplementedError: when a second derivative is taken.

    References:
        Patel, Tolias, Matas. Recall@k Surrogate Loss with Large Batches and Similarity Mixup. CVPR 2022.

    Example:
        >>> scores, relevant = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([False, True, False])
        >>> print(f"{recall_at_k_loss(scores, relevant, k=1):.4f} {recall_at_k_loss(scores, relevant, k=3):.4f}")
        0.8808 0.5000
    """
    ks = [k] if isinstance(k, int) else list(k)
    lists = check_lists(scores, relevant, where)
    recall = per_query(_recall_at_k, lists, ks, tau_rank, tau_k)
    return reduce_defined(1 - recall, any_of(lists.positive), scores, reduction, return_stats)


class RecallAtKLoss(Loss[ListStats]):
    """Module form of `recall_at_k_loss`.

    Example:
        >>> RecallAtKLoss(k=(1, 10))
        RecallAtKLoss(k=(1, 10), tau_rank=0.01, tau_k=1.0)
    """

    function = staticmethod(recall_at_k_loss)

    def __init__(
        self,
        k: int | Iterable[int] = (1, 2, 4, 8, 16),
        tau_rank: float = 0.01,
        tau_k: float = 1.0,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(k=k, tau_rank=tau_rank, tau_k=tau_k, reduction=reduction)
