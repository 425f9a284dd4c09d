"""Pair losses: contrastive, triplet, NT-Xent, N-pairs, NCA, lifted structure, binomial deviance, Multi-Similarity, ...

What holds for all of them, besides what all losses share (see `sodeep.losses`):

* **Scores are similarities: higher = closer.** The defaults are made for cosine similarities in [-1, 1] unless a
  loss says otherwise. A paper that speaks of a distance D reads here with ``scores = -D`` (what `pairwise_scores`
  gives for ``similarity="euclidean"``): "D_ap + margin < D_an" is "s_p - margin > s_n", and a bound D < m is s > -m.
* **A list is defined when both P and N have an item**, unless the loss says otherwise.
* **Hinges are averaged over what is active** (hinge above zero), list by list: as training goes on most hinges are
  zero, and a mean over all of them would fade away with the number of easy pairs.

The gradient of any of them with respect to the scores is its pair weights (Wang et al. 2019): see `sodeep.weights`.

Example:
    >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.8, 0.3]], requires_grad=True)
    >>> relevant = torch.tensor([[True, False, False], [True, False, True]])
    >>> loss = TripletLoss(margin=0.2)(scores, relevant)
    >>> loss.backward()
    >>> scores.grad
    tensor([[ 0.0000,  0.0000,  0.0000],
            [-0.2500,  0.5000, -0.2500]])
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from sodeep._checks import (
    check_at_least,
    check_choice,
    check_number,
    check_positive,
    compiling,
    describe,
    in_forward_mode,
    readable,
)
from sodeep._lists import Lists, masked_mean, prepare
from sodeep.losses._common import (
    ListStats,
    Loss,
    check_range,
    check_reduction,
    loss_function,
    optional,
    reduce_defined,
)

MINING = ("all", "semihard", "hard")


def _has_both(lists: Lists) -> Tensor:
    """Which lists (Q,) have an item in P and one in N."""
    return (lists.positive.sum(-1) > 0) & (lists.negative.sum(-1) > 0)


def _reduce_over_both(
    values: Tensor, lists: Lists, scores: Tensor, reduction: str, return_stats: bool
) -> Tensor | tuple[Tensor, ListStats]:
    needs = "both a relevant item and one that is not"
    return reduce_defined(values, _has_both(lists), scores, reduction, return_stats, needs=needs)


@torch.no_grad()
def _bound(x: Tensor) -> Tensor:
    """Exponents of finite scores, which may be infinite, brought back in place: inf - inf is NaN.

    Their gradient is as if they had stayed where they were.
    """
    end = torch.finfo(x.dtype).max / 8
    return x.clamp_min_(-end).clamp_max_(end)


class _LogSumExp(torch.autograd.Function):
    """Log of the sum of e^x over the entries in `mask` (last axis); very low, with zero gradient, where it has none.

    By way of the softmax, which is its gradient: the exponential of torch on a CPU is ten times slower where it
    underflows, as at every masked entry, and the softmax is not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # finite, since a row of -inf would have a NaN softmax, and far enough from the end of the range to be added to
        x = torch.where(mask, x, torch.finfo(x.dtype).min / 4)
        shares = x.softmax(-1)
        return x.amax(-1) - shares.amax(-1).log(), shares

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def jvp(ctx: Any, moved: Tensor, _: None) -> tuple[Tensor, None]:
        x, mask, shares = ctx.saved_tensors
        if torch.is_grad_enabled():
            shares = _LogSumExp.forward(x, mask)[1]
        return (shares * moved).sum(-1), None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        x, mask, shares = ctx.saved_tensors
        if torch.is_grad_enabled() or in_forward_mode():  # a second derivative is wanted
            shares = _LogSumExp.forward(x, mask)[1]
        return grad.unsqueeze(-1) * shares, None


def _logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    if compiling():  # which fuses it all
        return _LogSumExp.forward(x, mask)[0]
    result: Tensor = _LogSumExp.apply(x, mask)[0]  # type: ignore[no-untyped-call]
    return result


def _logsumexp_of_sides(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Both at once, (2, Q): over `positive`, over `negative`."""
    return _logsumexp(x.expand(2, *x.shape), torch.stack([positive, negative]))


LEAST_SHARE = 1e-20
"""Where the positives have less of the whole e^x of their list, what each of them adds may have underflowed."""


class _LogRatio(torch.autograd.Function):
    """log(1 + N/P) for the sums P and N of e^x over two sides of a list, from the softmax of the whole list.

    One exponential in place of the two of `_logsumexp_of_sides`, which remains for lists whose P underflows, and for
    torch.func.
    """

    @staticmethod
    def parts(x: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The shares of the positives and of the others in their whole (Q, N), and the sums of both (Q,)."""
        shares = x.softmax(-1)
        of_p = shares * positive
        of_n = shares - of_p
        return of_p, of_n, of_p.sum(-1), of_n.sum(-1)

    @staticmethod
    def forward(ctx: Any, x: Tensor, positive: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(x, positive, *parts)
        return (parts[3] / parts[2]).log1p()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, positive, *parts = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            parts = _LogRatio.parts(x, positive)
        of_p, of_n, sum_p, sum_n = parts
        by_n = torch.where(sum_p > 0, grad, 0)
        by_p = -by_n * sum_n / sum_p.clamp(min=torch.finfo(x.dtype).tiny)
        return torch.addcmul(of_n * by_n.unsqueeze(-1), of_p, by_p.unsqueeze(-1)), *[None] * 5


def _log_ratio(x: Tensor, lists: Lists) -> Tensor:
    """log(1 + N/P) for the sums P and N of e^x over the positives and the negatives, (Q,)."""
    if x.device.type == "cpu" and readable(x):  # on a GPU the look at P would wait for it
        if lists.masked:
            x = x.masked_fill(~(lists.positive | lists.negative), torch.finfo(x.dtype).min / 4)
        positive = lists.positive.to(x.dtype)
        with torch.no_grad():
            parts = _LogRatio.parts(x, positive)
            lost = (parts[2] < LEAST_SHARE) & (positive.sum(-1) > 0)
        if not bool(lost.any()):
            result: Tensor = _LogRatio.apply(x, positive, *parts)  # type: ignore[no-untyped-call]
            return result
    of_p, of_n = _logsumexp_of_sides(x, lists.positive, lists.negative)
    return _softplus(of_n - of_p)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x). Torch's own goes over to x at 20, which float64 can tell from the truth."""
    return torch.nn.functional.softplus(x, threshold=40)


# ---------------------------------------------------------------------------------------------------------------------
# Hinges
# ---------------------------------------------------------------------------------------------------------------------


@loss_function(positive_margin=check_number, negative_margin=check_number)
def contrastive_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    positive_margin: float = 0.9,
    negative_margin: float = 0.6,
    where: Tensor | None = None,
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
    lists = prepare(scores, relevant, where)
    s, positive, negative, _ = lists
    with torch.no_grad():  # once it is known which hinges are active, their means are linear in the scores
        near, far = negative & (s > negative_margin), positive & (s < positive_margin)
        num_near, num_far = near.sum(-1, keepdim=True), far.sum(-1, keepdim=True)
        weights = near / num_near.clamp(min=1).to(s.dtype) - far / num_far.clamp(min=1).to(s.dtype)
    bounds = positive_margin * (num_far > 0).to(s.dtype) - negative_margin * (num_near > 0).to(s.dtype)
    values = (weights * s).sum(-1) + bounds.squeeze(-1)
    return reduce_defined(values, (positive | negative).any(-1), scores, reduction, return_stats, needs="a real item")


class ContrastiveLoss(Loss[ListStats]):
    """Module form of `contrastive_loss`.

    Example:
        >>> ContrastiveLoss()
        ContrastiveLoss(positive_margin=0.9, negative_margin=0.6)
    """

    function = staticmethod(contrastive_loss)

    def __init__(self, positive_margin: float = 0.9, negative_margin: float = 0.6, *, reduction: str = "mean") -> None:
        super().__init__(positive_margin=positive_margin, negative_margin=negative_margin, reduction=reduction)


@loss_function(margin=check_positive, mining=partial(check_choice, choices=MINING))
def triplet_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    margin: float = 0.2,
    mining: str = "all",
    where: Tensor | None = None,
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

    "all" and "semihard" take O(N log N) a list, or O(N |P|) where that is less, and O(N) memory.

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
    lists = prepare(scores, relevant, where)
    s, positive, negative, _ = lists
    if mining == "hard":
        lowest = torch.finfo(s.dtype).min / 4
        hardest = s.masked_fill(~negative, lowest).amax(-1, keepdim=True)
        hinge = hardest - s + margin
        values = masked_mean(hinge, positive & ~(hinge <= 0))  # not "hinge > 0", which would leave NaN out
    else:
        # A sum of hinges is linear in the scores once it is known which are active. So all that is needed is in how
        # many active triplets each item is, and these counts are the gradient.
        count_p, count_n = _active_triplets(lists, margin, semihard=mining == "semihard")
        active = count_p.sum(-1)
        values = (((count_n - count_p) * s).sum(-1) + margin * active) / active.clamp(min=1)
    return _reduce_over_both(values, lists, scores, reduction, return_stats)


class TripletLoss(Loss[ListStats]):
    """Module form of `triplet_loss`.

    Example:
        >>> TripletLoss(mining="hard")
        TripletLoss(margin=0.2, mining='hard')
    """

    function = staticmethod(triplet_loss)

    def __init__(self, margin: float = 0.2, mining: str = "all", *, reduction: str = "mean") -> None:
        super().__init__(margin=margin, mining=mining, reduction=reduction)


FEW_POSITIVES = 16
"""Up to so many a list, going through them one by one is quicker than sorting."""


@torch.no_grad()
def _active_triplets(lists: Lists, margin: float, semihard: bool) -> tuple[Tensor, Tensor]:
    """In how many active triplets each positive and each negative is: two (Q, N), 0 elsewhere.

    A triplet is active when s_p < s_n + margin, and semi-hard when s_n < s_p as well.
    """
    s, positive, negative = lists.scores.contiguous(), lists.positive, lists.negative  # searchsorted warns otherwise
    marked = torch.where(positive, s, float("inf"))
    most = int(positive.sum(-1).max()) if len(s) and readable(s) else s.shape[-1]
    if not compiling() and most <= FEW_POSITIVES:  # a compiled graph would be for this number only
        rising, order = marked.topk(most, largest=False)
        count_n, counts, above = torch.zeros_like(marked), torch.zeros_like(rising), s + margin
        for k in range(most):
            active = negative & (rising[:, k : k + 1] < above)
            if semihard:
                active &= rising[:, k : k + 1] > s
            count_n += active
            counts[:, k] = active.sum(-1)
    else:
        rising, order = marked.sort(dim=-1)
        # A negative is active with a run of the positives: from `first` up to, not including, `last`.
        last = torch.searchsorted(rising, s + margin)
        if semihard:
            first = torch.searchsorted(rising, s, right=True)
            last = torch.maximum(first, last)  # at scores so large that s + margin is s
        else:
            first = torch.zeros_like(last)
        real = negative.to(s.dtype)
        count_n = (last - first) * real
        # The same runs, counted by positive: +1 where a run begins, -1 where it ends, and a running sum.
        steps = s.new_zeros(s.shape[0], s.shape[1] + 1).scatter_add(-1, first, real).scatter_add(-1, last, -real)
        counts = steps.cumsum(-1)[:, :-1]
    # slots beyond the positives of a list hold infinity, with which nothing is active
    return torch.zeros_like(marked).scatter(-1, order, counts), count_n


# ---------------------------------------------------------------------------------------------------------------------
# Log-sum-exps
# ---------------------------------------------------------------------------------------------------------------------


@loss_function(temperature=check_positive)
def nt_xent_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    temperature: float = 0.07,
    where: Tensor | None = None,
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
        temperature: T, positive.

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
    lists = prepare(scores, relevant, where)
    s = _bound(lists.scores / temperature)
    below = _softplus(_logsumexp(s, lists.negative).unsqueeze(-1) - s)
    return _reduce_over_both(masked_mean(below, lists.positive), lists, scores, reduction, return_stats)


class NTXentLoss(Loss[ListStats]):
    """Module form of `nt_xent_loss`.

    Example:
        >>> NTXentLoss()
        NTXentLoss(temperature=0.07)
    """

    function = staticmethod(nt_xent_loss)

    def __init__(self, temperature: float = 0.07, *, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)


@loss_function()
def n_pairs_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    where: Tensor | None = None,
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
            cannot fall below log(1 + |N| e^-2).

    Returns:
        A scalar > 0, or 0 where it underflows.

    References:
        Sohn. Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NeurIPS 2016.

    Example:
        >>> n_pairs_loss(torch.tensor([[5.0, 1.0, 1.0]]), torch.tensor([[True, False, False]]))
        tensor(0.0360)
    """
    return nt_xent_loss(scores, relevant, temperature=1.0, where=where, reduction=reduction, return_stats=return_stats)


class NPairsLoss(Loss[ListStats]):
    """Module form of `n_pairs_loss`.

    Example:
        >>> NPairsLoss()(torch.tensor([[5.0, 1.0, 1.0]]), torch.tensor([[True, False, False]]))
        tensor(0.0360)
    """

    function = staticmethod(n_pairs_loss)

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


@loss_function(temperature=check_positive)
def nca_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    temperature: float = 1.0,
    where: Tensor | None = None,
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
        temperature: T, positive.

    Returns:
        A scalar > 0, or 0 where it underflows.

    References:
        Goldberger, Roweis, Hinton, Salakhutdinov. Neighbourhood Components Analysis. NeurIPS 2004.
        Salakhutdinov, Hinton. Learning a Nonlinear Embedding by Preserving Class Neighbourhood Structure. AISTATS 2007.

    Example:
        >>> nca_loss(torch.zeros(1, 4), torch.tensor([[True, False, False, False]]))  # log 4
        tensor(1.3863)
    """
    lists = prepare(scores, relevant, where)
    s = lists.scores if temperature == 1 else _bound(lists.scores / temperature)
    values = _log_ratio(s, lists)  # log(1 + N/P): nothing cancels when the positives are far ahead
    return _reduce_over_both(values, lists, scores, reduction, return_stats)


class NCALoss(Loss[ListStats]):
    """Module form of `nca_loss`.

    Example:
        >>> NCALoss()
        NCALoss(temperature=1.0)
    """

    function = staticmethod(nca_loss)

    def __init__(self, temperature: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)


@loss_function(margin=check_number)
def lifted_structure_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    margin: float = 1.0,
    where: Tensor | None = None,
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
    lists = prepare(scores, relevant, where)
    s, positive, negative, _ = lists
    of_p, of_n = _logsumexp_of_sides(torch.where(positive, -s, s), positive, negative)
    values = torch.relu(of_p + of_n + margin)
    return _reduce_over_both(values, lists, scores, reduction, return_stats)


class LiftedStructureLoss(Loss[ListStats]):
    """Module form of `lifted_structure_loss`.

    Example:
        >>> LiftedStructureLoss()
        LiftedStructureLoss(margin=1.0)
    """

    function = staticmethod(lifted_structure_loss)

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(margin=margin, reduction=reduction)


STEEPNESS = {"alpha": check_positive, "beta": check_positive, "base": check_number}


@loss_function(**STEEPNESS)
def binomial_deviance_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    where: Tensor | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """A smooth contrastive loss: each pair against one threshold, alone.

    For a list (0 for a side that has no pair)::

        mean_P log(1 + e^{alpha (base - s)})  +  mean_N log(1 + e^{beta (s - base)})

    In the form of Wang et al.: the weight of a pair is alpha/|P| or beta/|N| times the logistic of the same exponent.

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
    lists = prepare(scores, relevant, where)
    _, positive, negative, _ = lists
    deviance = _softplus(_exponent(lists, alpha, beta, base))
    values = masked_mean(deviance, positive) + masked_mean(deviance, negative)
    return reduce_defined(values, (positive | negative).any(-1), scores, reduction, return_stats, needs="a real item")


class BinomialDevianceLoss(Loss[ListStats]):
    """Module form of `binomial_deviance_loss`.

    Example:
        >>> BinomialDevianceLoss()
        BinomialDevianceLoss(alpha=2.0, beta=50.0, base=0.5)
    """

    function = staticmethod(binomial_deviance_loss)

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, *, reduction: str = "mean") -> None:
        super().__init__(alpha=alpha, beta=beta, base=base, reduction=reduction)


def _exponent(lists: Lists, alpha: float, beta: float, base: float) -> Tensor:
    """The exponents: alpha (base - s) for positives, beta (s - base) for the others."""
    above = lists.scores - base
    return _bound(torch.where(lists.positive, -alpha * above, beta * above))


@loss_function(**STEEPNESS)
def bin_lifted_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    where: Tensor | None = None,
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
    lists = prepare(scores, relevant, where)
    _, positive, negative, _ = lists
    x = _exponent(lists, alpha, beta, base)
    deviance = _softplus(x)
    lifted_p, lifted_n = _logsumexp_of_sides(x, positive, negative)
    of_p = torch.where(positive, deviance, 0.0).sum(-1) + lifted_p
    of_n = torch.where(negative, deviance, 0.0).sum(-1) + lifted_n
    values = of_p / (2 * alpha) + of_n / (2 * beta)
    return _reduce_over_both(values, lists, scores, reduction, return_stats)


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
        epsilon: how much easier than the hardest pair of the other kind a pair may be, a finite number; None: no
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
    lists = prepare(scores, relevant, where)
    s, positive, negative, _ = lists
    x = _exponent(lists, alpha, beta, base)
    if epsilon is not None:
        fixed = s.detach()
        infinity = float("inf")
        lowest_positive = fixed.masked_fill(~positive, infinity).amin(-1, keepdim=True)
        highest_negative = fixed.masked_fill(~negative, -infinity).amax(-1, keepdim=True)
        # not "fixed < ...", which would leave NaN out
        positive = positive & ~(fixed >= highest_negative + epsilon)
        negative = negative & ~(fixed <= lowest_positive - epsilon)
    of_p, of_n = _softplus(_logsumexp_of_sides(x, positive, negative))
    values = of_p / alpha + of_n / beta
    return _reduce_over_both(values, lists, scores, reduction, return_stats)


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


# ---------------------------------------------------------------------------------------------------------------------
# Histograms
# ---------------------------------------------------------------------------------------------------------------------


def _check_mean(reduction: str, name: str) -> str:
    """The one reduction of a statistic of the whole batch."""
    if check_reduction(reduction, name) != "mean":
        raise ValueError(f"`{name}` must be 'mean' for a statistic of the whole batch, got {describe(reduction)}.")
    return reduction


@loss_function(
    check_range, num_bins=partial(check_at_least, low=1), low=check_number, high=check_number, reduction=_check_mean
)
def histogram_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    num_bins: int = 100,
    low: float = -1.0,
    high: float = 1.0,
    where: Tensor | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Probability that a random negative pair of the batch is more similar than a random positive one, by histograms.

    With nodes t_r = low + r D, r = 0 ... num_bins, D = (high - low) / num_bins, every score gives to its two
    neighbouring nodes in proportion to its nearness; h+ and h- are the histograms of the positive and the negative
    pairs, each of sum 1::

        sum_r h-_r sum_{q <= r} h+_q

    **The histograms are of the whole batch**, all lists together, so a batch is not the mean of its lists. The weight
    of a positive pair in [t_p, t_{p+1}] is h-_p / (D |S+|), that of a negative one h+_{p+1} / (D |S-|) (Wang et al.
    2019, supplement, where the nodes r D - 1 count from r = 1 and are one off). A score at a node belongs to the
    interval above it. It takes two scatters, whatever the number of bins.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the default range.
        num_bins: number of intervals, so there is one node more.
        low: the first node.
        high: the last node. A score outside is at the end of the range, with zero gradient.
        reduction: "mean" alone: a statistic of the whole batch has no value for each list.

    Returns:
        A scalar in [0, 1]; 0.5 or so where the scores say nothing. It needs one positive and one negative pair in the
        batch, in whichever lists; then every list counts.

    References:
        Ustinova, Lempitsky. Learning Deep Embeddings with Histogram Loss. NeurIPS 2016.

    Example:
        >>> scores = torch.tensor([[0.8, 0.4, 0.2]])
        >>> relevant = torch.tensor([[True, False, False]])
        >>> histogram_loss(scores, relevant)
        tensor(0.)
        >>> histogram_loss(scores, ~relevant)
        tensor(1.)
    """
    lists = prepare(scores, relevant, where)
    s, positive, negative, _ = lists
    place = ((s - low) * (num_bins / (high - low))).clamp(0, num_bins)
    node = place.detach().floor().clamp(max=num_bins - 1).nan_to_num(0.0)  # NaN goes on in its share, not as an index
    real = positive | negative
    upper = (place - node).masked_fill(~real, 0)  # the share of the node above
    lower = real.to(s.dtype) - upper
    # Two histograms side by side, positives first; one pair a row, since one of millions would exhaust a float32.
    nodes = num_bins + 1
    index = node.long() + nodes * negative
    histogram = s.new_zeros(s.shape[0], 2 * nodes).scatter_add(-1, index, lower).scatter_add(-1, index + 1, upper)
    pos, neg = histogram.sum(0).view(2, nodes)
    total_pos, total_neg = positive.sum(), negative.sum()
    loss = (neg * pos.cumsum(0)).sum() / (total_pos.clamp(min=1) * total_neg.clamp(min=1))
    defined = (total_pos > 0) & (total_neg > 0)
    needs = "a positive and a negative pair between them"
    return reduce_defined(loss.expand(len(s)), defined.expand(len(s)), scores, reduction, return_stats, needs=needs)


class HistogramLoss(Loss[ListStats]):
    """Module form of `histogram_loss`.

    Example:
        >>> HistogramLoss()
        HistogramLoss(num_bins=100, low=-1.0, high=1.0)
    """

    function = staticmethod(histogram_loss)

    def __init__(self, num_bins: int = 100, low: float = -1.0, high: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(num_bins=num_bins, low=low, high=high, reduction=reduction)
