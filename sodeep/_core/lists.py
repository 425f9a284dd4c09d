"""Checked lists: scores with relevance or with a target, one row a list, and means over the items not masked."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import (
    ask,
    check_device,
    check_finite,
    check_same_shape,
    check_scores,
    check_where,
    compiling,
    ordinary,
    readable,
)
from sodeep._core.precision import wide_dtype, widened
from sodeep._core.warn import warn


class Lists(NamedTuple):
    """Checked arguments of a retrieval or pair loss, as (Q, N): one row a list."""

    scores: Tensor
    """float32 or float64; masked items hold 0."""
    positive: Tensor
    """bool: relevant real items."""
    negative: Tensor
    """bool: real items that are not relevant."""
    masked: bool
    """Whether there may be items that are neither."""


def as_relevance(relevant: object, scores: Tensor, name: str = "relevant") -> Tensor:
    """`relevant` as a boolean tensor of the shape of `scores`; numbers are taken when all are 0 or 1."""
    if not isinstance(relevant, Tensor):
        raise TypeError(f"`{name}` must be a boolean tensor of the shape of `scores`, got {type(relevant).__name__}.")
    if scores.ndim == 2 and scores.shape[1] > 1 and relevant.shape == scores.shape[:1] != scores.shape[1:]:
        raise ValueError(
            f"`{name}` must have the shape of `scores` {tuple(scores.shape)}, got {tuple(relevant.shape)}. For "
            "embeddings (n, d) and labels (n,) wrap the loss: EmbeddingLoss(loss)(embeddings, labels)."
        )
    check_same_shape(relevant, scores, name, "scores")
    check_device(relevant, scores, name, "scores")
    if relevant.dtype == torch.bool:
        return ordinary(relevant)

    def judge(binary: float) -> None:
        if not binary:
            raise ValueError(
                f"`{name}` must be boolean (or all 0 and 1), got dtype {str(relevant.dtype).removeprefix('torch.')} "
                f"with other values. Say what counts as relevant, for example {name} > 0."
            )

    if relevant.is_complex():
        judge(False)
    if readable(relevant):
        ask(((relevant == 0) | (relevant == 1)).all(), judge)
    return relevant != 0


def check_lists(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Lists:
    """Check the arguments of a loss on lists and bring them to (Q, N), in float32 or wider."""
    check_scores(scores)
    relevant = as_relevance(relevant, scores)
    where = check_where(where, scores)
    check_finite(scores, where)
    values = widened(scores)
    if where is not None:
        # masked_fill, not a product: a masked NaN must reach neither the value nor the gradient
        values = values.masked_fill(~where, 0)
    negative = ~relevant
    positive = ~negative  # not the given one: a True that was made of a byte of 255 is one of 1 now, for `as_bytes`
    if where is not None:
        positive, negative = positive & where, negative & where
    if scores.ndim != 2:
        n = scores.shape[-1]
        values, positive, negative = values.reshape(-1, n), positive.reshape(-1, n), negative.reshape(-1, n)
    return Lists(values, positive, negative, where is not None)


def check_target(
    scores: Tensor, target: Tensor, where: Tensor | None = None, name: str = "target"
) -> tuple[Tensor, Tensor | None]:
    """Check scores and what they should be ordered like, floats or whole numbers.

    Returns:
        The target as floats and the mask of real items, each of the shape of `scores`, or None for no mask. Floats
        hold whole numbers up to 2^53: where the order counts, `ordered_floats` of the target keeps all of them apart.
    """
    check_scores(scores)
    whole = isinstance(target, Tensor) and not target.is_floating_point() and not target.is_complex()
    values = check_scores(target.to(wide_dtype(scores)) if whole else target, name)
    check_same_shape(values, scores, name, "scores")
    check_device(values, scores, name, "scores")
    where = check_where(where, scores)
    check_finite(scores, where)
    check_finite(values, where, name)
    return values, where


def masked_mean(x: Tensor, where: Tensor | None, keepdim: bool = False) -> Tensor:
    """Mean of `x` (..., n) over the real items of the last axis; 0 for a list without any."""
    if where is None:
        return x.mean(-1, keepdim=keepdim)
    # where, not a product: a masked NaN must reach neither the value nor the gradient
    return torch.where(where, x, 0.0).sum(-1, keepdim=keepdim) / where.sum(-1, keepdim=keepdim).clamp(min=1)


def one_item_hint(scores: Tensor, other: str = "relevant") -> str:
    """What a warning of undefined lists adds where each has one item, as with what nn.Linear(d, 1) gives."""
    if scores.shape[-1] != 1 or scores.numel() < 2 or not other:
        return ""
    return f" (lists of one item: did you mean scores.squeeze(-1) and {other}.squeeze(-1)?)"


def warn_if_outputs_last(scores: Tensor, where: object, call: str) -> None:
    """Warn of lists of two items, many and unmasked: most likely (samples, outputs), where the last axis is the list.

    The text is the same for every batch, so that Python shows it once.
    """
    if where is None and scores.shape[-1] == 2 and scores.numel() >= 16 and not compiling():
        warn(
            f"{call} got many lists of two items, whose rank correlation is 1 or -1. The last axis is the list: with "
            f"scores and target of shape (samples, 2 outputs), did you mean {call}(scores.T, target.T)?",
        )
