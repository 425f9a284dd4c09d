"""Metrics of retrieval, where an item is relevant or not: average precision, recall, hit rate, reciprocal rank.

What all metrics share is in `sodeep.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.checks import (
    check_at_least,
    check_choice,
    check_device,
    check_finite,
    check_scores,
    check_where,
    describe,
    readable,
)
from sodeep._core.precision import full_precision, wide_dtype, working_dtype
from sodeep.groups import GroupIds
from sodeep.metrics._per_list import Order, chance_of_none, check_k, finish, in_chunks, metric, per_list, per_query


@metric
def average_precision(
    scores: Tensor,
    relevant: Tensor,
    k: int | None = None,
    where: Tensor | None = None,
    *,
    divisor: str = "min",
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Average precision: the mean, over the relevant items, of the precision at each.

    For a list with R relevant items::

        AP = 1/R * sum over relevant i of (relevant items at or above i) / (items at or above i)

    This is the step-wise sum that scikit-learn's `average_precision_score` takes, not the trapezoidal one of the Oxford
    and Paris benchmarks. With `k`, relevant items below the first k count as missed.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: cut; None = the whole list.
        divisor: what the sum is divided by. "min": min(k, R), so that the best possible order has 1.
            "relevant": R, all relevant items, so that a cut below R cannot reach 1.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    Example:
        >>> scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0])
        >>> relevant = torch.tensor([1, 0, 1, 0, 0, 1, 1])
        >>> average_precision(scores, relevant, k=3)  # (1 + 2/3) / 3
        tensor(0.5556)
        >>> average_precision(scores, relevant, k=3, divisor="relevant")  # (1 + 2/3) / 4
        tensor(0.4167)
    """
    check_choice(divisor, ("min", "relevant"), "divisor")
    k = check_k(k, scores)

    def ap(order: Order) -> Tensor:
        best = order.total if divisor == "relevant" else order.total.clamp(max=k)
        return _precision_sum(order, order.total.new_full(order.total.shape, k)) / best

    return per_query(ap, "average_precision", scores, relevant, where, chunk_size)


@metric
def trapezoidal_ap(
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Average precision of the Oxford and Paris benchmarks: the area under the precision-recall curve, by trapezoids.

    The precision at a relevant item is the mean of that just above it and that at it. For a list with R relevant
    items, r_i the rank of i and h_i the relevant items at or above it::

        AP = 1/R * sum over relevant i of ((h_i - 1)/(r_i - 1) + h_i/r_i) / 2

    where 0/0 counts as 1. It differs from `average_precision`, and published figures of these benchmarks are this one;
    `where` leaves out their junk images. A group of tied items is one trapezoid, whatever the order in it; the
    published code takes ties in their order in the list.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    References:
        Radenović, Iscen, Tolias, Avrithis, Chum. Revisiting Oxford and Paris: large-scale image retrieval benchmarking.
        CVPR 2018.

    Example:
        >>> scores = torch.tensor([3.0, 2.0, 1.0])
        >>> trapezoidal_ap(scores, torch.tensor([False, True, True]))  # ((0/1 + 1/2)/2 + (1/2 + 2/3)/2) / 2
        tensor(0.4167)
    """

    def area(order: Order) -> Tensor:
        above, through = (count.to(wide_dtype(count)) for count in (order.above, order.through))
        hits_above = torch.where(order.above > 0, order.hits.gather(-1, (order.above - 1).clamp(min=0)), 0)
        before = torch.where(order.above > 0, hits_above / above.clamp(min=1), 1.0)
        at = order.hits.gather(-1, order.through - 1) / through
        return (order.relevant * (before + at) / 2).sum(-1) / order.total

    return per_query(area, "trapezoidal_ap", scores, relevant, where, chunk_size)


@metric
def map_at_r(
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """MAP@R: average precision cut at R, the number of relevant items of the list, divided by R.

    For a list with R relevant items::

        MAP@R = 1/R * sum over relevant i among the first R of the precision at i

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [0, 1], at most the R-precision. NaN for a list without a relevant item.

    References:
        Musgrave, Belongie, Lim. A Metric Learning Reality Check. ECCV 2020.

    Example:
        >>> map_at_r(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 0, 0, 1]))
        tensor(0.5000)
    """

    def cut_at_r(order: Order) -> Tensor:
        return _precision_sum(order, order.total) / order.total

    return per_query(cut_at_r, "map_at_r", scores, relevant, where, chunk_size)


@metric
def r_precision(
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """R-precision: the fraction of relevant items among the first R, R being the number of relevant items of the list.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    Example:
        >>> r_precision(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 0, 0, 1]))
        tensor(0.5000)
    """

    def fraction_of_first_r(order: Order) -> Tensor:
        return order.hits_within(order.total) / order.total

    return per_query(fraction_of_first_r, "r_precision", scores, relevant, where, chunk_size)


@metric
def precision_at_k(
    scores: Tensor,
    relevant: Tensor,
    k: int,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Precision@k: the fraction of the first k items that are relevant.

    It is `P_k` of trec_eval: divided by k, where the list is shorter too, and 0 where nothing is relevant.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: the cut, at least 1.

    Returns:
        (...), in [0, 1]. NaN for a list without a real item.

    Example:
        >>> precision_at_k(torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 1, 0]), k=2)
        tensor(0.5000)
    """
    k = check_k(k, scores)

    def precision(order: Order) -> Tensor:
        return order.hits_within(order.total.new_full(order.total.shape, k)) / k

    return per_query(precision, "precision_at_k", scores, relevant, where, chunk_size, needs="an item")


@metric
def recall_at_k(
    scores: Tensor,
    relevant: Tensor,
    k: int,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Recall@k of information retrieval: the fraction of the relevant items that are among the first k.

    Not what metric learning and cross-modal retrieval call R@k: that is `hit_rate_at_k`, in `sodeep compare` too. With
    one relevant item a list they are the same; with R of them the recall@1 is at most 1/R.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: the cut, at least 1; beyond the list it counts the whole list.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    Example:
        >>> recall_at_k(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 0, 0, 1]), k=1)
        tensor(0.5000)
    """
    k = check_k(k, scores)

    def recall(order: Order) -> Tensor:
        return order.hits_within(order.total.new_full(order.total.shape, k)) / order.total

    return per_query(recall, "recall_at_k", scores, relevant, where, chunk_size)


@metric
def hit_rate_at_k(
    scores: Tensor,
    relevant: Tensor,
    k: int,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Hit rate@k: 1 if any relevant item is among the first k, else 0.

    What metric learning, cross-modal retrieval and the reports of `sodeep compare` call R@k (recall@k). The fraction of
    the relevant items among the first k is `recall_at_k`.

    Where tied items are cut at k: the chance of a hit in a random order of them.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: the cut, at least 1; beyond the list it counts the whole list.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    Example:
        >>> hit_rate_at_k(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([0, 1, 0, 1]), k=2)
        tensor(1.)
    """
    k = check_k(k, scores)

    def chance_that_the_first_hits(values: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        real = positive | negative
        values = values.masked_fill(~real, -torch.inf)
        first = (values == values.amax(-1, keepdim=True)) & real
        return (first & positive).sum(-1) / first.sum(-1).to(wide_dtype(values))

    if k == 1:  # a maximum, where other cuts need the order
        return per_list(chance_that_the_first_hits, "hit_rate_at_k", scores, relevant, where, chunk_size)

    def chance_of_a_hit(order: Order) -> Tensor:
        above, tied, hits_above, hits_tied = order.group_at((order.real.clamp(max=k) - 1).clamp(min=0))
        taken = order.real.clamp(max=k) - above
        return torch.where(hits_above > 0, 1, 1 - chance_of_none(tied, hits_tied, taken))

    return per_query(chance_of_a_hit, "hit_rate_at_k", scores, relevant, where, chunk_size)


@metric
def median_rank(
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Rank of the first relevant item of each list, whose median over the queries is the "Med r" of retrieval papers.

    One value per list like every metric here: the figure that papers print is ``median_rank(...).nanmedian()``.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), at least 1, 1 = best; where relevant items are tied with others, the rank expected of the first of them
        in a random order: a + (n + 1)/(r + 1) for r relevant among n tied ones below a others. NaN for a list without
        a relevant item.

    Example:
        >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.3, 0.8, 0.1], [0.5, 0.6, 0.7]])
        >>> ranks = median_rank(scores, torch.eye(3, dtype=torch.bool))
        >>> ranks
        tensor([1., 1., 1.])
        >>> ranks.nanmedian()
        tensor(1.)
    """

    def first_rank(order: Order) -> Tensor:
        above, tied, _, hits_tied = order.group_at(order.relevant.int().argmax(-1))
        return above + (tied + 1) / (hits_tied.to(wide_dtype(scores)) + 1)

    return per_query(first_rank, "median_rank", scores, relevant, where, chunk_size)


@metric
def reciprocal_rank(
    scores: Tensor,
    relevant: Tensor,
    k: int | None = None,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Reciprocal rank of the first relevant item, whose mean over the queries is the MRR.

    For a list::

        RR@k = 1 / (rank of the first relevant item), 0 if that is beyond k

    Where it is tied with others: the mean over their orders. It is `recip_rank` of trec_eval, which has 0 for a list
    without a relevant item.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: cut; None = the whole list.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    Example:
        >>> reciprocal_rank(torch.tensor([0.9, 0.2, 0.4]), torch.tensor([0, 1, 1]))
        tensor(0.5000)
    """
    k = check_k(k, scores)

    def first(order: Order) -> Tensor:
        above, tied, _, hits = (
            x.unsqueeze(-1).to(wide_dtype(scores)) for x in order.group_at(order.relevant.int().argmax(-1))
        )
        m = torch.arange(order.relevant.shape[-1], device=above.device)
        left = (tied - m).clamp(min=1)  # of the group, after m of its items that were not relevant
        none_yet = pad((1 - hits / left).clamp(min=0).cumprod(-1), (1, -1), value=1.0)
        chance = none_yet * hits / left * ((m < tied) & (above + m < k))
        return (chance / (above + m + 1)).sum(-1)

    return per_query(first, "reciprocal_rank", scores, relevant, where, chunk_size)


@full_precision
@torch.no_grad()
def pmrp(
    scores: Tensor,
    query_codes: Tensor,
    gallery_codes: Tensor,
    zetas: Sequence[int] = (0, 1, 2),
    where: Tensor | None = None,
    *,
    chunk_size: int | None = None,
) -> Tensor:
    """Plausible-match R-precision: relevance is defined by class codes instead of by pairs.

    An item is a plausible match of a query if their codes differ in at most zeta places; the value is the R-precision
    with those as the relevant items, averaged over the zetas. In the published figures on COCO
    the codes are the 80 object categories of the images, spread over 90 places, and a caption has its image's code.
    With relevance matrices of your own, average `r_precision` over them.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        query_codes: (Q, C), boolean or 0 and 1.
        gallery_codes: (N, C), boolean or 0 and 1.
        zetas: how many places may differ, one or more.

    Returns:
        (Q,), in [0, 1]: the mean over the zetas at which a query has a plausible match (all of them, if the gallery
        holds the query's own code). NaN for a query without any.

    Raises:
        ValueError: codes hold more than 0 and 1, or do not fit the scores.

    References:
        Chun, Oh, de Rezende, Kalantidis, Larlus. Probabilistic Embeddings for Cross-Modal Retrieval. CVPR 2021.

    Example:
        >>> codes = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]])
        >>> pmrp(torch.eye(3), codes, codes, zetas=[0])
        tensor([1., 1., 1.])
    """
    check_scores(scores)
    _check_codes(query_codes, gallery_codes, scores)
    if len(zetas) == 0:
        raise ValueError("`zetas` must hold at least one number of places, got none.")
    zetas = [check_at_least(zeta, 0, "zetas") for zeta in zetas]
    where = check_where(where, scores)
    check_finite(scores, where)
    real = torch.ones_like(scores, dtype=torch.bool) if where is None else where
    queries, gallery = query_codes.float(), gallery_codes.float()

    def mean_over_zetas(scores: Tensor, real: Tensor, queries: Tensor) -> Tensor:
        # |a - b| of codes of 0 and 1; whole numbers, exact in float32
        distance = queries.sum(-1, keepdim=True) + gallery.sum(-1) - 2 * queries @ gallery.T
        order = Order.of(scores, distance.masked_fill(~real, torch.inf), real)  # once for all zetas
        values = []
        for zeta in zetas:
            plausible = order.relevant <= zeta
            of_zeta = order._replace(relevant=plausible, hits=plausible.cumsum(-1), total=plausible.sum(-1))
            values.append(of_zeta.hits_within(of_zeta.total) / of_zeta.total)
        return torch.stack(values).nanmean(0)

    values = in_chunks(mean_over_zetas, chunk_size, scores.to(working_dtype(scores)), real, queries)
    return finish(values, "pmrp", "a plausible match", scores, other="")


def _precision_sum(order: Order, k: Tensor) -> Tensor:
    """Sum of the precision at the relevant items among the first k (rows,)."""
    precision = order.hits.gather(-1, order.through - 1) / order.through.to(wide_dtype(k))
    return (order.relevant * order.chance_within(k) * precision).sum(-1)


def _check_codes(query_codes: Tensor, gallery_codes: Tensor, scores: Tensor) -> None:
    if scores.ndim != 2:
        raise ValueError(f"`scores` must be (Q, N), one row per query, got shape {tuple(scores.shape)}.")
    for name, codes, rows in zip(
        ("query_codes", "gallery_codes"), (query_codes, gallery_codes), scores.shape, strict=True
    ):
        if not isinstance(codes, Tensor) or codes.ndim != 2 or len(codes) != rows:
            raise ValueError(f"`{name}` must be a tensor of shape ({rows}, C), got {describe(codes)}.")
        check_device(codes, scores, name, "scores")
        if codes.dtype != torch.bool and readable(codes) and not bool(((codes == 0) | (codes == 1)).all()):
            raise ValueError(f"`{name}` must hold 0 and 1 only, got {describe(codes)} with other values.")
    if query_codes.shape[1] != gallery_codes.shape[1]:
        raise ValueError(
            f"`gallery_codes` must have as many places as `query_codes` ({query_codes.shape[1]}), "
            f"got {gallery_codes.shape[1]}."
        )
