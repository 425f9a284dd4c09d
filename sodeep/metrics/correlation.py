"""Metrics of how well two orders agree: Spearman's and Kendall's correlation, pairwise accuracy, rank-biased overlap.

What all metrics share is in `sodeep.metrics`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.checks import compiling, describe, is_number
from sodeep._core.lists import warn_if_outputs_last
from sodeep._core.precision import wide_dtype
from sodeep._core.sort import ascending, runs
from sodeep.groups import GroupIds
from sodeep.metrics._per_list import compare_orders, metric
from sodeep.ranks import exact_rank


@metric
def spearman_corr(
    scores: Tensor,
    target: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
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
    correlation = compare_orders(pearson_of_ranks, "spearman_corr", "target", needs, scores, target, where, chunk_size)
    warn_if_outputs_last(scores, where, "spearman_corr")
    return correlation


@metric
def asp(
    scores: Tensor,
    semantic: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
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

    return compare_orders(mean_ratio, "asp", "semantic", "an item", scores, semantic, where, chunk_size)


@metric
def kendall_tau(
    scores: Tensor,
    target: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Kendall's tau-b, in O(n log n).

    With C and D the pairs in the same and in the opposite order, P all pairs, X and Y those tied in the scores and in
    the targets::

        tau = (C - D) / sqrt((P - X) (P - Y))

    It is scipy's `kendalltau`.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [-1, 1]. NaN for a list of fewer than two real items, or whose scores or targets are all equal.

    References:
        Knight. A Computer Method for Calculating Kendall's Tau with Ungrouped Data. JASA 1966.

    Example:
        >>> kendall_tau(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([1, 2, 3]))
        tensor(0.3333)
    """

    def tau_b(scores: Tensor, target: Tensor, real: Tensor) -> Tensor:
        return _tau(_TwoOrders.of(scores, target, real).counts())

    needs = "two items with different scores and different targets"
    return compare_orders(tau_b, "kendall_tau", "target", needs, scores, target, where, chunk_size)


@metric
def weighted_tau(
    scores: Tensor,
    target: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Weighted tau: Kendall's tau-b in which pairs near the top count more, in O(n log n).

    A pair of ranks r and s weighs 1/r + 1/s. The value is the mean of two, with the ranks by the scores (ties broken by
    the targets) and by the targets (ties broken by the scores). It is scipy's `weightedtau`.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [-1, 1]. NaN for a list of fewer than two real items, or whose scores or targets are all equal.

    References:
        Vigna. A Weighted Correlation Index for Rankings with Ties. WWW 2015.

    Example:
        >>> weighted_tau(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([1, 2, 3]))
        tensor(0.1818)
    """

    def tau_of_both(scores: Tensor, target: Tensor, real: Tensor) -> Tensor:
        weight = 1 / torch.arange(1, scores.shape[-1] + 1, dtype=wide_dtype(scores), device=scores.device)
        by_scores, by_target = _TwoOrders.of(scores, target, real), _TwoOrders.of(target, scores, real)
        return (_tau(by_scores.pairs(weight)) + _tau(by_target.pairs(weight))) / 2

    needs = "two items with different scores and different targets"
    return compare_orders(tau_of_both, "weighted_tau", "target", needs, scores, target, where, chunk_size)


@metric
def pairwise_accuracy(
    scores: Tensor,
    target: Tensor,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """The fraction of pairs with different targets whose scores are in the same order, in O(n log n).

    Pairs of one score count half: the mean over all orders of tied items. With two grades it is the area under the ROC
    curve (scikit-learn's `roc_auc_score`), with more (1 + d) / 2 for Somers' d of the scores given the targets (scipy's
    ``somersd(target, scores)``).

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Returns:
        (...), in [0, 1]. NaN for a list whose targets are all equal.

    Example:
        >>> pairwise_accuracy(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([1, 2, 3]))
        tensor(0.6667)
    """

    def accuracy(scores: Tensor, target: Tensor, real: Tensor) -> Tensor:
        pairs = _TwoOrders.of(scores, target, real).counts()
        comparable = pairs.total - pairs.tied_target
        tied = pairs.tied_scores - pairs.tied_both
        return (comparable - pairs.opposite - tied / 2) / comparable

    needs = "two items with different targets"
    return compare_orders(accuracy, "pairwise_accuracy", "target", needs, scores, target, where, chunk_size)


@metric
def rbo(
    scores: Tensor,
    target: Tensor,
    p: float = 0.9,
    where: Tensor | None = None,
    *,
    group: GroupIds | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Rank-biased overlap of the orders by score and by target: how much of the tops they share, at every depth.

    With X_d the number of items that are among the first d of both::

        RBO = (1 - p) / p * sum over d from 1 to n of p^d X_d / d + p^n

    A reader goes from one depth to the next with a chance of p: the first 10 ranks have 86 % of the weight at p = 0.9.
    Ties are the mean over their orders, in both. O(n^2) time.

    What all metrics share, such as `where`: see `sodeep.metrics`.

    Args:
        p: between 0 and 1.

    Returns:
        (...), in (0, 1], 1 = the same order without ties. NaN for a list without a real item.

    Raises:
        ValueError: `p` is not between 0 and 1.

    References:
        Webber, Moffat, Zobel. A Similarity Measure for Indefinite Rankings. TOIS 2010: equation 32, for two orders of
        the same items.

    Example:
        >>> rbo(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([1, 2, 3]), p=0.5)  # 1/2 * (0 + 2/2 / 2 + 3/3 / 4) + 1/8
        tensor(0.5000)
    """
    if not is_number(p) or not 0 < p < 1:
        raise ValueError(f"`p` must be a number between 0 and 1, got {describe(p)}.")

    def overlap(scores: Tensor, target: Tensor, real: Tensor) -> Tensor:
        places = [_places(values, real) for values in (scores, target)]
        depths = torch.arange(1, scores.shape[-1] + 1, dtype=wide_dtype(scores), device=scores.device)
        count = real.sum(-1, keepdim=True)
        total = depths.new_zeros(len(scores))
        for depth in [depths] if compiling() else torch.split(depths, max(1, 2**22 // max(1, scores.numel()))):
            among_first = [((depth - above) / size).clamp(0, 1) for above, size in places]  # (rows, n, depths)
            shared = (among_first[0] * among_first[1]).masked_fill(~real.unsqueeze(-1), 0).sum(-2)
            total = total + (shared * p**depth / depth).masked_fill(depth > count, 0).sum(-1)
        count = count.squeeze(-1)
        return ((1 - p) / p * total + p ** count.to(total.dtype)).masked_fill(count == 0, torch.nan)

    return compare_orders(overlap, "rbo", "target", "an item", scores, target, where, chunk_size)


def _deviation(ranks: Tensor, real: Tensor) -> Tensor:
    """Ranks minus their mean, in float64, 0 at masked items. Exactly 0 where all are equal."""
    ranks = ranks.to(wide_dtype(ranks)).masked_fill(~real, 0)
    middle = (real.sum(-1, keepdim=True) + 1) / 2  # the mean of average ranks, ties or not
    return (ranks - middle).masked_fill(~real, 0)


class _PairSums(NamedTuple):
    """Sums over the pairs of each list (rows,), of the weights of their two items."""

    total: Tensor
    tied_scores: Tensor
    tied_target: Tensor
    tied_both: Tensor
    opposite: Tensor
    """In opposite orders by scores and by targets."""


class _TwoOrders(NamedTuple):
    """The items of each list in the order of the scores, those of one score in the order of the targets: (rows, N)."""

    x: Tensor
    """Twice the rank by scores: a whole number."""
    y: Tensor
    """Twice the rank by targets."""
    both: Tensor
    """A number that is equal where both are."""
    real: Tensor
    """bool; masked items come last in both orders."""

    @classmethod
    def of(cls, scores: Tensor, target: Tensor, real: Tensor) -> _TwoOrders:
        last = 2 * scores.shape[-1] + 1
        x, y = (
            (2 * exact_rank(values, where=real)).to(wide_dtype(scores)).masked_fill(~real, last)
            for values in (scores, target)
        )
        both, order = ascending(x * (last + 1) + y)
        return cls(x.gather(-1, order), y.gather(-1, order), both, real.gather(-1, order))

    def pairs(self, weight: Tensor) -> _PairSums:
        """Sums over the pairs, for the weight of each place: (N,)."""
        w = weight.expand_as(self.x).masked_fill(~self.real, 0)
        n = self.x.shape[-1]
        y, by_target = ascending(self.y * n + torch.arange(n, device=w.device))
        w_by_target = w.gather(-1, by_target)
        return _PairSums(
            w.sum(-1) * (self.real.sum(-1) - 1),
            _tied(self.x, w),
            _tied((y / n).floor(), w_by_target),
            _tied(self.both, w),
            _inversions(by_target, w_by_target),
        )

    def counts(self) -> _PairSums:
        """The numbers of pairs."""
        return self.pairs(self.x.new_full((1,), 0.5))


def _places(values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """For each item (rows, N, 1): how many are above it, and how many share its place, itself included."""
    ordered, index = ascending((-values).to(wide_dtype(values)).masked_fill(~real, torch.inf))
    begin, end = runs(ordered)
    above, size = (torch.empty_like(index).scatter(-1, index, x) for x in (begin, end - begin))
    return above.unsqueeze(-1), size.unsqueeze(-1)


def _tau(pairs: _PairSums) -> Tensor:
    """Tau-b: 0 / 0, which marks an undefined list, where all scores or all targets are equal."""
    untied = pairs.total - pairs.tied_scores - pairs.tied_target + pairs.tied_both
    norms = (pairs.total - pairs.tied_scores).sqrt() * (pairs.total - pairs.tied_target).sqrt()
    return ((untied - 2 * pairs.opposite) / norms).clamp(-1, 1)


def _tied(values: Tensor, weight: Tensor) -> Tensor:
    """Sum over pairs of equal `values` (rows, N), which are sorted, of the weights of both."""
    begin, end = runs(values)
    return (weight * (end - begin - 1)).sum(-1)


def _inversions(order: Tensor, weight: Tensor) -> Tensor:
    """Sum over pairs that stand the wrong way round in permutations (rows, N), of the weights of both.

    Bit by bit from the top: of the numbers that agree in all higher bits, those with a 0 that stand after one with a 1.
    Of each such block of 2^b numbers one half has a 1, so that blocks are rows of a tensor.
    """
    rows, n = order.shape
    if compiling():  # a number of steps that depends on the length would be compiled for each
        wrong = (order.unsqueeze(-1) > order.unsqueeze(-2)).triu(1)
        return (wrong * (weight.unsqueeze(-1) + weight.unsqueeze(-2))).sum((-2, -1))
    bits = (n - 1).bit_length()
    rest = torch.arange(n, 2**bits, device=order.device).expand(rows, -1)  # in their place behind all others
    order, weight = torch.cat([order, rest], -1), pad(weight, (0, 2**bits - n))
    total = weight.new_zeros(rows)
    for bit in range(bits - 1, -1, -1):
        blocks = rows, 2**bits >> (bit + 1), 2 << bit
        order, weight = order.view(blocks), weight.view(blocks)
        one = (order >> bit) & 1
        ones = one.cumsum(-1)
        total = total + ((1 - one) * (weight * ones + (weight * one).cumsum(-1))).sum((-2, -1))
        position = torch.arange(2 << bit, device=order.device)
        place = torch.where(one == 1, (1 << bit) + ones - 1, position - ones)
        order, weight = (torch.empty_like(v).scatter(-1, place, v) for v in (order, weight))
    return total
