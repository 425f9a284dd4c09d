"""Losses by a softmax over the items of a list: NT-Xent (InfoNCE), N-pairs and NCA.

They raise the probability that a softmax over the scores of a list gives the positives: NT-Xent that of each positive
against all negatives, N-pairs the same on inner products, and NCA that of all positives together. A good default for
retrieval and for contrastive learning with large batches; the temperature sets how much the hardest negatives count.

Sources: Goldberger et al., NeurIPS 2004 (NCA); Sohn, NeurIPS 2016 (N-pairs); Chen et al., ICML 2020 (NT-Xent).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import check_positive, describe, readable
from sodeep._core.derivatives import closed_form
from sodeep._core.lists import Lists, check_lists, masked_mean
from sodeep._core.masks import as_bytes, filled
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, loss_function, reduce_over_both
from sodeep.losses._sums import bound, logsumexp, logsumexp_of_sides, logsumexp_with_softmax, softplus


def _check_temperature(temperature: Any, name: str) -> Any:
    """A positive number, or a tensor of one, which may learn."""
    if not isinstance(temperature, Tensor):
        return check_positive(temperature, name)
    if temperature.numel() != 1 or (readable(temperature) and not bool(temperature > 0)):
        got = describe(temperature) if temperature.numel() != 1 else f"{float(temperature.detach()):g}"
        raise ValueError(
            f"`{name}` must be one positive number, got {got}. EmbeddingLoss(..., scale=) takes a module that gives "
            "log_scale.exp(), which stays positive."
        )
    return temperature


LEAST_TERM = 1e-30
"""Where the softmax of a positive is smaller, it may have underflowed."""


def _in_units(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """Scores over the temperature; a tensor without axes takes their dtype and device."""
    return bound(scores / (temperature.reshape(()) if isinstance(temperature, Tensor) else temperature))


def _nt_xent(lists: Lists, temperature: float | Tensor) -> Tensor:
    s, positive, negative, _ = lists

    def plain(s: Tensor) -> Tensor:
        s = _in_units(s, temperature)
        return masked_mean(softplus(logsumexp(s, negative).unsqueeze(-1) - s), positive)

    def with_slope(s: Tensor) -> tuple[Tensor, Tensor] | None:
        if isinstance(temperature, Tensor):  # its gradient is not part of this
            return None
        s = s if temperature == 1 else _in_units(s, temperature)
        found = _by_one_softmax(s, lists) if s.is_cpu and s.numel() else None  # on a GPU its look would wait
        values, slope = found or stable(bound(s.clone()) if temperature == 1 else s)
        return values, slope if temperature == 1 else slope.div_(temperature)

    def stable(s: Tensor) -> tuple[Tensor, Tensor]:
        total, softmax = logsumexp_with_softmax(s, negative)
        ahead = total.unsqueeze(-1) - s
        chosen = as_bytes(positive)
        share = chosen / chosen.sum(-1, keepdim=True, dtype=s.dtype).clamp_(min=1)
        values = (softplus(ahead) * share).sum(-1)
        share *= ahead.sigmoid_()
        return values, (softmax * share.sum(-1, keepdim=True)).sub_(share)

    return closed_form(s, with_slope, plain)


def _by_one_softmax(s: Tensor, lists: Lists) -> tuple[Tensor, Tensor] | None:
    """NT-Xent at temperature 1 and its gradient, where no positive is so far behind that its term is lost."""
    if lists.masked:
        s = filled(s, ~(lists.positive | lists.negative), torch.finfo(s.dtype).min)
    softmax = s.softmax(-1)
    share = as_bytes(lists.positive).to(s.dtype)
    if float(softmax.min()) < LEAST_TERM and float(filled(softmax, ~lists.positive, 1).min()) < LEAST_TERM:
        return None
    softmax_n = torch.addcmul(softmax, softmax, share, value=-1)
    total = softmax_n.sum(-1, keepdim=True).clamp_(min=torch.finfo(s.dtype).tiny)
    share /= share.sum(-1, keepdim=True).clamp_(min=1)
    values = (total / softmax.clamp(min=LEAST_TERM)).log1p_().mul_(share).sum(-1)
    share *= total / softmax.add_(total)
    by_total = share.sum(-1, keepdim=True).div_(total)
    return values, softmax_n.mul_(by_total).sub_(share)


@loss_function(temperature=_check_temperature)
def nt_xent_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    temperature: float | Tensor = 0.07,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Normalised temperature-scaled cross entropy (InfoNCE): each positive has to be picked out among the negatives.

    For a list, with T the temperature::

        mean_{p in P}  -log( e^{s_p/T} / (e^{s_p/T} + sum_{n in N} e^{s_n/T}) )

    The other positives are not in the denominator. With one positive a list this is the loss of SimCLR and, over the
    rows of an image x caption matrix, one direction of InfoNCE as used for cross-modal retrieval. The sum over N is
    taken once a list, so time and memory are O(N) a list, whatever the number of positives.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the default temperature.
        temperature: T, positive. A tensor of one number gets a gradient where it requires one, and an ``nn.Parameter``
            is a parameter of the Module. `EmbeddingLoss` can learn the logarithm: it stays positive.

    Returns:
        A scalar > 0, or 0 where it underflows.

    References:
        Chen, Kornblith, Norouzi, Hinton. A Simple Framework for Contrastive Learning of Visual Representations. ICML
        2020.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0, 0.0]])
        >>> relevant = torch.tensor([[True, False, False]])
        >>> nt_xent_loss(scores, relevant, temperature=1.0)  # log(1 + 2 / e)
        tensor(0.5514)
    """
    lists = check_lists(scores, relevant, where)
    return reduce_over_both(_nt_xent(lists, temperature), lists, scores, reduction, return_stats)


class NTXentLoss(Loss[ListStats]):
    """Module form of `nt_xent_loss`.

    Example:
        >>> NTXentLoss()
        NTXentLoss(temperature=0.07)
    """

    function = staticmethod(nt_xent_loss)

    def __init__(self, temperature: float | Tensor = 0.07, *, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)


@loss_function()
def n_pairs_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Multi-class N-pairs: each positive against the negatives of its list, on inner products.

    For a list::

        mean_{p in P} log(1 + sum_{n in N} e^{s_n - s_p})

    Eq. 7 of the paper, where a list has one positive and one negative of each other class; any number of each will do.
    It is `nt_xent_loss` at temperature 1.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N). Made for inner products of embeddings that are not normalised: on cosine similarities the loss
            cannot fall below ``log(1 + |N| e^-2)``.

    Returns:
        A scalar > 0, or 0 where it underflows.

    References:
        Sohn. Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NeurIPS 2016.

    Example:
        >>> n_pairs_loss(torch.tensor([[5.0, 1.0, 1.0]]), torch.tensor([[True, False, False]]))
        tensor(0.0360)
    """
    lists = check_lists(scores, relevant, where)
    return reduce_over_both(_nt_xent(lists, 1.0), lists, scores, reduction, return_stats)


class NPairsLoss(Loss[ListStats]):
    """Module form of `n_pairs_loss`.

    Example:
        >>> NPairsLoss()(torch.tensor([[5.0, 1.0, 1.0]]), torch.tensor([[True, False, False]]))
        tensor(0.0360)
    """

    function = staticmethod(n_pairs_loss)

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


LEAST_FRACTION = 1e-20
"""Where the positives have a smaller fraction of the sum of e^x over their list, some of them may have underflowed."""


def _log_ratio(x: Tensor, lists: Lists) -> Tensor:
    """log(1 + N/P) for the sums P and N of e^x over the positives and the negatives, (Q,)."""

    def plain(x: Tensor) -> Tensor:
        log_p, log_n = logsumexp_of_sides(x, lists.positive, lists.negative)
        return softplus(log_n - log_p)

    def with_slope(x: Tensor) -> tuple[Tensor, Tensor] | None:
        """From the softmax of the whole list, one exponential in place of two."""
        if not x.is_cpu or x.numel() == 0:  # on a GPU the look at P would wait for it
            return None
        if lists.masked:
            x = x.masked_fill(~(lists.positive | lists.negative), torch.finfo(x.dtype).min)
        softmax = x.softmax(-1)
        softmax_p = softmax * as_bytes(lists.positive)
        softmax_n = softmax.sub_(softmax_p)
        sum_p, sum_n = softmax_p.sum(-1, keepdim=True), softmax_n.sum(-1, keepdim=True)
        if float(sum_p.min()) < LEAST_FRACTION:
            return None
        ratio = sum_n / sum_p
        return ratio.log1p().squeeze(-1), torch.addcmul(softmax_n, softmax_p, ratio, value=-1)

    return closed_form(x, with_slope, plain)


@loss_function(temperature=_check_temperature)
def nca_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Neighbourhood components analysis: the probability that a soft nearest neighbour is relevant.

    For a list, with T the temperature::

        -log( sum_{p in P} e^{s_p/T} / sum_{i in P and N} e^{s_i/T} )

    (Eq. 1 of the supplement of Wang et al. 2019 lacks the minus sign.)

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N). In the papers minus squared distances, ``-D**2``; on cosine similarities give a temperature,
            0.1 say: at 1 the terms can hardly differ.
        temperature: T, positive; a tensor may learn, as in `nt_xent_loss`.

    Returns:
        A scalar > 0, or 0 where it underflows.

    References:
        Goldberger, Roweis, Hinton, Salakhutdinov. Neighbourhood Components Analysis. NeurIPS 2004.
        Salakhutdinov, Hinton. Learning a Nonlinear Embedding by Preserving Class Neighbourhood Structure. AISTATS 2007.

    Example:
        >>> nca_loss(torch.zeros(1, 4), torch.tensor([[True, False, False, False]]))  # log 4
        tensor(1.3863)
    """
    lists = check_lists(scores, relevant, where)
    plain = not isinstance(temperature, Tensor) and temperature == 1
    s = lists.scores if plain else _in_units(lists.scores, temperature)
    values = _log_ratio(s, lists)  # log(1 + N/P): nothing cancels when the positives are far ahead
    return reduce_over_both(values, lists, scores, reduction, return_stats)


class NCALoss(Loss[ListStats]):
    """Module form of `nca_loss`.

    Example:
        >>> NCALoss()
        NCALoss(temperature=1.0)
    """

    function = staticmethod(nca_loss)

    def __init__(self, temperature: float | Tensor = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)
