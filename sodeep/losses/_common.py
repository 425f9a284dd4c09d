"""What every loss shares: the check of its arguments, the mean over the lists that are defined, the Module form."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torch import Tensor, nn

from sodeep._checks import readable
from sodeep._lists import Lists, as_relevance, of_one_item, prepare
from sodeep._precision import full_precision

__all__ = [
    "ListStats",
    "Lists",
    "Loss",
    "UndefinedListWarning",
    "as_relevance",
    "check_range",
    "loss_function",
    "mean_over_defined",
    "optional",
    "prepare",
]

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[..., Any]
"""``check(value, name=...)`` of `sodeep._checks`: gives the value to go on with, or raises."""


class ListStats(NamedTuple):
    """How many lists a loss saw, and over how many of them its mean is.

    A list is left out where the loss has no meaning for it (no relevant item, say).
    """

    total: int
    defined: Tensor


class UndefinedListWarning(UserWarning):
    """No list of the batch was defined, so the loss was a constant zero."""


def mean_over_defined(
    values: Tensor,
    defined: Tensor,
    scores: Tensor,
    return_stats: bool = False,
    needs: str = "a relevant item",
    other: str = "relevant",
) -> Any:
    """Mean of `values` (Q,) over the `defined` lists (Q,); when none is, a zero that keeps the graph of `scores`.

    Args:
        values: one value a list; those of undefined lists are dropped, NaN included.
        defined: bool, which lists count.
        scores: what the zero hangs on.
        return_stats: also return the `ListStats`.
        needs: what a list needs to be defined, for the warning.
        other: the argument beside `scores`, for the warning.
    """
    count = defined.sum()
    loss = values.masked_fill(~defined, 0).sum() / count.clamp(min=1)
    if not values.requires_grad:
        loss = loss + scores.flatten()[:0].sum()  # zero terms: 0 * scores would be NaN where a masked score is
    if readable(count) and int(count) == 0:
        warnings.warn(
            f"0 of {defined.numel()} lists have {needs}{of_one_item(scores, other)}: "
            "the loss is a constant 0 for this batch.",
            UndefinedListWarning,
            stacklevel=5,  # the caller of the loss: this, the loss and its two wrappers are in between
        )
    return (loss, ListStats(defined.numel(), count)) if return_stats else loss


def loss_function(*together: Check, **checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of every loss: says what its options must be, and runs it in full precision.

    The options are checked when the loss is called and, by `check_options`, when its Module is built.

    Args:
        together: ``check(**options)`` of several options at once, after each alone.
        checks: what each option must be.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
        run = full_precision(function)

        def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
            checked = {
                name: checks[name](value, name=name) if name in checks else value for name, value in given.items()
            }
            for check in together:
                check(**{**defaults, **checked})
            return checked

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return run(*args, **check_options(kwargs))

        wrapper.check_options = check_options  # type: ignore[attr-defined]
        return wrapper

    return decorate


def check_range(low: float, high: float, **_: object) -> None:
    """An interval that is not empty."""
    if not low < high:
        raise ValueError(f"`low` must be below `high`, got low={low} and high={high}.")


def optional(check: Check) -> Check:
    """The same check, for an option that may be None."""
    return lambda value, name: None if value is None else check(value, name=name)


class Loss(nn.Module):
    """A loss function with its keyword arguments stored: the Module form of every loss.

    A subclass sets `function` and calls `super().__init__(name=value, ...)` with that function's keyword arguments,
    which are checked and become attributes. A sorter among them so becomes a submodule, which ``.to(device)`` moves,
    and is frozen: an optimiser that is handed the loss finds nothing to train.
    """

    function: Callable[..., Any]
    """The loss as a pure function: ``function = staticmethod(x_loss)``, a `loss_function`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        options = type(self).function.check_options(options)  # type: ignore[attr-defined]
        self._options = tuple(options)
        for name, value in options.items():
            if isinstance(value, nn.Module):
                _freeze(value)
            setattr(self, name, value)

    def forward(self, scores: Tensor, *target: Tensor, where: Tensor | None = None, **extra: Any) -> Any:
        """The loss of `scores` (..., N) against a target of the same shape; see the function of the same name.

        The target may go by its name there (`relevant=`, say), and `where` may be the third argument. What else that
        function takes can be given as well, such as ``return_stats=True``.
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
