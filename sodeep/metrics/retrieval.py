"""Metrics of retrieval, and of how well two orders agree. What all metrics share is in `sodeep.metrics`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import (
    check_at_least,
    check_choice,
    check_device,
    check_finite,
    check_scores,
    check_where,
    compiling,
    describe,
    readable,
)
from sodeep._core.lists import check_lists, check_target, one_item_hint, warn_if_outputs_last
from sodeep._core.precision import full_precision, wide_dtype, working_dtype
from sodeep._core.sort import ascending, ordered_floats
from sodeep.ranks import exact_rank


class UndefinedMetricWarning(UserWarning):
    """A metric is NaN for some lists."""


@torch.no_grad()
def spearman_corr(
    scores: Tensor, target: Tensor, where: Tensor | None = None, *, chunk_size: int | None = None
) -> Tensor:
    """Spearman's rank correlation: Pearson's correlation of the average ranks.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        scores: (..., n), floating point. The last axis is the list: of a model with k outputs, (n, k), pass
            ``scores.T`` and ``target.T`` for one correlation an output.
        target: what they should be ordered like, same shape, floating point or whole numbers.

    Returns:
        (...), in [-1, 1]. NaN for a list of fewer than two real items, or whose scores or targets are all equal.

    Example:
        >>> spearman_corr(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([1, 3, 2]))
        tensor(1.)
    """

    def pearson_of_ranks(scores: Tensor, target: Tensor, real: Tensor) -> Tensor:
        x, y = (_deviation(exact_rank(values, where=real), real) for values in (scores, target))
        norms = (x.square().sum(-1) * y.square().sum(-1)).sqrt()
        # 0 / 0 = NaN marks the undefined lists; rounding must not push a perfect correlation past 1
        return ((x * y).sum(-1) / norms).clamp(-1, 1)

    needs = "two items with different scores and different targets"
    correlation = _compare_orders(pearson_of_ranks, "spearman_corr", "target", needs, scores, target, where, chunk_size)
    warn_if_outputs_last(scores, where, "spearman_corr", stacklevel=4)
    return correlation


@torch.no_grad()
def asp(scores: Tensor, semantic: Tensor, where: Tensor | None = None, *, chunk_size: int | None = None) -> Tensor:
    """Average semantic precision: how well the order by score agrees with the order by meaning, over all items.

    For the items i of a list, with R_i the rank by `scores` and S_i by `semantic`::

        ASP = mean over i of min(R_i, S_i) / max(R_i, S_i)

    Tied items have their average rank; the released code breaks ties by their order.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        semantic: (..., N) semantic scores, such as CIDEr between captions; floating point or whole numbers.

    Returns:
        (...), in (0, 1], 1 = the same order (papers print 100 times this). NaN for a list without a real item.

    References:
        Li, Song, Gao, Zeng, Zhang, Li. A Differentiable Semantic Metric Approximation in Probabilistic Embedding for
        Cross-Modal Retrieval. NeurIPS 2022.

    Example:
        >>> asp(torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0.5, 0.9, 0.1]))  # (1/2 + 1/2 + 1) / 3
        tensor(0.6667)
    """

    def mean_ratio(scores: Tensor, semantic: Tensor, real: Tensor) -> Tensor:
        x, y = (exact_rank(values, where=real).to(wide_dtype(scores)) for values in (scores, semantic))
        ratio = torch.minimum(x, y) / torch.maximum(x, y)
        return ratio.masked_fill(~real, 0).sum(-1) / real.sum(-1)

    return _compare_orders(mean_ratio, "asp", "semantic", "an item", scores, semantic, where, chunk_size)


@torch.no_grad()
def average_precision(
    scores: Tensor,
    relevant: Tensor,
    k: int | None = None,
    where: Tensor | None = None,
    *,
    divisor: str = "min",
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
    k = _check_k(k, scores)

    def ap(order: _Order) -> Tensor:
        best = order.total if divisor == "relevant" else order.total.clamp(max=k)
        return _precision_sum(order, order.total.new_full(order.total.shape, k)) / best

    return _per_query(ap, "average_precision", scores, relevant, where, chunk_size)


@torch.no_grad()
def trapezoidal_ap(
    scores: Tensor, relevant: Tensor, where: Tensor | None = None, *, chunk_size: int | None = None
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

    def area(order: _Order) -> Tensor:
        above, through = (count.to(wide_dtype(count)) for count in (order.above, order.through))
        hits_above = torch.where(order.above > 0, order.hits.gather(-1, (order.above - 1).clamp(min=0)), 0)
        before = torch.where(order.above > 0, hits_above / above.clamp(min=1), 1.0)
        at = order.hits.gather(-1, order.through - 1) / through
        return (order.relevant * (before + at) / 2).sum(-1) / order.total

    return _per_query(area, "trapezoidal_ap", scores, relevant, where, chunk_size)


@torch.no_grad()
def map_at_r(scores: Tensor, relevant: Tensor, where: Tensor | None = None, *, chunk_size: int | None = None) -> Tensor:
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

    def cut_at_r(order: _Order) -> Tensor:
        return _precision_sum(order, order.total) / order.total

    return _per_query(cut_at_r, "map_at_r", scores, relevant, where, chunk_size)


@torch.no_grad()
def r_precision(
    scores: Tensor, relevant: Tensor, where: Tensor | None = None, *, chunk_size: int | None = None
) -> Tensor:
    """R-precision: the fraction of relevant items among the first R, R being the number of relevant items of the list.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [0, 1]. NaN for a list without a relevant item.

    Example:
        >>> r_precision(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 0, 0, 1]))
        tensor(0.5000)
    """

    def fraction_of_first_r(order: _Order) -> Tensor:
        return _hits(order, order.total) / order.total

    return _per_query(fraction_of_first_r, "r_precision", scores, relevant, where, chunk_size)


@torch.no_grad()
def recall_at_k(
    scores: Tensor, relevant: Tensor, k: int, where: Tensor | None = None, *, chunk_size: int | None = None
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
    k = _check_k(k, scores)

    def recall(order: _Order) -> Tensor:
        return _hits(order, order.total.new_full(order.total.shape, k)) / order.total

    return _per_query(recall, "recall_at_k", scores, relevant, where, chunk_size)


@torch.no_grad()
def hit_rate_at_k(
    scores: Tensor, relevant: Tensor, k: int, where: Tensor | None = None, *, chunk_size: int | None = None
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
    k = _check_k(k, scores)

    def chance_of_a_hit(order: _Order) -> Tensor:
        above, tied, hits_above, hits_tied = order.group_at((order.real.clamp(max=k) - 1).clamp(min=0))
        taken = order.real.clamp(max=k) - above
        miss = _choose_log(tied - hits_tied, taken) - _choose_log(tied, taken)  # log of C(n - r, m) / C(n, m)
        miss = miss.exp().masked_fill(tied - hits_tied < taken, 0)
        return torch.where(hits_above > 0, 1, 1 - miss)

    return _per_query(chance_of_a_hit, "hit_rate_at_k", scores, relevant, where, chunk_size)


@torch.no_grad()
def median_rank(
    scores: Tensor, relevant: Tensor, where: Tensor | None = None, *, chunk_size: int | None = None
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

    def first_rank(order: _Order) -> Tensor:
        above, tied, _, hits_tied = order.group_at(order.relevant.int().argmax(-1))
        return above + (tied + 1) / (hits_tied.to(wide_dtype(scores)) + 1)

    return _per_query(first_rank, "median_rank", scores, relevant, where, chunk_size)


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
        values = []
        for zeta in zetas:
            order = _Order.of(scores, (distance <= zeta) & real, real)
            values.append(_hits(order, order.total) / order.total)
        return torch.stack(values).nanmean(0)

    values = _in_chunks(mean_over_zetas, chunk_size, scores.to(working_dtype(scores)), real, queries)
    return _finish(values, "pmrp", "a plausible match", scores, other="")


class _Order(NamedTuple):
    """The items of each list, best first; masked ones last. Counts are whole numbers, (rows, N) or (rows,)."""

    relevant: Tensor
    above: Tensor
    """Items of a higher score."""
    through: Tensor
    """Items of a higher or the same score, itself included."""
    hits: Tensor
    """Relevant items up to this position."""
    total: Tensor
    """Relevant items of the list."""
    real: Tensor
    """Real items of the list."""

    @classmethod
    def of(cls, scores: Tensor, relevant: Tensor, real: Tensor) -> _Order:
        scores, index = ascending((-scores).masked_fill(~real, torch.inf))
        relevant = relevant.gather(-1, index)
        n = scores.shape[-1]
        position = torch.arange(n, device=scores.device)
        changes = scores[:, 1:] != scores[:, :-1]
        edge = changes.new_ones(len(scores), 1)
        first = torch.cat([edge, changes], -1)  # of its group of equal scores
        last = torch.cat([changes, edge], -1)
        above = torch.where(first, position, 0).cummax(-1).values
        through = torch.where(last, position + 1, n).flip(-1).cummin(-1).values.flip(-1)
        return cls(relevant, above, through, relevant.cumsum(-1), relevant.sum(-1), real.sum(-1))

    def group_at(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the tied group at `position` (rows,): items above it, items in it, relevant ones above and in it."""
        column = position.unsqueeze(-1)
        above, through = self.above.gather(-1, column), self.through.gather(-1, column)
        hits_through = self.hits.gather(-1, through - 1)
        hits_above = torch.where(above > 0, self.hits.gather(-1, (above - 1).clamp(min=0)), 0)
        return above[:, 0], (through - above)[:, 0], hits_above[:, 0], (hits_through - hits_above)[:, 0]


def _chance_within(order: _Order, k: Tensor) -> Tensor:
    """The chance of each item to be among the first k (rows,): between 0 and 1 only where k cuts its tied group."""
    tied = (order.through - order.above).to(wide_dtype(k))
    return ((k.unsqueeze(-1) - order.above) / tied).clamp(0, 1)


def _hits(order: _Order, k: Tensor) -> Tensor:
    """Relevant items among the first k (rows,)."""
    return (order.relevant * _chance_within(order, k)).sum(-1)


def _precision_sum(order: _Order, k: Tensor) -> Tensor:
    """Sum of the precision at the relevant items among the first k (rows,)."""
    precision = order.hits.gather(-1, order.through - 1) / order.through.to(wide_dtype(k))
    return (order.relevant * _chance_within(order, k) * precision).sum(-1)


def _choose_log(n: Tensor, m: Tensor) -> Tensor:
    """log(n (n - 1) ... (n - m + 1)); whatever where n < m."""
    n = n.to(wide_dtype(n))
    return (n + 1).lgamma() - (n - m + 1).clamp(min=1).lgamma()


def _deviation(ranks: Tensor, real: Tensor) -> Tensor:
    """Ranks minus their mean, in float64, 0 at masked items. Exactly 0 where all are equal."""
    ranks = ranks.to(wide_dtype(ranks)).masked_fill(~real, 0)
    middle = (real.sum(-1, keepdim=True) + 1) / 2  # the mean of average ranks, ties or not
    return (ranks - middle).masked_fill(~real, 0)


def _check_k(k: int | None, scores: Tensor) -> int:
    """`k`, or the length of the lists for None."""
    if k is None:
        return check_scores(scores).shape[-1]
    return check_at_least(k, 1, "k")


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


def _in_chunks(function: Callable[..., Tensor], chunk_size: int | None, *rows: Tensor) -> Tensor:
    """`function` over so many rows at a time that its intermediate tensors stay small."""
    if chunk_size is None:
        if compiling():  # a number of chunks that depends on the length would be compiled for each
            return function(*rows)
        chunk_size = max(1, 2**20 // rows[0].shape[-1])
    chunk_size = check_at_least(chunk_size, 1, "chunk_size")
    starts = range(0, max(1, len(rows[0])), chunk_size)
    return torch.cat([function(*(x[start : start + chunk_size] for x in rows)) for start in starts])


def _finish(values: Tensor, name: str, needs: str, scores: Tensor, other: str = "relevant") -> Tensor:
    """One warning for the undefined lists; the batch shape and dtype of `scores`."""
    if readable(values) and (undefined := int(values.isnan().sum())):
        warnings.warn(
            f"{name} is NaN for {undefined} of {len(values)} lists: a list needs {needs}"
            f"{one_item_hint(scores, other)}.",
            UndefinedMetricWarning,
            stacklevel=5,  # the caller of the metric: this, its helper, the metric and its decorator are in between
        )
    return values.to(working_dtype(scores)).reshape(scores.shape[:-1])


def _per_query(
    metric: Callable[[_Order], Tensor],
    name: str,
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None,
    chunk_size: int | None,
) -> Tensor:
    """Check, order the items of each list, and apply `metric`; NaN comes from 0 relevant items as 0 / 0."""
    lists = check_lists(scores, relevant, where)

    def evaluate(values: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        order = _Order.of(values, positive, positive | negative)
        return metric(order).masked_fill(order.total == 0, torch.nan)

    return _finish(
        _in_chunks(evaluate, chunk_size, lists.scores, lists.positive, lists.negative), name, "a relevant item", scores
    )


def _compare_orders(
    metric: Callable[[Tensor, Tensor, Tensor], Tensor],
    name: str,
    other_name: str,
    needs: str,
    scores: Tensor,
    other: Tensor,
    where: Tensor | None,
    chunk_size: int | None,
) -> Tensor:
    """Check, and apply `metric` to both score lists and the mask of real items."""
    _, where = check_target(scores, other, where, other_name)
    real = torch.ones_like(scores, dtype=torch.bool) if where is None else where
    n = scores.shape[-1]
    rows = (x.reshape(-1, n) for x in (scores, ordered_floats(other), real))
    return _finish(_in_chunks(metric, chunk_size, *rows), name, needs, scores, other_name)
