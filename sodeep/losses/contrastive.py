"""Losses with a margin: contrastive loss on single pairs, triplet loss on a positive against a negative.

The contrastive loss fixes absolute similarities, the triplet loss only their order. Pairs that respect the margin cost
nothing, so what counts is which triplets are mined ("all", "semihard" or "hard").

Sources: Hadsell et al., CVPR 2006 (contrastive); Schroff et al., CVPR 2015, Hermans et al., 2017, and Faghri et al.,
BMVC 2018 (triplet).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sodeep._core.checks import check_choice, check_number, check_positive, compiling, read_number, readable
from sodeep._core.lists import Lists, check_lists, masked_mean
from sodeep._core.masks import any_of, as_bytes
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, reduce_defined, reduce_over_both


@loss_function(positive_margin=check_number, negative_margin=check_number)
def contrastive_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    positive_margin: float = 0.9,
    negative_margin: float = 0.6,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Pull positives above one similarity, push negatives below another.

    For a list, with means over the active hinges (0 for a side that has none)::

        mean_P [positive_margin - s]+  +  mean_N [s - negative_margin]+

    This is the calibration term of ROADMAP, whose margins on cosine similarities are the defaults. The classical loss
    on distances, D for positives and [m - D]+ for negatives, is ``positive_margin=0, negative_margin=-m`` on scores -D
    (Hadsell et al. square both).

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        positive_margin: a positive at least this similar costs nothing.
        negative_margin: a negative at most this similar costs nothing.

    Returns:
        A scalar, at least 0 up to rounding. The two sides do not need each other, so a list is defined as soon as it
        has a real item.

    References:
        Hadsell, Chopra, LeCun. Dimensionality Reduction by Learning an Invariant Mapping. CVPR 2006.
        Ramzi, Thome, Rambour, Audebert, Bitot. Robust and Decomposable Average Precision for Image Retrieval.
        NeurIPS 2021.

    Example:
        >>> scores = torch.tensor([[0.7, 0.95, 0.8, -0.3]])
        >>> relevant = torch.tensor([[True, True, False, False]])
        >>> contrastive_loss(scores, relevant)  # [0.9 - 0.7] + [0.8 - 0.6]; the two others are far enough
        tensor(0.4000)
    """
    lists = check_lists(scores, relevant, where)
    s, positive, negative, _ = lists
    # once it is known which hinges are active, their means are linear in the scores
    fixed = s.detach()
    near, far = (fixed > negative_margin) & negative, (fixed < positive_margin) & positive
    near, far = as_bytes(near), as_bytes(far)
    num_near, num_far = near.sum(-1, keepdim=True, dtype=s.dtype), far.sum(-1, keepdim=True, dtype=s.dtype)
    weights = near / num_near.clamp(min=1) - far / num_far.clamp(min=1)
    bounds = positive_margin * num_far.clamp(max=1) - negative_margin * num_near.clamp(max=1)
    values = (weights * s).sum(-1) + bounds.squeeze(-1)
    return reduce_defined(values, any_of(positive | negative), scores, reduction, return_stats, needs="a real item")


class ContrastiveLoss(Loss[ListStats]):
    """Module form of `contrastive_loss`.

    Example:
        >>> ContrastiveLoss()
        ContrastiveLoss(positive_margin=0.9, negative_margin=0.6)
    """

    function = staticmethod(contrastive_loss)

    def __init__(self, positive_margin: float = 0.9, negative_margin: float = 0.6, *, reduction: str = "mean") -> None:
        super().__init__(positive_margin=positive_margin, negative_margin=negative_margin, reduction=reduction)


MINING = ("all", "semihard", "hard")


FEW_POSITIVES = 16
"""Up to so many a list, going through them one by one is quicker than sorting."""


FEW_TRIPLETS = 2**16
"""Up to so many, they are gone through at once."""


def _active_triplets(lists: Lists, margin: float, semihard: bool) -> tuple[Tensor, Tensor]:
    """How many active triplets each list has (Q, 1), and in how many each item is (Q, N): minus that for positives.

    A triplet is active when s_p < s_n + margin, and semi-hard when s_n < s_p as well.
    """
    s, positive = lists.scores.detach().contiguous(), lists.positive  # searchsorted warns otherwise
    marked = torch.where(positive, s, float("inf"))
    most = s.shape[-1]
    if len(s) and readable(s):
        most = int(read_number(as_bytes(positive).sum(-1, dtype=torch.int32).max()))
    if not compiling() and most <= FEW_POSITIVES:  # a compiled graph would be for this number only
        rising, order = marked.topk(most, largest=False)
        above = s + margin
        if most * s.numel() <= FEW_TRIPLETS:
            active = (rising.unsqueeze(2) < above.unsqueeze(1)) & lists.negative.unsqueeze(1)  # (Q, positives, N)
            if semihard:
                active &= rising.unsqueeze(2) > s.unsqueeze(1)
            active = as_bytes(active)
            counts, count_n = active.sum(2, dtype=s.dtype), active.sum(1, dtype=s.dtype)
            return counts.sum(-1, keepdim=True), count_n.scatter_add_(-1, order, counts.neg())
        count_n, counts = torch.zeros_like(marked), torch.zeros_like(rising)
        for k in range(most):
            active = lists.negative & (rising[:, k : k + 1] < above)
            if semihard:
                active &= rising[:, k : k + 1] > s
            active = as_bytes(active)
            count_n += active
            counts[:, k] = active.sum(-1, dtype=s.dtype)
    else:
        rising, order = marked.sort(dim=-1)
        # A negative is active with a run of the positives: from `first` up to, not including, `last`.
        last = torch.searchsorted(rising, s + margin)
        if semihard:
            first = torch.searchsorted(rising, s, right=True)
            last = torch.maximum(first, last)  # at scores so large that s + margin is s
        else:
            first = torch.zeros_like(last)
        real = lists.negative.to(s.dtype)
        count_n = (last - first) * real
        # The same runs, counted by positive: +1 where a run begins, -1 where it ends, and a running sum.
        steps = s.new_zeros(s.shape[0], s.shape[1] + 1).scatter_add(-1, first, real).scatter_add(-1, last, -real)
        counts = steps.cumsum(-1)[:, :-1]
    # slots beyond the positives of a list hold infinity, with which nothing is active
    return counts.sum(-1, keepdim=True), count_n.scatter_add(-1, order, -counts)


@loss_function(margin=check_positive, mining=partial(check_choice, choices=MINING))
def triplet_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    margin: float = 0.2,
    mining: str = "all",
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Every positive above every negative by a margin, without ever making a list of triplets.

    For a list, the mean over its active triplets (p in P, n in N, hinge above zero)::

        [s_n - s_p + margin]+

    among

    * ``mining="all"``: all triplets (the mean over non-zero terms of Hermans et al., "batch all");
    * ``mining="semihard"``: the negative is further than the positive, but within the margin: s_p - margin < s_n < s_p
      (Schroff et al.: D_ap < D_an < D_ap + margin). Equal scores are not semi-hard;
    * ``mining="hard"``: for each positive the hardest negative, max_N s (Faghri et al., who take the sum). Equally hard
      negatives share the gradient.

    "all" and "semihard" take O(N log N) a list, or ``O(N |P|)`` where that is less, and O(N) memory.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N). The default margin is made for cosine similarities; FaceNet's is on squared distances of unit
            vectors, 2 - 2s, so its 0.2 is 0.1 on cosine similarities.
        margin: how far above; positive.
        mining: which triplets: "all", "semihard" or "hard".

    Returns:
        A scalar, at least 0 up to rounding. A list with P and N but no active triplet counts, with 0.

    References:
        Schroff, Kalenichenko, Philbin. FaceNet: A Unified Embedding for Face Recognition and Clustering. CVPR 2015.
        Hermans, Beyer, Leibe. In Defense of the Triplet Loss for Person Re-Identification. 2017.
        Faghri, Fleet, Kiros, Fidler. VSE++: Improving Visual-Semantic Embeddings with Hard Negatives. BMVC 2018.

    Example:
        >>> scores = torch.tensor([[0.8, 0.3, 0.7, 0.4]])
        >>> relevant = torch.tensor([[True, True, False, False]])
        >>> triplet_loss(scores, relevant)  # hinges 0.1, 0.6 and 0.3
        tensor(0.3333)
        >>> triplet_loss(scores, relevant, mining="semihard")  # 0.8 against 0.7
        tensor(0.1000)
        >>> triplet_loss(scores, relevant, mining="hard")  # 0.8 and 0.3 against 0.7
        tensor(0.3500)
    """
    lists = check_lists(scores, relevant, where)
    s, positive, negative, _ = lists
    if mining == "hard":
        hardest = s.masked_fill(~negative, torch.finfo(s.dtype).min / 4).amax(-1, keepdim=True)
        hinge = hardest - s + margin
        values = masked_mean(hinge, positive & ~(hinge <= 0))  # not "hinge > 0", which would leave NaN out
    else:
        # A sum of hinges is linear in the scores once it is known which are active. So all that is needed is in how
        # many active triplets each item is, and these counts are the gradient.
        active, counts = _active_triplets(lists, margin, semihard=mining == "semihard")
        weights = counts / active.clamp(min=1)
        values = (weights * s).sum(-1).add(active.squeeze(-1).clamp(max=1), alpha=margin)
    return reduce_over_both(values, lists, scores, reduction, return_stats)


class TripletLoss(Loss[ListStats]):
    """Module form of `triplet_loss`.

    Example:
        >>> TripletLoss(mining="hard")
        TripletLoss(margin=0.2, mining='hard')
    """

    function = staticmethod(triplet_loss)

    def __init__(self, margin: float = 0.2, mining: str = "all", *, reduction: str = "mean") -> None:
        super().__init__(margin=margin, mining=mining, reduction=reduction)
