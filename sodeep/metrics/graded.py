"""Metrics of graded relevance: discounted cumulative gain and expected reciprocal rank.

What all metrics share is in `sodeep.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.checks import check_choice, check_number, compiling, readable
from sodeep._core.grades import check_gain, check_grades, scaled_gains
from sodeep._core.precision import wide_dtype, working_dtype
from sodeep._core.sort import ascending
from sodeep.groups import GroupIds
from sodeep.metrics._per_list import Order, check_k, finish, in_chunks, metric

check_ties = partial(check_choice, choices=("average", "order"), name="ties")


@metric
def dcg(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    where: Tensor | None = None,
    *,
    gain: str = "exponential",
    ties: str = "average",
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Discounted cumulative gain.

    For a list::

        DCG@k = sum over the first k items of gain(relevance) / log2(1 + rank)

    With ``gain="linear"`` it is scikit-learn's `dcg_score`.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: cut; None = the whole list.
        gain: "exponential": 2^relevance - 1. "linear": the relevance itself.
        ties: "average": the mean over all orders of items of one score. "order": those come as they are given.

    Returns:
        (...), at least 0. NaN for a list without a real item.

    Raises:
        ValueError: a grade is negative, or its gain beyond the range of the result.

    References:
        Järvelin, Kekäläinen. Cumulated Gain-Based Evaluation of IR Techniques. TOIS 2002.
        Burges, Shaked, Renshaw, Lazier, Deeds, Hamilton, Hullender. Learning to Rank using Gradient Descent. ICML 2005:
        the exponential gain with this discount.

    Example:
        >>> dcg(torch.tensor([0.9, 0.2, 0.4]), torch.tensor([3, 0, 1]))  # 7 / log2(2) + 1 / log2(3)
        tensor(7.6309)
    """
    check_gain(gain, name="gain")
    check_ties(ties)
    k = check_k(k, scores)

    def gains(relevance: Tensor) -> Tensor:
        if gain == "linear":
            return relevance
        most = math.log2(torch.finfo(working_dtype(scores)).max)
        _check_at_most(relevance, most, "where gains are exponential. Use gain='linear', or ndcg")
        return torch.expm1(math.log(2) * relevance)

    def discounted(scores: Tensor, gains: Tensor, real: Tensor) -> Tensor:
        return _discounted(_order(scores, gains, real, ties), k)

    return _per_graded_list(discounted, gains, "dcg", "an item", scores, relevance, where, chunk_size)


@metric
def ndcg(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    where: Tensor | None = None,
    *,
    gain: str = "exponential",
    ties: str = "average",
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Normalized discounted cumulative gain: the DCG over that of the best order of the list, cut at k as well.

    For a list::

        nDCG@k = DCG@k / (the largest DCG@k of any order)

    ``gain="exponential"`` is that of LETOR, LightGBM and rax; ``gain="linear"`` that of trec_eval (`ndcg`, `ndcg_cut`)
    and of scikit-learn's `ndcg_score`, which averages ties in the same way. Grades may be of any size: only their
    gains relative to the largest of the list are computed.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        k: cut; None = the whole list.
        gain: "exponential": 2^relevance - 1. "linear": the relevance itself.
        ties: "average": the mean over all orders of items of one score. "order": those come as they are given.

    Returns:
        (...), in [0, 1]. NaN for a list without an item of positive relevance, where others have 0 or 1:
        ``.nan_to_num(0)`` gives the first.

    Raises:
        ValueError: a grade is negative.

    References:
        Järvelin, Kekäläinen. Cumulated Gain-Based Evaluation of IR Techniques. TOIS 2002.

    Example:
        >>> ndcg(torch.tensor([0.2, 0.9, 0.4]), torch.tensor([3, 0, 1]))
        tensor(0.5413)
        >>> ndcg(torch.zeros(3), torch.tensor([3, 0, 1]), ties="order")
        tensor(0.9828)
    """
    check_gain(gain, name="gain")
    check_ties(ties)
    k = check_k(k, scores)

    def normalized(scores: Tensor, gains: Tensor, real: Tensor) -> Tensor:
        best = -ascending(-gains)[0]
        most = (best * _discounts(best, k)).sum(-1)
        return (_discounted(_order(scores, gains, real, ties), k) / most).clamp(max=1)

    gains = partial(scaled_gains, gain=gain)
    needs = "an item of positive relevance"
    return _per_graded_list(normalized, gains, "ndcg", needs, scores, relevance, where, chunk_size)


@metric
def expected_reciprocal_rank(
    scores: Tensor,
    relevance: Tensor,
    max_grade: float,
    k: int | None = None,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Expected reciprocal rank of the item at which a user, who reads from the top, is satisfied.

    With P_r the chance that the item at rank r satisfies::

        ERR@k = sum over the first k ranks r of P_r / r * product over i < r of (1 - P_i)
        P = (2^relevance - 1) / 2^max_grade

    With ``max_grade=4`` it is that of gdeval, of the TREC web track. Ties are the mean over their orders; O(N t) time
    for groups of t tied scores.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        relevance: (..., N), grades from 0 to `max_grade`, floating point or whole numbers.
        max_grade: the best grade of the scale, whether or not it occurs.
        k: cut; None = the whole list.

    Returns:
        (...), in [0, 1). NaN for a list without a real item.

    Raises:
        ValueError: a grade is below 0 or above `max_grade`.

    References:
        Chapelle, Metzler, Zhang, Grinspan. Expected Reciprocal Rank for Graded Relevance. CIKM 2009.

    Example:
        >>> expected_reciprocal_rank(torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2]), max_grade=2)
        tensor(0.5312)
    """
    max_grade = check_number(max_grade, "max_grade", low=0)
    k = check_k(k, scores)

    def satisfaction(relevance: Tensor) -> Tensor:
        _check_at_most(relevance, max_grade, "of `max_grade`")
        return (relevance - max_grade).exp2() - math.pow(2, -max_grade)

    def err(scores: Tensor, chance: Tensor, real: Tensor) -> Tensor:
        order = Order.of(scores, chance, real)
        position = torch.arange(scores.shape[-1], device=scores.device)
        padding = position >= order.real.unsqueeze(-1)  # masked items are no group
        above, through = torch.where(padding, position, order.above), torch.where(padding, position + 1, order.through)
        return _expected_reciprocal_rank(order.relevant, above, through, k)

    name = "expected_reciprocal_rank"
    return _per_graded_list(err, satisfaction, name, "an item", scores, relevance, where, chunk_size)


def _check_at_most(relevance: Tensor, most: float, why: str) -> None:
    if readable(relevance) and relevance.numel() and (largest := float(relevance.amax())) > most:
        raise ValueError(f"`relevance` must be at most {most:g} {why}, got a largest value of {largest:g}.")


def _per_graded_list(
    metric: Callable[[Tensor, Tensor, Tensor], Tensor],
    gains: Callable[[Tensor], Tensor],
    name: str,
    needs: str,
    scores: Tensor,
    relevance: Tensor,
    where: Tensor | None,
    chunk_size: int | None,
) -> Tensor:
    """Check, and apply `metric` to the scores, the gains and the mask of real items; 0 / 0 marks undefined lists."""
    lists = check_grades(scores, relevance, where, low=0)
    wide = gains(lists.relevance.to(wide_dtype(scores)))

    def evaluate(scores: Tensor, gains: Tensor, real: Tensor) -> Tensor:
        return metric(scores, gains, real).masked_fill(~real.any(-1), torch.nan)

    values = in_chunks(evaluate, chunk_size, lists.scores, wide, lists.real)
    return finish(values, name, needs, scores, "relevance")


def _order(scores: Tensor, gains: Tensor, real: Tensor, ties: str) -> Order:
    """The gains in the order of the scores; as given where those are equal, if `ties` is "order"."""
    if ties == "order":  # in exact ranks without ties
        index = torch.sort((-scores).masked_fill(~real, torch.inf), stable=True).indices
        place = torch.arange(scores.shape[-1], device=scores.device, dtype=scores.dtype).expand_as(scores)
        scores = torch.empty_like(scores).scatter(-1, index, -place)
    return Order.of(scores, gains, real)


def _discounts(like: Tensor, k: int) -> Tensor:
    """1 / log2(1 + rank) for the first k ranks, then 0: (N,)."""
    rank = torch.arange(1, like.shape[-1] + 1, dtype=wide_dtype(like), device=like.device)
    return (1 / torch.log2(1 + rank)).masked_fill(rank > k, 0)


def _discounted(order: Order, k: int) -> Tensor:
    """Sum of the gains, each by the mean discount of the ranks that its tied items share."""
    until = pad(_discounts(order.relevant, k).cumsum(-1), (1, 0))
    mean = (until[order.through] - until[order.above]) / (order.through - order.above)
    return (order.relevant * mean).sum(-1)


def _expected_reciprocal_rank(chance: Tensor, above: Tensor, through: Tensor, k: int) -> Tensor:
    """ERR@k of items (rows, N) in their order, those from `above` to `through` tied."""
    if compiling():  # a loop over the items: one node of the graph
        value: Tensor = _expected_reciprocal_rank_node(chance, above, through, k)
        return value
    rows, n = chance.shape
    largest = n if rows == 0 or not readable(chance) else int((through - above).max())
    if largest == 1:
        unsatisfied = pad((1 - chance).cumprod(-1), (1, -1), value=1.0)
        rank = torch.arange(1, n + 1, dtype=chance.dtype, device=chance.device)
        return (unsatisfied * chance / rank).masked_fill(rank > k, 0).sum(-1)
    # mean[m]: the mean, over the choices of m of the items of this group so far, of their product of 1 - P
    m = torch.arange(largest + 1, device=chance.device, dtype=chance.dtype)
    mean, reach, total = chance.new_zeros(rows, len(m)), chance.new_ones(rows), chance.new_zeros(rows)
    for i in range(n):
        before = i - above[:, i : i + 1]  # items of the group so far
        mean = torch.where(before == 0, m == 0, mean)
        one_more = pad(mean, (1, -1)) * (1 - chance[:, i : i + 1])
        mean = ((before + 1 - m) * mean + m * one_more) / (before + 1)
        mean = mean.masked_fill(m > before + 1, 0)
        rank = above[:, i : i + 1] + m[1:]
        stops = (mean[:, :-1] - mean[:, 1:]).masked_fill((rank > k) | (m[1:] > before + 1), 0) / rank
        last = through[:, i] == i + 1
        total = torch.where(last, total + reach * stops.sum(-1), total)
        reach = torch.where(last, reach * mean.gather(1, before + 1)[:, 0], reach)
    return total


_expected_reciprocal_rank_node = torch.library.custom_op(
    "sodeep::expected_reciprocal_rank",
    lambda chance, above, through, k: _expected_reciprocal_rank(chance, above, through, k),
    mutates_args=(),
    schema="(Tensor chance, Tensor above, Tensor through, SymInt k) -> Tensor",
)
_expected_reciprocal_rank_node.register_fake(lambda chance, *_: chance.new_empty(chance.shape[0]))
