"""What every loss shares: the check of its arguments, the mean over the lists that are defined, the Module form."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from sodeep._checks import readable
from sodeep._lists import Lists, as_relevance, prepare

__all__ = [
    "ListStats",
    "Lists",
    "Loss",
    "UndefinedListWarning",
    "as_relevance",
    "mean_over_defined",
    "prepare",
]


class ListStats(NamedTuple):
    """How many lists a loss saw, and over how many of them its mean is.

    A list is left out where the loss has no meaning for it (no relevant item, say).
    """

    total: int
    defined: Tensor


class UndefinedListWarning(UserWarning):
    """No list of the batch was defined, so the loss was a constant zero."""


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
            stacklevel=4,  # the caller of the loss: this, the loss and its decorator are in between
        )
    return (loss, ListStats(defined.numel(), count)) if return_stats else loss


class Loss(nn.Module):
    """A loss function with its keyword arguments stored: the Module form of every loss.

    A subclass sets `function` and calls `super().__init__(name=value, ...)` with that function's keyword arguments,
    which become attributes. A sorter among them so becomes a submodule, which ``.to(device)`` moves, and is frozen: an
    optimiser that is handed the loss finds nothing to train.
    """

    function: Callable[..., Any]
    """The loss as a pure function: ``function = staticmethod(x_loss)``."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = tuple(options)
        for name, value in options.items():
            if isinstance(value, nn.Module):
                _freeze(value)
            setattr(self, name, value)

    def forward(self, scores: Tensor, *target: Tensor, where: Tensor | None = None, **extra: Any) -> Any:
        """The loss of `scores` (..., N) against a target of the same shape; see the function of the same name.

        The target may go by its name there (`relevant=`, say), and `where` may be the third argument.
        """
        if len(target) > 1:
            *target, where = target  # type: ignore[assignment]
        options = {name: getattr(self, name) for name in self._options}
        return type(self).function(scores, *target, where=where, **{**options, **extra})

    def extra_repr(self) -> str:
        """The options, for repr(); modules among them are shown below."""
        values = {name: getattr(self, name) for name in self._options}
        return ", ".join(
            f"{name}={getattr(value, '__name__', repr(value))}"
            for name, value in values.items()
            if not isinstance(value, nn.Module)
        )


def _freeze(rank_fn: nn.Module) -> None:
    """Nothing to train in `rank_fn`, nor in what it wraps."""
    rank_fn.requires_grad_(False)
    for module in rank_fn.modules():
        if callable(freeze := getattr(module, "freeze", None)):
            freeze()
