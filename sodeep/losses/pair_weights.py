"""Pair weights of any loss, d loss / d scores, and how many pairs contribute to its gradient.

Two losses with the same d loss / d scores train the same embeddings, so this is where to compare losses.
Wang et al. 2019 call ``|d loss / d s_ij|`` the weight of the pair (general pair weighting) and compare losses by it;
Bleeker & de Rijke 2022 count the pairs whose weight is not negligible (COCOS, counting contributing samples).
Both work here for any loss of ``(scores, relevant)``, ours or yours, since both come from autograd, not from formulas.

Example:
    >>> from sodeep.losses import TripletLoss
    >>> scores = torch.tensor([[0.8, 0.3, 0.7, 0.4]])
    >>> relevant = torch.tensor([[True, True, False, False]])
    >>> pair_weights(TripletLoss(mining="semihard"), scores, relevant)  # 0.8 is to go up and 0.7 down
    tensor([[-1.,  0.,  1.,  0.]])
    >>> contributing_pairs(TripletLoss(mining="semihard"), scores, relevant)
    ContributingPairs(positives=tensor([1]), negatives=tensor([1]), moved=tensor([True]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import check_finite, check_number, check_scores, check_where, describe, is_number
from sodeep._core.lists import as_relevance


def pair_weights(loss: Callable[..., Any], scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Tensor:
    """The gradient d loss / d scores: the weight of each pair, with its sign.

    The sign is kept: negative where the loss falls as the score rises, which is how positives are wanted. ``|result|``
    is the weight of Wang et al. 2019. It is the gradient of the scalar as it is: for a mean over Q lists each entry
    has the factor 1/Q, so multiply by Q for the weights within a list. The graph of `scores` is not touched.

    Args:
        loss: any callable ``loss(scores, relevant)`` to a scalar tensor: a Module or a function of `sodeep.losses`,
            your own. For other options: ``functools.partial`` or a lambda.
        scores: (..., N), floating point, higher = closer.
        relevant: (..., N), boolean.
        where: (..., N), boolean, True = a real item; when given, it is passed on to the loss as ``where=``.

    Returns:
        (..., N), the dtype of `scores`, no graph.

    Raises:
        TypeError: `scores` are not floating point, `where` is not boolean, or `loss` gives no tensor.
        ValueError: shapes differ, or the value of `loss` is not a scalar that depends on `scores`.

    Example:
        >>> mine = lambda scores, relevant: (scores * ~relevant).sum() - (scores * relevant).sum()
        >>> pair_weights(mine, torch.tensor([[0.8, 0.3]]), torch.tensor([[True, False]]))
        tensor([[-1.,  1.]])
    """
    check_scores(scores)
    relevant = as_relevance(relevant, scores)  # a loss that takes ~relevant of 0 and 1 would get -1 and -2
    options = {} if where is None else {"where": check_where(where, scores)}
    with torch.enable_grad():
        leaf = scores.detach().clone().requires_grad_()
        value = loss(leaf, relevant, **options)
        if not isinstance(value, Tensor):
            raise TypeError(f"`loss` must give a scalar tensor, got {type(value).__name__}. Leave return_stats off.")
        if value.ndim != 0:
            raise ValueError(f"`loss` must give a scalar tensor, got shape {tuple(value.shape)}. Take its mean.")
        if not value.requires_grad:
            raise ValueError("`loss` must depend on `scores` by differentiable steps, got a value without a graph.")
        (weights,) = torch.autograd.grad(value, leaf)
    return weights


class ContributingPairs(NamedTuple):
    """How many pairs of each query contribute to the gradient of a loss.

    The usual summaries: ``counts.negatives[counts.moved].float().mean()`` over the queries that have any, and
    ``(~counts.moved).sum()`` for those that have none.
    """

    positives: Tensor
    """(...), int64: relevant items that contribute."""
    negatives: Tensor
    """(...), int64: other items that contribute."""
    moved: Tensor
    """(...), bool: whether any pair of the query contributes."""


def contributing_pairs(
    loss: Callable[..., Any],
    scores: Tensor,
    relevant: Tensor,
    *,
    threshold: float = 0.01,
    relative_to: str | None = "query",
    where: Tensor | None = None,
) -> ContributingPairs:
    """Count, query by query, the pairs whose weight is above a threshold.

    One definition for every loss, from `pair_weights`, and three thresholds, which answer three questions:

    * ``relative_to="query"``: `threshold` times the largest weight of that query. Among how many pairs a query divides
      its gradient, whatever its size. Every query with any gradient has such a pair, by construction.
    * ``relative_to="batch"``: `threshold` times the largest weight of the batch. Which queries move a step: an
      optimizer that divides by the size of the gradient, as Adam does, leaves out those far below the others.
    * ``relative_to=None``: `threshold` itself, in the unit of the loss over the unit of the scores. Which queries the
      loss takes as solved. For a loss that is a mean over Q lists, 0.01 / Q is a weight of 0.01 within a list. The
      counts of two losses compare as far as their scales do.

    With a hinge, where a pair takes part or does not, ``threshold=0`` counts the pairs of the active hinges. The COCOS
    method of Bleeker & de Rijke 2022 has one rule a loss instead: any hinge above zero, a softmax probability above
    0.01, a slope of the sigmoid above 0.01 without its 1/tau: absolute, in other words. Their counts from caption to
    image for SmoothAP come from the wrong columns; here which pair is positive is read from `relevant` alone, so both
    directions of an image x caption matrix are right.

    Args:
        loss: any callable ``loss(scores, relevant)`` to a scalar tensor, as for `pair_weights`.
        scores: (..., N), floating point, higher = closer.
        relevant: (..., N), boolean.
        threshold: weights up to this do not count; in [0, 1), or with ``relative_to=None`` any number of at least 0.
        relative_to: what the threshold is a part of: the largest weight of the "query" or of the "batch"; None: it is
            absolute.
        where: (..., N), boolean, True = a real item; when given, it is passed on to the loss as ``where=``.

    Returns:
        `ContributingPairs`, of the shape of the batch: the counts of positives and of negatives, and which queries
        have any. A query whose weights are all 0 (undefined, or nothing left to learn) has none: leave it out of a
        mean and report such queries apart.

    Raises:
        TypeError: as `pair_weights`.
        ValueError: as `pair_weights`, or `threshold` or `relative_to` is not as above.

    References:
        Bleeker, de Rijke. Do Lessons from Metric Learning Generalize to Image-Caption Retrieval? ECIR 2022.

    Example:
        >>> from sodeep.losses import NTXentLoss
        >>> scores = torch.tensor([[0.9, 0.8, 0.1, 0.0], [0.9, 0.2, 0.1, 0.0]])
        >>> relevant = torch.tensor([[True, False, False, False], [True, False, False, False]])
        >>> contributing_pairs(NTXentLoss(), scores, relevant)  # each divides its gradient among a few pairs
        ContributingPairs(positives=tensor([1, 1]), negatives=tensor([1, 3]), moved=tensor([True, True]))
        >>> contributing_pairs(NTXentLoss(), scores, relevant, relative_to="batch")  # that of the second is small
        ContributingPairs(positives=tensor([1, 0]), negatives=tensor([1, 0]), moved=tensor([ True, False]))
    """
    if relative_to is None:
        check_number(threshold, "threshold", low=0)
    elif relative_to not in ("query", "batch"):
        raise ValueError(f"`relative_to` must be 'query', 'batch' or None, got {describe(relative_to)}.")
    elif not is_number(threshold) or not 0 <= threshold < 1:
        raise ValueError(f"`threshold` must be a number in [0, 1), got {describe(threshold)}.")
    weights = pair_weights(loss, scores, relevant, where).abs()
    check_finite(weights, name="d loss / d scores", remedy="Look at the gradient of the loss at those scores.")
    if relative_to is None:
        counted = weights > threshold
    else:
        largest = weights.amax(-1, keepdim=True)
        if relative_to == "batch" and largest.numel():
            largest = largest.amax()
        counted = weights > threshold * largest
    relevant = as_relevance(relevant, scores)
    return ContributingPairs((counted & relevant).sum(-1), (counted & ~relevant).sum(-1), counted.any(-1))
