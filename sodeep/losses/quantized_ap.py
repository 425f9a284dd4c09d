"""Average precision from a histogram of the scores: quantised AP (AP_Q) and FastAP.

To make a rank differentiable, scores are counted in bins: each is divided between the two nearest bin centres, and
precision is read from the running sums of the histograms. A histogram takes two scatter-adds, whatever the number of
bins, and the gradient is in closed form. Made for long lists: time and memory are linear in their length. Differences
of scores within a bin are not resolved.

Sources: Revaud et al., ICCV 2019 (AP_Q); Cakir et al., CVPR 2019 (FastAP).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_bool, check_number
from sodeep._core.lists import check_lists
from sodeep._core.masks import any_of, as_bytes
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, check_range, loss_function, reduce_defined
from sodeep.losses._per_query import chunk_elements, one_node, per_query, with_self


@one_node("int num_bins, float low, float high, bool masked")
def _quantized_ap(
    scores: Tensor, positive: Tensor, num_bins: int, low: float, high: float, masked: bool
) -> tuple[Tensor, Tensor]:
    """One minus quantised AP and its gradient; `masked`: whether there may be masked items, at minus infinity."""
    rows = max(1, chunk_elements(scores.device) // max(scores.shape[1], 3 * num_bins))
    if scores.shape[0] <= rows:
        return _of_chunk(scores, positive, num_bins, low, high, masked)
    value, slope = scores.new_empty(scores.shape[0]), torch.empty_like(scores)
    for start in range(0, len(scores), rows):
        chunk = slice(start, start + rows)
        value[chunk], slope[chunk] = _of_chunk(scores[chunk], positive[chunk], num_bins, low, high, masked)
    return value, slope


def _of_chunk(
    s: Tensor, positive: Tensor, num_bins: int, low: float, high: float, masked: bool
) -> tuple[Tensor, Tensor]:
    last, gap = num_bins - 1, (high - low) / (num_bins - 1)
    relevant = as_bytes(positive)
    # a score lies between two centres: each histogram (other, relevant, masked items) gets its two weights
    steps_down = (high - s).div_(gap)
    clamped = steps_down.clamp(0, last)
    inside = steps_down.eq_(clamped)
    upper = clamped.floor().clamp_(max=last - 1).nan_to_num_(0.0)  # NaN goes on in its weight, not as an index
    to_lower = clamped.sub_(upper)
    slot = upper.add_(relevant, alpha=num_bins)
    if masked:
        slot = slot.add_(s == -torch.inf, alpha=2 * num_bins)
    slot = slot.long()
    h = s.new_zeros(s.shape[0], (2 + masked) * num_bins)
    h = h.scatter_add_(1, slot, 1 - to_lower).scatter_add_(1, slot + 1, to_lower)
    h_other, h_positive, *_ = torch.split(h, num_bins, 1)

    count = relevant.sum(1, keepdim=True, dtype=s.dtype).clamp_(min=1)
    seen_positive, seen = torch.stack([h_positive, h_other + h_positive]).cumsum_(2)
    seen = seen.clamp_(min=torch.finfo(s.dtype).tiny)
    precision = seen_positive / seen
    share = h_positive / count
    value = 1 - (precision * share).sum(1)

    # d AP / d h_m: bin m is part of the running sums of all later bins; a relevant item also adds recall in bin m
    by_seen = share / seen
    by_other, by_positive = _sum_from(torch.stack([-by_seen * precision, by_seen]))
    by_relevant = by_positive.add_(by_other).add_(precision / count)
    by_h = torch.cat([by_other, by_relevant, *[torch.zeros_like(by_other)] * masked], 1)
    by_step = (by_h[:, 1:] - by_h[:, :-1]).div_(gap)  # from the upper centre to the lower
    return value, by_step.gather(1, slot).mul_(inside)


def _sum_from(x: Tensor) -> Tensor:
    """Sums from each entry of the last axis to the end."""
    return x.flip(-1).cumsum_(-1).flip(-1)


@loss_function(
    check_range,
    in_closed_form=True,
    num_bins=partial(check_at_least, low=2),
    low=check_number,
    high=check_number,
    include_self=check_bool,
)
def quantized_ap_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    num_bins: int = 20,
    low: float = -1.0,
    high: float = 1.0,
    include_self: bool = False,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """One minus quantised AP (AP_Q): average precision of a softened histogram of the scores.

    For M bins with centres evenly from `high` down to `low`, gap = (high - low) / (M - 1), and the triangular kernel
    ``delta_m(s) = max(0, 1 - |s - centre_m| / gap)``::

        h_m, h+_m  = sum of delta_m(s_j) over all items, over the relevant ones
        AP_Q       = sum over m of  (h+_1 + ... + h+_m) / (h_1 + ... + h_m)  *  h+_m / number of relevant items

    The first and last bins are flat outwards: a score outside [low, high] belongs to the end bin and has no gradient.
    Equal scores count as at or above one another: AP_Q of scores at distinct centres is their exact AP, and an
    irrelevant item that shares a relevant one's bin costs as if it were before it.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        num_bins: M, at least 2. Time and memory hardly depend on it.
        low: centre of the last bin. The released code has [0, 1] and 25 bins, where a negative similarity gets no
            gradient; [-1, 1] and 20 bins are the paper's.
        high: centre of the first bin.
        include_self: count every query as one more relevant item of similarity 1 to itself, as the paper does.

    Returns:
        A scalar in [0, 1), up to rounding. A query whose items are all relevant has loss 0.

    Raises:
        NotImplementedError: when a second derivative is taken.

    References:
        Revaud, Almazán, Rezende, de Souza. Learning with Average Precision: Training Image Retrieval with a Listwise
        Loss. ICCV 2019; the derivatives are equations 7 to 10 of its supplement.

    Example:
        >>> scores = torch.tensor([0.9, 0.2, 0.4])
        >>> loss = quantized_ap_loss(scores, torch.tensor([False, True, False]), num_bins=25, low=0, high=1)
        >>> print(f"{loss:.4f}")
        0.7048
    """
    lists = check_lists(scores, relevant, where)
    items = with_self(lists) if include_self else lists
    values = per_query(_quantized_ap, items, num_bins, low, high, lists.masked)
    return reduce_defined(values, any_of(lists.positive), scores, reduction, return_stats)


class QuantizedAPLoss(Loss[ListStats]):
    """Module form of `quantized_ap_loss`.

    Example:
        >>> QuantizedAPLoss()
        QuantizedAPLoss(num_bins=20, low=-1.0, high=1.0, include_self=False)
    """

    function = staticmethod(quantized_ap_loss)

    def __init__(
        self,
        num_bins: int = 20,
        low: float = -1.0,
        high: float = 1.0,
        include_self: bool = False,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(num_bins=num_bins, low=low, high=high, include_self=include_self, reduction=reduction)


@loss_function(in_closed_form=True, num_bins=partial(check_at_least, low=1))
def fast_ap_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    num_bins: int = 10,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    r"""One minus FastAP: average precision from histograms of squared distance between unit vectors.

    With z = 2 - 2 s in [0, 4] the squared distance of unit vectors of cosine similarity s, soft histograms h, h+ of z
    on the L + 1 nodes 0, 4/L, ..., 4 (L = num_bins), and H, H+ their running sums::

        FastAP = sum over l of  h+_l H+_l / H_l  /  number of relevant items

    z falls evenly as s rises, so this is `quantized_ap_loss` on [-1, 1] with num_bins + 1 bins: the two papers,
    published in the same year, arrived at one function. Both are here for their names and their defaults.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N) cosine similarities; beyond [-1, 1] there is no gradient.
        num_bins: L, the number of intervals between nodes.

    Returns:
        A scalar in [0, 1), up to rounding.

    Raises:
        NotImplementedError: when a second derivative is taken.

    References:
        Cakir, He, Xia, Kulis, Sclaroff. Deep Metric Learning to Rank. CVPR 2019.

    Example:
        >>> scores, relevant = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([False, True, False])
        >>> bool(fast_ap_loss(scores, relevant) == quantized_ap_loss(scores, relevant, num_bins=11))
        True
    """
    lists = check_lists(scores, relevant, where)
    values = per_query(_quantized_ap, lists, num_bins + 1, -1.0, 1.0, lists.masked)
    return reduce_defined(values, any_of(lists.positive), scores, reduction, return_stats)


class FastAPLoss(Loss[ListStats]):
    """Module form of `fast_ap_loss`.

    Example:
        >>> FastAPLoss()
        FastAPLoss(num_bins=10)
    """

    function = staticmethod(fast_ap_loss)

    def __init__(self, num_bins: int = 10, *, reduction: str = "mean") -> None:
        super().__init__(num_bins=num_bins, reduction=reduction)
