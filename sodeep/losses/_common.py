"""What every loss shares: the check of its arguments, the mean over the lists that are defined, the Module form."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sodeep._checks import check_device, check_finite, check_same_shape, check_scores, check_where, readable
from sodeep._precision import working_dtype


class ListStats(NamedTuple):
    """How many lists a loss saw, and over how many of them its mean is.

    A list is left out where the loss has no meaning for it (no relevant item, say).
    """

    total: int
    defined: Tensor


class UndefinedListWarning(UserWarning):
    """No list of the batch was defined, so the loss was a constant zero."""


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
    check_same_shape(relevant, scores, name, "scores")
    check_device(relevant, scores, name, "scores")
    if relevant.dtype == torch.bool:
        return relevant
    if relevant.is_complex() or (readable(relevant) and not bool(((relevant == 0) | (relevant == 1)).all())):
        raise ValueError(
            f"`{name}` must be boolean (or all 0 and 1), got dtype {str(relevant.dtype).removeprefix('torch.')} "
            f"with other values. Say what counts as relevant, for example {name} > 0."
        )
    return relevant != 0


def prepare(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Lists:
    """Check the arguments of a loss on lists and bring them to (Q, N), in float32 or wider."""
    check_scores(scores)
    relevant = as_relevance(relevant, scores)
    where = check_where(where, scores)
    check_finite(scores, where)
    values = scores.to(working_dtype(scores))
    if where is not None:
        # masked_fill, not a product: a masked NaN must reach neither the value nor the gradient
        values = values.masked_fill(~where, 0)
    n = scores.shape[-1]
    positive = relevant if where is None else relevant & where
    negative = ~relevant if where is None else ~relevant & where
    return Lists(values.reshape(-1, n), positive.reshape(-1, n), negative.reshape(-1, n), where is not None)


def mean_over_defined(
    values: Tensor, defined: Tensor, scores: Tensor, return_stats: bool = False, needs: str = "a relevant item"
) -> Any:
    """Mean of `values` (Q,) over the `defined` lists (Q,); when none is, a zero that keeps the graph of `scores`.

    Args:
        values: one value a list; those of undefined lists are dropped, NaN included.
        defined: bool, which lists count.
        scores: what the zero hangs on.
        return_stats: also return the `ListStats`.
        needs: what a list needs to be defined, for the warning.
    """
    count = defined.sum()
    loss = values.masked_fill(~defined, 0).sum() / count.clamp(min=1)
    if not values.requires_grad:
        loss = loss + scores.flatten()[:0].sum()  # zero terms: 0 * scores would be NaN where a masked score is
    if readable(count) and int(count) == 0:
        warnings.warn(
            f"0 of {defined.numel()} lists have {needs}: the loss is a constant 0 for this batch.",
            UndefinedListWarning,
            stacklevel=3,
        )
    return (loss, ListStats(defined.numel(), count)) if return_stats else loss


class Loss(nn.Module):
    """A loss function with its keyword arguments stored: the Module form of every loss.

    A subclass sets `function` and calls `super().__init__(name=value, ...)` with that function's keyword arguments.
    """

    function: Callable[..., Any]
    """The loss as a pure function: ``function = staticmethod(x_loss)``."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, scores: Tensor, target: Tensor, where: Tensor | None = None, **extra: Any) -> Any:
        """The loss of `scores` (..., N) against `target` of the same shape; see the function of the same name."""
        return type(self).function(scores, target, where=where, **self.options, **extra)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
