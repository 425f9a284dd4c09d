"""Losses that weigh each pair by its similarity: lifted structure, binomial deviance, BinLifted and Multi-Similarity.

Binomial deviance compares each pair with one threshold, lifted structure with the other pairs of its list, and
Multi-Similarity, the strongest of them in most comparisons, does both and drops easy pairs.

Sources: Yi et al., ICPR 2014 (binomial deviance); Oh Song et al., CVPR 2016 (lifted structure); Wang et al., CVPR 2019
(BinLifted and Multi-Similarity, and the four in one framework of pair weights).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import check_number, check_positive
from sodeep._core.derivatives import closed_form
from sodeep._core.lists import check_lists, masked_mean
from sodeep._core.masks import any_of, as_bytes, filled
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, optional, reduce_defined, reduce_over_both
from sodeep.losses._sums import bound, logsumexp_of_sides, softplus


@loss_function(margin=check_number)
def lifted_structure_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    margin: float = 1.0,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Lifted structure, in the form for one anchor: the soft-hardest positive against the soft-hardest negative.

    For a list::

        [ log sum_{p in P} e^{-s_p}  +  log sum_{n in N} e^{s_n + margin} ]+

    This is Eq. 9 of Hermans et al. ("generalized lifted structure") and the form of Wang et al., whose pair weights are
    a softmax over -s in P and over s in N. The original (Oh Song et al.) takes for each pair (i, j) the negatives of j
    as well as those of i: that is a function of two rows of a square matrix, not of a list, and has no meaning for a
    query against a gallery.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N). In the papers minus distances, ``-D``, for which 1 is the margin; on cosine similarities the
            log-sum-exps are nearly means, and scores multiplied by 10 or more do better.
        margin: a finite number.

    Returns:
        A scalar >= 0.

    References:
        Oh Song, Xiang, Jegelka, Savarese. Deep Metric Learning via Lifted Structured Feature Embedding. CVPR 2016.
        Hermans, Beyer, Leibe. In Defense of the Triplet Loss for Person Re-Identification. 2017.
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning.
        CVPR 2019.

    Example:
        >>> lifted_structure_loss(torch.tensor([[-0.5, -2.0]]), torch.tensor([[True, False]]))  # hinge 0.5 - 2 + 1
        tensor(0.)
        >>> lifted_structure_loss(torch.tensor([[-0.5, -1.0]]), torch.tensor([[True, False]]))  # hinge 0.5 - 1 + 1
        tensor(0.5000)
    """
    lists = check_lists(scores, relevant, where)
    s, positive, negative, _ = lists
    log_p, log_n = logsumexp_of_sides(torch.where(positive, -s, s), positive, negative)
    values = torch.relu(log_p + log_n + margin)
    return reduce_over_both(values, lists, scores, reduction, return_stats)


class LiftedStructureLoss(Loss[ListStats]):
    """Module form of `lifted_structure_loss`.

    Example:
        >>> LiftedStructureLoss()
        LiftedStructureLoss(margin=1.0)
    """

    function = staticmethod(lifted_structure_loss)

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(margin=margin, reduction=reduction)


STEEPNESS: dict[str, Any] = {"alpha": check_positive, "beta": check_positive, "base": check_number}


def _exponent(s: Tensor, positive: Tensor, alpha: float, beta: float, base: float) -> Tensor:
    """The exponents: alpha (base - s) for positives, beta (s - base) for the others."""
    above = s - base
    return torch.where(positive, -alpha * above, beta * above)


@loss_function(**STEEPNESS)
def binomial_deviance_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """A smooth contrastive loss: each pair against one threshold, alone.

    For a list (0 for a side that has no pair)::

        mean_P log(1 + e^{alpha (base - s)})  +  mean_N log(1 + e^{beta (s - base)})

    In the form of Wang et al.: the weight of a pair is ``alpha/|P|`` or ``beta/|N|`` times the logistic of the same
    exponent.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the defaults.
        alpha: steepness for positives.
        beta: steepness for negatives.
        base: the threshold between similar and not.

    Returns:
        A scalar > 0, or 0 where it underflows. The two sides do not need each other, so a list is defined as soon as it
        has a real item.

    References:
        Yi, Lei, Liao, Li. Deep Metric Learning for Person Re-Identification. ICPR 2014.
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning.
        CVPR 2019.

    Example:
        >>> binomial_deviance_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([[True, False]]))  # 2 log 2
        tensor(1.3863)
    """
    s, positive, negative, _ = check_lists(scores, relevant, where)

    def plain(s: Tensor) -> Tensor:
        deviance = softplus(bound(_exponent(s, positive, alpha, beta, base)))
        return masked_mean(deviance, positive) + masked_mean(deviance, negative)

    def with_slope(s: Tensor) -> tuple[Tensor, Tensor]:
        chosen, others = as_bytes(positive), as_bytes(negative)
        steepness = others.to(s.dtype).mul_(beta).sub_(chosen, alpha=alpha)
        share_p, share_n = (side / side.sum(-1, keepdim=True, dtype=s.dtype).clamp_(min=1) for side in (chosen, others))
        share = share_p.add_(share_n)
        x = bound((s - base).mul_(steepness))
        values = softplus(x).mul_(share).sum(-1)
        return values, x.sigmoid_().mul_(share).mul_(steepness)

    values = closed_form(s, with_slope, plain)
    return reduce_defined(values, any_of(positive | negative), scores, reduction, return_stats, needs="a real item")


class BinomialDevianceLoss(Loss[ListStats]):
    """Module form of `binomial_deviance_loss`.

    Example:
        >>> BinomialDevianceLoss()
        BinomialDevianceLoss(alpha=2.0, beta=50.0, base=0.5)
    """

    function = staticmethod(binomial_deviance_loss)

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, *, reduction: str = "mean") -> None:
        super().__init__(alpha=alpha, beta=beta, base=base, reduction=reduction)


@loss_function(**STEEPNESS)
def bin_lifted_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """BinLifted: the mean of the pair weights of binomial deviance and lifted structure.

    The paper (supplement, Eq. 10) defines it by its weights; for a negative::

        w = ( logistic(beta (s - base))  +  e^{beta s} / sum_{n in N} e^{beta s_n} ) / 2

    and for a positive the same with alpha and -s, logistic(alpha (base - s)). The loss is what has them as its
    gradient::

        ( sum_P log(1 + e^x) + log sum_P e^x ) / (2 alpha),     x = alpha (base - s)
      + ( sum_N log(1 + e^x) + log sum_N e^x ) / (2 beta),      x = beta (s - base)

    The authors show it to do worse than binomial deviance alone, and Multi-Similarity better: it is here to compare
    with.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the defaults.
        alpha: steepness for positives.
        beta: steepness for negatives.
        base: the threshold between similar and not.

    Returns:
        A scalar of either sign, since nothing bounds the lifted terms from below: its weights are its meaning.

    References:
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning.
        CVPR 2019.

    Example:
        >>> bin_lifted_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([[True, False]]))  # log 2 (1/4 + 1/100)
        tensor(0.1802)
    """
    lists = check_lists(scores, relevant, where)
    _, positive, negative, _ = lists
    x = bound(_exponent(lists.scores, lists.positive, alpha, beta, base))
    deviance = softplus(x)
    lifted_p, lifted_n = logsumexp_of_sides(x, positive, negative)
    term_p = torch.where(positive, deviance, 0.0).sum(-1) + lifted_p
    term_n = torch.where(negative, deviance, 0.0).sum(-1) + lifted_n
    values = term_p / (2 * alpha) + term_n / (2 * beta)
    return reduce_over_both(values, lists, scores, reduction, return_stats)


class BinLiftedLoss(Loss[ListStats]):
    """Module form of `bin_lifted_loss`.

    Example:
        >>> BinLiftedLoss()
        BinLiftedLoss(alpha=2.0, beta=50.0, base=0.5)
    """

    function = staticmethod(bin_lifted_loss)

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, *, reduction: str = "mean") -> None:
        super().__init__(alpha=alpha, beta=beta, base=base, reduction=reduction)


@loss_function(**STEEPNESS, epsilon=optional(check_number))
def multi_similarity_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = 0.1,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Multi-Similarity: each pair against a threshold and against the other pairs of its list.

    For a list::

        1/alpha log(1 + sum_P e^{alpha (base - s)})  +  1/beta log(1 + sum_N e^{beta (s - base)})

    over the pairs kept by mining: a negative with s > min_P s - epsilon, a positive with s < max_N s + epsilon, the
    minimum and maximum over all pairs of the list. The choice itself has no gradient.

    The paper has base = 1, its released code beta = 40 and base = 0.5; the defaults are those of most later work. The
    released code drops positives with s > 1 - 1e-5, duplicates included: here they count.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the defaults.
        alpha: steepness for positives.
        beta: steepness for negatives.
        base: the threshold between similar and not.
        epsilon: how much easier than the hardest pair of the other side a pair may be, a finite number; None: no
            mining.

    Returns:
        A scalar >= 0. A list with P and N that keeps no pair counts, with 0.

    References:
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning.
        CVPR 2019.

    Example:
        >>> scores = torch.tensor([[0.5, 0.5, 0.1]])
        >>> relevant = torch.tensor([[True, False, False]])
        >>> multi_similarity_loss(scores, relevant)  # log 2 (1/2 + 1/50): 0.1 is too easy to be kept
        tensor(0.3604)
    """
    lists = check_lists(scores, relevant, where)
    s, positive, negative, _ = lists
    if epsilon is not None:
        fixed, end = s.detach(), torch.finfo(s.dtype).max
        lowest_positive = filled(fixed, ~positive, end).amin(-1, keepdim=True)
        highest_negative = filled(fixed, ~negative, -end).amax(-1, keepdim=True)
        # not "fixed < ...", which would leave NaN out
        positive = positive & ~(fixed >= highest_negative + epsilon)
        negative = negative & ~(fixed <= lowest_positive - epsilon)

    def plain(s: Tensor) -> Tensor:
        x = bound(_exponent(s, lists.positive, alpha, beta, base))
        term_p, term_n = softplus(logsumexp_of_sides(x, positive, negative))
        values: Tensor = term_p / alpha + term_n / beta
        return values

    def with_slope(s: Tensor) -> tuple[Tensor, Tensor] | None:
        """By the sums of exponentials as they are, one exponential in place of two."""
        if not s.is_cpu or s.numel() == 0:  # on a GPU the look at the exponents would wait for it
            return None
        x = _exponent(s, lists.positive, alpha, beta, base)
        if not float(x.max()) < 40:
            return None
        e = x.clamp_(min=-80).exp_()
        e_p, e_n = e * as_bytes(positive), e * as_bytes(negative)
        sum_p, sum_n = e_p.sum(-1, keepdim=True), e_n.sum(-1, keepdim=True)
        values = (sum_p.log1p() / alpha).add_(sum_n.log1p() / beta).squeeze(-1)
        return values, e_n.div_(sum_n.add_(1)).sub_(e_p.div_(sum_p.add_(1)))

    return reduce_over_both(closed_form(s, with_slope, plain), lists, scores, reduction, return_stats)


class MultiSimilarityLoss(Loss[ListStats]):
    """Module form of `multi_similarity_loss`.

    Example:
        >>> MultiSimilarityLoss(epsilon=None)
        MultiSimilarityLoss(alpha=2.0, beta=50.0, base=0.5, epsilon=None)
    """

    function = staticmethod(multi_similarity_loss)

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float | None = 0.1,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, base=base, epsilon=epsilon, reduction=reduction)
