"""Losses on the distribution over a list, or over its orders, that the scores define: ListNet, ListMLE and softmax.

Example:
    >>> import torch
    >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
    >>> losses = [loss(scores, relevance) for loss in (list_net_loss, list_mle_loss, softmax_loss)]
    >>> print(" ".join(f"{loss:.4f}" for loss in losses))
    1.1391 0.5489 1.1184
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.checks import check_bool, check_positive, readable
from sodeep._core.grades import check_gain, check_grades, check_weight, scaled_gains
from sodeep._core.sort import ascending, runs
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, reduce_defined

NEEDS = "two items of different relevance"


@loss_function(temperature=check_positive, target_temperature=check_positive)
def list_net_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    temperature: float = 1.0,
    target_temperature: float = 1.0,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """ListNet: the cross-entropy between the chances to be first, by relevance and by score.

    For a list with relevance y and scores s::

        -sum over i of p_i log q_i,   p = softmax(y / target_temperature),   q = softmax(s / temperature)

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        relevance: (..., N), floating point or whole numbers, of any sign.
        temperature: of the scores, in their units.
        target_temperature: of the relevance, in its units.
        weight: (..., N), at least 0, a factor of the terms.

    Returns:
        A scalar, at least 0. A list is defined when two real items have different relevance.

    References:
        Cao, Qin, Liu, Tsai, Li. Learning to Rank: From Pairwise Approach to Listwise Approach. ICML 2007: the loss of
        its top-one probabilities.

    Example:
        >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
        >>> print(f"{list_net_loss(scores, relevance):.4f}")
        1.1391
    """
    x, grades, real = check_grades(scores, relevance, where)
    weight = check_weight(weight, scores, where)
    chance = (grades / target_temperature).masked_fill(_absent(real), -torch.inf).softmax(-1)
    values = _cross_entropy(x / temperature, chance if weight is None else chance * weight, real)
    return reduce_defined(values, _differ(grades, real), scores, reduction, return_stats, NEEDS, "relevance")


class ListNetLoss(Loss[ListStats]):
    """Module form of `list_net_loss`.

    Example:
        >>> ListNetLoss()
        ListNetLoss(temperature=1.0, target_temperature=1.0)
    """

    function = staticmethod(list_net_loss)

    def __init__(self, *, temperature: float = 1.0, target_temperature: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, target_temperature=target_temperature, reduction=reduction)


@loss_function(gain=check_gain, temperature=check_positive)
def softmax_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    gain: str = "exponential",
    temperature: float = 1.0,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Softmax cross-entropy of graded relevance: the distribution of the gains against that of the scores.

    For a list with gains g and scores s::

        -sum over i of g_i / (sum of g) * log softmax(s / temperature)_i

    With one relevant item it is the cross-entropy of classification, and a bound of 1 - RR (Bruch et al.). Items of no
    relevance are pushed down by those of some alone, unlike in `list_net_loss`.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        relevance: (..., N), grades of at least 0, floating point or whole numbers.
        gain: "exponential": g = 2^relevance - 1. "linear": the relevance itself.
        temperature: in units of the scores.
        weight: (..., N), at least 0, a factor of the gains.

    Returns:
        A scalar, at least 0. A list is defined when a real item has positive relevance.

    References:
        Bruch, Wang, Bendersky, Najork. An Analysis of the Softmax Cross Entropy Loss for Learning-to-Rank with Binary
        Relevance. ICTIR 2019.

    Example:
        >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
        >>> print(f"{softmax_loss(scores, relevance):.4f}")
        1.1184
    """
    x, grades, real = check_grades(scores, relevance, where, low=0)
    weight = check_weight(weight, scores, where)
    gains = scaled_gains(grades, gain)
    if weight is not None:
        gains = gains * weight
    total = gains.sum(-1, keepdim=True)
    values = _cross_entropy(x / temperature, gains / total.masked_fill(total == 0, 1), real)
    needs = "an item of positive relevance"
    return reduce_defined(values, total.squeeze(-1) > 0, scores, reduction, return_stats, needs, "relevance")


class SoftmaxLoss(Loss[ListStats]):
    """Module form of `softmax_loss`.

    Example:
        >>> SoftmaxLoss(temperature=0.5)
        SoftmaxLoss(gain='exponential', temperature=0.5)
    """

    function = staticmethod(softmax_loss)

    def __init__(self, *, gain: str = "exponential", temperature: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(gain=gain, temperature=temperature, reduction=reduction)


@loss_function(temperature=check_positive, position_aware=check_bool)
def list_mle_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    temperature: float = 1.0,
    position_aware: bool = False,
    weight: Tensor | None = None,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """ListMLE: minus the log-likelihood of the order by relevance, drawn item by item with softmax chances.

    In the Plackett-Luce model, from the best item down, each is drawn from those that are left. With
    s = scores / temperature::

        sum over i of a_i (log(sum over j of no higher relevance of exp(s_j)) - s_i) / (sum of a_i)

    Items of equal relevance are drawn from the same set, so that their order does not matter (the treatment of ties by
    Breslow in Cox regression). O(n log n).

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        relevance: (..., N), floating point or whole numbers; only their order counts.
        temperature: in units of the scores.
        position_aware: False: a = 1 (Xia et al., who sum). True: a = 2^(n - r) - 1 at rank r of n by relevance, in the
            mean over the ranks of a grade (p-ListMLE, Lan et al.).
        weight: (..., N), at least 0, a factor of the terms.

    Returns:
        A scalar, at least 0. A list is defined when two real items have different relevance.

    References:
        Xia, Liu, Wang, Zhang, Li. Listwise Approach to Learning to Rank: Theory and Algorithm. ICML 2008.
        Lan, Zhu, Guo, Niu, Cheng. Position-Aware ListMLE: A Sequential Learning Process for Ranking. UAI 2014.

    Example:
        >>> scores, relevance = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([1, 0, 2])
        >>> print(f"{list_mle_loss(scores, relevance):.4f}")
        0.5489
    """
    x, grades, real = check_grades(scores, relevance, where)
    weight = check_weight(weight, scores, where)
    ordered, order = ascending((-grades).masked_fill(~real, torch.inf))
    begin, end = runs(ordered)
    count = real.sum(-1, keepdim=True)
    rank = torch.arange(1, x.shape[-1] + 1, dtype=grades.dtype, device=x.device)
    here = rank <= count
    factor = here.to(grades.dtype)
    if position_aware:
        until = pad((torch.exp2(-rank) - torch.exp2(-count.to(rank.dtype))).clamp(min=0).cumsum(-1), (1, 0))
        factor = (until.gather(-1, end) - until.gather(-1, begin)) / (end - begin) * here
    total = factor.sum(-1, keepdim=True)
    factor = factor / total.masked_fill(total == 0, 1)
    if weight is not None:
        factor = factor * weight.gather(-1, order)
    s = _from_top(x / temperature, real).gather(-1, order)
    left = _log_sums_to_end(s, here).gather(-1, begin)
    values = ((left - s).masked_fill(~here, 0) * factor.to(s.dtype)).sum(-1)
    return reduce_defined(values, _differ(grades, real), scores, reduction, return_stats, NEEDS, "relevance")


class ListMLELoss(Loss[ListStats]):
    """Module form of `list_mle_loss`.

    Example:
        >>> ListMLELoss(position_aware=True)
        ListMLELoss(temperature=1.0, position_aware=True)
    """

    function = staticmethod(list_mle_loss)

    def __init__(self, *, temperature: float = 1.0, position_aware: bool = False, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, position_aware=position_aware, reduction=reduction)


def _absent(real: Tensor) -> Tensor:
    """Masked items, but for lists without a real one: a softmax of nothing is NaN."""
    return ~real & real.any(-1, keepdim=True)


def _differ(grades: Tensor, real: Tensor) -> Tensor:
    """Whether a list (Q,) has two real items of different grades."""
    return grades.masked_fill(~real, torch.inf).amin(-1) < grades.masked_fill(~real, -torch.inf).amax(-1)


def _cross_entropy(scores: Tensor, chance: Tensor, real: Tensor) -> Tensor:
    """Minus the sum of chance * log softmax(scores), over the real items: (Q,)."""
    log_softmax = scores.masked_fill(_absent(real), -torch.inf).log_softmax(-1)
    return -(chance.to(scores.dtype) * log_softmax).masked_fill(~real, 0).sum(-1)


def _from_top(scores: Tensor, real: Tensor) -> Tensor:
    """Scores minus the highest of their list: exact to rounding in what follows; masked items far below all others.

    Not at minus infinity, of which the gradient of logcumsumexp is NaN.
    """
    top = scores.detach().masked_fill(~real, -torch.inf).amax(-1, keepdim=True)
    s = (scores - top.masked_fill(top == -torch.inf, 0)).clamp(min=torch.finfo(scores.dtype).min / 4)
    low = s.detach().masked_fill(~real, 0).amin(-1, keepdim=True)
    return torch.where(real, s, 2 * low - 100)


def _log_sums_to_end(s: Tensor, here: Tensor) -> Tensor:
    """The logarithm of the sum of exp(s) from each place (Q, N) to the last; anything where there is no item."""
    if s.is_cpu and readable(s) and bool(((s.detach() > _DEEPEST) | ~here).all()):  # plain sums stay inside float64
        sums = s.double().exp().masked_fill(~here, 0).flip(-1).cumsum(-1).flip(-1)
        return sums.masked_fill(~here, 1).log().to(s.dtype)
    return s.flip(-1).logcumsumexp(-1).flip(-1)


_DEEPEST = -600.0
"""exp of it, and a number of them over each other, are within float64."""
